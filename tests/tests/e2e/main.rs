//! Stock llama.cpp, the plug-in, the daemon and a real model, all as a user would run them.
//!
//! One binary, so that it links once. Every test starts its own daemon on a socket of its own.
#![cfg(target_os = "linux")]

mod answer;
mod bad_input;
mod builds;
mod faults;
mod guest;
mod install;
mod layouts;
mod machines;
mod operations;
mod options;
mod peers;
mod plugin;
mod regions;
mod sharing;
mod store;
mod strides;
mod testbed;
mod vulkan;
