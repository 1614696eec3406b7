//! The format, byte by byte. A change that turns one of these tests red breaks every peer of an older build: it takes a
//! new protocol version.

mod graphs;
mod handshake;
mod replies;
mod requests;

use bytemuck::{AnyBitPattern, NoUninit};
use ferry_protocol::cursor::only;
use std::fmt::Debug;

/// Rows of bytes as one message.
fn rows(rows: &[&[u8]]) -> Vec<u8> {
    rows.concat()
}

/// `parse` takes `golden` and nothing that is shorter or longer.
fn takes_exactly<T: Debug, E: Debug>(golden: &[u8], parse: impl Fn(&[u8]) -> Result<T, E>) -> T {
    for len in 0..golden.len() {
        let cut = parse(&golden[..len]);
        assert!(cut.is_err(), "the first {len} of {} bytes are taken for {cut:?}", golden.len());
    }
    for tail in [&[0][..], &[0xff; 8], &[0; 256]] {
        let longer = parse(&[golden, tail].concat());
        assert!(longer.is_err(), "{} bytes behind the end are ignored: {longer:?}", tail.len());
    }
    parse(golden).expect("the golden bytes are valid")
}

/// The golden bytes are `value`, in both directions, and nothing shorter or longer is.
fn is_exactly<T: NoUninit + AnyBitPattern + PartialEq + Debug>(golden: &[u8], value: T) {
    assert_eq!(bytemuck::bytes_of(&value), golden, "{value:?}");
    assert_eq!(takes_exactly(golden, |bytes| only::<T>(bytes, "a value")), value);
}
