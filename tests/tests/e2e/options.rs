//! What a user of llama.cpp may choose: each choice gives what it gives natively.

use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Completion, Device};

use crate::testbed::{Testbed, run};

const TOKENS: u32 = 16;

#[test]
fn every_choice_gives_its_native_answer() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let prompt = "The three largest rivers of Europe are";
    let completion = Completion { model: &bed.model, prompt, tokens: TOKENS, verbose: false };
    let choices: &[&[&str]] = &[
        &["--flash-attn", "on"],
        &["--flash-attn", "off"],
        &["--flash-attn", "on", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0"],
        &["--no-mmap"],
        &["--n-gpu-layers", "10"],
        &["--split-mode", "none"],
        &["--no-kv-offload"],
        &["--ubatch-size", "4"],
    ];
    for (at, choice) in choices.iter().enumerate() {
        let answer = |device: &Device| {
            let mut command = completion.command(&bed.llama, device).unwrap();
            // The native run has no GPU, and its layers stay where they are.
            run(command.args(*choice)).stdout
        };
        assert_eq!(answer(&Device::Ferry(daemon.socket())), answer(&Device::Cpu), "{choice:?}");
        let session = daemon.sessions(at + 1).unwrap()[at].clone();
        assert!(session.graphs >= u64::from(TOKENS) && session.failures == 0, "{choice:?}: {session:?}");
    }
}
