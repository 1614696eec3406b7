//! The header in front of every message, on every transport.

use crate::calls::CallCode;
use crate::ids::{Seq, StreamId};
use crate::status::Status;
use bytemuck::{Pod, Zeroable};

/// The header in front of every message; little-endian on the wire.
///
/// `payload_len` bytes follow it. On a ring, records start at multiples of [`RECORD_ALIGN`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Header {
    /// Bytes of payload behind this header.
    pub payload_len: u32,
    /// What the message is.
    pub call: CallCode,
    /// The stream that it belongs to.
    pub stream: StreamId,
    /// In a request: its number, counted up from 1. In a reply: the number of the request that it answers.
    pub seq: Seq,
    /// In a reply: the outcome. In a request: [`Status::OK`].
    pub status: Status,
    /// Bits from [`Flags`]; the others are 0.
    pub flags: Flags,
}

/// Bytes of a [`Header`].
pub const HEADER_BYTES: usize = size_of::<Header>();
const _: () = assert!(HEADER_BYTES == 24);

/// Alignment of records in a ring, in bytes.
pub const RECORD_ALIGN: usize = 8;

/// Bits that qualify a message.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Flags(pub u32);

impl Flags {
    /// A reply in several parts, and this is not the last one.
    pub const MORE: Self = Self(1);

    /// Whether `bits` are all set.
    pub fn contains(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }
}

impl Header {
    /// A request without payload length, which the channel fills in.
    pub fn request(call: CallCode, stream: StreamId, seq: Seq) -> Self {
        Self { call, stream, seq, ..Self::default() }
    }

    /// The reply to this request.
    pub fn reply(&self, status: Status) -> Self {
        Self { payload_len: 0, status, flags: Flags::default(), ..*self }
    }
}

/// Bytes that a record of `payload_len` takes in a ring.
pub fn record_bytes(payload_len: usize) -> usize {
    (HEADER_BYTES + payload_len).next_multiple_of(RECORD_ALIGN)
}
