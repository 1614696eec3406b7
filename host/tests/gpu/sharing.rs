//! Scatter lists: what may be shared, what is shared, and when it stops being shared.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use ferry_host::gpu::mmap::Stitched;
use ferry_host::gpu::{Extent, ResourceId};
use ferry_protocol::virtgpu::Command;
use vm_memory::{Bytes, GuestAddress};

use super::harness::*;

/// The answer to a backing for a fresh resource.
fn attach(list: &[(u64, u32)]) -> u32 {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&create_3d(1));
    let code = guest.code(&attach_backing(1, list));
    guest.ok(&command(0x103, 0, &[0; 6]));
    code
}

#[test]
fn bad_scatter_lists_are_refused() {
    let page = PAGE as u32;
    assert_eq!(attach(&[]), BAD_PARAMETER, "no entries");
    assert_eq!(attach(&[(HIGH, 0)]), BAD_PARAMETER, "no length");
    assert_eq!(attach(&[(HIGH, page), (HIGH + PAGE, 0)]), BAD_PARAMETER, "no length");
    assert_eq!(attach(&[(LOW_BYTES, page)]), BAD_PARAMETER, "between regions");
    assert_eq!(attach(&[(HIGH + HIGH_BYTES - PAGE, 2 * page)]), BAD_PARAMETER, "behind the end");
    assert_eq!(attach(&[(0, u32::MAX)]), BAD_PARAMETER, "huge");
    assert_eq!(attach(&[(u64::MAX, 1)]), BAD_PARAMETER, "last address");
    assert_eq!(attach(&[(u64::MAX - 1, u32::MAX)]), BAD_PARAMETER, "wraps around");
    assert_eq!(attach(&[(HIGH, page), (HIGH, page)]), BAD_PARAMETER, "the same page twice");
    assert_eq!(
        attach(&[(HIGH, 2 * page), (HIGH + 8 * PAGE, page), (HIGH + PAGE, page)]),
        BAD_PARAMETER,
        "overlap"
    );
    assert_eq!(attach(&[(HIGH + 10, 10), (HIGH + 19, 1)]), BAD_PARAMETER, "overlap of a byte");
    assert_eq!(attach(&[(PRIVATE, page)]), UNSPEC, "not shared with us");
    assert_eq!(attach(&[(HIGH + 10, 10), (HIGH + 20, 1)]), OK, "side by side");
}

#[test]
fn entry_counts_are_held_against_the_bytes_that_came() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&create_3d(1));
    let list = entries(&[(HIGH, PAGE as u32)]);
    for (count, code) in
        [(2, BAD_PARAMETER), (0xffff, BAD_PARAMETER), (1 << 28, OUT_OF_MEMORY), (u32::MAX, OUT_OF_MEMORY)]
    {
        assert_eq!(guest.code(&[command(0x106, 0, &[1, count]), list.clone()].concat()), code, "{count}");
    }
    guest.ok(&[command(0x106, 0, &[1, 1]), list].concat());
    assert_eq!(guest.code(&attach_backing(1, &[(HIGH, PAGE as u32)])), UNSPEC, "has its pages");
    assert_eq!(guest.code(&attach_backing(2, &[(HIGH, PAGE as u32)])), BAD_RESOURCE);
}

#[test]
fn the_largest_scatter_list_is_taken_and_a_larger_one_is_not() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&create_3d(1));
    // Single bytes, so that 65,536 of them fit into the test's RAM without touching.
    let bytes = |count: u64| -> Vec<(u64, u32)> { (0..count).map(|at| (HIGH + 2 * at, 1)).collect() };
    let larger = guest.post(&attach_backing(1, &bytes(65_537)));
    let refused = guest.collect()[0];
    assert!(
        refused.0 == larger && (refused.1 == 0 || word(&guest.answer(larger, refused.1), 0) == OUT_OF_MEMORY)
    );
    guest.ok(&attach_backing(1, &bytes(65_536)));
}

#[test]
fn neighbours_become_one_extent_across_regions_of_one_file() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, 0));
    guest.ok(&create_3d(1));
    let page = PAGE as u32;
    let list = [
        (HIGH + 4 * PAGE, page),
        (HIGH + 5 * PAGE, 2 * page),
        (LOW_BYTES - PAGE, page),
        (HIGH, page),
        (HIGH + PAGE, page),
    ];
    guest.ok(&attach_backing(1, &list));
    guest.ok(&of_context(CTX_ATTACH, 1, 1));
    guest.ok(&open(1, 1));
    let workers = guest.workers();
    let backing = &workers.open.values().next().unwrap()[&ResourceId(0)];
    let extent = |offset, pages| Extent { file: 0, offset, len: pages * PAGE };
    // The end of low RAM and the start of high RAM are neighbours in the file but not for the guest.
    let expected = [extent(LOW_BYTES + 4 * PAGE, 3), extent(LOW_BYTES - PAGE, 1), extent(LOW_BYTES, 2)];
    assert_eq!(backing.extents, expected);
    assert_eq!((backing.files.len(), backing.bytes), (1, 6 * PAGE));
}

#[test]
fn a_worker_sees_the_guests_bytes_in_one_piece() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, 0));
    guest.ok(&create_3d(1));
    let list: Vec<(u64, u32)> = [9, 3, 7, 5].iter().map(|page| (HIGH + page * PAGE, PAGE as u32)).collect();
    guest.ok(&attach_backing(1, &list));
    guest.ok(&of_context(CTX_ATTACH, 1, 1));
    guest.ok(&open(1, 1));
    let backing = guest.workers().open.values().next().unwrap()[&ResourceId(0)].clone();
    let files: Vec<_> = backing.files.iter().map(|file| file.as_fd()).collect();
    let map = Stitched::map(&files, &backing.extents).unwrap();
    for (at, (addr, _)) in list.iter().enumerate() {
        ram.memory.write_obj(at as u64 + 100, GuestAddress(addr + 8)).unwrap();
        let seen: u64 = map.volatile().load(at * PAGE as usize + 8, Ordering::SeqCst).unwrap();
        assert_eq!(seen, at as u64 + 100);
    }
    map.volatile().store(4711u32, 3 * PAGE as usize, Ordering::SeqCst).unwrap();
    assert_eq!(ram.word(HIGH + 5 * PAGE), 4711);
}

#[test]
fn part_pages_and_consoles_are_never_shared() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, 0));
    guest.ok(&create_2d(1));
    guest.ok(&create_3d(2));
    guest.ok(&create_3d(3));
    guest.ok(&create_3d(4));
    guest.ok(&attach_backing(1, &[(HIGH, 4096)]));
    guest.ok(&attach_backing(2, &[(HIGH + 4096, 4095)]));
    guest.ok(&attach_backing(3, &[(HIGH + 8192 + 16, 4096)]));
    for id in 1..=4 {
        guest.ok(&of_context(CTX_ATTACH, 1, id));
        assert_eq!(guest.code(&open(1, id)), BAD_PARAMETER, "resource {id}");
    }
    assert!(guest.workers().open.is_empty());
}

#[test]
fn every_way_to_take_pages_back_ends_the_sharing_before_the_answer() {
    for way in ["unref", "detach backing", "detach", "destroy", "drop"] {
        let ram = Ram::new();
        let mut guest = Guest::new(&ram);
        guest.session(1, 1, 0);
        guest.buffer(1, 2, 1, 2);
        guest.ok(&exec(1, Command::RegionAdd(2), 0));
        assert!(guest.workers().holds(ResourceId(2)));
        guest.ok(&match way {
            "unref" => of_resource(UNREF, 2),
            "detach backing" => of_resource(DETACH_BACKING, 2),
            "detach" => of_context(CTX_DETACH, 1, 2),
            "destroy" => command(0x201, 1, &[]),
            _ => exec(1, Command::RegionDrop(2), 0),
        });
        assert!(!guest.workers().holds(ResourceId(2)), "{way}");
        assert_eq!(guest.workers().open.len(), usize::from(way != "destroy"), "{way}");
    }
}

#[test]
fn a_session_ends_with_its_arena() {
    for way in [of_resource(UNREF, 1), of_resource(DETACH_BACKING, 1), of_context(CTX_DETACH, 1, 1)] {
        let ram = Ram::new();
        let mut guest = Guest::new(&ram);
        guest.session(1, 1, 0);
        guest.ok(&way);
        assert!(guest.workers().open.is_empty());
        assert_eq!(ram.word(HIGH), 2, "the state word says LOST");
        assert_eq!(guest.snapshot().sessions_lost, 0, "it was ended, not lost");
        assert_eq!(guest.snapshot().mapped_bytes, 0);
        guest.ok(&doorbell(1, 1));
    }
}

#[test]
fn stop_and_reset_end_all_sharing() {
    for reset in [false, true] {
        let ram = Ram::new();
        let mut guest = Guest::new(&ram);
        guest.session(1, 1, 0);
        guest.session(2, 2, 1);
        {
            let mut device = guest.device.lock().unwrap();
            if reset { device.reset() } else { device.stop() }
        }
        assert!(guest.workers().open.is_empty());
        assert_eq!(guest.snapshot().mapped_bytes, 0);
        assert_eq!((ram.word(HIGH), ram.word(HIGH + PAGE)), (2, 2));
        // A paused guest finds its resources again, a reset one starts anew.
        assert_eq!(guest.code(&of_resource(UNREF, 1)), if reset { BAD_RESOURCE } else { OK });
        assert_eq!(guest.code(&ctx_create(1, 0)), if reset { OK } else { BAD_CONTEXT });
    }
}

#[test]
fn nothing_of_a_vm_is_kept_when_it_is_gone() {
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("memfd:power-off")).count()
    };
    let ram = Ram::named(c"power-off");
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    let device = guest.device.clone();
    device.lock().unwrap().power_off();
    drop(guest);
    drop(ram);
    assert_eq!(mappings(), 0);
    assert!(device.lock().unwrap().counters().snapshot().contexts == 0);
}

#[test]
fn a_changed_memory_table_ends_what_it_moves_and_nothing_else() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    guest.buffer(1, 2, 100, 1);
    guest.ok(&exec(1, Command::RegionAdd(2), 0));
    let swap = |table| {
        ram.atomic.lock().unwrap().replace(table);
        guest.device.lock().unwrap().set_memory(ram.atomic.clone()).unwrap();
    };
    // The same places through other descriptors.
    swap(Ram::table(&ram.file, LOW_BYTES, HIGH_BYTES));
    assert!(guest.workers().holds(ResourceId(2)));
    // Page 100 goes, page 0 stays.
    swap(Ram::table(&ram.file, LOW_BYTES, 50 * PAGE));
    assert!(!guest.workers().holds(ResourceId(2)));
    assert_eq!(guest.workers().open.len(), 1);
    assert_eq!(guest.snapshot().mapped_bytes, guest.workers().bytes());
    // Page 0 is another page of the file now, and is not written to.
    ram.memory.write_obj(0u32, GuestAddress(HIGH)).unwrap();
    swap(Ram::table(&ram.file, LOW_BYTES + PAGE, 50 * PAGE));
    assert!(guest.workers().open.is_empty());
    assert_eq!((ram.word(HIGH), ram.word(HIGH + PAGE)), (0, 0));
    assert_eq!(guest.code(&open(1, 1)), BAD_PARAMETER, "its pages are gone");
    guest.ok(&of_resource(UNREF, 1));
}

#[test]
fn the_same_addresses_in_another_file_are_other_pages() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    let other = Ram::new();
    ram.atomic.lock().unwrap().replace(other.memory.clone());
    guest.device.lock().unwrap().set_memory(ram.atomic.clone()).unwrap();
    assert!(guest.workers().open.is_empty());
    assert_eq!(other.word(HIGH), 0, "nothing is written into the new pages");
}

#[test]
fn a_worker_that_goes_before_the_device_knows_of_new_memory_is_announced_in_the_old() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    let session = *guest.workers().open.keys().next().unwrap();
    let other = Ram::new();
    ram.atomic.lock().unwrap().replace(other.memory.clone());
    guest.wakeups.lost(session);
    assert_eq!(other.word(HIGH), 0, "nothing is written into the new pages");
    assert_eq!(ram.word(HIGH), 2, "LOST");
    guest.device.lock().unwrap().set_memory(ram.atomic.clone()).unwrap();
    assert_eq!(other.word(HIGH), 0);
}
