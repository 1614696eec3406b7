//! How weights cross: bytes are counted, and how long they take is only shown.

use std::time::Duration;

use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Device, FERRY_DEVICE};
use ferry_tests::procfs;

use crate::testbed::{Marked, Testbed};

const TIMEOUT: Duration = Duration::from_secs(120);
const ROUNDS: u64 = 3;
/// A piece that the program holds in its own memory, and a part of it in the device's host buffers.
const PIECE_MIB: u64 = 512;
const STAGED_MIB: u64 = 64;
/// Messages around the bytes: their parameters, and what is asked before.
const AROUND: u64 = 1 << 20;

#[test]
fn an_upload_crosses_once_and_from_a_host_buffer_by_reference() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let (piece, rounds) = (PIECE_MIB.to_string(), ROUNDS.to_string());
    let device = Device::Ferry(daemon.socket());
    let mut command = bed.program("upload", &device, &[FERRY_DEVICE, &piece, &rounds]);
    let (finished, session) = daemon.serve(&mut command, TIMEOUT).unwrap();
    println!("GB/s:\n{}", finished.stdout);

    let (by_value, shared) = ((PIECE_MIB * ROUNDS) << 20, (STAGED_MIB * ROUNDS) << 20);
    assert!((by_value..by_value + AROUND).contains(&session.bytes_in), "{session:?}");
    assert_eq!(session.bytes_shared, shared, "{session:?}");
}

/// A system that gives huge pages only to whom asks is asked for them: without, tokens are slower than natively
/// (host/src/ggml/ffi/huge.rs).
#[test]
fn weights_on_a_cpu_are_in_huge_pages_where_there_are_any() {
    let bed = Testbed::new();
    let model = bed.store.model().expect("fetching a model");
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut program = Marked::endless(&bed, &daemon, &model, 128, &[2]);
    program.reach(2, TIMEOUT);
    let worker = daemon.worker_of(program.pid()).expect("a worker");
    let huge = procfs::huge_pages(worker).expect("it runs");
    println!("KiB: {huge:?}");
    let weights_kib = std::fs::metadata(&model).unwrap().len() >> 10;
    // But for the ends of the buffers, and what llama.cpp keeps in its own memory (the tokens' embeddings).
    assert!(huge.asked_kib >= weights_kib / 2, "{huge:?} of {weights_kib} KiB of weights");
    program.end();
}
