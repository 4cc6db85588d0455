//! [`EssentialTasks`]: a sign of life of tasks that come and go, none of which may panic unnoticed.
//!
//! A task that nobody waits for takes its panic with it: what it did is done no more, and everything else goes on as if it
//! were. Each such task runs within [`EssentialTasks::guard`], and whoever keeps the process in order waits for
//! [`EssentialTasks::failed`].

use std::sync::Arc;
use tokio::sync::watch;

/// Whether one of a group of tasks panicked. Clones stand for the same group.
#[derive(Debug, Clone, Default)]
pub struct EssentialTasks {
    failed: Arc<watch::Sender<bool>>,
}

impl EssentialTasks {
    /// Runs a task of the group. That it ends, or is aborted, is no failure.
    pub async fn guard(self, task: impl Future<Output = ()>) {
        let _sign = Sign(self);
        task.await;
    }

    /// Waits until a task of the group has panicked.
    pub fn failed(&self) -> impl Future<Output = ()> + Send + use<> {
        let failed = Arc::clone(&self.failed);
        async move {
            // The sender is held here, so that this cannot end otherwise.
            let _ = failed.subscribe().wait_for(|failed| *failed).await;
        }
    }
}

struct Sign(EssentialTasks);

impl Drop for Sign {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.send_replace(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn only_a_panic_is_a_failure() {
        let essential = EssentialTasks::default();
        let spawn = |task: futures::future::BoxFuture<'static, ()>| tokio::spawn(essential.clone().guard(task));
        spawn(futures::future::ready(()).boxed()).await.expect("it ends");
        let endless = spawn(futures::future::pending().boxed());
        tokio::task::yield_now().await;
        endless.abort();
        assert!(endless.await.expect_err("it was aborted").is_cancelled());
        assert!(essential.failed().now_or_never().is_none());
        assert!(spawn(async { panic!("a defect") }.boxed()).await.is_err());
        essential.failed().await;
    }
}
