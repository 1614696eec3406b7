//! Fetching a pinned package with its registry's client, checking and unpacking it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

use super::{Client, Pin, system};
use crate::progress::Step;
use crate::{checkout, process};

/// Slow registries are seen; silent ones end here.
const FETCH_TIMEOUT: Duration = Duration::from_secs(900);

/// The package's file in the store, fetched if it is not there, its hash checked in any case.
pub fn package(store: &Path, pin: &Pin) -> Result<PathBuf> {
    let downloads = store.join("download");
    let file = downloads.join(&pin.file);
    if !file.exists() {
        let step =
            Step::begin(format!("fetching {} {} with {:?}", pin.package, pin.package_version, pin.client));
        fs::create_dir_all(&downloads)?;
        let temporary = tempfile::tempdir_in(&downloads).context("making a folder to fetch into")?;
        let fetched = match pin.client {
            Client::Pip => with_pip(temporary.path(), pin),
            Client::Cargo => with_cargo(temporary.path(), pin),
            Client::Npm => with_npm(temporary.path(), pin),
        }
        .with_context(|| format!("fetching {} {}", pin.package, pin.package_version))?;
        fs::rename(&fetched, &file).with_context(|| format!("moving {} into place", file.display()))?;
        step.done();
    }
    let found = sha256(&file)?;
    if found != pin.sha256 {
        // Kept, it would be found wrong for ever.
        fs::remove_file(&file)?;
        bail!("{} has sha256 {found}, but {} is pinned: removed; try again", file.display(), pin.sha256);
    }
    Ok(file)
}

fn with_pip(into: &Path, pin: &Pin) -> Result<PathBuf> {
    system::require(&[system::PIP])?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]).arg(into);
    pip.arg(format!("{}=={}", pin.package, pin.package_version));
    process::run(&mut pip, FETCH_TIMEOUT)?.success()?;
    Ok(into.join(&pin.file))
}

fn with_npm(into: &Path, pin: &Pin) -> Result<PathBuf> {
    system::require(&[system::NPM])?;
    let mut npm = Command::new("npm");
    npm.args(["pack", "--silent"]).arg(format!("{}@{}", pin.package, pin.package_version)).current_dir(into);
    process::run(&mut npm, FETCH_TIMEOUT)?.success()?;
    Ok(into.join(&pin.file))
}

/// Cargo fetches for a manifest only, so it gets one; it says where it put the source, and the package's
/// file lies in the cache beside.
fn with_cargo(into: &Path, pin: &Pin) -> Result<PathBuf> {
    let manifest = format!(
        "[package]\nname = \"fetch\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n\
         [dependencies]\n{} = \"={}\"\n",
        pin.package, pin.package_version
    );
    fs::write(into.join("Cargo.toml"), manifest)?;
    fs::write(into.join("lib.rs"), "")?;
    let mut cargo = checkout::cargo();
    cargo.current_dir(into).args(["metadata", "--format-version=1"]);
    let metadata: serde_json::Value =
        serde_json::from_str(&process::run(&mut cargo, FETCH_TIMEOUT)?.success()?.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata without packages")?;
    let found = packages.iter().find(|package| package["name"] == pin.package.as_str());
    let manifest = found.and_then(|package| package["manifest_path"].as_str());
    let source = Path::new(manifest.context("cargo metadata does not name the crate")?).parent();
    let cached = source.and_then(|source| in_cargo_cache(source, &pin.file));
    let cached = cached.context("the crate's source is in no registry folder of cargo's")?;
    ensure!(cached.exists(), "cargo fetched the crate, but {} is missing", cached.display());
    let file = into.join(&pin.file);
    fs::copy(&cached, &file).with_context(|| format!("copying {}", cached.display()))?;
    Ok(file)
}

/// `registry/src/INDEX/CRATE` → `registry/cache/INDEX/FILE`.
fn in_cargo_cache(source: &Path, file: &str) -> Option<PathBuf> {
    let index = source.parent()?;
    let registry = index.parent()?.parent()?;
    Some(registry.join("cache").join(index.file_name()?).join(file))
}

fn sha256(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    io::copy(&mut file, &mut hasher).with_context(|| format!("reading {}", path.display()))?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Unpacks a wheel, a crate or an npm package into an empty folder.
pub fn unpack(package: &Path, into: &Path) -> Result<()> {
    let step = Step::begin(format!("unpacking {}", package.file_name().unwrap_or_default().display()));
    let file = File::open(package).with_context(|| format!("opening {}", package.display()))?;
    let file = io::BufReader::new(file);
    match package.extension().and_then(|extension| extension.to_str()) {
        Some("whl") => zip::ZipArchive::new(file)?.extract(into)?,
        Some("crate" | "tgz") => tar::Archive::new(GzDecoder::new(file)).unpack(into)?,
        other => bail!("{}: how to unpack {other:?} is not known here", package.display()),
    }
    step.done();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(sha256: &str) -> Pin {
        Pin {
            version: "1".into(),
            client: Client::Pip,
            package: "thing".into(),
            package_version: "1".into(),
            file: "thing-1.whl".into(),
            sha256: sha256.into(),
            inside: String::new(),
        }
    }

    #[test]
    fn a_file_with_another_hash_is_refused_and_removed() {
        let store = tempfile::tempdir().unwrap();
        let file = store.path().join("download/thing-1.whl");
        fs::create_dir(store.path().join("download")).unwrap();
        fs::write(&file, "abc").unwrap();
        let good = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(package(store.path(), &pin(good)).unwrap(), file);
        let error = package(store.path(), &pin(&good.replace('b', "c"))).unwrap_err();
        assert!(error.to_string().contains(good) && !file.exists(), "{error}");
    }
}
