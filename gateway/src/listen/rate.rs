//! [`RateMeter`]: checks a client's minimum transfer rate; [`Paced`]: the body of a request, which fails if the client
//! sends too slowly.
//!
//! Only the time that the server waits for the client counts.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The minimum transfer rate of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateMin {
    /// Bytes a second; zero disables the limit.
    pub bytes_per_second: u64,
    /// The time over which the rate is averaged, and so the time before a client can fail.
    pub window: Duration,
}

impl RateMin {
    /// The configured minimum.
    pub fn of(http: &config::Http) -> Self {
        Self { bytes_per_second: http.rate_bytes_min, window: Duration::from_secs(http.rate_window_seconds) }
    }
}

/// The transfer rate of a client in the current window.
#[derive(Debug)]
pub struct RateMeter {
    min: RateMin,
    bytes: u64,
    waited: Duration,
    since: Option<Instant>,
}

impl RateMeter {
    /// A meter without any waiting time yet.
    pub fn new(min: RateMin) -> Self {
        Self { min, bytes: 0, waited: Duration::ZERO, since: None }
    }

    /// Starts to count waiting time, unless it is counted already.
    pub fn start_wait(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// When the rate must be checked, if the server is waiting.
    pub fn check_at(&self) -> Option<Instant> {
        let left = self.min.window.saturating_sub(self.waited);
        self.since.filter(|_| self.min.bytes_per_second > 0).map(|since| since + left)
    }

    /// Ends the wait with the transfer of some bytes; returns whether the rate was sufficient.
    pub fn record(&mut self, bytes: usize, now: Instant) -> bool {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if let Some(since) = self.since.take() {
            self.waited += now.saturating_duration_since(since);
        }
        if self.min.bytes_per_second == 0 || self.waited < self.min.window {
            return true;
        }
        let needed = u128::from(self.min.bytes_per_second) * self.waited.as_millis() / 1000;
        let sufficient = u128::from(self.bytes) >= needed;
        (self.bytes, self.waited) = (0, Duration::ZERO);
        sufficient
    }
}

/// The error for a client below the minimum rate.
pub fn too_slow(what: &str, min: RateMin) -> io::Error {
    let message = format!(
        "{what} is too slow: the minimum is {} bytes a second over {} s (http.rate_bytes_min)",
        min.bytes_per_second,
        min.window.as_secs()
    );
    io::Error::new(io::ErrorKind::TimedOut, message)
}

/// The body of a request, whose sender must keep the minimum rate while it is read.
pub struct Paced<B> {
    body: B,
    rate: RateMeter,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B> Paced<B> {
    /// A body of which nothing was read yet.
    pub fn new(body: B, min: RateMin) -> Self {
        Self { body, rate: RateMeter::new(min), timer: None }
    }

    /// Ready when the client has been too slow while the server waits.
    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(check_at) = self.rate.check_at() else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(check_at)));
            if timer.deadline() != check_at {
                timer.as_mut().reset(check_at);
            }
            std::task::ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            if !self.rate.record(0, now) {
                return Poll::Ready(());
            }
            self.rate.start_wait(now);
        }
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(next) = Pin::new(&mut this.body).poll_frame(cx) {
            let bytes = match &next {
                Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
                _ => return Poll::Ready(next.map(|frame| frame.map_err(Into::into))),
            };
            if this.rate.record(bytes, Instant::now()) {
                return Poll::Ready(next.map(|frame| frame.map_err(Into::into)));
            }
            return Poll::Ready(Some(Err(too_slow("the body", this.rate.min).into())));
        }
        this.rate.start_wait(Instant::now());
        std::task::ready!(this.poll_too_slow(cx));
        Poll::Ready(Some(Err(too_slow("the body", this.rate.min).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use http_body_util::{BodyExt as _, StreamBody};

    const MIN: RateMin = RateMin { bytes_per_second: 100, window: Duration::from_secs(10) };

    #[test]
    fn only_waiting_time_counts() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        // Each row: the start of the wait, the time of the transfer, its bytes, and whether the rate is sufficient.
        type Steps<'a> = &'a [(u64, u64, usize, bool)];
        let table: [(&str, Steps<'_>); 4] = [
            ("they have the whole window", &[(0, 9, 0, true), (100, 101, 0, false)]),
            ("earlier windows do not count", &[(0, 5, 2000, true), (500, 506, 1, true), (600, 611, 1, false)]),
            ("each window counts for itself", &[(0, 10, 1000, true), (20, 30, 999, false)]),
            ("time without waiting does not count", &[(0, 1, 1, true), (900, 901, 1, true), (1800, 1801, 1, true)]),
        ];
        for (name, steps) in table {
            let mut rate = RateMeter::new(MIN);
            for (waited_for, moved, bytes, enough) in steps {
                rate.start_wait(at(*waited_for));
                assert_eq!(rate.record(*bytes, at(*moved)), *enough, "{name}, {moved}");
            }
        }
        let mut unlimited = RateMeter::new(RateMin { bytes_per_second: 0, ..MIN });
        unlimited.start_wait(begin);
        assert!(unlimited.check_at().is_none() && unlimited.record(0, at(1_000_000)));
    }

    async fn read(every: Duration, piece: &'static [u8], pieces: usize) -> Result<usize, String> {
        let min = RateMin { window: Duration::from_millis(200), ..MIN };
        let body = stream::unfold(0, move |sent| async move {
            tokio::time::sleep(every).await;
            (sent < pieces).then(|| (Ok::<_, io::Error>(Frame::data(Bytes::from_static(piece))), sent + 1))
        });
        let body = Paced::new(StreamBody::new(Box::pin(body)), min);
        body.collect().await.map(|all| all.to_bytes().len()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_body_below_the_minimum_rate_fails_and_a_slow_one_above_it_does_not() {
        let trickle = read(Duration::from_millis(20), b"x", 1_000_000).await;
        assert!(trickle.as_ref().is_err_and(|error| error.contains("too slow")), "{trickle:?}");
        let silent = read(Duration::from_secs(100_000), b"x", 1).await;
        assert!(silent.is_err(), "{silent:?}");
        assert_eq!(read(Duration::from_millis(20), &[b'x'; 6000], 20).await, Ok(120_000));
    }
}
