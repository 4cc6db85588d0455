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
    /// request anew.
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
            if number == self.attempts || Instant::now() + wait >= deadline {
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
    // Without randomness the waits are those of everybody, and nothing worse.
    let random = getrandom::u32().unwrap_or(u32::MAX);
    full.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn retries(attempts: u32, deadline: u64) -> Retries {
        let (backoff, backoff_max) = (Duration::from_millis(100), Duration::from_secs(2));
        Retries { attempts, backoff, backoff_max, deadline: Duration::from_secs(deadline) }
    }

    fn again(after: Option<Duration>) -> Failure {
        Failure::Retry { reason: "busy".to_owned(), after }
    }

    #[test]
    fn waits_double_up_to_a_limit() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(1));
        for (number, full) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (40, 1_000)] {
            let wait = wait(first, longest, number);
            assert!(
                wait <= Duration::from_millis(full) && wait >= Duration::from_millis(full / 2),
                "{number}: {wait:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_end_with_success_refusal_number_or_deadline() {
        let refusal = ObjectError::refused("no");
        // Fails that often before it succeeds; the server's wait; the attempts; the deadline; what is expected.
        let table = [
            (0, None, 4, 20, Ok(1)),
            (3, None, 4, 20, Ok(4)),
            (4, None, 4, 20, Err(4)),
            (1, Some(5), 4, 20, Ok(2)),
            (1, Some(30), 4, 20, Err(1)),
            (9, None, 100, 2, Err(5)),
        ];
        for (failures, after, attempts, deadline, expected) in table {
            let made = AtomicU32::new(0);
            let attempt = || async {
                let failed = made.fetch_add(1, Ordering::Relaxed) < failures;
                if failed { Err(again(after.map(Duration::from_secs))) } else { Ok(()) }
            };
            let begun = Instant::now();
            let result = retries(attempts, deadline).run("GET", "there", attempt).await;
            let made = made.load(Ordering::Relaxed);
            match (result, expected) {
                (Ok(()), Ok(number)) => assert_eq!(made, number),
                // Waits are random.
                (Err(ObjectError::Unavailable { reason }), Err(number)) => {
                    assert!(made.abs_diff(number) <= 1 && reason.contains("busy"), "{made} {reason}");
                }
                (result, _) => panic!("{failures} {attempts}: {result:?}"),
            }
            assert!(begun.elapsed() <= Duration::from_secs(deadline));
        }
        let result = retries(4, 20).run("GET", "there", || async { Err::<(), _>(Failure::Final(refusal.clone())) });
        assert_eq!(result.await, Err(ObjectError::refused("GET in there: no")));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_without_an_end_ends_at_the_deadline() {
        let begun = Instant::now();
        let result = retries(4, 20).run("PUT", "there", std::future::pending::<Result<(), Failure>>).await;
        assert!(matches!(result, Err(ObjectError::Unavailable { .. })), "{result:?}");
        assert_eq!(begun.elapsed().as_secs(), 20);
    }
}
