//! `ferry shim host-pref`: run on the host, not in the guest.
//!
//! Apple documents neither the preference nor what it does. Some report that the shim needs it, others that it makes no
//! difference; `ferry shim profile show llama-cpp-default` lists the arms that would settle it.

use super::{steps::Steps, tool};
use anyhow::{Result, bail, ensure};
use std::process::ExitCode;

const DOMAIN: &str = "com.apple.gpusw.ParavirtualizedGraphics";
const KEY: &str = "ForceUnrestrictedDeviceFeatureLevel";
/// The process that every virtual machine of Apple's framework has on the host.
const VM_PROCESS: &str = "com.apple.Virtualization.VirtualMachine";
const WARNING: &str = "This preference is undocumented, and reports disagree on whether it matters. It is read when a \
                       virtual machine starts.";

/// The subcommands of `ferry shim host-pref`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Show the preference.
    Show,
    /// Set it to true. Every virtual machine must be stopped.
    Set,
    /// Delete it, which is how macOS comes. Every virtual machine must be stopped.
    Delete,
}

/// Runs a subcommand.
pub fn run(command: &Command) -> Result<ExitCode> {
    let before = read()?;
    match command {
        Command::Show => {
            println!("{DOMAIN} {KEY} = {}", before.as_deref().unwrap_or("(not set)"));
            println!("{WARNING}");
        }
        Command::Set => {
            change(before.as_deref(), Some("1"))?;
            println!("{DOMAIN} {KEY} = 1 (was {})\n{WARNING}", before.as_deref().unwrap_or("not set"));
            println!("To undo this: ferry shim host-pref delete, or defaults delete {DOMAIN} {KEY}");
        }
        Command::Delete => {
            change(before.as_deref(), None)?;
            println!("{DOMAIN} {KEY} is not set (was {})", before.as_deref().unwrap_or("not set"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the preference and reads it back; a difference restores what was there.
fn change(before: Option<&str>, after: Option<&str>) -> Result<()> {
    ensure_no_vm()?;
    if before == after {
        return Ok(());
    }
    let mut steps = Steps::default();
    steps.step("writing the preference", || write(after), || write(before))?;
    steps.check("reading it back", || {
        let found = read()?;
        ensure!(found.as_deref() == after, "found {found:?} instead of {after:?}");
        Ok(())
    })
}

fn read() -> Result<Option<String>> {
    tool::ask("defaults", &["read", DOMAIN, KEY])
}

fn write(value: Option<&str>) -> Result<()> {
    match value {
        None => tool::run("defaults", &["delete", DOMAIN, KEY]),
        Some("1") => tool::run("defaults", &["write", DOMAIN, KEY, "-bool", "true"]),
        Some("0") => tool::run("defaults", &["write", DOMAIN, KEY, "-bool", "false"]),
        Some(other) => tool::run("defaults", &["write", DOMAIN, KEY, other]),
    }
    .map(drop)
}

fn ensure_no_vm() -> Result<()> {
    let processes = tool::run("ps", &["-axo", "pid=,comm="])?;
    let vms: Vec<&str> = processes.lines().filter(|line| line.contains(VM_PROCESS)).map(str::trim).collect();
    if !vms.is_empty() {
        bail!(
            "a virtual machine runs ({}): stop every one of them first, the preference is read at their start",
            vms.join("; ")
        );
    }
    Ok(())
}
