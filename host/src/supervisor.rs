//! The supervisor: starts a probe, a front per listener and a worker per session, and cleans up after all of them. It
//! reads no byte that a guest wrote: what a front passes on has been parsed there, and is two numbers.

use crate::cli::Serve;
use crate::front::{self, WorkerRequest};
use crate::store::admin;
use anyhow::{Context, bail};
use ferry_protocol::VERSION_MAX;
use ferry_protocol::calls::CallCode;
use ferry_protocol::cursor;
use ferry_protocol::frame::Header;
use ferry_protocol::hello::{DeviceFlags, DeviceRecord, decode_welcome, encode_welcome, field_text};
use ferry_protocol::ids::StreamId;
use ferry_protocol::status::Status;
use ferry_unix::frames;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use std::fs::Permissions;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Workers get this long to end by themselves when the daemon does.
const GRACE: Duration = Duration::from_millis(500);

/// A front that begins a request finishes it within this time: it reads what guests send, and one that was taken over must
/// not stop the supervisor, on which the other machines depend.
const FRONT_PATIENCE: Duration = Duration::from_secs(1);

/// Who connects to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guests {
    /// Processes of this machine.
    Processes,
    /// A VMM, with the processes of its machine behind it.
    Vm,
}

/// A listener with its front and its sessions.
struct Listener {
    guests: Guests,
    path: PathBuf,
    socket: OwnedFd,
    front: Child,
    control: UnixStream,
    /// Workers, by the front's names for them.
    workers: Vec<(u64, Child)>,
}

/// `ferryd serve`.
pub fn run(serve: &Serve) -> anyhow::Result<()> {
    // Registered before any child exists, so that none is missed.
    let stop = Arc::new(AtomicBool::new(false));
    let (mut signals, writer) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    for signal in [SIGTERM, SIGINT, SIGCHLD] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    signals.set_nonblocking(true)?;

    let mut devices = probe(serve)?;
    if let Some(dir) = &serve.tuning.model_store {
        offer_store(dir, &mut devices)?;
    }
    let welcome = encode_welcome(VERSION_MAX, &devices);
    let mut listeners = Vec::new();
    for (guests, path) in sockets(serve) {
        listeners.push(Listener::start(guests, &path, serve, &welcome)?);
        tracing::info!("ready on {}", path.display());
    }
    while !stop.load(Ordering::Relaxed) {
        let readable = wait(&signals, &listeners)?;
        drain(&mut signals);
        for (listener, readable) in listeners.iter_mut().zip(readable) {
            if readable {
                listener.serve_front(serve);
            }
            listener.reap(serve, &welcome)?;
        }
    }
    tracing::info!("stopping");
    Ok(())
}

/// The sockets to listen on.
fn sockets(serve: &Serve) -> Vec<(Guests, PathBuf)> {
    let processes = serve.unix.iter().map(|path| (Guests::Processes, path.clone()));
    let machines = serve.vhost_user.iter().map(|path| (Guests::Vm, path.clone()));
    let sockets: Vec<_> = processes.chain(machines).collect();
    if sockets.is_empty() { vec![(Guests::Processes, ferry_unix::path::default_socket())] } else { sockets }
}

/// Asks a process of its own what devices there are: a driver that crashes takes that process.
fn probe(serve: &Serve) -> anyhow::Result<Vec<DeviceRecord>> {
    let output = ferryd(&["probe"])
        .args(backend_arguments(serve))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the probe")?;
    if !output.status.success() {
        bail!("cannot use the back-ends {} ({})", serve.ggml.backends.join(", "), output.status);
    }
    let (_, devices) = decode_welcome(&output.stdout).context("the probe's answer makes no sense")?;
    for device in &devices {
        tracing::info!("device {}: {}", field_text(&device.name), field_text(&device.description));
    }
    Ok(devices)
}

/// Tells guests that weights may be here already. A store that cannot be looked into is a mistake; a model in it that cannot
/// be used is none: guests send what is not here.
fn offer_store(dir: &Path, devices: &mut [DeviceRecord]) -> anyhow::Result<()> {
    let mut models = 0;
    for entry in admin::list(dir)? {
        match entry {
            Ok(_) => models += 1,
            Err(error) => tracing::warn!("a model of the store cannot be used: {error:#}"),
        }
    }
    tracing::info!(models, "offering the model store {}", dir.display());
    for device in devices {
        device.flags = device.flags | DeviceFlags::STORE;
    }
    Ok(())
}

fn ferryd(arguments: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let mut command = Command::new(program);
    command.args(arguments);
    // Ctrl-C is for the supervisor, which then ends its children.
    command.process_group(0);
    command
}

fn backend_arguments(serve: &Serve) -> Vec<std::ffi::OsString> {
    let mut arguments = vec!["--ggml-dir".into(), serve.ggml.ggml_dir.clone().into_os_string()];
    for backend in &serve.ggml.backends {
        arguments.extend(["--backend".into(), backend.into()]);
    }
    arguments
}

/// Sleeps until a signal arrives or a front has something to say; which fronts have.
fn wait(signals: &UnixStream, listeners: &[Listener]) -> anyhow::Result<Vec<bool>> {
    let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    fds.extend(listeners.iter().map(|listener| PollFd::new(listener.control.as_fd(), PollFlags::POLLIN)));
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) => Ok(fds[1..].iter().map(|fd| fd.any().unwrap_or(false)).collect()),
        Err(nix::errno::Errno::EINTR) => Ok(vec![false; listeners.len()]),
        Err(error) => Err(error).context("poll"),
    }
}

fn drain(signals: &mut UnixStream) {
    let mut bytes = [0; 64];
    while matches!(signals.read(&mut bytes), Ok(n) if n == bytes.len()) {}
}

impl Listener {
    fn start(guests: Guests, path: &Path, serve: &Serve, welcome: &[u8]) -> anyhow::Result<Self> {
        let socket = OwnedFd::from(bind(guests, path, serve.socket_mode)?);
        let (front, control) = start_front(guests, &socket, serve, welcome)?;
        Ok(Self { guests, path: path.to_path_buf(), socket, front, control, workers: Vec::new() })
    }

    /// A front wants something.
    fn serve_front(&mut self, serve: &Serve) {
        let (header, payload, mut fds) = match frames::read(&self.control) {
            Ok(frame) => frame,
            Err(error) => {
                // It ended, which is noticed as a child's end, or it is not what it was: another takes its place.
                tracing::debug!("front of {}: {error}", self.path.display());
                let _ = self.front.kill();
                return;
            }
        };
        let Ok(request) = cursor::only::<WorkerRequest>(&payload, "a request") else {
            return tracing::error!("the front of {} makes no sense", self.path.display());
        };
        match (header.call, fds.pop()) {
            (front::START, Some(connection)) => {
                self.start_worker(serve, &request, UnixStream::from(connection))
            }
            (front::KILL | front::REAP, _) => {
                self.end_worker(request.session, header.call == front::KILL);
                let answer = Header::request(header.call, StreamId::SESSION, 0);
                // A front that does not take its answers harms itself alone.
                let _ = frames::write(&self.control, answer, bytemuck::bytes_of(&request), &[]);
            }
            _ => tracing::error!("the front of {} makes no sense", self.path.display()),
        }
    }

    /// Starts a worker that serves at `connection`. Who is refused learns it there.
    fn start_worker(&mut self, serve: &Serve, request: &WorkerRequest, connection: UnixStream) {
        let refusal =
            Header { seq: request.open_seq, ..Header::request(CallCode::OPEN, StreamId::SESSION, 0) };
        let refuse = |text: &str| {
            let _ = frames::write(&connection, refusal.reply(Status::REFUSED), text.as_bytes(), &[]);
        };
        if self.workers.len() >= serve.sessions_max {
            let text = format!(
                "{} sessions are open, at most {} are allowed",
                self.workers.len(),
                serve.sessions_max
            );
            tracing::warn!("{}: {text}", self.path.display());
            return refuse(&text);
        }
        match spawn_worker(serve, request, &connection) {
            Ok(worker) => self.workers.push((request.session, worker)),
            Err(error) => {
                tracing::error!("cannot start a worker: {error}");
                refuse("the daemon could not start a worker");
            }
        }
    }

    /// Kills and reaps a worker.
    fn end_worker(&mut self, session: u64, late: bool) {
        for (_, worker) in self.workers.iter_mut().filter(|(name, _)| *name == session) {
            if late {
                tracing::warn!("worker {} is killed: it did not end in time", worker.id());
            }
            let _ = worker.kill();
            let _ = worker.wait();
        }
        self.workers.retain(|(name, _)| *name != session);
    }

    /// Takes note of children that ended; a front that did is replaced.
    fn reap(&mut self, serve: &Serve, welcome: &[u8]) -> anyhow::Result<()> {
        self.workers.retain_mut(|(_, worker)| match worker.try_wait() {
            Ok(Some(status)) => {
                if !status.success() {
                    tracing::error!("worker {} ended: {status}; its guest lost the session", worker.id());
                }
                false
            }
            _ => true,
        });
        if let Ok(Some(status)) = self.front.try_wait() {
            tracing::error!("the front of {} ended: {status}; starting another", self.path.display());
            (self.front, self.control) = start_front(self.guests, &self.socket, serve, welcome)?;
        }
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = self.front.kill();
        let _ = self.front.wait();
        for (_, worker) in &self.workers {
            let pid = nix::unistd::Pid::from_raw(worker.id() as i32);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        }
        let until = std::time::Instant::now() + GRACE;
        for (_, worker) in &mut self.workers {
            while matches!(worker.try_wait(), Ok(None)) && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

/// The supervisor's end of the connection to a front, and the front's.
fn control_pair() -> std::io::Result<(UnixStream, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(FRONT_PATIENCE))?;
    ours.set_write_timeout(Some(FRONT_PATIENCE))?;
    Ok((ours, theirs))
}

fn start_front(
    guests: Guests,
    socket: &OwnedFd,
    serve: &Serve,
    welcome: &[u8],
) -> anyhow::Result<(Child, UnixStream)> {
    let (control, theirs) = control_pair()?;
    let mut command = ferryd(&["front", "--parent", &std::process::id().to_string()]);
    if guests == Guests::Vm {
        command.arg("--vhost-user");
    }
    if let Some(stats) = &serve.tuning.stats {
        command.arg("--stats").arg(stats);
    }
    let front = command
        .stdin(Stdio::from(socket.try_clone()?))
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .context("cannot start a front")?;
    let header = Header::request(CallCode::HELLO, StreamId::SESSION, 0);
    frames::write(&control, header, welcome, &[]).context("cannot talk to a front")?;
    Ok((front, control))
}

fn spawn_worker(serve: &Serve, request: &WorkerRequest, connection: &UnixStream) -> anyhow::Result<Child> {
    let open = &request.open;
    let mut command = ferryd(&["worker"]);
    command.args(backend_arguments(serve));
    command.args(["--open-seq", &request.open_seq.to_string(), "--client-pid", &open.client_pid.to_string()]);
    command.args(["--parent", &std::process::id().to_string(), "--transport", &open.transport.0.to_string()]);
    if let Some(stats) = &serve.tuning.stats {
        command.arg("--stats").arg(stats);
    }
    if let Some(spin_us) = serve.tuning.spin_us {
        command.args(["--spin-us", &spin_us.to_string()]);
    }
    if let Some(dir) = &serve.tuning.model_store {
        command.arg("--model-store").arg(dir);
    }
    Ok(command.stdin(Stdio::from(OwnedFd::from(connection.try_clone()?))).stdout(Stdio::null()).spawn()?)
}

/// Binds a socket that only this daemon listens on. A file that a dead daemon left is replaced.
fn bind(guests: Guests, path: &Path, mode: u32) -> anyhow::Result<UnixListener> {
    // A VMM's socket serves one connection at a time, and trying it out would be one.
    if guests == Guests::Processes && UnixStream::connect(path).is_ok() {
        bail!("another daemon listens on {}", path.display());
    }
    if std::fs::symlink_metadata(path)
        .is_ok_and(|file| std::os::unix::fs::FileTypeExt::is_socket(&file.file_type()))
    {
        std::fs::remove_file(path).with_context(|| format!("cannot replace {}", path.display()))?;
    }
    // Nobody connects before the permissions are what they should be.
    let listener = UnixListener::bind(path).with_context(|| {
        format!("cannot listen on {}: is the directory there and writable? (--unix and --vhost-user choose other places)", path.display())
    })?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the permissions of {}", path.display()))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command as Subcommand};
    use clap::Parser;
    use std::io::Write;

    #[test]
    fn a_front_that_stops_in_the_middle_of_a_request_is_replaced_and_holds_nobody_up() {
        let arguments = ["ferryd", "serve", "--ggml-dir", "/nonexistent", "--backend", "cpu"];
        let Subcommand::Serve(serve) = Cli::parse_from(arguments).command else { unreachable!() };
        let (control, mut theirs) = control_pair().unwrap();
        let front = Command::new("sleep").arg("60").spawn().unwrap();
        let (socket, _other) = UnixStream::pair().unwrap();
        let path = std::env::temp_dir().join(format!("ferry-supervisor-{}", std::process::id()));
        let (guests, workers) = (Guests::Processes, Vec::new());
        let mut listener = Listener { guests, path, socket: socket.into(), front, control, workers };
        theirs.write_all(b"half").unwrap();
        listener.serve_front(&serve);
        assert!(!listener.front.wait().unwrap().success(), "it was not killed");
    }
}
