//! Two requests of the kernel's virtio-gpu driver (`include/uapi/drm/virtgpu_drm.h`).
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

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

// DRM_COMMAND_BASE is 0x40.
nix::ioctl_readwrite!(virtgpu_getparam, b'd', 0x43, GetParam);
nix::ioctl_readwrite!(virtgpu_get_caps, b'd', 0x49, GetCaps);

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
