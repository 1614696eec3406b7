//! Memory of the program that a read goes to.
#![allow(unsafe_code)]

use ferry_protocol::channel::Payload;

/// What stands where nothing was read: not-a-number in every floating-point type.
const UNREAD: u8 = 0xff;

/// Memory of the program that is filled from its start. What was not filled when it is dropped is filled with 0xFF.
pub struct Destination {
    next: *mut u8,
    left: usize,
}

// SAFETY: the memory is the program's and reserved for this one use; whichever thread receives the bytes writes them.
unsafe impl Send for Destination {}

impl Destination {
    /// # Safety
    /// `len` bytes from `start` stay writable, and nobody else touches them, until this is dropped.
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { next: start, left: len }
    }

    /// Somebody else has filled it.
    pub fn is_filled(&mut self) {
        self.left = 0;
    }

    /// Copies the next part in. What is too much is dropped.
    pub fn append(&mut self, part: Payload<'_>) {
        let len = part.len().min(self.left);
        // SAFETY: `len` bytes are left, and nobody else touches them.
        part.copy_to(unsafe { std::slice::from_raw_parts_mut(self.next, len) });
        self.next = self.next.wrapping_add(len);
        self.left -= len;
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        // SAFETY: as in `append`.
        unsafe { std::ptr::write_bytes(self.next, UNREAD, self.left) };
    }
}
