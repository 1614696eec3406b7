//! What nobody uses costs nothing: a program that holds a model and waits for its user, and everything behind it.

use std::time::Duration;

use ferry_tests::daemon::Daemon;
use ferry_tests::procfs;

use crate::testbed::{Marked, Testbed};

const WATCHED: Duration = Duration::from_secs(10);
/// OpenMP's threads in the worker spin a while after their last work; so may both sides' channels.
const SETTLED: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn an_idle_session_uses_no_processor_time_and_wakes_nobody() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut endless = Marked::endless(&bed, &daemon, &bed.tiny(), 64, &[10]);
    endless.reach(10, TIMEOUT);
    std::thread::sleep(SETTLED);

    let all = [vec![endless.pid(), daemon.pid()], daemon.children()].concat();
    assert!(all.len() >= 4, "guest, supervisor, front and worker: {all:?}");
    let used = || all.iter().map(|&pid| procfs::used(pid).expect("it runs")).collect::<Vec<_>>();
    let before = used();
    std::thread::sleep(WATCHED);
    let after = used();
    for ((pid, before), after) in all.iter().zip(&before).zip(&after) {
        assert_eq!(before, after, "process {pid} of {all:?} (guest, supervisor, then fronts and workers)");
    }
    endless.end();
}
