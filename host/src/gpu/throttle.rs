//! Log lines that a guest can cause, at a bounded rate.

use std::time::{Duration, Instant};

/// Lines let through in each window.
const BURST: u32 = 10;
/// Length of a window.
const WINDOW: Duration = Duration::from_secs(5);

/// Lets [`BURST`] lines a [`WINDOW`] through and counts the rest.
#[derive(Debug)]
pub struct Throttle {
    since: Instant,
    passed: u32,
    suppressed: u64,
}

impl Throttle {
    pub fn new(now: Instant) -> Throttle {
        Throttle { since: now, passed: 0, suppressed: 0 }
    }

    /// Whether a line may be written at `now`; if so, how many were held back since the last one.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= WINDOW {
            self.since = now;
            self.passed = 0;
        }
        if self.passed >= BURST {
            self.suppressed += 1;
            return None;
        }
        self.passed += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_lines_and_reports_what_it_held_back() {
        let start = Instant::now();
        let mut throttle = Throttle::new(start);
        let passed = (0..1000).filter(|_| throttle.admit(start).is_some()).count();
        assert_eq!(passed, BURST as usize);
        assert_eq!(throttle.admit(start + WINDOW), Some(1000 - u64::from(BURST)));
        assert_eq!(throttle.admit(start + WINDOW), Some(0));
    }
}
