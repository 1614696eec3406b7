//! Hashes of weights, on a few of the machine's cores: one core hashes at a fraction of the speed at which it copies.

use ferry_protocol::limits::STORE_PIECE_BYTES;
use ferry_protocol::store::{PieceHash, hash_pieces};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Threads that hash at once: four keep up with an upload.
const THREADS_MAX: usize = 4;

/// The hashes of the pieces of `bytes`, which start at the start of one.
pub fn hash_all(bytes: &[u8]) -> Vec<PieceHash> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pieces = bytes.len().div_ceil(STORE_PIECE_BYTES);
    let threads = cores.min(THREADS_MAX).min(pieces).max(1);
    let (first, rest) = bytes.split_at(bytes.len().min(pieces.div_ceil(threads) * STORE_PIECE_BYTES));
    if rest.is_empty() {
        return hash_pieces(first);
    }
    std::thread::scope(|scope| {
        let others: Vec<_> = rest.chunks(first.len()).map(|part| (part, spawn(scope, part))).collect();
        let mut hashes = hash_pieces(first);
        for (part, other) in others {
            // What could not be started is done here.
            hashes.extend(other.and_then(|other| other.join().ok()).unwrap_or_else(|| hash_pieces(part)));
        }
        hashes
    })
}

/// A thread that hashes `part`, and gets none of the program's signals.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    part: &'scope [u8],
) -> Option<ScopedJoinHandle<'scope, Vec<PieceHash>>> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok()?;
    let thread = Builder::new().name("ferry-hash".into()).spawn_scoped(scope, || hash_pieces(part));
    // It was this thread's mask a moment ago.
    let _ = before.thread_set_mask();
    thread.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_find_what_one_finds_in_the_same_order() {
        let bytes: Vec<u8> = (0..STORE_PIECE_BYTES * 9 + 5).map(|at| (at / 999) as u8).collect();
        for len in [0, 1, STORE_PIECE_BYTES, STORE_PIECE_BYTES + 1, 5 * STORE_PIECE_BYTES, bytes.len()] {
            assert_eq!(hash_all(&bytes[..len]), hash_pieces(&bytes[..len]), "{len} bytes");
        }
        assert_ne!(SigSet::thread_get_mask().unwrap(), SigSet::all(), "signals come again");
    }
}
