//! A model split over the devices of several machines, all of one daemon.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::artifacts::LlamaBuild;
use crate::daemon::Daemon;
use crate::llama::{Completion, Device, RUN_TIMEOUT, RpcServer, VULKAN_DEVICES};

/// Which of the daemon's devices a model is split over.
pub const SPLITS: [&str; 3] = ["Ferry1,Ferry2", "Ferry0,Ferry1", "Ferry0,Ferry1,Ferry2"];
const TOKENS: u32 = 24;

/// A daemon whose devices are the first of the host's own and those of ggml-rpc servers.
#[derive(Debug)]
pub struct Machines {
    daemon: Daemon,
    _servers: Vec<RpcServer>,
}

impl Machines {
    /// Starts it on the device `name` of `backend`, and so many servers on the same.
    pub fn start(llama: &LlamaBuild, backend: &str, name: &str, servers: usize) -> Result<Self> {
        let servers: Vec<RpcServer> =
            (0..servers).map(|_| RpcServer::start_on(llama, name)).collect::<Result<_>>()?;
        let addresses: Vec<String> =
            servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        let daemon = Daemon::adapted(&llama.bin, backend, |mut command| {
            if backend == "vulkan" {
                command.env(VULKAN_DEVICES.0, VULKAN_DEVICES.1);
            }
            command.args(["--backend", &format!("rpc={}", addresses.join(","))]);
            Ok(command)
        })?;
        Ok(Self { daemon, _servers: servers })
    }

    /// The daemon.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// The model split over `devices` answers as on the `native` one, and each of them has computed.
    pub fn answer_split(
        &self,
        llama: &LlamaBuild,
        model: &Path,
        native: &Device,
        devices: &str,
    ) -> Result<()> {
        let prompt = "The three largest rivers of Europe are";
        let completion = Completion { model, prompt, tokens: TOKENS, verbose: false };
        let native = completion.run(llama, native)?.stdout;
        let mut command = completion.command(llama, &Device::Ferry(self.daemon.socket()))?;
        command.args(["--device", devices, "--split-mode", "layer"]);
        let (split, session) = self.daemon.serve(&mut command, RUN_TIMEOUT)?;
        ensure!(split.stdout == native, "the answer is {:?}, natively {native:?}", split.stdout);
        // One graph a device and token: each of them has computed.
        let expected = devices.split(',').count() as u64 * u64::from(TOKENS);
        ensure!(session.graphs == expected, "not all was theirs: {session:?}");
        Ok(())
    }
}
