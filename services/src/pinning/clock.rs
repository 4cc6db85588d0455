//! [`Clock`]: milliseconds that no step of the wall clock changes.
//!
//! Attempts are due by this clock while the process runs. It begins with the wall clock's time, so that what is written can
//! be compared with what an earlier process wrote as long as nobody set the clock in between; what is read is held
//! against bounds ([`Clock::adopt`]), since somebody may have.

use crate::pinning::index::{millis, time};
use crate::pinning::record::Work;
use std::time::{Duration, Instant, SystemTime};

/// See the module.
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
    /// Milliseconds since the epoch as of the process's start, and what has passed since.
    pub fn now_ms(&self) -> u64 {
        self.began_ms.saturating_add(whole_millis(self.began.elapsed()))
    }

    /// What the wall clock says at a moment of this one.
    pub fn wall(&self, at_ms: u64) -> SystemTime {
        let now_ms = self.now_ms();
        let (before, after) = (now_ms.saturating_sub(at_ms), at_ms.saturating_sub(now_ms));
        let wall_ms = millis(SystemTime::now());
        time(wall_ms.saturating_add(after).saturating_sub(before))
    }

    /// Work that an earlier process wrote, by this clock. Its next attempt is due after `wait_max` at the latest, however far
    /// the clock was set back meanwhile; how long it was tried in vain does not depend on the wall clock at all.
    pub fn adopt(&self, work: Work, wait_max: Duration) -> Work {
        let now_ms = self.now_ms();
        let due_ms = work.due_ms.min(now_ms.saturating_add(whole_millis(wait_max)));
        Work { due_ms, since_ms: now_ms.saturating_sub(work.waited_ms), ..work }
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    /// A clock that stands where it is told to within this test's patience.
    fn clock(began_ms: u64) -> Clock {
        Clock { began_ms, began: Instant::now() }
    }

    #[test]
    fn a_due_time_is_never_further_away_than_the_longest_wait() {
        let now = 1_795_000_000_000;
        let table = [
            // What is due soon stays so, and what was due is.
            (now + 60_000, 60_000),
            (now - 60_000, 0),
            (0, 0),
            // The clock was set back by a year, or stood in the far future when this was written.
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
    fn how_long_was_tried_in_vain_is_told_whatever_the_clock_says() {
        // As of 1970, as a machine without a battery starts; now; and a century later.
        for now in [0, 1_795_000_000_000, 5_000_000_000_000] {
            let work = Work { since_ms: 1_795_000_000_000, waited_ms: 7, ..Work::default() };
            let adopted = clock(now + HOUR_MS).adopt(work, Duration::from_hours(1));
            let waited = (now + HOUR_MS).saturating_sub(adopted.since_ms);
            assert!(waited <= 7, "{now}: {waited}");
        }
    }

    #[test]
    fn the_wall_clock_is_told_for_people() {
        let clock = clock(5);
        let shown = clock.wall(clock.now_ms() + 60_000);
        let ahead = shown.duration_since(SystemTime::now()).expect("ahead");
        assert!(ahead > Duration::from_secs(50) && ahead <= Duration::from_secs(61), "{ahead:?}");
    }
}
