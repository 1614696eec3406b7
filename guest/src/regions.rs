//! Memory that this process and its worker both see, besides the arena: how it is come by. Each transport has its own way.

use ferry_protocol::channel::memory::Mapping;
use ferry_protocol::ids::RegionId;
use std::io;
use std::sync::Arc;

/// Regions are whole pages.
pub const PAGE_BYTES: usize = 4096;

/// A transport's way to regions.
pub trait Regions: Send {
    /// Before the worker is asked for a region of `bytes`: its name, and the memory if it is this side that has it.
    fn offer(&mut self, bytes: usize) -> io::Result<Offer>;
    /// After the worker has agreed: the memory.
    fn take(&mut self, offer: Offer) -> io::Result<Arc<dyn Mapping>>;
}

/// A region that the worker is asked for.
// No transport of macOS has regions yet.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub struct Offer {
    /// What it will be called.
    pub region: RegionId,
    /// Bytes.
    pub bytes: usize,
    /// Its memory, where that comes from this side.
    pub memory: Option<Arc<dyn Mapping>>,
}

/// Regions of a daemon on this machine: it makes them and passes them through the session's socket.
#[cfg(target_os = "linux")]
pub struct Passed {
    socket: std::os::unix::net::UnixStream,
    last: u32,
}

#[cfg(target_os = "linux")]
impl Passed {
    /// Those that come through `socket`.
    pub fn new(socket: std::os::unix::net::UnixStream) -> Self {
        Self { socket, last: 0 }
    }
}

#[cfg(target_os = "linux")]
impl Regions for Passed {
    fn offer(&mut self, bytes: usize) -> io::Result<Offer> {
        self.last = self.last.wrapping_add(1);
        Ok(Offer { region: RegionId(self.last), bytes, memory: None })
    }

    fn take(&mut self, offer: Offer) -> io::Result<Arc<dyn Mapping>> {
        use ferry_protocol::calls::CallCode;
        use ferry_protocol::cursor;
        let nonsense = |text| io::Error::new(io::ErrorKind::InvalidData, text);
        // The worker has sent it before it answered, so it is there; a frame this small never comes in parts.
        let (header, payload, mut files) =
            ferry_unix::frames::read(&self.socket).map_err(|error| io::Error::other(error.to_string()))?;
        let region = cursor::only::<RegionId>(&payload, "a region");
        if header.call != CallCode::ADD_REGION || region != Ok(offer.region) || files.len() != 1 {
            return Err(nonsense("the daemon sent something else than the region"));
        }
        let file = files.remove(0);
        Ok(Arc::new(ferry_unix::arena::map(&file, offer.bytes as u64)?))
    }
}
