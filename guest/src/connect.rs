//! Finds the daemon, shakes hands, opens sessions.

use crate::regions::Regions;
use ferry_protocol::calls::CallCode;
use ferry_protocol::frame::Header;
use ferry_protocol::hello::{self, DeviceRecord, Hello, Open, Opened, Transport, decode_welcome, negotiate};
use ferry_protocol::ids::StreamId;
use ferry_protocol::limits::HANDSHAKE_TIMEOUT_MS;
use ferry_protocol::status::Status;
use ferry_protocol::{VERSION_MAX, VERSION_MIN, cursor};
use ferry_unix::frames::FrameError;
use ferry_unix::path::{SOCKET_VARIABLE, default_socket};
use ferry_unix::{Channel, frames, stream};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(target_os = "linux")]
use crate::virtgpu::{self, GpuNode};
#[cfg(target_os = "linux")]
use ferry_protocol::virtgpu::ReplyStatus;

/// The environment variable that chooses how a session speaks: `virtgpu` (this virtual machine's device), `arena` (a daemon
/// on this machine, shared memory) or `stream` (the same without shared memory). Without it: what is there, in this order.
const TRANSPORT_VARIABLE: &str = "FERRY_TRANSPORT";

/// Why there is no daemon to compute on.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens where somebody was said to.
    #[error("no daemon at {0}: {1} (is ferryd running? is {SOCKET_VARIABLE} its socket?)")]
    NoDaemon(PathBuf, io::Error),
    /// Nobody anywhere.
    #[error(
        "no daemon at {0}: {1}, and no virtio-gpu device of one (start ferryd or set {SOCKET_VARIABLE}; in a virtual \
         machine, add its device and share=on)"
    )]
    Nobody(PathBuf, io::Error),
    /// There is a device, but not for this user.
    #[cfg(target_os = "linux")]
    #[error("may not open {0}: permission denied (add this user to the group of the file, usually 'render')")]
    Forbidden(PathBuf),
    /// The virtual machine has no such device.
    #[error("no virtio-gpu device of a Ferry daemon in this machine")]
    NoDevice,
    /// The device refused a command.
    #[cfg(target_os = "linux")]
    #[error("the device refused ({0:?}); the host's log says why")]
    Device(ReplyStatus),
    /// The conversation broke off.
    #[error("the daemon at {0}: {1}")]
    Frame(PathBuf, FrameError),
    /// No version in common.
    #[error(
        "the daemon at {path} speaks protocol versions {min} to {max}, this plug-in {VERSION_MIN} to {VERSION_MAX}: \
         update the older one"
    )]
    #[allow(missing_docs)]
    Version { path: PathBuf, min: u16, max: u16 },
    /// The daemon turned us away.
    #[error("the daemon at {0} refused: {1}: {2}")]
    Refused(PathBuf, Status, String),
    /// The answer makes no sense.
    #[error("the daemon at {0} answered nonsense: {1}")]
    Nonsense(PathBuf, String),
    /// A local failure.
    #[error("cannot set up a session: {0}")]
    Io(#[from] io::Error),
    /// A variable of the environment has a value that means nothing.
    #[error("{TRANSPORT_VARIABLE}={0}: it can be virtgpu, arena or stream")]
    Variable(String),
}

/// An open session.
pub struct Connection {
    /// Its messages' way.
    pub channel: Channel,
    /// Its way to shared memory, if the transport has one.
    pub regions: Option<Box<dyn Regions>>,
}

/// Where a daemon is reached.
#[derive(Clone, Debug)]
enum Place {
    /// At a socket of this machine.
    Socket(PathBuf, Transport),
    /// Behind this virtual machine's device.
    #[cfg(target_os = "linux")]
    Device(GpuNode),
}

/// A daemon at a known place, with the devices that it showed.
#[derive(Clone, Debug)]
pub struct Daemon {
    place: Place,
    /// Its devices.
    pub devices: Vec<DeviceRecord>,
}

impl Daemon {
    /// The daemon that the environment names, or that is found. The connection is closed again: a process that only lists
    /// devices holds nothing on the host.
    pub fn find() -> Result<Self, ConnectError> {
        let place = Place::find()?;
        let devices = place.devices().map_err(|error| match error {
            ConnectError::NoDaemon(path, error) if std::env::var_os(SOCKET_VARIABLE).is_none() => {
                ConnectError::Nobody(path, error)
            }
            error => error,
        })?;
        Ok(Self { place, devices })
    }

    /// Opens a session: the daemon starts a worker for this process.
    pub fn open(&self) -> Result<Connection, ConnectError> {
        match &self.place {
            Place::Socket(path, transport) => {
                let (socket, devices) = shake_hands(path)?;
                self.check_same(path, &devices)?;
                open_at_socket(path, socket, *transport)
            }
            #[cfg(target_os = "linux")]
            Place::Device(node) => {
                self.check_same(node.path(), &self.place.devices()?)?;
                node.open()
            }
        }
    }

    fn check_same(&self, path: &Path, devices: &[DeviceRecord]) -> Result<(), ConnectError> {
        let same = devices.len() == self.devices.len()
            && devices.iter().zip(&self.devices).all(|(a, b)| a.name == b.name);
        let text = "its devices are not the ones that it showed when this program started";
        if same { Ok(()) } else { Err(ConnectError::Nonsense(path.to_path_buf(), text.to_owned())) }
    }
}

impl Place {
    fn find() -> Result<Self, ConnectError> {
        let named = std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from);
        let socket = |transport| Self::Socket(named.clone().unwrap_or_else(default_socket), transport);
        match std::env::var(TRANSPORT_VARIABLE).as_deref() {
            Ok("stream") => Ok(socket(Transport::STREAM)),
            Ok("arena") => Ok(socket(Transport::ARENA)),
            Ok("virtgpu") => Self::device()?.ok_or(ConnectError::NoDevice),
            Ok(other) if !other.is_empty() => Err(ConnectError::Variable(other.to_owned())),
            _ => {
                let local =
                    socket(if cfg!(target_os = "linux") { Transport::ARENA } else { Transport::STREAM });
                // A socket that was named is meant.
                if named.is_some() { Ok(local) } else { Ok(Self::device()?.unwrap_or(local)) }
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn device() -> Result<Option<Self>, ConnectError> {
        match virtgpu::find() {
            virtgpu::Found::Node(node) => Ok(Some(Self::Device(node))),
            virtgpu::Found::Forbidden(path) => Err(ConnectError::Forbidden(path)),
            virtgpu::Found::Nothing => Ok(None),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn device() -> Result<Option<Self>, ConnectError> {
        Ok(None)
    }

    fn devices(&self) -> Result<Vec<DeviceRecord>, ConnectError> {
        match self {
            Self::Socket(path, _) => Ok(shake_hands(path)?.1),
            #[cfg(target_os = "linux")]
            Self::Device(node) => {
                let (header, payload) = node.hello(&our_hello())?;
                welcomed(node.path(), header, &payload)
            }
        }
    }
}

fn our_hello() -> Hello {
    Hello { magic: hello::MAGIC, version_min: VERSION_MIN, version_max: VERSION_MAX, reserved: 0 }
}

/// The devices in the answer to a HELLO.
fn welcomed(path: &Path, header: Header, payload: &[u8]) -> Result<Vec<DeviceRecord>, ConnectError> {
    if header.status != Status::OK && header.status != Status::VERSION {
        return Err(refused(path, header.status, payload));
    }
    let nonsense = |error: hello::WelcomeError| ConnectError::Nonsense(path.to_path_buf(), error.to_string());
    let (welcome, devices) = decode_welcome(payload).map_err(nonsense)?;
    if header.status == Status::VERSION || negotiate(welcome.version, welcome.version_max).is_none() {
        let (min, max) = (welcome.version, welcome.version_max);
        return Err(ConnectError::Version { path: path.to_path_buf(), min, max });
    }
    Ok(devices)
}

fn refused(path: &Path, status: Status, text: &[u8]) -> ConnectError {
    ConnectError::Refused(path.to_path_buf(), status, String::from_utf8_lossy(text).into())
}

fn shake_hands(path: &Path) -> Result<(UnixStream, Vec<DeviceRecord>), ConnectError> {
    let socket =
        UnixStream::connect(path).map_err(|error| ConnectError::NoDaemon(path.to_path_buf(), error))?;
    let timeout = Some(Duration::from_millis(HANDSHAKE_TIMEOUT_MS));
    socket.set_read_timeout(timeout)?;
    socket.set_write_timeout(timeout)?;
    let header = Header::request(CallCode::HELLO, StreamId::SESSION, 1);
    frames::write(&socket, header, bytemuck::bytes_of(&our_hello()), &[])?;
    let (header, payload, _) =
        frames::read(&socket).map_err(|error| ConnectError::Frame(path.to_path_buf(), error))?;
    let devices = welcomed(path, header, &payload)?;
    Ok((socket, devices))
}

fn open_at_socket(path: &Path, socket: UnixStream, transport: Transport) -> Result<Connection, ConnectError> {
    let open = Open { transport, client_pid: std::process::id() };
    frames::write(
        &socket,
        Header::request(CallCode::OPEN, StreamId::SESSION, 2),
        bytemuck::bytes_of(&open),
        &[],
    )?;
    // The worker loads its driver before it answers, which may take longer than a handshake.
    socket.set_read_timeout(None)?;
    let (header, payload, fds) =
        frames::read(&socket).map_err(|error| ConnectError::Frame(path.to_path_buf(), error))?;
    if header.status != Status::OK {
        return Err(refused(path, header.status, &payload));
    }
    let nonsense = |text: String| ConnectError::Nonsense(path.to_path_buf(), text);
    let opened: Opened = cursor::only(&payload, "an OPENED").map_err(|error| nonsense(error.to_string()))?;
    if transport == Transport::STREAM {
        Ok(Connection { channel: stream::channel(socket)?, regions: None })
    } else {
        arena_at(path, socket, &opened, fds)
    }
}

#[cfg(target_os = "linux")]
fn arena_at(
    path: &Path,
    socket: UnixStream,
    opened: &Opened,
    fds: Vec<OwnedFd>,
) -> Result<Connection, ConnectError> {
    use crate::regions::Passed;
    use ferry_protocol::channel::arena::{End, check_layout};
    use ferry_unix::arena;
    use std::sync::Arc;
    let nonsense = |text: String| ConnectError::Nonsense(path.to_path_buf(), text);
    let [memory, host_event, guest_event]: [OwnedFd; 3] =
        fds.try_into().map_err(|fds: Vec<_>| nonsense(format!("{} descriptors instead of 3", fds.len())))?;
    check_layout(opened).map_err(|error| nonsense(error.to_string()))?;
    let mapping = arena::map(&memory, opened.arena_bytes)?;
    // A child that was forked off has nothing to say here.
    mapping.advise(memmap2::Advice::DontFork)?;
    let events = (guest_event, host_event);
    let regions = Passed::new(socket.try_clone()?);
    let channel = arena::channel(Arc::new(mapping), opened, End::Guest, events, socket)?;
    Ok(Connection { channel, regions: Some(Box::new(regions)) })
}

#[cfg(not(target_os = "linux"))]
fn arena_at(_: &Path, _: UnixStream, _: &Opened, _: Vec<OwnedFd>) -> Result<Connection, ConnectError> {
    Err(ConnectError::Variable("arena (it needs Linux)".to_owned()))
}
