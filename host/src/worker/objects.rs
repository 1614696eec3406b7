//! What a session's guest made: buffers, streams, graphs. Handles are resolved here and nowhere else.

use crate::ggml::{Backend, Buffer, Event, Graph, Library, Place, Span, Staging};
use ferry_protocol::channel::Payload;
use ferry_protocol::graph::GraphTables;
use ferry_protocol::ids::{BufferId, EventId, GraphId, StreamId};
use ferry_protocol::limits::{
    BUFFERS_PER_SESSION_MAX, EVENTS_PER_SESSION_MAX, GRAPHS_PER_SESSION_MAX, STREAMS_PER_SESSION_MAX,
};
use ferry_protocol::tensor::TensorLayout;
use std::sync::Arc;

/// A graph and what it was made from.
pub struct DefinedGraph {
    /// Its current name.
    pub id: GraphId,
    /// What the guest sent, to apply patches to.
    pub tables: GraphTables,
    /// What ggml computes.
    pub graph: Graph,
}

/// A stream and what is going on in it.
pub struct Stream {
    /// The backend instance.
    pub backend: Backend,
    /// Something was started since it was synchronized last.
    pub busy: bool,
    /// Small writes on their way; none where the back-end copies at once anyhow.
    staging: Option<Staging>,
}

impl Stream {
    fn new(backend: Backend, library: &Arc<Library>) -> Self {
        let staging = backend.is_async().then(|| Staging::new(library, backend.device())).flatten();
        Self { backend, busy: false, staging }
    }

    /// Waits for everything that was started.
    pub fn synchronize(&mut self) {
        self.backend.synchronize();
        self.is_done();
    }

    /// Copies bytes from `offset` at `place` out when everything before it is done.
    pub fn read(&mut self, place: &Place<'_>, out: &mut [u8], offset: u64) {
        self.backend.read(place, out, offset);
        self.is_done();
    }

    /// The same into shared memory.
    pub fn read_shared(&mut self, place: &Place<'_>, span: Span<'_>, offset: u64) {
        self.backend.read_shared(place, span, offset);
        self.is_done();
    }

    /// Starts copying `span` to `offset` at `place`.
    pub fn write_shared(&mut self, place: &Place<'_>, span: Span<'_>, offset: u64) {
        self.backend.write_shared(place, span, offset);
        self.busy = true;
    }

    fn is_done(&mut self) {
        self.busy = false;
        if let Some(staging) = &mut self.staging {
            staging.clear();
        }
    }

    /// Starts writing `data` at `place`, if it is small enough to be kept until it is there; whether it was.
    fn write_later(&mut self, place: &Place<'_>, data: &Payload<'_>) -> bool {
        let Some(staging) = self.staging.as_mut().filter(|_| Staging::takes(data.len())) else {
            return false;
        };
        let staged = match staging.put(data) {
            Some(staged) => Some(staged),
            None => {
                self.backend.synchronize();
                staging.clear();
                staging.put(data)
            }
        };
        let Some(staged) = staged else { return false };
        self.backend.write(place, &staged, 0);
        self.busy = true;
        true
    }
}

#[derive(Default)]
struct EventSlot {
    generation: u32,
    device: usize,
    event: Option<Event>,
}

#[derive(Default)]
struct BufferSlot {
    generation: u32,
    buffer: Option<Buffer>,
}

/// A session's objects.
///
/// The order of the fields is the order in which they are dropped: graphs name buffers, and a stream may still be
/// working on both.
#[derive(Default)]
pub struct Objects {
    events: Vec<EventSlot>,
    streams: Vec<Option<Stream>>,
    graphs: Vec<Option<DefinedGraph>>,
    buffers: Vec<BufferSlot>,
    free_buffers: Vec<u32>,
}

impl Objects {
    /// Keeps a buffer; `None` if there are too many.
    pub fn add_buffer(&mut self, buffer: Buffer) -> Option<BufferId> {
        let slot = match self.free_buffers.pop() {
            Some(slot) => slot,
            None if self.buffers.len() < BUFFERS_PER_SESSION_MAX => {
                self.buffers.push(BufferSlot::default());
                self.buffers.len() as u32 - 1
            }
            None => return None,
        };
        let entry = &mut self.buffers[slot as usize];
        // A slot whose generations are used up would repeat an id: 0 is skipped, the rest takes 2^32 allocations.
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.buffer = Some(buffer);
        Some(BufferId::new(slot, entry.generation))
    }

    /// The buffer that `id` names.
    pub fn buffer(&self, id: BufferId) -> Option<&Buffer> {
        let slot = self.buffers.get(id.slot() as usize)?;
        (BufferId::new(id.slot(), slot.generation) == id).then_some(slot.buffer.as_ref()).flatten()
    }

    /// Drops a buffer and every graph that names it; its bytes, if there was one.
    pub fn free_buffer(&mut self, id: BufferId) -> Option<u64> {
        let bytes = self.buffer(id)?.size();
        self.synchronize_all();
        for entry in &mut self.graphs {
            if entry
                .as_ref()
                .is_some_and(|defined| defined.tables.tensors.iter().any(|t| t.layout.buffer == id))
            {
                *entry = None;
            }
        }
        self.buffers[id.slot() as usize].buffer = None;
        self.free_buffers.push(id.slot());
        Some(bytes)
    }

    /// Keeps a backend instance; `None` if there are too many.
    pub fn add_stream(&mut self, backend: Backend, library: &Arc<Library>) -> Option<StreamId> {
        let at = self.streams.iter().position(Option::is_none).unwrap_or(self.streams.len());
        if at >= STREAMS_PER_SESSION_MAX {
            return None;
        }
        if at == self.streams.len() {
            self.streams.push(None);
        }
        self.streams[at] = Some(Stream::new(backend, library));
        // 0 is the session itself.
        Some(StreamId(at as u16 + 1))
    }

    /// A buffer, and the stream to use it in, if that is one of the same device.
    pub fn buffer_and_stream(
        &mut self,
        buffer: BufferId,
        stream: StreamId,
    ) -> (Option<&Buffer>, Option<&mut Stream>) {
        let stream = usize::from(stream.0).checked_sub(1).and_then(|at| self.streams.get_mut(at)?.as_mut());
        let slot = self.buffers.get(buffer.slot() as usize);
        let slot = slot.filter(|slot| BufferId::new(buffer.slot(), slot.generation) == buffer);
        let buffer = slot.and_then(|slot| slot.buffer.as_ref());
        let device = buffer.map(Buffer::device);
        (buffer, stream.filter(|stream| Some(stream.backend.device()) == device))
    }

    /// The stream that `id` names.
    pub fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.streams.get_mut(usize::from(id.0).checked_sub(1)?)?.as_mut()
    }

    /// Ends a stream; whether there was one.
    pub fn free_stream(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.stream(id) else { return false };
        stream.synchronize();
        self.streams[usize::from(id.0) - 1] = None;
        true
    }

    /// Waits for every stream that is computing: a buffer's bytes are about to be read or written.
    pub fn synchronize_all(&mut self) {
        for stream in self.streams.iter_mut().flatten().filter(|stream| stream.busy) {
            stream.synchronize();
        }
    }

    /// Writes `data` into a buffer without waiting, in the order of the one stream of the buffer's device; whether that was
    /// possible. With several streams nobody knows which of them the bytes are for.
    pub fn write_in_order(&mut self, layout: TensorLayout, data: &Payload<'_>) -> bool {
        let Some((buffer, stream)) = self.buffer_and_its_stream(layout.buffer) else { return false };
        buffer.place(layout).is_some_and(|place| stream.write_later(&place, data))
    }

    /// A buffer and the only stream of its device.
    fn buffer_and_its_stream(&mut self, id: BufferId) -> Option<(&Buffer, &mut Stream)> {
        let device = self.buffer(id)?.device();
        let on_device = |stream: &&mut Stream| stream.backend.device() == device;
        let mut streams = self.streams.iter_mut().flatten().filter(on_device);
        let stream = streams.next()?;
        if streams.next().is_some() {
            return None;
        }
        let buffer = self.buffers[id.slot() as usize].buffer.as_ref()?;
        Some((buffer, stream))
    }

    /// Keeps an event in place of what was in its slot; `false` if there is no such slot.
    pub fn add_event(&mut self, id: EventId, device: usize, event: Event) -> bool {
        let slot = id.slot as usize;
        if slot >= EVENTS_PER_SESSION_MAX || id.generation == 0 {
            return false;
        }
        if self.events.len() <= slot {
            self.events.resize_with(slot + 1, EventSlot::default);
        }
        self.events[slot] = EventSlot { generation: id.generation, device, event: Some(event) };
        true
    }

    /// An event.
    pub fn event(&self, id: EventId) -> Option<&Event> {
        let slot = self.events.get(id.slot as usize)?;
        (slot.generation == id.generation).then_some(slot.event.as_ref()).flatten()
    }

    /// Frees an event; whether there was one.
    pub fn free_event(&mut self, id: EventId) -> bool {
        let found = self.event(id).is_some();
        if found {
            self.events[id.slot as usize].event = None;
        }
        found
    }

    /// An event and a stream of the same device; `None` without either.
    pub fn event_and_stream(
        &mut self,
        id: EventId,
        stream: StreamId,
    ) -> Option<(&mut Event, &mut Stream, bool)> {
        self.event(id)?;
        let slot = &mut self.events[id.slot as usize];
        let stream = self.streams.get_mut(usize::from(stream.0).checked_sub(1)?)?.as_mut()?;
        let same_device = stream.backend.device() == slot.device;
        Some((slot.event.as_mut()?, stream, same_device))
    }

    /// Keeps a graph in place of what was in its slot; `false` if there is no such slot.
    pub fn define(&mut self, defined: DefinedGraph) -> bool {
        let slot = defined.id.slot as usize;
        if slot >= GRAPHS_PER_SESSION_MAX {
            return false;
        }
        if self.graphs.len() <= slot {
            self.graphs.resize_with(slot + 1, || None);
        }
        self.graphs[slot] = Some(defined);
        true
    }

    /// Takes a graph out.
    pub fn take_graph(&mut self, id: GraphId) -> Option<DefinedGraph> {
        let entry = self.graphs.get_mut(id.slot as usize)?;
        if entry.as_ref()?.id == id { entry.take() } else { None }
    }

    /// A graph and the stream to compute it in.
    pub fn graph_and_stream(
        &mut self,
        id: GraphId,
        stream: StreamId,
    ) -> Option<(&mut DefinedGraph, &mut Stream)> {
        let graph = self.graphs.get_mut(id.slot as usize)?.as_mut()?;
        let stream = self.streams.get_mut(usize::from(stream.0).checked_sub(1)?)?.as_mut()?;
        (graph.id == id).then_some((graph, stream))
    }
}
