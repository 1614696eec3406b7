//! How long to look for a message before sleeping.
//!
//! Looking costs a core; sleeping costs a system call, in a virtual machine an exit, and the time until the scheduler runs
//! the sleeper again, which is a few per cent of a token on a fast GPU. So a wait is spun through if the last one was short,
//! and slept through otherwise.

use std::time::{Duration, Instant};

/// A wait that took longer than this was better slept through. Tokens of a small model on a large GPU take about one
/// millisecond; on a CPU, whose cores a spinning thread would take away, they take many.
const WORTHWHILE: Duration = Duration::from_millis(2);
/// Spinning takes a core away from somebody unless there are more than this many.
const FEW_CORES: usize = 4;

/// One side's memory of how long it waited.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    max: Duration,
    last: Duration,
}

/// A wait that is going on.
#[derive(Debug)]
pub struct Waiting {
    since: Instant,
    until: Instant,
}

impl Spin {
    /// Spins for at most `max`; by default two milliseconds with four cores or more, else not at all.
    pub fn new(max: Option<Duration>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let max = max.unwrap_or(if cores >= FEW_CORES { WORTHWHILE } else { Duration::ZERO });
        Self { max, last: Duration::ZERO }
    }

    /// A wait begins `now`.
    pub fn begin(&self, now: Instant) -> Waiting {
        // Twice as long as the last time: the next token may take a little longer. Never nothing: after a long wait, a short
        // one has to be found out.
        let least = self.max / 32;
        let spin = if self.last > self.max { least } else { (2 * self.last).clamp(least, self.max) };
        Waiting { since: now, until: now + spin }
    }

    /// The wait is over `now`, spun or slept through.
    pub fn end(&mut self, waiting: &Waiting, now: Instant) {
        self.last = now.saturating_duration_since(waiting.since);
    }
}

impl Waiting {
    /// Whether to go on looking.
    pub fn spins(&self, now: Instant) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// How long a wait is spun through after one of `last`.
    fn spin_after(max: Duration, last: Duration) -> Duration {
        let (mut spin, now) = (Spin::new(Some(max)), Instant::now());
        let waiting = spin.begin(now);
        spin.end(&waiting, now + last);
        spin.begin(now).until - now
    }

    #[test]
    fn short_waits_are_spun_through_and_long_ones_are_not() {
        assert_eq!(spin_after(2 * MS, MS / 2), MS);
        assert_eq!(spin_after(2 * MS, MS), 2 * MS);
        assert_eq!(spin_after(2 * MS, 2 * MS), 2 * MS);
        assert_eq!(spin_after(2 * MS, 12 * MS), 2 * MS / 32);
    }

    #[test]
    fn no_time_means_no_spinning() {
        let (spin, now) = (Spin::new(Some(Duration::ZERO)), Instant::now());
        assert!(!spin.begin(now).spins(now));
    }
}
