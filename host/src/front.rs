//! The front: accepts connections, shakes hands, lists devices, and has the supervisor start a worker for each session.
//!
//! It reads what guests send, so it is a process of its own; it knows the handshake and nothing else. The connection
//! goes to the worker with the guest's OPEN, and the worker answers that itself.
//!
//! ```text
//! guest ── HELLO ──▶ front ── WELCOME (devices) ──▶ guest
//! guest ── OPEN ───▶ front ── OPEN + connection ──▶ supervisor ── starts ──▶ worker ── OPENED ──▶ guest
//! ```

use crate::cli;
use crate::process::{die_with_parent, take_stdin};
use anyhow::Context;
use ferry_protocol::calls::CallCode;
use ferry_protocol::cursor;
use ferry_protocol::frame::Header;
use ferry_protocol::hello::{self, Hello, Open, WelcomeHeader};
use ferry_protocol::limits::HANDSHAKE_TIMEOUT_MS;
use ferry_protocol::status::Status;
use ferry_unix::frames::{self, FrameError};
use std::io::stdout;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Handshakes going on at once; one takes well under a millisecond unless somebody stalls on purpose.
const HANDSHAKES_MAX: usize = 64;

/// What every handshake needs.
struct Front {
    /// The WELCOME, made by the probe.
    welcome: Vec<u8>,
    supervisor: Mutex<UnixStream>,
    handshakes: AtomicUsize,
}

/// Why a guest was turned away; it is told.
#[derive(Debug, thiserror::Error)]
enum Rejected {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{0}: {1}")]
    Status(Status, String),
}

/// `ferryd front`: standard input is the listening socket, standard output the supervisor.
pub fn run(arguments: &cli::Front) -> anyhow::Result<()> {
    die_with_parent(arguments.parent)?;
    let listener = UnixListener::from(take_stdin()?);
    let supervisor = UnixStream::from(stdout().as_fd().try_clone_to_owned()?);
    nix::unistd::dup2_stdout(std::fs::File::options().write(true).open("/dev/null")?)?;
    let (_, welcome, _) = frames::read(&supervisor).context("the supervisor sent no devices")?;
    let front = Arc::new(Front { welcome, supervisor: Mutex::new(supervisor), handshakes: AtomicUsize::new(0) });
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
            if let Err(rejected) = self.shake_hands(&client) {
                match &rejected {
                    // A guest that only lists devices leaves after the WELCOME.
                    Rejected::Frame(FrameError::Closed) => {}
                    _ => tracing::warn!("a guest was turned away: {rejected}"),
                }
            }
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn shake_hands(&self, client: &UnixStream) -> Result<(), Rejected> {
        let timeout = Some(Duration::from_millis(HANDSHAKE_TIMEOUT_MS));
        client.set_read_timeout(timeout).and_then(|()| client.set_write_timeout(timeout)).map_err(FrameError::Io)?;
        loop {
            let (header, payload, _) = frames::read(client)?;
            match header.call {
                CallCode::HELLO => self.welcome(client, header, &payload)?,
                CallCode::OPEN => return self.open(client, header, &payload),
                other => {
                    let text = format!("{other} before a session was opened");
                    return turn_away(client, header, Status::UNKNOWN_CALL, text);
                }
            }
        }
    }

    fn welcome(&self, client: &UnixStream, header: Header, payload: &[u8]) -> Result<(), Rejected> {
        let hello: Hello = match cursor::only(payload, "a HELLO") {
            Ok(hello) => hello,
            Err(error) => return turn_away(client, header, Status::MALFORMED, error.to_string()),
        };
        if hello.magic != hello::MAGIC {
            return turn_away(client, header, Status::MALFORMED, "this is not a Ferry guest".to_owned());
        }
        if hello::negotiate(hello.version_min, hello.version_max).is_none() {
            let refusal = WelcomeHeader {
                magic: hello::MAGIC,
                version: ferry_protocol::VERSION_MIN,
                version_max: ferry_protocol::VERSION_MAX,
                devices: 0,
            };
            frames::write(client, header.reply(Status::VERSION), bytemuck::bytes_of(&refusal), &[])
                .map_err(FrameError::Io)?;
            let text = format!("the guest speaks versions {} to {}", hello.version_min, hello.version_max);
            return Err(Rejected::Status(Status::VERSION, text));
        }
        Ok(frames::write(client, header.reply(Status::OK), &self.welcome, &[]).map_err(FrameError::Io)?)
    }

    fn open(&self, client: &UnixStream, header: Header, payload: &[u8]) -> Result<(), Rejected> {
        if let Err(error) = cursor::only::<Open>(payload, "an OPEN") {
            return turn_away(client, header, Status::MALFORMED, error.to_string());
        }
        let supervisor = self.supervisor.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        frames::write(&supervisor, header, payload, &[client.as_raw_fd()]).map_err(FrameError::Io)?;
        Ok(())
    }
}

fn turn_away(client: &UnixStream, header: Header, status: Status, text: String) -> Result<(), Rejected> {
    frames::write(client, header.reply(status), text.as_bytes(), &[]).map_err(FrameError::Io)?;
    Err(Rejected::Status(status, text))
}
