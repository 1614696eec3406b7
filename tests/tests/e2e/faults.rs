//! Processes that die or are disturbed in the middle of a decode.

use std::time::Duration;

use ferry_tests::daemon::Daemon;
use ferry_tests::llama::{self, Completion, Device};
use ferry_tests::{process, procfs};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::testbed::{Testbed, eventually, run, tokens_so_far};

/// A program whose device is lost has to find out and end by itself within this.
const GIVE_UP: Duration = Duration::from_secs(20);
/// A worker whose client is gone has to be gone within this.
const WORKER_GONE: Duration = Duration::from_secs(1);
/// More tokens than any of these tests lets happen: the decode is always in its middle.
const LONG: u32 = 900;

/// A long decode through the daemon that has shown `tokens` tokens, and the worker that serves it.
fn in_mid_decode(bed: &Testbed, daemon: &Daemon, tokens: usize) -> (process::Running, i32) {
    let idle = daemon.children();
    let mut running = process::spawn(&mut bed.decode(&Device::Ferry(daemon.socket()), LONG)).unwrap();
    running
        .wait_until("in the middle", llama::RUN_TIMEOUT, |running| tokens_so_far(running) >= tokens)
        .unwrap();
    let workers: Vec<i32> = daemon.children().into_iter().filter(|pid| !idle.contains(pid)).collect();
    assert_eq!(workers.len(), 1, "one worker for one client: {workers:?}\n{}", daemon.log());
    (running, workers[0])
}

#[test]
fn a_killed_worker_costs_at_most_one_token_and_the_program_ends_by_itself() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let (running, worker) = in_mid_decode(&bed, &daemon, 10);
    kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
    let finished = running.wait(GIVE_UP).unwrap().failure().unwrap();
    assert_eq!(finished.status.code(), Some(3), "llama_decode should fail\n{}", finished.tail());

    let tokens = llama::decoded(&finished.stdout).unwrap();
    let native = bed.native(u32::try_from(tokens.len()).unwrap());
    let native = llama::decoded(&native).unwrap();
    let right = tokens.iter().zip(&native).take_while(|(ours, theirs)| ours == theirs).count();
    assert!(tokens.len() >= 10 && right + 1 >= tokens.len(), "{right} of {} tokens right", tokens.len());

    let again = run(&mut bed.decode(&Device::Ferry(daemon.socket()), 8));
    assert_eq!(again.stdout, bed.native(8));
}

#[test]
fn a_killed_front_is_replaced_and_sessions_go_on() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let fronts = daemon.children();
    assert_eq!(fronts.len(), 1, "{}", daemon.log());
    let mut running = process::spawn(&mut bed.decode(&Device::Ferry(daemon.socket()), 48)).unwrap();
    running.wait_until("begun", llama::RUN_TIMEOUT, |running| tokens_so_far(running) >= 5).unwrap();
    kill(Pid::from_raw(fronts[0]), Signal::SIGKILL).unwrap();
    eventually("another front is there", GIVE_UP, || {
        let children = daemon.children();
        !children.contains(&fronts[0]) && children.len() >= 2
    });
    let again = run(&mut bed.decode(&Device::Ferry(daemon.socket()), 4));
    assert_eq!(again.stdout, bed.native(4));
    assert_eq!(running.wait(GIVE_UP).unwrap().success().unwrap().stdout, bed.native(48));
}

#[test]
fn a_killed_client_takes_its_worker_with_it() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let (running, worker) = in_mid_decode(&bed, &daemon, 5);
    running.signal(Signal::SIGKILL).unwrap();
    eventually("the worker ends", WORKER_GONE, || !procfs::alive(worker));
    drop(running);
    let again = run(&mut bed.decode(&Device::Ferry(daemon.socket()), 4));
    assert_eq!(again.stdout, bed.native(4));
}

#[test]
fn a_client_that_sleeps_and_is_killed_takes_its_worker_with_it() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let (running, worker) = in_mid_decode(&bed, &daemon, 5);
    running.signal(Signal::SIGSTOP).unwrap();
    // Time enough for both sides to stop spinning and to sleep on their doorbells.
    std::thread::sleep(Duration::from_millis(300));
    assert!(procfs::alive(worker));
    running.signal(Signal::SIGKILL).unwrap();
    eventually("the worker ends", WORKER_GONE, || !procfs::alive(worker));
}

#[test]
fn a_stopped_client_goes_on_where_it_was() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut command = bed.decode(&Device::Ferry(daemon.socket()), 64);
    let mut running = process::spawn(&mut command).unwrap();
    running.wait_until("begun", llama::RUN_TIMEOUT, |running| tokens_so_far(running) >= 5).unwrap();
    running.signal(Signal::SIGSTOP).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    running.signal(Signal::SIGCONT).unwrap();
    assert_eq!(running.wait(GIVE_UP).unwrap().success().unwrap().stdout, bed.native(64));
}

#[test]
fn sigint_ends_the_program_as_without_ferry() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let idle = daemon.children();
    let prompt = "Once upon a time";
    let completion = Completion { model: &bed.model, prompt, tokens: 4000, verbose: false };
    let mut command = completion.command(&bed.llama, &Device::Ferry(daemon.socket())).unwrap();
    let mut running = process::spawn(&mut command).unwrap();
    running
        .wait_until("generating", llama::RUN_TIMEOUT, |running| running.stdout().len() > prompt.len() + 10)
        .unwrap();
    assert!(daemon.children().len() > idle.len(), "nobody serves it\n{}", daemon.log());
    running.signal(Signal::SIGINT).unwrap();
    let finished = running.wait(GIVE_UP).unwrap();
    assert_eq!(finished.status.code(), Some(130), "{}", finished.tail());
    eventually("the worker ends", WORKER_GONE, || daemon.children() == idle);
}

/// The child may not speak on what it inherited, and is told so once; a session of its own is another matter.
#[test]
fn a_forked_child_is_refused_what_it_inherited_and_the_parent_goes_on_undisturbed() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut command = bed.decode(&Device::Ferry(daemon.socket()), 32);
    let finished = run(command.args(["fork-at", "12"]));
    assert_eq!(finished.stdout, bed.native(32));
    let with =
        |prefix: &str| finished.stderr.lines().filter(|line| line.starts_with(prefix)).collect::<Vec<_>>();
    let child = with("child ");
    assert_eq!(child[..2], ["child new back-end: made", "child new buffer: made"], "{}", finished.tail());
    assert!(child[2].starts_with("child decode: ") && child[2] != "child decode: 0", "{child:?}");
    assert_eq!(child[3..], ["child ended: exit 0"]);
    assert_eq!(with("ferry: this process was forked off").len(), 1, "{}", finished.tail());
    assert_eq!(daemon.sessions(1).unwrap()[0].graphs, 32);
}

#[test]
fn a_stopped_daemon_takes_its_workers_and_its_socket_with_it_and_clients_end_by_themselves() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let (running, worker) = in_mid_decode(&bed, &daemon, 5);
    let (socket, children) = (daemon.socket(), daemon.children());
    assert!(socket.exists());
    let inspect = || {
        assert!(!socket.exists(), "the socket's file stays behind");
        assert!(!procfs::alive(worker), "the worker outlives its daemon");
        assert!(children.iter().all(|&pid| !procfs::alive(pid)));
    };
    daemon.stop_and_inspect(inspect).unwrap();
    let finished = running.wait(GIVE_UP).unwrap().failure().unwrap();
    assert_eq!(finished.status.code(), Some(3), "{}", finished.tail());
}
