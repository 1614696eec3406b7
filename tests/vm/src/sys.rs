//! The one thing about processes that std has no safe call for.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};

/// Has the kernel kill the command's process when the *thread* that spawns it ends.
pub fn die_with_spawner(command: &mut Command) {
    let parent = getpid();
    let arm = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the line above.
        if getppid() == parent { Ok(()) } else { Err(io::Error::from(Errno::ESRCH)) }
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed: `arm` makes two system calls
    // and allocates nothing.
    unsafe { command.pre_exec(arm) };
}
