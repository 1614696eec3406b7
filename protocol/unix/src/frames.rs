//! Whole frames on a blocking socket, with the file descriptors that come along: the handshake.

use ferry_protocol::frame::{HEADER_BYTES, Header};
use ferry_protocol::limits::HANDSHAKE_PAYLOAD_BYTES_MAX;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// Descriptors that may come with one frame: an arena and two events, or two events and the files behind a VM's RAM.
pub const FDS_MAX: usize = 16;

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The socket failed or timed out.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side closed the connection.
    #[error("the other side closed the connection")]
    Closed,
    /// More bytes than any message of the handshake has.
    #[error("a frame of {0} bytes, at most {1} are allowed")]
    TooLarge(u32, usize),
}

/// Writes a frame. A peer that went away is an error, not a signal.
pub fn write(stream: &UnixStream, mut header: Header, payload: &[u8], fds: &[RawFd]) -> io::Result<()> {
    header.payload_len = payload.len() as u32;
    let mut bytes = bytemuck::bytes_of(&header).to_vec();
    bytes.extend_from_slice(payload);
    let rights = [ControlMessage::ScmRights(fds)];
    let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    let sent = loop {
        match sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&bytes)], control, no_signal(), None) {
            Err(nix::errno::Errno::EINTR) => {}
            outcome => break outcome?,
        }
    };
    // The rest, if the socket took only a part, goes without the descriptors.
    (&*stream).write_all(&bytes[sent..])
}

#[cfg(target_os = "linux")]
fn no_signal() -> MsgFlags {
    MsgFlags::MSG_NOSIGNAL
}

// std sets SO_NOSIGPIPE on its sockets where there is no such flag.
#[cfg(not(target_os = "linux"))]
fn no_signal() -> MsgFlags {
    MsgFlags::empty()
}

/// A frame and what came with it.
pub type Frame = (Header, Vec<u8>, Vec<OwnedFd>);

/// Reads a frame of the handshake and not a byte more.
pub fn read(stream: &UnixStream) -> Result<Frame, FrameError> {
    read_up_to(stream, HANDSHAKE_PAYLOAD_BYTES_MAX)
}

/// Reads a frame of at most `payload_max` bytes of payload and not a byte more.
pub fn read_up_to(stream: &UnixStream, payload_max: usize) -> Result<Frame, FrameError> {
    let mut header = [0; HEADER_BYTES];
    let (mut filled, fds) = receive(stream, &mut header)?;
    while filled < HEADER_BYTES {
        match (&*stream).read(&mut header[filled..])? {
            0 => return Err(FrameError::Closed),
            n => filled += n,
        }
    }
    let header: Header = bytemuck::pod_read_unaligned(&header);
    if header.payload_len as usize > payload_max {
        return Err(FrameError::TooLarge(header.payload_len, payload_max));
    }
    let mut payload = vec![0; header.payload_len as usize];
    match (&*stream).read_exact(&mut payload) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(FrameError::Closed),
        Err(error) => Err(error.into()),
        Ok(()) => Ok((header, payload, fds)),
    }
}

/// Receives at least one byte, and the descriptors that came with it.
fn receive(stream: &UnixStream, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), FrameError> {
    let mut control = nix::cmsg_space!([RawFd; FDS_MAX]);
    let mut parts = [IoSliceMut::new(bytes)];
    let message = loop {
        match recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut control), close_on_exec()) {
            Err(nix::errno::Errno::EINTR) => {}
            outcome => break outcome.map_err(io::Error::from)?,
        }
    };
    let received = message.bytes;
    let mut fds = Vec::new();
    for control in message.cmsgs().map_err(io::Error::from)? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            fds.extend(raw.into_iter().map(ffi::own));
        }
    }
    if received == 0 { Err(FrameError::Closed) } else { Ok((received, fds)) }
}

#[cfg(target_os = "linux")]
fn close_on_exec() -> MsgFlags {
    MsgFlags::MSG_CMSG_CLOEXEC
}

#[cfg(not(target_os = "linux"))]
fn close_on_exec() -> MsgFlags {
    MsgFlags::empty()
}

#[path = "ffi.rs"]
mod ffi;
