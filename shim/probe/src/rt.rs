//! Just enough of the Objective-C runtime to send messages. It is found in the running process, so that one
//! binary serves Apple's runtime and, in tests, GCC's.
#![allow(unsafe_code)]

use anyhow::{Context, Result, bail};
use libloading::os::unix::Library;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// An object of the runtime. The probe is short-lived and releases nothing, so objects stay.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Object(pub NonNull<c_void>);

/// A registered selector.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Selector(*mut c_void);

/// The code of a method, to be cast to its type.
pub type Code = *mut c_void;

type NameToPointer = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type ClassToName = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type ClassAndSelector = unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut c_void;
type NewDevice = unsafe extern "C" fn() -> *mut c_void;

/// The functions of the runtime.
pub struct Runtime {
    get_class: NameToPointer,
    register_selector: NameToPointer,
    class_name: ClassToName,
    instance_method: ClassAndSelector,
    implementation: ClassAndSelector,
    new_device: NewDevice,
}

impl Runtime {
    /// The runtime of this process.
    pub fn get() -> Result<&'static Self> {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        if let Some(runtime) = RUNTIME.get() {
            return Ok(runtime);
        }
        let runtime = Self::load()?;
        Ok(RUNTIME.get_or_init(|| runtime))
    }

    fn load() -> Result<Self> {
        let objc = open("/usr/lib/libobjc.A.dylib")?;
        let metal = open("/System/Library/Frameworks/Metal.framework/Metal")?;
        // SAFETY: each symbol is used as the type that the runtime's headers declare; the libraries stay loaded.
        unsafe {
            Ok(Self {
                get_class: symbol(objc, c"objc_getClass")?,
                register_selector: symbol(objc, c"sel_registerName")?,
                class_name: symbol(objc, c"class_getName")?,
                instance_method: symbol(objc, c"class_getInstanceMethod")?,
                implementation: symbol(objc, c"class_getMethodImplementation")?,
                new_device: symbol(metal, c"MTLCreateSystemDefaultDevice")?,
            })
        }
    }

    /// Metal's default device.
    pub fn new_device(&self) -> Option<Object> {
        // SAFETY: takes nothing, returns a device or nil.
        NonNull::new(unsafe { (self.new_device)() }).map(Object)
    }

    /// A class, as an object.
    pub fn class(&self, name: &CStr) -> Result<Object> {
        // SAFETY: a C string in, a class or null out.
        let class = NonNull::new(unsafe { (self.get_class)(name.as_ptr()) });
        class.map(Object).with_context(|| format!("there is no class {}", name.to_string_lossy()))
    }

    /// The name of an object's class.
    pub fn class_name(&self, object: Object) -> String {
        // SAFETY: an object has a class, and a class has a name.
        unsafe { CStr::from_ptr((self.class_name)(class_of(object))) }.to_string_lossy().into_owned()
    }

    /// The code behind a message, or an error if the object does not understand it.
    pub fn method(&self, object: Object, name: &str) -> Result<(Selector, Code)> {
        let c_name = CString::new(name).context("a selector without NUL")?;
        let class = class_of(object);
        // SAFETY: a C string, then the object's own class and a registered selector.
        unsafe {
            let selector = (self.register_selector)(c_name.as_ptr());
            let code = (self.implementation)(class, selector);
            if (self.instance_method)(class, selector).is_null() || code.is_null() {
                bail!("class {} does not understand {name}", self.class_name(object));
            }
            Ok((Selector(selector), code))
        }
    }

    /// Does the object understand this message?
    pub fn responds(&self, object: Object, name: &str) -> bool {
        self.method(object, name).is_ok()
    }
}

/// The class is the first word of every object in GCC's runtime; Apple's packs other bits into that word.
fn class_of(object: Object) -> *mut c_void {
    #[cfg(target_vendor = "apple")]
    {
        #[link(name = "objc", kind = "dylib")]
        unsafe extern "C" {
            fn object_getClass(object: *mut c_void) -> *mut c_void;
        }
        // SAFETY: an object in, its class out.
        unsafe { object_getClass(object.0.as_ptr()) }
    }
    #[cfg(not(target_vendor = "apple"))]
    // SAFETY: see above.
    unsafe {
        *object.0.as_ptr().cast::<*mut c_void>()
    }
}

/// Opens a library of macOS; elsewhere, the running process with whatever it has loaded.
fn open(path: &str) -> Result<&'static Library> {
    let library = if cfg!(target_vendor = "apple") {
        // SAFETY: Apple's own libraries, whose initialisers run in every program that uses Metal.
        unsafe { Library::new(path) }.with_context(|| format!("cannot load {path}"))?
    } else {
        Library::this()
    };
    Ok(Box::leak(Box::new(library)))
}

/// # Safety
/// The symbol has type `T`.
unsafe fn symbol<T: Copy>(library: &'static Library, name: &CStr) -> Result<T> {
    let missing = || format!("there is no {} here: this needs macOS with Metal", name.to_string_lossy());
    // SAFETY: the caller vouches for the type.
    unsafe { library.get::<T>(name.to_bytes_with_nul()) }.map(|symbol| *symbol).with_context(missing)
}

/// Sends a message: `message!(runtime, object, "name:" (value: Type, …) -> Result)`. The types are the method's.
macro_rules! message {
    ($runtime:expr, $object:expr, $name:literal ($($value:expr => $kind:ty),*) -> $answer:ty) => {{
        let object: $crate::rt::Object = $object;
        let (selector, code) = $runtime.method(object, $name)?;
        let method: extern "C" fn($crate::rt::Object, $crate::rt::Selector $(, $kind)*) -> $answer =
            // SAFETY: the types given are those of the method in Metal's headers, on this 64-bit ABI.
            unsafe { ::std::mem::transmute(code) };
        method(object, selector $(, $value)*)
    }};
}
pub(crate) use message;
