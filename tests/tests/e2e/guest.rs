//! A guest that speaks the protocol by hand, over an arena.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ferry_protocol::calls::{CallCode, Manner};
use ferry_protocol::channel::arena::End;
use ferry_protocol::channel::{Interest, Payload};
use ferry_protocol::frame::Header;
use ferry_protocol::hello::{DeviceRecord, Hello, MAGIC, Open, Opened, Transport, decode_welcome};
use ferry_protocol::ids::{BufferId, StreamId};
use ferry_protocol::reply::Allocated;
use ferry_protocol::request::{AllocBuffer, Range};
use ferry_protocol::status::Status;
use ferry_protocol::tensor::TensorLayout;
use ferry_protocol::types::TensorType;
use ferry_protocol::{VERSION_MAX, VERSION_MIN, cursor};
use ferry_tests::daemon::Daemon;
use ferry_unix::{Channel, arena, frames};

/// Longer than any answer takes.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// A guest.
pub struct Guest {
    /// What the daemon showed.
    pub devices: Vec<DeviceRecord>,
    /// Where the descriptors of regions come.
    pub socket: UnixStream,
    channel: Channel,
    seq: u64,
}

impl Guest {
    /// With a session of its own.
    pub fn new(daemon: &Daemon) -> Self {
        let socket = UnixStream::connect(daemon.socket()).unwrap();
        let hello = Hello { magic: MAGIC, version_min: VERSION_MIN, version_max: VERSION_MAX, reserved: 0 };
        let request = |call, seq| Header::request(call, StreamId::SESSION, seq);
        frames::write(&socket, request(CallCode::HELLO, 1), bytemuck::bytes_of(&hello), &[]).unwrap();
        let (_, welcome, _) = frames::read(&socket).unwrap();
        let devices = decode_welcome(&welcome).unwrap().1;
        let open = Open { transport: Transport::ARENA, client_pid: 0 };
        frames::write(&socket, request(CallCode::OPEN, 2), bytemuck::bytes_of(&open), &[]).unwrap();
        let (_, opened, fds) = frames::read(&socket).unwrap();
        let opened: Opened = cursor::only(&opened, "an OPENED").unwrap();
        let [memory, host_event, guest_event] = fds.try_into().unwrap();
        let mapping = Arc::new(arena::map(&memory, opened.arena_bytes).unwrap());
        let own = socket.try_clone().unwrap();
        let channel = arena::channel(mapping, &opened, End::Guest, (guest_event, host_event), own).unwrap();
        Self { devices, socket, channel, seq: 0 }
    }

    /// Sends a message; its answer, or the notice of its failure, or `None` for a posted one that went well.
    pub fn ask(&mut self, call: CallCode, stream: StreamId, parameters: &[u8]) -> Option<(Header, Vec<u8>)> {
        self.seq += 1;
        let seq = self.seq;
        assert!(self.channel.sender.try_send(Header::request(call, stream, seq), &[parameters]).unwrap());
        let awaited = call.row().unwrap().manner == Manner::Awaited;
        if !awaited {
            // Answered after everything before it.
            self.seq += 1;
            let last = Header::request(CallCode::SYNCHRONIZE, StreamId::SESSION, self.seq);
            assert!(self.channel.sender.try_send(last, &[]).unwrap());
        }
        let mut found = None;
        loop {
            let mut last = None;
            let mut take = |header: Header, payload: Payload<'_>| last = Some((header, payload.to_vec()));
            while !self.channel.receiver.try_receive(&mut take).unwrap() {
                self.channel.waiter.wait(Interest::RECORDS, Some(ANSWERS_WITHIN)).unwrap();
            }
            let (header, payload) = last.unwrap();
            if header.seq == seq {
                found = Some((header, payload));
                if awaited {
                    return found;
                }
            } else {
                return found;
            }
        }
    }

    /// Sends a message of the session itself; how it ended.
    pub fn status(&mut self, call: CallCode, parameters: &[u8]) -> Status {
        self.ask(call, StreamId::SESSION, parameters).map_or(Status::OK, |(header, _)| header.status)
    }

    /// A buffer of the first device.
    pub fn alloc(&mut self, size: usize) -> BufferId {
        let alloc = AllocBuffer { size: size as u64, device: 0, reserved: 0 };
        let (_, reply) =
            self.ask(CallCode::ALLOC_BUFFER, StreamId::SESSION, bytemuck::bytes_of(&alloc)).unwrap();
        cursor::only::<Allocated>(&reply, "an allocation").unwrap().buffer
    }

    /// The first bytes of a buffer: no more than one answer has.
    pub fn read(&mut self, buffer: BufferId, size: usize) -> Vec<u8> {
        let range = Range { buffer, offset: 0, size: size as u64 };
        self.ask(CallCode::READ, StreamId::SESSION, bytemuck::bytes_of(&range)).unwrap().1
    }
}

/// The first `size` bytes of a buffer as a tensor.
pub fn bytes_of(buffer: BufferId, size: usize) -> TensorLayout {
    let size = size as u64;
    let (ne, nb) = ([size as i64, 1, 1, 1], [1, size, size, size]);
    TensorLayout { kind: TensorType::I8, ne, nb, buffer, ..TensorLayout::default() }
}
