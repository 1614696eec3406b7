//! Runs of bytes at equal distances (ggml's 2d transfers), to hosts whose ggml has them and to one that has not, and from
//! a guest that speaks the protocol by hand.

use std::process::Command;

use ferry_protocol::calls::CallCode;
use ferry_protocol::ids::StreamId;
use ferry_protocol::limits::{DATA_CHUNK_BYTES, RUNS_MAX};
use ferry_protocol::request::TensorRuns;
use ferry_protocol::status::Status;
use ferry_tests::artifacts::Store;
use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Device, FERRY_DEVICE};
use ferry_tests::programs;

use crate::guest::{Guest, bytes_of};
use crate::testbed::{Testbed, run};

/// Cases of `strides.c`.
const CASES: usize = 7;
/// Its runs, 16 MiB altogether and twice as many each way, would be more messages than this by far one by one.
const MESSAGES_MAX: u64 = 500;

#[test]
fn runs_of_bytes_are_where_they_are_natively_and_cost_few_messages() {
    let bed = Testbed::new();
    let program = programs::compile("strides", &bed.llama, bed.dir()).unwrap();
    let transfer = |device: &Device, name: &str| {
        let mut command = Command::new(&program);
        device.environment(&mut command).unwrap();
        run(command.arg(&bed.llama.bin).arg(name)).stdout
    };
    let native = transfer(&Device::Cpu, "CPU");
    assert_eq!(native.lines().count(), CASES + 1, "{native}");
    // The second one is from before ggml had such transfers: the worker makes them of plain ones.
    let old = Store::open().unwrap().node("b6133").unwrap();
    for host in [&bed.llama.bin, &old.bin] {
        let daemon = Daemon::start(host).unwrap();
        assert_eq!(transfer(&Device::Ferry(daemon.socket()), FERRY_DEVICE), native, "{}", host.display());
        let session = &daemon.sessions(1).unwrap()[0];
        assert!(session.messages < MESSAGES_MAX && session.failures == 0, "{session:?}");
    }
}

#[test]
fn runs_outside_of_their_tensor_are_refused_and_the_session_goes_on() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut guest = Guest::new(&daemon);
    let buffer = guest.alloc(1 << 20);
    let good = TensorRuns { tensor: bytes_of(buffer, 1 << 20), offset: 8, size: 3, runs: 4, stride: 5 };
    let set = |guest: &mut Guest, runs: &TensorRuns, data: &[u8]| {
        guest.status(CallCode::SET_TENSOR_2D, &[bytemuck::bytes_of(runs), data].concat())
    };
    assert_eq!(guest.status(CallCode::CLEAR_BUFFER, &[buffer.0.to_le_bytes(), [0; 8]].concat()), Status::OK);
    assert_eq!(set(&mut guest, &good, b"abcdefghijkl"), Status::OK);
    let written = guest.read(buffer, 32);
    assert_eq!(&written[..27], b"\0\0\0\0\0\0\0\0abc\0\0def\0\0ghi\0\0jkl\0");

    let end = 1 << 20;
    let bad = [
        (TensorRuns { offset: end - 17, ..good }, Status::INVALID),
        (TensorRuns { stride: end / 3, ..good }, Status::INVALID),
        (TensorRuns { offset: u64::MAX, ..good }, Status::INVALID),
        (TensorRuns { stride: u64::MAX / 2, ..good }, Status::INVALID),
        (TensorRuns { runs: 0, ..good }, Status::INVALID),
        (TensorRuns { size: 0, ..good }, Status::INVALID),
        (TensorRuns { size: 1, runs: RUNS_MAX + 1, stride: 0, ..good }, Status::LIMIT),
        (TensorRuns { size: DATA_CHUNK_BYTES as u64, runs: 2, stride: 0, ..good }, Status::LIMIT),
        (TensorRuns { size: 1 << 63, runs: 2, stride: 0, ..good }, Status::LIMIT),
        (TensorRuns { size: 0, runs: u64::MAX, stride: 0, ..good }, Status::LIMIT),
        (TensorRuns { tensor: bytes_of(buffer, (1 << 20) + 1), ..good }, Status::INVALID),
    ];
    for (runs, status) in bad {
        let parameters = bytemuck::bytes_of(&runs);
        assert_eq!(guest.status(CallCode::GET_TENSOR_2D, parameters), status, "{runs:?}");
        if runs.bytes().is_some_and(|bytes| bytes < DATA_CHUNK_BYTES as u64) {
            let data = vec![7; runs.bytes().unwrap() as usize];
            assert_eq!(set(&mut guest, &runs, &data), status, "{runs:?}");
        }
    }
    assert_eq!(set(&mut guest, &good, b"abcdefghijk"), Status::MALFORMED);
    assert_eq!(guest.read(buffer, 32), written, "what was refused has no effect");
    let all = TensorRuns { offset: 0, size: 4, runs: 1 << 16, stride: 16, ..good };
    let (_, read) = guest.ask(CallCode::GET_TENSOR_2D, StreamId::SESSION, bytemuck::bytes_of(&all)).unwrap();
    assert_eq!((read.len(), &read[8..12]), (4 << 16, &b"\0\0\0\0"[..]), "the last fits exactly");
}
