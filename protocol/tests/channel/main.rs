//! The channel: one body of tests over every implementation, a model, and what a hostile peer may write into it.

#[cfg(target_os = "linux")]
mod arena;
mod body;
mod corruption;
mod heap;
mod model;

use ferry_protocol::calls::CallCode;
use ferry_protocol::channel::{Broken, Interest, Receiver, Sender, Waiter};
use ferry_protocol::frame::Header;
use ferry_protocol::ids::StreamId;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Longer than any test takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// One side of a channel.
pub(crate) struct End {
    pub(crate) sender: Box<dyn Sender>,
    pub(crate) receiver: Box<dyn Receiver>,
    pub(crate) waiter: Arc<dyn Waiter>,
}

/// A message as a test sees it.
#[derive(Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

impl End {
    /// What is there.
    pub(crate) fn take(&mut self) -> Result<Option<Message>, Broken> {
        let mut message = None;
        let there = self.receiver.try_receive(&mut |header, payload| {
            message = Some(Message { header, payload: payload.to_vec() })
        })?;
        assert_eq!(there, message.is_some());
        Ok(message)
    }

    /// The next message, slept for.
    pub(crate) fn receive(&mut self) -> Result<Message, Broken> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            self.waiter.wait(Interest::RECORDS, None)?;
        }
    }

    /// Sends a message, sleeping for room; nothing is taken in meanwhile.
    pub(crate) fn send(&mut self, header: Header, parts: &[&[u8]]) -> Result<(), Broken> {
        while !self.sender.try_send(header, parts)? {
            self.waiter.wait(Interest::SPACE, None)?;
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Broken> {
        while !self.sender.flush()? {
            self.waiter.wait(Interest::SPACE, None)?;
        }
        Ok(())
    }
}

/// The header of the `seq`th message of a test. Every other one only prepares something and need not wake anybody.
pub(crate) fn numbered(seq: u64) -> Header {
    let call = if seq.is_multiple_of(2) { CallCode::WRITE } else { CallCode::EXEC };
    Header::request(call, StreamId(seq as u16), seq)
}

/// A payload that tells its message and its length.
pub(crate) fn contents(seq: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64).wrapping_mul(31).wrapping_add(seq * 7 + len as u64) as u8).collect()
}

/// Calls `body`, and fails instead of hanging.
pub(crate) fn in_time(body: impl FnOnce() + Send + 'static) {
    let (done, wait) = sync_channel(1);
    let thread = std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    match wait.recv_timeout(PATIENCE) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("not done after {PATIENCE:?}"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}
