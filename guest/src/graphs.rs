//! Graphs as objects on the host: what was sent is not sent again.
//!
//! A stream keeps the graphs that it sent. A graph that ggml gives the same uid is the same graph, and is only named, as is
//! one without a uid whose tensors are, byte for byte, what they were; one that turns out to be equal to a known one when
//! encoded is named as well; one that has the same nodes and names is patched; anything else is defined anew, in place of
//! the graph that was used longest ago.

use crate::ffi::Snapshot;
use crate::log::{self, Level};
use crate::session::{Lost, Session};
use ferry_protocol::calls::CallCode;
use ferry_protocol::graph::{GraphTables, encode_patch};
use ferry_protocol::ids::{GraphId, StreamId};

/// Graphs that a stream keeps on the host at most: a scheduler's splits, for prompts and for single tokens.
const GRAPHS_PER_STREAM_MAX: usize = 32;

/// How a graph that comes again is recognized.
pub enum Mark {
    /// It is not.
    None,
    /// By ggml's uid, which is not 0, and by how many nodes ggml's graph has, of which some may have been left out.
    Uid(u64, usize),
    /// By its tensors.
    Snapshot(Snapshot),
}

/// A graph that the host has.
struct Known {
    id: GraphId,
    mark: Mark,
    tables: GraphTables,
    /// [`Session::buffers_freed`] when it was compared last: a buffer freed since may have been one of its own.
    freed: u64,
    used: u64,
}

/// The graphs of one stream.
pub struct Graphs {
    stream: StreamId,
    known: Vec<Known>,
    clock: u64,
    message: Vec<u8>,
}

impl Graphs {
    /// None yet.
    pub fn new(stream: StreamId) -> Self {
        Self { stream, known: Vec::new(), clock: 0, message: Vec::new() }
    }

    /// The host's name for the graph of this `uid` with this many nodes, if it certainly has it.
    pub fn by_uid(&mut self, session: &Session, uid: u64, nodes: usize) -> Option<GraphId> {
        self.find(
            session,
            |known| matches!(known.mark, Mark::Uid(own, own_nodes) if own == uid && own_nodes == nodes),
        )
    }

    /// The host's name for the graph that `is_same` says a snapshot is of, if it certainly has it.
    pub fn by_snapshot(&mut self, session: &Session, is_same: impl Fn(&Snapshot) -> bool) -> Option<GraphId> {
        self.find(session, |known| matches!(&known.mark, Mark::Snapshot(snapshot) if is_same(snapshot)))
    }

    fn find(&mut self, session: &Session, is_same: impl Fn(&Known) -> bool) -> Option<GraphId> {
        let freed = session.buffers_freed();
        self.clock += 1;
        let known = self.known.iter_mut().find(|known| known.freed == freed && is_same(known))?;
        known.used = self.clock;
        Some(known.id)
    }

    /// The host's name for the graph of `tables`: after this, the host has it.
    pub fn by_tables(&mut self, session: &Session, mark: Mark, tables: GraphTables) -> Result<GraphId, Lost> {
        self.clock += 1;
        let freed = session.buffers_freed();
        // Equal tables name the same buffers, which are alive, so the host has not dropped the graph with one of them.
        let at = match self.known.iter().position(|known| known.tables == tables) {
            Some(at) => at,
            None => self.patch(session, &tables)?.map_or_else(|| self.define(session, tables), Ok)?,
        };
        let known = &mut self.known[at];
        (known.mark, known.freed, known.used) = (mark, freed, self.clock);
        Ok(known.id)
    }

    /// Makes a known graph into `tables`, if one has the same nodes and names and most of its tensors stay.
    fn patch(&mut self, session: &Session, tables: &GraphTables) -> Result<Option<usize>, Lost> {
        let freed = session.buffers_freed();
        let most = tables.tensors.len() / 2;
        let candidates = self.known.iter().enumerate().filter(|(_, known)| known.freed == freed);
        let changes = candidates.filter_map(|(at, known)| Some((at, known.tables.changes_to(tables)?)));
        let Some((at, changes)) =
            changes.min_by_key(|(_, changes)| changes.len()).filter(|(_, c)| c.len() <= most)
        else {
            return Ok(None);
        };
        let known = &mut self.known[at];
        let to = next_generation(known.id);
        self.message.clear();
        encode_patch(known.id, to, &changes, &mut self.message);
        session.post(CallCode::GRAPH_PATCH, self.stream, &[&self.message])?;
        known.id = to;
        for change in changes {
            known.tables.tensors[change.at as usize] = change.tensor;
        }
        Ok(Some(at))
    }

    /// Sends `tables`; where they are kept.
    fn define(&mut self, session: &Session, tables: GraphTables) -> Result<usize, Lost> {
        let room = self.known.len() < GRAPHS_PER_STREAM_MAX;
        let slot = if room { session.graph_slots().take() } else { None };
        let oldest = self.known.iter().enumerate().min_by_key(|(_, known)| known.used).map(|(at, _)| at);
        let at = match (slot, oldest) {
            (Some(slot), _) => {
                let id = GraphId { slot, generation: 0 };
                self.known.push(Known {
                    id,
                    mark: Mark::None,
                    tables: GraphTables::default(),
                    freed: 0,
                    used: 0,
                });
                self.known.len() - 1
            }
            (None, Some(oldest)) => oldest,
            (None, None) => {
                log::line(
                    Level::Error,
                    "the other streams of this program use all the graphs that a session may have",
                );
                return Err(Lost);
            }
        };
        let known = &mut self.known[at];
        let id = next_generation(known.id);
        self.message.clear();
        tables.encode(id, &mut self.message);
        session.post(CallCode::GRAPH_DEF, self.stream, &[&self.message])?;
        (known.id, known.tables) = (id, tables);
        Ok(at)
    }

    /// The host may not have what it should: everything is defined anew.
    pub fn distrust(&mut self) {
        for known in &mut self.known {
            (known.mark, known.freed, known.tables) = (Mark::None, u64::MAX, GraphTables::default());
        }
    }

    /// The stream ends.
    pub fn free(&mut self, session: &Session) {
        for known in self.known.drain(..) {
            // In a forked child, where nothing is posted, the lock of the slots may be held for ever.
            if session.post(CallCode::GRAPH_FREE, self.stream, &[bytemuck::bytes_of(&known.id)]).is_ok() {
                session.graph_slots().give_back(known.id.slot);
            }
        }
    }
}

/// Another name for what is in the slot. 0 is never used.
fn next_generation(id: GraphId) -> GraphId {
    GraphId { generation: id.generation.wrapping_add(1).max(1), ..id }
}
