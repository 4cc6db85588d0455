//! One stream: reading, writing, half-closing, and bytes that were spilled from QUIC.

use super::budget::Reserved;
use super::flow_control::FlowControl;
use futures::{AsyncRead, AsyncWrite};
use quinn::{ReadError, RecvStream, SendStream, VarInt};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// How many bytes are spilled at a time. Memory is reserved for as many, so few, because a peer may leave many streams
/// with a single byte.
pub(super) const PIECE_BYTES: usize = 4 * 1024;
/// After how many ticks a stream is stopped that is not read and for whose bytes there is no memory. Readers of
/// messages wait as long for memory ([`crate::framing`]).
const REFUSED_TICKS_MAX: u32 = 12;

/// A stream. Dropping it stops the peer's half and closes its own.
pub struct Stream {
    send: SendStream,
    receive: Arc<ReceiveHalf>,
    flow_control: Arc<FlowControl>,
    is_closed: bool,
}

/// The half of a stream that the connection has access to as well.
pub(super) struct ReceiveHalf {
    state: Mutex<ReceiveState>,
}

struct ReceiveState {
    receive: RecvStream,
    /// Bytes that were spilled from QUIC, which precede those that QUIC has.
    spilled: VecDeque<Piece>,
    /// The error after that. QUIC reports it once, and then the end of the stream.
    failed: Option<ReadError>,
    /// The reader that waits for bytes.
    reader: Option<Waker>,
    /// Ticks since the stream was last read, and how many of them found bytes and no memory.
    unread_ticks: u32,
    refused_ticks: u32,
    is_stopped: bool,
}

/// Bytes that were spilled from QUIC.
struct Piece {
    bytes: Vec<u8>,
    capacity: usize,
    read: usize,
    _reserved: Option<Reserved>,
}

impl Piece {
    fn new(capacity: usize, reserved: Option<Reserved>) -> Self {
        Self { bytes: Vec::with_capacity(capacity), capacity, read: 0, _reserved: reserved }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() == self.capacity
    }
}

impl Stream {
    pub(super) fn new(send: SendStream, receive: RecvStream, flow_control: Arc<FlowControl>) -> Self {
        let state = ReceiveState {
            receive,
            spilled: VecDeque::new(),
            failed: None,
            reader: None,
            unread_ticks: 0,
            refused_ticks: 0,
            is_stopped: false,
        };
        Self { send, receive: Arc::new(ReceiveHalf { state: Mutex::new(state) }), flow_control, is_closed: false }
    }

    pub(super) fn receive_half(&self) -> &Arc<ReceiveHalf> {
        &self.receive
    }
}

impl ReceiveHalf {
    /// Spills bytes from QUIC if the stream was not read since the last tick.
    pub(super) fn tick(&self, flow_control: &FlowControl) {
        let mut state = self.state();
        state.unread_ticks = state.unread_ticks.saturating_add(1);
        if state.unread_ticks > 1 && !state.is_stopped && state.failed.is_none() {
            state.spill(flow_control);
        }
    }

    fn state(&self) -> MutexGuard<'_, ReceiveState> {
        // No code that holds the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceiveState {
    /// Reads bytes that were spilled.
    fn read_spilled(&mut self, buffer: &mut [u8]) -> usize {
        let Some(piece) = self.spilled.front_mut() else { return 0 };
        let unread = &piece.bytes[piece.read..];
        let bytes = unread.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&unread[..bytes]);
        piece.read += bytes;
        if piece.read == piece.bytes.len() {
            self.spilled.pop_front();
        }
        bytes
    }

    /// Spills all bytes that QUIC has. Without memory for them, the stream is stopped if that happens often.
    fn spill(&mut self, flow_control: &FlowControl) {
        // QUIC wakes the waiting reader for the next bytes, and there is one reader at a time.
        let reader = self.reader.clone().unwrap_or_else(|| Waker::noop().clone());
        loop {
            let piece = match self.spilled.pop_back() {
                Some(last) if !last.is_full() => last,
                full => {
                    self.spilled.extend(full);
                    let Some(reserved) = flow_control.reserve_spilled(PIECE_BYTES) else { break };
                    Piece::new(PIECE_BYTES, Some(reserved))
                }
            };
            if !self.fill(piece, &reader, flow_control) {
                return;
            }
        }
        // A single byte shows whether there are any. Few of them need no reservation.
        if self.fill(Piece::new(1, None), &reader, flow_control) {
            self.refused_ticks += 1;
            if self.refused_ticks >= REFUSED_TICKS_MAX {
                flow_control.count_stopped();
                self.stop();
                reader.wake_by_ref();
            }
        }
    }

    /// Fills a piece, and keeps it if it then has bytes. Returns whether QUIC had any for it.
    fn fill(&mut self, mut piece: Piece, reader: &Waker, flow_control: &FlowControl) -> bool {
        let start = piece.bytes.len();
        piece.bytes.resize(piece.capacity, 0);
        let read = match self.receive.poll_read(&mut Context::from_waker(reader), &mut piece.bytes[start..]) {
            Poll::Ready(Ok(read)) => read,
            Poll::Ready(Err(error)) => {
                self.failed = Some(error);
                reader.wake_by_ref();
                0
            }
            Poll::Pending => 0,
        };
        piece.bytes.truncate(start + read);
        flow_control.count_spilled(read);
        if !piece.bytes.is_empty() {
            self.spilled.push_back(piece);
        }
        read > 0
    }

    /// Stops the stream because the budget is exhausted.
    fn stop(&mut self) {
        tracing::debug!("a QUIC stream is stopped: it is not read, and there is no memory for its bytes");
        self.is_stopped = true;
        self.spilled.clear();
        // An error means that the stream has ended already.
        let _ = self.receive.stop(VarInt::from_u32(0));
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        flow_control: &FlowControl,
    ) -> Poll<io::Result<usize>> {
        (self.unread_ticks, self.refused_ticks) = (0, 0);
        if self.is_stopped {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let spilled = self.read_spilled(buffer);
        if spilled > 0 {
            return Poll::Ready(Ok(spilled));
        }
        if let Some(error) = &self.failed {
            return Poll::Ready(Err(error.clone().into()));
        }
        let Poll::Ready(read) = self.receive.poll_read(cx, buffer) else {
            match &mut self.reader {
                Some(reader) => reader.clone_from(cx.waker()),
                None => self.reader = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        };
        self.reader = None;
        let read = read.inspect_err(|error| self.failed = Some(error.clone()))?;
        flow_control.count_read(read);
        Poll::Ready(Ok(read))
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.receive.state().poll_read(cx, buffer, &self.flow_control)
    }
}

impl Stream {
    fn write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut polled = Pin::new(&mut self.send).poll_write(cx, bytes);
        if polled.is_pending() && self.flow_control.grow_send_window() {
            polled = Pin::new(&mut self.send).poll_write(cx, bytes);
        }
        if let Poll::Ready(Ok(written)) = polled {
            self.flow_control.count_written(written);
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
            self.send.finish().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            self.is_closed = true;
        }
        Poll::Ready(Ok(()))
    }
}
