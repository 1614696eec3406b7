//! The protocol over a unix socket: handshake frames, passed file descriptors, and the two ways in which a session
//! goes on from there. Guest and host use the same code.
//!
//! - with an arena (Linux): the host makes a sealed memfd and two eventfds and passes them with its answer. After
//!   that the socket carries nothing; its end tells each side that the other one is gone.
//! - as a stream (everywhere): frames on the socket itself.

pub mod frames;
pub mod path;
pub mod stream;

#[cfg(target_os = "linux")]
pub mod arena;

use ferry_protocol::channel::{Receiver, Sender, Waiter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One side of an open session.
pub struct Channel {
    /// Sends to the other side.
    pub sender: Box<dyn Sender>,
    /// Receives from it.
    pub receiver: Box<dyn Receiver>,
    /// Sleeps for either.
    pub waiter: Arc<dyn Waiter>,
    /// What that cost so far.
    pub counters: Arc<Counters>,
}

/// How often a side did what costs a system call, or a guest an exit.
#[derive(Debug, Default)]
pub struct Counters {
    /// Times that this side woke the other one.
    pub doorbells: AtomicU64,
    /// Times that this side slept.
    pub waits: AtomicU64,
}

impl Counters {
    /// Doorbells and sleeps so far.
    pub fn read(&self) -> (u64, u64) {
        (self.doorbells.load(Ordering::Relaxed), self.waits.load(Ordering::Relaxed))
    }
}
