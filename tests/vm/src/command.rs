//! Commands in the guest.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ferry_vm_agent::{Bytes, CHUNK_BYTES_MAX, Event, Exec, Exit, Request};
use nix::sys::signal::Signal;

use crate::Vm;

/// How long a command may take unless it says otherwise: an emulated CPU is some thirty times slower.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);

/// A command about to be run in the guest.
#[must_use = "a command does nothing until it is run"]
pub struct GuestCommand<'vm> {
    vm: &'vm Vm,
    exec: Exec,
    stdin: Vec<u8>,
    timeout: Duration,
}

/// What a command left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// All of its standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl<'vm> GuestCommand<'vm> {
    pub(crate) fn new<S: Into<String>>(vm: &'vm Vm, argv: impl IntoIterator<Item = S>) -> Self {
        let exec = Exec { argv: argv.into_iter().map(Into::into).collect(), ..Exec::default() };
        Self { vm, exec, stdin: Vec::new(), timeout: TIMEOUT_DEFAULT }
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.exec.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs it in this folder of the guest.
    pub fn current_dir(mut self, dir: &str) -> Self {
        self.exec.cwd = Some(dir.to_owned());
        self
    }

    /// Runs it as this user and group, by number, instead of as root.
    pub fn user(mut self, uid: u32) -> Self {
        self.exec.uid = Some(uid);
        self
    }

    /// What [`Self::output`] gives it to read.
    pub fn stdin(mut self, content: &[u8]) -> Self {
        self.stdin = content.to_vec();
        self
    }

    /// How long it may take before it is killed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// If the guest cannot start it.
    pub fn spawn(self) -> Result<GuestProcess<'vm>> {
        let what = self.exec.argv.join(" ");
        let (id, events) = self.vm.agent().request(Request::Exec(self.exec))?;
        let mut process = GuestProcess {
            vm: self.vm,
            what,
            id,
            events,
            pid: 0,
            deadline: Instant::now() + self.timeout,
            stdout: Vec::new(),
            stderr: Vec::new(),
            exit: None,
        };
        match process.event()? {
            Event::Started { pid } => process.pid = pid,
            other => bail!("{}: expected the program to start, got {other:?}", process.what),
        }
        process.write(&self.stdin)?;
        Ok(process)
    }

    /// Runs it to its end, successful or not.
    ///
    /// # Errors
    /// If it cannot be started, takes longer than it may, or the guest goes down.
    pub fn output(self) -> Result<Output> {
        let process = self.spawn()?;
        process.close_stdin()?;
        process.wait()
    }

    /// Runs it and returns its standard output as text.
    ///
    /// # Errors
    /// Also if it does not succeed.
    pub fn text(self) -> Result<String> {
        let what = self.exec.argv.join(" ");
        let output = self.output()?;
        if !output.exit.success() {
            let (stdout, stderr) = (output.stdout_text(), output.stderr_text());
            bail!("in the guest, `{what}` ended with {}:\n{stdout}{stderr}", output.exit);
        }
        Ok(output.stdout_text())
    }
}

/// A program that runs in the guest; dropping it leaves the program alone.
pub struct GuestProcess<'vm> {
    vm: &'vm Vm,
    what: String,
    id: u64,
    events: Receiver<Event>,
    pid: u32,
    deadline: Instant,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    exit: Option<Exit>,
}

impl GuestProcess<'_> {
    /// Its process number in the guest.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Writes to its standard input.
    ///
    /// # Errors
    /// If the guest is gone.
    pub fn write(&self, content: &[u8]) -> Result<()> {
        content.chunks(CHUNK_BYTES_MAX).try_for_each(|piece| self.vm.agent().input(self.id, piece))
    }

    /// Ends its standard input.
    ///
    /// # Errors
    /// If the guest is gone.
    pub fn close_stdin(&self) -> Result<()> {
        self.vm.agent().input(self.id, &[])
    }

    /// Sends a signal to its process group.
    ///
    /// # Errors
    /// If the guest is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.vm.agent().signal(self.id, signal as i32)
    }

    /// Waits until its standard output contains `text`.
    ///
    /// # Errors
    /// If it ends without, takes longer than it may, or the guest goes down.
    pub fn wait_for(&mut self, text: &str) -> Result<()> {
        while !contains(&self.stdout, text.as_bytes()) {
            if let Some(exit) = self.exit {
                bail!("`{}` ended with {exit} before it printed {text:?}:\n{}", self.what, self.said());
            }
            self.take_event()?;
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it takes longer than it may (it is killed then), or the guest goes down.
    pub fn wait(mut self) -> Result<Output> {
        loop {
            if let Some(exit) = self.exit {
                let (stdout, stderr) = (std::mem::take(&mut self.stdout), std::mem::take(&mut self.stderr));
                return Ok(Output { exit, stdout, stderr });
            }
            self.take_event()?;
        }
    }

    fn take_event(&mut self) -> Result<()> {
        match self.event()? {
            Event::Output(Bytes(piece)) => self.stdout.extend(piece),
            Event::ErrorOutput(Bytes(piece)) => self.stderr.extend(piece),
            Event::Exited(exit) => self.exit = Some(exit),
            other => bail!("`{}`: unexpected event {other:?}", self.what),
        }
        Ok(())
    }

    fn event(&self) -> Result<Event> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.events.recv_timeout(left) {
            Ok(Event::Failed(reason)) => bail!("in the guest, `{}`: {reason}", self.what),
            Ok(event) => Ok(event),
            Err(RecvTimeoutError::Timeout) => {
                self.signal(Signal::SIGKILL)?;
                let reason =
                    format!("`{}` took too long and was killed; it had said:\n{}", self.what, self.said());
                Err(self.vm.failure(&reason))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(self.vm.failure(&format!("the guest went down under `{}`:\n{}", self.what, self.said())))
            }
        }
    }

    fn said(&self) -> String {
        format!("{}{}", String::from_utf8_lossy(&self.stdout), String::from_utf8_lossy(&self.stderr))
    }
}

impl Drop for GuestProcess<'_> {
    fn drop(&mut self) {
        self.vm.agent().forget(self.id);
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    needle.is_empty() || haystack.windows(needle.len()).any(|window| window == needle)
}

/// Copies `content` into a file of the guest.
pub(crate) fn push(vm: &Vm, content: &[u8], path: &str, mode: u32) -> Result<()> {
    let (id, events) = vm.agent().request(Request::Write { path: path.to_owned(), mode })?;
    content.chunks(CHUNK_BYTES_MAX).try_for_each(|piece| vm.agent().input(id, piece))?;
    vm.agent().input(id, &[])?;
    transfer(vm, path, &events).map(drop)
}

/// Copies a file out of the guest.
pub(crate) fn pull(vm: &Vm, path: &str) -> Result<Vec<u8>> {
    let (_, events) = vm.agent().request(Request::Read { path: path.to_owned() })?;
    transfer(vm, path, &events)
}

/// Collects a transfer's events until it is done; the time limit is for silence, not for the whole.
fn transfer(vm: &Vm, path: &str, events: &Receiver<Event>) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let event = events.recv_timeout(TIMEOUT_DEFAULT);
        match event.map_err(|error| vm.failure(&format!("no answer about {path}: {error}")))? {
            Event::Output(Bytes(piece)) => content.extend(piece),
            Event::Done => return Ok(content),
            Event::Failed(reason) => return Err(anyhow::anyhow!(reason)).context("in the guest"),
            other => bail!("{path}: unexpected event {other:?}"),
        }
    }
}
