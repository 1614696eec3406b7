//! Held fences: who ends them, when, and that none is left behind.

use std::time::{Duration, Instant};

use ferry_host::gpu::SessionId;

use super::harness::*;

fn only_session(guest: &Guest<'_>) -> SessionId {
    *guest.workers().open.keys().next().unwrap()
}

#[test]
fn an_armed_fence_is_held_until_the_worker_has_news() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    let session = only_session(&guest);
    let heads = [guest.post(&doorbell(1, 10)), guest.post(&doorbell(1, 11))];
    assert!(guest.collect().is_empty());
    guest.ok(&command(0x103, 0, &[0; 6]));
    guest.wakeups.signal(session);
    let back = guest.collect();
    assert_eq!(back, heads.map(|head| (head, 24)));
    assert_eq!(word(&guest.answer(heads[0], 24), 0), OK);
    assert_eq!(word(&guest.answer(heads[1], 24), 8), 11, "fence id");
    let counters = guest.snapshot();
    assert_eq!((counters.doorbells, counters.fences_armed, counters.fences_signalled), (2, 2, 2));
    assert_eq!(guest.workers().doorbells, [session, session]);
}

#[test]
fn another_thread_ends_a_fence_while_the_device_is_busy() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    let session = only_session(&guest);
    guest.post(&doorbell(1, 10));
    let device = guest.device.clone();
    // As while the device waits for a worker's acknowledgement.
    let busy = device.lock().unwrap();
    let wakeups = guest.wakeups.clone();
    std::thread::spawn(move || wakeups.signal(session)).join().unwrap();
    drop(busy);
    assert_eq!(guest.collect().len(), 1);
}

#[test]
fn news_that_overtake_the_fence_are_not_lost() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    guest.workers().answer_at_once = Some(guest.wakeups.clone());
    guest.ok(&doorbell(1, 10));
    guest.workers().answer_at_once = None;
    guest.post(&doorbell(1, 11));
    assert!(guest.collect().is_empty(), "one signal ends one wait");
    assert_eq!(guest.snapshot().fences_immediate, 1);
}

#[test]
fn only_an_armed_doorbell_with_a_fence_is_held() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    let mut unfenced = doorbell(1, 0);
    unfenced[4] = 0;
    guest.ok(&unfenced);
    let mut unarmed = doorbell(1, 3);
    unarmed[32 + 6] = 0;
    guest.ok(&unarmed);
    guest.ok(&fenced(0x103, 1, 4, 1, 0, &[0; 6]));
    assert_eq!(guest.snapshot().fences_armed, 0);
}

#[test]
fn one_fence_too_many_ends_the_oldest() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    let heads: Vec<u16> = (0..8).map(|fence| guest.post(&doorbell(1, fence))).collect();
    assert!(guest.collect().is_empty());
    guest.post(&doorbell(1, 8));
    assert_eq!(guest.collect(), [(heads[0], 24)]);
    assert_eq!((guest.in_flight(), guest.snapshot().fences_displaced), (8, 1));
    // Sessions do not displace each other until the device holds 64.
    for context in 2..=8 {
        guest.session(context, context, u64::from(context));
        for fence in 0..8 {
            guest.post(&doorbell(context, fence));
        }
    }
    assert!(guest.collect().is_empty());
    guest.session(9, 9, 9);
    guest.post(&doorbell(9, 0));
    assert_eq!(guest.collect(), [(heads[1], 24)]);
    assert_eq!(guest.in_flight(), 64);
}

#[test]
fn a_fence_ends_within_a_second_by_itself() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.session(1, 1, 0);
    let start = Instant::now();
    let head = guest.post(&doorbell(1, 10));
    while guest.in_flight() > 0 {
        assert!(start.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(5));
        for (id, len) in guest.collect() {
            assert_eq!((id, word(&guest.answer(id, len), 0)), (head, OK));
        }
    }
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    assert_eq!(guest.snapshot().fences_expired, 1);
    assert_eq!(ram.word(HIGH), 1, "the session goes on");
}

#[test]
fn whatever_ends_a_session_ends_its_fences() {
    for way in ["lost", "unref", "destroy", "stop", "reset"] {
        let ram = Ram::new();
        let mut guest = Guest::new(&ram);
        guest.session(1, 1, 0);
        let session = only_session(&guest);
        let head = guest.post(&doorbell(1, 10));
        match way {
            "lost" => guest.wakeups.lost(session),
            "unref" => {
                guest.post(&of_resource(UNREF, 1));
            }
            "destroy" => {
                guest.post(&command(0x201, 1, &[]));
            }
            "stop" => guest.device.lock().unwrap().stop(),
            _ => guest.device.lock().unwrap().reset(),
        }
        assert_eq!(guest.collect()[0], (head, 24), "{way}");
        assert_eq!(guest.in_flight(), 0, "{way}");
        assert_eq!(ram.word(HIGH), 2, "{way}");
        guest.wakeups.signal(session);
    }
}
