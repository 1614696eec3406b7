//! Operations one by one: llama.cpp's own comparison of a back-end with its CPU back-end.

use std::process::Command;
use std::time::Duration;

use ferry_tests::artifacts::Store;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Device, FERRY_DEVICE};
use ferry_tests::{process, programs};

use crate::testbed::{Testbed, run};

/// What language models consist of, less those whose cases take minutes on two cores.
const OPERATIONS: &str = "ADD,MUL,SCALE,CPY,CONT,SUM_ROWS,NORM,RMS_NORM,SOFT_MAX,SILU,SWIGLU";
const TIMEOUT: Duration = Duration::from_secs(600);
/// Far below what these have, far above what would pass for nothing.
const CASES_MIN: usize = 300;

#[test]
fn operations_compute_what_the_cpu_computes() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut command = Command::new(bed.llama.bin.join("test-backend-ops"));
    Device::Ferry(daemon.socket()).environment(&mut command).unwrap();
    command.args(["test", "-b", FERRY_DEVICE, "-o", OPERATIONS]);
    let finished = process::run(&mut command, TIMEOUT).unwrap().success().unwrap();
    let summary = finished.stdout.lines().find(|line| line.ends_with(" tests passed"));
    let summary = summary.unwrap_or_else(|| panic!("no summary\n{}", finished.tail()));
    let (passed, total) = summary.trim().split(' ').next().unwrap().split_once('/').unwrap();
    assert_eq!(passed, total, "{}", finished.tail());
    assert!(passed.parse::<usize>().unwrap() >= CASES_MIN, "{summary}");
}

#[test]
fn nodes_that_compute_nothing_are_no_part_of_the_hosts_work() {
    let bed = Testbed::new();
    let program = programs::compile("idle_nodes", &bed.llama, bed.dir()).unwrap();
    let sum = |device: &Device, name: &str| {
        let mut command = Command::new(&program);
        device.environment(&mut command).unwrap();
        run(command.arg(&bed.llama.bin).arg(name)).stdout
    };
    assert_eq!(sum(&Device::Cpu, "CPU"), "10\n");
    // The older host's ggml computes every node that it is given.
    let old = Store::open().unwrap().node("b6133").unwrap().bin;
    for host in [&bed.llama.bin, &old] {
        let daemon = Daemon::start(host).unwrap();
        assert_eq!(sum(&Device::Ferry(daemon.socket()), FERRY_DEVICE), "10\n");
        // The sum, and the operation on nothing.
        assert_eq!(daemon.sessions(1).unwrap()[0].nodes, 2);
    }
}

#[test]
fn tensors_beyond_4_gib_and_those_without_a_byte_are_the_native_ones() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let program = programs::compile("large", &bed.llama, bed.dir()).unwrap();
    let read = |device: &Device, name: &str| {
        let mut command = Command::new(&program);
        device.environment(&mut command).unwrap();
        run(command.arg(&bed.llama.bin).arg(name)).stdout
    };
    let ferry = read(&Device::Ferry(daemon.socket()), FERRY_DEVICE);
    assert_eq!(ferry, read(&Device::Cpu, "CPU"));
    assert_eq!(ferry.lines().count(), 16, "{ferry}");
    let session = &daemon.sessions(1).unwrap()[0];
    assert!(session.buffer_bytes_max > 4 << 30 && session.failures == 0, "{session:?}");
}
