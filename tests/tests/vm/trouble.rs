//! What goes wrong in a guest, or under it, stays there: one clear line, and the machine goes on.

use std::time::{Duration, Instant};

use ferry_tests::daemon::Daemon;
use ferry_vm::{KernelVersion, Output};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::testbed::Testbed;

/// Enough to be in the middle of for a while.
const LONG: u32 = 400;
const SHORT: u32 = 8;

/// The plug-in's lines.
fn ferry_lines(output: &Output) -> Vec<String> {
    let stderr = output.stderr_text();
    stderr.lines().filter(|line| line.contains("ferry: ")).map(str::to_owned).collect()
}

#[test]
fn a_killed_guest_process_and_a_killed_worker() {
    let bed = Testbed::new();
    let native = bed.native(SHORT);
    let daemon = Daemon::start_for_machines(&bed.llama.bin, 1).unwrap();
    let vm = bed.boot(bed.machine(KernelVersion::default()).gpu(daemon.machine_socket(0)));

    let mut process = bed.through_ferry(&vm, LONG).spawn().unwrap();
    process.wait_for(native.trim_end()).unwrap();
    process.signal(Signal::SIGKILL).unwrap();
    process.wait().unwrap();
    let killed = daemon.sessions(1).unwrap()[0].clone();
    assert!(killed.graphs > 0 && killed.graphs < u64::from(LONG), "{killed:?}");
    assert_eq!(bed.through_ferry(&vm, SHORT).text().unwrap(), native);

    let before = daemon.children();
    let mut process = bed.through_ferry(&vm, LONG).spawn().unwrap();
    process.wait_for(native.trim_end()).unwrap();
    let workers: Vec<i32> = daemon.children().into_iter().filter(|pid| !before.contains(pid)).collect();
    assert_eq!(workers.len(), 1, "one process, one worker: {before:?}, then also {workers:?}");
    kill(Pid::from_raw(workers[0]), Signal::SIGKILL).unwrap();
    let start = Instant::now();
    let output = process.wait().unwrap();
    assert!(!output.exit.success(), "the program succeeded without its worker");
    assert!(start.elapsed() < Duration::from_secs(60), "it took {:?} to notice", start.elapsed());
    assert!(!ferry_lines(&output).is_empty(), "{}", output.stderr_text());
    assert_eq!(bed.through_ferry(&vm, SHORT).text().unwrap(), native);
    vm.power_off().unwrap();
}

#[test]
fn nobody_may_open_the_render_node() {
    let bed = Testbed::new();
    let daemon = Daemon::start_for_machines(&bed.llama.bin, 1).unwrap();
    let vm = bed.boot(bed.machine(KernelVersion::default()).gpu(daemon.machine_socket(0)));
    let output = bed.through_ferry(&vm, 1).user(1000).output().unwrap();
    let lines = ferry_lines(&output);
    assert!(lines.iter().any(|line| line.contains("/dev/dri/renderD128")), "{}", output.stderr_text());
    assert!(!output.exit.success(), "a device that cannot be opened was used");
}

#[test]
fn without_the_device_or_without_shared_memory() {
    let bed = Testbed::new();
    let vm = bed.boot(bed.machine(KernelVersion::default()));
    let output = bed.through_ferry(&vm, 1).output().unwrap();
    assert!(!output.exit.success() && ferry_lines(&output).len() == 1, "{}", output.stderr_text());
    vm.power_off().unwrap();

    let daemon = Daemon::start_for_machines(&bed.llama.bin, 1).unwrap();
    let machine = bed.machine(KernelVersion::default()).gpu(daemon.machine_socket(0));
    let vm = bed.boot(machine.shared_memory(false));
    let output = bed.through_ferry(&vm, 1).output().unwrap();
    assert!(!output.exit.success() && ferry_lines(&output).len() == 1, "{}", output.stderr_text());
    assert!(daemon.log().contains("share=on"), "{}", daemon.log());
}
