//! What every channel does.

use crate::{End, Message, contents, in_time, numbered};
use ferry_protocol::channel::{Broken, Interest};
use ferry_protocol::frame::Flags;
use ferry_protocol::status::Status;
use std::thread::spawn;
use std::time::{Duration, Instant};

/// Every test below, over the channels that `$pair` makes.
macro_rules! over {
    ($($name:ident: $pair:expr;)*) => {
        $(mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[test]
            fn messages_arrive_whole_and_in_order() {
                super::messages_arrive_whole_and_in_order($pair);
            }
            #[test]
            fn a_header_arrives_as_it_was_with_the_length_of_all_parts() {
                super::a_header_arrives_as_it_was_with_the_length_of_all_parts($pair);
            }
            #[test]
            #[should_panic(expected = "bytes of payload")]
            fn more_than_the_largest_payload_is_a_mistake_of_the_caller() {
                let (mut a, _b) = $pair;
                let _ = a.sender.try_send(numbered(1), &[&vec![0; a.sender.payload_bytes_max() + 1]]);
            }
            #[test]
            fn a_full_channel_takes_nothing_until_there_is_room() {
                super::a_full_channel_takes_nothing_until_there_is_room($pair);
            }
            #[test]
            fn a_sleeper_for_room_is_woken() {
                super::a_sleeper_for_room_is_woken($pair);
            }
            #[test]
            fn a_sleeper_for_a_message_is_woken() {
                super::a_sleeper_for_a_message_is_woken($pair);
            }
            #[test]
            fn both_sides_full_make_progress() {
                super::both_sides_full_make_progress($pair);
            }
            #[test]
            fn what_a_peer_sent_before_it_left_arrives() {
                super::what_a_peer_sent_before_it_left_arrives($pair);
            }
            #[test]
            fn a_sleeper_learns_that_its_peer_left() {
                super::a_sleeper_learns_that_its_peer_left($pair);
            }
            #[test]
            fn a_nudge_or_a_timeout_ends_a_sleep() {
                super::a_nudge_or_a_timeout_ends_a_sleep($pair);
            }
        })*
    };
}

over! {
    heap_ring: crate::heap::pair(4096, 1024);
    heap_ring_of_odd_sizes: crate::heap::pair(1000, 136);
    stream: super::stream_pair();
}

#[cfg(target_os = "linux")]
over! {
    arena: crate::arena::pair();
}

fn stream_pair() -> (End, End) {
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    let end = |socket| {
        let ferry_unix::Channel { sender, receiver, waiter, .. } =
            ferry_unix::stream::channel(socket).unwrap();
        End { sender, receiver, waiter }
    };
    (end(a), end(b))
}

/// Sizes at which something changes, up to `max`.
fn sizes(max: usize) -> Vec<usize> {
    let edges = [
        0,
        1,
        7,
        8,
        9,
        15,
        16,
        17,
        24,
        31,
        100,
        max / 3,
        max / 2,
        max.saturating_sub(8),
        max.saturating_sub(1),
    ];
    let mut sizes: Vec<usize> = edges.into_iter().chain([max]).filter(|&size| size <= max).collect();
    sizes.dedup();
    sizes
}

fn messages_arrive_whole_and_in_order((mut a, mut b): (End, End)) {
    in_time(move || {
        let sizes = sizes(a.sender.payload_bytes_max());
        // Several times around each ring, at ever other places.
        let plan: Vec<usize> =
            (0..4 * sizes.len()).map(|n| sizes[(n * 5 + n / sizes.len()) % sizes.len()]).collect();
        let sent = plan.clone();
        let sending = spawn(move || {
            for (seq, &size) in sent.iter().enumerate() {
                a.send(numbered(seq as u64), &[&contents(seq as u64, size)]).unwrap();
            }
            a
        });
        for (seq, &size) in plan.iter().enumerate() {
            let message = b.receive().unwrap();
            assert_eq!((message.header.seq, message.payload.len()), (seq as u64, size));
            assert!(message.payload == contents(seq as u64, size), "message {seq} of {size} bytes");
        }
        let _a = sending.join().unwrap();
        assert_eq!(b.take().unwrap(), None);
    });
}

fn a_header_arrives_as_it_was_with_the_length_of_all_parts((mut a, mut b): (End, End)) {
    in_time(move || {
        let mut header = numbered(u64::MAX);
        (header.status, header.flags, header.payload_len) = (Status(77), Flags(0x8000_0001), 12345);
        a.send(header, &[b"ab", b"", b"c"]).unwrap();
        header.payload_len = 3;
        assert_eq!(b.receive().unwrap(), Message { header, payload: b"abc".to_vec() });
    });
}

/// Fills the way from `a`; how many messages it took.
fn fill(a: &mut End) -> u64 {
    let payload = vec![0x55; a.sender.payload_bytes_max()];
    let mut seq = 0;
    while a.sender.try_send(numbered(seq), &[&payload]).unwrap() {
        seq += 1;
    }
    assert!(seq > 0);
    seq
}

fn a_full_channel_takes_nothing_until_there_is_room((mut a, mut b): (End, End)) {
    in_time(move || {
        let sent = fill(&mut a);
        assert!(!a.sender.try_send(numbered(999), &[&vec![0; a.sender.payload_bytes_max()]]).unwrap());
        for seq in 0..sent {
            loop {
                // A stream holds back what the socket has not taken.
                a.sender.flush().unwrap();
                if let Some(message) = b.take().unwrap() {
                    assert_eq!(message.header.seq, seq);
                    break;
                }
            }
        }
        assert_eq!(b.take().unwrap(), None, "what was refused was sent nevertheless");
        a.send(numbered(sent), &[b"x"]).unwrap();
        assert_eq!(b.receive().unwrap().header.seq, sent);
    });
}

fn a_sleeper_for_room_is_woken((mut a, mut b): (End, End)) {
    in_time(move || {
        let sent = fill(&mut a);
        let receiving = spawn(move || {
            // Most likely the other thread sleeps by then; if not, the test is only weaker.
            std::thread::sleep(Duration::from_millis(20));
            for seq in 0..=sent {
                assert_eq!(b.receive().unwrap().header.seq, seq);
            }
        });
        a.send(numbered(sent), &[&vec![0; a.sender.payload_bytes_max()]]).unwrap();
        receiving.join().unwrap();
    });
}

fn a_sleeper_for_a_message_is_woken((mut a, mut b): (End, End)) {
    in_time(move || {
        let answering = spawn(move || {
            for seq in 0..200 {
                assert_eq!(b.receive().unwrap().header.seq, seq);
                b.send(numbered(seq), &[]).unwrap();
            }
        });
        for seq in 0..200 {
            a.send(numbered(seq), &[]).unwrap();
            assert_eq!(a.receive().unwrap().header.seq, seq);
        }
        answering.join().unwrap();
    });
}

/// A guest that posts more than all buffers hold takes answers in whenever it has to wait; a host that has to wait does not
/// take in anything.
fn both_sides_full_make_progress((mut guest, mut host): (End, End)) {
    in_time(move || {
        let (request, answer) = (guest.sender.payload_bytes_max(), host.sender.payload_bytes_max());
        let count = 20;
        let serving = spawn(move || {
            for seq in 0..count {
                assert_eq!(host.receive().unwrap().header.seq, seq);
                host.send(numbered(seq), &[&contents(seq, answer)]).unwrap();
            }
            host
        });
        let mut answered = 0;
        let mut take_in = |guest: &mut End| {
            while let Some(message) = guest.take().unwrap() {
                assert_eq!(message.header.seq, answered);
                assert!(message.payload == contents(answered, answer));
                answered += 1;
            }
            answered
        };
        for seq in 0..count {
            let payload = contents(seq, request);
            while !guest.sender.try_send(numbered(seq), &[&payload]).unwrap() {
                guest.waiter.wait(Interest::BOTH, None).unwrap();
                take_in(&mut guest);
            }
        }
        while !guest.sender.flush().unwrap() {
            guest.waiter.wait(Interest::BOTH, None).unwrap();
            take_in(&mut guest);
        }
        while take_in(&mut guest) < count {
            guest.waiter.wait(Interest::RECORDS, None).unwrap();
        }
        serving.join().unwrap();
    });
}

fn what_a_peer_sent_before_it_left_arrives((mut a, mut b): (End, End)) {
    in_time(move || {
        for seq in 0..3 {
            a.send(numbered(seq), &[b"last words"]).unwrap();
        }
        drop(a);
        for seq in 0..3 {
            assert_eq!(b.receive().unwrap().header.seq, seq);
        }
        assert!(matches!(b.receive(), Err(Broken::Closed)));
    });
}

fn a_sleeper_learns_that_its_peer_left((a, mut b): (End, End)) {
    in_time(move || {
        let sleeping = spawn(move || b.receive());
        std::thread::sleep(Duration::from_millis(20));
        drop(a);
        assert!(matches!(sleeping.join().unwrap(), Err(Broken::Closed)));
    });
}

fn a_nudge_or_a_timeout_ends_a_sleep((a, _b): (End, End)) {
    in_time(move || {
        a.waiter.nudge();
        a.waiter.wait(Interest::RECORDS, None).unwrap();
        let started = Instant::now();
        a.waiter.wait(Interest::RECORDS, Some(Duration::from_millis(20))).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(15), "a nudge counts once");
        let waiter = a.waiter.clone();
        let sleeping = spawn(move || waiter.wait(Interest::RECORDS, None));
        std::thread::sleep(Duration::from_millis(10));
        a.waiter.nudge();
        sleeping.join().unwrap().unwrap();
    });
}
