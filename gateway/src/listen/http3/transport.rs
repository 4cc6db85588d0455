//! [`Transport`]: QUIC by quinn, as `h3` uses it.
//!
//! Goals: a response ends as complete only if it is finished explicitly; what `h3` reads is bounded ([`ClientLoad`]);
//! what is sent is counted as over HTTP/2 ([`Piece`]).
//!
//! Departure: `h3-quinn` does the same without these bounds. With it, a response that is dropped ends as if it were
//! complete, since quinn finishes streams that are dropped; and it panics if a stream is refused while it is read.

use super::frames::ControlFrames;
use super::load::{ClientLoad, StreamControl};
use super::var_int;
use crate::listen::http2::progress::Piece;
use bytes::{Buf as _, Bytes};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, RecvStream as _, StreamErrorIncoming, StreamId, WriteBuf};
use quinn::{ConnectionError, ReadError, WriteError};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

/// The size of a read.
const READ_BYTES: usize = 4096;

/// A QUIC connection as `h3` uses it.
pub(super) struct Transport {
    connection: quinn::Connection,
    requests: BoxStream<'static, Result<(quinn::SendStream, quinn::RecvStream), ConnectionError>>,
    others: BoxStream<'static, Result<quinn::RecvStream, ConnectionError>>,
    opener: Opener,
    load: Arc<ClientLoad>,
    accepted: Accepted,
}

/// The request stream that was accepted last, as it is known here: `h3` hides it.
#[derive(Clone, Default)]
pub(super) struct Accepted(Arc<Mutex<Option<AcceptedStream>>>);

/// A request stream beside what `h3` knows of it.
pub(super) struct AcceptedStream {
    pub control: Arc<StreamControl>,
    pub end: StreamEnd,
}

impl Accepted {
    /// Takes the stream that was accepted last.
    pub fn take(&self) -> Option<AcceptedStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The end of a stream's response, from the view of the client.
pub(super) struct StreamEnd {
    end: BoxFuture<'static, bool>,
    /// Whether all was received, once it is known.
    known: Option<bool>,
}

impl StreamEnd {
    fn of(stream: &quinn::SendStream) -> Self {
        // `None` is the acknowledgement of all data.
        let end = stream.stopped().map(|stopped| matches!(stopped, Ok(None))).boxed();
        Self { end, known: None }
    }

    /// Ready when the client has acknowledged all of the response (`true`), or has cancelled it or disconnected.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if let Some(known) = self.known {
            return Poll::Ready(known);
        }
        let received = ready!(self.end.as_mut().poll(cx));
        self.known = Some(received);
        Poll::Ready(received)
    }
}

impl Transport {
    /// The transport of a connection, and where it leaves its accepted streams.
    pub fn new(connection: quinn::Connection, load: &Arc<ClientLoad>) -> (Self, Accepted) {
        let requests = futures::stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_bi().await, connection))
        });
        let others = futures::stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_uni().await, connection))
        });
        let (opener, accepted) = (Opener { connection: connection.clone(), opening: None }, Accepted::default());
        let transport = Self {
            connection,
            requests: requests.boxed(),
            others: others.boxed(),
            opener,
            load: Arc::clone(load),
            accepted: accepted.clone(),
        };
        (transport, accepted)
    }
}

/// Closes a connection whose client sends too much of what is no request.
fn close_overloaded(connection: &quinn::Connection) {
    tracing::debug!("a client sent too much that is no request: its connection is closed");
    connection.close(var_int(Code::H3_EXCESSIVE_LOAD.value()), b"");
}

impl quic::Connection<Piece> for Transport {
    type RecvStream = Receiver;
    type OpenStreams = Opener;

    fn poll_accept_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Receiver, ConnectionErrorIncoming>> {
        let Some(accepted) = ready!(self.others.poll_next_unpin(cx)) else { return Poll::Pending };
        let stream = accepted.map_err(connection_error)?;
        if !self.load.stream_without_request() {
            close_overloaded(&self.connection);
        }
        let (load, connection) = (Arc::clone(&self.load), self.connection.clone());
        let meter = Meter::Other { load, connection, frames: ControlFrames::default() };
        Poll::Ready(Ok(Receiver { stream, has_ended: false, meter }))
    }

    fn poll_accept_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<RequestStream, ConnectionErrorIncoming>> {
        let Some(accepted) = ready!(self.requests.poll_next_unpin(cx)) else { return Poll::Pending };
        let (send, stream) = accepted.map_err(connection_error)?;
        let control = StreamControl::new(&self.load, Code::H3_INTERNAL_ERROR.value());
        let end = StreamEnd::of(&send);
        *self.accepted.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(AcceptedStream { control: Arc::clone(&control), end });
        let sender = Sender { stream: send, writing: None, has_written: false, request: Some(Arc::clone(&control)) };
        let receiver = Receiver { stream, has_ended: false, meter: Meter::Request(control) };
        Poll::Ready(Ok(RequestStream { sender, receiver }))
    }

    fn opener(&self) -> Opener {
        Opener { connection: self.connection.clone(), opening: None }
    }
}

impl quic::OpenStreams<Piece> for Transport {
    type BidiStream = RequestStream;
    type SendStream = Sender;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<RequestStream, StreamErrorIncoming>> {
        self.opener.poll_open_bidi(cx)
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<Sender, StreamErrorIncoming>> {
        self.opener.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.opener.close(code, reason);
    }
}

/// Opens the server's own streams.
pub(super) struct Opener {
    connection: quinn::Connection,
    opening: Option<BoxFuture<'static, Result<quinn::SendStream, ConnectionError>>>,
}

impl quic::OpenStreams<Piece> for Opener {
    type BidiStream = RequestStream;
    type SendStream = Sender;

    fn poll_open_bidi(&mut self, _cx: &mut Context<'_>) -> Poll<Result<RequestStream, StreamErrorIncoming>> {
        Poll::Ready(Err(StreamErrorIncoming::Unknown("a server sends no requests".into())))
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<Sender, StreamErrorIncoming>> {
        let connection = &self.connection;
        let opening = self.opening.get_or_insert_with(|| {
            let connection = connection.clone();
            async move { connection.open_uni().await }.boxed()
        });
        let opened = ready!(opening.as_mut().poll(cx));
        self.opening = None;
        let error = |error| StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(error) };
        let sender = |stream| Sender { stream, writing: None, has_written: false, request: None };
        Poll::Ready(opened.map(sender).map_err(error))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.connection.close(var_int(code.value()), reason);
    }
}

/// A stream with a request, and its response.
pub(super) struct RequestStream {
    sender: Sender,
    receiver: Receiver,
}

impl quic::RecvStream for RequestStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.receiver.poll_data(cx)
    }

    fn stop_sending(&mut self, code: u64) {
        self.receiver.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.receiver.recv_id()
    }
}

impl quic::SendStream<Piece> for RequestStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.sender.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Piece>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.sender.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.sender.poll_finish(cx)
    }

    fn reset(&mut self, code: u64) {
        self.sender.reset(code);
    }

    fn send_id(&self) -> StreamId {
        self.sender.send_id()
    }
}

/// The sending half of a stream. That of a response is reset when it is dropped, unless the client has received all of
/// it.
///
/// Departure: `h3` itself answers a head that is too long with 431 and without a body, and drops the stream, which is
/// finished then.
pub(super) struct Sender {
    stream: quinn::SendStream,
    writing: Option<WriteBuf<Piece>>,
    has_written: bool,
    /// `None` for a stream of the connection, which lasts as long as it.
    request: Option<Arc<StreamControl>>,
}

impl quic::SendStream<Piece> for Sender {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        while let Some(writing) = self.writing.as_mut().filter(|writing| writing.has_remaining()) {
            // It is copied, so that no more is held of a block than what is not acknowledged.
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, writing.chunk())).map_err(write_error)?;
            writing.advance(written);
            self.has_written = true;
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Piece>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        if self.writing.is_some() {
            return Err(StreamErrorIncoming::Unknown("a frame was abandoned before it was sent".into()));
        }
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        Poll::Ready(self.stream.finish().map_err(|error| StreamErrorIncoming::Unknown(Box::new(error))))
    }

    fn reset(&mut self, code: u64) {
        // A stream that has ended needs none.
        _ = self.stream.reset(var_int(code));
    }

    fn send_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let is_431 = |control: &Arc<StreamControl>| !control.has_head() && self.has_written && self.writing.is_none();
        if let Some(control) = self.request.as_ref().filter(|control| !is_431(control)) {
            // Without effect after a reset, and after the acknowledgement of all data.
            _ = self.stream.reset(var_int(control.reset_code()));
        }
    }
}

/// What is received on a stream counts as.
enum Meter {
    /// The head of a request.
    Request(Arc<StreamControl>),
    /// No request: the streams for control, QPACK and what is not known.
    Other { load: Arc<ClientLoad>, connection: quinn::Connection, frames: ControlFrames },
}

/// The receiving half of a stream.
pub(super) struct Receiver {
    stream: quinn::RecvStream,
    has_ended: bool,
    meter: Meter,
}

impl quic::RecvStream for Receiver {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        if self.has_ended {
            return Poll::Ready(Ok(None));
        }
        // Copied into one piece, whatever frames it came in.
        let mut bytes = [0; READ_BYTES];
        let count = ready!(self.stream.poll_read(cx, &mut bytes)).map_err(read_error)?;
        if count == 0 {
            self.has_ended = true;
            return Poll::Ready(Ok(None));
        }
        match &mut self.meter {
            Meter::Request(control) if !control.take_head_bytes(count) => {
                tracing::debug!("the head of a request is too long (http.head_bytes_max): its stream is reset");
                let code = Code::H3_EXCESSIVE_LOAD.value();
                control.reset_with(code);
                self.stop_sending(code);
                return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated { error_code: code }));
            }
            Meter::Request(_) => {}
            Meter::Other { load, connection, frames } => {
                if !load.bytes_without_request(count) || !frames.take(&bytes[..count]) {
                    close_overloaded(connection);
                }
            }
        }
        Poll::Ready(Ok(Some(Bytes::copy_from_slice(&bytes[..count]))))
    }

    fn stop_sending(&mut self, code: u64) {
        self.has_ended = true;
        // Without effect if the client has ended the stream.
        _ = self.stream.stop(var_int(code));
    }

    fn recv_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // No error: the response needs no more of the request (RFC 9114, section 4.1).
        self.stop_sending(Code::H3_NO_ERROR.value());
    }
}

fn stream_id(id: quinn::StreamId) -> StreamId {
    StreamId::try_from(u64::from(id)).unwrap_or_else(|_| unreachable!("IDs of QUIC streams are below 2^62"))
}

fn connection_error(error: ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose { error_code: close.error_code.into() }
        }
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        error => ConnectionErrorIncoming::Undefined(Arc::new(error)),
    }
}

fn read_error(error: ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() },
        ReadError::ConnectionLost(error) => {
            StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(error) }
        }
        error => StreamErrorIncoming::Unknown(Box::new(error)),
    }
}

fn write_error(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() },
        WriteError::ConnectionLost(error) => {
            StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(error) }
        }
        error => StreamErrorIncoming::Unknown(Box::new(error)),
    }
}
