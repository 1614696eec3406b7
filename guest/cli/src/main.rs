//! `ferry`: everything that a person types.
//!
//! One module a subcommand. A subcommand answers with an exit status, or with an error that says what was asked, what
//! was found and what to do.

mod install;
mod shim;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// GPU compute for virtual machines.
#[derive(Parser)]
#[command(name = "ferry", version, infer_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put the plug-in where a llama.cpp finds it.
    Install(install::Arguments),
    /// The Metal capability shim, for macOS guests whose graphs cannot be forwarded.
    #[command(subcommand)]
    Shim(Box<shim::Command>),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Install(arguments) => install::run(&arguments),
        Command::Shim(command) => shim::run(*command),
    };
    result.unwrap_or_else(|error| {
        eprintln!("ferry: {error:#}");
        exit_code(&error)
    })
}

/// 1, or 78 where the shim cannot be used.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<shim::Unusable>() {
        Some(_) => ExitCode::from(shim::EXIT_UNUSABLE),
        None => ExitCode::FAILURE,
    }
}
