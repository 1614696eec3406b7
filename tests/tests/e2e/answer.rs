//! The answer through Ferry is the native answer, to the bit, and the worker computed it.

use std::process::Command;

use ferry_tests::artifacts::Store;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{self, Bench, Completion, Device, FERRY_DEVICE, THREADS};
use ferry_tests::{programs, random_model};

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
    assert!(ferry.stderr.contains("Ferry : VERSION = "), "{}", ferry.tail());

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
    let session = &daemon.sessions(1).unwrap()[0];
    assert_eq!(session.graphs, u64::from(TOKENS));
    // Its weights are on the host; beyond what the guest asked for there is little.
    assert!(session.buffer_bytes_max >= 80 << 20, "{session:?}");
    assert!(
        session.own_bytes > 1 << 20 && session.own_bytes <= session.buffer_bytes_max + (44 << 20),
        "{session:?}"
    );
    // The host wrote them where the program reads them: 49,152 of 4 bytes each time.
    assert!(session.bytes_shared >= u64::from(TOKENS) * 49_152 * 4, "{session:?}");
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

/// llama.cpp's cache grows in steps of 256 tokens, and some tensors of the graph with it.
#[test]
fn a_graph_that_changes_is_patched_and_the_answer_stays_right() {
    const ACROSS_A_STEP: u32 = 280;
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let ferry = run(&mut bed.decode(&Device::Ferry(daemon.socket()), ACROSS_A_STEP));
    assert_eq!(ferry.stdout, bed.native(ACROSS_A_STEP));
    let session = daemon.sessions(1).unwrap()[0].clone();
    assert_eq!(session.graphs, u64::from(ACROSS_A_STEP));
    assert!(session.graphs_patched >= 1 && session.graphs_defined <= 3, "{session:?}");
}

/// Builds of ggml from before April 2026 give graphs no uid: what changed in one is found by looking.
#[test]
fn a_graph_without_a_uid_that_changes_in_place_is_noticed() {
    const STEPS: u32 = 60;
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let program = programs::compile("steps", &bed.llama, bed.dir()).unwrap();
    let steps = |device: &Device, name: &str, how: &str| {
        let mut command = Command::new(&program);
        device.environment(&mut command).unwrap();
        command.arg(&bed.llama.bin).args([name, "100", &STEPS.to_string(), how]);
        run(&mut command).stdout
    };
    let ferry = Device::Ferry(daemon.socket());
    let changing = steps(&ferry, FERRY_DEVICE, "changing");
    assert_eq!(changing, steps(&Device::Cpu, "CPU", "changing"));
    assert_ne!(changing, steps(&ferry, FERRY_DEVICE, "plain"), "changes make no difference");
    let sessions = daemon.sessions(2).unwrap();
    let sent = |at: usize| (sessions[at].graphs, sessions[at].graphs_defined + sessions[at].graphs_patched);
    assert_eq!((sent(0).0, sent(1)), (u64::from(STEPS), (u64::from(STEPS), 1)), "{sessions:?}");
    assert!(sent(0).1 > u64::from(STEPS) / 3, "{sessions:?}");
}

#[test]
fn without_shared_memory_the_answer_is_the_same() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let ferry = run(bed.decode(&Device::Ferry(daemon.socket()), TOKENS).env("FERRY_TRANSPORT", "stream"));
    assert_eq!(ferry.stdout, bed.native(TOKENS));
    assert_eq!(daemon.sessions(1).unwrap()[0].graphs, u64::from(TOKENS));
}

/// Counted by the guest and by the worker: in a steady decode a token costs each side one doorbell and one wait at most.
#[test]
fn a_token_costs_one_doorbell_and_one_wait() {
    // A start asks some sixty questions, each of which is slept for or not as the scheduler likes: enough tokens that it
    // does not matter.
    const MORE: u32 = 1024;
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let stats = bed.dir().join("stats");
    // Its weights fit the ring: nobody ever waits for room, which happens as often as the scheduler likes.
    let model = Store::open().unwrap().random_model(&random_model::TINY).unwrap();
    let count = |tokens: u32| -> [u64; 3] {
        let bench = Bench { model: &model, prompts: &[], generate: tokens, repetitions: 1, warm_up: false };
        let mut command = bed.llama.program("llama-bench", &Device::Ferry(daemon.socket())).unwrap();
        command.args(bench.arguments(THREADS));
        // Without spinning every wait is a sleep: the most that it can cost.
        run(command.env("FERRY_STATS", &stats).env("FERRY_SPIN_US", "0"));
        let lines = std::fs::read_to_string(&stats).unwrap();
        let line: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
        let guest = |name: &str| line[name].as_u64().unwrap();
        let worker = daemon.session_of(guest("guest_pid") as i32).unwrap();
        [guest("doorbells"), guest("waits"), worker.doorbells]
    };
    let (few, many, most) = (count(8), count(8 + MORE), u64::from(MORE));
    println!("guest's doorbells and waits, worker's doorbells: {few:?}, with {MORE} tokens more {many:?}");
    for (what, few, many) in [
        ("the guest's doorbells", few[0], many[0]),
        ("the guest's waits", few[1], many[1]),
        ("the worker's doorbells", few[2], many[2]),
    ] {
        let cost = many.saturating_sub(few);
        assert!(cost <= most + most / 10, "{what}: {cost} for {most} tokens");
        let counted = what != "the guest's waits" || cost >= most / 2;
        assert!(counted, "nothing was counted: {what} {few} and {many}");
    }
}
