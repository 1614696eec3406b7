//! A ring of records of variable size, for one producer and one consumer in different processes.
//!
//! Positions count bytes from the start of time and never wrap in practice; a position modulo the capacity is a
//! place. A record never wraps: where it does not fit before the end, a PAD record (or nothing, if not even a header
//! fits) fills the rest. Each side keeps its own position in private memory and only *publishes* it; what the other
//! side publishes is checked before it is used.
//!
//! ```text
//!             head (consumer's)          tail (producer's)
//!               v                          v
//!   | free      | record | record | record | free                | capacity
//! ```
//!
//! # Sleeping
//! Each side has one word that says what it sleeps for. The sleeper publishes the word and then looks at the ring
//! once more; the other side publishes its position and then looks at the word. Both put a sequentially consistent
//! fence between the two, so at least one of them sees the other (Dekker), and no wake-up is lost. Room is signalled
//! only when half of the ring is free: a record is at most a quarter of it and needs at most another quarter of
//! padding, so whoever found no room is helped by that, and is not woken for every record that goes.
//!
//! A message that only prepares something ([`CallCode::is_preparation`]) does not wake the other side by itself, unless
//! there is much of it: the next message that does wakes it for both, and so does [`Sender::flush`].

use super::memory::Memory;
use super::{Broken, Interest, Payload, Receiver, Sender, Waiter};
use crate::calls::CallCode;
use crate::frame::{HEADER_BYTES, Header, RECORD_ALIGN, record_bytes};
use std::sync::Arc;
use std::time::Duration;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A ring's positions, in shared memory. The two lie in cache lines of their own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Positions {
    tail: Line<AtomicU64>,
    head: Line<AtomicU64>,
}

/// What a side sleeps for, in shared memory; 0 while it is awake.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct SleepWord(AtomicU32);

#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Line<T>(T);

/// More than this part of the ring, and the other side is woken for preparations too: an upload is to overlap.
const PREPARED_PART: usize = 8;

const SLEEPS_FOR_RECORDS: u32 = 1;
const SLEEPS_FOR_SPACE: u32 = 2;

/// A ring's bytes and positions.
pub trait RingMemory: Memory {
    /// The positions.
    fn positions(&self) -> &Positions;
}

/// Wakes the other side and sleeps until it does the same.
pub trait Doorbell: Send + Sync {
    /// Wakes the other side.
    fn ring(&self);
    /// Sleeps until the other side or [`Doorbell::nudge`] rings, or for `timeout`.
    fn block(&self, timeout: Option<Duration>) -> Result<(), Broken>;
    /// Ends this side's own [`Doorbell::block`].
    fn nudge(&self);
}

/// The sleep words of both sides.
pub trait SleepWords: Send + Sync {
    /// This side's.
    fn own(&self) -> &SleepWord;
    /// The other side's.
    fn peer(&self) -> &SleepWord;
}

/// What both halves of one side share.
pub struct Side<R, W, D> {
    incoming: R,
    outgoing: R,
    words: W,
    doorbell: D,
}

impl<R: RingMemory, W: SleepWords, D: Doorbell> Side<R, W, D> {
    /// A side that receives from `incoming` and sends to `outgoing`.
    ///
    /// # Panics
    /// If a ring's capacity is not a multiple of the alignment of records.
    pub fn new(incoming: R, outgoing: R, words: W, doorbell: D) -> Arc<Self> {
        assert!(incoming.len().is_multiple_of(RECORD_ALIGN) && outgoing.len().is_multiple_of(RECORD_ALIGN));
        Arc::new(Self { incoming, outgoing, words, doorbell })
    }

    /// Wakes the other side if it sleeps for `reason`, or, with `reason` space, if half of our incoming ring is free.
    fn wake_peer(&self, reason: u32) {
        // Pairs with the fence in `wait`: our position is published before the word is looked at.
        fence(Ordering::SeqCst);
        let word = &self.words.peer().0;
        // Relaxed: the fence above orders it; the common case, an awake peer, costs one load. Only the bit that is rung
        // for is cleared: by now the peer may have been awake and gone to sleep again for something else.
        if word.load(Ordering::Relaxed) & reason != 0
            && word.fetch_and(!reason, Ordering::AcqRel) & reason != 0
        {
            self.doorbell.ring();
        }
    }

    fn ready(&self, interest: Interest) -> bool {
        interest.records && used(&self.incoming) > 0
            || interest.space && used(&self.outgoing) <= self.outgoing.len() as u64 / 2
    }
}

/// Bytes in use, as published. Only for deciding whether to sleep: nothing is addressed by it.
fn used(ring: &impl RingMemory) -> u64 {
    let positions = ring.positions();
    positions.tail.0.load(Ordering::Acquire).wrapping_sub(positions.head.0.load(Ordering::Acquire))
}

impl<R: RingMemory, W: SleepWords, D: Doorbell> Waiter for Side<R, W, D> {
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> Result<(), Broken> {
        let bits = if interest.records { SLEEPS_FOR_RECORDS } else { 0 }
            | if interest.space { SLEEPS_FOR_SPACE } else { 0 };
        let own = &self.words.own().0;
        // A swap and no store, here and below: what the other side clears is then ordered before or after a sleep by what
        // each of them read, for the reader and for loom. Relaxed: the fence orders it with the rings.
        own.swap(bits, Ordering::Relaxed);
        // Pairs with the fence in `wake_peer`: the word is published before the rings are looked at again.
        fence(Ordering::SeqCst);
        let outcome = if self.ready(interest) { Ok(()) } else { self.doorbell.block(timeout) };
        own.swap(0, Ordering::Relaxed);
        outcome
    }

    fn nudge(&self) {
        self.doorbell.nudge();
    }
}

/// The sending half of a side.
pub struct Producer<R, W, D> {
    side: Arc<Side<R, W, D>>,
    /// Our own position; the published one may have been overwritten.
    tail: u64,
    /// Something was published that the other side was not woken for.
    unannounced: bool,
}

/// The receiving half of a side.
pub struct Consumer<R, W, D> {
    side: Arc<Side<R, W, D>>,
    /// Our own position; the published one may have been overwritten.
    head: u64,
}

/// The halves of `side`, whose rings are empty and new.
pub fn halves<R, W, D>(side: &Arc<Side<R, W, D>>) -> (Producer<R, W, D>, Consumer<R, W, D>) {
    (Producer { side: side.clone(), tail: 0, unannounced: false }, Consumer { side: side.clone(), head: 0 })
}

impl<R: RingMemory, W: SleepWords, D: Doorbell> Sender for Producer<R, W, D> {
    fn try_send(&mut self, mut header: Header, parts: &[&[u8]]) -> Result<bool, Broken> {
        let payload_len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(payload_len <= self.payload_bytes_max(), "{payload_len} bytes of payload");
        header.payload_len = payload_len as u32;
        let (ring, need) = (&self.side.outgoing, record_bytes(payload_len));
        let capacity = ring.len();
        // Acquire: the consumer is done with what it released before we write over it.
        let used = self.tail.wrapping_sub(ring.positions().head.0.load(Ordering::Acquire));
        if used > capacity as u64 {
            return Err(Broken::Corrupt("the consumer is ahead of the producer"));
        }
        let at = (self.tail % capacity as u64) as usize;
        let padding = if need > capacity - at { capacity - at } else { 0 };
        if padding + need > capacity - used as usize {
            return Ok(false);
        }
        if padding >= HEADER_BYTES {
            let payload_len = (padding - HEADER_BYTES) as u32;
            let pad = Header { payload_len, call: CallCode::PAD, ..Header::default() };
            ring.write(at, bytemuck::bytes_of(&pad));
        }
        let mut at = if padding > 0 { 0 } else { at };
        for bytes in std::iter::once(bytemuck::bytes_of(&header)).chain(parts.iter().copied()) {
            ring.write(at, bytes);
            at += bytes.len();
        }
        self.tail += (padding + need) as u64;
        // Release: the record is there before its position says so.
        ring.positions().tail.0.store(self.tail, Ordering::Release);
        let in_flight = used as usize + padding + need;
        self.unannounced = header.call.is_preparation() && in_flight <= capacity / PREPARED_PART;
        if !self.unannounced {
            self.side.wake_peer(SLEEPS_FOR_RECORDS);
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        if std::mem::take(&mut self.unannounced) {
            self.side.wake_peer(SLEEPS_FOR_RECORDS);
        }
        Ok(true)
    }

    fn payload_bytes_max(&self) -> usize {
        self.side.outgoing.len() / 4 - HEADER_BYTES
    }
}

impl<R: RingMemory, W: SleepWords, D: Doorbell> Consumer<R, W, D> {
    /// Where the next record lies and what it says of itself; checked against what is there.
    fn next(&mut self) -> Result<Option<(usize, Header)>, Broken> {
        let ring = &self.side.incoming;
        let capacity = ring.len();
        loop {
            // Acquire: what the position covers was written before it.
            let available = ring.positions().tail.0.load(Ordering::Acquire).wrapping_sub(self.head);
            if available > capacity as u64 {
                return Err(Broken::Corrupt("the producer is more than the ring ahead"));
            }
            if available == 0 {
                return Ok(None);
            }
            let at = (self.head % capacity as u64) as usize;
            let to_end = capacity - at;
            if to_end >= HEADER_BYTES {
                if available < HEADER_BYTES as u64 {
                    return Err(Broken::Corrupt("part of a header"));
                }
                let mut header = Header::default();
                ring.read(at, bytemuck::bytes_of_mut(&mut header));
                let whole = record_bytes(header.payload_len as usize);
                if whole > to_end || whole as u64 > available {
                    return Err(Broken::Corrupt("a record ends behind what was published"));
                }
                if header.call != CallCode::PAD {
                    return Ok(Some((at, header)));
                }
                // None of a whole ring either: a producer that moves on meanwhile would keep us in this loop.
                if whole != to_end || at == 0 {
                    return Err(Broken::Corrupt("padding in the middle"));
                }
            } else if available < to_end as u64 {
                return Err(Broken::Corrupt("part of the padding"));
            }
            self.head += to_end as u64;
        }
    }
}

impl<R: RingMemory, W: SleepWords, D: Doorbell> Receiver for Consumer<R, W, D> {
    fn try_receive(&mut self, take: &mut dyn FnMut(Header, Payload<'_>)) -> Result<bool, Broken> {
        let Some((at, header)) = self.next()? else { return Ok(false) };
        let ring = &self.side.incoming;
        take(header, Payload::new(ring, at + HEADER_BYTES, header.payload_len as usize));
        self.head += record_bytes(header.payload_len as usize) as u64;
        // Release: we are done with the record before the producer may write over it.
        ring.positions().head.0.store(self.head, Ordering::Release);
        fence(Ordering::SeqCst);
        if used(ring) <= ring.len() as u64 / 2 {
            self.side.wake_peer(SLEEPS_FOR_SPACE);
        }
        Ok(true)
    }
}
