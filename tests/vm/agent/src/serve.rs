//! Requests in, programs and files served, events out.
//!
//! The main thread only reads requests, so that a signal is never stuck behind a program that does not read
//! its input: each request in progress has threads of its own, fed through a channel.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use ferry_vm_agent::{
    Bytes, CHUNK_BYTES_MAX, Event, Exec, Exit, PORT_NAME, Request, ToGuest, ToHost, UNSOLICITED, receive,
    send,
};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How long output may still come after a program ended: a grandchild may hold the pipe for ever.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// Serves until the port ends.
pub fn run() -> Result<()> {
    let path = port_path()?;
    let port = File::options().read(true).write(true).open(&path);
    let port = port.with_context(|| format!("cannot open the agent's port {}", path.display()))?;
    let host = Host(Arc::new(Mutex::new(port.try_clone()?)));
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    host.report(UNSOLICITED, Event::Hello { boot_id });

    let mut jobs: HashMap<u64, Job> = HashMap::new();
    let mut reader = BufReader::new(port);
    while let Some(ToGuest { id, request }) = receive(&mut reader)? {
        jobs.retain(|_, job| !job.input.is_finished());
        let started = match request {
            Request::Exec(exec) => start_program(id, &exec, &host),
            Request::Write { path, mode } => start_write(id, path, mode, &host),
            Request::Read { path } => Ok(start_read(id, path, &host)),
            Request::Input(bytes) => {
                if let Some(job) = jobs.get(&id) {
                    job.input.send(bytes);
                }
                continue;
            }
            Request::Signal(number) => {
                if let Some(job) = jobs.get(&id) {
                    job.signal(number);
                }
                continue;
            }
        };
        match started {
            Ok(job) => drop(jobs.insert(id, job)),
            Err(error) => host.report(id, Event::Failed(format!("{error:#}"))),
        }
    }
    Ok(())
}

/// Finds the port by its name: its number depends on the machine's other devices.
fn port_path() -> Result<PathBuf> {
    for entry in fs::read_dir("/sys/class/virtio-ports").context("no virtio-serial device")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == PORT_NAME) {
            return Ok(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    anyhow::bail!("no virtio-serial port is named {PORT_NAME}")
}

/// The way back to the harness, shared by all threads.
#[derive(Clone)]
struct Host(Arc<Mutex<File>>);

impl Host {
    fn report(&self, id: u64, event: Event) {
        let mut port = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // If the harness is gone there is nobody to tell.
        let _ = send(&mut *port, &ToHost { id, event });
    }

    /// Reports all that `source` gives.
    fn report_stream(
        &self,
        id: u64,
        mut source: impl Read,
        event: fn(Bytes) -> Event,
    ) -> std::io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES_MAX];
        loop {
            let count = source.read(&mut chunk)?;
            if count == 0 {
                return Ok(());
            }
            self.report(id, event(Bytes(chunk[..count].to_vec())));
        }
    }
}

/// A request in progress.
struct Job {
    input: Input,
    /// The program's process group, if it is a program.
    group: Option<Pid>,
}

impl Job {
    fn signal(&self, number: i32) {
        if let (Some(group), Ok(signal)) = (self.group, Signal::try_from(number)) {
            // It may have ended meanwhile.
            let _ = killpg(group, signal);
        }
    }
}

/// Where a job's [`Request::Input`] goes; the thread behind it lives as long as the job.
struct Input {
    sender: Sender<Bytes>,
    alive: std::sync::Weak<()>,
}

impl Input {
    fn new() -> (Self, Receiver<Bytes>, Arc<()>) {
        let (sender, receiver) = mpsc::channel();
        let token = Arc::new(());
        (Self { sender, alive: Arc::downgrade(&token) }, receiver, token)
    }

    fn send(&self, bytes: Bytes) {
        // A program may close its input early, as in `yes | head`.
        let _ = self.sender.send(bytes);
    }

    fn is_finished(&self) -> bool {
        self.alive.strong_count() == 0
    }
}

fn start_program(id: u64, exec: &Exec, host: &Host) -> Result<Job> {
    let [program, arguments @ ..] = exec.argv.as_slice() else { anyhow::bail!("no program given") };
    let mut command = Command::new(program);
    if let Some(uid) = exec.uid {
        command.uid(uid).gid(uid);
    }
    let mut child = command
        .args(arguments)
        .envs(exec.env.iter().map(|(name, value)| (name, value)))
        .current_dir(exec.cwd.as_deref().unwrap_or("/"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    host.report(id, Event::Started { pid: child.id() });

    let (input, receiver, token) = Input::new();
    let group = Some(Pid::from_raw(child.id().cast_signed()));
    let stdin = child.stdin.take().context("no pipe to the program")?;
    thread::spawn(move || feed(stdin, &receiver));
    let host = host.clone();
    thread::spawn(move || {
        watch(id, child, &host);
        drop(token);
    });
    Ok(Job { input, group })
}

/// Copies input to `sink` until the empty piece that ends it; an early end of the sink is not an error here.
fn feed(mut sink: impl Write, input: &Receiver<Bytes>) -> std::io::Result<()> {
    while let Ok(Bytes(piece)) = input.recv() {
        if piece.is_empty() {
            break;
        }
        sink.write_all(&piece)?;
    }
    sink.flush()
}

/// Reports the program's output and, last, its end.
fn watch(id: u64, mut child: Child, host: &Host) {
    let (finished, pipes) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        let (host, finished) = (host.clone(), finished.clone());
        thread::spawn(move || finished.send(host.report_stream(id, stdout, Event::Output)));
    }
    if let Some(stderr) = child.stderr.take() {
        let (host, finished) = (host.clone(), finished.clone());
        thread::spawn(move || finished.send(host.report_stream(id, stderr, Event::ErrorOutput)));
    }
    drop(finished);
    let status = child.wait();
    while pipes.recv_timeout(OUTPUT_GRACE).is_ok() {}
    let event = match status {
        Ok(status) => Event::Exited(exit_of(status)),
        Err(error) => Event::Failed(format!("cannot wait for the program: {error}")),
    };
    host.report(id, event);
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or_default()),
    }
}

fn start_write(id: u64, path: String, mode: u32, host: &Host) -> Result<Job> {
    let file = File::options().write(true).create(true).truncate(true).mode(mode).open(&path);
    let file = file.with_context(|| format!("cannot create {path}"))?;
    let (input, receiver, token) = Input::new();
    let host = host.clone();
    thread::spawn(move || {
        let event = match feed(file, &receiver) {
            Ok(()) => Event::Done,
            Err(error) => Event::Failed(format!("cannot write {path}: {error}")),
        };
        host.report(id, event);
        drop(token);
    });
    Ok(Job { input, group: None })
}

fn start_read(id: u64, path: String, host: &Host) -> Job {
    let (input, _, token) = Input::new();
    let host = host.clone();
    thread::spawn(move || {
        let read = File::open(&path).and_then(|file| host.report_stream(id, file, Event::Output));
        let event = match read {
            Ok(()) => Event::Done,
            Err(error) => Event::Failed(format!("cannot read {path}: {error}")),
        };
        host.report(id, event);
        drop(token);
    });
    Job { input, group: None }
}
