//! `ferry install` in folders of every kind, with files that look like the real ones to it.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Folder(tempfile::TempDir);

impl Folder {
    fn with(files: &[(&str, &[u8])]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (name, content) in files {
            let path = folder.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn install(&self, dir: &str, more: &[&str]) -> Output {
        let plugin = self.path("plugin");
        fs::write(&plugin, b"...FERRY_SOCKET...").unwrap();
        let mut ferry = Command::new(env!("CARGO_BIN_EXE_ferry"));
        ferry.arg("install").arg(self.path(dir)).arg("--plugin").arg(plugin).args(more).output().unwrap()
    }
}

fn library(dir: &str, stem: &str) -> String {
    Path::new(dir).join(format!("{DLL_PREFIX}{stem}{DLL_SUFFIX}")).display().to_string()
}

fn says(output: &Output, words: &str) {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(words), "{words:?} is not in {text}");
}

fn build(registry: &'static [u8]) -> Folder {
    Folder::with(&[(&library("b", "ggml-base"), b"base"), (&library("b", "ggml"), registry)])
}

#[test]
fn a_build_that_looks_for_it_needs_nothing_more() {
    let folder = build(b"cuda\0virtgpu\0vulkan\0");
    let output = folder.install("b", &[]);
    assert!(output.status.success());
    says(&output, "by itself");
    assert_eq!(fs::read(folder.path(&library("b", "ggml-virtgpu"))).unwrap(), b"...FERRY_SOCKET...");
    // Again, over itself.
    assert!(folder.install("b", &[]).status.success());
}

#[test]
fn an_older_build_is_told_by_a_variable() {
    let folder = build(b"cuda\0vulkan\0");
    let output = folder.install("b", &[]);
    assert!(output.status.success());
    says(&output, "export GGML_BACKEND_PATH=");
}

#[test]
fn libraries_may_lie_in_a_lib_beside_the_programs() {
    let folder = Folder::with(&[
        ("p/bin/llama-cli", b"program"),
        (&library("p/lib", "ggml-base"), b"base"),
        (&library("p/lib", "ggml.b7347"), b"\0virtgpu\0"),
    ]);
    assert!(folder.install("p/bin", &[]).status.success());
    assert!(folder.path(&library("p/bin", "ggml-virtgpu")).exists());
}

#[test]
fn what_cannot_be_served_is_said_with_the_way_out() {
    let folder = Folder::with(&[("static/llama-cli", b"..ggml_backend_reg_count.."), ("empty/readme", b"")]);
    let output = folder.install("static", &[]);
    assert!(!output.status.success());
    says(&output, "GGML_BACKEND_DL=ON");
    says(&output, "CMAKE_ENABLE_EXPORTS=ON");
    let output = folder.install("empty", &[]);
    assert!(!output.status.success());
    says(&output, "no llama.cpp with shared libraries");
    assert!(!folder.install("missing", &[]).status.success());
}

#[test]
fn another_back_end_of_that_name_is_replaced_only_when_told() {
    let folder = build(b"\0virtgpu\0");
    let theirs = folder.path(&library("b", "ggml-virtgpu"));
    fs::write(&theirs, b"theirs").unwrap();
    let output = folder.install("b", &[]);
    assert!(!output.status.success());
    says(&output, "--replace");
    assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
    assert!(folder.install("b", &["--replace"]).status.success());
}
