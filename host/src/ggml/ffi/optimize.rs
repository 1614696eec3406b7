//! A back-end's opinion on the order of a graph's nodes. ggml exports no function for it, so the slot of the backend's table
//! is called, in the layout that the library has.
#![allow(unsafe_code)]

use super::graph::Graph;
use super::objects::Backend;
use ferry_ggml::Tensor;
use ferry_ggml::backend::{self, BackendV2a, BackendV2b, GraphOptimize};
use ferry_protocol::graph::GraphTables;
use ferry_protocol::limits::ALLOC_DEPS_MAX;
use ferry_protocol::reply::{AllocDep, Optimized};
use std::collections::BTreeSet;
use std::ffi::c_void;

/// `struct ggml_backend_graph_optimize_params`, since API version 3.
#[repr(C)]
struct Params {
    add_alloc_dep: unsafe extern "C" fn(*mut c_void, *mut Tensor, *mut Tensor),
    user_data: *mut c_void,
}

/// What the back-end said while it looked at a graph.
struct Heard<'a> {
    graph: &'a Graph,
    deps: BTreeSet<AllocDep>,
}

unsafe extern "C" fn add_alloc_dep(heard: *mut c_void, tensor: *mut Tensor, until: *mut Tensor) {
    // SAFETY: `optimize` passes this, and the back-end calls back during that call only.
    let heard = unsafe { &mut *heard.cast::<Heard<'_>>() };
    if let (Some(tensor), Some(until)) = (heard.graph.place_of(tensor), heard.graph.place_of(until))
        && heard.deps.len() < ALLOC_DEPS_MAX
    {
        heard.deps.insert(AllocDep { tensor, until });
    }
}

impl Backend {
    /// The function, if the back-end has one.
    fn optimizer(&self) -> Option<GraphOptimize> {
        let library = self.library();
        // SAFETY: the handle is a backend of this library, whose table has this layout: `graph_optimize` came with API
        // version 2, and the 2d transfers, which come with a function of libggml-base, moved it.
        unsafe {
            match (library.api_version(self.device()), library.transfers_2d().is_some()) {
                (..=1, _) => None,
                (_, false) => (*self.handle.cast::<backend::Backend<BackendV2a>>()).iface.graph_optimize,
                (_, true) => (*self.handle.cast::<backend::Backend<BackendV2b>>()).iface.graph_optimize,
            }
        }
    }

    /// Whether the back-end has an opinion.
    pub fn optimizes(&self) -> bool {
        self.optimizer().is_some()
    }

    /// The order in which the back-end would have the nodes of `tables`. `None` if they are not of a graph without places.
    pub fn optimize(&self, tables: &GraphTables) -> Option<Optimized> {
        let mut graph = Graph::to_look_at(self.library(), tables)?;
        let Some(optimizer) = self.optimizer() else { return Some(Optimized::default()) };
        let cgraph = graph.as_mut_ptr();
        let mut heard = Heard { graph: &graph, deps: BTreeSet::new() };
        let mut params = Params { add_alloc_dep, user_data: (&raw mut heard).cast() };
        // SAFETY: the graph is complete; what the back-end changes is the order in the array of nodes, which is in memory of
        // its own. Builds before API version 3 ignore the third argument.
        unsafe { optimizer(self.handle, cgraph, (&raw mut params).cast()) };
        let deps = heard.deps.iter().copied().collect();
        let mut before = vec![u32::MAX; tables.tensors.len()];
        for (at, &place) in tables.nodes.iter().enumerate() {
            before[place as usize] = at as u32;
        }
        let order: Vec<u32> =
            graph.order().into_iter().map(|place| Some(before[place? as usize])).collect::<Option<_>>()?;
        let same = order.iter().enumerate().all(|(at, &was)| at as u32 == was);
        Some(Optimized { order: if same { Vec::new() } else { order }, deps })
    }
}
