//! Where ggml comes in: `ggml_backend_init` and `ggml_backend_score`.
#![allow(unsafe_code)]

use super::registry;
use std::ffi::{c_int, c_void};

/// `ggml_backend_init`: hands its own return address on, which lies in the library that called.
///
/// # Safety
/// To be called by ggml's loader.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ggml_backend_init() -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!("mov rdi, [rsp]", "jmp {init}", init = sym init);
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("mov x0, x30", "b {init}", init = sym init);
}

unsafe extern "C" fn init(caller: *const c_void) -> *mut c_void {
    super::guard(std::ptr::null_mut(), || registry::get(caller))
}

/// `ggml_backend_score`: there is one variant, and it runs everywhere.
#[unsafe(no_mangle)]
pub extern "C" fn ggml_backend_score() -> c_int {
    1
}
