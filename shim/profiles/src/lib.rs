//! Profiles: what may be claimed for which program, on which host and guest, and on what evidence.
//!
//! A profile speaks for a combination of program build × host chip × host system × guest build × API. What is
//! claimed in the end is the smaller of what the profile says and what the host's chip really is. A
//! combination that nobody has measured is refused unless the caller takes it as an experiment.

mod build;
mod chips;
mod matching;
mod schema;

pub use build::{Build, BuildRange};
pub use chips::{Chip, Chips};
pub use matching::{Claim, Combination, Overrides, RefusedClaim};
pub use schema::{Arm, Evidence, EvidenceKind, Profile, ProfileError, Standing};

use std::path::Path;

/// Profile files that are built in, by name.
const BUILT_IN: [(&str, &str); 2] =
    [("llama-cpp.toml", include_str!("../llama-cpp.toml")), ("mlx.toml", include_str!("../mlx.toml"))];
/// The table of chips that is built in.
const CHIPS: &str = include_str!("../chips.toml");
/// Largest profile file that is read, in bytes; the built-in ones have about 4 KiB.
const FILE_LENGTH_MAX: u64 = 256 * 1024;

/// All known profiles and chips.
#[derive(Debug)]
pub struct Catalogue {
    profiles: Vec<Profile>,
    chips: Chips,
}

impl Catalogue {
    /// The built-in profiles.
    ///
    /// # Errors
    /// A built-in file that is malformed; a test keeps that from happening.
    pub fn built_in() -> Result<Self, ProfileError> {
        let mut catalogue = Self { profiles: Vec::new(), chips: Chips::parse(CHIPS)? };
        for (name, text) in BUILT_IN {
            catalogue.add(schema::parse(name, text)?)?;
        }
        Ok(catalogue)
    }

    /// Adds the profiles of a file.
    ///
    /// # Errors
    /// A file that cannot be read, is too long or malformed, or repeats a known id.
    pub fn add_file(&mut self, path: &Path) -> Result<usize, ProfileError> {
        let unreadable = |error| ProfileError::Unreadable { path: path.to_owned(), error };
        let length = std::fs::metadata(path).map_err(unreadable)?.len();
        if length > FILE_LENGTH_MAX {
            return Err(ProfileError::TooLong { path: path.to_owned(), length, length_max: FILE_LENGTH_MAX });
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let profiles = schema::parse(&path.display().to_string(), &text)?;
        let count = profiles.len();
        self.add(profiles)?;
        Ok(count)
    }

    fn add(&mut self, profiles: Vec<Profile>) -> Result<(), ProfileError> {
        for profile in profiles {
            if self.find(&profile.id).is_some() {
                return Err(ProfileError::RepeatedId { id: profile.id });
            }
            self.profiles.push(profile);
        }
        Ok(())
    }

    /// All profiles, in the order in which they were read.
    #[must_use]
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// The profile of this id.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// All chips.
    #[must_use]
    pub fn chips(&self) -> &Chips {
        &self.chips
    }
}
