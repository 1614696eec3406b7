//! Puts the overrides in place: all of them, or none.

use crate::rt::{Class, Imp, Method, Selector};
use crate::{ffi, report, sys};
use core::ffi::{CStr, c_void};
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use ferry_shim_contract::DEVICE_CLASS;
use ferry_shim_contract::status::State;

/// A method of ours, and the one that it stands before.
pub struct Hook {
    /// Name of the method.
    pub selector: &'static CStr,
    /// Our function.
    pub replacement: *const (),
    /// Tells whether a type encoding is that of our function.
    pub has_shape: fn(&[u8]) -> bool,
    /// The code that our function calls. Set before our function can be reached, never unset.
    pub original: AtomicPtr<c_void>,
}

/// What kept a hook from being put in place.
#[derive(Clone, Copy)]
pub enum Problem {
    /// No class of the family answers this selector.
    NoMethod(&'static CStr),
    /// The method has another shape.
    OtherShape(&'static CStr, &'static CStr),
    /// The runtime would not add the method.
    NotAdded(&'static CStr),
    /// The runtime took the method, but messages do not reach it.
    NotReached(&'static CStr),
}

/// A hook that has been checked against its class.
pub struct Prepared {
    class: Class,
    hook: &'static Hook,
    selector: Selector,
    method: Method,
    types: &'static CStr,
    owned: bool,
    replacement: Imp,
}

impl Prepared {
    /// Checks everything that can be checked before anything is changed.
    pub fn new(class: Class, hook: &'static Hook) -> Result<Self, Problem> {
        let name = hook.selector;
        let selector = Selector::named(name).ok_or(Problem::NoMethod(name))?;
        let method = class.method(selector).ok_or(Problem::NoMethod(name))?;
        let types = method.encoding().unwrap_or_default();
        if !(hook.has_shape)(types.to_bytes()) {
            return Err(Problem::OtherShape(name, types));
        }
        // Asking the class for its code comes first: see `Class::implementation`.
        class.implementation(selector).ok_or(Problem::NoMethod(name))?;
        let original = method.implementation().ok_or(Problem::NoMethod(name))?;
        let replacement = Imp::new(hook.replacement).ok_or(Problem::NoMethod(name))?;
        hook.original.store(original.as_ptr(), Ordering::Release);
        Ok(Self { class, hook, selector, method, types, owned: class.owns(selector), replacement })
    }

    /// Whether the class defines the method itself.
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// Replaces the class's own method, or adds one before the inherited method; then looks whether messages
    /// reach it. Whatever the class inherits from is left alone.
    pub fn apply(&self) -> Result<(), Problem> {
        if self.owned {
            self.method.set_implementation(self.replacement);
        } else if !self.class.add_method(self.selector, self.replacement, self.types) {
            return Err(Problem::NotAdded(self.hook.selector));
        }
        if self.class.implementation(self.selector) == Some(self.replacement) {
            Ok(())
        } else {
            self.hook.remove_from(self.class);
            Err(Problem::NotReached(self.hook.selector))
        }
    }
}

impl Hook {
    /// Puts the original code back, unless somebody else has replaced ours since. An added method cannot be
    /// removed in either runtime, so it gets the inherited code.
    pub fn remove_from(&self, class: Class) {
        let ours = Imp::new(self.replacement);
        let original = Imp::new(self.original.load(Ordering::Acquire).cast_const().cast());
        let method = Selector::named(self.selector).and_then(|selector| class.method(selector));
        if let (Some(method), Some(original)) = (method, original)
            && method.implementation() == ours
        {
            method.set_implementation(original);
        }
    }
}

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const DONE: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// Called for the class of each new device, before the device is initialised.
pub fn on_device(class: Class) {
    static SKIPPED: AtomicBool = AtomicBool::new(false);
    if class.name().to_bytes() == DEVICE_CLASS.as_bytes() {
        install_once(class);
    } else if !SKIPPED.swap(true, Ordering::Relaxed) {
        let name = class.name().to_bytes().escape_ascii();
        report::say(
            State::Skipped,
            format_args!("class {name} is not {DEVICE_CLASS}; its answers stay as they are"),
        );
    }
}

/// Installs on first call; later and concurrent calls return once that is over.
pub fn install_once(class: Class) {
    if STATE.compare_exchange(IDLE, BUSY, Ordering::Acquire, Ordering::Acquire).is_err() {
        while STATE.load(Ordering::Acquire) == BUSY {
            sys::yield_now();
        }
        return;
    }
    let result = install(class);
    STATE.store(DONE, Ordering::Release);
    // Either way there is nothing more to wait for.
    disarm();
    match result {
        Ok(()) => report::say(State::Installed, format_args!("{}", ffi::claimed())),
        Err(problem) => report::say(State::Failed, format_args!("{problem}; all answers stay as they are")),
    }
}

/// Takes the initialiser's hook off: the base class is then as it was found.
fn disarm() {
    if let Some(base) = Class::named(ffi::BASE_CLASS_NAME) {
        ffi::INITIALISER.remove_from(base);
    }
}

fn install(class: Class) -> Result<(), Problem> {
    let family = Prepared::new(class, &ffi::SUPPORTS_FAMILY)?;
    let memory = match ffi::claimed().threadgroup_memory {
        Some(_) => Some(Prepared::new(class, &ffi::THREADGROUP_MEMORY)?),
        None => None,
    };
    family.apply()?;
    if let Some(memory) = memory {
        memory.apply().inspect_err(|_| ffi::SUPPORTS_FAMILY.remove_from(class))?;
    }
    Ok(())
}

fn escaped(text: &CStr) -> impl fmt::Display + '_ {
    text.to_bytes().escape_ascii()
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMethod(name) => write!(f, "there is no method {}", escaped(name)),
            Self::OtherShape(name, types) => {
                write!(f, "method {} has the unexpected types '{}'", escaped(name), escaped(types))
            }
            Self::NotAdded(name) => write!(f, "the runtime would not add {}", escaped(name)),
            Self::NotReached(name) => write!(f, "messages do not reach the new {}", escaped(name)),
        }
    }
}
