//! Every interleaving of two sides on a tiny ring, with the memory model's freedoms: no data race, no lost message, no
//! lost wake-up (a side that sleeps for good is a deadlock, which loom reports).
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p ferry-protocol --test loom --release --target-dir target/loom
//! ```
#![cfg(loom)]

mod memory;

use ferry_protocol::calls::CallCode;
use ferry_protocol::channel::memory::Memory;
use ferry_protocol::channel::ring::{
    Consumer, Doorbell, Positions, Producer, RingMemory, Side, SleepWord, SleepWords, halves,
};
use ferry_protocol::channel::{Broken, Interest, Receiver, Sender, Waiter};
use ferry_protocol::frame::Header;
use ferry_protocol::ids::StreamId;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use memory::Cells;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a record with eight bytes of payload.
const RECORD_BYTES: usize = 32;
/// Records that fill a ring of the default size.
const RECORDS: u64 = 4;
const RING_BYTES: usize = RECORDS as usize * RECORD_BYTES;
/// Large enough that two records are little of it: a preparation does not wake by itself.
const ROOMY_RING_BYTES: usize = 16 * RECORD_BYTES;

#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// What two sides share. Ring 0 goes from side 0 to side 1, ring 1 the other way.
struct Shared {
    rings: [(Positions, Cells); 2],
    words: [SleepWord; 2],
    bells: [Bell; 2],
}

/// One of a kind of them: a ring, or a side's sleep word and bell.
#[derive(Clone)]
struct Part(Arc<Shared>, usize);

impl Memory for Part {
    fn len(&self) -> usize {
        self.0.rings[self.1].1.len()
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        self.0.rings[self.1].1.write(at, bytes);
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.0.rings[self.1].1.read(at, out);
    }
    fn pointer(&self, at: usize) -> *const u8 {
        self.0.rings[self.1].1.pointer(at)
    }
}

impl RingMemory for Part {
    fn positions(&self) -> &Positions {
        &self.0.rings[self.1].0
    }
}

impl SleepWords for Part {
    fn own(&self) -> &SleepWord {
        &self.0.words[self.1]
    }
    fn peer(&self) -> &SleepWord {
        &self.0.words[1 - self.1]
    }
}

impl Doorbell for Part {
    fn ring(&self) {
        self.0.bells[1 - self.1].ring();
    }
    fn block(&self, _timeout: Option<Duration>) -> Result<(), Broken> {
        let bell = &self.0.bells[self.1];
        let mut rung = bell.rung.lock().unwrap();
        while !*rung {
            rung = bell.changed.wait(rung).unwrap();
        }
        *rung = false;
        Ok(())
    }
    fn nudge(&self) {
        self.0.bells[self.1].ring();
    }
}

/// How one side waits.
#[derive(Clone, Copy)]
enum Patience {
    /// By looking again and again.
    Polls,
    /// By sleeping until the other side rings.
    Sleeps,
}

struct End {
    waiter: Arc<Side<Part, Part, Part>>,
    sender: Producer<Part, Part, Part>,
    receiver: Consumer<Part, Part, Part>,
    patience: Patience,
    sent: u64,
    received: u64,
}

impl End {
    fn wait(&self, interest: Interest) {
        match self.patience {
            Patience::Polls => thread::yield_now(),
            Patience::Sleeps => self.waiter.wait(interest, None).unwrap(),
        }
    }

    fn send(&mut self) {
        self.send_call(CallCode::EXEC);
    }

    fn send_call(&mut self, call: CallCode) {
        self.sent += 1;
        let header = Header::request(call, StreamId::SESSION, self.sent);
        while !self.sender.try_send(header, &[&self.sent.to_le_bytes()]).unwrap() {
            self.wait(Interest::SPACE);
        }
    }

    fn receive(&mut self) {
        let mut number = [0; 8];
        let mut seq = 0;
        while !self
            .receiver
            .try_receive(&mut |header, payload| {
                payload.copy_to(&mut number);
                seq = header.seq;
            })
            .unwrap()
        {
            self.wait(Interest::RECORDS);
        }
        self.received += 1;
        assert_eq!((seq, u64::from_le_bytes(number)), (self.received, self.received));
    }
}

fn pair(first: Patience, second: Patience) -> (End, End) {
    pair_with(RING_BYTES, first, second)
}

fn pair_with(ring_bytes: usize, first: Patience, second: Patience) -> (End, End) {
    let ring = || (Positions::default(), Cells::new(ring_bytes));
    let shared =
        Arc::new(Shared { rings: [ring(), ring()], words: Default::default(), bells: Default::default() });
    let end = |side: usize, patience| {
        let part = |which| Part(shared.clone(), which);
        let waiter = Side::new(part(1 - side), part(side), part(side), part(side));
        let (sender, receiver) = halves(&waiter);
        End { waiter, sender, receiver, patience, sent: 0, received: 0 }
    };
    (end(0, first), end(1, second))
}

/// Explores `model` with at most three preemptions, which finds nearly everything that any number finds.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn records_are_there_before_their_position_and_done_with_before_they_are_overwritten() {
    explore(|| {
        let (mut producer, mut consumer) = pair(Patience::Polls, Patience::Polls);
        // A full ring, so that the last record is written over the first one.
        (0..RECORDS).for_each(|_| producer.send());
        let sending = thread::spawn(move || producer.send());
        (0..=RECORDS).for_each(|_| consumer.receive());
        sending.join().unwrap();
    });
}

#[test]
fn a_consumer_that_sleeps_for_records_is_woken() {
    explore(|| {
        let (mut producer, mut consumer) = pair(Patience::Polls, Patience::Sleeps);
        let sending = thread::spawn(move || (0..2).for_each(|_| producer.send()));
        (0..2).for_each(|_| consumer.receive());
        sending.join().unwrap();
    });
}

#[test]
fn a_producer_that_sleeps_for_space_is_woken() {
    explore(|| {
        let (mut producer, mut consumer) = pair(Patience::Sleeps, Patience::Polls);
        (0..RECORDS).for_each(|_| producer.send());
        let sending = thread::spawn(move || producer.send());
        (0..=RECORDS).for_each(|_| consumer.receive());
        sending.join().unwrap();
    });
}

/// A worker sleeps for a request and then for room for its answer: the wake-up for the first must not use up the second.
#[test]
fn sleeping_for_one_thing_and_then_for_the_other_loses_no_wake_up() {
    explore(|| {
        let (mut guest, mut host) = pair(Patience::Polls, Patience::Sleeps);
        (0..RECORDS).for_each(|_| host.send());
        let serving = thread::spawn(move || {
            host.receive();
            host.send();
        });
        guest.send();
        // Nothing is waited for but the other side: if it is not woken, nobody goes on.
        (0..RECORDS).for_each(|_| guest.receive());
        serving.join().unwrap();
        guest.receive();
    });
}

/// A message that only prepares something wakes nobody by itself; the next one that is to be served wakes for both.
#[test]
fn a_preparation_is_received_with_what_it_prepares() {
    explore(|| {
        let (mut guest, mut host) = pair_with(ROOMY_RING_BYTES, Patience::Polls, Patience::Sleeps);
        let serving = thread::spawn(move || (0..2).for_each(|_| host.receive()));
        guest.send_call(CallCode::WRITE);
        guest.send();
        serving.join().unwrap();
    });
}

#[test]
fn a_preparation_is_received_when_its_sender_flushes() {
    explore(|| {
        let (mut guest, mut host) = pair_with(ROOMY_RING_BYTES, Patience::Polls, Patience::Sleeps);
        let serving = thread::spawn(move || host.receive());
        guest.send_call(CallCode::WRITE);
        assert!(guest.sender.flush().unwrap());
        serving.join().unwrap();
    });
}
