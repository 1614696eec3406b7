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

/// The answer to a SET_FROM_STORE: which of the pieces were there and are set now. One bit for each, the first one in the
/// lowest bit of the first byte; the bits behind the last are 0.
pub fn encode_held(held: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit));
    held.chunks(8).map(byte).collect()
}

/// Reads what [`encode_held`] wrote of so many pieces. `None` if it is not that.
pub fn decode_held(bytes: &[u8], pieces: usize) -> Option<Vec<bool>> {
    let bit = |at: usize| bytes[at / 8] >> (at % 8) & 1 == 1;
    if bytes.len() != pieces.div_ceil(8) || (pieces..bytes.len() * 8).any(bit) {
        return None;
    }
    Some((0..pieces).map(bit).collect())
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
    fn a_bit_for_each_piece_and_none_behind_the_last() {
        let held = [true, false, false, true, false, false, false, true, false, true];
        assert_eq!(encode_held(&held), [0x89, 2]);
        assert_eq!(decode_held(&[0x89, 2], 10).as_deref(), Some(&held[..]));
        for (bytes, pieces) in
            [(&[0x89][..], 10), (&[0x89, 2, 0], 10), (&[0x89, 6], 10), (&[0x89], 7), (&[0], 0)]
        {
            assert_eq!(decode_held(bytes, pieces), None, "{bytes:?} for {pieces}");
        }
        assert_eq!(decode_held(&[], 0), Some(vec![]));
    }

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
