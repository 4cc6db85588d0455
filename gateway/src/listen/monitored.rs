//! [`MonitoredStream`]: a socket with a write timeout and a minimum read rate of its client.
//!
//! It resets the connection if a response was aborted, so that an HTTP/1.0 client does not take the end of the
//! connection for the end of the content. During a drain it reads until the client has ended the connection
//! ([`crate::listen::drain`]).

use crate::listen::connection::Connection;
use crate::listen::drain::LINGER;
use crate::listen::rate::{RateMeter, RateMin, too_slow};
use crate::listen::server::ConnectionLimits;
use crate::listen::socket::Socket;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The size of a read whose bytes are discarded.
const DISCARDED_BYTES: usize = 1024;

/// The number of bytes from which writes are not held back ([`Connection::holds_writes`]): one system call for several
/// small responses. The buffer of TLS takes 64 KiB.
pub(super) const HELD_BYTES_MAX: usize = 32 * 1024;
/// The number of records from which they are not held back, because TLS shows only so many at a time.
const HELD_RECORDS_MAX: usize = 64;

/// A socket with a write timeout and a minimum read rate of its client.
pub(super) struct MonitoredStream {
    stream: Socket,
    state: Arc<Connection>,
    send_timeout: Duration,
    rate_min: RateMin,
    rate: RateMeter,
    unsent: Option<Pin<Box<Sleep>>>,
    /// Until when the end of the client is awaited, once the server has sent its own.
    lingering: Option<Pin<Box<Sleep>>>,
}

impl MonitoredStream {
    /// A stream of the connection `state`.
    pub fn new(stream: Socket, limits: &ConnectionLimits, state: Arc<Connection>) -> Self {
        let (send_timeout, rate_min) = (limits.send_timeout, limits.rate_min);
        Self { stream, state, send_timeout, rate_min, rate: RateMeter::new(rate_min), unsent: None, lingering: None }
    }

    /// Whether a write of records is held back. Its task is not woken for that: it writes again before it waits.
    fn is_held(&self, records: &[io::IoSlice<'_>]) -> bool {
        self.state.holds_writes() && is_little(records.iter().map(|record| record.len()))
    }

    /// Fails writes that exceed the timeout or the minimum rate.
    fn check_progress(&mut self, cx: &mut Context<'_>, sending: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(sent) = sending {
            self.state.sent();
            if self.rate.record(*sent.as_ref().unwrap_or(&0), Instant::now()) {
                return Poll::Ready(sent);
            }
            self.state.reset_on_close();
            return Poll::Ready(Err(too_slow("reading of the response", self.rate_min)));
        }
        self.rate.start_wait(Instant::now());
        let deadline = Instant::now() + self.send_timeout;
        let sleep = self.unsent.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.state.begin_send() {
            sleep.as_mut().reset(deadline);
        }
        std::task::ready!(sleep.as_mut().poll(cx));
        self.state.reset_on_close();
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read the response (http.send_timeout_seconds)",
        )))
    }

    /// Discards what arrives until the client ends the connection, or for [`LINGER`].
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self { stream, lingering, .. } = self;
        let deadline = lingering.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        // First, since a client may send without a pause.
        if deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            let mut bytes = [0; DISCARDED_BYTES];
            let mut buffer = ReadBuf::new(&mut bytes);
            match std::task::ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(()),
            }
        }
    }
}

/// Whether records of these lengths are too little for a system call if more follows at once.
fn is_little(records: impl ExactSizeIterator<Item = usize>) -> bool {
    records.len() < HELD_RECORDS_MAX && records.sum::<usize>() < HELD_BYTES_MAX
}

impl AsyncRead for MonitoredStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for MonitoredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_held(&[io::IoSlice::new(buf)]) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_progress(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_held(bufs) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check_progress(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            std::task::ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if !self.state.lingers() || self.state.is_reset() {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_linger(cx).map(Ok)
    }
}

impl Drop for MonitoredStream {
    fn drop(&mut self) {
        if self.state.is_reset() {
            self.stream.reset_on_close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_held_back_up_to_a_number_of_bytes_and_of_records() {
        let table = [
            (vec![], true),
            (vec![HELD_BYTES_MAX - 1], true),
            (vec![HELD_BYTES_MAX], false),
            (vec![1; HELD_RECORDS_MAX - 1], true),
            (vec![1; HELD_RECORDS_MAX], false),
            (vec![HELD_BYTES_MAX / 4; 3], true),
            (vec![HELD_BYTES_MAX / 4; 4], false),
        ];
        for (records, expected) in table {
            assert_eq!(is_little(records.iter().copied()), expected, "{records:?}");
        }
    }
}
