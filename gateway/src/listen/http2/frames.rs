//! [`MeteredFrames`]: a connection on which a client has a budget of HTTP/2 frames that are no request.
//!
//! A frame costs its sender 9 bytes, and its receiver an answer (`PING`, `SETTINGS`), the start of a request that is
//! then cancelled (`RST_STREAM`, CVE-2023-44487), or at least the time to read it. `h2` bounds the memory of most such
//! floods, and ends some of them; this bounds the processor time of all of them. So each frame but `HEADERS` takes one
//! from a budget, which grows with time, and with what is sent to the client, because receivers have to announce new
//! windows. A client that exhausts the budget is disconnected.
//!
//! `HEADERS` are requests. They cost nothing here, as they cost nothing over HTTP/1.1.

use crate::listen::unit_budget::UnitBudget;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// The length of the client's connection preface (RFC 9113, section 3.4), and of a frame's header (section 4.1).
const PREFACE_BYTES: u32 = 24;
const HEADER_BYTES: usize = 9;
/// The type of `HEADERS` frames.
const HEADERS: u8 = 1;

/// The number of sent bytes that earns a frame. A client with the smallest sensible windows announces two for every
/// 16 KiB.
const BYTES_PER_FRAME: u64 = 1024;

/// The parser's position in what a client sends.
#[derive(Debug)]
enum State {
    /// In the preface or a payload, with this many remaining bytes.
    Skip(u32),
    /// In the header of a frame, of which this many bytes are known.
    Header(usize),
}

/// The frames that a client may still send.
#[derive(Debug)]
struct FrameBudget {
    state: State,
    header: [u8; HEADER_BYTES],
    frames: UnitBudget,
    /// The number of `HEADERS` so far.
    heads: u64,
    /// Sent bytes that are not counted yet.
    sent: u64,
}

impl FrameBudget {
    fn new(now: Instant) -> Self {
        let state = State::Skip(PREFACE_BYTES);
        Self { state, header: [0; HEADER_BYTES], frames: UnitBudget::new(now), heads: 0, sent: 0 }
    }

    /// Counts the frames that begin in the next bytes; returns whether the budget suffices.
    fn receive(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        while !bytes.is_empty() {
            let taken = match self.state {
                State::Skip(left) => {
                    let taken = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let left = left.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
                    self.state = if left == 0 { State::Header(0) } else { State::Skip(left) };
                    taken
                }
                State::Header(known) => {
                    let taken = bytes.len().min(HEADER_BYTES - known);
                    self.header[known..known + taken].copy_from_slice(&bytes[..taken]);
                    self.state = State::Header(known + taken);
                    if known + taken == HEADER_BYTES && !self.begin_frame(now) {
                        return false;
                    }
                    taken
                }
            };
            bytes = &bytes[taken..];
        }
        true
    }

    fn begin_frame(&mut self, now: Instant) -> bool {
        let [a, b, c, kind, ..] = self.header;
        let length = u32::from_be_bytes([0, a, b, c]);
        self.state = if length == 0 { State::Header(0) } else { State::Skip(length) };
        if kind == HEADERS {
            self.heads += 1;
        }
        kind == HEADERS || self.take_frame(now)
    }

    /// Takes a frame. More are earned only when none is left, so that what is sent while the budget is full counts too:
    /// a client may announce the windows of megabytes in one go.
    fn take_frame(&mut self, now: Instant) -> bool {
        if self.frames.left() == 0 {
            self.frames.earn(now);
            self.frames.add(self.sent / BYTES_PER_FRAME);
            self.sent %= BYTES_PER_FRAME;
        }
        self.frames.spend(1)
    }
}

/// What a client has sent.
#[derive(Debug, Default)]
pub(super) struct Received {
    is_exhausted: AtomicBool,
    heads: AtomicU64,
}

impl Received {
    /// Whether the budget is exhausted, so that nothing more is read.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Ordering::Relaxed)
    }

    /// The number of `HEADERS`, some of which may be no requests.
    pub fn heads(&self) -> u64 {
        self.heads.load(Ordering::Relaxed)
    }
}

/// A connection whose client has a budget of frames.
pub(super) struct MeteredFrames<S> {
    stream: S,
    budget: FrameBudget,
    received: Arc<Received>,
}

impl<S> MeteredFrames<S> {
    /// A connection before its preface.
    pub fn new(stream: S, received: &Arc<Received>) -> Self {
        Self { stream, budget: FrameBudget::new(Instant::now()), received: Arc::clone(received) }
    }

    fn count_sent(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.budget.sent = self.budget.sent.saturating_add(*bytes as u64);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredFrames<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // The task that polls this ends the connection, and is not to be woken by it.
        if self.received.is_exhausted() {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let suffices = self.budget.receive(&buf.filled()[before..], Instant::now());
        self.received.heads.store(self.budget.heads, Ordering::Relaxed);
        if !suffices {
            self.received.is_exhausted.store(true, Ordering::Relaxed);
            buf.set_filled(before);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredFrames<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.count_sent(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.count_sent(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::unit_budget::BURST_MAX;
    use proptest::prelude::*;
    use std::time::Duration;

    const PING: u8 = 6;

    /// A frame of a type with a payload.
    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).expect("is small").to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 0];
        frame.resize(HEADER_BYTES + payload, 0xff);
        frame
    }

    /// A budget after the preface.
    fn begun(now: Instant) -> FrameBudget {
        let mut budget = FrameBudget::new(now);
        assert!(budget.receive(&[PING; PREFACE_BYTES as usize], now) && budget.frames.left() == BURST_MAX);
        budget
    }

    #[test]
    fn frames_are_earned_by_time_and_by_reading() {
        let begin = Instant::now();
        let ping = frame(PING, 8);
        // The frames until the budget is exhausted; the next one is not lost.
        let sends = |budget: &mut FrameBudget, now| {
            let sent = (0..).take_while(|_| budget.receive(&ping, now)).count() as u64;
            budget.state = State::Header(0);
            sent
        };
        let mut budget = begun(begin);
        assert_eq!(sends(&mut budget, begin), BURST_MAX);
        let later = begin + Duration::from_millis(70);
        assert_eq!((sends(&mut budget, later), sends(&mut budget, later)), (7, 0));
        budget.sent = 5 * BYTES_PER_FRAME + 1;
        assert_eq!(sends(&mut budget, later), 5);
        // Saved time does not exceed a burst.
        assert_eq!(sends(&mut budget, later + Duration::from_secs(10_000)), BURST_MAX);
    }

    #[test]
    fn a_client_that_sends_as_fast_as_it_may_gets_all_that_its_time_earns() {
        let begin = Instant::now();
        let ping = frame(PING, 8);
        let mut budget = begun(begin);
        assert!((0..BURST_MAX).all(|_| budget.receive(&ping, begin)));
        // Every 19 ms: two frames, but for one in ten times.
        let sent = (1..=100_u32).map(|round| {
            let now = begin + Duration::from_millis(19) * round;
            let sent = (0..).take_while(|_| budget.receive(&ping, now)).count();
            budget.state = State::Header(0);
            sent
        });
        assert_eq!(sent.sum::<usize>(), 190);
    }

    #[test]
    fn requests_cost_nothing() {
        let now = Instant::now();
        let mut budget = begun(now);
        let head = frame(HEADERS, 40);
        assert!((0..BURST_MAX * 3).all(|_| budget.receive(&head, now)) && budget.frames.left() == BURST_MAX);
    }

    proptest! {
        /// Frames are counted alike, however they are cut.
        #[test]
        fn the_count_does_not_depend_on_the_pieces(
            frames in prop::collection::vec((0_u8..12, 0_usize..70), 0..60),
            piece in 1_usize..90,
        ) {
            let now = Instant::now();
            let bytes: Vec<u8> = frames.iter().flat_map(|(kind, payload)| frame(*kind, *payload)).collect();
            let mut budget = begun(now);
            prop_assert!(bytes.chunks(piece).all(|piece| budget.receive(piece, now)));
            let cost = frames.iter().filter(|(kind, _)| *kind != HEADERS).count() as u64;
            prop_assert_eq!(budget.frames.left(), BURST_MAX - cost);
            prop_assert_eq!(budget.heads, frames.len() as u64 - cost);
        }
    }
}
