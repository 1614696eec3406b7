//! What each of these tests begins with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ferry_tests::artifacts::{LlamaBuild, Store};
use ferry_tests::llama::{Device, RUN_TIMEOUT};
use ferry_tests::{process, programs};
use tempfile::TempDir;

/// A build of llama.cpp, the model, and `decode` compiled against the build.
pub struct Testbed {
    pub llama: LlamaBuild,
    pub model: PathBuf,
    dir: TempDir,
}

impl Testbed {
    /// With b10605, whose programs are there too.
    pub fn new() -> Self {
        let store = Store::open().expect("opening the artifact store");
        Self::with(store.llama().expect("building llama.cpp"), &store)
    }

    /// With the libraries of ggml 0.26.
    pub fn next() -> Self {
        let store = Store::open().expect("opening the artifact store");
        Self::with(store.llama_next().expect("building the newer llama.cpp"), &store)
    }

    fn with(llama: LlamaBuild, store: &Store) -> Self {
        let dir = tempfile::tempdir().expect("making a folder");
        programs::compile("decode", &llama, dir.path()).expect("compiling decode.c");
        Self { llama, model: store.model().expect("fetching the model"), dir }
    }

    /// A folder of this test's own.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// `decode` for so many tokens on the device.
    pub fn decode(&self, device: &Device, tokens: u32) -> Command {
        let mut command = Command::new(self.dir.path().join("decode"));
        device.environment(&mut command).expect("building the plug-in");
        command.arg(&self.llama.bin).arg(&self.model).arg(device.name().expect("decode needs a name"));
        command.arg(tokens.to_string());
        command
    }

    /// What `decode` prints for so many tokens, natively: tokens, and hashes of their logits.
    pub fn native(&self, tokens: u32) -> String {
        run(&mut self.decode(&Device::Cpu, tokens)).stdout
    }
}

/// Runs to a successful end.
pub fn run(command: &mut Command) -> process::Finished {
    process::run(command, RUN_TIMEOUT).and_then(process::Finished::success).expect("a successful run")
}

/// How many tokens `decode` has begun to print.
pub fn tokens_so_far(running: &process::Running) -> usize {
    running.stdout().lines().filter(|line| line.starts_with("token ")).count()
}

/// Waits until `holds`, and says how long it took; panics after `timeout`.
pub fn eventually(what: &str, timeout: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < timeout, "{what}: not within {timeout:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    started.elapsed()
}
