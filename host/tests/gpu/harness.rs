//! A guest driver for the device, without a VM: guest RAM in a memfd, a virtqueue from virtio-queue's mock parts,
//! and a stand-in for the workers that checks, at every step, that no page is shared which should not be.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ferry_host::gpu::{
    Backing, Chain, ContextId, Contexts, Device, Limits, Refusal, ResourceId, Ring, SessionGone, SessionId,
    Wakeups, drain_control,
};
use ferry_protocol::virtgpu::{Command, ReplyPlace};
use virtio_queue::desc::{RawDescriptor, split::Descriptor};
use virtio_queue::mock::{AvailRing, DescriptorTable, UsedRing};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap, GuestRegionMmap,
    MmapRegion,
};

pub const PAGE: u64 = 4096;
/// Low guest RAM: queue, requests, answers.
pub const LOW_BYTES: u64 = 4 << 20;
/// High guest RAM, in the same file behind the low part: the pages that tests share.
pub const HIGH: u64 = 0x1_0000_0000;
pub const HIGH_BYTES: u64 = 2 << 20;
/// Guest RAM that is no file's.
pub const PRIVATE: u64 = 0x2_0000_0000;
pub const PRIVATE_BYTES: u64 = 1 << 20;

pub const QUEUE_SIZE: u16 = 256;
pub const AVAIL: u64 = 0x2000;
pub const USED: u64 = 0x3000;
const REQUEST: u64 = 0x10_0000;
const ANSWERS: u64 = 0x30_0000;
/// Room for the largest answer (GET_EDID: 1056 bytes) of each slot.
const ANSWER_STRIDE: u64 = 0x1000;

/// Guest RAM.
pub struct Ram {
    pub file: File,
    pub atomic: GuestMemoryAtomic<GuestMemoryMmap>,
    pub memory: GuestMemoryMmap,
}

impl Ram {
    pub fn new() -> Ram {
        Ram::named(c"guest")
    }

    pub fn named(name: &std::ffi::CStr) -> Ram {
        let fd = nix::sys::memfd::memfd_create(name, nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        let file = File::from(fd);
        file.set_len(LOW_BYTES + HIGH_BYTES).unwrap();
        let memory = Ram::table(&file, LOW_BYTES, HIGH_BYTES);
        Ram { file, atomic: GuestMemoryAtomic::new(memory.clone()), memory }
    }

    /// The memory table with high RAM at `offset` of the file, `len` bytes long.
    pub fn table(file: &File, offset: u64, len: u64) -> GuestMemoryMmap {
        let shared = |start: u64, len: u64, offset: u64| {
            let place = FileOffset::new(file.try_clone().unwrap(), offset);
            let region = MmapRegion::from_file(place, len as usize).unwrap();
            GuestRegionMmap::new(region, GuestAddress(start)).unwrap()
        };
        let private = MmapRegion::new(PRIVATE_BYTES as usize).unwrap();
        let private = GuestRegionMmap::new(private, GuestAddress(PRIVATE)).unwrap();
        GuestMemoryMmap::from_regions(vec![shared(0, LOW_BYTES, 0), shared(HIGH, len, offset), private])
            .unwrap()
    }

    pub fn word(&self, addr: u64) -> u32 {
        self.memory.load(GuestAddress(addr), Ordering::SeqCst).unwrap()
    }
}

/// What the workers have of the guest, as the device told them.
#[derive(Default)]
pub struct Workers {
    /// Of each session its regions by name, and its arena as resource 0.
    pub open: HashMap<SessionId, HashMap<ResourceId, Backing>>,
    pub doorbells: Vec<SessionId>,
    pub controls: Vec<Vec<u8>>,
    pub messages: Vec<Vec<u8>>,
    /// Refuse what comes next.
    pub refuse: bool,
    /// Workers do not survive a release.
    pub die_on_release: bool,
    /// Signal during each doorbell, before the fence is armed.
    pub answer_at_once: Option<Wakeups>,
}

impl Workers {
    pub fn holds(&self, resource: ResourceId) -> bool {
        self.open.values().any(|mapped| mapped.contains_key(&resource))
    }

    pub fn bytes(&self) -> u64 {
        self.open.values().flat_map(|mapped| mapped.values()).map(|backing| backing.bytes).sum()
    }
}

/// A control request on which the front panics.
pub const PANIC: &[u8] = b"panic";

pub struct Stand {
    pub workers: Arc<Mutex<Workers>>,
    pub wakeups: Wakeups,
}

/// What a worker is given is whole pages of guest RAM, none of them twice.
fn check(backing: &Backing) {
    assert!(!backing.extents.is_empty());
    assert_eq!(backing.bytes, backing.extents.iter().map(|extent| extent.len).sum::<u64>());
    let mut pages = HashSet::new();
    for extent in &backing.extents {
        assert!((extent.file as usize) < backing.files.len());
        assert_eq!((extent.offset % PAGE, extent.len % PAGE), (0, 0));
        assert!(extent.offset + extent.len <= LOW_BYTES + HIGH_BYTES);
        for page in 0..extent.len / PAGE {
            assert!(pages.insert((extent.file, extent.offset / PAGE + page)), "a page twice in {backing:?}");
        }
    }
}

impl Stand {
    fn lock(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap()
    }
}

impl Contexts for Stand {
    fn control(&mut self, _: ContextId, request: &[u8]) -> Vec<u8> {
        assert_ne!(request, PANIC, "a mistake of the front's");
        self.lock().controls.push(request.to_vec());
        request.iter().rev().copied().collect()
    }

    fn open(
        &mut self,
        _: ContextId,
        session: SessionId,
        message: &[u8],
        arena: Backing,
    ) -> Result<(), Refusal> {
        check(&arena);
        let mut workers = self.lock();
        if workers.refuse {
            return Err(Refusal("told to".into()));
        }
        workers.messages.push(message.to_vec());
        let before = workers.open.insert(session, HashMap::from([(ResourceId(0), arena)]));
        assert!(before.is_none(), "session ids are not used again");
        Ok(())
    }

    fn add_region(
        &mut self,
        session: SessionId,
        resource: ResourceId,
        region: Backing,
    ) -> Result<(), Refusal> {
        check(&region);
        let mut workers = self.lock();
        if workers.refuse {
            return Err(Refusal("told to".into()));
        }
        let mapped = workers.open.get_mut(&session).expect("a region for an open session");
        assert!(mapped.insert(resource, region).is_none(), "a region once");
        Ok(())
    }

    fn release(&mut self, session: SessionId, resource: ResourceId) -> Result<(), SessionGone> {
        let mut workers = self.lock();
        let gone = workers.die_on_release;
        let mapped = workers.open.get_mut(&session).expect("a region of an open session");
        assert!(mapped.remove(&resource).is_some(), "a region that was added");
        if gone { Err(SessionGone) } else { Ok(()) }
    }

    fn doorbell(&mut self, session: SessionId) {
        let mut workers = self.lock();
        assert!(workers.open.contains_key(&session));
        workers.doorbells.push(session);
        if let Some(wakeups) = &workers.answer_at_once {
            wakeups.signal(session);
        }
    }

    fn close(&mut self, session: SessionId) {
        assert!(self.lock().open.remove(&session).is_some(), "closed once");
        // Who hears the workers hears this end too, and does not know that it was asked for.
        self.wakeups.lost(session);
    }
}

/// The device side of the queue.
pub struct TestRing {
    pub queue: Mutex<Queue>,
    memory: GuestMemoryAtomic<GuestMemoryMmap>,
    pub interrupts: AtomicUsize,
}

impl Ring for TestRing {
    fn pop(&self) -> Option<Chain> {
        let mut queue = self.queue.lock().unwrap();
        let mut chains = queue.iter(self.memory.memory()).ok()?;
        chains.find(|chain| chain.head_index() < QUEUE_SIZE)
    }

    fn complete(&self, head: u16, len: u32) {
        self.queue.lock().unwrap().add_used(&*self.memory.memory(), head, len).unwrap();
    }

    fn interrupt(&self) -> bool {
        self.interrupts.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn suppress_kicks(&self) {
        self.queue.lock().unwrap().disable_notification(&*self.memory.memory()).unwrap();
    }

    fn expect_kicks(&self) -> bool {
        self.queue.lock().unwrap().enable_notification(&*self.memory.memory()).unwrap()
    }
}

/// The guest.
pub struct Guest<'a> {
    pub ram: &'a Ram,
    pub device: Arc<Mutex<Device>>,
    pub ring: Arc<TestRing>,
    pub workers: Arc<Mutex<Workers>>,
    pub wakeups: Wakeups,
    pub table: DescriptorTable<'a, GuestMemoryMmap>,
    avail: AvailRing<'a, GuestMemoryMmap>,
    used: UsedRing<'a, GuestMemoryMmap>,
    /// Next pair of descriptors, and whose answers are still out.
    slot: u16,
    in_flight: HashSet<u16>,
    seen: u16,
    /// How the device hears a kick: by a call, or through a server.
    doorbell: Box<dyn Fn() + 'a>,
}

impl<'a> Guest<'a> {
    pub fn new(ram: &'a Ram) -> Guest<'a> {
        Guest::with_limits(ram, Limits::default())
    }

    pub fn with_limits(ram: &'a Ram, limits: Limits) -> Guest<'a> {
        let workers = Arc::new(Mutex::new(Workers::default()));
        let wakeups = Wakeups::new();
        let stand = Stand { workers: workers.clone(), wakeups: wakeups.clone() };
        let mut device = Device::new(Box::new(stand), wakeups.clone(), limits, 1..=3).unwrap();
        device.set_features(ferry_host::gpu::FEATURES);
        device.set_memory(ram.atomic.clone()).unwrap();
        let table = DescriptorTable::new(&ram.memory, GuestAddress(0), QUEUE_SIZE);
        let avail = AvailRing::new(&ram.memory, GuestAddress(AVAIL), QUEUE_SIZE);
        let used = UsedRing::new(&ram.memory, GuestAddress(USED), QUEUE_SIZE);
        let mut queue = Queue::new(QUEUE_SIZE).unwrap();
        queue.try_set_desc_table_address(GuestAddress(0)).unwrap();
        queue.try_set_avail_ring_address(GuestAddress(AVAIL)).unwrap();
        queue.try_set_used_ring_address(GuestAddress(USED)).unwrap();
        queue.set_ready(true);
        let queue = Mutex::new(queue);
        let ring = Arc::new(TestRing { queue, memory: ram.atomic.clone(), interrupts: AtomicUsize::new(0) });
        let device = Arc::new(Mutex::new(device));
        let in_flight = HashSet::new();
        let served: (_, Arc<dyn Ring>) = (device.clone(), ring.clone());
        let doorbell = Box::new(move || drain_control(&served.0, &served.1));
        Guest {
            ram,
            device,
            ring,
            workers,
            wakeups,
            table,
            avail,
            used,
            slot: 0,
            in_flight,
            seen: 0,
            doorbell,
        }
    }

    /// Tells the device that the chain at `head` is there, and lets it work.
    pub fn offer(&mut self, head: u16) {
        let next = self.avail.idx().load();
        self.avail.ring().ref_at(usize::from(next % QUEUE_SIZE)).unwrap().store(head);
        self.avail.idx().store(next.wrapping_add(1));
        self.kick();
    }

    /// Claims that `count` chains more are there, and lets the device work.
    pub fn claim(&mut self, count: u16) {
        let next = self.avail.idx().load();
        self.avail.idx().store(next.wrapping_add(count));
        self.kick();
    }

    pub fn kick(&self) {
        (self.doorbell)();
    }

    /// Kicks in another way from now on.
    pub fn kick_by(&mut self, doorbell: impl Fn() + 'a) {
        self.doorbell = Box::new(doorbell);
    }

    /// The driver sets its rings up anew, as after a reset.
    pub fn reset_rings(&mut self) {
        self.avail = AvailRing::new(&self.ram.memory, GuestAddress(AVAIL), QUEUE_SIZE);
        self.used = UsedRing::new(&self.ram.memory, GuestAddress(USED), QUEUE_SIZE);
        self.in_flight.clear();
        self.seen = 0;
    }

    /// Chains that came back since the last call: head and length written.
    pub fn collect(&mut self) -> Vec<(u16, u32)> {
        let mut back = Vec::new();
        while self.seen != self.used.idx().load() {
            let element = self.used.ring().ref_at(usize::from(self.seen % QUEUE_SIZE)).unwrap().load();
            back.push((element.id() as u16, element.len()));
            self.in_flight.remove(&(element.id() as u16));
            self.seen = self.seen.wrapping_add(1);
        }
        back
    }

    pub fn descriptor(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        self.table.store(index, RawDescriptor::from(Descriptor::new(addr, len, flags, next))).unwrap();
    }

    /// Sends a command as the kernel does and returns its head, answered or not.
    pub fn post(&mut self, command: &[u8]) -> u16 {
        while self.in_flight.contains(&self.slot) {
            self.slot = (self.slot + 2) % QUEUE_SIZE;
        }
        let head = self.slot;
        self.slot = (self.slot + 2) % QUEUE_SIZE;
        self.ram.memory.write_slice(command, GuestAddress(REQUEST)).unwrap();
        self.descriptor(head, REQUEST, command.len() as u32, 1, head + 1);
        self.descriptor(
            head + 1,
            ANSWERS + u64::from(head) * ANSWER_STRIDE / 2,
            ANSWER_STRIDE as u32 / 2,
            2,
            0,
        );
        self.in_flight.insert(head);
        self.offer(head);
        head
    }

    pub fn answer(&self, head: u16, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        let addr = ANSWERS + u64::from(head) * ANSWER_STRIDE / 2;
        self.ram.memory.read_slice(&mut bytes, GuestAddress(addr)).unwrap();
        bytes
    }

    /// Sends a command and returns its answer, which must come at once.
    pub fn send(&mut self, command: &[u8]) -> Vec<u8> {
        let head = self.post(command);
        let back = self.collect();
        let len = back.iter().find(|(id, _)| *id == head).expect("answered at once").1;
        self.answer(head, len)
    }

    /// The same, down to the answer's type.
    pub fn code(&mut self, command: &[u8]) -> u32 {
        word(&self.send(command), 0)
    }

    pub fn ok(&mut self, command: &[u8]) {
        assert_eq!(self.code(command), OK, "{command:x?}");
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// A buffer resource of `pages` pages from page `first` of high RAM on, attached to `context`.
    pub fn buffer(&mut self, context: u32, id: u32, first: u64, pages: u64) {
        self.ok(&create_3d(id));
        self.ok(&attach_backing(id, &[(HIGH + first * PAGE, (pages * PAGE) as u32)]));
        self.ok(&of_context(CTX_ATTACH, context, id));
    }

    /// A context with an open session: arena resource `id`, one page, page `first`.
    pub fn session(&mut self, context: u32, id: u32, first: u64) {
        self.ok(&ctx_create(context, 0));
        self.buffer(context, id, first, 1);
        self.ok(&open(context, id));
        assert_eq!(self.ram.word(HIGH + first * PAGE), 1, "state word");
    }

    pub fn snapshot(&self) -> ferry_host::gpu::Snapshot {
        self.wakeups.counters().snapshot()
    }

    pub fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap()
    }
}

// Commands, as the bytes that the kernel sends.

pub const OK: u32 = 0x1100;
pub const UNSPEC: u32 = 0x1200;
pub const OUT_OF_MEMORY: u32 = 0x1201;
pub const BAD_SCANOUT: u32 = 0x1202;
pub const BAD_RESOURCE: u32 = 0x1203;
pub const BAD_CONTEXT: u32 = 0x1204;
pub const BAD_PARAMETER: u32 = 0x1205;

pub const CTX_ATTACH: u32 = 0x202;
pub const CTX_DETACH: u32 = 0x203;
pub const UNREF: u32 = 0x102;
pub const DETACH_BACKING: u32 = 0x107;

pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A command of context `context` without a fence, with u32 fields behind the header.
pub fn command(ctrl_type: u32, context: u32, fields: &[u32]) -> Vec<u8> {
    fenced(ctrl_type, 0, 0, context, 0, fields)
}

pub fn fenced(ctrl_type: u32, flags: u32, fence: u64, context: u32, ring: u8, fields: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(ctrl_type.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(fence.to_le_bytes());
    bytes.extend(context.to_le_bytes());
    bytes.extend([ring, 0, 0, 0]);
    bytes.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
    bytes
}

pub fn ctx_create(context: u32, context_init: u32) -> Vec<u8> {
    let mut fields = [0; 18];
    fields[1] = context_init;
    command(0x200, context, &fields)
}

pub fn create_3d(id: u32) -> Vec<u8> {
    command(0x204, 0, &[id, 0, 64, 16, 4096, 1, 1, 1, 0, 0, 0, 0])
}

pub fn create_2d(id: u32) -> Vec<u8> {
    command(0x101, 0, &[id, 1, 640, 480])
}

pub fn of_resource(ctrl_type: u32, id: u32) -> Vec<u8> {
    command(ctrl_type, 0, &[id, 0])
}

pub fn of_context(ctrl_type: u32, context: u32, id: u32) -> Vec<u8> {
    command(ctrl_type, context, &[id, 0])
}

pub fn entries(list: &[(u64, u32)]) -> Vec<u8> {
    let entry = |(addr, len): &(u64, u32)| [&addr.to_le_bytes()[..], &len.to_le_bytes(), &[0; 4]].concat();
    list.iter().flat_map(entry).collect()
}

pub fn attach_backing(id: u32, list: &[(u64, u32)]) -> Vec<u8> {
    [command(0x106, 0, &[id, list.len() as u32]), entries(list)].concat()
}

pub fn create_blob(id: u32, memory: u32, size: u64, list: &[(u64, u32)]) -> Vec<u8> {
    let fields = [id, memory, 1, list.len() as u32, 0, 0, size as u32, (size >> 32) as u32];
    [command(0x10c, 0, &fields), entries(list)].concat()
}

pub fn submit(context: u32, payload: &[u8]) -> Vec<u8> {
    submit_fenced(context, 0, 0, payload)
}

pub fn submit_fenced(context: u32, flags: u32, fence: u64, payload: &[u8]) -> Vec<u8> {
    [fenced(0x207, flags, fence, context, 0, &[payload.len() as u32, 0]), payload.to_vec()].concat()
}

/// A command of ours whose reply goes to offset 64 of `resource`.
pub fn exec(context: u32, what: Command<'_>, resource: u32) -> Vec<u8> {
    submit(context, &what.encode(ReplyPlace { resource, offset: 64, capacity: 256 }))
}

pub fn open(context: u32, arena: u32) -> Vec<u8> {
    let open = ferry_protocol::virtgpu::Open { arena, state_offset: 0 };
    submit(context, &Command::Open(open, b"message").encode(ReplyPlace::default()))
}

/// A doorbell with an armed fence.
pub fn doorbell(context: u32, fence: u64) -> Vec<u8> {
    submit_fenced(context, 1, fence, &Command::Doorbell { arm: true }.encode(ReplyPlace::default()))
}
