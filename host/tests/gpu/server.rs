//! The device behind its vhost-user socket, with a VMM of a few lines.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ferry_host::gpu::server::{Server, ServerError};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

use super::harness::*;

/// VERSION_1, EVENT_IDX, INDIRECT_DESC, and what QEMU acknowledges whether offered or not: RING_RESET and
/// NOTIFY_ON_EMPTY; then VIRGL and PROTOCOL_FEATURES.
const QEMU_FEATURES: u64 = 1 << 32 | 1 << 29 | 1 << 28 | 1 << 40 | 1 << 24 | 1 | 1 << 30;
const PATIENCE: Duration = Duration::from_secs(5);

/// A server in its thread, telling how each connection ended.
struct Running {
    dir: tempfile::TempDir,
    ends: mpsc::Receiver<Result<(), ServerError>>,
}

impl Running {
    fn start(guest: &Guest<'_>) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::bind(&dir.path().join("socket"), guest.device.clone()).unwrap();
        let (told, ends) = mpsc::channel();
        // Ends with the test: send() fails once `ends` is gone, or the process does.
        std::thread::spawn(move || while told.send(server.serve_one()).is_ok() {});
        Running { dir, ends }
    }

    fn ended(&self) -> Result<(), ServerError> {
        self.ends.recv_timeout(PATIENCE).expect("the connection's end is noticed")
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("socket")
    }
}

struct Vmm {
    frontend: Frontend,
    kick: Arc<EventFd>,
    call: EventFd,
}

impl Vmm {
    fn connect(socket: &Path) -> Vmm {
        let frontend = Frontend::connect(socket, 2).unwrap();
        let event = || EventFd::new(libc::EFD_NONBLOCK).unwrap();
        Vmm { frontend, kick: Arc::new(event()), call: event() }
    }

    /// What QEMU says until the guest's driver is there.
    fn negotiate(&mut self, features: u64) -> vhost::Result<()> {
        let frontend = &mut self.frontend;
        frontend.set_owner()?;
        assert_eq!(features & !frontend.get_features()?, 0, "offered");
        let protocol = frontend.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::MQ;
        assert!(protocol.contains(wanted | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS));
        frontend.set_protocol_features(wanted).unwrap();
        frontend.set_features(features)
    }

    fn share(&self, ram: &Ram) {
        let region = |start, bytes, offset| VhostUserMemoryRegionInfo {
            guest_phys_addr: start,
            memory_size: bytes,
            userspace_addr: start + 0x7000_0000_0000,
            mmap_offset: offset,
            mmap_handle: ram.file.as_raw_fd(),
        };
        let table = [region(0, LOW_BYTES, 0), region(HIGH, HIGH_BYTES, LOW_BYTES)];
        self.frontend.set_mem_table(&table).unwrap();
    }

    /// Starts the control queue, `base` chains into its life.
    fn start_queue(&mut self, base: u16) {
        let frontend = &mut self.frontend;
        frontend.set_vring_num(0, QUEUE_SIZE).unwrap();
        frontend.set_vring_base(0, base).unwrap();
        let addresses = VringConfigData {
            queue_max_size: QUEUE_SIZE,
            queue_size: QUEUE_SIZE,
            flags: 0,
            desc_table_addr: 0x7000_0000_0000,
            used_ring_addr: 0x7000_0000_0000 + USED,
            avail_ring_addr: 0x7000_0000_0000 + AVAIL,
            log_addr: None,
        };
        frontend.set_vring_addr(0, &addresses).unwrap();
        frontend.set_vring_call(0, &self.call).unwrap();
        frontend.set_vring_kick(0, &self.kick).unwrap();
        frontend.set_vring_enable(0, true).unwrap();
    }

    /// Kicks and waits until the used index moves; a held fence lets it wait in vain, and briefly.
    fn kicker<'a>(&self, ram: &'a Ram, patience: Duration) -> impl Fn() + 'a {
        let kick = self.kick.clone();
        move || {
            let used = || ram.memory.load::<u16>(GuestAddress(USED + 2), Ordering::SeqCst).unwrap();
            let (before, start) = (used(), Instant::now());
            kick.write(1).unwrap();
            while used() == before && start.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// A guest whose driver has started.
fn boot(ram: &Ram) -> (Guest<'_>, Running, Vmm) {
    let mut guest = Guest::new(ram);
    guest.device.lock().unwrap().power_off();
    let running = Running::start(&guest);
    let mut vmm = Vmm::connect(&running.socket());
    vmm.negotiate(QEMU_FEATURES).unwrap();
    vmm.share(ram);
    vmm.start_queue(0);
    guest.kick_by(vmm.kicker(ram, PATIENCE));
    (guest, running, vmm)
}

#[test]
fn a_vm_lives_and_goes_and_the_next_one_comes() {
    let ram = Ram::new();
    let (mut guest, running, mut vmm) = boot(&ram);
    for size in [16, 20] {
        let config =
            vmm.frontend.get_config(0, size, VhostUserConfigFlags::WRITABLE, &vec![0; size as usize]);
        let (_, config) = config.unwrap();
        assert_eq!((config.len(), word(&config, 8), word(&config, 12)), (size as usize, 1, 1));
    }
    guest.session(1, 1, 0);
    assert!(vmm.call.read().is_ok(), "the guest was interrupted");
    assert_eq!(guest.code(&create_blob(2, 1, PAGE, &[(HIGH, PAGE as u32)])), UNSPEC, "not acknowledged");
    drop(vmm);
    running.ended().unwrap();
    assert!(guest.workers().open.is_empty());
    assert_eq!(guest.snapshot().mapped_bytes, 0);

    let mut vmm = Vmm::connect(&running.socket());
    vmm.negotiate(QEMU_FEATURES | 1 << 3 | 1 << 4).unwrap();
    vmm.share(&ram);
    guest.reset_rings();
    vmm.start_queue(0);
    guest.kick_by(vmm.kicker(&ram, PATIENCE));
    guest.session(1, 1, 0);
    guest.ok(&create_blob(2, 1, PAGE, &[(HIGH, PAGE as u32)]));
    drop(vmm);
    running.ended().unwrap();
}

#[test]
fn a_queue_stops_only_after_the_workers_let_go() {
    let ram = Ram::new();
    let (mut guest, _running, mut vmm) = boot(&ram);
    guest.session(1, 1, 0);
    guest.kick_by(vmm.kicker(&ram, Duration::from_millis(200)));
    guest.post(&doorbell(1, 1));
    assert_eq!(guest.in_flight(), 1, "held");
    let base = vmm.frontend.get_vring_base(0).unwrap();
    assert!(guest.workers().open.is_empty());
    assert_eq!(ram.word(HIGH), 2, "LOST");
    guest.collect();
    assert_eq!(guest.in_flight(), 0, "what was held came back before the queue stopped");

    // A VM that was paused goes on where it was, with its resources.
    vmm.start_queue(base as u16);
    guest.kick_by(vmm.kicker(&ram, PATIENCE));
    assert_eq!(guest.code(&ctx_create(1, 0)), BAD_CONTEXT);
    guest.ok(&of_resource(UNREF, 1));

    // A guest that was reset finds nothing of before.
    vmm.frontend.get_vring_base(0).unwrap();
    guest.reset_rings();
    vmm.start_queue(0);
    guest.ok(&ctx_create(1, 0));
    assert_eq!(guest.snapshot().contexts, 1);
}

#[test]
fn a_memory_table_without_the_arena_ends_its_session_before_the_answer() {
    let ram = Ram::new();
    let (mut guest, _running, vmm) = boot(&ram);
    guest.session(1, 1, 0);
    let low = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: LOW_BYTES,
        userspace_addr: 0x7000_0000_0000,
        mmap_offset: 0,
        mmap_handle: ram.file.as_raw_fd(),
    };
    vmm.frontend.set_mem_table(&[low]).unwrap();
    // Without REPLY_ACK the answer to a later question tells that this was done.
    vmm.frontend.get_features().unwrap();
    assert!(guest.workers().open.is_empty());
    guest.ok(&of_resource(UNREF, 1));
}

#[test]
fn a_bad_connection_is_an_error_and_not_the_end() {
    let ram = Ram::new();
    let guest = Guest::new(&ram);
    let running = Running::start(&guest);
    // One that says nothing, one that says nonsense, one that acknowledges what was not offered.
    drop(UnixStream::connect(running.socket()).unwrap());
    running.ended().unwrap();
    let mut nonsense = UnixStream::connect(running.socket()).unwrap();
    std::io::Write::write_all(&mut nonsense, &[0x5a; 64]).unwrap();
    assert!(matches!(running.ended(), Err(ServerError::Connection(_))));
    let vmm = Vmm::connect(&running.socket());
    vmm.frontend.set_owner().unwrap();
    let _ = vmm.frontend.set_features(1 << 63);
    assert!(matches!(running.ended(), Err(ServerError::Connection(_))));

    let mut vmm = Vmm::connect(&running.socket());
    vmm.negotiate(QEMU_FEATURES).unwrap();
    drop(vmm);
    running.ended().unwrap();
}

#[test]
fn only_a_socket_is_replaced() {
    let ram = Ram::new();
    let guest = Guest::new(&ram);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    let error = Server::bind(&path, guest.device.clone()).err().expect("refused").to_string();
    assert!(error.contains("precious"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}
