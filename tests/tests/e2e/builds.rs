//! Other builds of llama.cpp: prebuilt ones, from before today's interface, in the process of another runtime.

use std::path::Path;
use std::process::Command;

use ferry_tests::artifacts::Store;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Device, FERRY_DEVICE};
use ferry_tests::node;
use ferry_tests::releases::{Meaning, Release};

use crate::testbed::{Testbed, run};

/// Of back-end API 1, and of the first API 2 (August and December 2025).
const OLD: [&str; 2] = ["b6133", "b7347"];
const TOKENS: u32 = 24;
/// Enough to see that a program goes on.
const SOME_TOKENS: u32 = 4;

#[test]
fn a_release_of_2025_answers_in_node_as_on_its_own_cpu() {
    let store = Store::open().unwrap();
    let model = store.model().unwrap();
    for name in OLD {
        let release = Release::from_npm(&store, name).unwrap();
        let daemon = Daemon::start(release.bin()).unwrap();
        let ferry = release.answer_through(&daemon, &model).unwrap();
        assert_eq!(ferry, release.native_answer(&model).unwrap(), "{name}");
    }
}

/// Python opens libraries with RTLD_LOCAL: the plug-in finds its ggml all the same, and no other.
#[test]
fn python_gets_the_native_answer_from_libraries_that_it_opened_for_itself() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/decode.py");
    let mut command = Command::new("python3");
    Device::Ferry(daemon.socket()).environment(&mut command).unwrap();
    command.arg(program).arg(&bed.llama.bin).arg(&bed.model).args([FERRY_DEVICE, &TOKENS.to_string()]);
    let finished = run(&mut command);
    let devices: Vec<&str> =
        finished.stderr.lines().filter_map(|line| line.strip_prefix("device ")).collect();
    assert!(devices.contains(&FERRY_DEVICE) && devices.contains(&"CPU"), "{devices:?}");
    assert_eq!(finished.stdout, bed.native(TOKENS));
    let session = &daemon.sessions(1).unwrap()[0];
    assert_eq!((session.graphs, session.failures), (u64::from(TOKENS), 0), "{session:?}");
}

#[test]
fn a_release_that_is_too_old_is_told_so_and_goes_on_without_a_device() {
    let store = Store::open().unwrap();
    let (build, model) = (store.node_too_old().unwrap(), store.model().unwrap());
    let daemon = Daemon::start(&store.llama().unwrap().bin).unwrap();
    let finished =
        run(&mut node::complete(&build, &model, &Device::Ferry(daemon.socket()), SOME_TOKENS).unwrap());
    assert_eq!(finished.stdout.lines().count(), SOME_TOKENS as usize, "{}", finished.tail());
    let ours: Vec<&str> = finished.stderr.lines().filter(|line| line.starts_with("ferry: ")).collect();
    assert!(matches!(ours[..], [line] if line.contains("llama.cpp since July 2025")), "{ours:?}");
    assert!(finished.stderr.contains("devices: []"), "{}", finished.tail());
}

/// ggml kept the names of operations while it changed what they read; each of these was computed wrongly once.
#[test]
fn an_operation_means_the_same_to_every_release_or_is_declined() {
    let store = Store::open().unwrap();
    let meaning = Meaning::compile().unwrap();
    let (old, new) = (store.node(OLD[0]).unwrap().bin, store.llama_next().unwrap().bin);
    let check = |guest: &Path, host: &Path, cases: usize, declined: &[&str]| {
        let found = meaning.verdicts(guest, &Daemon::start(host).unwrap()).unwrap();
        assert_eq!(found.len(), cases, "{found:?}");
        for (case, verdict) in &found {
            let expected = if declined.contains(&case.as_str()) { "declined" } else { "equal" };
            assert_eq!(verdict, expected, "{case}, from {} to {}", guest.display(), host.display());
        }
    };
    // An odd embedding was one longer; and nothing could be padded in front.
    check(&old, &new, 7, &["timestep"]);
    check(&new, &old, 8, &["timestep", "pad-before"]);
    check(&new, &new, 8, &[]);
}
