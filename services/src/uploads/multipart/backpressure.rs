//! [`Backpressure`]: limits how much of the body the parser reads ahead.
//!
//! Whenever it is polled, the parser first reads all of the body that is available into memory, so a fast client's
//! upload would be buffered completely. So the parser gets a piece only after it was pending without one, and what it
//! reads without returning anything is limited.

use crate::uploads::UploadError;
use crate::uploads::body::Meter;
use crate::uploads::limits::HEAD_BYTES_MAX;
use bytes::Bytes;
use futures::future::poll_fn;
use futures::{Stream, StreamExt as _};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio_util::io::ReaderStream;

/// The size of a piece of the body, in bytes.
const READ_BYTES: usize = 32 * 1024;

const SHUT: usize = 0;
const OPEN: usize = 1;
const PASSED: usize = 2;

/// Passes pieces one by one.
#[derive(Debug, Default)]
pub struct Backpressure {
    state: AtomicUsize,
    /// The number of bytes that the parser has read since it last returned something.
    bytes: AtomicUsize,
}

impl Backpressure {
    /// Polls the parser until it returns something, or has to wait for the client.
    pub async fn drive<T>(&self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(given) = poll(cx) {
                    self.bytes.store(0, Ordering::Relaxed);
                    self.state.store(SHUT, Ordering::Relaxed);
                    return Poll::Ready(given);
                }
                // With one more piece it may be able to return something, so it is polled again before it gets another.
                let state = match self.state.load(Ordering::Relaxed) {
                    SHUT => OPEN,
                    PASSED => SHUT,
                    _ => return Poll::Pending,
                };
                self.state.store(state, Ordering::Relaxed);
            }
        })
        .await
    }
}

/// A body that is read with backpressure.
pub struct ThrottledBody {
    inner: ReaderStream<Meter>,
    backpressure: Arc<Backpressure>,
}

impl ThrottledBody {
    /// A body that is read under the control of `backpressure`.
    pub fn new(body: Meter, backpressure: &Arc<Backpressure>) -> Self {
        Self { inner: ReaderStream::with_capacity(body, READ_BYTES), backpressure: Arc::clone(backpressure) }
    }
}

impl Stream for ThrottledBody {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.backpressure.state.load(Ordering::Relaxed) != OPEN {
            return Poll::Pending;
        }
        let piece = std::task::ready!(self.inner.poll_next_unpin(cx));
        self.backpressure.state.store(PASSED, Ordering::Relaxed);
        let more = piece.as_ref().and_then(|piece| piece.as_ref().ok()).map_or(0, Bytes::len);
        let before = self.backpressure.bytes.fetch_add(more, Ordering::Relaxed);
        if before > HEAD_BYTES_MAX {
            let words = format!("the headers of a part of the form exceed {HEAD_BYTES_MAX} bytes");
            return Poll::Ready(Some(Err(io::Error::other(UploadError::Invalid(words)))));
        }
        Poll::Ready(piece)
    }
}
