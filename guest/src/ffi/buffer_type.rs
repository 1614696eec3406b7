//! A device's buffer type: allocates on the host.
#![allow(unsafe_code)]

use super::device::DeviceContext;
use super::registry::registry;
use super::{buffer, guard};
use ferry_ggml::Tensor;
use ferry_ggml::backend::{BufferType, BufferTypeV1, BufferTypeV3, Generation, Handle};
use std::ffi::{c_char, c_void};

/// `struct ggml_backend_buffer_type` in the program's layout, at a stable address.
pub enum DeviceBufferType {
    /// API versions 1 and 2.
    V1(Box<BufferType<BufferTypeV1>>),
    /// API version 3.
    V3(Box<BufferType<BufferTypeV3>>),
}

/// The functions of a buffer type.
#[allow(missing_docs)] // they are ggml's
pub struct Functions {
    pub get_name: unsafe extern "C" fn(Handle) -> *const c_char,
    pub alloc_buffer: unsafe extern "C" fn(Handle, usize) -> Handle,
    pub get_alignment: unsafe extern "C" fn(Handle) -> usize,
    pub get_max_size: Option<unsafe extern "C" fn(Handle) -> usize>,
    pub get_alloc_size: Option<unsafe extern "C" fn(Handle, *const Tensor) -> usize>,
    pub is_host: Option<unsafe extern "C" fn(Handle) -> bool>,
}

/// Those of memory on the host.
pub const FUNCTIONS: Functions = Functions {
    get_name,
    alloc_buffer,
    get_alignment,
    get_max_size: Some(get_max_size),
    get_alloc_size: Some(get_alloc_size),
    is_host: None,
};

impl DeviceBufferType {
    /// The one for a program's generation. It belongs to no device yet.
    pub fn new(generation: Generation, functions: &Functions) -> Self {
        let (device, context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let &Functions { get_name, alloc_buffer, get_alignment, get_max_size, get_alloc_size, is_host } =
            functions;
        if generation == Generation::G3 {
            let iface = BufferTypeV3 {
                get_name: Some(get_name),
                alloc_buffer: Some(alloc_buffer),
                alloc_buffer_n: None,
                get_alignment: Some(get_alignment),
                get_max_size,
                get_alloc_size,
                get_alloc_size_n: None,
                is_host,
            };
            return Self::V3(Box::new(BufferType { iface, device, context }));
        }
        let iface = BufferTypeV1 {
            get_name: Some(get_name),
            alloc_buffer: Some(alloc_buffer),
            get_alignment: Some(get_alignment),
            get_max_size,
            get_alloc_size,
            is_host,
        };
        Self::V1(Box::new(BufferType { iface, device, context }))
    }

    /// Gives it its device.
    pub fn attach(&mut self, device: Handle, context: *mut c_void) {
        match self {
            Self::V1(this) => (this.device, this.context) = (device, context),
            Self::V3(this) => (this.device, this.context) = (device, context),
        }
    }

    /// What ggml calls it by.
    pub fn handle(&self) -> Handle {
        match self {
            Self::V1(this) => (&raw const **this).cast_mut().cast(),
            Self::V3(this) => (&raw const **this).cast_mut().cast(),
        }
    }
}

/// The device of a buffer type.
///
/// # Safety
/// `buffer_type` must be one of ours.
unsafe fn device<'a>(buffer_type: Handle) -> &'a DeviceContext {
    // SAFETY: as promised; the layout goes by the generation, and devices are never freed.
    unsafe {
        let context = if registry().base.generation == Generation::G3 {
            (*buffer_type.cast::<BufferType<BufferTypeV3>>()).context
        } else {
            (*buffer_type.cast::<BufferType<BufferTypeV1>>()).context
        };
        &*context.cast::<DeviceContext>()
    }
}

unsafe extern "C" fn get_name(buffer_type: Handle) -> *const c_char {
    // SAFETY: the buffer type is ours.
    guard(c"Ferry".as_ptr(), || unsafe { device(buffer_type) }.name.as_ptr())
}

unsafe extern "C" fn alloc_buffer(buffer_type: Handle, size: usize) -> Handle {
    // SAFETY: the buffer type is ours.
    guard(std::ptr::null_mut(), || buffer::alloc(unsafe { device(buffer_type) }, size))
}

unsafe extern "C" fn get_alignment(buffer_type: Handle) -> usize {
    // SAFETY: the buffer type is ours.
    guard(1, || unsafe { device(buffer_type) }.record.alignment as usize)
}

unsafe extern "C" fn get_max_size(buffer_type: Handle) -> usize {
    // SAFETY: the buffer type is ours.
    guard(usize::MAX, || unsafe { device(buffer_type) }.record.buffer_bytes_max as usize)
}

unsafe extern "C" fn get_alloc_size(buffer_type: Handle, tensor: *const Tensor) -> usize {
    // SAFETY: the buffer type is ours, and ggml passes a valid tensor.
    guard(usize::MAX, || unsafe { device(buffer_type).alloc_size(&*tensor) })
}
