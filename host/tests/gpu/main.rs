//! The virtio-gpu device as a guest driver sees it, well-behaved and hostile.
#![cfg(target_os = "linux")]

mod commands;
mod fences;
mod harness;
mod program;
mod queue;
mod server;
mod sessions;
mod sharing;
