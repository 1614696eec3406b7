//! The folder that holds what tests fetch and build, shared by all of a machine's checkouts if so asked.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::cargo;

/// Environment variable that names the folder.
pub const ARTIFACTS_ENV: &str = "FERRY_ARTIFACTS";

/// A folder of artifacts. Entries are made under a temporary name and renamed, so one that exists is whole.
#[derive(Debug, Clone)]
pub struct Artifacts {
    root: PathBuf,
}

impl Artifacts {
    /// `vm` in the folder named by `FERRY_ARTIFACTS`, or else in `target/artifacts` of this checkout.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn open() -> Result<Self> {
        let root = match std::env::var_os(ARTIFACTS_ENV) {
            Some(root) => cargo::workspace_root().join(root),
            None => cargo::target_dir().join("artifacts"),
        };
        Self::at(root.join("vm"))
    }

    /// The folder `root`.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn at(root: impl AsRef<Path>) -> Result<Self> {
        let root = root.as_ref();
        fs::create_dir_all(root)
            .with_context(|| format!("cannot create the artifacts folder {}", root.display()))?;
        Ok(Self { root: root.canonicalize()? })
    }

    /// The path of the entry `name`, made by `make` in an empty folder unless it is there already.
    ///
    /// One process at a time makes an entry; the others wait.
    ///
    /// # Errors
    /// Those of `make`, which leave no entry behind.
    pub fn entry(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let path = self.root.join(name);
        if path.exists() {
            return Ok(path);
        }
        let _lock = self.lock(name)?;
        if path.exists() {
            return Ok(path);
        }
        let partial = self.root.join(format!("{name}.partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        fs::create_dir_all(&partial)?;
        make(&partial).with_context(|| format!("cannot make the artifact {name}"))?;
        fs::rename(&partial, &path)?;
        Ok(path)
    }

    /// The folder `name`, created if it is not there, for a store that keeps its own order.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Keeps other processes away from `name` until the guard is dropped or this process ends.
    ///
    /// # Errors
    /// If the lock file cannot be made.
    pub fn lock(&self, name: &str) -> Result<Flock<File>> {
        let path = self.root.join(format!("{name}.lock"));
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_entry_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::at(dir.path()).unwrap();
        let failed = artifacts.entry("thing", |path| {
            fs::write(path.join("half"), "x")?;
            anyhow::bail!("no luck")
        });
        assert!(format!("{:#}", failed.unwrap_err()).contains("no luck"));
        let made = artifacts.entry("thing", |path| Ok(fs::write(path.join("whole"), "x")?)).unwrap();
        assert!(made.join("whole").exists() && !made.join("half").exists());
        artifacts.entry("thing", |_| panic!("it is there already")).unwrap();
    }
}
