//! Guests on this machine: connections to a unix socket. A connection goes to the worker with the guest's OPEN, and the
//! worker answers that itself.
//!
//! ```text
//! guest ── HELLO ──▶ front ── WELCOME (devices) ──▶ guest
//! guest ── OPEN ───▶ front ── START + connection ──▶ supervisor ── starts ──▶ worker ── OPENED ──▶ guest
//! ```

use super::handshake::{self, Answer};
use super::link::{Supervisor, WorkerRequest};
use ferry_protocol::calls::CallCode;
use ferry_protocol::cursor;
use ferry_protocol::frame::Header;
use ferry_protocol::hello::{Open, Transport};
use ferry_protocol::limits::HANDSHAKE_TIMEOUT_MS;
use ferry_protocol::status::Status;
use ferry_unix::frames::{self, FrameError};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Handshakes going on at once; one takes well under a millisecond unless somebody stalls on purpose.
const HANDSHAKES_MAX: usize = 64;

/// What every handshake needs.
struct Front {
    welcome: Vec<u8>,
    supervisor: Supervisor,
    handshakes: AtomicUsize,
    sessions: AtomicU64,
}

/// Why a guest was turned away; it was told.
#[derive(Debug, thiserror::Error)]
enum Rejected {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Told(String),
}

/// Serves `listener` for ever.
pub fn serve(listener: &UnixListener, welcome: Vec<u8>, supervisor: Supervisor) -> ! {
    let (handshakes, sessions) = (AtomicUsize::new(0), AtomicU64::new(0));
    let front = Arc::new(Front { welcome, supervisor, handshakes, sessions });
    loop {
        match listener.accept() {
            Ok((client, _)) => front.clone().accept(client),
            // Out of descriptors, or the client is gone already: nothing that a moment does not mend.
            Err(error) => {
                tracing::warn!("accept: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

impl Front {
    fn accept(self: Arc<Self>, client: UnixStream) {
        if self.handshakes.fetch_add(1, Ordering::Relaxed) >= HANDSHAKES_MAX {
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("more than {HANDSHAKES_MAX} handshakes at once: a connection is dropped");
            return;
        }
        std::thread::spawn(move || {
            match self.shake_hands(&client) {
                // A guest that only lists devices leaves after the WELCOME.
                Ok(()) | Err(Rejected::Frame(FrameError::Closed)) => {}
                Err(rejected) => tracing::warn!("a guest was turned away: {rejected}"),
            }
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn shake_hands(&self, client: &UnixStream) -> Result<(), Rejected> {
        let timeout = Some(Duration::from_millis(HANDSHAKE_TIMEOUT_MS));
        client
            .set_read_timeout(timeout)
            .and_then(|()| client.set_write_timeout(timeout))
            .map_err(FrameError::Io)?;
        loop {
            let (header, payload, _) = frames::read(client)?;
            if header.call == CallCode::OPEN {
                return self.open(client, header, &payload);
            }
            reply(client, handshake::answer(header, &payload, &self.welcome))?;
        }
    }

    fn open(&self, client: &UnixStream, header: Header, payload: &[u8]) -> Result<(), Rejected> {
        let open = match cursor::only::<Open>(payload, "an OPEN") {
            Ok(open) if matches!(open.transport, Transport::STREAM | Transport::ARENA) => open,
            Ok(open) => {
                let text = format!("transport {} over a socket", open.transport.0);
                return reply(client, Answer::rejection(header, Status::MALFORMED, text));
            }
            Err(error) => {
                return reply(client, Answer::rejection(header, Status::MALFORMED, error.to_string()));
            }
        };
        let session = self.sessions.fetch_add(1, Ordering::Relaxed);
        let request = WorkerRequest { session, open_seq: header.seq, open };
        Ok(self.supervisor.start(&request, client).map_err(FrameError::Io)?)
    }
}

/// Sends an answer; one that turns the guest away ends the conversation.
fn reply(client: &UnixStream, answer: Answer) -> Result<(), Rejected> {
    frames::write(client, answer.header, &answer.payload, &[]).map_err(FrameError::Io)?;
    answer.rejected.map_or(Ok(()), |text| Err(Rejected::Told(text)))
}
