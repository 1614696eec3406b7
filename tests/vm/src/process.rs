//! Child processes that cannot outlive the test that started them.

use std::io;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sys::die_with_spawner;

/// How often a child is looked at.
const POLL: Duration = Duration::from_millis(10);

/// A child process, killed when this is dropped and also when the whole test process dies.
///
/// The kernel's parent-death signal belongs to the thread that spawned the child, so each child has a thread
/// of its own that stays until the child ended.
#[derive(Debug)]
pub struct Guarded {
    pid: Pid,
    end: Arc<End>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct End {
    status: Mutex<Option<ExitStatus>>,
    changed: Condvar,
}

impl End {
    fn lock(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guarded {
    /// Starts `command`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(command: Command) -> io::Result<Self> {
        let end = Arc::new(End::default());
        let (started, result) = mpsc::channel();
        let watched = Arc::clone(&end);
        let watcher = thread::spawn(move || watch(command, &started, &watched));
        let pid = result.recv().map_err(|_| io::Error::other("the thread of a child died"))??;
        Ok(Self { pid, end, watcher: Some(watcher) })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// How it ended, if it did.
    pub fn status(&self) -> Option<ExitStatus> {
        *self.end.lock()
    }

    /// Waits for its end, at most so long.
    pub fn wait(&self, timeout: Duration) -> Option<ExitStatus> {
        let wait = self.end.changed.wait_timeout_while(self.end.lock(), timeout, |status| status.is_none());
        *wait.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Sends it a signal, unless it ended.
    pub fn signal(&self, signal: Signal) {
        // While the lock is held the child is not reaped, so its number is nobody else's.
        let status = self.end.lock();
        if status.is_none() {
            let _ = kill(self.pid, signal);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

fn watch(mut command: Command, started: &Sender<io::Result<Pid>>, end: &End) {
    die_with_spawner(&mut command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return drop(started.send(Err(error))),
    };
    let _ = started.send(Ok(Pid::from_raw(child.id().cast_signed())));
    loop {
        {
            let mut status = end.lock();
            if let Ok(Some(ended)) = child.try_wait() {
                *status = Some(ended);
                end.changed.notify_all();
                return;
            }
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::time::Instant;

    fn sleeper() -> Guarded {
        let mut command = Command::new("sleep");
        command.arg("100");
        Guarded::spawn(command).unwrap()
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let child = sleeper();
        let proc = format!("/proc/{}", child.pid());
        assert!(Path::new(&proc).exists());
        drop(child);
        assert!(!Path::new(&proc).exists());
    }

    #[test]
    fn the_end_is_seen() {
        let child = sleeper();
        assert_eq!(child.wait(Duration::from_millis(50)), None);
        child.signal(Signal::SIGTERM);
        let status = child.wait(Duration::from_secs(10)).expect("SIGTERM ends sleep");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
        assert_eq!(child.status(), Some(status));
    }

    /// Not a test of its own: the process that the next one kills.
    #[test]
    #[ignore = "run by a_killed_test_takes_its_children_along"]
    fn parent_that_waits_to_be_killed() {
        let child = sleeper();
        println!("child {}", child.pid());
        child.wait(Duration::from_secs(60));
    }

    #[test]
    fn a_killed_test_takes_its_children_along() {
        let mut parent = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "process::tests::parent_that_waits_to_be_killed"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines().map_while(Result::ok);
        let pid =
            lines.find_map(|line| Some(line.split_once("child ")?.1.to_owned())).expect("it says its child");
        parent.kill().unwrap();
        parent.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        // Nobody may reap it here, so a zombie is dead enough.
        while fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < deadline, "the child {pid} outlived its parent");
            thread::sleep(POLL);
        }
    }

    #[test]
    fn what_does_not_exist_does_not_start() {
        let error = Guarded::spawn(Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
