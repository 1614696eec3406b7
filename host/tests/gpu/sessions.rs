//! EXECBUFFER: control requests, sessions, regions, and what a context may not do to another.

use ferry_host::gpu::Limits;
use ferry_protocol::virtgpu::{Command, Op, Open, ReplyPlace, ReplyStatus};

use super::harness::*;

/// Where `exec` puts replies: status, length, bytes.
fn reply(ram: &Ram, first: u64) -> (u32, u32) {
    let at = HIGH + first * PAGE + 64;
    (ram.word(at), ram.word(at + 4))
}

#[test]
fn a_control_request_is_answered_in_the_guests_memory() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, 0));
    guest.buffer(1, 1, 0, 1);
    guest.ok(&exec(1, Command::Control(b"abcd"), 1));
    assert_eq!(reply(&ram, 0), (ReplyStatus::OK.0, 4));
    assert_eq!(ram.word(HIGH + 72), u32::from_le_bytes(*b"dcba"));
    guest.ok(&exec(1, Command::Control(&[7; 249]), 1));
    assert_eq!(reply(&ram, 0), (ReplyStatus::TRUNCATED.0, 249));
    assert_eq!(guest.workers().controls.len(), 2);
}

#[test]
fn a_reply_crosses_pages_that_are_not_neighbours() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, 0));
    guest.ok(&create_3d(1));
    guest.ok(&attach_backing(1, &[(HIGH + 4 * PAGE, PAGE as u32), (HIGH, PAGE as u32)]));
    guest.ok(&of_context(CTX_ATTACH, 1, 1));
    let place = ReplyPlace { resource: 1, offset: PAGE as u32 - 12, capacity: 64 };
    guest.ok(&submit(1, &Command::Control(b"12345678").encode(place)));
    assert_eq!(ram.word(HIGH + 5 * PAGE - 12), ReplyStatus::OK.0);
    assert_eq!(ram.word(HIGH + 5 * PAGE - 4), u32::from_le_bytes(*b"8765"));
    assert_eq!(ram.word(HIGH), u32::from_le_bytes(*b"4321"));
}

#[test]
fn replies_go_only_to_the_contexts_own_memory() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, 0));
    guest.ok(&ctx_create(2, 0));
    guest.buffer(2, 2, 0, 1);
    guest.ok(&create_3d(3));
    guest.ok(&of_context(CTX_ATTACH, 1, 3));
    let places = [(2, 0, 64), (3, 0, 64), (9, 0, 64)]
        .map(|(resource, offset, capacity)| (1, resource, offset, capacity));
    let own =
        [(0, 7), (4096, 8), (4092, 8), (u32::MAX - 3, 8), (0, u32::MAX), (2, 64)].map(|(o, c)| (2, 2, o, c));
    for (context, resource, offset, capacity) in places.into_iter().chain(own) {
        let bytes = Command::Control(b"x").encode(ReplyPlace { resource, offset, capacity });
        assert_eq!(guest.code(&submit(context, &bytes)), BAD_RESOURCE, "{resource} {offset} {capacity}");
    }
    assert!(guest.workers().controls.is_empty(), "nothing was done");
    assert_eq!(ram.word(HIGH), 0, "nothing was written");
}

#[test]
fn malformed_execbuffers_are_errors() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, 0));
    guest.buffer(1, 1, 0, 1);
    let good = Command::Control(b"x").encode(ReplyPlace::default());
    guest.ok(&submit(1, &good));
    for len in 0..good.len() {
        assert_eq!(guest.code(&submit(1, &good[..len])), BAD_PARAMETER);
    }
    // The size field against the bytes that came.
    let mut lying = submit(1, &good);
    lying[24..28].copy_from_slice(&(good.len() as u32 + 1).to_le_bytes());
    assert_eq!(guest.code(&lying), BAD_PARAMETER);
    lying[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(guest.code(&lying), BAD_PARAMETER);
    let long = vec![0; (64 << 10) + 1];
    assert_eq!(guest.code(&submit(1, &long)), BAD_PARAMETER);
    guest.ok(&submit(1, &Command::Control(&long[..(64 << 10) - 24]).encode(ReplyPlace::default())));
    // Named to the guest where it gave a place.
    for (op, status) in [(Op::OPEN, ReplyStatus::MALFORMED), (Op(77), ReplyStatus::UNKNOWN_OP)] {
        let mut bytes = exec(1, Command::Control(b"x"), 1);
        bytes[36..38].copy_from_slice(&op.0.to_le_bytes());
        assert_eq!(guest.code(&bytes), BAD_PARAMETER);
        assert_eq!(reply(&ram, 0), (status.0, 0));
    }
}

#[test]
fn one_context_has_one_session_in_its_life() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    guest.buffer(1, 2, 1, 1);
    let again = exec(1, Command::Open(Open { arena: 2, state_offset: 0 }, &[]), 2);
    guest.ok(&again);
    assert_eq!(reply(&ram, 1), (ReplyStatus::SESSION_EXISTS.0, 0));
    guest.ok(&of_resource(UNREF, 1));
    guest.ok(&again);
    assert_eq!(reply(&ram, 1), (ReplyStatus::SESSION_EXISTS.0, 0));
    assert_eq!(guest.snapshot().sessions_opened, 1);
    assert_eq!(guest.workers().messages, [b"message"]);
    guest.ok(&command(0x201, 1, &[]));
    guest.ok(&ctx_create(1, 0));
    guest.ok(&of_context(CTX_ATTACH, 1, 2));
    guest.ok(&again);
    assert_eq!(reply(&ram, 1), (ReplyStatus::OK.0, 0));
}

#[test]
fn a_context_shares_only_what_it_is_attached_to() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    guest.ok(&ctx_create(2, 0));
    guest.buffer(2, 2, 1, 1);
    for (context, what) in [
        (1, Command::RegionAdd(2)),
        (1, Command::RegionAdd(99)),
        (1, Command::RegionAdd(1)),
        (1, Command::RegionDrop(2)),
        (1, Command::RegionDrop(1)),
        (2, Command::Open(Open { arena: 1, state_offset: 0 }, &[])),
        (2, Command::RegionAdd(2)),
        (2, Command::Doorbell { arm: false }),
    ] {
        let bytes = submit(context, &what.encode(ReplyPlace::default()));
        assert_eq!(guest.code(&bytes), BAD_PARAMETER, "context {context}: {what:?}");
    }
    assert_eq!(guest.workers().open.len(), 1);
    assert_eq!(guest.workers().bytes(), PAGE);
}

#[test]
fn a_state_word_lies_in_the_arena() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, 0));
    guest.buffer(1, 1, 0, 1);
    for state_offset in [1, 2, 4093, 4096, u32::MAX, u32::MAX - 3] {
        guest.ok(&exec(1, Command::Open(Open { arena: 1, state_offset }, &[]), 1));
        assert_eq!(reply(&ram, 0), (ReplyStatus::MALFORMED.0, 0), "{state_offset}");
    }
    guest.ok(&exec(1, Command::Open(Open { arena: 1, state_offset: 4092 }, &[]), 1));
    assert_eq!(ram.word(HIGH + 4092), 1);
}

#[test]
fn a_refused_worker_is_told_to_the_guest() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.ok(&ctx_create(1, 0));
    guest.buffer(1, 1, 0, 1);
    guest.workers().refuse = true;
    guest.ok(&exec(1, Command::Open(Open { arena: 1, state_offset: 0 }, &[]), 1));
    assert_eq!(reply(&ram, 0), (ReplyStatus::REFUSED.0, 0));
    assert_eq!(ram.word(HIGH), 2);
    assert_eq!(guest.snapshot().mapped_bytes, 0);
    guest.workers().refuse = false;
    guest.ok(&exec(1, Command::Open(Open { arena: 1, state_offset: 0 }, &[]), 1));
    assert_eq!(reply(&ram, 0), (ReplyStatus::OK.0, 0));
}

#[test]
fn quotas_hold_and_freed_quota_returns() {
    let ram = Ram::new();
    let limits = Limits {
        sessions: 2,
        region_bytes: 4 * PAGE,
        regions_per_session: 2,
        session_bytes: 6 * PAGE,
        session_extents: 5,
        mapped_bytes: 9 * PAGE,
        ..Default::default()
    };
    let mut guest = Guest::with_limits(&ram, limits);
    guest.session(1, 1, 0);
    let add = |guest: &mut Guest<'_>, context: u32, arena: u64, id: u32| {
        guest.ok(&exec(context, Command::RegionAdd(id), context));
        reply(&ram, arena).0
    };
    guest.buffer(1, 10, 10, 5);
    assert_eq!(add(&mut guest, 1, 0, 10), ReplyStatus::LIMIT.0, "larger than a region may be");
    guest.buffer(1, 11, 20, 4);
    guest.buffer(1, 12, 30, 2);
    guest.buffer(1, 13, 40, 1);
    guest.buffer(1, 14, 50, 1);
    assert_eq!(add(&mut guest, 1, 0, 11), ReplyStatus::OK.0);
    assert_eq!(add(&mut guest, 1, 0, 12), ReplyStatus::LIMIT.0, "more than a session may map");
    assert_eq!(add(&mut guest, 1, 0, 13), ReplyStatus::OK.0);
    assert_eq!(add(&mut guest, 1, 0, 14), ReplyStatus::LIMIT.0, "regions");
    guest.session(2, 2, 1);
    guest.buffer(2, 20, 60, 3);
    assert_eq!(add(&mut guest, 2, 1, 20), ReplyStatus::LIMIT.0, "more than the VM may map");
    guest.ok(&ctx_create(3, 0));
    guest.buffer(3, 3, 2, 1);
    assert_eq!(guest.code(&open(3, 3)), BAD_PARAMETER, "sessions");
    assert_eq!(guest.snapshot().mapped_bytes, 7 * PAGE);
    guest.ok(&command(0x201, 1, &[]));
    assert_eq!(add(&mut guest, 2, 1, 20), ReplyStatus::OK.0);
    guest.ok(&open(3, 3));
}

#[test]
fn fragmented_regions_count_by_extent() {
    let ram = Ram::new();
    let mut guest = Guest::with_limits(&ram, Limits { session_extents: 4, ..Default::default() });
    guest.session(1, 1, 0);
    for (id, pages) in [(2, 4u64), (3, 3)] {
        guest.ok(&create_3d(id));
        let base = u64::from(id) * 20;
        let list: Vec<_> = (0..pages).map(|page| (HIGH + (base + 2 * page) * PAGE, PAGE as u32)).collect();
        guest.ok(&attach_backing(id, &list));
        guest.ok(&of_context(CTX_ATTACH, 1, id));
        guest.ok(&exec(1, Command::RegionAdd(id), 1));
        let expected = if pages == 4 { ReplyStatus::LIMIT } else { ReplyStatus::OK };
        assert_eq!(reply(&ram, 0).0, expected.0);
    }
}

#[test]
fn a_worker_that_dies_instead_of_letting_go_ends_its_session_only() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    guest.session(2, 2, 1);
    guest.buffer(1, 3, 5, 1);
    guest.ok(&exec(1, Command::RegionAdd(3), 0));
    guest.workers().die_on_release = true;
    guest.ok(&of_resource(UNREF, 3));
    assert_eq!((ram.word(HIGH), ram.word(HIGH + PAGE)), (2, 1));
    assert_eq!(guest.workers().open.len(), 1);
    guest.ok(&doorbell(1, 5));
}

#[test]
fn a_lost_worker_is_told_and_its_context_goes_on_quietly() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    let session = *guest.workers().open.keys().next().unwrap();
    guest.wakeups.lost(session);
    guest.wakeups.lost(session);
    assert_eq!((ram.word(HIGH), guest.snapshot().sessions_lost), (2, 1));
    guest.ok(&doorbell(1, 1));
    assert!(guest.workers().doorbells.is_empty());
    guest.buffer(1, 2, 1, 1);
    guest.ok(&exec(1, Command::RegionAdd(2), 2));
    assert_eq!(reply(&ram, 1).0, ReplyStatus::NO_SESSION.0);
    guest.ok(&command(0x201, 1, &[]));
    assert!(guest.workers().open.is_empty());
}

#[test]
fn a_panic_of_ours_costs_sessions_and_not_the_device() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    assert_eq!(guest.code(&exec(1, Command::Control(PANIC), 1)), UNSPEC);
    assert!(guest.workers().open.is_empty());
    assert_eq!(ram.word(HIGH), 2, "LOST");
    guest.session(1, 1, 0);
}
