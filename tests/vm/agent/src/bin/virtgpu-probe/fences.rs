//! Two fences of one context: one that the device holds, then one that it completes at once. Where contexts have a
//! timeline for each of their rings, the later says nothing about the earlier.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use ferry_protocol::virtgpu::{Command, Open, ReplyPlace};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::uapi;

/// The arena of a session that nothing is sent through.
const ARENA_BYTES: u32 = 64 << 10;
/// Less than the time after which the device completes a held fence anyway.
const SOON: Duration = Duration::from_millis(500);

/// Which of the two has come to its end when the later one has. `timelines` is the capability set for which a context
/// with a timeline for each of its rings is asked for, and `blobs` says that its memory is to be a blob.
pub fn look(path: &str, blobs: bool, timelines: Option<u32>) -> Result<serde_json::Value> {
    let node = File::options().read(true).write(true).open(path)?;
    if let Some(capset) = timelines {
        uapi::init_context(&node, capset, 2).context("cannot have a context with two timelines")?;
    }
    let arena = match blobs {
        true => uapi::create_blob(&node, ARENA_BYTES.into()).context("cannot have a blob")?,
        false => uapi::create_buffer(&node, ARENA_BYTES).context("cannot have a resource")?,
    };
    let send = |command: Command<'_>, ring: u32| {
        let bytes = command.encode(ReplyPlace::default());
        uapi::exec(&node, &bytes, timelines.map(|_| ring)).context("the kernel refuses a command")
    };
    let opened = send(Command::Open(Open { arena, state_offset: 0 }, &[]), 0)?;
    anyhow::ensure!(signalled(&opened, SOON)?, "the session is not opened");
    let held = send(Command::Doorbell { arm: true }, 0)?;
    let later = send(Command::Doorbell { arm: false }, 1)?;
    let later = signalled(&later, SOON)?;
    let held = signalled(&held, Duration::ZERO)?;
    Ok(serde_json::json!({ "later_signalled": later, "held_signalled": held }))
}

fn signalled(fence: &OwnedFd, patience: Duration) -> Result<bool> {
    let mut fds = [PollFd::new(fence.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut fds, PollTimeout::try_from(patience)?)? > 0)
}
