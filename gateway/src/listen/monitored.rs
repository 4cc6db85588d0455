//! [`MonitoredStream`]: a TCP stream with a write timeout and a minimum read rate of its client.
//!
//! It resets the connection if a response was aborted, so that an HTTP/1.0 client does not take the end of the
//! connection for the end of the content.

use crate::listen::connection::Connection;
use crate::listen::rate::{RateMeter, RateMin, too_slow};
use crate::listen::server::ConnectionLimits;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// A TCP stream with a write timeout and a minimum read rate of its client.
pub(super) struct MonitoredStream {
    stream: TcpStream,
    state: Arc<Connection>,
    send_timeout: Duration,
    rate_min: RateMin,
    rate: RateMeter,
    unsent: Option<Pin<Box<Sleep>>>,
}

impl MonitoredStream {
    /// A stream of the connection `state`.
    pub fn new(stream: TcpStream, limits: &ConnectionLimits, state: Arc<Connection>) -> Self {
        let (send_timeout, rate_min) = (limits.send_timeout, limits.rate_min);
        Self { stream, state, send_timeout, rate_min, rate: RateMeter::new(rate_min), unsent: None }
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
}

impl AsyncRead for MonitoredStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for MonitoredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_progress(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for MonitoredStream {
    fn drop(&mut self) {
        if self.state.is_reset() {
            _ = self.stream.set_zero_linger();
        }
    }
}
