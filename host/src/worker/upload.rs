//! Tensor data goes from the channel into ggml where it lies.
#![allow(unsafe_code)]

use crate::ggml::Place;
use ferry_protocol::channel::Payload;

/// Copies the whole of `data` to `offset` in `place`. The guest may change the bytes while they are copied: they are
/// data, and nothing is decided by them.
///
/// # Panics
/// If they do not fit; the caller has checked.
pub fn set(place: &Place<'_>, data: &Payload<'_>, offset: u64) {
    // SAFETY: a payload's bytes are readable for as long as it lives.
    unsafe { place.set(data.as_ptr(), offset, data.len()) }
}
