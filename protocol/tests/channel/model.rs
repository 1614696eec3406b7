//! A ring against a queue and the arithmetic of the specification.

use crate::{contents, heap, numbered};
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Send this part of the largest payload.
    Send(u8),
    Receive,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<u8>().prop_map(Step::Send),
        Just(Step::Send(255)),
        Just(Step::Receive),
        Just(Step::Receive)
    ]
}

/// Where a record goes.
struct Model {
    capacity: usize,
    tail: usize,
    head: usize,
    /// Where each record that is there ends, its number, and its length.
    records: VecDeque<(usize, u64, usize)>,
}

impl Model {
    /// Where a record of `len` bytes would end, if there is room for it.
    fn end_of(&self, len: usize) -> Option<usize> {
        let need = (24 + len).div_ceil(8) * 8;
        let to_end = self.capacity - self.tail % self.capacity;
        let padding = if need > to_end { to_end } else { 0 };
        let end = self.tail + padding + need;
        (end - self.head <= self.capacity).then_some(end)
    }
}

proptest! {
    #[test]
    fn a_ring_is_a_queue_with_the_room_that_the_specification_says(
        capacity in prop_oneof![Just(96_usize), Just(104), Just(128), Just(136), Just(160), Just(1000), Just(4096)],
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let (mut a, mut b) = heap::pair(capacity, 96);
        let max = a.sender.payload_bytes_max();
        let mut model = Model { capacity, tail: 0, head: 0, records: VecDeque::new() };
        for (seq, step) in steps.into_iter().enumerate() {
            let seq = seq as u64;
            match step {
                Step::Send(part) => {
                    let len = max * usize::from(part) / 255;
                    let end = model.end_of(len);
                    if model.tail - model.head <= capacity / 2 {
                        prop_assert!(end.is_some(), "half of the ring is free, which is room for anything");
                    }
                    let sent = a.sender.try_send(numbered(seq), &[&contents(seq, len)]).unwrap();
                    prop_assert_eq!(sent, end.is_some());
                    if let Some(end) = end {
                        model.tail = end;
                        model.records.push_back((end, seq, len));
                    }
                }
                Step::Receive => {
                    let message = b.take().unwrap();
                    let expected = model.records.pop_front();
                    prop_assert_eq!(message.is_some(), expected.is_some());
                    if let (Some(message), Some((end, seq, len))) = (message, expected) {
                        prop_assert_eq!(message.header.seq, seq);
                        prop_assert_eq!(message.payload, contents(seq, len));
                        model.head = end;
                    }
                }
            }
        }
    }
}
