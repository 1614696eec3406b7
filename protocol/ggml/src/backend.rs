//! The structs of function pointers by which ggml calls a back-end. Every pointer is an `Option`: null where the
//! function is optional and absent.

use crate::{CGraph, Tensor};
use std::ffi::{c_char, c_int, c_void};

/// Which layout of the plug-in interface a build of ggml has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// API version 1.
    G1,
    /// API version 2 without the 2d transfers.
    G2a,
    /// API version 2 with them.
    G2b,
    /// API version 3.
    G3,
}

impl Generation {
    /// What `GGML_BACKEND_API_VERSION` is in such a build.
    pub fn api_version(self) -> c_int {
        match self {
            Self::G1 => 1,
            Self::G2a | Self::G2b => 2,
            Self::G3 => 3,
        }
    }
}

/// An opaque `ggml_backend_buffer_type_t`, `ggml_backend_buffer_t`, `ggml_backend_t`, `ggml_backend_dev_t`, ….
pub type Handle = *mut c_void;

/// `ggml_backend_buffer_type_i`, API versions 1 and 2.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the fields are ggml's
pub struct BufferTypeV1 {
    pub get_name: Option<unsafe extern "C" fn(Handle) -> *const c_char>,
    pub alloc_buffer: Option<unsafe extern "C" fn(Handle, usize) -> Handle>,
    pub get_alignment: Option<unsafe extern "C" fn(Handle) -> usize>,
    pub get_max_size: Option<unsafe extern "C" fn(Handle) -> usize>,
    pub get_alloc_size: Option<unsafe extern "C" fn(Handle, *const Tensor) -> usize>,
    pub is_host: Option<unsafe extern "C" fn(Handle) -> bool>,
}

/// `ggml_backend_buffer_type_i`, API version 3.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the fields are ggml's
pub struct BufferTypeV3 {
    pub get_name: Option<unsafe extern "C" fn(Handle) -> *const c_char>,
    pub alloc_buffer: Option<unsafe extern "C" fn(Handle, usize) -> Handle>,
    pub alloc_buffer_n: Option<unsafe extern "C" fn(Handle, *mut *mut Tensor, c_int) -> Handle>,
    pub get_alignment: Option<unsafe extern "C" fn(Handle) -> usize>,
    pub get_max_size: Option<unsafe extern "C" fn(Handle) -> usize>,
    pub get_alloc_size: Option<unsafe extern "C" fn(Handle, *const Tensor) -> usize>,
    pub get_alloc_size_n: Option<unsafe extern "C" fn(Handle, *mut *mut Tensor, c_int) -> usize>,
    pub is_host: Option<unsafe extern "C" fn(Handle) -> bool>,
}

/// `struct ggml_backend_buffer_type` with interface `I`.
#[repr(C)]
#[allow(missing_docs)] // the fields are ggml's
pub struct BufferType<I> {
    pub iface: I,
    pub device: Handle,
    pub context: *mut c_void,
}

/// Copies bytes into a tensor.
pub type SetTensor = unsafe extern "C" fn(Handle, *mut Tensor, *const c_void, usize, usize);
/// Copies bytes out of a tensor.
pub type GetTensor = unsafe extern "C" fn(Handle, *const Tensor, *mut c_void, usize, usize);
/// Copies `n` runs of bytes into a tensor: data, offset, size, n, stride in the tensor, stride in the data.
pub type SetTensor2d =
    unsafe extern "C" fn(Handle, *mut Tensor, *const c_void, usize, usize, usize, usize, usize);
/// Copies `n` runs of bytes out of a tensor.
pub type GetTensor2d =
    unsafe extern "C" fn(Handle, *const Tensor, *mut c_void, usize, usize, usize, usize, usize);

/// `ggml_backend_buffer_i` without the 2d transfers: G1 and G2a.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the fields are ggml's
pub struct BufferV1 {
    pub free_buffer: Option<unsafe extern "C" fn(Handle)>,
    pub get_base: Option<unsafe extern "C" fn(Handle) -> *mut c_void>,
    pub init_tensor: Option<unsafe extern "C" fn(Handle, *mut Tensor) -> c_int>,
    pub memset_tensor: Option<unsafe extern "C" fn(Handle, *mut Tensor, u8, usize, usize)>,
    pub set_tensor: Option<SetTensor>,
    pub get_tensor: Option<GetTensor>,
    pub cpy_tensor: Option<unsafe extern "C" fn(Handle, *const Tensor, *mut Tensor) -> bool>,
    pub clear: Option<unsafe extern "C" fn(Handle, u8)>,
    pub reset: Option<unsafe extern "C" fn(Handle)>,
}

/// `ggml_backend_buffer_i` with them: G2b and G3.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the fields are ggml's
pub struct BufferV2 {
    pub free_buffer: Option<unsafe extern "C" fn(Handle)>,
    pub get_base: Option<unsafe extern "C" fn(Handle) -> *mut c_void>,
    pub init_tensor: Option<unsafe extern "C" fn(Handle, *mut Tensor) -> c_int>,
    pub memset_tensor: Option<unsafe extern "C" fn(Handle, *mut Tensor, u8, usize, usize)>,
    pub set_tensor: Option<SetTensor>,
    pub get_tensor: Option<GetTensor>,
    pub set_tensor_2d: Option<SetTensor2d>,
    pub get_tensor_2d: Option<GetTensor2d>,
    pub cpy_tensor: Option<unsafe extern "C" fn(Handle, *const Tensor, *mut Tensor) -> bool>,
    pub clear: Option<unsafe extern "C" fn(Handle, u8)>,
    pub reset: Option<unsafe extern "C" fn(Handle)>,
}

/// `struct ggml_backend_buffer` with interface `I`.
#[repr(C)]
#[allow(missing_docs)] // the fields are ggml's
pub struct Buffer<I> {
    pub iface: I,
    pub buft: Handle,
    pub context: *mut c_void,
    pub size: usize,
    pub usage: c_int,
}

/// `graph_optimize`: its third argument exists since API version 3; a callee that does not use it serves both.
pub type GraphOptimize = unsafe extern "C" fn(Handle, *mut CGraph, *mut c_void);

/// `ggml_backend_i` of G1.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the fields are ggml's
pub struct BackendV1 {
    pub get_name: Option<unsafe extern "C" fn(Handle) -> *const c_char>,
    pub free: Option<unsafe extern "C" fn(Handle)>,
    pub set_tensor_async: Option<SetTensor>,
    pub get_tensor_async: Option<GetTensor>,
    pub cpy_tensor_async: Option<unsafe extern "C" fn(Handle, Handle, *const Tensor, *mut Tensor) -> bool>,
    pub synchronize: Option<unsafe extern "C" fn(Handle)>,
    pub graph_plan_create: *const c_void,
    pub graph_plan_free: *const c_void,
    pub graph_plan_update: *const c_void,
    pub graph_plan_compute: *const c_void,
    pub graph_compute: Option<unsafe extern "C" fn(Handle, *mut CGraph) -> c_int>,
    pub event_record: Option<unsafe extern "C" fn(Handle, Handle)>,
    pub event_wait: Option<unsafe extern "C" fn(Handle, Handle)>,
}

/// `ggml_backend_i` of G2a: [`BackendV1`] with `graph_optimize` at the end.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the fields are ggml's
pub struct BackendV2a {
    pub v1: BackendV1,
    pub graph_optimize: Option<GraphOptimize>,
}

/// `ggml_backend_i` of G2b and G3.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the fields are ggml's
pub struct BackendV2b {
    pub get_name: Option<unsafe extern "C" fn(Handle) -> *const c_char>,
    pub free: Option<unsafe extern "C" fn(Handle)>,
    pub set_tensor_async: Option<SetTensor>,
    pub get_tensor_async: Option<GetTensor>,
    pub set_tensor_2d_async: Option<SetTensor2d>,
    pub get_tensor_2d_async: Option<GetTensor2d>,
    pub cpy_tensor_async: Option<unsafe extern "C" fn(Handle, Handle, *const Tensor, *mut Tensor) -> bool>,
    pub synchronize: Option<unsafe extern "C" fn(Handle)>,
    pub graph_plan_create: *const c_void,
    pub graph_plan_free: *const c_void,
    pub graph_plan_update: *const c_void,
    pub graph_plan_compute: *const c_void,
    pub graph_compute: Option<unsafe extern "C" fn(Handle, *mut CGraph) -> c_int>,
    pub event_record: Option<unsafe extern "C" fn(Handle, Handle)>,
    pub event_wait: Option<unsafe extern "C" fn(Handle, Handle)>,
    pub graph_optimize: Option<GraphOptimize>,
}

/// `struct ggml_backend` with interface `I`.
#[repr(C)]
#[allow(missing_docs)] // the fields are ggml's
pub struct Backend<I> {
    pub guid: *const [u8; 16],
    pub iface: I,
    pub device: Handle,
    pub context: *mut c_void,
}

/// `ggml_backend_device_i`: 15 functions in every generation.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the fields are ggml's
pub struct DeviceInterface {
    pub get_name: Option<unsafe extern "C" fn(Handle) -> *const c_char>,
    pub get_description: Option<unsafe extern "C" fn(Handle) -> *const c_char>,
    pub get_memory: Option<unsafe extern "C" fn(Handle, *mut usize, *mut usize)>,
    pub get_type: Option<unsafe extern "C" fn(Handle) -> c_int>,
    pub get_props: Option<unsafe extern "C" fn(Handle, *mut c_void)>,
    pub init_backend: Option<unsafe extern "C" fn(Handle, *const c_char) -> Handle>,
    pub get_buffer_type: Option<unsafe extern "C" fn(Handle) -> Handle>,
    pub get_host_buffer_type: Option<unsafe extern "C" fn(Handle) -> Handle>,
    pub buffer_from_host_ptr: *const c_void,
    pub supports_op: Option<unsafe extern "C" fn(Handle, *const Tensor) -> bool>,
    pub supports_buft: Option<unsafe extern "C" fn(Handle, Handle) -> bool>,
    pub offload_op: Option<unsafe extern "C" fn(Handle, *const Tensor) -> bool>,
    pub event_new: Option<unsafe extern "C" fn(Handle) -> Handle>,
    pub event_free: Option<unsafe extern "C" fn(Handle, Handle)>,
    pub event_synchronize: Option<unsafe extern "C" fn(Handle, Handle)>,
}

/// `struct ggml_backend_device`.
#[repr(C)]
#[allow(missing_docs)] // the fields are ggml's
pub struct Device {
    pub iface: DeviceInterface,
    pub reg: Handle,
    pub context: *mut c_void,
}

/// `struct ggml_backend_event`.
#[repr(C)]
#[allow(missing_docs)] // the fields are ggml's
pub struct Event {
    pub device: Handle,
    pub context: *mut c_void,
}

/// `ggml_backend_reg_i`: 4 functions in every generation.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the fields are ggml's
pub struct RegInterface {
    pub get_name: Option<unsafe extern "C" fn(Handle) -> *const c_char>,
    pub get_device_count: Option<unsafe extern "C" fn(Handle) -> usize>,
    pub get_device: Option<unsafe extern "C" fn(Handle, usize) -> Handle>,
    pub get_proc_address: Option<unsafe extern "C" fn(Handle, *const c_char) -> *mut c_void>,
}

/// `struct ggml_backend_reg`.
#[repr(C)]
#[allow(missing_docs)] // the fields are ggml's
pub struct Reg {
    pub api_version: c_int,
    pub iface: RegInterface,
    pub context: *mut c_void,
}

/// What a device can do: `struct ggml_backend_dev_caps`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are ggml's
pub struct Caps {
    pub async_: bool,
    pub host_buffer: bool,
    pub buffer_from_host_ptr: bool,
    pub events: bool,
}

/// `struct ggml_backend_dev_props`, API version 1. `caps` is its last field in every version, so writing the fields
/// up to it stays within the caller's struct.
#[repr(C)]
#[allow(missing_docs)] // the fields are ggml's
pub struct PropsV1 {
    pub name: *const c_char,
    pub description: *const c_char,
    pub memory_free: usize,
    pub memory_total: usize,
    pub kind: c_int,
    pub caps: Caps,
}

/// `struct ggml_backend_dev_props` since API version 2.
#[repr(C)]
#[allow(missing_docs)] // the fields are ggml's
pub struct PropsV2 {
    pub name: *const c_char,
    pub description: *const c_char,
    pub memory_free: usize,
    pub memory_total: usize,
    pub kind: c_int,
    pub device_id: *const c_char,
    pub caps: Caps,
}

/// `enum ggml_status`.
pub mod status {
    use std::ffi::c_int;
    /// Out of memory.
    pub const ALLOC_FAILED: c_int = -2;
    /// Anything else.
    pub const FAILED: c_int = -1;
    /// Done.
    pub const SUCCESS: c_int = 0;
}

/// `enum ggml_backend_dev_type`.
pub mod device_type {
    use std::ffi::c_int;
    /// A CPU using system memory.
    pub const CPU: c_int = 0;
    /// A GPU using memory of its own.
    pub const GPU: c_int = 1;
    /// A GPU using host memory (since August 2025; an accelerator before).
    pub const IGPU: c_int = 2;
}

/// `enum ggml_backend_buffer_usage`.
pub mod usage {
    use std::ffi::c_int;
    /// Anything.
    pub const ANY: c_int = 0;
    /// Weights.
    pub const WEIGHTS: c_int = 1;
    /// Intermediate results of a scheduler.
    pub const COMPUTE: c_int = 2;
}

// Slots per interface: what tells the generations apart.
const SLOT: usize = size_of::<usize>();
const _: () = assert!(size_of::<BackendV1>() == 13 * SLOT && size_of::<BackendV2a>() == 14 * SLOT);
const _: () = assert!(size_of::<BackendV2b>() == 16 * SLOT);
const _: () = assert!(size_of::<BufferV1>() == 9 * SLOT && size_of::<BufferV2>() == 11 * SLOT);
const _: () = assert!(size_of::<BufferTypeV1>() == 6 * SLOT && size_of::<BufferTypeV3>() == 8 * SLOT);
const _: () = assert!(size_of::<DeviceInterface>() == 15 * SLOT && size_of::<RegInterface>() == 4 * SLOT);
