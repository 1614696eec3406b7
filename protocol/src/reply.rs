//! What the answers carry. READ and GET_TENSOR are answered with the bytes themselves, in parts that have
//! [`crate::frame::Flags::MORE`] set up to the last; SUPPORTS_OP with a `u32` that is 0 or 1; ALLOC_SIZE with a
//! `u64`; INIT_BACKEND with the stream in the header; SYNCHRONIZE with nothing. An answer whose status is not OK
//! carries a line of text for the log.

use crate::calls::CallCode;
use crate::ids::BufferId;
use bytemuck::{Pod, Zeroable};

/// Answers ALLOC_BUFFER.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Allocated {
    /// The buffer.
    pub buffer: BufferId,
    /// Its size in bytes: at least what was asked for.
    pub size: u64,
}

/// Answers MEMORY.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Memory {
    /// Free bytes.
    pub free: u64,
    /// All bytes.
    pub total: u64,
}

/// In front of a notice: a posted call failed. `seq` in the header is its number, `status` the reason; a line of
/// text follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct NoticeHeader {
    /// What failed.
    pub call: CallCode,
    /// 0.
    pub reserved: [u16; 3],
}
