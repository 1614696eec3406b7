//! Where a worker's regions come from: memory that it makes and passes to a guest on this machine, or pages of a virtual
//! machine that the front tells it of.

use crate::front::{EXTENTS_MAX, RegionNote, decode_extents};
use crate::gpu::mmap::Stitched;
use crate::worker::RegionSource;
use ferry_protocol::calls::CallCode;
use ferry_protocol::channel::memory::Mapping;
use ferry_protocol::cursor;
use ferry_protocol::frame::Header;
use ferry_protocol::ids::{RegionId, StreamId};
use ferry_protocol::limits::REGIONS_PER_SESSION_MAX;
use ferry_unix::{arena, frames, frames::FrameError};
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
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
    /// Told of, and not asked for yet: the note's number and the files.
    waiting: HashMap<RegionId, (u32, Vec<OwnedFd>)>,
    /// Asked for: the number of the note.
    taken: HashMap<RegionId, u32>,
}

impl Told {
    /// Listens to the front at the other end of `front`, which is not blocking.
    pub fn new(front: UnixStream) -> Self {
        Self { front, waiting: HashMap::new(), taken: HashMap::new() }
    }

    /// Hears all that the front has said.
    fn listen(&mut self) -> anyhow::Result<()> {
        loop {
            let (header, payload, files) = match frames::read(&self.front) {
                Err(FrameError::Io(error)) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                frame => frame?,
            };
            anyhow::ensure!(header.call == CallCode::ADD_REGION, "the front sent {}", header.call);
            anyhow::ensure!(self.waiting.len() < REGIONS_PER_SESSION_MAX, "regions that nobody asks for");
            let note: RegionNote = cursor::only(&payload, "a region")?;
            self.waiting.insert(note.region, (note.number, files));
        }
    }

    /// The files of a region: one with its extents, and those behind the machine's memory.
    fn files(&mut self, region: RegionId) -> anyhow::Result<Vec<OwnedFd>> {
        self.listen()?;
        let (number, files) =
            self.waiting.remove(&region).ok_or_else(|| anyhow::anyhow!("no such region"))?;
        self.taken.insert(region, number);
        Ok(files)
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

    /// The front is told of what it told us of, once for each time: to hear it of anything else, it would take pages for
    /// free that are mapped.
    fn dropped(&mut self, region: RegionId) {
        if let Err(error) = self.listen() {
            tracing::error!("the front: {error:#}");
        }
        let waiting = self.waiting.remove(&region).map(|(number, _)| number);
        let Some(number) = self.taken.remove(&region).or(waiting) else { return };
        let header = Header::request(CallCode::DROP_REGION, StreamId::SESSION, 0);
        let note = RegionNote { region, number };
        if let Err(error) = frames::write(&self.front, header, bytemuck::bytes_of(&note), &[]) {
            // The front then ends the session when the guest takes the pages back.
            tracing::error!("cannot tell the front of {region:?}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The front's end, and the worker's.
    fn told() -> (UnixStream, Told) {
        let (front, worker) = UnixStream::pair().unwrap();
        for end in [&front, &worker] {
            end.set_nonblocking(true).unwrap();
        }
        (front, Told::new(worker))
    }

    fn tell(front: &UnixStream, region: u32, number: u32) {
        let header = Header::request(CallCode::ADD_REGION, StreamId::SESSION, 0);
        let note = RegionNote { region: RegionId(region), number };
        frames::write(front, header, bytemuck::bytes_of(&note), &[]).unwrap();
    }

    /// What the front hears.
    fn hear(front: &UnixStream) -> Option<(u32, u32)> {
        let (_, payload, _) = frames::read(front).ok()?;
        let note: RegionNote = cursor::only(&payload, "a region").unwrap();
        Some((note.region.0, note.number))
    }

    #[test]
    fn the_front_hears_nothing_of_a_region_that_it_did_not_tell_of() {
        let (front, mut told) = told();
        assert!(told.add(RegionId(7), 4096).is_err());
        told.dropped(RegionId(7));
        tell(&front, 7, 1);
        assert_eq!(hear(&front), None, "this would be taken for the end of what comes now");
    }

    #[test]
    fn a_region_that_was_refused_is_gone_for_good() {
        let (front, mut told) = told();
        tell(&front, 7, 1);
        told.dropped(RegionId(7));
        assert_eq!(hear(&front), Some((7, 1)));
        assert!(told.add(RegionId(7), 4096).err().unwrap().contains("no such region"));
    }

    #[test]
    fn each_time_that_a_region_is_told_of_ends_once() {
        let (front, mut told) = told();
        for number in [1, 2] {
            tell(&front, 7, number);
            // It has no pages and cannot be mapped, but it was taken.
            assert!(!told.add(RegionId(7), 4096).err().unwrap().contains("no such region"));
            told.dropped(RegionId(7));
            told.dropped(RegionId(7));
            assert_eq!((hear(&front), hear(&front)), (Some((7, number)), None));
        }
    }
}
