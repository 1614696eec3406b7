//! Weights out of the model store: set without having crossed.

use super::dispatch::{Answer, Refusal, Session, no_buffer, refuse};
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
        let mut held = Vec::with_capacity(pieces.len());
        for (at, &hash) in (0..range.size).step_by(STORE_PIECE_BYTES).zip(pieces) {
            let bytes = (range.size - at).min(STORE_PIECE_BYTES as u64);
            let found = shelf.find(hash, bytes as usize);
            if let Some(found) = found {
                place.set_bytes(found, range.offset + at);
                self.stats.bytes_from_store += bytes;
            }
            held.push(found.is_some());
        }
        Ok(Answer::Bytes(encode_held(&held)))
    }
}
