//! ggml's side of the plug-in: what it calls and what is called of it. All `unsafe` that ggml needs is in here.
//!
//! ggml promises, and every SAFETY comment below relies on it: handles that it passes are ones that it got from us and
//! that were not freed; tensors and graphs are valid, with everything they point to, for the length of the call; and a
//! destination of an asynchronous read stays valid until the stream is synchronized.

pub mod backend;
pub mod base;
pub mod buffer;
pub mod buffer_type;
pub mod destination;
pub mod device;
pub mod encode;
pub mod entry;
pub mod event;
pub mod host_buffer;
pub mod layout;
pub mod optimize;
pub mod registry;
pub mod reservation;
pub mod runs;
pub mod snapshot;

pub use destination::Destination;
pub use snapshot::Snapshot;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `body` for ggml, which must not see a panic: `fallback` is the answer then.
fn guard<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}
