//! Where QEMU comes from.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::Artifacts;
use crate::debian::Debian;

/// Environment variable that names a QEMU to use whatever its version.
const QEMU_ENV: &str = "FERRY_QEMU";

/// The oldest major version used unasked: the first on which everything here was seen to work.
const VERSION_MIN: u32 = 10;

const PROGRAM: &str = "qemu-system-x86_64";

/// A QEMU that can be run.
#[derive(Debug, Clone)]
pub struct Qemu {
    program: PathBuf,
    /// Where it was unpacked, if it is not installed.
    root: Option<PathBuf>,
}

impl Qemu {
    /// `FERRY_QEMU`, or the machine's own if it is new enough, or one unpacked from Debian's backports.
    ///
    /// # Errors
    /// If none of them runs.
    pub fn find(artifacts: &Artifacts) -> Result<Self> {
        if let Some(program) = env::var_os(QEMU_ENV) {
            let qemu = Self { program: PathBuf::from(program), root: None };
            qemu.version().with_context(|| format!("{QEMU_ENV} names no QEMU"))?;
            return Ok(qemu);
        }
        let installed = Self { program: PathBuf::from(PROGRAM), root: None };
        match installed.version() {
            Ok(version) if version >= VERSION_MIN => Ok(installed),
            _ => Self::unpacked(artifacts),
        }
    }

    /// The QEMU of Debian's backports, unpacked below the artifacts folder.
    ///
    /// # Errors
    /// If it cannot be fetched or does not run.
    pub fn unpacked(artifacts: &Artifacts) -> Result<Self> {
        let root = artifacts.entry("qemu", |into| {
            let debian = Debian::open(artifacts)?;
            debian.unpack(&debian.closure("qemu-system-x86")?, into)
        })?;
        let qemu = Self { program: root.join("usr/bin").join(PROGRAM), root: Some(root) };
        let version = qemu.version()?;
        if version < VERSION_MIN {
            bail!("Debian's backports have QEMU {version}, at least {VERSION_MIN} is needed: set {QEMU_ENV}");
        }
        Ok(qemu)
    }

    /// A command that runs it, without arguments of its own but those that it needs where it lies.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(root) = &self.root {
            let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|dir| root.join(dir));
            command.env("LD_LIBRARY_PATH", join_paths(&libraries));
            command.env("QEMU_MODULE_DIR", root.join("usr/lib/x86_64-linux-gnu/qemu"));
            for data in ["usr/share/qemu", "usr/share/seabios"] {
                command.arg("-L").arg(root.join(data));
            }
        }
        command
    }

    /// Its major version.
    fn version(&self) -> Result<u32> {
        let mut command = self.command();
        let output = command.arg("--version").output();
        let output = output.with_context(|| format!("cannot run {}", self.program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        parse_version(&text).with_context(|| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            format!("{} does not say its version: {text}{stderr}", self.program.display())
        })
    }
}

fn join_paths(paths: &[impl AsRef<Path>]) -> std::ffi::OsString {
    // Only a path with a colon in it fails, and then the libraries are not found, which QEMU says.
    env::join_paths(paths.iter().map(AsRef::as_ref)).unwrap_or_default()
}

/// 10 of `QEMU emulator version 10.0.2 (…)`.
fn parse_version(text: &str) -> Option<u32> {
    text.split("version ").nth(1)?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read() {
        assert_eq!(parse_version("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright"), Some(10));
        assert_eq!(parse_version("bash: qemu: not found"), None);
    }
}
