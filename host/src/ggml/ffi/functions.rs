//! The functions of libggml-base that a worker calls, and the loading of libraries.
#![allow(unsafe_code)]

use ferry_ggml::backend::{Handle, Reg};
use ferry_ggml::{CGraph, Tensor};
use libloading::os::unix::{Library as Dl, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

/// Why ggml or a back-end could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory has no such library.
    #[error(
        "{dir} has no {wanted}; give the directory of a llama.cpp build with its ggml libraries (found: {found})"
    )]
    Missing {
        /// Where it was looked for.
        dir: PathBuf,
        /// The file that was looked for.
        wanted: String,
        /// What is there instead.
        found: String,
    },
    /// The directory cannot be read.
    #[error("cannot read the directory {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// The system's loader refused the library.
    #[error("cannot load {0}: {1}")]
    Dlopen(PathBuf, libloading::Error),
    /// The library lacks a function.
    #[error("{0} has no function {1}; it is not a ggml library, or one from before July 2025")]
    Symbol(PathBuf, &'static str),
    /// The back-end found no device that it can drive.
    #[error("the back-end {0} did not start: it found nothing that it can drive")]
    NoBackend(PathBuf),
    /// The back-end has no devices of other machines.
    #[error("the back-end {0} cannot be given servers; 'rpc' of a llama.cpp build since October 2025 can")]
    NoServers(String),
    /// A server of the back-end does not answer.
    #[error("no ggml-rpc server answers at {0}; start one there: ggml-rpc-server --host ADDRESS --port PORT")]
    NoServer(String),
}

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// Functions of libggml-base, by their names in C.
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Functions {
            fn load(library: &Dl, path: &Path) -> Result<Self, LoadError> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of the function of this name in ggml's headers, where it has not
                        // changed since July 2025.
                        let symbol = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *symbol.map_err(|_| LoadError::Symbol(path.to_path_buf(), stringify!($name)))?
                    },)*
                })
            }
        }
    };
}

functions! {
    ggml_op_name: fn(c_int) -> *const c_char;
    ggml_unary_op_name: fn(c_int) -> *const c_char;
    ggml_glu_op_name: fn(c_int) -> *const c_char;
    ggml_blck_size: fn(c_int) -> i64;
    ggml_type_size: fn(c_int) -> usize;
    ggml_log_set: fn(Option<unsafe extern "C" fn(c_int, *const c_char, *mut c_void)>, *mut c_void);
    ggml_backend_reg_name: fn(Handle) -> *const c_char;
    ggml_backend_reg_dev_count: fn(Handle) -> usize;
    ggml_backend_reg_dev_get: fn(Handle, usize) -> Handle;
    ggml_backend_reg_get_proc_address: fn(Handle, *const c_char) -> *mut c_void;
    ggml_backend_dev_name: fn(Handle) -> *const c_char;
    ggml_backend_dev_description: fn(Handle) -> *const c_char;
    ggml_backend_dev_memory: fn(Handle, *mut usize, *mut usize);
    ggml_backend_dev_type: fn(Handle) -> c_int;
    ggml_backend_dev_init: fn(Handle, *const c_char) -> Handle;
    ggml_backend_dev_buffer_type: fn(Handle) -> Handle;
    ggml_backend_dev_host_buffer_type: fn(Handle) -> Handle;
    ggml_backend_dev_supports_op: fn(Handle, *const Tensor) -> bool;
    ggml_backend_buft_alloc_buffer: fn(Handle, usize) -> Handle;
    ggml_backend_buft_get_alignment: fn(Handle) -> usize;
    ggml_backend_buft_get_max_size: fn(Handle) -> usize;
    ggml_backend_buft_get_alloc_size: fn(Handle, *const Tensor) -> usize;
    ggml_backend_buft_is_host: fn(Handle) -> bool;
    ggml_backend_buffer_free: fn(Handle);
    ggml_backend_buffer_get_base: fn(Handle) -> *mut c_void;
    ggml_backend_buffer_get_size: fn(Handle) -> usize;
    ggml_backend_buffer_clear: fn(Handle, u8);
    ggml_backend_buffer_reset: fn(Handle);
    ggml_backend_buffer_set_usage: fn(Handle, c_int);
    ggml_backend_buffer_init_tensor: fn(Handle, *mut Tensor) -> c_int;
    ggml_backend_tensor_set: fn(*mut Tensor, *const c_void, usize, usize);
    ggml_backend_tensor_get: fn(*const Tensor, *mut c_void, usize, usize);
    ggml_backend_tensor_memset: fn(*mut Tensor, u8, usize, usize);
    ggml_backend_tensor_copy: fn(*mut Tensor, *mut Tensor);
    ggml_backend_free: fn(Handle);
    ggml_backend_synchronize: fn(Handle);
    ggml_backend_tensor_set_async: fn(Handle, *mut Tensor, *const c_void, usize, usize);
    ggml_backend_tensor_get_async: fn(Handle, *const Tensor, *mut c_void, usize, usize);
    ggml_backend_graph_compute_async: fn(Handle, *mut CGraph) -> c_int;
    ggml_backend_event_new: fn(Handle) -> Handle;
    ggml_backend_event_free: fn(Handle);
    ggml_backend_event_record: fn(Handle, Handle);
    ggml_backend_event_wait: fn(Handle, Handle);
    ggml_backend_event_synchronize: fn(Handle);
}

/// Loads libggml-base from `dir`. Its symbols are made visible to the back-ends loaded later, which name it by its
/// soname and thus find this one.
pub fn load_base(dir: &Path) -> Result<(Dl, Functions), LoadError> {
    let path = find(dir, "libggml-base")?.remove(0);
    // SAFETY: loading a library runs its constructors; the administrator chose the directory.
    let library = unsafe { Dl::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
    let library = library.map_err(|error| LoadError::Dlopen(path.clone(), error))?;
    let functions = Functions::load(&library, &path)?;
    Ok((library, functions))
}

/// What `ggml_version` says; builds from before September 2025 do not have it.
pub fn version(base: &Dl) -> Option<String> {
    // SAFETY: the function has this type in every ggml that has it, and returns a constant.
    unsafe {
        let version = base.get::<unsafe extern "C" fn() -> *const c_char>(b"ggml_version\0").ok()?;
        Some(CStr::from_ptr(version()).to_string_lossy().into_owned())
    }
}

/// Loads the back-end library called `name` (`cpu`, `cuda`, …, or a path) and starts it. Where a build has several
/// variants of one back-end (`libggml-cpu-haswell.so`, …), the one that rates itself highest on this machine.
pub fn load_backend(dir: &Path, name: &str) -> Result<(Dl, *mut Reg), LoadError> {
    let candidates =
        if name.contains('/') { vec![PathBuf::from(name)] } else { find(dir, &format!("libggml-{name}"))? };
    let mut best: Option<(c_int, PathBuf, Dl)> = None;
    for path in candidates {
        // SAFETY: as in `load_base`.
        let library = unsafe { Dl::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LoadError::Dlopen(path.clone(), error))?;
        // SAFETY: the function has this type in every ggml (`ggml_backend_score_t`); it is optional.
        let score = match unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"ggml_backend_score\0") } {
            // SAFETY: as above.
            Ok(score) => unsafe { score() },
            Err(_) => 1,
        };
        if score > best.as_ref().map_or(0, |(best, ..)| *best) {
            best = Some((score, path, library));
        }
    }
    let Some((_, path, library)) = best else {
        return Err(LoadError::NoBackend(dir.join(format!("libggml-{name}"))));
    };
    // SAFETY: the function has this type in every ggml (`ggml_backend_init_t`).
    let init = unsafe { library.get::<unsafe extern "C" fn() -> *mut Reg>(b"ggml_backend_init\0") };
    let init = *init.map_err(|_| LoadError::Symbol(path.clone(), "ggml_backend_init"))?;
    // SAFETY: as above; libggml-base is loaded.
    let reg = unsafe { init() };
    if reg.is_null() { Err(LoadError::NoBackend(path)) } else { Ok((library, reg)) }
}

/// The files in `dir` that are the library `stem` or one of its variants, the plain one first.
fn find(dir: &Path, stem: &str) -> Result<Vec<PathBuf>, LoadError> {
    let suffix = std::env::consts::DLL_SUFFIX;
    let plain = dir.join(format!("{stem}{suffix}"));
    if plain.is_file() {
        return Ok(vec![plain]);
    }
    let entries = std::fs::read_dir(dir).map_err(|error| LoadError::Unreadable(dir.to_path_buf(), error))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|n| n.contains("ggml"))
        .collect();
    names.sort();
    let is_it = |name: &&String| {
        let rest = name.strip_prefix(stem).unwrap_or_default();
        // libggml-base.so.0, libggml-cpu-haswell.so
        rest.starts_with(&format!("{suffix}.")) || rest.starts_with('-') && rest.ends_with(suffix)
    };
    let found: Vec<PathBuf> = names.iter().filter(is_it).map(|name| dir.join(name)).collect();
    if found.is_empty() {
        let found = if names.is_empty() { "no ggml library at all".to_owned() } else { names.join(", ") };
        return Err(LoadError::Missing { dir: dir.to_path_buf(), wanted: format!("{stem}{suffix}"), found });
    }
    Ok(found)
}
