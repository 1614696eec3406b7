//! `cargo demo`.

use std::process::ExitCode;

use clap::Parser;
use ferry_tests::demo::{self, Options};

fn main() -> ExitCode {
    demo::run(&Options::parse()).unwrap_or_else(|error| {
        eprintln!("demo: {error:#}");
        ExitCode::FAILURE
    })
}
