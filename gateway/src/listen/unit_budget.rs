//! [`UnitBudget`]: what one client may do over a connection beside its requests, in units that it earns with time.
//!
//! The protocols count different things as units: HTTP/2 frames that are no request ([`super::http2`]), HTTP/3 requests
//! that are cancelled and streams that carry none ([`super::http3`]).

use std::time::Duration;
use tokio::time::Instant;

/// The units that a client has in a burst.
pub(super) const BURST_MAX: u64 = 1_000;
/// The time that earns a unit.
const UNIT_EVERY: Duration = Duration::from_millis(10);

/// The units that a client has left.
#[derive(Debug)]
pub(super) struct UnitBudget {
    left: u64,
    /// Until when the time has earned units. The rest of it is not lost, however often units are earned.
    counted_until: Instant,
}

impl UnitBudget {
    /// The budget of a new connection: a burst.
    pub fn new(now: Instant) -> Self {
        Self { left: BURST_MAX, counted_until: now }
    }

    /// The units that are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Adds what the time has earned.
    pub fn earn(&mut self, now: Instant) {
        let earned = now.saturating_duration_since(self.counted_until).as_millis() / UNIT_EVERY.as_millis();
        self.counted_until += UNIT_EVERY * u32::try_from(earned).unwrap_or(u32::MAX);
        self.add(u64::try_from(earned).unwrap_or(u64::MAX));
    }

    /// Adds units, up to a burst.
    pub fn add(&mut self, units: u64) {
        self.left = self.left.saturating_add(units).min(BURST_MAX);
    }

    /// Takes units; returns whether there were so many. If not, none is left.
    pub fn spend(&mut self, units: u64) -> bool {
        let left = self.left.checked_sub(units);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_earned_with_time_and_never_more_than_a_burst() {
        let begun = Instant::now();
        let mut budget = UnitBudget::new(begun);
        let mut take = |units, milliseconds| {
            budget.earn(begun + Duration::from_millis(milliseconds));
            budget.spend(units)
        };
        // Units, when they are taken, and whether there are so many.
        let table = [(999, 0, true), (1, 0, true), (1, 9, false), (1, 10, true), (1, 15, false), (1, 20, true)];
        for (units, when, expected) in table {
            assert_eq!(take(units, when), expected, "{units} at {when}");
        }
        assert!(take(BURST_MAX, 1_000_000) && !take(1, 1_000_000));
        // What is refused leaves nothing.
        assert!(!take(BURST_MAX + 1, 2_000_000) && !take(1, 2_000_000));
    }

    #[test]
    fn what_is_earned_does_not_depend_on_how_often() {
        let begun = Instant::now();
        for every in [1, 3, 9, 10, 19, 100, 950] {
            let mut budget = UnitBudget::new(begun);
            assert!(budget.spend(BURST_MAX));
            for milliseconds in (0..=9_500).step_by(every) {
                budget.earn(begun + Duration::from_millis(milliseconds));
            }
            budget.earn(begun + Duration::from_millis(9_500));
            assert_eq!(budget.left(), 950, "every {every} ms");
        }
    }
}
