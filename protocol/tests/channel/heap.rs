//! Rings on the heap of one process, between threads: safe memory of any capacity.

use crate::End;
use ferry_protocol::channel::Broken;
use ferry_protocol::channel::memory::Memory;
use ferry_protocol::channel::ring::{Doorbell, Positions, RingMemory, Side, SleepWord, SleepWords, halves};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

struct HeapRing {
    positions: Positions,
    bytes: Box<[AtomicU8]>,
}

impl HeapRing {
    fn new(len: usize) -> Self {
        Self { positions: Positions::default(), bytes: (0..len).map(|_| AtomicU8::new(0)).collect() }
    }
}

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

    fn block(&self, timeout: Option<Duration>) {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            let Some(until) = until else {
                rung = self.changed.wait(rung).unwrap();
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            rung = self.changed.wait_timeout(rung, left).unwrap().0;
        }
        *rung = false;
    }
}

/// What both sides share. Ring 0 goes from side 0 to side 1, ring 1 the other way.
struct Shared {
    rings: [HeapRing; 2],
    words: [SleepWord; 2],
    bells: [Bell; 2],
    gone: [AtomicBool; 2],
}

/// One of a kind of them: a ring, or a side's sleep word.
struct Part(Arc<Shared>, usize);

impl Memory for Part {
    fn len(&self) -> usize {
        self.0.rings[self.1].bytes.len()
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        for (cell, &byte) in self.0.rings[self.1].bytes[at..at + bytes.len()].iter().zip(bytes) {
            cell.store(byte, Ordering::Relaxed);
        }
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        let len = out.len();
        for (byte, cell) in out.iter_mut().zip(&self.0.rings[self.1].bytes[at..at + len]) {
            *byte = cell.load(Ordering::Relaxed);
        }
    }
    fn pointer(&self, at: usize) -> *const u8 {
        self.0.rings[self.1].bytes[at].as_ptr()
    }
}

impl RingMemory for Part {
    fn positions(&self) -> &Positions {
        &self.0.rings[self.1].positions
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

/// A side's bell; the other side hears when it is dropped.
struct SideBell(Part);

impl Doorbell for SideBell {
    fn ring(&self) {
        let Part(shared, side) = &self.0;
        shared.bells[1 - side].ring();
    }
    fn block(&self, timeout: Option<Duration>) -> Result<(), Broken> {
        let Part(shared, side) = &self.0;
        if shared.gone[1 - side].load(Ordering::Acquire) {
            return Err(Broken::Closed);
        }
        shared.bells[*side].block(timeout);
        Ok(())
    }
    fn nudge(&self) {
        let Part(shared, side) = &self.0;
        shared.bells[*side].ring();
    }
}

impl Drop for SideBell {
    fn drop(&mut self) {
        let Part(shared, side) = &self.0;
        shared.gone[*side].store(true, Ordering::Release);
        self.ring();
    }
}

/// Two sides with rings of these many bytes: from the first to the second, and back.
pub fn pair(there: usize, back: usize) -> (End, End) {
    let shared = Arc::new(Shared {
        rings: [HeapRing::new(there), HeapRing::new(back)],
        words: Default::default(),
        bells: Default::default(),
        gone: Default::default(),
    });
    let end = |side: usize| {
        let part = |which| Part(shared.clone(), which);
        let waiter = Side::new(part(1 - side), part(side), part(side), SideBell(part(side)));
        let (sender, receiver) = halves(&waiter);
        End { sender: Box::new(sender), receiver: Box::new(receiver), waiter }
    };
    (end(0), end(1))
}
