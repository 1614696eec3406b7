//! Requests of the kernel's virtio-gpu driver (`include/uapi/drm/virtgpu_drm.h`).
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::Result;

/// The parameters that a driver may know, by the header's names.
pub const PARAMETERS: [(&str, u64); 7] = [
    ("3d_features", 1),
    ("capset_query_fix", 2),
    ("resource_blob", 3),
    ("host_visible", 4),
    ("cross_device", 5),
    ("context_init", 6),
    ("supported_capset_ids", 7),
];

/// `struct drm_virtgpu_getparam`.
#[repr(C)]
pub struct GetParam {
    param: u64,
    /// Address of a C `int`, whatever the header says of 64 bits: the driver copies four bytes.
    value: u64,
}

/// `struct drm_virtgpu_get_caps`.
#[repr(C)]
pub struct GetCaps {
    cap_set_id: u32,
    cap_set_ver: u32,
    addr: u64,
    size: u32,
    pad: u32,
}

/// `struct drm_virtgpu_execbuffer`, without what came after timelines.
#[repr(C)]
pub struct ExecBuffer {
    flags: u32,
    size: u32,
    command: u64,
    bo_handles: u64,
    num_bo_handles: u32,
    fence_fd: i32,
    ring_idx: u32,
    pad: u32,
}

/// `VIRTGPU_EXECBUF_FENCE_FD_OUT` and `VIRTGPU_EXECBUF_RING_IDX`.
const FENCE_FD_OUT: u32 = 2;
const RING_IDX: u32 = 4;

/// `struct drm_virtgpu_resource_create`.
#[repr(C)]
#[derive(Default)]
pub struct ResourceCreate {
    target: u32,
    format: u32,
    bind: u32,
    width: u32,
    height: u32,
    depth: u32,
    array_size: u32,
    last_level: u32,
    nr_samples: u32,
    flags: u32,
    bo_handle: u32,
    res_handle: u32,
    size: u32,
    stride: u32,
}

/// `struct drm_virtgpu_resource_create_blob`.
#[repr(C)]
#[derive(Default)]
pub struct CreateBlob {
    blob_mem: u32,
    blob_flags: u32,
    bo_handle: u32,
    res_handle: u32,
    size: u64,
    pad: u32,
    cmd_size: u32,
    cmd: u64,
    blob_id: u64,
}

/// `VIRTGPU_BLOB_MEM_GUEST` and `VIRTGPU_BLOB_FLAG_USE_MAPPABLE`.
const BLOB_MEM_GUEST: u32 = 1;
const USE_MAPPABLE: u32 = 1;

/// `struct drm_virtgpu_context_init`; its parameters are pairs of number and value.
#[repr(C)]
pub struct ContextInit {
    num_params: u32,
    pad: u32,
    ctx_set_params: u64,
}

/// `VIRTGPU_CONTEXT_PARAM_CAPSET_ID` and `VIRTGPU_CONTEXT_PARAM_NUM_RINGS`.
const PARAM_CAPSET_ID: u64 = 1;
const PARAM_NUM_RINGS: u64 = 2;

// DRM_COMMAND_BASE is 0x40.
nix::ioctl_readwrite!(virtgpu_execbuffer, b'd', 0x42, ExecBuffer);
nix::ioctl_readwrite!(virtgpu_getparam, b'd', 0x43, GetParam);
nix::ioctl_readwrite!(virtgpu_resource_create, b'd', 0x44, ResourceCreate);
nix::ioctl_readwrite!(virtgpu_get_caps, b'd', 0x49, GetCaps);
nix::ioctl_readwrite!(virtgpu_create_blob, b'd', 0x4a, CreateBlob);
nix::ioctl_readwrite!(virtgpu_context_init, b'd', 0x4b, ContextInit);

/// The value of a parameter.
pub fn parameter(node: &File, number: u64) -> Result<i32> {
    let mut value = 0_i32;
    let mut request = GetParam { param: number, value: (&raw mut value).expose_provenance() as u64 };
    // SAFETY: the kernel writes one int to the address, which is that of a local that outlives the call.
    unsafe { virtgpu_getparam(node.as_raw_fd(), &mut request)? };
    Ok(value)
}

/// The first `bytes` of a capability set.
pub fn capset(node: &File, id: u32, bytes: u32) -> Result<Vec<u8>> {
    let mut body = vec![0_u8; bytes as usize];
    let addr = body.as_mut_ptr().expose_provenance() as u64;
    let mut request = GetCaps { cap_set_id: id, cap_set_ver: 0, addr, size: bytes, pad: 0 };
    // SAFETY: the kernel writes at most `size` bytes to the address, and the vector has as many.
    unsafe { virtgpu_get_caps(node.as_raw_fd(), &mut request)? };
    Ok(body)
}

/// Makes the file's context one of `capset`, with a timeline for each of its `rings`.
pub fn init_context(node: &File, capset: u32, rings: u32) -> Result<()> {
    let parameters = [PARAM_CAPSET_ID, capset.into(), PARAM_NUM_RINGS, rings.into()];
    let address = parameters.as_ptr().expose_provenance() as u64;
    let mut request = ContextInit { num_params: 2, pad: 0, ctx_set_params: address };
    // SAFETY: the kernel reads two pairs at the address, which is that of a local that outlives the call.
    unsafe { virtgpu_context_init(node.as_raw_fd(), &mut request).map(drop) }
}

/// Makes a plain buffer; its id on the device.
pub fn create_buffer(node: &File, size: u32) -> Result<u32> {
    let plain =
        ResourceCreate { format: 64, bind: 1 << 4, height: 1, depth: 1, array_size: 1, ..Default::default() };
    let mut request = ResourceCreate { width: size, size, ..plain };
    // SAFETY: the kernel reads and writes the struct alone.
    unsafe { virtgpu_resource_create(node.as_raw_fd(), &mut request)? };
    Ok(request.res_handle)
}

/// Makes a blob of the guest's memory; its id on the device.
pub fn create_blob(node: &File, size: u64) -> Result<u32> {
    let mut request =
        CreateBlob { blob_mem: BLOB_MEM_GUEST, blob_flags: USE_MAPPABLE, size, ..Default::default() };
    // SAFETY: the kernel reads and writes the struct alone.
    unsafe { virtgpu_create_blob(node.as_raw_fd(), &mut request)? };
    Ok(request.res_handle)
}

/// Sends `command`, on one of the context's rings if it has any; its fence.
pub fn exec(node: &File, command: &[u8], ring: Option<u32>) -> Result<OwnedFd> {
    let mut request = ExecBuffer {
        flags: FENCE_FD_OUT | ring.map_or(0, |_| RING_IDX),
        size: command.len() as u32,
        command: command.as_ptr().expose_provenance() as u64,
        bo_handles: 0,
        num_bo_handles: 0,
        fence_fd: -1,
        ring_idx: ring.unwrap_or(0),
        pad: 0,
    };
    // SAFETY: the kernel reads `size` bytes of the command, which outlives the call.
    unsafe { virtgpu_execbuffer(node.as_raw_fd(), &mut request)? };
    // SAFETY: the kernel made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(request.fence_fd) })
}
