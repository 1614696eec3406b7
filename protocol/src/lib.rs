//! Ferry's wire protocol and its message channel.
//!
//! A guest's ggml back-end (`guest/`) and a host's worker process (`host/`) speak it over one of several
//! transports. This crate holds what both sides share and performs no I/O of its own: sockets, shared
//! mappings and doorbells are handed to it through traits.
//!
//! | module | what |
//! |---|---|
//! | [`frame`] | the header in front of every message |
//! | [`calls`] | the call table: one row per message |
//! | [`request`], [`reply`] | what each message carries |
//! | [`tensor`], [`graph`] | tensors and graphs as records |
//! | [`ops`], [`types`] | ggml's operations and element types under numbers that do not move |
//! | [`store`] | by what weights are known that the host may have already |
//! | [`hello`] | the handshake: versions, devices, the opening of a session |
//! | [`ids`], [`limits`], [`status`] | names for things, bounds, outcomes |
//! | [`cursor`] | bounds-checked reading of bytes that the other side wrote |
//! | [`channel`] | ordered messages both ways, over rings in shared memory or over a byte stream |
//! | [`virtgpu`] | the virtio-gpu capability set and EXECBUFFER commands, outside of the channel |
//!
//! The normative text is `SPEC.md` beside this crate.

pub mod calls;
pub mod channel;
pub mod cursor;
pub mod frame;
pub mod graph;
pub mod hello;
pub mod ids;
pub mod limits;
pub mod meaning;
pub mod ops;
pub mod reply;
pub mod request;
pub mod status;
pub mod store;
pub mod tensor;
pub mod types;
pub mod virtgpu;

/// The oldest protocol version that this build speaks.
pub const VERSION_MIN: u16 = 1;
/// The newest protocol version that this build speaks.
pub const VERSION_MAX: u16 = 1;
