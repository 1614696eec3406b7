//! A device of the host, as a ggml device.
#![allow(unsafe_code)]

use super::base::Base;
use super::encode;
use super::guard;
use super::registry::registry;
use super::{backend, buffer_type, event, host_buffer};
use crate::memo::Memo;
use ferry_ggml::Tensor;
use ferry_ggml::backend::{Caps, Device, DeviceInterface, Generation, Handle, PropsV1, PropsV2, device_type};
use ferry_protocol::calls::CallCode;
use ferry_protocol::cursor;
use ferry_protocol::hello::{DeviceFlags, DeviceKind, DeviceRecord, field_text};
use ferry_protocol::ids::StreamId;
use ferry_protocol::ops::Op;
use ferry_protocol::reply::Memory;
use ferry_protocol::status::Status;
use std::ffi::{CString, c_char, c_int, c_void};

/// A device and what ggml sees of it.
pub struct DeviceContext {
    device: Device,
    /// The type of its own memory.
    pub buffer_type: buffer_type::DeviceBufferType,
    /// The type of this program's memory that its worker sees.
    host_buffer_type: buffer_type::DeviceBufferType,
    /// Its place in the daemon's list.
    pub at: u32,
    /// What the daemon said of it.
    pub record: DeviceRecord,
    /// Its name in this program, such as `Ferry0`.
    pub name: CString,
    description: CString,
    supported: Memo<bool>,
    alloc_sizes: Memo<u64>,
}

// SAFETY: the pointers in it are to constants, functions and itself.
unsafe impl Send for DeviceContext {}
// SAFETY: as above.
unsafe impl Sync for DeviceContext {}

impl DeviceContext {
    /// The device at place `at` of the daemon's list.
    pub fn new(at: usize, record: DeviceRecord, reg: Handle, base: &Base) -> &'static Self {
        let iface = DeviceInterface {
            get_name: Some(get_name),
            get_description: Some(get_description),
            get_memory: Some(get_memory),
            get_type: Some(get_type),
            get_props: Some(get_props),
            init_backend: Some(backend::init),
            get_buffer_type: Some(get_buffer_type),
            get_host_buffer_type: Some(get_host_buffer_type),
            buffer_from_host_ptr: std::ptr::null(),
            supports_op: Some(supports_op),
            supports_buft: Some(supports_buft),
            offload_op: None,
            event_new: Some(event::new),
            event_free: Some(event::free),
            event_synchronize: Some(event::synchronize),
        };
        let text = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let description =
            format!("{} ({} through Ferry)", field_text(&record.description), field_text(&record.name));
        let mut context = Box::new(Self {
            device: Device { iface, reg, context: std::ptr::null_mut() },
            buffer_type: buffer_type::DeviceBufferType::new(base.generation, &buffer_type::FUNCTIONS),
            host_buffer_type: buffer_type::DeviceBufferType::new(base.generation, &host_buffer::FUNCTIONS),
            at: at as u32,
            record,
            name: text(format!("Ferry{at}")),
            description: text(description),
            supported: Memo::default(),
            alloc_sizes: Memo::default(),
        });
        let itself: *mut c_void = (&raw mut *context).cast();
        let handle = context.handle();
        context.device.context = itself;
        context.buffer_type.attach(handle, itself);
        context.host_buffer_type.attach(handle, itself);
        // ggml has no call that would free a device.
        Box::leak(context)
    }

    /// What ggml calls it by.
    pub fn handle(&self) -> Handle {
        (&raw const self.device).cast_mut().cast()
    }

    /// Whether the host computes `op`; asked once for each signature.
    fn supports_op(&self, op: &Tensor) -> bool {
        let base = &registry().base;
        let Some(code) = base.op_of(op).filter(|code| code.is_forwardable()) else { return false };
        if code.is_view() {
            return true;
        }
        let Some(question) = encode::question(base, self.at, op) else { return false };
        self.supported.get_or_ask(question, |question| {
            let reply =
                registry().session()?.call(CallCode::SUPPORTS_OP, StreamId::SESSION, &[question]).ok()?;
            match reply.header.status {
                Status::OK => cursor::only::<u32>(&reply.payload, "an answer").ok().map(|answer| answer == 1),
                _ => None,
            }
        }) == Some(true)
    }

    /// Bytes that `tensor` takes in a buffer. Asked only where a back-end may want more than the tensor has: for blocks,
    /// whose rows it may pad, and for operations that need scratch memory.
    pub fn alloc_size(&self, tensor: &Tensor) -> usize {
        let base = &registry().base;
        let Some(layout) = encode::shape(base, tensor) else { return usize::MAX };
        let bytes = layout.extent_bytes().unwrap_or(u64::MAX);
        let scratch = base.op_of(tensor).is_some_and(Op::may_need_scratch);
        if !layout.kind.is_quantized() && !scratch {
            return bytes as usize;
        }
        let Some(question) = encode::question(base, self.at, tensor) else { return bytes as usize };
        let answer = self.alloc_sizes.get_or_ask(question, |question| {
            let reply =
                registry().session()?.call(CallCode::ALLOC_SIZE, StreamId::SESSION, &[question]).ok()?;
            match reply.header.status {
                Status::OK => cursor::only::<u64>(&reply.payload, "an answer").ok(),
                _ => None,
            }
        });
        answer.unwrap_or(bytes).max(bytes) as usize
    }

    /// Free and total bytes: as they are now if there is an idle session, as they were when the daemon looked last
    /// otherwise. It does not wait for others: llama.cpp's programs print these figures when SIGINT interrupts them, from
    /// the signal handler, in the middle of a wait of ours.
    fn memory(&self) -> (usize, usize) {
        let ask = || {
            let session = registry().idle_session()?;
            let parameters = self.at.to_le_bytes();
            let reply = session.call(CallCode::MEMORY, StreamId::SESSION, &[&parameters]).ok()?;
            cursor::only::<Memory>(&reply.payload, "an answer").ok()
        };
        let memory =
            ask().unwrap_or(Memory { free: self.record.memory_free, total: self.record.memory_total });
        (memory.free as usize, memory.total as usize)
    }

    fn kind(&self) -> c_int {
        // Older builds have an accelerator where newer ones have the integrated GPU.
        let knows_integrated = registry().base.generation >= Generation::G2b;
        match self.record.kind {
            DeviceKind::INTEGRATED_GPU if knows_integrated => device_type::IGPU,
            _ => device_type::GPU,
        }
    }
}

/// The device that a handle stands for.
///
/// # Safety
/// `device` must be one of ours.
pub unsafe fn context<'a>(device: Handle) -> &'a DeviceContext {
    // SAFETY: as promised; devices are never freed.
    unsafe { &*(*device.cast::<Device>()).context.cast::<DeviceContext>() }
}

unsafe extern "C" fn get_name(device: Handle) -> *const c_char {
    // SAFETY: the device is ours.
    unsafe { context(device) }.name.as_ptr()
}

unsafe extern "C" fn get_description(device: Handle) -> *const c_char {
    // SAFETY: the device is ours.
    unsafe { context(device) }.description.as_ptr()
}

unsafe extern "C" fn get_memory(device: Handle, free: *mut usize, total: *mut usize) {
    guard((), || {
        // SAFETY: the device is ours, and ggml passes places for two numbers.
        unsafe { (*free, *total) = context(device).memory() };
    });
}

unsafe extern "C" fn get_type(device: Handle) -> c_int {
    // SAFETY: the device is ours.
    guard(device_type::GPU, || unsafe { context(device) }.kind())
}

unsafe extern "C" fn get_props(device: Handle, props: *mut c_void) {
    guard((), || {
        // SAFETY: the device is ours.
        let context = unsafe { context(device) };
        let (free, total) = context.memory();
        let events = context.record.flags.contains(DeviceFlags::EVENTS);
        let caps = Caps { async_: true, host_buffer: true, buffer_from_host_ptr: false, events };
        let (name, description, kind) = (context.name.as_ptr(), context.description.as_ptr(), context.kind());
        // SAFETY: ggml passes its properties, whose layout goes by the generation.
        unsafe {
            if registry().base.generation == Generation::G1 {
                let props = &mut *props.cast::<PropsV1>();
                (props.name, props.description, props.kind, props.caps) = (name, description, kind, caps);
                (props.memory_free, props.memory_total) = (free, total);
            } else {
                let props = &mut *props.cast::<PropsV2>();
                (props.name, props.description, props.kind, props.caps) = (name, description, kind, caps);
                (props.memory_free, props.memory_total) = (free, total);
                props.device_id = std::ptr::null();
                // `mmap_support`, which newer builds have behind these: the byte is padding in the others.
                (&raw mut props.caps).cast::<u8>().add(size_of::<Caps>()).write(1);
            }
        }
    });
}

unsafe extern "C" fn get_buffer_type(device: Handle) -> Handle {
    // SAFETY: the device is ours.
    unsafe { context(device) }.buffer_type.handle()
}

unsafe extern "C" fn get_host_buffer_type(device: Handle) -> Handle {
    // SAFETY: the device is ours.
    unsafe { context(device) }.host_buffer_type.handle()
}

unsafe extern "C" fn supports_op(device: Handle, op: *const Tensor) -> bool {
    // SAFETY: the device is ours, and ggml passes a valid tensor.
    guard(false, || unsafe { context(device).supports_op(&*op) })
}

unsafe extern "C" fn supports_buft(device: Handle, buffer_type: Handle) -> bool {
    // SAFETY: the device is ours.
    unsafe { context(device) }.buffer_type.handle() == buffer_type
}
