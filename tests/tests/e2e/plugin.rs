//! The plug-in as a library that a program loads and unloads.

use std::fs;
use std::process::Command;
use std::time::Duration;

use ferry_tests::artifacts::LlamaBuild;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Completion, Device};
use ferry_tests::{checkout, process, programs};

use crate::testbed::{Testbed, run};

/// llama.cpp looks beside its executables for back-ends of names that it knows; ours has one of them.
#[test]
fn the_file_beside_the_executable_is_enough() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let llama = LlamaBuild { bin: bed.dir().join("llama"), source: bed.llama.source.clone() };
    fs::create_dir(&llama.bin).unwrap();
    for entry in fs::read_dir(&bed.llama.bin).unwrap().flatten() {
        // Links are followed: a library under each of its names.
        fs::copy(entry.path(), llama.bin.join(entry.file_name())).unwrap();
    }
    let beside = llama.bin.join(format!("libggml-virtgpu{}", std::env::consts::DLL_SUFFIX));
    fs::copy(&checkout::binaries().unwrap().plugin, beside).unwrap();
    let completion = Completion { model: &bed.model, prompt: "A boat", tokens: 8, verbose: false };
    let mut command = completion.command(&llama, &Device::Ferry(daemon.socket())).unwrap();
    assert_eq!(
        run(command.env_remove("GGML_BACKEND_PATH")).stdout,
        run(&mut native(&completion, &bed)).stdout
    );
    assert_eq!(daemon.sessions(1).unwrap()[0].graphs, 8);
}

fn native(completion: &Completion, bed: &Testbed) -> Command {
    completion.command(&bed.llama, &Device::Cpu).unwrap()
}

#[test]
fn loading_and_unloading_again_and_again_leaves_nothing_behind() {
    for bed in [Testbed::new(), Testbed::next()] {
        let daemon = Daemon::start(&bed.llama.bin).unwrap();
        let reload = programs::compile("reload", &bed.llama, bed.dir()).unwrap();
        let mut command = Command::new(reload);
        Device::Ferry(daemon.socket()).environment(&mut command).unwrap();
        command.arg(&checkout::binaries().unwrap().plugin).arg("20");
        let finished = run(&mut command);
        let rounds: Vec<&str> = finished
            .stdout
            .lines()
            .filter_map(|line| line.split_once(" devices "))
            .map(|line| line.1)
            .collect();
        assert_eq!(rounds.len(), 20, "{}", finished.tail());
        assert!(rounds[0].starts_with("1 fds "), "one device: {}", finished.tail());
        assert!(rounds.iter().all(|round| *round == rounds[0]), "it grows: {}", finished.tail());
    }
}

#[test]
fn a_ggml_with_an_unknown_interface_is_refused_with_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("stranger");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/stranger.c");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-rdynamic", "-o"]).arg(&program).arg(source);
    process::run(&mut cc, Duration::from_secs(60)).unwrap().success().unwrap();
    let plugin = &checkout::binaries().unwrap().plugin;
    let finished =
        process::run(Command::new(&program).arg(plugin), Duration::from_secs(60)).unwrap().success().unwrap();
    assert_eq!(finished.stdout, "refused\n");
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("17, 12 and 9 functions"), "{}", finished.stderr);
}
