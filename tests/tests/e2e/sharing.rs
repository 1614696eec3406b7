//! Several programs, contexts and threads at the same time.

use std::collections::BTreeSet;

use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Device, RUN_TIMEOUT, THREADS};
use ferry_tests::process;

use crate::testbed::{Testbed, run};

#[test]
fn three_processes_at_once_have_a_worker_each_and_right_answers() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let device = Device::Ferry(daemon.socket());
    let running: Vec<_> = (0..3).map(|_| process::spawn(&mut bed.decode(&device, 32)).unwrap()).collect();
    let native = bed.native(32);
    let clients: BTreeSet<i32> = running.iter().map(|running| running.pid().as_raw()).collect();
    for running in running {
        let finished = running.wait(RUN_TIMEOUT).unwrap().success().unwrap();
        assert_eq!(finished.stdout, native);
    }
    let sessions = daemon.sessions(3).unwrap();
    let workers: BTreeSet<i32> = sessions.iter().map(|session| session.worker_pid).collect();
    assert_eq!(workers.len(), 3, "{sessions:?}");
    assert_eq!(sessions.iter().map(|session| session.client_pid).collect::<BTreeSet<_>>(), clients);
}

/// llama.cpp's own test: a model on the device, one on the CPU, one spread over all, four contexts on each,
/// a thread for each context.
#[test]
fn twelve_threads_with_a_context_each_say_the_same() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut command = std::process::Command::new(bed.llama.bin.join("test-thread-safety"));
    Device::Ferry(daemon.socket()).environment(&mut command).unwrap();
    command.arg("--model").arg(&bed.model).args(["-ngl", "99", "--parallel", "4", "--threads", THREADS]);
    command.args([
        "--prompt",
        "The meaning of life is",
        "--predict",
        "24",
        "--ctx-size",
        "1024",
        "--temp",
        "0",
    ]);
    let finished = run(&mut command);
    let output = finished.stdout.clone() + &finished.stderr;
    assert!(output.contains("All threads finished without errors."), "{}", finished.tail());
    let answers: Vec<&str> =
        output.split(", Context ").skip(1).filter_map(|part| part.split_once(": ")).map(|a| a.1).collect();
    let said: BTreeSet<&str> = answers.iter().filter_map(|answer| answer.get(..60)).collect();
    assert_eq!((answers.len(), said.len()), (12, 1), "{said:#?}\n{}", finished.tail());
    assert!(daemon.sessions(1).unwrap()[0].graphs >= 4 * 24);
}
