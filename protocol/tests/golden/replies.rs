//! What answers and notices carry.

use super::{is_exactly, rows};
use ferry_protocol::calls::CallCode;
use ferry_protocol::ids::BufferId;
use ferry_protocol::reply::{Allocated, Memory, NoticeHeader, decode_held, encode_held};
use ferry_protocol::status::Status;

#[test]
fn allocated() {
    let golden = rows(&[
        &[5, 0, 0, 0, 7, 0, 0, 0],    // buffer: slot 5, generation 7
        &[0, 0x10, 0, 0, 0, 0, 0, 0], // size
    ]);
    is_exactly(&golden, Allocated { buffer: BufferId::new(5, 7), size: 4096 });
}

#[test]
fn memory() {
    let golden = rows(&[
        &[0, 0, 0, 0, 2, 0, 0, 0], // free
        &[0, 0, 0, 0, 4, 0, 0, 0], // total
    ]);
    is_exactly(&golden, Memory { free: 8 << 30, total: 16 << 30 });
}

#[test]
fn notice() {
    let golden = rows(&[
        &[0x40, 0],          // call: GRAPH_DEF
        &[0, 0, 0, 0, 0, 0], // reserved
    ]);
    is_exactly(&golden, NoticeHeader { call: CallCode::GRAPH_DEF, reserved: [0; 3] });
}

#[test]
fn held() {
    let golden = [
        0b0000_0101, // pieces 0 to 7: the first and the third
        0b0000_0001, // pieces 8 to 15: the ninth and last
    ];
    let pieces = [true, false, true, false, false, false, false, false, true];
    assert_eq!(encode_held(&pieces), golden);
    assert_eq!(decode_held(&golden, 9).as_deref(), Some(&pieces[..]));
}

#[test]
fn statuses_keep_their_numbers() {
    let numbers = [
        (Status::OK, 0),
        (Status::VERSION, 1),
        (Status::MALFORMED, 2),
        (Status::UNKNOWN_CALL, 3),
        (Status::STALE_HANDLE, 4),
        (Status::INVALID, 5),
        (Status::UNSUPPORTED, 6),
        (Status::NO_MEMORY, 7),
        (Status::FAILED, 8),
        (Status::LIMIT, 9),
        (Status::SESSION_LOST, 10),
        (Status::REFUSED, 11),
    ];
    for (status, number) in numbers {
        assert_eq!(status.0, number, "{status}");
        assert_ne!(status.text(), "unknown status");
    }
    assert_eq!(Status(12).to_string(), "unknown status 12");
}
