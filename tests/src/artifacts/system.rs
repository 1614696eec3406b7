//! System packages: found, else installed where that is allowed (root on Debian), else named exactly.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

/// apt-get on a slow mirror.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);

/// A program that must run, and the Debian package that has it.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    probe: &'static [&'static str],
    package: &'static str,
}

/// Python's package client.
pub const PIP: Need = Need { probe: &["python3", "-m", "pip", "--version"], package: "python3-pip" };
/// Node.js.
pub const NODE: Need = Need { probe: &["node", "--version"], package: "nodejs" };
/// Node's package client.
pub const NPM: Need = Need { probe: &["npm", "--version"], package: "npm" };
/// The generator of llama.cpp's build.
pub const CMAKE: Need = Need { probe: &["cmake", "--version"], package: "cmake" };
/// The builder.
pub const NINJA: Need = Need { probe: &["ninja", "--version"], package: "ninja-build" };
/// The C++ compiler.
pub const CXX: Need = Need { probe: &["c++", "--version"], package: "g++" };
/// The C compiler.
pub const CC: Need = Need { probe: &["cc", "--version"], package: "gcc" };
/// Mesa's Vulkan device on a CPU, and the loader that finds it.
pub const LAVAPIPE: Need =
    Need { probe: &["sh", "-c", "ls /usr/share/vulkan/icd.d/lvp_icd*.json"], package: "mesa-vulkan-drivers" };
/// The compiler of shaders.
pub const GLSLC: Need = Need { probe: &["glslc", "--version"], package: "glslc" };
/// Counts instructions.
pub const VALGRIND: Need = Need { probe: &["valgrind", "--version"], package: "valgrind" };

/// Makes sure that all of `needs` are there.
pub fn require(needs: &[Need]) -> Result<()> {
    let missing: Vec<&str> = needs.iter().filter(|need| !runs(need.probe)).map(|need| need.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    let command = format!("apt-get update && apt-get install --yes --no-install-recommends {packages}");
    let may_install = nix::unistd::geteuid().is_root() && runs(&["apt-get", "--version"]);
    if !may_install {
        bail!(
            "these system packages are missing: {packages}\nOn Debian or Ubuntu, run:  sudo sh -c '{command}'"
        );
    }
    eprintln!("  installing system packages: {packages}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).env("DEBIAN_FRONTEND", "noninteractive");
    process::run(&mut shell, INSTALL_TIMEOUT)?.success().with_context(|| format!("installing {packages}"))?;
    Ok(())
}

fn runs(command: &[&str]) -> bool {
    let (program, arguments) = command.split_first().expect("a probe names a program");
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
