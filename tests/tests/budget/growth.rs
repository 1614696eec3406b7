//! Memory does not grow with what is computed, however long and however varied that is.

use std::time::Duration;

use ferry_tests::daemon::{Daemon, Session};
use ferry_tests::procfs;

use crate::testbed::{Marked, Testbed};

/// What a session may take of the host beyond the tensors it asked for, which are next to nothing here: the worker's own
/// memory, and the 20 MiB of the arena, whose pages come as they are first used.
const SESSION_KIB_MAX: u64 = 64 << 10;
const ARENA_KIB: u64 = 20 << 10;
/// A step of the tiny model takes a tenth of a millisecond, or a hundred times that on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// Has a program reach `marks`, holds both sides' memory at the first against that at the others, and returns what the
/// worker counted.
fn flat(marks: &[u32], slack_kib: u64, start: impl FnOnce(&Testbed, &Daemon) -> Marked) -> Session {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut program = start(&bed, &daemon);
    let at = |&mark: &u32| {
        program.reach(mark, TIMEOUT);
        let worker = daemon.worker_of(program.pid()).expect("a worker");
        [program.pid(), worker].map(|pid| procfs::resident_kib(pid).expect("it runs"))
    };
    let figures: Vec<[u64; 2]> = marks.iter().map(at).collect();
    println!("resident at {marks:?}: guest and worker {figures:?} KiB");
    let worker = figures.iter().map(|figure| figure[1]).max().expect("a mark");
    assert!(worker + ARENA_KIB <= SESSION_KIB_MAX, "a session takes {worker} KiB and its arena");
    for later in &figures[1..] {
        for (who, early, late) in [("guest", figures[0][0], later[0]), ("worker", figures[0][1], later[1])] {
            assert!(late <= early + slack_kib, "the {who} grew from {early} to {late} KiB");
        }
    }
    let session = daemon.session_of(program.end()).unwrap();
    assert!(session.graphs >= u64::from(marks[marks.len() - 1]), "not all was the worker's: {session:?}");
    session
}

/// A context of 128: every hundred tokens a batch of yet another length, so all of the 64 lengths were seen at the first
/// mark.
#[test]
fn a_hundred_thousand_tokens_leave_nothing_behind() {
    let marks = [10_000, 55_000, 100_000];
    // Five bytes a token, or what an allocator moves about.
    let session = flat(&marks, 384, |bed, daemon| Marked::endless(bed, daemon, &bed.tiny(), 128, &marks));
    assert!(session.graphs_patched > 1000, "batches of other lengths: {session:?}");
}

/// A hundred sizes in turn, where a stream keeps 32: each is forgotten before it comes again.
#[test]
fn graphs_that_are_ever_new_replace_old_ones() {
    let marks = [500, 2500, 5000];
    // Between the outer marks a graph may leave 1.4 KiB of its 300: the allocator's holes come and go by as much.
    let session = flat(&marks, 6 << 10, |bed, daemon| Marked::ever_new(bed, daemon, 1000, 5000));
    assert!(session.graphs_defined >= 5000, "each was sent whole: {session:?}");
}
