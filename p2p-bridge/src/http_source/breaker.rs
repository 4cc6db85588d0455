//! When a gateway is left alone: a circuit breaker for each origin, in a bounded table.
//!
//! Goals: a gateway that is down, overloaded or no gateway costs a few requests and then none until it has rested; one
//! that comes back is noticed with one request; a liar is left alone for long; no clock of its own.
//!
//! ```text
//! closed ──some failures in a row, 429 or 503, a lie──▶ open ──its rest is over──▶ half open: one request at a time
//!    ▲                                                   ▲                              │
//!    └────────────────────────── it answers ─────────────┼──────────────────────────────┤
//!                                                        └── it fails: rests for longer ┘
//! ```

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Failures in a row that open a breaker.
pub const FAILURES_MAX: u32 = 3;
/// Blocks in a row that a stranger's gateway has not got, until it is left alone as well: whoever named it was wrong.
const MISSES_MAX: u32 = 16;
/// The rest after a first failure and after many; each is twice as long as the one before.
const REST: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
/// The rest that a gateway may ask for (`Retry-After`).
const REST_ASKED: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(900);
/// The rest of one that sent wrong bytes, and of one that had nothing.
const REST_LONG: Duration = Duration::from_secs(900);

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It cannot be reached, broke off, took too long or answered with an error.
    Failure,
    /// It asks to be left alone, maybe for a certain time.
    Busy(Option<Duration>),
    /// It sent bytes that are not what was asked for.
    Lie,
}

/// The state of one origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    misses: u32,
    /// Openings since it last answered.
    openings: u32,
    rests_until: Option<Instant>,
}

impl Breaker {
    /// Requests that may run at once, of `max`.
    pub fn allows(&self, max: usize, now: Instant) -> usize {
        match self.rests_until {
            None => max,
            Some(until) if until <= now => max.min(1),
            Some(_) => 0,
        }
    }

    /// Whether it is open or half open.
    pub fn is_tripped(&self) -> bool {
        self.rests_until.is_some()
    }

    /// It gave what was asked for.
    pub fn answered(&mut self) {
        *self = Self::default();
    }

    /// It said in good order that it has not got a block. `true` if a stranger's gateway has now said so too often.
    pub fn missed(&mut self, stranger: bool, now: Instant) -> bool {
        let misses = if stranger { self.misses + 1 } else { 0 };
        self.answered();
        if misses < MISSES_MAX {
            self.misses = misses;
            return false;
        }
        self.rests_until = Some(now + REST_LONG);
        true
    }

    /// Something went wrong; `true` if that opens the breaker. What ends while it is open changes nothing: it began before.
    pub fn failed(&mut self, fault: Fault, now: Instant) -> bool {
        let half_open = match self.rests_until {
            Some(until) if until > now && fault != Fault::Lie => return false,
            Some(_) => true,
            None => false,
        };
        self.failures = self.failures.saturating_add(1);
        let usual = REST.start().saturating_mul(1 << self.openings.min(16)).min(*REST.end());
        let rest = match fault {
            Fault::Lie => REST_LONG,
            Fault::Busy(asked) => asked.map_or(usual, |asked| asked.clamp(*REST_ASKED.start(), *REST_ASKED.end())),
            Fault::Failure if half_open || self.failures >= FAILURES_MAX => usual,
            Fault::Failure => return false,
        };
        self.failures = 0;
        self.openings = self.openings.saturating_add(1);
        self.rests_until = Some(now + rest);
        true
    }
}

/// The breakers of many origins, at most so many: untroubled ones are forgotten first, then those whose rest ends first.
#[derive(Debug)]
pub struct Breakers {
    by_origin: HashMap<String, Breaker>,
    max: usize,
}

impl Breakers {
    /// An empty table with room for `max` origins.
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

    /// How many are open or half open.
    pub fn tripped(&self) -> usize {
        self.by_origin.values().filter(|breaker| breaker.is_tripped()).count()
    }

    fn shrink(&mut self, newest: &str) {
        if self.by_origin.len() <= self.max {
            return;
        }
        let others = self.by_origin.iter().filter(|(origin, _)| *origin != newest);
        if let Some(origin) = others.min_by_key(|(_, breaker)| breaker.rests_until).map(|(origin, _)| origin.clone()) {
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
        assert_eq!(opened, [false, false, true, false, false], "what began before it opened changes nothing");
        assert_eq!(breaker.allows(MAX, start), 0);
        assert_eq!(breaker.allows(MAX, after(start, 1)), 1, "half open");
        breaker.answered();
        assert_eq!(breaker.allows(MAX, after(start, 1)), MAX);
    }

    #[test]
    fn each_failed_attempt_doubles_the_rest_up_to_a_limit() {
        let mut now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            breaker.failed(Fault::Failure, now);
        }
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert_eq!(breaker.allows(MAX, now + Duration::from_millis(seconds * 1_000 - 1)), 0, "{seconds} s");
            now = after(now, seconds);
            assert_eq!(breaker.allows(MAX, now), 1, "{seconds} s");
            assert!(breaker.failed(Fault::Failure, now), "one is enough when it is half open");
        }
    }

    #[test]
    fn a_rest_that_is_asked_for_is_kept_within_reason_and_a_lie_costs_the_most() {
        let start = Instant::now();
        let table = [
            (Fault::Busy(None), 1),
            (Fault::Busy(Some(Duration::from_secs(30))), 30),
            (Fault::Busy(Some(Duration::ZERO)), 1),
            (Fault::Busy(Some(Duration::from_secs(1 << 40))), 900),
            (Fault::Lie, 900),
        ];
        for (fault, seconds) in table {
            let mut breaker = Breaker::default();
            assert!(breaker.failed(fault, start), "{fault:?}: at once");
            assert_eq!(breaker.allows(MAX, after(start, seconds - 1)), 0, "{fault:?}");
            assert_eq!(breaker.allows(MAX, after(start, seconds)), 1, "{fault:?}");
        }
    }

    #[test]
    fn a_strangers_gateway_that_has_nothing_is_left_alone() {
        let start = Instant::now();
        let (mut strange, mut configured) = (Breaker::default(), Breaker::default());
        let said: Vec<bool> = (0..MISSES_MAX).map(|_| strange.missed(true, start)).collect();
        assert_eq!(said.iter().filter(|enough| **enough).count(), 1);
        assert_eq!(strange.allows(MAX, start), 0);
        assert!((0..1_000).all(|_| !configured.missed(false, start)));
        assert_eq!(configured.allows(MAX, start), MAX);
    }

    #[test]
    fn a_full_table_forgets_the_untroubled_first() {
        let start = Instant::now();
        let mut breakers = Breakers::new(3);
        breakers.change("liar", |breaker| breaker.failed(Fault::Lie, start));
        breakers.change("fine", |breaker| breaker.failed(Fault::Failure, start));
        breakers.change("busy", |breaker| breaker.failed(Fault::Busy(None), start));
        breakers.change("new", |breaker| breaker.failed(Fault::Failure, start));
        assert_eq!(breakers.get("fine"), Breaker::default());
        breakers.change("newer", |breaker| breaker.failed(Fault::Busy(None), start));
        breakers.change("newest", |breaker| breaker.failed(Fault::Busy(None), start));
        assert!(breakers.get("liar").is_tripped(), "the longest rest is remembered the longest");
        assert_eq!((breakers.by_origin.len(), breakers.tripped()), (3, 3));
        breakers.change("liar", Breaker::answered);
        assert_eq!(breakers.by_origin.len(), 2, "what is fine needs no entry");
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
            1 => Just(Step::Fail(Fault::Lie)),
            1 => proptest::option::of(any::<u64>())
                .prop_map(|asked| Step::Fail(Fault::Busy(asked.map(Duration::from_secs)))),
            3 => (0_u64..1_000_000).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn it_is_never_stuck(steps in proptest::collection::vec(step(), 0..200)) {
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
                prop_assert!(breaker.allows(MAX, now + REST_LONG) >= 1, "nothing rests for longer");
            }
        }
    }
}
