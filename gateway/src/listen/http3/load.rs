//! [`ClientLoad`]: what the client of one connection costs beside its requests, and what it makes the server hold.
//!
//! `h3` reads a frame to its end before it interprets it, whatever length the frame has, and stores each stream
//! whose request never became complete. Both are bounded here, below `h3`: a stream that sends more than a request's head
//! is reset, and a client that sends too much of what is no request is disconnected.

use crate::listen::unit_budget::UnitBudget;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// The bytes of a stream without a request (control, QPACK, unknown) that take one unit.
const UNIT_BYTES: usize = 16;
/// The maximum number of streams over a connection whose request never becomes complete. `h3` stores each of them.
const INCOMPLETE_MAX: usize = 1024;
/// What a piece of a head takes in memory, and in the time to find the end of the frame, beside its bytes.
const PIECE_BYTES: usize = 64;

/// The load of one connection.
#[derive(Debug)]
pub(super) struct ClientLoad {
    /// Units are requests that are cancelled or incomplete, streams that carry no request, and each [`UNIT_BYTES`] on
    /// these.
    budget: Mutex<UnitBudget>,
    /// The number of streams whose request never became complete.
    incomplete: AtomicUsize,
    /// The bytes of heads that are not complete.
    head_bytes: AtomicUsize,
    /// The maximum length of one head, in bytes.
    head_bytes_max: usize,
}

impl ClientLoad {
    /// The load of a new connection.
    pub fn new(head_bytes_max: usize) -> Arc<Self> {
        let budget = UnitBudget::new(Instant::now());
        let (incomplete, head_bytes) = (AtomicUsize::default(), AtomicUsize::default());
        Arc::new(Self { budget: Mutex::new(budget), incomplete, head_bytes, head_bytes_max })
    }

    /// Counts a request that was cancelled before its response was complete; returns whether the client may go on.
    pub fn cancelled(&self) -> bool {
        self.take(1)
    }

    /// Counts a stream whose request never became complete; returns whether the client may go on.
    pub fn incomplete(&self) -> bool {
        self.take(1) && self.incomplete.fetch_add(1, Ordering::Relaxed) < INCOMPLETE_MAX
    }

    /// Counts a stream without a request; returns whether the client may go on.
    pub fn stream_without_request(&self) -> bool {
        self.take(1)
    }

    /// Counts bytes on such a stream; returns whether the client may go on.
    pub fn bytes_without_request(&self, bytes: usize) -> bool {
        self.take(bytes.div_ceil(UNIT_BYTES) as u64)
    }

    fn take(&self, units: u64) -> bool {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        budget.earn(Instant::now());
        budget.spend(units)
    }
}

/// One request stream: the bytes of its head, and how it ends.
#[derive(Debug)]
pub(super) struct StreamControl {
    load: Arc<ClientLoad>,
    /// The bytes of the head so far, while it is not complete.
    head_bytes: AtomicUsize,
    /// Whether the head is complete.
    has_head: AtomicBool,
    /// The code with which the stream is reset when it is dropped.
    reset: AtomicU64,
}

impl StreamControl {
    /// A stream that is reset with this code unless another one is set.
    pub fn new(load: &Arc<ClientLoad>, reset: u64) -> Arc<Self> {
        let (head_bytes, has_head, reset) = (AtomicUsize::default(), AtomicBool::default(), AtomicU64::new(reset));
        Arc::new(Self { load: Arc::clone(load), head_bytes, has_head, reset })
    }

    /// Counts bytes of the head; `false` if it is too long, or the heads of all streams together.
    ///
    /// A head of up to twice the maximum is read, because it may be shorter in another encoding, and since such a
    /// request can be answered with 431.
    pub fn take_head_bytes(&self, bytes: usize) -> bool {
        let bytes = bytes + PIECE_BYTES;
        let own = self.head_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = self.load.head_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let max = self.load.head_bytes_max;
        own <= max.saturating_mul(2) && all <= max.saturating_mul(4)
    }

    /// Records that the head is complete: its memory is that of the request.
    pub fn head_is_complete(&self) {
        self.has_head.store(true, Ordering::Relaxed);
        let bytes = self.head_bytes.swap(0, Ordering::Relaxed);
        self.load.head_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether the head is complete.
    pub fn has_head(&self) -> bool {
        self.has_head.load(Ordering::Relaxed)
    }

    /// Sets the code with which the stream is reset when it is dropped.
    pub fn reset_with(&self, code: u64) {
        self.reset.store(code, Ordering::Relaxed);
    }

    /// The code with which the stream is reset when it is dropped.
    pub fn reset_code(&self) -> u64 {
        self.reset.load(Ordering::Relaxed)
    }
}

impl Drop for StreamControl {
    fn drop(&mut self) {
        self.head_is_complete();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_bounded_alone_and_together() {
        const MAX: usize = 10_000;
        let load = ClientLoad::new(MAX);
        let stream = || StreamControl::new(&load, 0);
        let long = stream();
        assert!(long.take_head_bytes(2 * MAX - PIECE_BYTES) && !long.take_head_bytes(1));
        drop(long);
        assert_eq!(load.head_bytes.load(Ordering::Relaxed), 0);
        // Small pieces count as more than their bytes.
        let crumbs = stream();
        assert_eq!((0..MAX).take_while(|_| crumbs.take_head_bytes(1)).count(), 2 * MAX / (PIECE_BYTES + 1));
        drop(crumbs);
        let streams = [(); 5].map(|()| stream());
        let begun: Vec<bool> = streams.iter().map(|stream| stream.take_head_bytes(MAX - PIECE_BYTES)).collect();
        assert_eq!(begun, [true, true, true, true, false]);
        // A complete head leaves room for others.
        drop(streams);
        let complete = [(); 50].map(|()| stream());
        for stream in &complete {
            assert!(stream.take_head_bytes(MAX));
            stream.head_is_complete();
        }
        assert_eq!(load.head_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn incomplete_requests_are_bounded_over_the_connection() {
        let load = ClientLoad::new(1);
        load.incomplete.store(INCOMPLETE_MAX - 1, Ordering::Relaxed);
        assert!(load.incomplete() && !load.incomplete());
    }
}
