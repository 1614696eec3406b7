//! What a front asks of the supervisor: workers to be started and ended. Plain numbers and one descriptor.

use bytemuck::{Pod, Zeroable};
use ferry_protocol::calls::CallCode;
#[cfg(target_os = "linux")]
use ferry_protocol::cursor;
use ferry_protocol::frame::Header;
use ferry_protocol::hello::Open;
use ferry_protocol::ids::StreamId;
use ferry_unix::frames;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
#[cfg(target_os = "linux")]
use std::time::Duration;

/// The frame's code that asks for a worker; the worker's end of its connection comes with it.
pub const START: CallCode = CallCode(1);
/// The frame's code that asks for a worker's end, at once. It is answered with the same code and name when the worker has
/// been reaped.
pub const KILL: CallCode = CallCode(2);
/// The same for a worker that has ended as far as can be seen, and may still be on its way out.
pub const REAP: CallCode = CallCode(3);

/// A killed process is reaped within this time, unless a driver holds it; then it is asked for again.
#[cfg(target_os = "linux")]
const REAPED_WITHIN: Duration = Duration::from_secs(1);

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

    /// Has a worker ended with `code` (KILL or REAP), and waits until it is reaped. Only then nothing of it can touch memory
    /// any more: the kernel unmaps a process's memory and closes its connections before its devices, which may be writing
    /// into pinned pages until they are closed. Only the front of a virtual machine, whose pages these are, needs that.
    #[cfg(target_os = "linux")]
    pub fn end(&self, code: CallCode, session: u64) -> io::Result<()> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let request = WorkerRequest { session, ..WorkerRequest::default() };
        frames::write(
            &stream,
            Header::request(code, StreamId::SESSION, 0),
            bytemuck::bytes_of(&request),
            &[],
        )?;
        stream.set_read_timeout(Some(REAPED_WITHIN))?;
        loop {
            let (_, payload, _) = frames::read(&stream).map_err(io::Error::other)?;
            // An answer that came too late for an earlier question is passed over.
            if cursor::only::<WorkerRequest>(&payload, "an answer")
                .is_ok_and(|answer| answer.session == session)
            {
                return Ok(());
            }
        }
    }

    fn send(&self, code: CallCode, request: &WorkerRequest, fds: &[RawFd]) -> io::Result<()> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        frames::write(&stream, Header::request(code, StreamId::SESSION, 0), bytemuck::bytes_of(request), fds)
    }
}
