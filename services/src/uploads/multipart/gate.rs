//! [`Gate`]: holds the body back from the parser.
//!
//! Whenever the parser is asked for anything, it first takes all of the body that is there, into memory. A fast sender's upload would be
//! there in full, however small its parts are. So the parser is given a piece only after it has said that it can do nothing
//! without one, and what it takes without giving anything back is bounded.

use crate::uploads::UploadError;
use crate::uploads::body::Meter;
use bytes::Bytes;
use futures::future::poll_fn;
use futures::{Stream, StreamExt as _};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio_util::io::ReaderStream;

/// What is read of the body at a time, in bytes.
const READ_BYTES: usize = 32 * 1024;
/// The most of the body that the parser takes without giving anything back, in bytes: what comes before the first part, and the head
/// of a part.
const HEAD_BYTES_MAX: usize = 64 * 1024;

const SHUT: usize = 0;
const OPEN: usize = 1;
const PASSED: usize = 2;

/// Lets pieces through one by one.
#[derive(Debug, Default)]
pub struct Gate {
    state: AtomicUsize,
    /// The bytes that went through since the parser last gave something.
    bytes: AtomicUsize,
}

impl Gate {
    /// Drives the parser until it gives something, or has to wait for the sender.
    pub async fn drive<T>(&self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(given) = poll(cx) {
                    self.bytes.store(0, Ordering::Relaxed);
                    self.state.store(SHUT, Ordering::Relaxed);
                    return Poll::Ready(given);
                }
                // With a piece more it may have enough: it is asked again before it gets another one.
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

/// A body behind a gate.
pub struct Gated {
    inner: ReaderStream<Meter>,
    gate: Arc<Gate>,
}

impl Gated {
    /// A body whose pieces go through `gate`.
    pub fn new(body: Meter, gate: &Arc<Gate>) -> Self {
        Self { inner: ReaderStream::with_capacity(body, READ_BYTES), gate: Arc::clone(gate) }
    }
}

impl Stream for Gated {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.gate.state.load(Ordering::Relaxed) != OPEN {
            return Poll::Pending;
        }
        let piece = std::task::ready!(self.inner.poll_next_unpin(cx));
        self.gate.state.store(PASSED, Ordering::Relaxed);
        let more = piece.as_ref().and_then(|piece| piece.as_ref().ok()).map_or(0, Bytes::len);
        let before = self.gate.bytes.fetch_add(more, Ordering::Relaxed);
        if before > HEAD_BYTES_MAX {
            let words = format!("a part of the form begins with more than {HEAD_BYTES_MAX} bytes of headers");
            return Poll::Ready(Some(Err(io::Error::other(UploadError::Invalid(words)))));
        }
        Poll::Ready(piece)
    }
}
