//! Addresses that mean something to ggml and nothing to anybody else.
#![allow(unsafe_code)]

use std::ffi::c_void;

/// Bytes of a page at least; ggml aligns tensors within a buffer from its base.
const PAGE: usize = 4096;

/// A range of addresses with no memory behind it: a buffer's base is its start, so a tensor's offset is its address
/// minus the base, no address of the host is ever seen, and a program that touches the data faults.
pub struct Reservation {
    base: *mut c_void,
    len: usize,
}

// SAFETY: it is a pair of numbers; nothing is ever read or written there.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` bytes of addresses.
    pub fn new(len: usize) -> std::io::Result<Self> {
        let len = len.max(1).next_multiple_of(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(Self { base, len }) }
    }

    /// Its start.
    pub fn base(&self) -> *mut c_void {
        self.base
    }

    /// How far behind the start `address` lies.
    pub fn offset_of(&self, address: *const c_void) -> Option<u64> {
        let offset = (address as usize).checked_sub(self.base as usize)?;
        (offset <= self.len).then_some(offset as u64)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and nobody has a use for it any more.
        unsafe { libc::munmap(self.base, self.len) };
    }
}
