//! Ordered messages both ways.
//!
//! A channel has a [`Sender`] and a [`Receiver`] on each side and a [`Waiter`] that sleeps until one of them can go
//! on. Nothing here blocks except [`Waiter::wait`]. Two implementations exist, and the same tests run over both:
//!
//! - [`ring`]: two rings in an [`arena`] of shared memory, with sleep flags and a doorbell. A message's payload is
//!   written into the ring by the sender and used in place by the receiver: one copy in, none out.
//! - [`stream`]: frames over any byte stream, without shared memory.
//!
//! A ring *is* the data area: weights and activations travel through it in chunks like any other payload, in
//! order, so nothing has to be allocated or handed back, and the copy into one chunk overlaps the upload of the
//! last.

pub mod arena;
pub mod memory;
pub mod ring;
pub mod spin;
pub mod stream;

use crate::frame::Header;
use memory::Memory;
use std::time::Duration;

/// The channel cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The other side closed it, or is gone.
    #[error("the other side closed the connection")]
    Closed,
    /// The other side wrote something impossible into the channel's own structures.
    #[error("the channel is corrupt: {0}")]
    Corrupt(&'static str),
    /// The transport failed.
    #[error("the transport failed: {0}")]
    Io(#[from] std::io::Error),
}

/// What a side waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// A message to receive.
    pub records: bool,
    /// Room to send.
    pub space: bool,
}

impl Interest {
    /// A message to receive.
    pub const RECORDS: Self = Self { records: true, space: false };
    /// Room to send, or a message to receive.
    pub const BOTH: Self = Self { records: true, space: true };
    /// Room to send.
    pub const SPACE: Self = Self { records: false, space: true };
}

/// Sends messages.
pub trait Sender: Send {
    /// Sends a message whose payload is `parts`, one behind the other. `false` if there is no room now: nothing was
    /// sent. `header.payload_len` is filled in.
    ///
    /// # Panics
    /// If the payload is larger than [`Sender::payload_bytes_max`]: the caller splits what is larger.
    fn try_send(&mut self, header: Header, parts: &[&[u8]]) -> Result<bool, Broken>;

    /// Pushes out what the transport has not taken of earlier messages yet; whether all of it is gone. To be called
    /// before waiting for an answer.
    fn flush(&mut self) -> Result<bool, Broken>;

    /// The largest payload, in bytes.
    fn payload_bytes_max(&self) -> usize;
}

/// Receives messages.
pub trait Receiver: Send {
    /// Gives the next message to `take`; `false` if there is none now. The payload may be used in place until `take`
    /// returns.
    fn try_receive(&mut self, take: &mut dyn FnMut(Header, Payload<'_>)) -> Result<bool, Broken>;
}

/// Sleeps.
pub trait Waiter: Send + Sync {
    /// Sleeps until there is something of `interest`, a [`Waiter::nudge`], or `timeout` has passed. It may return
    /// early: the caller looks again.
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> Result<(), Broken>;

    /// Makes the thread that is in [`Waiter::wait`], or the next one to enter it, return.
    fn nudge(&self);
}

/// A message's payload, where it lies. The other side may be able to change it at any time.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    memory: &'a dyn Memory,
    at: usize,
    len: usize,
}

impl<'a> Payload<'a> {
    /// `len` bytes of `memory` from `at`.
    fn new(memory: &'a dyn Memory, at: usize, len: usize) -> Self {
        assert!(at.checked_add(len).is_some_and(|end| end <= memory.len()));
        Self { memory, at, len }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first bytes out.
    ///
    /// # Panics
    /// If `out` is longer than the payload.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert!(out.len() <= self.len);
        self.memory.read(self.at, out);
    }

    /// A private copy of the whole.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }

    /// What is behind the first `n` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn skip(&self, n: usize) -> Self {
        assert!(n <= self.len);
        Self { memory: self.memory, at: self.at + n, len: self.len - n }
    }

    /// Where the bytes lie, for a foreign function that copies them once and decides nothing by them.
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.pointer(self.at)
    }
}
