//! The answer through Ferry is the native answer, to the bit, and the worker computed it.

use ferry_tests::artifacts::Store;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{self, Completion, Device};

use crate::testbed::{Testbed, run};

/// Enough to cross a batch boundary of llama.cpp's cache padding and to let an error grow visible.
const TOKENS: u32 = 48;

#[test]
fn a_greedy_completion_is_the_native_one_and_every_node_ran_in_the_worker() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let prompt = "The three largest rivers of Europe are";
    let completion = Completion { model: &bed.model, prompt, tokens: TOKENS, verbose: true };
    let native = completion.run(&bed.llama, &Device::Cpu).unwrap();
    let ferry = completion.run(&bed.llama, &Device::Ferry(daemon.socket())).unwrap();
    assert!(native.stdout.len() > prompt.len() + TOKENS as usize, "{}", native.tail());
    assert_eq!(ferry.stdout, native.stdout);

    let sessions = daemon.sessions(1).unwrap();
    let nodes = llama::graph_nodes(&native.stderr).unwrap();
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    assert_eq!(sessions[0].graphs, u64::from(TOKENS));
    assert_eq!(sessions[0].nodes, llama::expected_nodes(nodes, TOKENS));
    daemon.stop().unwrap();
}

#[test]
fn logits_are_bit_equal_to_the_native_ones() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let ferry = run(&mut bed.decode(&Device::Ferry(daemon.socket()), TOKENS));
    assert_eq!(llama::decoded(&ferry.stdout).unwrap().len(), TOKENS as usize);
    assert_eq!(ferry.stdout, bed.native(TOKENS));
    assert_eq!(daemon.sessions(1).unwrap()[0].graphs, u64::from(TOKENS));
}

#[test]
fn llama_bench_measures_both_phases() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let device = Device::Ferry(daemon.socket());
    let speed = llama::bench(&bed.llama, &device, &bed.model, (64, 8)).unwrap();
    assert!(speed.prompt > 0.0 && speed.generate > 0.0, "{speed:?}");
    // Warm-up and measurement of each phase: at least 2 prompts and 8 tokens were computed over there.
    assert!(daemon.sessions(1).unwrap()[0].graphs >= 10);
}

/// ggml 0.26 has back-end API 3; the plug-in is the same file.
#[test]
fn a_newer_ggml_gives_its_own_native_answer() {
    let bed = Testbed::next();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let ferry = run(&mut bed.decode(&Device::Ferry(daemon.socket()), TOKENS));
    assert_eq!(ferry.stdout, bed.native(TOKENS));
    assert_eq!(daemon.sessions(1).unwrap()[0].graphs, u64::from(TOKENS));
}

/// Operations have other numbers in another release, so they travel by name.
#[test]
fn guest_and_host_may_have_different_releases_of_ggml() {
    let host = Store::open().unwrap().llama().unwrap();
    let bed = Testbed::next();
    let daemon = Daemon::start(&host.bin).unwrap();
    let ferry = run(&mut bed.decode(&Device::Ferry(daemon.socket()), TOKENS));
    let first = |output: &str| output.lines().next().map(|line| line.rsplit_once(' ').unwrap().0.to_owned());
    // Kernels may differ in the last bits between releases; the first token of a sane run does not.
    assert_eq!(first(&ferry.stdout), first(&bed.native(1)));
    assert_eq!(llama::decoded(&ferry.stdout).unwrap().len(), TOKENS as usize);
    assert_eq!(daemon.sessions(1).unwrap()[0].graphs, u64::from(TOKENS));
}
