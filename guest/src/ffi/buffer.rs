//! A buffer on the host, as a ggml buffer.
#![allow(unsafe_code)]

use super::base::Base;
use super::device::DeviceContext;
use super::registry::{SessionRef, registry};
use super::reservation::Reservation;
use super::{Destination, encode, guard, runs};
use crate::log::{self, Level};
use crate::session::{Lost, Session};
use crate::store::{Bytes, Questions};
use ferry_ggml::Tensor;
use ferry_ggml::backend::{Buffer, BufferV1, BufferV2, Generation, Handle, status, usage};
use ferry_protocol::calls::CallCode;
use ferry_protocol::cursor;
use ferry_protocol::hello::DeviceFlags;
use ferry_protocol::ids::{BufferId, Seq, StreamId};
use ferry_protocol::limits::DATA_CHUNK_BYTES;
use ferry_protocol::reply::Allocated;
use ferry_protocol::request::{
    AllocBuffer, BufferValue, CopyTensor, MemsetTensor, Range, RegionTransfer, TensorRange,
};
use ferry_protocol::status::Status;
use ferry_protocol::tensor::TensorLayout;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// A buffer of the host.
pub struct BufferContext {
    session: SessionRef,
    id: BufferId,
    reservation: Reservation,
    inits_tensors: bool,
    takes_runs: bool,
    /// Where the device's host has a model store.
    questions: Option<Questions>,
    /// The usage that the host knows: ggml sets it without telling.
    told_usage: AtomicI32,
}

type Init<I> = unsafe extern "C" fn(Handle, I, *mut c_void, usize) -> Handle;

/// Allocates on the host; null if it has no room.
pub fn alloc(device: &DeviceContext, size: usize) -> Handle {
    let Some(session) = registry().acquire() else { return std::ptr::null_mut() };
    let Some((allocated, reservation)) = alloc_on_host(&session, device.at, size) else {
        return std::ptr::null_mut();
    };
    let context = Box::new(BufferContext {
        session,
        id: allocated.buffer,
        reservation,
        inits_tensors: device.record.flags.contains(DeviceFlags::INIT_TENSOR),
        takes_runs: device.record.flags.contains(DeviceFlags::TRANSFERS_2D),
        questions: device.record.flags.contains(DeviceFlags::STORE).then(Questions::default),
        told_usage: AtomicI32::new(usage::ANY),
    });
    let (base, context) = (&registry().base, Box::into_raw(context).cast());
    let buffer_type = device.buffer_type.handle();
    // SAFETY: `ggml_backend_buffer_init` takes the interface by value, in the program's layout.
    unsafe {
        if base.generation >= Generation::G2b {
            let init: Init<BufferV2> = std::mem::transmute(base.buffer_init);
            init(buffer_type, interface_v2(), context, size)
        } else {
            let init: Init<BufferV1> = std::mem::transmute(base.buffer_init);
            init(buffer_type, interface_v1(), context, size)
        }
    }
}

fn alloc_on_host(session: &Session, device: u32, size: usize) -> Option<(Allocated, Reservation)> {
    let alloc = AllocBuffer { size: size as u64, device, reserved: 0 };
    let reply =
        session.call(CallCode::ALLOC_BUFFER, StreamId::SESSION, &[bytemuck::bytes_of(&alloc)]).ok()?;
    if reply.header.status != Status::OK {
        return None;
    }
    let allocated: Allocated = cursor::only(&reply.payload, "an allocation").ok()?;
    let reservation = Reservation::new(size);
    if allocated.size < size as u64 || reservation.is_err() {
        log::line(Level::Error, &format!("cannot use a buffer of {size} bytes: no addresses left for it"));
        let _ =
            session.post(CallCode::FREE_BUFFER, StreamId::SESSION, &[bytemuck::bytes_of(&allocated.buffer)]);
    }
    Some((allocated, reservation.ok()?))
}

fn interface_v1() -> BufferV1 {
    BufferV1 {
        free_buffer: Some(free_buffer),
        get_base: Some(get_base),
        init_tensor: Some(init_tensor),
        memset_tensor: Some(memset_tensor),
        set_tensor: Some(set_tensor),
        get_tensor: Some(get_tensor),
        cpy_tensor: Some(cpy_tensor),
        clear: Some(clear),
        reset: Some(reset),
    }
}

fn interface_v2() -> BufferV2 {
    BufferV2 {
        free_buffer: Some(free_buffer),
        get_base: Some(get_base),
        init_tensor: Some(init_tensor),
        memset_tensor: Some(memset_tensor),
        set_tensor: Some(set_tensor),
        get_tensor: Some(get_tensor),
        set_tensor_2d: Some(runs::set_tensor_2d),
        get_tensor_2d: Some(runs::get_tensor_2d),
        cpy_tensor: Some(cpy_tensor),
        clear: Some(clear),
        reset: Some(reset),
    }
}

/// The fields behind a buffer's interface: its type, our context, its usage.
///
/// # Safety
/// `buffer` must be a buffer of the program's ggml.
unsafe fn fields(base: &Base, buffer: Handle) -> (Handle, *mut c_void, c_int) {
    // SAFETY: as promised; the layout goes by the generation.
    unsafe {
        if base.generation >= Generation::G2b {
            let buffer = &*buffer.cast::<Buffer<BufferV2>>();
            (buffer.buft, buffer.context, buffer.usage)
        } else {
            let buffer = &*buffer.cast::<Buffer<BufferV1>>();
            (buffer.buft, buffer.context, buffer.usage)
        }
    }
}

/// The context of a buffer, if it is one of ours.
///
/// # Safety
/// `buffer` must be null or a buffer of the program's ggml.
unsafe fn context<'a>(buffer: Handle) -> Option<&'a BufferContext> {
    if buffer.is_null() {
        return None;
    }
    let registry = registry();
    // SAFETY: as promised; what has one of our buffer types has a context of ours.
    unsafe {
        let (buffer_type, context, usage) = fields(&registry.base, buffer);
        let ours = registry.devices.iter().any(|device| device.buffer_type.handle() == buffer_type);
        let context = ours.then(|| &*context.cast::<BufferContext>())?;
        context.tell_usage(usage);
        Some(context)
    }
}

/// Where a tensor's data lies on the host.
#[derive(Clone, Copy)]
pub struct HostPlace<'a> {
    /// The session that it lies in.
    pub session: &'a Arc<Session>,
    /// The buffer.
    pub buffer: BufferId,
    /// Bytes from its start.
    pub offset: u64,
    /// Whether the host takes several runs of bytes in a message.
    pub takes_runs: bool,
    /// What is asked of the host's model store, if the buffer is for weights.
    questions: Option<&'a Questions>,
}

/// Where `tensor` lies, if in a buffer of ours.
pub fn place_of(tensor: &Tensor) -> Option<HostPlace<'_>> {
    // SAFETY: a valid tensor's view source is valid, and its buffer null or a buffer.
    let context = unsafe {
        let owner = if tensor.view_src.is_null() { tensor } else { &*tensor.view_src };
        let buffer = if owner.buffer.is_null() { tensor.buffer } else { owner.buffer };
        context(buffer)?
    };
    let offset = context.reservation.offset_of(tensor.data)?;
    let BufferContext { session, id, takes_runs, .. } = context;
    let questions = context.questions.as_ref().filter(|_| context.is_for_weights());
    Some(HostPlace { session, buffer: *id, offset, takes_runs: *takes_runs, questions })
}

impl BufferContext {
    fn tell_usage(&self, usage: c_int) {
        // Relaxed: telling it twice does no harm.
        if self.told_usage.load(Ordering::Relaxed) != usage
            && self.told_usage.swap(usage, Ordering::Relaxed) != usage
        {
            let value = BufferValue { buffer: self.id, value: usage as u64 };
            let _ = self.session.post(CallCode::SET_USAGE, StreamId::SESSION, &[bytemuck::bytes_of(&value)]);
        }
    }

    fn is_for_weights(&self) -> bool {
        // Relaxed: a program says it before it sets them, and nothing but time depends on it.
        self.told_usage.load(Ordering::Relaxed) == usage::WEIGHTS
    }

    fn post<T: bytemuck::NoUninit>(&self, call: CallCode, parameters: &T) {
        // A lost session was logged where it was lost, and the next graph says so to the program.
        let _ = self.session.post(call, StreamId::SESSION, &[bytemuck::bytes_of(parameters)]);
    }
}

/// From this size on, bytes in a region are taken by the worker from there while this side waits: that costs less than a
/// second copy.
const REFERENCE_BYTES_MIN: usize = 256 << 10;

/// How long the source of a write stays as it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Until the call returns.
    Borrowed,
    /// Until the stream is synchronized, or an event behind the write has happened.
    Lent,
}

/// The transfer between a range of `tensor` and this process's memory at `data`, if the worker sees that.
fn by_reference(
    place: &HostPlace<'_>,
    tensor: TensorLayout,
    (data, offset, size): (*const c_void, usize, usize),
) -> Option<RegionTransfer> {
    let (region, at) = registry().host_buffers.find(place.session, data, size)?;
    let range = TensorRange { tensor, offset: offset as u64, size: size as u64 };
    Some(RegionTransfer { range, at, region, reserved: 0 })
}

/// Posts bytes for `tensor`; whether the source is still wanted when this returns, which only happens to a lent one.
///
/// # Safety
/// `data` must be the start of `size` readable bytes.
pub unsafe fn post_set(
    base: &Base,
    tensor: &Tensor,
    stream: StreamId,
    (data, offset, size): (*const c_void, usize, usize),
    source: Source,
) -> Result<bool, Lost> {
    let place = place_of(tensor).ok_or(Lost)?;
    let layout = encode::layout(base, tensor).ok_or(Lost)?;
    let Some(questions) = place.questions.filter(|_| size > 0) else {
        // SAFETY: as promised.
        return unsafe { post_bytes(&place, layout, stream, (data, offset, size), source) };
    };
    // SAFETY: as promised.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    let mut wanted = false;
    for rest in
        questions.set_held(place.session, Bytes { tensor: layout, offset: offset as u64, data: bytes })?
    {
        let part = (bytes[rest.clone()].as_ptr().cast(), offset + rest.start, rest.len());
        // SAFETY: a part of what was promised.
        wanted |= unsafe { post_bytes(&place, layout, stream, part, source)? };
    }
    Ok(wanted)
}

/// Posts bytes that the host does not have; as for [`post_set`].
///
/// # Safety
/// `data` must be the start of `size` readable bytes.
unsafe fn post_bytes(
    place: &HostPlace<'_>,
    layout: TensorLayout,
    stream: StreamId,
    (data, offset, size): (*const c_void, usize, usize),
    source: Source,
) -> Result<bool, Lost> {
    let shared = if source == Source::Lent || size >= REFERENCE_BYTES_MIN {
        by_reference(place, layout, (data, offset, size))
    } else {
        None
    };
    let Some(transfer) = shared else {
        // SAFETY: as promised.
        unsafe { post_copied(place, layout, stream, (data, offset, size))? };
        return Ok(false);
    };
    place.session.post(CallCode::SET_FROM_REGION, stream, &[bytemuck::bytes_of(&transfer)])?;
    if source == Source::Borrowed {
        place.session.call(CallCode::SYNCHRONIZE, stream, &[])?;
    }
    Ok(source == Source::Lent)
}

/// Posts bytes, which are copied before this returns.
///
/// # Safety
/// `data` must be the start of `size` readable bytes.
unsafe fn post_copied(
    place: &HostPlace<'_>,
    layout: TensorLayout,
    stream: StreamId,
    (data, offset, size): (*const c_void, usize, usize),
) -> Result<(), Lost> {
    // SAFETY: as promised.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    let mut offset = offset as u64;
    for chunk in data.chunks(DATA_CHUNK_BYTES) {
        let size = chunk.len() as u64;
        if layout.kind.is_quantized() {
            let range = TensorRange { tensor: layout, offset, size };
            place.session.post(CallCode::SET_TENSOR, stream, &[bytemuck::bytes_of(&range), chunk])?;
        } else {
            let range = Range { buffer: place.buffer, offset: place.offset + offset, size };
            place.session.post(CallCode::WRITE, stream, &[bytemuck::bytes_of(&range), chunk])?;
        }
        offset += size;
    }
    Ok(())
}

/// What reads `size` bytes at `offset` of a tensor: the call and its parameters.
pub fn read_call(layout: TensorLayout, offset: u64, size: u64) -> (CallCode, Vec<u8>) {
    if layout.kind.is_quantized() {
        (CallCode::GET_TENSOR, bytemuck::bytes_of(&TensorRange { tensor: layout, offset, size }).to_vec())
    } else {
        let range = Range { buffer: layout.buffer, offset: layout.offset + offset, size };
        (CallCode::READ, bytemuck::bytes_of(&range).to_vec())
    }
}

/// Posts a read of `tensor`.
///
/// # Safety
/// `data` must stay the start of `size` writable bytes that nobody else touches until the read is answered.
pub unsafe fn post_get(
    base: &Base,
    tensor: &Tensor,
    stream: StreamId,
    data: *mut c_void,
    offset: usize,
    size: usize,
) -> Result<Seq, Lost> {
    // SAFETY: as promised. It fills the memory up if nothing comes.
    let destination = unsafe { Destination::new(data.cast(), size) };
    let place = place_of(tensor).ok_or(Lost)?;
    let layout = encode::layout(base, tensor).ok_or(Lost)?;
    if let Some(transfer) = by_reference(&place, layout, (data, offset, size)) {
        return place.session.post_read_in_place(stream, bytemuck::bytes_of(&transfer), destination);
    }
    let (call, parameters) = read_call(layout, offset as u64, size as u64);
    place.session.post_read(call, stream, &[&parameters], destination)
}

unsafe extern "C" fn free_buffer(buffer: Handle) {
    guard((), || {
        // SAFETY: the buffer is ours and freed once; its context was made by `alloc`.
        let context = unsafe { Box::from_raw(fields(&registry().base, buffer).1.cast::<BufferContext>()) };
        context.session.note_freed_buffer();
        context.post(CallCode::FREE_BUFFER, &context.id);
    });
}

unsafe extern "C" fn get_base(buffer: Handle) -> *mut c_void {
    guard(std::ptr::null_mut(), || {
        // SAFETY: the buffer is ours.
        let context = unsafe { context(buffer) };
        context.map_or(std::ptr::null_mut(), |context| context.reservation.base())
    })
}

unsafe extern "C" fn init_tensor(buffer: Handle, tensor: *mut Tensor) -> c_int {
    guard(status::FAILED, || {
        let base = &registry().base;
        // SAFETY: the buffer is ours, and ggml passes a valid tensor.
        let (context, tensor, usage) = unsafe { (context(buffer), &*tensor, fields(base, buffer).2) };
        // The tensors of compute buffers are initialized with the graph that names them.
        if let Some(context) = context.filter(|context| context.inits_tensors && usage != usage::COMPUTE) {
            let Some(layout) = encode::layout(base, tensor) else { return status::FAILED };
            context.post(CallCode::INIT_TENSOR, &layout);
        }
        status::SUCCESS
    })
}

unsafe extern "C" fn memset_tensor(
    buffer: Handle,
    tensor: *mut Tensor,
    value: u8,
    offset: usize,
    size: usize,
) {
    guard((), || {
        // SAFETY: the buffer is ours, and ggml passes a valid tensor.
        let (context, tensor) = unsafe { (context(buffer), &*tensor) };
        if let (Some(context), Some(tensor)) = (context, encode::layout(&registry().base, tensor)) {
            let range = TensorRange { tensor, offset: offset as u64, size: size as u64 };
            context.post(CallCode::MEMSET_TENSOR, &MemsetTensor { range, value: u64::from(value) });
        }
    });
}

/// `set_tensor` of a buffer.
pub unsafe extern "C" fn set_tensor(
    _: Handle,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    guard((), || {
        // SAFETY: ggml passes a valid tensor, and `size` readable bytes.
        let _ = unsafe {
            post_set(&registry().base, &*tensor, StreamId::SESSION, (data, offset, size), Source::Borrowed)
        };
    });
}

/// `get_tensor` of a buffer.
pub unsafe extern "C" fn get_tensor(
    _: Handle,
    tensor: *const Tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
) {
    guard((), || {
        // SAFETY: ggml passes `size` writable bytes, which are filled up whatever happens.
        let destination = unsafe { Destination::new(data.cast(), size) };
        // SAFETY: ggml passes a valid tensor.
        let tensor = unsafe { &*tensor };
        let (Some(place), Some(layout)) = (place_of(tensor), encode::layout(&registry().base, tensor)) else {
            return;
        };
        if let Some(transfer) = by_reference(&place, layout, (data, offset, size)) {
            let _ = place.session.read_in_place(bytemuck::bytes_of(&transfer), destination);
            return;
        }
        let (call, parameters) = read_call(layout, offset as u64, size as u64);
        let _ = place.session.read(call, &[&parameters], destination);
    });
}

unsafe extern "C" fn cpy_tensor(_: Handle, src: *const Tensor, dst: *mut Tensor) -> bool {
    guard(false, || {
        // SAFETY: ggml passes valid tensors.
        unsafe { post_copy(&registry().base, &*src, &*dst, StreamId::SESSION) }
    })
}

/// Posts a copy between two tensors of one session; `false` if they are not.
pub fn post_copy(base: &Base, src: &Tensor, dst: &Tensor, stream: StreamId) -> bool {
    let (Some(from), Some(to)) = (place_of(src), place_of(dst)) else { return false };
    if !Arc::ptr_eq(from.session, to.session) {
        return false;
    }
    let (Some(src), Some(dst)) = (encode::layout(base, src), encode::layout(base, dst)) else { return false };
    to.session.post(CallCode::COPY_TENSOR, stream, &[bytemuck::bytes_of(&CopyTensor { src, dst })]).is_ok()
}

unsafe extern "C" fn clear(buffer: Handle, value: u8) {
    guard((), || {
        // SAFETY: the buffer is ours.
        if let Some(context) = unsafe { context(buffer) } {
            context
                .post(CallCode::CLEAR_BUFFER, &BufferValue { buffer: context.id, value: u64::from(value) });
        }
    });
}

unsafe extern "C" fn reset(buffer: Handle) {
    guard((), || {
        // SAFETY: the buffer is ours.
        if let Some(context) = unsafe { context(buffer) } {
            context.post(CallCode::RESET_BUFFER, &context.id);
        }
    });
}
