//! The small C programs of `tests/programs`, compiled against one of the store's builds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::artifacts::LlamaBuild;
use crate::process;

/// A hundred lines of C on a busy machine.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(120);

/// Compiles `tests/programs/NAME.c` into `into`, linked with nothing of llama.cpp: it opens that itself.
pub fn compile_alone(name: &str, into: &Path) -> Result<PathBuf> {
    let program = into.join(name);
    let mut cc = compiler(name, &program);
    process::run(cc.arg("-lm"), COMPILE_TIMEOUT)?.success().with_context(|| format!("compiling {name}.c"))?;
    Ok(program)
}

/// The file of libggml in a folder of libraries; some builds have a release in its name.
pub fn ggml_in(dir: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
    let named = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libggml.") && name.ends_with(std::env::consts::DLL_SUFFIX)
    };
    files
        .flatten()
        .map(|entry| entry.path())
        .find(named)
        .with_context(|| format!("no libggml in {}", dir.display()))
}

fn compiler(name: &str, program: &Path) -> Command {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(program).arg(source);
    cc
}

/// Compiles `tests/programs/load_backends.c` into a library in `into` for `LD_PRELOAD`, linked with the libggml in `bin`.
/// Needs no checkout.
pub fn compile_load_backends(bin: &Path, into: &Path) -> Result<PathBuf> {
    let (source, library) = (into.join("load_backends.c"), into.join("load_backends.so"));
    fs::write(&source, include_str!("../programs/load_backends.c")).context("writing load_backends.c")?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-L").arg(bin).arg("-lggml");
    cc.arg(format!("-Wl,-rpath,{}", bin.display()));
    process::run(&mut cc, COMPILE_TIMEOUT)?.success().context("compiling load_backends.c")?;
    Ok(library)
}

/// Compiles `tests/programs/NAME.c` to `program`, with the build's archives of ggml inside; with `exports`, what it loads
/// can call them.
pub fn compile_static(name: &str, build: &LlamaBuild, program: &Path, exports: bool) -> Result<()> {
    let object = program.with_extension("o");
    let mut cc = compiler(name, &object);
    cc.arg("-c").arg("-I").arg(build.source.join("ggml/include"));
    process::run(&mut cc, COMPILE_TIMEOUT)?.success().with_context(|| format!("compiling {name}.c"))?;
    let mut cxx = Command::new("c++");
    cxx.arg("-o").arg(program).arg(object);
    cxx.args(["libggml.a", "libggml-base.a"].map(|archive| build.bin.join(archive)));
    // What CMAKE_ENABLE_EXPORTS does.
    cxx.args(exports.then_some("-rdynamic")).args(["-lpthread", "-ldl", "-lm"]);
    process::run(&mut cxx, COMPILE_TIMEOUT)?.success().with_context(|| format!("linking {name}.c"))?;
    Ok(())
}

/// Compiles `tests/programs/NAME.c` into `into`, linked with the build's libraries where they lie.
pub fn compile(name: &str, build: &LlamaBuild, into: &Path) -> Result<PathBuf> {
    let program = into.join(name);
    let mut cc = compiler(name, &program);
    for include in ["include", "ggml/include"] {
        cc.arg("-I").arg(build.source.join(include));
    }
    cc.arg("-L").arg(&build.bin).args(["-lllama", "-lggml", "-lggml-base"]);
    cc.arg(format!("-Wl,-rpath,{}", build.bin.display()));
    process::run(&mut cc, COMPILE_TIMEOUT)?.success().with_context(|| format!("compiling {name}.c"))?;
    Ok(program)
}
