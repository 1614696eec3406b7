//! `ferryd`: parses, then becomes the process that it is asked to be.

use clap::Parser;
use ferry_host::cli::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    ferry_host::cli::init_logging();
    let outcome = match &cli.command {
        Command::Serve(serve) => ferry_host::supervisor::run(serve),
        Command::Devices(backends) => ferry_host::cli::print_devices(backends),
        Command::Store(command) => ferry_host::cli::run_store(command),
        Command::Front(front) => ferry_host::front::run(front),
        Command::Worker(worker) => ferry_host::process::run_worker(worker),
        Command::Probe(backends) => ferry_host::process::run_probe(backends),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferryd: {error:#}");
            ExitCode::FAILURE
        }
    }
}
