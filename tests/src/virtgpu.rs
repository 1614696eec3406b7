//! ggml-virtgpu as a peer to compare with: its back-end in the program, its host library in another process, and nothing
//! between them that takes time. Used for what it is made for there is a virtual machine, a kernel and a renderer more.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::artifacts::{LlamaBuild, VirtgpuBuild};
use crate::llama::{Device, RUN_TIMEOUT, THREADS};
use crate::process::{self, Running};

/// How the host begins a line with the number of a session's commands.
const SESSION_ENDED: &str = "virtgpu-host: a session's commands: ";
/// From a program's end to that line.
const SESSION_END_TIMEOUT: Duration = Duration::from_secs(10);

/// A running host.
#[derive(Debug)]
pub struct VirtgpuHost {
    running: Running,
    plugin: PathBuf,
    device: String,
    dir: TempDir,
}

impl VirtgpuHost {
    /// Starts one that computes on the back-end `backend` of `llama`, whose first device is called `device`.
    pub fn start(build: &VirtgpuBuild, llama: &LlamaBuild, backend: &str, device: &str) -> Result<Self> {
        let library = llama.bin.join(format!("libggml-{}.so", backend.to_ascii_lowercase()));
        ensure!(library.exists(), "there is no {}", library.display());
        let dir =
            tempfile::Builder::new().prefix("virtgpu-").tempdir().context("making the host's folder")?;
        let mut command = Command::new(&build.host);
        command.arg(socket(&dir)).arg(&build.host_library).arg(library).arg(THREADS);
        let mut running = process::spawn(Device::Cpu.environment(&mut command)?)?;
        running.wait_until("listening", RUN_TIMEOUT, |host| host.stdout().contains("listening"))?;
        // ggml-virtgpu puts this before its devices' names.
        let device = format!("[virtgpu] {device}");
        Ok(Self { running, plugin: build.plugin.clone(), device, dir })
    }

    /// The device that programs then use.
    pub fn device(&self) -> Device {
        Device::Virtgpu { plugin: self.plugin.clone(), host: socket(&self.dir), name: self.device.clone() }
    }

    /// How many commands the last session that has ended had.
    pub fn commands_of_last_session(&mut self) -> Result<u64> {
        let counted = |host: &Running| {
            let said = host.stderr();
            let count = said.lines().filter_map(|line| line.strip_prefix(SESSION_ENDED)).next_back()?;
            count.parse().ok()
        };
        let ended = |host: &Running| counted(host).is_some();
        self.running.wait_until("counting a session's commands", SESSION_END_TIMEOUT, ended)?;
        counted(&self.running).context("no session has ended")
    }
}

fn socket(dir: &TempDir) -> PathBuf {
    dir.path().join("host.sock")
}
