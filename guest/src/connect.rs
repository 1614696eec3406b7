//! Finds the daemon, shakes hands, opens sessions.

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
use std::path::PathBuf;
use std::time::Duration;

/// The environment variable that chooses how a session speaks: `arena` (shared memory, the default on Linux) or `stream`.
const TRANSPORT_VARIABLE: &str = "FERRY_TRANSPORT";

/// Why there is no daemon to compute on.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens.
    #[error("no daemon at {0}: {1} (start ferryd, or set {SOCKET_VARIABLE} to its socket)")]
    NoDaemon(PathBuf, io::Error),
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
    #[error("{TRANSPORT_VARIABLE}={0}: it can be arena or stream")]
    Variable(String),
}

/// A daemon at a known place, with the devices that it showed.
#[derive(Clone, Debug)]
pub struct Daemon {
    path: PathBuf,
    /// Its devices.
    pub devices: Vec<DeviceRecord>,
}

impl Daemon {
    /// The daemon that the environment names. The connection is closed again: a process that only lists devices holds
    /// nothing on the host.
    pub fn find() -> Result<Self, ConnectError> {
        let path = std::env::var_os(SOCKET_VARIABLE).map_or_else(default_socket, PathBuf::from);
        let (_, devices) = shake_hands(&path)?;
        Ok(Self { path, devices })
    }

    /// Opens a session: the daemon starts a worker for this process.
    pub fn open(&self) -> Result<Channel, ConnectError> {
        let transport = wanted_transport()?;
        let (socket, devices) = shake_hands(&self.path)?;
        if devices.len() != self.devices.len() || devices.iter().zip(&self.devices).any(|(a, b)| a.name != b.name) {
            let text = "its devices are not the ones that it showed when this program started".to_owned();
            return Err(ConnectError::Nonsense(self.path.clone(), text));
        }
        let open = Open { transport, client_pid: std::process::id() };
        let header = Header::request(CallCode::OPEN, StreamId::SESSION, 2);
        frames::write(&socket, header, bytemuck::bytes_of(&open), &[])?;
        // The worker loads its driver before it answers, which may take longer than a handshake.
        socket.set_read_timeout(None)?;
        let (payload, fds) = self.answer(&socket)?;
        let opened: Opened =
            cursor::only(&payload, "an OPENED").map_err(|e| ConnectError::Nonsense(self.path.clone(), e.to_string()))?;
        if transport == Transport::STREAM { Ok(stream::channel(socket)?) } else { self.arena(socket, &opened, fds) }
    }

    fn answer(&self, socket: &UnixStream) -> Result<(Vec<u8>, Vec<OwnedFd>), ConnectError> {
        let (header, payload, fds) =
            frames::read(socket).map_err(|error| ConnectError::Frame(self.path.clone(), error))?;
        match header.status {
            Status::OK => Ok((payload, fds)),
            status => Err(ConnectError::Refused(self.path.clone(), status, String::from_utf8_lossy(&payload).into())),
        }
    }

    #[cfg(target_os = "linux")]
    fn arena(&self, socket: UnixStream, opened: &Opened, fds: Vec<OwnedFd>) -> Result<Channel, ConnectError> {
        use ferry_protocol::channel::arena::{End, check_layout};
        use ferry_unix::arena;
        let nonsense = |text: String| ConnectError::Nonsense(self.path.clone(), text);
        let [memory, host_event, guest_event]: [OwnedFd; 3] =
            fds.try_into().map_err(|fds: Vec<_>| nonsense(format!("{} descriptors instead of 3", fds.len())))?;
        check_layout(opened).map_err(|error| nonsense(error.to_string()))?;
        let mapping = arena::map(&memory, opened)?;
        // A child that was forked off has nothing to say here.
        mapping.advise(memmap2::Advice::DontFork)?;
        let counters = std::sync::Arc::new(arena::Counters::default());
        Ok(arena::channel(mapping, opened, End::Guest, (guest_event, host_event), socket, counters)?)
    }

    #[cfg(not(target_os = "linux"))]
    fn arena(&self, _: UnixStream, _: &Opened, _: Vec<OwnedFd>) -> Result<Channel, ConnectError> {
        Err(ConnectError::Variable("arena (it needs Linux)".to_owned()))
    }
}

fn wanted_transport() -> Result<Transport, ConnectError> {
    match std::env::var(TRANSPORT_VARIABLE).as_deref() {
        Ok("stream") => Ok(Transport::STREAM),
        Ok("arena") => Ok(Transport::ARENA),
        Ok(other) if !other.is_empty() => Err(ConnectError::Variable(other.to_owned())),
        _ if cfg!(target_os = "linux") => Ok(Transport::ARENA),
        _ => Ok(Transport::STREAM),
    }
}

fn shake_hands(path: &PathBuf) -> Result<(UnixStream, Vec<DeviceRecord>), ConnectError> {
    let socket = UnixStream::connect(path).map_err(|error| ConnectError::NoDaemon(path.clone(), error))?;
    let timeout = Some(Duration::from_millis(HANDSHAKE_TIMEOUT_MS));
    socket.set_read_timeout(timeout)?;
    socket.set_write_timeout(timeout)?;
    let hello = Hello { magic: hello::MAGIC, version_min: VERSION_MIN, version_max: VERSION_MAX, reserved: 0 };
    let header = Header::request(CallCode::HELLO, StreamId::SESSION, 1);
    frames::write(&socket, header, bytemuck::bytes_of(&hello), &[])?;
    let (header, payload, _) = frames::read(&socket).map_err(|error| ConnectError::Frame(path.clone(), error))?;
    if header.status != Status::OK && header.status != Status::VERSION {
        return Err(ConnectError::Refused(path.clone(), header.status, String::from_utf8_lossy(&payload).into()));
    }
    let (welcome, devices) =
        decode_welcome(&payload).map_err(|error| ConnectError::Nonsense(path.clone(), error.to_string()))?;
    if header.status == Status::VERSION || negotiate(welcome.version, welcome.version_max).is_none() {
        let (min, max) = (welcome.version, welcome.version_max);
        return Err(ConnectError::Version { path: path.clone(), min, max });
    }
    Ok((socket, devices))
}
