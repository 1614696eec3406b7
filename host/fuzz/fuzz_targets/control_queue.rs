//! Any bytes as a program of a hostile guest driver, run against the virtio-gpu device through its control queue.
//! The program's meaning and the checks are those of the test that proptest drives: `host/tests/gpu/program.rs`.
#![no_main]

#[path = "../../tests/gpu/harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "../../tests/gpu/program.rs"]
mod program;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| program::run(bytes));
