//! Where QEMU comes from.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::Artifacts;
use crate::debian::{Debian, Release};

/// Environment variable that names a QEMU to use instead of Debian's, if it is new enough.
const QEMU_ENV: &str = "FERRY_QEMU";

/// Major and minor.
type Version = (u32, u32);

/// The package that has it.
const PACKAGE: &str = "qemu-system-x86";

const PROGRAM: &str = "usr/bin/qemu-system-x86_64";

/// The loader of an unpacked system, in one of the folders with its libraries.
const LOADER: &str = "ld-linux-x86-64.so.2";
const LIBRARY_DIRS: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];

/// The device of QEMU's that a virtio-gpu back-end is behind: stock ones, which differ in what they let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuDevice {
    /// `vhost-user-gpu-pci`: resources and fences of one timeline for the whole device.
    #[default]
    VhostUserGpu,
    /// `vhost-user-test-device-pci`, which passes everything on: blobs, contexts with timelines of their own.
    Generic,
}

impl GpuDevice {
    /// Both.
    pub const ALL: [Self; 2] = [Self::VhostUserGpu, Self::Generic];

    /// The value of `-device`, for the character device `chardev`.
    pub fn option(self, chardev: &str) -> String {
        match self {
            Self::VhostUserGpu => format!("vhost-user-gpu-pci,chardev={chardev}"),
            // Two queues, and the 16 bytes of virtio-gpu's configuration.
            Self::Generic => format!(
                "vhost-user-test-device-pci,chardev={chardev},virtio-id=16,num_vqs=2,vq_size=256,config_size=16"
            ),
        }
    }

    /// The oldest QEMU on which it was seen to work, and the release whose backports have a newer one.
    fn source(self) -> (Version, Release) {
        match self {
            Self::VhostUserGpu => ((10, 0), Release::Bookworm),
            Self::Generic => ((10, 2), Release::Trixie),
        }
    }
}

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
    /// `FERRY_QEMU`, or else a QEMU of Debian's backports that has `device`, unpacked below the artifacts folder with all
    /// libraries down to libc: the same on every machine, whatever is installed there.
    ///
    /// # Errors
    /// If it cannot be fetched, does not run or is too old.
    pub fn find(artifacts: &Artifacts, device: GpuDevice) -> Result<Self> {
        let (version_min, release) = device.source();
        if let Some(program) = env::var_os(QEMU_ENV) {
            let qemu = Self { place: Place::Program(program.into()) };
            qemu.check(version_min).with_context(|| format!("{QEMU_ENV} names no QEMU that can be used"))?;
            return Ok(qemu);
        }
        let (major, minor) = version_min;
        let root = artifacts.entry(&format!("qemu-{major}.{minor}"), |into| {
            let unpack = || {
                let debian = Debian::open(artifacts, release)?;
                debian.unpack(&debian.closure(PACKAGE)?, into)?;
                Self { place: Place::Root(into.to_owned()) }.check(version_min)
            };
            unpack().with_context(|| {
                format!(
                    "{release:?}'s backports should have QEMU {major}.{minor} or newer; if they no longer do, {QEMU_ENV} \
                     may name another"
                )
            })
        })?;
        Ok(Self { place: Place::Root(root) })
    }

    /// A command that runs it, without arguments of its own but those that it needs where it lies.
    pub fn command(&self) -> Command {
        let root = match &self.place {
            Place::Program(program) => return Command::new(program),
            Place::Root(root) => root,
        };
        let dirs = LIBRARY_DIRS.map(|dir| root.join(dir));
        let loader = dirs.iter().map(|dir| dir.join(LOADER)).find(|loader| loader.exists());
        // Without one, what cannot be run is what should be there.
        let mut command = Command::new(loader.unwrap_or_else(|| dirs[0].join(LOADER)));
        let libraries = dirs.map(|dir| dir.to_string_lossy().into_owned()).join(":");
        command.arg("--library-path").arg(libraries).arg(root.join(PROGRAM));
        command.env("QEMU_MODULE_DIR", root.join("usr/lib/x86_64-linux-gnu/qemu"));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(root.join(data));
        }
        command
    }

    /// Fails unless it runs and is new enough.
    fn check(&self, version_min: Version) -> Result<()> {
        let mut command = self.command();
        let output = command.arg("--version").output().with_context(|| format!("cannot run {command:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        match parse_version(&text) {
            Some(version) if version >= version_min => Ok(()),
            Some((major, minor)) => {
                bail!("this is QEMU {major}.{minor}, at least {}.{} is needed", version_min.0, version_min.1)
            }
            None => bail!("it does not say its version: {text}{}", String::from_utf8_lossy(&output.stderr)),
        }
    }
}

/// 10.0 of `QEMU emulator version 10.0.2 (…)`.
fn parse_version(text: &str) -> Option<Version> {
    let mut numbers = text.split("version ").nth(1)?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read() {
        let text = "QEMU emulator version 10.2.1 (Debian 1:10.2.1+ds-2)\nCopyright";
        assert_eq!(parse_version(text), Some((10, 2)));
        assert_eq!(parse_version("bash: qemu: not found"), None);
    }

    #[test]
    fn what_is_no_qemu_is_refused() {
        let error = Qemu { place: Place::Program("true".into()) }.check((10, 0)).unwrap_err();
        assert!(error.to_string().contains("does not say its version"), "{error:#}");
    }

    #[test]
    fn a_qemu_that_is_too_old_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("qemu");
        std::fs::write(&old, "#!/bin/sh\necho QEMU emulator version 10.1.9\n").unwrap();
        std::fs::set_permissions(&old, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let old = Qemu { place: Place::Program(old) };
        let error = old.check((10, 2)).unwrap_err();
        assert!(error.to_string().contains("this is QEMU 10.1, at least 10.2"), "{error:#}");
        old.check((10, 1)).unwrap();
    }
}
