//! Other people's programs, run to the end.

use anyhow::{Context, Result, bail};
use std::io::ErrorKind;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How often a program with a deadline is looked at.
const POLL: Duration = Duration::from_millis(10);

/// Runs a tool of macOS and returns its standard output; an error repeats what it said.
pub fn run(name: &str, arguments: &[&str]) -> Result<String> {
    let output = start(name, arguments)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{name} {}` failed ({}): {}", arguments.join(" "), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a tool whose failure is an answer: `None` then.
pub fn ask(name: &str, arguments: &[&str]) -> Result<Option<String>> {
    let output = start(name, arguments)?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

fn start(name: &str, arguments: &[&str]) -> Result<Output> {
    match Command::new(name).args(arguments).stdin(Stdio::null()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("there is no `{name}`: this needs macOS"),
        output => output.with_context(|| format!("running `{name}`")),
    }
}

/// What a program prints, on either output; `None` if it does not start or does not end in time.
pub fn output_within(mut command: Command, deadline: Duration) -> Option<String> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    let start = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if start.elapsed() > deadline {
            child.kill().ok()?;
            child.wait().ok()?;
            return None;
        }
        std::thread::sleep(POLL);
    }
    let output = child.wait_with_output().ok()?;
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}
