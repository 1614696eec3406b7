//! `ferry install`: puts the plug-in where a build of llama.cpp finds it.
//!
//! llama.cpp looks for back-ends beside its executables, under names that it knows; since 30 January 2026 `virtgpu` is one
//! of them. What a build looks for is read off its own library, not guessed from a version.

use anyhow::{Context, Result, bail, ensure};
use object::Object;
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `ferry install`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Folder with llama.cpp's programs, or with the libraries of a package for another language (npm, pip, …)
    dir: PathBuf,
    /// The plug-in; by default the one beside this program
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Take the place of a file of that name that is not this plug-in
    #[arg(long)]
    replace: bool,
}

/// Words that every build of this plug-in has in it, and no other back-end.
const OURS: &[u8] = b"FERRY_SOCKET";
/// As the registry's code names the back-end.
const LOOKED_FOR: &[u8] = b"\0virtgpu\0";
/// What a program with ggml inside has in it.
const GGML_INSIDE: &[u8] = b"ggml_backend_reg_count";
/// What links such a program with this name is llama.cpp's, however it was built.
const PROGRAMS: [&str; 3] = ["llama-cli", "llama-server", "llama-bench"];

/// Runs it.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let dir = fs::canonicalize(&arguments.dir)
        .with_context(|| format!("looking at {}", arguments.dir.display()))?;
    ensure!(dir.is_dir(), "{} is no folder: give the one with llama.cpp's programs", dir.display());
    let registry = find_registry(&dir)?;
    let plugin = match &arguments.plugin {
        Some(plugin) => plugin.clone(),
        None => beside_this_program()?,
    };
    let installed = place(&plugin, &dir, arguments.replace)?;
    println!("installed {}", installed.display());
    if contains(&registry, LOOKED_FOR)? {
        println!(
            "llama.cpp loads it from there by itself. To see the host's devices: llama-cli --list-devices"
        );
    } else {
        println!("This llama.cpp is from before February 2026 and does not look for it. Tell it:\n");
        println!("    export GGML_BACKEND_PATH={}\n", installed.display());
        println!("Then llama-cli --list-devices shows the host's devices.");
    }
    Ok(ExitCode::SUCCESS)
}

/// ggml's library that loads back-ends, of the programs in `dir`; one of them, if ggml is part of it.
fn find_registry(dir: &Path) -> Result<PathBuf> {
    // A build has everything in one folder; an installed one has programs in bin, libraries in lib.
    let parent = dir.parent().unwrap_or(dir);
    let places = [dir.to_path_buf(), parent.join("lib"), parent.join("lib64")];
    for place in &places {
        let libraries = files(place, |name| is_library(name, "ggml"))?;
        let base = files(place, |name| name.starts_with(&format!("{DLL_PREFIX}ggml-base")))?;
        if let (Some(registry), false) = (libraries.first(), base.is_empty()) {
            return Ok(registry.clone());
        }
    }
    for name in PROGRAMS {
        let program = dir.join(name);
        if program.is_file() && contains(&program, GGML_INSIDE)? {
            if exports(&program, GGML_INSIDE)? {
                return Ok(program);
            }
            bail!(
                "{} has ggml built in (a static build) and keeps it to itself: a plug-in would find nothing of ggml to \
                 call.\nLink it with -DCMAKE_ENABLE_EXPORTS=ON, or build it with -DBUILD_SHARED_LIBS=ON \
                 -DGGML_BACKEND_DL=ON, or take a prebuilt llama.cpp that has a {DLL_PREFIX}ggml-base{DLL_SUFFIX}",
                program.display()
            );
        }
    }
    bail!(
        "no llama.cpp with shared libraries in {}: there is no {DLL_PREFIX}ggml-base{DLL_SUFFIX} and no \
         {DLL_PREFIX}ggml{DLL_SUFFIX}, nor in a lib beside it; give the folder with llama.cpp's programs",
        dir.display()
    )
}

/// `libggml.so`, `libggml.so.0`, or with a release in the middle as npm's packages have it: `libggml.b7347.so`.
fn is_library(name: &str, stem: &str) -> bool {
    let rest = name.strip_prefix(DLL_PREFIX).and_then(|name| name.strip_prefix(stem));
    rest.is_some_and(|rest| rest.starts_with('.') && rest.contains(DLL_SUFFIX))
}

/// Files of a folder, sorted; none where there is no folder.
fn files(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
    let is_wanted = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(&wanted);
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_wanted).collect();
    found.sort();
    Ok(found)
}

fn contains(file: &Path, words: &[u8]) -> Result<bool> {
    let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(bytes.windows(words.len()).any(|window| window == words))
}

/// Whether what the program loads may call this function of its.
fn exports(program: &Path, function: &[u8]) -> Result<bool> {
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let Ok(file) = object::File::parse(&*bytes) else { return Ok(false) };
    // macOS puts an underscore in front.
    let is_it = |name: &[u8]| name == function || name.strip_prefix(b"_") == Some(function);
    Ok(file.exports().is_ok_and(|exports| exports.iter().any(|export| is_it(export.name()))))
}

fn beside_this_program() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let names =
        [format!("{DLL_PREFIX}ggml_virtgpu{DLL_SUFFIX}"), format!("{DLL_PREFIX}ggml-virtgpu{DLL_SUFFIX}")];
    let places = [dir.to_path_buf(), dir.join("../lib/ferry"), dir.join("../lib")];
    let mut candidates = places.iter().flat_map(|place| names.iter().map(|name| place.join(name)));
    candidates.find(|candidate| candidate.is_file()).with_context(|| {
        format!("the plug-in {} is not beside {}: name it with --plugin", names[0], program.display())
    })
}

/// Copies the plug-in into the folder, whole or not at all: a program may be starting at this moment.
fn place(plugin: &Path, dir: &Path, replace: bool) -> Result<PathBuf> {
    ensure!(contains(plugin, OURS)?, "{} is not Ferry's plug-in", plugin.display());
    let to = dir.join(format!("{DLL_PREFIX}ggml-virtgpu{DLL_SUFFIX}"));
    if to.exists() && !replace && !contains(&to, OURS)? {
        bail!(
            "{} is there and is not Ferry's (llama.cpp's own back-end has this name): --replace it?",
            to.display()
        );
    }
    let bytes = fs::read(plugin).with_context(|| format!("reading {}", plugin.display()))?;
    let mut file =
        tempfile::NamedTempFile::new_in(dir).with_context(|| format!("writing to {}", dir.display()))?;
    file.write_all(&bytes)?;
    let permissions = fs::metadata(plugin)?.permissions();
    file.as_file().set_permissions(permissions)?;
    file.persist(&to).with_context(|| format!("putting {} into place", to.display()))?;
    Ok(to)
}
