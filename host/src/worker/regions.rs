//! Memory besides the arena that guest and worker both see: the guest's host buffers.

use crate::ggml::Shared;
use ferry_protocol::channel::memory::Mapping;
use ferry_protocol::ids::RegionId;
use ferry_protocol::limits::{REGION_BYTES_PER_SESSION_MAX, REGIONS_PER_SESSION_MAX};
use ferry_protocol::status::Status;
use std::collections::HashMap;
use std::sync::Arc;

/// Regions are whole pages.
const PAGE_BYTES: u64 = 4096;

/// Where a session's regions come from.
pub trait RegionSource {
    /// Maps `bytes` that the guest sees as well. The text of an error is for the guest.
    fn add(&mut self, region: RegionId, bytes: usize) -> Result<Arc<dyn Mapping>, String>;
    /// The region is not mapped any more, or never was.
    fn dropped(&mut self, region: RegionId);
}

/// What a session shares with its guest.
pub struct Sharing {
    /// The memory with the rings.
    pub arena: Arc<dyn Mapping>,
    /// Where more comes from.
    pub regions: Box<dyn RegionSource>,
}

/// A session's regions.
pub struct Regions {
    arena: Option<Shared>,
    source: Option<Box<dyn RegionSource>>,
    mapped: HashMap<RegionId, Shared>,
}

impl Regions {
    /// Those of a session that shares memory with its guest; none at all for one that does not.
    pub fn new(sharing: Option<Sharing>) -> Self {
        let (arena, source) = sharing.map(|sharing| (Shared::new(sharing.arena), sharing.regions)).unzip();
        Self { arena, source, mapped: HashMap::new() }
    }

    /// Has the driver of a CUDA back-end know the arena, so that uploads out of it need no detour. Possible from the first
    /// buffer on, and done once.
    pub fn pin_arena(&self) {
        if let Some(arena) = &self.arena {
            arena.span(0, 0);
        }
    }

    /// Adds a region.
    pub fn add(&mut self, region: RegionId, bytes: u64) -> Result<(), (Status, String)> {
        let Some(source) = &mut self.source else {
            return Err((Status::UNSUPPORTED, "this transport has no shared memory".to_owned()));
        };
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || self.mapped.contains_key(&region) {
            return Err((Status::INVALID, format!("{region:?} of {bytes} bytes, or its name is taken")));
        }
        let used: u64 = self.mapped.values().map(|shared| shared.bytes() as u64).sum();
        let fits = used.checked_add(bytes).is_some_and(|all| all <= REGION_BYTES_PER_SESSION_MAX);
        if !fits || self.mapped.len() >= REGIONS_PER_SESSION_MAX {
            source.dropped(region);
            let text = format!("{bytes} bytes more than the {used} in {} regions", self.mapped.len());
            return Err((Status::LIMIT, text));
        }
        match source.add(region, bytes as usize) {
            Ok(mapping) => {
                self.mapped.insert(region, Shared::new(mapping));
                Ok(())
            }
            Err(text) => {
                source.dropped(region);
                Err((Status::NO_MEMORY, text))
            }
        }
    }

    /// Unmaps a region; whether there was one. Nothing may be reading or writing it any more.
    pub fn drop_region(&mut self, region: RegionId) -> bool {
        let found = self.mapped.remove(&region).is_some();
        if let Some(source) = self.source.as_mut().filter(|_| found) {
            source.dropped(region);
        }
        found
    }

    /// A region.
    pub fn get(&self, region: RegionId) -> Option<&Shared> {
        self.mapped.get(&region)
    }
}
