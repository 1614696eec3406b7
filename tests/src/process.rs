//! Children that cannot outlive us: own process group, killed on drop, output captured, every wait bounded.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::{interrupt, sys};

/// How often a wait looks: short enough not to blur a measurement of seconds.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How often somebody who watches a child sees it.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// What a dropped child gets to put its own affairs in order: ninja's compilers are in groups of their own,
/// and only ninja knows them.
const DROP_PATIENCE: Duration = Duration::from_secs(1);
/// Lines of output that an error message quotes.
const TAIL_LINES: usize = 25;

/// How a program ended and what it said.
#[derive(Debug)]
pub struct Finished {
    /// What was run, for messages.
    pub name: String,
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Everything from standard output.
    pub stdout: String,
    /// Everything from standard error.
    pub stderr: String,
    /// From spawn to exit.
    pub elapsed: Duration,
}

impl Finished {
    /// Fails, with the end of what the program said, unless it exited with 0.
    pub fn success(self) -> Result<Self> {
        ensure!(self.status.success(), "{} ended with {}\n{}", self.name, self.status, self.tail());
        Ok(self)
    }

    /// Fails if the program exited with 0 or was ended by a signal: it should have given up by itself.
    pub fn failure(self) -> Result<Self> {
        let by_itself = self.status.signal().is_none();
        ensure!(!self.status.success(), "{} succeeded; a failure was expected\n{}", self.name, self.tail());
        ensure!(by_itself, "{} was ended by {}\n{}", self.name, self.status, self.tail());
        Ok(self)
    }

    /// The last lines of both streams.
    pub fn tail(&self) -> String {
        format!("--- stdout\n{}\n--- stderr\n{}", tail(&self.stdout), tail(&self.stderr))
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// A stream being read by a thread of its own, so that a talkative child never blocks.
#[derive(Debug, Default)]
struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    fn start(mut stream: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(length @ 1..) = stream.read(&mut chunk) {
                into.lock().expect("no holder panics").extend_from_slice(&chunk[..length]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    /// A model may well write a broken UTF-8 sequence: bytes are read, text is shown.
    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("no holder panics")).into_owned()
    }

    fn finish(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            // A grandchild may hold the pipe open; the group was killed, so this ends.
            let _ = reader.join();
        }
        self.so_far()
    }
}

/// A running child. Dropping it asks it to end, then kills its whole process group, and reaps it.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    started: Instant,
    stdout: Capture,
    stderr: Capture,
    /// Set once the group was killed: its id may belong to somebody else later.
    gone: bool,
}

/// Starts `command` with no input and captured output.
pub fn spawn(command: &mut Command) -> Result<Running> {
    let mut running = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    running.stdout = Capture::start(running.child.stdout.take().expect("it was piped"));
    running.stderr = Capture::start(running.child.stderr.take().expect("it was piped"));
    Ok(running)
}

/// Runs `command` to its end, however long that takes, with its output going where ours goes.
pub fn attend(command: &mut Command) -> Result<ExitStatus> {
    let mut running = start(command)?;
    loop {
        if let Some(status) = running.try_wait()? {
            return Ok(status);
        }
        interrupt::check()?;
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn start(command: &mut Command) -> Result<Running> {
    interrupt::check()?;
    let program = command.get_program().to_string_lossy().into_owned();
    let name = program.rsplit('/').next().unwrap_or(&program).to_owned();
    sys::die_with_parent(command);
    let child = command.process_group(0).stdin(Stdio::null()).spawn();
    let child = child.with_context(|| format!("starting {program}"))?;
    let (stdout, stderr) = Default::default();
    Ok(Running { name, child, started: Instant::now(), stdout, stderr, gone: false })
}

/// Runs `command` to its end.
pub fn run(command: &mut Command, timeout: Duration) -> Result<Finished> {
    spawn(command)?.wait(timeout)
}

impl Running {
    /// The child's process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid_t"))
    }

    /// Sends `signal` to the child alone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        ensure!(!self.gone, "{signal} to {}, which has ended", self.name);
        nix::sys::signal::kill(self.pid(), signal).with_context(|| format!("{signal} to {}", self.name))
    }

    /// Standard output up to now; the last line may be cut.
    pub fn stdout(&self) -> String {
        self.stdout.so_far()
    }

    /// Standard error up to now; the last line may be cut.
    pub fn stderr(&self) -> String {
        self.stderr.so_far()
    }

    /// The exit status, if the child has ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("waiting for {}", self.name))
    }

    /// Waits until `ready` holds for the child; fails if it ends first or `timeout` passes.
    pub fn wait_until(
        &mut self,
        what: &str,
        timeout: Duration,
        mut ready: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let ended = self.try_wait()?;
            if ready(self) {
                return Ok(());
            }
            if let Some(status) = ended {
                let said = self.last_words();
                bail!("{} ended with {status} before {what}\n{said}", self.name);
            }
            if Instant::now() > deadline {
                bail!("{}: not {what} within {timeout:?}\n{}", self.name, tail(&self.stderr()));
            }
            interrupt::check()?;
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits for the end; a child that runs longer is killed and reported.
    pub fn wait(mut self, timeout: Duration) -> Result<Finished> {
        let deadline = Instant::now() + timeout;
        let status = loop {
            if let Some(status) = self.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                self.kill();
                let said = self.last_words();
                bail!("{} did not end within {timeout:?}\n{said}", self.name);
            }
            interrupt::check()?;
            std::thread::sleep(POLL_INTERVAL);
        };
        let elapsed = self.started.elapsed();
        self.kill();
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        Ok(Finished { name: self.name.clone(), status, stdout, stderr, elapsed })
    }

    /// Waits for the end as [`Self::wait`] does, and lets `look` see the child every now and then.
    pub fn watch(mut self, timeout: Duration, mut look: impl FnMut(&Self)) -> Result<Finished> {
        let deadline = Instant::now() + timeout;
        let mut next_look = Instant::now();
        while self.try_wait()?.is_none() && Instant::now() < deadline {
            if Instant::now() >= next_look {
                look(&self);
                next_look = Instant::now() + WATCH_INTERVAL;
            }
            interrupt::check()?;
            std::thread::sleep(POLL_INTERVAL);
        }
        self.wait(deadline.saturating_duration_since(Instant::now()))
    }

    /// Asks with SIGTERM, waits up to `patience`, and only then kills. Returns whether asking was enough.
    pub fn stop(&mut self, patience: Duration) -> bool {
        if self.gone {
            return true;
        }
        let deadline = Instant::now() + patience;
        if self.signal(Signal::SIGTERM).is_ok() {
            while Instant::now() < deadline {
                if matches!(self.child.try_wait(), Ok(Some(_))) {
                    self.kill();
                    return true;
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        self.kill();
        false
    }

    fn last_words(&mut self) -> String {
        self.kill();
        format!("--- stdout\n{}\n--- stderr\n{}", tail(&self.stdout.finish()), tail(&self.stderr.finish()))
    }

    fn kill(&mut self) {
        if std::mem::replace(&mut self.gone, true) {
            return;
        }
        // The group may have ended already; there is nothing to tell anyone then.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop(DROP_PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_child_that_hangs_is_killed_with_its_children_and_quoted() {
        let started = Instant::now();
        let error = run(&mut shell("echo last words; sleep 60 & sleep 60"), Duration::from_millis(200));
        let message = format!("{:#}", error.expect_err("it hangs"));
        assert!(message.contains("did not end") && message.contains("last words"), "{message}");
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn failure_tells_an_exit_from_a_signal() {
        let timeout = Duration::from_secs(10);
        assert!(run(&mut shell("exit 3"), timeout).unwrap().failure().is_ok());
        assert!(run(&mut shell("kill -9 $$"), timeout).unwrap().failure().is_err());
        assert!(run(&mut shell("true"), timeout).unwrap().failure().is_err());
    }

    #[test]
    fn a_dropped_child_may_put_its_affairs_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let script =
            format!("trap 'touch {}; exit' TERM; echo ready; while :; do sleep 0.05; done", mark.display());
        let mut child = spawn(&mut shell(&script)).unwrap();
        child.wait_until("ready", Duration::from_secs(10), |child| child.stdout().contains("ready")).unwrap();
        drop(child);
        assert!(mark.exists());
    }

    #[test]
    fn waiting_sees_output_as_it_comes() {
        let mut child = spawn(&mut shell("echo one; echo two; sleep 60")).unwrap();
        child.wait_until("two lines", Duration::from_secs(10), |c| c.stdout().lines().count() == 2).unwrap();
        assert!(child.try_wait().unwrap().is_none());
    }

    #[test]
    fn a_watched_child_is_seen_before_its_end_and_not_for_longer_than_allowed() {
        let timeout = Duration::from_secs(10);
        let mut seen = String::new();
        let child = spawn(&mut shell("echo one; sleep 1; echo two")).unwrap();
        let finished = child.watch(timeout, |child| seen = child.stdout()).unwrap();
        assert_eq!((seen.as_str(), finished.stdout.as_str()), ("one\n", "one\ntwo\n"));
        let hanging = spawn(&mut shell("sleep 60")).unwrap();
        assert!(hanging.watch(Duration::from_millis(50), |_| {}).is_err());
    }
}
