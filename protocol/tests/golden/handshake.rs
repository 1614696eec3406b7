//! The header, HELLO and WELCOME, OPEN and OPENED.

use super::{is_exactly, rows, takes_exactly};
use ferry_protocol::calls::CallCode;
use ferry_protocol::frame::{Flags, Header};
use ferry_protocol::hello::{
    DeviceFlags, DeviceKind, DeviceRecord, Hello, MAGIC, Open, Opened, Transport, WelcomeError,
    WelcomeHeader, decode_welcome, encode_welcome, text_field,
};
use ferry_protocol::ids::StreamId;
use ferry_protocol::status::Status;

#[test]
fn header_of_a_request() {
    let golden = rows(&[
        &[0x20, 0, 0, 0],                      // payload_len
        &[0x43, 0],                            // call: EXEC
        &[0x02, 0x01],                         // stream
        &[0x08, 0x07, 0x06, 0x05, 4, 3, 2, 1], // seq
        &[0, 0, 0, 0],                         // status: 0 in a request
        &[0, 0, 0, 0],                         // flags
    ]);
    let request = Header::request(CallCode::EXEC, StreamId(0x0102), 0x0102_0304_0506_0708);
    is_exactly(&golden, Header { payload_len: 32, ..request });
}

#[test]
fn header_of_a_part_of_an_answer() {
    let golden = rows(&[
        &[0, 0, 8, 0],             // payload_len: 512 KiB
        &[0x14, 0],                // call: READ
        &[1, 0],                   // stream: the request's
        &[9, 0, 0, 0, 0, 0, 0, 0], // seq: the request's
        &[0, 0, 0, 0],             // status: OK
        &[1, 0, 0, 0],             // flags: MORE
    ]);
    let reply = Header::request(CallCode::READ, StreamId(1), 9).reply(Status::OK);
    is_exactly(&golden, Header { payload_len: 512 << 10, flags: Flags::MORE, ..reply });
}

#[test]
fn hello() {
    let golden = rows(&[
        b"ggferry\0",  // magic
        &[1, 0],       // version_min
        &[3, 0],       // version_max
        &[0, 0, 0, 0], // reserved
    ]);
    is_exactly(&golden, Hello { magic: MAGIC, version_min: 1, version_max: 3, reserved: 0 });
}

fn device() -> DeviceRecord {
    DeviceRecord {
        name: text_field("CUDA0"),
        description: text_field("NVIDIA H200"),
        memory_free: 0x1000,
        memory_total: 0x2000,
        alignment: 128,
        buffer_bytes_max: 0x3000,
        kind: DeviceKind::GPU,
        flags: DeviceFlags::THREADS | DeviceFlags::INIT_TENSOR,
    }
}

#[test]
fn welcome() {
    let golden = rows(&[
        b"ggferry\0",                            // magic
        &[1, 0],                                 // version
        &[ferry_protocol::VERSION_MAX as u8, 0], // version_max
        &[1, 0, 0, 0],                           // devices
        b"CUDA0",
        &[0; 59], // name, 64 bytes
        b"NVIDIA H200",
        &[0; 117],                    // description, 128 bytes
        &[0, 0x10, 0, 0, 0, 0, 0, 0], // memory_free
        &[0, 0x20, 0, 0, 0, 0, 0, 0], // memory_total
        &[0x80, 0, 0, 0, 0, 0, 0, 0], // alignment
        &[0, 0x30, 0, 0, 0, 0, 0, 0], // buffer_bytes_max
        &[1, 0, 0, 0],                // kind: GPU
        &[3, 0, 0, 0],                // flags: THREADS, INIT_TENSOR
    ]);
    assert_eq!(encode_welcome(1, &[device()]), golden);
    let (header, devices) = takes_exactly(&golden, decode_welcome);
    let version_max = ferry_protocol::VERSION_MAX;
    assert_eq!(header, WelcomeHeader { magic: MAGIC, version: 1, version_max, devices: 1 });
    assert_eq!(devices, [device()]);
}

#[test]
fn a_welcome_that_makes_no_sense_is_an_error() {
    let good = encode_welcome(1, &[device(), device()]);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        decode_welcome(&bytes)
    };
    assert_eq!(with(0, b'G'), Err(WelcomeError::Magic));
    assert_eq!(with(12, 17), Err(WelcomeError::Devices(17)));
    assert_eq!(with(15, 0xff), Err(WelcomeError::Devices(0xff00_0002)));
    let alignment = 16 + 232 + 64 + 128 + 16;
    assert_eq!(with(alignment, 0), Err(WelcomeError::Alignment(1)));
    assert_eq!(with(alignment, 0x81), Err(WelcomeError::Alignment(1)));
}

#[test]
fn open() {
    let golden = rows(&[
        &[1, 0, 0, 0],          // transport: ARENA
        &[0x2a, 0, 0x01, 0x00], // client_pid
    ]);
    is_exactly(&golden, Open { transport: Transport::ARENA, client_pid: 0x0001_002a });
    assert_eq!((Transport::STREAM, Transport::VIRTGPU), (Transport(0), Transport(2)));
}

#[test]
fn opened() {
    let golden = rows(&[
        &[0, 0x10, 0x40, 0x01, 0, 0, 0, 0], // arena_bytes: 20 MiB and a page
        &[0, 0, 0, 0x01, 0, 0, 0, 0],       // submission_bytes: 16 MiB
        &[0, 0, 0x40, 0, 0, 0, 0, 0],       // completion_bytes: 4 MiB
    ]);
    let layout = ferry_protocol::channel::arena::default_layout();
    assert_eq!(
        layout,
        Opened { arena_bytes: 0x0140_1000, submission_bytes: 16 << 20, completion_bytes: 4 << 20 }
    );
    is_exactly(&golden, layout);
}
