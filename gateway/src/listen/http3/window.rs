//! [`SendWindow`]: how much of a connection's responses QUIC may hold until the client acknowledges it.
//!
//! Over TCP the kernel holds what is sent, in a buffer that grows with the path. QUIC holds it in this process: so each
//! connection has a small window, which grows to twice the congestion window while responses are sent, as far as the
//! client's share of the memory for response bodies has room. quinn counts what it retains against the window, until
//! the data is acknowledged or its stream is reset.

use content::budget::{Budget, Share};
use std::sync::{Arc, Mutex, PoisonError};

/// The window of a connection without a large response: what is sent before the first acknowledgement, twice.
pub(super) const WINDOW_BYTES_MIN: usize = 32 * 1024;
/// The maximum: 340 Mbit/s over a path of 100 ms.
const WINDOW_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Windows of connections together grow by no less than this part of themselves.
const STEP_DIVISOR: usize = 4;

/// The send window of one connection.
pub(super) struct SendWindow {
    connection: quinn::Connection,
    /// What exceeds [`WINDOW_BYTES_MIN`], of the client's memory.
    share: Mutex<Share>,
}

impl SendWindow {
    /// The smallest window, which grows within the budget; `None` for no limit.
    pub fn new(connection: quinn::Connection, budget: Option<Arc<Budget>>) -> Self {
        Self { connection, share: Mutex::new(Share::of(budget)) }
    }

    /// Grows to what the path can carry.
    pub fn adapt(&self) {
        let mut share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
        let current = WINDOW_BYTES_MIN + share.bytes();
        if current >= WINDOW_BYTES_MAX {
            return;
        }
        let congestion = usize::try_from(self.connection.stats().path.cwnd).unwrap_or(usize::MAX);
        let Some(more) = growth(current, congestion) else { return };
        share.grow_within_fair_share(more);
        self.set(&share);
    }

    /// Shrinks to the smallest window, since nothing is sent.
    pub fn release(&self) {
        let mut share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
        if share.bytes() > 0 {
            share.resize(0);
            self.set(&share);
        }
    }

    /// The current size, in bytes.
    pub fn bytes(&self) -> usize {
        WINDOW_BYTES_MIN + self.share.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }

    fn set(&self, share: &Share) {
        self.connection.set_send_window((WINDOW_BYTES_MIN + share.bytes()) as u64);
    }
}

/// By how many bytes the window grows, if it is worth it.
fn growth(current: usize, congestion: usize) -> Option<usize> {
    let wanted = congestion.saturating_mul(2).min(WINDOW_BYTES_MAX);
    wanted.checked_sub(current).filter(|more| *more >= current / STEP_DIVISOR || wanted == WINDOW_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_the_congestion_window_in_steps() {
        const MIN: usize = WINDOW_BYTES_MIN;
        let table = [
            (MIN, 12_000, None),
            (MIN, MIN / 2, None),
            (MIN, MIN / 2 + MIN / 8 - 1, None),
            (MIN, MIN / 2 + MIN / 8, Some(MIN / 4)),
            (MIN, MIN, Some(MIN)),
            (MIN, usize::MAX, Some(WINDOW_BYTES_MAX - MIN)),
            (WINDOW_BYTES_MAX - 1, usize::MAX, Some(1)),
            // It does not shrink while a response is sent.
            (1 << 20, 20_000, None),
        ];
        for (current, congestion, expected) in table {
            assert_eq!(growth(current, congestion), expected, "{current} {congestion}");
        }
    }
}
