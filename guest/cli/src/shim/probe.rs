//! `ferry shim probe`.

use super::run::{environment, insert};
use super::{artifacts, binary, claim};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Arguments of `ferry shim probe`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    claim: claim::ClaimArguments,
    /// Compile and run a small kernel for each feature behind the claim, and write a token if all is honoured.
    #[arg(long)]
    honour: bool,
    /// Ask the device without the shim.
    #[arg(long, conflicts_with = "honour")]
    stock: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Write the token here instead of where `ferry shim run --required` looks.
    #[arg(long, value_name = "PATH", requires = "honour")]
    token: Option<PathBuf>,
    /// The probe, if it is not beside this program.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// Runs the probe; its exit status is ours: 0 for yes, 1 for no, 2 if the device could not be asked.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let program = artifacts::probe(arguments.program.as_deref())?;
    let library = arguments.claim.library()?;
    binary::ensure_shim(&library)?;
    let claim = arguments.claim.claim(None)?;
    let mut command = Command::new(&program);
    command.arg(claim.family_max.to_string());
    if arguments.json {
        command.arg("--json");
    }
    let folder = tempfile::tempdir().context("a folder for the status file")?;
    if arguments.honour {
        let token = arguments.token.clone().map_or_else(|| artifacts::token(&claim.key), Ok)?;
        command.arg("--honour").arg("--shim").arg(&library).arg("--token").arg(token);
        command.args(["--profile", &claim.key]);
        if let Some(bytes) = claim.threadgroup_memory {
            command.args(["--threadgroup-memory", &bytes.to_string()]);
        }
    } else if !arguments.stock {
        insert(&mut command, &library, environment(&claim, &folder.path().join("status"), false)?)?;
    }
    let exit = command.status().with_context(|| format!("starting {}", program.display()))?;
    Ok(ExitCode::from(exit.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2)))
}
