//! [`Health`]: the circuit breaker of a router, so that a dead router costs next to nothing.
//!
//! A state machine that is passed the clock. After a failure the breaker is open for a back-off that doubles each time;
//! then one request probes the router, and its success closes the breaker.

use crate::back_off::exponential;
use std::time::{Duration, Instant};

/// The back-off after the first failure.
pub(super) const BACK_OFF_MIN: Duration = Duration::from_secs(2);
/// The maximum back-off, including `Retry-After`.
const BACK_OFF_MAX: Duration = Duration::from_secs(300);

/// The state of the circuit breaker.
#[derive(Debug, Default)]
pub struct Health {
    /// Consecutive failures.
    failures: u32,
    open_until: Option<Instant>,
    /// Whether the probe request is in flight (half-open).
    probing: bool,
}

impl Health {
    /// Whether a request may be sent now. Report the result of an allowed request afterwards.
    pub fn allows_request(&mut self, now: Instant) -> bool {
        match self.open_until {
            None => true,
            Some(until) if now < until || self.probing => false,
            Some(_) => {
                self.probing = true;
                true
            }
        }
    }

    /// Records a successful request.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Records a request that failed or timed out.
    pub fn failed(&mut self, now: Instant) {
        let back_off = exponential(BACK_OFF_MIN, BACK_OFF_MAX, self.failures);
        // Requests in flight during the first failure are not counted again.
        if self.probing || self.open_until.is_none() {
            self.failures = self.failures.saturating_add(1);
            self.open(now, back_off);
        }
    }

    /// Records that the router is busy, with its `Retry-After`.
    pub fn busy(&mut self, now: Instant, wait: Option<Duration>) {
        self.open(now, wait.unwrap_or(BACK_OFF_MIN).min(BACK_OFF_MAX));
    }

    /// Records a request that was cancelled, which has no result.
    pub fn abandoned(&mut self) {
        self.probing = false;
    }

    fn open(&mut self, now: Instant, back_off: Duration) {
        self.probing = false;
        self.open_until = Some(now + back_off);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_dead_router_is_probed_with_exponential_back_off() {
        let (mut health, mut now) = (Health::default(), Instant::now());
        assert!(health.allows_request(now) && health.allows_request(now));
        health.failed(now);
        health.failed(now);
        for back_off in [2_u64, 4, 8, 16, 32, 64, 128, 256, 300, 300].map(Duration::from_secs) {
            assert!(!health.allows_request(now + back_off - Duration::from_millis(1)), "{back_off:?}");
            now += back_off;
            assert!(health.allows_request(now), "{back_off:?}");
            assert!(!health.allows_request(now), "one probe at a time");
            health.failed(now);
        }
        now += BACK_OFF_MAX;
        assert!(health.allows_request(now));
        health.abandoned();
        assert!(health.allows_request(now), "the probe was cancelled");
        health.succeeded();
        assert!(health.allows_request(now) && health.allows_request(now));
    }

    #[test]
    fn retry_after_of_a_busy_router_is_honoured_up_to_the_maximum() {
        let now = Instant::now();
        let table = [
            (None, BACK_OFF_MIN),
            (Some(Duration::from_secs(7)), Duration::from_secs(7)),
            (Some(Duration::MAX), BACK_OFF_MAX),
        ];
        for (retry_after, back_off) in table {
            let mut health = Health::default();
            health.busy(now, retry_after);
            assert!(!health.allows_request(now + back_off - Duration::from_millis(1)), "{retry_after:?}");
            assert!(health.allows_request(now + back_off), "{retry_after:?}");
        }
    }

    proptest! {
        #[test]
        fn no_breaker_stays_open_forever(events in prop::collection::vec((0_u8..5, 0_u64..400), 0..100)) {
            let (mut health, mut now) = (Health::default(), Instant::now());
            for (event, seconds) in events {
                now += Duration::from_secs(seconds);
                match event {
                    0 => health.succeeded(),
                    1 => health.failed(now),
                    2 => health.busy(now, Some(Duration::from_secs(seconds * 1000))),
                    3 => health.abandoned(),
                    _ => _ = health.allows_request(now),
                }
            }
            health.abandoned();
            prop_assert!(health.allows_request(now + BACK_OFF_MAX));
        }
    }
}
