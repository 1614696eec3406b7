//! From a combination to a claim, or a reason why not.

use crate::schema::{check_claim, digest};
use crate::{Build, Catalogue, Profile, Standing};

/// Program, host and guest that a claim is asked for.
#[derive(Clone, Debug)]
pub struct Combination {
    /// The program, like `llama.cpp`.
    pub app: String,
    /// Its build, where known.
    pub build: Option<Build>,
    /// The graphics interface.
    pub api: String,
    /// The host's chip, like `Apple M1 Ultra`.
    pub host_chip: String,
    /// The host's system, like `26.6.1`, where known.
    pub host_os: Option<String>,
    /// Build of the guest's system, like `25F84`.
    pub guest_build: String,
}

/// What an experimenter wants instead of what the profile says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Family to claim, even beyond the host's chip.
    pub family_max: Option<u64>,
    /// Threadgroup memory to claim, in bytes.
    pub threadgroup_memory: Option<u64>,
}

/// What may be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Highest Apple family.
    pub family_max: u64,
    /// Threadgroup memory, in bytes; `None` leaves the device's answer.
    pub threadgroup_memory: Option<u64>,
    /// Key of the profile behind it.
    pub key: String,
    /// What a user should be told.
    pub remarks: Vec<String>,
}

/// Why nothing is claimed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RefusedClaim {
    #[error("no profile for '{app}'; known: {known}. Write one, see shim/profiles")]
    UnknownApp { app: String, known: String },
    #[error("no profile '{id}'; `ferry shim profile list` shows them")]
    UnknownProfile { id: String },
    #[error(
        "host chip '{chip}' is not known (known: {known}), so nobody can say what it really is; name it with --host-chip"
    )]
    UnknownChip { chip: String, known: String },
    #[error("this combination was never measured ({why}); --experimental tries it with profile '{nearest}'")]
    Untested { why: String, nearest: String },
    #[error("profile '{id}': measured, and it gained nothing. {note}")]
    NoGain { id: String, note: String },
    #[error("a family or threadgroup memory of one's own is an experiment: say --experimental")]
    OverrideWithoutExperiment,
    #[error("{0}")]
    BadOverride(String),
}

impl Catalogue {
    /// Finds the claim for a combination: the measured profile that speaks for it, or, as an experiment, the
    /// program's most general one. `id` picks a profile instead.
    ///
    /// # Errors
    /// Nothing known, nothing measured, nothing to gain, or an override that is no good.
    pub fn claim(
        &self,
        combination: &Combination,
        id: Option<&str>,
        overrides: Overrides,
        experimental: bool,
    ) -> Result<Claim, RefusedClaim> {
        if overrides != Overrides::default() && !experimental {
            return Err(RefusedClaim::OverrideWithoutExperiment);
        }
        let profile = self.choose(combination, id)?;
        let untested = mismatch(profile, combination);
        let mut remarks = Vec::new();
        if let Some(why) = untested {
            if !experimental {
                return Err(RefusedClaim::Untested { why, nearest: profile.id.clone() });
            }
            remarks.push(format!("experiment: {why}"));
        }
        if profile.standing == Standing::NoGain && overrides.family_max.is_none() {
            return Err(RefusedClaim::NoGain {
                id: profile.id.clone(),
                note: profile.note.trim().to_owned(),
            });
        }
        if overrides == Overrides::default() {
            self.clamp(profile, &combination.host_chip, remarks)
        } else {
            overridden(profile, overrides, remarks)
        }
    }

    fn choose(&self, combination: &Combination, id: Option<&str>) -> Result<&Profile, RefusedClaim> {
        if let Some(id) = id {
            return self.find(id).ok_or_else(|| RefusedClaim::UnknownProfile { id: id.to_owned() });
        }
        let of_app = || {
            self.profiles()
                .iter()
                .filter(|profile| profile.app == combination.app && profile.api == combination.api)
        };
        let tested = of_app().find(|profile| mismatch(profile, combination).is_none());
        let general = || of_app().max_by_key(|profile| u8::from(profile.standing == Standing::Derived));
        tested.or_else(general).ok_or_else(|| {
            let mut known: Vec<&str> = self.profiles().iter().map(|profile| profile.app.as_str()).collect();
            known.dedup();
            RefusedClaim::UnknownApp { app: combination.app.clone(), known: known.join(", ") }
        })
    }

    /// The smaller of what the profile says and what the chip is.
    fn clamp(&self, profile: &Profile, chip: &str, mut remarks: Vec<String>) -> Result<Claim, RefusedClaim> {
        let chip = self.chips().find(chip).ok_or_else(|| RefusedClaim::UnknownChip {
            chip: chip.to_owned(),
            known: self.chips().names().collect::<Vec<_>>().join(", "),
        })?;
        let wanted = profile.apple_family_max.unwrap_or(chip.apple_family);
        let family_max = wanted.min(chip.apple_family);
        let threadgroup_memory = profile.threadgroup_memory.map(|bytes| bytes.min(chip.threadgroup_memory));
        if family_max < wanted || threadgroup_memory < profile.threadgroup_memory {
            let memory = threadgroup_memory.map_or(String::new(), |bytes| format!(" and {bytes} bytes"));
            remarks.push(format!("{} is family {family_max}{memory}: the profile says more", chip.name));
        }
        Ok(Claim { family_max, threadgroup_memory, key: profile.key(), remarks })
    }
}

fn overridden(
    profile: &Profile,
    overrides: Overrides,
    mut remarks: Vec<String>,
) -> Result<Claim, RefusedClaim> {
    let family_max = overrides.family_max.or(profile.apple_family_max);
    let threadgroup_memory = overrides.threadgroup_memory.or(profile.threadgroup_memory);
    check_claim(family_max, threadgroup_memory).map_err(RefusedClaim::BadOverride)?;
    let family_max = family_max.ok_or_else(|| RefusedClaim::BadOverride("name a family too".into()))?;
    remarks.push("experiment: your own numbers, not held against the host's chip".into());
    let key = format!("custom@{}", digest(&format!("{} {family_max} {threadgroup_memory:?}", profile.key())));
    Ok(Claim { family_max, threadgroup_memory, key, remarks })
}

/// What about a combination the profile was not measured with; `None` if it speaks for it.
fn mismatch(profile: &Profile, combination: &Combination) -> Option<String> {
    if profile.standing == Standing::Derived {
        return Some(format!("profile '{}' is derived from the source", profile.id));
    }
    let in_range = |build: &Build| profile.build_range().is_some_and(|range| range.contains(build));
    match &combination.build {
        None => return Some("the program's build is not known; name it with --app NAME@BUILD".into()),
        Some(build) if !in_range(build) => {
            return Some(format!("build {build}, measured was {}", profile.builds()));
        }
        Some(_) => {}
    }
    if !profile.has_host_chip(&combination.host_chip) {
        return Some(format!("host chip {}", combination.host_chip));
    }
    match &combination.host_os {
        None => return Some("the host's system is not known; name it with --host-os".into()),
        Some(version) if !profile.has_host_os(version) => return Some(format!("host system {version}")),
        Some(_) => {}
    }
    let is_known_guest = profile.has_guest_build(&combination.guest_build);
    (!is_known_guest).then(|| format!("guest build {}", combination.guest_build))
}
