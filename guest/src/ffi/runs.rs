//! Runs of bytes at equal distances, into a tensor and out of it: many of them in a message. ggml would call for each of
//! them otherwise, and wait for each that it reads.
#![allow(unsafe_code)]

use super::buffer::{self, HostPlace, place_of};
use super::registry::registry;
use super::{Destination, encode, guard};
use crate::session::Lost;
use ferry_ggml::Tensor;
use ferry_ggml::backend::Handle;
use ferry_protocol::calls::CallCode;
use ferry_protocol::ids::StreamId;
use ferry_protocol::limits::{DATA_CHUNK_BYTES, RUNS_MAX};
use ferry_protocol::request::TensorRuns;
use ferry_protocol::tensor::TensorLayout;
use std::ffi::c_void;
use std::ops::Range;

/// As ggml has them.
#[derive(Clone, Copy)]
struct Runs {
    offset: usize,
    size: usize,
    count: usize,
    stride_tensor: usize,
    stride_data: usize,
}

impl Runs {
    /// As many as go into one message, again and again.
    fn groups(self) -> impl Iterator<Item = Range<usize>> {
        let some = (DATA_CHUNK_BYTES / self.size).min(RUNS_MAX as usize);
        (0..self.count).step_by(some).map(move |first| first..self.count.min(first + some))
    }

    fn message(&self, tensor: TensorLayout, group: &Range<usize>) -> TensorRuns {
        TensorRuns {
            tensor,
            offset: (self.offset + group.start * self.stride_tensor) as u64,
            size: self.size as u64,
            runs: group.len() as u64,
            stride: self.stride_tensor as u64,
        }
    }

    /// Where `tensor` lies, if its host takes several runs in a message and some of these fit one.
    fn target<'a>(&self, tensor: &'a Tensor) -> Option<(HostPlace<'a>, TensorLayout)> {
        if !(1..=DATA_CHUNK_BYTES / 2).contains(&self.size) {
            return None;
        }
        let place = place_of(tensor).filter(|place| place.takes_runs)?;
        Some((place, encode::layout(&registry().base, tensor)?))
    }
}

/// `set_tensor_2d` of a buffer.
pub unsafe extern "C" fn set_tensor_2d(
    handle: Handle,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
    count: usize,
    stride_tensor: usize,
    stride_data: usize,
) {
    guard((), || {
        let runs = Runs { offset, size, count, stride_tensor, stride_data };
        // SAFETY: ggml passes a valid tensor, and `count` runs of readable bytes.
        unsafe {
            match runs.target(&*tensor) {
                Some((place, layout)) => drop(post(&place, layout, data.cast(), &runs)),
                None => (0..count).for_each(|run| {
                    let data = data.byte_add(run * stride_data);
                    buffer::set_tensor(handle, tensor, data, offset + run * stride_tensor, size);
                }),
            }
        }
    });
}

/// # Safety
/// The runs from `data` on must be readable.
unsafe fn post(
    place: &HostPlace<'_>,
    layout: TensorLayout,
    data: *const u8,
    runs: &Runs,
) -> Result<(), Lost> {
    let mut gathered = Vec::new();
    for group in runs.groups() {
        gathered.clear();
        for run in group.clone() {
            // SAFETY: as promised.
            let bytes = unsafe { std::slice::from_raw_parts(data.add(run * runs.stride_data), runs.size) };
            gathered.extend_from_slice(bytes);
        }
        let message = runs.message(layout, &group);
        let parts: [&[u8]; 2] = [bytemuck::bytes_of(&message), &gathered];
        place.session.post(CallCode::SET_TENSOR_2D, StreamId::SESSION, &parts)?;
    }
    Ok(())
}

/// `get_tensor_2d` of a buffer.
pub unsafe extern "C" fn get_tensor_2d(
    handle: Handle,
    tensor: *const Tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
    count: usize,
    stride_tensor: usize,
    stride_data: usize,
) {
    guard((), || {
        let runs = Runs { offset, size, count, stride_tensor, stride_data };
        // SAFETY: ggml passes a valid tensor, and `count` runs of writable bytes.
        unsafe {
            match runs.target(&*tensor) {
                Some((place, layout)) => read(&place, layout, data.cast(), &runs),
                None => (0..count).for_each(|run| {
                    let data = data.byte_add(run * stride_data);
                    buffer::get_tensor(handle, tensor, data, offset + run * stride_tensor, size);
                }),
            }
        }
    });
}

/// # Safety
/// The runs from `data` on must be writable.
unsafe fn read(place: &HostPlace<'_>, layout: TensorLayout, data: *mut u8, runs: &Runs) {
    let mut gathered = Vec::new();
    for group in runs.groups() {
        gathered.resize(group.len() * runs.size, 0);
        // SAFETY: the vector is left alone until the read is over. What was not read is filled up.
        let destination = unsafe { Destination::new(gathered.as_mut_ptr(), gathered.len()) };
        let message = runs.message(layout, &group);
        // A lost session was logged where it was lost, and the next graph says so to the program.
        let _ = place.session.read(CallCode::GET_TENSOR_2D, &[bytemuck::bytes_of(&message)], destination);
        for (run, bytes) in group.zip(gathered.chunks_exact(runs.size)) {
            // SAFETY: as promised; the bytes come from a vector of ours.
            unsafe { data.add(run * runs.stride_data).copy_from_nonoverlapping(bytes.as_ptr(), runs.size) };
        }
    }
}
