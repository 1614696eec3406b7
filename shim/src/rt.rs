//! The part of the Objective-C runtime's C interface that Apple's and GCC's runtimes share.
//!
//! Neither runtime ever frees a class, a method or a selector, so [`Class`], [`Method`] and [`Selector`] are
//! plain copies of pointers that stay good; that is what makes most functions here safe. An [`Imp`] is only as
//! good as its shape: `install` compares type encodings before it puts one in place.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_uint, c_void};
use core::ptr::NonNull;

type Pointer = *mut c_void;

// Elsewhere than on macOS the symbols come from whatever runtime the process has loaded.
#[cfg_attr(target_vendor = "apple", link(name = "objc", kind = "dylib"))]
unsafe extern "C" {
    fn objc_getClass(name: *const c_char) -> Pointer;
    fn sel_registerName(name: *const c_char) -> Pointer;
    fn sel_isEqual(one: Pointer, other: Pointer) -> u8;
    fn class_getName(class: Pointer) -> *const c_char;
    fn class_getInstanceMethod(class: Pointer, selector: Pointer) -> Pointer;
    fn class_copyMethodList(class: Pointer, count: *mut c_uint) -> *mut Pointer;
    fn class_addMethod(class: Pointer, selector: Pointer, imp: Pointer, types: *const c_char) -> u8;
    fn class_getMethodImplementation(class: Pointer, selector: Pointer) -> Pointer;
    fn method_getName(method: Pointer) -> Pointer;
    fn method_getImplementation(method: Pointer) -> Pointer;
    fn method_setImplementation(method: Pointer, imp: Pointer) -> Pointer;
    fn method_getTypeEncoding(method: Pointer) -> *const c_char;
    #[cfg(target_vendor = "apple")]
    fn object_getClass(object: Pointer) -> Pointer;
}

// Metal's base class must exist when the constructor runs, and a framework is only loaded if something of it
// is used.
#[cfg(target_vendor = "apple")]
#[link(name = "Metal", kind = "framework")]
unsafe extern "C" {
    fn MTLCreateSystemDefaultDevice() -> Pointer;
}
#[cfg(target_vendor = "apple")]
#[used]
static KEEP_METAL: unsafe extern "C" fn() -> Pointer = MTLCreateSystemDefaultDevice;

/// GCC's runtime defines this function inline: the class is the first word of every object.
#[cfg(not(target_vendor = "apple"))]
#[expect(non_snake_case, reason = "the runtime's name")]
unsafe fn object_getClass(object: Pointer) -> Pointer {
    // SAFETY: the caller passes an object, which starts with its class.
    unsafe { *object.cast::<Pointer>() }
}

/// A class of the runtime.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Class(NonNull<c_void>);

/// A method as one class defines it.
#[derive(Clone, Copy)]
pub struct Method(NonNull<c_void>);

/// A registered selector, as methods take it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Selector(NonNull<c_void>);

/// The code of a method.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Imp(NonNull<c_void>);

impl Selector {
    /// Registers a selector; the runtime aborts by itself when it has no memory left for that.
    pub fn named(name: &CStr) -> Option<Self> {
        // SAFETY: a C string in; the runtime copies it.
        NonNull::new(unsafe { sel_registerName(name.as_ptr()) }).map(Self)
    }
}

impl Imp {
    /// Wraps a function that is to become a method.
    pub fn new(function: *const ()) -> Option<Self> {
        NonNull::new(function.cast_mut().cast()).map(Self)
    }

    /// The code's address.
    pub fn as_ptr(self) -> *mut c_void {
        self.0.as_ptr()
    }
}

impl Class {
    /// Looks a class up by name.
    pub fn named(name: &CStr) -> Option<Self> {
        // SAFETY: a C string in, a class or null out.
        NonNull::new(unsafe { objc_getClass(name.as_ptr()) }).map(Self)
    }

    /// The class of an object.
    ///
    /// # Safety
    /// `object` is an Objective-C object.
    pub unsafe fn of(object: NonNull<c_void>) -> Option<Self> {
        // SAFETY: the caller vouches for the object.
        NonNull::new(unsafe { object_getClass(object.as_ptr()) }).map(Self)
    }

    /// The class's name.
    pub fn name(self) -> &'static CStr {
        // SAFETY: a class has a name, which lives as long as the class: for ever.
        unsafe { CStr::from_ptr(class_getName(self.0.as_ptr())) }
    }

    /// The method that instances answer this selector with, inherited or not.
    pub fn method(self, selector: Selector) -> Option<Method> {
        // SAFETY: class and selector are the runtime's own.
        NonNull::new(unsafe { class_getInstanceMethod(self.0.as_ptr(), selector.0.as_ptr()) }).map(Method)
    }

    /// The code that a message to an instance would run. Asking also makes GCC's runtime give the class a
    /// dispatch table of its own; until then all unmessaged classes share one, and a change to it would show
    /// in every one of them.
    pub fn implementation(self, selector: Selector) -> Option<Imp> {
        // SAFETY: class and selector are the runtime's own.
        let imp = unsafe { class_getMethodImplementation(self.0.as_ptr(), selector.0.as_ptr()) };
        NonNull::new(imp).map(Imp)
    }

    /// Does the class itself define this selector, rather than inherit it?
    pub fn owns(self, selector: Selector) -> bool {
        let mut count: c_uint = 0;
        // SAFETY: the runtime returns null or an array of `count` methods that we free.
        let list = unsafe { class_copyMethodList(self.0.as_ptr(), &raw mut count) };
        if list.is_null() {
            return false;
        }
        // SAFETY: as above; c_uint fits usize on every 64-bit target.
        let methods = unsafe { core::slice::from_raw_parts(list, count as usize) };
        let found = methods.iter().any(|method| {
            // SAFETY: a method of the runtime has a selector, and selectors compare by this function in both
            // runtimes (GCC's may have several selectors of one name).
            unsafe { sel_isEqual(method_getName(*method), selector.0.as_ptr()) != 0 }
        });
        // SAFETY: the list was allocated for us by the runtime, with malloc, and is not used any more.
        unsafe { libc::free(list.cast()) };
        found
    }

    /// Adds a method that the class does not define itself; false if it does.
    pub fn add_method(self, selector: Selector, imp: Imp, types: &CStr) -> bool {
        // SAFETY: class and selector are the runtime's own, and it keeps the types' address: they are a method's
        // own encoding or a literal, both for ever. `imp` has the shape that `types` says (see the module).
        unsafe { class_addMethod(self.0.as_ptr(), selector.0.as_ptr(), imp.as_ptr(), types.as_ptr()) != 0 }
    }
}

impl Method {
    /// The method's code.
    pub fn implementation(self) -> Option<Imp> {
        // SAFETY: the method is the runtime's own.
        NonNull::new(unsafe { method_getImplementation(self.0.as_ptr()) }).map(Imp)
    }

    /// Replaces the method's code.
    pub fn set_implementation(self, imp: Imp) {
        // SAFETY: the method is the runtime's own, and `imp` has its shape (see the module).
        unsafe { method_setImplementation(self.0.as_ptr(), imp.as_ptr()) };
    }

    /// The method's type encoding.
    pub fn encoding(self) -> Option<&'static CStr> {
        // SAFETY: null or a C string that lives as long as the method: for ever.
        unsafe {
            let types = method_getTypeEncoding(self.0.as_ptr());
            (!types.is_null()).then(|| CStr::from_ptr(types))
        }
    }
}
