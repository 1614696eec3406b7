//! The connection to a worker: one per process, used by all of its threads.
//!
//! Messages are posted or awaited. Senders take turns under a lock. Of the threads that wait for an answer one leads: it
//! receives for all, and the others sleep until it has delivered theirs or hands the lead over. Nobody holds a lock while
//! sleeping for the other side.
//!
//! ```text
//!  post ─▶ [sender]                 await ─▶ not there ─▶ nobody leads ─▶ lead: receive, deliver, sleep
//!                                                     └▶ somebody leads ─▶ sleep until delivered
//! ```
//!
//! Once the other side is gone the session is lost for good: what was waited for is an error, reads are filled with
//! 0xFF, posts are dropped. The next backend instance gets a new session.

use crate::connect::Connection;
use crate::ffi::Destination;
use crate::log::{self, Level};
use crate::regions::Regions;
use crate::slots::FreeSlots;
use crate::sys::fork::ForkMark;
use ferry_protocol::calls::CallCode;
use ferry_protocol::channel::memory::Mapping;
use ferry_protocol::channel::spin::{Next, Spin};
use ferry_protocol::channel::{Broken, Interest, Payload, Receiver, Sender, Waiter};
use ferry_protocol::frame::{Flags, Header};
use ferry_protocol::ids::{RegionId, Seq, StreamId};
use ferry_protocol::limits::{EVENTS_PER_SESSION_MAX, GRAPHS_PER_SESSION_MAX};
use ferry_protocol::reply::NoticeHeader;
use ferry_protocol::request::AddRegion;
use ferry_protocol::status::Status;
use ferry_unix::Counters;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Failures that are logged in full; the rest are only counted.
const FAILURES_LOGGED_MAX: u32 = 20;

/// The environment variable for how long to look for an answer before sleeping, in microseconds at most.
const SPIN_VARIABLE: &str = "FERRY_SPIN_US";

/// The environment variable for a file that gets a line of counters when a session ends.
const STATS_VARIABLE: &str = "FERRY_STATS";

/// What the host's devices compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processors {
    /// CPUs, which a thread that looks for answers takes time from.
    Cpus,
    /// Processors of their own.
    Others,
}

/// The session cannot be used (any more). It was logged where it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// The answer to an awaited message.
#[derive(Debug)]
pub struct Reply {
    /// Its header.
    pub header: Header,
    /// Its payload, unless that went to a [`Destination`].
    pub payload: Vec<u8>,
}

/// Where an answer's payload goes.
enum Collected {
    Bytes(Vec<u8>),
    Into(Destination),
    /// The host wrote it there itself.
    InPlace(Destination),
}

/// An answer that is being waited for, or has come and was not taken yet.
struct Expected {
    collected: Collected,
    /// Nobody asks for it by number: it is dropped when it has come.
    unattended: bool,
    done: Option<Header>,
}

#[derive(Default)]
struct Inbox {
    expected: HashMap<Seq, Expected>,
    leading: bool,
    /// Threads that wait for room to send.
    space_waiters: usize,
    lost: bool,
    failed_streams: Vec<StreamId>,
    failures_logged: u32,
    /// Every answer up to this one has come.
    answered: Seq,
}

struct Outbox {
    sender: Box<dyn Sender>,
    last: Seq,
}

/// A session.
pub struct Session {
    outbox: Mutex<Outbox>,
    receiver: Mutex<Box<dyn Receiver>>,
    waiter: Arc<dyn Waiter>,
    counters: Arc<Counters>,
    inbox: Mutex<Inbox>,
    delivered: Condvar,
    mark: ForkMark,
    fork_said: AtomicBool,
    spin: Mutex<Spin>,
    /// Counts buffers that were freed: a graph that was checked before names only live buffers while it stands still.
    buffers_freed: AtomicU64,
    /// Graphs whose nodes were put in the order that the host prefers.
    reorderings: AtomicU64,
    /// Bytes of weights that were hashed, to ask for them.
    bytes_hashed: AtomicU64,
    graph_slots: FreeSlots,
    event_slots: FreeSlots,
    /// One region is made at a time; `None` on a transport without.
    regions: Mutex<Option<Box<dyn Regions>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No invariant spans a panic: every update of what is behind these locks is complete in itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// The session behind a connection.
    pub fn new(
        Connection { channel, regions }: Connection,
        computes_on: Processors,
    ) -> std::io::Result<Self> {
        Ok(Self {
            outbox: Mutex::new(Outbox { sender: channel.sender, last: 0 }),
            receiver: Mutex::new(channel.receiver),
            waiter: channel.waiter,
            counters: channel.counters,
            inbox: Mutex::default(),
            delivered: Condvar::new(),
            mark: ForkMark::new()?,
            fork_said: AtomicBool::new(false),
            spin: Mutex::new(Spin::new(spin_max()).waking_early(computes_on == Processors::Others)),
            buffers_freed: AtomicU64::new(0),
            reorderings: AtomicU64::new(0),
            bytes_hashed: AtomicU64::new(0),
            graph_slots: FreeSlots::new(GRAPHS_PER_SESSION_MAX),
            event_slots: FreeSlots::new(EVENTS_PER_SESSION_MAX),
            regions: Mutex::new(regions),
        })
    }

    /// Whether nothing can be computed with it any more.
    pub fn is_lost(&self) -> bool {
        self.check_fork().is_err() || lock(&self.inbox).lost
    }

    /// Whether this process was forked off from the one that opened the session.
    pub fn is_child(&self) -> bool {
        self.mark.is_child()
    }

    /// Before anything is touched: a forked child may neither speak nor look at locks that were held elsewhere.
    fn check_fork(&self) -> Result<(), Lost> {
        if !self.mark.is_child() {
            return Ok(());
        }
        let text = "this process was forked off: it cannot use its parent's device";
        log::line_once(&self.fork_said, Level::Error, text);
        Err(Lost)
    }

    /// Posts a message.
    pub fn post(&self, call: CallCode, stream: StreamId, parts: &[&[u8]]) -> Result<Seq, Lost> {
        self.send(call, stream, parts, None)
    }

    /// Posts a read that the host does in place: into a region, where `destination` lies.
    pub fn post_read_in_place(
        &self,
        stream: StreamId,
        parameters: &[u8],
        destination: Destination,
    ) -> Result<Seq, Lost> {
        let expected = Expected { collected: Collected::InPlace(destination), unattended: true, done: None };
        self.send(CallCode::GET_INTO_REGION, stream, &[parameters], Some(expected))
    }

    /// Posts a read whose bytes go to `destination` at the latest when the stream is synchronized.
    pub fn post_read(
        &self,
        call: CallCode,
        stream: StreamId,
        parts: &[&[u8]],
        destination: Destination,
    ) -> Result<Seq, Lost> {
        let expected = Expected { collected: Collected::Into(destination), unattended: true, done: None };
        self.send(call, stream, parts, Some(expected))
    }

    /// Sends a message and waits for its answer.
    pub fn call(&self, call: CallCode, stream: StreamId, parts: &[&[u8]]) -> Result<Reply, Lost> {
        let seq = self.ask(call, stream, parts)?;
        self.wait_for(seq)
    }

    /// Sends a message whose answer must be waited for later.
    pub fn ask(&self, call: CallCode, stream: StreamId, parts: &[&[u8]]) -> Result<Seq, Lost> {
        let expected = Expected { collected: Collected::Bytes(Vec::new()), unattended: false, done: None };
        self.send(call, stream, parts, Some(expected))
    }

    /// Whether nobody is sending or waiting here, so that a call cannot have to wait for another one. A signal handler
    /// may run on the very thread that it would wait for.
    pub fn is_idle(&self) -> bool {
        self.outbox.try_lock().is_ok() && self.inbox.try_lock().is_ok_and(|inbox| !inbox.leading)
    }

    /// Has the host read into a region, where `destination` lies, and waits for it.
    pub fn read_in_place(&self, parameters: &[u8], destination: Destination) -> Result<Reply, Lost> {
        let expected = Expected { collected: Collected::InPlace(destination), unattended: false, done: None };
        let seq = self.send(CallCode::GET_INTO_REGION, StreamId::SESSION, &[parameters], Some(expected))?;
        self.wait_for(seq)
    }

    /// Reads into `destination`, and waits for it.
    pub fn read(&self, call: CallCode, parts: &[&[u8]], destination: Destination) -> Result<Reply, Lost> {
        let expected = Expected { collected: Collected::Into(destination), unattended: false, done: None };
        let seq = self.send(call, StreamId::SESSION, parts, Some(expected))?;
        self.wait_for(seq)
    }

    /// Memory that the worker sees as well: `None` if this transport has none, or enough of it is in use.
    pub fn add_region(&self, bytes: usize) -> Option<(RegionId, Arc<dyn Mapping>)> {
        self.check_fork().ok()?;
        let mut regions = lock(&self.regions);
        let regions = regions.as_mut()?;
        let complain = |what: &str, error: std::io::Error| {
            log::line(Level::Debug, &format!("no shared memory of {bytes} bytes: {what}: {error}"));
        };
        let offer = regions.offer(bytes).map_err(|error| complain("this side", error)).ok()?;
        let region = offer.region;
        let add = AddRegion { size: bytes as u64, region, reserved: 0 };
        let reply = self.call(CallCode::ADD_REGION, StreamId::SESSION, &[bytemuck::bytes_of(&add)]).ok()?;
        if reply.header.status != Status::OK {
            return None;
        }
        match regions.take(offer) {
            Ok(mapping) => Some((region, mapping)),
            Err(error) => {
                complain("the daemon's side", error);
                self.drop_region(region);
                None
            }
        }
    }

    /// Has the worker let go of a region.
    pub fn drop_region(&self, region: RegionId) {
        let _ = self.call(CallCode::DROP_REGION, StreamId::SESSION, &[bytemuck::bytes_of(&region)]);
    }

    /// Where on the host an event can be kept.
    pub fn event_slots(&self) -> &FreeSlots {
        &self.event_slots
    }

    /// Waits until the answer to `seq`, and every earlier one, has come.
    pub fn wait_until_answered(&self, seq: Seq) -> Result<(), Lost> {
        self.check_fork()?;
        self.flush()?;
        self.wait_while(|inbox| inbox.answered < seq, Interest::RECORDS)
    }

    /// Takes in what has come, without waiting; whether `stream` failed since this was asked last.
    pub fn take_failure(&self, stream: StreamId) -> Result<bool, Lost> {
        self.check_fork()?;
        let mut inbox = lock(&self.inbox);
        if !inbox.leading && !inbox.lost {
            inbox.leading = true;
            drop(inbox);
            let outcome = self.receive_all();
            inbox = lock(&self.inbox);
            self.hand_over(&mut inbox, outcome.map(|_| ()));
        }
        if inbox.lost {
            return Err(Lost);
        }
        // A failure that belongs to no stream, of a write say, spoils every one of them.
        let concerns = |failed: &StreamId| *failed == stream || *failed == StreamId::SESSION;
        let failed = inbox.failed_streams.iter().any(concerns);
        inbox.failed_streams.retain(|failed| !concerns(failed));
        Ok(failed)
    }

    /// A buffer is gone.
    pub fn note_freed_buffer(&self) {
        self.buffers_freed.fetch_add(1, Ordering::Relaxed);
    }

    /// So many bytes were hashed.
    pub fn note_hashed(&self, bytes: usize) {
        self.bytes_hashed.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Where on the host a graph can be kept.
    pub fn graph_slots(&self) -> &FreeSlots {
        &self.graph_slots
    }

    /// Buffers that were freed so far.
    pub fn buffers_freed(&self) -> u64 {
        self.buffers_freed.load(Ordering::Relaxed)
    }

    fn send(
        &self,
        call: CallCode,
        stream: StreamId,
        parts: &[&[u8]],
        expected: Option<Expected>,
    ) -> Result<Seq, Lost> {
        self.check_fork()?;
        let mut outbox = lock(&self.outbox);
        let (bytes, most) =
            (parts.iter().map(|part| part.len()).sum::<usize>(), outbox.sender.payload_bytes_max());
        if bytes > most {
            let text = format!("{call}: {bytes} bytes in one message, the daemon takes {most}");
            log::line(Level::Error, &text);
            return Err(Lost);
        }
        let seq = outbox.last + 1;
        {
            let mut inbox = lock(&self.inbox);
            if inbox.lost {
                // Dropping a destination fills it up.
                return Err(Lost);
            }
            if let Some(expected) = expected {
                inbox.expected.insert(seq, expected);
            }
        }
        outbox.last = seq;
        lock(&self.spin).follow(call);
        let header = Header::request(call, stream, seq);
        loop {
            match outbox.sender.try_send(header, parts) {
                Ok(true) => return Ok(seq),
                Ok(false) => self.wait_for_space()?,
                Err(error) => return Err(self.lose(&error)),
            }
        }
    }

    fn flush(&self) -> Result<(), Lost> {
        let mut outbox = lock(&self.outbox);
        loop {
            match outbox.sender.flush() {
                Ok(true) => return Ok(()),
                Ok(false) => self.wait_for_space()?,
                Err(error) => return Err(self.lose(&error)),
            }
        }
    }

    /// Sleeps until there may be room to send. Answers that come meanwhile are taken in: the other side may be waiting for
    /// room too.
    fn wait_for_space(&self) -> Result<(), Lost> {
        let mut once = true;
        self.wait_while(|_| std::mem::take(&mut once), Interest::BOTH)
    }

    /// Waits for the answer to what was asked.
    pub fn wait_for(&self, seq: Seq) -> Result<Reply, Lost> {
        self.flush()?;
        self.wait_while(
            |inbox| inbox.expected.get(&seq).is_some_and(|e| e.done.is_none()),
            Interest::RECORDS,
        )?;
        let expected = lock(&self.inbox).expected.remove(&seq);
        let Some(Expected { collected, done: Some(header), .. }) = expected else { return Err(Lost) };
        let payload = match collected {
            Collected::Bytes(bytes) => bytes,
            Collected::Into(_) | Collected::InPlace(_) => Vec::new(),
        };
        Ok(Reply { header, payload })
    }

    /// Waits while `unfinished`, leading or following.
    fn wait_while(&self, mut unfinished: impl FnMut(&Inbox) -> bool, interest: Interest) -> Result<(), Lost> {
        let mut inbox = lock(&self.inbox);
        while unfinished(&inbox) {
            if inbox.lost {
                return Err(Lost);
            }
            inbox.space_waiters += usize::from(interest.space);
            if inbox.leading {
                if interest.space {
                    // The leader may be sleeping for answers only: let it look again.
                    self.waiter.nudge();
                }
                inbox = self.delivered.wait(inbox).unwrap_or_else(PoisonError::into_inner);
            } else {
                inbox.leading = true;
                let space = inbox.space_waiters > 0;
                drop(inbox);
                let outcome = self.receive_or_sleep(Interest { records: true, space });
                inbox = lock(&self.inbox);
                self.hand_over(&mut inbox, outcome);
            }
            inbox.space_waiters -= usize::from(interest.space);
        }
        Ok(())
    }

    fn hand_over(&self, inbox: &mut Inbox, outcome: Result<(), Broken>) {
        inbox.leading = false;
        if let Err(error) = outcome {
            lose(inbox, &error);
        }
        self.delivered.notify_all();
    }

    /// The leader's turn: takes in what is there; if nothing comes for a while, sleeps once.
    fn receive_or_sleep(&self, interest: Interest) -> Result<(), Broken> {
        let waiting = lock(&self.spin).begin(Instant::now());
        while self.receive_all()? == 0 {
            match waiting.next(Instant::now()) {
                Next::Look => std::hint::spin_loop(),
                Next::Sleep(timeout) => {
                    self.waiter.wait(interest, timeout)?;
                    // Woken, but not by the time: somebody wants something.
                    if waiting.next(Instant::now()) != Next::Look {
                        self.receive_all()?;
                        break;
                    }
                }
            }
        }
        lock(&self.spin).end(&waiting, Instant::now());
        Ok(())
    }

    /// Takes in everything that has come; how many messages that were.
    fn receive_all(&self) -> Result<usize, Broken> {
        let mut receiver = lock(&self.receiver);
        let mut count = 0;
        while receiver.try_receive(&mut |header, payload| self.deliver(header, payload))? {
            count += 1;
        }
        Ok(count)
    }

    fn deliver(&self, header: Header, payload: Payload<'_>) {
        let mut inbox = lock(&self.inbox);
        if header.call == CallCode::NOTICE {
            return notice(&mut inbox, header, payload);
        }
        let spoilt = inbox.failed_streams.iter().any(|&s| s == header.stream || s == StreamId::SESSION);
        let Some(expected) = inbox.expected.get_mut(&header.seq) else {
            return log::line(Level::Warn, &format!("an answer to nothing that was asked ({})", header.call));
        };
        match &mut expected.collected {
            _ if header.status != Status::OK => failed_answer(&mut inbox, header, payload),
            Collected::Bytes(bytes) => bytes.extend_from_slice(&payload.to_vec()),
            // What was to be computed was not: nobody shall take the old bytes for it.
            Collected::Into(_) if spoilt => {}
            Collected::Into(destination) => destination.append(payload),
            Collected::InPlace(_) if spoilt => {}
            Collected::InPlace(destination) => destination.is_filled(),
        }
        if header.flags.contains(Flags::MORE) {
            return;
        }
        inbox.answered = inbox.answered.max(header.seq);
        let Some(expected) = inbox.expected.get_mut(&header.seq) else { return };
        expected.done = Some(header);
        if expected.unattended {
            inbox.expected.remove(&header.seq);
        }
    }

    /// Counts a graph whose nodes were put in the order that the host prefers.
    pub fn note_reordering(&self) {
        // Relaxed: a counter for people.
        self.reorderings.fetch_add(1, Ordering::Relaxed);
    }

    /// Appends what this session did to a file, as one line of JSON.
    fn append_stats(&self, path: &Path) {
        let ((doorbells, waits), messages) = (self.counters.read(), lock(&self.outbox).last);
        let (pid, reorderings) = (std::process::id(), self.reorderings.load(Ordering::Relaxed));
        let hashed = self.bytes_hashed.load(Ordering::Relaxed);
        let line = format!(
            "{{\"guest_pid\":{pid},\"messages\":{messages},\"doorbells\":{doorbells},\"waits\":{waits},\
             \"reorderings\":{reorderings},\"bytes_hashed\":{hashed}}}\n"
        );
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            log::line(Level::Warn, &format!("{STATS_VARIABLE}={}: {error}", path.display()));
        }
    }

    fn lose(&self, error: &Broken) -> Lost {
        lose(&mut lock(&self.inbox), error);
        self.delivered.notify_all();
        Lost
    }
}

/// An answer that says no. Reads are filled up, and their stream counts as failed: what it computed is not what was read.
fn failed_answer(inbox: &mut Inbox, header: Header, payload: Payload<'_>) {
    log_failure(
        inbox,
        &format!("{}: {}: {}", header.call, header.status, String::from_utf8_lossy(&payload.to_vec())),
    );
    if header.call.reads() {
        inbox.failed_streams.push(header.stream);
    }
}

/// A posted call failed.
fn notice(inbox: &mut Inbox, header: Header, payload: Payload<'_>) {
    let bytes = payload.to_vec();
    let (parameters, text) = bytes.split_at(size_of::<NoticeHeader>().min(bytes.len()));
    let call =
        bytemuck::try_pod_read_unaligned::<NoticeHeader>(parameters).map_or(CallCode::NOTICE, |n| n.call);
    log_failure(inbox, &format!("{call}: {}: {}", header.status, String::from_utf8_lossy(text)));
    inbox.failed_streams.push(header.stream);
}

fn log_failure(inbox: &mut Inbox, text: &str) {
    inbox.failures_logged += 1;
    match inbox.failures_logged.cmp(&FAILURES_LOGGED_MAX) {
        std::cmp::Ordering::Less => log::line(Level::Error, text),
        std::cmp::Ordering::Equal => {
            log::line(Level::Error, &format!("{text} (further failures are not shown)"))
        }
        std::cmp::Ordering::Greater => {}
    }
}

fn lose(inbox: &mut Inbox, error: &Broken) {
    if !inbox.lost {
        inbox.lost = true;
        log::line(
            Level::Error,
            &format!("session lost: {error}; what was in flight is garbage, the next call fails"),
        );
    }
    // Dropping a destination fills up what has not come.
    inbox.expected.clear();
}

fn spin_max() -> Option<Duration> {
    let microseconds = std::env::var(SPIN_VARIABLE).ok()?.parse().ok()?;
    Some(Duration::from_micros(microseconds))
}

impl Drop for Session {
    fn drop(&mut self) {
        // In a forked child the channel's memory is not mapped, and something else may lie where it was: what unmaps it
        // is kept for good.
        if self.mark.is_child() {
            std::mem::forget(self.waiter.clone());
            return;
        }
        if let Some(path) = std::env::var_os(STATS_VARIABLE) {
            self.append_stats(Path::new(&path));
        }
    }
}
