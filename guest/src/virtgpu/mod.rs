//! The transport of a virtual machine: a virtio-gpu device with Ferry's capability set.
//!
//! The arena is a GEM resource of this process, whose pages the host maps; what is written there the other side sees.
//! EXECBUFFER rings the host, and a fence lets this side sleep; a fence is a wake-up, never a proof.
//!
//! One open of the render node is one context on the device, one session and one worker. The node is opened anew for each
//! session; closing it ends everything that belongs to it.

mod doorbell;
mod uapi;

use crate::connect::{ConnectError, Connection};
use crate::regions::{Offer, Regions};
use bytemuck::Zeroable;
use doorbell::FenceDoorbell;
use drm::Device;
use ferry_protocol::calls::CallCode;
use ferry_protocol::channel::arena::{Arena, End, SESSION_STATE_OFFSET, default_layout};
use ferry_protocol::channel::memory::{MappedRange, Mapping, Memory};
use ferry_protocol::channel::ring::{Side, halves};
use ferry_protocol::frame::{HEADER_BYTES, Header};
use ferry_protocol::hello::{Hello, Open, Opened, Transport};
use ferry_protocol::ids::{RegionId, StreamId};
use ferry_protocol::limits::HANDSHAKE_PAYLOAD_BYTES_MAX;
use ferry_protocol::virtgpu::{
    CAPSET_ID, CAPSET_MAGIC, CAPSET_VERSION, Capset, Command, Open as OpenCommand, ReplyHeader, ReplyPlace,
    ReplyStatus,
};
use ferry_unix::{Channel, Counters};
use memmap2::{MmapOptions, MmapRaw};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uapi::Node;

/// Where the kernel puts render nodes.
const NODES: &str = "/dev/dri";
/// Bytes of the resource that takes answers before there is an arena.
const REPLY_BYTES: usize =
    (HANDSHAKE_PAYLOAD_BYTES_MAX + HEADER_BYTES + size_of::<ReplyHeader>()).next_multiple_of(4096);

/// A render node of Ferry's device.
#[derive(Clone, Debug)]
pub struct GpuNode {
    path: PathBuf,
}

/// What a search for the device found.
pub enum Found {
    /// It.
    Node(GpuNode),
    /// A virtio-gpu device that this process may not open.
    Forbidden(PathBuf),
    /// Nothing, or devices of others.
    Nothing,
}

/// Looks for Ferry's device among the render nodes. Others are passed over quietly.
pub fn find() -> Found {
    let entries = std::fs::read_dir(NODES).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| is_render_node(path)).collect();
    paths.sort();
    let mut forbidden = None;
    for path in paths {
        match open(&path) {
            Ok(node) if is_ferry(&node) => return Found::Node(GpuNode { path }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_virtio(&path) => {
                forbidden = Some(path)
            }
            _ => {}
        }
    }
    forbidden.map_or(Found::Nothing, Found::Forbidden)
}

fn is_render_node(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("renderD"))
}

/// Whether the node belongs to a virtio-gpu device, as far as can be told without opening it.
fn is_virtio(path: &Path) -> bool {
    // The node's parent is the virtio device or, where that sits on PCI, the PCI device above it.
    let parent = Path::new("/sys/class/drm").join(path.file_name().unwrap_or_default()).join("device");
    let below = std::fs::read_dir(&parent).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut devices = below.filter(|path| path.is_dir()).chain([parent]);
    devices.any(|device| {
        std::fs::canonicalize(device.join("driver")).is_ok_and(|driver| driver.ends_with("virtio_gpu"))
    })
}

fn open(path: &Path) -> io::Result<Node> {
    Ok(Node(std::fs::File::options().read(true).write(true).open(path)?))
}

/// Whether the device behind a node is Ferry's: a virtio-gpu with its capability set.
fn is_ferry(node: &Node) -> bool {
    let virtio = node.get_driver().is_ok_and(|driver| driver.name() == "virtio_gpu");
    let mut capset = Capset::zeroed();
    virtio
        && uapi::get_caps(node.as_fd(), CAPSET_ID, CAPSET_VERSION, bytemuck::bytes_of_mut(&mut capset))
            .is_ok()
        && capset.magic == CAPSET_MAGIC
}

impl GpuNode {
    /// The node's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Shakes hands: what the daemon answers to a HELLO.
    pub fn hello(&self, hello: &Hello) -> Result<(Header, Vec<u8>), ConnectError> {
        let node = Arc::new(open(&self.path)?);
        let memory = GemMemory::new(&node, REPLY_BYTES)?;
        let header = Header {
            payload_len: size_of::<Hello>() as u32,
            ..Header::request(CallCode::HELLO, StreamId::SESSION, 1)
        };
        let request = [bytemuck::bytes_of(&header), bytemuck::bytes_of(hello)].concat();
        let reply = memory.command(&Command::Control(&request), 0, REPLY_BYTES)?;
        let Some((header, payload)) = reply.split_at_checked(HEADER_BYTES) else {
            return Err(self.nonsense("an answer without header"));
        };
        Ok((bytemuck::pod_read_unaligned(header), payload.to_vec()))
    }

    /// Opens a session.
    pub fn open(&self) -> Result<Connection, ConnectError> {
        let node = Arc::new(open(&self.path)?);
        let layout = default_layout();
        let memory = GemMemory::new(&node, layout.arena_bytes as usize)?;
        let open = Open { transport: Transport::VIRTGPU, client_pid: std::process::id() };
        let message = [bytemuck::bytes_of(&open), bytemuck::bytes_of(&layout)].concat();
        let command = OpenCommand { arena: memory.resource, state_offset: SESSION_STATE_OFFSET as u32 };
        // The answer goes where the rings will be: nothing is there yet, and it is read before anything is.
        let at = layout.arena_bytes as usize - size_of::<ReplyHeader>().next_multiple_of(8);
        memory.command(&Command::Open(command, &message), at, size_of::<ReplyHeader>())?;
        let regions = GemRegions { node: node.clone() };
        let channel = self.channel(node, memory, &layout)?;
        Ok(Connection { channel, regions: Some(Box::new(regions)) })
    }

    fn channel(&self, node: Arc<Node>, memory: GemMemory, layout: &Opened) -> Result<Channel, ConnectError> {
        let mapping: Arc<dyn Mapping> = Arc::new(memory);
        let state =
            MappedRange::new(mapping.clone(), SESSION_STATE_OFFSET, 4).expect("lies in the first page");
        let arena =
            Arena::new(mapping, layout, End::Guest).map_err(|error| self.nonsense(&error.to_string()))?;
        let counters = Arc::new(Counters::default());
        let doorbell = FenceDoorbell::new(node, state, counters.clone())?;
        let side = Side::new(arena.incoming, arena.outgoing, arena.words, doorbell);
        let (sender, receiver) = halves(&side);
        Ok(Channel { sender: Box::new(sender), receiver: Box::new(receiver), waiter: side, counters })
    }

    fn nonsense(&self, text: &str) -> ConnectError {
        ConnectError::Nonsense(self.path.clone(), text.to_owned())
    }
}

/// Regions of a virtual machine: resources of the session's context, which the device shows to the worker.
struct GemRegions {
    node: Arc<Node>,
}

impl Regions for GemRegions {
    fn offer(&mut self, bytes: usize) -> io::Result<Offer> {
        if u32::try_from(bytes).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let memory = GemMemory::new(&self.node, bytes)?;
        let region = RegionId(memory.resource);
        // The answer goes where the program's data will be: nothing is there yet.
        memory
            .command(&Command::RegionAdd(memory.resource), 0, size_of::<ReplyHeader>())
            .map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Offer { region, bytes, memory: Some(Arc::new(memory)) })
    }

    fn take(&mut self, offer: Offer) -> io::Result<Arc<dyn Mapping>> {
        offer.memory.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl Drop for GemMemory {
    fn drop(&mut self) {
        // The pages are the kernel's again when the mapping is gone, too.
        uapi::close(self.node.as_fd(), self.handle);
    }
}

/// A resource of the device, mapped. It keeps the node open: its handle means nothing without.
struct GemMemory {
    map: Arc<MmapRaw>,
    range: MappedRange,
    node: Arc<Node>,
    handle: u32,
    resource: u32,
}

impl GemMemory {
    fn new(node: &Arc<Node>, bytes: usize) -> io::Result<Self> {
        let (handle, resource) = uapi::create_buffer(node.as_fd(), bytes as u32)?;
        let offset = uapi::map_offset(node.as_fd(), handle)?;
        let map = Arc::new(MmapOptions::new().len(bytes).offset(offset).map_raw(&node.0)?);
        // A child that was forked off has nothing to say here.
        map.advise(memmap2::Advice::DontFork)?;
        let range = MappedRange::new(map.clone(), 0, bytes).expect("is the whole");
        Ok(Self { map, range, node: node.clone(), handle, resource })
    }

    /// Sends a command whose reply goes to `at`, waits for it, and gives the bytes behind its header.
    fn command(&self, command: &Command<'_>, at: usize, room: usize) -> Result<Vec<u8>, ConnectError> {
        let place = ReplyPlace { resource: self.resource, offset: at as u32, capacity: room as u32 };
        self.range.write(at, bytemuck::bytes_of(&ReplyHeader::zeroed()));
        uapi::exec(self.node.as_fd(), &command.encode(place), &[self.handle]).map_err(io::Error::from)?;
        uapi::wait(self.node.as_fd(), self.handle).map_err(io::Error::from)?;
        let mut header = ReplyHeader::zeroed();
        self.range.read(at, bytemuck::bytes_of_mut(&mut header));
        let len = header.len as usize;
        match header.status {
            ReplyStatus::OK if len <= room - size_of::<ReplyHeader>() => {}
            status => return Err(ConnectError::Device(status)),
        }
        let mut bytes = vec![0; len];
        self.range.read(at + size_of::<ReplyHeader>(), &mut bytes);
        self.range.write(at, bytemuck::bytes_of(&ReplyHeader::zeroed()));
        Ok(bytes)
    }
}

#[path = "memory.rs"]
mod memory;
