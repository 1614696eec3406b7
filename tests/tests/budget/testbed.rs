//! What each of these tests begins with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ferry_tests::artifacts::{LlamaBuild, Store};
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Device, FERRY_DEVICE};
use ferry_tests::process::{self, Running};
use ferry_tests::{programs, random_model};
use tempfile::TempDir;

/// A build of llama.cpp and a folder of the test's own.
pub struct Testbed {
    pub store: Store,
    pub llama: LlamaBuild,
    dir: TempDir,
}

impl Testbed {
    pub fn new() -> Self {
        let store = Store::open().expect("opening the artifact store");
        let llama = store.llama().expect("building llama.cpp");
        Self { store, llama, dir: tempfile::tempdir().expect("making a folder") }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The model that takes next to no time and memory.
    pub fn tiny(&self) -> PathBuf {
        self.store.random_model(&random_model::TINY).expect("making a model")
    }

    /// `tests/programs/NAME.c`, about to run with Ferry's device and these arguments behind the folder of back-ends.
    pub fn program(&self, name: &str, device: &Device, arguments: &[&str]) -> Command {
        let program = programs::compile(name, &self.llama, self.dir()).expect("compiling");
        let mut command = Command::new(program);
        device.environment(&mut command).expect("building the plug-in");
        command.arg(&self.llama.bin).args(arguments);
        command
    }
}

/// A program that says how far it is, and goes on existing after its last mark.
pub struct Marked(Running);

impl Marked {
    /// Decodes with a model and starts over whenever `context` tokens are full; says so at each of `marks`.
    pub fn endless(bed: &Testbed, daemon: &Daemon, model: &Path, context: u32, marks: &[u32]) -> Self {
        let (context, marks) = (context.to_string(), marks.iter().map(u32::to_string));
        let fixed = [model.to_str().expect("a path of text"), FERRY_DEVICE, &context];
        let mut command = bed.program("endless", &Device::Ferry(daemon.socket()), &fixed);
        Self(process::spawn(command.args(marks)).expect("starting it"))
    }

    /// Computes `steps` graphs, each of another size than the hundred before it; says so at each tenth.
    pub fn ever_new(bed: &Testbed, daemon: &Daemon, nodes: u32, steps: u32) -> Self {
        let (nodes, steps) = (nodes.to_string(), steps.to_string());
        let device = Device::Ferry(daemon.socket());
        let mut command = bed.program("steps", &device, &[FERRY_DEVICE, &nodes, &steps, "new"]);
        Self(process::spawn(&mut command).expect("starting it"))
    }

    /// Waits until so many steps are done.
    pub fn reach(&mut self, mark: u32, timeout: Duration) {
        let line = format!("mark {mark}\n");
        self.0.wait_until(&line, timeout, |running| running.stdout().contains(&line)).expect("computing");
    }

    pub fn pid(&self) -> i32 {
        self.0.pid().as_raw()
    }

    /// Ends it, as Ctrl-C would. Returns which process it was.
    pub fn end(mut self) -> i32 {
        assert!(self.0.stop(Duration::from_secs(5)), "it does not end");
        self.pid()
    }
}
