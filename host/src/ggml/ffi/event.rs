//! An event of a device.
#![allow(unsafe_code)]

use super::objects::{Backend, Library};
use ferry_ggml::backend::Handle;
use std::sync::Arc;

/// An event: a point in a stream's work.
pub struct Event {
    library: Arc<Library>,
    handle: Handle,
    recorded: bool,
}

impl Event {
    /// A new one on device `at`, or `None` if the device has no events.
    pub fn new(library: &Arc<Library>, at: usize) -> Option<Self> {
        let device = library.devices().get(at)?;
        // SAFETY: the device's handle is valid as long as the library is loaded.
        let handle = unsafe { (library.ggml.ggml_backend_event_new)(device.handle) };
        (!handle.is_null()).then(|| Self { library: library.clone(), handle, recorded: false })
    }

    /// Puts it behind everything that `backend` was given. ggml aborts where the devices differ: the caller has compared.
    pub fn record(&mut self, backend: &Backend) {
        // SAFETY: both handles are valid.
        unsafe { (self.library.ggml.ggml_backend_event_record)(self.handle, backend.handle) };
        self.recorded = true;
    }

    /// Lets `backend` go on only after it.
    pub fn hold(&self, backend: &Backend) {
        if self.recorded {
            // SAFETY: both handles are valid.
            unsafe { (self.library.ggml.ggml_backend_event_wait)(backend.handle, self.handle) };
        }
    }

    /// Waits until it has happened.
    pub fn synchronize(&self) {
        if self.recorded {
            // SAFETY: the handle is valid.
            unsafe { (self.library.ggml.ggml_backend_event_synchronize)(self.handle) };
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and valid; nobody uses it again.
        unsafe { (self.library.ggml.ggml_backend_event_free)(self.handle) };
    }
}
