//! A session's shared memory: a page of positions and sleep words, then the submission ring, then the completion
//! ring. The host makes it and says how large the rings are; the guest checks that they fit.

use super::memory::{ArenaHeader, MappedRange, Mapping, Memory};
use super::ring::{Positions, RingMemory, SleepWord, SleepWords};
use crate::frame::RECORD_ALIGN;
use crate::hello::Opened;
use crate::limits::{
    ARENA_BYTES_MAX, ARENA_HEADER_BYTES, COMPLETION_RING_BYTES, RING_BYTES_MIN, SUBMISSION_RING_BYTES,
};
use std::sync::Arc;

/// Where in an arena a virtio-gpu device keeps the session's state, a `u32` (see [`crate::virtgpu::SessionState`]): in the
/// first page, behind everything that the rings use.
pub const SESSION_STATE_OFFSET: usize = 1024;
const _: () =
    assert!(size_of::<ArenaHeader>() <= SESSION_STATE_OFFSET && SESSION_STATE_OFFSET < ARENA_HEADER_BYTES);

/// Which side of the arena this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Sends submissions, receives completions.
    Guest,
    /// Receives submissions, sends completions.
    Host,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Submission,
    Completion,
}

/// One ring of an arena.
pub struct ArenaRing {
    header: MappedRange,
    data: MappedRange,
    which: Which,
}

/// The sleep words of an arena, seen from one end.
pub struct ArenaSleepWords {
    header: MappedRange,
    end: End,
}

/// The parts of an arena as one end uses them.
pub struct Arena {
    /// The ring to receive from.
    pub incoming: ArenaRing,
    /// The ring to send to.
    pub outgoing: ArenaRing,
    /// Who sleeps for what.
    pub words: ArenaSleepWords,
}

/// The layout that a daemon uses.
pub fn default_layout() -> Opened {
    Opened {
        arena_bytes: (ARENA_HEADER_BYTES + SUBMISSION_RING_BYTES + COMPLETION_RING_BYTES) as u64,
        submission_bytes: SUBMISSION_RING_BYTES as u64,
        completion_bytes: COMPLETION_RING_BYTES as u64,
    }
}

/// Why an arena cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("arena layout {0:?} is impossible")]
pub struct LayoutError(pub Opened);

/// Checks a layout that the other side chose.
pub fn check_layout(layout: &Opened) -> Result<(), LayoutError> {
    let ring_ok = |bytes: u64| {
        bytes >= RING_BYTES_MIN as u64
            && bytes <= ARENA_BYTES_MAX as u64
            && bytes.is_multiple_of(RECORD_ALIGN as u64)
    };
    let fits = ring_ok(layout.submission_bytes)
        && ring_ok(layout.completion_bytes)
        && layout.arena_bytes <= ARENA_BYTES_MAX as u64
        && ARENA_HEADER_BYTES as u64 + layout.submission_bytes + layout.completion_bytes
            <= layout.arena_bytes;
    if fits { Ok(()) } else { Err(LayoutError(*layout)) }
}

impl Arena {
    /// The arena in `mapping`, seen from `end`.
    pub fn new(mapping: Arc<dyn Mapping>, layout: &Opened, end: End) -> Result<Self, LayoutError> {
        check_layout(layout)?;
        let part =
            |at: usize, len: usize| MappedRange::new(mapping.clone(), at, len).ok_or(LayoutError(*layout));
        let header = part(0, ARENA_HEADER_BYTES)?;
        let ring = |which, at, bytes: u64| {
            part(at, bytes as usize).map(|data| ArenaRing { header: header.clone(), data, which })
        };
        let submission = ring(Which::Submission, ARENA_HEADER_BYTES, layout.submission_bytes)?;
        let behind = ARENA_HEADER_BYTES + layout.submission_bytes as usize;
        let completion = ring(Which::Completion, behind, layout.completion_bytes)?;
        let words = ArenaSleepWords { header: header.clone(), end };
        Ok(match end {
            End::Guest => Self { incoming: completion, outgoing: submission, words },
            End::Host => Self { incoming: submission, outgoing: completion, words },
        })
    }
}

impl Memory for ArenaRing {
    fn len(&self) -> usize {
        self.data.len()
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        self.data.write(at, bytes);
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.data.read(at, out);
    }
    fn pointer(&self, at: usize) -> *const u8 {
        self.data.pointer(at)
    }
}

impl RingMemory for ArenaRing {
    fn positions(&self) -> &Positions {
        let header = self.header.arena_header();
        if self.which == Which::Submission { &header.submission } else { &header.completion }
    }
}

impl SleepWords for ArenaSleepWords {
    fn own(&self) -> &SleepWord {
        let header = self.header.arena_header();
        if self.end == End::Guest { &header.guest } else { &header.host }
    }
    fn peer(&self) -> &SleepWord {
        let header = self.header.arena_header();
        if self.end == End::Guest { &header.host } else { &header.guest }
    }
}
