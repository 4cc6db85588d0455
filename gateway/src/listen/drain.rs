//! [`Drain`]: a graceful drain, which lets open requests finish.
//!
//! Goal: no request fails because of a drain. A connection that is accepted is answered; each answer says that the
//! connection ends (`Connection: close`, GOAWAY); a connection without a request stays open for a moment
//! ([`IDLE_GRACE`], [`FIRST_REQUEST_GRACE`]), since a request may be on its way. Then the server sends no more, and
//! reads until the client has closed the connection ([`LINGER`]): a request that arrives meanwhile is not answered with
//! a reset, so the client can tell that the server has not seen it, and sends it again on another connection (RFC 9112,
//! section 9.3.1).
//!
//! Connections that are not accepted wait for the next process if it inherits the socket, and are accepted otherwise
//! ([`crate::listen::socket::Listener::close`]).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// How long a connection stays open in which no request arrives.
pub(super) const IDLE_GRACE: Duration = Duration::from_secs(1);
/// How long a new connection waits for its first request, also if packets are lost: not all clients send a request again
/// that was the first on its connection. What precedes the request, a TLS handshake or a header of the PROXY protocol,
/// has the same time.
pub(super) const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(3);
/// How long a closed connection is read from until its client closes it as well.
pub(super) const LINGER: Duration = Duration::from_secs(1);

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

    /// Whether it was sent.
    pub fn is_sent(&self) -> bool {
        self.sent.load(Ordering::SeqCst)
    }

    /// Waits for the signal. Only the first poll registers a waker, so the same task must poll this to the end.
    pub async fn wait(&self) {
        let mut cancelled = pin!(self.token.cancelled());
        let mut waits = false;
        std::future::poll_fn(|cx| {
            if waits && !self.is_sent() {
                return Poll::Pending;
            }
            waits = true;
            cancelled.as_mut().poll(cx)
        })
        .await;
    }

    /// Waits for what precedes the first request of a connection; `None` if the drain does not wait for it any longer.
    pub async fn or_first_request_grace<F: Future>(&self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = async { self.wait().await; tokio::time::sleep(FIRST_REQUEST_GRACE).await } => None,
        }
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

    /// Has the drain wait until this is dropped.
    pub(super) fn hold(&self) -> TaskTrackerToken {
        self.connections.token()
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
