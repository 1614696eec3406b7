//! The files that profiles are written in.

use crate::BuildRange;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The families that a profile may claim.
pub(crate) const APPLE_FAMILIES: RangeInclusive<u64> = 1001..=1999;
/// The threadgroup memory that a profile may claim, in bytes.
pub(crate) const THREADGROUP_MEMORY: RangeInclusive<u64> = 16_384..=65_536;
/// Longest id: it travels in a key through an environment variable.
const ID_LENGTH_MAX: usize = 64;
/// In a list of chips, systems or builds: matches all.
const ANY: &str = "any";

/// What may be claimed for one combination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Short name: lower-case letters, digits, `-` and `.`.
    pub id: String,
    /// The program, like `llama.cpp`.
    pub app: String,
    /// The graphics interface; `metal` is the only one there is.
    pub api: String,
    /// The program's builds, as a range.
    builds: String,
    /// Chips of the host, or `any`.
    pub host_chips: Vec<String>,
    /// Systems of the host, like `26.6.1`, or `any`.
    pub host_os: Vec<String>,
    /// Builds of the guest's system, like `25F84`, or `any`.
    pub guest_builds: Vec<String>,
    /// How far it is to be trusted.
    pub standing: Standing,
    /// Highest Apple family to claim; absent where claiming gains nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apple_family_max: Option<u64>,
    /// Threadgroup memory to claim, in bytes; absent leaves the device's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threadgroup_memory: Option<u64>,
    /// What a reader should know.
    pub note: String,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
    /// What would settle it, for a profile that was not measured.
    #[serde(default, rename = "arm", skip_serializing_if = "Vec::is_empty")]
    pub arms: Vec<Arm>,
}

/// How far a profile is to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Somebody measured this combination, and it paid.
    Measured,
    /// Read out of the source, never measured: an experiment.
    Derived,
    /// Somebody measured this combination, and it gained nothing.
    NoGain,
}

/// One thing that a profile rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Measured, or read.
    pub kind: EvidenceKind,
    /// What was measured or read, and where it is.
    pub what: String,
    /// When, as `YYYY-MM-DD`.
    pub date: String,
    /// SHA-256 of the file it was done with or that was read.
    pub sha256: String,
}

/// The kinds of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvidenceKind {
    /// A run with figures.
    Measurement,
    /// A reading of a program's source.
    Source,
}

/// One arm of a comparison that would settle a derived profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// What to call it.
    pub name: String,
    /// Family to claim; absent for stock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apple_family_max: Option<u64>,
    /// Threadgroup memory to claim, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threadgroup_memory: Option<u64>,
    /// Whether the host's undocumented preference is set.
    #[serde(default)]
    pub host_preference: bool,
}

/// Why a profile file is not usable.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ProfileError {
    #[error("{}: {error}", .path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("{} has {length} bytes; a profile file has at most {length_max}", .path.display())]
    TooLong { path: PathBuf, length: u64, length_max: u64 },
    #[error("{file}: {reason}")]
    Malformed { file: String, reason: String },
    #[error("profile id '{id}' is taken already: choose another")]
    RepeatedId { id: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    profile: Vec<Profile>,
}

pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Profile>, ProfileError> {
    let malformed = |reason| ProfileError::Malformed { file: file.to_owned(), reason };
    let parsed: File = toml::from_str(text).map_err(|error| malformed(error.to_string()))?;
    for profile in &parsed.profile {
        profile.check().map_err(|reason| malformed(format!("profile '{}': {reason}", profile.id)))?;
    }
    Ok(parsed.profile)
}

impl Profile {
    fn check(&self) -> Result<(), String> {
        let id_chars = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'.';
        if self.id.is_empty() || self.id.len() > ID_LENGTH_MAX || !self.id.bytes().all(id_chars) {
            return Err(format!("an id has up to {ID_LENGTH_MAX} lower-case letters, digits, '-' and '.'"));
        }
        if self.api != "metal" {
            return Err(format!("api is '{}': only metal is known", self.api));
        }
        self.builds.parse::<BuildRange>()?;
        for (key, list) in [
            ("host_chips", &self.host_chips),
            ("host_os", &self.host_os),
            ("guest_builds", &self.guest_builds),
        ] {
            if list.is_empty() || (list.len() > 1 && list.iter().any(|item| item == ANY)) {
                return Err(format!("{key} lists what is meant, or only '{ANY}'"));
            }
        }
        check_claim(self.apple_family_max, self.threadgroup_memory)?;
        self.arms.iter().try_for_each(|arm| check_claim(arm.apple_family_max, arm.threadgroup_memory))?;
        self.check_standing()?;
        self.evidence.iter().try_for_each(Evidence::check)
    }

    fn check_standing(&self) -> Result<(), String> {
        if (self.standing == Standing::NoGain) != self.apple_family_max.is_none() {
            return Err("apple_family_max is there exactly if the standing is not no-gain".into());
        }
        let is_measured = self.evidence.iter().any(|evidence| evidence.kind == EvidenceKind::Measurement);
        if self.evidence.is_empty() || (self.standing != Standing::Derived && !is_measured) {
            return Err("the standing needs evidence: a measurement, or for derived a source".into());
        }
        let lists = [&self.host_chips, &self.host_os, &self.guest_builds];
        if self.standing != Standing::Derived && lists.iter().any(|list| list.iter().any(|item| item == ANY))
        {
            return Err(format!("nobody has measured '{ANY}': name what was measured"));
        }
        if self.standing == Standing::Derived && self.arms.is_empty() {
            return Err("a derived profile names the arms that would settle it".into());
        }
        Ok(())
    }

    /// The builds that it speaks for.
    #[must_use]
    pub fn builds(&self) -> &str {
        &self.builds
    }

    pub(crate) fn build_range(&self) -> Option<BuildRange> {
        self.builds.parse().ok()
    }

    pub(crate) fn has_host_chip(&self, chip: &str) -> bool {
        lists(&self.host_chips, chip)
    }

    pub(crate) fn has_host_os(&self, version: &str) -> bool {
        lists(&self.host_os, version)
    }

    pub(crate) fn has_guest_build(&self, build: &str) -> bool {
        lists(&self.guest_builds, build)
    }

    /// Names this very text of the profile: `id@` and the first 64 bits of its SHA-256 in hexadecimal, so
    /// that a token made for an earlier text is no good for a later one.
    #[must_use]
    pub fn key(&self) -> String {
        // Serialising a struct of strings, numbers and lists cannot fail.
        let text = toml::to_string(self).unwrap_or_default();
        format!("{}@{}", self.id, digest(&text))
    }
}

/// The first 64 bits of a text's SHA-256, in hexadecimal.
pub(crate) fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        _ = write!(hex, "{byte:02x}");
        hex
    })
}

pub(crate) fn check_claim(family_max: Option<u64>, memory: Option<u64>) -> Result<(), String> {
    if let Some(family) = family_max.filter(|family| !APPLE_FAMILIES.contains(family)) {
        return Err(format!("family {family} is not one of Apple's ({APPLE_FAMILIES:?})"));
    }
    match memory {
        Some(bytes) if !THREADGROUP_MEMORY.contains(&bytes) || bytes % 16 != 0 => {
            Err(format!("threadgroup memory {bytes} is not a multiple of 16 in {THREADGROUP_MEMORY:?}"))
        }
        Some(_) if family_max.is_none() => Err("threadgroup memory without a family claims nothing".into()),
        _ => Ok(()),
    }
}

impl Evidence {
    fn check(&self) -> Result<(), String> {
        let shape = |text: &str, pattern: &str| {
            text.len() == pattern.len()
                && text
                    .bytes()
                    .zip(pattern.bytes())
                    .all(|(c, p)| if p == b'9' { c.is_ascii_digit() } else { c == p })
        };
        if !shape(&self.date, "9999-99-99") {
            return Err(format!("date '{}' is not YYYY-MM-DD", self.date));
        }
        if self.sha256.len() != 64
            || !self.sha256.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
        {
            return Err(format!("sha256 '{}' is not 64 lower-case hexadecimal digits", self.sha256));
        }
        if self.what.trim().is_empty() { Err("evidence says what it is".into()) } else { Ok(()) }
    }
}

fn lists(list: &[String], item: &str) -> bool {
    list.iter().any(|listed| listed == ANY || listed == item)
}
