//! [`Traffic`]: state that all connections to a peer share: when it was last asked, and when it last sent something.
//!
//! A peer may be asked on one connection and respond on another, as Go peers do, so whether large messages are expected
//! is a property of the peer. A large message takes long over a slow link, so its progress must be known before it is
//! complete, or the peer would count as stalled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a peer's Bitswap messages since it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BitswapBytes {
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

/// Times of a peer's traffic. Shared by its connections and the behaviour.
#[derive(Debug)]
pub struct Traffic {
    born: Instant,
    /// Milliseconds since `born`, plus one; zero means never.
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

    /// Records a request to the peer.
    pub fn record_request(&self) {
        self.asked_ms.store(self.now_ms() + 1, Ordering::Relaxed);
    }

    /// Records that bytes of a message were received.
    pub fn note_bytes(&self) {
        self.received_ms.store(self.now_ms() + 1, Ordering::Relaxed);
    }

    /// Counts received bytes.
    pub fn count_received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts sent bytes.
    pub fn count_sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes received and sent.
    pub fn bytes(&self) -> BitswapBytes {
        BitswapBytes {
            received: self.received_bytes.load(Ordering::Relaxed),
            sent: self.sent_bytes.load(Ordering::Relaxed),
        }
    }

    /// Records a stall in the middle of a message. Returns whether it is the first within `period`: all streams stall
    /// together when a link does.
    pub fn note_stall(&self, period: Duration) -> bool {
        let now = self.now_ms() + 1;
        let within = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        let is_news = |last: u64| last == 0 || now.saturating_sub(last) >= within;
        self.stalled_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| is_news(last).then_some(now)).is_ok()
    }

    /// Whether the peer was asked within `period`.
    pub fn asked_within(&self, period: Duration) -> bool {
        let asked = self.asked_ms.load(Ordering::Relaxed);
        let allowed = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        asked != 0 && self.now_ms().saturating_sub(asked) < allowed
    }

    /// When bytes were last received, in milliseconds.
    pub fn received_at(&self) -> Option<Instant> {
        let after = self.received_ms.load(Ordering::Relaxed).checked_sub(1)?;
        self.born.checked_add(Duration::from_millis(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_bytes_are_recorded() {
        let traffic = Traffic::default();
        assert!(!traffic.asked_within(Duration::MAX) && traffic.received_at().is_none());
        traffic.record_request();
        traffic.note_bytes();
        assert!(traffic.asked_within(Duration::from_secs(60)) && !traffic.asked_within(Duration::ZERO));
        assert!(traffic.received_at().is_some_and(|at| at <= Instant::now()));
    }

    #[test]
    fn consecutive_stalls_count_once() {
        let traffic = Traffic::default();
        let period = Duration::from_secs(60);
        assert!(traffic.note_stall(period) && !traffic.note_stall(period) && !traffic.note_stall(period));
        assert!(traffic.note_stall(Duration::ZERO), "it was long ago");
        assert!(!traffic.note_stall(period), "and counts from then on");
    }
}
