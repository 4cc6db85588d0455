//! [`Drain`]: a graceful drain, which lets open requests finish.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The shutdown signal of all connections.
#[derive(Debug, Clone, Default)]
pub(super) struct ShutdownSignal {
    token: CancellationToken,
    /// A copy of the token's state: all connections share the token's lock, and each wake-up checks this.
    sent: Arc<AtomicBool>,
}

impl ShutdownSignal {
    fn send(&self) {
        self.sent.store(true, Ordering::SeqCst);
        self.token.cancel();
    }

    /// Waits for the signal. Only the first poll registers a waker, so the same task must poll this to the end.
    pub async fn wait(&self) {
        let mut cancelled = pin!(self.token.cancelled());
        let mut waits = false;
        std::future::poll_fn(|cx| {
            if waits && !self.sent.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            waits = true;
            cancelled.as_mut().poll(cx)
        })
        .await;
    }
}

/// Drains servers gracefully. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    stop: ShutdownSignal,
    connections: TaskTracker,
}

impl Drain {
    /// Stops accepting and waits for open requests; returns whether they finished within `timeout`.
    pub async fn finish(&self, timeout: Duration) -> bool {
        self.stop.send();
        self.connections.close();
        tokio::time::timeout(timeout, self.connections.wait()).await.is_ok()
    }

    /// The signal that the drain has begun.
    pub(super) fn signal(&self) -> ShutdownSignal {
        self.stop.clone()
    }

    /// Serves a connection in a task of its own, which the drain waits for.
    pub(super) fn spawn(&self, serving: impl Future<Output = ()> + Send + 'static) {
        self.connections.spawn(serving);
    }

    /// Waits for `future` until the drain begins.
    pub(super) async fn or_stop<F: Future>(&self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.stop.wait() => None,
            output = future => Some(output),
        }
    }

    /// The number of open connections.
    pub fn open(&self) -> usize {
        self.connections.len()
    }
}
