//! From a virtqueue to the device and back: a chain is copied out once, answered, and completed or held.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use virtio_queue::DescriptorChain;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestMemoryLoadGuard, GuestMemoryMmap};

use super::counters::Counters;
use super::device::Device;
use super::fence;
use super::limits::{MAX_CHAIN_DESCRIPTORS, MAX_COMMAND_BYTES};
use super::wire::CtrlHdr;

/// Guest memory as it was when a chain was taken.
pub type GuestMemory = GuestMemoryLoadGuard<GuestMemoryMmap>;
/// A descriptor chain of the guest.
pub type Chain = DescriptorChain<GuestMemory>;

/// One virtqueue, device side. Errors of a queue that the guest broke end in the implementation's log; there is
/// nothing that the device could do about them.
pub trait Ring: Send + Sync {
    /// The next chain; none when the queue is empty, stopped or broken.
    fn pop(&self) -> Option<Chain>;
    /// Hands a chain back with `len` bytes written.
    fn complete(&self, head: u16, len: u32);
    /// Raises an interrupt unless the guest does not want one; says whether it did.
    fn interrupt(&self) -> bool;
    /// Tells the guest that its kicks are not needed for now.
    fn suppress_kicks(&self);
    /// Tells the guest to kick again; true if chains came meanwhile.
    fn expect_kicks(&self) -> bool;
}

/// Serves everything in the control queue.
pub fn drain_control(device: &Mutex<Device>, ring: &Arc<dyn Ring>) {
    let counters = lock(device).counters();
    Counters::add(&counters.kicks);
    let served = drain(ring.as_ref(), || serve_one(device, ring));
    lock(device).note_kick(served);
}

/// Calls `serve` until the queue is empty and the guest knows that it must kick again. `serve` says whether it had
/// a chain: none although the guest says there are some means a broken or stopped queue, which is left alone.
/// Tells whether there was any chain.
fn drain(ring: &dyn Ring, mut serve: impl FnMut() -> bool) -> bool {
    let mut served = false;
    loop {
        ring.suppress_kicks();
        while serve() {
            served = true;
        }
        if !ring.expect_kicks() || !serve() {
            return served;
        }
        served = true;
    }
}

/// Serves everything in the cursor queue: there is no cursor, so all is taken and nothing is answered.
pub fn drain_cursor(device: &Mutex<Device>, ring: &Arc<dyn Ring>) {
    let counters = lock(device).counters();
    drain(ring.as_ref(), || {
        // Locked as in serve_one(): nothing is handed back after the device has stopped.
        let _device = lock(device);
        let Some(chain) = ring.pop() else { return false };
        ring.complete(chain.head_index(), 0);
        fence::interrupt(ring.as_ref(), &counters);
        true
    });
}

/// Takes, serves and completes one chain with the device locked: once [`Device::stop`] has had the lock, nothing
/// that was taken before is still being worked on. Interrupts for each chain: the guest may wait for it while a
/// later one of the same queue takes its second.
fn serve_one(device: &Mutex<Device>, ring: &Arc<dyn Ring>) -> bool {
    let mut device = lock(device);
    let Some(chain) = ring.pop() else { return false };
    let head = chain.head_index();
    let counters = device.counters();
    let Some(command) = Command::take(&chain) else {
        Counters::add(&counters.broken_chains);
        device.complain(format_args!("a control queue chain that is too long or has no room for an answer"));
        ring.complete(head, 0);
        fence::interrupt(ring.as_ref(), &counters);
        return true;
    };
    let answer = device.execute_guarded(&command.request);
    let written = command.answer(&chain, &answer.bytes);
    let held =
        answer.hold.is_some_and(|session| device.wakeups().arm(session, ring, head, written, Instant::now()));
    if !held {
        ring.complete(head, written);
        fence::interrupt(ring.as_ref(), &counters);
    }
    true
}

fn lock(device: &Mutex<Device>) -> std::sync::MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command copied out of its chain. The descriptors are copied first and only the copies are used, so a guest
/// that rewrites them meanwhile gains nothing.
struct Command {
    request: Vec<u8>,
    room: Vec<Descriptor>,
}

impl Command {
    /// Reads a chain; none if it is malformed beyond an answer.
    fn take(chain: &Chain) -> Option<Command> {
        let descriptors: Vec<Descriptor> = chain.clone().take(MAX_CHAIN_DESCRIPTORS + 1).collect();
        if descriptors.len() > MAX_CHAIN_DESCRIPTORS {
            return None;
        }
        // The device-readable part comes first (virtio 1.3, section 2.7.4.2).
        let readable = descriptors.iter().take_while(|descriptor| !descriptor.is_write_only()).count();
        let (request, room) = descriptors.split_at(readable);
        if !room.iter().all(|descriptor| descriptor.is_write_only()) {
            return None;
        }
        let sum =
            |part: &[Descriptor]| part.iter().map(|descriptor| descriptor.len() as usize).sum::<usize>();
        if sum(request) > MAX_COMMAND_BYTES || sum(room) < size_of::<CtrlHdr>() {
            return None;
        }
        let mut bytes = Vec::with_capacity(sum(request));
        for descriptor in request {
            let at = bytes.len();
            bytes.resize(at + descriptor.len() as usize, 0);
            chain.memory().read_slice(&mut bytes[at..], descriptor.addr()).ok()?;
        }
        Some(Command { request: bytes, room: room.to_vec() })
    }

    /// Writes as much of the answer as there is room for and tells how much that was.
    fn answer(&self, chain: &Chain, mut bytes: &[u8]) -> u32 {
        let mut written = 0u32;
        for descriptor in &self.room {
            let (now, later) = bytes.split_at(bytes.len().min(descriptor.len() as usize));
            if chain.memory().write_slice(now, descriptor.addr()).is_err() {
                break;
            }
            written += now.len() as u32;
            bytes = later;
        }
        written
    }
}
