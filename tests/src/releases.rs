//! Releases of llama.cpp as guests and as hosts of one another.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::artifacts::{LlamaBuild, NodeBuild, Store};
use crate::daemon::Daemon;
use crate::llama::{Device, FERRY_DEVICE, RUN_TIMEOUT};
use crate::{node, process, programs};

/// Tokens of an answer.
const TOKENS: u32 = 24;
/// Nodes of a token at least: SmolLM2 has some nine hundred.
const NODES_MIN: u64 = 500;

/// A release, as the store has it.
pub struct Release {
    /// llama.cpp's name of it.
    pub name: String,
    program: Program,
}

/// What lets a release answer.
enum Program {
    /// node-llama-cpp.
    Node(NodeBuild),
    /// `decode`, compiled against it into this folder.
    Decode(LlamaBuild, TempDir),
}

impl Release {
    /// All of them: those from npm, the oldest first, then those that are built here.
    pub fn all(store: &Store) -> Result<Vec<Self>> {
        let npm = store.node_releases().into_iter().map(|name| Self::from_npm(store, name));
        let built = [(store.release(), store.llama()?), (store.next_release(), store.llama_next()?)];
        npm.chain(built.map(|(name, build)| Self::built(name, build))).collect()
    }

    /// One from npm.
    pub fn from_npm(store: &Store, name: &str) -> Result<Self> {
        Ok(Self { name: name.into(), program: Program::Node(store.node(name)?) })
    }

    fn built(name: &str, build: LlamaBuild) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        programs::compile("decode", &build, dir.path())?;
        Ok(Self { name: name.into(), program: Program::Decode(build, dir) })
    }

    /// The folder with its libraries.
    pub fn bin(&self) -> &Path {
        match &self.program {
            Program::Node(build) => &build.bin,
            Program::Decode(build, _) => &build.bin,
        }
    }

    /// A greedy answer on a device, a line a token.
    fn answer(&self, model: &Path, device: &Device) -> Result<Command> {
        match &self.program {
            Program::Node(build) => node::complete(build, model, device, TOKENS),
            Program::Decode(build, dir) => {
                let mut command = Command::new(dir.path().join("decode"));
                device.environment(&mut command)?.arg(&build.bin).arg(model);
                command.args([device.name().expect("decode needs a name"), &TOKENS.to_string()]);
                // The threads of a host from npm spin at their barriers: see complete.mjs.
                command.env("DECODE_THREADS", "1");
                Ok(command)
            }
        }
    }

    /// What it answers on its own CPU.
    pub fn native_answer(&self, model: &Path) -> Result<String> {
        let answer = process::run(&mut self.answer(model, &Device::Cpu)?, RUN_TIMEOUT)?.success()?.stdout;
        ensure!(answer.lines().count() == TOKENS as usize, "natively it answers {answer:?}");
        Ok(answer)
    }

    /// What it answers through Ferry: all of it is the worker's, and no call failed.
    pub fn answer_through(&self, daemon: &Daemon, model: &Path) -> Result<String> {
        let mut answer = self.answer(model, &Device::Ferry(daemon.socket()))?;
        let (finished, session) = daemon.serve(&mut answer, RUN_TIMEOUT)?;
        ensure!(finished.stdout.lines().count() == TOKENS as usize, "{}", finished.tail());
        let tokens = u64::from(TOKENS);
        ensure!(session.graphs == tokens, "not a graph a token: {session:?}");
        ensure!(session.nodes > tokens * NODES_MIN, "part of it was computed elsewhere: {session:?}");
        Ok(finished.stdout)
    }
}

/// `meaning`, compiled.
#[derive(Debug)]
pub struct Meaning {
    program: PathBuf,
    _dir: TempDir,
}

impl Meaning {
    /// Compiles it.
    pub fn compile() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        Ok(Self { program: programs::compile_alone("meaning", dir.path())?, _dir: dir })
    }

    /// What it says of each of its cases, with the libraries in `guest` and whatever the daemon has.
    pub fn verdicts(&self, guest: &Path, daemon: &Daemon) -> Result<BTreeMap<String, String>> {
        let mut command = Command::new(&self.program);
        Device::Ferry(daemon.socket()).environment(&mut command)?;
        command.arg(programs::ggml_in(guest)?).arg(guest).arg(FERRY_DEVICE);
        let finished = process::run(&mut command, RUN_TIMEOUT)?.success()?;
        let words = finished.stdout.lines().filter_map(|line| line.split_once(' '));
        Ok(words.map(|(case, verdict)| (case.to_owned(), verdict.to_owned())).collect())
    }
}
