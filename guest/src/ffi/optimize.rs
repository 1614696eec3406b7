//! Lets the host's back-end put a graph's nodes in the order that it likes best, before anything is allocated.
#![allow(unsafe_code)]

use super::encode;
use super::registry::registry;
use crate::session::Session;
use ferry_ggml::backend::Generation;
use ferry_ggml::{CGraph, Tensor};
use ferry_protocol::calls::CallCode;
use ferry_protocol::ids::{GraphId, StreamId};
use ferry_protocol::reply::Optimized;
use ferry_protocol::status::Status;
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

/// Smaller graphs have nothing to gain.
const NODES_MIN: usize = 4;
/// A back-end that had nothing to say to so many graphs is not asked any more: many have the function and do nothing unless
/// told to, and every question costs as much as sending the graph.
const SILENCES_MAX: u32 = 8;

/// `struct ggml_backend_graph_optimize_params`, since API version 3.
#[repr(C)]
pub struct Params {
    add_alloc_dep: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor, *mut Tensor)>,
    user_data: *mut c_void,
}

/// Whether asking is worth it.
#[derive(Default)]
pub struct Optimizer {
    silences: AtomicU32,
}

impl Optimizer {
    /// Puts the nodes of `graph` in the order that the stream's back-end prefers, and passes its wishes for the allocation on.
    /// Whatever goes wrong, the graph stays as it is.
    ///
    /// # Safety
    /// `graph` must be valid, with everything it points to, and `params` what ggml passes in this program's generation.
    pub unsafe fn optimize(
        &self,
        session: &Session,
        stream: StreamId,
        graph: &mut CGraph,
        params: *mut Params,
    ) {
        let nodes = graph.n_nodes.max(0) as usize;
        if nodes < NODES_MIN || self.silences.load(Ordering::Relaxed) >= SILENCES_MAX {
            return;
        }
        // SAFETY: as promised.
        let Ok((tables, tensors)) = (unsafe { encode::unplaced(&registry().base, graph) }) else { return };
        let mut message = Vec::new();
        tables.encode(GraphId::default(), &mut message);
        let Ok(reply) = session.call(CallCode::GRAPH_OPTIMIZE, stream, &[&message]) else { return };
        if reply.header.status != Status::OK {
            return;
        }
        let Some(optimized) = Optimized::decode(&reply.payload, nodes, tensors.len()) else { return };
        if optimized == Optimized::default() {
            self.silences.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.silences.store(0, Ordering::Relaxed);
        // SAFETY: a valid graph has that many nodes.
        let order = unsafe { std::slice::from_raw_parts_mut(graph.nodes, nodes) };
        let reordered: Vec<*mut Tensor> = optimized.order.iter().map(|&at| order[at as usize]).collect();
        if !reordered.is_empty() {
            // SAFETY: as promised.
            if !unsafe { sources_come_first(&reordered) } {
                return;
            }
            order.copy_from_slice(&reordered);
            session.note_reordering();
        }
        if registry().base.generation != Generation::G3 || params.is_null() {
            return;
        }
        // SAFETY: as promised: this generation passes them.
        let Params { add_alloc_dep: Some(add), user_data } = *(unsafe { &*params }) else { return };
        for dep in optimized.deps {
            // SAFETY: both are tensors of the graph.
            unsafe { add(user_data, tensors[dep.tensor as usize], tensors[dep.until as usize]) };
        }
    }
}

/// Whether no node stands before one that it needs.
///
/// # Safety
/// The nodes must be valid tensors.
unsafe fn sources_come_first(nodes: &[*mut Tensor]) -> bool {
    let mut later: HashSet<*mut Tensor> = nodes.iter().copied().collect();
    nodes.iter().all(|&node| {
        later.remove(&node);
        // SAFETY: as promised.
        let tensor = unsafe { &*node };
        tensor.src.iter().chain([&tensor.view_src]).all(|src| !later.contains(src))
    })
}
