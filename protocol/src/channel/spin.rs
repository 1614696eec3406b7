//! How long to look for a message before sleeping.
//!
//! Looking costs a core; sleeping costs a system call, in a virtual machine an exit, and the time until the scheduler runs
//! the sleeper again, on a core that has gone to sleep as well: seen to be 0.1 to 0.4 ms after a prompt of 9 ms on a fast
//! GPU, where a program that uses the GPU itself looks all the time. So a wait is spun through if the last one of its kind
//! was short. A longer one is slept through; whoever asks for it wakes shortly before the time that the last one took.
//!
//! ```text
//!   last one short   |~~~~~~~~~~~~~~~~~~~|zzzzzz…            ~ looks   z sleeps
//!   last one long    |~|zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz…
//!   … and woken early|~|zzzzzzzzzzzzzzzzzz|~~~~~~~~~|zzzzz…
//!                                              ^ as long as the last one
//! ```

use crate::calls::{CallCode, Manner};
use std::time::{Duration, Instant};

/// From so many cores on, a wait of at most so long is spun through; with fewer, spinning takes a core away from somebody.
///
/// Tokens of a small model on a large GPU take about one millisecond; on a CPU, whose cores a spinning thread would take
/// away, they take many. Between two prompts' graphs of 512 tokens llama.cpp is busy for 2 to 3 ms, and a worker that has
/// gone to sleep begins the next one later: with 16 cores and an H200 that was a hundredth of the prompt's time.
const WORTHWHILE: [(usize, Duration); 2] = [(8, Duration::from_millis(5)), (4, Duration::from_millis(2))];
/// A wait longer than so many times what is worthwhile varies by more than that, and gains next to nothing.
const WAKE_EARLY_MAX: u32 = 16;

/// `poll` counts in milliseconds, and ends up to one too early.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// What was said before a wait, and so what is waited for: waits of one kind take about as long each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// The guest is in the middle of saying something.
    Posting,
    /// The guest asked, and no graph was to be computed for it.
    Asked,
    /// The guest asked for what a graph computes.
    AskedGraph,
}

/// One side's memory of how long it waited.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    max: Duration,
    wakes_early: bool,
    /// For each kind of [`Pause`].
    last: [Duration; 3],
    /// What a wait would be for now.
    pause: Pause,
    /// A graph is to be computed, and nobody has asked for it yet.
    graph: bool,
}

/// A wait that is going on.
#[derive(Debug)]
pub struct Waiting {
    pause: Pause,
    since: Instant,
    until: Instant,
    /// From when to when to look again.
    again: Option<(Instant, Instant)>,
}

/// What to do while nothing comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look again.
    Look,
    /// Sleep for so long at most.
    Sleep(Option<Duration>),
}

impl Spin {
    /// Spins for at most `max`; by default for what is worthwhile with this machine's cores.
    pub fn new(max: Option<Duration>) -> Self {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let max = max.unwrap_or_else(|| worthwhile(cores()));
        Self { max, wakes_early: false, last: [Duration::ZERO; 3], pause: Pause::Posting, graph: false }
    }

    /// Wakes early from waits that were long. Not for who waits for people or for CPUs: those have better uses for a core.
    pub fn waking_early(self, wakes_early: bool) -> Self {
        Self { wakes_early, ..self }
    }

    /// The guest says `call`: on either side, what is said before a wait tells what the wait is for.
    pub fn follow(&mut self, call: CallCode) {
        let awaited = call.row().is_none_or(|row| row.manner == Manner::Awaited);
        self.graph |= call == CallCode::EXEC;
        self.pause = match (awaited, self.graph) {
            (false, _) => Pause::Posting,
            (true, false) => Pause::Asked,
            (true, true) => Pause::AskedGraph,
        };
        self.graph &= !awaited;
    }

    /// A wait begins `now`.
    pub fn begin(&self, now: Instant) -> Waiting {
        let last = self.last[self.pause as usize];
        // Twice as long as the last time: the next token may take a little longer. Never nothing: after a long wait, a short
        // one has to be found out.
        let least = self.max / 32;
        let long = last > self.max;
        let spin = if long { least } else { (2 * last).clamp(least, self.max) };
        let early = self.wakes_early && long && last <= self.max * WAKE_EARLY_MAX;
        let expected = now + last;
        let again = early.then(|| (expected - self.max / 2, expected + self.max / 2));
        Waiting { pause: self.pause, since: now, until: now + spin, again }
    }

    /// The wait is over `now`, spun or slept through.
    pub fn end(&mut self, waiting: &Waiting, now: Instant) {
        self.last[waiting.pause as usize] = now.saturating_duration_since(waiting.since);
    }
}

impl Waiting {
    /// What to do `now`.
    pub fn next(&self, now: Instant) -> Next {
        match self.again {
            _ if now < self.until => Next::Look,
            Some((from, _)) if now + SLEEP_MIN < from => Next::Sleep(Some(from - now)),
            Some((_, until)) if now < until => Next::Look,
            _ => Next::Sleep(None),
        }
    }
}

/// The longest wait to spin through on a machine with so many cores.
fn worthwhile(cores: usize) -> Duration {
    let row = WORTHWHILE.iter().find(|(least, _)| cores >= *least);
    row.map_or(Duration::ZERO, |(_, longest)| *longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A wait after one of `last`.
    fn wait_after(mut spin: Spin, last: Duration) -> Waiting {
        let now = Instant::now();
        spin.end(&spin.begin(now), now + last);
        spin.begin(now)
    }

    /// How long a wait is spun through after one of `last`.
    fn spin_after(max: Duration, last: Duration) -> Duration {
        let waiting = wait_after(Spin::new(Some(max)), last);
        assert_eq!(waiting.next(waiting.until), Next::Sleep(None));
        waiting.until - waiting.since
    }

    #[test]
    fn short_waits_are_spun_through_and_long_ones_are_not() {
        assert_eq!(spin_after(2 * MS, MS / 2), MS);
        assert_eq!(spin_after(2 * MS, MS), 2 * MS);
        assert_eq!(spin_after(2 * MS, 2 * MS), 2 * MS);
        assert_eq!(spin_after(2 * MS, 12 * MS), 2 * MS / 32);
    }

    #[test]
    fn the_more_cores_the_longer_a_wait_is_spun_through() {
        assert_eq!([1, 3, 4, 7, 8, 64].map(|cores| worthwhile(cores).as_millis()), [0, 0, 2, 2, 5, 5]);
    }

    #[test]
    fn no_time_means_no_spinning() {
        let (spin, now) = (Spin::new(Some(Duration::ZERO)).waking_early(true), Instant::now());
        assert_eq!(spin.begin(now).next(now), Next::Sleep(None));
        let waiting = wait_after(spin, 12 * MS);
        assert_eq!(waiting.next(waiting.since), Next::Sleep(None));
    }

    #[test]
    fn one_kind_of_wait_says_nothing_of_another() {
        let (mut spin, now) = (Spin::new(Some(2 * MS)), Instant::now());
        let mut wait = |calls: &[CallCode], took| {
            calls.iter().for_each(|&call| spin.follow(call));
            let waiting = spin.begin(now);
            spin.end(&waiting, now + took);
            (waiting.pause, waiting.until - now)
        };
        let graph = [CallCode::WRITE, CallCode::EXEC, CallCode::READ];
        assert_eq!(wait(&graph, MS / 2), (Pause::AskedGraph, 2 * MS / 32));
        assert_eq!(wait(&[CallCode::SYNCHRONIZE], 12 * MS), (Pause::Asked, 2 * MS / 32));
        assert_eq!(wait(&[CallCode::EXEC], MS / 4), (Pause::Posting, 2 * MS / 32));
        assert_eq!(wait(&[CallCode::WRITE, CallCode::READ], 12 * MS), (Pause::AskedGraph, MS));
        assert_eq!(wait(&[CallCode::READ], 12 * MS), (Pause::Asked, 2 * MS / 32));
        assert_eq!(wait(&[CallCode::WRITE], 12 * MS), (Pause::Posting, MS / 2));
    }

    #[test]
    fn who_wakes_early_looks_around_the_time_that_the_last_wait_took() {
        let waiting = wait_after(Spin::new(Some(2 * MS)).waking_early(true), 9 * MS);
        let at = |time| waiting.next(waiting.since + time);
        assert_eq!(at(Duration::ZERO), Next::Look);
        assert_eq!(at(MS), Next::Sleep(Some(7 * MS)));
        assert_eq!(at(7 * MS), Next::Look);
        assert_eq!((at(8 * MS), at(9 * MS), at(10 * MS)), (Next::Look, Next::Look, Next::Sleep(None)));
        let longer = wait_after(Spin::new(Some(2 * MS)).waking_early(true), 33 * MS);
        assert_eq!(longer.next(longer.since + MS), Next::Sleep(None));
    }
}
