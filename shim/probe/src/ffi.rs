//! The part of Metal that the probe uses.
#![allow(unsafe_code)]

use crate::rt::{Object, Runtime, message};
use anyhow::{Context, Result, bail, ensure};
use memmap2::MmapMut;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{NonNull, null_mut};

/// `MTLResourceStorageModeShared`.
const STORAGE_SHARED: u64 = 0;
/// `MTLCommandBufferStatusCompleted`.
const STATUS_COMPLETED: u64 = 4;
/// Longest text taken from Metal, in bytes: an error of its compiler may repeat the whole source.
const TEXT_LENGTH_MAX: usize = 2000;

type MaybeObject = Option<Object>;

/// `MTLSize`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Size {
    width: u64,
    height: u64,
    depth: u64,
}

/// A Metal device.
pub struct Device {
    runtime: &'static Runtime,
    object: Object,
}

/// One kernel and how to run it. Its function takes the input as buffer 0 and the output as buffer 1.
pub struct Job<'a> {
    /// Metal source.
    pub source: &'a str,
    /// Name of the kernel.
    pub function: &'a str,
    /// Bytes of buffer 0.
    pub input: &'a [u8],
    /// Threads of the one threadgroup.
    pub threads: u64,
    /// Dynamic threadgroup memory, in bytes.
    pub threadgroup_memory: u64,
}

impl Device {
    /// Metal's default device.
    pub fn system_default() -> Result<Self> {
        let runtime = Runtime::get()?;
        let object = runtime.new_device().context("MTLCreateSystemDefaultDevice returned nil")?;
        Ok(Self { runtime, object })
    }

    /// What it calls itself.
    pub fn name(&self) -> Result<String> {
        let name = message!(self.runtime, self.object, "name" () -> MaybeObject)
            .context("the device has no name")?;
        self.text(name)
    }

    /// Its Objective-C class.
    pub fn class_name(&self) -> String {
        self.runtime.class_name(self.object)
    }

    /// Does it say that it supports this family?
    pub fn supports_family(&self, family: u64) -> Result<bool> {
        Ok(message!(self.runtime, self.object, "supportsFamily:" (family => u64) -> u8) != 0)
    }

    /// How much threadgroup memory it says it has, in bytes.
    pub fn max_threadgroup_memory(&self) -> Result<u64> {
        Ok(message!(self.runtime, self.object, "maxThreadgroupMemoryLength" () -> u64))
    }

    /// Version of the shim that is at work in this process.
    pub fn shim_version(&self) -> Option<u64> {
        const MARK: &str = "ferryMetalShimVersion";
        let version = || {
            Ok::<u64, anyhow::Error>(message!(self.runtime, self.object, "ferryMetalShimVersion" () -> u64))
        };
        self.runtime.responds(self.object, MARK).then(version)?.ok()
    }

    /// Runs a job whose output has this many bytes in a buffer of Metal's own.
    pub fn run(&self, job: &Job<'_>, output_length: usize) -> Result<Vec<u8>> {
        let length = u64::try_from(output_length)?;
        let buffer = message!(self.runtime, self.object,
            "newBufferWithLength:options:" (length => u64, STORAGE_SHARED => u64) -> MaybeObject);
        let buffer = buffer.context("Metal gave no output buffer")?;
        self.run_into(job, buffer)?;
        let contents = message!(self.runtime, buffer, "contents" () -> *const u8);
        ensure!(!contents.is_null(), "the output buffer has no contents");
        // SAFETY: a shared buffer of `output_length` bytes, which the GPU has finished writing.
        Ok(unsafe { std::slice::from_raw_parts(contents, output_length) }.to_vec())
    }

    /// Runs a job whose output is mapped memory of the process, used without a copy.
    pub fn run_in_place(&self, job: &Job<'_>, memory: &mut MmapMut) -> Result<()> {
        let (address, length) = (memory.as_mut_ptr().cast::<c_void>(), u64::try_from(memory.len())?);
        let buffer = message!(self.runtime, self.object, "newBufferWithBytesNoCopy:length:options:deallocator:"
            (address => *mut c_void, length => u64, STORAGE_SHARED => u64, null_mut() => *mut c_void) -> MaybeObject);
        self.run_into(job, buffer.context("Metal would not use mapped memory")?)
    }

    fn run_into(&self, job: &Job<'_>, output: Object) -> Result<()> {
        let runtime = self.runtime;
        let pipeline = self.pipeline(job)?;
        let (bytes, length) = (job.input.as_ptr(), u64::try_from(job.input.len())?);
        let input = message!(runtime, self.object, "newBufferWithBytes:length:options:"
            (bytes => *const u8, length => u64, STORAGE_SHARED => u64) -> MaybeObject);
        let input = input.context("Metal gave no input buffer")?;
        let queue = message!(runtime, self.object, "newCommandQueue" () -> MaybeObject)
            .context("no command queue")?;
        let commands =
            message!(runtime, queue, "commandBuffer" () -> MaybeObject).context("no command buffer")?;
        let encoder =
            message!(runtime, commands, "computeCommandEncoder" () -> MaybeObject).context("no encoder")?;
        message!(runtime, encoder, "setComputePipelineState:" (pipeline => Object) -> ());
        for (index, buffer) in [(0, input), (1, output)] {
            message!(runtime, encoder, "setBuffer:offset:atIndex:" (buffer => Object, 0 => u64, index => u64) -> ());
        }
        if job.threadgroup_memory > 0 {
            message!(runtime, encoder, "setThreadgroupMemoryLength:atIndex:"
                (job.threadgroup_memory => u64, 0 => u64) -> ());
        }
        let one = Size { width: 1, height: 1, depth: 1 };
        let threads = Size { width: job.threads, ..one };
        message!(runtime, encoder, "dispatchThreadgroups:threadsPerThreadgroup:" (one => Size, threads => Size) -> ());
        message!(runtime, encoder, "endEncoding" () -> ());
        message!(runtime, commands, "commit" () -> ());
        message!(runtime, commands, "waitUntilCompleted" () -> ());
        let status = message!(runtime, commands, "status" () -> u64);
        if status != STATUS_COMPLETED {
            let error = message!(runtime, commands, "error" () -> MaybeObject);
            bail!("the command buffer ended with status {status}: {}", self.description(error));
        }
        Ok(())
    }

    fn pipeline(&self, job: &Job<'_>) -> Result<Object> {
        let mut error: MaybeObject = None;
        let source = self.string(job.source)?;
        let library = message!(self.runtime, self.object, "newLibraryWithSource:options:error:"
            (source => Object, null_mut() => *mut c_void, &raw mut error => *mut MaybeObject) -> MaybeObject);
        let library =
            library.with_context(|| format!("the kernel does not compile: {}", self.description(error)))?;
        let name = self.string(job.function)?;
        let function =
            message!(self.runtime, library, "newFunctionWithName:" (name => Object) -> MaybeObject);
        let function = function.with_context(|| format!("the library has no {}", job.function))?;
        let pipeline = message!(self.runtime, self.object, "newComputePipelineStateWithFunction:error:"
            (function => Object, &raw mut error => *mut MaybeObject) -> MaybeObject);
        pipeline.with_context(|| format!("no pipeline for the kernel: {}", self.description(error)))
    }

    fn string(&self, text: &str) -> Result<Object> {
        let c_text = CString::new(text)?;
        let class = self.runtime.class(c"NSString")?;
        let string = message!(self.runtime, class, "stringWithUTF8String:" (c_text.as_ptr() => *const c_char) -> MaybeObject);
        string.context("NSString would not take the text")
    }

    fn text(&self, string: Object) -> Result<String> {
        let bytes = message!(self.runtime, string, "UTF8String" () -> *const c_char);
        let bytes = NonNull::new(bytes.cast_mut()).context("the string has no text")?;
        // SAFETY: a C string that lives as long as its object, which is not released.
        let text = unsafe { CStr::from_ptr(bytes.as_ptr()) }.to_string_lossy();
        Ok(text.chars().take(TEXT_LENGTH_MAX).collect())
    }

    fn description(&self, error: MaybeObject) -> String {
        let describe = || {
            let Some(error) = error else { return Ok("no reason given".to_owned()) };
            let text = message!(self.runtime, error, "localizedDescription" () -> MaybeObject);
            self.text(text.context("the error has no description")?)
        };
        describe().unwrap_or_else(|error: anyhow::Error| error.to_string())
    }
}
