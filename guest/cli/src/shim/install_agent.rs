//! `ferry shim install-agent` and `uninstall-agent`.

use super::agent::{Agent, Label, ensure_ours};
use super::steps::Steps;
use super::{artifacts, binary, claim, run, tool};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `ferry shim install-agent`.
#[derive(clap::Args)]
pub struct Install {
    /// The workload's label, like org.example.llama.
    #[arg(long)]
    label: Label,
    #[command(flatten)]
    claim: claim::ClaimArguments,
    /// Let the program end unless the shim is installed, and ask for the token of an honoured probe.
    #[arg(long)]
    required: bool,
    /// A variable for the program.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    own: Vec<(String, String)>,
    /// The program's working directory.
    #[arg(long, value_name = "PATH")]
    working_directory: Option<PathBuf>,
    /// Print the property list and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Program and arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Arguments of `ferry shim uninstall-agent`.
#[derive(clap::Args)]
pub struct Uninstall {
    /// The workload's label.
    #[arg(long)]
    label: Label,
}

/// Makes, checks, loads and starts an agent; whatever fails puts everything back.
pub fn install(arguments: &Install) -> Result<ExitCode> {
    let home = artifacts::home()?;
    let label = &arguments.label;
    let mut program = arguments.program.clone();
    let path = run::find(&program[0])?;
    program[0] = path.clone().into();
    binary::ensure_insertable(&path)?;
    let library = arguments.claim.library()?;
    binary::ensure_shim(&library)?;
    let claim = arguments.claim.claim(Some(&path))?;
    let shim = run::environment(&claim, &label.log(&home, "shim"), arguments.required)?;
    let folder = arguments.working_directory.as_deref().map(std::path::absolute).transpose()?;
    let (own, folder) = (arguments.own.as_slice(), folder.as_deref());
    let agent = Agent { label, home: &home, program: &program, library: &library, shim: &shim, own, folder };
    let xml = agent.to_xml()?;
    if arguments.dry_run {
        std::io::stdout().write_all(&xml)?;
        return Ok(ExitCode::SUCCESS);
    }
    place(label, &home, &xml)?;
    println!("{} runs; its logs are {}", label.as_str(), label.log(&home, "*").display());
    println!("To undo this: ferry shim uninstall-agent --label {}", label.as_str());
    Ok(ExitCode::SUCCESS)
}

fn place(label: &Label, home: &Path, xml: &[u8]) -> Result<()> {
    let path = label.path(home);
    let folder = path.parent().context("the agents' folder")?;
    std::fs::create_dir_all(folder)?;
    std::fs::create_dir_all(home.join("Library/Logs"))?;
    let (domain, target) = (domain(), format!("{}/{}", domain(), label.as_str()));
    let previous = path.with_extension("plist.previous");
    let has_previous = path.exists();
    if has_previous {
        ensure_ours(&path, label)?;
    }
    let mut steps = Steps::default();
    let draft = steps.check("writing the property list", || draft(folder, xml))?;
    steps.check("checking the property list", || {
        tool::run("plutil", &["-lint", &draft.path().to_string_lossy()])
    })?;
    if has_previous {
        let reload = || load(&domain, &path);
        steps.step("unloading the previous agent", || unload(&target), reload)?;
        let back = || Ok(std::fs::rename(&previous, &path)?);
        steps.step("keeping the previous property list", || Ok(std::fs::rename(&path, &previous)?), back)?;
    }
    let remove = || Ok(std::fs::remove_file(&path)?);
    let persist = || draft.persist_noclobber(&path).map(drop).map_err(Into::into);
    steps.step("putting the property list in place", persist, remove)?;
    steps.step("loading the agent", || load(&domain, &path), || boot_out(&target))?;
    steps.check("starting the agent", || tool::run("launchctl", &["kickstart", "-k", &target]))?;
    steps.check("looking at the agent", || tool::run("launchctl", &["print", &target]))?;
    if has_previous {
        std::fs::remove_file(&previous).with_context(|| format!("removing {}", previous.display()))?;
    }
    Ok(())
}

/// Unloads an agent and moves its file away, so that the next login does not load it.
pub fn uninstall(arguments: &Uninstall) -> Result<ExitCode> {
    let (home, label) = (artifacts::home()?, &arguments.label);
    let path = label.path(&home);
    ensure_ours(&path, label)?;
    let (domain, target) = (domain(), format!("{}/{}", domain(), label.as_str()));
    let away = path.with_extension("plist.removed");
    let mut steps = Steps::default();
    steps.step("unloading the agent", || unload(&target), || load(&domain, &path))?;
    steps.check("moving the property list away", || Ok(std::fs::rename(&path, &away)?))?;
    println!("{} is unloaded; its property list is now {}", label.as_str(), away.display());
    Ok(ExitCode::SUCCESS)
}

fn draft(folder: &Path, xml: &[u8]) -> Result<tempfile::NamedTempFile> {
    let mut draft = tempfile::Builder::new().prefix(".ferry-").suffix(".draft").tempfile_in(folder)?;
    draft.write_all(xml)?;
    // launchd refuses property lists that others may write.
    draft.as_file().set_permissions(PermissionsExt::from_mode(0o644))?;
    draft.as_file().sync_all()?;
    Ok(draft)
}

fn load(domain: &str, path: &Path) -> Result<()> {
    tool::run("launchctl", &["bootstrap", domain, &path.to_string_lossy()]).map(drop)
}

/// An agent that is not loaded is as good as unloaded.
fn unload(target: &str) -> Result<()> {
    match tool::ask("launchctl", &["print", target])? {
        Some(_) => boot_out(target),
        None => Ok(()),
    }
}

fn boot_out(target: &str) -> Result<()> {
    tool::run("launchctl", &["bootout", target]).map(drop)
}

fn domain() -> String {
    format!("gui/{}", nix::unistd::getuid())
}

fn pair(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => bail!("want NAME=VALUE"),
    }
}
