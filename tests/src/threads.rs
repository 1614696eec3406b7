//! `test-thread-safety`, llama.cpp's own: a model on each device, one on the CPU, one spread over all, four contexts on
//! each, a thread for each context.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::artifacts::LlamaBuild;
use crate::daemon::Daemon;
use crate::llama::{Device, RUN_TIMEOUT, THREADS};

/// Contexts on each model.
const PARALLEL: usize = 4;
/// Tokens of each answer.
const TOKENS: u64 = 24;
/// Letters of the answers that are compared.
const COMPARED: usize = 60;

/// `test-thread-safety` through Ferry.
pub fn command(llama: &LlamaBuild, model: &Path, daemon: &Daemon) -> Result<Command> {
    let mut command = Command::new(llama.bin.join("test-thread-safety"));
    Device::Ferry(daemon.socket()).environment(&mut command)?;
    command.arg("--model").arg(model).args(["-ngl", "99", "--threads", THREADS, "--ctx-size", "1024"]);
    command.args(["--parallel", &PARALLEL.to_string(), "--predict", &TOKENS.to_string(), "--temp", "0"]);
    command.args(["--prompt", "The meaning of life is"]);
    Ok(command)
}

/// Runs `command` on a back-end that computes as the CPU does if it is `alike`: then all answers are the same. Returns the
/// number of contexts that answered.
pub fn run(mut command: Command, daemon: &Daemon, alike: bool) -> Result<usize> {
    let (finished, session) = daemon.serve(&mut command, RUN_TIMEOUT)?;
    let output = finished.stdout.clone() + &finished.stderr;
    ensure!(output.contains("All threads finished without errors."), "{}", finished.tail());
    let answers: Vec<&str> =
        output.split(", Context ").skip(1).filter_map(|part| part.split_once(": ")).map(|a| a.1).collect();
    let said: BTreeSet<&str> = answers.iter().filter_map(|answer| answer.get(..COMPARED)).collect();
    ensure!(answers.len() >= 3 * PARALLEL, "{} answered\n{}", answers.len(), finished.tail());
    ensure!(said.len() == 1 || !alike, "not all say the same: {said:#?}\n{}", finished.tail());
    ensure!(session.graphs >= PARALLEL as u64 * TOKENS, "not all of it was the worker's: {session:?}");
    Ok(answers.len())
}
