//! The virtio-gpu device with nothing behind it: control requests are echoed, and each session is a thread that
//! answers a word of its arena. To try a VMM, a guest kernel or a guest program without a worker.
//!
//!     cargo run --example gpu_loopback -- /tmp/ferry.sock
//!
//! Words of the arena (u32, little-endian), by offset: 0 the session's state, if the guest opens it there; 64 the
//! guest's number; 128 its echo; 192 non-zero while the guest sleeps on a fence; 256 milliseconds that the echo
//! takes.

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    loopback::serve()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("vhost-user needs Linux");
}

#[cfg(target_os = "linux")]
mod loopback {
    use std::collections::HashMap;
    use std::os::fd::AsFd;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use anyhow::Context;
    use ferry_host::gpu::mmap::Stitched;
    use ferry_host::gpu::server::Server;
    use ferry_host::gpu::{
        Backing, ContextId, Contexts, Device, Limits, Refusal, ResourceId, SessionGone, SessionId, Wakeups,
    };
    use ferry_protocol::{VERSION_MAX, VERSION_MIN};
    use vm_memory::Bytes;

    const NUMBER: usize = 64;
    const ECHO: usize = 128;
    const ASLEEP: usize = 192;
    const DELAY_MS: usize = 256;
    /// Largest delay that a guest may ask for.
    const DELAY_MS_MAX: u32 = 5_000;

    pub fn serve() -> anyhow::Result<()> {
        tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
        let path = PathBuf::from(std::env::args_os().nth(1).context("usage: gpu_loopback SOCKET")?);
        let wakeups = Wakeups::new();
        let counters = wakeups.counters();
        let contexts = Box::new(Loopback { wakeups: wakeups.clone(), sessions: HashMap::new() });
        let device = Device::new(contexts, wakeups, Limits::default(), VERSION_MIN..=VERSION_MAX)?;
        let mut server = Server::bind(&path, Arc::new(Mutex::new(device)))?;
        loop {
            println!("listening on {}", path.display());
            match server.serve_one() {
                Ok(()) => println!("the VMM is gone"),
                Err(error) => println!("{error}"),
            }
            println!("{:#?}", counters.snapshot());
        }
    }

    struct Loopback {
        wakeups: Wakeups,
        sessions: HashMap<SessionId, Echo>,
    }

    struct Echo {
        stop: Arc<AtomicBool>,
        thread: JoinHandle<()>,
        regions: HashMap<ResourceId, Stitched>,
    }

    impl Contexts for Loopback {
        fn control(&mut self, _: ContextId, request: &[u8]) -> Vec<u8> {
            request.to_vec()
        }

        fn open(
            &mut self,
            context: ContextId,
            session: SessionId,
            _: &[u8],
            arena: Backing,
        ) -> Result<(), Refusal> {
            let arena_map = map(&arena)?;
            println!("{context:?} {session:?}: {} bytes in {} extents", arena.bytes, arena.extents.len());
            let stop = Arc::new(AtomicBool::new(false));
            let (wakeups, stopped) = (self.wakeups.clone(), stop.clone());
            let thread = std::thread::spawn(move || echo(&arena_map, session, &wakeups, &stopped));
            self.sessions.insert(session, Echo { stop, thread, regions: HashMap::new() });
            Ok(())
        }

        fn add_region(&mut self, session: SessionId, id: ResourceId, region: Backing) -> Result<(), Refusal> {
            let region = map(&region)?;
            let session = self.sessions.get_mut(&session).ok_or_else(|| Refusal("no such session".into()))?;
            session.regions.insert(id, region);
            Ok(())
        }

        fn release(&mut self, session: SessionId, id: ResourceId) -> Result<(), SessionGone> {
            let session = self.sessions.get_mut(&session).ok_or(SessionGone)?;
            session.regions.remove(&id);
            Ok(())
        }

        fn doorbell(&mut self, session: SessionId) {
            if let Some(session) = self.sessions.get(&session) {
                session.thread.thread().unpark();
            }
        }

        fn close(&mut self, session: SessionId) {
            let Some(echo) = self.sessions.remove(&session) else { return };
            echo.stop.store(true, Ordering::Release);
            echo.thread.thread().unpark();
            let ended = echo.thread.join().is_ok();
            println!(
                "{session:?} closed (thread ended well: {ended}); {:?}",
                self.wakeups.counters().snapshot()
            );
        }
    }

    fn map(backing: &Backing) -> Result<Stitched, Refusal> {
        let files: Vec<_> = backing.files.iter().map(|file| file.as_fd()).collect();
        Stitched::map(&files, &backing.extents).map_err(|error| Refusal(error.to_string()))
    }

    /// The worker: echoes the guest's number, and wakes it if it sleeps.
    fn echo(arena: &Stitched, session: SessionId, wakeups: &Wakeups, stop: &AtomicBool) {
        let memory = arena.volatile();
        let load = |at| memory.load::<u32>(at, Ordering::SeqCst).unwrap_or(0);
        let mut last = 0;
        while !stop.load(Ordering::Acquire) {
            let number = load(NUMBER);
            if number == last {
                std::thread::park_timeout(Duration::from_secs(5));
                continue;
            }
            last = number;
            std::thread::sleep(Duration::from_millis(load(DELAY_MS).min(DELAY_MS_MAX).into()));
            let _ = memory.store(number, ECHO, Ordering::SeqCst);
            if load(ASLEEP) != 0 {
                wakeups.signal(session);
            }
        }
    }
}
