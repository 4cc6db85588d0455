//! [`Piece`]: data of a response that was passed to `h2` and is not yet released; [`StreamProgress`] and
//! [`ConnectionProgress`]: how much of it is sent.
//!
//! Goals: a stream knows what `h2` holds of its response, to the byte, and when that is sent or discarded; it knows how
//! much the client takes of it, beside what the connection as a whole takes.
//!
//! `h2` tells neither. It keeps what it was handed in a queue, where it stays without a limit of time if the client
//! shrinks the stream's window (RFC 9113, section 6.9.2). But it takes any buffer for data: it advances the buffer by
//! the bytes that were written, and drops it when all of them were, or when the stream is reset.

use bytes::{Buf, Bytes};
use futures::task::AtomicWaker;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// The parts of a byte in which fair shares are counted, so that the shares of many streams are not rounded to zero.
const BYTE_PARTS: u64 = 256;

/// What the streams of a connection have sent.
///
/// All of them are polled by the task of the connection, so the order of accesses does not matter.
#[derive(Debug, Default)]
pub(in crate::listen) struct ConnectionProgress {
    /// The number of bytes of data.
    bytes: AtomicU64,
    /// What a stream would have sent if all that were sending had taken turns, in parts of a byte.
    fair_share: AtomicU64,
    /// The number of streams that are sending a body.
    sending: AtomicUsize,
}

/// What one stream has sent.
#[derive(Debug)]
pub(in crate::listen) struct StreamProgress {
    connection: Arc<ConnectionProgress>,
    bytes: AtomicU64,
    /// The number of bytes of pieces that exist. An empty piece, which ends a stream, counts as a byte.
    held: AtomicUsize,
    /// Woken when a piece is dropped.
    released: AtomicWaker,
}

/// The state of a stream's progress at some time.
#[derive(Debug, Clone, Copy)]
pub(in crate::listen) struct Mark {
    bytes: u64,
    of_connection: u64,
    fair_share: u64,
}

/// What was sent after a [`Mark`], in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::listen) struct Sent {
    /// By the stream.
    pub bytes: u64,
    /// By all streams of the connection.
    pub of_connection: u64,
    /// By the stream, if the streams that were sending had taken turns.
    pub fair_share: u64,
}

impl StreamProgress {
    /// A stream that begins to send a body.
    pub fn begin(connection: &Arc<ConnectionProgress>) -> Arc<Self> {
        connection.sending.fetch_add(1, Ordering::Relaxed);
        let (connection, held, released) = (Arc::clone(connection), AtomicUsize::default(), AtomicWaker::new());
        Arc::new(Self { connection, bytes: AtomicU64::default(), held, released })
    }

    /// The current state.
    pub fn mark(&self) -> Mark {
        Mark {
            bytes: self.bytes.load(Ordering::Relaxed),
            of_connection: self.connection.bytes.load(Ordering::Relaxed),
            fair_share: self.connection.fair_share.load(Ordering::Relaxed),
        }
    }

    /// What was sent since `mark`.
    pub fn since(&self, mark: &Mark) -> Sent {
        let now = self.mark();
        Sent {
            bytes: now.bytes - mark.bytes,
            of_connection: now.of_connection - mark.of_connection,
            fair_share: (now.fair_share - mark.fair_share) / BYTE_PARTS,
        }
    }

    /// Whether all of the stream's pieces are sent or discarded.
    pub fn holds_nothing(&self) -> bool {
        self.held.load(Ordering::Relaxed) == 0
    }

    /// Ready when at most `bytes` of the stream's pieces are not sent.
    pub fn poll_held_at_most(&self, bytes: usize, cx: &Context<'_>) -> Poll<()> {
        let is_ready = || self.held.load(Ordering::Relaxed) <= bytes;
        if is_ready() {
            return Poll::Ready(());
        }
        self.released.register(cx.waker());
        if is_ready() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn record(&self, bytes: usize) {
        let (bytes, connection) = (bytes as u64, &self.connection);
        let streams = connection.sending.load(Ordering::Relaxed).max(1) as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        connection.bytes.fetch_add(bytes, Ordering::Relaxed);
        connection.fair_share.fetch_add(bytes * BYTE_PARTS / streams, Ordering::Relaxed);
    }
}

impl Drop for StreamProgress {
    fn drop(&mut self) {
        self.connection.sending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A piece of a stream's data.
#[derive(Debug)]
pub(in crate::listen) struct Piece {
    bytes: Bytes,
    /// What it counts.
    held: usize,
    stream: Arc<StreamProgress>,
}

impl Piece {
    /// A piece that counts until it is dropped.
    pub fn new(bytes: Bytes, stream: &Arc<StreamProgress>) -> Self {
        let held = bytes.len().max(1);
        stream.held.fetch_add(held, Ordering::Relaxed);
        Self { bytes, held, stream: Arc::clone(stream) }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.stream.record(count);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // The memory is free before the stream is told so.
        self.bytes = Bytes::new();
        self.stream.held.fetch_sub(self.held, Ordering::Relaxed);
        self.stream.released.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use std::future::poll_fn;

    fn streams<const N: usize>() -> [Arc<StreamProgress>; N] {
        let connection = Arc::default();
        std::array::from_fn(|_| StreamProgress::begin(&connection))
    }

    #[test]
    fn a_stream_knows_what_it_has_sent_beside_the_others() {
        let [one, other] = streams();
        let mut piece = Piece::new(Bytes::from_static(&[7; 1000]), &one);
        let begin = one.mark();
        piece.advance(600);
        Piece::new(Bytes::from_static(&[7; 100]), &other).advance(100);
        let sent = |bytes, of_connection, fair_share| Sent { bytes, of_connection, fair_share };
        assert_eq!(one.since(&begin), sent(600, 700, 350));
        assert_eq!(other.since(&begin).fair_share, 350);
        drop(other);
        let alone = one.mark();
        piece.advance(400);
        assert_eq!(one.since(&alone), sent(400, 400, 400));
        assert_eq!(one.since(&begin), sent(1000, 1100, 750));
    }

    #[test]
    fn many_streams_have_shares_of_few_bytes() {
        let all: [Arc<StreamProgress>; 100] = streams();
        let begin = all[0].mark();
        for stream in all.iter().cycle().take(1000) {
            Piece::new(Bytes::from_static(&[7]), stream).advance(1);
        }
        let share = all[0].since(&begin).fair_share;
        assert!((7..=10).contains(&share), "{share}");
    }

    #[test]
    fn a_piece_counts_until_it_is_dropped() {
        let [stream] = streams();
        let held_at_most = |bytes| poll_fn(|cx| stream.poll_held_at_most(bytes, cx)).now_or_never().is_some();
        let (mut first, second) =
            (Piece::new(Bytes::from_static(b"hello"), &stream), Piece::new(Bytes::from_static(b"more"), &stream));
        first.advance(5);
        assert!(held_at_most(9) && !held_at_most(8), "what was written counts as long as it is in memory");
        drop(first);
        assert!(held_at_most(4) && !held_at_most(3));
        let mut waiting = Box::pin(poll_fn(|cx| stream.poll_held_at_most(0, cx)));
        assert!(waiting.as_mut().now_or_never().is_none());
        let end = Piece::new(Bytes::new(), &stream);
        // Discarded before it was written.
        drop(second);
        assert!(waiting.as_mut().now_or_never().is_none(), "the end of the stream is not sent");
        drop(end);
        assert!(waiting.now_or_never().is_some());
        assert_eq!(stream.mark().bytes, 5);
    }
}
