//! The short-lived processes that the supervisor starts: workers and the probe.

use crate::cli::{Backends, Worker};
use crate::ggml::Library;
#[cfg(target_os = "linux")]
use crate::sources::{Made, Told};
use crate::worker::{self, Sharing};
use anyhow::{Context, bail};
use ferry_protocol::calls::CallCode;
#[cfg(target_os = "linux")]
use ferry_protocol::channel::memory::Mapping;
use ferry_protocol::frame::Header;
use ferry_protocol::hello::{Opened, Transport, encode_welcome};
use ferry_protocol::ids::StreamId;
use ferry_protocol::limits::DEVICES_MAX;
#[cfg(target_os = "linux")]
use ferry_unix::arena;
use ferry_unix::{Channel, frames, stream};
use std::io::{Write, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Ends this process when the supervisor ends, however that happens.
pub fn die_with_parent(parent: u32) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    if nix::unistd::getppid().as_raw() as u32 != parent {
        bail!("the supervisor is gone");
    }
    Ok(())
}

/// The socket that the supervisor gave this process as standard input, which is /dev/null from here on.
pub fn take_stdin() -> anyhow::Result<std::os::fd::OwnedFd> {
    let socket = stdin().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(socket)
}

/// `ferryd probe`: loads the back-ends once and writes what a front tells guests.
pub fn run_probe(backends: &Backends) -> anyhow::Result<()> {
    let library = Arc::new(Library::load(&backends.ggml_dir, &backends.backends)?);
    let count = library.devices().len();
    if count == 0 || count > DEVICES_MAX {
        bail!(
            "the back-ends {} have {count} devices; between 1 and {DEVICES_MAX} can be shown",
            backends.backends.join(", ")
        );
    }
    let devices: Vec<_> = (0..count).map(|at| library.describe(at)).collect();
    stdout().write_all(&encode_welcome(ferry_protocol::VERSION_MAX, &devices))?;
    Ok(())
}

/// `ferryd worker`: answers the guest's OPEN and serves it.
pub fn run_worker(arguments: &Worker) -> anyhow::Result<()> {
    die_with_parent(arguments.parent)?;
    let socket = UnixStream::from(take_stdin()?);
    let library = Library::load(&arguments.ggml.ggml_dir, &arguments.ggml.backends)?;
    let config = worker::Config {
        stats: arguments.tuning.stats.clone(),
        spin: arguments.tuning.spin_us.map(Duration::from_micros),
        model_store: arguments.tuning.model_store.clone(),
        client_pid: arguments.client_pid,
    };
    let opened = Header { seq: arguments.open_seq, ..Header::request(CallCode::OPEN, StreamId::SESSION, 0) };
    let (channel, sharing) = match Transport(arguments.transport) {
        Transport::ARENA => open_arena(socket, opened)?,
        Transport::VIRTGPU => open_virtgpu(socket)?,
        _ => (open_stream(socket, opened)?, None),
    };
    worker::serve(Arc::new(library), channel, sharing, &config)
}

/// A session's channel, and what it shares with its guest besides messages.
type Opening = (Channel, Option<Sharing>);

fn open_stream(socket: UnixStream, opened: Header) -> anyhow::Result<Channel> {
    frames::write(&socket, opened, bytemuck::bytes_of(&Opened::default()), &[])
        .context("cannot answer the guest")?;
    Ok(stream::channel(socket)?)
}

#[cfg(target_os = "linux")]
fn open_arena(socket: UnixStream, opened: Header) -> anyhow::Result<Opening> {
    use std::os::fd::AsRawFd;
    let shared = arena::make().context("cannot make the shared memory of a session")?;
    let mapping = arena::map(&shared.memory, shared.layout.arena_bytes)?;
    let fds = [&shared.memory, &shared.host_event, &shared.guest_event].map(|fd| fd.as_raw_fd());
    frames::write(&socket, opened, bytemuck::bytes_of(&shared.layout), &fds)
        .context("cannot answer the guest")?;
    let regions = Box::new(Made::new(socket.try_clone()?));
    let events = (shared.host_event, shared.guest_event);
    let arena: Arc<dyn Mapping> = Arc::new(mapping);
    let channel = rings(arena.clone(), &shared.layout, events, socket)?;
    Ok((channel, Some(Sharing { arena, regions })))
}

/// The arena is in the guest's memory: the front says where. Its connection ends when the session does.
#[cfg(target_os = "linux")]
fn open_virtgpu(socket: UnixStream) -> anyhow::Result<Opening> {
    use crate::front::{ARENA_MESSAGE_BYTES_MAX, ArenaMessage};
    use crate::gpu::mmap::Stitched;
    let (_, message, mut fds) = frames::read_up_to(&socket, ARENA_MESSAGE_BYTES_MAX)
        .context("the front did not say where the arena is")?;
    let message = ArenaMessage::decode(&message)?;
    if fds.len() < 3 {
        bail!("the front passed {} descriptors", fds.len());
    }
    let files = fds.split_off(2);
    let (Some(guest_event), Some(host_event)) = (fds.pop(), fds.pop()) else { bail!("no events") };
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mapping = Stitched::map(&files, &message.extents).context("cannot map the arena")?;
    let regions = Box::new(Told::new(socket.try_clone()?));
    let arena: Arc<dyn Mapping> = Arc::new(mapping);
    let channel = rings(arena.clone(), &message.layout, (host_event, guest_event), socket)?;
    Ok((channel, Some(Sharing { arena, regions })))
}

#[cfg(target_os = "linux")]
fn rings(
    mapping: Arc<dyn Mapping>,
    layout: &Opened,
    events: (std::os::fd::OwnedFd, std::os::fd::OwnedFd),
    socket: UnixStream,
) -> anyhow::Result<Channel> {
    use ferry_protocol::channel::arena::End;
    Ok(arena::channel(mapping, layout, End::Host, events, socket)?)
}

#[cfg(not(target_os = "linux"))]
fn open_arena(_: UnixStream, _: Header) -> anyhow::Result<Opening> {
    bail!("shared memory between processes is only served on Linux")
}

#[cfg(not(target_os = "linux"))]
fn open_virtgpu(_: UnixStream) -> anyhow::Result<Opening> {
    bail!("virtio-gpu is only served on Linux")
}
