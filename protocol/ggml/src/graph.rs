//! `struct ggml_cgraph`, of the builds that have `use_counts` in it (since July 2025).

use crate::Tensor;

/// `struct ggml_hash_set`: open addressing with linear probing; a key's home is its address divided by 16, modulo
/// the size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the fields are ggml's
pub struct HashSet {
    pub size: usize,
    pub used: *mut u32,
    pub keys: *mut *mut Tensor,
}

/// `struct ggml_cgraph`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the fields are ggml's
pub struct CGraph {
    pub size: i32,
    pub n_nodes: i32,
    pub n_leafs: i32,
    pub nodes: *mut *mut Tensor,
    pub grads: *mut *mut Tensor,
    pub grad_accs: *mut *mut Tensor,
    pub leafs: *mut *mut Tensor,
    pub use_counts: *mut i32,
    pub visited: HashSet,
    pub order: i32,
    /// Only where the build exports `ggml_graph_next_uid` (since April 2026): elsewhere the struct ends before it.
    pub uid: u64,
}

/// Bytes of the struct in a build without `uid`.
pub const CGRAPH_BYTES_WITHOUT_UID: usize = std::mem::offset_of!(CGraph, uid);

impl HashSet {
    /// The slot where the search for `key` starts, in a set of `size` slots.
    pub fn home(key: *const Tensor, size: usize) -> usize {
        (key as usize >> 4) % size
    }
}
