//! A session in shared memory: a memfd for the arena, an eventfd for each side.

use crate::stream::poll_for;
use crate::{Channel, Counters};
use ferry_protocol::channel::Broken;
use ferry_protocol::channel::arena::{Arena, End, default_layout};
use ferry_protocol::channel::memory::Mapping;
use ferry_protocol::channel::ring::{Doorbell, Side, halves};
use ferry_protocol::hello::Opened;
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the host makes for a session and passes to the guest.
pub struct Shared {
    /// The arena.
    pub memory: OwnedFd,
    /// Wakes the host.
    pub host_event: OwnedFd,
    /// Wakes the guest.
    pub guest_event: OwnedFd,
    /// Where the rings lie.
    pub layout: Opened,
}

/// Makes the shared parts of a session. The arena's size is sealed: neither side can pull it away under the other.
pub fn make() -> io::Result<Shared> {
    let layout = default_layout();
    let memory = sealed(c"ferry-arena", layout.arena_bytes)?;
    Ok(Shared { memory, host_event: event()?, guest_event: event()?, layout })
}

/// A new memfd of `bytes` zeroes, whose size nobody can change.
pub fn sealed(name: &CStr, bytes: u64) -> io::Result<OwnedFd> {
    let file = File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    file.set_len(bytes)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

/// A new eventfd, at 0.
pub fn event() -> io::Result<OwnedFd> {
    Ok(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?.into())
}

/// Adds one to an eventfd, which wakes whoever polls it.
pub fn notify(event: &impl AsFd) {
    // A counter that is full wakes as well.
    let _ = nix::unistd::write(event, &1u64.to_ne_bytes());
}

/// Sets an eventfd back to 0.
pub fn reset(event: &impl AsFd) {
    let mut count = [0; 8];
    // At 0 already: nothing to read.
    let _ = nix::unistd::read(event, &mut count);
}

/// Maps `bytes` of a memfd that the other side made. Its size must be sealed, or the other side could shrink it and kill us.
pub fn map(memory: &OwnedFd, bytes: u64) -> io::Result<MmapRaw> {
    let seals = SealFlag::from_bits_truncate(fcntl(memory, FcntlArg::F_GET_SEALS)?);
    let file = File::from(memory.try_clone()?);
    if !seals.contains(SealFlag::F_SEAL_SHRINK) || file.metadata()?.len() < bytes {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "shared memory that is not sealed, or too small",
        ));
    }
    MmapOptions::new().len(bytes as usize).map_raw(&file)
}

/// One side of the session in `mapping`. `own` wakes this side, `peer` the other one; `socket` ends when the other side
/// does, and is made non-blocking.
pub fn channel(
    mapping: Arc<dyn Mapping>,
    layout: &Opened,
    end: End,
    (own, peer): (OwnedFd, OwnedFd),
    socket: UnixStream,
) -> io::Result<Channel> {
    let counters = Arc::new(Counters::default());
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let arena = Arena::new(mapping, layout, end).map_err(invalid)?;
    socket.set_nonblocking(true)?;
    let event = |fd: OwnedFd| {
        // A blocking counter would hang a side that finds it empty.
        fcntl(&fd, FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        Ok::<_, io::Error>(File::from(fd))
    };
    let doorbell = EventDoorbell { own: event(own)?, peer: event(peer)?, socket, counters: counters.clone() };
    let side = Side::new(arena.incoming, arena.outgoing, arena.words, doorbell);
    let (sender, receiver) = halves(&side);
    Ok(Channel { sender: Box::new(sender), receiver: Box::new(receiver), waiter: side, counters })
}

struct EventDoorbell {
    own: File,
    peer: File,
    socket: UnixStream,
    counters: Arc<Counters>,
}

impl Doorbell for EventDoorbell {
    fn ring(&self) {
        self.counters.doorbells.fetch_add(1, Ordering::Relaxed);
        notify(&self.peer);
    }

    fn block(&self, timeout: Option<Duration>) -> Result<(), Broken> {
        self.counters.waits.fetch_add(1, Ordering::Relaxed);
        // What is sent on the socket now is read by those who wait for it; only its end concerns everybody.
        let watched = PollFlags::from_bits_retain(libc::POLLRDHUP);
        let mut fds =
            [PollFd::new(self.own.as_fd(), PollFlags::POLLIN), PollFd::new(self.socket.as_fd(), watched)];
        poll_for(&mut fds, timeout)?;
        if fds[0].any().unwrap_or(false) {
            reset(&self.own);
            return Ok(());
        }
        // `None` are bits that nix has no name for: POLLRDHUP itself.
        if fds[1].any().unwrap_or(true) { Err(Broken::Closed) } else { Ok(()) }
    }

    fn nudge(&self) {
        notify(&self.own);
    }
}
