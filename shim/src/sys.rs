//! What the shim asks of the C library: environment, files, the system log, the end of the process.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use ferry_shim_contract::config::PATH_LENGTH_MAX;

/// Longest name of a variable that is looked up, terminator included.
const NAME_LENGTH_MAX: usize = 64;

/// The value of an environment variable. Good until the variable is set again, which nothing does before
/// the constructor ends.
pub fn variable(name: &str) -> Option<&'static [u8]> {
    let mut terminated = [0u8; NAME_LENGTH_MAX];
    terminated.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    let name = CStr::from_bytes_until_nul(&terminated).ok()?;
    // SAFETY: a C string in, null or a C string out.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// Sets a variable, or removes it where `value` is `None`.
pub fn set_variable(name: &CStr, value: Option<&CStr>) {
    // SAFETY: C strings in, which the C library copies. The constructor runs before the program's threads.
    unsafe {
        match value {
            Some(value) => libc::setenv(name.as_ptr(), value.as_ptr(), 1),
            None => libc::unsetenv(name.as_ptr()),
        };
    }
}

/// The path that this library was loaded from.
pub fn own_path() -> Option<&'static CStr> {
    // SAFETY: Dl_info is made of pointers, for which null is a value.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: the address is in this library, and the linker fills a Dl_info of our own; its strings live as
    // long as the library, which is never unloaded: its code answers methods.
    unsafe {
        let known = libc::dladdr(own_path as *const c_void, &raw mut info) != 0 && !info.dli_fname.is_null();
        known.then(|| CStr::from_ptr(info.dli_fname))
    }
}

/// Do two paths lead to one file?
pub fn is_same_file(one: &CStr, other: &CStr) -> bool {
    let identity = |path: &CStr| {
        // SAFETY: stat is plain numbers; the path is a C string.
        unsafe {
            let mut stat: libc::stat = core::mem::zeroed();
            (libc::stat(path.as_ptr(), &raw mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
        }
    };
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// A growing C string on the heap.
pub struct OwnedText {
    memory: NonNull<u8>,
    length: usize,
    capacity: usize,
}

impl OwnedText {
    /// An empty text with room for `capacity` bytes; `None` without memory.
    pub fn empty(capacity: usize) -> Option<Self> {
        // SAFETY: calloc gives zeroed memory or null; one byte more than the capacity is the terminator's.
        let memory = NonNull::new(unsafe { libc::calloc(capacity.checked_add(1)?, 1) })?.cast();
        Some(Self { memory, length: 0, capacity })
    }

    /// Copies bytes, up to the first NUL.
    pub fn copy(bytes: &[u8]) -> Option<Self> {
        let mut text = Self::empty(bytes.len())?;
        text.push(bytes);
        Some(text)
    }

    /// Appends as much as there is room for.
    pub fn push(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(self.capacity - self.length);
        // SAFETY: `count` bytes fit behind what is there, and the memory is this text's alone.
        unsafe { self.memory.as_ptr().add(self.length).copy_from_nonoverlapping(bytes.as_ptr(), count) };
        self.length += count;
    }

    /// Appends an item, behind a separator if it is not the first.
    pub fn join(&mut self, separator: u8, item: &[u8]) {
        if self.length > 0 {
            self.push(&[separator]);
        }
        self.push(item);
    }

    /// The text as C sees it.
    pub fn as_c_str(&self) -> &CStr {
        // SAFETY: the byte behind the capacity is never written and stays the terminator.
        unsafe { CStr::from_ptr(self.memory.as_ptr().cast()) }
    }

    /// Gives the memory away for the life of the process.
    fn leak(self) -> *mut c_char {
        let pointer = self.memory.as_ptr().cast();
        core::mem::forget(self);
        pointer
    }
}

impl Drop for OwnedText {
    fn drop(&mut self) {
        // SAFETY: allocated by calloc in `empty`.
        unsafe { libc::free(self.memory.as_ptr().cast()) };
    }
}

/// Reads a file of at most `buffer.len()` bytes; how many it has, or `None` if it cannot be read. A longer
/// file fills the buffer.
pub fn read_file(path: &[u8], buffer: &mut [u8]) -> Option<usize> {
    let path = OwnedText::copy(path)?;
    // SAFETY: a C string in; the descriptor is closed below.
    let fd =
        unsafe { libc::open(path.as_c_str().as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return None;
    }
    let mut filled = 0;
    let whole = loop {
        let rest = &mut buffer[filled..];
        // SAFETY: the buffer has that many writable bytes.
        match unsafe { libc::read(fd, rest.as_mut_ptr().cast(), rest.len()) } {
            0 => break Some(filled),
            read if read > 0 => filled += read.cast_unsigned(),
            _ if is_interrupted() => {}
            _ => break None,
        }
    };
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    whole
}

/// The file that status lines are appended to: opened anew for each line, since a program may close every
/// descriptor that it does not know.
pub struct LogFile(AtomicPtr<c_char>);

impl LogFile {
    pub const fn none() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Remembers a path; false if there is no memory or it is too long.
    pub fn set(&self, path: &[u8]) -> bool {
        let Some(path) = (path.len() < PATH_LENGTH_MAX).then(|| OwnedText::copy(path)).flatten() else {
            return false;
        };
        self.0.store(path.leak(), Ordering::Release);
        true
    }

    /// Appends one line by one write; false if that failed.
    pub fn append(&self, line: &[u8]) -> bool {
        let path = self.0.load(Ordering::Acquire);
        if path.is_null() {
            return false;
        }
        let flags = libc::O_WRONLY
            | libc::O_APPEND
            | libc::O_CREAT
            | libc::O_CLOEXEC
            | libc::O_NOFOLLOW
            | libc::O_NONBLOCK;
        // SAFETY: the path was set as a C string and is never freed.
        let fd = unsafe { libc::open(path, flags, 0o600) };
        if fd < 0 {
            return false;
        }
        let written = write_once(fd, line);
        // SAFETY: opened above.
        unsafe { libc::close(fd) };
        written
    }
}

/// What a descriptor refers to: a program may close it and open another file under the same number.
pub fn descriptor_identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: stat is plain numbers; a bad descriptor is answered with an error.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        (libc::fstat(fd, &raw mut stat) == 0).then_some((stat.st_dev as u64, stat.st_ino as u64))
    }
}

/// Keeps a descriptor out of executed children.
pub fn close_on_exec(fd: c_int) {
    // SAFETY: changes one flag of a descriptor.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// Writes all of a short line by one call; false if that failed.
pub fn write_once(fd: c_int, line: &[u8]) -> bool {
    loop {
        // SAFETY: the line has that many readable bytes.
        let written = unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) };
        if written >= 0 || !is_interrupted() {
            return usize::try_from(written) == Ok(line.len());
        }
    }
}

/// Hands a line to the system log as an error.
pub fn log(line: &CStr) {
    // SAFETY: the format takes exactly one C string.
    unsafe { libc::syslog(libc::LOG_USER | libc::LOG_ERR, c"%s".as_ptr(), line.as_ptr()) };
}

/// This process's number.
pub fn pid() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() }.cast_unsigned()
}

/// Lets another thread run.
pub fn yield_now() {
    // SAFETY: has no arguments and touches no memory.
    unsafe { libc::sched_yield() };
}

/// Ends the process at once, without the program's own exit handlers: it has not started yet, or is in the
/// middle of making a device.
pub fn exit(status: c_int) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(status) }
}

/// Ends the process as the panic handler does.
#[cfg(not(feature = "std"))]
pub fn abort() -> ! {
    // SAFETY: does not return.
    unsafe { libc::abort() }
}

fn is_interrupted() -> bool {
    // SAFETY: the C library's errno of this thread.
    unsafe {
        #[cfg(target_vendor = "apple")]
        let errno = *libc::__error();
        #[cfg(not(target_vendor = "apple"))]
        let errno = *libc::__errno_location();
        errno == libc::EINTR
    }
}
