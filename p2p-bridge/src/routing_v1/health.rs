//! [`Health`]: whether a router is worth asking, so that one that is dead costs next to nothing.
//!
//! A state machine that is handed the clock. A router that failed rests, twice as long each time; then one request tries it,
//! and only when that succeeded is it asked as before.

use std::time::{Duration, Instant};

/// How long a router rests after its first failure.
pub(super) const FIRST_REST: Duration = Duration::from_secs(2);
/// The longest that a router rests, whatever it says itself.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// What is known of a router's health.
#[derive(Debug, Default)]
pub struct Health {
    /// Failures since the last success.
    failures: u32,
    resting_until: Option<Instant>,
    /// Whether the one request after a rest is under way.
    on_trial: bool,
}

impl Health {
    /// Whether to ask the router now. Whoever is told so says afterwards what came of it.
    pub fn may_ask(&mut self, now: Instant) -> bool {
        match self.resting_until {
            None => true,
            Some(until) if now < until || self.on_trial => false,
            Some(_) => {
                self.on_trial = true;
                true
            }
        }
    }

    /// It answered.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// It did not answer, or not with sense.
    pub fn failed(&mut self, now: Instant) {
        let rest = FIRST_REST.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_REST);
        // Requests that were under way when the first of them failed say nothing new.
        if self.on_trial || self.resting_until.is_none() {
            self.failures = self.failures.saturating_add(1);
            self.rest(now, rest);
        }
    }

    /// It answered that it is busy, perhaps for how long.
    pub fn busy(&mut self, now: Instant, wait: Option<Duration>) {
        self.rest(now, wait.unwrap_or(FIRST_REST).min(LONGEST_REST));
    }

    /// Nobody waited for the answer, so nothing was learnt.
    pub fn left(&mut self) {
        self.on_trial = false;
    }

    fn rest(&mut self, now: Instant, rest: Duration) {
        self.on_trial = false;
        self.resting_until = Some(now + rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_dead_router_is_tried_ever_more_rarely_and_a_live_one_always() {
        let (mut health, mut now) = (Health::default(), Instant::now());
        assert!(health.may_ask(now) && health.may_ask(now));
        health.failed(now);
        health.failed(now);
        for rest in [2_u64, 4, 8, 16, 32, 64, 128, 256, 300, 300].map(Duration::from_secs) {
            assert!(!health.may_ask(now + rest - Duration::from_millis(1)), "{rest:?}");
            now += rest;
            assert!(health.may_ask(now), "{rest:?}");
            assert!(!health.may_ask(now), "one request tries it");
            health.failed(now);
        }
        now += LONGEST_REST;
        assert!(health.may_ask(now));
        health.left();
        assert!(health.may_ask(now), "the trial was broken off");
        health.succeeded();
        assert!(health.may_ask(now) && health.may_ask(now));
    }

    #[test]
    fn a_busy_router_is_left_alone_for_as_long_as_it_says_within_reason() {
        let now = Instant::now();
        let table = [
            (None, FIRST_REST),
            (Some(Duration::from_secs(7)), Duration::from_secs(7)),
            (Some(Duration::MAX), LONGEST_REST),
        ];
        for (said, rest) in table {
            let mut health = Health::default();
            health.busy(now, said);
            assert!(!health.may_ask(now + rest - Duration::from_millis(1)) && health.may_ask(now + rest), "{said:?}");
        }
    }

    proptest! {
        #[test]
        fn no_router_rests_for_ever(events in prop::collection::vec((0_u8..5, 0_u64..400), 0..100)) {
            let (mut health, mut now) = (Health::default(), Instant::now());
            for (event, seconds) in events {
                now += Duration::from_secs(seconds);
                match event {
                    0 => health.succeeded(),
                    1 => health.failed(now),
                    2 => health.busy(now, Some(Duration::from_secs(seconds * 1000))),
                    3 => health.left(),
                    _ => _ = health.may_ask(now),
                }
            }
            health.left();
            prop_assert!(health.may_ask(now + LONGEST_REST));
        }
    }
}
