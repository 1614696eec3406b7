//! The guest's root file system.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};

use crate::cpio::Cpio;
use crate::elf;
use crate::modules::Module;

/// What runs first in the guest.
const INIT: &str = include_str!("init.sh");

/// A root file system under construction; paths in the guest are absolute.
#[derive(Default)]
pub struct Initramfs {
    /// Sorted, so that a folder comes before what is in it.
    entries: BTreeMap<String, Entry>,
}

enum Entry {
    Directory,
    File { mode: u32, content: Vec<u8> },
    Symlink(String),
}

impl Initramfs {
    /// A system that loads `modules` in their order and then serves the harness.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn new(busybox: &Path, agent: &Path, modules: Vec<Module>) -> Result<Self> {
        let mut root = Self::default();
        root.file("/init", 0o755, INIT);
        root.copy(busybox, "/bin/busybox")?;
        root.copy(agent, "/bin/ferry-vm-agent")?;
        root.libraries_of(&[agent.to_owned()])?;
        for folder in ["/dev", "/proc", "/sys", "/tmp", "/run", "/root", "/mnt"] {
            root.entries.insert(folder.to_owned(), Entry::Directory);
        }
        for (order, module) in modules.into_iter().enumerate() {
            root.file(&format!("/modules/{order:03}-{}.ko", module.name), 0o644, module.image);
        }
        Ok(root)
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) {
        self.entry(path, Entry::File { mode, content: content.into() });
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.entry(path, Entry::Symlink(target.to_owned()));
    }

    /// Adds a file of the host, with its permissions.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn copy(&mut self, host: &Path, path: &str) -> Result<()> {
        let read = || anyhow::Ok((fs::metadata(host)?.permissions().mode() & 0o777, fs::read(host)?));
        let (mode, content) = read().with_context(|| format!("cannot read {}", host.display()))?;
        self.file(path, mode, content);
        Ok(())
    }

    /// Adds the shared libraries and the loader that `programs` need, under the host's paths, except what
    /// lies beside one of the programs: that comes with them.
    ///
    /// # Errors
    /// If a library is missing or cannot be read.
    pub fn libraries_of(&mut self, programs: &[PathBuf]) -> Result<()> {
        let beside: Vec<_> = programs.iter().filter_map(|program| program.parent()).collect();
        for library in elf::closure(programs)? {
            if !beside.iter().any(|dir| library.starts_with(dir)) {
                self.copy(&library, &library.to_string_lossy())?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &str, entry: Entry) {
        for (end, _) in path.match_indices('/').skip(1) {
            self.entries.entry(path[..end].to_owned()).or_insert(Entry::Directory);
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// If that fails.
    pub fn write(&self, path: &Path) -> Result<()> {
        let write = || {
            let file = BufWriter::new(File::create(path)?);
            let gzip = self.archive(GzEncoder::new(file, Compression::fast()))?;
            gzip.finish()?.flush()
        };
        write().with_context(|| format!("cannot write the initramfs {}", path.display()))
    }

    fn archive<W: Write>(&self, sink: W) -> std::io::Result<W> {
        let mut cpio = Cpio::new(sink);
        for (path, entry) in &self.entries {
            let path = path.trim_start_matches('/');
            match entry {
                Entry::Directory => cpio.directory(path)?,
                Entry::File { mode, content } => cpio.file(path, *mode, content)?,
                Entry::Symlink(target) => cpio.symlink(path, target)?,
            }
        }
        // The kernel opens it for init's standard streams.
        cpio.character_device("dev/console", 0o600, 5, 1)?;
        cpio.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_first() {
        let mut root = Initramfs::default();
        root.file("/a/b/c", 0o600, "x");
        root.symlink("/a/l", "b/c");
        let paths: Vec<_> = root.entries.keys().map(String::as_str).collect();
        assert_eq!(paths, ["/a", "/a/b", "/a/b/c", "/a/l"]);
        assert!(matches!(root.entries["/a"], Entry::Directory));
    }
}
