//! This checkout: where it is, and our own binaries built from it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process;
use crate::progress::Step;

/// A cold release build on one busy core stays well below this.
const BUILD_TIMEOUT: Duration = Duration::from_secs(1200);

/// The folder that holds the workspace's Cargo.toml.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace")
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The cargo that started us, else the one on the path.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// What a user would install: release builds of the plug-in and the daemon.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// The plug-in that ggml loads.
    pub plugin: PathBuf,
    /// The daemon.
    pub ferryd: PathBuf,
}

static BUILT: OnceLock<Binaries> = OnceLock::new();

/// Has this process use `binaries` that somebody else built. To be called before anything asks for them.
pub fn use_binaries(binaries: Binaries) {
    BUILT.set(binaries).expect("nobody has asked for binaries yet");
}

/// Builds plug-in and daemon once per process; cargo makes a repetition cheap.
pub fn binaries() -> Result<&'static Binaries> {
    if let Some(built) = BUILT.get() {
        return Ok(built);
    }
    let step = Step::begin("building the plug-in and the daemon");
    let mut build = cargo();
    build.args(["build", "--release", "--package", "ferry-guest", "--package", "ferry-host"]);
    process::run(&mut build, BUILD_TIMEOUT)?.success().context("building the plug-in and the daemon")?;
    step.done();
    let release = target().join("release");
    let plugin = release.join(format!("libggml_virtgpu{}", std::env::consts::DLL_SUFFIX));
    Ok(BUILT.get_or_init(|| Binaries { plugin, ferryd: release.join("ferryd") }))
}

/// The `ferry` program; cargo makes a repetition cheap.
pub fn ferry() -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--release", "--package", "ferry-cli"]);
    process::run(&mut build, BUILD_TIMEOUT)?.success().context("building ferry")?;
    Ok(target().join("release").join("ferry"))
}
