//! One stream: reading, writing, half-closing, and bytes that were moved out of QUIC.

use super::budget::{Limits, Reserved};
use futures::{AsyncRead, AsyncWrite};
use quinn::{RecvStream, SendStream, VarInt};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// How many bytes are moved out of QUIC at a time.
const MOVED_BYTES: usize = 64 * 1024;
/// After how many ticks a stream is stopped that is not read and for whose bytes there is no memory. Readers of
/// messages wait as long for memory ([`crate::framing`]).
const UNREAD_TICKS_MAX: u32 = 12;

/// A stream. Dropping it stops the peer's half and closes its own.
pub struct Stream {
    send: SendStream,
    receive: Arc<ReceiveHalf>,
    limits: Arc<Limits>,
    is_closed: bool,
}

/// The half of a stream that the connection has access to as well.
pub(super) struct ReceiveHalf {
    state: Mutex<ReceiveState>,
}

struct ReceiveState {
    receive: RecvStream,
    /// Bytes that were moved out of QUIC.
    moved: VecDeque<Moved>,
    /// The reader that waits for bytes.
    reader: Option<Waker>,
    /// Ticks since the stream was last read.
    unread_ticks: u32,
    is_stopped: bool,
}

/// At most [`MOVED_BYTES`] that were moved out of QUIC.
struct Moved {
    bytes: Vec<u8>,
    read: usize,
    _reserved: Reserved,
}

impl Stream {
    pub(super) fn new(send: SendStream, receive: RecvStream, limits: Arc<Limits>) -> Self {
        let state = ReceiveState { receive, moved: VecDeque::new(), reader: None, unread_ticks: 0, is_stopped: false };
        Self { send, receive: Arc::new(ReceiveHalf { state: Mutex::new(state) }), limits, is_closed: false }
    }

    pub(super) fn receive_half(&self) -> &Arc<ReceiveHalf> {
        &self.receive
    }
}

impl ReceiveHalf {
    /// Moves bytes out of QUIC if the stream was not read since the last tick.
    pub(super) fn tick(&self, limits: &Limits) {
        let mut state = self.state();
        state.unread_ticks = state.unread_ticks.saturating_add(1);
        if state.unread_ticks > 1 && !state.is_stopped {
            state.move_out(limits);
        }
    }

    fn state(&self) -> MutexGuard<'_, ReceiveState> {
        // No code that holds the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceiveState {
    /// Reads bytes that were moved out of QUIC.
    fn read_moved(&mut self, buffer: &mut [u8]) -> usize {
        let Some(moved) = self.moved.front_mut() else { return 0 };
        let unread = &moved.bytes[moved.read..];
        let bytes = unread.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&unread[..bytes]);
        moved.read += bytes;
        if moved.read == moved.bytes.len() {
            self.moved.pop_front();
        }
        bytes
    }

    fn move_out(&mut self, limits: &Limits) {
        // The stream tells the waiting reader of the next bytes, and there is one reader at a time.
        let reader = self.reader.clone().unwrap_or_else(|| Waker::noop().clone());
        let mut cx = Context::from_waker(&reader);
        let mut part = [0; 4096];
        loop {
            let room = self.moved.back().map_or(0, |last| MOVED_BYTES - last.bytes.len());
            let reserved = if room == 0 { limits.share().reserve(MOVED_BYTES as u64) } else { None };
            let is_room = room > 0 || reserved.is_some();
            if !is_room && self.unread_ticks < UNREAD_TICKS_MAX {
                return;
            }
            let length = if room == 0 { part.len() } else { room.min(part.len()) };
            // The end of the stream and its errors are for the reader, whom QUIC tells of them again.
            let Poll::Ready(Ok(read @ 1..)) = self.receive.poll_read(&mut cx, &mut part[..length]) else { return };
            if !is_room {
                self.stop();
                reader.wake_by_ref();
                return;
            }
            if let Some(reserved) = reserved {
                let bytes = Vec::with_capacity(MOVED_BYTES);
                self.moved.push_back(Moved { bytes, read: 0, _reserved: reserved });
            }
            if let Some(last) = self.moved.back_mut() {
                last.bytes.extend_from_slice(&part[..read]);
            }
        }
    }

    /// Gives the stream up for want of memory.
    fn stop(&mut self) {
        tracing::debug!("a QUIC stream is stopped: it is not read, and there is no memory for its bytes");
        self.is_stopped = true;
        self.moved.clear();
        // An error means that the stream has ended already.
        let _ = self.receive.stop(VarInt::from_u32(0));
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut state = self.receive.state();
        state.unread_ticks = 0;
        if state.is_stopped {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let moved = state.read_moved(buffer);
        if moved > 0 {
            return Poll::Ready(Ok(moved));
        }
        match state.receive.poll_read(cx, buffer) {
            Poll::Pending => {
                match &mut state.reader {
                    Some(reader) => reader.clone_from(cx.waker()),
                    None => state.reader = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            Poll::Ready(read) => {
                state.reader = None;
                drop(state);
                let read = read?;
                self.limits.count_read(read);
                Poll::Ready(Ok(read))
            }
        }
    }
}

impl Stream {
    fn write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut polled = Pin::new(&mut self.send).poll_write(cx, bytes);
        if polled.is_pending() && self.limits.raise_send_limit() {
            polled = Pin::new(&mut self.send).poll_write(cx, bytes);
        }
        if let Poll::Ready(Ok(written)) = polled {
            self.limits.count_written(written);
        }
        polled.map_err(io::Error::from)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, bytes)
    }

    /// Small parts are written together, so that they are sent in one packet.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut total = 0;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            match self.write(cx, part) {
                Poll::Ready(Ok(written)) => {
                    total += written;
                    if written < part.len() {
                        break;
                    }
                }
                // The next write reports it again.
                _ if total > 0 => break,
                other => return other,
            }
        }
        Poll::Ready(Ok(total))
    }

    /// QUIC sends what is written without being told to.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Closes this half of the stream. The other half can still be read.
    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_closed {
            self.is_closed = true;
            self.send.finish().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        }
        Poll::Ready(Ok(()))
    }
}
