//! By what weights are known that the host may have already: both sides hash the same pieces of a tensor.
//!
//! ```text
//! tensor's data, as it lies in the model's file      0        1 MiB     2 MiB   end
//!                                                    ├─ hash ───┼─ hash ───┼─ hash ─┤
//! ```
//!
//! Pieces instead of whole tensors, because llama.cpp uploads either a whole tensor at once (where it maps the file: the
//! default) or a piece of this size at a time (`--no-mmap` with a device that has events), and both must find the same
//! thing. A piece is also all that a host has to keep in memory until it is checked, and all that is sent where the store
//! is damaged.

use crate::limits::STORE_PIECE_BYTES;
use bytemuck::{Pod, Zeroable};
use sha2::{Digest, Sha256};

/// The SHA-256 of a piece's bytes: its name in a store.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
pub struct PieceHash(pub [u8; 32]);

impl PieceHash {
    /// That of `piece`.
    pub fn of(piece: &[u8]) -> Self {
        Self(Sha256::digest(piece).into())
    }
}

impl std::fmt::Debug for PieceHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// How many pieces so many bytes have.
pub fn pieces_of(bytes: u64) -> u64 {
    bytes.div_ceil(STORE_PIECE_BYTES as u64)
}

/// The hashes of the pieces of `bytes`, which start at the start of one.
pub fn hash_pieces(bytes: &[u8]) -> Vec<PieceHash> {
    bytes.chunks(STORE_PIECE_BYTES).map(PieceHash::of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_named_by_its_sha256() {
        // NIST's vector for "abc".
        let hash = format!("{:?}", PieceHash::of(b"abc"));
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn the_last_piece_may_be_short() {
        let bytes = vec![7; STORE_PIECE_BYTES + 1];
        assert_eq!(hash_pieces(&bytes), [PieceHash::of(&bytes[1..]), PieceHash::of(&[7])]);
        for (bytes, pieces) in [(0, 0), (1, 1), (1 << 20, 1), ((1 << 20) + 1, 2), (u64::MAX, 1 << 44)] {
            assert_eq!(pieces_of(bytes), pieces);
        }
    }
}
