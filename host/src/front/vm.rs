//! One virtual machine: its virtio-gpu device on one side, workers on the other.
//!
//! A session's worker gets the files behind the VM's RAM and where in them the session's arena lies, and two eventfds.
//! Its connection to the front carries that one message; after it, its end says that the other side is gone.
//!
//! ```text
//!  guest ── EXECBUFFER ─▶ device ─▶ doorbell ── host_event ──▶ worker
//!  guest ◀── fence ────── device ◀─ watcher ◀── guest_event ── worker
//! ```

use super::handshake;
use super::link::{KILL, REAP, Supervisor, WorkerRequest};
use crate::gpu::server::Server;
use crate::gpu::{
    Backing, ContextId, Contexts, Device, Extent, Limits, Refusal, ResourceId, SessionGone, SessionId,
    Wakeups,
};
use bytemuck::{Pod, Zeroable};
use ferry_protocol::calls::CallCode;
use ferry_protocol::channel::arena::check_layout;
use ferry_protocol::cursor::{self, Cursor, CursorError};
use ferry_protocol::frame::{HEADER_BYTES, Header};
use ferry_protocol::hello::{Open, Opened, Transport};
use ferry_protocol::ids::{RegionId, StreamId};
use ferry_protocol::{VERSION_MAX, VERSION_MIN};
use ferry_unix::{arena, frames};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::HashMap;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A worker that is told to end gets this long to do it by itself, and to say what it counted.
const GRACE: Duration = Duration::from_millis(300);
/// How often the end of a worker that does not end is asked for again, and complained about.
const END_AGAIN: Duration = Duration::from_millis(100);

/// Extents of an arena or a region: the largest region in single pages.
pub const EXTENTS_MAX: usize = 1 << 16;
/// Bytes of the message that tells a worker of them.
pub const ARENA_MESSAGE_BYTES_MAX: usize = size_of::<ArenaHeader>() + EXTENTS_MAX * size_of::<ExtentRecord>();

/// Serves one VM after the other at `listener`.
pub fn serve(
    listener: UnixListener,
    welcome: Vec<u8>,
    supervisor: Supervisor,
    stats: Option<PathBuf>,
) -> anyhow::Result<()> {
    let wakeups = Wakeups::new();
    let workers = Workers { welcome, supervisor, wakeups: wakeups.clone(), sessions: HashMap::new(), stats };
    let device = Device::new(Box::new(workers), wakeups, Limits::default(), VERSION_MIN..=VERSION_MAX)?;
    Server::from_listener(listener, Arc::new(Mutex::new(device))).run()
}

/// What a worker is told of its arena; two eventfds and the files come with it.
#[derive(Debug)]
pub struct ArenaMessage {
    /// Where the rings lie.
    pub layout: Opened,
    /// Where the arena lies in the files.
    pub extents: Vec<Extent>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ArenaHeader {
    layout: Opened,
    extents: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ExtentRecord {
    offset: u64,
    len: u64,
    file: u32,
    reserved: u32,
}

impl ArenaMessage {
    fn encode(&self) -> Vec<u8> {
        let header = ArenaHeader { layout: self.layout, extents: self.extents.len() as u64 };
        let records: Vec<ExtentRecord> = self.extents.iter().map(ExtentRecord::of).collect();
        [bytemuck::bytes_of(&header), bytemuck::cast_slice(&records)].concat()
    }

    /// Reads what the front wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, CursorError> {
        let mut cursor = Cursor::new(bytes);
        let header: ArenaHeader = cursor.value("an arena")?;
        let records: Vec<ExtentRecord> = cursor.values(header.extents as usize, "the extents of an arena")?;
        cursor.finish()?;
        Ok(Self { layout: header.layout, extents: records.iter().map(ExtentRecord::extent).collect() })
    }
}

impl ExtentRecord {
    fn of(extent: &Extent) -> Self {
        Self { offset: extent.offset, len: extent.len, file: extent.file, reserved: 0 }
    }

    fn extent(&self) -> Extent {
        Extent { file: self.file, offset: self.offset, len: self.len }
    }
}

/// Reads the list of a region's extents, which the front wrote into a file.
pub fn decode_extents(bytes: &[u8]) -> Result<Vec<Extent>, CursorError> {
    let mut cursor = Cursor::new(bytes);
    let count = bytes.len() / size_of::<ExtentRecord>();
    let records: Vec<ExtentRecord> = cursor.values(count, "the extents of a region")?;
    cursor.finish()?;
    Ok(records.iter().map(ExtentRecord::extent).collect())
}

/// Front and worker speak of one region, told of one time: a guest may use a resource for several regions, one after the
/// other, and the end of the last must not be taken for the end of the next.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub struct RegionNote {
    /// The region.
    pub region: RegionId,
    /// The front's number for this time.
    pub number: u32,
}

/// The device's sessions and their workers.
struct Workers {
    welcome: Vec<u8>,
    supervisor: Supervisor,
    wakeups: Wakeups,
    sessions: HashMap<SessionId, Worker>,
    /// Gets a line of the device's counters whenever a session ends.
    stats: Option<PathBuf>,
}

/// A session's worker, seen from here.
struct Worker {
    connection: UnixStream,
    host_event: OwnedFd,
    heard: Arc<Heard>,
    /// Notes of regions up to now.
    notes: u32,
}

/// What was heard of a worker.
#[derive(Default)]
struct Heard {
    news: Mutex<News>,
    changed: Condvar,
}

#[derive(Default)]
struct News {
    /// The kernel closes its end of the connection after its memory is unmapped.
    gone: bool,
    /// What it was told of, by the last note of each region.
    regions: HashMap<RegionId, ToldRegion>,
}

struct ToldRegion {
    number: u32,
    /// It does not have it mapped any more.
    dropped: bool,
}

impl Heard {
    fn note(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits until `until`; whether it came true in time.
    fn wait(&self, timeout: Duration, mut until: impl FnMut(&mut News) -> bool) -> bool {
        let news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(news, timeout, |news| !until(news));
        let (_news, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        !timeout.timed_out()
    }
}

impl Contexts for Workers {
    fn control(&mut self, _: ContextId, request: &[u8]) -> Vec<u8> {
        let Some((header, payload)) = request.split_at_checked(HEADER_BYTES) else { return Vec::new() };
        let answer = handshake::answer(bytemuck::pod_read_unaligned(header), payload, &self.welcome);
        if let Some(text) = answer.rejected {
            tracing::warn!("a guest was turned away: {text}");
        }
        let header = Header { payload_len: answer.payload.len() as u32, ..answer.header };
        [bytemuck::bytes_of(&header), &answer.payload].concat()
    }

    fn open(
        &mut self,
        _: ContextId,
        session: SessionId,
        message: &[u8],
        arena: Backing,
    ) -> Result<(), Refusal> {
        let (open, layout) = parse_open(message, arena.bytes)?;
        if arena.extents.len() > EXTENTS_MAX {
            return Err(Refusal(format!("an arena in {} pieces", arena.extents.len())));
        }
        let refusal = |error: std::io::Error| Refusal(format!("cannot start a worker: {error}"));
        let (connection, theirs) = UnixStream::pair().map_err(refusal)?;
        let (host_event, guest_event) = (arena::event().map_err(refusal)?, arena::event().map_err(refusal)?);
        let request = WorkerRequest { session: session.0, open_seq: 0, open };
        self.supervisor.start(&request, &theirs).map_err(refusal)?;
        drop(theirs);
        let mut fds = vec![host_event.as_raw_fd(), guest_event.as_raw_fd()];
        fds.extend(arena.files.iter().map(|file| file.as_raw_fd()));
        let told = ArenaMessage { layout, extents: arena.extents }.encode();
        let header = Header::request(CallCode::OPEN, StreamId::SESSION, 0);
        frames::write(&connection, header, &told, &fds).map_err(refusal)?;
        // A worker that does not read must not hold the device up.
        connection.set_write_timeout(Some(GRACE)).map_err(refusal)?;
        let heard = Arc::new(Heard::default());
        self.watch(session, &connection, guest_event, heard.clone()).map_err(refusal)?;
        self.sessions.insert(session, Worker { connection, host_event, heard, notes: 0 });
        Ok(())
    }

    /// The worker maps it when the guest asks for it, in the order of its messages.
    fn add_region(
        &mut self,
        session: SessionId,
        resource: ResourceId,
        region: Backing,
    ) -> Result<(), Refusal> {
        let Some(worker) = self.sessions.get_mut(&session) else {
            return Err(Refusal("no session".to_owned()));
        };
        if region.extents.len() > EXTENTS_MAX {
            return Err(Refusal(format!("a region in {} pieces", region.extents.len())));
        }
        let refusal = |error: std::io::Error| Refusal(format!("cannot tell the worker: {error}"));
        worker.notes = worker.notes.wrapping_add(1);
        let note = RegionNote { region: RegionId(resource.0), number: worker.notes };
        let told = ToldRegion { number: note.number, dropped: false };
        worker.heard.note(|news| _ = news.regions.insert(note.region, told));
        // The list may be long, and the worker busy: it goes through a file, not through the socket.
        let list = extents_file(&region.extents).map_err(refusal)?;
        let mut fds = vec![list.as_raw_fd()];
        fds.extend(region.files.iter().map(|file| file.as_raw_fd()));
        let header = Header::request(CallCode::ADD_REGION, StreamId::SESSION, 0);
        frames::write(&worker.connection, header, bytemuck::bytes_of(&note), &fds).map_err(refusal)
    }

    /// A guest has its worker let go of a region before it takes the pages back. One that does not, because it was killed
    /// in the middle of something, loses the session.
    fn release(&mut self, session: SessionId, resource: ResourceId) -> Result<(), SessionGone> {
        let Some(worker) = self.sessions.get(&session) else { return Err(SessionGone) };
        let id = RegionId(resource.0);
        let mut dropped = false;
        worker.heard.wait(GRACE, |news| {
            dropped = news.regions.get(&id).is_some_and(|told| told.dropped);
            dropped || news.gone
        });
        worker.heard.note(|news| _ = news.regions.remove(&id));
        if dropped { Ok(()) } else { Err(SessionGone) }
    }

    fn doorbell(&mut self, session: SessionId) {
        if let Some(worker) = self.sessions.get(&session) {
            arena::notify(&worker.host_event);
        }
    }

    fn close(&mut self, session: SessionId) {
        let Some(worker) = self.sessions.remove(&session) else { return };
        // Its end of the connection is what a worker goes by. The file behind the arena stays mapped until it is gone.
        let _ = worker.connection.shutdown(Shutdown::Write);
        let by_itself = worker.heard.wait(GRACE, |news| news.gone);
        let code = if by_itself { REAP } else { KILL };
        while let Err(error) = self.supervisor.end(code, session.0) {
            // The guest's kernel must not have these pages back: better that it waits.
            tracing::error!("the worker of session {} does not end: {error}", session.0);
            std::thread::sleep(END_AGAIN);
        }
        self.append_stats();
    }
}

impl Workers {
    /// The device's counters, as one line of JSON: what the guest cost, counted by somebody else than guest and worker.
    fn append_stats(&self) {
        let Some(path) = &self.stats else { return };
        let counters: serde_json::Map<_, _> = self
            .wakeups
            .counters()
            .named()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let line = format!("{}\n", serde_json::json!({ "device": counters }));
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            tracing::error!("cannot write {}: {error}", path.display());
        }
    }

    /// Hears a worker: passes its wake-ups on to the guest, and notes its end.
    fn watch(
        &self,
        session: SessionId,
        connection: &UnixStream,
        guest_event: OwnedFd,
        heard: Arc<Heard>,
    ) -> std::io::Result<()> {
        let (connection, wakeups) = (connection.try_clone()?, self.wakeups.clone());
        let name = format!("session-{}", session.0);
        std::thread::Builder::new().name(name).spawn(move || {
            loop {
                let mut fds = [
                    PollFd::new(guest_event.as_fd(), PollFlags::POLLIN),
                    PollFd::new(connection.as_fd(), PollFlags::POLLIN),
                ];
                // An interruption: look again.
                let _ = poll(&mut fds, PollTimeout::NONE);
                if fds[0].any().unwrap_or(false) {
                    arena::reset(&guest_event);
                    wakeups.signal(session);
                } else if fds[1].any().unwrap_or(false) {
                    let Ok((_, payload, _)) = frames::read(&connection) else { break };
                    let Ok(note) = cursor::only::<RegionNote>(&payload, "a region") else { break };
                    heard.note(|news| {
                        let told = news.regions.get_mut(&note.region);
                        if let Some(told) = told.filter(|told| told.number == note.number) {
                            told.dropped = true;
                        }
                    });
                }
            }
            heard.note(|news| news.gone = true);
            wakeups.lost(session);
        })?;
        Ok(())
    }
}

/// A file with a region's extents.
fn extents_file(extents: &[Extent]) -> std::io::Result<std::fs::File> {
    use std::io::Seek;
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    let mut file = std::fs::File::from(nix::sys::memfd::memfd_create(c"ferry-extents", flags)?);
    let records: Vec<ExtentRecord> = extents.iter().map(ExtentRecord::of).collect();
    file.write_all(bytemuck::cast_slice(&records))?;
    file.rewind()?;
    Ok(file)
}

/// What comes with a guest's OPEN: how it wants to speak, and how it lays out its arena.
fn parse_open(message: &[u8], arena_bytes: u64) -> Result<(Open, Opened), Refusal> {
    let mut cursor = Cursor::new(message);
    let mut parse = || -> Result<(Open, Opened), CursorError> {
        let open = (cursor.value("an OPEN")?, cursor.value("the layout of an arena")?);
        cursor.clone().finish()?;
        Ok(open)
    };
    let (open, layout) = parse().map_err(|error| Refusal(error.to_string()))?;
    if open.transport != Transport::VIRTGPU {
        return Err(Refusal(format!("transport {} over virtio-gpu", open.transport.0)));
    }
    check_layout(&layout).map_err(|error| Refusal(error.to_string()))?;
    if layout.arena_bytes > arena_bytes {
        return Err(Refusal(format!("an arena of {arena_bytes} bytes laid out as {}", layout.arena_bytes)));
    }
    Ok((open, layout))
}
