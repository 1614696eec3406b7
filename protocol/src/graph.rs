//! Graphs as tables of records.

use crate::cursor::{Cursor, CursorError};
use crate::ids::GraphId;
use crate::limits::{GRAPH_NAME_BYTES_MAX, GRAPH_TENSORS_MAX};
use crate::tensor::TensorRecord;
use bytemuck::{Pod, Zeroable};

/// In front of a graph's tables. Behind it come `tensors` records, `nodes` places (u32) in the order in which the
/// nodes are computed, and `name_bytes` bytes of names.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct GraphHeader {
    /// Which graph this defines.
    pub graph: GraphId,
    /// Records in the table.
    pub tensors: u32,
    /// Nodes among them.
    pub nodes: u32,
    /// Bytes of names.
    pub name_bytes: u32,
    /// 0.
    pub reserved: u32,
}

/// In front of a patch. Behind it come `changes` entries of [`TensorChange`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct PatchHeader {
    /// The graph to change, as it is.
    pub from: GraphId,
    /// Its name afterwards: the same slot.
    pub to: GraphId,
    /// Entries that follow.
    pub changes: u32,
    /// 0.
    pub reserved: u32,
}

/// One entry of a patch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct TensorChange {
    /// Place in the graph's table.
    pub at: u32,
    /// 0.
    pub reserved: u32,
    /// What stands there from now on. Its name must be the one that was there.
    pub tensor: TensorRecord,
}

/// The tables of a graph, not yet validated beyond their own sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphTables {
    /// Every tensor that a node needs, sources before users.
    pub tensors: Vec<TensorRecord>,
    /// Places of the nodes, in the order of computation.
    pub nodes: Vec<u32>,
    /// Names, one behind the other.
    pub names: Vec<u8>,
}

/// Why a graph message is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Too short, or bytes left over.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// More than [`GRAPH_TENSORS_MAX`] tensors.
    #[error("graph has {0} tensors, at most {GRAPH_TENSORS_MAX} are allowed")]
    TooLarge(u32),
    /// More than [`GRAPH_NAME_BYTES_MAX`] bytes of names.
    #[error("graph has {0} bytes of names, at most {GRAPH_NAME_BYTES_MAX} are allowed")]
    Names(u32),
    /// A reserved field is not 0.
    #[error("a reserved field is not 0")]
    Reserved,
}

impl GraphTables {
    /// Appends the message that defines these tables as `graph`.
    pub fn encode(&self, graph: GraphId, out: &mut Vec<u8>) {
        let header = GraphHeader {
            graph,
            tensors: self.tensors.len() as u32,
            nodes: self.nodes.len() as u32,
            name_bytes: self.names.len() as u32,
            reserved: 0,
        };
        out.extend_from_slice(bytemuck::bytes_of(&header));
        out.extend_from_slice(bytemuck::cast_slice(&self.tensors));
        out.extend_from_slice(bytemuck::cast_slice(&self.nodes));
        out.extend_from_slice(&self.names);
    }

    /// Reads what [`Self::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<(GraphId, Self), GraphError> {
        let mut cursor = Cursor::new(bytes);
        let header: GraphHeader = cursor.value("the header of a graph")?;
        let most = GRAPH_TENSORS_MAX as u32;
        if header.tensors > most || header.nodes > most {
            return Err(GraphError::TooLarge(header.tensors.max(header.nodes)));
        }
        if header.name_bytes > GRAPH_NAME_BYTES_MAX as u32 {
            return Err(GraphError::Names(header.name_bytes));
        }
        if header.reserved != 0 {
            return Err(GraphError::Reserved);
        }
        let tables = Self {
            tensors: cursor.values(header.tensors as usize, "the tensors of a graph")?,
            nodes: cursor.values(header.nodes as usize, "the nodes of a graph")?,
            names: cursor.bytes(header.name_bytes as usize, "the names of a graph")?.to_vec(),
        };
        cursor.finish()?;
        Ok((header.graph, tables))
    }

    /// The changes that make `self` into `next`, or `None` if that takes a new definition.
    pub fn changes_to(&self, next: &Self) -> Option<Vec<TensorChange>> {
        if self.nodes != next.nodes || self.names != next.names || self.tensors.len() != next.tensors.len() {
            return None;
        }
        let both = self.tensors.iter().zip(&next.tensors).enumerate();
        let differing = both.filter(|(_, (old, new))| old != new);
        Some(
            differing
                .map(|(at, (_, new))| TensorChange { at: at as u32, reserved: 0, tensor: *new })
                .collect(),
        )
    }
}

/// Reads a patch.
pub fn decode_patch(bytes: &[u8]) -> Result<(PatchHeader, Vec<TensorChange>), GraphError> {
    let mut cursor = Cursor::new(bytes);
    let header: PatchHeader = cursor.value("the header of a patch")?;
    if header.changes > GRAPH_TENSORS_MAX as u32 {
        return Err(GraphError::TooLarge(header.changes));
    }
    let changes: Vec<TensorChange> = cursor.values(header.changes as usize, "the changes of a patch")?;
    cursor.finish()?;
    if header.reserved != 0 || changes.iter().any(|change| change.reserved != 0) {
        return Err(GraphError::Reserved);
    }
    Ok((header, changes))
}

/// Appends the message that makes `changes` to graph `from`, which is `to` afterwards.
pub fn encode_patch(from: GraphId, to: GraphId, changes: &[TensorChange], out: &mut Vec<u8>) {
    let header = PatchHeader { from, to, changes: changes.len() as u32, reserved: 0 };
    out.extend_from_slice(bytemuck::bytes_of(&header));
    out.extend_from_slice(bytemuck::cast_slice(changes));
}
