//! Weights out of the model store: set without having crossed.

use super::dispatch::{Answer, Session};
use super::refusal::{Refusal, no_buffer, refuse};
use crate::store::Wanted;
use ferry_protocol::limits::STORE_PIECE_BYTES;
use ferry_protocol::reply::encode_held;
use ferry_protocol::request::TensorRange;
use ferry_protocol::status::Status;
use ferry_protocol::store::PieceHash;

impl Session {
    /// Sets those of a range's pieces that are in the store, and says which.
    pub(super) fn set_from_store(
        &mut self,
        range: &TensorRange,
        pieces: &[PieceHash],
    ) -> Result<Answer, Refusal> {
        if self.shelf.is_none() {
            return refuse(Status::UNSUPPORTED, "no model store is offered here");
        }
        self.range(range)?;
        let place = self.objects.buffer(range.tensor.buffer).and_then(|buffer| buffer.place(range.tensor));
        let (Some(place), Some(shelf)) = (place, &mut self.shelf) else {
            return no_buffer(range.tensor.buffer);
        };
        let left = (0..range.size).step_by(STORE_PIECE_BYTES).map(|at| range.size - at);
        let bytes = left.map(|left| left.min(STORE_PIECE_BYTES as u64) as usize);
        let wanted: Vec<Wanted> = bytes.zip(pieces).map(|(bytes, &hash)| Wanted { hash, bytes }).collect();
        let (mut held, mut at) = (Vec::with_capacity(pieces.len()), range.offset);
        shelf.fetch(&wanted, |found| {
            if let Some(bytes) = found {
                place.set_bytes(bytes, at);
                self.stats.bytes_from_store += bytes.len() as u64;
            }
            held.push(found.is_some());
            at += STORE_PIECE_BYTES as u64;
        });
        Ok(Answer::Bytes(encode_held(&held)))
    }
}
