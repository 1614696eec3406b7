//! Makes sure that the program's ggml has the layouts that [`ferry_ggml`] declares, before anything relies on it.
//!
//! ggml's version number does not tell its interface's layout, so the library is asked itself: its own getters, called
//! on an array of numbers in place of an object, return the number at the place where they look; and a small graph that
//! its own functions build is looked at field by field.
#![allow(unsafe_code)]

use super::base::{BaseError, Lookup};
use ferry_ggml::backend::{Generation, Handle};
use ferry_ggml::graph::HashSet;
use ferry_ggml::{CGraph, Tensor};
use ferry_protocol::tensor::flags;
use std::ffi::{CStr, c_char, c_int, c_void};

/// An interface has fewer functions than this.
const SLOTS_MAX: usize = 40;

type Getter = unsafe extern "C" fn(*const usize) -> usize;

/// Which layout the tables of functions have.
pub fn generation(lookup: &Lookup) -> Result<Generation, BaseError> {
    // An object is its interface with a few fields behind; a getter of the first of them gives its place.
    let object: [usize; SLOTS_MAX] = std::array::from_fn(|at| at);
    let place_by = |getter: &'static CStr| -> Result<usize, BaseError> {
        // SAFETY: the getters below return one field of a struct of pointers.
        let get = unsafe { lookup.function::<Getter>(getter)? };
        // SAFETY: the array is longer than any of the structs.
        Ok(unsafe { get(object.as_ptr()) })
    };
    // A backend starts with its guid.
    let backend = place_by(c"ggml_backend_get_device")?.wrapping_sub(1);
    let buffer = place_by(c"ggml_backend_buffer_get_type")?;
    let buffer_type = place_by(c"ggml_backend_buft_get_device")?;
    match (backend, buffer, buffer_type) {
        (13, 9, 6) => Ok(Generation::G1),
        (14, 9, 6) => Ok(Generation::G2a),
        (16, 11, 6) => Ok(Generation::G2b),
        (16, 11, 8) => Ok(Generation::G3),
        (a, b, c) => Err(BaseError::Generation(a, b, c)),
    }
}

/// `struct ggml_init_params`.
#[repr(C)]
struct InitParams {
    mem_size: usize,
    mem_buffer: *mut c_void,
    no_alloc: bool,
}

/// Builds `scale(a)` of a 4-dimensional tensor, looks at it, and throws it away. Returns whether this ggml marks the nodes
/// that are to be computed, as it does since January 2026.
pub fn check_graph(lookup: &Lookup) -> Result<bool, BaseError> {
    // SAFETY: the types are those of ggml's headers, unchanged since July 2025.
    unsafe {
        let init: unsafe extern "C" fn(InitParams) -> Handle = lookup.function(c"ggml_init")?;
        let free: unsafe extern "C" fn(Handle) = lookup.function(c"ggml_free")?;
        let context =
            init(InitParams { mem_size: 1 << 20, mem_buffer: std::ptr::null_mut(), no_alloc: true });
        if context.is_null() {
            return Err(BaseError::Layout("a context"));
        }
        let outcome = check_graph_in(lookup, context);
        free(context);
        outcome
    }
}

/// # Safety
/// `context` must be one of this ggml.
unsafe fn check_graph_in(lookup: &Lookup, context: Handle) -> Result<bool, BaseError> {
    const F16: c_int = 1;
    const FACTOR: f32 = 2.5;
    const OUTPUT: i32 = 2;
    // SAFETY: the types are those of ggml's headers, unchanged since July 2025; the tensors and the graph belong to the
    // context and are looked at before it goes.
    unsafe {
        let new: unsafe extern "C" fn(Handle, c_int, i64, i64, i64, i64) -> *mut Tensor =
            lookup.function(c"ggml_new_tensor_4d")?;
        let view: unsafe extern "C" fn(Handle, *mut Tensor, i64, usize) -> *mut Tensor =
            lookup.function(c"ggml_view_1d")?;
        let scale: unsafe extern "C" fn(Handle, *mut Tensor, f32) -> *mut Tensor =
            lookup.function(c"ggml_scale")?;
        let set_name: unsafe extern "C" fn(*mut Tensor, *const c_char) -> *mut Tensor =
            lookup.function(c"ggml_set_name")?;
        let set_output: unsafe extern "C" fn(*mut Tensor) = lookup.function(c"ggml_set_output")?;
        let new_graph: unsafe extern "C" fn(Handle, usize, bool) -> *mut CGraph =
            lookup.function(c"ggml_new_graph_custom")?;
        let expand: unsafe extern "C" fn(*mut CGraph, *mut Tensor) =
            lookup.function(c"ggml_build_forward_expand")?;

        let leaf = new(context, F16, 3, 5, 7, 11);
        set_name(leaf, c"probe".as_ptr());
        set_output(leaf);
        let a = &*leaf;
        let leaf_fits = a.kind == F16 && a.ne == [3, 5, 7, 11] && a.nb == [2, 6, 30, 210];
        if !leaf_fits || a.name_bytes() != b"probe" || a.flags & OUTPUT == 0 {
            return Err(BaseError::Layout("a tensor"));
        }
        let viewed = &*view(context, leaf, 2, 6);
        if viewed.view_src != leaf || viewed.view_offs != 6 || viewed.src[0] != leaf {
            return Err(BaseError::Layout("a view"));
        }
        let scaled = scale(context, leaf, FACTOR);
        if (*scaled).src[0] != leaf || f32::from_bits((*scaled).op_params[0] as u32) != FACTOR {
            return Err(BaseError::Layout("an operation"));
        }
        let graph = new_graph(context, 16, false);
        expand(graph, scaled);
        let g = &*graph;
        if g.size != 16 || g.n_nodes != 1 || g.n_leafs != 1 || *g.nodes != scaled || *g.leafs != leaf {
            return Err(BaseError::Layout("a graph"));
        }
        // Three tensors at most are in the set: its slot is home, or near it.
        let size = g.visited.size;
        if !(16..4096).contains(&size) {
            return Err(BaseError::Layout("a graph's hash set"));
        }
        let home = HashSet::home(leaf, size);
        let slot = (home..home + 3).map(|slot| slot % size).find(|&slot| *g.visited.keys.add(slot) == leaf);
        match slot {
            Some(slot) if *g.use_counts.add(slot) == 1 => Ok((*scaled).flags as u32 & flags::COMPUTE != 0),
            _ => Err(BaseError::Layout("a graph's use counts")),
        }
    }
}
