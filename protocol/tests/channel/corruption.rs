//! An arena whose other side is hostile: it writes where and what it likes. Where things lie is pinned on the way.

use crate::{contents, numbered};
use ferry_protocol::channel::arena::{
    Arena, ArenaRing, ArenaSleepWords, End, LayoutError, SESSION_STATE_OFFSET, check_layout,
};
use ferry_protocol::channel::memory::{MappedRange, Mapping, Memory};
use ferry_protocol::channel::ring::{Consumer, Doorbell, Producer, Side, halves};
use ferry_protocol::channel::{Broken, Interest, Receiver, Sender, Waiter};
use ferry_protocol::frame::Header;
use ferry_protocol::hello::Opened;
use memmap2::{MmapOptions, MmapRaw};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

// The specification's numbers.
const SUBMISSION_TAIL: usize = 0;
const SUBMISSION_HEAD: usize = 64;
const COMPLETION_TAIL: usize = 128;
const COMPLETION_HEAD: usize = 192;
const GUEST_SLEEPS: usize = 256;
const HOST_SLEEPS: usize = 320;
const SUBMISSION: usize = 4096;
const RING_BYTES: usize = 4096;
const COMPLETION: usize = SUBMISSION + RING_BYTES;
const ARENA_BYTES: usize = COMPLETION + RING_BYTES;
const LAYOUT: Opened = Opened {
    arena_bytes: ARENA_BYTES as u64,
    submission_bytes: RING_BYTES as u64,
    completion_bytes: RING_BYTES as u64,
};

type Words = Arc<Mutex<Vec<(u32, u32)>>>;

/// Never sleeps; notes what the sleep words said when it should have.
struct Watch {
    raw: MappedRange,
    words: Words,
}

impl Doorbell for Watch {
    fn ring(&self) {}
    fn block(&self, _timeout: Option<Duration>) -> Result<(), Broken> {
        self.words
            .lock()
            .unwrap()
            .push((read_u32(&self.raw, GUEST_SLEEPS), read_u32(&self.raw, HOST_SLEEPS)));
        Ok(())
    }
    fn nudge(&self) {}
}

/// One side, and the bytes of the whole arena.
struct Peer {
    waiter: Arc<Side<ArenaRing, ArenaSleepWords, Watch>>,
    sender: Producer<ArenaRing, ArenaSleepWords, Watch>,
    receiver: Consumer<ArenaRing, ArenaSleepWords, Watch>,
    words: Words,
}

fn read_u32(raw: &MappedRange, at: usize) -> u32 {
    let mut bytes = [0; 4];
    raw.read(at, &mut bytes);
    u32::from_le_bytes(bytes)
}

fn read_u64(raw: &MappedRange, at: usize) -> u64 {
    let mut bytes = [0; 8];
    raw.read(at, &mut bytes);
    u64::from_le_bytes(bytes)
}

fn arena() -> (MappedRange, Peer, Peer) {
    let mapping: Arc<dyn Mapping> =
        Arc::new(MmapRaw::from(MmapOptions::new().len(ARENA_BYTES).map_anon().unwrap()));
    let raw = MappedRange::new(mapping.clone(), 0, ARENA_BYTES).unwrap();
    let peer = |end| {
        let arena = Arena::new(mapping.clone(), &LAYOUT, end).unwrap();
        let words = Words::default();
        let watch = Watch { raw: raw.clone(), words: words.clone() };
        let waiter = Side::new(arena.incoming, arena.outgoing, arena.words, watch);
        let (sender, receiver) = halves(&waiter);
        Peer { waiter, sender, receiver, words }
    };
    let (guest, host) = (peer(End::Guest), peer(End::Host));
    (raw, guest, host)
}

impl Peer {
    fn send(&mut self, seq: u64, len: usize) {
        assert!(self.sender.try_send(numbered(seq), &[&contents(seq, len)]).unwrap());
    }

    fn take(&mut self) -> Result<Option<(Header, Vec<u8>)>, Broken> {
        let mut message = None;
        self.receiver.try_receive(&mut |header, payload| message = Some((header, payload.to_vec())))?;
        Ok(message)
    }

    fn expect(&mut self, seq: u64, len: usize) {
        let (header, payload) = self.take().unwrap().expect("a message is there");
        assert_eq!((header.seq, payload), (seq, contents(seq, len)));
    }
}

/// What two messages from `sender` leave at these places.
fn lies_at(raw: &MappedRange, sender: &mut Peer, receiver: &mut Peer, tail: usize, head: usize, ring: usize) {
    sender.send(1, 5);
    sender.send(2, 8);
    assert_eq!((read_u64(raw, tail), read_u64(raw, head)), (64, 0));
    let mut record = vec![0; 29];
    raw.read(ring, &mut record);
    let header = Header { payload_len: 5, ..numbered(1) };
    assert_eq!(record, [bytemuck::bytes_of(&header), &contents(1, 5)].concat());
    assert_eq!(read_u32(raw, ring + 32), 8, "the second record starts at a multiple of eight");
    receiver.expect(1, 5);
    assert_eq!((read_u64(raw, tail), read_u64(raw, head)), (64, 32));
}

#[test]
fn everything_lies_where_the_specification_says() {
    let (raw, mut guest, mut host) = arena();
    lies_at(&raw, &mut guest, &mut host, SUBMISSION_TAIL, SUBMISSION_HEAD, SUBMISSION);
    lies_at(&raw, &mut host, &mut guest, COMPLETION_TAIL, COMPLETION_HEAD, COMPLETION);
    assert_eq!(SESSION_STATE_OFFSET, 1024);
}

#[test]
fn sleep_words_say_what_is_slept_for() {
    let (raw, mut guest, host) = arena();
    guest.waiter.wait(Interest::RECORDS, None).unwrap();
    host.waiter.wait(Interest::RECORDS, None).unwrap();
    while guest.sender.try_send(numbered(1), &[&[0; 1000]]).unwrap() {}
    guest.waiter.wait(Interest::SPACE, None).unwrap();
    guest.waiter.wait(Interest::BOTH, None).unwrap();
    assert_eq!(*guest.words.lock().unwrap(), [(1, 0), (2, 0), (3, 0)]);
    assert_eq!(*host.words.lock().unwrap(), [(0, 1)]);
    assert_eq!((read_u32(&raw, GUEST_SLEEPS), read_u32(&raw, HOST_SLEEPS)), (0, 0));
}

#[test]
fn the_end_of_a_ring_is_padded() {
    let (raw, mut guest, mut host) = arena();
    // Three records of 1024 bytes and one of 1008: sixteen bytes are left, less than a header.
    for (seq, len) in [(1, 1000), (2, 1000), (3, 1000), (4, 984)] {
        guest.send(seq, len);
    }
    host.expect(1, 1000);
    guest.send(5, 0);
    assert_eq!(read_u64(&raw, SUBMISSION_TAIL), 4096 + 24);
    for (seq, len) in [(2, 1000), (3, 1000), (4, 984), (5, 0)] {
        host.expect(seq, len);
    }
    // From 24, three of 1024 leave 1000: a record of 1024 is behind a padding record.
    for seq in 6..9 {
        guest.send(seq, 1000);
    }
    host.expect(6, 1000);
    host.expect(7, 1000);
    guest.send(9, 1000);
    let pad = SUBMISSION + 24 + 3 * 1024;
    assert_eq!((read_u32(&raw, pad), read_u32(&raw, pad + 4) & 0xffff), (1000 - 24, 0), "a PAD record");
    host.expect(8, 1000);
    host.expect(9, 1000);
}

fn corrupt(outcome: Result<Option<(Header, Vec<u8>)>, Broken>) -> &'static str {
    match outcome {
        Err(Broken::Corrupt(what)) => what,
        other => panic!("not corrupt: {other:?}"),
    }
}

/// `header` at the start of the submission ring, of which `tail` bytes are published.
fn published(header: Header, tail: u64) -> &'static str {
    let (raw, _guest, mut host) = arena();
    raw.write(SUBMISSION, bytemuck::bytes_of(&header));
    raw.write(SUBMISSION_TAIL, &tail.to_le_bytes());
    corrupt(host.take())
}

#[test]
fn impossible_positions_and_records_are_named() {
    let record = |payload_len| Header { payload_len, ..numbered(1) };
    let pad = |payload_len| Header { payload_len, ..Header::default() };
    assert_eq!(published(record(0), 4097), "the producer is more than the ring ahead");
    assert_eq!(published(record(0), u64::MAX), "the producer is more than the ring ahead");
    assert_eq!(published(record(0), 23), "part of a header");
    assert_eq!(published(record(1), 24), "a record ends behind what was published");
    assert_eq!(published(record(4073), 4096), "a record ends behind what was published");
    assert_eq!(published(record(u32::MAX), 4096), "a record ends behind what was published");
    assert_eq!(published(pad(8), 4096), "padding in the middle");
    // A producer never pads a whole ring, and one that does could keep a consumer turning in circles.
    assert_eq!(published(pad(4072), 4096), "padding in the middle");
    let (raw, mut guest, _host) = arena();
    raw.write(SUBMISSION_HEAD, &1u64.to_le_bytes());
    assert!(matches!(guest.sender.try_send(numbered(1), &[]), Err(Broken::Corrupt(_))));
}

#[test]
fn a_layout_that_does_not_fit_is_refused() {
    assert_eq!(check_layout(&LAYOUT), Ok(()));
    let bad = [
        Opened::default(),
        Opened { arena_bytes: LAYOUT.arena_bytes - 1, ..LAYOUT },
        Opened { submission_bytes: 4088, ..LAYOUT },
        Opened { completion_bytes: 4088, ..LAYOUT },
        Opened { submission_bytes: 4100, arena_bytes: 1 << 20, ..LAYOUT },
        Opened { submission_bytes: u64::MAX - 7, ..LAYOUT },
        Opened { completion_bytes: 1 << 63, arena_bytes: u64::MAX, ..LAYOUT },
        Opened { arena_bytes: (256 << 20) + 1, ..LAYOUT },
    ];
    for layout in bad {
        assert_eq!(check_layout(&layout), Err(LayoutError(layout)));
    }
    let short: Arc<dyn Mapping> = Arc::new(MmapRaw::from(MmapOptions::new().len(8192).map_anon().unwrap()));
    assert!(Arena::new(short, &LAYOUT, End::Guest).is_err(), "more than is mapped");
}

/// What a hostile side writes: anywhere, but more often where it matters.
fn scribble() -> impl Strategy<Value = (usize, Vec<u8>)> {
    let position = prop_oneof![
        any::<u64>(),
        0..10_000_u64,
        (0..600_u64).prop_map(|n| n * 8),
        (0..64_u64).prop_map(|n| u64::MAX - n)
    ];
    let word = prop_oneof![
        Just(SUBMISSION_TAIL),
        Just(SUBMISSION_HEAD),
        Just(COMPLETION_TAIL),
        Just(COMPLETION_HEAD)
    ];
    let len = prop_oneof![any::<u32>(), 0..5000_u32, (0..600_u32).prop_map(|n| n * 8)];
    let header = (0..512_usize, len, prop_oneof![Just(0_u16), any::<u16>()]).prop_map(|(at, len, call)| {
        let bytes = [&len.to_le_bytes()[..], &call.to_le_bytes()].concat();
        (SUBMISSION + at * 8, bytes)
    });
    prop_oneof![
        3 => (word, position).prop_map(|(at, position)| (at, position.to_le_bytes().to_vec())),
        3 => header,
        1 => (0..ARENA_BYTES - 16, prop::collection::vec(any::<u8>(), 1..16)),
    ]
}

proptest! {
    #[test]
    fn a_consumer_survives_whatever_is_written(
        honest in prop::collection::vec(0..900_usize, 0..4),
        scribbles in prop::collection::vec(prop::collection::vec(scribble(), 0..4), 1..20),
    ) {
        let (raw, mut guest, mut host) = arena();
        for (seq, &len) in honest.iter().enumerate() {
            guest.send(seq as u64, len);
        }
        for round in scribbles {
            for (at, bytes) in round {
                raw.write(at, &bytes);
            }
            match host.take() {
                Ok(None) => {}
                Ok(Some((header, payload))) => {
                    prop_assert_eq!(header.payload_len as usize, payload.len());
                    prop_assert!(payload.len() <= RING_BYTES - 24);
                }
                Err(error) => prop_assert!(matches!(error, Broken::Corrupt(_)), "{}", error),
            }
        }
    }

    #[test]
    fn a_producer_writes_into_its_ring_and_its_position_alone(
        sends in prop::collection::vec((0..1000_usize, any::<bool>(), prop_oneof![any::<u64>(), 0..20_000_u64]), 1..40),
    ) {
        let (raw, mut guest, _host) = arena();
        let untouched = |raw: &MappedRange| {
            let mut bytes = vec![0; ARENA_BYTES];
            raw.read(0, &mut bytes);
            bytes[SUBMISSION_TAIL..SUBMISSION_TAIL + 8].fill(0);
            bytes[SUBMISSION_HEAD..SUBMISSION_HEAD + 8].fill(0);
            bytes[SUBMISSION..COMPLETION].fill(0);
            bytes
        };
        for (len, overwrite, head) in sends {
            if overwrite {
                raw.write(SUBMISSION_HEAD, &head.to_le_bytes());
            }
            match guest.sender.try_send(numbered(1), &[&contents(1, len)]) {
                Ok(_) | Err(Broken::Corrupt(_)) => {}
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
        prop_assert!(untouched(&raw).iter().all(|&byte| byte == 0));
    }

    #[test]
    fn what_the_peer_does_to_a_sides_own_position_does_not_matter(
        lens in prop::collection::vec(0..200_usize, 1..10),
        garbage in any::<u64>(),
    ) {
        let (raw, mut guest, mut host) = arena();
        for (seq, &len) in lens.iter().enumerate() {
            // The producer's own: overwritten before each send, published again by it.
            raw.write(SUBMISSION_TAIL, &garbage.to_le_bytes());
            guest.send(seq as u64, len);
        }
        for (seq, &len) in lens.iter().enumerate() {
            // The consumer's own.
            raw.write(SUBMISSION_HEAD, &garbage.to_le_bytes());
            host.expect(seq as u64, len);
        }
        prop_assert!(matches!(host.take(), Ok(None)));
    }
}
