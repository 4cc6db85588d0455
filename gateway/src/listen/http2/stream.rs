//! One stream: a request, and its response.
//!
//! A stream whose client takes its response too slowly, or not at all, is reset, as an HTTP/1.1 connection is. To know
//! what the client takes, no more bytes are handed to `h2` than the client's windows admit.
//!
//! Limitation: `h2` keeps what it was handed if the client shrinks the windows of its streams afterwards, and a response
//! from memory has no part in the memory budgets. Both are bounded by the number of streams only, so HTTP/2 is off by
//! default (`http.http2`).
//!
//! Request bodies are not read: no request to the public listener has one.

use crate::listen::connection::{ActiveExchange, Connection};
use crate::listen::rate::{RateMeter, RateMin};
use crate::listen::server::{ConnectionLimits, RequestBody};
use bytes::Bytes;
use futures::FutureExt as _;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, DATE, HeaderMap, HeaderValue};
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Empty};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The number of bytes for which a stream asks at a time, so that streams take turns.
const SEND_BYTES_MAX: usize = 16 * 1024;

/// Headers that belong to an HTTP/1.1 connection (RFC 9113, section 8.2.2).
const OF_CONNECTION: [&str; 4] = ["connection", "keep-alive", "transfer-encoding", "upgrade"];

/// Answers a request, whose exchange ends with its response.
pub(super) async fn answer<H, F, B>(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    handler: &H,
    limits: &ConnectionLimits,
    exchange: ActiveExchange,
) where
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + Unpin,
{
    let request = request.map(|_| RequestBody::Right(Empty::new()));
    // Boxed, so that its memory is freed before the body is sent.
    let answering = Box::pin(handler(request, Arc::clone(exchange.connection())));
    let Some(response) = until_reset(answering, |cx| respond.poll_reset(cx).map(drop)).await else { return };
    let (mut head, body) = response.into_parts();
    complete_head(&mut head.headers, &body);
    let ends = body.is_end_stream();
    let Ok(mut stream) = respond.send_response(Response::from_parts(head, ()), ends) else { return };
    if !ends && let Err(reason) = send_body(body, &mut stream, limits).await {
        stream.send_reset(reason);
    }
}

/// Waits for a future; `None` if the client resets the stream first, or disconnects.
async fn until_reset<T>(
    future: impl Future<Output = T>,
    mut reset: impl FnMut(&mut Context<'_>) -> Poll<()>,
) -> Option<T> {
    let mut future = pin!(future);
    let either = poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => reset(cx).map(|()| None),
    });
    either.await
}

/// Adds and removes headers as hyper does for HTTP/1.1.
fn complete_head(headers: &mut HeaderMap, body: &impl Body) {
    OF_CONNECTION.iter().for_each(|name| _ = headers.remove(*name));
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    if let Ok(now) = HeaderValue::from_str(&httpdate::fmt_http_date(SystemTime::now())) {
        headers.entry(DATE).or_insert(now);
    }
}

/// Sends a body to its end.
///
/// # Errors
/// Why the stream must be reset: the body is incomplete, or the client is too slow.
async fn send_body<B>(mut body: B, stream: &mut SendStream<Bytes>, limits: &ConnectionLimits) -> Result<(), Reason>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut pace = Pace { rate: RateMeter::new(limits.rate_min), min: limits.rate_min, timeout: limits.send_timeout };
    loop {
        // The body itself reports its error.
        let frame = body.frame().map(|next| next.map(|frame| frame.map_err(drop)));
        let next = until_reset(frame, |cx| stream.poll_reset(cx).map(drop)).await;
        let mut data = match next {
            // Nothing to send to.
            None => return Ok(()),
            Some(None) => return end(stream, Bytes::new()),
            Some(Some(Err(()))) => return Err(Reason::INTERNAL_ERROR),
            Some(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        };
        while !data.is_empty() {
            let Some(capacity) = pace.capacity(stream, data.len()).await? else { return Ok(()) };
            let piece = data.split_to(capacity.min(data.len()));
            if data.is_empty() && body.is_end_stream() {
                return end(stream, piece);
            }
            if stream.send_data(piece, false).is_err() {
                return Ok(());
            }
        }
    }
}

/// Sends the last bytes. An error means that the client has reset the stream or disconnected.
fn end(stream: &mut SendStream<Bytes>, last: Bytes) -> Result<(), Reason> {
    _ = stream.send_data(last, true);
    Ok(())
}

/// The rate at which a client takes a response.
struct Pace {
    rate: RateMeter,
    min: RateMin,
    timeout: Duration,
}

impl Pace {
    /// Waits until the client's windows admit some of `bytes`; `None` if the stream has ended.
    ///
    /// # Errors
    /// The reason to reset the stream if the client is too slow.
    async fn capacity(&mut self, stream: &mut SendStream<Bytes>, bytes: usize) -> Result<Option<usize>, Reason> {
        stream.reserve_capacity(bytes.min(SEND_BYTES_MAX));
        let mut waiting = pin!(capacity(stream));
        let admitted = match futures::poll!(waiting.as_mut()) {
            Poll::Ready(admitted) => admitted,
            Poll::Pending => {
                self.rate.start_wait(Instant::now());
                let Ok(admitted) = tokio::time::timeout(self.timeout, waiting).await else {
                    tracing::debug!(
                        "a client did not read a response (http.send_timeout_seconds): its stream is reset"
                    );
                    return Err(Reason::ENHANCE_YOUR_CALM);
                };
                admitted
            }
        };
        let sufficient = self.rate.record(admitted.unwrap_or_default().min(bytes), Instant::now());
        if admitted.is_some() && !sufficient {
            tracing::debug!(
                min = self.min.bytes_per_second,
                "a client read a response too slowly: its stream is reset"
            );
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        Ok(admitted)
    }
}

/// Waits for capacity of a stream; `None` if it has ended.
async fn capacity(stream: &mut SendStream<Bytes>) -> Option<usize> {
    let more = poll_fn(|cx| {
        loop {
            match stream.capacity() {
                0 => {}
                capacity => return Poll::Ready(Some(capacity)),
            }
            match std::task::ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(None),
            }
        }
    });
    more.await
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    fn size_of_output<A, R>(_: impl FnOnce(A) -> R) -> usize {
        size_of::<R>()
    }

    #[test]
    fn an_answer_has_no_room_for_its_handler() {
        const LARGE: usize = 1 << 16;
        let handler = |_, _| async {
            let large = [0_u8; LARGE];
            tokio::task::yield_now().await;
            std::hint::black_box(large);
            Response::new(Full::new(Bytes::new()))
        };
        let limits = ConnectionLimits::of(&config::Http::default());
        let size = size_of_output(|(request, respond, exchange)| answer(request, respond, &handler, &limits, exchange));
        assert!(size < LARGE, "{size}");
    }
}
