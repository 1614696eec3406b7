//! The virtio-gpu driver's ioctls (`include/uapi/drm/virtgpu_drm.h`), those that are used. `tests/` compares the
//! layouts with the kernel's header.
#![allow(unsafe_code)]

use nix::errno::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const DRM_IOCTL_BASE: u8 = b'd';
/// `DRM_COMMAND_BASE`
const COMMAND: u8 = 0x40;

/// `struct drm_virtgpu_map`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Map {
    /// Out: where to mmap it in the node.
    pub offset: u64,
    /// The object.
    pub handle: u32,
    /// 0.
    pub pad: u32,
}

/// `struct drm_virtgpu_execbuffer`, up to what every kernel since 5.17 has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecBuffer {
    /// `VIRTGPU_EXECBUF_*`
    pub flags: u32,
    /// Bytes of the command.
    pub size: u32,
    /// Address of the command.
    pub command: u64,
    /// Address of the handles of the objects that it uses.
    pub bo_handles: u64,
    /// How many.
    pub num_bo_handles: u32,
    /// In and out: a fence.
    pub fence_fd: i32,
    /// Timeline; 0 without context_init.
    pub ring_idx: u32,
    /// 0.
    pub pad: u32,
}

/// `struct drm_virtgpu_resource_create`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // the fields are the kernel's
pub struct ResourceCreate {
    pub target: u32,
    pub format: u32,
    pub bind: u32,
    pub width: u32,
    pub height: u32,
    pub depth: u32,
    pub array_size: u32,
    pub last_level: u32,
    pub nr_samples: u32,
    pub flags: u32,
    pub bo_handle: u32,
    pub res_handle: u32,
    pub size: u32,
    pub stride: u32,
}

/// `struct drm_virtgpu_3d_wait`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wait {
    /// The object.
    pub handle: u32,
    /// `VIRTGPU_WAIT_NOWAIT`, or 0.
    pub flags: u32,
}

/// `struct drm_virtgpu_get_caps`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GetCaps {
    /// Which set.
    pub cap_set_id: u32,
    /// Which version of it.
    pub cap_set_ver: u32,
    /// Where it goes.
    pub addr: u64,
    /// Room there.
    pub size: u32,
    /// 0.
    pub pad: u32,
}

/// `struct drm_gem_close`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GemClose {
    /// The object.
    pub handle: u32,
    /// 0.
    pub pad: u32,
}

mod raw {
    use super::*;
    nix::ioctl_write_ptr!(gem_close, DRM_IOCTL_BASE, 0x09, GemClose);
    nix::ioctl_readwrite!(map, DRM_IOCTL_BASE, COMMAND + 0x01, Map);
    nix::ioctl_readwrite!(execbuffer, DRM_IOCTL_BASE, COMMAND + 0x02, ExecBuffer);
    nix::ioctl_readwrite!(resource_create, DRM_IOCTL_BASE, COMMAND + 0x04, ResourceCreate);
    nix::ioctl_readwrite!(wait, DRM_IOCTL_BASE, COMMAND + 0x08, Wait);
    nix::ioctl_readwrite!(get_caps, DRM_IOCTL_BASE, COMMAND + 0x09, GetCaps);
}

/// `VIRTGPU_EXECBUF_FENCE_FD_OUT`
pub const FENCE_FD_OUT: u32 = 2;

/// What `PIPE_BUFFER`, `R8_UNORM` and a vertex binding are to virgl: a plain run of bytes.
const PLAIN_BUFFER: ResourceCreate = ResourceCreate {
    target: 0,
    format: 64,
    bind: 1 << 4,
    height: 1,
    depth: 1,
    array_size: 1,
    width: 0,
    last_level: 0,
    nr_samples: 0,
    flags: 0,
    bo_handle: 0,
    res_handle: 0,
    size: 0,
    stride: 0,
};

/// Repeats an interrupted ioctl.
fn again(mut ioctl: impl FnMut() -> nix::Result<i32>) -> nix::Result<()> {
    loop {
        match ioctl() {
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            outcome => return outcome.map(drop),
        }
    }
}

/// Fills `set` with version `version` of capability set `id`.
pub fn get_caps(node: BorrowedFd<'_>, id: u32, version: u32, set: &mut [u8]) -> nix::Result<()> {
    let (addr, size) = (set.as_mut_ptr() as u64, set.len() as u32);
    let mut request = GetCaps { cap_set_id: id, cap_set_ver: version, addr, size, pad: 0 };
    // SAFETY: the kernel writes `size` bytes to `addr`, which is `set`.
    again(|| unsafe { raw::get_caps(node.as_raw_fd(), &mut request) })
}

/// Makes a resource of `size` bytes; its object's handle and its id on the device.
pub fn create_buffer(node: BorrowedFd<'_>, size: u32) -> nix::Result<(u32, u32)> {
    let mut request = ResourceCreate { width: size, size, ..PLAIN_BUFFER };
    // SAFETY: the kernel reads and writes the struct alone.
    again(|| unsafe { raw::resource_create(node.as_raw_fd(), &mut request) })?;
    Ok((request.bo_handle, request.res_handle))
}

/// Where in the node to map an object.
pub fn map_offset(node: BorrowedFd<'_>, handle: u32) -> nix::Result<u64> {
    let mut request = Map { handle, ..Map::default() };
    // SAFETY: the kernel reads and writes the struct alone.
    again(|| unsafe { raw::map(node.as_raw_fd(), &mut request) })?;
    Ok(request.offset)
}

/// Sends `command`, which uses the objects `handles`.
pub fn exec(node: BorrowedFd<'_>, command: &[u8], handles: &[u32]) -> nix::Result<()> {
    let mut request = ExecBuffer {
        size: command.len() as u32,
        command: command.as_ptr() as u64,
        bo_handles: handles.as_ptr() as u64,
        num_bo_handles: handles.len() as u32,
        ..ExecBuffer::default()
    };
    // SAFETY: the kernel reads the command and the handles, which outlive the call.
    again(|| unsafe { raw::execbuffer(node.as_raw_fd(), &mut request) })
}

/// Sends `command`; the fence of its completion.
pub fn exec_fenced(node: BorrowedFd<'_>, command: &[u8]) -> nix::Result<OwnedFd> {
    let mut request = ExecBuffer {
        flags: FENCE_FD_OUT,
        size: command.len() as u32,
        command: command.as_ptr() as u64,
        fence_fd: -1,
        ..ExecBuffer::default()
    };
    // SAFETY: the kernel reads the command, which outlives the call.
    again(|| unsafe { raw::execbuffer(node.as_raw_fd(), &mut request) })?;
    // SAFETY: the kernel made this descriptor for us (close-on-exec: the driver says so), nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(request.fence_fd) })
}

/// Waits until what was sent with the object `handle` is completed.
pub fn wait(node: BorrowedFd<'_>, handle: u32) -> nix::Result<()> {
    let mut request = Wait { handle, flags: 0 };
    loop {
        // SAFETY: the kernel reads the struct alone.
        match again(|| unsafe { raw::wait(node.as_raw_fd(), &mut request) }) {
            // The driver gives up after 15 s; whoever waits here does not.
            Err(Errno::EBUSY) => {}
            outcome => return outcome,
        }
    }
}

/// Gives up the handle of an object, which lives on for as long as it is mapped.
pub fn close(node: BorrowedFd<'_>, handle: u32) {
    let request = GemClose { handle, pad: 0 };
    // SAFETY: the kernel reads the struct alone. An error means that the handle is gone already.
    let _ = again(|| unsafe { raw::gem_close(node.as_raw_fd(), &request) });
}

/// A render node.
pub struct Node(pub std::fs::File);

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl drm::Device for Node {}
