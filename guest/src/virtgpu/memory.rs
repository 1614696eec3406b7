//! A resource's memory as an arena.
#![allow(unsafe_code)]

use super::GemMemory;
use ferry_protocol::channel::memory::Mapping;
use std::ptr::NonNull;

// SAFETY: the mapping stays in place for as long as the value lives, and only raw pointers into it are handed out.
unsafe impl Mapping for GemMemory {
    fn base(&self) -> NonNull<u8> {
        Mapping::base(&*self.map)
    }
    fn len(&self) -> usize {
        Mapping::len(&*self.map)
    }
}
