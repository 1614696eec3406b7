//! What a guest and the host's virtio-gpu device say to each other outside the message channel: the capability
//! set that tells a guest that this is Ferry's device, and the payload of an `EXECBUFFER`.
//!
//! ```text
//!  capset (GET_CAPS)          who is there, which protocol versions, which limits
//!  CONTROL   request ──► reply    the handshake and the device list, before there is a session
//!  OPEN      arena resource       one context = one session = one worker process
//!  REGION_ADD / REGION_DROP       more shared memory (pinned host buffers)
//!  DOORBELL                       wake the worker; with the ARM flag its fence is held until the worker wakes us
//! ```
//!
//! Everything is little-endian. The kernel passes no error of an EXECBUFFER back to the process that sent it, so
//! each command can name a place in one of its context's resources for a reply (a [`ReplyHeader`], then bytes),
//! and a session has a status word in its arena: memory is the truth, a fence only a wake-up.

use bytemuck::{Pod, Zeroable};

/// Capability set id. The guest kernel knows ids 0–63, its GETPARAM mask shows the first 32; 1–10 are taken by
/// virgl, gfxstream, venus, cross-domain, the DRM native contexts and llama.cpp's own API remoting.
pub const CAPSET_ID: u32 = 29;
/// Version of the capability set's layout, not of the protocol.
pub const CAPSET_VERSION: u32 = 1;
/// First field of [`Capset`]: `FRRY` in memory.
pub const CAPSET_MAGIC: u32 = u32::from_le_bytes(*b"FRRY");
/// First field of [`CommandHeader`]: `FRXB` in memory.
pub const COMMAND_MAGIC: u32 = u32::from_le_bytes(*b"FRXB");
/// Largest EXECBUFFER, header included: the kernel copies it into non-swappable memory; data belongs in resources.
pub const COMMAND_BYTES_MAX: usize = 64 << 10;

/// Body of the capability set.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Capset {
    /// [`CAPSET_MAGIC`]; anything else is another device's set.
    pub magic: u32,
    /// Oldest protocol version that the host speaks.
    pub version_min: u16,
    /// Newest protocol version that the host speaks.
    pub version_max: u16,
    /// Largest EXECBUFFER that the device takes, in bytes.
    pub command_bytes_max: u32,
    /// Fences that one session may have armed at once; one more completes the oldest.
    pub armed_fences_max: u32,
    /// An armed fence completes after this many milliseconds at the latest, without meaning progress.
    pub fence_deadline_ms: u32,
    /// Regions that one session may have besides its arena.
    pub regions_max: u32,
    /// Largest arena or region, in bytes.
    pub region_bytes_max: u64,
    /// All that one session may share, arena included, in bytes.
    pub session_bytes_max: u64,
    /// Zero; room for later fields. A guest ignores what it does not know.
    pub reserved: [u32; 6],
}
const _: () = assert!(size_of::<Capset>() == 64);

/// Operation of an EXECBUFFER. Open newtype: what the device does not know it refuses.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Op(pub u16);

impl Op {
    /// A request of the control channel follows the header; its reply goes to the place the header names.
    pub const CONTROL: Op = Op(1);
    /// Start this context's session; body [`Open`], then a message for whoever starts the worker.
    pub const OPEN: Op = Op(2);
    /// Share one more resource with the worker; body [`Region`].
    pub const REGION_ADD: Op = Op(3);
    /// Take it back; after the fence of this command no host process touches its pages; body [`Region`].
    pub const REGION_DROP: Op = Op(4);
    /// Wake the worker; no body.
    pub const DOORBELL: Op = Op(5);
}

/// Flag of [`Op::DOORBELL`]: hold this EXECBUFFER's fence until the worker has news or the deadline passes.
pub const DOORBELL_ARM: u16 = 1;

/// Header of every EXECBUFFER.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct CommandHeader {
    /// [`COMMAND_MAGIC`].
    pub magic: u32,
    /// What to do.
    pub op: Op,
    /// Flags of the operation; unknown ones are refused.
    pub flags: u16,
    /// Bytes of header and body together; the rest of the EXECBUFFER, if any, is ignored.
    pub len: u32,
    /// Resource (the kernel's `res_handle`) that takes the reply; 0: none wanted.
    pub reply_resource: u32,
    /// Where in that resource, in bytes; a multiple of 4.
    pub reply_offset: u32,
    /// Room there, header included, in bytes; at least the size of a [`ReplyHeader`].
    pub reply_capacity: u32,
}
const _: () = assert!(size_of::<CommandHeader>() == 24);

/// Body of [`Op::OPEN`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Open {
    /// Resource that becomes the arena.
    pub arena: u32,
    /// Where in the arena the device keeps the session's [`SessionState`] (a u32); a multiple of 4.
    pub state_offset: u32,
}
const _: () = assert!(size_of::<Open>() == 8);

/// Body of [`Op::REGION_ADD`] and [`Op::REGION_DROP`]. The resource's id is also the region's name in messages.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Region {
    /// The resource.
    pub resource: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<Region>() == 8);

/// Stands before a reply's bytes. `status` is written last: while it is 0 there is no reply yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ReplyHeader {
    /// How it went.
    pub status: ReplyStatus,
    /// Bytes that follow; with [`ReplyStatus::TRUNCATED`] the bytes that would have followed.
    pub len: u32,
}
const _: () = assert!(size_of::<ReplyHeader>() == 8);

/// Outcome of a command.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ReplyStatus(pub u32);

impl ReplyStatus {
    /// No reply yet.
    pub const PENDING: ReplyStatus = ReplyStatus(0);
    /// Done.
    pub const OK: ReplyStatus = ReplyStatus(1);
    /// The command's bytes make no sense.
    pub const MALFORMED: ReplyStatus = ReplyStatus(2);
    /// This device does not know the operation: it is older than the guest.
    pub const UNKNOWN_OP: ReplyStatus = ReplyStatus(3);
    /// The context has no session (none was opened, or it was lost).
    pub const NO_SESSION: ReplyStatus = ReplyStatus(4);
    /// The context has, or had, a session: one context has one in its life.
    pub const SESSION_EXISTS: ReplyStatus = ReplyStatus(5);
    /// The resource is unknown, not this context's, without pages, or already in use as asked.
    pub const BAD_RESOURCE: ReplyStatus = ReplyStatus(6);
    /// A limit of the session or of the VM is reached.
    pub const LIMIT: ReplyStatus = ReplyStatus(7);
    /// The host could not do it (no worker, no memory); its log says why.
    pub const REFUSED: ReplyStatus = ReplyStatus(8);
    /// The reply's bytes did not fit; none were written.
    pub const TRUNCATED: ReplyStatus = ReplyStatus(9);
}

/// The session's status word in the arena, written by the device alone.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct SessionState(pub u32);

impl SessionState {
    /// Never opened.
    pub const NONE: SessionState = SessionState(0);
    /// A worker has been asked for; the channel's own handshake tells when it is there.
    pub const OPEN: SessionState = SessionState(1);
    /// The worker is gone and nothing in the arena will change any more.
    pub const LOST: SessionState = SessionState(2);
}

/// A parsed EXECBUFFER body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// [`Op::CONTROL`].
    Control(&'a [u8]),
    /// [`Op::OPEN`]: the arena, and the message that goes with it.
    Open(Open, &'a [u8]),
    /// [`Op::REGION_ADD`].
    RegionAdd(u32),
    /// [`Op::REGION_DROP`].
    RegionDrop(u32),
    /// [`Op::DOORBELL`].
    Doorbell {
        /// [`DOORBELL_ARM`] was set.
        arm: bool,
    },
}

/// Why an EXECBUFFER was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Shorter than its header, or than the length that the header says.
    #[error("command of {found} bytes where at least {needed} are needed")]
    Short {
        /// Bytes needed.
        needed: usize,
        /// Bytes found.
        found: usize,
    },
    /// Not ours.
    #[error("command magic is {0:#010x}, not {COMMAND_MAGIC:#010x}")]
    Magic(u32),
    /// An operation this side does not know.
    #[error("unknown operation {0}: this side is older than the other")]
    UnknownOp(u16),
    /// Known operation, wrong body size or flags, or a reserved field that is not zero.
    #[error("operation {op} with a body of {body} bytes and flags {flags:#x}")]
    Body {
        /// The operation's code.
        op: u16,
        /// Body size found, in bytes.
        body: usize,
        /// Flags found.
        flags: u16,
    },
    /// Larger than [`COMMAND_BYTES_MAX`].
    #[error("command of {0} bytes; at most {COMMAND_BYTES_MAX} are taken")]
    Long(usize),
}

impl CommandHeader {
    /// Reads the header in front of `bytes` and checks magic and length; the body is not looked at.
    pub fn parse(bytes: &[u8]) -> Result<CommandHeader, CommandError> {
        const SIZE: usize = size_of::<CommandHeader>();
        let head = bytes.get(..SIZE).ok_or(CommandError::Short { needed: SIZE, found: bytes.len() })?;
        let header: CommandHeader = bytemuck::pod_read_unaligned(head);
        if header.magic != COMMAND_MAGIC {
            return Err(CommandError::Magic(header.magic));
        }
        let len = header.len as usize;
        if len > COMMAND_BYTES_MAX {
            return Err(CommandError::Long(len));
        }
        if len < SIZE || len > bytes.len() {
            return Err(CommandError::Short { needed: len.max(SIZE), found: bytes.len().min(len) });
        }
        Ok(header)
    }
}

impl<'a> Command<'a> {
    /// Parses the body that follows `header`, which [`CommandHeader::parse`] has read from the same `bytes`.
    pub fn parse(header: &CommandHeader, bytes: &'a [u8]) -> Result<Command<'a>, CommandError> {
        let end = header.len as usize;
        let found = bytes.len();
        let body = bytes
            .get(size_of::<CommandHeader>()..end)
            .ok_or(CommandError::Short { needed: end.max(size_of::<CommandHeader>()), found })?;
        let bad = CommandError::Body { op: header.op.0, body: body.len(), flags: header.flags };
        let allowed = if header.op == Op::DOORBELL { DOORBELL_ARM } else { 0 };
        if header.flags & !allowed != 0 {
            return Err(bad);
        }
        let region = || match bytemuck::try_pod_read_unaligned::<Region>(body) {
            Ok(Region { resource, reserved: 0 }) => Ok(resource),
            _ => Err(bad),
        };
        match header.op {
            Op::CONTROL => Ok(Command::Control(body)),
            Op::OPEN => {
                let (open, message) = body.split_at_checked(size_of::<Open>()).ok_or(bad)?;
                Ok(Command::Open(bytemuck::pod_read_unaligned(open), message))
            }
            Op::REGION_ADD => region().map(Command::RegionAdd),
            Op::REGION_DROP => region().map(Command::RegionDrop),
            Op::DOORBELL if body.is_empty() => {
                Ok(Command::Doorbell { arm: header.flags & DOORBELL_ARM != 0 })
            }
            Op::DOORBELL => Err(bad),
            Op(other) => Err(CommandError::UnknownOp(other)),
        }
    }

    /// The bytes of this command with its reply going to `reply`. At most [`COMMAND_BYTES_MAX`] bytes are taken by
    /// the device; longer control requests are the caller's mistake.
    pub fn encode(&self, reply: ReplyPlace) -> Vec<u8> {
        let region = |resource: u32| bytemuck::bytes_of(&Region { resource, reserved: 0 }).to_vec();
        let (op, flags, body) = match *self {
            Command::Control(request) => (Op::CONTROL, 0, request.to_vec()),
            Command::Open(open, message) => (Op::OPEN, 0, [bytemuck::bytes_of(&open), message].concat()),
            Command::RegionAdd(resource) => (Op::REGION_ADD, 0, region(resource)),
            Command::RegionDrop(resource) => (Op::REGION_DROP, 0, region(resource)),
            Command::Doorbell { arm } => (Op::DOORBELL, if arm { DOORBELL_ARM } else { 0 }, Vec::new()),
        };
        let header = CommandHeader {
            magic: COMMAND_MAGIC,
            op,
            flags,
            len: (size_of::<CommandHeader>() + body.len()) as u32,
            reply_resource: reply.resource,
            reply_offset: reply.offset,
            reply_capacity: reply.capacity,
        };
        [bytemuck::bytes_of(&header), &body].concat()
    }
}

/// Where a command's reply goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyPlace {
    /// Resource id; 0: no reply wanted.
    pub resource: u32,
    /// Offset in it, in bytes.
    pub offset: u32,
    /// Room there, in bytes.
    pub capacity: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLY: ReplyPlace = ReplyPlace { resource: 7, offset: 0x100, capacity: 0x40 };

    fn parse(bytes: &[u8]) -> Result<Command<'_>, CommandError> {
        Command::parse(&CommandHeader::parse(bytes)?, bytes)
    }

    #[rustfmt::skip]
    const GOLDEN_OPEN: [u8; 32] = [
        b'F', b'R', b'X', b'B', // magic
        2, 0, 0, 0,             // op OPEN, flags
        32, 0, 0, 0,            // length
        7, 0, 0, 0,             // reply resource
        0, 1, 0, 0,             // reply offset
        0x40, 0, 0, 0,          // reply capacity
        9, 0, 0, 0,             // arena resource
        0x80, 0, 0, 0,          // state word
    ];

    #[rustfmt::skip]
    const GOLDEN_DOORBELL: [u8; 24] = [
        b'F', b'R', b'X', b'B', 5, 0, 1, 0, // op DOORBELL, flags ARM
        24, 0, 0, 0, 0, 0, 0, 0,            // length, no reply
        0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn golden_bytes_both_ways() {
        let open = Command::Open(Open { arena: 9, state_offset: 0x80 }, &[]);
        assert_eq!(open.encode(REPLY), GOLDEN_OPEN);
        assert_eq!(parse(&GOLDEN_OPEN), Ok(open));
        let doorbell = Command::Doorbell { arm: true };
        assert_eq!(doorbell.encode(ReplyPlace::default()), GOLDEN_DOORBELL);
        assert_eq!(parse(&GOLDEN_DOORBELL), Ok(doorbell));
    }

    #[test]
    fn golden_capset() {
        let capset = Capset {
            magic: CAPSET_MAGIC,
            version_min: 1,
            version_max: 3,
            command_bytes_max: 0x1_0000,
            armed_fences_max: 8,
            fence_deadline_ms: 1000,
            regions_max: 64,
            region_bytes_max: 1 << 28,
            session_bytes_max: 1 << 29,
            reserved: [0; 6],
        };
        #[rustfmt::skip]
        let expected: [u8; 40] = [
            b'F', b'R', b'R', b'Y', 1, 0, 3, 0,  0, 0, 1, 0, 8, 0, 0, 0,
            0xe8, 3, 0, 0, 64, 0, 0, 0,          0, 0, 0, 0x10, 0, 0, 0, 0,
            0, 0, 0, 0x20, 0, 0, 0, 0,
        ];
        assert_eq!(bytemuck::bytes_of(&capset)[..40], expected);
        assert_eq!(bytemuck::bytes_of(&capset)[40..], [0; 24]);
    }

    #[test]
    fn every_truncation_is_an_error() {
        for golden in [&GOLDEN_OPEN[..], &GOLDEN_DOORBELL[..]] {
            for len in 0..golden.len() {
                assert!(matches!(parse(&golden[..len]), Err(CommandError::Short { .. })), "{len} bytes");
            }
        }
    }

    #[test]
    fn every_operation_round_trips() {
        let all = [
            Command::Control(b"hello"),
            Command::Open(Open { arena: 1, state_offset: 4 }, b"and more"),
            Command::RegionAdd(3),
            Command::RegionDrop(3),
            Command::Doorbell { arm: false },
        ];
        for command in all {
            assert_eq!(parse(&command.encode(REPLY)), Ok(command));
        }
    }

    #[test]
    fn bytes_behind_the_command_are_ignored() {
        let mut bytes = GOLDEN_OPEN.to_vec();
        bytes.extend([0xff; 5]);
        assert!(parse(&bytes).is_ok());
    }

    #[test]
    fn malformed_commands_say_why() {
        let patched = |at: usize, value: u8| {
            let mut bytes = GOLDEN_OPEN;
            bytes[at] = value;
            parse(&bytes).unwrap_err()
        };
        assert!(matches!(patched(0, b'X'), CommandError::Magic(_)));
        assert_eq!(patched(4, 77), CommandError::UnknownOp(77));
        assert_eq!(patched(6, 1), CommandError::Body { op: 2, body: 8, flags: 1 });
        assert_eq!(patched(4, 5), CommandError::Body { op: 5, body: 8, flags: 0 });
        assert_eq!(patched(8, 31), CommandError::Body { op: 2, body: 7, flags: 0 });
        assert!(matches!(patched(8, 23), CommandError::Short { .. }));
        assert!(matches!(patched(10, 2), CommandError::Long(_)));
        let mut region = Command::RegionAdd(3).encode(REPLY);
        region[28] = 1;
        assert_eq!(parse(&region), Err(CommandError::Body { op: 3, body: 8, flags: 0 }));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(0u8.., 0..128)) {
            let _ = parse(&bytes);
            let mut framed = Command::Control(&bytes).encode(REPLY);
            if let (Some(op), Some(first)) = (framed.get_mut(4), bytes.first()) {
                *op = *first;
            }
            let _ = parse(&framed);
        }
    }
}
