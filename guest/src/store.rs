//! Weights that the host may have already, in its model store: they are asked for by their hashes, and only what is not
//! there is sent.
//!
//! Hashing costs more than copying to a worker on the same machine, so nothing is hashed unless the daemon offers a store,
//! and what is hashed in vain is bounded, by buffer (which is one model's, on one device):
//!
//! ```text
//!            ┌── found something ──┐
//!            ▼                     │
//!   probing: the first piece    hopeful: all pieces
//!            │         ▲           │
//!   found nothing      └─ found nothing
//!            │
//!   QUESTIONS_IN_VAIN_MAX times in a row ─▶ nothing any more
//! ```
//!
//! A model that is not in the store costs the hashes of a few pieces. One round trip is waited for in each tensor, and one
//! more in the first: the questions of a large tensor are on their way while the next ones are hashed, so that the guest's
//! hashing overlaps the host's reading and checking.

use crate::hashing::hash_all;
use crate::session::{Lost, Session};
use ferry_protocol::calls::CallCode;
use ferry_protocol::ids::StreamId;
use ferry_protocol::limits::{STORE_PIECE_BYTES, STORE_TENSOR_BYTES_MIN};
use ferry_protocol::reply::decode_held;
use ferry_protocol::request::{StoredHeader, TensorRange};
use ferry_protocol::status::Status;
use ferry_protocol::store::{PieceHash, pieces_of};
use ferry_protocol::tensor::TensorLayout;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Questions in a row that find nothing before a buffer is not asked about any more.
const QUESTIONS_IN_VAIN_MAX: u32 = 8;
/// Pieces that one message asks for: the host checks them while this side hashes as many.
const QUESTION_PIECES: usize = 8;

/// What a buffer's questions found so far.
#[derive(Debug, Default)]
struct Luck {
    in_vain: u32,
    hopeful: bool,
}

impl Luck {
    /// How many of a tensor's pieces to ask for at first.
    fn pieces_to_ask(&self, pieces: usize) -> usize {
        match self.in_vain {
            QUESTIONS_IN_VAIN_MAX.. => 0,
            _ if self.hopeful => pieces,
            _ => pieces.min(1),
        }
    }

    fn note(&mut self, found: bool) {
        self.hopeful = found;
        self.in_vain = if found { 0 } else { self.in_vain + 1 };
    }
}

/// The questions about a buffer's weights.
#[derive(Debug, Default)]
pub struct Questions(Mutex<Luck>);

/// Bytes that a program sets.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    /// In which tensor.
    pub tensor: TensorLayout,
    /// From which of its bytes on.
    pub offset: u64,
    /// What they are to be.
    pub data: &'a [u8],
}

impl Questions {
    fn luck(&self) -> MutexGuard<'_, Luck> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the host set what it has of `bytes`; the ranges of the data that it does not have.
    pub fn set_held(&self, session: &Session, bytes: Bytes<'_>) -> Result<Vec<Range<usize>>, Lost> {
        let askable = askable_bytes(&bytes);
        let pieces = pieces_of(askable as u64) as usize;
        let first = self.luck().pieces_to_ask(pieces);
        let mut held = Vec::with_capacity(pieces);
        if first > 0 {
            held = ask(session, &bytes, 0..first.saturating_mul(STORE_PIECE_BYTES).min(askable))?;
            let found = held.contains(&true);
            self.luck().note(found);
            if found && first < pieces {
                held.extend(ask(session, &bytes, first * STORE_PIECE_BYTES..askable)?);
            }
        }
        Ok(missing(&held, bytes.data.len()))
    }
}

/// How many of the bytes, from the first on, can be in a store: whole pieces of a tensor that is large enough, and its end.
fn askable_bytes(bytes: &Bytes<'_>) -> usize {
    let (offset, len) = (bytes.offset, bytes.data.len());
    let extent = bytes.tensor.extent_bytes().unwrap_or_default();
    if extent < STORE_TENSOR_BYTES_MIN as u64 || !offset.is_multiple_of(STORE_PIECE_BYTES as u64) {
        return 0;
    }
    if offset.checked_add(len as u64) == Some(extent) { len } else { len - len % STORE_PIECE_BYTES }
}

/// Asks for a range of the data, which starts at the start of a piece; which of its pieces are set now.
fn ask(session: &Session, bytes: &Bytes<'_>, range: Range<usize>) -> Result<Vec<bool>, Lost> {
    let mut sent = Vec::new();
    let mut offset = bytes.offset + range.start as u64;
    for data in bytes.data[range].chunks(QUESTION_PIECES * STORE_PIECE_BYTES) {
        let hashes = hash_all(data);
        session.note_hashed(data.len());
        let range = TensorRange { tensor: bytes.tensor, offset, size: data.len() as u64 };
        sent.push((send(session, range, &hashes)?, hashes.len()));
        offset += data.len() as u64;
    }
    let mut held = Vec::new();
    for (seq, pieces) in sent {
        let reply = session.wait_for(seq)?;
        let answer =
            (reply.header.status == Status::OK).then(|| decode_held(&reply.payload, pieces)).flatten();
        // What makes no sense, or was refused, was not set.
        held.extend(answer.unwrap_or_else(|| vec![false; pieces]));
    }
    Ok(held)
}

fn send(session: &Session, range: TensorRange, hashes: &[PieceHash]) -> Result<u64, Lost> {
    let header = StoredHeader { range, pieces: hashes.len() as u32, reserved: 0 };
    let parts = [bytemuck::bytes_of(&header), bytemuck::cast_slice(hashes)];
    session.ask(CallCode::SET_FROM_STORE, StreamId::SESSION, &parts)
}

/// The ranges of `len` bytes whose pieces are not among those that are `held`.
fn missing(held: &[bool], len: usize) -> Vec<Range<usize>> {
    let mut missing: Vec<Range<usize>> = Vec::new();
    for (at, start) in (0..len).step_by(STORE_PIECE_BYTES).enumerate() {
        if held.get(at) == Some(&true) {
            continue;
        }
        let end = len.min(start + STORE_PIECE_BYTES);
        match missing.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => missing.push(start..end),
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_protocol::types::TensorType;

    const PIECE: usize = STORE_PIECE_BYTES;

    #[test]
    fn a_buffer_that_is_not_in_the_store_costs_few_pieces_and_one_that_is_costs_one_question_a_tensor() {
        let mut luck = Luck::default();
        for _ in 0..QUESTIONS_IN_VAIN_MAX {
            assert_eq!(luck.pieces_to_ask(100), 1);
            luck.note(false);
        }
        assert_eq!(luck.pieces_to_ask(100), 0);

        let mut luck = Luck::default();
        luck.note(false);
        luck.note(true);
        assert_eq!((luck.pieces_to_ask(100), luck.pieces_to_ask(0)), (100, 0));
        luck.note(false);
        assert_eq!(luck.pieces_to_ask(100), 1, "its luck is over");
        assert_eq!(luck.in_vain, 1, "counted in a row");
    }

    #[test]
    fn what_is_missing_is_everything_that_is_not_held() {
        let (t, f) = (true, false);
        let missing = |held: &[bool], len| {
            missing(held, len).iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        assert_eq!(missing(&[], 5), [(0, 5)]);
        assert_eq!(missing(&[], 3 * PIECE), [(0, 3 * PIECE)]);
        assert_eq!(missing(&[t, t], 2 * PIECE), []);
        let holes = missing(&[t, f, f, t, f], 4 * PIECE + 7);
        assert_eq!(holes, [(PIECE, 3 * PIECE), (4 * PIECE, 4 * PIECE + 7)]);
        assert_eq!(missing(&[t], PIECE + 7), [(PIECE, PIECE + 7)], "what was not asked for");
        assert_eq!(missing(&[], 0), []);
    }

    #[test]
    fn only_whole_pieces_and_the_end_of_a_tensor_are_asked_for() {
        let askable = |extent: usize, offset: usize, len: usize| {
            let (ne, nb) = ([extent as i64, 1, 1, 1], [1, extent as u64, extent as u64, extent as u64]);
            let tensor = TensorLayout { kind: TensorType::I8, ne, nb, ..TensorLayout::default() };
            askable_bytes(&Bytes { tensor, offset: offset as u64, data: &vec![0; len] })
        };
        assert_eq!(askable(3 * PIECE + 5, 0, 3 * PIECE + 5), 3 * PIECE + 5);
        assert_eq!(askable(3 * PIECE + 5, PIECE, PIECE), PIECE);
        assert_eq!(askable(3 * PIECE + 5, 3 * PIECE, 5), 5);
        assert_eq!(askable(3 * PIECE + 5, 0, PIECE + 9), PIECE, "ends within a piece");
        assert_eq!(askable(3 * PIECE + 5, 0, 9), 0);
        assert_eq!(askable(3 * PIECE + 5, 1, PIECE), 0, "starts within a piece");
        assert_eq!(askable(STORE_TENSOR_BYTES_MIN, 0, STORE_TENSOR_BYTES_MIN), STORE_TENSOR_BYTES_MIN);
        assert_eq!(askable(STORE_TENSOR_BYTES_MIN - 1, 0, STORE_TENSOR_BYTES_MIN - 1), 0, "too small");
    }
}
