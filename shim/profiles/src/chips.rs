//! What the host's chip really is.

use crate::ProfileError;
use crate::schema::{APPLE_FAMILIES, THREADGROUP_MEMORY};
use serde::Deserialize;

/// One generation of Apple's chips.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chip {
    /// Name of its plainest variant, like `Apple M1`.
    pub name: String,
    /// The highest Apple GPU family that its own GPU reports.
    pub apple_family: u64,
    /// Its threadgroup memory, in bytes.
    pub threadgroup_memory: u64,
}

/// The table of chips.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chips {
    chip: Vec<Chip>,
}

impl Chips {
    pub(crate) fn parse(text: &str) -> Result<Self, ProfileError> {
        let malformed = |reason| ProfileError::Malformed { file: "chips.toml".into(), reason };
        let chips: Self = toml::from_str(text).map_err(|error| malformed(error.to_string()))?;
        for chip in &chips.chip {
            if !APPLE_FAMILIES.contains(&chip.apple_family)
                || !THREADGROUP_MEMORY.contains(&chip.threadgroup_memory)
            {
                return Err(malformed(format!("{}: numbers out of bounds", chip.name)));
            }
        }
        Ok(chips)
    }

    /// The chip of this name: `Apple M1 Ultra` and, as a guest sees it, `Apple M1 (Virtual)` are Apple M1.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Chip> {
        self.chip.iter().find(|chip| {
            name.strip_prefix(chip.name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        })
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.chip.iter().map(|chip| chip.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use crate::Catalogue;

    #[test]
    fn variants_are_their_generation() {
        let catalogue = Catalogue::built_in().expect("built in");
        let family = |name| catalogue.chips().find(name).map(|chip| chip.apple_family);
        assert_eq!(family("Apple M1"), Some(1007));
        assert_eq!(family("Apple M1 Ultra"), Some(1007));
        assert_eq!(family("Apple M1 (Virtual)"), Some(1007));
        assert_eq!(family("Apple M4 Max"), Some(1009));
        for unknown in ["Apple M10", "Apple M1x", "apple m1", "Intel", "Apple", ""] {
            assert_eq!(family(unknown), None, "{unknown}");
        }
    }
}
