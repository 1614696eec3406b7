//! The functions that the dynamic linker and the Objective-C runtime call.
#![allow(unsafe_code)]

use crate::install::Hook;
use crate::rt::{Class, Imp, Selector};
use crate::{arm, install, report};
use core::ffi::{CStr, c_char, c_void};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use ferry_shim_contract::config::Claim;
use ferry_shim_contract::status::State;
use ferry_shim_contract::{APPLE_FAMILIES, DEVICE_NAME, encoding};

/// Version of the shim; its presence tells a launcher that a library is one.
#[unsafe(no_mangle)]
pub static FERRY_METAL_SHIM_VERSION: u32 = VERSION;
const VERSION: u32 = 1;

#[used]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn constructor() {
        arm::start();
    }
    constructor
};

pub const BASE_CLASS_NAME: &CStr = c"_MTLDevice";
pub const DEVICE_CLASS_NAME: &CStr = c"AppleParavirtDevice";

type Object = *mut c_void;

// SAFETY: the raw pointer is a function's address, which any thread may read.
unsafe impl Sync for Hook {}

/// Metal's base class calls this for every device, of whatever driver, before it is handed out.
pub static INITIALISER: Hook = Hook {
    selector: c"initGPUFamilySupport",
    replacement: initialiser as *const (),
    has_shape: encoding::is_plain,
    original: AtomicPtr::new(core::ptr::null_mut()),
};

pub static SUPPORTS_FAMILY: Hook = Hook {
    selector: c"supportsFamily:",
    replacement: supports_family as *const (),
    has_shape: encoding::is_supports_family,
    original: AtomicPtr::new(core::ptr::null_mut()),
};

pub static THREADGROUP_MEMORY: Hook = Hook {
    selector: c"maxThreadgroupMemoryLength",
    replacement: threadgroup_memory as *const (),
    has_shape: encoding::is_length,
    original: AtomicPtr::new(core::ptr::null_mut()),
};

static FAMILY_MAX: AtomicU64 = AtomicU64::new(0);
/// Zero: leave the device's answer alone.
static MEMORY: AtomicU64 = AtomicU64::new(0);

/// What is claimed.
#[derive(Clone, Copy)]
pub struct Claimed {
    family_max: u64,
    /// In bytes.
    pub threadgroup_memory: Option<u64>,
}

/// Publishes the claim; before any hook is in place.
pub fn claim(claim: &Claim<'_>) {
    FAMILY_MAX.store(claim.family_max, Ordering::Relaxed);
    MEMORY.store(claim.threadgroup_memory.unwrap_or(0), Ordering::Relaxed);
}

/// The claim that was published.
pub fn claimed() -> Claimed {
    let memory = MEMORY.load(Ordering::Relaxed);
    Claimed {
        family_max: FAMILY_MAX.load(Ordering::Relaxed),
        threadgroup_memory: (memory != 0).then_some(memory),
    }
}

impl fmt::Display for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "apple_family_max={} threadgroup_memory=", self.family_max)?;
        match self.threadgroup_memory {
            Some(bytes) => write!(f, "{bytes}"),
            None => write!(f, "stock"),
        }
    }
}

extern "C" fn initialiser(this: Object, selector: Object) {
    if let Some(object) = NonNull::new(this) {
        // SAFETY: the runtime calls methods on objects.
        if let Some(class) = unsafe { Class::of(object) } {
            install::on_device(class);
        }
    }
    let original = INITIALISER.original.load(Ordering::Acquire);
    // SAFETY: set before this function could be reached, to code of the checked shape.
    unsafe {
        let original: extern "C" fn(Object, Object) = core::mem::transmute(original);
        original(this, selector);
    }
}

/// `BOOL` is one byte in every ABI at hand; only zero and one are returned.
extern "C" fn supports_family(this: Object, selector: Object, family: u64) -> u8 {
    let original = SUPPORTS_FAMILY.original.load(Ordering::Acquire);
    // SAFETY: set before this function could be reached, to code of the checked shape.
    let stock = unsafe {
        let original: extern "C" fn(Object, Object, u64) -> u8 = core::mem::transmute(original);
        original(this, selector, family)
    };
    let is_claimed = (*APPLE_FAMILIES.start()..=FAMILY_MAX.load(Ordering::Relaxed)).contains(&family);
    if stock == 0 && is_claimed { u8::from(is_paravirtual(this)) } else { stock }
}

extern "C" fn threadgroup_memory(this: Object, selector: Object) -> u64 {
    let original = THREADGROUP_MEMORY.original.load(Ordering::Acquire);
    // SAFETY: set before this function could be reached, to code of the checked shape.
    let stock = unsafe {
        let original: extern "C" fn(Object, Object) -> u64 = core::mem::transmute(original);
        original(this, selector)
    };
    let claimed = MEMORY.load(Ordering::Relaxed);
    if claimed > stock && is_paravirtual(this) { claimed } else { stock }
}

/// Does the device call itself what the paravirtual one does? A device without a name is still being made and
/// gets stock answers; one with another name withdraws the shim for good.
fn is_paravirtual(device: Object) -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANSWER.load(Ordering::Relaxed) {
        YES => true,
        NO => false,
        _ => {
            let Some(name) = NonNull::new(device).and_then(device_name) else { return false };
            let is_it = name.to_bytes() == DEVICE_NAME.as_bytes();
            if ANSWER.swap(if is_it { YES } else { NO }, Ordering::Relaxed) == UNKNOWN && !is_it {
                let name = name.to_bytes().escape_ascii();
                report::say(
                    State::Withdrawn,
                    format_args!("the device calls itself '{name}', not '{DEVICE_NAME}'"),
                );
            }
            is_it
        }
    }
}

/// `device.name.UTF8String`.
fn device_name<'a>(device: NonNull<c_void>) -> Option<&'a CStr> {
    let string: NonNull<c_void> = NonNull::new(send(device, c"name")?)?;
    let text = send(string, c"UTF8String")?.cast::<c_char>();
    // SAFETY: a C string that lives at least as long as the string object, which the device holds.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text.cast_const()) })
}

/// Sends a message without arguments whose answer is a pointer; `None` if the object does not understand it.
fn send(object: NonNull<c_void>, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: callers pass objects.
    let class = unsafe { Class::of(object) }?;
    let selector = Selector::named(name)?;
    class.method(selector)?;
    let imp = class.implementation(selector)?;
    // SAFETY: the code of a method that takes nothing and returns a pointer, called on an object of its class.
    unsafe {
        let method: extern "C" fn(Object, Selector) -> Object = core::mem::transmute(imp.as_ptr());
        Some(method(object.as_ptr(), selector))
    }
}

/// Marks the base class as taken, by a method that other copies of the shim, and probes, can see. False if
/// another copy was first: the runtime adds a method only once.
pub fn mark(base: Class) -> bool {
    extern "C" fn version(_: Object, _: Object) -> u64 {
        u64::from(VERSION)
    }
    let (Some(selector), Some(imp)) =
        (Selector::named(c"ferryMetalShimVersion"), Imp::new(version as *const ()))
    else {
        return false;
    };
    base.add_method(selector, imp, c"Q16@0:8")
}

/// Nothing here panics by design; if it does all the same, the process ends without a word on its output.
#[cfg(not(feature = "std"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    crate::sys::abort()
}
