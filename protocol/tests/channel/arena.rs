//! The rings as a session has them: a sealed memfd, two eventfds, a socket whose end is the other side's.

use crate::End;
use ferry_protocol::channel::arena::End as Which;
use ferry_unix::Channel;
use ferry_unix::arena::{channel, make, map};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

pub fn pair() -> (End, End) {
    let shared = make().unwrap();
    let (guest_socket, host_socket) = UnixStream::pair().unwrap();
    let end = |which, socket| {
        let (guest, host) = (shared.guest_event.try_clone().unwrap(), shared.host_event.try_clone().unwrap());
        let events = if which == Which::Guest { (guest, host) } else { (host, guest) };
        let mapping = Arc::new(map(&shared.memory, shared.layout.arena_bytes).unwrap());
        let channel = channel(mapping, &shared.layout, which, events, socket).unwrap();
        let Channel { sender, receiver, waiter, .. } = channel;
        End { sender, receiver, waiter }
    };
    (end(Which::Guest, guest_socket), end(Which::Host, host_socket))
}
