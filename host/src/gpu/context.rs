//! Contexts of the guest, and the seam to what stands behind them: sessions and their worker processes.

use std::collections::{HashMap, HashSet};

use super::ram::Backing;
use super::resource::ResourceId;

/// A context id of the guest kernel: one open render node. 0 is none. Ids are used again; [`SessionId`]s are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u32);

/// One session of the device's life, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Why a session or a region was refused. The text goes to the host's log; the guest only sees that it was.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// The worker of this session did not give the pages back. The session must be closed, which ends the worker.
#[derive(Debug, PartialEq, Eq)]
pub struct SessionGone;

/// What the device asks of the rest of the front. All calls come from one thread at a time, with the device
/// locked, so none may call the device; each returns soon (a second at most). News in the other direction go
/// through [`Wakeups`](super::Wakeups), which never waits for the device.
pub trait Contexts: Send {
    /// Answers a control request (handshake, device list) from what the front knows, without a worker.
    fn control(&mut self, context: ContextId, request: &[u8]) -> Vec<u8>;

    /// Starts a session's worker and lets it map `arena`. `message` is what the guest sent along, unread. It may
    /// return before the worker runs.
    fn open(
        &mut self,
        context: ContextId,
        session: SessionId,
        message: &[u8],
        arena: Backing,
    ) -> Result<(), Refusal>;

    /// Lets the worker map one more resource, under the name `resource`.
    fn add_region(
        &mut self,
        session: SessionId,
        resource: ResourceId,
        region: Backing,
    ) -> Result<(), Refusal>;

    /// Takes a region back. When this returns `Ok`, no host process can touch its pages: the worker has acknowledged the
    /// unmap. Otherwise that is so when [`Contexts::close`] has returned.
    fn release(&mut self, session: SessionId, resource: ResourceId) -> Result<(), SessionGone>;

    /// Wakes the session's worker. The device may arm a fence right after this returns.
    fn doorbell(&mut self, session: SessionId);

    /// Ends a session. When this returns, no host process can touch its arena or regions. It is called once for
    /// each session opened, also when its worker was already gone.
    fn close(&mut self, session: SessionId);
}

/// Accounting of something mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    pub bytes: u64,
    pub extents: usize,
}

/// A context's session.
#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    pub arena: ResourceId,
    /// Arena and regions.
    pub mapped: HashMap<ResourceId, Mapped>,
}

impl Session {
    pub fn bytes(&self) -> u64 {
        self.mapped.values().map(|mapped| mapped.bytes).sum()
    }

    pub fn extents(&self) -> usize {
        self.mapped.values().map(|mapped| mapped.extents).sum()
    }
}

/// One context of the guest.
#[derive(Debug, Default)]
pub struct Context {
    /// Resources that it may use.
    pub attached: HashSet<ResourceId>,
    pub session: Option<Session>,
    /// It has had a session: there is no second one.
    pub spent: bool,
}
