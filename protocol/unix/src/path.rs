//! Where the daemon listens if nobody says otherwise.

use std::path::PathBuf;

/// The environment variable by which a guest is told of another socket.
pub const SOCKET_VARIABLE: &str = "FERRY_SOCKET";

/// `$XDG_RUNTIME_DIR/ferry.sock`, or `/run/ferry.sock` where there is no such directory.
pub fn default_socket() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    runtime.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("ferry.sock")
}
