//! Numbers that this side gives to what the host keeps.

use std::sync::{Mutex, PoisonError};

/// Slots of a session that nothing is in.
pub struct FreeSlots(Mutex<Vec<u32>>);

impl FreeSlots {
    /// All of `count`.
    pub fn new(count: usize) -> Self {
        Self(Mutex::new((0..count as u32).rev().collect()))
    }

    /// One of them, the lowest at first.
    pub fn take(&self) -> Option<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// It is free again.
    pub fn give_back(&self, slot: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }
}
