//! What a token costs a virtual machine, counted by the guest and, independently, by the device on the host.

use std::collections::BTreeMap;

use ferry_tests::daemon::Daemon;
use ferry_vm::{KernelVersion, Vm};

use crate::testbed::Testbed;

const FEW: u32 = 8;
const MORE: u32 = 256;
/// Loading costs some hundred doorbells, more or less of them as the scheduler has it.
const SLACK: u64 = 64;

/// What there was to count after one completion more: by the guest's account, and by the device's.
fn count(bed: &Testbed, vm: &Vm, tokens: u32) -> BTreeMap<String, u64> {
    // Without spinning every wait is a sleep: the most that it can cost.
    let completion = bed.through_ferry(vm, tokens).env("FERRY_STATS", "/tmp/stats").env("FERRY_SPIN_US", "0");
    completion.text().unwrap();
    let lines = String::from_utf8(vm.pull("/tmp/stats").unwrap()).unwrap();
    let line: serde_json::Map<_, _> = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    line.into_iter().filter_map(|(name, value)| Some((name, value.as_u64()?))).collect()
}

#[test]
fn a_token_costs_one_doorbell_and_one_wait() {
    let bed = Testbed::new();
    let daemon = Daemon::start_for_machines(&bed.llama.bin, 1).unwrap();
    let vm = bed.boot(bed.machine(KernelVersion::default()).gpu(daemon.machine_socket(0)));
    let (few, many) = (count(&bed, &vm, FEW), count(&bed, &vm, FEW + MORE));
    let device = daemon.device_counters(2).unwrap();
    let on_device = |name: &str| (device[0][name], device[1][name] - device[0][name]);
    let costs = [
        ("the guest's doorbells", (few["doorbells"], many["doorbells"])),
        ("the guest's waits", (few["waits"], many["waits"])),
        ("kicks that the device heard", on_device("kicks")),
        ("commands on the device", on_device("commands")),
        // An armed fence is what a wait sleeps on.
        ("fences held by the device", on_device("fences_armed")),
    ];
    println!("for {FEW} tokens and for {MORE} more: {costs:?}");
    for (what, (few, many)) in costs {
        let (cost, most) = (many.saturating_sub(few), u64::from(MORE));
        assert!(cost <= most + SLACK, "{what}: {cost} for {most} tokens");
        assert!(cost >= most / 2, "nothing was counted: {what} {few} and {many}");
    }
    vm.power_off().unwrap();
}
