//! Where QEMU comes from.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::Artifacts;
use crate::debian::Debian;

/// Environment variable that names a QEMU to use instead of Debian's.
const QEMU_ENV: &str = "FERRY_QEMU";

/// The oldest major version taken: the first on which everything here was seen to work.
const VERSION_MIN: u32 = 10;

/// The package that has it.
const PACKAGE: &str = "qemu-system-x86";

const PROGRAM: &str = "usr/bin/qemu-system-x86_64";

/// Folders with libraries in an unpacked system; its loader lies in the first.
const LIBRARY_DIRS: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];

/// A QEMU that can be run.
#[derive(Debug, Clone)]
pub struct Qemu {
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    /// A program of this machine.
    Program(PathBuf),
    /// The root of an unpacked system with its own libraries.
    Root(PathBuf),
}

impl Qemu {
    /// `FERRY_QEMU`, or else the QEMU of Debian's backports, unpacked below the artifacts folder with all
    /// libraries down to libc: the same on every machine, whatever is installed there.
    ///
    /// # Errors
    /// If it cannot be fetched, does not run or is too old.
    pub fn find(artifacts: &Artifacts) -> Result<Self> {
        if let Some(program) = env::var_os(QEMU_ENV) {
            let qemu = Self { place: Place::Program(program.into()) };
            qemu.check().with_context(|| format!("{QEMU_ENV} names no QEMU that can be used"))?;
            return Ok(qemu);
        }
        let root = artifacts.entry("qemu", |into| {
            let debian = Debian::open(artifacts)?;
            debian.unpack(&debian.closure(PACKAGE)?, into)?;
            Self { place: Place::Root(into.to_owned()) }.check()
        })?;
        Ok(Self { place: Place::Root(root) })
    }

    /// A command that runs it, without arguments of its own but those that it needs where it lies.
    pub fn command(&self) -> Command {
        let root = match &self.place {
            Place::Program(program) => return Command::new(program),
            Place::Root(root) => root,
        };
        let mut command = Command::new(root.join(LIBRARY_DIRS[0]).join("ld-linux-x86-64.so.2"));
        let libraries = LIBRARY_DIRS.map(|dir| root.join(dir).to_string_lossy().into_owned()).join(":");
        command.arg("--library-path").arg(libraries).arg(root.join(PROGRAM));
        command.env("QEMU_MODULE_DIR", root.join("usr/lib/x86_64-linux-gnu/qemu"));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(root.join(data));
        }
        command
    }

    /// Fails unless it runs and is new enough.
    fn check(&self) -> Result<()> {
        let mut command = self.command();
        let output = command.arg("--version").output().with_context(|| format!("cannot run {command:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        match parse_version(&text) {
            Some(version) if version >= VERSION_MIN => Ok(()),
            Some(version) => {
                bail!("this is QEMU {version}, at least {VERSION_MIN} is needed: set {QEMU_ENV}")
            }
            None => bail!("it does not say its version: {text}{}", String::from_utf8_lossy(&output.stderr)),
        }
    }
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

    #[test]
    fn what_is_no_qemu_is_refused() {
        let error = Qemu { place: Place::Program("true".into()) }.check().unwrap_err();
        assert!(error.to_string().contains("does not say its version"), "{error:#}");
    }
}
