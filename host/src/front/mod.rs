//! The front: meets guests, shakes hands, lists devices, and has the supervisor start a worker for each session.
//!
//! It reads what guests send, so it is a process of its own; it knows the handshake and, for a VM, the virtio-gpu device,
//! but no graph and no ggml.

mod handshake;
mod link;
mod unix;
#[cfg(target_os = "linux")]
mod vm;

pub use link::{KILL, REAP, START, WorkerRequest};
#[cfg(target_os = "linux")]
pub use vm::{ARENA_MESSAGE_BYTES_MAX, ArenaMessage, EXTENTS_MAX, RegionNote, decode_extents};

use crate::cli;
use crate::process::{die_with_parent, take_stdin};
use anyhow::Context;
use ferry_unix::frames;
use link::Supervisor;
use std::io::stdout;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

/// `ferryd front`: standard input is the listening socket, standard output the supervisor.
pub fn run(arguments: &cli::Front) -> anyhow::Result<()> {
    die_with_parent(arguments.parent)?;
    let listener = UnixListener::from(take_stdin()?);
    let supervisor = UnixStream::from(stdout().as_fd().try_clone_to_owned()?);
    nix::unistd::dup2_stdout(std::fs::File::options().write(true).open("/dev/null")?)?;
    let (_, welcome, _) = frames::read(&supervisor).context("the supervisor sent no devices")?;
    let supervisor = Supervisor::new(supervisor);
    if arguments.vhost_user {
        serve_vm(listener, welcome, supervisor, arguments.stats.clone())
    } else {
        unix::serve(&listener, welcome, supervisor)
    }
}

#[cfg(target_os = "linux")]
fn serve_vm(
    listener: UnixListener,
    welcome: Vec<u8>,
    supervisor: Supervisor,
    stats: Option<PathBuf>,
) -> anyhow::Result<()> {
    vm::serve(listener, welcome, supervisor, stats)
}

#[cfg(not(target_os = "linux"))]
fn serve_vm(_: UnixListener, _: Vec<u8>, _: Supervisor, _: Option<PathBuf>) -> anyhow::Result<()> {
    anyhow::bail!("vhost-user is only served on Linux")
}
