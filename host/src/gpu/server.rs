//! The device behind vhost-user: one listening socket, one VMM at a time, for as long as the process lives.
//!
//! ```text
//!   bind ─► accept ─► serve ─► VMM gone ─► device reset ─► accept …
//! ```
//!
//! A VMM does not connect again to a back-end that died (QEMU spins and floods its log), so nothing that a guest or
//! one connection does may end this loop.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Error as VhostUserError, GpuBackend, Listener};
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringRwLock, VringT};
use virtio_queue::{QueueOwnedT, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

use super::device::{Device, FEATURES};
use super::queue::{Chain, Ring, drain_control, drain_cursor};

const CONTROL_QUEUE: u16 = 0;
const CURSOR_QUEUE: u16 = 1;
const QUEUES: usize = 2;
/// virtio-gpu's queues have 256 entries in QEMU; more costs nothing until used.
const MAX_QUEUE_SIZE: usize = 1024;
/// Pause before accepting again after accept itself failed (out of descriptors, say), so as not to spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// Why serving failed.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The socket could not be made.
    #[error("cannot listen on {path}: {source} (does its folder exist, and may this user write there?)")]
    Bind {
        /// Path asked for.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A connection could not be set up.
    #[error("cannot set up a vhost-user connection: {0}")]
    Setup(String),
    /// The VMM said something that this back-end cannot do, or not in this order.
    #[error("the VMM's vhost-user connection failed: {0}")]
    Connection(String),
}

/// Serves one VM's device on one socket.
pub struct Server {
    listener: Listener,
    device: Arc<Mutex<Device>>,
}

impl Server {
    /// Listens on `path`, replacing a socket that an earlier run left there.
    ///
    /// # Errors
    /// [`ServerError::Bind`].
    pub fn bind(path: &Path, device: Arc<Mutex<Device>>) -> Result<Server, ServerError> {
        let bind = |source| ServerError::Bind { path: path.to_owned(), source };
        if std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
            std::fs::remove_file(path).map_err(bind)?;
        }
        Ok(Server::from_listener(UnixListener::bind(path).map_err(bind)?, device))
    }

    /// Serves on a socket that somebody else opened, for a process that may open none itself.
    pub fn from_listener(listener: UnixListener, device: Arc<Mutex<Device>>) -> Server {
        Server { listener: listener.into(), device }
    }

    /// Serves one VMM after the other, for ever.
    pub fn run(mut self) -> ! {
        loop {
            match self.serve_one() {
                Ok(()) => tracing::info!("the VMM is gone; waiting for the next"),
                Err(error @ ServerError::Connection(_)) => tracing::error!("{error}"),
                Err(error) => {
                    tracing::error!("{error}");
                    std::thread::sleep(ACCEPT_RETRY);
                }
            }
        }
    }

    /// Waits for a VMM and serves it until it goes. Afterwards the device is as after power-on, and no worker has
    /// any of that VM's memory.
    ///
    /// # Errors
    /// [`ServerError::Setup`] and [`ServerError::Connection`]; the next call may well succeed.
    pub fn serve_one(&mut self) -> Result<(), ServerError> {
        let setup = |error: &dyn std::fmt::Display| ServerError::Setup(error.to_string());
        let memory = Memory::new(GuestMemoryMmap::new());
        let (backend, exit_fd) = Backend::new(self.device.clone(), memory.clone()).map_err(|e| setup(&e))?;
        let daemon = VhostUserDaemon::new("vhost-user".into(), Arc::new(backend), memory);
        let result = daemon.map_err(|e| setup(&e)).and_then(|mut daemon| {
            daemon.start(&mut self.listener).map_err(|e| setup(&e))?;
            tracing::info!("a VMM has connected");
            daemon.wait().or_else(|error| match error {
                vhost_user_backend::Error::HandleRequest(
                    VhostUserError::Disconnected | VhostUserError::PartialMessage,
                ) => Ok(()),
                other => Err(ServerError::Connection(other.to_string())),
            })
            // Here the daemon is dropped, which ends and joins its queue thread.
        });
        lock(&self.device).power_off();
        // The queue thread's epoll got this descriptor as a number that nobody owns; its thread is gone.
        let _ = nix::unistd::close(exit_fd);
        result
    }
}

/// One connection.
struct Backend {
    device: Arc<Mutex<Device>>,
    memory: Memory,
    exit: Mutex<Option<(EventConsumer, EventNotifier)>>,
    /// QEMU's display channel: nothing is ever sent, but closing it would be an error on the other side.
    display: Mutex<Option<GpuBackend>>,
    /// The control queue was stopped and has not been served since.
    stopped: AtomicBool,
}

impl Backend {
    /// The back-end and the number of the descriptor that ends its queue thread.
    fn new(device: Arc<Mutex<Device>>, memory: Memory) -> io::Result<(Backend, RawFd)> {
        let exit = new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC)?;
        let exit_fd = exit.0.as_raw_fd();
        let backend = Backend {
            device,
            memory,
            exit: Mutex::new(Some(exit)),
            display: Mutex::new(None),
            stopped: AtomicBool::new(false),
        };
        Ok((backend, exit_fd))
    }

    fn ring(&self, vring: &VringRwLock) -> Arc<dyn Ring> {
        Arc::new(Vring { vring: vring.clone(), memory: self.memory.clone() })
    }

    /// A queue that starts at 0 after it was stopped belongs to a guest that has reset the device (a rebooted one
    /// too); one that goes on where it was belongs to a VM that was paused. A pause at exactly 0 modulo 65,536
    /// commands is taken for a reset: that guest's processes then have to start again.
    fn note_start(&self, vring: &VringRwLock) {
        let start = vring.get_ref().get_queue().ready().then(|| vring.queue_next_avail());
        if start.is_some() && self.stopped.swap(false, Ordering::AcqRel) && start == Some(0) {
            tracing::info!("the guest has reset the device");
            lock(&self.device).reset();
        }
    }
}

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        MAX_QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        FEATURES | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn acked_features(&self, features: u64) {
        tracing::debug!("features {features:#x}");
        lock(&self.device).set_features(features);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn reset_device(&self) {
        lock(&self.device).reset();
    }

    /// The vrings keep this themselves.
    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        lock(&self.device).config(offset, size)
    }

    /// An error here would end the connection, and the device with it.
    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        if let Err(error) = lock(&self.device).set_memory(memory) {
            tracing::error!("cannot use the VM's memory: {error}");
        }
        Ok(())
    }

    fn set_gpu_socket(&self, display: GpuBackend) -> io::Result<()> {
        *self.display.lock().unwrap_or_else(PoisonError::into_inner) = Some(display);
        Ok(())
    }

    fn exit_event(&self, _thread_index: usize) -> Option<(EventConsumer, EventNotifier)> {
        self.exit.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Answered only after every worker has let go of the guest's pages.
    fn stop_vring(&self, queue_index: u32) -> io::Result<()> {
        if queue_index == u32::from(CONTROL_QUEUE) {
            lock(&self.device).stop();
            self.stopped.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Never an error: one would end the queue thread.
    fn handle_event(
        &self,
        event: u16,
        _: EventSet,
        vrings: &[VringRwLock],
        _thread: usize,
    ) -> io::Result<()> {
        match (event, vrings.get(usize::from(event))) {
            (CONTROL_QUEUE, Some(vring)) => {
                self.note_start(vring);
                drain_control(&self.device, &self.ring(vring));
            }
            (CURSOR_QUEUE, Some(vring)) => drain_cursor(&self.device, &self.ring(vring)),
            _ => {}
        }
        Ok(())
    }
}

/// A vhost-user vring as the device's [`Ring`].
struct Vring {
    vring: VringRwLock,
    memory: Memory,
}

impl Ring for Vring {
    fn pop(&self) -> Option<Chain> {
        let memory = self.memory.memory();
        let mut state = self.vring.get_mut();
        let queue = state.get_queue_mut();
        let size = queue.size();
        // A head outside of the table can be neither read nor handed back.
        match queue.iter(memory) {
            Ok(mut chains) => chains.find(|chain| chain.head_index() < size),
            Err(error) => {
                tracing::debug!("no chains: {error}");
                None
            }
        }
    }

    fn complete(&self, head: u16, len: u32) {
        if let Err(error) = self.vring.add_used(head, len) {
            tracing::debug!("chain {head} not handed back: {error}");
        }
    }

    fn interrupt(&self) -> bool {
        let wanted = self.vring.needs_notification().unwrap_or(true);
        if let Some(error) = wanted.then(|| self.vring.signal_used_queue().err()).flatten() {
            tracing::debug!("no interrupt: {error}");
        }
        wanted
    }

    fn suppress_kicks(&self) {
        if let Err(error) = self.vring.disable_notification() {
            tracing::debug!("kicks not suppressed: {error}");
        }
    }

    fn expect_kicks(&self) -> bool {
        self.vring.enable_notification().unwrap_or(false)
    }
}

fn lock(device: &Mutex<Device>) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}
