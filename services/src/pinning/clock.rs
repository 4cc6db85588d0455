//! [`Clock`]: a monotonic clock, in milliseconds.
//!
//! The due times of attempts are on this clock while the process runs. It starts at the wall clock's time, so that
//! stored times can be compared with those of an earlier process if the wall clock was not changed; loaded times are
//! clamped ([`Clock::adopt`]) in case it was.

use crate::pinning::index::{millis, time};
use crate::pinning::record::Work;
use std::time::{Duration, Instant, SystemTime};

/// A monotonic clock that starts at the wall clock's time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began_ms: u64,
    began: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self { began_ms: millis(SystemTime::now()), began: Instant::now() }
    }
}

impl Clock {
    /// The current time: milliseconds since the epoch at the start of the process, plus the elapsed time.
    pub fn now_ms(&self) -> u64 {
        self.began_ms.saturating_add(whole_millis(self.began.elapsed()))
    }

    /// Converts a time of this clock to the wall clock.
    pub fn wall(&self, at_ms: u64) -> SystemTime {
        let now_ms = self.now_ms();
        let (before, after) = (now_ms.saturating_sub(at_ms), at_ms.saturating_sub(now_ms));
        let wall_ms = millis(SystemTime::now());
        time(wall_ms.saturating_add(after).saturating_sub(before))
    }

    /// Converts stored work of an earlier process to this clock. The next attempt is due after `wait_max` at the
    /// latest, even if the wall clock was set back; the time without progress does not depend on the wall clock.
    pub fn adopt(&self, work: Work, wait_max: Duration) -> Work {
        let now_ms = self.now_ms();
        let due_ms = work.due_ms.min(now_ms.saturating_add(whole_millis(wait_max)));
        Work { due_ms, since_ms: now_ms.saturating_sub(work.waited_ms), ..work }
    }
}

/// A duration in whole milliseconds.
pub(super) fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    /// A clock with a given time, accurate to the duration of this test.
    fn clock(began_ms: u64) -> Clock {
        Clock { began_ms, began: Instant::now() }
    }

    #[test]
    fn a_due_time_is_at_most_the_longest_wait_away() {
        let now = 1_795_000_000_000;
        let table = [
            // Due times that are near or past stay the same.
            (now + 60_000, 60_000),
            (now - 60_000, 0),
            (0, 0),
            // The clock was set back by a year, or was in the far future when this was written.
            (now + 365 * 24 * HOUR_MS, HOUR_MS),
            (u64::MAX, HOUR_MS),
        ];
        for (due_ms, wait_ms) in table {
            let clock = clock(now);
            let work = Work { attempts: 3, due_ms, ..Work::default() };
            let adopted = clock.adopt(work, Duration::from_millis(HOUR_MS));
            let wait = adopted.due_ms.saturating_sub(now);
            assert!(wait >= wait_ms && wait <= wait_ms + 10_000, "{due_ms}: {wait}");
            assert_eq!(adopted.attempts, 3);
        }
    }

    #[test]
    fn the_time_without_progress_does_not_depend_on_the_clock() {
        // In 1970, where a machine without a clock battery starts; now; and a century later.
        for now in [0, 1_795_000_000_000, 5_000_000_000_000] {
            let work = Work { since_ms: 1_795_000_000_000, waited_ms: 7, ..Work::default() };
            let adopted = clock(now + HOUR_MS).adopt(work, Duration::from_hours(1));
            let waited = (now + HOUR_MS).saturating_sub(adopted.since_ms);
            assert!(waited <= 7, "{now}: {waited}");
        }
    }

    #[test]
    fn times_are_converted_to_the_wall_clock() {
        let clock = clock(5);
        let shown = clock.wall(clock.now_ms() + 60_000);
        let ahead = shown.duration_since(SystemTime::now()).expect("ahead");
        assert!(ahead > Duration::from_secs(50) && ahead <= Duration::from_secs(61), "{ahead:?}");
    }
}
