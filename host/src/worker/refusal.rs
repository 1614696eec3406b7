//! Why a call was not done, in words for the guest.

use crate::ggml::Invalid;
use ferry_protocol::ids::{BufferId, EventId, GraphId, RegionId, StreamId};
use ferry_protocol::status::Status;

/// Why a call was not done.
pub struct Refusal {
    /// What the answer says.
    pub status: Status,
    /// What it explains.
    pub text: String,
}

/// This one.
pub fn refuse<T>(status: Status, text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { status, text: text.into() })
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        let status = if invalid.is_unsupported() { Status::UNSUPPORTED } else { Status::INVALID };
        Self { status, text: invalid.to_string() }
    }
}

/// No such buffer, or not any more.
pub fn no_buffer<T>(id: BufferId) -> Result<T, Refusal> {
    refuse(Status::STALE_HANDLE, format!("{id:?}"))
}

/// No such stream.
pub fn no_stream<T>(id: StreamId) -> Result<T, Refusal> {
    refuse(Status::STALE_HANDLE, format!("{id:?}"))
}

/// No such region.
pub fn no_region<T>(id: RegionId) -> Result<T, Refusal> {
    refuse(Status::STALE_HANDLE, format!("{id:?}"))
}

/// Bytes that a region does not have.
pub fn not_in_region<T>(id: RegionId, at: u64, size: u64) -> Result<T, Refusal> {
    refuse(Status::INVALID, format!("bytes {at} to {at}+{size} are not within {id:?}"))
}

/// No such event.
pub fn no_event<T>(id: EventId) -> Result<T, Refusal> {
    refuse(Status::STALE_HANDLE, format!("{id:?}, or no such stream"))
}

/// No such graph, or not any more.
pub fn no_graph<T>(id: GraphId) -> Result<T, Refusal> {
    refuse(Status::STALE_HANDLE, format!("{id:?}"))
}
