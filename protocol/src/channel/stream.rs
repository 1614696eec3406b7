//! Frames over a byte stream: no shared memory. Payloads are copied through the stream.

use super::{Broken, Payload, Receiver, Sender};
use crate::frame::{HEADER_BYTES, Header};
use crate::limits::STREAM_PAYLOAD_BYTES_MAX;
use std::io::{ErrorKind, Read, Write};

/// The sending half; `W` does not block.
pub struct StreamSender<W> {
    stream: W,
    /// The part of the last message that the stream has not taken yet.
    unsent: Vec<u8>,
    sent: usize,
}

/// The receiving half; `R` does not block.
pub struct StreamReceiver<R> {
    stream: R,
    /// The message that is being received, header included.
    message: Vec<u8>,
    /// Bytes of it that are there.
    filled: usize,
}

impl<W: Write> StreamSender<W> {
    /// Sends over `stream`.
    pub fn new(stream: W) -> Self {
        Self { stream, unsent: Vec::new(), sent: 0 }
    }

    fn push(&mut self) -> Result<bool, Broken> {
        while self.sent < self.unsent.len() {
            match self.stream.write(&self.unsent[self.sent..]) {
                Ok(0) => return Err(Broken::Closed),
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(closed_or(error)),
            }
        }
        self.unsent.clear();
        self.sent = 0;
        Ok(true)
    }
}

impl<W: Write + Send> Sender for StreamSender<W> {
    fn try_send(&mut self, mut header: Header, parts: &[&[u8]]) -> Result<bool, Broken> {
        let payload_len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(payload_len <= self.payload_bytes_max(), "{payload_len} bytes of payload");
        if !self.push()? {
            return Ok(false);
        }
        header.payload_len = payload_len as u32;
        self.unsent.extend_from_slice(bytemuck::bytes_of(&header));
        for part in parts {
            self.unsent.extend_from_slice(part);
        }
        // What the stream does not take now goes out with the next attempt or before the next wait.
        self.push()?;
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        self.push()
    }

    fn payload_bytes_max(&self) -> usize {
        STREAM_PAYLOAD_BYTES_MAX
    }
}

impl<R: Read> StreamReceiver<R> {
    /// Receives from `stream`.
    pub fn new(stream: R) -> Self {
        Self { stream, message: vec![0; HEADER_BYTES], filled: 0 }
    }

    /// Reads until the message has all the bytes that it is to have; `false` if they are not there yet.
    fn fill(&mut self) -> Result<bool, Broken> {
        while self.filled < self.message.len() {
            match self.stream.read(&mut self.message[self.filled..]) {
                Ok(0) => return Err(Broken::Closed),
                Ok(n) => self.filled += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(closed_or(error)),
            }
        }
        Ok(true)
    }
}

impl<R: Read + Send> Receiver for StreamReceiver<R> {
    fn try_receive(&mut self, take: &mut dyn FnMut(Header, Payload<'_>)) -> Result<bool, Broken> {
        if self.message.len() == HEADER_BYTES && !self.fill()? {
            return Ok(false);
        }
        let header: Header = bytemuck::pod_read_unaligned(&self.message[..HEADER_BYTES]);
        let payload_len = header.payload_len as usize;
        if payload_len > STREAM_PAYLOAD_BYTES_MAX {
            return Err(Broken::Corrupt("a message is larger than any may be"));
        }
        self.message.resize(HEADER_BYTES + payload_len, 0);
        if !self.fill()? {
            return Ok(false);
        }
        take(header, Payload::new(&self.message, HEADER_BYTES, payload_len));
        self.message.truncate(HEADER_BYTES);
        self.filled = 0;
        Ok(true)
    }
}

fn closed_or(error: std::io::Error) -> Broken {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Broken::Closed,
        _ => Broken::Io(error),
    }
}
