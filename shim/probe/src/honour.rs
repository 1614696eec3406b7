//! Runs every check in a process of its own, with a deadline: a driver may crash or hang on what it only
//! claims to support.

use crate::checks::{self, Check};
use crate::ffi::Device;
use crate::output::Said;
use anyhow::{Context, Result, bail, ensure};
use ferry_shim_contract::token::Token;
use ferry_shim_contract::{DEVICE_CLASS, DEVICE_NAME, INSERT_VARIABLE, config};
use serde::Serialize;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The highest family whose features are tried here. A token never vouches for more.
const FAMILY_TRIED_MAX: u64 = 1007;
/// Longest answer taken from a check, in bytes.
const ANSWER_LENGTH_MAX: u64 = 4096;
/// How often a running check is looked at.
const POLL: Duration = Duration::from_millis(10);

/// What is to be tried.
pub struct Request<'a> {
    /// Apple family whose features are tried.
    pub family: u64,
    /// Threadgroup memory to try, in bytes.
    pub threadgroup_memory: u64,
    /// The shim to insert, if any.
    pub shim: Option<&'a Path>,
    /// How long one check may take.
    pub timeout: Duration,
}

/// What came of one check.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result", content = "detail")]
pub enum Outcome {
    /// The results are the CPU's.
    Honoured,
    /// They are not, or there are none.
    NotHonoured(String),
    /// The process ended abnormally.
    Crashed(String),
    /// The process did not end in time and was killed.
    TimedOut(String),
}

/// One check and what came of it.
#[derive(Debug, Serialize)]
pub struct CheckResult {
    /// Name of the check.
    pub check: &'static str,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of all checks.
#[derive(Debug, Serialize)]
pub struct Honoured {
    /// One result a check.
    pub checks: Vec<CheckResult>,
    /// Where the token was written.
    pub token: Option<PathBuf>,
    /// Why there is no token, if one was asked for.
    pub no_token: Option<String>,
}

impl Honoured {
    /// Tries everything.
    pub fn try_all(request: &Request<'_>) -> Result<Self> {
        if let Some(shim) = request.shim {
            ensure!(shim.is_file(), "{}: there is no such shim", shim.display());
        }
        let try_one =
            |check: &Check| Ok(CheckResult { check: check.name(), outcome: try_one(*check, request)? });
        let checks = checks::ALL.iter().map(try_one).collect::<Result<_>>()?;
        Ok(Self { checks, token: None, no_token: None })
    }

    /// Whether every check passed.
    pub fn all(&self) -> bool {
        self.checks.iter().all(|result| result.outcome == Outcome::Honoured)
    }

    /// Writes a token where everything was honoured by the paravirtual device; otherwise removes one that is there.
    pub fn write_token(
        &mut self,
        said: &Said,
        request: &Request<'_>,
        profile: &str,
        path: &Path,
    ) -> Result<()> {
        if let Some(reason) = self.reason_against(said) {
            self.no_token = Some(reason);
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("removing the stale token {}", path.display()))
                }
                _ => Ok(()),
            };
        }
        let checks: Vec<&str> = self.checks.iter().map(|result| result.check).collect();
        let token = Token {
            guest_build: &said.guest_build,
            device_name: &said.device,
            device_class: &said.device_class,
            profile,
            family_max: request.family.min(FAMILY_TRIED_MAX),
            threadgroup_memory: request.threadgroup_memory,
            checks: &checks.join(","),
        }
        .to_string();
        // A profile key with a line break in it, say, would make a token that no shim accepts.
        ensure!(Token::parse(token.as_bytes()).is_ok(), "a profile key is one word, like ID@DIGEST");
        write_whole(path, &token).with_context(|| format!("writing the token {}", path.display()))?;
        self.token = Some(path.to_owned());
        Ok(())
    }

    fn reason_against(&self, said: &Said) -> Option<String> {
        if !self.all() {
            return Some("not everything was honoured".into());
        }
        let is_paravirtual = said.device == DEVICE_NAME && said.device_class == DEVICE_CLASS;
        (!is_paravirtual).then(|| format!("this is {}, not the {DEVICE_NAME}: it needs no shim", said.device))
    }
}

/// In a check's process: the shim must be at work, or the check would speak for a stock device.
pub fn ensure_claimed(device: &Device, family: u64) -> Result<()> {
    ensure!(
        device.shim_version().is_some(),
        "the shim was not inserted: is this program allowed to take libraries?"
    );
    ensure!(device.supports_family(family)?, "the shim is at work, but family {family} is not claimed");
    Ok(())
}

fn write_whole(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

fn try_one(check: Check, request: &Request<'_>) -> Result<Outcome> {
    let mut child = command(check, request)?.spawn().context("starting a check")?;
    let Some(status) = wait(&mut child, request.timeout)? else {
        return Ok(Outcome::TimedOut(format!("no answer after {} s", request.timeout.as_secs())));
    };
    let mut answer = String::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(ANSWER_LENGTH_MAX).read_to_string(&mut answer).context("reading a check's answer")?;
    }
    Ok(judge(status, answer.trim_end()))
}

fn judge(status: ExitStatus, answer: &str) -> Outcome {
    match status.code() {
        Some(0) if answer == "ok" => Outcome::Honoured,
        Some(1) => Outcome::NotHonoured(answer.to_owned()),
        Some(2) => Outcome::NotHonoured("the check could not be run; see standard error".into()),
        _ => Outcome::Crashed(status.to_string()),
    }
}

fn command(check: Check, request: &Request<'_>) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command
        .args([request.family.to_string(), "--honour".into(), "--check".into(), check.name().into()])
        .args(["--threadgroup-memory".into(), request.threadgroup_memory.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if let Some(shim) = request.shim {
        for variable in [config::REQUIRED, config::TOKEN, config::PROFILE] {
            command.env_remove(variable.name);
        }
        command.arg("--shim").arg(shim).env(INSERT_VARIABLE, inserted(shim)?);
        for (variable, value) in
            [(config::FAMILY_MAX, request.family), (config::THREADGROUP_MEMORY, request.threadgroup_memory)]
        {
            command.env(variable.name, value.to_string());
            variable.reference.iter().for_each(|name| _ = command.env_remove(name));
        }
    }
    Ok(command)
}

/// The shim before whatever is inserted already.
fn inserted(shim: &Path) -> Result<String> {
    let shim = shim
        .to_str()
        .filter(|path| !path.contains([':', ' ']))
        .context("the shim's path has a colon or space")?;
    match std::env::var(INSERT_VARIABLE) {
        Ok(others) if !others.is_empty() => Ok(format!("{shim}:{others}")),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(shim.to_owned()),
        Err(error) => bail!("{INSERT_VARIABLE}: {error}"),
    }
}

/// Waits up to a deadline, then kills; `None` if it came to that.
fn wait(child: &mut Child, timeout: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a check")? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill().context("killing a check")?;
            child.wait().context("waiting for a killed check")?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}
