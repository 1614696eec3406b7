//! Pages that the guest's kernel gets back are its own: nobody on the host writes there any more.

use std::time::{Duration, Instant};

use ferry_protocol::channel::arena::default_layout;
use ferry_tests::daemon::Daemon;
use ferry_vm::{Exit, KernelVersion, cargo};
use nix::sys::signal::Signal;

use crate::testbed::Testbed;

/// Sentences of the prompt, of 8 tokens or so: one graph, which keeps the host busy for seconds.
const SENTENCES: u32 = 50;
/// How the prompt ends; no sentence is like it.
const LAST_WORDS: &str = "and what do they all have in common?";
const PAGE_BYTES: usize = 4096;

fn prompt() -> String {
    let sentences = (0..SENTENCES).map(|number| format!("Ferry {number} crosses the river. "));
    sentences.collect::<String>() + LAST_WORDS
}

/// The number that follows `word` in what the canary said.
fn number(said: &str, word: &str) -> usize {
    let mut words = said.split_whitespace().skip_while(|&candidate| candidate != word);
    words.nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {word} in {said:?}"))
}

/// A process is killed while the host computes for it. What it leaves is filled by another at once, and stays as it was
/// filled when the host would have had its result.
fn killed_while_the_host_computes(kernel: KernelVersion) {
    let bed = Testbed::new();
    let daemon = Daemon::start_for_machines(&bed.llama.bin, 1).unwrap();
    let canary = cargo::binary("ferry-vm-agent", "canary").unwrap();
    let machine = bed.machine(kernel).memory_mib(512).file(canary, "/bin/canary");
    let vm = bed.boot(machine.gpu(daemon.machine_socket(0)));

    let mut undisturbed = bed.completion(&vm, &prompt(), 1).spawn().unwrap();
    undisturbed.wait_for(LAST_WORDS).unwrap();
    let start = Instant::now();
    assert!(undisturbed.wait().unwrap().exit.success());
    let takes = start.elapsed();
    assert!(takes > Duration::from_secs(1), "the prompt is too short to be in the middle of: {takes:?}");

    let mut canary = vm.command(["canary"]).spawn().unwrap();
    canary.wait_for("ready").unwrap();
    let mut process = bed.completion(&vm, &prompt(), 1).spawn().unwrap();
    process.wait_for(LAST_WORDS).unwrap();
    std::thread::sleep(takes / 4);
    canary.write(b"look\n").unwrap();
    canary.wait_for("pages").unwrap();
    process.signal(Signal::SIGKILL).unwrap();
    canary.write(b"fill\n").unwrap();
    canary.wait_for("filled").unwrap();
    std::thread::sleep(takes * 2);
    canary.write(b"check\n").unwrap();
    let output = canary.wait().unwrap();
    let said = output.stdout_text();
    assert!(output.exit.success(), "{said}{}", output.stderr_text());

    assert_eq!(process.wait().unwrap().exit, Exit::Signal(9), "it ended by itself");
    let (watched, has) = (number(&said, "watching"), number(&said, "has"));
    assert!(watched >= default_layout().arena_bytes as usize / PAGE_BYTES, "not all of the arena: {said}");
    // Some of what is free stays in the kernel's own caches.
    assert!(has >= watched * 3 / 4, "the canary had other pages: {said}");
    assert!(daemon.log().contains("it did not end in time"), "the host was done already: {}", daemon.log());
    vm.power_off().unwrap();
    daemon.stop().unwrap();
}

#[test]
fn kernel_6_1() {
    killed_while_the_host_computes(KernelVersion::V6_1);
}

#[test]
fn kernel_6_12() {
    killed_while_the_host_computes(KernelVersion::V6_12);
}
