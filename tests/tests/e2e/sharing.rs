//! Several programs, contexts and threads at the same time.

use std::collections::BTreeSet;

use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{Device, RUN_TIMEOUT};
use ferry_tests::{process, threads};

use crate::testbed::Testbed;

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

#[test]
fn twelve_threads_with_a_context_each_say_the_same() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let command = threads::command(&bed.llama, &bed.model, &daemon).unwrap();
    assert_eq!(threads::run(command, &daemon, true).unwrap(), 12);
}
