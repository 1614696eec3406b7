//! What the Metal shim, its probe and its launcher agree on.
//!
//! The shim is injected into other people's processes, so this crate has no allocator and no standard
//! library: everything works on borrowed bytes. Nothing here touches the process either, except
//! [`guest_build`], which asks the kernel what it is.

#![no_std]

#[cfg(test)]
extern crate std;

pub mod config;
pub mod encoding;
pub mod status;
mod sys;
pub mod token;

pub use sys::{BUILD_LENGTH_MAX, guest_build};

/// The name that Apple's paravirtual GPU gives itself in every macOS guest.
pub const DEVICE_NAME: &str = "Apple Paravirtual device";

/// The Objective-C class of that device (it appears so in public crash reports of macOS guests, for both
/// the IOAccelerator and the IOGPUFamily plug-in).
pub const DEVICE_CLASS: &str = "AppleParavirtDevice";

/// The class of Metal.framework from which every driver's device class descends.
pub const BASE_CLASS: &str = "_MTLDevice";

/// First and last number of Metal's Apple GPU families (`MTLGPUFamilyApple1` is 1001). The Mac (2001…), Common
/// (3001…) and Metal (5001…) families lie outside and are never claimed.
pub const APPLE_FAMILIES: core::ops::RangeInclusive<u64> = 1001..=1999;

/// Exit status of a process whose shim was required and could not be installed (`EX_CONFIG` of sysexits.h).
pub const EXIT_NOT_INSTALLED: i32 = 78;

/// File name of the shim on the platform it was built for.
pub const LIBRARY: &str =
    if cfg!(target_vendor = "apple") { "libferry_metal_shim.dylib" } else { "libferry_metal_shim.so" };

/// The variable by which the dynamic linker is told to insert the shim.
pub const INSERT_VARIABLE: &str =
    if cfg!(target_vendor = "apple") { "DYLD_INSERT_LIBRARIES" } else { "LD_PRELOAD" };
