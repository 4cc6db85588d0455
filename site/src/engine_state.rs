//! [`EngineState`]: whether the database or the storage of a site can be used, as far as this gateway knows.
//!
//! Goals: what a gateway does every few seconds anyway tells the operator what is wrong, and for how long; an engine that
//! does not answer at all counts as one that has failed.
//!
//! Non-goals: deciding anything by it. Each request finds out for itself.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A check that takes longer counts as failed.
const SLOW: Duration = Duration::from_secs(15);

/// Why an engine cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFailure {
    /// How long it has lasted.
    pub lasting: Duration,
    /// The error.
    pub reason: Arc<str>,
}

/// The state of an engine. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct EngineState(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// When the check that is under way began.
    checking_since: Option<Instant>,
    /// Since when checks have failed, and the error of the last one.
    failure: Option<(Instant, Arc<str>)>,
}

impl EngineState {
    /// Runs a check, and keeps its result. One at a time.
    ///
    /// # Errors
    /// That of the check.
    pub(crate) async fn observe<T, E: fmt::Display>(&self, check: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.change(|state| state.checking_since = Some(Instant::now()));
        let result = check.await;
        let failed = result.as_ref().err().map(|error| Arc::from(error.to_string()));
        self.change(|state| state.end(failed));
        result
    }

    /// Why the engine cannot be used; `None` if it can, or if that is not known yet.
    pub fn failure(&self) -> Option<EngineFailure> {
        self.failure_at(Instant::now())
    }

    fn failure_at(&self, now: Instant) -> Option<EngineFailure> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lasting = |since: Instant| now.saturating_duration_since(since);
        if let Some((since, reason)) = &state.failure {
            return Some(EngineFailure { lasting: lasting(*since), reason: Arc::clone(reason) });
        }
        let checking = lasting(state.checking_since?);
        (checking >= SLOW).then(|| EngineFailure { lasting: checking, reason: "it does not answer".into() })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl State {
    fn end(&mut self, failed: Option<Arc<str>>) {
        let began = self.checking_since.take();
        let since = self.failure.take().map(|(since, _)| since).or(began);
        self.failure = failed.map(|reason| (since.unwrap_or_else(Instant::now), reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failures_last_until_a_check_succeeds() {
        let engine = EngineState::default();
        let failure = |after| engine.failure_at(Instant::now() + after);
        assert_eq!(failure(SLOW), None, "it was never checked");
        engine.observe(async { Ok::<_, &str>(()) }).await.expect("succeeds");
        assert_eq!(failure(SLOW), None);
        engine.observe(async { Err::<(), _>("refused") }).await.expect_err("fails");
        engine.observe(async { Err::<(), _>("timed out") }).await.expect_err("fails");
        let lasts = failure(Duration::from_secs(60)).expect("it has failed");
        assert_eq!(&*lasts.reason, "timed out");
        assert!(lasts.lasting >= Duration::from_secs(60), "since the first of them: {lasts:?}");
        engine.observe(async { Ok::<_, &str>(()) }).await.expect("succeeds");
        assert_eq!(failure(SLOW), None);
    }

    #[tokio::test]
    async fn a_check_that_does_not_end_is_a_failure() {
        let engine = EngineState::default();
        let mut checking = std::pin::pin!(engine.observe(std::future::pending::<Result<(), &str>>()));
        assert!(futures::poll!(checking.as_mut()).is_pending());
        assert_eq!(engine.failure_at(Instant::now() + SLOW / 2), None);
        let failure = engine.failure_at(Instant::now() + SLOW).expect("it is slow");
        assert_eq!(&*failure.reason, "it does not answer");
    }
}
