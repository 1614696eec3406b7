//! What a token costs both sides in instructions, which are the same on any machine, busy or not.
//!
//! Counted is everything in the plug-in and in the worker, with what they call in libc, but for ggml and its back-end.
//! The graph has 1000 nodes that compute next to nothing, six inputs of 256 bytes and a result of 256: payloads are as
//! good as absent. Nobody spins.

use ferry_tests::callgrind::{self, Instructions};
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Device, FERRY_DEVICE};
use ferry_tests::process;
use std::time::Duration;

use crate::testbed::Testbed;

/// Under callgrind a program runs some fifty times as long.
const TIMEOUT: Duration = Duration::from_secs(300);
const NODES: &str = "1000";
/// Two runs differ by so many steps.
const STEPS: u32 = 100;
/// At three gigahertz and an instruction a cycle, which is little. The budget is 30 µs for both sides together.
const INSTRUCTIONS_PER_US: i64 = 3000;

/// What a step costs the plug-in and the worker.
struct Step {
    guest: Instructions,
    host: Instructions,
}

impl Step {
    fn total(&self) -> i64 {
        self.guest.total() + self.host.total()
    }

    fn show(&self, what: &str) {
        let total = self.total();
        println!("{what}: {total} instructions, as good as {} µs", total / INSTRUCTIONS_PER_US);
        for (side, spent) in [("guest", &self.guest), ("host", &self.host)] {
            println!("  {side}: {}", spent.total());
            spent.top(6).iter().for_each(|(name, count)| println!("    {count:>8} {name}"));
        }
    }
}

fn step(extra: &[&str]) -> Step {
    let bed = Testbed::new();
    let daemon = Daemon::adapted(&bed.llama.bin, "cpu", |mut command| {
        callgrind::profiled(command.args(["--spin-us", "0"]), bed.dir())
    })
    .unwrap();
    let (few, many) = (run(&bed, &daemon, 10, extra), run(&bed, &daemon, 10 + STEPS, extra));
    let per_step = |many: &Instructions, few| many.per_step(few, i64::from(STEPS));
    Step { guest: per_step(&many.0, &few.0), host: per_step(&many.1, &few.1) }
}

/// What the plug-in and the worker spent in a run of so many steps.
fn run(bed: &Testbed, daemon: &Daemon, steps: u32, extra: &[&str]) -> (Instructions, Instructions) {
    let steps_text = steps.to_string();
    let arguments = [&[FERRY_DEVICE, NODES, &steps_text], extra].concat();
    let mut command = bed.program("steps", &Device::Ferry(daemon.socket()), &arguments);
    command.env("FERRY_SPIN_US", "0");
    let running = process::spawn(&mut callgrind::profiled(&command, bed.dir()).unwrap()).unwrap();
    let pid = running.pid().as_raw();
    let finished = running.wait(TIMEOUT).unwrap().success().unwrap();
    assert!(finished.stdout.contains(&format!("nodes {NODES}\n")), "{}", finished.tail());
    let session = daemon.session_of(pid).unwrap();
    assert_eq!((session.graphs, session.graphs_defined), (u64::from(steps), 1), "{session:?}");
    let spent = |pid, object, foreign| {
        let profile = callgrind::profile_of(pid, bed.dir()).unwrap();
        callgrind::spent_by(&profile, object, foreign).unwrap()
    };
    let plugin = "libggml_virtgpu.so";
    // ggml itself is not ours to answer for on the host, where it computes; the guest asks it for next to nothing.
    (spent(pid, plugin, None), spent(session.worker_pid, "/ferryd", Some("libggml")))
}

#[test]
fn an_unchanged_graph_of_a_thousand_nodes_is_named_within_budget() {
    const MOST: i64 = 25_000;
    let step = step(&[]);
    step.show("a graph with a uid");
    assert!(step.guest.total() > 1000 && step.host.total() > 1000, "nothing was counted");
    assert!(step.total() <= MOST, "{} instructions, {MOST} are allowed", step.total());
}

/// Builds of ggml from before April 2026 give their graphs no uid: each is compared with what was sent.
#[test]
fn an_unchanged_graph_without_a_uid_is_compared_within_budget() {
    const MOST: i64 = 90_000;
    let step = step(&["plain"]);
    step.show("a graph without a uid");
    assert!(step.guest.total() > 1000 && step.host.total() > 1000, "nothing was counted");
    assert!(step.total() <= MOST, "{} instructions, {MOST} are allowed", step.total());
}
