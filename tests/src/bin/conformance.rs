//! The conformance run: the long part of `cargo suite`.

use std::process::ExitCode;

use clap::Parser;
use ferry_tests::conformance::{self, Options};

fn main() -> ExitCode {
    conformance::run(&Options::parse()).unwrap_or_else(|error| {
        eprintln!("conformance: {error:#}");
        ExitCode::FAILURE
    })
}
