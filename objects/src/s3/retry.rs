//! Attempts, back-off and the deadline.

use super::failure::Failure;
use crate::error::ObjectError;
use crate::options::StoreOptions;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How requests are repeated.
#[derive(Debug, Clone)]
pub(super) struct Retries {
    attempts: u32,
    backoff: Duration,
    backoff_max: Duration,
    deadline: Duration,
}

impl Retries {
    pub(super) fn new(options: &StoreOptions) -> Self {
        let (backoff, backoff_max) = (options.backoff, options.backoff_max);
        Self { attempts: options.attempts.max(1), backoff, backoff_max, deadline: options.deadline }
    }

    /// Runs attempts until one succeeds, none can, there were enough, or the deadline has passed. Each signs its
    /// request again.
    pub(super) async fn run<T, F>(&self, what: &str, place: &str, attempt: impl Fn() -> F) -> Result<T, ObjectError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let deadline = Instant::now() + self.deadline;
        let mut latest = "no answer".to_owned();
        let mut number = 0;
        while number < self.attempts {
            number += 1;
            let (reason, after) = match timeout_at(deadline, attempt()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(Failure::Retry { reason, after })) => (reason, after.unwrap_or_default()),
                Ok(Err(Failure::Final(ObjectError::Refused { reason }))) => {
                    return Err(ObjectError::refused(format!("{what} in {place}: {reason}")));
                }
                Ok(Err(Failure::Final(error))) => return Err(error),
                // The caller has handled it if it means anything to the operation.
                Ok(Err(Failure::Absent)) => return Err(ObjectError::refused(format!("{what} in {place}: not found"))),
                Err(_) => break,
            };
            tracing::debug!(%what, %place, number, %reason, "an attempt has failed");
            latest = reason;
            let wait = wait(self.backoff, self.backoff_max, number).max(after);
            // No attempt would be left time.
            if number == self.attempts || wait >= deadline.saturating_duration_since(Instant::now()) {
                break;
            }
            sleep(wait).await;
        }
        let times = if number == 1 { "1 attempt".to_owned() } else { format!("{number} attempts") };
        Err(ObjectError::unavailable(format!("{what} in {place} has failed in {times}: {latest}")))
    }
}

/// How long to wait after an attempt: random, so that gateways that were refused at once do not come back at once.
fn wait(first: Duration, longest: Duration, number: u32) -> Duration {
    let full = first.saturating_mul(1 << (number - 1).min(20)).min(longest);
    // Without randomness all gateways wait for the same time, and nothing worse.
    let random = getrandom::u32().unwrap_or(u32::MAX);
    full.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const LONG: u64 = 60_000;

    fn retries(attempts: u32, deadline_ms: u64) -> Retries {
        let (backoff, backoff_max) = (Duration::from_millis(2), Duration::from_millis(10));
        Retries { attempts, backoff, backoff_max, deadline: Duration::from_millis(deadline_ms) }
    }

    #[test]
    fn waits_double_up_to_a_limit() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(1));
        for (number, full) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (40, 1_000)] {
            let wait = wait(first, longest, number);
            let range = Duration::from_millis(full / 2)..=Duration::from_millis(full);
            assert!(range.contains(&wait), "{number}: {wait:?}");
        }
    }

    #[tokio::test]
    async fn attempts_end_with_success_or_their_number() {
        // Fails that often before it succeeds; the milliseconds that the server asks for; the attempts; how many there
        // are.
        let table = [
            (0, None, 4, Ok(1)),
            (3, None, 4, Ok(4)),
            (4, None, 4, Err(4)),
            (1, None, 1, Err(1)),
            (1, Some(50), 4, Ok(2)),
            // There is no time for that.
            (1, Some(2 * LONG), 4, Err(1)),
            (1, Some(u64::MAX), 4, Err(1)),
        ];
        for (failures, after, attempts, expected) in table {
            let made = AtomicU32::new(0);
            let attempt = || async {
                let failed = made.fetch_add(1, Ordering::Relaxed) < failures;
                let after = after.map(Duration::from_millis);
                if failed { Err(Failure::Retry { reason: "busy".to_owned(), after }) } else { Ok(()) }
            };
            let begun = Instant::now();
            let result = retries(attempts, LONG).run("GET", "there", attempt).await;
            let made = made.load(Ordering::Relaxed);
            match (&result, expected) {
                (Ok(()), Ok(number)) => assert_eq!(made, number),
                (Err(ObjectError::Unavailable { reason }), Err(number)) => {
                    assert_eq!(made, number);
                    assert!(reason.contains("busy") && reason.contains("there"), "{reason}");
                }
                _ => panic!("{failures} {attempts}: {result:?}"),
            }
            let waited = after.filter(|_| result.is_ok()).map(Duration::from_millis).unwrap_or_default();
            assert!(begun.elapsed() >= waited);
        }
    }

    #[tokio::test]
    async fn a_refusal_is_not_repeated() {
        let made = AtomicU32::new(0);
        let refused = || async {
            made.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(Failure::Final(ObjectError::refused("no")))
        };
        let result = retries(4, LONG).run("GET", "there", refused).await;
        assert_eq!(result, Err(ObjectError::refused("GET in there: no")));
        assert_eq!(made.into_inner(), 1);
    }

    #[tokio::test]
    async fn the_deadline_ends_attempts_and_waits() {
        let begun = Instant::now();
        let endless = std::future::pending::<Result<(), Failure>>;
        let result = retries(4, 50).run("PUT", "there", endless).await;
        assert!(matches!(result, Err(ObjectError::Unavailable { .. })), "{result:?}");
        assert!(begun.elapsed() >= Duration::from_millis(50));
        let busy = || async { Err::<(), _>(Failure::Retry { reason: "busy".to_owned(), after: None }) };
        let result = retries(u32::MAX, 50).run("PUT", "there", busy).await;
        assert!(matches!(result, Err(ObjectError::Unavailable { .. })), "{result:?}");
    }
}
