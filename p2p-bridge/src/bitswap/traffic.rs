//! [`Traffic`]: what all connections with one peer share: when we last asked it, and when it last sent something.
//!
//! A peer may be asked on one connection and answer on another, as Go peers do, so whether its large messages are to be
//! expected is a question about the peer. And a large message over a slow link takes long to be complete: that its bytes
//! are coming has to be known before, or the peer would be taken for silent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of one peer's Bitswap messages, since it was connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BitswapBytes {
    /// From it.
    pub received: u64,
    /// To it.
    pub sent: u64,
}

/// Times of one peer's traffic. Shared by its connections and the behaviour.
#[derive(Debug)]
pub struct Traffic {
    born: Instant,
    /// Milliseconds after `born`, plus one; zero for never.
    asked_ms: AtomicU64,
    received_ms: AtomicU64,
    stalled_ms: AtomicU64,
    /// Bytes of messages.
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Default for Traffic {
    fn default() -> Self {
        let [asked_ms, received_ms, stalled_ms, received_bytes, sent_bytes] = [0; 5].map(AtomicU64::new);
        Self { born: Instant::now(), asked_ms, received_ms, stalled_ms, received_bytes, sent_bytes }
    }
}

impl Traffic {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    /// We asked the peer for something.
    pub fn note_question(&self) {
        self.asked_ms.store(self.now_ms() + 1, Ordering::Relaxed);
    }

    /// Bytes of a message came.
    pub fn note_bytes(&self) {
        self.received_ms.store(self.now_ms() + 1, Ordering::Relaxed);
    }

    /// Counts bytes of a message that came.
    pub fn count_received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes of a message that left.
    pub fn count_sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// What came and left.
    pub fn bytes(&self) -> BitswapBytes {
        BitswapBytes {
            received: self.received_bytes.load(Ordering::Relaxed),
            sent: self.sent_bytes.load(Ordering::Relaxed),
        }
    }

    /// The peer stopped reading or writing in the middle of a message. Whether it had not done so for that long: all streams
    /// stop together when a link does.
    pub fn note_stall(&self, period: Duration) -> bool {
        let now = self.now_ms() + 1;
        let within = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        let is_news = |last: u64| last == 0 || now.saturating_sub(last) >= within;
        self.stalled_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| is_news(last).then_some(now)).is_ok()
    }

    /// Whether we asked it for something not longer ago than that.
    pub fn asked_within(&self, period: Duration) -> bool {
        let asked = self.asked_ms.load(Ordering::Relaxed);
        let allowed = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        asked != 0 && self.now_ms().saturating_sub(asked) < allowed
    }

    /// When bytes last came, to the millisecond.
    pub fn received_at(&self) -> Option<Instant> {
        let after = self.received_ms.load(Ordering::Relaxed).checked_sub(1)?;
        self.born.checked_add(Duration::from_millis(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_bytes_are_remembered() {
        let traffic = Traffic::default();
        assert!(!traffic.asked_within(Duration::MAX) && traffic.received_at().is_none());
        traffic.note_question();
        traffic.note_bytes();
        assert!(traffic.asked_within(Duration::from_secs(60)) && !traffic.asked_within(Duration::ZERO));
        assert!(traffic.received_at().is_some_and(|at| at <= Instant::now()));
    }

    #[test]
    fn stalls_in_a_row_count_once() {
        let traffic = Traffic::default();
        let period = Duration::from_secs(60);
        assert!(traffic.note_stall(period) && !traffic.note_stall(period) && !traffic.note_stall(period));
        assert!(traffic.note_stall(Duration::ZERO), "it was long ago");
        assert!(!traffic.note_stall(period), "and counts from then on");
    }
}
