//! The small C programs of `tests/programs`, compiled against one of the store's builds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::artifacts::LlamaBuild;
use crate::process;

/// A hundred lines of C on a busy machine.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(120);

/// Compiles `tests/programs/NAME.c` into `into`, linked with the build's libraries where they lie.
pub fn compile(name: &str, build: &LlamaBuild, into: &Path) -> Result<PathBuf> {
    let program = into.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    for include in ["include", "ggml/include"] {
        cc.arg("-I").arg(build.source.join(include));
    }
    cc.arg("-L").arg(&build.bin).args(["-lllama", "-lggml", "-lggml-base"]);
    cc.arg(format!("-Wl,-rpath,{}", build.bin.display()));
    process::run(&mut cc, COMPILE_TIMEOUT)?.success().with_context(|| format!("compiling {name}.c"))?;
    Ok(program)
}
