//! Where the shim, the probe and its tokens are.

use anyhow::{Context, Result};
use ferry_shim_contract::LIBRARY;
use std::path::{Path, PathBuf};

/// The shim: the one that was named, or the one beside this program.
pub fn library(named: Option<&Path>) -> Result<PathBuf> {
    let path = named.map_or_else(|| beside(LIBRARY), |path| Ok(path.to_owned()))?;
    let absolute = std::path::absolute(&path)?;
    let hint = || format!("there is no shim at {}; name one with --library", absolute.display());
    std::fs::metadata(&absolute).with_context(hint)?;
    Ok(absolute)
}

/// The probe: the one that was named, or the one beside this program.
pub fn probe(named: Option<&Path>) -> Result<PathBuf> {
    let path = named.map_or_else(|| beside("metal-capabilities"), |path| Ok(path.to_owned()))?;
    let hint = || format!("there is no probe at {}; name one with --program", path.display());
    std::fs::metadata(&path).with_context(hint)?;
    Ok(path)
}

/// Where the token of a profile is, unless another place is named.
pub fn token(key: &str) -> Result<PathBuf> {
    let folder = if cfg!(target_vendor = "apple") {
        home()?.join("Library/Application Support/Ferry")
    } else {
        home()?.join(".local/state/ferry")
    };
    Ok(folder.join("tokens").join(key))
}

/// The user's home folder.
pub fn home() -> Result<PathBuf> {
    std::env::home_dir().filter(|home| home.is_absolute()).context("HOME is not set to an absolute path")
}

fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program")?;
    Ok(own.with_file_name(name))
}
