//! [`Pace`]: the time that a client has to take a response over HTTP/2.
//!
//! The clock runs while the stream waits for the client: for a window, or for the socket. It is reset if its client
//! takes nothing for `http.send_timeout_seconds`, or less than `http.rate_bytes_min` over a window of waiting.
//!
//! Streams take turns on one socket, so a stream that waits is not always one that its client does not read: on a slow
//! link a hundred images wait for each other. A stream is therefore not at fault while its connection as a whole keeps
//! the minimum rate, unless it was its turn: what it has sent is then less than its fair share by more than
//! [`TURN_BYTES`]. That happens only if its own window holds it back. A stream of which nothing is taken is reset after
//! [`TIMEOUTS_MAX`] timeouts in any case. If the connection as a whole falls below the minimum rate, all of its streams
//! are reset.

use crate::listen::http2::progress::{Mark, Sent, StreamProgress};
use crate::listen::rate::RateMin;
use crate::listen::server::ConnectionLimits;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// By how many bytes a stream that waits for its turn may fall behind its fair share.
const TURN_BYTES: u64 = 128 * 1024;
/// The maximum number of send timeouts that a stream waits for its turn. A hundred streams have their turns in time
/// down to 2.7 KB a second, if the timeout is a minute.
const TIMEOUTS_MAX: u32 = 10;

/// The client takes a response too slowly, or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooSlow {
    /// Nothing was taken for the send timeout.
    #[error("a client did not read a response (http.send_timeout_seconds): its stream is reset")]
    Stalled,
    /// The rate was below the minimum.
    #[error("a client read a response too slowly (http.rate_bytes_min): its stream is reset")]
    BelowMinimum,
}

/// The rate at which a client takes one response.
pub(super) struct Pace {
    progress: Arc<StreamProgress>,
    min: RateMin,
    timeout: Duration,
    /// Where the current window of the minimum rate began, and how long the stream has waited since.
    window: Mark,
    waited: Duration,
}

impl Pace {
    /// A pace of which nothing is known yet.
    pub fn new(progress: &Arc<StreamProgress>, limits: &ConnectionLimits) -> Self {
        let (min, timeout) = (limits.rate_min, limits.send_timeout);
        Self { progress: Arc::clone(progress), min, timeout, window: progress.mark(), waited: Duration::ZERO }
    }

    /// Waits for what depends on the client.
    ///
    /// # Errors
    /// [`TooSlow`].
    pub async fn wait<T>(&mut self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Result<T, TooSlow> {
        // Most waits need no timer.
        if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(poll(cx))).await {
            return Ok(output);
        }
        let mut timeouts = 0;
        loop {
            let (begun, mark) = (Instant::now(), self.progress.mark());
            let output = tokio::time::timeout(self.timeout, poll_fn(&mut poll)).await;
            self.waited += begun.elapsed();
            let sent = self.progress.since(&mark);
            timeouts = if sent.bytes == 0 { timeouts + 1 } else { 0 };
            if output.is_err() && (timeouts >= TIMEOUTS_MAX || !keeps(sent, 1, self.min_bytes(self.timeout))) {
                return Err(TooSlow::Stalled);
            }
            self.check_rate()?;
            if let Ok(output) = output {
                return Ok(output);
            }
        }
    }

    /// Checks the minimum rate at the end of each window.
    fn check_rate(&mut self) -> Result<(), TooSlow> {
        if self.min.bytes_per_second == 0 || self.waited < self.min.window {
            return Ok(());
        }
        let (needed, sent) = (self.min_bytes(self.waited), self.progress.since(&self.window));
        (self.window, self.waited) = (self.progress.mark(), Duration::ZERO);
        if keeps(sent, needed, needed) { Ok(()) } else { Err(TooSlow::BelowMinimum) }
    }

    /// The number of bytes that the minimum rate demands.
    fn min_bytes(&self, time: Duration) -> u64 {
        let bytes = u128::from(self.min.bytes_per_second) * time.as_millis() / 1000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// Whether a stream has sent enough, or waits for its turn on a connection that has.
fn keeps(sent: Sent, enough: u64, enough_of_connection: u64) -> bool {
    let awaits_turn = sent.fair_share <= sent.bytes.saturating_add(TURN_BYTES);
    sent.bytes >= enough || awaits_turn && sent.of_connection >= enough_of_connection.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_waits_for_its_turn_keeps_pace() {
        // What was sent by the stream, by the connection, and as a fair share; what is enough for each.
        let table = [
            ((100, 100, 100), (100, 100), true),
            ((99, 99, 99), (100, 100), false),
            ((99, 100, 99), (100, 100), true),
            ((0, 1_600_000, 16_000), (1, 3840), true),
            ((0, 1_600_000, TURN_BYTES), (1, 3840), true),
            ((0, 1_600_000, TURN_BYTES + 1), (1, 3840), false),
            ((7, 1_600_000, TURN_BYTES + 7), (3840, 3840), true),
            ((0, 3839, 38), (1, 3840), false),
            // Without a minimum rate, anything is enough.
            ((0, 0, 0), (1, 0), false),
            ((0, 1, 0), (1, 0), true),
        ];
        for ((bytes, of_connection, fair_share), (enough, enough_of_connection), expected) in table {
            let sent = Sent { bytes, of_connection, fair_share };
            assert_eq!(keeps(sent, enough, enough_of_connection), expected, "{sent:?} {enough} {enough_of_connection}");
        }
    }
}
