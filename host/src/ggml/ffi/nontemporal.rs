//! A copy that goes past the caches to where it is written.
//!
//! Weights that a guest uploads are not looked at again before the upload is over. Stored the ordinary way, each of their
//! cache lines is first read from memory, only to be overwritten, and two cores that copy at once, the guest's and ours,
//! wait for memory. What they are copied from has just been written by another core, and is in a cache. On two cores of a
//! Xeon of 2023 an upload to the CPU back-end went from 6.4 to 8.3 GB/s (memcpy: 10.3), one from a host buffer of 64 MiB
//! from 5.8 to 7.2: `cargo test --release -p ferry-tests --test budget -- --nocapture upload`. (From memory that is in no
//! cache it would be slower than an ordinary copy, 6.6 to 10.)
#![allow(unsafe_code)]

/// From so many bytes on. What is smaller may well be needed at once: activations, a token's inputs.
const BYTES_MIN: usize = 128 << 10;
/// Into buffers of so many bytes and more. A smaller model stays in a large last-level cache, where its first prompt finds
/// it: one of 96 MB, stored past a cache of 260, took a seventh longer for a first prompt of 32 tokens.
const BUFFER_BYTES_MIN: u64 = 256 << 20;

/// Whether `len` bytes are better stored like this in a buffer of `buffer_bytes`.
pub fn suits(len: usize, buffer_bytes: u64) -> bool {
    len >= BYTES_MIN && buffer_bytes >= BUFFER_BYTES_MIN
}

/// Copies `len` bytes; `to` need not be aligned.
///
/// # Safety
/// `from` must be the start of `len` readable bytes and `to` of as many writable ones elsewhere. What is read may change
/// meanwhile, what is written may not be used by anybody else.
#[cfg(target_arch = "x86_64")]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    const WORDS: usize = LINE / size_of::<__m128i>();

    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: all of it is within the ranges, and a line that is written begins at a multiple of its size. SSE2 is part of
    // the architecture. Such stores are ordered with nothing: the fence orders them before whatever says that they are done.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let (source, target) = (from.add(head).cast::<__m128i>(), to.add(head).cast::<__m128i>());
        for line in 0..lines {
            let at = line * WORDS;
            let words: [__m128i; WORDS] = std::array::from_fn(|i| _mm_loadu_si128(source.add(at + i)));
            (0..WORDS).for_each(|i| _mm_stream_si128(target.add(at + i), words[i]));
        }
        _mm_sfence();
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
    }
}

/// The same where there is no such store: an ordinary copy.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as promised.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_small_pieces_nor_models_that_fit_in_a_cache_go_past_it() {
        assert!(suits(512 << 10, 1 << 30));
        assert!(!suits(4 << 10, 1 << 30) && !suits(512 << 10, 96 << 20));
    }

    #[test]
    fn every_byte_arrives_and_no_other_is_touched() {
        let from: Vec<u8> = (0..1000u32).map(|at| (at * 7) as u8).collect();
        for (skip, offset, len) in
            (0..70).flat_map(|offset| [0, 1, 15, 63, 64, 65, 200, 900].map(|len| (offset % 5, offset, len)))
        {
            let mut to = vec![0xa5; 1000];
            // SAFETY: both ranges are within the vectors.
            unsafe { copy(from[skip..].as_ptr(), to[offset..].as_mut_ptr(), len) };
            assert_eq!(to[offset..offset + len], from[skip..skip + len], "{len} at {offset}");
            assert!(
                to[..offset].iter().chain(&to[offset + len..]).all(|&byte| byte == 0xa5),
                "{len} at {offset}"
            );
        }
    }
}
