//! A point in a stream's work, as a ggml event.
#![allow(unsafe_code)]

use super::device;
use super::guard;
use super::registry::{SessionRef, registry};
use ferry_ggml::backend::{Event, Handle};
use ferry_protocol::calls::CallCode;
use ferry_protocol::hello::DeviceFlags;
use ferry_protocol::ids::{EventId, StreamId};
use ferry_protocol::request::NewEvent;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// An event of the host.
pub struct EventContext {
    session: SessionRef,
    id: EventId,
    /// It was recorded and not waited for since.
    pending: AtomicBool,
}

/// Generations of events; one number for all slots is as good as one for each.
static GENERATION: AtomicU32 = AtomicU32::new(1);

impl EventContext {
    fn new(device: &device::DeviceContext) -> Option<Self> {
        if !device.record.flags.contains(DeviceFlags::EVENTS) {
            return None;
        }
        let session = registry().acquire()?;
        let slot = session.event_slots().take()?;
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed).max(1);
        let id = EventId { slot, generation };
        let new = NewEvent { event: id, device: device.at, reserved: 0 };
        session.post(CallCode::EVENT_NEW, StreamId::SESSION, &[bytemuck::bytes_of(&new)]).ok()?;
        Some(Self { session, id, pending: AtomicBool::new(false) })
    }

    fn post(&self, call: CallCode, stream: StreamId) {
        // A lost session was logged where it was lost.
        let _ = self.session.post(call, stream, &[bytemuck::bytes_of(&self.id)]);
    }

    /// Puts it behind everything that the stream was given.
    pub fn record(&self, stream: StreamId) {
        self.post(CallCode::EVENT_RECORD, stream);
        self.pending.store(true, Ordering::Release);
    }

    /// Lets the stream go on only after it.
    pub fn hold(&self, stream: StreamId) {
        self.post(CallCode::EVENT_WAIT, stream);
    }

    fn synchronize(&self) {
        if self.pending.swap(false, Ordering::AcqRel) {
            let parameters = bytemuck::bytes_of(&self.id);
            let _ = self.session.call(CallCode::EVENT_SYNCHRONIZE, StreamId::SESSION, &[parameters]);
        }
    }
}

/// The event that a handle stands for, if it is one of ours.
///
/// # Safety
/// `event` must be null or an event of the program's ggml.
pub unsafe fn context<'a>(event: Handle) -> Option<&'a EventContext> {
    if event.is_null() {
        return None;
    }
    // SAFETY: as promised; what has one of our devices was made by `new`.
    unsafe {
        let event = &*event.cast::<Event>();
        let ours = registry().devices.iter().any(|device| device.handle() == event.device);
        ours.then(|| &*event.context.cast::<EventContext>())
    }
}

/// `event_new` of a device: null if the host's device has no events, or there are too many.
pub unsafe extern "C" fn new(device: Handle) -> Handle {
    guard(std::ptr::null_mut(), || {
        // SAFETY: the device is ours.
        let Some(context) = EventContext::new(unsafe { device::context(device) }) else {
            return std::ptr::null_mut();
        };
        Box::into_raw(Box::new(Event { device, context: Box::into_raw(Box::new(context)).cast() })).cast()
    })
}

/// `event_free` of a device.
pub unsafe extern "C" fn free(_: Handle, event: Handle) {
    guard((), || {
        // SAFETY: the event was made by `new` and is freed once.
        let context = unsafe {
            let event = Box::from_raw(event.cast::<Event>());
            Box::from_raw(event.context.cast::<EventContext>())
        };
        context.post(CallCode::EVENT_FREE, StreamId::SESSION);
        context.session.event_slots().give_back(context.id.slot);
    });
}

/// `event_synchronize` of a device.
pub unsafe extern "C" fn synchronize(_: Handle, event: Handle) {
    guard((), || {
        // SAFETY: ggml passes an event.
        if let Some(context) = unsafe { context(event) } {
            context.synchronize();
        }
    });
}
