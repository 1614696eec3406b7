//! A stream of the host, as a ggml backend instance.
#![allow(unsafe_code)]

use super::base::Base;
use super::buffer::{Source, post_copy, post_get, post_set};
use super::optimize::Optimizer;
use super::registry::{SessionRef, registry};
use super::snapshot::Snapshot;
use super::{device, encode, event, guard};
use crate::graphs::{Graphs, Mark};
use crate::log::{self, Level};
use crate::session::Lost;
use ferry_ggml::backend::{Backend, BackendV1, BackendV2a, BackendV2b, Generation, Handle, status};
use ferry_ggml::{CGraph, Tensor};
use ferry_protocol::calls::CallCode;
use ferry_protocol::hello::DeviceFlags;
use ferry_protocol::ids::{GraphId, Seq, StreamId};
use ferry_protocol::status::Status;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What makes our backend instances recognisable to ggml.
static GUID: [u8; 16] = *b"\xa4\x1d\x07\x5e\x9c\x33\x4f\x48\x8b\x60\xfe\x44\x19\xd2\x70\x3b";

/// A stream.
pub struct BackendContext {
    session: SessionRef,
    stream: StreamId,
    name: &'static CStr,
    takes_threads: bool,
    optimizer: Option<Optimizer>,
    state: Mutex<State>,
}

struct State {
    graphs: Graphs,
    threads: c_int,
    /// Something was started that nothing was waited for since: a graph, or a write from memory that was lent.
    working: bool,
    /// The last read that was posted, if it was not waited for yet. It is answered after everything before it.
    reading: Option<Seq>,
}

impl BackendContext {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts computing `graph`. An error is a failure of an earlier graph, or of the session.
    ///
    /// # Safety
    /// `graph` must be valid, with everything it points to.
    unsafe fn compute(&self, base: &Base, graph: &CGraph) -> Result<(), Lost> {
        if graph.n_nodes <= 0 {
            return Ok(());
        }
        let mut state = self.state();
        if self.session.take_failure(self.stream)? {
            // What the host has of the graphs may be the reason.
            state.graphs.distrust();
            return Err(Lost);
        }
        // SAFETY: as promised.
        let Some(id) = (unsafe { self.name_of(&mut state.graphs, base, graph)? }) else { return Ok(()) };
        self.session.post(CallCode::EXEC, self.stream, &[bytemuck::bytes_of(&id)])?;
        state.working = true;
        // A read posted before does not answer for this graph.
        state.reading = None;
        Ok(())
    }

    /// The host's name for `graph`: after this, the host has it. `None` if it has nothing to do for it.
    ///
    /// # Safety
    /// `graph` must be valid, with everything it points to.
    unsafe fn name_of(
        &self,
        graphs: &mut Graphs,
        base: &Base,
        graph: &CGraph,
    ) -> Result<Option<GraphId>, Lost> {
        let (session, uid) = (&self.session, if base.has_uid { graph.uid } else { 0 });
        // SAFETY: as promised.
        let is_same = |snapshot: &Snapshot| unsafe { snapshot.matches(graph) };
        let known = match uid {
            0 => graphs.by_snapshot(session, is_same),
            uid => graphs.by_uid(session, uid, graph.n_nodes as usize),
        };
        if let Some(id) = known {
            return Ok(Some(id));
        }
        // SAFETY: as promised.
        let encoded = unsafe { encode::graph(base, session, graph) }.map_err(|error| {
            log::line(Level::Error, &error.to_string());
            Lost
        })?;
        let mark = match uid {
            // SAFETY: as promised.
            0 => Mark::Snapshot(unsafe { Snapshot::of(graph, &encoded) }),
            uid => Mark::Uid(uid, graph.n_nodes as usize),
        };
        if encoded.tables.nodes.is_empty() {
            return Ok(None);
        }
        graphs.by_tables(session, mark, encoded.tables).map(Some)
    }

    /// Waits for what was started. Writes were copied when they were posted, and need no waiting.
    fn synchronize(&self) -> Result<(), Lost> {
        let (working, reading) = {
            let mut state = self.state();
            (std::mem::take(&mut state.working), state.reading.take())
        };
        match reading {
            Some(seq) => self.session.wait_until_answered(seq),
            None if working => self.session.call(CallCode::SYNCHRONIZE, self.stream, &[]).map(|_| ()),
            None => Ok(()),
        }
    }
}

/// `init_backend` of a device: null if the host has no worker for us.
pub unsafe extern "C" fn init(device: Handle, _: *const c_char) -> Handle {
    guard(std::ptr::null_mut(), || {
        // SAFETY: the device is ours.
        let device = unsafe { device::context(device) };
        let Some(session) = registry().acquire() else { return std::ptr::null_mut() };
        let parameters = device.at.to_le_bytes();
        let Ok(reply) = session.call(CallCode::INIT_BACKEND, StreamId::SESSION, &[&parameters]) else {
            return std::ptr::null_mut();
        };
        let stream = reply.header.stream;
        if reply.header.status != Status::OK || stream == StreamId::SESSION {
            return std::ptr::null_mut();
        }
        let state = State { graphs: Graphs::new(stream), threads: 0, working: false, reading: None };
        let context = Box::new(BackendContext {
            session,
            stream,
            name: device.name.as_c_str(),
            takes_threads: device.record.flags.contains(DeviceFlags::THREADS),
            optimizer: device.record.flags.contains(DeviceFlags::OPTIMIZE).then(Optimizer::default),
            state: Mutex::new(state),
        });
        build(registry().base.generation, device.handle(), Box::into_raw(context).cast())
    })
}

/// `struct ggml_backend` in the program's layout.
fn build(generation: Generation, device: Handle, context: *mut c_void) -> Handle {
    fn boxed<I>(iface: I, device: Handle, context: *mut c_void) -> Handle {
        Box::into_raw(Box::new(Backend { guid: &GUID, iface, device, context })).cast()
    }
    let absent = std::ptr::null();
    let v1 = BackendV1 {
        get_name: Some(get_name),
        free: Some(free),
        set_tensor_async: Some(set_tensor_async),
        get_tensor_async: Some(get_tensor_async),
        cpy_tensor_async: Some(cpy_tensor_async),
        synchronize: Some(synchronize),
        graph_plan_create: absent,
        graph_plan_free: absent,
        graph_plan_update: absent,
        graph_plan_compute: absent,
        graph_compute: Some(graph_compute),
        event_record: Some(event_record),
        event_wait: Some(event_wait),
    };
    match generation {
        Generation::G1 => boxed(v1, device, context),
        Generation::G2a => boxed(BackendV2a { v1, graph_optimize: Some(graph_optimize) }, device, context),
        Generation::G2b | Generation::G3 => {
            let v2 = BackendV2b {
                get_name: v1.get_name,
                free: v1.free,
                set_tensor_async: v1.set_tensor_async,
                get_tensor_async: v1.get_tensor_async,
                // ggml makes them of the plain ones where they are absent, for none of which anything is waited.
                set_tensor_2d_async: None,
                get_tensor_2d_async: None,
                cpy_tensor_async: v1.cpy_tensor_async,
                synchronize: v1.synchronize,
                graph_plan_create: absent,
                graph_plan_free: absent,
                graph_plan_update: absent,
                graph_plan_compute: absent,
                graph_compute: v1.graph_compute,
                event_record: v1.event_record,
                event_wait: v1.event_wait,
                graph_optimize: Some(graph_optimize),
            };
            boxed(v2, device, context)
        }
    }
}

/// Bytes of the struct before `context`, which is its last field; `device` is the one before.
fn context_offset(generation: Generation) -> usize {
    match generation {
        Generation::G1 => std::mem::offset_of!(Backend<BackendV1>, context),
        Generation::G2a => std::mem::offset_of!(Backend<BackendV2a>, context),
        Generation::G2b | Generation::G3 => std::mem::offset_of!(Backend<BackendV2b>, context),
    }
}

/// # Safety
/// `backend` must be one of ours.
unsafe fn context_ptr(backend: Handle) -> *mut BackendContext {
    let offset = context_offset(registry().base.generation);
    // SAFETY: as promised.
    unsafe { *backend.byte_add(offset).cast::<*mut BackendContext>() }
}

/// # Safety
/// `backend` must be one of ours.
unsafe fn context<'a>(backend: Handle) -> &'a BackendContext {
    // SAFETY: as promised; it lives until `free`.
    unsafe { &*context_ptr(backend) }
}

/// Whether `backend` is one of ours: its guid says so.
///
/// # Safety
/// `backend` must be null or a backend of the program's ggml.
unsafe fn is_ours(backend: Handle) -> bool {
    // SAFETY: as promised: every backend starts with a pointer to its guid.
    !backend.is_null() && unsafe { *backend.cast::<*const [u8; 16]>() } == &raw const GUID
}

unsafe extern "C" fn get_name(backend: Handle) -> *const c_char {
    // SAFETY: the backend is ours.
    guard(c"Ferry".as_ptr(), || unsafe { context(backend) }.name.as_ptr())
}

unsafe extern "C" fn free(backend: Handle) {
    guard((), || {
        let generation = registry().base.generation;
        // SAFETY: the backend is ours, was made by `build`, and is freed once.
        let context = unsafe {
            let context = Box::from_raw(context_ptr(backend));
            match generation {
                Generation::G1 => drop(Box::from_raw(backend.cast::<Backend<BackendV1>>())),
                Generation::G2a => drop(Box::from_raw(backend.cast::<Backend<BackendV2a>>())),
                Generation::G2b | Generation::G3 => {
                    drop(Box::from_raw(backend.cast::<Backend<BackendV2b>>()))
                }
            }
            context
        };
        // A read that is still on its way writes into memory of the program.
        let _ = context.synchronize();
        context.state().graphs.free(&context.session);
        let _ = context.session.post(CallCode::FREE_BACKEND, context.stream, &[]);
    });
}

unsafe extern "C" fn set_tensor_async(
    backend: Handle,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    guard((), || {
        // SAFETY: the backend is ours, the tensor valid, and `size` bytes readable until it is synchronized.
        unsafe {
            let (base, context) = (&registry().base, context(backend));
            let set = post_set(base, &*tensor, context.stream, (data, offset, size), Source::Lent);
            if set == Ok(true) {
                let mut state = context.state();
                (state.working, state.reading) = (true, None);
            }
        }
    });
}

unsafe extern "C" fn get_tensor_async(
    backend: Handle,
    tensor: *const Tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
) {
    guard((), || {
        // SAFETY: the backend is ours, the tensor valid, and `size` bytes stay writable until it is synchronized.
        unsafe {
            let context = context(backend);
            if let Ok(seq) = post_get(&registry().base, &*tensor, context.stream, data, offset, size) {
                context.state().reading = Some(seq);
            }
        }
    });
}

unsafe extern "C" fn cpy_tensor_async(
    backend_src: Handle,
    backend_dst: Handle,
    src: *const Tensor,
    dst: *mut Tensor,
) -> bool {
    guard(false, || {
        let base = &registry().base;
        // SAFETY: ggml passes two of its backends and two valid tensors.
        let (src_ours, dst_ours, src, dst) =
            unsafe { (is_ours(backend_src), is_ours(backend_dst), &*src, &*dst) };
        if !dst_ours {
            return false;
        }
        // SAFETY: it is ours.
        let stream = unsafe { context(backend_dst) }.stream;
        if src_ours {
            return post_copy(base, src, dst, stream);
        }
        // SAFETY: a valid tensor's buffer is null or a buffer.
        if src.buffer.is_null() || !unsafe { (base.buffer_is_host)(src.buffer) } {
            return false;
        }
        let Some(bytes) = encode::shape(base, src).and_then(|layout| layout.extent_bytes().ok()) else {
            return false;
        };
        // SAFETY: the source is in the program's memory, and complete once its backend is synchronized.
        unsafe {
            (base.synchronize)(backend_src);
            post_set(base, dst, stream, (src.data, 0, bytes as usize), Source::Borrowed).is_ok()
        }
    })
}

unsafe extern "C" fn synchronize(backend: Handle) {
    guard((), || {
        // SAFETY: the backend is ours. What went wrong is told to the next graph_compute.
        let _ = unsafe { context(backend) }.synchronize();
    });
}

unsafe extern "C" fn graph_compute(backend: Handle, graph: *mut CGraph) -> c_int {
    guard(status::FAILED, || {
        // SAFETY: the backend is ours, and ggml passes a valid graph.
        match unsafe { context(backend).compute(&registry().base, &*graph) } {
            Ok(()) => status::SUCCESS,
            Err(Lost) => status::FAILED,
        }
    })
}

unsafe extern "C" fn graph_optimize(backend: Handle, graph: *mut CGraph, params: *mut c_void) {
    guard((), || {
        // SAFETY: the backend is ours, and ggml passes a valid graph; the third argument is only looked at where it exists.
        unsafe {
            let context = context(backend);
            if let Some(optimizer) = &context.optimizer {
                optimizer.optimize(&context.session, context.stream, &mut *graph, params.cast());
            }
        }
    });
}

unsafe extern "C" fn event_record(backend: Handle, event: Handle) {
    guard((), || {
        // SAFETY: the backend is ours; ggml passes an event.
        if let (stream, Some(event)) = unsafe { (context(backend).stream, event::context(event)) } {
            event.record(stream);
        }
    });
}

unsafe extern "C" fn event_wait(backend: Handle, event: Handle) {
    guard((), || {
        // SAFETY: the backend is ours; ggml passes an event.
        if let (stream, Some(event)) = unsafe { (context(backend).stream, event::context(event)) } {
            event.hold(stream);
        }
    });
}

/// `ggml_backend_set_n_threads`, for a host back-end that computes on CPUs.
pub unsafe extern "C" fn set_n_threads(backend: Handle, threads: c_int) {
    guard((), || {
        // SAFETY: ggml passes a backend of ours.
        let context = unsafe { context(backend) };
        let mut state = context.state();
        if context.takes_threads && threads > 0 && state.threads != threads {
            state.threads = threads;
            let _ = context.session.post(CallCode::SET_THREADS, context.stream, &[&threads.to_le_bytes()]);
        }
    });
}
