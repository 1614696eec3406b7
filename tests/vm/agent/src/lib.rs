//! The messages between the harness and the agent in the guest.
//!
//! Each message is one line of JSON on a virtio-serial port, binary data in base64. Lines make it easy to
//! find the beginning of a message again: a guest that reboots in the middle of one leaves a line that does
//! not parse, and its successor's [`Event::Hello`] starts a new one.
//!
//! The harness numbers its requests; every event carries the number of the request it belongs to.

#![cfg(target_os = "linux")]

mod bytes;
pub use bytes::Bytes;

use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port, as the guest finds it in `/sys/class/virtio-ports/*/name`.
pub const PORT_NAME: &str = "ferry.agent";

/// Most payload in one message, bytes: small enough that a kill request is not stuck behind a long one.
pub const CHUNK_BYTES_MAX: usize = 32 * 1024;

/// Longest line either side accepts, bytes: a chunk in base64, or a command with a generous environment.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// The request number of events that answer none ([`Event::Hello`]).
pub const UNSOLICITED: u64 = 0;

/// A line from the harness.
#[derive(Debug, Serialize, Deserialize)]
pub struct ToGuest {
    /// Number of the request that is opened, fed or signalled; never [`UNSOLICITED`].
    pub id: u64,
    /// What to do.
    pub request: Request,
}

/// What the harness can ask for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Runs a program in its own process group.
    Exec(Exec),
    /// Creates a file from the [`Request::Input`] that follows.
    Write {
        /// Where to; its folder must exist.
        path: String,
        /// Permission bits.
        mode: u32,
    },
    /// Sends a file's content as [`Event::Output`].
    Read {
        /// Which file.
        path: String,
    },
    /// Feeds the program or the file opened under this number; empty means the end.
    Input(Bytes),
    /// Sends a signal, by number, to the process group of the program started under this number.
    Signal(i32),
}

/// A program to run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Exec {
    /// The program, looked up in `PATH`, and its arguments.
    pub argv: Vec<String>,
    /// Added to the agent's own environment.
    pub env: Vec<(String, String)>,
    /// Working folder, `/` if none.
    pub cwd: Option<String>,
    /// The user and group, by number, to run as instead of root.
    pub uid: Option<u32>,
}

/// A line from the agent.
#[derive(Debug, Serialize, Deserialize)]
pub struct ToHost {
    /// Number of the request this belongs to, or [`UNSOLICITED`].
    pub id: u64,
    /// What happened.
    pub event: Event,
}

/// What the agent reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The agent is ready: the first event after each boot.
    Hello {
        /// The kernel's `boot_id`: another one after each boot.
        boot_id: String,
    },
    /// The program runs.
    Started {
        /// Its process number in the guest, also that of its process group.
        pid: u32,
    },
    /// A piece of the program's standard output, or of the file that is read.
    Output(Bytes),
    /// A piece of the program's standard error.
    ErrorOutput(Bytes),
    /// The program ended; nothing more comes under this number.
    Exited(Exit),
    /// The file is written, or was read to its end; nothing more comes under this number.
    Done,
    /// The request could not be carried out; nothing more comes under this number.
    Failed(String),
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// It returned this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Exit {
    /// Whether the program returned 0.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Reads one message, skipping lines that are none. `None` is the end of the stream.
///
/// # Errors
/// The stream's own, and a line longer than [`LINE_BYTES_MAX`].
pub fn receive<T: serde::de::DeserializeOwned>(
    reader: &mut impl std::io::BufRead,
) -> std::io::Result<Option<T>> {
    use std::io::{BufRead, Error, ErrorKind, Read};
    loop {
        let mut line = Vec::new();
        let mut limited = reader.by_ref().take(LINE_BYTES_MAX as u64);
        if limited.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.len() == LINE_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidData, "a message is longer than any should be"));
        }
        // What a reboot cut in two is not a message.
        if let Ok(message) = serde_json::from_slice(&line) {
            return Ok(Some(message));
        }
    }
}

/// Writes one message.
///
/// # Errors
/// The stream's own.
pub fn send(writer: &mut impl std::io::Write, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    writer.write_all(&line)?;
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_cut_in_two_is_skipped() {
        let mut stream = br#"{"id":3,"event":{"Outp"#.to_vec();
        stream.push(b'\n');
        let hello = ToHost { id: UNSOLICITED, event: Event::Hello { boot_id: "b".into() } };
        send(&mut stream, &hello).unwrap();
        let mut reader = stream.as_slice();
        let got: ToHost = receive(&mut reader).unwrap().unwrap();
        assert_eq!(got.event, hello.event);
        assert!(receive::<ToHost>(&mut reader).unwrap().is_none());
    }

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).cycle().take(CHUNK_BYTES_MAX).collect();
        let mut stream = Vec::new();
        send(&mut stream, &ToHost { id: 1, event: Event::Output(Bytes(all.clone())) }).unwrap();
        let got: ToHost = receive(&mut stream.as_slice()).unwrap().unwrap();
        assert_eq!(got.event, Event::Output(Bytes(all)));
    }

    #[test]
    fn an_endless_line_is_an_error() {
        let stream = vec![b'x'; LINE_BYTES_MAX + 1];
        assert!(receive::<ToHost>(&mut stream.as_slice()).is_err());
    }
}
