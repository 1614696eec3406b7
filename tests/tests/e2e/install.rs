//! `ferry install`, and then llama.cpp's own list of devices.

use std::fs;
use std::path::Path;
use std::process::Command;

use ferry_tests::artifacts::Store;
use ferry_tests::checkout;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::Device;
use ferry_tests::node;

use crate::testbed::{Testbed, run};

/// Everything of a folder, links followed: a library under each of its names.
fn copy(from: &Path, into: &Path) {
    fs::create_dir(into).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), into.join(entry.file_name())).unwrap();
    }
}

fn install(dir: &Path) -> String {
    let binaries = checkout::binaries().unwrap();
    run(Command::new(checkout::ferry().unwrap())
        .arg("install")
        .arg(dir)
        .arg("--plugin")
        .arg(&binaries.plugin))
    .stdout
}

#[test]
fn a_build_from_source_lists_the_hosts_device() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let bin = bed.dir().join("llama");
    copy(&bed.llama.bin, &bin);
    assert!(install(&bin).contains("by itself"));
    let mut list = Command::new(bin.join("llama-completion"));
    list.arg("--list-devices").env_remove("GGML_BACKEND_PATH").env("FERRY_SOCKET", daemon.socket());
    let listed = run(&mut list).stdout;
    assert!(listed.contains("Ferry0: ") && listed.contains("through Ferry"), "{listed}");
}

/// The release is older than the name that newer ones look for.
#[test]
fn a_prebuilt_release_of_2025_is_told_where_the_plugin_is() {
    let store = Store::open().unwrap();
    let build = store.node("b7347").unwrap();
    let daemon = Daemon::start(&build.bin).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    copy(&build.bin, &bin);
    let said = install(&bin);
    let variable = said.lines().find_map(|line| line.trim().strip_prefix("export GGML_BACKEND_PATH="));
    let plugin = variable.unwrap_or_else(|| panic!("no variable in {said}"));
    let mut command =
        node::complete(&build, &store.model().unwrap(), &Device::Ferry(daemon.socket()), 1).unwrap();
    let finished = run(command.env("GGML_BACKEND_PATH", plugin));
    assert!(finished.stderr.contains("through Ferry)\"]"), "{}", finished.tail());
}
