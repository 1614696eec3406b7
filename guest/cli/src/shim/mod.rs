//! `ferry shim …`.

mod agent;
mod artifacts;
mod binary;
mod claim;
mod host_pref;
mod install_agent;
mod probe;
mod profile;
mod run;
mod steps;
mod tool;

use anyhow::Result;
use std::process::ExitCode;

/// Exit status where the shim cannot be used (`EX_CONFIG`), as the shim's own.
pub const EXIT_UNUSABLE: u8 = 78;

/// The shim cannot be used with this program, here, or as asked; the text says why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

/// The subcommands of `ferry shim`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Run a program with the shim and the profile that speaks for it.
    Run(run::Arguments),
    /// Ask the Metal device what it says, and with --honour whether it keeps its word.
    Probe(probe::Arguments),
    /// Show, match and check profiles.
    #[command(subcommand)]
    Profile(profile::Command),
    /// Make, check, load and start a LaunchAgent that runs a program with the shim.
    InstallAgent(install_agent::Install),
    /// Unload a LaunchAgent that was made by install-agent, and move its file away.
    UninstallAgent(install_agent::Uninstall),
    /// Show, set or delete the host's undocumented preference for unrestricted devices.
    #[command(subcommand)]
    HostPref(host_pref::Command),
}

/// Runs a subcommand.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::Profile(command) => profile::run(&command),
        Command::InstallAgent(arguments) => install_agent::install(&arguments),
        Command::UninstallAgent(arguments) => install_agent::uninstall(&arguments),
        Command::HostPref(command) => host_pref::run(&command),
    }
}
