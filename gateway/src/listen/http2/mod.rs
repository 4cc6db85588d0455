//! HTTP/2 on one connection: its requests at the same time, each in a stream.
//!
//! Goals: what a client can make the server hold or compute on one connection is bounded: the streams, their heads,
//! what is sent and not read ([`stream`]), and frames that are no request ([`frames`]); a client that does not read a
//! response loses its stream ([`pace`]), regardless of window updates; a response that cannot be completed ends in a
//! reset of its stream; a graceful drain lets open requests finish; responses that are ready at the same time are sent
//! together ([`cork`]).
//!
//! Departure: hyper serves HTTP/1.1 only. Its HTTP/2 server takes a chunk of each response before the client's window
//! admits it, and cannot reset a single stream whose client does not read.
//!
//! Non-goals: HTTP/2 without TLS, server push, priorities, tunnels.

mod cork;
mod frames;
pub(super) mod pace;
pub(super) mod progress;
pub(super) mod stream;
#[cfg(test)]
mod tests;

use self::cork::{Cork, Corked};
use self::frames::{MeteredFrames, Received};
use self::progress::Piece;
use crate::listen::connection::{ActiveExchange, Connection};
use crate::listen::drain::ShutdownSignal;
use crate::listen::server::{ConnectionLimits, RequestBody};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream};
use http::{Request, Response};
use http_body::Body;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// The maximum number of open streams. RFC 9113, section 6.5.2, recommends no less.
const STREAMS_MAX: u32 = 100;
/// The window of a request's body, in bytes. Bodies are not read.
const BODY_WINDOW_BYTES: u32 = 16 * 1024;
/// The maximum number of streams that a client has reset before they were answered (CVE-2023-44487), at a time.
const PENDING_RESETS_MAX: usize = 20;
/// The maximum number of streams that the server has reset because of errors of the client, over the connection.
const ERROR_RESETS_MAX: usize = 1024;
/// The time for a client to confirm the end of a connection, after which its requests are refused, and to receive the
/// last frames.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type Connected<I> = server::Connection<MeteredFrames<Corked<I>>, Piece>;

fn builder(limits: &ConnectionLimits) -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(BODY_WINDOW_BYTES)
        .max_header_list_size(u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX))
        .max_send_buffer_size(stream::UNSENT_BYTES_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(Some(ERROR_RESETS_MAX));
    builder
}

/// Serves the requests of a connection.
pub(super) async fn serve<I, H, F, B>(
    io: I,
    limits: &ConnectionLimits,
    handler: &H,
    stop: &ShutdownSignal,
    state: &Arc<Connection>,
) where
    I: AsyncRead + AsyncWrite + Unpin,
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + Unpin,
{
    state.multiplex();
    let mut requests = Requests::default();
    let io = MeteredFrames::new(Corked::new(io, &requests.cork, state), &requests.received);
    let mut overdue = pin!(state.head_overdue(limits.header_timeout));
    let mut ended = pin!(async {
        tokio::select! {
            () = state.evicted() => true,
            () = stop.wait() => false,
        }
    });
    let shaken = tokio::select! {
        shaken = builder(limits).handshake::<_, Piece>(io) => shaken,
        () = overdue.as_mut() => return,
        () = state.evicted() => return,
        // The first request may be on its way.
        () = async { stop.wait().await; state.unused_in_drain().await } => return,
    };
    let mut connection: Connected<I> = match shaken {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "a connection ended before its first request"),
    };
    let shared = stream::Shared::default();
    let mut answers = FuturesUnordered::new();
    let mut ending_since: Option<Instant> = None;
    let mut unconfirmed = pin!(state.head_overdue(CLOSE_TIMEOUT));
    let reason = loop {
        tokio::select! {
            // Requests that have arrived come before the ends of their connection.
            biased;
            Some(answered) = answers.next() => match answered {
                Ok(()) => {}
                Err(reason) => break reason,
            },
            accepted = poll_fn(|cx| requests.poll_next(&mut connection, cx)) => match accepted {
                // A client that does not confirm the end.
                Ok((_, mut respond)) if ending_since.is_some_and(|since| since.elapsed() >= CLOSE_TIMEOUT) => {
                    respond.send_reset(Reason::REFUSED_STREAM);
                }
                Ok((request, respond)) => {
                    let exchange = ActiveExchange::begin(state);
                    answers.push(Box::pin(stream::answer(request, respond, handler, limits, (exchange, &shared))));
                }
                Err(Some(reason)) => break reason,
                Err(None) => return,
            },
            () = overdue.as_mut() => break Reason::NO_ERROR,
            is_evicted = ended.as_mut(), if ending_since.is_none() => {
                if is_evicted && state.awaiting_head_since().is_some() {
                    break Reason::NO_ERROR;
                }
                if !is_evicted {
                    state.linger_on_close();
                }
                // Requests that the client has sent already are still answered.
                connection.graceful_shutdown();
                ending_since = Some(Instant::now());
            }
            // An idle client that does not confirm the end.
            () = unconfirmed.as_mut(), if ending_since.is_some() => break Reason::NO_ERROR,
        }
    };
    drop(answers);
    close(connection, reason).await;
}

/// What `h2` accepts.
type AcceptedByH2 = Result<(Request<RecvStream>, SendResponse<Piece>), h2::Error>;
/// A request, or why the connection must be closed; `None` if it is closed already.
type Accepted = Result<(Request<RecvStream>, SendResponse<Piece>), Option<Reason>>;

/// The requests of a connection.
#[derive(Default)]
struct Requests {
    received: Arc<Received>,
    /// How many of the received heads were returned, or were no requests.
    returned: u64,
    cork: Arc<Cork>,
}

impl Requests {
    /// Reads and writes frames until the next request.
    fn poll_next<I>(&mut self, connection: &mut Connected<I>, cx: &mut Context<'_>) -> Poll<Accepted>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        match self.poll_accept(connection, cx) {
            Poll::Ready(Some(Ok(request))) => {
                self.returned += 1;
                Poll::Ready(Ok(request))
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(%error, "a connection ended with an error");
                Poll::Ready(Err(None))
            }
            Poll::Ready(None) => Poll::Ready(Err(None)),
            Poll::Pending if self.received.is_exhausted() => {
                tracing::debug!("a client sent too many frames that are no request: the connection is closed");
                Poll::Ready(Err(Some(Reason::ENHANCE_YOUR_CALM)))
            }
            Poll::Pending => {
                self.returned = self.received.heads();
                Poll::Pending
            }
        }
    }

    /// Holds the connection while a request that is received waits to be returned: its response is sent together with
    /// those before it.
    fn poll_accept<I>(&self, connection: &mut Connected<I>, cx: &mut Context<'_>) -> Poll<Option<AcceptedByH2>>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        if self.received.heads() <= self.returned {
            return connection.poll_accept(cx);
        }
        self.cork.hold();
        let accepted = connection.poll_accept(cx);
        if self.cork.release() && accepted.is_pending() {
            return connection.poll_accept(cx);
        }
        accepted
    }
}

/// Sends the reason, and closes the connection.
async fn close<I: AsyncRead + AsyncWrite + Unpin>(mut connection: Connected<I>, reason: Reason) {
    connection.abrupt_shutdown(reason);
    // A client that does not read is disconnected all the same.
    _ = tokio::time::timeout(CLOSE_TIMEOUT, poll_fn(|cx| connection.poll_closed(cx))).await;
}
