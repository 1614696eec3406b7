//! Memory that guest and worker both see, from a guest that speaks the protocol by hand: what is right works, what is
//! wrong is an error, and the session goes on.

use std::os::fd::AsFd;
use std::sync::Arc;

use ferry_protocol::calls::CallCode;
use ferry_protocol::channel::memory::{MappedRange, Mapping, Memory};
use ferry_protocol::ids::{BufferId, EventId, RegionId};
use ferry_protocol::limits::{REGION_BYTES_PER_SESSION_MAX, REGIONS_PER_SESSION_MAX};
use ferry_protocol::request::{AddRegion, NewEvent, RegionTransfer, TensorRange};
use ferry_protocol::status::Status;
use ferry_protocol::tensor::TensorLayout;
use ferry_tests::daemon::Daemon;
use ferry_unix::{arena, frames};

use crate::guest::{Guest, bytes_of};
use crate::testbed::Testbed;

const PAGE: usize = 4096;

impl Guest {
    fn add(&mut self, region: u32, size: u64) -> Status {
        let add = AddRegion { size, region: RegionId(region), reserved: 0 };
        self.status(CallCode::ADD_REGION, bytemuck::bytes_of(&add))
    }

    /// The memory of a region that was just added.
    fn take(&mut self, region: u32, size: usize) -> MappedRange {
        let (header, payload, fds) = frames::read(&self.socket).unwrap();
        assert_eq!((header.call, payload), (CallCode::ADD_REGION, region.to_le_bytes().to_vec()));
        let mapping: Arc<dyn Mapping> = Arc::new(arena::map(&fds[0], size as u64).unwrap());
        // Nobody can change its size.
        assert!(nix::unistd::ftruncate(fds[0].as_fd(), 0).is_err());
        MappedRange::new(mapping, 0, size).unwrap()
    }
}

fn transfer(tensor: TensorLayout, (offset, size): (usize, usize), region: u32, at: u64) -> RegionTransfer {
    let range = TensorRange { tensor, offset: offset as u64, size: size as u64 };
    RegionTransfer { range, at, region: RegionId(region), reserved: 0 }
}

#[test]
fn what_is_written_on_one_side_is_read_on_the_other() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut guest = Guest::new(&daemon);
    let buffer = guest.alloc(2 * PAGE);
    assert_eq!(guest.add(7, 2 * PAGE as u64), Status::OK);
    let memory = guest.take(7, 2 * PAGE);
    let bytes: Vec<u8> = (0..PAGE).map(|at| at as u8 ^ 0x5a).collect();
    memory.write(100, &bytes);
    let tensor = bytes_of(buffer, 2 * PAGE);
    let to_host = transfer(tensor, (0, PAGE), 7, 100);
    assert_eq!(guest.status(CallCode::SET_FROM_REGION, bytemuck::bytes_of(&to_host)), Status::OK);
    assert_eq!(guest.read(buffer, PAGE), bytes);

    let back = transfer(tensor, (10, 1000), 7, 2 * PAGE as u64 - 1000);
    assert_eq!(guest.status(CallCode::GET_INTO_REGION, bytemuck::bytes_of(&back)), Status::OK);
    let mut seen = vec![0; 1000];
    memory.read(2 * PAGE - 1000, &mut seen);
    assert_eq!(seen, bytes[10..1010]);

    assert_eq!(guest.status(CallCode::DROP_REGION, &7u32.to_le_bytes()), Status::OK);
    assert_eq!(guest.status(CallCode::GET_INTO_REGION, bytemuck::bytes_of(&back)), Status::STALE_HANDLE);
    // The name is free again, and the memory is new.
    assert_eq!(guest.add(7, PAGE as u64), Status::OK);
    let memory = guest.take(7, PAGE);
    let mut seen = vec![1; PAGE];
    memory.read(0, &mut seen);
    assert_eq!(seen, vec![0; PAGE]);
}

#[test]
fn transfers_out_of_bounds_and_of_nothing_are_errors() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut guest = Guest::new(&daemon);
    let buffer = guest.alloc(PAGE);
    assert_eq!(guest.add(1, PAGE as u64), Status::OK);
    let tensor = bytes_of(buffer, PAGE);
    let past_the_buffer = bytes_of(buffer, 2 * PAGE);
    for (what, transfer, expected) in [
        ("an unknown region", transfer(tensor, (0, 16), 2, 0), Status::STALE_HANDLE),
        ("behind the region", transfer(tensor, (0, 16), 1, PAGE as u64 - 15), Status::INVALID),
        ("an overflow in the region", transfer(tensor, (0, 16), 1, u64::MAX - 3), Status::INVALID),
        ("behind the tensor", transfer(tensor, (PAGE - 15, 16), 1, 0), Status::INVALID),
        ("a tensor behind its buffer", transfer(past_the_buffer, (0, 16), 1, 0), Status::INVALID),
        ("an unknown buffer", transfer(bytes_of(BufferId(99), 16), (0, 16), 1, 0), Status::STALE_HANDLE),
    ] {
        for call in [CallCode::SET_FROM_REGION, CallCode::GET_INTO_REGION] {
            assert_eq!(guest.status(call, bytemuck::bytes_of(&transfer)), expected, "{call}: {what}");
        }
    }
    // Nothing at all is fine anywhere.
    let nothing = transfer(tensor, (PAGE, 0), 1, PAGE as u64);
    assert_eq!(guest.status(CallCode::SET_FROM_REGION, bytemuck::bytes_of(&nothing)), Status::OK);
    assert_eq!(guest.read(buffer, 4).len(), 4);
}

#[test]
fn regions_have_names_sizes_and_limits() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut guest = Guest::new(&daemon);
    for size in [0, 1, PAGE as u64 + 1, u64::MAX] {
        assert_eq!(guest.add(1, size), Status::INVALID, "{size} bytes");
    }
    assert_eq!(guest.add(1, REGION_BYTES_PER_SESSION_MAX + PAGE as u64), Status::LIMIT);
    assert_eq!(guest.add(1, u64::MAX - (PAGE as u64 - 1)), Status::LIMIT);
    for region in 0..REGIONS_PER_SESSION_MAX as u32 {
        assert_eq!(guest.add(region, PAGE as u64), Status::OK);
        guest.take(region, PAGE);
    }
    assert_eq!(guest.add(5, PAGE as u64), Status::INVALID, "the name is taken");
    assert_eq!(guest.add(1000, PAGE as u64), Status::LIMIT);
    assert_eq!(guest.status(CallCode::DROP_REGION, &1000u32.to_le_bytes()), Status::STALE_HANDLE);
    assert_eq!(guest.status(CallCode::DROP_REGION, &5u32.to_le_bytes()), Status::OK);
    assert_eq!(guest.add(1000, PAGE as u64), Status::OK);
}

#[test]
fn a_guest_that_does_not_take_its_regions_is_refused_and_hangs_nobody() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut guest = Guest::new(&daemon);
    // Never read from the socket: at some point it is full, or its descriptors are too many.
    let statuses: Vec<Status> = (0..600)
        .map(|region| {
            let status = guest.add(region, PAGE as u64);
            guest.status(CallCode::DROP_REGION, &region.to_le_bytes());
            status
        })
        .collect();
    assert!(statuses.contains(&Status::NO_MEMORY), "never refused");
    assert!(statuses.iter().all(|status| [Status::OK, Status::NO_MEMORY].contains(status)));
}

#[test]
fn events_that_are_not_there_are_errors() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut guest = Guest::new(&daemon);
    let event = EventId { slot: 0, generation: 1 };
    // A CPU has no events.
    let new = NewEvent { event, device: 0, reserved: 0 };
    assert_eq!(guest.status(CallCode::EVENT_NEW, bytemuck::bytes_of(&new)), Status::UNSUPPORTED);
    let new = NewEvent { device: 9, ..new };
    assert_eq!(guest.status(CallCode::EVENT_NEW, bytemuck::bytes_of(&new)), Status::STALE_HANDLE);
    for call in
        [CallCode::EVENT_FREE, CallCode::EVENT_RECORD, CallCode::EVENT_WAIT, CallCode::EVENT_SYNCHRONIZE]
    {
        assert_eq!(guest.status(call, bytemuck::bytes_of(&event)), Status::STALE_HANDLE, "{call}");
    }
}
