//! What a user of llama.cpp may choose, and whether it gives through Ferry what it gives natively.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::artifacts::LlamaBuild;
use crate::daemon::Daemon;
use crate::llama::{Completion, Device, RUN_TIMEOUT};
use crate::process;

/// Arguments of llama.cpp's programs.
pub const CHOICES: &[&[&str]] = &[
    &["--flash-attn", "on"],
    &["--flash-attn", "off"],
    &["--flash-attn", "on", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0"],
    &["--mmap"],
    &["--no-mmap"],
    &["--n-gpu-layers", "10"],
    &["--split-mode", "none"],
    &["--no-kv-offload"],
    &["--ubatch-size", "4"],
];
/// Of each answer.
const TOKENS: u32 = 16;

/// The build, the model and the device that answers are compared with.
#[derive(Debug, Clone, Copy)]
pub struct Comparison<'a> {
    /// The programs.
    pub llama: &'a LlamaBuild,
    /// The model.
    pub model: &'a Path,
    /// What the daemon has, used natively.
    pub native: &'a Device,
    /// What the programs reach through Ferry.
    pub daemon: &'a Daemon,
}

impl Comparison<'_> {
    /// The greedy answer with a choice, on either side; the daemon's has to be the native one, computed by its worker.
    pub fn answer(&self, choice: &[&str]) -> Result<String> {
        let prompt = "The three largest rivers of Europe are";
        let completion = Completion { model: self.model, prompt, tokens: TOKENS, verbose: false };
        // Where there is no GPU natively, layers stay where they are, whatever is chosen.
        let native = process::run(completion.command(self.llama, self.native)?.args(choice), RUN_TIMEOUT)?;
        let native = native.success()?.stdout;
        ensure!(native.len() > prompt.len(), "there is no answer natively: {native:?}");
        let mut command = completion.command(self.llama, &Device::Ferry(self.daemon.socket()))?;
        let (ferry, session) = self.daemon.serve(command.args(choice), RUN_TIMEOUT)?;
        ensure!(ferry.stdout == native, "the answer is {:?}, natively {native:?}", ferry.stdout);
        ensure!(session.graphs >= u64::from(TOKENS), "not all of it was the worker's: {session:?}");
        Ok(native)
    }
}
