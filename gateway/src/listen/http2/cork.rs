//! [`Corked`]: a connection on which responses that are ready at the same time are sent together.
//!
//! `h2` flushes what it writes after each frame of data, and whenever it waits for the next request. A
//! response of 4 KiB over TLS then costs a system call of its own, which is 30 % of the processor time for it. So while
//! a request that was received waits to be answered, the connection is held: a flush does nothing, and what is written
//! stays in the buffer of TLS, which encrypts it at once, and is bounded as before (64 KiB).
//! [`MonitoredStream`] sends it when there is enough of it ([`HELD_BYTES_MAX`]); the rest is sent when the connection
//! is released, before its task waits for anything.
//!
//! No bytes are copied for that. A single response is sent as soon as it was, in as many system calls.
//!
//! [`MonitoredStream`]: crate::listen::monitored::MonitoredStream
//! [`HELD_BYTES_MAX`]: crate::listen::monitored::HELD_BYTES_MAX

use crate::listen::connection::Connection;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether a connection is held. It is polled by one task, so the order of accesses does not matter.
#[derive(Debug, Default)]
pub(super) struct Cork {
    is_held: AtomicBool,
    /// Whether something was written that is not flushed.
    is_unflushed: AtomicBool,
}

impl Cork {
    /// Sends little until the release.
    pub fn hold(&self) {
        self.is_held.store(true, Ordering::Relaxed);
    }

    /// Ends a hold. Returns whether the connection must be flushed.
    pub fn release(&self) -> bool {
        self.is_held.store(false, Ordering::Relaxed);
        self.is_unflushed.load(Ordering::Relaxed)
    }
}

/// A connection that can be held.
pub(super) struct Corked<S> {
    stream: S,
    cork: Arc<Cork>,
    state: Arc<Connection>,
}

impl<S> Corked<S> {
    /// A stream of the connection `state`, which is held as `cork` says.
    pub fn new(stream: S, cork: &Arc<Cork>, state: &Arc<Connection>) -> Self {
        Self { stream, cork: Arc::clone(cork), state: Arc::clone(state) }
    }

    /// Writes. Only writes are held: TLS may have to send an alert while it reads.
    fn write(&mut self, write: impl FnOnce(&mut S) -> Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.state.hold_writes(self.cork.is_held.load(Ordering::Relaxed));
        let written = write(&mut self.stream);
        self.state.hold_writes(false);
        self.cork.is_unflushed.store(true, Ordering::Relaxed);
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Corked<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Corked<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write(|stream| Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(|stream| Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cork.is_held.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        std::task::ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.cork.is_unflushed.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn a_held_connection_is_flushed_after_its_release() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut buffered = tokio::io::BufWriter::new(near);
        let (cork, state) = (Arc::<Cork>::default(), Arc::new(Connection::new(([127, 0, 0, 1], 1).into())));
        let mut corked = Corked::new(&mut buffered, &cork, &state);
        assert!(!cork.release(), "nothing was written");
        cork.hold();
        corked.write_all(b"held").await.expect("writes");
        corked.flush().await.expect("flushes");
        let mut received = [0; 4];
        assert!(futures::poll!(Box::pin(far.read(&mut received))).is_pending(), "nothing is sent");
        assert!(!state.holds_writes(), "only while it is written to");
        assert!(cork.release());
        poll_fn(|cx| Pin::new(&mut corked).poll_flush(cx)).await.expect("flushes");
        far.read_exact(&mut received).await.expect("is sent");
        assert_eq!(&received, b"held");
        cork.hold();
        assert!(!cork.release(), "all is sent");
    }
}
