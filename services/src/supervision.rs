//! [`Supervisor`]: the essential tasks, without which the gateway must not go on.
//!
//! A task or a thread that panics is gone, and nobody hears of it: blocks are not fetched or not written any more, changes are not
//! logged, and the process answers on as if nothing were. So each such part is named here. When one ends before it should,
//! readiness says which (`/readyz` is 503 from then on), an ERROR line does too, and the process ends with a code that is not
//! zero, for its supervisor (systemd, Kubernetes) to start it again: a start is what mends state that a panic left half changed.
//!
//! Non-goals: parts that are started again by themselves, or whose end costs one request and is answered with an error.

use crate::health::Health;
use futures::FutureExt as _;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// An essential task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} ended because of a defect, so the gateway ends too; start it again, and report the panic that the log shows"
)]
pub struct EssentialTaskEnded(pub &'static str);

/// Watches over the parts. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Supervisor {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    health: Arc<Health>,
    /// That a part has ended.
    failed: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ended: Option<EssentialTaskEnded>,
    /// Parts end because they are told to.
    is_over: bool,
    /// Who waits for the ends of parts that run elsewhere.
    watches: Vec<AbortHandle>,
}

impl Supervisor {
    /// One that tells `health` what has ended.
    pub fn new(health: Arc<Health>) -> Self {
        Self { inner: Arc::new(Inner { health, ..Inner::default() }) }
    }

    /// Runs a task that must not end by itself: a return counts as a panic does. Aborting it is no failure.
    pub fn spawn(&self, part: &'static str, task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
        let supervisor = self.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            // It is not asked anything after a panic.
            _ = AssertUnwindSafe(task).catch_unwind().await;
            supervisor.ended(part);
        }))
    }

    /// Watches a part that runs elsewhere, a thread perhaps: `end` waits until it has ended.
    pub fn watch(&self, part: &'static str, end: impl Future<Output = ()> + Send + 'static) {
        let supervisor = self.clone();
        let watch = tokio::spawn(async move {
            end.await;
            supervisor.ended(part);
        });
        self.state().watches.push(watch.abort_handle());
    }

    /// Waits until a part has ended.
    pub async fn failed(&self) -> EssentialTaskEnded {
        loop {
            self.inner.failed.cancelled().await;
            if let Some(ended) = self.state().ended {
                return ended;
            }
        }
    }

    /// From now on parts end because they are told to.
    pub fn expect_end(&self) {
        let mut state = self.state();
        state.is_over = true;
        state.watches.drain(..).for_each(|watch| watch.abort());
    }

    fn ended(&self, part: &'static str) {
        let mut state = self.state();
        if state.is_over || state.ended.is_some() {
            return;
        }
        state.ended = Some(EssentialTaskEnded(part));
        drop(state);
        tracing::error!(part, "an essential task ended because of a defect; the process ends, to be started again");
        self.inner.health.fail(part);
        self.inner.failed.cancel();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Stage;
    use http::HeaderMap;
    use tokio::sync::oneshot;

    fn serving() -> (Supervisor, Arc<Health>) {
        let health = Arc::<Health>::default();
        health.enter(Stage::Serving);
        (Supervisor::new(Arc::clone(&health)), health)
    }

    #[tokio::test]
    async fn a_part_that_panics_is_named_and_the_gateway_is_not_ready_any_more() {
        let (supervisor, health) = serving();
        let _works = supervisor.spawn("the part that works", std::future::pending());
        assert_eq!(health.ready(&HeaderMap::new()).status(), 200);
        let _panics = supervisor.spawn("the part that panics", async { panic!("a defect") });
        assert_eq!(supervisor.failed().await, EssentialTaskEnded("the part that panics"));
        let ready = health.ready(&HeaderMap::new());
        assert_eq!((ready.status().as_u16(), ready.body().as_str()), (503, "failed: the part that panics has ended\n"));
        // The first is what the others ended for, maybe.
        let _ends = supervisor.spawn("another part", std::future::ready(())).await;
        assert_eq!(supervisor.failed().await, EssentialTaskEnded("the part that panics"));
    }

    #[tokio::test]
    async fn a_part_that_returns_or_runs_elsewhere_is_missed_as_well() {
        let (supervisor, health) = serving();
        let _returns = supervisor.spawn("the part that returns", std::future::ready(()));
        assert_eq!(supervisor.failed().await, EssentialTaskEnded("the part that returns"));
        assert_eq!(health.ready(&HeaderMap::new()).status(), 503);

        let (supervisor, health) = serving();
        let (alive, ended) = oneshot::channel::<()>();
        supervisor.watch("a thread", async move { _ = ended.await });
        let thread = std::thread::spawn(move || {
            let _alive = alive;
            panic!("a defect");
        });
        assert!(thread.join().is_err());
        assert_eq!(supervisor.failed().await, EssentialTaskEnded("a thread"));
        assert_eq!(health.ready(&HeaderMap::new()).status(), 503);
    }

    #[tokio::test]
    async fn what_is_told_to_end_has_not_failed() {
        let (supervisor, health) = serving();
        drop(supervisor.spawn("an aborted part", std::future::pending()));
        let (alive, ended) = oneshot::channel::<()>();
        supervisor.watch("a part that is told to end", async move { _ = ended.await });
        let (told, waits) = oneshot::channel::<()>();
        let part = supervisor.spawn("another", async move { _ = waits.await });
        supervisor.expect_end();
        drop(alive);
        drop(told);
        _ = part.await;
        assert!(supervisor.failed().now_or_never().is_none());
        assert_eq!(health.ready(&HeaderMap::new()).status(), 200);
    }
}
