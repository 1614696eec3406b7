//! Which models `cargo speed` knows by name.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result};

use crate::artifacts::Store;
use crate::random_model;

/// A model to measure with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Model {
    SmolLm2,
    Gemma,
    RandomTiny,
    RandomBillion,
    RandomThreeBillion,
    File(PathBuf),
}

impl FromStr for Model {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "smollm2" => Self::SmolLm2,
            "gemma" => Self::Gemma,
            "random-tiny" => Self::RandomTiny,
            "random-1b" => Self::RandomBillion,
            "random-3b" => Self::RandomThreeBillion,
            file => Self::File(file.into()),
        })
    }
}

impl Model {
    /// Its GGUF file. What has a name comes from the artifact store, which is not opened for a file.
    pub fn file(&self) -> Result<PathBuf> {
        match self {
            Self::SmolLm2 => Store::open()?.model(),
            Self::Gemma => Store::open()?.gemma(),
            Self::RandomTiny => Store::open()?.random_model(&random_model::TINY),
            Self::RandomBillion => Store::open()?.random_model(&random_model::BILLION),
            Self::RandomThreeBillion => Store::open()?.random_model(&random_model::THREE_BILLION),
            Self::File(file) => {
                file.canonicalize().with_context(|| format!("looking for {}", file.display()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named() {
        let error = "no-such.gguf".parse::<Model>().unwrap().file().unwrap_err();
        assert!(format!("{error:#}").contains("no-such.gguf"), "{error:#}");
        assert_eq!("gemma".parse(), Ok(Model::Gemma));
    }
}
