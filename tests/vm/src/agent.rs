//! The harness's end of the agent's port.

use std::collections::HashMap;
use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use ferry_vm_agent::{Bytes, Event, Request, ToGuest, ToHost, UNSOLICITED, receive, send};

/// How long the guest may leave a request unread before the harness gives up on it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests in progress, and where their events go.
type Routes = Mutex<HashMap<u64, Sender<Event>>>;

/// The connection to the agent of one guest; it stays through the guest's reboots.
#[derive(Debug)]
pub struct Agent {
    writer: Mutex<UnixStream>,
    routes: Arc<Routes>,
    hellos: Mutex<Receiver<String>>,
    next_id: AtomicU64,
}

impl Agent {
    /// Talks over `stream`, which leads to the guest's port.
    ///
    /// # Errors
    /// If the socket does not take the settings it needs.
    pub fn new(stream: UnixStream) -> Result<Self> {
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let reader = stream.try_clone()?;
        let routes = Arc::new(Routes::default());
        let (hello, hellos) = mpsc::channel();
        let routed = Arc::clone(&routes);
        thread::spawn(move || route(reader, &routed, &hello));
        let next_id = AtomicU64::new(UNSOLICITED + 1);
        Ok(Self { writer: Mutex::new(stream), routes, hellos: Mutex::new(hellos), next_id })
    }

    /// Waits, at most so long, for the agent to say that it is ready after a boot; returns the boot's id.
    ///
    /// # Errors
    /// `Timeout`, or `Disconnected` if QEMU is gone.
    pub fn hello(&self, timeout: Duration) -> Result<String, RecvTimeoutError> {
        self.hellos.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(timeout)
    }

    /// Opens a request; its events end when the guest reboots or QEMU ends.
    ///
    /// # Errors
    /// If the guest is gone or does not read.
    pub fn request(&self, request: Request) -> Result<(u64, Receiver<Event>)> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = mpsc::channel();
        lock(&self.routes).insert(id, sender);
        self.send(id, request)?;
        Ok((id, events))
    }

    /// Feeds a request that is open; an empty piece ends its input.
    ///
    /// # Errors
    /// If the guest is gone or does not read.
    pub fn input(&self, id: u64, piece: &[u8]) -> Result<()> {
        self.send(id, Request::Input(Bytes(piece.to_vec())))
    }

    /// Sends a signal, by number, to a program's process group.
    ///
    /// # Errors
    /// If the guest is gone or does not read.
    pub fn signal(&self, id: u64, number: i32) -> Result<()> {
        self.send(id, Request::Signal(number))
    }

    /// Forgets a request: what still comes for it is dropped.
    pub fn forget(&self, id: u64) {
        lock(&self.routes).remove(&id);
    }

    fn send(&self, id: u64, request: Request) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        send(&mut *writer, &ToGuest { id, request }).context("the guest's agent takes no request")
    }
}

fn lock(routes: &Routes) -> MutexGuard<'_, HashMap<u64, Sender<Event>>> {
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands each event to whom it belongs until the stream ends.
fn route(stream: UnixStream, routes: &Routes, hello: &Sender<String>) {
    let mut reader = BufReader::new(stream);
    while let Ok(Some(ToHost { id, event })) = receive(&mut reader) {
        let ends = matches!(event, Event::Exited(_) | Event::Done | Event::Failed(_));
        match event {
            Event::Hello { boot_id } => {
                // Whatever ran in the boot before is gone.
                lock(routes).clear();
                let _ = hello.send(boot_id);
            }
            event => {
                let mut routes = lock(routes);
                routes.get(&id).map(|route| route.send(event));
                if ends {
                    routes.remove(&id);
                }
            }
        }
    }
    lock(routes).clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_find_their_request_and_end_with_a_reboot() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let agent = Agent::new(ours).unwrap();
        let (first, first_events) = agent.request(Request::Read { path: "/a".into() }).unwrap();
        let (second, second_events) = agent.request(Request::Read { path: "/b".into() }).unwrap();
        send(&mut guest, &ToHost { id: second, event: Event::Done }).unwrap();
        assert_eq!(second_events.recv(), Ok(Event::Done));
        assert!(second_events.recv().is_err(), "nothing comes after the end");

        let hello = Event::Hello { boot_id: "boot".into() };
        send(&mut guest, &ToHost { id: UNSOLICITED, event: hello }).unwrap();
        assert_eq!(agent.hello(Duration::from_secs(10)).as_deref(), Ok("boot"));
        assert!(first_events.recv().is_err(), "request {first} is gone with its boot");

        drop(guest);
        assert_eq!(agent.hello(Duration::from_secs(10)), Err(RecvTimeoutError::Disconnected));
    }
}
