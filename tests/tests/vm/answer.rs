//! The right answer, computed by the host.

use ferry_tests::daemon::Daemon;
use ferry_vm::{GpuDevice, KernelVersion};

use crate::testbed::Testbed;

const TOKENS: u32 = 24;
/// SmolLM2's vocabulary in single precision.
const LOGITS_BYTES: u64 = 49_152 * 4;

/// Greedy output as on the host, from one process, from two at once, and after a reboot.
fn computes_on_the_host(kernel: KernelVersion) {
    let bed = Testbed::new();
    let native = bed.native(TOKENS);
    let daemon = Daemon::start_for_machines(&bed.llama.bin, 1).unwrap();
    let vm = bed.boot(bed.machine(kernel).gpu(daemon.machine_socket(0)));
    assert_eq!(bed.through_ferry(&vm, TOKENS).text().unwrap(), native);
    let first = &daemon.sessions(1).unwrap()[0];
    assert_eq!(first.graphs, u64::from(TOKENS), "the host did not compute each token: {first:?}");

    // The logits at least: a prompt's last and each token's.
    assert!(first.bytes_shared >= u64::from(TOKENS) * LOGITS_BYTES, "not in place: {first:?}");

    let both = [(), ()].map(|()| bed.through_ferry(&vm, TOKENS).spawn().unwrap());
    for process in both {
        let output = process.wait().unwrap();
        assert!(output.exit.success(), "{}", output.stderr_text());
        assert_eq!(output.stdout_text(), native);
    }
    assert_eq!(daemon.sessions(3).unwrap().len(), 3);

    vm.reboot().unwrap();
    assert_eq!(bed.through_ferry(&vm, TOKENS).text().unwrap(), native);
    assert_eq!(daemon.sessions(4).unwrap().len(), 4);
    vm.power_off().unwrap();
    assert!(!daemon.log().contains("WARN"), "{}", daemon.log());
    daemon.stop().unwrap();
}

#[test]
fn kernel_6_1() {
    computes_on_the_host(KernelVersion::V6_1);
}

#[test]
fn kernel_6_12() {
    computes_on_the_host(KernelVersion::V6_12);
}

/// On QEMU's other device, which gives the guest's kernel blobs and timelines.
#[test]
fn two_machines_of_one_daemon() {
    let bed = Testbed::new();
    let native = bed.native(TOKENS);
    let daemon = Daemon::start_for_machines(&bed.llama.bin, 2).unwrap();
    let machines = KernelVersion::ALL.iter().enumerate();
    let machines: Vec<_> = machines
        .map(|(number, &kernel)| bed.machine(kernel).gpu(daemon.machine_socket(number)))
        .map(|machine| bed.boot(machine.gpu_device(GpuDevice::Generic)))
        .collect();
    let running: Vec<_> = machines.iter().map(|vm| bed.through_ferry(vm, TOKENS).spawn().unwrap()).collect();
    for process in running {
        assert_eq!(process.wait().unwrap().stdout_text(), native);
    }
    assert_eq!(daemon.sessions(2).unwrap().len(), 2);
}
