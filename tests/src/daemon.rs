//! `ferryd` as a test uses it: on a socket of its own, gone when the guard is dropped.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tempfile::TempDir;

use crate::llama::VULKAN_DEVICES;
use crate::process::{self, Finished, Running};
use crate::{checkout, interrupt, procfs};

/// From spawn to a socket that accepts; loading a CPU back-end takes a fraction of it, even under valgrind.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// From SIGTERM to the end, workers included.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// From the client's end to the worker's line of statistics.
const STATS_TIMEOUT: Duration = Duration::from_secs(5);

/// What a worker says of its session when that ends.
#[derive(Debug, Clone, Deserialize)]
pub struct Session {
    /// The guest process.
    pub client_pid: i32,
    /// The worker that served it.
    pub worker_pid: i32,
    /// Messages received.
    pub messages: u64,
    /// Executions of graphs.
    pub graphs: u64,
    /// Nodes of graphs executed.
    pub nodes: u64,
    /// Graphs that were sent whole.
    pub graphs_defined: u64,
    /// Graphs of which only what changed was sent.
    pub graphs_patched: u64,
    /// Graphs that the back-end was asked the best order of.
    pub optimizations: u64,
    /// Graphs that it would have in another order.
    pub reorderings: u64,
    /// Events recorded.
    pub events: u64,
    /// Bytes that crossed by value.
    pub bytes_in: u64,
    /// Bytes that crossed by reference, in memory that both see.
    pub bytes_shared: u64,
    /// Bytes that did not cross: the daemon had them.
    pub bytes_from_store: u64,
    /// The most bytes of buffers that the guest had.
    pub buffer_bytes_max: u64,
    /// Bytes of the worker's own memory at its end.
    pub own_bytes: u64,
    /// Times that the worker woke its guest.
    pub doorbells: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Times that the worker slept.
    pub waits: u64,
}

/// A line of the daemon's statistics.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Account {
    Session(Session),
    /// What a virtual machine's device counted.
    Device {
        device: BTreeMap<String, u64>,
    },
}

impl Account {
    /// Looking whether the socket accepts is a session too, one without graphs.
    fn into_session(self) -> Option<Session> {
        match self {
            Self::Session(session) if session.graphs > 0 => Some(session),
            _ => None,
        }
    }

    fn into_device(self) -> Option<BTreeMap<String, u64>> {
        match self {
            Self::Device { device } => Some(device),
            Self::Session(_) => None,
        }
    }
}

/// A running daemon and its folder.
#[derive(Debug)]
pub struct Daemon {
    running: Running,
    dir: TempDir,
}

/// The daemon's command line: the CPU back-end from `ggml_dir`, everything else in `dir`.
pub fn command(ggml_dir: &Path, dir: &Path) -> Result<Command> {
    command_for(ggml_dir, "cpu", dir)
}

fn command_for(ggml_dir: &Path, backend: &str, dir: &Path) -> Result<Command> {
    let mut command = Command::new(&checkout::binaries()?.ferryd);
    command.arg("serve").arg("--unix").arg(dir.join("ferry.sock")).arg("--ggml-dir").arg(ggml_dir);
    command.args(["--backend", backend, "--stats"]).arg(dir.join("stats.jsonl"));
    Ok(command)
}

fn machine_socket(dir: &Path, machine: usize) -> PathBuf {
    dir.join(format!("vm{machine}.sock"))
}

impl Daemon {
    /// Starts a daemon that serves the CPU back-end of `ggml_dir`, and waits until it accepts connections.
    pub fn start(ggml_dir: &Path) -> Result<Self> {
        Self::start_for_machines(ggml_dir, 0)
    }

    /// The same, with sockets for the virtio-gpu devices of so many virtual machines.
    pub fn start_for_machines(ggml_dir: &Path, machines: usize) -> Result<Self> {
        Self::start_with(ggml_dir, "cpu", machines)
    }

    /// The same, with this back-end.
    pub fn start_with(ggml_dir: &Path, backend: &str, machines: usize) -> Result<Self> {
        Self::launch(ggml_dir, backend, |mut command, dir| {
            for machine in 0..machines {
                command.arg("--vhost-user").arg(machine_socket(dir, machine));
            }
            Ok(command)
        })
    }

    /// Starts one on so many Vulkan devices, all of them the first one of this machine. That one may be a CPU, which ggml
    /// passes by unless it is told its number.
    pub fn start_vulkan(ggml_dir: &Path, devices: usize) -> Result<Self> {
        Self::launch(ggml_dir, "vulkan", |mut command, _| {
            command.env(VULKAN_DEVICES.0, vec![VULKAN_DEVICES.1; devices].join(","));
            Ok(command)
        })
    }

    /// Starts one on this back-end whose command line was adapted.
    pub fn adapted(
        ggml_dir: &Path,
        backend: &str,
        adapt: impl FnOnce(Command) -> Result<Command>,
    ) -> Result<Self> {
        Self::launch(ggml_dir, backend, |command, _| adapt(command))
    }

    fn launch(
        ggml_dir: &Path,
        backend: &str,
        adapt: impl FnOnce(Command, &Path) -> Result<Command>,
    ) -> Result<Self> {
        let dir =
            tempfile::Builder::new().prefix("ferry-").tempdir().context("making the daemon's folder")?;
        let mut command = adapt(command_for(ggml_dir, backend, dir.path())?, dir.path())?;
        let running = process::spawn(&mut command)?;
        let mut daemon = Self { running, dir };
        let socket = daemon.socket();
        daemon
            .running
            .wait_until("accepting connections", START_TIMEOUT, |_| UnixStream::connect(&socket).is_ok())?;
        Ok(daemon)
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("ferry.sock")
    }

    /// Where it serves a virtual machine's device, by number.
    pub fn machine_socket(&self, machine: usize) -> PathBuf {
        machine_socket(self.dir.path(), machine)
    }

    /// What it logged up to now.
    pub fn log(&self) -> String {
        self.running.stderr()
    }

    /// The daemon's own process: the supervisor.
    pub fn pid(&self) -> i32 {
        self.running.pid().as_raw()
    }

    /// The worker of the guest process `client_pid`, which it has on its command line.
    pub fn worker_of(&self, client_pid: i32) -> Option<i32> {
        let client = ["--client-pid".to_owned(), client_pid.to_string()];
        let serves = |&pid: &i32| procfs::arguments(pid).windows(2).any(|pair| pair == client);
        self.children().into_iter().find(serves)
    }

    /// Processes below the daemon: fronts and workers.
    pub fn children(&self) -> Vec<i32> {
        procfs::descendants(self.pid())
    }

    /// The sessions that have ended, once there are at least `count`.
    pub fn sessions(&self, count: usize) -> Result<Vec<Session>> {
        self.accounts_when(&format!("{count} sessions"), Account::into_session, |all| all.len() >= count)
    }

    /// The session of the guest process `client_pid`, once it has ended.
    pub fn session_of(&self, client_pid: i32) -> Result<Session> {
        let its = |session: &Session| session.client_pid == client_pid;
        let what = format!("a session of process {client_pid}");
        let sessions = self.accounts_when(&what, Account::into_session, |all| all.iter().any(its))?;
        Ok(sessions.into_iter().rfind(its).expect("it is there now"))
    }

    /// Runs a program that computes here to its successful end. Fails if it did not, or if a call of its session failed.
    pub fn serve(&self, guest: &mut Command, timeout: Duration) -> Result<(Finished, Session)> {
        let running = process::spawn(guest)?;
        let pid = running.pid().as_raw();
        let finished = running.wait(timeout)?.success()?;
        let session = self.successful_session_of(pid).with_context(|| finished.tail())?;
        Ok((finished, session))
    }

    /// As [`Self::session_of`]; fails if a call of the session did.
    pub fn successful_session_of(&self, client_pid: i32) -> Result<Session> {
        let session = self.session_of(client_pid)?;
        ensure!(session.failures == 0, "{} calls failed\n{}", session.failures, self.log());
        Ok(session)
    }

    /// Waits until the sessions of the guest process `client_pid`, of which it may have had several, one after the other,
    /// have executed so many graphs. Fails if a call of theirs did.
    pub fn expect_graphs(&self, client_pid: i32, graphs: u64) -> Result<()> {
        let its = |session: &&Session| session.client_pid == client_pid;
        let enough =
            |all: &[Session]| all.iter().filter(its).map(|session| session.graphs).sum::<u64>() >= graphs;
        let what = format!("{graphs} graphs of process {client_pid}");
        let sessions = self.accounts_when(&what, Account::into_session, enough)?;
        let failures: u64 = sessions.iter().filter(its).map(|session| session.failures).sum();
        ensure!(failures == 0, "{failures} calls failed\n{}", self.log());
        Ok(())
    }

    /// What the devices of virtual machines had counted, since their start, at the end of each session of theirs, once
    /// at least `count` have ended.
    pub fn device_counters(&self, count: usize) -> Result<Vec<BTreeMap<String, u64>>> {
        let what = format!("{count} sessions of virtual machines");
        self.accounts_when(&what, Account::into_device, |all| all.len() >= count)
    }

    /// What `pick` takes of the daemon's statistics, once that is enough.
    fn accounts_when<T>(
        &self,
        what: &str,
        pick: impl Fn(Account) -> Option<T>,
        enough: impl Fn(&[T]) -> bool,
    ) -> Result<Vec<T>> {
        let deadline = Instant::now() + STATS_TIMEOUT;
        loop {
            let text = fs::read_to_string(self.dir.path().join("stats.jsonl")).unwrap_or_default();
            let whole_lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let accounts: Vec<Account> = whole_lines
                .map(|line| {
                    serde_json::from_str(line).with_context(|| format!("ferryd's statistics: {line:?}"))
                })
                .collect::<Result<_>>()?;
            let picked: Vec<T> = accounts.into_iter().filter_map(&pick).collect();
            if enough(&picked) {
                return Ok(picked);
            }
            if Instant::now() > deadline {
                bail!("ferryd accounts for {}, not {what}\n{}", picked.len(), self.log());
            }
            interrupt::check()?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Keeps its folder after the end, with its log up to now. Returns where it is.
    pub fn keep(&mut self) -> Result<&Path> {
        self.dir.disable_cleanup(true);
        fs::write(self.dir.path().join("ferryd.log"), self.log()).context("keeping ferryd's log")?;
        Ok(self.dir.path())
    }

    /// Asks it to end. Fails if it had to be killed.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    /// Asks it to end, and lets `inspect` see what it left before its folder goes.
    pub fn stop_and_inspect(mut self, inspect: impl FnOnce()) -> Result<()> {
        self.end()?;
        inspect();
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        if !self.running.stop(STOP_PATIENCE) {
            bail!("ferryd did not end on SIGTERM within {STOP_PATIENCE:?}\n{}", self.log());
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.running.stop(STOP_PATIENCE);
    }
}
