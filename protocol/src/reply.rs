//! What the answers carry. READ and GET_TENSOR are answered with the bytes themselves, in parts that have
//! [`crate::frame::Flags::MORE`] set up to the last; SUPPORTS_OP with a `u32` that is 0 or 1; ALLOC_SIZE with a
//! `u64`; INIT_BACKEND with the stream in the header; SYNCHRONIZE with nothing. An answer whose status is not OK
//! carries a line of text for the log.

use crate::calls::CallCode;
use crate::cursor::Cursor;
use crate::ids::BufferId;
use crate::limits::ALLOC_DEPS_MAX;
use bytemuck::{Pod, Zeroable};

/// Answers ALLOC_BUFFER.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Allocated {
    /// The buffer.
    pub buffer: BufferId,
    /// Its size in bytes: at least what was asked for.
    pub size: u64,
}

/// Answers MEMORY.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Memory {
    /// Free bytes.
    pub free: u64,
    /// All bytes.
    pub total: u64,
}

/// In front of a notice: a posted call failed. `seq` in the header is its number, `status` the reason; a line of
/// text follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct NoticeHeader {
    /// What failed.
    pub call: CallCode,
    /// 0.
    pub reserved: [u16; 3],
}

/// In front of the answer to a GRAPH_OPTIMIZE. Behind it come `nodes` numbers (u32), where in the graph that was sent each
/// node of the better order stands, and `deps` entries of [`AllocDep`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct OptimizedHeader {
    /// Nodes: all of the graph's, or none for an order that is good as it is.
    pub nodes: u32,
    /// Allocation dependencies.
    pub deps: u32,
}

/// A tensor whose memory must not be used for something else before a node is computed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
pub struct AllocDep {
    /// Place in the graph's table of tensors.
    pub tensor: u32,
    /// Place there of a node.
    pub until: u32,
}

/// The answer to a GRAPH_OPTIMIZE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optimized {
    /// For each node of the better order, which one of the graph's nodes it is; empty if the order stays.
    pub order: Vec<u32>,
    /// What must stay allocated.
    pub deps: Vec<AllocDep>,
}

impl Optimized {
    /// The answer's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let header = OptimizedHeader { nodes: self.order.len() as u32, deps: self.deps.len() as u32 };
        let parts = [
            bytemuck::bytes_of(&header),
            bytemuck::cast_slice(&self.order),
            bytemuck::cast_slice(&self.deps),
        ];
        parts.concat()
    }

    /// Reads what [`Self::encode`] wrote, for a graph of `nodes` nodes and `tensors` tensors. `None` if it is not that, if
    /// the order is not one of all the nodes, or if a dependency names a tensor that is not there.
    pub fn decode(bytes: &[u8], nodes: usize, tensors: usize) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        let header: OptimizedHeader = cursor.value("an order of nodes").ok()?;
        if header.deps as usize > ALLOC_DEPS_MAX || header.nodes as usize > nodes {
            return None;
        }
        let order: Vec<u32> = cursor.values(header.nodes as usize, "the order of nodes").ok()?;
        let deps: Vec<AllocDep> = cursor.values(header.deps as usize, "allocation dependencies").ok()?;
        cursor.finish().ok()?;
        let mut named = vec![false; nodes];
        for &at in &order {
            if std::mem::replace(named.get_mut(at as usize)?, true) {
                return None;
            }
        }
        let all = order.is_empty() || order.len() == nodes;
        let there = |dep: &AllocDep| (dep.tensor as usize) < tensors && (dep.until as usize) < tensors;
        (all && deps.iter().all(there)).then_some(Self { order, deps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_permutation_and_names_what_is_there() {
        let optimized = Optimized { order: vec![2, 0, 1], deps: vec![AllocDep { tensor: 4, until: 3 }] };
        let bytes = optimized.encode();
        assert_eq!(Optimized::decode(&bytes, 3, 5), Some(optimized));
        assert_eq!(Optimized::decode(&bytes, 3, 4), None, "a tensor that is not there");
        assert_eq!(Optimized::decode(&bytes, 4, 5), None, "not all nodes");
        assert_eq!(Optimized::decode(&bytes, 2, 5), None, "too many nodes");
        assert_eq!(Optimized::decode(&bytes[..bytes.len() - 1], 3, 5), None);
        let twice = Optimized { order: vec![0, 0, 1], deps: vec![] };
        assert_eq!(Optimized::decode(&twice.encode(), 3, 5), None);
        let nothing = Optimized::default();
        assert_eq!(Optimized::decode(&nothing.encode(), 3, 5), Some(nothing));
    }
}
