//! A compute-only virtio-gpu device: contexts, resources, fences and commands of one VM. No GL, no rendering; a
//! framebuffer console is answered and goes nowhere.
//!
//! ```text
//!  virtqueue ─ queue ─ device ─┬ resource, ram    guest pages, checked against the VM's memory table
//!                      │       ├ context          which resources, which session
//!                      │       └ exec             EXECBUFFER: Ferry's commands
//!                      └ Contexts (trait)         sessions ↔ worker processes, implemented elsewhere
//!  any thread ─ Wakeups ─ held fences ─ virtqueue
//! ```
//!
//! The guest kernel frees a resource's pages as soon as it has the answer to an unref, a detached backing, a
//! destroyed context or a reset. So each of these is answered only after [`Contexts::release`] or
//! [`Contexts::close`] returned, which is when no host process can touch the pages any more.
//!
//! Everything but [`server`] builds wherever vm-memory and virtio-queue do.

mod context;
mod counters;
mod device;
mod exec;
mod fence;
mod limits;
pub mod mmap;
mod queue;
mod ram;
mod resource;
#[cfg(target_os = "linux")]
pub mod server;
mod throttle;
mod wire;

pub use context::{ContextId, Contexts, Refusal, SessionGone, SessionId};
pub use counters::{Counters, Snapshot};
pub use device::{Device, FEATURES};
pub use fence::Wakeups;
pub use limits::Limits;
pub use queue::{Chain, GuestMemory, Ring, drain_control, drain_cursor};
pub use ram::{Backing, Extent};
pub use resource::ResourceId;
