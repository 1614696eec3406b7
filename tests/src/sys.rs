//! The one system call here that needs `unsafe`.
#![allow(unsafe_code)]

use std::process::Command;

/// Makes the kernel kill the child when the thread that spawns it ends, however it ends: a guard's
/// destructor does not run when its process is killed.
///
/// On systems without such a request, this does nothing.
pub fn die_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::{prctl, signal::Signal};
        use std::os::unix::process::CommandExt;
        // SAFETY: between fork and exec the closure makes one system call; it neither allocates nor locks.
        unsafe { command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}
