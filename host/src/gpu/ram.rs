//! The VM's memory table, and guest-physical runs resolved through it to ranges of the files behind guest RAM.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use vm_memory::{Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::limits::MAX_BACKING_ENTRIES;
use super::wire::MemEntry;

/// Guest page. Only whole pages can be mapped into a worker.
const GUEST_PAGE_BYTES: u64 = 4096;

/// A range of one of the files that a [`Backing`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index into [`Backing::files`].
    pub file: u32,
    /// Start in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Everything that another process needs to map a resource: see [`Stitched`](super::mmap::Stitched).
#[derive(Clone, Debug)]
pub struct Backing {
    /// The files behind guest RAM that the extents lie in. Who holds one can map all of that file.
    pub files: Vec<Arc<File>>,
    /// The resource's bytes, in order.
    pub extents: Vec<Extent>,
    /// Sum of the extents' lengths.
    pub bytes: u64,
}

/// Guest-physical range and where its bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Guest-physical start.
    pub addr: u64,
    /// Length in bytes; never 0.
    pub len: u64,
    file: u32,
    offset: u64,
}

/// Why a scatter list was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScatterError {
    #[error("an entry without length")]
    Empty,
    #[error("{0:#x} bytes at guest address {1:#x} are not guest RAM")]
    NotRam(u64, u64),
    #[error("entries overlap at guest address {0:#x}")]
    Overlap(u64),
    #[error("guest RAM at {0:#x} is not a shared file: start the VM with share=on memory")]
    NotShared(u64),
    #[error("{0} entries; at most {MAX_BACKING_ENTRIES} are taken")]
    TooMany(usize),
}

/// Device and inode: tells whether two descriptors are of one file.
type FileIdentity = (u64, u64);

#[derive(Debug)]
struct Region {
    start: u64,
    len: u64,
    /// Index into `files` and offset there; none if the region is not a file's.
    file: Option<(u32, u64)>,
}

/// The memory table in the form that scatter lists are checked against.
#[derive(Debug, Default)]
pub struct RamTable {
    /// Sorted by start, not overlapping (vm-memory guarantees both).
    regions: Vec<Region>,
    files: Vec<(FileIdentity, Arc<File>)>,
}

impl RamTable {
    /// Reads the table that the VMM sent.
    pub fn new(memory: &GuestMemoryMmap) -> std::io::Result<RamTable> {
        let mut table = RamTable::default();
        for region in memory.iter() {
            let file = match region.file_offset() {
                Some(place) => Some((table.intern(place.arc())?, place.start())),
                None => None,
            };
            table.regions.push(Region { start: region.start_addr().raw_value(), len: region.len(), file });
        }
        Ok(table)
    }

    /// Index of a file, the same for all descriptors of one file.
    fn intern(&mut self, file: &Arc<File>) -> std::io::Result<u32> {
        let metadata = file.metadata()?;
        let identity = (metadata.dev(), metadata.ino());
        let known = self.files.iter().position(|(known, _)| *known == identity);
        let index = known.unwrap_or_else(|| {
            self.files.push((identity, file.clone()));
            self.files.len() - 1
        });
        Ok(u32::try_from(index).expect("vhost-user has at most 509 regions"))
    }

    /// Whether the VMM shares any memory at all.
    pub fn is_shared(&self) -> bool {
        self.regions.iter().any(|region| region.file.is_some())
    }

    /// Resolves a guest's scatter list, in its order, neighbours made one.
    pub fn resolve(&self, entries: &[MemEntry]) -> Result<Vec<Piece>, ScatterError> {
        if entries.len() > MAX_BACKING_ENTRIES {
            return Err(ScatterError::TooMany(entries.len()));
        }
        let mut pieces: Vec<Piece> = Vec::new();
        for entry in entries {
            self.resolve_run(entry.addr, u64::from(entry.length), &mut pieces)?;
        }
        check_overlap(&pieces)?;
        Ok(pieces)
    }

    /// Appends the pieces of one run, which may cross regions that lie side by side.
    fn resolve_run(&self, mut addr: u64, mut len: u64, pieces: &mut Vec<Piece>) -> Result<(), ScatterError> {
        if len == 0 {
            return Err(ScatterError::Empty);
        }
        while len > 0 {
            let region = self.region_at(addr).ok_or(ScatterError::NotRam(len, addr))?;
            let (file, start) = region.file.ok_or(ScatterError::NotShared(addr))?;
            let inside = addr - region.start;
            let part = len.min(region.len - inside);
            push_piece(pieces, Piece { addr, len: part, file, offset: start + inside });
            len -= part;
            // At the end of the address space the next address does not exist; then `len` must be used up.
            addr =
                addr.checked_add(part).or((len == 0).then_some(0)).ok_or(ScatterError::NotRam(len, addr))?;
        }
        Ok(())
    }

    fn region_at(&self, addr: u64) -> Option<&Region> {
        let next = self.regions.partition_point(|region| region.start <= addr);
        let region = &self.regions[next.checked_sub(1)?];
        (addr - region.start < region.len).then_some(region)
    }

    /// Whether `pieces`, resolved through `before`, still are the same bytes of the same files.
    pub fn still_holds(&self, before: &RamTable, pieces: &[Piece]) -> bool {
        let mut now = Vec::with_capacity(pieces.len());
        let resolved = pieces.iter().try_for_each(|piece| self.resolve_run(piece.addr, piece.len, &mut now));
        let identity = |table: &RamTable, piece: &Piece| table.files[piece.file as usize].0;
        resolved.is_ok()
            && now.len() == pieces.len()
            && now.iter().zip(pieces).all(|(new, old)| {
                (new.addr, new.len, new.offset) == (old.addr, old.len, old.offset)
                    && identity(self, new) == identity(before, old)
            })
    }

    /// Takes over pieces for which [`still_holds`](Self::still_holds) said yes: file indices may differ.
    pub fn renumber(&self, before: &RamTable, pieces: &mut [Piece]) {
        for piece in pieces {
            let identity = before.files[piece.file as usize].0;
            let index = self.files.iter().position(|(known, _)| *known == identity);
            piece.file = index.expect("still_holds found this file") as u32;
        }
    }

    /// What a worker needs to map `pieces`; nothing if they are not whole pages.
    pub fn backing(&self, pieces: &[Piece]) -> Option<Backing> {
        let mut backing = Backing { files: Vec::new(), extents: Vec::with_capacity(pieces.len()), bytes: 0 };
        let mut numbers: Vec<Option<u32>> = vec![None; self.files.len()];
        for piece in pieces {
            if [piece.addr, piece.offset, piece.len].iter().any(|value| value % GUEST_PAGE_BYTES != 0) {
                return None;
            }
            let file = *numbers[piece.file as usize].get_or_insert_with(|| {
                backing.files.push(self.files[piece.file as usize].1.clone());
                (backing.files.len() - 1) as u32
            });
            backing.extents.push(Extent { file, offset: piece.offset, len: piece.len });
            backing.bytes += piece.len;
        }
        Some(backing)
    }
}

/// Appends `piece`, as part of the last one where both addresses and both offsets go on.
fn push_piece(pieces: &mut Vec<Piece>, piece: Piece) {
    if let Some(last) = pieces.last_mut() {
        let follows = last.addr.checked_add(last.len) == Some(piece.addr)
            && last.file == piece.file
            && last.offset.checked_add(last.len) == Some(piece.offset);
        if follows {
            last.len += piece.len;
            return;
        }
    }
    pieces.push(piece);
}

/// One page twice in one resource would make a contiguous view that aliases itself.
fn check_overlap(pieces: &[Piece]) -> Result<(), ScatterError> {
    let mut sorted: Vec<(u32, u64, u64, u64)> =
        pieces.iter().map(|piece| (piece.file, piece.offset, piece.len, piece.addr)).collect();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        let ((file, offset, len, _), (next_file, next_offset, _, addr)) = (pair[0], pair[1]);
        if file == next_file && next_offset - offset < len {
            return Err(ScatterError::Overlap(addr));
        }
    }
    Ok(())
}
