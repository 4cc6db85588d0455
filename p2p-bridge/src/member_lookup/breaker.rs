//! [`Breaker`]: whether a gateway of the site is asked, by what became of earlier look-ups (a circuit breaker).
//!
//! It opens after a failure that the next look-up would have as well, and after several others in a row. When its pause
//! has ended, one look-up is admitted as a probe, and its failure doubles the pause.

use std::time::Duration;
use tokio::time::Instant;

/// Failures in a row that open it.
const FAILURES_MAX: u32 = 3;
/// The first pause, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];

/// A circuit breaker. See the module's documentation.
#[derive(Debug, Default)]
pub struct Breaker {
    /// In a row.
    failures: u32,
    /// Since it has opened: the end of its pause.
    pause_end: Option<Instant>,
    pause: Duration,
    is_probing: bool,
}

impl Breaker {
    /// Whether no look-up is admitted now.
    pub fn is_open(&self, now: Instant) -> bool {
        self.pause_end.is_some_and(|end| now < end || self.is_probing)
    }

    /// Admits a look-up, unless it is open; whether it is a probe, whose end has to be reported.
    pub fn admit(&mut self, now: Instant) -> Option<bool> {
        if self.is_open(now) {
            return None;
        }
        self.is_probing = self.pause_end.is_some();
        Some(self.is_probing)
    }

    /// The gateway has answered.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// The gateway has not answered; `is_definite` if it would not answer the next look-up either.
    pub fn failed(&mut self, is_probe: bool, is_definite: bool, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let [first, longest] = PAUSES;
        let pause = match self.pause_end {
            None if is_definite || self.failures >= FAILURES_MAX => first,
            Some(_) if is_probe => (2 * self.pause).min(longest),
            // Look-ups that were admitted before it opened say nothing new.
            _ => return,
        };
        *self = Self { failures: self.failures, pause_end: Some(now + pause), pause, is_probing: false };
    }

    /// A probe has ended. One that was cancelled is followed by another one.
    pub fn probe_ended(&mut self) {
        self.is_probing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_some_failures_in_a_row_or_a_definite_one() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            breaker.failed(false, false, now);
            breaker.failed(false, false, now);
            assert_eq!(breaker.admit(now), Some(false));
            breaker.succeeded();
        }
        (0..FAILURES_MAX).for_each(|_| breaker.failed(false, false, now));
        assert_eq!((breaker.is_open(now), breaker.admit(now)), (true, None));
        let mut breaker = Breaker::default();
        breaker.failed(false, true, now);
        assert!(breaker.is_open(now));
    }

    #[test]
    fn one_probe_is_admitted_after_a_pause_which_doubles() {
        let (mut now, mut breaker) = (Instant::now(), Breaker::default());
        let [mut pause, longest] = PAUSES;
        breaker.failed(false, true, now);
        for _ in 0..6 {
            assert_eq!(breaker.admit(now + pause - Duration::from_millis(1)), None);
            now += pause;
            assert_eq!((breaker.admit(now), breaker.admit(now)), (Some(true), None));
            // One that was admitted long ago.
            breaker.failed(false, true, now);
            assert_eq!(breaker.admit(now), None);
            breaker.failed(true, false, now);
            breaker.probe_ended();
            pause = (2 * pause).min(longest);
        }
        now += longest;
        assert_eq!(breaker.admit(now), Some(true));
        breaker.probe_ended();
        assert_eq!(breaker.admit(now), Some(true), "the client of the former one had left");
        breaker.succeeded();
        assert_eq!((breaker.admit(now), breaker.admit(now)), (Some(false), Some(false)));
    }
}
