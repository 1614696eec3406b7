//! Private memory that small writes wait in until a stream has taken them: a device's own kind of host memory (pinned, for
//! CUDA), so that nothing has to be waited for between a token's inputs.
#![allow(unsafe_code)]

use super::objects::Library;
use ferry_ggml::backend::Handle;
use ferry_protocol::channel::Payload;
use std::sync::Arc;

/// Bytes of it: a decoded token's inputs are some tens of KiB; a prompt's mask that does not fit is written at once.
const STAGING_BYTES: usize = 1 << 20;
/// Where writes start.
const ALIGNMENT: usize = 64;

/// Host memory of a device, filled from its start.
pub struct Staging {
    library: Arc<Library>,
    handle: Handle,
    base: *mut u8,
    used: usize,
}

// SAFETY: the one thread that serves a session uses it; the addresses are plain numbers.
unsafe impl Send for Staging {}

/// Bytes that stay where they are until the staging memory is cleared.
pub struct Staged {
    pub(super) start: *const u8,
    pub(super) len: usize,
}

impl Staging {
    /// Memory for device `at`, or `None` if the device has no kind of its own, or no room.
    pub fn new(library: &Arc<Library>, at: usize) -> Option<Self> {
        let (ggml, device) = (&library.ggml, library.devices().get(at)?);
        // SAFETY: the handles are valid; the buffer is ours, and host memory of at least the size that was asked for.
        let (handle, base) = unsafe {
            let buft = (ggml.ggml_backend_dev_host_buffer_type)(device.handle);
            if buft.is_null() {
                return None;
            }
            let handle = (ggml.ggml_backend_buft_alloc_buffer)(buft, STAGING_BYTES);
            if handle.is_null() {
                return None;
            }
            (handle, (ggml.ggml_backend_buffer_get_base)(handle))
        };
        Some(Self { library: library.clone(), handle, base: base.cast(), used: 0 })
    }

    /// Whether `len` bytes fit an empty one.
    pub fn takes(len: usize) -> bool {
        len <= STAGING_BYTES / 4
    }

    /// Copies `data` in, or `None` if there is no room left.
    pub fn put(&mut self, data: &Payload<'_>) -> Option<Staged> {
        let (at, len) = (self.used.next_multiple_of(ALIGNMENT), data.len());
        if at.checked_add(len)? > STAGING_BYTES {
            return None;
        }
        self.used = at + len;
        // SAFETY: `at + len` is within the buffer, and what was given out before lies in front of it.
        let place = unsafe { std::slice::from_raw_parts_mut(self.base.add(at), len) };
        data.copy_to(place);
        Some(Staged { start: place.as_ptr(), len })
    }

    /// Forgets everything that was put in: the stream has taken it.
    pub fn clear(&mut self) {
        self.used = 0;
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and valid; the stream that read from it was synchronized.
        unsafe { (self.library.ggml.ggml_backend_buffer_free)(self.handle) };
    }
}
