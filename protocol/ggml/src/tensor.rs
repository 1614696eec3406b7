//! `struct ggml_tensor`: 336 bytes in every generation.

use std::ffi::c_void;

/// `struct ggml_tensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the fields are ggml's
pub struct Tensor {
    pub kind: i32,
    pub buffer: *mut c_void,
    pub ne: [i64; 4],
    pub nb: [usize; 4],
    pub op: i32,
    pub op_params: [i32; 16],
    pub flags: i32,
    pub src: [*mut Tensor; 10],
    pub view_src: *mut Tensor,
    pub view_offs: usize,
    pub data: *mut c_void,
    pub name: [u8; 64],
    pub extra: *mut c_void,
    pub padding: [u8; 8],
}

const _: () = assert!(size_of::<Tensor>() == 336);

impl Tensor {
    /// All zero: type F32, no elements, no operation.
    pub const EMPTY: Self = Self {
        kind: 0,
        buffer: std::ptr::null_mut(),
        ne: [0; 4],
        nb: [0; 4],
        op: 0,
        op_params: [0; 16],
        flags: 0,
        src: [std::ptr::null_mut(); 10],
        view_src: std::ptr::null_mut(),
        view_offs: 0,
        data: std::ptr::null_mut(),
        name: [0; 64],
        extra: std::ptr::null_mut(),
        padding: [0; 8],
    };

    /// The name, without terminator.
    pub fn name_bytes(&self) -> &[u8] {
        let len = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        &self.name[..len]
    }
}
