//! From ggml's tensors and graphs to records.
#![allow(unsafe_code)]

use super::base::Base;
use super::buffer::{HostPlace, place_of};
use crate::session::Session;
use ferry_ggml::graph::HashSet as GgmlSet;
use ferry_ggml::{CGraph, Tensor};
use ferry_protocol::graph::GraphTables;
use ferry_protocol::ids::BufferId;
use ferry_protocol::limits::{GRAPH_TENSORS_MAX, OP_TENSORS_MAX};
use ferry_protocol::meaning;
use ferry_protocol::ops::Op;
use ferry_protocol::request::OpQueryHeader;
use ferry_protocol::tensor::{NO_TENSOR, TensorLayout, TensorRecord, flags};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// A tensor's shape and type, without a place.
pub fn shape(base: &Base, tensor: &Tensor) -> Option<TensorLayout> {
    let kind = base.type_of(tensor)?;
    Some(TensorLayout {
        ne: tensor.ne,
        nb: tensor.nb.map(|stride| stride as u64),
        kind,
        ..TensorLayout::default()
    })
}

/// A tensor's shape, type and place on the host.
pub fn layout(base: &Base, tensor: &Tensor) -> Option<TensorLayout> {
    let place = place_of(tensor)?;
    Some(TensorLayout { buffer: place.buffer, offset: place.offset, ..shape(base, tensor)? })
}

/// The operation's parameters in the protocol's numbers, with the protocol's meaning.
fn op_params(base: &Base, op: Op, tensor: &Tensor) -> Option<[i32; 16]> {
    let mut params = tensor.op_params;
    if op.sub_ops().is_some() {
        params[0] = base.sub_op(op, params[0])?;
    }
    // SAFETY: a valid tensor's sources are null or valid.
    let source = unsafe { tensor.src[0].as_ref() }.and_then(|source| shape(base, source));
    meaning::modernise(op, &mut params, &shape(base, tensor)?, source.as_ref()).then_some(params)
}

/// The message that asks about the operation of `tensor`: also the key by which its answer is remembered, so whatever
/// does not matter to a back-end is left out.
pub fn question(base: &Base, device: u32, tensor: &Tensor) -> Option<Vec<u8>> {
    let mut records = Vec::with_capacity(OP_TENSORS_MAX);
    let mut result =
        TensorRecord { layout: shape(base, tensor)?, op: base.op_of(tensor)?, ..TensorRecord::default() };
    result.op_params = op_params(base, result.op, tensor)?;
    for (link, &src) in result.src.iter_mut().zip(&tensor.src) {
        // SAFETY: a valid tensor's sources are null or valid.
        if let Some(src) = unsafe { src.as_ref() } {
            *link = records.len() as u32;
            records.push(TensorRecord { layout: shape(base, src)?, ..TensorRecord::default() });
        }
    }
    records.push(result);
    let header = OpQueryHeader { device, tensors: records.len() as u32 };
    let mut question = bytemuck::bytes_of(&header).to_vec();
    question.extend_from_slice(bytemuck::cast_slice(&records));
    Some(question)
}

/// Why a graph cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// A tensor lies in memory that the host does not have.
    #[error("tensor '{0}' ({1}) does not lie in this device's memory")]
    Elsewhere(String, Op),
    /// An operation that the protocol cannot name; the scheduler was told that it is not supported.
    #[error("operation {0} of tensor '{1}' cannot be forwarded")]
    Op(i32, String),
    /// A type that the protocol cannot name.
    #[error("type {0} of tensor '{1}' cannot be forwarded")]
    Type(i32, String),
    /// Too many tensors.
    #[error("the graph has more than {GRAPH_TENSORS_MAX} tensors")]
    TooLarge,
}

/// Pointers are spread well enough by a multiplication.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only addresses are hashed")
    }
    fn write_usize(&mut self, address: usize) {
        // 2^64 divided by the golden ratio (Knuth's multiplicative hash), the high bits down where the table looks.
        self.0 = (address as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

type Places = HashMap<usize, u32, BuildHasherDefault<AddressHasher>>;

/// A graph's tables, and the tensors that their records are of.
pub struct Encoded {
    pub tables: GraphTables,
    pub tensors: Vec<*const Tensor>,
}

struct Encoder<'a> {
    base: &'a Base,
    /// Whose memory the tensors lie in; `None` for tensors that have no place yet, or whose place does not matter.
    session: Option<&'a Arc<Session>>,
    graph: &'a CGraph,
    tables: GraphTables,
    tensors: Vec<*const Tensor>,
    places: Places,
}

/// The tables of `graph`.
///
/// # Safety
/// `graph` must be valid, with everything it points to.
pub unsafe fn graph(base: &Base, session: &Arc<Session>, graph: &CGraph) -> Result<Encoded, EncodeError> {
    // SAFETY: as promised.
    let encoder = unsafe { encode(base, Some(session), graph)? };
    Ok(Encoded { tables: encoder.tables, tensors: encoder.tensors })
}

/// The tables of `graph` without places, and the tensor at each place in them.
///
/// # Safety
/// `graph` must be valid, with everything it points to.
pub unsafe fn unplaced(base: &Base, graph: &CGraph) -> Result<(GraphTables, Vec<*mut Tensor>), EncodeError> {
    // SAFETY: as promised.
    let encoder = unsafe { encode(base, None, graph)? };
    let mut tensors = vec![std::ptr::null_mut(); encoder.tables.tensors.len()];
    for (&address, &place) in &encoder.places {
        tensors[place as usize] = address as *mut Tensor;
    }
    Ok((encoder.tables, tensors))
}

/// # Safety
/// `graph` must be valid, with everything it points to.
unsafe fn encode<'a>(
    base: &'a Base,
    session: Option<&'a Arc<Session>>,
    graph: &'a CGraph,
) -> Result<Encoder<'a>, EncodeError> {
    let n_nodes = graph.n_nodes.max(0) as usize;
    let mut tables = GraphTables::default();
    tables.tensors.reserve(2 * n_nodes);
    tables.nodes.reserve(n_nodes);
    let places = Places::with_capacity_and_hasher(2 * n_nodes, BuildHasherDefault::default());
    let tensors = Vec::with_capacity(2 * n_nodes);
    let mut encoder = Encoder { base, session, graph, tables, tensors, places };
    for at in 0..n_nodes {
        // SAFETY: as promised: the array has that many nodes.
        let node = unsafe { *graph.nodes.add(at) };
        // SAFETY: as promised.
        if encoder.is_idle(unsafe { &*node }) {
            continue;
        }
        // SAFETY: as promised.
        let place = unsafe { encoder.node(node)? };
        encoder.tables.nodes.push(place);
    }
    Ok(encoder)
}

impl Encoder<'_> {
    /// Whether nothing is computed for `node`, so that the host need not know of it. Either it is not marked: a host whose
    /// ggml knows no mark would compute it. Or it is a view of memory that is not the host's: ggml's scheduler has such
    /// nodes in any back-end's graph; what uses one is given a copy.
    fn is_idle(&self, node: &Tensor) -> bool {
        let Some(session) = self.session else { return false };
        let here = |place: HostPlace<'_>| Arc::ptr_eq(place.session, session);
        self.base.flags_of(node) & flags::COMPUTE == 0
            || self.base.op_of(node).is_some_and(Op::is_view) && !place_of(node).is_some_and(here)
    }

    /// # Safety
    /// `tensor` must be valid, with everything it points to.
    unsafe fn node(&mut self, tensor: *const Tensor) -> Result<u32, EncodeError> {
        // SAFETY: as promised.
        let node = unsafe { &*tensor };
        let op = self.base.op_of(node).filter(|op| op.is_forwardable());
        let op = op.ok_or_else(|| EncodeError::Op(node.op, name_of(node)))?;
        let mut record = self.record(node, op)?;
        record.op_params =
            op_params(self.base, op, node).ok_or_else(|| EncodeError::Op(node.op, name_of(node)))?;
        record.flags = self.base.flags_of(node);
        for (link, &src) in record.src.iter_mut().zip(&node.src) {
            if !src.is_null() {
                // SAFETY: as promised.
                *link = unsafe { self.leaf(src)? };
            }
        }
        // SAFETY: as promised.
        unsafe { self.link_view(node, &mut record)? };
        self.add(tensor, record)
    }

    /// Says what `tensor` views. One without a place views nothing: it has no bytes, and may lie anywhere.
    ///
    /// # Safety
    /// `tensor` must be valid, with everything it points to.
    unsafe fn link_view(&mut self, tensor: &Tensor, record: &mut TensorRecord) -> Result<(), EncodeError> {
        let is_placed = self.session.is_none() || record.layout.buffer != BufferId::NONE;
        if is_placed && !tensor.view_src.is_null() {
            record.view_offset = tensor.view_offs as u64;
            // SAFETY: as promised.
            record.view_src = unsafe { self.leaf(tensor.view_src)? };
        }
        Ok(())
    }

    /// A tensor that a node uses: one that was a node before, or else a leaf, of which only the data matters.
    ///
    /// # Safety
    /// `tensor` must be valid, with everything it points to.
    unsafe fn leaf(&mut self, tensor: *const Tensor) -> Result<u32, EncodeError> {
        if let Some(&place) = self.places.get(&(tensor as usize)) {
            return Ok(place);
        }
        // SAFETY: as promised.
        let leaf = unsafe { &*tensor };
        let mut record = self.record(leaf, Op::NONE)?;
        record.flags = leaf.flags as u32 & flags::ALL;
        // SAFETY: as promised.
        unsafe { self.link_view(leaf, &mut record)? };
        self.add(tensor, record)
    }

    fn record(&mut self, tensor: &Tensor, op: Op) -> Result<TensorRecord, EncodeError> {
        let mut layout =
            shape(self.base, tensor).ok_or_else(|| EncodeError::Type(tensor.kind, name_of(tensor)))?;
        if let Some(session) = self.session {
            match place_of(tensor).filter(|place| Arc::ptr_eq(place.session, session)) {
                Some(place) => (layout.buffer, layout.offset) = (place.buffer, place.offset),
                None if layout.extent_bytes() == Ok(0) => {}
                None => return Err(EncodeError::Elsewhere(name_of(tensor), op)),
            }
        }
        let name = tensor.name_bytes();
        let name = &name[..name.len().min(tensor.name.len() - 1)];
        let name_offset = self.tables.names.len() as u32;
        self.tables.names.extend_from_slice(name);
        Ok(TensorRecord {
            layout,
            op,
            use_count: self.use_count(tensor),
            name_offset,
            name_len: name.len() as u32,
            ..TensorRecord::default()
        })
    }

    /// How often the whole graph uses `tensor`, which a split of it shares the table of.
    fn use_count(&self, tensor: &Tensor) -> i32 {
        // SAFETY: a slot that was found is one of the graph's.
        use_slot(self.graph, tensor).map_or(0, |slot| unsafe { *self.graph.use_counts.add(slot) })
    }

    fn add(&mut self, tensor: *const Tensor, record: TensorRecord) -> Result<u32, EncodeError> {
        let place = self.tables.tensors.len();
        if place >= GRAPH_TENSORS_MAX {
            return Err(EncodeError::TooLarge);
        }
        debug_assert!(record.src.iter().all(|&src| src == NO_TENSOR || (src as usize) < place));
        self.tables.tensors.push(record);
        self.tensors.push(tensor);
        self.places.insert(tensor as usize, place as u32);
        Ok(place as u32)
    }
}

/// Where a graph has the use count of `tensor`, if it has one.
pub fn use_slot(graph: &CGraph, tensor: *const Tensor) -> Option<usize> {
    let set: &GgmlSet = &graph.visited;
    if set.size == 0 || set.keys.is_null() || set.used.is_null() || graph.use_counts.is_null() {
        return None;
    }
    let home = GgmlSet::home(tensor, set.size);
    for slot in (home..set.size).chain(0..home) {
        // SAFETY: a valid graph's set has `size` slots, and `used` a bit for each.
        unsafe {
            if *set.used.add(slot / 32) & 1 << (slot % 32) == 0 {
                return None;
            }
            if *set.keys.add(slot) == tensor.cast_mut() {
                return Some(slot);
            }
        }
    }
    None
}

fn name_of(tensor: &Tensor) -> String {
    String::from_utf8_lossy(tensor.name_bytes()).into_owned()
}
