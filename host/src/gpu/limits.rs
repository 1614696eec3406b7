//! Everything whose size a guest chooses has its limit here, with the reason.

use std::time::Duration;

/// Backing entries of one resource: 256 MiB in single pages, the most fragmented it can be.
pub const MAX_BACKING_ENTRIES: usize = 65_536;
/// Largest command: an ATTACH_BACKING with all its entries, which is more than any EXECBUFFER.
pub const MAX_COMMAND_BYTES: usize = 64 + 16 * MAX_BACKING_ENTRIES;
/// EXECBUFFER payload; what the capability set promises.
pub const MAX_EXEC_BYTES: usize = ferry_protocol::virtgpu::COMMAND_BYTES_MAX;
/// Descriptors of one chain that are looked at: a table of single pages for the largest command, twice over.
/// A chain of 65,535 empty descriptors would otherwise cost a walk of a MiB of guest memory for nothing.
pub const MAX_CHAIN_DESCRIPTORS: usize = 1024;
/// Reply to one control request; a device list is a few KiB.
pub const MAX_REPLY_BYTES: usize = 1 << 20;
/// A held fence is completed after this time at the latest: a wait of the guest kernel that nobody ends is
/// uninterruptible, and at 15 s it gives up by itself.
pub const FENCE_DEADLINE: Duration = Duration::from_secs(1);
/// From the start of the control queue to the first command; a driver sends one at once, and Linux waits 5 s for the
/// answer.
pub const FIRST_COMMAND_PATIENCE: Duration = Duration::from_secs(3);
/// Held fences of one session, a fence being only a wake-up: as many threads of one process can sleep.
pub const MAX_ARMED_FENCES_PER_SESSION: usize = 8;
/// Held fences of the device. Each keeps a descriptor of the control queue, and a full queue blocks the guest
/// kernel uninterruptibly: half of the smallest queue seen (256), with one or two descriptors each.
pub const MAX_ARMED_FENCES_PER_DEVICE: usize = 64;

/// What one VM may take. The defaults are meant for one person's VM; a daemon with many VMs lowers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Contexts: one an open render node that did anything. Each costs the front a few hundred bytes.
    pub contexts: usize,
    /// Sessions: each is a worker process.
    pub sessions: usize,
    /// Resources of all kinds; each costs the front some 100 bytes besides its extents.
    pub resources: usize,
    /// Extents of all resources together, 24 bytes each in the front.
    pub extents: usize,
    /// Largest arena or region, in bytes; at most what [`MAX_BACKING_ENTRIES`] single pages hold.
    pub region_bytes: u64,
    /// Regions of one session besides its arena.
    pub regions_per_session: usize,
    /// What one session may map, arena included, in bytes.
    pub session_bytes: u64,
    /// Extents that one session may map. Each is a mapping of the worker, which the kernel lets have 65,530
    /// (vm.max_map_count); the rest is for its libraries and device memory.
    pub session_extents: usize,
    /// What all sessions of the VM together may map, in bytes.
    pub mapped_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            contexts: 256,
            sessions: 32,
            resources: 16_384,
            extents: 1 << 20,
            region_bytes: 256 << 20,
            regions_per_session: 64,
            session_bytes: (256 + 24) << 20,
            session_extents: 49_152,
            mapped_bytes: 4 << 30,
        }
    }
}
