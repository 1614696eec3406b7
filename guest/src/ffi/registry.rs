//! The registry: the one global, which ggml's interface asks for.
#![allow(unsafe_code)]

use super::base::{Base, Lookup};
use super::device::DeviceContext;
use super::{guard, host_buffer};
use crate::connect::{ConnectError, Daemon};
use crate::log::{self, Level};
use crate::session::{Processors, Session};
use ferry_ggml::backend::{Handle, Reg, RegInterface};
use ferry_protocol::hello::{DeviceFlags, field_text};
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// After a failure to open a session, this long nobody tries again: ggml asks thousands of questions.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Everything that the plug-in has in this process.
pub struct Registry {
    reg: Reg,
    /// The program's ggml.
    pub base: Base,
    /// The devices. They are at stable addresses: ggml keeps pointers to them.
    pub devices: Vec<&'static DeviceContext>,
    /// Memory of this program that workers see.
    pub host_buffers: host_buffer::Live,
    daemon: Option<Daemon>,
    current: Mutex<Current>,
}

/// The session in use, if any.
#[derive(Default)]
struct Current {
    session: Option<Arc<Session>>,
    /// Backend instances and buffers of it.
    users: usize,
    failed: Option<Instant>,
}

// SAFETY: what it points to are constants and functions.
unsafe impl Send for Registry {}
// SAFETY: as above.
unsafe impl Sync for Registry {}

static REGISTRY: OnceLock<Option<Box<Registry>>> = OnceLock::new();

/// The registry for ggml; null if the program's ggml is not one that can be served.
pub fn get(caller: *const c_void) -> *mut c_void {
    let registry = REGISTRY.get_or_init(|| build(caller));
    registry.as_ref().map_or(std::ptr::null_mut(), |registry| (&raw const registry.reg).cast_mut().cast())
}

/// The registry, from one of ggml's calls: it has been built then.
pub fn registry() -> &'static Registry {
    REGISTRY.get().and_then(Option::as_deref).expect("ggml has the registry from us")
}

fn build(caller: *const c_void) -> Option<Box<Registry>> {
    let base = match Base::find(&Lookup::through(caller)) {
        Ok(base) => base,
        Err(error) => {
            log::line(Level::Error, &error.to_string());
            return None;
        }
    };
    let daemon = match Daemon::find() {
        Ok(daemon) => Some(daemon),
        Err(error) => {
            // Not having a daemon is a normal thing; anything else is worth a look.
            let level = if matches!(error, ConnectError::NoDaemon(..) | ConnectError::Nobody(..)) {
                Level::Warn
            } else {
                Level::Error
            };
            log::line(level, &format!("{error}; this program goes on without it"));
            None
        }
    };
    let iface = RegInterface {
        get_name: Some(get_name),
        get_device_count: Some(get_device_count),
        get_device: Some(get_device),
        get_proc_address: Some(get_proc_address),
    };
    let reg = Reg { api_version: base.generation.api_version(), iface, context: std::ptr::null_mut() };
    let records = daemon.as_ref().map(|daemon| daemon.devices.clone()).unwrap_or_default();
    let mut registry = Box::new(Registry {
        reg,
        base,
        devices: Vec::new(),
        host_buffers: host_buffer::Live::default(),
        daemon,
        current: Mutex::default(),
    });
    let handle: Handle = (&raw mut registry.reg).cast();
    for (at, record) in records.iter().enumerate() {
        let text = format!("Ferry{at}: {} ({})", field_text(&record.description), field_text(&record.name));
        log::line(Level::Debug, &text);
        registry.devices.push(DeviceContext::new(at, *record, handle, &registry.base));
    }
    Some(registry)
}

/// A session for as long as somebody has something in it.
pub struct SessionRef(Arc<Session>);

impl std::ops::Deref for SessionRef {
    type Target = Arc<Session>;
    fn deref(&self) -> &Arc<Session> {
        &self.0
    }
}

impl Drop for SessionRef {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever by a thread that does not exist there.
        if self.0.is_child() {
            return;
        }
        let mut current = registry().current();
        if current.session.as_ref().is_some_and(|session| Arc::ptr_eq(session, &self.0)) {
            current.users -= 1;
            if current.users == 0 {
                // With the last backend instance and the last buffer the worker goes, too.
                current.session = None;
            }
        }
    }
}

impl Registry {
    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, for a backend instance or a buffer. A lost one is replaced.
    pub fn acquire(&self) -> Option<SessionRef> {
        let mut current = self.current();
        let session = self.session_in(&mut current)?;
        current.users += 1;
        Some(SessionRef(session))
    }

    /// The session, for a question.
    pub fn session(&self) -> Option<Arc<Session>> {
        self.session_in(&mut self.current())
    }

    /// The session if there is one that nobody is using at this moment. It waits for nothing, so that a signal handler may
    /// ask: it may have interrupted the very thread that it would wait for.
    pub fn idle_session(&self) -> Option<Arc<Session>> {
        self.current.try_lock().ok()?.session.clone().filter(|session| session.is_idle())
    }

    fn session_in(&self, current: &mut Current) -> Option<Arc<Session>> {
        if let Some(session) = &current.session {
            if !session.is_lost() {
                return Some(session.clone());
            }
            *current = Current::default();
        }
        if current.failed.is_some_and(|failed| failed.elapsed() < RETRY_AFTER) {
            return None;
        }
        match self.open() {
            Ok(session) => {
                let session = Arc::new(session);
                current.session = Some(session.clone());
                current.failed = None;
                Some(session)
            }
            Err(error) => {
                log::line(Level::Error, &error.to_string());
                current.failed = Some(Instant::now());
                None
            }
        }
    }

    fn open(&self) -> Result<Session, ConnectError> {
        let daemon = self.daemon.as_ref().expect("there is a device, so there is a daemon");
        // A back-end that takes a number of threads computes on CPUs.
        let on_cpus = self.devices.iter().any(|device| device.record.flags.contains(DeviceFlags::THREADS));
        let computes_on = if on_cpus { Processors::Cpus } else { Processors::Others };
        Ok(Session::new(daemon.open()?, computes_on)?)
    }
}

unsafe extern "C" fn get_name(_: Handle) -> *const c_char {
    c"Ferry".as_ptr()
}

unsafe extern "C" fn get_device_count(_: Handle) -> usize {
    guard(0, || registry().devices.len())
}

unsafe extern "C" fn get_device(_: Handle, at: usize) -> Handle {
    guard(std::ptr::null_mut(), || {
        registry().devices.get(at).map_or(std::ptr::null_mut(), |device| device.handle())
    })
}

unsafe extern "C" fn get_proc_address(_: Handle, name: *const c_char) -> *mut c_void {
    guard(std::ptr::null_mut(), || {
        // SAFETY: ggml passes a terminated string.
        match unsafe { CStr::from_ptr(name) }.to_bytes() {
            b"ggml_backend_set_n_threads" => super::backend::set_n_threads as *mut c_void,
            b"ggml_backend_get_features" => get_features as *mut c_void,
            _ => std::ptr::null_mut(),
        }
    })
}

/// `struct ggml_backend_feature`.
#[repr(C)]
struct Feature {
    name: *const c_char,
    value: *const c_char,
}

// SAFETY: what it points to are constants.
unsafe impl Sync for Feature {}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no zero in it"),
};

/// What llama.cpp prints among what it knows of the system; an absent name ends it.
static FEATURES: [Feature; 2] = [
    Feature { name: c"VERSION".as_ptr(), value: VERSION.as_ptr() },
    Feature { name: std::ptr::null(), value: std::ptr::null() },
];

/// `ggml_backend_get_features`: a report of a problem says by it that we were there, and which one.
unsafe extern "C" fn get_features(_: Handle) -> *const Feature {
    FEATURES.as_ptr()
}
