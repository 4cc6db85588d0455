//! One stream: a request, and its response.
//!
//! A stream whose client takes its response too slowly, or not at all, is reset by the same rule as over HTTP/2
//! ([`pace`]). What counts as sent is what QUIC has taken: that is at most a send window ahead of what the client has
//! acknowledged ([`SendWindow`]). The request ends, for its permit and its memory budget, when the client has
//! acknowledged all of the response.
//!
//! Request bodies are not read: no request to the public listener has one.
//!
//! [`pace`]: crate::listen::http2::pace
//! [`SendWindow`]: super::window::SendWindow

use super::Shared;
use super::load::StreamControl;
use super::transport::{AcceptedStream, RequestStream, StreamEnd, Transport};
use crate::listen::connection::{ActiveExchange, Connection};
use crate::listen::http2::pace::{Pace, TooSlow};
use crate::listen::http2::progress::{Piece, StreamProgress};
use crate::listen::http2::stream::{SEND_BYTES_MAX, UncountedResponse, complete_head, until_reset};
use crate::listen::server::{ConnectionLimits, RequestBody, Uncounted};
use bytes::Bytes;
use futures::FutureExt as _;
use h3::error::{Code, StreamError};
use h3::server::RequestResolver;
use http::header::{CONNECTION, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Empty};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The stream of `h3` on which a response is sent.
type Responding = h3::server::RequestStream<RequestStream, Piece>;

/// Without a minimum rate, how many send timeouts the acknowledgement of what is sent may take.
const TIMEOUTS_MAX: u32 = 10;

/// How the response to a request ended.
enum ResponseEnd {
    /// The client has received all of it.
    Received,
    /// The client has cancelled the request, or disconnected.
    Cancelled,
    /// The stream is reset with this code.
    Reset(Code),
}

/// Receives a request and answers it.
///
/// # Errors
/// Why the connection must be closed: its client cancels too many requests, or does not complete them.
pub(super) async fn answer<H, F, B>(
    resolver: RequestResolver<Transport, Piece>,
    accepted: AcceptedStream,
    handler: &H,
    limits: &ConnectionLimits,
    (state, shared): (&Arc<Connection>, &Shared),
) -> Result<(), Code>
where
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + Unpin,
{
    let AcceptedStream { control, mut end } = accepted;
    let load = &shared.load;
    let resolving = Box::pin(resolver.resolve_request());
    let (request, mut stream) = match tokio::time::timeout(limits.header_timeout, resolving).await {
        Ok(Ok(resolved)) => resolved,
        failed => {
            if let Ok(Err(error)) = failed {
                tracing::debug!(%error, "a stream ended without a valid request");
            }
            return load.incomplete().then_some(()).ok_or(Code::H3_EXCESSIVE_LOAD);
        }
    };
    control.head_is_complete();
    if is_malformed(request.headers()) {
        control.reset_with(Code::H3_MESSAGE_ERROR.value());
        return load.cancelled().then_some(()).ok_or(Code::H3_EXCESSIVE_LOAD);
    }
    let exchange = ActiveExchange::begin(state);
    let request = request.map(|()| RequestBody::Right(Empty::new()));
    // Boxed, so that its memory is freed before the body is sent.
    let answering = Box::pin(handler(request, Arc::clone(exchange.connection())));
    let answered = until_reset(answering, |cx| end.poll(cx).map(drop)).await;
    let responded = match answered {
        None => ResponseEnd::Cancelled,
        Some(response) => respond(response, &mut stream, &mut end, limits, shared).await,
    };
    match responded {
        ResponseEnd::Received => Ok(()),
        ResponseEnd::Cancelled => {
            control.reset_with(Code::H3_REQUEST_CANCELLED.value());
            load.cancelled().then_some(()).ok_or(Code::H3_EXCESSIVE_LOAD)
        }
        ResponseEnd::Reset(code) => {
            reset(stream, &control, code);
            Ok(())
        }
    }
}

/// Whether a request has fields of HTTP/1.1 connections, which HTTP/3 forbids (RFC 9114, section 4.2).
fn is_malformed(headers: &HeaderMap) -> bool {
    let of_connections = [CONNECTION, TRANSFER_ENCODING, UPGRADE].iter().any(|name| headers.contains_key(name))
        || ["keep-alive", "proxy-connection"].iter().any(|name| headers.contains_key(*name));
    of_connections || headers.get_all(TE).iter().any(|value| value != "trailers")
}

/// Resets a stream, which discards what is not sent.
fn reset(stream: Responding, control: &StreamControl, code: Code) {
    control.reset_with(code.value());
    drop(stream);
}

/// Sends a response.
async fn respond<B>(
    response: Response<B>,
    stream: &mut Responding,
    end: &mut StreamEnd,
    limits: &ConnectionLimits,
    shared: &Shared,
) -> ResponseEnd
where
    B: Body<Data = Bytes> + Unpin,
{
    let (mut head, mut body) = response.into_parts();
    let _uncounted = match head.extensions.remove::<Uncounted>() {
        None => None,
        Some(Uncounted) => match UncountedResponse::begin(&shared.uncounted) {
            Some(counted) => Some(counted),
            None => return ResponseEnd::Reset(Code::H3_REQUEST_REJECTED),
        },
    };
    complete_head(&mut head.headers, &body);
    let sending = stream.send_response(Response::from_parts(head, ()));
    match tokio::time::timeout(limits.send_timeout, sending).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return end_of(&error),
        Err(_) => return too_slow(TooSlow::Stalled),
    }
    let mut sent_bytes = 0;
    if !body.is_end_stream() {
        match send_body(&mut body, stream, end, limits, shared).await {
            Ok(sent) => sent_bytes = sent,
            Err(ended) => return ended,
        }
    }
    if let Err(error) = stream.finish().await {
        return end_of(&error);
    }
    // The body holds the permit of the request and its memory budget until then.
    let timeout = acknowledgement_timeout(limits, shared.window.bytes().min(sent_bytes));
    match tokio::time::timeout(timeout, poll_fn(|cx| end.poll(cx))).await {
        Ok(true) => ResponseEnd::Received,
        Ok(false) => ResponseEnd::Cancelled,
        Err(_) => too_slow(TooSlow::Stalled),
    }
}

/// How a response ends with an error of its stream.
fn end_of(error: &StreamError) -> ResponseEnd {
    match error {
        StreamError::RemoteTerminate { .. }
        | StreamError::ConnectionError { .. }
        | StreamError::RemoteClosing { .. } => ResponseEnd::Cancelled,
        error => {
            tracing::debug!(%error, "a response cannot be sent: its stream is reset");
            ResponseEnd::Reset(Code::H3_INTERNAL_ERROR)
        }
    }
}

fn too_slow(reason: TooSlow) -> ResponseEnd {
    tracing::debug!("{reason}");
    ResponseEnd::Reset(Code::H3_EXCESSIVE_LOAD)
}

/// How long the client may take to acknowledge what QUIC holds when a response ends: a send timeout, and the time in
/// which the minimum rate carries the window.
fn acknowledgement_timeout(limits: &ConnectionLimits, window_bytes: usize) -> Duration {
    let seconds = (window_bytes as u64).checked_div(limits.rate_min.bytes_per_second);
    let carried = seconds.map_or(Duration::MAX, Duration::from_secs);
    limits.send_timeout.saturating_add(carried).min(limits.send_timeout.saturating_mul(TIMEOUTS_MAX))
}

/// Sends a body; returns its length in bytes.
///
/// # Errors
/// How the response ended before all was sent.
async fn send_body<B>(
    body: &mut B,
    stream: &mut Responding,
    end: &mut StreamEnd,
    limits: &ConnectionLimits,
    shared: &Shared,
) -> Result<usize, ResponseEnd>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut sent_bytes = 0_usize;
    let progress = StreamProgress::begin(&shared.progress);
    let mut pace = Pace::new(&progress, limits);
    loop {
        // The body itself reports its error.
        let frame = body.frame().map(|next| next.map(|frame| frame.map_err(drop)));
        let mut chunk = match until_reset(frame, |cx| end.poll(cx).map(drop)).await {
            None => return Err(ResponseEnd::Cancelled),
            Some(None) => return Ok(sent_bytes),
            Some(Some(Err(()))) => return Err(ResponseEnd::Reset(Code::H3_INTERNAL_ERROR)),
            Some(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        };
        while !chunk.is_empty() {
            let piece = chunk.split_to(chunk.len().min(SEND_BYTES_MAX));
            sent_bytes = sent_bytes.saturating_add(piece.len());
            shared.window.adapt();
            {
                let mut sending = pin!(stream.send_data(Piece::new(piece, &progress)));
                let sent = pace.wait(|cx| sending.as_mut().poll(cx)).await.map_err(too_slow)?;
                sent.map_err(|error| end_of(&error))?;
            }
            others_turn().await;
        }
        if body.is_end_stream() {
            return Ok(sent_bytes);
        }
    }
}

/// Lets the other streams of the connection send, if they can.
async fn others_turn() {
    let mut had_turn = false;
    poll_fn(|cx| {
        if had_turn {
            return Poll::Ready(());
        }
        had_turn = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::rate::RateMin;

    #[test]
    fn the_last_acknowledgement_has_the_time_of_the_minimum_rate() {
        let second = Duration::from_secs(1);
        // The minimum rate, the window, and the timeout.
        let table = [(64, 0, 60), (1024, 65_536, 124), (64, 65_536, 600), (0, 65_536, 600)];
        for (bytes_per_second, window_bytes, expected) in table {
            let limits = ConnectionLimits {
                send_timeout: 60 * second,
                rate_min: RateMin { bytes_per_second, window: 60 * second },
                ..ConnectionLimits::of(&config::Http::default())
            };
            assert_eq!(acknowledgement_timeout(&limits, window_bytes), expected * second, "{bytes_per_second}");
        }
    }
}
