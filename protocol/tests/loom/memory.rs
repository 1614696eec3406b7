//! A ring's bytes in loom's cells: an access that no release and acquire separate from another one is found.
#![allow(unsafe_code)]

use ferry_protocol::channel::memory::Memory;
use loom::cell::UnsafeCell;

/// Bytes of a cell: the alignment of records, so that no cell belongs to two of them.
const CELL_BYTES: usize = 8;

/// Memory that loom watches.
pub struct Cells(Vec<UnsafeCell<[u8; CELL_BYTES]>>);

// SAFETY: sharing it between threads without a data race is what the tests are about: loom reports one that happens.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

impl Cells {
    /// `len` bytes, all 0.
    pub fn new(len: usize) -> Self {
        Self((0..len.div_ceil(CELL_BYTES)).map(|_| UnsafeCell::new([0; CELL_BYTES])).collect())
    }
}

impl Memory for Cells {
    fn len(&self) -> usize {
        self.0.len() * CELL_BYTES
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (n, &byte) in bytes.iter().enumerate() {
            let place = at + n;
            // SAFETY: loom panics if another thread may be using the cell.
            self.0[place / CELL_BYTES].with_mut(|cell| unsafe { (*cell)[place % CELL_BYTES] = byte });
        }
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        for (n, byte) in out.iter_mut().enumerate() {
            let place = at + n;
            // SAFETY: loom panics if another thread may be writing to the cell.
            *byte = self.0[place / CELL_BYTES].with(|cell| unsafe { (*cell)[place % CELL_BYTES] });
        }
    }

    fn pointer(&self, _at: usize) -> *const u8 {
        unreachable!("nothing here reads in place")
    }
}
