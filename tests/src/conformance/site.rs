//! What the suites of a run have in common: a build of llama.cpp, a back-end on the host, models.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::Options;
use super::row::{Row, Tally};
use crate::artifacts::{LlamaBuild, Store};
use crate::checkout;
use crate::daemon::Daemon;
use crate::llama::{Device, RUN_TIMEOUT, VULKAN_DEVICES};
use crate::machines::Machines;
use crate::process::{self, Finished};

/// Where the suites run.
pub struct Site {
    /// The build on both sides, and its programs.
    pub llama: LlamaBuild,
    /// Its name, with its ggml's version.
    pub build: String,
    /// The back-end that the daemon loads.
    pub backend: String,
    /// Its first device, as it describes itself.
    device: String,
    /// The same back-end in the programs themselves.
    pub native: Device,
    /// Models with a vocabulary; the first is what most suites use.
    pub models: Vec<PathBuf>,
    /// The operations to test instead of all of them, as test-backend-ops takes them.
    pub operations: Option<String>,
    /// Threads of `test-backend-ops test`.
    pub jobs: u32,
    command: String,
    commit: String,
    dir: TempDir,
}

impl Site {
    /// What the options ask for, made if need be.
    pub fn open(options: &Options) -> Result<Self> {
        let (llama, release, models) = match &options.llama {
            Some(dir) => {
                let bin = found(dir)?;
                let release = bin.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let models = options.models.iter().map(|file| found(file)).collect::<Result<Vec<_>>>()?;
                // Only its programs are run, and linked with.
                (LlamaBuild { source: bin.clone(), bin }, release, models)
            }
            None => {
                let store = Store::open()?;
                let models = match options.models.as_slice() {
                    [] => vec![store.model()?, store.gemma()?],
                    files => files.iter().map(|file| found(file)).collect::<Result<_>>()?,
                };
                let llama = match options.backend.as_str() {
                    "vulkan" => store.llama_vulkan()?,
                    _ => store.llama_suites()?,
                };
                (llama, store.release().to_owned(), models)
            }
        };
        let release = options.build.clone().unwrap_or(release);
        Ok(Self {
            build: named(&release, &llama.bin)?,
            device: described(&options.backend, &llama.bin)?,
            native: llama.own_device(&options.backend)?,
            llama,
            backend: options.backend.clone(),
            models,
            operations: options.operations.clone(),
            jobs: options.jobs,
            command: options.command(),
            commit: options.commit.clone().map_or_else(commit, Ok)?,
            dir: tempfile::tempdir().context("making a folder")?,
        })
    }

    /// A folder for what the suites make.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The first model.
    pub fn model(&self) -> Result<&Path> {
        self.models.first().map(PathBuf::as_path).context("no model was named: --models FILE")
    }

    /// Whether the first model is the one that the adapter is for.
    pub fn has_smollm2(&self) -> bool {
        let name = self.models.first().and_then(|model| model.file_name()).unwrap_or_default();
        name.to_string_lossy().starts_with("SmolLM2-135M")
    }

    /// A daemon with the back-end.
    pub fn daemon(&self) -> Result<Daemon> {
        match self.backend.as_str() {
            "vulkan" => Daemon::start_vulkan(&self.llama.bin, 1),
            backend => Daemon::start_with(&self.llama.bin, backend, 0),
        }
    }

    /// A daemon with the back-end's device and that of so many other machines, which have the same one.
    pub fn machines(&self, others: usize) -> Result<Machines> {
        Machines::start(&self.llama, &self.backend, self.native_name(), others)
    }

    /// The name of the device that is used natively.
    pub fn native_name(&self) -> &str {
        match &self.native {
            Device::Own(name) => name,
            _ => "CPU",
        }
    }

    /// What `tally` says of `suite`, with this site's build on both sides.
    pub fn row(&self, suite: &str, tally: Tally) -> Row {
        self.row_between(suite, (&self.build, &self.build), tally)
    }

    /// The same with other builds in the guest and on the host.
    pub fn row_between(&self, suite: &str, (client, host): (&str, &str), tally: Tally) -> Row {
        let failed = tally.failures.len() as u64;
        Row {
            suite: suite.into(),
            client: client.into(),
            host: host.into(),
            backend: self.backend.clone(),
            device: self.device.clone(),
            run: tally.passed + failed,
            passed: tally.passed,
            failed,
            supported_ferry: None,
            supported_native: None,
            failed_natively: 0,
            failures: tally.failures,
            command: self.command.clone(),
            commit: self.commit.clone(),
        }
    }
}

/// Has a program see no GPU but Ferry's, as in a guest.
pub fn without_own_gpus(command: &mut Command) {
    command.env("CUDA_VISIBLE_DEVICES", "").env(VULKAN_DEVICES.0, "");
}

/// What the daemon would show of this back-end.
fn devices(backend: &str, ggml_dir: &Path) -> Result<Finished> {
    let mut devices = Command::new(&checkout::binaries()?.ferryd);
    devices.args(["devices", "--backend", backend, "--ggml-dir"]).arg(ggml_dir);
    devices.env("FERRY_LOG", "debug").env(VULKAN_DEVICES.0, VULKAN_DEVICES.1);
    process::run(&mut devices, RUN_TIMEOUT)?.success()
}

/// How the back-end's first device describes itself.
fn described(backend: &str, ggml_dir: &Path) -> Result<String> {
    let listed = devices(backend, ggml_dir)?.stdout;
    Ok(description(&listed).with_context(|| format!("ferryd lists no device:\n{listed}"))?.to_owned())
}

/// The description of the first device listed: `NAME: DESCRIPTION (MEMORY)`.
fn description(listed: &str) -> Option<&str> {
    let (_, described) = listed.lines().next()?.split_once(": ")?;
    Some(described.rsplit_once(" (")?.0)
}

/// `release` with the version of the ggml in `dir`, where there is one.
pub fn named(release: &str, dir: &Path) -> Result<String> {
    let log = devices("cpu", dir)?.stderr;
    Ok(match version(&log) {
        Some(version) => format!("{release} (ggml {version})"),
        None => release.to_owned(),
    })
}

/// The version of ggml in ferryd's log. ggml has had one since September 2025.
fn version(log: &str) -> Option<&str> {
    let line = log.lines().find(|line| line.contains("loaded ggml"))?;
    Some(line.split_once(" version=\"")?.1.split_once('"')?.0)
}

/// The path of something that has to be there.
pub fn found(path: &Path) -> Result<PathBuf> {
    path.canonicalize().with_context(|| format!("looking for {}", path.display()))
}

/// The commit that is checked out, and whether that is all.
fn commit() -> Result<String> {
    let git = |words: &[&str]| -> Result<String> {
        let mut git = Command::new("git");
        let said =
            process::run(git.args(words).current_dir(checkout::root()), RUN_TIMEOUT)?.success()?.stdout;
        Ok(said.trim().to_owned())
    };
    let head = git(&["rev-parse", "--short=10", "HEAD"]).context("name the commit: --commit TEXT")?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Ok(if changed { format!("{head} and changes") } else { head })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_read_from_the_list_of_devices() {
        let listed =
            "Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits) (24105 MiB, 24105 MiB free)\nVulkan1: b (1 MiB)\n";
        assert_eq!(description(listed), Some("llvmpipe (LLVM 15.0.6, 256 bits)"));
        assert_eq!(description(""), None);
    }

    #[test]
    fn the_version_is_read_from_the_daemons_log() {
        let line =
            "T DEBUG ferry_host: loaded ggml dir=/x devices=1 known=2 of=3 version=\"0.21.0\" release=A";
        assert_eq!(version(&format!("a\n{line}\nb")), Some("0.21.0"));
        assert_eq!(version("DEBUG loaded ggml dir=/x devices=1 release=A"), None);
    }
}
