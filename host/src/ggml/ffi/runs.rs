//! Runs of bytes at equal distances, into a tensor and out of it: what ggml calls 2d transfers.
#![allow(unsafe_code)]

use super::objects::Place;
use ferry_ggml::Tensor;
use ferry_protocol::channel::Payload;
use ferry_protocol::request::TensorRuns;
use libloading::os::unix::Library as Dl;
use std::ffi::c_void;

/// Tensor, data, then offset, size, number of runs, stride in the tensor, stride in the data.
type Set = unsafe extern "C" fn(*mut Tensor, *const c_void, usize, usize, usize, usize, usize);
/// The same the other way.
type Get = unsafe extern "C" fn(*const Tensor, *mut c_void, usize, usize, usize, usize, usize);

/// The functions of builds since March 2026.
pub struct Transfers2d {
    set: Set,
    get: Get,
}

impl Transfers2d {
    /// Those of libggml-base, if it has them.
    pub fn of(base: &Dl) -> Option<Self> {
        // SAFETY: the functions have these types in every ggml that has them.
        unsafe {
            Some(Self {
                set: *base.get(b"ggml_backend_tensor_set_2d\0").ok()?,
                get: *base.get(b"ggml_backend_tensor_get_2d\0").ok()?,
            })
        }
    }
}

impl Place<'_> {
    /// Whether there are runs, and all of them within the tensor.
    pub fn contains_runs(&self, runs: &TensorRuns) -> bool {
        runs.size > 0 && runs.extent().is_some_and(|extent| self.contains(runs.offset, extent))
    }

    /// The library's function for `runs`, if it does what is meant: drivers refuse rows that overlap.
    fn transfers_2d(&self, runs: &TensorRuns) -> Option<&Transfers2d> {
        self.library().transfers_2d().filter(|_| runs.stride >= runs.size)
    }

    /// Copies `data`, the runs one behind the other, from where it lies.
    ///
    /// # Panics
    /// If the runs are not within the tensor, or `data` not as long as they are; the caller has checked.
    pub fn set_runs(&self, data: &Payload<'_>, runs: &TensorRuns) {
        assert!(self.contains_runs(runs) && runs.bytes() == Some(data.len() as u64));
        let (mut tensor, from) = (self.tensor(), data.as_ptr());
        let [offset, size, count, stride] =
            [runs.offset, runs.size, runs.runs, runs.stride].map(|number| number as usize);
        // SAFETY: every run is within the tensor and the tensor within its buffer; a payload's bytes are readable for as
        // long as it lives, and there are `count` times `size` of them.
        unsafe {
            if let Some(transfers) = self.transfers_2d(runs) {
                return (transfers.set)(&mut tensor, from.cast(), offset, size, count, stride, size);
            }
            for run in 0..count {
                let (from, to) = (from.add(run * size), offset + run * stride);
                (self.ggml().ggml_backend_tensor_set)(&mut tensor, from.cast(), to, size);
            }
        }
    }

    /// The runs one behind the other.
    ///
    /// # Panics
    /// If they are not within the tensor, or nobody can count their bytes; the caller has checked.
    pub fn get_runs(&self, runs: &TensorRuns) -> Vec<u8> {
        assert!(self.contains_runs(runs));
        let bytes = runs.bytes().expect("the caller has bounded them");
        let (tensor, mut out) = (self.tensor(), vec![0; bytes as usize]);
        let [offset, size, count, stride] =
            [runs.offset, runs.size, runs.runs, runs.stride].map(|number| number as usize);
        // SAFETY: every run is within the tensor and the tensor within its buffer, and `out` has room for all of them.
        unsafe {
            if let Some(transfers) = self.transfers_2d(runs) {
                (transfers.get)(&tensor, out.as_mut_ptr().cast(), offset, size, count, stride, size);
                return out;
            }
        }
        for (run, to) in out.chunks_exact_mut(size).enumerate() {
            self.get(to, (offset + run * stride) as u64);
        }
        out
    }
}
