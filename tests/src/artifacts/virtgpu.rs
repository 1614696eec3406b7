//! ggml-virtgpu, llama.cpp's own way out of a virtual machine: the back-end for guests, the library for hosts, and what
//! stands for all that is between them (`tests/programs/virtgpu`).
//!
//! Compiled here file by file: its own build downloads a header of virglrenderer's, of which it uses nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferry_vm::{Artifacts, kernel};

use super::{LlamaBuild, replace_dir, system};
use crate::process;
use crate::progress::Step;

/// Twenty files of C++ on a busy machine.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(300);

/// Our part of it.
const GUEST: &str = "guest.c";
const HOST: &str = "host.c";
const SOURCES: [&str; 5] = [
    include_str!("../../programs/virtgpu/guest.c"),
    include_str!("../../programs/virtgpu/host.c"),
    include_str!("../../programs/virtgpu/venus_hw.h"),
    include_str!("../../programs/virtgpu/wire.h"),
    include_str!("../../programs/virtgpu/xf86drm.h"),
];

/// As llama.cpp builds a back-end that is loaded.
const FLAGS: [&str; 8] = [
    "-O3",
    "-DNDEBUG",
    "-fPIC",
    "-D_GNU_SOURCE",
    "-DGGML_BACKEND_DL",
    "-DGGML_BACKEND_BUILD",
    "-DGGML_BACKEND_SHARED",
    "-DGGML_SHARED",
];

/// Its files.
#[derive(Debug, Clone)]
pub struct VirtgpuBuild {
    /// The back-end that a guest's ggml loads. Its host's socket is in `VIRTGPU_HOST`.
    pub plugin: PathBuf,
    /// The library that hands a guest's calls to a ggml back-end.
    pub host_library: PathBuf,
    /// The program that stands for the renderer that loads it.
    pub host: PathBuf,
}

impl VirtgpuBuild {
    fn of(dir: &Path) -> Self {
        Self {
            plugin: dir.join("libggml-virtgpu.so"),
            host_library: dir.join("libggml-virtgpu-backend.so"),
            host: dir.join("virtgpu-host"),
        }
    }

    /// What was built elsewhere and is in `dir`.
    pub fn at(dir: &Path) -> Result<Self> {
        let dir = dir.canonicalize().with_context(|| format!("looking for {}", dir.display()))?;
        let build = Self::of(&dir);
        for file in [&build.plugin, &build.host_library, &build.host] {
            ensure!(file.exists(), "there is no {}", file.display());
        }
        Ok(build)
    }
}

/// Compiles it for the programs of `llama` unless that was done before.
pub fn ensure(store: &Path, llama: &LlamaBuild, source_hash: &str) -> Result<VirtgpuBuild> {
    let dir = store.join("virtgpu");
    let build = VirtgpuBuild::of(&dir);
    let stamp = format!("{source_hash}\n{}\n{}", FLAGS.join(" "), SOURCES.concat());
    if fs::read_to_string(dir.join("STAMP")).is_ok_and(|found| found == stamp) {
        return Ok(build);
    }
    system::require(&[system::CC, system::CXX])?;
    let step = Step::begin("building ggml-virtgpu".to_owned());
    replace_dir(&dir, |into| {
        compile(llama, &VirtgpuBuild::of(into), into)?;
        Ok(fs::write(into.join("STAMP"), &stamp)?)
    })?;
    step.done();
    Ok(build)
}

fn compile(llama: &LlamaBuild, build: &VirtgpuBuild, work: &Path) -> Result<()> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join("virtgpu");
    let ggml = llama.source.join("ggml");
    let theirs = ggml.join("src/ggml-virtgpu");
    let includes = [
        ours.clone(),
        ggml.join("include"),
        ggml.join("src"),
        theirs.clone(),
        theirs.join("include"),
        kernel::headers(&Artifacts::open()?)?,
    ];
    let compiler = |name: &str| {
        let mut command = Command::new(name);
        command.args(FLAGS);
        for include in &includes {
            command.arg("-I").arg(include);
        }
        command
    };
    let run = |command: &mut Command| -> Result<()> {
        process::run(command, COMPILE_TIMEOUT)?.success().context("compiling ggml-virtgpu").map(drop)
    };
    let library = |output: &Path, sources: &Path, object: Option<&Path>| {
        let mut cxx = compiler("c++");
        cxx.args(["-std=c++20", "-shared", "-o"]).arg(output).args(cpp_files(sources)?).args(object);
        run(cxx.arg("-L").arg(&llama.bin).arg("-lggml-base"))
    };
    let strict = ["-Wall", "-Wextra", "-Werror"];
    let object = work.join("guest.o");
    run(compiler("cc").args(strict).arg("-c").arg(ours.join(GUEST)).arg("-o").arg(&object))?;
    run(compiler("cc").args(strict).arg(ours.join(HOST)).arg("-o").arg(&build.host))?;
    library(&build.plugin, &theirs, Some(&object))?;
    library(&build.host_library, &theirs.join("backend"), None)?;
    Ok(fs::remove_file(object)?)
}

/// The C++ files of a folder, in an order that is always the same.
fn cpp_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "cpp"));
    files.sort();
    Ok(files)
}
