//! A session as frames on the socket.

use crate::{Channel, Counters};
use ferry_protocol::channel::stream::{StreamReceiver, StreamSender};
use ferry_protocol::channel::{Broken, Interest, Waiter};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The session that goes on over `socket`.
pub fn channel(socket: UnixStream) -> io::Result<Channel> {
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)?;
    socket.set_nonblocking(true)?;
    let (sender, receiver) = (socket.try_clone()?, socket.try_clone()?);
    let counters = Arc::new(Counters::default());
    Ok(Channel {
        sender: Box::new(StreamSender::new(sender)),
        receiver: Box::new(StreamReceiver::new(receiver)),
        waiter: Arc::new(StreamWaiter::new(socket, counters.clone())?),
        counters,
    })
}

struct StreamWaiter {
    socket: UnixStream,
    /// A byte from `nudge_write` to `nudge_read` ends a wait.
    nudge_read: UnixStream,
    nudge_write: UnixStream,
    counters: Arc<Counters>,
}

impl StreamWaiter {
    fn new(socket: UnixStream, counters: Arc<Counters>) -> io::Result<Self> {
        let (nudge_read, nudge_write) = UnixStream::pair()?;
        nudge_read.set_nonblocking(true)?;
        nudge_write.set_nonblocking(true)?;
        Ok(Self { socket, nudge_read, nudge_write, counters })
    }
}

impl Waiter for StreamWaiter {
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> Result<(), Broken> {
        self.counters.waits.fetch_add(1, Ordering::Relaxed);
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, interest.records);
        events.set(PollFlags::POLLOUT, interest.space);
        let mut fds = [
            PollFd::new(self.socket.as_fd(), events),
            PollFd::new(self.nudge_read.as_fd(), PollFlags::POLLIN),
        ];
        poll_for(&mut fds, timeout)?;
        if fds[1].any().unwrap_or(false) {
            let mut bytes = [0; 64];
            // Nothing to read is as good as something.
            let _ = (&self.nudge_read).read(&mut bytes);
        }
        Ok(())
    }

    fn nudge(&self) {
        // A full pipe nudges as well.
        let _ = (&self.nudge_write).write(&[1]);
    }
}

/// `poll`, where an interruption is an early return.
pub(crate) fn poll_for(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<(), Broken> {
    let timeout = match timeout {
        None => PollTimeout::NONE,
        Some(timeout) => PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX),
    };
    match poll(fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(Broken::Io(error.into())),
    }
}
