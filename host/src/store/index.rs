//! What is in a model of the store: its pieces, by their hashes.
//!
//! | offset | type | field | meaning |
//! |---|---|---|---|
//! | 0 | [u8; 8] | magic | `ferrymdl` |
//! | 8 | u32 | version | 1 |
//! | 12 | u32 | piece_bytes | 1 MiB; an index of other pieces is of no use |
//! | 16 | u64 | pieces | records that follow; at most [`PIECES_MAX`] |
//! | 24 | u64 | reserved | 0 |
//! | 32 | [u8; 32] | checksum | SHA-256 of everything else |
//! | 64 | pieces × 48 | | in the order of their hashes: [u8; 32] hash; u64 first byte in the model's file; u32 bytes, at most `piece_bytes`; u32 reserved, 0 |
//!
//! A reader checks all of it. Nothing that an index says is believed of the data: that is hashed again when it is read.

use bytemuck::{Pod, Zeroable};
use ferry_protocol::cursor::{Cursor, CursorError};
use ferry_protocol::limits::STORE_PIECE_BYTES;
use ferry_protocol::store::PieceHash;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::Path;

const MAGIC: [u8; 8] = *b"ferrymdl";
const VERSION: u32 = 1;
/// Pieces of all models of a store: 256 GiB of weights, whose indexes take 12 MiB of each worker that is asked for some.
pub const PIECES_MAX: usize = 256 << 10;
/// Bytes of the largest index.
const INDEX_BYTES_MAX: u64 = (size_of::<Header>() + PIECES_MAX * size_of::<Piece>()) as u64;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
struct Header {
    magic: [u8; 8],
    version: u32,
    piece_bytes: u32,
    pieces: u64,
    reserved: u64,
    checksum: [u8; 32],
}

/// A piece of a model's weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
pub struct Piece {
    /// Its hash.
    pub hash: PieceHash,
    /// Its first byte in the model's file.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u32,
    /// 0.
    pub reserved: u32,
}

/// Why a file is no index.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// Too short, or too long.
    #[error("is not whole: {0}")]
    Cursor(#[from] CursorError),
    /// Something else, or of another build.
    #[error("is not an index of this version of Ferry (add the model again)")]
    Kind,
    /// A record that cannot be.
    #[error("is damaged")]
    Damaged,
}

/// A model's pieces, in the order of their hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index(Vec<Piece>);

impl Index {
    /// That of these pieces.
    pub fn new(mut pieces: Vec<Piece>) -> Self {
        pieces.sort_unstable();
        Self(pieces)
    }

    /// Its pieces.
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// The pieces of this hash and length: several where a model has the same bytes twice.
    pub fn find(&self, hash: PieceHash, bytes: usize) -> impl Iterator<Item = &Piece> {
        let start = self.0.partition_point(|piece| piece.hash < hash);
        let same = self.0[start..].iter().take_while(move |piece| piece.hash == hash);
        same.filter(move |piece| piece.bytes as usize == bytes)
    }

    /// Reads an index.
    pub fn read(path: &Path) -> Result<Self, IndexError> {
        let mut bytes = Vec::new();
        // One byte more than is allowed is enough to see that there are too many.
        super::open_regular(path)?.take(INDEX_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Self::decode(&bytes)
    }

    /// The file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut header = Header {
            magic: MAGIC,
            version: VERSION,
            piece_bytes: STORE_PIECE_BYTES as u32,
            pieces: self.0.len() as u64,
            reserved: 0,
            checksum: [0; 32],
        };
        header.checksum = checksum(&header, &self.0);
        [bytemuck::bytes_of(&header), bytemuck::cast_slice(&self.0)].concat()
    }

    fn decode(bytes: &[u8]) -> Result<Self, IndexError> {
        let mut cursor = Cursor::new(bytes);
        let header: Header = cursor.value("the header of an index")?;
        let kind = (MAGIC, VERSION, STORE_PIECE_BYTES as u32);
        if (header.magic, header.version, header.piece_bytes) != kind {
            return Err(IndexError::Kind);
        }
        if header.pieces > PIECES_MAX as u64 {
            return Err(IndexError::Damaged);
        }
        let pieces: Vec<Piece> = cursor.values(header.pieces as usize, "the pieces of an index")?;
        cursor.finish()?;
        let sorted = pieces.is_sorted_by_key(|piece| piece.hash);
        let possible =
            |piece: &Piece| (1..=STORE_PIECE_BYTES).contains(&(piece.bytes as usize)) && piece.reserved == 0;
        let unharmed = header.reserved == 0 && header.checksum == checksum(&header, &pieces);
        if sorted && unharmed && pieces.iter().all(possible) {
            Ok(Self(pieces))
        } else {
            Err(IndexError::Damaged)
        }
    }
}

/// The hash of everything but itself.
fn checksum(header: &Header, pieces: &[Piece]) -> [u8; 32] {
    let header = Header { checksum: [0; 32], ..*header };
    let (header, pieces): (_, &[u8]) = (bytemuck::bytes_of(&header), bytemuck::cast_slice(pieces));
    Sha256::new().chain_update(&header[..32]).chain_update(pieces).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(hash: u8, offset: u64, bytes: u32) -> Piece {
        Piece { hash: PieceHash([hash; 32]), offset, bytes, reserved: 0 }
    }

    fn index() -> Index {
        Index::new(vec![piece(9, 0, 1 << 20), piece(3, 1 << 20, 5), piece(9, 4 << 20, 1 << 20)])
    }

    #[test]
    fn what_is_written_is_read_and_found() {
        let index = Index::decode(&index().encode()).unwrap();
        assert_eq!(index, self::index());
        let found =
            |hash: u8, bytes| index.find(PieceHash([hash; 32]), bytes).map(|p| p.offset).collect::<Vec<_>>();
        assert_eq!((found(9, 1 << 20), found(3, 5)), (vec![0, 4 << 20], vec![1 << 20]));
        assert_eq!((found(3, 6), found(4, 5), found(10, 5)), (vec![], vec![], vec![]));
        assert_eq!(Index::decode(&Index::default().encode()).unwrap(), Index::default());
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_noticed() {
        let bytes = index().encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(Index::decode(&changed).is_err(), "byte {at}");
            assert!(Index::decode(&bytes[..at]).is_err(), "the first {at} bytes");
        }
        assert!(Index::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn records_that_cannot_be_are_not_believed_even_with_a_checksum() {
        for pieces in [
            vec![piece(1, 0, 0)],
            vec![piece(1, 0, (1 << 20) + 1)],
            vec![Piece { reserved: 1, ..piece(1, 0, 1) }],
            vec![piece(2, 0, 1), piece(1, 0, 1)],
        ] {
            assert!(matches!(Index::decode(&Index(pieces).encode()), Err(IndexError::Damaged)));
        }
        let mut many = index().encode();
        many[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(Index::decode(&many).is_err());
    }
}
