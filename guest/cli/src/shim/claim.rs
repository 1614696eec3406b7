//! From command line and machine to a claim.

use super::{Unusable, artifacts, tool};
use anyhow::{Context, Result, anyhow};
use ferry_shim_contract::{BUILD_LENGTH_MAX, guest_build};
use ferry_shim_profiles::{Build, Catalogue, Claim, Combination, Overrides};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a program may take to say its version.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);

/// What decides about a claim.
#[derive(clap::Args)]
pub struct ClaimArguments {
    /// The program and its build, like llama.cpp@b10167. Programs of llama.cpp are asked themselves.
    #[arg(long, value_name = "NAME[@BUILD]")]
    app: Option<String>,
    /// The host's chip, like "Apple M1 Ultra"; a guest sees only "Apple M1 (Virtual)".
    #[arg(long, value_name = "CHIP", env = "FERRY_HOST_CHIP")]
    host_chip: Option<String>,
    /// The host's macOS, like 26.6.1; a guest cannot see it.
    #[arg(long, value_name = "VERSION", env = "FERRY_HOST_OS")]
    host_os: Option<String>,
    /// Use this profile instead of the one that matches best.
    #[arg(long = "profile", value_name = "ID")]
    id: Option<String>,
    /// Read further profiles from this file.
    #[arg(long, value_name = "PATH")]
    profiles: Vec<PathBuf>,
    /// Accept a combination that nobody has measured.
    #[arg(long)]
    experimental: bool,
    /// Claim this family instead of the profile's (with --experimental).
    #[arg(long, value_name = "FAMILY")]
    family_max: Option<u64>,
    /// Claim this much threadgroup memory, in bytes, instead of the profile's (with --experimental).
    #[arg(long, value_name = "BYTES")]
    threadgroup_memory: Option<u64>,
    /// The shim, if it is not beside this program.
    #[arg(long, value_name = "PATH", env = "FERRY_SHIM_LIBRARY")]
    library: Option<PathBuf>,
}

impl ClaimArguments {
    /// The shim.
    pub fn library(&self) -> Result<PathBuf> {
        artifacts::library(self.library.as_deref())
    }

    /// The claim for a program, with its remarks printed.
    pub fn claim(&self, program: Option<&Path>) -> Result<Claim> {
        let (app, build) = self.app_and_build(program)?;
        let combination = Combination {
            app,
            build,
            api: "metal".into(),
            host_chip: self.host_chip.clone().map_or_else(chip, Ok)?,
            host_os: self.host_os.clone(),
            guest_build: this_guest_build()?,
        };
        let overrides =
            Overrides { family_max: self.family_max, threadgroup_memory: self.threadgroup_memory };
        let claim = self.catalogue()?.claim(&combination, self.id.as_deref(), overrides, self.experimental);
        let claim = claim.map_err(|refused| anyhow!(Unusable(refused.to_string())))?;
        for remark in &claim.remarks {
            eprintln!("ferry: {remark}");
        }
        Ok(claim)
    }

    /// The built-in profiles and those of --profiles.
    pub fn catalogue(&self) -> Result<Catalogue> {
        let mut catalogue = Catalogue::built_in()?;
        for path in &self.profiles {
            catalogue.add_file(path)?;
        }
        Ok(catalogue)
    }

    fn app_and_build(&self, program: Option<&Path>) -> Result<(String, Option<Build>)> {
        if let Some(app) = &self.app {
            return match app.split_once('@') {
                None => Ok((app.clone(), None)),
                Some((name, build)) => {
                    Ok((name.to_owned(), Some(build.parse().map_err(|error: String| anyhow!(error))?)))
                }
            };
        }
        let name = program.and_then(Path::file_name).and_then(|name| name.to_str());
        match (program, name) {
            (Some(program), Some(name)) if name.starts_with("llama-") => {
                Ok(("llama.cpp".into(), ask_build(program)))
            }
            _ => Err(anyhow!(Unusable(
                "say which program this is: --app NAME@BUILD, like llama.cpp@b10167".into()
            ))),
        }
    }
}

/// Programs of llama.cpp print `version: 10167 (ee3d1b54c)`.
fn ask_build(program: &Path) -> Option<Build> {
    let mut command = Command::new(program);
    command.arg("--version");
    let said = tool::output_within(command, VERSION_DEADLINE)?;
    let number = said.lines().find_map(|line| line.strip_prefix("version: "))?.split(' ').next()?;
    format!("b{number}").parse().ok()
}

fn chip() -> Result<String> {
    let hint = "the host's chip is not known; name it with --host-chip, like \"Apple M1 Ultra\"";
    match tool::ask("sysctl", &["-n", "machdep.cpu.brand_string"]) {
        Ok(Some(name)) if !name.is_empty() => Ok(name),
        _ => Err(anyhow!(Unusable(hint.into()))),
    }
}

fn this_guest_build() -> Result<String> {
    let mut buffer = [0; BUILD_LENGTH_MAX];
    let build = guest_build(&mut buffer).context("the kernel does not say its build")?;
    Ok(String::from_utf8_lossy(build).into_owned())
}
