//! Descriptor tricks: whatever the chain looks like, it comes back and the device goes on.

use std::sync::Arc;

use ferry_host::gpu::{Ring, drain_cursor};
use vm_memory::{Bytes, GuestAddress};

use super::harness::*;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Where these tests put their own commands, answers and tables: high RAM.
const AT: u64 = HIGH + 0x1000;
const TO: u64 = HIGH + 0x2000;
const TABLE: u64 = HIGH + 0x10_0000;

/// Offers the chain at head 200, expects it back, and that the device still answers. Returns the bytes written.
fn broken(guest: &mut Guest<'_>) -> u32 {
    guest.offer(200);
    let back = guest.collect();
    assert_eq!(back.iter().map(|(head, _)| *head).collect::<Vec<_>>(), [200], "comes back once");
    guest.ok(&command(0x103, 0, &[0; 6]));
    back[0].1
}

fn put(ram: &Ram, bytes: &[u8]) -> u32 {
    ram.memory.write_slice(bytes, GuestAddress(AT)).unwrap();
    bytes.len() as u32
}

#[test]
fn a_command_in_many_pieces_is_one_command() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    let len = put(&ram, &command(0x100, 0, &[]));
    for at in 0..len {
        guest.descriptor(100 + at as u16, AT + u64::from(at), 1, NEXT, 101 + at as u16);
    }
    guest.descriptor(100 + len as u16, TO, 20, WRITE | NEXT, 101 + len as u16);
    guest.descriptor(101 + len as u16, TO + 100, 500, WRITE, 0);
    guest.offer(100);
    assert_eq!(guest.collect(), [(100, 24 + 384)]);
    assert_eq!(ram.word(TO), 0x1101);
}

#[test]
fn indirect_chains_work_and_their_tricks_do_not() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    let len = put(&ram, &command(0x103, 0, &[0; 6]));
    let entry = |at: u64, addr: u64, len: u32, flags: u16, next: u16| {
        let bytes =
            [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        ram.memory.write_slice(&bytes, GuestAddress(TABLE + 16 * at)).unwrap();
    };
    entry(0, AT, len, NEXT, 1);
    entry(1, TO, 24, WRITE, 0);
    guest.descriptor(200, TABLE, 32, INDIRECT, 0);
    assert_eq!((broken(&mut guest), ram.word(TO)), (24, OK));
    // A table within a table, one of odd size, of no size, outside of RAM, and one that runs in a circle.
    entry(0, TABLE + 32, 32, INDIRECT, 0);
    assert_eq!(broken(&mut guest), 0);
    entry(0, AT, len, NEXT, 1);
    for (addr, size) in [(TABLE, 33), (TABLE, 0), (LOW_BYTES, 32), (u64::MAX - 8, 32), (TABLE, !15)] {
        guest.descriptor(200, addr, size, INDIRECT, 0);
        broken(&mut guest);
    }
    entry(1, AT, len, NEXT, 0);
    guest.descriptor(200, TABLE, 32, INDIRECT, 0);
    assert_eq!(broken(&mut guest), 0);
}

#[test]
fn loops_end() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    let len = put(&ram, &command(0x103, 0, &[0; 6]));
    guest.descriptor(200, AT, len, NEXT, 200);
    assert_eq!(broken(&mut guest), 0);
    guest.descriptor(200, AT, len, NEXT, 201);
    guest.descriptor(201, TO, 64, WRITE | NEXT, 200);
    assert_eq!(broken(&mut guest), 0);
    guest.descriptor(201, TO, 64, WRITE | NEXT, 201);
    assert_eq!(broken(&mut guest), 24, "more room than needed is no harm");
}

#[test]
fn chains_without_sense_come_back_unanswered() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    let len = put(&ram, &command(0x103, 0, &[0; 6]));
    // No room, too little room, room before the command, next out of the table, memory that is not there.
    guest.descriptor(200, AT, len, 0, 0);
    assert_eq!(broken(&mut guest), 0);
    guest.descriptor(200, AT, len, NEXT, 201);
    guest.descriptor(201, TO, 23, WRITE, 0);
    assert_eq!(broken(&mut guest), 0);
    guest.descriptor(200, TO, 64, WRITE | NEXT, 201);
    guest.descriptor(201, AT, len, 0, 0);
    assert_eq!(broken(&mut guest), 0);
    guest.descriptor(200, AT, len, NEXT, 9999);
    assert_eq!(broken(&mut guest), 0);
    guest.descriptor(201, TO, 64, WRITE, 0);
    for (addr, size) in [(LOW_BYTES, len), (u64::MAX, len), (HIGH + HIGH_BYTES - 4, len), (0, u32::MAX)] {
        guest.descriptor(200, addr, size, NEXT, 201);
        assert_eq!(broken(&mut guest), 0);
    }
    guest.descriptor(200, AT, len, NEXT, 201);
    guest.descriptor(201, LOW_BYTES, 64, WRITE, 0);
    assert_eq!(broken(&mut guest), 0, "executed, but the answer has nowhere to go");
    assert_eq!(guest.snapshot().broken_chains, 8);
}

#[test]
fn the_largest_chain_is_bounded() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    // 65,535 empty descriptors.
    let entry = [&AT.to_le_bytes()[..], &[0; 4], &NEXT.to_le_bytes()].concat();
    let table: Vec<u8> =
        (1..=65_535u32).flat_map(|next| [&entry[..], &(next as u16).to_le_bytes()].concat()).collect();
    ram.memory.write_slice(&table, GuestAddress(HIGH)).unwrap();
    guest.descriptor(200, HIGH, 65_535 * 16, INDIRECT, 0);
    assert_eq!(broken(&mut guest), 0);
}

#[test]
fn heads_and_indices_out_of_range_are_passed_over() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    guest.offer(QUEUE_SIZE);
    guest.offer(u16::MAX);
    assert!(guest.collect().is_empty());
    guest.ok(&command(0x103, 0, &[0; 6]));
    // More chains than the queue has: a broken queue, which costs neither an endless loop nor the device.
    guest.claim(QUEUE_SIZE + 1);
    assert!(guest.collect().is_empty());
    guest.kick();
    guest.claim(0u16.wrapping_sub(QUEUE_SIZE + 1));
    guest.ok(&command(0x103, 0, &[0; 6]));
}

#[test]
fn the_cursor_queue_takes_everything() {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    let len = put(&ram, &command(0x300, 0, &[0; 8]));
    guest.descriptor(200, AT, len, 0, 0);
    // The same ring, served as a cursor queue: offer() only marks the chain, as the control queue is stopped.
    virtio_queue::QueueT::set_ready(&mut *guest.ring.queue.lock().unwrap(), false);
    guest.offer(200);
    assert!(guest.collect().is_empty(), "a stopped queue is left alone");
    virtio_queue::QueueT::set_ready(&mut *guest.ring.queue.lock().unwrap(), true);
    let ring: Arc<dyn Ring> = guest.ring.clone();
    drain_cursor(&guest.device, &ring);
    assert_eq!(guest.collect(), [(200, 0)]);
}
