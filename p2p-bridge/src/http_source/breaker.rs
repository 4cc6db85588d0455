//! Circuit breakers of gateways, one per origin, in a bounded table.
//!
//! Goals: a gateway that is down, overloaded or not a gateway costs a few requests and then none until its back-off
//! ends; a recovered gateway is detected with one request; a gateway that sent an invalid block is not asked for long;
//! no clock of its own.
//!
//! ```text
//! closed ──consecutive failures, 429 or 503, an invalid block──▶ open ──back-off ends──▶ half open: one request
//!    ▲                                                            ▲                         │
//!    └───────────────────────── success ──────────────────────────┼─────────────────────────┤
//!                                                                 └── failure: next back-off┘
//! ```

use crate::back_off::exponential;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The number of consecutive failures that open a breaker.
pub const FAILURES_MAX: u32 = 3;
/// The number of consecutive blocks that an untrusted gateway does not have, until its breaker opens.
const MISSES_MAX: u32 = 16;
/// The back-off after the first opening and the maximum; it doubles with each opening.
const BACK_OFF: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
/// Bounds of the back-off that a gateway requests (`Retry-After`).
const RETRY_AFTER: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(900);
/// The back-off after an invalid block, and after too many misses.
const LONG_BACK_OFF: Duration = Duration::from_secs(900);

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It cannot be reached, closed the connection early, timed out or responded with an error.
    Failure,
    /// It responded with 429 or 503, possibly with `Retry-After`.
    Busy(Option<Duration>),
    /// It sent an invalid block.
    InvalidBlock,
}

/// The circuit breaker of one origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    misses: u32,
    /// Openings since the last success.
    openings: u32,
    open_until: Option<Instant>,
}

impl Breaker {
    /// The number of concurrent requests that are allowed, up to `max`.
    pub fn allows(&self, max: usize, now: Instant) -> usize {
        match self.open_until {
            None => max,
            Some(until) if until <= now => max.min(1),
            Some(_) => 0,
        }
    }

    /// Whether it is open or half open.
    pub fn is_tripped(&self) -> bool {
        self.open_until.is_some()
    }

    /// A request succeeded.
    pub fn answered(&mut self) {
        *self = Self::default();
    }

    /// The gateway does not have a block. Returns whether that opens the breaker of an untrusted gateway.
    pub fn missed(&mut self, untrusted: bool, now: Instant) -> bool {
        let misses = if untrusted { self.misses + 1 } else { 0 };
        self.answered();
        if misses < MISSES_MAX {
            self.misses = misses;
            return false;
        }
        self.open_until = Some(now + LONG_BACK_OFF);
        true
    }

    /// A request failed; returns whether that opens the breaker. Requests that end while it is open are ignored: they
    /// started before.
    pub fn failed(&mut self, fault: Fault, now: Instant) -> bool {
        let half_open = match self.open_until {
            Some(until) if until > now && fault != Fault::InvalidBlock => return false,
            Some(_) => true,
            None => false,
        };
        self.failures = self.failures.saturating_add(1);
        let usual = exponential(*BACK_OFF.start(), *BACK_OFF.end(), self.openings);
        let back_off = match fault {
            Fault::InvalidBlock => LONG_BACK_OFF,
            Fault::Busy(asked) => asked.map_or(usual, |asked| asked.clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end())),
            Fault::Failure if half_open || self.failures >= FAILURES_MAX => usual,
            Fault::Failure => return false,
        };
        self.failures = 0;
        self.openings = self.openings.saturating_add(1);
        self.open_until = Some(now + back_off);
        true
    }
}

/// The breakers of many origins, in a bounded table. Closed ones are evicted first, then the ones that close first.
#[derive(Debug)]
pub struct Breakers {
    by_origin: HashMap<String, Breaker>,
    max: usize,
}

impl Breakers {
    /// An empty table for at most `max` origins.
    pub fn new(max: usize) -> Self {
        Self { by_origin: HashMap::new(), max }
    }

    /// The state of an origin.
    pub fn get(&self, origin: &str) -> Breaker {
        self.by_origin.get(origin).copied().unwrap_or_default()
    }

    /// Changes the state of an origin.
    pub fn change<T>(&mut self, origin: &str, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = self.get(origin);
        let result = change(&mut breaker);
        if breaker == Breaker::default() {
            self.by_origin.remove(origin);
        } else {
            self.by_origin.insert(origin.to_owned(), breaker);
            self.shrink(origin);
        }
        result
    }

    /// The number of breakers that are open or half open.
    pub fn tripped(&self) -> usize {
        self.by_origin.values().filter(|breaker| breaker.is_tripped()).count()
    }

    fn shrink(&mut self, newest: &str) {
        if self.by_origin.len() <= self.max {
            return;
        }
        let others = self.by_origin.iter().filter(|(origin, _)| *origin != newest);
        if let Some(origin) = others.min_by_key(|(_, breaker)| breaker.open_until).map(|(origin, _)| origin.clone()) {
            self.by_origin.remove(&origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: usize = 16;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_with_an_answer() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            assert!(!breaker.failed(Fault::Failure, start));
            assert!(!breaker.failed(Fault::Failure, start));
            breaker.answered();
        }
        assert_eq!(breaker.allows(MAX, start), MAX);
        let opened: Vec<bool> = (0..5).map(|_| breaker.failed(Fault::Failure, start)).collect();
        assert_eq!(opened, [false, false, true, false, false], "requests that started before it opened are ignored");
        assert_eq!(breaker.allows(MAX, start), 0);
        assert_eq!(breaker.allows(MAX, after(start, 1)), 1, "half open");
        breaker.answered();
        assert_eq!(breaker.allows(MAX, after(start, 1)), MAX);
    }

    #[test]
    fn each_failed_attempt_doubles_the_back_off_up_to_a_limit() {
        let mut now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            breaker.failed(Fault::Failure, now);
        }
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert_eq!(breaker.allows(MAX, now + Duration::from_millis(seconds * 1_000 - 1)), 0, "{seconds} s");
            now = after(now, seconds);
            assert_eq!(breaker.allows(MAX, now), 1, "{seconds} s");
            assert!(breaker.failed(Fault::Failure, now), "one failure is enough when it is half open");
        }
    }

    #[test]
    fn retry_after_is_clamped_and_an_invalid_block_has_the_longest_back_off() {
        let start = Instant::now();
        let table = [
            (Fault::Busy(None), 1),
            (Fault::Busy(Some(Duration::from_secs(30))), 30),
            (Fault::Busy(Some(Duration::ZERO)), 1),
            (Fault::Busy(Some(Duration::from_secs(1 << 40))), 900),
            (Fault::InvalidBlock, 900),
        ];
        for (fault, seconds) in table {
            let mut breaker = Breaker::default();
            assert!(breaker.failed(fault, start), "{fault:?}: at once");
            assert_eq!(breaker.allows(MAX, after(start, seconds - 1)), 0, "{fault:?}");
            assert_eq!(breaker.allows(MAX, after(start, seconds)), 1, "{fault:?}");
        }
    }

    #[test]
    fn misses_open_the_breaker_of_an_untrusted_gateway() {
        let start = Instant::now();
        let (mut untrusted, mut configured) = (Breaker::default(), Breaker::default());
        let opened: Vec<bool> = (0..MISSES_MAX).map(|_| untrusted.missed(true, start)).collect();
        assert_eq!(opened.iter().filter(|enough| **enough).count(), 1);
        assert_eq!(untrusted.allows(MAX, start), 0);
        assert!((0..1_000).all(|_| !configured.missed(false, start)));
        assert_eq!(configured.allows(MAX, start), MAX);
    }

    #[test]
    fn a_full_table_evicts_closed_breakers_first() {
        let start = Instant::now();
        let mut breakers = Breakers::new(3);
        breakers.change("invalid", |breaker| breaker.failed(Fault::InvalidBlock, start));
        breakers.change("fine", |breaker| breaker.failed(Fault::Failure, start));
        breakers.change("busy", |breaker| breaker.failed(Fault::Busy(None), start));
        breakers.change("new", |breaker| breaker.failed(Fault::Failure, start));
        assert_eq!(breakers.get("fine"), Breaker::default());
        breakers.change("newer", |breaker| breaker.failed(Fault::Busy(None), start));
        breakers.change("newest", |breaker| breaker.failed(Fault::Busy(None), start));
        assert!(breakers.get("invalid").is_tripped(), "the longest back-off is kept longest");
        assert_eq!((breakers.by_origin.len(), breakers.tripped()), (3, 3));
        breakers.change("invalid", Breaker::answered);
        assert_eq!(breakers.by_origin.len(), 2, "closed breakers need no entry");
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Answer,
        Miss,
        Fail(Fault),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => Just(Step::Answer),
            1 => Just(Step::Miss),
            3 => Just(Step::Fail(Fault::Failure)),
            1 => Just(Step::Fail(Fault::InvalidBlock)),
            1 => proptest::option::of(any::<u64>())
                .prop_map(|asked| Step::Fail(Fault::Busy(asked.map(Duration::from_secs)))),
            3 => (0_u64..1_000_000).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn a_breaker_always_closes_again(steps in proptest::collection::vec(step(), 0..200)) {
            let mut now = Instant::now();
            let mut breaker = Breaker::default();
            for step in steps {
                match step {
                    Step::Answer => breaker.answered(),
                    Step::Miss => _ = breaker.missed(true, now),
                    Step::Wait(milliseconds) => now += Duration::from_millis(milliseconds),
                    Step::Fail(fault) => {
                        let opened = breaker.failed(fault, now);
                        prop_assert!(!opened || breaker.allows(MAX, now) == 0);
                    }
                }
                prop_assert!(breaker.allows(MAX, now + LONG_BACK_OFF) >= 1, "there is no longer back-off");
            }
        }
    }
}
