//! The archive format of an initramfs: cpio "newc" (kernel: `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::io::{self, Write};

/// File type bits of `st_mode`.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// Name of the entry that ends an archive.
const TRAILER: &str = "TRAILER!!!";

/// Writes an archive. Paths are relative to the root; a folder comes before what is in it.
pub struct Cpio<W: Write> {
    sink: W,
    entries: u32,
}

impl<W: Write> Cpio<W> {
    /// Starts an archive.
    pub fn new(sink: W) -> Self {
        Self { sink, entries: 0 }
    }

    /// Adds a folder.
    ///
    /// # Errors
    /// The sink's.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, DIRECTORY | 0o755, (0, 0), &[])
    }

    /// Adds a file with the permission bits `mode`.
    ///
    /// # Errors
    /// The sink's, and a file of 4 GiB or more, which the format has no room for.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, REGULAR | mode, (0, 0), content)
    }

    /// Adds a symbolic link to `target`.
    ///
    /// # Errors
    /// The sink's.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, SYMLINK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device.
    ///
    /// # Errors
    /// The sink's.
    pub fn character_device(&mut self, path: &str, mode: u32, major: u32, minor: u32) -> io::Result<()> {
        self.entry(path, CHARACTER_DEVICE | mode, (major, minor), &[])
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// The sink's.
    pub fn finish(mut self) -> io::Result<W> {
        self.entries = 0;
        self.entry(TRAILER, 0, (0, 0), &[])?;
        Ok(self.sink)
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        let size = u32::try_from(content.len()).map_err(|_| {
            io::Error::new(io::ErrorKind::FileTooLarge, format!("{path} is too large for cpio"))
        })?;
        let name_size = path.len() as u32 + 1;
        let inode = if path == TRAILER { 0 } else { self.entries + 1 };
        self.entries = inode;
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08X}"));
        }
        self.sink.write_all(header.as_bytes())?;
        self.sink.write_all(path.as_bytes())?;
        self.sink.write_all(&[0])?;
        self.pad(header.len() + path.len() + 1)?;
        self.sink.write_all(content)?;
        self.pad(content.len())
    }

    /// Names and contents each end at a multiple of four.
    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.sink.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_entry_byte_by_byte() {
        let mut cpio = Cpio::new(Vec::new());
        cpio.file("ab", 0o644, b"hello").unwrap();
        let bytes = cpio.finish().unwrap();
        let expected = concat!(
            "070701", // magic
            "00000001",
            "000081A4",
            "00000000",
            "00000000",
            "00000001",
            "00000000", // ino mode uid gid nlink mtime
            "00000005",
            "00000000",
            "00000000",
            "00000000",
            "00000000", // filesize, four device numbers
            "00000003",
            "00000000",   // namesize with its NUL, check
            "ab\0\0\0\0", // 110 + 3 bytes, padded to 116
            "hello\0\0\0",
        );
        assert_eq!(&bytes[..expected.len()], expected.as_bytes());
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes[expected.len()..].windows(TRAILER.len()).any(|window| window == TRAILER.as_bytes()));
    }
}
