//! The program's ggml: which one it is, and the few functions of it that are called.
//!
//! A process may have loaded libggml-base with RTLD_LOCAL, under either of its sonames, or have ggml linked into
//! something larger. What is certain is that the library that called `ggml_backend_init` uses the right one, so symbols
//! are looked up through it: `dlsym` searches a library's dependencies.
#![allow(unsafe_code)]

use ferry_ggml::backend::{Generation, Handle};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use ferry_ggml::Tensor;
use ferry_protocol::ops::Op;
use ferry_protocol::tensor::flags;
use ferry_protocol::types::TensorType;

/// Operations and types are remembered up to these numbers; ggml 0.26 has 101 and 43.
const OPS_MAX: usize = 256;
const TYPES_MAX: usize = 64;

/// Not asked yet; 1 is "no", and what is 2 or more is an answer plus 2.
const UNASKED: u32 = 0;
const NO: u32 = 1;
const FIRST: u32 = 2;

type Log = unsafe extern "C" fn(c_int, *const c_char, ...);
type NameOf = unsafe extern "C" fn(c_int) -> *const c_char;

/// Functions of the program's ggml, and what they said.
pub struct Base {
    /// Which layout its interface has.
    pub generation: Generation,
    /// Whether its graphs have a uid.
    pub has_uid: bool,
    /// Whether it marks the nodes that are to be computed.
    marks_nodes: bool,
    /// `ggml_backend_buffer_init`; its second parameter is a struct whose layout depends on the generation.
    pub buffer_init: *const c_void,
    /// `ggml_backend_buffer_is_host`.
    pub buffer_is_host: unsafe extern "C" fn(Handle) -> bool,
    /// `ggml_backend_synchronize`.
    pub synchronize: unsafe extern "C" fn(Handle),
    /// `ggml_backend_buft_alloc_buffer`.
    pub buft_alloc_buffer: unsafe extern "C" fn(Handle, usize) -> Handle,
    /// `ggml_backend_cpu_buffer_type`.
    pub cpu_buffer_type: unsafe extern "C" fn() -> Handle,
    /// `ggml_backend_cpu_buffer_from_ptr`.
    pub cpu_buffer_from_ptr: unsafe extern "C" fn(*mut c_void, usize) -> Handle,
    op_name: NameOf,
    unary_op_name: NameOf,
    glu_op_name: NameOf,
    blck_size: unsafe extern "C" fn(c_int) -> i64,
    type_size: unsafe extern "C" fn(c_int) -> usize,
    ops: [AtomicU32; OPS_MAX],
    types: [AtomicU32; TYPES_MAX],
}

// SAFETY: function pointers of a library that stays loaded, and atomics.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// The log function alone is global: it is wanted before anything else is known.
static LOG: OnceLock<Option<Log>> = OnceLock::new();

/// Why the program's ggml cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// The function is not there.
    #[error(
        "this program's ggml has no {0}, or keeps it to itself; llama.cpp since July 2025 is supported, built with \
         GGML_BACKEND_DL=ON, or with CMAKE_ENABLE_EXPORTS=ON where ggml is part of the program"
    )]
    Symbol(&'static str),
    /// The tables have layouts that nobody knows.
    #[error(
        "this program's ggml has an interface of {0}, {1} and {2} functions, which this plug-in does not know: \
         is there a newer one?"
    )]
    Generation(usize, usize, usize),
    /// The graph is not what it should be.
    #[error(
        "this program's ggml lays out {0} in a way that this plug-in does not know: is there a newer one?"
    )]
    Layout(&'static str),
}

/// Looks symbols up in the ggml of whoever called from `caller`.
pub struct Lookup {
    handles: Vec<*mut c_void>,
}

impl Lookup {
    /// A lookup through the library that contains `caller`, then any libggml-base of the process, then everything that
    /// is visible to all.
    pub fn through(caller: *const c_void) -> Self {
        let mut handles = Vec::new();
        // SAFETY: an all-zero `Dl_info` is valid, and dladdr writes to nothing else.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: dladdr accepts any address; the name it gives is a terminated string; NOLOAD only finds what is there.
        unsafe {
            if libc::dladdr(caller, &mut info) != 0 && !info.dli_fname.is_null() {
                handles.push(libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD));
            }
            for name in loaded_libraries().iter().filter(|name| is_ggml_base(name)) {
                handles.push(libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD));
            }
        }
        handles.retain(|handle| !handle.is_null());
        handles.push(libc::RTLD_DEFAULT);
        Self { handles }
    }

    /// The address of `name`, or null.
    pub fn find(&self, name: &CStr) -> *mut c_void {
        let found = self.handles.iter().map(|&handle| {
            // SAFETY: the handles are open libraries, or RTLD_DEFAULT.
            unsafe { libc::dlsym(handle, name.as_ptr()) }
        });
        found.into_iter().find(|address| !address.is_null()).unwrap_or(std::ptr::null_mut())
    }

    /// The function `name` as an `F`.
    ///
    /// # Safety
    /// `F` must be the type of the function pointer.
    pub unsafe fn function<F: Copy>(&self, name: &'static CStr) -> Result<F, BaseError> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        let address = self.find(name);
        if address.is_null() {
            return Err(BaseError::Symbol(name.to_str().unwrap_or("a function")));
        }
        // SAFETY: of the same size; the caller vouches for the type.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

fn is_ggml_base(path: &CStr) -> bool {
    let path = path.to_bytes();
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    file.starts_with(b"libggml-base")
}

#[cfg(target_os = "linux")]
fn loaded_libraries() -> Vec<CString> {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid description; the list is the vector below, which nobody else uses meanwhile.
        unsafe {
            if !(*info).dlpi_name.is_null() {
                (*list.cast::<Vec<CString>>()).push(CStr::from_ptr((*info).dlpi_name).to_owned());
            }
        }
        0
    }
    let mut list: Vec<CString> = Vec::new();
    // SAFETY: the callback gets a pointer to `list`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut list).cast()) };
    list
}

#[cfg(not(target_os = "linux"))]
fn loaded_libraries() -> Vec<CString> {
    // macOS: the caller's own handle, or RTLD_DEFAULT, finds it.
    Vec::new()
}

impl Base {
    /// Looks the functions up and makes sure that layouts are what they are thought to be.
    pub fn find(lookup: &Lookup) -> Result<Self, BaseError> {
        // SAFETY: a variadic function of this type in every ggml (`ggml_log_internal`), where it is exported.
        let log = unsafe { lookup.function::<Log>(c"ggml_log_internal") };
        let _ = LOG.set(log.ok());
        // Of all that is needed, this came last, in July 2025: what lacks it is told so, rather than that something about
        // it is unknown.
        // SAFETY: it has this type in ggml's headers, unchanged since then.
        let glu_op_name = unsafe { lookup.function(c"ggml_glu_op_name")? };
        let generation = super::layout::generation(lookup)?;
        let has_uid = !lookup.find(c"ggml_graph_next_uid").is_null();
        let marks_nodes = super::layout::check_graph(lookup)?;
        // SAFETY: each has this type in ggml's headers, unchanged since July 2025.
        unsafe {
            Ok(Self {
                generation,
                has_uid,
                marks_nodes,
                buffer_init: lookup.function(c"ggml_backend_buffer_init")?,
                buffer_is_host: lookup.function(c"ggml_backend_buffer_is_host")?,
                synchronize: lookup.function(c"ggml_backend_synchronize")?,
                buft_alloc_buffer: lookup.function(c"ggml_backend_buft_alloc_buffer")?,
                cpu_buffer_type: lookup.function(c"ggml_backend_cpu_buffer_type")?,
                cpu_buffer_from_ptr: lookup.function(c"ggml_backend_cpu_buffer_from_ptr")?,
                op_name: lookup.function(c"ggml_op_name")?,
                unary_op_name: lookup.function(c"ggml_unary_op_name")?,
                glu_op_name,
                blck_size: lookup.function(c"ggml_blck_size")?,
                type_size: lookup.function(c"ggml_type_size")?,
                ops: [const { AtomicU32::new(UNASKED) }; OPS_MAX],
                types: [const { AtomicU32::new(UNASKED) }; TYPES_MAX],
            })
        }
    }

    /// ggml's flags of `tensor`, with the mark of what is to be computed where this ggml knows none.
    pub fn flags_of(&self, tensor: &Tensor) -> u32 {
        tensor.flags as u32 & flags::ALL | if self.marks_nodes { 0 } else { flags::COMPUTE }
    }

    /// The protocol's number of the operation of `tensor`, or `None` if it has none: the host is not asked.
    pub fn op_of(&self, tensor: &Tensor) -> Option<Op> {
        let cell = self.ops.get(usize::try_from(tensor.op).ok()?)?;
        remembered(cell, || Op::by_name(self.name(self.op_name, tensor.op)?).map(|op| op.0)).map(Op)
    }

    /// The protocol's number of the unary operation or gated linear unit that `op` is parametrised with.
    pub fn sub_op(&self, op: Op, parameter: i32) -> Option<i32> {
        let name_of = if op == Op::GLU { self.glu_op_name } else { self.unary_op_name };
        let name = self.name(name_of, parameter)?;
        op.sub_ops()?.iter().position(|known| *known == name).map(|at| at as i32)
    }

    /// The protocol's type of `tensor`, if it has one of the same size.
    pub fn type_of(&self, tensor: &Tensor) -> Option<TensorType> {
        let number = tensor.kind;
        let cell = self.types.get(usize::try_from(number).ok()?)?;
        remembered(cell, || {
            let row = TensorType(number as u32).row()?;
            // SAFETY: the number is that of a type of this ggml: a tensor has it.
            let (elements, bytes) = unsafe { ((self.blck_size)(number), (self.type_size)(number)) };
            let same = elements == i64::from(row.block_elements) && bytes == row.block_bytes as usize;
            same.then_some(row.number)
        })
        .map(TensorType)
    }

    fn name(&self, name_of: NameOf, number: c_int) -> Option<&'static str> {
        // SAFETY: the number is that of an operation of this ggml: a tensor has it. The strings are constants.
        unsafe {
            let name = name_of(number);
            if name.is_null() { None } else { CStr::from_ptr(name).to_str().ok() }
        }
    }
}

/// What `ask` answered the first time.
fn remembered(cell: &AtomicU32, ask: impl FnOnce() -> Option<u32>) -> Option<u32> {
    // Relaxed: the value stands for itself, and asking twice gives the same.
    match cell.load(Ordering::Relaxed) {
        UNASKED => {
            let answer = ask();
            cell.store(answer.map_or(NO, |answer| answer + FIRST), Ordering::Relaxed);
            answer
        }
        NO => None,
        answer => Some(answer - FIRST),
    }
}

/// Logs through ggml; `false` if that is not possible.
pub fn log(level: i32, line: &str) -> bool {
    let (Some(Some(log)), Ok(line)) = (LOG.get(), CString::new(line)) else { return false };
    // SAFETY: the format takes one string.
    unsafe { log(level, c"%s".as_ptr(), line.as_ptr()) };
    true
}
