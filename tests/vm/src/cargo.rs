//! Programs of this workspace, built when they are needed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The release build of a package's program, brought up to date.
///
/// # Errors
/// What the compiler says.
pub fn binary(package: &str, name: &str) -> Result<PathBuf> {
    build(package, ["--bin", name])?;
    Ok(target_dir().join("release").join(name))
}

/// The release build of a package's example, brought up to date.
///
/// # Errors
/// What the compiler says.
pub fn example(package: &str, name: &str) -> Result<PathBuf> {
    build(package, ["--example", name])?;
    Ok(target_dir().join("release/examples").join(name))
}

fn build(package: &str, target: [&str; 2]) -> Result<()> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--package", package]).args(target);
    let output = command.current_dir(workspace_root()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cannot build {} of {package}:\n{}", target[1], String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// The folder that cargo builds this workspace into.
pub fn target_dir() -> PathBuf {
    // A relative one is relative to where cargo is run, which `build` does in the workspace's root.
    let dir = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    workspace_root().join(dir)
}

/// The checkout that this crate was built from.
pub(crate) fn workspace_root() -> &'static Path {
    // `tests/vm` lies two folders deep.
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"))
}
