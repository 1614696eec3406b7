//! From a message to ggml and back: bytes → request → validated → done → answered.

use super::objects::{DefinedGraph, Objects, Stream};
use super::refusal::{Refusal, no_buffer, no_event, no_graph, no_region, no_stream, not_in_region, refuse};
use super::regions::Regions;
use super::stats::Stats;
use crate::ggml::{Backend, Buffer, Event, Graph, Library, Place, Span, ValidGraph};
use crate::store::Shelf;
use ferry_protocol::calls::{CallCode, Manner};
use ferry_protocol::channel::{Broken, Interest, Payload, Sender, Waiter};
use ferry_protocol::frame::{Flags, Header};
use ferry_protocol::graph::{GraphTables, PatchHeader, TensorChange};
use ferry_protocol::ids::{BufferId, GraphId, StreamId};
use ferry_protocol::limits::{DATA_CHUNK_BYTES, NOTICE_TEXT_BYTES_MAX, RUNS_MAX, THREADS_MAX};
use ferry_protocol::reply::{Allocated, Memory, NoticeHeader};
use ferry_protocol::request::{
    AllocBuffer, CopyTensor, NewEvent, RegionTransfer, Request, TensorRange, TensorRuns, params_bytes,
};
use ferry_protocol::status::Status;
use ferry_protocol::tensor::TensorLayout;
use std::sync::Arc;

/// The answers' way to the guest.
pub struct Replies {
    /// Sends.
    pub sender: Box<dyn Sender>,
    /// Sleeps until there is room.
    pub waiter: Arc<dyn Waiter>,
}

impl Replies {
    fn send(&mut self, header: Header, parts: &[&[u8]]) -> Result<(), Broken> {
        while !self.sender.try_send(header, parts)? {
            self.waiter.wait(Interest::SPACE, None)?;
        }
        Ok(())
    }

    /// Pushes out what a stream has not taken yet.
    pub fn flush(&mut self) -> Result<(), Broken> {
        while !self.sender.flush()? {
            self.waiter.wait(Interest::SPACE, None)?;
        }
        Ok(())
    }
}

/// What a call is answered with.
pub(super) enum Answer {
    /// Nothing, or an empty message to one who waits.
    Done,
    /// These bytes.
    Bytes(Vec<u8>),
    /// The stream in the header.
    Stream(StreamId),
    /// The bytes of a tensor, in parts.
    Contents { tensor: TensorLayout, offset: u64, size: u64 },
}

/// A session: one guest process.
pub struct Session {
    library: Arc<Library>,
    pub(super) objects: Objects,
    /// After the objects: a stream may be working on them.
    regions: Regions,
    /// Weights that the guest need not send.
    pub(super) shelf: Option<Shelf>,
    scratch: Vec<u8>,
    /// What was counted so far.
    pub stats: Stats,
}

impl Session {
    /// A new one, on the devices of `library`.
    pub fn new(library: Arc<Library>, regions: Regions, shelf: Option<Shelf>, client_pid: u32) -> Self {
        let stats = Stats { client_pid, worker_pid: std::process::id(), ..Stats::default() };
        Self { library, objects: Objects::default(), regions, shelf, scratch: Vec::new(), stats }
    }

    /// Serves one message. An error is the channel's: the session is over.
    pub fn serve(
        &mut self,
        header: Header,
        payload: Payload<'_>,
        replies: &mut Replies,
    ) -> Result<(), Broken> {
        self.stats.messages += 1;
        self.stats.bytes_in += payload.len() as u64;
        match self.perform(header, payload) {
            Ok(answer) if manner(header.call) == Manner::Awaited => self.answer(header, answer, replies),
            Ok(_) => Ok(()),
            Err(refusal) => self.report(header, &refusal, replies),
        }
    }

    fn perform(&mut self, header: Header, payload: Payload<'_>) -> Result<Answer, Refusal> {
        // The parameters are copied once; only the copy is looked at.
        let params_len = params_bytes(header.call).map_or(payload.len(), |bytes| bytes.min(payload.len()));
        let mut params = std::mem::take(&mut self.scratch);
        params.resize(params_len, 0);
        payload.copy_to(&mut params);
        let request = Request::parse(header.call, &params, payload.len() - params_len);
        self.scratch = params;
        let request = request.map_err(|error| Refusal {
            status: if header.call.row().is_some() { Status::MALFORMED } else { Status::UNKNOWN_CALL },
            text: error.to_string(),
        })?;
        let data = payload.skip(params_len);
        match request {
            Request::AllocBuffer(alloc) => self.alloc_buffer(alloc),
            Request::FreeBuffer(id) => match self.objects.free_buffer(id) {
                Some(bytes) => {
                    self.stats.buffer_bytes -= bytes;
                    Ok(Answer::Done)
                }
                None => no_buffer(id),
            },
            Request::ClearBuffer(clear) => {
                self.with_buffer(clear.buffer, |buffer| buffer.clear(clear.value as u8))
            }
            Request::ResetBuffer(id) => self.with_buffer(id, Buffer::reset),
            Request::SetUsage(usage) if usage.value > 2 => refuse(Status::INVALID, "no such usage"),
            Request::SetUsage(usage) => {
                self.with_buffer(usage.buffer, |buffer| buffer.set_usage(usage.value as u8))
            }
            Request::Write(range) => {
                let layout = TensorLayout { buffer: range.buffer, ..bytes_layout(range.offset, range.size) };
                if !self.objects.write_in_order(layout, &data) {
                    self.place(layout)?.set(&data, 0);
                }
                Ok(Answer::Done)
            }
            Request::SetTensor(range) => {
                let place = self.range(&range)?;
                place.set(&data, range.offset);
                Ok(Answer::Done)
            }
            Request::Read(range) => {
                let tensor = TensorLayout { buffer: range.buffer, ..bytes_layout(range.offset, range.size) };
                self.place_while_computing(tensor)?;
                Ok(Answer::Contents { tensor, offset: 0, size: range.size })
            }
            Request::GetTensor(range) => {
                contains(&self.place_while_computing(range.tensor)?, &range)?;
                Ok(Answer::Contents { tensor: range.tensor, offset: range.offset, size: range.size })
            }
            Request::SetTensor2d(runs) => {
                self.runs(&runs)?.set_runs(&data, &runs);
                Ok(Answer::Done)
            }
            Request::GetTensor2d(runs) => match runs.bytes() {
                Some(bytes) if bytes <= DATA_CHUNK_BYTES as u64 => {
                    Ok(Answer::Bytes(self.runs(&runs)?.get_runs(&runs)))
                }
                _ => refuse(Status::LIMIT, format!("more than {DATA_CHUNK_BYTES} bytes in one 2d transfer")),
            },
            Request::InitTensor(layout) => match self.place(layout)?.init() {
                Ok(()) => Ok(Answer::Done),
                Err(code) => refuse(Status::FAILED, format!("init_tensor: ggml status {code}")),
            },
            Request::MemsetTensor(memset) => {
                self.range(&memset.range)?.fill(memset.value as u8, memset.range.offset, memset.range.size);
                Ok(Answer::Done)
            }
            Request::CopyTensor(copy) => self.copy_tensor(&copy),
            Request::AddRegion(add) => match self.regions.add(add.region, add.size) {
                Ok(()) => Ok(Answer::Done),
                Err((status, text)) => refuse(status, text),
            },
            Request::DropRegion(region) => {
                self.objects.synchronize_all();
                if self.regions.drop_region(region) { Ok(Answer::Done) } else { no_region(region) }
            }
            Request::SetFromRegion(transfer) => self.set_from_region(&transfer, header.stream),
            Request::GetIntoRegion(transfer) => self.get_into_region(&transfer, header.stream),
            Request::SetFromStore(range, pieces) => self.set_from_store(&range, &pieces),
            Request::EventNew(new) => self.new_event(&new),
            Request::EventFree(id) => match self.objects.free_event(id) {
                true => Ok(Answer::Done),
                false => no_event(id),
            },
            Request::EventRecord(id) => match self.objects.event_and_stream(id, header.stream) {
                Some((event, stream, true)) => {
                    event.record(&stream.backend);
                    self.stats.events += 1;
                    Ok(Answer::Done)
                }
                Some(_) => refuse(Status::INVALID, "an event of another device"),
                None => no_event(id),
            },
            Request::EventWait(id) => match self.objects.event_and_stream(id, header.stream) {
                Some((event, stream, _)) => {
                    event.hold(&stream.backend);
                    Ok(Answer::Done)
                }
                None => no_event(id),
            },
            Request::EventSynchronize(id) => match self.objects.event(id) {
                Some(event) => {
                    event.synchronize();
                    Ok(Answer::Done)
                }
                None => no_event(id),
            },
            Request::InitBackend(device) => self.init_backend(device),
            Request::FreeBackend => match self.objects.free_stream(header.stream) {
                true => Ok(Answer::Done),
                false => no_stream(header.stream),
            },
            Request::Synchronize => self.synchronize(header.stream),
            Request::SetThreads(threads) => self.set_threads(header.stream, threads),
            Request::GraphDef(id, tables) => self.define(id, tables),
            Request::GraphPatch(patch, changes) => self.patch(&patch, &changes),
            Request::GraphFree(id) => {
                // It may have gone with one of its buffers already.
                self.objects.synchronize_all();
                drop(self.objects.take_graph(id));
                Ok(Answer::Done)
            }
            Request::Exec(id) => self.exec(id, header.stream),
            Request::GraphOptimize(tables) => self.optimize(&tables, header.stream),
            Request::SupportsOp(device, records) => {
                let device = self.device(device)?;
                let supported = self.library.supports_op(device, &records).unwrap_or(false);
                Ok(Answer::Bytes(u32::from(supported).to_le_bytes().to_vec()))
            }
            Request::AllocSize(device, records) => {
                let device = self.device(device)?;
                match self.library.alloc_size(device, &records) {
                    Some(size) => Ok(Answer::Bytes(size.to_le_bytes().to_vec())),
                    None => refuse(Status::UNSUPPORTED, "the host's ggml does not have this tensor"),
                }
            }
            Request::Memory(device) => {
                let (free, total) = self.library.memory(self.device(device)?);
                Ok(Answer::Bytes(bytemuck::bytes_of(&Memory { free, total }).to_vec()))
            }
        }
    }

    fn device(&self, device: u32) -> Result<usize, Refusal> {
        let (at, count) = (device as usize, self.library.devices().len());
        if at < count { Ok(at) } else { refuse(Status::STALE_HANDLE, format!("device {device} of {count}")) }
    }

    fn alloc_buffer(&mut self, alloc: AllocBuffer) -> Result<Answer, Refusal> {
        let device = self.device(alloc.device)?;
        let size = usize::try_from(alloc.size).ok().filter(|&size| size > 0);
        let Some(size) = size else {
            return refuse(Status::INVALID, format!("a buffer of {} bytes", alloc.size));
        };
        let Some(buffer) = Buffer::alloc(&self.library, device, size) else {
            return refuse(Status::NO_MEMORY, format!("no room for a buffer of {size} bytes"));
        };
        self.regions.pin_arena();
        let size = buffer.size();
        match self.objects.add_buffer(buffer) {
            Some(buffer) => {
                self.stats.buffer_bytes += size;
                self.stats.buffer_bytes_max = self.stats.buffer_bytes_max.max(self.stats.buffer_bytes);
                Ok(Answer::Bytes(bytemuck::bytes_of(&Allocated { buffer, size }).to_vec()))
            }
            None => refuse(Status::LIMIT, "too many buffers in this session"),
        }
    }

    /// Calls `work` on a buffer that nothing is computing with.
    fn with_buffer(&mut self, id: BufferId, work: impl FnOnce(&Buffer)) -> Result<Answer, Refusal> {
        self.objects.synchronize_all();
        match self.objects.buffer(id) {
            Some(buffer) => {
                work(buffer);
                Ok(Answer::Done)
            }
            None => no_buffer(id),
        }
    }

    /// A tensor's place; nothing is computing any more.
    fn place(&mut self, layout: TensorLayout) -> Result<Place<'_>, Refusal> {
        self.objects.synchronize_all();
        self.place_while_computing(layout)
    }

    /// A tensor's place, to be used in the order of a stream.
    fn place_while_computing(&self, layout: TensorLayout) -> Result<Place<'_>, Refusal> {
        let Some(buffer) = self.objects.buffer(layout.buffer) else { return no_buffer(layout.buffer) };
        let size = buffer.size();
        match buffer.place(layout) {
            Some(place) => Ok(place),
            None => refuse(
                Status::INVALID,
                format!(
                    "{} {:?} at {} is not within its buffer of {size}",
                    layout.kind, layout.ne, layout.offset
                ),
            ),
        }
    }

    pub(super) fn range(&mut self, range: &TensorRange) -> Result<Place<'_>, Refusal> {
        let place = self.place(range.tensor)?;
        contains(&place, range)?;
        Ok(place)
    }

    /// The place of a 2d transfer.
    fn runs(&mut self, runs: &TensorRuns) -> Result<Place<'_>, Refusal> {
        if runs.runs > RUNS_MAX {
            return refuse(Status::LIMIT, format!("{} runs, at most {RUNS_MAX} are allowed", runs.runs));
        }
        let place = self.place(runs.tensor)?;
        if place.contains_runs(runs) {
            return Ok(place);
        }
        let TensorRuns { offset, size, runs, stride, .. } = runs;
        let what = format!("{runs} runs of {size} bytes from {offset} on, {stride} apart");
        refuse(Status::INVALID, format!("{what}, are not within a tensor of {}", place.bytes()))
    }

    fn copy_tensor(&mut self, copy: &CopyTensor) -> Result<Answer, Refusal> {
        let same = |a: &TensorLayout, b: &TensorLayout| a.ne == b.ne && a.nb == b.nb && a.kind == b.kind;
        if !same(&copy.src, &copy.dst) {
            return refuse(Status::INVALID, "a copy between tensors of different layouts");
        }
        self.place(copy.dst)?;
        self.place(copy.src)?;
        // Both are there: look again without borrowing `self` mutably.
        let find = |layout: &TensorLayout| self.objects.buffer(layout.buffer).and_then(|b| b.place(*layout));
        if let (Some(src), Some(dst)) = (find(&copy.src), find(&copy.dst)) {
            src.copy_to(&dst);
        }
        Ok(Answer::Done)
    }

    fn init_backend(&mut self, device: u32) -> Result<Answer, Refusal> {
        let device = self.device(device)?;
        let Some(backend) = Backend::new(&self.library, device) else {
            return refuse(Status::FAILED, format!("device {device} did not start"));
        };
        match self.objects.add_stream(backend, &self.library) {
            Some(stream) => Ok(Answer::Stream(stream)),
            None => refuse(Status::LIMIT, "too many backend instances in this session"),
        }
    }

    fn synchronize(&mut self, id: StreamId) -> Result<Answer, Refusal> {
        if id == StreamId::SESSION {
            self.objects.synchronize_all();
            return Ok(Answer::Done);
        }
        let Some(stream) = self.objects.stream(id) else { return no_stream(id) };
        stream.synchronize();
        Ok(Answer::Done)
    }

    fn set_from_region(&mut self, transfer: &RegionTransfer, stream: StreamId) -> Result<Answer, Refusal> {
        let offset = transfer.range.offset;
        match self.ends_of(transfer, stream)? {
            (place, Some(stream), span) => stream.write_shared(&place, span, offset),
            (place, None, span) => place.set_shared(span, offset),
        }
        Ok(Answer::Done)
    }

    fn get_into_region(&mut self, transfer: &RegionTransfer, stream: StreamId) -> Result<Answer, Refusal> {
        let offset = transfer.range.offset;
        match self.ends_of(transfer, stream)? {
            (place, Some(stream), span) => stream.read_shared(&place, span, offset),
            (place, None, span) => place.get_shared(span, offset),
        }
        Ok(Answer::Done)
    }

    /// Both ends of a transfer, and the stream that keeps it in order; without one, nothing is computing any more.
    fn ends_of(
        &mut self,
        transfer: &RegionTransfer,
        stream: StreamId,
    ) -> Result<(Place<'_>, Option<&mut Stream>, Span<'_>), Refusal> {
        let RegionTransfer { range, at, region, .. } = transfer;
        self.settle(range.tensor.buffer, stream);
        contains(&self.place_while_computing(range.tensor)?, range)?;
        let Some(shared) = self.regions.get(*region) else { return no_region(*region) };
        let Some(span) = shared.span(*at, range.size) else { return not_in_region(*region, *at, range.size) };
        self.stats.bytes_shared += range.size;
        let (buffer, stream) = self.objects.buffer_and_stream(range.tensor.buffer, stream);
        match buffer.and_then(|buffer| buffer.place(range.tensor)) {
            Some(place) => Ok((place, stream, span)),
            None => no_buffer(range.tensor.buffer),
        }
    }

    /// Waits for everything, unless `stream` keeps what is done with `buffer` in order.
    fn settle(&mut self, buffer: BufferId, stream: StreamId) {
        if self.objects.buffer_and_stream(buffer, stream).1.is_none() {
            self.objects.synchronize_all();
        }
    }

    fn new_event(&mut self, new: &NewEvent) -> Result<Answer, Refusal> {
        let device = self.device(new.device)?;
        let Some(event) = Event::new(&self.library, device) else {
            return refuse(Status::UNSUPPORTED, format!("device {device} has no events"));
        };
        match self.objects.add_event(new.event, device, event) {
            true => Ok(Answer::Done),
            false => refuse(Status::LIMIT, format!("event slot {}", new.event.slot)),
        }
    }

    fn set_threads(&mut self, id: StreamId, threads: u32) -> Result<Answer, Refusal> {
        let Some(stream) = self.objects.stream(id) else { return no_stream(id) };
        if threads == 0 || threads > THREADS_MAX {
            return refuse(
                Status::INVALID,
                format!("{threads} threads, between 1 and {THREADS_MAX} are allowed"),
            );
        }
        stream.backend.set_threads(threads);
        Ok(Answer::Done)
    }

    fn define(&mut self, id: GraphId, tables: GraphTables) -> Result<Answer, Refusal> {
        if id.generation == 0 {
            return refuse(Status::INVALID, "graph generation 0");
        }
        // What is in the slot may be computing.
        self.objects.synchronize_all();
        let valid = ValidGraph::check(&self.library, &tables, |id| self.objects.buffer(id))?;
        let Some(graph) = Graph::new(&self.library, &valid) else {
            return refuse(Status::FAILED, "the back-end could not prepare the graph's tensors");
        };
        self.stats.graphs_defined += 1;
        match self.objects.define(DefinedGraph { id, tables, graph }) {
            true => Ok(Answer::Done),
            false => refuse(Status::LIMIT, format!("graph slot {}", id.slot)),
        }
    }

    fn patch(&mut self, patch: &PatchHeader, changes: &[TensorChange]) -> Result<Answer, Refusal> {
        self.objects.synchronize_all();
        let Some(mut defined) = self.objects.take_graph(patch.from) else { return no_graph(patch.from) };
        if patch.to.slot != patch.from.slot || patch.to.generation == 0 {
            return refuse(Status::INVALID, "a patch that moves a graph to another slot, or to generation 0");
        }
        for change in changes {
            match defined.tables.tensors.get_mut(change.at as usize) {
                Some(tensor) => *tensor = change.tensor,
                None => return refuse(Status::INVALID, format!("a patch of tensor {}", change.at)),
            }
        }
        let valid = ValidGraph::check(&self.library, &defined.tables, |id| self.objects.buffer(id))?;
        if !defined.graph.update(&self.library, &valid) {
            return refuse(Status::FAILED, "the back-end could not prepare the graph's tensors");
        }
        defined.id = patch.to;
        self.stats.graphs_patched += 1;
        self.objects.define(defined);
        Ok(Answer::Done)
    }

    fn optimize(&mut self, tables: &GraphTables, stream: StreamId) -> Result<Answer, Refusal> {
        let Some(Stream { backend, .. }) = self.objects.stream(stream) else { return no_stream(stream) };
        let Some(optimized) = backend.optimize(tables) else {
            return refuse(Status::INVALID, "this is no graph without places");
        };
        self.stats.optimizations += 1;
        self.stats.reorderings += u64::from(!optimized.order.is_empty());
        Ok(Answer::Bytes(optimized.encode()))
    }

    fn exec(&mut self, id: GraphId, stream: StreamId) -> Result<Answer, Refusal> {
        let Some((defined, stream)) = self.objects.graph_and_stream(id, stream) else { return no_graph(id) };
        stream.busy = true;
        self.stats.graphs += 1;
        self.stats.nodes += defined.graph.nodes() as u64;
        match stream.backend.compute(&mut defined.graph) {
            Ok(()) => Ok(Answer::Done),
            Err(code) => refuse(Status::FAILED, format!("graph_compute: ggml status {code}")),
        }
    }

    fn answer(&mut self, header: Header, answer: Answer, replies: &mut Replies) -> Result<(), Broken> {
        let reply = header.reply(Status::OK);
        match answer {
            Answer::Done => replies.send(reply, &[]),
            Answer::Stream(stream) => replies.send(Header { stream, ..reply }, &[]),
            Answer::Bytes(bytes) => {
                self.stats.bytes_out += bytes.len() as u64;
                send_parts(reply, &bytes, replies)
            }
            Answer::Contents { tensor, offset, size } => {
                self.stats.bytes_out += size;
                self.send_contents(header, tensor, (offset, size), replies)
            }
        }
    }

    /// Sends a tensor's bytes in parts that the transport takes. They are read in the order of the message's stream, or, for
    /// a message of the session itself, when nothing is computing.
    fn send_contents(
        &mut self,
        header: Header,
        tensor: TensorLayout,
        (mut offset, mut left): (u64, u64),
        replies: &mut Replies,
    ) -> Result<(), Broken> {
        let part_max = DATA_CHUNK_BYTES.min(replies.sender.payload_bytes_max()) as u64;
        self.settle(tensor.buffer, header.stream);
        loop {
            let part = left.min(part_max);
            self.scratch.resize(part as usize, 0);
            let (buffer, stream) = self.objects.buffer_and_stream(tensor.buffer, header.stream);
            let place = buffer.and_then(|buffer| buffer.place(tensor));
            let place = place.expect("was found a moment ago, and nothing happened since");
            match stream {
                Some(stream) => stream.read(&place, &mut self.scratch, offset),
                None => place.get(&mut self.scratch, offset),
            }
            offset += part;
            left -= part;
            let flags = if left > 0 { Flags::MORE } else { Flags::default() };
            replies.send(Header { flags, ..header.reply(Status::OK) }, &[&self.scratch])?;
            if left == 0 {
                return Ok(());
            }
        }
    }

    fn report(&mut self, header: Header, refusal: &Refusal, replies: &mut Replies) -> Result<(), Broken> {
        self.stats.failures += 1;
        tracing::warn!(call = %header.call, seq = header.seq, "{}: {}", refusal.status, refusal.text);
        let text = refusal.text.as_bytes();
        let text = &text[..text.len().min(NOTICE_TEXT_BYTES_MAX)];
        if manner(header.call) == Manner::Awaited {
            return replies.send(header.reply(refusal.status), &[text]);
        }
        let notice = Header { call: CallCode::NOTICE, ..header.reply(refusal.status) };
        let parameters = NoticeHeader { call: header.call, ..NoticeHeader::default() };
        replies.send(notice, &[bytemuck::bytes_of(&parameters), text])
    }
}

/// Sends an answer, in parts if the transport does not take it whole.
fn send_parts(reply: Header, bytes: &[u8], replies: &mut Replies) -> Result<(), Broken> {
    let mut rest = bytes;
    loop {
        let (part, behind) = rest.split_at(rest.len().min(replies.sender.payload_bytes_max()));
        let flags = if behind.is_empty() { Flags::default() } else { Flags::MORE };
        replies.send(Header { flags, ..reply }, &[part])?;
        rest = behind;
        if rest.is_empty() {
            return Ok(());
        }
    }
}

fn contains(place: &Place<'_>, range: &TensorRange) -> Result<(), Refusal> {
    if place.contains(range.offset, range.size) {
        return Ok(());
    }
    let (offset, size, bytes) = (range.offset, range.size, place.bytes());
    refuse(Status::INVALID, format!("bytes {offset} to {offset}+{size} are not within a tensor of {bytes}"))
}

/// A code that is in no table is answered: whoever sent it may be waiting.
fn manner(call: CallCode) -> Manner {
    call.row().map_or(Manner::Awaited, |row| row.manner)
}

fn bytes_layout(offset: u64, size: u64) -> TensorLayout {
    TensorLayout {
        kind: ferry_protocol::types::TensorType::I8,
        // A size beyond i64 is beyond any buffer too: negative, and thus refused.
        ne: [size as i64, 1, 1, 1],
        nb: [1, size, size, size],
        offset,
        ..TensorLayout::default()
    }
}
