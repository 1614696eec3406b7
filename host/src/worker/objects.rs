//! What a session's guest made: buffers, streams, graphs. Handles are resolved here and nowhere else.

use crate::ggml::{Backend, Buffer, Graph, Place};
use ferry_protocol::graph::GraphTables;
use ferry_protocol::ids::{BufferId, GraphId, StreamId};
use ferry_protocol::limits::{BUFFERS_PER_SESSION_MAX, GRAPHS_PER_SESSION_MAX, STREAMS_PER_SESSION_MAX};

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
    /// Something was computed since it was synchronized last.
    pub busy: bool,
}

impl Stream {
    /// Copies bytes from `offset` at `place` out when everything before it is done.
    pub fn read(&mut self, place: &Place<'_>, out: &mut [u8], offset: u64) {
        self.backend.read(place, out, offset);
        self.busy = false;
    }
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

    /// Drops a buffer and every graph that names it; whether there was one.
    pub fn free_buffer(&mut self, id: BufferId) -> bool {
        if self.buffer(id).is_none() {
            return false;
        }
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
        true
    }

    /// Keeps a backend instance; `None` if there are too many.
    pub fn add_stream(&mut self, backend: Backend) -> Option<StreamId> {
        let at = self.streams.iter().position(Option::is_none).unwrap_or(self.streams.len());
        if at >= STREAMS_PER_SESSION_MAX {
            return None;
        }
        if at == self.streams.len() {
            self.streams.push(None);
        }
        self.streams[at] = Some(Stream { backend, busy: false });
        // 0 is the session itself.
        Some(StreamId(at as u16 + 1))
    }

    /// A buffer, and the stream to read it in.
    pub fn buffer_and_stream(
        &mut self,
        buffer: BufferId,
        stream: StreamId,
    ) -> (Option<&Buffer>, Option<&mut Stream>) {
        let stream = usize::from(stream.0).checked_sub(1).and_then(|at| self.streams.get_mut(at)?.as_mut());
        let slot = self.buffers.get(buffer.slot() as usize);
        let slot = slot.filter(|slot| BufferId::new(buffer.slot(), slot.generation) == buffer);
        (slot.and_then(|slot| slot.buffer.as_ref()), stream)
    }

    /// The stream that `id` names.
    pub fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.streams.get_mut(usize::from(id.0).checked_sub(1)?)?.as_mut()
    }

    /// Ends a stream; whether there was one.
    pub fn free_stream(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.stream(id) else { return false };
        stream.backend.synchronize();
        self.streams[usize::from(id.0) - 1] = None;
        true
    }

    /// Waits for every stream that is computing: a buffer's bytes are about to be read or written.
    pub fn synchronize_all(&mut self) {
        for stream in self.streams.iter_mut().flatten().filter(|stream| stream.busy) {
            stream.backend.synchronize();
            stream.busy = false;
        }
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
