//! `ferry shim run`.

use super::{EXIT_UNUSABLE, Unusable, artifacts, binary, claim};
use anyhow::{Context, Result, anyhow};
use ferry_shim_contract::config::{self, Variable};
use ferry_shim_contract::status::{State, StatusLine};
use ferry_shim_contract::{EXIT_NOT_INSTALLED, INSERT_VARIABLE};
use ferry_shim_profiles::Claim;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

/// Arguments of `ferry shim run`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    claim: claim::ClaimArguments,
    /// End with status 78 unless the shim is installed, and ask for the token of an honoured probe.
    #[arg(long)]
    required: bool,
    /// Keep the shim's status lines in this file.
    #[arg(long, value_name = "PATH")]
    status: Option<PathBuf>,
    /// Program and arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Variables for the shim, by name.
pub type Environment = Vec<(&'static str, OsString)>;

/// Runs a program with the shim; its exit status is ours.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let program = find(&arguments.program[0])?;
    let library = arguments.claim.library()?;
    binary::ensure_shim(&library)?;
    binary::ensure_insertable(&program)?;
    let claim = arguments.claim.claim(Some(&program))?;
    let folder = tempfile::tempdir().context("a folder for the status file")?;
    let status =
        arguments.status.as_deref().map_or_else(|| Ok(folder.path().join("status")), std::path::absolute)?;
    let environment = environment(&claim, &status, arguments.required)?;
    let already = std::fs::metadata(&status).map_or(0, |metadata| metadata.len());

    let mut command = Command::new(&program);
    command.args(&arguments.program[1..]);
    insert(&mut command, &library, environment)?;
    let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
    let exit = child.wait().with_context(|| format!("waiting for {}", program.display()))?;
    let verdict = verdict(&status, already, child.id());
    if let Err(trouble) = &verdict {
        eprintln!("ferry: {trouble}");
    }
    if arguments.required && verdict.is_err() && exit.success() {
        return Ok(ExitCode::from(EXIT_UNUSABLE));
    }
    Ok(exit_code(exit))
}

/// The variables that tell the shim what to do.
pub fn environment(claim: &Claim, status: &Path, required: bool) -> Result<Environment> {
    let mut variables: Environment = vec![
        (config::FAMILY_MAX.name, claim.family_max.to_string().into()),
        (config::STATUS.name, status.into()),
        (config::PROFILE.name, claim.key.clone().into()),
    ];
    if let Some(bytes) = claim.threadgroup_memory {
        variables.push((config::THREADGROUP_MEMORY.name, bytes.to_string().into()));
    }
    if required {
        let token = artifacts::token(&claim.key)?;
        if !token.exists() {
            let hint = "run `ferry shim probe --honour` with the same options first";
            return Err(anyhow!(Unusable(format!(
                "a required shim needs the token {}: {hint}",
                token.display()
            ))));
        }
        variables.push((config::REQUIRED.name, "1".into()));
        variables.push((config::TOKEN.name, token.into()));
    }
    Ok(variables)
}

/// Inserts the shim into a command, before whatever is inserted already, with these variables and no others of its.
pub fn insert(command: &mut Command, library: &Path, environment: Environment) -> Result<()> {
    for Variable { name, reference } in config::ALL {
        command.env_remove(name);
        reference.iter().for_each(|name| _ = command.env_remove(name));
    }
    command.envs(environment);
    let mut list = library.as_os_str().to_owned();
    let separators: &[u8] = if cfg!(target_vendor = "apple") { b":" } else { b": " };
    if list.as_encoded_bytes().iter().any(|byte| separators.contains(byte)) {
        return Err(anyhow!(Unusable(format!(
            "{}: the dynamic linker splits such a path",
            library.display()
        ))));
    }
    if let Some(others) = std::env::var_os(INSERT_VARIABLE).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    command.env(INSERT_VARIABLE, list);
    Ok(())
}

/// What the shim in process `pid` had to say; an error is trouble that a user should hear of.
fn verdict(status: &Path, already: u64, pid: u32) -> Result<(), String> {
    let text = std::fs::read_to_string(status).unwrap_or_default();
    let new = text.get(usize::try_from(already).unwrap_or(usize::MAX)..).unwrap_or_default();
    let lines: Vec<StatusLine<&str>> =
        new.lines().filter_map(StatusLine::parse).filter(|line| line.pid == pid).collect();
    let has = |state| lines.iter().find(|line| line.state == state);
    if let Some(line) = lines.iter().find(|line| line.state.is_trouble()) {
        return Err(format!("the shim was not used ({}): {}", line.state.word(), line.detail));
    }
    if has(State::Installed).is_some() {
        return Ok(());
    }
    if let Some(line) = has(State::Skipped) {
        return Err(format!("the shim was not used: {}", line.detail));
    }
    match has(State::Armed) {
        Some(_) => Err("the program made no Metal device, so the shim had nothing to do".into()),
        None => {
            Err("the shim was never loaded: the program ignores inserted libraries (a hardened runtime, a \
                     protected program or a wrapper script does)"
                .into())
        }
    }
}

/// The program's path, searched as the shell does.
pub fn find(program: &OsStr) -> Result<PathBuf> {
    let given = Path::new(program);
    if given.components().count() > 1 {
        return std::path::absolute(given).context("the program's path");
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|folder| folder.join(given)).find(|path| path.is_file());
    found.with_context(|| format!("there is no program {} in PATH", given.display()))
}

fn exit_code(exit: ExitStatus) -> ExitCode {
    // As shells do: a signal is 128 and its number.
    let code = exit.code().or_else(|| exit.signal().map(|signal| 128 + signal)).unwrap_or(EXIT_NOT_INSTALLED);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
