//! A host with ggml's Vulkan back-end, on a CPU (Mesa's lavapipe): a back-end with queues and memory of its own, events,
//! and an opinion on the order of nodes. The guest is a Vulkan build itself, on a machine without a GPU.

use std::path::Path;
use std::process::Command;

use ferry_tests::artifacts::{NodeBuild, Store};
use ferry_tests::daemon::{Daemon, Session};
use ferry_tests::llama::{self, Device};
use ferry_tests::node;
use serde::Deserialize;

use crate::testbed::{Testbed, run};

/// A token takes lavapipe about a second on a busy machine.
const TOKENS: u32 = 6;

/// What the plug-in counted.
#[derive(Deserialize)]
struct Guest {
    reorderings: u64,
}

fn complete(build: &NodeBuild, model: &Path, device: &Device) -> Command {
    node::complete(build, model, device, TOKENS).unwrap()
}

/// The program's tokens through so many devices of a new daemon; what the worker and the plug-in counted.
fn through_ferry(
    build: &NodeBuild,
    devices: usize,
    program: impl Fn(&Device) -> Command,
) -> (String, Session) {
    let daemon = Daemon::start_vulkan(&build.bin, devices).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let stats = dir.path().join("guest.jsonl");
    let device = Device::Ferry(daemon.socket());
    let finished = run(program(&device).env("FERRY_STATS", &stats));
    let session = daemon.sessions(1).unwrap()[0].clone();
    assert_eq!(session.failures, 0, "{session:?}");
    let lines = std::fs::read_to_string(&stats).unwrap();
    // node-llama-cpp looks at devices and estimates sizes in sessions of their own, before the one that computes.
    let guest: Guest = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    // What the back-end wants is done, and not only heard.
    assert!(session.optimizations > 0 && session.reorderings > 0, "{session:?}");
    assert_eq!(guest.reorderings, session.reorderings, "{session:?}");
    (finished.stdout, session)
}

/// Its tokens on its own Vulkan device.
fn natively(build: &NodeBuild, model: &Path) -> String {
    let native = run(&mut complete(build, model, &Device::Own("Vulkan0".into())));
    assert!(native.stderr.contains("using device Vulkan0"), "{}", native.tail());
    assert_eq!(native.stdout.lines().count(), TOKENS as usize, "{}", native.tail());
    native.stdout
}

#[test]
fn a_vulkan_host_answers_as_it_does_natively() {
    let store = Store::open().unwrap();
    let (build, model) = (store.node_vulkan().unwrap(), store.model().unwrap());
    let native = natively(&build, &model);

    let (answer, session) = through_ferry(&build, 1, |device| complete(&build, &model, device));
    assert_eq!(answer, native);
    assert_eq!(session.graphs, u64::from(TOKENS), "{session:?}");
    assert!(session.nodes > u64::from(TOKENS) * 500, "{session:?}");
    // ggml's scheduler makes events for a pipeline, which takes two devices.
    assert_eq!(session.events, 0, "{session:?}");

    let (answer, session) = through_ferry(&build, 2, |device| complete(&build, &model, device));
    assert_eq!(answer, native);
    // Each device has computed its part of each token, and recorded when it had read its inputs.
    assert_eq!(session.graphs, 2 * u64::from(TOKENS), "{session:?}");
    assert!(session.events >= 2 * u64::from(TOKENS), "{session:?}");

    // A guest of another release, b10605; in it, "token INDEX ID" is followed by a hash.
    let bed = Testbed::new();
    let (answer, session) = through_ferry(&build, 1, |device| bed.decode(device, TOKENS));
    let ids = |text: &str| -> Vec<String> {
        let decoded = llama::decoded(text).unwrap();
        decoded.iter().map(|rest| rest.split(' ').next().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&answer), ids(&native));
    assert_eq!(session.graphs, u64::from(TOKENS), "{session:?}");
}
