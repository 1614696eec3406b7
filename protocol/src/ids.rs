//! Names for things on the other side. None of them is an address, and each is checked where it is used.

use bytemuck::{Pod, Zeroable};

/// A buffer of the host, in the session that allocated it.
///
/// The host makes it: a slot in the low half and that slot's generation (never 0) in the high half, so the id
/// of a freed buffer does not fit its successor. [`BufferId::NONE`] stands for "no buffer".
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
pub struct BufferId(pub u64);

impl BufferId {
    /// No buffer.
    pub const NONE: Self = Self(0);

    /// The id of `slot` in its `generation`.
    pub fn new(slot: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(slot))
    }

    /// The slot that the id names.
    pub fn slot(self) -> u32 {
        self.0 as u32
    }
}

/// A stream of a session: one ggml backend instance on the host. 0 is the session itself.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
pub struct StreamId(pub u16);

impl StreamId {
    /// The session itself: calls that belong to no backend instance.
    pub const SESSION: Self = Self(0);
}

/// A graph that the guest defined: a slot that the guest chooses and the generation of what is in it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct GraphId {
    /// Below [`crate::limits::GRAPHS_PER_SESSION_MAX`].
    pub slot: u32,
    /// Changes with each definition or patch; 0 is never used.
    pub generation: u32,
}

/// Memory that both sides see, besides the arena. The guest names it; on `virtgpu` by the id of its resource. The worker
/// knows it from ADD_REGION to DROP_REGION.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
pub struct RegionId(pub u32);

/// An event: a slot that the guest chooses and the generation of what is in it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct EventId {
    /// Below [`crate::limits::EVENTS_PER_SESSION_MAX`].
    pub slot: u32,
    /// Changes with each event that is made there; 0 is never used.
    pub generation: u32,
}

/// Counts a side's requests; a reply carries the number of what it answers.
pub type Seq = u64;
