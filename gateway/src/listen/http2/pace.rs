//! [`Pace`]: the time that a client has to take a response over HTTP/2.
//!
//! The clock runs while the stream waits for the client: for a window, or for the socket. It is reset if its client
//! takes nothing for `http.send_timeout_seconds`, or less than `http.rate_bytes_min` over a window of waiting.
//!
//! Streams take turns on one socket, so a stream that waits is not always one that its client does not read: on a slow
//! link a hundred images wait for each other. A stream is therefore not reset while its connection as a whole keeps
//! the minimum rate, unless it was its turn: what it has sent is then less than its fair share by more than
//! [`TURN_BYTES`]. That happens only if its own window holds it back. A stream is also reset if it waits for
//! [`TIMEOUTS_MAX`] timeouts in all without a turn: [`SEND_BYTES_MAX`], or what the minimum rate demands in that time if
//! that is less. So a client cannot keep a hundred streams, byte by byte, at the minimum rate of one. If the connection
//! as a whole falls below the minimum rate, all of its streams are reset.

use crate::listen::http2::progress::{Mark, Sent, StreamProgress};
use crate::listen::http2::stream::SEND_BYTES_MAX;
use crate::listen::rate::RateMin;
use crate::listen::server::ConnectionLimits;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// By how many bytes a stream that waits for its turn may fall behind its fair share.
const TURN_BYTES: u64 = 128 * 1024;
/// The maximum number of send timeouts that a stream waits for a turn. A hundred streams have their turns in time
/// down to 2.7 KB a second, if the timeout is a minute.
const TIMEOUTS_MAX: u32 = 10;

/// The client takes a response too slowly, or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::listen) enum TooSlow {
    /// Nothing was taken for the send timeout, or less than a turn for [`TIMEOUTS_MAX`] of them.
    #[error("a client did not read a response (http.send_timeout_seconds): its stream is reset")]
    Stalled,
    /// The rate was below the minimum.
    #[error("a client read a response too slowly (http.rate_bytes_min): its stream is reset")]
    BelowMinimum,
}

/// The rate at which a client takes one response.
pub(in crate::listen) struct Pace {
    progress: Arc<StreamProgress>,
    min: RateMin,
    timeout: Duration,
    /// Where the current window of the minimum rate began, and how long the stream has waited since.
    window: Mark,
    waited: Duration,
    /// Where the last turn of the stream ended, and how long it has waited since.
    turn: Mark,
    turn_waited: Duration,
}

impl Pace {
    /// A pace of which nothing is known yet.
    pub fn new(progress: &Arc<StreamProgress>, limits: &ConnectionLimits) -> Self {
        let (min, timeout) = (limits.rate_min, limits.send_timeout);
        let (window, turn) = (progress.mark(), progress.mark());
        let (waited, turn_waited) = (Duration::ZERO, Duration::ZERO);
        Self { progress: Arc::clone(progress), min, timeout, window, waited, turn, turn_waited }
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
        loop {
            let (begun, mark) = (Instant::now(), self.progress.mark());
            let output = tokio::time::timeout(self.timeout, poll_fn(&mut poll)).await;
            let waited = begun.elapsed();
            if output.is_err() && !keeps(self.progress.since(&mark), 1, self.min_bytes(self.timeout)) {
                return Err(TooSlow::Stalled);
            }
            self.check_turn(waited)?;
            self.check_rate(waited)?;
            if let Ok(output) = output {
                return Ok(output);
            }
        }
    }

    /// Checks, after a wait, that the stream has not waited too long for a turn.
    fn check_turn(&mut self, waited: Duration) -> Result<(), TooSlow> {
        self.turn_waited += waited;
        let time_max = self.timeout.saturating_mul(TIMEOUTS_MAX);
        // A stream that keeps the minimum rate by itself needs no turns.
        let enough = self.min_bytes(time_max).clamp(1, SEND_BYTES_MAX as u64);
        if self.progress.since(&self.turn).bytes >= enough {
            (self.turn, self.turn_waited) = (self.progress.mark(), Duration::ZERO);
        }
        if self.turn_waited < time_max { Ok(()) } else { Err(TooSlow::Stalled) }
    }

    /// Checks, after a wait, the minimum rate at the end of each window.
    fn check_rate(&mut self, waited: Duration) -> Result<(), TooSlow> {
        self.waited += waited;
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
    use crate::listen::http2::progress::Piece;
    use bytes::{Buf as _, Bytes};

    /// A stream takes so many bytes after each of so many waits, whose length is in tenths of the send timeout.
    #[test]
    fn a_stream_needs_a_turn_in_ten_timeouts_of_waiting() {
        const TIMEOUT: Duration = Duration::from_secs(60);
        const TURN: usize = SEND_BYTES_MAX;
        let table = [
            // Nothing, or a byte just before each timeout.
            ((64, 100, 0, 10), Err(TooSlow::Stalled)),
            ((64, 99, 0, 1), Ok(())),
            ((64, 9, 1, 12), Err(TooSlow::Stalled)),
            ((64, 90, 1, 2), Err(TooSlow::Stalled)),
            // A turn just in time, for hours.
            ((64, 99, TURN, 100), Ok(())),
            ((64, 100, TURN - 1, 1), Err(TooSlow::Stalled)),
            // A turn in parts.
            ((64, 24, TURN.div_ceil(4), 400), Ok(())),
            // All of a small response, in any number of parts.
            ((64, 9, 10, 11), Ok(())),
            // A turn is not more than the minimum rate demands; without one, anything is enough.
            ((10, 10, 600, 1000), Ok(())),
            ((10, 10, 590, 11), Err(TooSlow::Stalled)),
            ((0, 99, 1, 1000), Ok(())),
            ((0, 100, 0, 1), Err(TooSlow::Stalled)),
        ];
        for ((bytes_per_second, tenths, bytes, waits), expected) in table {
            let progress = StreamProgress::begin(&Arc::default());
            let min = RateMin { bytes_per_second, window: TIMEOUT };
            let limits = ConnectionLimits {
                send_timeout: TIMEOUT,
                rate_min: min,
                ..ConnectionLimits::of(&config::Http::default())
            };
            let mut pace = Pace::new(&progress, &limits);
            let checked = (0..waits).try_for_each(|_| {
                Piece::new(Bytes::from(vec![7; bytes]), &progress).advance(bytes);
                pace.check_turn(TIMEOUT * tenths / 10)
            });
            assert_eq!(checked, expected, "{bytes_per_second} {tenths} {bytes} {waits}");
        }
    }

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
