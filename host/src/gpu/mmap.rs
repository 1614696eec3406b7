//! Guest pages scattered over guest RAM, as one contiguous range of this process: the extents of a
//! [`Backing`](super::Backing) mapped side by side into one reserved range, without a copy.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use ferry_protocol::channel::memory::Mapping;
use vm_memory::VolatileSlice;

use super::ram::Extent;

/// Why extents could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// No extents, or lengths whose sum is no size.
    #[error("nothing to map: {extents} extents of {bytes} bytes in all")]
    Empty {
        /// Extents given.
        extents: usize,
        /// Sum of their lengths.
        bytes: u64,
    },
    /// An extent does not start and end on a host page, or names a file that was not given, or ends behind its end.
    #[error("extent {index} (file {file}, offset {offset:#x}, {len:#x} bytes) is not mappable: {reason}")]
    Extent {
        /// Which one.
        index: usize,
        /// Its file's index.
        file: u32,
        /// Its offset in the file.
        offset: u64,
        /// Its length.
        len: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The kernel refused; with ENOMEM see vm.max_map_count.
    #[error("mapping extent {index} of {extents} failed (ENOMEM: see vm.max_map_count)")]
    Map {
        /// Which one; equal to `extents` when reserving the range failed.
        index: usize,
        /// Extents given.
        extents: usize,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// One contiguous, readable and writable view of extents of shared files. Other processes (the guest) write to
/// the same pages at any time: read through volatile or atomic accesses, or copy first.
#[derive(Debug)]
pub struct Stitched {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; all access goes through raw pointers whose users synchronise.
unsafe impl Send for Stitched {}
// SAFETY: as above; `&Stitched` gives out nothing but the address and the length.
unsafe impl Sync for Stitched {}

impl Stitched {
    /// Maps `extents`, in order and without gaps, into one range. `extents[i].file` indexes `files`. The checks
    /// against the files' ends are done once: a file that shrinks later makes accesses raise SIGBUS, so the files
    /// must be guest RAM whose size only the VMM controls, or sealed.
    pub fn map(files: &[BorrowedFd<'_>], extents: &[Extent]) -> Result<Stitched, MapError> {
        let total = check(files, extents)?;
        let reserved = Stitched::reserve(total).map_err(|source| MapError::Map {
            index: extents.len(),
            extents: extents.len(),
            source,
        })?;
        let mut at = 0usize;
        for (index, extent) in extents.iter().enumerate() {
            // SAFETY: `at + len ≤ total` (check() summed the same lengths), so MAP_FIXED replaces only pages of the
            // range that `reserved` owns and nobody has seen yet.
            let mapped = unsafe {
                libc::mmap(
                    reserved.base.as_ptr().add(at).cast(),
                    extent.len as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_FIXED,
                    files[extent.file as usize].as_raw_fd(),
                    extent.offset as libc::off_t,
                )
            };
            if mapped == libc::MAP_FAILED {
                let source = io::Error::last_os_error();
                return Err(MapError::Map { index, extents: extents.len(), source });
            }
            at += extent.len as usize;
        }
        Ok(reserved)
    }

    /// Reserves `len` bytes of address space that nothing may touch yet.
    fn reserve(len: usize) -> io::Result<Stitched> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        Ok(Stitched { base, len })
    }

    /// First byte; page-aligned. Valid until the value is dropped.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// The whole range, for bounds-checked copies and atomic accesses that expect others to write at any time.
    pub fn volatile(&self) -> VolatileSlice<'_> {
        // SAFETY: the range is mapped readable and writable for as long as `self` lives, which the result borrows;
        // all access through a VolatileSlice is volatile or atomic, so writes of other processes are no data race.
        unsafe { VolatileSlice::new(self.base.as_ptr(), self.len) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an empty view cannot be made.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

// SAFETY: the mapping stays where it is until the value is dropped, and only raw pointers into it are handed out.
unsafe impl Mapping for Stitched {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Stitched {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by reserve() with exactly this address and length and is unmapped only here.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        assert_eq!(result, 0, "munmap of our own range: {}", io::Error::last_os_error());
    }
}

/// Checks every extent and returns the sum of their lengths.
fn check(files: &[BorrowedFd<'_>], extents: &[Extent]) -> Result<usize, MapError> {
    let page = page_bytes();
    let ends = files.iter().map(|file| file_bytes(*file)).collect::<Result<Vec<u64>, io::Error>>();
    let ends = ends.map_err(|source| MapError::Map { index: 0, extents: extents.len(), source })?;
    let mut total = 0u64;
    for (index, extent) in extents.iter().enumerate() {
        let Extent { file, offset, len } = *extent;
        let bad = |reason| MapError::Extent { index, file, offset, len, reason };
        let file_end = ends.get(file as usize).ok_or_else(|| bad("no such file"))?;
        if len == 0 || offset % page != 0 || len % page != 0 {
            return Err(bad("not whole host pages"));
        }
        let end = offset.checked_add(len).ok_or_else(|| bad("offset and length overflow"))?;
        if end > *file_end {
            return Err(bad("ends behind the end of the file"));
        }
        total = total.checked_add(len).ok_or_else(|| bad("lengths overflow"))?;
    }
    match usize::try_from(total) {
        Ok(total) if total > 0 && total <= isize::MAX as usize => Ok(total),
        _ => Err(MapError::Empty { extents: extents.len(), bytes: total }),
    }
}

fn page_bytes() -> u64 {
    // SAFETY: sysconf reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page).expect("the page size is known")
}

fn file_bytes(file: BorrowedFd<'_>) -> io::Result<u64> {
    let size = nix::sys::stat::fstat(file)?.st_size;
    u64::try_from(size).map_err(|_| io::Error::other("negative file size"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const PAGE: u64 = 4096;

    /// A memfd of `pages` pages, each starting with its number.
    fn memfd(pages: u64) -> File {
        named_memfd(c"stitched", pages)
    }

    fn named_memfd(name: &std::ffi::CStr, pages: u64) -> File {
        let fd = nix::sys::memfd::memfd_create(name, nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        let file = File::from(fd);
        file.set_len(pages * PAGE).unwrap();
        for page in 0..pages {
            file.write_all_at(&page.to_le_bytes(), page * PAGE).unwrap();
        }
        file
    }

    fn pages(file: u32, first: u64, count: u64) -> Extent {
        Extent { file, offset: first * PAGE, len: count * PAGE }
    }

    fn word(map: &Stitched, page: usize) -> u64 {
        assert!((page + 1) * PAGE as usize <= map.len());
        // SAFETY: the page lies inside the mapping (asserted) and nothing writes to it meanwhile.
        unsafe { map.as_ptr().as_ptr().add(page * PAGE as usize).cast::<u64>().read_volatile() }
    }

    #[test]
    fn scattered_extents_become_one_range_that_writes_through() {
        let (first, second) = (memfd(8), memfd(4));
        let extents = [pages(0, 5, 1), pages(1, 2, 2), pages(0, 0, 2)];
        let map = Stitched::map(&[first.as_fd(), second.as_fd()], &extents).unwrap();
        assert_eq!(map.len() as u64, 5 * PAGE);
        assert_eq!((0..5).map(|page| word(&map, page)).collect::<Vec<_>>(), [5, 2, 3, 0, 1]);
        // SAFETY: page 3 lies inside the mapping.
        unsafe { map.as_ptr().as_ptr().add(3 * PAGE as usize).cast::<u64>().write_volatile(77) };
        let mut bytes = [0; 8];
        first.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 77);
    }

    #[test]
    fn bad_extents_are_refused() {
        let file = memfd(4);
        let refused = |extents: &[Extent]| Stitched::map(&[file.as_fd()], extents).unwrap_err().to_string();
        assert!(refused(&[]).contains("nothing to map"));
        assert!(refused(&[pages(1, 0, 1)]).contains("no such file"));
        assert!(refused(&[pages(0, 0, 0)]).contains("whole host pages"));
        assert!(refused(&[Extent { file: 0, offset: 8, len: PAGE }]).contains("whole host pages"));
        assert!(refused(&[pages(0, 3, 2)]).contains("end of the file"));
        assert!(refused(&[Extent { file: 0, offset: u64::MAX - PAGE + 1, len: PAGE }]).contains("overflow"));
    }

    #[test]
    fn dropping_unmaps_everything() {
        let mappings = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|line| line.contains("memfd:unmapped-on-drop")).count()
        };
        let file = named_memfd(c"unmapped-on-drop", 4);
        let map = Stitched::map(&[file.as_fd()], &[pages(0, 2, 1), pages(0, 0, 1)]).unwrap();
        assert_eq!(mappings(), 2);
        drop(map);
        assert_eq!(mappings(), 0);
    }
}
