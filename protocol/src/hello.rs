//! The handshake: versions, the daemon's devices, the opening of a session.

use crate::cursor::{Cursor, CursorError};
use crate::limits::DEVICES_MAX;
use bytemuck::{Pod, Zeroable};

/// In front of a HELLO, so that a stray client of another protocol is told from a Ferry guest.
pub const MAGIC: [u8; 8] = *b"ggferry\0";

/// The guest's first message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// Oldest version that the guest speaks.
    pub version_min: u16,
    /// Newest version that the guest speaks.
    pub version_max: u16,
    /// 0.
    pub reserved: u32,
}

/// In front of the daemon's answer. Behind it come `devices` entries of [`DeviceRecord`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct WelcomeHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// The version to speak, or with [`crate::status::Status::VERSION`] the oldest that the daemon speaks.
    pub version: u16,
    /// The newest version that the daemon speaks.
    pub version_max: u16,
    /// Devices that follow.
    pub devices: u32,
}

/// What a device is (`enum ggml_backend_dev_type` of the host, made one of two for the guest).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct DeviceKind(pub u32);

impl DeviceKind {
    /// Has its own memory, or is treated as if it had.
    pub const GPU: Self = Self(1);
    /// Shares the host's memory.
    pub const INTEGRATED_GPU: Self = Self(2);
}

/// A device of the host, as the guest's program will see it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct DeviceRecord {
    /// The host back-end's short name of it, such as `CUDA0`; zero-padded UTF-8.
    pub name: [u8; 64],
    /// Its model; zero-padded UTF-8.
    pub description: [u8; 128],
    /// Free memory when it was asked last, in bytes; 0 is "not known".
    pub memory_free: u64,
    /// All its memory, in bytes.
    pub memory_total: u64,
    /// Alignment of tensors in its buffers, in bytes; a power of two.
    pub alignment: u64,
    /// Size of its largest buffer, in bytes.
    pub buffer_bytes_max: u64,
    /// What it is.
    pub kind: DeviceKind,
    /// Bits from [`DeviceFlags`].
    pub flags: DeviceFlags,
}

const _: () = assert!(size_of::<DeviceRecord>() == 232);

/// What a device needs of its guest.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct DeviceFlags(pub u32);

impl DeviceFlags {
    /// Takes a number of threads (SET_THREADS): a CPU back-end.
    pub const THREADS: Self = Self(1);
    /// Wants INIT_TENSOR for tensors outside compute buffers.
    pub const INIT_TENSOR: Self = Self(2);
    /// Has events.
    pub const EVENTS: Self = Self(4);
    /// Has an opinion on the order of a graph's nodes (GRAPH_OPTIMIZE).
    pub const OPTIMIZE: Self = Self(8);
    /// Takes SET_TENSOR_2D and GET_TENSOR_2D.
    pub const TRANSFERS_2D: Self = Self(16);
    /// Its tensors can be set from a model store of the host (SET_FROM_STORE).
    pub const STORE: Self = Self(32);

    /// Whether `bits` are all set.
    pub fn contains(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }
}

impl std::ops::BitOr for DeviceFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How the guest wants to speak in the session.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Transport(pub u32);

impl Transport {
    /// Frames on the connection itself.
    pub const STREAM: Self = Self(0);
    /// Rings in an arena that the daemon makes and passes with its answer.
    pub const ARENA: Self = Self(1);
    /// Rings in an arena of the guest's own memory, which its virtio-gpu device shows to the daemon.
    pub const VIRTGPU: Self = Self(2);
}

/// Opens a session.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Open {
    /// How to speak from the answer on.
    pub transport: Transport,
    /// The guest's process id, for logs; 0 where it means nothing to the host.
    pub client_pid: u32,
}

/// Where the rings lie in the arena; all 0 without one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Opened {
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Bytes of the submission ring, which starts at [`crate::limits::ARENA_HEADER_BYTES`].
    pub submission_bytes: u64,
    /// Bytes of the completion ring, right behind it.
    pub completion_bytes: u64,
}

/// The version to speak with a guest of this range, or `None` if there is none in common.
pub fn negotiate(version_min: u16, version_max: u16) -> Option<u16> {
    let version = version_max.min(crate::VERSION_MAX);
    (version >= version_min.max(crate::VERSION_MIN)).then_some(version)
}

/// `text` as a zero-padded field, cut at a character's edge if it is too long; the last byte stays 0.
pub fn text_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let mut len = text.len().min(N - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

/// The text in a zero-padded field; what is not UTF-8 is replaced.
pub fn field_text(field: &[u8]) -> String {
    let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..len]).into_owned()
}

/// The payload of a WELCOME.
pub fn encode_welcome(version: u16, devices: &[DeviceRecord]) -> Vec<u8> {
    let header = WelcomeHeader {
        magic: MAGIC,
        version,
        version_max: crate::VERSION_MAX,
        devices: devices.len() as u32,
    };
    let mut out = bytemuck::bytes_of(&header).to_vec();
    out.extend_from_slice(bytemuck::cast_slice(devices));
    out
}

/// Why a WELCOME is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WelcomeError {
    /// Too short, or bytes left over.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// The other side is no Ferry daemon.
    #[error("the answer does not start like one of a Ferry daemon")]
    Magic,
    /// More than [`DEVICES_MAX`] devices.
    #[error("{0} devices, at most {DEVICES_MAX} are allowed")]
    Devices(u32),
    /// An alignment that is not a power of two.
    #[error("device {0} has an impossible alignment")]
    Alignment(usize),
}

/// Reads what [`encode_welcome`] wrote.
pub fn decode_welcome(bytes: &[u8]) -> Result<(WelcomeHeader, Vec<DeviceRecord>), WelcomeError> {
    let mut cursor = Cursor::new(bytes);
    let header: WelcomeHeader = cursor.value("the header of a welcome")?;
    if header.magic != MAGIC {
        return Err(WelcomeError::Magic);
    }
    if header.devices as usize > DEVICES_MAX {
        return Err(WelcomeError::Devices(header.devices));
    }
    let devices: Vec<DeviceRecord> = cursor.values(header.devices as usize, "the devices")?;
    cursor.finish()?;
    match devices.iter().position(|device| !device.alignment.is_power_of_two()) {
        Some(at) => Err(WelcomeError::Alignment(at)),
        None => Ok((header, devices)),
    }
}
