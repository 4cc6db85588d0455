//! [`SupervisedTasks`]: reports panics in detached tasks.
//!
//! The panic of a task that is not awaited goes unnoticed: its work stops while the process goes on. So such tasks run
//! within [`SupervisedTasks::guard`], and the supervisor waits for [`SupervisedTasks::failed`].

use std::sync::Arc;
use tokio::sync::watch;

/// Whether one of a group of tasks panicked. Clones share the group.
#[derive(Debug, Clone, Default)]
pub struct SupervisedTasks {
    failed: Arc<watch::Sender<bool>>,
}

impl SupervisedTasks {
    /// Runs a task of the group. Completion and abortion are no failures.
    pub async fn guard(self, task: impl Future<Output = ()>) {
        let _guard = PanicGuard(self);
        task.await;
    }

    /// Waits until a task of the group has panicked.
    pub fn failed(&self) -> impl Future<Output = ()> + Send + use<> {
        let failed = Arc::clone(&self.failed);
        async move {
            // This future holds the sender, so the channel cannot close.
            let _ = failed.subscribe().wait_for(|failed| *failed).await;
        }
    }
}

struct PanicGuard(SupervisedTasks);

impl Drop for PanicGuard {
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
        let essential = SupervisedTasks::default();
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
