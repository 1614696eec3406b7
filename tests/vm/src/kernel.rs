//! Debian's kernels.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::Artifacts;
use crate::debian::{Candidate, Debian, Release};

/// The package that depends on Debian's current kernel.
const META_PACKAGE: &str = "linux-image-amd64";
/// The package with the headers of the kernel's interfaces.
const HEADERS_PACKAGE: &str = "linux-libc-dev";

/// Which kernel a guest boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KernelVersion {
    /// Debian 12's own.
    V6_1,
    /// Debian 13's, from Debian 12's backports.
    #[default]
    V6_12,
}

impl KernelVersion {
    /// All that the tests run on, oldest first.
    pub const ALL: [Self; 2] = [Self::V6_1, Self::V6_12];
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        })
    }
}

/// An unpacked kernel package.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// As `uname -r` says it.
    pub release: String,
    /// The image that QEMU boots.
    pub image: PathBuf,
    /// The folder with `modules.builtin` and `kernel/`.
    pub modules_dir: PathBuf,
}

impl Kernel {
    /// Fetches and unpacks the kernel unless that was done before.
    ///
    /// # Errors
    /// Those of the fetch.
    pub fn fetch(artifacts: &Artifacts, version: KernelVersion) -> Result<Self> {
        let folder = artifacts.entry(&format!("linux-{version}"), |into| {
            let debian = Debian::open(artifacts, Release::Bookworm)?;
            let package = image_package(&debian.candidates(META_PACKAGE)?, version)
                .with_context(|| format!("Debian has no {META_PACKAGE} of version {version}"))?;
            debian.unpack(&[package], into)
        })?;
        Self::at(&folder)
    }

    /// A kernel package unpacked in `folder`.
    fn at(folder: &Path) -> Result<Self> {
        let entry = fs::read_dir(folder.join("lib/modules"))?
            .next()
            .context("the kernel package has no modules")??;
        let release = entry.file_name().into_string().ok().context("the kernel's release is not text")?;
        let image = folder.join("boot").join(format!("vmlinuz-{release}"));
        Ok(Self { modules_dir: entry.path(), image, release })
    }
}

/// The package with the image of the newest candidate of `version`.
fn image_package(candidates: &[Candidate], version: KernelVersion) -> Option<String> {
    let prefix = format!("{version}.");
    let candidate = candidates.iter().find(|candidate| candidate.version.starts_with(&prefix))?;
    let mut dependencies = candidate.depends.split([',', ' ']);
    dependencies.find(|name| name.starts_with("linux-image-")).map(str::to_owned)
}

/// The headers of the newest kernel's interfaces, its graphics drivers' among them: the folder to include from.
///
/// # Errors
/// If the package cannot be fetched.
pub fn headers(artifacts: &Artifacts) -> Result<PathBuf> {
    let root = artifacts.entry("linux-headers", |into| {
        let debian = Debian::open(artifacts, Release::Bookworm)?;
        let newest = debian.candidates(HEADERS_PACKAGE)?.swap_remove(0);
        debian.unpack(&[format!("{HEADERS_PACKAGE}={}", newest.version)], into)
    })?;
    Ok(root.join("usr/include"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meta_package_leads_to_the_image() {
        let candidate =
            |version: &str, depends: &str| Candidate { version: version.into(), depends: depends.into() };
        let candidates = [
            candidate("6.12.95-1~bpo12+1", "linux-image-6.12.95+deb12-amd64 (= 6.12.95-1~bpo12+1)"),
            candidate("6.1.176-1", "linux-image-6.1.0-50-amd64 (= 6.1.176-1)"),
        ];
        let package = |version| image_package(&candidates, version);
        assert_eq!(package(KernelVersion::V6_1).as_deref(), Some("linux-image-6.1.0-50-amd64"));
        assert_eq!(package(KernelVersion::V6_12).as_deref(), Some("linux-image-6.12.95+deb12-amd64"));
        assert_eq!(image_package(&candidates[..1], KernelVersion::V6_1), None);
    }
}
