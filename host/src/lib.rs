//! `ferryd`: runs a guest's ggml graphs on the host's devices.
//!
//! Three kinds of process, all the same binary:
//!
//! ```text
//! supervisor ──── front (one per listener) ──── accepts, shakes hands, lists devices
//!      └───────── worker (one per guest process) ──── validates, owns objects, calls ggml
//! ```
//!
//! The supervisor reads no byte that a guest wrote. A front knows no ggml and no graph. A worker serves one guest
//! process and can fall without anybody else noticing.

pub mod cli;
pub mod front;
pub mod ggml;
pub mod gpu;
pub mod process;
#[cfg(target_os = "linux")]
mod sources;
pub mod store;
pub mod supervisor;
pub mod worker;
