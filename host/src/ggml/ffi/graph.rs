//! A graph as ggml wants it, in memory of ours.
//!
//! The structs are built field by field, as ggml's own builders would for the guest's *whole* graph: node order,
//! flags and use counts are what a back-end's fusion goes by. Tensors stay at their addresses for as long as the
//! graph lives, and its uid changes only when a tensor does, so a back-end that records graphs (CUDA) can play them
//! again.
#![allow(unsafe_code)]

use super::objects::Library;
use crate::ggml::validate::ValidGraph;
use ferry_ggml::graph::HashSet;
use ferry_ggml::{CGraph, Tensor};
use ferry_protocol::graph::GraphTables;
use ferry_protocol::tensor::{NO_TENSOR, TensorRecord};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// A graph that ggml may compute.
pub struct Graph {
    /// Everything that `cgraph` points to; boxed, so that it stays where it is.
    tensors: Box<[Tensor]>,
    nodes: Box<[*mut Tensor]>,
    _keys: Box<[*mut Tensor]>,
    _used: Box<[u32]>,
    use_counts: Box<[i32]>,
    /// For each tensor, its slot in the hash set.
    slots: Vec<usize>,
    cgraph: Box<CGraph>,
}

/// uids of this process's graphs. They start where ggml's own counter, which starts at 1, does not get.
static NEXT_UID: AtomicU64 = AtomicU64::new(1 << 48);

impl Graph {
    /// The graph of `valid` tables. `None` if a back-end cannot prepare one of the tensors.
    pub fn new(library: &Library, valid: &ValidGraph<'_>) -> Option<Self> {
        let mut graph = Self::allocate(valid.tables);
        graph.update(library, valid).then_some(graph)
    }

    /// The one operation of `records`, to ask about it.
    pub(super) fn of_op(library: &Library, records: &[TensorRecord]) -> Option<Self> {
        let tables = GraphTables { tensors: records.to_vec(), ..GraphTables::default() };
        Self::new(library, &ValidGraph::check_op(library, &tables).ok()?)
    }

    /// A graph that is only looked at. `None` for tables that are not of one.
    pub fn to_look_at(library: &Library, tables: &GraphTables) -> Option<Self> {
        Self::new(library, &ValidGraph::check_unplaced(library, tables).ok()?)
    }

    /// Where in the table the tensor at this address stands, if it does.
    pub(super) fn place_of(&self, tensor: *const Tensor) -> Option<u32> {
        let offset = (tensor as usize).checked_sub(self.tensors.as_ptr() as usize)?;
        let place = offset / size_of::<Tensor>();
        (offset % size_of::<Tensor>() == 0 && place < self.tensors.len()).then_some(place as u32)
    }

    /// The nodes' places in the table, in their order now.
    pub(super) fn order(&self) -> Vec<Option<u32>> {
        self.nodes.iter().map(|&node| self.place_of(node)).collect()
    }

    /// Gives the tensors the contents of `valid`, whose tables have the nodes, names and number of tensors that this
    /// graph was made with.
    pub fn update(&mut self, library: &Library, valid: &ValidGraph<'_>) -> bool {
        assert_eq!(self.tensors.len(), valid.tables.tensors.len());
        let base = self.tensors.as_mut_ptr();
        let link = |place: u32| {
            if place == NO_TENSOR { std::ptr::null_mut() } else { base.wrapping_add(place as usize) }
        };
        for (at, record) in valid.tables.tensors.iter().enumerate() {
            let (buffer, number) = (valid.buffers[at], valid.ops[at]);
            let mut op_params = record.op_params;
            op_params[0] = number.first_param;
            self.tensors[at] = Tensor {
                kind: record.layout.kind.0 as i32,
                buffer: buffer.map_or(std::ptr::null_mut(), |buffer| buffer.handle()),
                ne: record.layout.ne,
                nb: record.layout.nb.map(|stride| stride as usize),
                op: number.op,
                op_params,
                flags: record.flags as i32,
                src: record.src.map(link),
                view_src: link(record.view_src),
                view_offs: record.view_offset as usize,
                data: buffer.map_or(std::ptr::null_mut(), |buffer| buffer.address(record.layout.offset)),
                name: name_of(valid.tables, record),
                ..Tensor::EMPTY
            };
            self.use_counts[self.slots[at]] = record.use_count;
        }
        self.cgraph.uid = NEXT_UID.fetch_add(1, Ordering::Relaxed);
        self.init_tensors(library, valid)
    }

    /// Lets the back-ends attach to the tensors what they attach.
    fn init_tensors(&mut self, library: &Library, valid: &ValidGraph<'_>) -> bool {
        let base = self.tensors.as_mut_ptr();
        valid.buffers.iter().enumerate().all(|(at, buffer)| match buffer {
            Some(buffer) if buffer.inits_tensors() => {
                // SAFETY: `at` is within the tensors, each of which lies in its buffer.
                unsafe { (library.ggml.ggml_backend_buffer_init_tensor)(buffer.handle(), base.add(at)) == 0 }
            }
            _ => true,
        })
    }

    /// Empty tensors, and the structs around them.
    fn allocate(tables: &GraphTables) -> Self {
        let count = tables.tensors.len();
        let mut tensors = vec![Tensor::EMPTY; count].into_boxed_slice();
        let base = tensors.as_mut_ptr();
        let at = |place: usize| base.wrapping_add(place);
        let mut nodes: Box<[*mut Tensor]> = tables.nodes.iter().map(|&place| at(place as usize)).collect();
        // Half empty, as ggml's are: a search for a tensor that is not there ends soon.
        let size = (2 * count).max(16);
        let mut keys = vec![std::ptr::null_mut::<Tensor>(); size].into_boxed_slice();
        let mut used = vec![0u32; size.div_ceil(32)].into_boxed_slice();
        let mut use_counts = vec![0i32; size].into_boxed_slice();
        let slots = (0..count)
            .map(|place| {
                let mut slot = HashSet::home(at(place), size);
                while used[slot / 32] & 1 << (slot % 32) != 0 {
                    slot = (slot + 1) % size;
                }
                used[slot / 32] |= 1 << (slot % 32);
                keys[slot] = at(place);
                slot
            })
            .collect();
        let cgraph = Box::new(CGraph {
            size: nodes.len() as c_int,
            n_nodes: nodes.len() as c_int,
            n_leafs: 0,
            nodes: nodes.as_mut_ptr(),
            grads: std::ptr::null_mut(),
            grad_accs: std::ptr::null_mut(),
            leafs: std::ptr::null_mut(),
            use_counts: use_counts.as_mut_ptr(),
            visited: HashSet { size, used: used.as_mut_ptr(), keys: keys.as_mut_ptr() },
            order: 0,
            uid: 0,
        });
        Self { tensors, nodes, _keys: keys, _used: used, use_counts, slots, cgraph }
    }

    /// Nodes.
    pub fn nodes(&self) -> usize {
        self.cgraph.n_nodes as usize
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut CGraph {
        &mut *self.cgraph
    }

    /// The last tensor.
    pub(super) fn last(&self) -> *const Tensor {
        self.tensors.last().expect("a valid operation has a tensor")
    }
}

/// The record's name as ggml's fixed field, which ends with a zero.
fn name_of(tables: &GraphTables, record: &TensorRecord) -> [u8; 64] {
    let (start, len) = (record.name_offset as usize, record.name_len as usize);
    let mut name = [0; 64];
    name[..len].copy_from_slice(&tables.names[start..start + len]);
    name
}
