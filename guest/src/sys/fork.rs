//! Tells a process that was forked off from the one that opened a session.
//!
//! A child shares its parent's sockets but must never speak on them, and the parent's shared memory is not mapped in it.
//! A page that the kernel zeroes in a child says which one this is, at the cost of one load.
#![allow(unsafe_code)]

/// Made by the process that owns something; `is_child` is true in every process forked off later.
pub struct ForkMark(imp::Mark);

impl ForkMark {
    /// A mark of this process.
    pub fn new() -> std::io::Result<Self> {
        imp::Mark::new().map(Self)
    }

    /// Whether this process is a child of the one that made the mark.
    pub fn is_child(&self) -> bool {
        self.0.is_child()
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use std::io;
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicU32, Ordering};

    const PAGE: usize = 4096;

    pub struct Mark(NonNull<AtomicU32>);

    // SAFETY: the page is only accessed through an atomic.
    unsafe impl Send for Mark {}
    // SAFETY: as above.
    unsafe impl Sync for Mark {}

    impl Mark {
        pub fn new() -> io::Result<Self> {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new anonymous mapping, wherever the kernel likes.
            let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
            if page == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the page is ours. MADV_WIPEONFORK exists since Linux 4.14.
            if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } != 0 {
                return Err(io::Error::last_os_error());
            }
            let mark = Self(NonNull::new(page.cast()).expect("a mapping is not at address 0"));
            mark.word().store(1, Ordering::Relaxed);
            Ok(mark)
        }

        fn word(&self) -> &AtomicU32 {
            // SAFETY: the page lives as long as `self`, in a child too (where it is zero), and is aligned.
            unsafe { self.0.as_ref() }
        }

        pub fn is_child(&self) -> bool {
            self.word().load(Ordering::Relaxed) == 0
        }
    }

    impl Drop for Mark {
        fn drop(&mut self) {
            // SAFETY: the page is ours, and nothing refers to it any more.
            unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    pub struct Mark(u32);

    impl Mark {
        pub fn new() -> std::io::Result<Self> {
            Ok(Self(std::process::id()))
        }

        pub fn is_child(&self) -> bool {
            std::process::id() != self.0
        }
    }
}
