//! Says what the shim is doing, where it was told to, and nowhere else.

use crate::sys::{self, LogFile};
use core::ffi::CStr;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use ferry_shim_contract::EXIT_NOT_INSTALLED;
use ferry_shim_contract::config::{Reporting, Sink};
use ferry_shim_contract::status::{LINE_LENGTH_MAX, State, StatusLine};

const NO_DESCRIPTOR: i32 = -1;
const STDERR: i32 = 2;

static FILE: LogFile = LogFile::none();
static DESCRIPTOR: AtomicI32 = AtomicI32::new(NO_DESCRIPTOR);
/// Device and inode of [`DESCRIPTOR`] when it was given to us.
static DESCRIPTOR_DEVICE: AtomicU64 = AtomicU64::new(0);
static DESCRIPTOR_INODE: AtomicU64 = AtomicU64::new(0);
static REQUIRED: AtomicBool = AtomicBool::new(false);

/// Sets up where lines go and whether trouble ends the process.
pub fn set(reporting: Reporting<'_>) {
    set_required(reporting.required);
    match reporting.sink {
        Sink::SystemLog => {}
        Sink::File(path) => _ = FILE.set(path),
        Sink::Stderr => DESCRIPTOR.store(STDERR, Ordering::Relaxed),
        Sink::Descriptor(fd) => {
            let Some((device, inode)) = sys::descriptor_identity(fd) else { return };
            sys::close_on_exec(fd);
            DESCRIPTOR_DEVICE.store(device, Ordering::Relaxed);
            DESCRIPTOR_INODE.store(inode, Ordering::Relaxed);
            DESCRIPTOR.store(fd, Ordering::Release);
        }
    }
}

/// Whether trouble ends the process.
pub fn set_required(required: bool) {
    REQUIRED.store(required, Ordering::Relaxed);
}

/// Reports a state. Trouble that finds no other ear goes to the system log; trouble of a required shim ends
/// the process.
pub fn say(state: State, detail: fmt::Arguments<'_>) {
    let mut line = Line::new();
    // A line that does not fit is cut by `Line`, which never fails.
    _ = writeln!(line, "{}", StatusLine { pid: sys::pid(), state, detail });
    let heard = FILE.append(line.as_bytes()) || write_to_descriptor(line.as_bytes());
    if state.is_trouble() && !heard {
        sys::log(line.as_c_str());
    }
    if REQUIRED.load(Ordering::Relaxed) && (state.is_trouble() || state == State::Skipped) {
        sys::exit(EXIT_NOT_INSTALLED);
    }
}

fn write_to_descriptor(line: &[u8]) -> bool {
    let fd = DESCRIPTOR.load(Ordering::Acquire);
    if fd == NO_DESCRIPTOR {
        return false;
    }
    let given = (DESCRIPTOR_DEVICE.load(Ordering::Relaxed), DESCRIPTOR_INODE.load(Ordering::Relaxed));
    let is_ours = fd == STDERR || sys::descriptor_identity(fd) == Some(given);
    is_ours && sys::write_once(fd, line)
}

/// One line on the stack: text that does not fit is dropped, the newline and the terminator always fit.
struct Line {
    bytes: [u8; LINE_LENGTH_MAX + 1],
    length: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; LINE_LENGTH_MAX + 1], length: 0 }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                self.length = self.length.min(LINE_LENGTH_MAX - 1);
            }
            if self.length < LINE_LENGTH_MAX {
                self.bytes[self.length] = byte;
                self.length += 1;
            }
        }
        Ok(())
    }
}
