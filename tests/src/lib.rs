//! What the demonstration, the suite and the tests on real things share.
//!
//! - [`artifacts`]: the pinned things of others (llama.cpp, models), fetched, checked and built;
//! - [`gguf`], [`random_model`], [`lora`]: models of any size and adapters, made here;
//! - [`process`]: children that cannot outlive us, with captured output and deadlines;
//! - [`daemon`], [`llama`], [`node`]: `ferryd` and llama.cpp in its programs and in Node, as the tests use them;
//! - [`choices`], [`machines`], [`releases`], [`threads`]: what is the same through Ferry as natively, for tests and the
//!   conformance run;
//! - `virtgpu`: llama.cpp's own ggml-virtgpu, to compare with;
//! - [`demo`], [`speed`], [`suite`], [`conformance`]: what `cargo demo`, `cargo speed` and `cargo suite` do.

pub mod artifacts;
pub mod bench;
pub mod callgrind;
pub mod checkout;
pub mod choices;
pub mod conformance;
pub mod daemon;
pub mod demo;
mod gguf;
pub mod interrupt;
pub mod llama;
pub mod lora;
pub mod machines;
pub mod node;
pub mod process;
pub mod procfs;
pub mod programs;
pub mod progress;
pub mod random_model;
pub mod releases;
pub mod speed;
pub mod suite;
mod sys;
pub mod threads;
#[cfg(target_os = "linux")]
pub mod virtgpu;
