//! Descriptors that arrived as numbers.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes ownership of a descriptor that the kernel just put into this process with a message.
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: SCM_RIGHTS made the descriptor for us; nobody else knows its number.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
