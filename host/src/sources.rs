//! Where a worker's regions come from: memory that it makes and passes to a guest on this machine, or pages of a virtual
//! machine that the front tells it of.

use crate::front::{EXTENTS_MAX, decode_extents};
use crate::gpu::mmap::Stitched;
use crate::worker::RegionSource;
use ferry_protocol::calls::CallCode;
use ferry_protocol::channel::memory::Mapping;
use ferry_protocol::cursor;
use ferry_protocol::frame::Header;
use ferry_protocol::ids::{RegionId, StreamId};
use ferry_protocol::limits::REGIONS_PER_SESSION_MAX;
use ferry_unix::{arena, frames};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// For a guest on this machine.
pub struct Made {
    socket: UnixStream,
}

impl Made {
    /// Passes memory through `socket`, which is not blocking.
    pub fn new(socket: UnixStream) -> Self {
        Self { socket }
    }

    fn make(&self, region: RegionId, bytes: usize) -> std::io::Result<Arc<dyn Mapping>> {
        let memory = arena::sealed(c"ferry-region", bytes as u64)?;
        let mapping = arena::map(&memory, bytes as u64)?;
        let header = Header::request(CallCode::ADD_REGION, StreamId::SESSION, 0);
        frames::write(&self.socket, header, bytemuck::bytes_of(&region), &[memory.as_raw_fd()])?;
        Ok(Arc::new(mapping))
    }
}

impl RegionSource for Made {
    fn add(&mut self, region: RegionId, bytes: usize) -> Result<Arc<dyn Mapping>, String> {
        self.make(region, bytes).map_err(|error| format!("cannot share {bytes} bytes: {error}"))
    }

    fn dropped(&mut self, _: RegionId) {}
}

/// For a guest in a virtual machine: its device has told the front, and that has told us, before the guest asks.
pub struct Told {
    front: UnixStream,
    waiting: HashMap<RegionId, Vec<OwnedFd>>,
}

impl Told {
    /// Listens to the front at the other end of `front`, which is not blocking.
    pub fn new(front: UnixStream) -> Self {
        Self { front, waiting: HashMap::new() }
    }

    /// The files of a region: one with its extents, and those behind the machine's memory.
    fn files(&mut self, region: RegionId) -> anyhow::Result<Vec<OwnedFd>> {
        while !self.waiting.contains_key(&region) {
            let (header, payload, files) = frames::read(&self.front)?;
            anyhow::ensure!(header.call == CallCode::ADD_REGION, "the front sent {}", header.call);
            anyhow::ensure!(self.waiting.len() < REGIONS_PER_SESSION_MAX, "regions that nobody asks for");
            self.waiting.insert(cursor::only(&payload, "a region")?, files);
        }
        self.waiting.remove(&region).ok_or_else(|| anyhow::anyhow!("no such region"))
    }

    fn map(&mut self, region: RegionId, bytes: usize) -> anyhow::Result<Arc<dyn Mapping>> {
        let mut files = self.files(region)?.into_iter();
        let mut extents = Vec::new();
        let list = files.next().ok_or_else(|| anyhow::anyhow!("a region without a list"))?;
        File::from(list).take(EXTENTS_MAX as u64 * 24).read_to_end(&mut extents)?;
        let files: Vec<OwnedFd> = files.collect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mapping = Stitched::map(&files, &decode_extents(&extents)?)?;
        anyhow::ensure!(mapping.len() >= bytes, "the resource has {} bytes", mapping.len());
        Ok(Arc::new(mapping))
    }
}

impl RegionSource for Told {
    fn add(&mut self, region: RegionId, bytes: usize) -> Result<Arc<dyn Mapping>, String> {
        self.map(region, bytes).map_err(|error| format!("cannot map {region:?} of {bytes} bytes: {error:#}"))
    }

    fn dropped(&mut self, region: RegionId) {
        self.waiting.remove(&region);
        let header = Header::request(CallCode::DROP_REGION, StreamId::SESSION, 0);
        if let Err(error) = frames::write(&self.front, header, bytemuck::bytes_of(&region), &[]) {
            // The front then ends the session when the guest takes the pages back.
            tracing::error!("cannot tell the front of {region:?}: {error}");
        }
    }
}
