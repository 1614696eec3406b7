//! The Metal capability shim for macOS guests: raises, per process, the Apple GPU families that the
//! paravirtual Metal device reports, where graphs cannot be forwarded to the host.
//!
//! ```text
//!  loaded ── bad configuration, token, process ──▶ refused      nothing was touched
//!    │
//!    ├─ the paravirtual class is there ──────────┐
//!    ▼                                           ▼
//!  armed ── paravirtual device is made ────▶ installing ──▶ installed ── device has another name ──▶ withdrawn
//!    │                                           │
//!    └─ another device is made ──▶ skipped       └─ a step fails ──▶ failed    what was changed is put back
//! ```
//!
//! `armed` needs one hook on Metal's base class, `initGPUFamilySupport`, because the driver's class is loaded
//! late; it is taken off again once the shim is installed. The answers themselves are overridden on the
//! concrete class alone.

#![no_std]

#[cfg(feature = "std")]
extern crate std;

mod arm;
mod environment;
mod ffi;
mod install;
mod report;
mod rt;
mod sys;
