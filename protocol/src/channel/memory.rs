//! Memory that the other side may write to at any time.
#![allow(unsafe_code)]

use super::ring::{Positions, SleepWord};
use crate::limits::ARENA_HEADER_BYTES;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes that are only ever copied in and out: no reference to them is ever made.
pub trait Memory: Send + Sync {
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies `bytes` in at `at`. Panics if they do not fit.
    fn write(&self, at: usize, bytes: &[u8]);
    /// Copies bytes from `at` out. Panics if they are not there.
    fn read(&self, at: usize, out: &mut [u8]);
    /// The address of byte `at`.
    fn pointer(&self, at: usize) -> *const u8;
}

/// Mapped memory.
///
/// # Safety
/// For as long as the value lives, `base()` is the same address, the start of `len()` readable and writable bytes
/// that no Rust reference points into.
pub unsafe trait Mapping: Send + Sync {
    /// The first byte; aligned to a page.
    fn base(&self) -> NonNull<u8>;
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// SAFETY: a `MmapRaw` keeps its mapping in place until it is dropped and hands out raw pointers only.
unsafe impl Mapping for memmap2::MmapRaw {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.as_mut_ptr()).expect("a mapping is not at address 0")
    }
    fn len(&self) -> usize {
        memmap2::MmapRaw::len(self)
    }
}

/// What the first page of an arena holds: atomics and nothing else, and all zero is the start.
#[repr(C)]
#[derive(Default)]
pub(super) struct ArenaHeader {
    pub submission: Positions,
    pub completion: Positions,
    pub guest: SleepWord,
    pub host: SleepWord,
}

const _: () = assert!(size_of::<ArenaHeader>() <= ARENA_HEADER_BYTES);

/// A part of a mapping, which it keeps alive.
#[derive(Clone)]
pub struct MappedRange {
    base: NonNull<u8>,
    len: usize,
    mapping: Arc<dyn Mapping>,
}

// SAFETY: the address is that of a mapping, which may be used from any thread (a supertrait of `Mapping`), and the
// bytes behind it are only copied.
unsafe impl Send for MappedRange {}
// SAFETY: as above.
unsafe impl Sync for MappedRange {}

impl MappedRange {
    /// `len` bytes of `mapping` from `at`, or `None` if they are not there.
    pub fn new(mapping: Arc<dyn Mapping>, at: usize, len: usize) -> Option<Self> {
        if at.checked_add(len)? > mapping.len() {
            return None;
        }
        // SAFETY: `at` is within the mapping.
        let base = unsafe { mapping.base().add(at) };
        Some(Self { base, len, mapping })
    }

    /// The whole mapping.
    pub fn mapping(&self) -> &Arc<dyn Mapping> {
        &self.mapping
    }

    /// What an arena's first page holds, if this is one.
    ///
    /// # Panics
    /// If it is too small or not aligned to a page; an arena's layout has been checked.
    pub(super) fn arena_header(&self) -> &ArenaHeader {
        self.check(0, size_of::<ArenaHeader>());
        let place = self.base.cast::<ArenaHeader>();
        assert!(place.is_aligned());
        // SAFETY: in bounds, aligned, alive as long as `self`. It is made of atomics only, so that sharing it with another
        // process is no data race, and any bytes are valid ones.
        unsafe { place.as_ref() }
    }

    fn check(&self, at: usize, len: usize) {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} bytes at {at} of {}",
            self.len
        );
    }
}

impl Memory for MappedRange {
    fn len(&self) -> usize {
        self.len
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: the range is in bounds, and nothing else in this process writes to it: a ring has one producer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) }
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.check(at, out.len());
        // SAFETY: the range is in bounds; whatever the other side writes meanwhile, the copy is some bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), out.as_mut_ptr(), out.len()) }
    }

    fn pointer(&self, at: usize) -> *const u8 {
        self.check(at, 0);
        // SAFETY: in bounds.
        unsafe { self.base.as_ptr().add(at) }
    }
}

/// Bytes of this process alone.
impl Memory for Vec<u8> {
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn write(&self, _at: usize, _bytes: &[u8]) {
        unreachable!("received bytes are not written to")
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self[at..at + out.len()]);
    }

    fn pointer(&self, at: usize) -> *const u8 {
        self[at..].as_ptr()
    }
}
