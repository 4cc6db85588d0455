//! [`Rate`]: whether somebody takes or sends enough in the time that is spent waiting for them; [`Paced`]: a request's body that ends
//! with an error when its sender does not.
//!
//! Only time that is spent waiting counts: who is not asked for anything, or waits for us, is not slow.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The least that a client has to take or to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateMin {
    /// Bytes a second; zero for no such limit.
    pub bytes_per_second: u64,
    /// The time that they are averaged over, which is also how long anybody has.
    pub window: Duration,
}

impl RateMin {
    /// What is configured.
    pub fn of(http: &config::Http) -> Self {
        Self { bytes_per_second: http.rate_bytes_min, window: Duration::from_secs(http.rate_window_seconds) }
    }
}

/// How fast somebody was of late.
#[derive(Debug)]
pub struct Rate {
    min: RateMin,
    bytes: u64,
    waited: Duration,
    since: Option<Instant>,
}

impl Rate {
    /// Nothing was waited for yet.
    pub fn new(min: RateMin) -> Self {
        Self { min, bytes: 0, waited: Duration::ZERO, since: None }
    }

    /// They are waited for from now on, if they were not already.
    pub fn wait(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// When it is to be looked whether they were too slow, if they are waited for.
    pub fn due(&self) -> Option<Instant> {
        let left = self.min.window.saturating_sub(self.waited);
        self.since.filter(|_| self.min.bytes_per_second > 0).map(|since| since + left)
    }

    /// They took or sent so many bytes; whether that was enough of late.
    pub fn moved(&mut self, bytes: usize, now: Instant) -> bool {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if let Some(since) = self.since.take() {
            self.waited += now.saturating_duration_since(since);
        }
        if self.min.bytes_per_second == 0 || self.waited < self.min.window {
            return true;
        }
        let needed = u128::from(self.min.bytes_per_second) * self.waited.as_millis() / 1000;
        let enough = u128::from(self.bytes) >= needed;
        (self.bytes, self.waited) = (0, Duration::ZERO);
        enough
    }
}

/// What is said of who is too slow.
pub fn too_slow(what: &str, min: RateMin) -> io::Error {
    let words = format!(
        "{what} comes too slowly: at least {} bytes a second are needed, over {} s (http.rate_bytes_min)",
        min.bytes_per_second,
        min.window.as_secs()
    );
    io::Error::new(io::ErrorKind::TimedOut, words)
}

/// The body of a request, whose sender has to keep up a rate while it is read.
pub struct Paced<B> {
    body: B,
    rate: Rate,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B> Paced<B> {
    /// A body that has just begun.
    pub fn new(body: B, min: RateMin) -> Self {
        Self { body, rate: Rate::new(min), timer: None }
    }

    /// Whether the sender has become too slow while it is waited for.
    fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(due) = self.rate.due() else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            std::task::ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            if !self.rate.moved(0, now) {
                return Poll::Ready(());
            }
            self.rate.wait(now);
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
            if this.rate.moved(bytes, Instant::now()) {
                return Poll::Ready(next.map(|frame| frame.map_err(Into::into)));
            }
            return Poll::Ready(Some(Err(too_slow("the body", this.rate.min).into())));
        }
        this.rate.wait(Instant::now());
        std::task::ready!(this.poll_slow(cx));
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
    fn only_the_time_of_waiting_counts() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        // Each: when they are waited for, when something moves, how much, and whether that is enough.
        type Steps<'a> = &'a [(u64, u64, usize, bool)];
        let table: [(&str, Steps<'_>); 4] = [
            ("they have the whole window", &[(0, 9, 0, true), (100, 101, 0, false)]),
            ("what came before counts", &[(0, 5, 2000, true), (500, 506, 1, true), (600, 611, 1, false)]),
            ("each window counts for itself", &[(0, 10, 1000, true), (20, 30, 999, false)]),
            ("who is not waited for is not slow", &[(0, 1, 1, true), (900, 901, 1, true), (1800, 1801, 1, true)]),
        ];
        for (name, steps) in table {
            let mut rate = Rate::new(MIN);
            for (waited_for, moved, bytes, enough) in steps {
                rate.wait(at(*waited_for));
                assert_eq!(rate.moved(*bytes, at(*moved)), *enough, "{name}, {moved}");
            }
        }
        let mut unlimited = Rate::new(RateMin { bytes_per_second: 0, ..MIN });
        unlimited.wait(begin);
        assert!(unlimited.due().is_none() && unlimited.moved(0, at(1_000_000)));
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
    async fn a_sender_that_trickles_is_given_up_and_a_slow_one_is_not() {
        let trickle = read(Duration::from_millis(20), b"x", 1_000_000).await;
        assert!(trickle.as_ref().is_err_and(|words| words.contains("too slowly")), "{trickle:?}");
        let silent = read(Duration::from_secs(100_000), b"x", 1).await;
        assert!(silent.is_err(), "{silent:?}");
        assert_eq!(read(Duration::from_millis(20), &[b'x'; 6000], 20).await, Ok(120_000));
    }
}
