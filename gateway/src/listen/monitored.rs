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
