//! `cargo speed`.

use std::process::ExitCode;

use clap::Parser;
use ferry_tests::speed::{self, Options};

fn main() -> ExitCode {
    speed::run(&Options::parse()).unwrap_or_else(|error| {
        eprintln!("speed: {error:#}");
        ExitCode::FAILURE
    })
}
