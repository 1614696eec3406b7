//! Packages of Debian, fetched by apt with lists and caches of its own: neither root nor any change to the
//! machine is needed, and apt checks the signatures as ever.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::Artifacts;

/// The release whose mirror is looked for among the machine's sources; the others are on the same mirror.
const MACHINE_RELEASE: Release = Release::Bookworm;

/// A release whose packages are used, with its backports (newer kernels, newer QEMU).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
}

impl Release {
    fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

/// Says what a machine without Debian's tools can do.
const HINT: &str = "the VM tests need a machine with Debian 12's apt and dpkg";

/// An apt of its own below the artifacts folder.
pub struct Debian {
    release: Release,
    root: PathBuf,
    _lock: nix::fcntl::Flock<fs::File>,
}

/// A version of a package that can be had.
#[derive(Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The version.
    pub version: String,
    /// The `Depends` field, unparsed.
    pub depends: String,
}

impl Debian {
    /// Opens the private apt, and brings its lists up to date if there are none.
    ///
    /// # Errors
    /// If this is not Debian, or no mirror answers.
    pub fn open(artifacts: &Artifacts, release: Release) -> Result<Self> {
        let name = format!("apt-{}", release.name());
        let debian = Self { release, root: artifacts.folder(&name)?, _lock: artifacts.lock(&name)? };
        for folder in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(debian.root.join(folder))?;
        }
        let ready = debian.root.join("updated");
        if !ready.exists() {
            fs::write(debian.sources(), debian.sources_text()?)?;
            fs::write(debian.root.join("status"), "")?;
            debian.update()?;
            fs::write(ready, "")?;
        }
        Ok(debian)
    }

    /// The versions of `package` that can be had, newest first.
    ///
    /// # Errors
    /// If there is none.
    pub fn candidates(&self, package: &str) -> Result<Vec<Candidate>> {
        let candidates = parse_candidates(&self.apt("apt-cache", ["show", package])?);
        if candidates.is_empty() {
            bail!("{} and its backports have no package {package}", self.release.name());
        }
        Ok(candidates)
    }

    /// Fetches packages and unpacks them into `into`.
    ///
    /// # Errors
    /// Those of apt and dpkg.
    pub fn unpack(&self, packages: &[String], into: &Path) -> Result<()> {
        let download = tempfile::tempdir_in(&self.root)?;
        let fetch = || {
            self.apt_in(
                download.path(),
                "apt-get",
                ["download"].into_iter().chain(packages.iter().map(String::as_str)),
            )
        };
        if fetch().is_err() {
            // The mirror may have dropped the version that our lists name.
            self.update()?;
            fetch()?;
        }
        for entry in fs::read_dir(download.path())? {
            let package = entry?.path();
            output(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(into))?;
        }
        Ok(())
    }

    /// The packages, as `name=version`, that `package` from the backports needs, down to libc.
    ///
    /// # Errors
    /// Those of apt.
    pub fn closure(&self, package: &str) -> Result<Vec<String>> {
        let backports = format!("{}-backports", self.release.name());
        let simulated = self.apt(
            "apt-get",
            ["install", "--simulate", "--no-install-recommends", "-t", &backports, package],
        )?;
        Ok(parse_simulated(&simulated))
    }

    fn update(&self) -> Result<()> {
        self.apt("apt-get", ["update", "--error-on=any"]).map(drop)
    }

    fn sources(&self) -> PathBuf {
        self.root.join("debian.sources")
    }

    /// A sources file for the mirror that the machine's own apt uses.
    fn sources_text(&self) -> Result<String> {
        let private = |name: &str, folder: &str| format!("{name}={}", self.root.join(folder).display());
        let uris = output(
            Command::new("apt-get")
                .args(["--print-uris", "update", "-o", &private("Dir::State::lists", "lists")])
                .args(["-o", &private("Dir::Cache", "")]),
        )?;
        let mirror = parse_mirror(&uris).with_context(|| {
            format!("{HINT}: its sources name no mirror of {}. They name:\n{uris}", MACHINE_RELEASE.name())
        })?;
        let release = self.release.name();
        Ok(format!(
            "Types: deb\nURIs: {mirror}\nSuites: {release} {release}-updates {release}-backports\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        ))
    }

    fn apt<'a>(&self, tool: &str, arguments: impl IntoIterator<Item = &'a str>) -> Result<String> {
        self.apt_in(&self.root, tool, arguments)
    }

    fn apt_in<'a>(
        &self,
        dir: &Path,
        tool: &str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<String> {
        let mut command = Command::new(tool);
        command.current_dir(dir);
        for (name, value) in [
            ("Dir::Etc::sourcelist", self.sources().as_os_str()),
            ("Dir::Etc::sourceparts", OsStr::new("-")),
            ("Dir::State::lists", self.root.join("lists").as_os_str()),
            ("Dir::Cache", self.root.as_os_str()),
            // A user other than root may not use the machine's lock, and root need not drop its rights.
            // As though nothing were installed: what is fetched is the same on every machine.
            ("Dir::State::status", self.root.join("status").as_os_str()),
            ("Debug::NoLocking", OsStr::new("1")),
            ("APT::Sandbox::User", OsStr::new("root")),
        ] {
            let mut option = OsStr::new(name).to_owned();
            option.push("=");
            option.push(value);
            command.arg("-o").arg(option);
        }
        output(command.args(arguments))
    }
}

/// Runs a command to its end and returns its standard output.
fn output(command: &mut Command) -> Result<String> {
    let output =
        command.env("LC_ALL", "C").output().with_context(|| format!("{HINT}: cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Finds the machine's mirror among the lines of `apt-get --print-uris update`.
fn parse_mirror(uris: &str) -> Option<&str> {
    let suffix = format!("/dists/{}/InRelease", MACHINE_RELEASE.name());
    uris.lines().find_map(|line| line.strip_prefix('\'')?.split('\'').next()?.strip_suffix(suffix.as_str()))
}

/// Reads the stanzas of `apt-cache show`.
fn parse_candidates(stanzas: &str) -> Vec<Candidate> {
    let field = |stanza: &str, name: &str| {
        stanza.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned()))
    };
    let candidate = |stanza: &str| {
        let version = field(stanza, "Version")?;
        Some(Candidate { version, depends: field(stanza, "Depends").unwrap_or_default() })
    };
    stanzas.split("\n\n").filter_map(candidate).collect()
}

/// Reads `Inst name [old] (version …)` lines of `apt-get install --simulate`.
fn parse_simulated(text: &str) -> Vec<String> {
    let install = |line: &str| {
        let rest = line.strip_prefix("Inst ")?;
        let name = rest.split(' ').next()?;
        let version = rest.split('(').nth(1)?.split(' ').next()?;
        Some(format!("{name}={version}"))
    };
    text.lines().filter_map(install).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_apt_prints() {
        let uris = "'http://mirror.example/debian-security/dists/bookworm-security/InRelease' x 0 \n\
                    'http://mirror.example/debian/dists/bookworm/InRelease' y 0 \n";
        assert_eq!(parse_mirror(uris), Some("http://mirror.example/debian"));
        assert_eq!(parse_mirror("'http://mirror.example/debian/dists/sid/InRelease' y 0"), None);

        let stanzas = "Package: p\nVersion: 2\nDepends: a (= 2), b\n\nPackage: p\nVersion: 1\n";
        let [two, one] = &parse_candidates(stanzas)[..] else { panic!("two candidates expected") };
        assert_eq!((two.version.as_str(), two.depends.as_str()), ("2", "a (= 2), b"));
        assert_eq!((one.version.as_str(), one.depends.as_str()), ("1", ""));

        let simulated = "Reading package lists...\nInst liba [1.0] (1.1 Debian:12 [amd64])\nInst b (1:2 x [all]) []\nConf b (1:2)\n";
        assert_eq!(parse_simulated(simulated), ["liba=1.1", "b=1:2"]);
    }
}
