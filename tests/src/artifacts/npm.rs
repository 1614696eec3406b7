//! Prebuilt llama.cpp from npm, with the program that it is made for: node-llama-cpp.
//!
//! Node loads the native part with RTLD_LOCAL, as Python would: ggml's symbols are visible to nobody. The libraries are
//! pinned by their hash; node-llama-cpp itself only by its version, and what else it is made of is npm's to choose.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Pin, replace_dir, system};
use crate::process;
use crate::progress::Step;

/// Some two hundred small packages.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// What the packages of libraries begin with; a GPU back-end's name follows where there is one in it.
const PLATFORM: &str = "linux-x64";
/// The variants of the CPU back-end to keep. Those for newer CPUs give weights a layout of their own where they may (for
/// AMX, say), which a buffer behind a channel cannot have: another computation, whose rounding differs.
const VARIANTS: [&str; 3] = ["x64", "sse42", "haswell"];

/// A release of llama.cpp from npm.
#[derive(Debug, Clone)]
pub struct NodeBuild {
    /// llama.cpp's name of the release.
    pub release: String,
    /// The folder with llama.cpp's and ggml's libraries.
    pub bin: PathBuf,
    /// The folder in which `import "node-llama-cpp"` finds the JavaScript that fits them.
    pub client: PathBuf,
    /// The GPU back-end among the libraries, as node-llama-cpp names it.
    pub gpu: Option<String>,
}

/// The release whose package was unpacked to `package`, with its client installed.
pub fn ensure(store: &Path, package: &Path, pin: &Pin) -> Result<NodeBuild> {
    system::require(&[system::NODE, system::NPM])?;
    let (_, libraries) = pin.package.split_once('/').context("a package without a scope")?;
    let gpu = libraries.strip_prefix(PLATFORM).and_then(|rest| rest.strip_prefix('-'));
    let suffix = gpu.map_or_else(String::new, |gpu| format!("-{gpu}"));
    let client = store.join("node").join(format!("{}-{}{suffix}", pin.version, pin.package_version));
    if !client.exists() {
        let step = Step::begin(format!("installing node-llama-cpp {} with npm", pin.package_version));
        replace_dir(&client, |into| install(into, package, pin))?;
        step.done();
    }
    let bin = client.join("node_modules").join(&pin.package).join("bins").join(libraries);
    Ok(NodeBuild { release: pin.version.clone(), bin, client, gpu: gpu.map(Into::into) })
}

fn install(into: &Path, package: &Path, pin: &Pin) -> Result<()> {
    fs::write(into.join("package.json"), "{\"name\": \"client\", \"private\": true}\n")?;
    let mut npm = Command::new("npm");
    // No scripts: one of them would look for prebuilt libraries, and build llama.cpp if it found none.
    npm.args(["install", "--silent", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"]);
    npm.arg(format!("node-llama-cpp@{}", pin.package_version)).current_dir(into);
    process::run(&mut npm, INSTALL_TIMEOUT)?.success().context("installing node-llama-cpp")?;
    copy_package(package, &into.join("node_modules").join(&pin.package))
        .with_context(|| format!("copying {}", package.display()))
}

fn copy_package(from: &Path, into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let variant = name.to_str().and_then(|name| name.strip_prefix("libggml-cpu-")?.strip_suffix(".so"));
        if variant.is_some_and(|variant| !VARIANTS.contains(&variant)) {
            continue;
        }
        let to = into.join(&name);
        if entry.file_type()?.is_dir() {
            copy_package(&entry.path(), &to)?;
        } else if entry.file_type()?.is_symlink() {
            symlink(fs::read_link(entry.path())?, to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
