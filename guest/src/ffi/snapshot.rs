//! What a graph's tensors were when it was encoded: to find out, at a tenth of the cost of encoding it again, that nothing
//! changed. Only for graphs without a uid, which builds of ggml from before April 2026 make.
//!
//! A graph matches if its nodes are the same tensors at the same addresses with the same bytes, and so is everything that
//! they use. That is stricter than that both encode to the same tables, with one exception: a buffer may have been freed
//! and another one made at its address. The caller rules that out.
#![allow(unsafe_code)]

use super::encode::{Encoded, use_slot};
use ferry_ggml::{CGraph, Tensor};

/// `struct ggml_tensor` from its second field to before its last, which leaves out all of its padding.
const BODY_OFFSET: usize = std::mem::offset_of!(Tensor, buffer);
const BODY_WORDS: usize = (std::mem::offset_of!(Tensor, padding) - BODY_OFFSET) / 8;
type Body = [u64; BODY_WORDS];
/// In place of a slot: the tensor is not in the graph's table of use counts.
const NO_SLOT: usize = usize::MAX;

/// A tensor as it was.
struct Seen {
    tensor: *const Tensor,
    kind: i32,
    body: Body,
    /// Where its use count stood.
    slot: usize,
    use_count: i32,
}

/// A graph as it was.
pub struct Snapshot {
    nodes: Vec<Seen>,
    /// Tensors that are used but are no nodes. Each comes behind what uses it.
    leaves: Vec<Seen>,
}

// SAFETY: addresses are compared; they are followed only where a valid graph has them too.
unsafe impl Send for Snapshot {}

impl Snapshot {
    /// Of a graph that was encoded just now.
    ///
    /// # Safety
    /// `graph` must be valid, with everything it points to, and `encoded` its own.
    pub unsafe fn of(graph: &CGraph, encoded: &Encoded) -> Self {
        let nodes = &encoded.tables.nodes;
        let mut is_node = vec![false; encoded.tensors.len()];
        nodes.iter().for_each(|&place| is_node[place as usize] = true);
        // In the table, what is used comes before what uses it.
        let leaves = (0..encoded.tensors.len()).rev().filter(|&place| !is_node[place]);
        // SAFETY: as promised: the tensors are those of the graph.
        let seen = |place: usize| unsafe { Seen::of(graph, encoded.tensors[place]) };
        Self {
            nodes: nodes.iter().map(|&place| seen(place as usize)).collect(),
            leaves: leaves.map(seen).collect(),
        }
    }

    /// Whether `graph` is as this one was.
    ///
    /// # Safety
    /// `graph` must be valid, with everything it points to.
    pub unsafe fn matches(&self, graph: &CGraph) -> bool {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: this processor has it; the rest as promised.
            return unsafe { self.matches_by_avx2(graph) };
        }
        // SAFETY: as promised.
        unsafe { self.matches_by(graph, |is, was| is == was) }
    }

    /// # Safety
    /// As for [`Self::matches`], on a processor with AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn matches_by_avx2(&self, graph: &CGraph) -> bool {
        // SAFETY: as promised. (A closure has the features of where it is made.)
        unsafe { self.matches_by(graph, |is, was| are_equal_by_avx2(is, was)) }
    }

    /// Loops and no iterators: all of it is to become one function for the caller's processor.
    ///
    /// # Safety
    /// As for [`Self::matches`].
    #[inline(always)]
    unsafe fn matches_by(&self, graph: &CGraph, are_equal: impl Fn(&Body, &Body) -> bool) -> bool {
        if self.nodes.len() != graph.n_nodes.max(0) as usize {
            return false;
        }
        // SAFETY: the graph has that many nodes, which are valid. Once they are known to be the same, what they use is
        // where it was, and as valid; and likewise what that is a view of.
        unsafe {
            for (at, seen) in self.nodes.iter().enumerate() {
                if !std::ptr::eq(*graph.nodes.add(at), seen.tensor) || !seen.is_still(graph, &are_equal) {
                    return false;
                }
            }
            for seen in &self.leaves {
                if !seen.is_still(graph, &are_equal) {
                    return false;
                }
            }
        }
        true
    }
}

/// A compiler makes twice as many instructions of a loop.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn are_equal_by_avx2(is: &Body, was: &Body) -> bool {
    use std::arch::x86_64::{
        _mm256_loadu_si256, _mm256_or_si256, _mm256_setzero_si256, _mm256_testz_si256, _mm256_xor_si256,
    };
    const LANES: usize = 4;
    const _: () = assert!(BODY_WORDS.is_multiple_of(LANES));
    let mut differing = _mm256_setzero_si256();
    for (is, was) in is.chunks_exact(LANES).zip(was.chunks_exact(LANES)) {
        // SAFETY: four words each.
        let (is, was) =
            unsafe { (_mm256_loadu_si256(is.as_ptr().cast()), _mm256_loadu_si256(was.as_ptr().cast())) };
        differing = _mm256_or_si256(differing, _mm256_xor_si256(is, was));
    }
    _mm256_testz_si256(differing, differing) == 1
}

impl Seen {
    /// # Safety
    /// `graph` and `tensor` must be valid.
    unsafe fn of(graph: &CGraph, tensor: *const Tensor) -> Self {
        let slot = use_slot(graph, tensor);
        // SAFETY: as promised; the words are within the tensor and have no padding among them, and a slot that was found
        // is one of the graph's.
        unsafe {
            Self {
                tensor,
                kind: (*tensor).kind,
                body: *tensor.byte_add(BODY_OFFSET).cast(),
                slot: slot.unwrap_or(NO_SLOT),
                use_count: slot.map_or(0, |slot| *graph.use_counts.add(slot)),
            }
        }
    }

    /// # Safety
    /// `graph` must be valid, and what lies at the tensor's address a valid tensor.
    #[inline(always)]
    unsafe fn is_still(&self, graph: &CGraph, are_equal: &impl Fn(&Body, &Body) -> bool) -> bool {
        // SAFETY: as promised; a slot below the size is one of the graph's.
        unsafe {
            let body = &*self.tensor.byte_add(BODY_OFFSET).cast::<Body>();
            if (*self.tensor).kind != self.kind || !are_equal(body, &self.body) {
                return false;
            }
            if self.slot < graph.visited.size {
                // The slot tells who has it; the bit beside says that somebody does.
                let used = *graph.visited.used.add(self.slot / 32) & 1 << (self.slot % 32) != 0;
                return used
                    && std::ptr::eq(*graph.visited.keys.add(self.slot), self.tensor)
                    && *graph.use_counts.add(self.slot) == self.use_count;
            }
            self.slot == NO_SLOT && use_slot(graph, self.tensor).is_none()
        }
    }
}
