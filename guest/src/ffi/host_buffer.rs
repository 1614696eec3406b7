//! Memory of this program that the worker sees as well, as a ggml buffer: llama.cpp puts its inputs, and what it reads
//! results into, in a device's host buffers. What lies there crosses the boundary by reference.
#![allow(unsafe_code)]

use super::buffer_type::Functions;
use super::guard;
use super::registry::{SessionRef, registry};
use crate::regions::PAGE_BYTES;
use crate::session::Session;
use ferry_ggml::backend::{Buffer, BufferV1, BufferV2, Generation, Handle};
use ferry_protocol::channel::memory::Mapping;
use ferry_protocol::ids::RegionId;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of tensors in system memory (ggml's `TENSOR_ALIGNMENT`, or more).
const ALIGNMENT: usize = 64;

/// The functions of a device's host buffer type.
pub const FUNCTIONS: Functions = Functions {
    get_name,
    alloc_buffer,
    get_alignment,
    // A buffer that is too large to be shared is the program's alone.
    get_max_size: None,
    get_alloc_size: None,
    is_host: Some(is_host),
};

/// A region with a buffer in it.
struct Region {
    id: RegionId,
    session: SessionRef,
    mapping: Arc<dyn Mapping>,
}

impl Region {
    /// Its addresses.
    fn holds(&self, address: usize, len: usize) -> Option<usize> {
        let at = address.checked_sub(self.mapping.base().as_ptr() as usize)?;
        (at.checked_add(len)? <= self.mapping.len()).then_some(at)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // The worker first: a virtual machine's device must find it gone when the pages are given back.
        self.session.drop_region(self.id);
    }
}

/// The regions of this process.
#[derive(Default)]
pub struct Live(Mutex<Vec<Region>>);

impl Live {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Region>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which region of `session` has `len` bytes from `start`, and where in it they lie.
    pub fn find(&self, session: &Arc<Session>, start: *const c_void, len: usize) -> Option<(RegionId, u64)> {
        self.lock()
            .iter()
            .filter(|region| Arc::ptr_eq(&region.session, session))
            .find_map(|region| region.holds(start as usize, len).map(|at| (region.id, at as u64)))
    }

    fn remove(&self, start: *mut c_void) -> Option<Region> {
        let mut live = self.lock();
        let at = live.iter().position(|region| region.mapping.base().as_ptr().cast() == start)?;
        Some(live.swap_remove(at))
    }
}

unsafe extern "C" fn get_name(_: Handle) -> *const c_char {
    c"Ferry_Host".as_ptr()
}

unsafe extern "C" fn get_alignment(_: Handle) -> usize {
    ALIGNMENT
}

unsafe extern "C" fn is_host(_: Handle) -> bool {
    true
}

unsafe extern "C" fn alloc_buffer(buffer_type: Handle, size: usize) -> Handle {
    guard(std::ptr::null_mut(), || {
        let base = &registry().base;
        match share(buffer_type, size) {
            Some(buffer) => buffer,
            // Memory like any other: everything works with it, only that it is copied.
            // SAFETY: ggml's own functions on ggml's own buffer type.
            None => unsafe { (base.buft_alloc_buffer)((base.cpu_buffer_type)(), size) },
        }
    })
}

/// A buffer in a new region.
fn share(buffer_type: Handle, size: usize) -> Option<Handle> {
    let registry = registry();
    let session = registry.acquire()?;
    let (id, mapping) = session.add_region(size.checked_next_multiple_of(PAGE_BYTES)?)?;
    let start: *mut c_void = mapping.base().as_ptr().cast();
    // SAFETY: the memory is there until the buffer is freed, and aligned to a page.
    let buffer = unsafe { (registry.base.cpu_buffer_from_ptr)(start, size) };
    let region = Region { id, session, mapping };
    if buffer.is_null() {
        return None;
    }
    // SAFETY: a buffer of the program's ggml, which nobody else knows yet; the layout goes by the generation.
    unsafe {
        if registry.base.generation >= Generation::G2b {
            let buffer = &mut *buffer.cast::<Buffer<BufferV2>>();
            buffer.buft = buffer_type;
            buffer.iface.free_buffer = Some(free_buffer);
        } else {
            let buffer = &mut *buffer.cast::<Buffer<BufferV1>>();
            buffer.buft = buffer_type;
            buffer.iface.free_buffer = Some(free_buffer);
        }
    }
    registry.host_buffers.lock().push(region);
    Some(buffer)
}

unsafe extern "C" fn free_buffer(buffer: Handle) {
    guard((), || {
        let registry = registry();
        // SAFETY: the buffer is one that `share` made: its context is where its memory starts.
        let start = unsafe {
            if registry.base.generation >= Generation::G2b {
                (*buffer.cast::<Buffer<BufferV2>>()).context
            } else {
                (*buffer.cast::<Buffer<BufferV1>>()).context
            }
        };
        drop(registry.host_buffers.remove(start));
    });
}
