//! `metal-capabilities`: what the Metal device says of itself, and whether it keeps its word.

mod checks;
mod ffi;
mod honour;
mod output;
mod rt;

use anyhow::{Context, Result, bail};
use checks::Check;
use clap::Parser;
use ferry_shim_contract::{APPLE_FAMILIES, config};
use ffi::Device;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Family that is asked for unless another is named: what llama.cpp gates its fast paths on.
const FAMILY_DEFAULT: u64 = 1007;
/// Threadgroup memory that is tried unless another size is named, in bytes: what every Apple GPU has.
const THREADGROUP_MEMORY_DEFAULT: u64 = 32_768;

/// Asks the Metal device what it says of itself, and with --honour whether it keeps its word.
///
/// Exit status: 0 for yes, 1 for no, 2 if it could not be asked.
#[derive(Parser)]
#[command(name = "metal-capabilities", version)]
struct Arguments {
    /// The GPU family to ask for.
    #[arg(default_value_t = FAMILY_DEFAULT)]
    family: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Compile and run a small kernel for each feature behind the claim, each in a process of its own, and compare
    /// the results with the CPU's.
    #[arg(long)]
    honour: bool,
    /// Threadgroup memory to try, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = THREADGROUP_MEMORY_DEFAULT)]
    threadgroup_memory: u64,
    /// Insert this shim into the processes that run the kernels, claiming FAMILY.
    #[arg(long, value_name = "PATH", requires = "honour")]
    shim: Option<PathBuf>,
    /// Write a token here if everything is honoured, and remove it if not.
    #[arg(long, value_name = "PATH", requires = "honour", requires = "profile")]
    token: Option<PathBuf>,
    /// Key of the profile that the token is for.
    #[arg(long, value_name = "KEY")]
    profile: Option<String>,
    /// How long one kernel may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout_s: u64,
    /// Run one check in this process; what --honour starts.
    #[arg(long, hide = true)]
    check: Option<Check>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("metal-capabilities: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool> {
    if !config::THREADGROUP_MEMORY_RANGE.contains(&arguments.threadgroup_memory)
        || !arguments.threadgroup_memory.is_multiple_of(config::THREADGROUP_MEMORY_STEP)
    {
        let (range, step) = (config::THREADGROUP_MEMORY_RANGE, config::THREADGROUP_MEMORY_STEP);
        bail!("threadgroup memory {}: want a multiple of {step} in {range:?}", arguments.threadgroup_memory);
    }
    let device = Device::system_default().context("no Metal device to ask")?;
    if let Some(check) = arguments.check {
        return run_check(&device, check, arguments);
    }
    let said = output::Said::ask(&device, arguments.family)?;
    if !arguments.honour {
        output::print(&said, None, arguments.json)?;
        return Ok(said.supports_family);
    }
    if !APPLE_FAMILIES.contains(&arguments.family) {
        bail!("family {} is not one of Apple's: there is nothing to honour", arguments.family);
    }
    let request = honour::Request {
        family: arguments.family,
        threadgroup_memory: arguments.threadgroup_memory,
        shim: arguments.shim.as_deref(),
        timeout: Duration::from_secs(arguments.timeout_s),
    };
    let mut honoured = honour::Honoured::try_all(&request)?;
    if let (Some(path), Some(profile)) = (&arguments.token, &arguments.profile) {
        honoured.write_token(&said, &request, profile, path)?;
    }
    output::print(&said, Some(&honoured), arguments.json)?;
    Ok(honoured.all())
}

/// One check in this process. Its answer is the first line of standard output.
fn run_check(device: &Device, check: Check, arguments: &Arguments) -> Result<bool> {
    if arguments.shim.is_some() {
        honour::ensure_claimed(device, arguments.family)?;
    }
    let outcome = checks::run(device, check, arguments.threadgroup_memory);
    match &outcome {
        Ok(()) => println!("ok"),
        Err(error) => println!("{error:#}"),
    }
    Ok(outcome.is_ok())
}
