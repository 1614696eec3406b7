//! What a front asks of the supervisor: workers to be started and ended. Plain numbers and one descriptor.

use bytemuck::{Pod, Zeroable};
use ferry_protocol::calls::CallCode;
use ferry_protocol::frame::Header;
use ferry_protocol::hello::Open;
use ferry_protocol::ids::StreamId;
use ferry_unix::frames;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

/// The frame's code that asks for a worker; the worker's end of its connection comes with it.
pub const START: CallCode = CallCode(1);
/// The frame's code that asks for a worker's end, at once.
pub const KILL: CallCode = CallCode(2);

/// What both frames carry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct WorkerRequest {
    /// The front's name for the worker.
    pub session: u64,
    /// Number of the guest's OPEN, which the worker answers.
    pub open_seq: u64,
    /// What the guest said.
    pub open: Open,
}

/// The front's end of its connection to the supervisor.
pub struct Supervisor(Mutex<UnixStream>);

impl Supervisor {
    /// The supervisor at the other end of `stream`.
    pub fn new(stream: UnixStream) -> Self {
        Self(Mutex::new(stream))
    }

    /// Has a worker started that serves at `connection`.
    pub fn start(&self, request: &WorkerRequest, connection: &UnixStream) -> io::Result<()> {
        self.send(START, request, &[connection.as_raw_fd()])
    }

    /// Has a worker killed and reaped. Its end is seen at its connection. Only the front of a virtual machine, whose pages
    /// the worker has mapped, ever needs that.
    #[cfg(target_os = "linux")]
    pub fn kill(&self, session: u64) -> io::Result<()> {
        self.send(KILL, &WorkerRequest { session, ..WorkerRequest::default() }, &[])
    }

    fn send(&self, code: CallCode, request: &WorkerRequest, fds: &[RawFd]) -> io::Result<()> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        frames::write(&stream, Header::request(code, StreamId::SESSION, 0), bytemuck::bytes_of(request), fds)
    }
}
