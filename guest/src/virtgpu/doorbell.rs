//! Waking the host, and sleeping until it wakes us.
//!
//! A guest can only sleep on a fence, and a fence exists only on an EXECBUFFER. So the doorbell that starts the host's work
//! arms one at the same time, and who sleeps later sleeps on that: one exit for both.
//!
//! ```text
//!            ring: doorbell + fence            block: sleep on it
//!   none ─────────────────────────▶ armed ─────────────────────▶ slept on ──┐
//!    ▲ └── block: doorbell + fence, sleep ──────────────────────▶    │      │ completed
//!    └───────────────────────────────────────────────────────────────┴──────┘
//! ```

use super::uapi::{self, Node};
use bytemuck::Zeroable;
use ferry_protocol::channel::Broken;
use ferry_protocol::channel::memory::{MappedRange, Memory};
use ferry_protocol::channel::ring::Doorbell;
use ferry_protocol::virtgpu::{Command, ReplyPlace, SessionState};
use ferry_unix::Counters;
use ferry_unix::arena::{event, notify, reset};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

enum Fence {
    None,
    Armed(OwnedFd),
    SleptOn,
}

/// The doorbell of a session on a virtio-gpu device.
pub struct FenceDoorbell {
    node: Arc<Node>,
    /// The session's state, which the device writes.
    state: MappedRange,
    fence: Mutex<Fence>,
    nudge: OwnedFd,
    /// EXECBUFFERs, and sleeps.
    counters: Arc<Counters>,
    plain: Vec<u8>,
    armed: Vec<u8>,
}

impl FenceDoorbell {
    /// The doorbell of the session whose context is that of `node`.
    pub fn new(node: Arc<Node>, state: MappedRange, counters: Arc<Counters>) -> io::Result<Self> {
        let command = |arm| Command::Doorbell { arm }.encode(ReplyPlace::default());
        let fence = Mutex::new(Fence::None);
        Ok(Self {
            node,
            state,
            fence,
            nudge: event()?,
            counters,
            plain: command(false),
            armed: command(true),
        })
    }

    fn fence(&self) -> MutexGuard<'_, Fence> {
        self.fence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arm(&self) -> io::Result<OwnedFd> {
        self.counters.doorbells.fetch_add(1, Ordering::Relaxed);
        Ok(uapi::exec_fenced(self.node.as_fd(), &self.armed)?)
    }

    fn is_lost(&self) -> bool {
        let mut state = SessionState::zeroed();
        self.state.read(0, bytemuck::bytes_of_mut(&mut state));
        state == SessionState::LOST
    }
}

impl Doorbell for FenceDoorbell {
    fn ring(&self) {
        let mut fence = self.fence();
        match &*fence {
            Fence::None => match self.arm() {
                Ok(armed) => *fence = Fence::Armed(armed),
                // Whoever waits for what this was to start finds the device gone.
                Err(error) => crate::log::line(crate::log::Level::Error, &format!("doorbell: {error}")),
            },
            // A ring that comes after the fence was armed still has to wake the host.
            Fence::Armed(_) | Fence::SleptOn => {
                self.counters.doorbells.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = uapi::exec(self.node.as_fd(), &self.plain, &[]) {
                    crate::log::line(crate::log::Level::Error, &format!("doorbell: {error}"));
                }
            }
        }
    }

    fn block(&self, timeout: Option<Duration>) -> Result<(), Broken> {
        if self.is_lost() {
            return Err(Broken::Closed);
        }
        self.counters.waits.fetch_add(1, Ordering::Relaxed);
        let slept_on = {
            let mut fence = self.fence();
            match std::mem::replace(&mut *fence, Fence::SleptOn) {
                Fence::Armed(armed) => armed,
                Fence::None | Fence::SleptOn => self.arm()?,
            }
        };
        let mut fds = [
            PollFd::new(slept_on.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.nudge.as_fd(), PollFlags::POLLIN),
        ];
        let timeout =
            timeout.map_or(PollTimeout::NONE, |t| PollTimeout::try_from(t).unwrap_or(PollTimeout::MAX));
        // An interruption is an early return.
        let _ = poll(&mut fds, timeout);
        let completed = fds[0].any().unwrap_or(false);
        if fds[1].any().unwrap_or(false) {
            reset(&self.nudge);
        }
        // The kernel ends the fence of a lost device as well.
        *self.fence() = if completed { Fence::None } else { Fence::Armed(slept_on) };
        if self.is_lost() { Err(Broken::Closed) } else { Ok(()) }
    }

    fn nudge(&self) {
        notify(&self.nudge);
    }
}
