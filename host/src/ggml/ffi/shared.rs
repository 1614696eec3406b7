//! Memory shared with a guest, as ggml reads and writes it: by address, never through a Rust reference.
#![allow(unsafe_code)]

use ferry_protocol::channel::memory::Mapping;
use libloading::os::unix::{Library as Dl, RTLD_NOW};
use std::cell::OnceCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// `RTLD_NOLOAD`: only what is there already.
const NOLOAD: c_int = libc::RTLD_NOLOAD;
/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for every context.
const PORTABLE: c_uint = 1;

type Register = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
type Unregister = unsafe extern "C" fn(*mut c_void) -> c_int;

/// A mapping that a guest sees as well.
pub struct Shared {
    /// Dropped before the mapping goes.
    pin: OnceCell<Option<Pin>>,
    mapping: Arc<dyn Mapping>,
}

/// Bytes of shared memory, within its bounds.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    pub(super) start: *mut c_void,
    pub(super) len: usize,
    _shared: std::marker::PhantomData<&'a Shared>,
}

impl Shared {
    /// `mapping`, not known to any driver yet.
    pub fn new(mapping: Arc<dyn Mapping>) -> Self {
        Self { pin: OnceCell::new(), mapping }
    }

    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.mapping.len()
    }

    /// `len` bytes from `at`, or `None` if they are not there. From the first time on the driver of a CUDA back-end knows
    /// the memory: its copies then need no detour. (Not earlier, because there is no context before the first buffer.)
    pub fn span(&self, at: u64, len: u64) -> Option<Span<'_>> {
        let end = at.checked_add(len)?;
        if end > self.bytes() as u64 {
            return None;
        }
        self.pin.get_or_init(|| Pin::new(&*self.mapping));
        let start = self.mapping.base().as_ptr().wrapping_add(at as usize).cast();
        Some(Span { start, len: len as usize, _shared: std::marker::PhantomData })
    }
}

/// Memory that CUDA's driver has pinned.
struct Pin {
    address: *mut c_void,
    unregister: Unregister,
}

impl Pin {
    /// Pins `mapping` if this process has loaded CUDA's driver and that is willing. ggml's own function for it
    /// (`ggml_backend_register_host_buffer`) registers memory as read-only for the device, which is half of what is wanted.
    fn new(mapping: &dyn Mapping) -> Option<Self> {
        // SAFETY: NOLOAD runs no code of the library; the functions have these types in every version of the driver
        // (cuda.h); the memory stays mapped until `unregister`, since `Shared` drops this before the mapping.
        unsafe {
            let driver = Dl::open(Some("libcuda.so.1"), RTLD_NOW | NOLOAD).ok()?;
            let register = *driver.get::<Register>(b"cuMemHostRegister_v2\0").ok()?;
            let unregister = *driver.get::<Unregister>(b"cuMemHostUnregister\0").ok()?;
            // The process keeps the driver anyhow.
            std::mem::forget(driver);
            let address = mapping.base().as_ptr().cast();
            let code = register(address, mapping.len(), PORTABLE);
            tracing::debug!(bytes = mapping.len(), code, "pinned shared memory");
            (code == 0).then_some(Self { address, unregister })
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: registered once, unregistered once, still mapped.
        unsafe { (self.unregister)(self.address) };
    }
}
