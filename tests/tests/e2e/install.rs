//! `ferry install`, and then llama.cpp's own list of devices.

use std::fs;
use std::path::Path;
use std::process::Command;

use ferry_tests::artifacts::Store;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Device, FERRY_DEVICE, RUN_TIMEOUT};
use ferry_tests::{checkout, node, process, programs};

use crate::testbed::{Testbed, run};

/// Everything of a folder, links followed: a library under each of its names.
fn copy(from: &Path, into: &Path) {
    fs::create_dir(into).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), into.join(entry.file_name())).unwrap();
    }
}

fn install_command(dir: &Path) -> Command {
    let mut command = Command::new(checkout::ferry().unwrap());
    command.arg("install").arg(dir).arg("--plugin").arg(&checkout::binaries().unwrap().plugin);
    command
}

fn install(dir: &Path) -> String {
    run(&mut install_command(dir)).stdout
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

/// The plug-in finds the program's own ggml if that shows it; if not, there is a way out to be told.
#[test]
fn a_program_with_ggml_inside_takes_the_plugin_if_it_exports_its_functions() {
    let bed = Testbed::new();
    let ggml = Store::open().unwrap().ggml_static().unwrap();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let native = programs::compile("strides", &bed.llama, bed.dir()).unwrap();
    let native = run(Command::new(native).arg(&bed.llama.bin).arg("CPU")).stdout;
    for exports in [true, false] {
        let dir = bed.dir().join(format!("exports-{exports}"));
        fs::create_dir(&dir).unwrap();
        // `ferry install` looks at programs of llama.cpp's.
        let program = dir.join("llama-cli");
        programs::compile_static("strides", &ggml, &program, exports).unwrap();
        if exports {
            assert!(install(&dir).contains("by itself"));
            let mut command = Command::new(&program);
            command.env_remove("GGML_BACKEND_PATH").env("FERRY_SOCKET", daemon.socket());
            assert_eq!(run(command.arg(&dir).arg(FERRY_DEVICE)).stdout, native);
        } else {
            let refused = process::run(&mut install_command(&dir), RUN_TIMEOUT).unwrap();
            assert!(!refused.status.success() && refused.stderr.contains("CMAKE_ENABLE_EXPORTS=ON"));
        }
    }
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
