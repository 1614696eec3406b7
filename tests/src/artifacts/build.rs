//! Building llama.cpp: which parts, with which flags.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{replace_dir, system};
use crate::process;
use crate::progress::Step;

/// Configuring asks the compiler many questions.
const CONFIGURE_TIMEOUT: Duration = Duration::from_secs(300);
/// The largest build takes about ten minutes on two cores of its own.
const BUILD_TIMEOUT: Duration = Duration::from_secs(3600);

/// What is built from a source tree.
pub struct Recipe {
    name: &'static str,
    /// The folder of its objects. Recipes with the same flags may share one.
    work: &'static str,
    flags: &'static [&'static str],
    cpu: Cpu,
    targets: &'static [&'static str],
}

/// Which CPU's instructions the kernels use.
#[derive(Clone, Copy)]
enum Cpu {
    /// All that this machine has of [`CPU_FEATURES`].
    Host,
    /// SSE4.2 and no more. QEMU emulates the floating point of AVX and FMA call by call: in a guest under
    /// TCG these kernels were seen to be five times faster than those for AVX2 and FMA.
    Emulated,
}

/// Everything that the tests run. Plain kernels: a back-end behind a channel sees plain buffers, so only
/// this is the same computation (llama.cpp repacks some weight types where its own CPU buffers allow it).
pub const LLAMA: Recipe = Recipe {
    name: "llama",
    work: "llama",
    flags: LLAMA_FLAGS,
    cpu: Cpu::Host,
    targets: &[
        "ggml-cpu",
        "ggml-rpc",
        "llama-bench",
        "llama-completion",
        "ggml-rpc-server",
        "test-thread-safety",
        "test-backend-ops",
    ],
};

/// What only the long suite runs, of the same build: it goes on from the other's objects.
pub const LLAMA_SUITES: Recipe = Recipe {
    name: "llama-suites",
    work: "llama",
    flags: LLAMA_FLAGS,
    cpu: Cpu::Host,
    targets: &["test-llama-archs", "llama-perplexity", "llama-server"],
};

const LLAMA_FLAGS: &[&str] = &[
    "-DGGML_CPU_REPACK=OFF",
    "-DGGML_RPC=ON",
    "-DLLAMA_BUILD_TESTS=ON",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
];

/// Only the CPU back-end, as llama.cpp ships it: for the "repacked" figure.
pub const LLAMA_REPACKED: Recipe = Recipe {
    name: "llama-repacked",
    work: "llama-repacked",
    flags: &[
        "-DGGML_CPU_REPACK=ON",
        "-DLLAMA_BUILD_COMMON=OFF",
        "-DLLAMA_BUILD_TOOLS=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
    ],
    cpu: Cpu::Host,
    targets: &["ggml-cpu"],
};

/// Only the CPU back-end, for a guest's emulated CPU.
pub const LLAMA_EMULATED: Recipe = Recipe {
    name: "llama-emulated",
    work: "llama-emulated",
    flags: &[
        "-DGGML_CPU_REPACK=OFF",
        "-DLLAMA_BUILD_COMMON=OFF",
        "-DLLAMA_BUILD_TOOLS=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
    ],
    cpu: Cpu::Emulated,
    targets: &["ggml-cpu"],
};

/// Only the Vulkan back-end.
pub const LLAMA_VULKAN: Recipe = Recipe {
    name: "llama-vulkan",
    work: "llama-vulkan",
    flags: &[
        "-DGGML_VULKAN=ON",
        "-DGGML_CPU=OFF",
        "-DLLAMA_BUILD_COMMON=OFF",
        "-DLLAMA_BUILD_TOOLS=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
    ],
    cpu: Cpu::Host,
    targets: &["ggml-vulkan"],
};

/// ggml as archives, for a program that has it inside. Nothing is computed with it but what a back-end that it loads does.
pub const GGML_STATIC: Recipe = Recipe {
    name: "ggml-static",
    work: "ggml-static",
    flags: &[
        "-DBUILD_SHARED_LIBS=OFF",
        "-DGGML_BACKEND_DL=OFF",
        "-DGGML_CPU=OFF",
        "-DGGML_OPENMP=OFF",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
        "-DLLAMA_BUILD_COMMON=OFF",
        "-DLLAMA_BUILD_TOOLS=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
    ],
    cpu: Cpu::Host,
    targets: &["ggml"],
};

/// The flag that has archives built where a recipe's other products are.
pub fn archives_beside(store: &Path, recipe: &Recipe) -> String {
    let products = work(store, recipe).join("bin");
    format!("-DCMAKE_ARCHIVE_OUTPUT_DIRECTORY={}", products.display())
}

/// Libraries alone, for the programs in `tests/programs`. Compared only with itself, never timed: hence C++
/// compiled quickly rather than well, which halves the build.
pub const LLAMA_NEXT: Recipe = Recipe {
    name: "llama-next",
    work: "llama-next",
    flags: &[
        "-DGGML_CPU_REPACK=OFF",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
        "-DLLAMA_BUILD_COMMON=OFF",
        "-DLLAMA_BUILD_TOOLS=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
    ],
    cpu: Cpu::Host,
    targets: &["ggml-cpu", "ggml", "llama"],
};

/// Flags of every build: back-ends as loadable libraries (what a plug-in needs), nothing that reaches the
/// network, and libraries found beside the programs so that the folder can be moved (into a VM, say).
const COMMON_FLAGS: &[&str] = &[
    "-GNinja",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_NATIVE=OFF",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
];

/// What cmake includes in every build. In a product's stamp with its text: it says how things are built.
const QUICKER: &str = include_str!("quicker.cmake");

/// CPU features to use where this machine has them. `GGML_NATIVE` cannot be combined with loadable
/// back-ends. No AVX-512: the same build also runs in guests under QEMU's TCG, which has none.
const CPU_FEATURES: &[(&str, &str)] = &[
    ("sse4_2", "GGML_SSE42"),
    ("avx", "GGML_AVX"),
    ("avx2", "GGML_AVX2"),
    ("bmi2", "GGML_BMI2"),
    ("fma", "GGML_FMA"),
    ("f16c", "GGML_F16C"),
];

/// A build of llama.cpp in the store.
#[derive(Debug, Clone)]
pub struct LlamaBuild {
    /// Programs and libraries, all in one folder.
    pub bin: PathBuf,
    /// The source tree, for its headers.
    pub source: PathBuf,
}

/// The recipe's products, built if they are not there or were built otherwise. `places` is asked for flags that say
/// where things are on this machine, which are no part of what is built.
pub fn ensure(
    store: &Path,
    source: &Path,
    source_hash: &str,
    recipe: &Recipe,
    places: impl FnOnce() -> Result<Vec<String>>,
) -> Result<LlamaBuild> {
    let bin = store.join(recipe.name);
    let configuration = configuration(recipe);
    let (flags, targets) = (configuration.join("\n"), recipe.targets.join(" "));
    let stamp = format!("{source_hash}\n{flags}\n{targets}\n{QUICKER}");
    let built = LlamaBuild { bin, source: source.to_owned() };
    if fs::read_to_string(built.bin.join("STAMP")).is_ok_and(|found| found == stamp) {
        return Ok(built);
    }
    system::require(&[system::CMAKE, system::NINJA, system::CXX, system::CC])?;
    let work = work(store, recipe);
    fs::create_dir_all(&work).with_context(|| format!("making {}", work.display()))?;
    let quicker = work.join("quicker.cmake");
    fs::write(&quicker, QUICKER).with_context(|| format!("writing {}", quicker.display()))?;
    let include = format!("-DCMAKE_PROJECT_INCLUDE={}", quicker.display());
    let flags: Vec<String> = configuration.into_iter().chain([include]).chain(places()?).collect();
    configure(source, &work, &flags, recipe)?;
    compile(&work, recipe)?;
    replace_dir(&built.bin, |temporary| {
        copy_products(&work.join("bin"), temporary)?;
        Ok(fs::write(temporary.join("STAMP"), &stamp)?)
    })?;
    Ok(built)
}

fn work(store: &Path, recipe: &Recipe) -> PathBuf {
    store.join("build").join(recipe.work)
}

fn configuration(recipe: &Recipe) -> Vec<String> {
    let fixed = COMMON_FLAGS.iter().chain(recipe.flags).map(|&flag| flag.to_owned());
    let cpuinfo = match recipe.cpu {
        Cpu::Host => fs::read_to_string("/proc/cpuinfo").unwrap_or_default(),
        Cpu::Emulated => "flags: sse4_2".into(),
    };
    fixed.chain(cpu_flags(&cpuinfo)).collect()
}

/// The CPU features as flags; none where /proc/cpuinfo does not tell (ggml's portable default then).
fn cpu_flags(cpuinfo: &str) -> Vec<String> {
    let Some(line) = cpuinfo.lines().find(|line| line.starts_with("flags")) else {
        return Vec::new();
    };
    let has = |feature: &str| line.split_whitespace().any(|word| word == feature);
    let switch = |on| if on { "ON" } else { "OFF" };
    CPU_FEATURES.iter().map(|(feature, option)| format!("-D{option}={}", switch(has(feature)))).collect()
}

fn configure(source: &Path, work: &Path, configuration: &[String], recipe: &Recipe) -> Result<()> {
    let step = Step::begin(format!("configuring {}", recipe.name));
    let mut cmake = Command::new("cmake");
    cmake.arg("-S").arg(source).arg("-B").arg(work).args(configuration);
    process::run(&mut cmake, CONFIGURE_TIMEOUT)?
        .success()
        .with_context(|| format!("configuring {} from {}", recipe.name, source.display()))?;
    step.done();
    Ok(())
}

fn compile(work: &Path, recipe: &Recipe) -> Result<()> {
    let mut step = Step::begin(format!("building {} (minutes; an interrupted build resumes)", recipe.name));
    let mut ninja = Command::new("ninja");
    ninja.arg("-C").arg(work).args(recipe.targets);
    let running = process::spawn(&mut ninja)?;
    let finished = running.watch(BUILD_TIMEOUT, |ninja| {
        if let Some(line) = ninja.stdout().lines().next_back().and_then(|line| line.split(' ').next()) {
            step.update(line);
        }
    })?;
    finished.success().with_context(|| format!("building {}", recipe.name))?;
    step.done();
    Ok(())
}

/// Copies programs and libraries; links among them stay links.
fn copy_products(from: &Path, into: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("listing {}", from.display()))? {
        let entry = entry?;
        let to = into.join(entry.file_name());
        if entry.file_type()?.is_symlink() {
            symlink(fs::read_link(entry.path())?, to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Makes everything of `from` that `into` lacks appear in it: programs of one build beside another's
/// back-end. Hard links, because a program looks for back-ends beside the file that it really is.
pub fn link_missing(from: &Path, into: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("listing {}", from.display()))? {
        let entry = entry?;
        let to = into.join(entry.file_name());
        if to.symlink_metadata().is_err() {
            fs::hard_link(entry.path(), &to).with_context(|| format!("linking {}", to.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_features_are_whole_words_of_the_flags_line() {
        let flags = cpu_flags("model name\t: avx2 sse4_2\nflags\t\t: fpu avx2 fma sse4_2x\n");
        assert_eq!(flags[0], "-DGGML_SSE42=OFF");
        assert!(flags.contains(&"-DGGML_AVX2=ON".to_owned()) && flags.contains(&"-DGGML_AVX=OFF".to_owned()));
        assert!(cpu_flags("Features\t: asimd\n").is_empty());
    }

    #[test]
    fn missing_files_are_linked_and_others_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (from, into) = (dir.path().join("from"), dir.path().join("into"));
        fs::create_dir_all(&from).unwrap();
        fs::create_dir_all(&into).unwrap();
        fs::write(from.join("program"), "theirs").unwrap();
        fs::write(from.join("library"), "theirs").unwrap();
        fs::write(into.join("library"), "ours").unwrap();
        link_missing(&from, &into).unwrap();
        assert_eq!(fs::read_to_string(into.join("program")).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(into.join("library")).unwrap(), "ours");
    }
}
