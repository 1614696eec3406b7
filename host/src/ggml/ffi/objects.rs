//! What ggml gives, owned.
#![allow(unsafe_code)]

use super::event::Event;
use super::functions::{self, Functions, LoadError};
use super::graph::Graph;
use super::names::Names;
use super::nontemporal;
use super::runs::Transfers2d;
use super::shared::Span;
use super::staging::Staged;
use ferry_ggml::Tensor;
use ferry_ggml::backend::{self, Handle, status};
use ferry_protocol::channel::Payload;
use ferry_protocol::hello::{DeviceFlags, DeviceKind, DeviceRecord, text_field};
use ferry_protocol::tensor::{TensorLayout, TensorRecord};
use libloading::os::unix::Library as Dl;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

/// One directory's ggml, with the back-ends that were asked for.
pub struct Library {
    pub(super) ggml: Functions,
    names: Names,
    transfers_2d: Option<Transfers2d>,
    devices: Vec<Device>,
    /// Last: the code stays loaded while anything above lives. Back-ends leave threads and handlers behind, so it is
    /// never unloaded at all.
    _loaded: Vec<std::mem::ManuallyDrop<Dl>>,
}

/// A device of a back-end. ggml keeps it as long as its library is loaded.
pub struct Device {
    pub(super) handle: Handle,
    reg: Handle,
}

/// A backend instance.
pub struct Backend {
    library: Arc<Library>,
    pub(super) handle: Handle,
    device: usize,
    threads: Option<unsafe extern "C" fn(Handle, c_int)>,
}

/// A buffer on a device.
pub struct Buffer {
    library: Arc<Library>,
    handle: Handle,
    device: usize,
    base: *mut u8,
    size: u64,
    /// Its bytes are this process's, and laid out as ggml says.
    is_host: bool,
}

/// A validated place for a tensor: within a buffer, of a type that this build has.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    layout: TensorLayout,
    buffer: &'a Buffer,
    bytes: u64,
}

// SAFETY: ggml's functions are called by the one thread that serves a session; the handles are plain addresses.
unsafe impl Send for Library {}
// SAFETY: as above; what is shared is only read.
unsafe impl Sync for Library {}

/// `rpc=HOST:PORT,HOST:PORT` is a back-end and the servers whose devices it is to have.
fn servers_of(backend: &str) -> (&str, Vec<&str>) {
    match backend.split_once('=').filter(|(name, _)| !name.contains('/')) {
        Some((name, servers)) => (name, servers.split(',').collect()),
        None => (backend, Vec::new()),
    }
}

/// # Safety
/// `reg` must be a live back-end of this ggml.
unsafe fn devices_of(ggml: &Functions, reg: Handle) -> Vec<Device> {
    // SAFETY: as promised, and the indices are below the count.
    unsafe {
        let count = (ggml.ggml_backend_reg_dev_count)(reg);
        (0..count).map(|at| Device { handle: (ggml.ggml_backend_reg_dev_get)(reg, at), reg }).collect()
    }
}

/// The part of a back-end that stands for the devices of another machine.
///
/// # Safety
/// `reg` must be a live back-end of this ggml.
unsafe fn add_server(ggml: &Functions, reg: Handle, name: &str, server: &str) -> Result<Handle, LoadError> {
    type AddServer = unsafe extern "C" fn(*const c_char) -> Handle;
    // SAFETY: as promised; the name is a terminated string.
    let add =
        unsafe { (ggml.ggml_backend_reg_get_proc_address)(reg, c"ggml_backend_rpc_add_server".as_ptr()) };
    if add.is_null() {
        return Err(LoadError::NoServers(name.to_owned()));
    }
    // SAFETY: a function of this name has this type in every ggml.
    let add: AddServer = unsafe { std::mem::transmute(add) };
    let endpoint = CString::new(server).map_err(|_| LoadError::NoServer(server.to_owned()))?;
    // SAFETY: a terminated string, which the back-end copies.
    let added = unsafe { add(endpoint.as_ptr()) };
    if added.is_null() { Err(LoadError::NoServer(server.to_owned())) } else { Ok(added) }
}

impl Library {
    /// Loads `libggml-base` from `dir` and the `backends` beside it.
    pub fn load(dir: &Path, backends: &[String]) -> Result<Self, LoadError> {
        let (base, ggml) = functions::load_base(dir)?;
        let version = functions::version(&base);
        // SAFETY: the callback accepts whatever ggml passes, from any thread.
        unsafe { (ggml.ggml_log_set)(Some(log), std::ptr::null_mut()) };
        let transfers_2d = Transfers2d::of(&base);
        let mut loaded = vec![std::mem::ManuallyDrop::new(base)];
        let mut devices = Vec::new();
        for backend in backends {
            let (name, servers) = servers_of(backend);
            let (library, reg) = functions::load_backend(dir, name)?;
            loaded.push(std::mem::ManuallyDrop::new(library));
            let reg: Handle = reg.cast();
            if servers.is_empty() {
                // SAFETY: `reg` was just made by the back-end.
                devices.extend(unsafe { devices_of(&ggml, reg) });
            }
            for server in servers {
                // SAFETY: as above.
                let reg = unsafe { add_server(&ggml, reg, name, server)? };
                // SAFETY: as above.
                devices.extend(unsafe { devices_of(&ggml, reg) });
            }
        }
        let names = Names::of(&ggml, version.as_deref());
        let ((known, of), release) = (names.coverage(), names.release());
        tracing::debug!(dir = %dir.display(), devices = devices.len(), known, of, version, ?release, "loaded ggml");
        Ok(Self { ggml, names, transfers_2d, devices, _loaded: loaded })
    }

    /// This build's numbers.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The devices, in the order of the back-ends.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// What a guest is told of device `at`.
    pub fn describe(self: &Arc<Self>, at: usize) -> DeviceRecord {
        let (ggml, device) = (&self.ggml, &self.devices[at]);
        // SAFETY: the device's handle is valid as long as the library is loaded, and so are the strings.
        let (name, description, kind, buft) = unsafe {
            (
                text((ggml.ggml_backend_dev_name)(device.handle)),
                text((ggml.ggml_backend_dev_description)(device.handle)),
                (ggml.ggml_backend_dev_type)(device.handle),
                (ggml.ggml_backend_dev_buffer_type)(device.handle),
            )
        };
        // SAFETY: as above.
        let (alignment, buffer_bytes_max) = unsafe {
            (
                (ggml.ggml_backend_buft_get_alignment)(buft) as u64,
                (ggml.ggml_backend_buft_get_max_size)(buft) as u64,
            )
        };
        let (memory_free, memory_total) = self.memory(at);
        let threads =
            if self.set_threads(at).is_some() { DeviceFlags::THREADS } else { DeviceFlags::default() };
        let probe = Buffer::alloc(self, at, 256);
        let init = probe.is_some_and(|buffer| buffer.inits_tensors());
        let init = if init { DeviceFlags::INIT_TENSOR } else { DeviceFlags::default() };
        let optimize = match Backend::new(self, at).is_some_and(|backend| backend.optimizes()) {
            true => DeviceFlags::OPTIMIZE,
            false => DeviceFlags::default(),
        };
        let events = match Event::new(self, at) {
            Some(_) => DeviceFlags::EVENTS,
            None => DeviceFlags::default(),
        };
        DeviceRecord {
            name: text_field(&name),
            description: text_field(description.trim()),
            memory_free,
            memory_total,
            alignment,
            buffer_bytes_max,
            // A guest that is told of a CPU would take it for its own.
            kind: if kind == backend::device_type::IGPU {
                DeviceKind::INTEGRATED_GPU
            } else {
                DeviceKind::GPU
            },
            flags: threads | init | events | optimize | DeviceFlags::TRANSFERS_2D,
        }
    }

    /// Free and total memory of device `at`, in bytes.
    pub fn memory(&self, at: usize) -> (u64, u64) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the handle is valid, and the results are ours.
        unsafe { (self.ggml.ggml_backend_dev_memory)(self.devices[at].handle, &mut free, &mut total) };
        (free as u64, total as u64)
    }

    /// Whether device `at` computes the operation whose result is the last of `records`. `None` if the records are
    /// not an operation of this build.
    pub fn supports_op(&self, at: usize, records: &[TensorRecord]) -> Option<bool> {
        let graph = Graph::of_op(self, records)?;
        // SAFETY: the tensors are complete and point at each other only.
        Some(unsafe { (self.ggml.ggml_backend_dev_supports_op)(self.devices[at].handle, graph.last()) })
    }

    /// Bytes that the last of `records` takes in a buffer of device `at`.
    pub fn alloc_size(&self, at: usize, records: &[TensorRecord]) -> Option<u64> {
        let graph = Graph::of_op(self, records)?;
        let handle = self.devices[at].handle;
        // SAFETY: as above.
        Some(unsafe {
            let buft = (self.ggml.ggml_backend_dev_buffer_type)(handle);
            (self.ggml.ggml_backend_buft_get_alloc_size)(buft, graph.last()) as u64
        })
    }

    /// The version of the back-end interface that device `at` was built for.
    pub(super) fn api_version(&self, at: usize) -> c_int {
        // SAFETY: a registry starts with it in every version.
        unsafe { (*self.devices[at].reg.cast::<backend::Reg>()).api_version }
    }

    /// The 2d transfers, where this build has them; they came in the middle of the tables.
    pub(super) fn transfers_2d(&self) -> Option<&Transfers2d> {
        self.transfers_2d.as_ref()
    }

    /// The function that sets a CPU back-end's number of threads.
    fn set_threads(&self, at: usize) -> Option<unsafe extern "C" fn(Handle, c_int)> {
        let name = c"ggml_backend_set_n_threads";
        // SAFETY: the registry is valid; a function of this name has this type (`ggml_backend_set_n_threads_t`), and an
        // `Option` of a function pointer is null for none.
        unsafe {
            let function = (self.ggml.ggml_backend_reg_get_proc_address)(self.devices[at].reg, name.as_ptr());
            std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(Handle, c_int)>>(function)
        }
    }
}

impl Backend {
    /// A new instance on device `at`, or `None` if the device refuses.
    pub fn new(library: &Arc<Library>, at: usize) -> Option<Self> {
        let device = library.devices.get(at)?;
        // SAFETY: the handle is valid; null is allowed for the parameters.
        let handle = unsafe { (library.ggml.ggml_backend_dev_init)(device.handle, std::ptr::null()) };
        let threads = library.set_threads(at);
        (!handle.is_null()).then(|| Self { library: library.clone(), handle, device: at, threads })
    }

    /// The device's place in the list.
    pub fn device(&self) -> usize {
        self.device
    }

    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    /// Sets the number of threads, on a back-end that has them.
    pub fn set_threads(&self, threads: u32) {
        if let Some(set) = self.threads {
            // SAFETY: the handle is valid, and the number is within the protocol's limit.
            unsafe { set(self.handle, threads as c_int) };
        }
    }

    /// Starts computing; what goes wrong is ggml's status.
    pub fn compute(&self, graph: &mut Graph) -> Result<(), c_int> {
        // SAFETY: the graph is complete and valid, and its buffers live (`worker::objects` drops a graph before any
        // buffer that it names). It stays in place until the stream is synchronized.
        match unsafe { (self.library.ggml.ggml_backend_graph_compute_async)(self.handle, graph.as_mut_ptr()) }
        {
            status::SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Whether writes can be started and waited for later.
    pub fn is_async(&self) -> bool {
        // SAFETY: the slot is the third of the backend's interface in every generation.
        unsafe {
            (*self.handle.cast::<backend::Backend<backend::BackendV1>>()).iface.set_tensor_async.is_some()
        }
    }

    /// Starts copying `staged` to `offset` at `place`, after everything that was started before.
    pub fn write(&self, place: &Place<'_>, staged: &Staged, offset: u64) {
        // SAFETY: staged bytes stay until the stream is synchronized (`worker::objects`).
        unsafe { self.start_set(place, staged.start.cast(), offset, staged.len) };
    }

    /// The same from shared memory, which the guest promised to leave alone. If it does not, the wrong bytes arrive.
    pub fn write_shared(&self, place: &Place<'_>, span: Span<'_>, offset: u64) {
        // SAFETY: a region is only unmapped when every stream has been synchronized (`worker::dispatch`).
        unsafe { self.start_set(place, span.start, offset, span.len) };
    }

    /// # Safety
    /// `from` must stay the start of `len` readable bytes until the stream is synchronized.
    unsafe fn start_set(&self, place: &Place<'_>, from: *const c_void, offset: u64, len: usize) {
        assert!(place.contains(offset, len as u64) && place.buffer.device == self.device);
        let mut tensor = place.tensor();
        let set = self.library.ggml.ggml_backend_tensor_set_async;
        // SAFETY: as promised; the range is within the tensor, the tensor within its buffer.
        unsafe { set(self.handle, &mut tensor, from, offset as usize, len) };
    }

    /// Copies bytes from `offset` at `place` into shared memory, after everything that was started before, and waits for
    /// all of it.
    pub fn read_shared(&self, place: &Place<'_>, span: Span<'_>, offset: u64) {
        assert!(place.contains(offset, span.len as u64));
        let (tensor, get) = (place.tensor(), self.library.ggml.ggml_backend_tensor_get_async);
        // SAFETY: the ranges are within the tensor and the shared memory, which both live until this is done.
        unsafe { get(self.handle, &tensor, span.start, offset as usize, span.len) };
        self.synchronize();
    }

    /// Copies bytes from `offset` at `place` out, after everything that was started before, and waits for all of it.
    pub fn read(&self, place: &Place<'_>, out: &mut [u8], offset: u64) {
        assert!(place.contains(offset, out.len() as u64));
        let (tensor, to) = (place.tensor(), out.as_mut_ptr().cast());
        let get = self.library.ggml.ggml_backend_tensor_get_async;
        // SAFETY: the range is within the tensor, the tensor within its buffer, and `out` is as long and stays where it is
        // until the stream is synchronized.
        unsafe { get(self.handle, &tensor, to, offset as usize, out.len()) };
        self.synchronize();
    }

    /// Waits for everything that was started.
    pub fn synchronize(&self) {
        // SAFETY: the handle is valid.
        unsafe { (self.library.ggml.ggml_backend_synchronize)(self.handle) };
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and valid; nobody uses it again.
        unsafe { (self.library.ggml.ggml_backend_free)(self.handle) };
    }
}

impl Buffer {
    /// A buffer of `size` bytes on device `at`, or `None` if there is no room. Memory of a device that is not this
    /// process's own is cleared: it may hold what somebody else left.
    pub fn alloc(library: &Arc<Library>, at: usize, size: usize) -> Option<Self> {
        let (ggml, device) = (&library.ggml, library.devices.get(at)?);
        // SAFETY: the handles are valid; the result is ours.
        let (handle, is_host) = unsafe {
            let buft = (ggml.ggml_backend_dev_buffer_type)(device.handle);
            ((ggml.ggml_backend_buft_alloc_buffer)(buft, size), (ggml.ggml_backend_buft_is_host)(buft))
        };
        if handle.is_null() {
            return None;
        }
        // SAFETY: the buffer was just made.
        let (base, size) = unsafe {
            ((ggml.ggml_backend_buffer_get_base)(handle), (ggml.ggml_backend_buffer_get_size)(handle) as u64)
        };
        let buffer = Self { library: library.clone(), handle, device: at, base: base.cast(), size, is_host };
        if is_host {
            // SAFETY: the whole buffer is ordinary memory, and lives.
            unsafe { super::huge::advise(buffer.base, size) };
        } else {
            buffer.clear(0);
        }
        Some(buffer)
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The device's place in the list.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Whether the back-end wants to see tensors before they are used.
    pub fn inits_tensors(&self) -> bool {
        // SAFETY: the slot is the third of the buffer's interface in every generation.
        unsafe { (*self.handle.cast::<backend::Buffer<backend::BufferV1>>()).iface.init_tensor.is_some() }
    }

    /// Fills it with one byte value.
    pub fn clear(&self, value: u8) {
        // SAFETY: the handle is valid.
        unsafe { (self.library.ggml.ggml_backend_buffer_clear)(self.handle, value) };
    }

    /// Drops what the back-end attached to tensors in it.
    pub fn reset(&self) {
        // SAFETY: the handle is valid.
        unsafe { (self.library.ggml.ggml_backend_buffer_reset)(self.handle) };
    }

    /// Says what it is used for.
    pub fn set_usage(&self, usage: u8) {
        // SAFETY: the handle is valid, and the value one of the enumeration's (checked by the caller).
        unsafe { (self.library.ggml.ggml_backend_buffer_set_usage)(self.handle, c_int::from(usage)) };
    }

    /// The place that `layout` names in this buffer, if there is one.
    pub fn place(&self, layout: TensorLayout) -> Option<Place<'_>> {
        if !self.library.names.has_type(layout.kind) {
            return None;
        }
        let bytes = layout.extent_bytes().ok()?;
        let end = layout.offset.checked_add(bytes)?;
        (end <= self.size).then_some(Place { layout, buffer: self, bytes })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// The address that ggml sees for a byte of the buffer. Not ours to read: it may be a device's.
    pub(super) fn address(&self, offset: u64) -> *mut c_void {
        self.base.wrapping_add(offset as usize).cast()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and valid; nothing names the buffer any more.
        unsafe { (self.library.ggml.ggml_backend_buffer_free)(self.handle) };
    }
}

impl Place<'_> {
    /// Bytes from the first to behind the last element.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether `size` bytes from `offset` are within it.
    pub fn contains(&self, offset: u64, size: u64) -> bool {
        offset.checked_add(size).is_some_and(|end| end <= self.bytes)
    }

    pub(super) fn tensor(&self) -> Tensor {
        let layout = &self.layout;
        Tensor {
            kind: layout.kind.0 as i32,
            buffer: self.buffer.handle,
            ne: layout.ne,
            nb: layout.nb.map(|stride| stride as usize),
            data: self.buffer.address(layout.offset),
            ..Tensor::EMPTY
        }
    }

    /// Lets the back-end prepare the tensor.
    pub fn init(&self) -> Result<(), c_int> {
        let mut tensor = self.tensor();
        // SAFETY: the tensor lies in the buffer. What the back-end attaches to it is not kept: it is attached again
        // where a graph names the tensor.
        match unsafe { (self.ggml().ggml_backend_buffer_init_tensor)(self.buffer.handle, &mut tensor) } {
            status::SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Copies the whole of `data` to `offset` in the tensor, from where it lies. A guest may change the bytes while they are
    /// copied: they are data, and nothing is decided by them.
    ///
    /// # Panics
    /// If they do not fit; the caller has checked.
    pub fn set(&self, data: &Payload<'_>, offset: u64) {
        // SAFETY: a payload's bytes are readable for as long as it lives.
        unsafe { self.copy_in(data.as_ptr(), data.len(), offset) };
    }

    /// Copies `bytes` of this process to `offset` in the tensor.
    ///
    /// # Panics
    /// If they do not fit; the caller has checked.
    pub fn set_bytes(&self, bytes: &[u8], offset: u64) {
        // SAFETY: they are readable.
        unsafe { self.copy_in(bytes.as_ptr(), bytes.len(), offset) };
    }

    /// Copies the whole of `span` to `offset` in the tensor; as for `set`, the guest may change the bytes meanwhile.
    pub fn set_shared(&self, span: Span<'_>, offset: u64) {
        // SAFETY: the span is within the shared memory.
        unsafe { self.copy_in(span.start.cast(), span.len, offset) };
    }

    /// # Safety
    /// `from` must be the start of `len` readable bytes.
    unsafe fn copy_in(&self, from: *const u8, len: usize, offset: u64) {
        assert!(self.contains(offset, len as u64));
        if self.buffer.is_host && nontemporal::suits(len, self.buffer.size) {
            let to = self.buffer.address(self.layout.offset + offset).cast();
            // SAFETY: as promised; the range is within the tensor, the tensor within its buffer, whose bytes are this
            // process's and not in use: nothing is computing (`worker::dispatch`).
            return unsafe { nontemporal::copy(from, to, len) };
        }
        let mut tensor = self.tensor();
        // SAFETY: as promised; the range is within the tensor and the tensor within its buffer.
        unsafe { (self.ggml().ggml_backend_tensor_set)(&mut tensor, from.cast(), offset as usize, len) };
    }

    /// Copies bytes from `offset` in the tensor into shared memory.
    pub fn get_shared(&self, span: Span<'_>, offset: u64) {
        assert!(self.contains(offset, span.len as u64));
        let tensor = self.tensor();
        // SAFETY: as above.
        unsafe { (self.ggml().ggml_backend_tensor_get)(&tensor, span.start, offset as usize, span.len) };
    }

    /// Copies bytes from `offset` in the tensor out.
    pub fn get(&self, out: &mut [u8], offset: u64) {
        assert!(self.contains(offset, out.len() as u64));
        let tensor = self.tensor();
        let to = out.as_mut_ptr().cast();
        // SAFETY: the range is within the tensor, the tensor within its buffer, and `out` is as long.
        unsafe { (self.ggml().ggml_backend_tensor_get)(&tensor, to, offset as usize, out.len()) };
    }

    /// Fills a range.
    pub fn fill(&self, value: u8, offset: u64, size: u64) {
        assert!(self.contains(offset, size));
        let mut tensor = self.tensor();
        // SAFETY: the range is within the tensor and the tensor within its buffer.
        unsafe {
            (self.ggml().ggml_backend_tensor_memset)(&mut tensor, value, offset as usize, size as usize)
        };
    }

    /// Copies the whole to another place of the same layout.
    pub fn copy_to(&self, to: &Place<'_>) {
        assert!(
            self.layout.ne == to.layout.ne
                && self.layout.nb == to.layout.nb
                && self.layout.kind == to.layout.kind
        );
        let (mut src, mut dst) = (self.tensor(), to.tensor());
        // SAFETY: both tensors lie in their buffers and have the same layout.
        unsafe { (self.ggml().ggml_backend_tensor_copy)(&mut src, &mut dst) };
    }

    pub(super) fn ggml(&self) -> &Functions {
        &self.buffer.library.ggml
    }

    pub(super) fn library(&self) -> &Library {
        &self.buffer.library
    }
}

fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: ggml's strings are terminated and live as long as what they describe.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

/// ggml's log: a callback that gets lines, sometimes in parts.
unsafe extern "C" fn log(level: c_int, message: *const c_char, _: *mut c_void) {
    let message = text(message);
    let message = message.trim_end();
    // `enum ggml_log_level`: none, debug, info, warn, error, cont.
    match level {
        _ if message.is_empty() => {}
        4 => tracing::error!(target: "ggml", "{message}"),
        3 => tracing::warn!(target: "ggml", "{message}"),
        2 => tracing::info!(target: "ggml", "{message}"),
        _ => tracing::debug!(target: "ggml", "{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::servers_of;

    #[test]
    fn servers_follow_the_name_of_a_back_end_but_not_a_path() {
        assert_eq!(servers_of("cpu"), ("cpu", vec![]));
        assert_eq!(servers_of("rpc=a:1,[::1]:2"), ("rpc", vec!["a:1", "[::1]:2"]));
        assert_eq!(servers_of("/opt/x=y/libggml-cpu.so"), ("/opt/x=y/libggml-cpu.so", vec![]));
    }
}
