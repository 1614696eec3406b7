//! What Ferry may cost: instructions, memory, and nothing while nobody uses it.
#![cfg(target_os = "linux")]

mod growth;
mod idle;
mod instructions;
mod testbed;
mod upload;
