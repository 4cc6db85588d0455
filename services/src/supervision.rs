//! [`Supervisor`]: supervises the essential tasks of the gateway.
//!
//! A task or thread that panics ends silently: blocks are no longer fetched or written, changes no longer logged, and
//! the process goes on serving. So each essential task is named here. When one ends unexpectedly, an ERROR line and
//! `/readyz` (503 from then on) name it, and the process exits with a non-zero code, so that its supervisor (systemd,
//! Kubernetes) restarts it: a restart recovers state that a panic left inconsistent.
//!
//! Non-goals: tasks that are restarted, or whose failure only fails one request.

use crate::health::Health;
use futures::FutureExt as _;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// An essential task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} ended because of a defect, so the gateway stops; restart it, and report the panic in the log")]
pub struct EssentialTaskEnded(pub &'static str);

/// Supervises the essential tasks. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Supervisor {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    health: Arc<Health>,
    /// Cancelled when a task has ended.
    failed: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ended: Option<EssentialTaskEnded>,
    /// The gateway is stopping, and tasks end regularly.
    is_over: bool,
    /// The tasks that wait for the end of threads and other tasks.
    watches: Vec<AbortHandle>,
}

impl Supervisor {
    /// A supervisor that reports failures to `health`.
    pub fn new(health: Arc<Health>) -> Self {
        Self { inner: Arc::new(Inner { health, ..Inner::default() }) }
    }

    /// Runs a task that must not end by itself: a return counts as a panic does. Aborting it is no failure.
    pub fn spawn(&self, part: &'static str, task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
        let supervisor = self.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            // The task is not used after a panic.
            _ = AssertUnwindSafe(task).catch_unwind().await;
            supervisor.ended(part);
        }))
    }

    /// Supervises a task or thread that runs elsewhere: `end` completes when it has ended.
    pub fn watch(&self, part: &'static str, end: impl Future<Output = ()> + Send + 'static) {
        let supervisor = self.clone();
        let watch = tokio::spawn(async move {
            end.await;
            supervisor.ended(part);
        });
        self.state().watches.push(watch.abort_handle());
    }

    /// Waits until a task has failed.
    pub async fn failed(&self) -> EssentialTaskEnded {
        loop {
            self.inner.failed.cancelled().await;
            if let Some(ended) = self.state().ended {
                return ended;
            }
        }
    }

    /// Declares that the gateway is stopping: tasks that end from now on have not failed.
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
        tracing::error!(part, "an essential task ended because of a defect; the gateway stops and must be restarted");
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
    async fn a_task_that_panics_is_named_and_readiness_fails() {
        let (supervisor, health) = serving();
        let _works = supervisor.spawn("the part that works", std::future::pending());
        assert_eq!(health.ready(&HeaderMap::new()).status(), 200);
        let _panics = supervisor.spawn("the part that panics", async { panic!("a defect") });
        assert_eq!(supervisor.failed().await, EssentialTaskEnded("the part that panics"));
        let ready = health.ready(&HeaderMap::new());
        assert_eq!((ready.status().as_u16(), ready.body().as_str()), (503, "failed: the part that panics has ended\n"));
        // The first failure may be the cause of others.
        let _ends = supervisor.spawn("another part", std::future::ready(())).await;
        assert_eq!(supervisor.failed().await, EssentialTaskEnded("the part that panics"));
    }

    #[tokio::test]
    async fn a_task_that_returns_or_runs_elsewhere_is_reported() {
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
    async fn tasks_may_end_when_the_gateway_stops() {
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
