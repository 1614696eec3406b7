//! `cargo suite`.

use std::process::ExitCode;

use clap::Parser;
use ferry_tests::suite::{self, Options};

fn main() -> ExitCode {
    suite::run(&Options::parse()).unwrap_or_else(|error| {
        eprintln!("suite: {error:#}");
        ExitCode::FAILURE
    })
}
