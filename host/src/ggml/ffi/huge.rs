//! Huge pages for what a back-end computes from in ordinary memory.
//!
//! A CPU back-end's buffers come from `malloc`. Where the system gives huge pages to whom asks (Linux distributions'
//! `transparent_hugepage=madvise`), nobody asks for those: weights are then read through pages of 4 KiB, and an upload
//! takes a fault for each of them. On two cores of an EPYC tokens of SmolLM2 came at 0.94 and 0.96 times the native speed
//! without, and at 1.00 and 1.02 with: `cargo speed -- --models smollm2 --prompts 32 --arms native,ferry-unix --rounds 6`.
#![allow(unsafe_code)]

/// Asks for huge pages in `bytes` from `start` on. It is a wish: a system that has none changes nothing.
///
/// # Safety
/// The range must be memory of this process that stays allocated during the call.
#[cfg(target_os = "linux")]
pub unsafe fn advise(start: *mut u8, bytes: u64) {
    use std::ptr::NonNull;

    use nix::sys::mman::{MmapAdvise, madvise};
    /// Of x86-64, and of Arm with pages of 4 KiB. Where they are larger, the kernel finds none whole in less.
    const HUGE_PAGE: usize = 2 << 20;

    let skipped = start.align_offset(HUGE_PAGE);
    let whole = (bytes as usize).saturating_sub(skipped) / HUGE_PAGE * HUGE_PAGE;
    if whole == 0 {
        return;
    }
    // SAFETY: `skipped` is less than `bytes`, so both are within the range, which is as promised. The advice changes no
    // contents.
    let advised = unsafe {
        madvise(NonNull::new_unchecked(start.add(skipped).cast()), whole, MmapAdvise::MADV_HUGEPAGE)
    };
    if let Err(error) = advised {
        tracing::debug!("no huge pages: {error}");
    }
}

/// Elsewhere the system decides by itself.
///
/// # Safety
/// None is needed.
#[cfg(not(target_os = "linux"))]
pub unsafe fn advise(_start: *mut u8, _bytes: u64) {}
