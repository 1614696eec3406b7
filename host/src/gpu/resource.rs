//! Resources: ids that the guest kernel hands out for the whole device, with or without pages behind them.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::ram::Piece;

/// A resource id of the guest kernel; one number space for the whole device. 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId(pub u32);

/// What a resource was created as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A framebuffer of the console: answered, never shown, never shared.
    Console,
    /// RESOURCE_CREATE_3D: memory to share (tier 1).
    Buffer,
    /// RESOURCE_CREATE_BLOB of guest memory (tier 2): its pages come with it and stay.
    Blob,
}

/// One resource.
#[derive(Debug)]
pub struct Resource {
    pub kind: Kind,
    /// Its pages; none before ATTACH_BACKING, after DETACH_BACKING, and after the VM's memory changed under it.
    pub pieces: Option<Vec<Piece>>,
}

/// A range of a resource that is not there.
#[derive(Debug, PartialEq, Eq)]
pub struct OutOfRange;

impl Resource {
    /// Bytes of its pages.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().flatten().map(|piece| piece.len).sum()
    }

    /// Guest address of a naturally aligned 32-bit word at `offset`.
    pub fn word_address(&self, offset: u64) -> Option<GuestAddress> {
        let (addr, room) = self.locate(offset)?;
        (room >= 4 && addr % 4 == 0).then_some(GuestAddress(addr))
    }

    /// Guest address of byte `offset` and how many bytes follow it in the same piece.
    fn locate(&self, mut offset: u64) -> Option<(u64, u64)> {
        for piece in self.pieces.iter().flatten() {
            if offset < piece.len {
                return Some((piece.addr + offset, piece.len - offset));
            }
            offset -= piece.len;
        }
        None
    }

    /// Copies `bytes` to `offset`.
    pub fn write(&self, memory: &GuestMemoryMmap, offset: u64, mut bytes: &[u8]) -> Result<(), OutOfRange> {
        let mut at = offset;
        while !bytes.is_empty() {
            let (addr, room) = self.locate(at).ok_or(OutOfRange)?;
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            memory.write_slice(now, GuestAddress(addr)).map_err(|_| OutOfRange)?;
            at += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Stores a word so that whoever reads it sees everything written before it.
    pub fn publish(&self, memory: &GuestMemoryMmap, offset: u64, word: u32) -> Result<(), OutOfRange> {
        let addr = self.word_address(offset).ok_or(OutOfRange)?;
        memory.store(word.to_le(), addr, Ordering::Release).map_err(|_| OutOfRange)
    }
}

/// All resources of the device.
#[derive(Debug, Default)]
pub struct Resources {
    by_id: HashMap<ResourceId, Resource>,
    extents: usize,
}

impl Resources {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Extents of all resources together.
    pub fn extents(&self) -> usize {
        self.extents
    }

    pub fn get(&self, id: ResourceId) -> Option<&Resource> {
        self.by_id.get(&id)
    }

    pub fn ids(&self) -> Vec<ResourceId> {
        self.by_id.keys().copied().collect()
    }

    pub fn insert(&mut self, id: ResourceId, resource: Resource) {
        self.extents += resource.pieces.as_ref().map_or(0, Vec::len);
        let before = self.by_id.insert(id, resource);
        assert!(before.is_none(), "the caller checks that resource {} is new", id.0);
    }

    pub fn remove(&mut self, id: ResourceId) -> Option<Resource> {
        self.set_pieces(id, None);
        self.by_id.remove(&id)
    }

    /// Replaces a resource's pages; nothing happens if there is no such resource.
    pub fn set_pieces(&mut self, id: ResourceId, pieces: Option<Vec<Piece>>) {
        if let Some(resource) = self.by_id.get_mut(&id) {
            self.extents -= resource.pieces.as_ref().map_or(0, Vec::len);
            self.extents += pieces.as_ref().map_or(0, Vec::len);
            resource.pieces = pieces;
        }
    }

    /// The pages of a resource, to be renumbered in place; their count must stay.
    pub fn pieces_mut(&mut self, id: ResourceId) -> Option<&mut [Piece]> {
        self.by_id.get_mut(&id)?.pieces.as_deref_mut()
    }

    pub fn clear(&mut self) {
        *self = Resources::default();
    }
}
