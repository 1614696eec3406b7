//! The call table: one row per message that a guest may send.

use bytemuck::{Pod, Zeroable};

/// What a message is. An open set; a code that is not in [`CALLS`] is refused.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct CallCode(pub u16);

/// Whether the guest waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// No answer; a failure comes back as a [`CallCode::NOTICE`].
    Posted,
    /// Exactly one answer (in several parts where the payload is large).
    Awaited,
}

/// Where a call is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// By the front, before there is a session.
    Handshake,
    /// By the worker.
    Session,
    /// Sent by the host on its own account.
    FromHost,
}

/// A row of the call table.
#[derive(Debug)]
pub struct Call {
    /// Its number on the wire.
    pub code: CallCode,
    /// Its name, as the specification and the logs have it.
    pub name: &'static str,
    /// Who serves it.
    pub phase: Phase,
    /// Whether an answer comes.
    pub manner: Manner,
    /// The first protocol version that has it.
    pub since: u16,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $phase:ident, $manner:ident, since $since:literal;)*) => {
        impl CallCode {
            $($(#[$doc])* pub const $name: Self = Self($code);)*
        }

        /// Every call, in the order of its code.
        pub const CALLS: &[Call] = &[
            $(Call {
                code: CallCode::$name,
                name: stringify!($name),
                phase: Phase::$phase,
                manner: Manner::$manner,
                since: $since,
            },)*
        ];
    };
}

calls! {
    /// Versions and features of the guest; answered with the daemon's devices.
    HELLO = 0x01, Handshake, Awaited, since 1;
    /// Starts a worker and opens the session.
    OPEN = 0x02, Handshake, Awaited, since 1;

    /// Allocates a buffer on a device.
    ALLOC_BUFFER = 0x10, Session, Awaited, since 1;
    /// Frees a buffer and forgets the graphs that name it.
    FREE_BUFFER = 0x11, Session, Posted, since 1;
    /// Fills a whole buffer with one byte value.
    CLEAR_BUFFER = 0x12, Session, Posted, since 1;
    /// Writes bytes into a buffer.
    WRITE = 0x13, Session, Posted, since 1;
    /// Reads bytes of a buffer.
    READ = 0x14, Session, Awaited, since 1;
    /// Writes into a tensor whose layout the back-end may want to know (quantised types).
    SET_TENSOR = 0x15, Session, Posted, since 1;
    /// Reads from such a tensor.
    GET_TENSOR = 0x16, Session, Awaited, since 1;
    /// Lets the back-end prepare a tensor that was placed in a buffer.
    INIT_TENSOR = 0x17, Session, Posted, since 1;
    /// Fills a part of a tensor with one byte value.
    MEMSET_TENSOR = 0x18, Session, Posted, since 1;
    /// Copies a tensor to another one of the same session.
    COPY_TENSOR = 0x19, Session, Posted, since 1;
    /// Drops what the back-end attached to a buffer's tensors.
    RESET_BUFFER = 0x1a, Session, Posted, since 1;
    /// Says what a buffer is used for.
    SET_USAGE = 0x1b, Session, Posted, since 1;
    /// Writes runs of bytes at equal distances into a tensor.
    SET_TENSOR_2D = 0x1c, Session, Posted, since 1;
    /// Reads runs of bytes at equal distances from a tensor.
    GET_TENSOR_2D = 0x1d, Session, Awaited, since 1;

    /// Shares more memory: a region, for the guest's host buffers.
    ADD_REGION = 0x20, Session, Awaited, since 1;
    /// Takes a region back: once it is answered, the worker has it no more.
    DROP_REGION = 0x21, Session, Awaited, since 1;
    /// Writes into a tensor from a region.
    SET_FROM_REGION = 0x22, Session, Posted, since 1;
    /// Reads from a tensor into a region.
    GET_INTO_REGION = 0x23, Session, Awaited, since 1;

    /// Writes into a tensor what the host's model store has under these hashes.
    SET_FROM_STORE = 0x28, Session, Awaited, since 1;

    /// Makes a backend instance: a stream.
    INIT_BACKEND = 0x30, Session, Awaited, since 1;
    /// Ends a stream.
    FREE_BACKEND = 0x31, Session, Posted, since 1;
    /// Answered when everything that the stream was given is done.
    SYNCHRONIZE = 0x32, Session, Awaited, since 1;
    /// Sets the number of threads of a CPU back-end.
    SET_THREADS = 0x33, Session, Posted, since 1;

    /// Makes an event.
    EVENT_NEW = 0x38, Session, Posted, since 1;
    /// Frees an event.
    EVENT_FREE = 0x39, Session, Posted, since 1;
    /// Puts an event behind everything that the stream was given.
    EVENT_RECORD = 0x3a, Session, Posted, since 1;
    /// Lets the stream go on only after an event.
    EVENT_WAIT = 0x3b, Session, Posted, since 1;
    /// Answered when an event has happened.
    EVENT_SYNCHRONIZE = 0x3c, Session, Awaited, since 1;

    /// Defines a graph.
    GRAPH_DEF = 0x40, Session, Posted, since 1;
    /// Changes tensors of a graph.
    GRAPH_PATCH = 0x41, Session, Posted, since 1;
    /// Forgets a graph.
    GRAPH_FREE = 0x42, Session, Posted, since 1;
    /// Computes a graph.
    EXEC = 0x43, Session, Posted, since 1;
    /// Asks the back-end in which order it would have a graph's nodes.
    GRAPH_OPTIMIZE = 0x44, Session, Awaited, since 1;

    /// Whether a device computes an operation.
    SUPPORTS_OP = 0x50, Session, Awaited, since 1;
    /// Bytes that a tensor takes in a device's buffer.
    ALLOC_SIZE = 0x51, Session, Awaited, since 1;
    /// Free and total memory of a device.
    MEMORY = 0x52, Session, Awaited, since 1;

    /// A posted call failed.
    NOTICE = 0x80, FromHost, Posted, since 1;
}

impl CallCode {
    /// Fills the end of a ring where the next record does not fit; only the channel sees it.
    pub const PAD: Self = Self(0);

    /// Whether the other side need not be woken for it: nobody can tell whether it was done before something is computed,
    /// read, or waited for. A token's inputs then cost no doorbell of their own.
    pub fn is_preparation(self) -> bool {
        matches!(
            self,
            Self::WRITE
                | Self::SET_TENSOR
                | Self::INIT_TENSOR
                | Self::MEMSET_TENSOR
                | Self::SET_USAGE
                | Self::SET_TENSOR_2D
                | Self::SET_THREADS
                | Self::EVENT_NEW
                | Self::EVENT_RECORD
                | Self::EVENT_WAIT
                | Self::GRAPH_DEF
                | Self::GRAPH_PATCH
        )
    }

    /// Whether it reads from a buffer.
    pub fn reads(self) -> bool {
        matches!(self, Self::READ | Self::GET_TENSOR | Self::GET_TENSOR_2D | Self::GET_INTO_REGION)
    }

    /// The row of this code, or `None` for a code that nobody defined.
    pub fn row(self) -> Option<&'static Call> {
        CALLS.iter().find(|call| call.code == self)
    }
}

impl std::fmt::Display for CallCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.row() {
            Some(call) => f.write_str(call.name),
            None => write!(f, "call {:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_ascending() {
        assert!(CALLS.windows(2).all(|pair| pair[0].code.0 < pair[1].code.0));
    }

    #[test]
    fn the_specification_names_every_call_with_its_code() {
        let spec = include_str!("../SPEC.md");
        for call in CALLS {
            let manner = match call.manner {
                Manner::Posted => "posted",
                Manner::Awaited => "awaited",
            };
            let row = format!("| `{}` | {:#04x} | {manner} |", call.name, call.code.0);
            assert!(spec.contains(&row), "SPEC.md lacks the row {row}");
        }
        let rows = spec.lines().filter(|line| line.starts_with("| `") && line.contains("| 0x")).count();
        assert_eq!(rows, CALLS.len(), "SPEC.md has rows that the table lacks");
    }
}
