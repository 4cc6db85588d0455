//! One stream: a request, and its response.
//!
//! A stream whose client takes its response too slowly, or not at all, is reset, as an HTTP/1.1 connection is
//! ([`pace`]). What `h2` holds of a response is bounded, and a response has not ended before all of it is sent or
//! discarded ([`progress`]). So no data is left in `h2` without a clock, and without a request that counts, in
//! [`crate::pipeline`] and in the memory budgets.
//!
//! A response takes, besides what it reads ahead, one chunk of its body in memory, at most a block of 2 MiB, and
//! [`SEND_BYTES_MAX`] of the chunk before it.
//!
//! Request bodies are not read: no request to the public listener has one.
//!
//! [`pace`]: crate::listen::http2::pace
//! [`progress`]: crate::listen::http2::progress

use crate::listen::connection::{ActiveExchange, Connection};
use crate::listen::http2::pace::{Pace, TooSlow};
use crate::listen::http2::progress::{ConnectionProgress, Piece, StreamProgress};
use crate::listen::server::{ConnectionLimits, RequestBody, Uncounted};
use bytes::Bytes;
use futures::FutureExt as _;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, DATE, HeaderMap, HeaderValue};
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Empty};
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of bytes for which a stream asks at a time, so that streams take turns. With the header of its frame,
/// such a piece is one TLS record.
pub(in crate::listen) const SEND_BYTES_MAX: usize = 16 * 1024 - 9;
/// The maximum number of bytes of one stream that wait for the socket.
pub(super) const UNSENT_BYTES_MAX: usize = 64 * 1024;
/// The length of chunks whose last piece is copied, so that it does not keep them in memory.
const COPIED_FROM_MIN: usize = 64 * 1024;
/// The maximum number of responses of a connection at a time that are not counted as requests in progress.
const UNCOUNTED_MAX: usize = 4;

/// What the streams of a connection share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    progress: Arc<ConnectionProgress>,
    uncounted: AtomicUsize,
}

/// Headers whose values differ from response to response. As literals that are never indexed (RFC 7541, section 6.2.3),
/// they do not replace the others in the table of the compression.
const NEVER_INDEXED: [&str; 5] = ["x-ipfs-path", "x-ipfs-roots", "server-timing", "surrogate-key", "cache-tag"];

/// Headers that belong to an HTTP/1.1 connection (RFC 9113, section 8.2.2).
const OF_CONNECTION: [&str; 4] = ["connection", "keep-alive", "transfer-encoding", "upgrade"];

/// Answers a request, whose exchange ends with its response.
///
/// # Errors
/// Why the connection must be closed: its client has left data in `h2` that a reset of the stream does not discard.
pub(super) async fn answer<H, F, B>(
    request: Request<RecvStream>,
    mut respond: SendResponse<Piece>,
    handler: &H,
    limits: &ConnectionLimits,
    (exchange, shared): (ActiveExchange, &Shared),
) -> Result<(), Reason>
where
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + Unpin,
{
    let request = request.map(|_| RequestBody::Right(Empty::new()));
    // Boxed, so that its memory is freed before the body is sent.
    let answering = Box::pin(handler(request, Arc::clone(exchange.connection())));
    let Some(response) = until_reset(answering, |cx| respond.poll_reset(cx).map(drop)).await else { return Ok(()) };
    let (mut head, mut body) = response.into_parts();
    let _uncounted = match head.extensions.remove::<Uncounted>() {
        None => None,
        Some(Uncounted) => match UncountedResponse::begin(&shared.uncounted) {
            Some(counted) => Some(counted),
            None => {
                respond.send_reset(Reason::REFUSED_STREAM);
                return Ok(());
            }
        },
    };
    complete_head(&mut head.headers, &body);
    limits.announce_http3(exchange.connection(), &mut head.headers);
    // A head waits for the socket only, and not for long if no write is pending. Otherwise the end of the stream is a
    // piece of its own, which tells when the head is sent.
    let ends = body.is_end_stream() && !exchange.connection().is_sending();
    let Ok(mut stream) = respond.send_response(Response::from_parts(head, ()), ends) else { return Ok(()) };
    if ends {
        return Ok(());
    }
    let progress = StreamProgress::begin(&shared.progress);
    if let Err(reason) = send_body(&mut body, &mut stream, &progress, limits).await {
        stream.send_reset(reason);
    }
    // The body holds the permit of the request and its memory budget until then.
    until_released(&progress, limits).await
}

/// Waits until `h2` holds nothing of a stream that has ended or was reset.
///
/// A reset discards all pieces but the one that is being written, which the timeouts of the socket end. If it was the
/// last one of its stream and the client shrinks the stream's window meanwhile, `h2` keeps the rest of it.
async fn until_released(progress: &Arc<StreamProgress>, limits: &ConnectionLimits) -> Result<(), Reason> {
    loop {
        if progress.holds_nothing() {
            return Ok(());
        }
        let mark = progress.mark();
        let released = poll_fn(|cx| progress.poll_held_at_most(0, cx));
        match tokio::time::timeout(limits.send_timeout, released).await {
            Ok(()) => return Ok(()),
            Err(_) if progress.since(&mark).bytes == 0 => {
                tracing::debug!("a client holds data of a stream that was reset: its connection is closed");
                return Err(Reason::ENHANCE_YOUR_CALM);
            }
            Err(_) => {}
        }
    }
}

/// A response that is not counted as a request in progress.
pub(in crate::listen) struct UncountedResponse<'a>(&'a AtomicUsize);

impl<'a> UncountedResponse<'a> {
    /// `None` if the connection has as many as it may have.
    pub(in crate::listen) fn begin(responses: &'a AtomicUsize) -> Option<Self> {
        let one_more = |count: usize| (count < UNCOUNTED_MAX).then_some(count + 1);
        responses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Self(responses))
    }
}

impl Drop for UncountedResponse<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits for a future; `None` if the client resets the stream first, or disconnects.
pub(in crate::listen) async fn until_reset<T>(
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
pub(in crate::listen) fn complete_head(headers: &mut HeaderMap, body: &impl Body) {
    OF_CONNECTION.iter().for_each(|name| _ = headers.remove(*name));
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    if let Some(now) = date() {
        headers.entry(DATE).or_insert(now);
    }
    for (name, value) in headers.iter_mut() {
        if NEVER_INDEXED.contains(&name.as_str()) {
            value.set_sensitive(true);
        }
    }
}

/// The time of a response, formatted once a second in each thread.
fn date() -> Option<HeaderValue> {
    thread_local!(static LAST: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) });
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
    LAST.with_borrow_mut(|last| match last {
        Some((of, value)) if *of == second => Some(value.clone()),
        _ => {
            let value = HeaderValue::from_str(&httpdate::fmt_http_date(now)).ok()?;
            *last = Some((second, value.clone()));
            Some(value)
        }
    })
}

/// Sends a body, and waits until all of it is sent.
///
/// # Errors
/// Why the stream must be reset: the body is incomplete, or the client is too slow.
async fn send_body<B>(
    body: &mut B,
    stream: &mut SendStream<Piece>,
    progress: &Arc<StreamProgress>,
    limits: &ConnectionLimits,
) -> Result<(), Reason>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut sending = Sending { stream, progress, pace: Pace::new(progress, limits) };
    loop {
        // The body itself reports its error.
        let frame = body.frame().map(|next| next.map(|frame| frame.map_err(drop)));
        let next = until_reset(frame, |cx| sending.stream.poll_reset(cx).map(drop)).await;
        let (chunk, is_last) = match next {
            // Nothing to send to.
            None => return Ok(()),
            Some(None) => (Bytes::new(), true),
            Some(Some(Err(()))) => return Err(Reason::INTERNAL_ERROR),
            Some(Some(Ok(frame))) => (frame.into_data().unwrap_or_default(), body.is_end_stream()),
        };
        let sent = sending.chunk(chunk, is_last).await.map_err(|too_slow| {
            tracing::debug!("{too_slow}");
            Reason::ENHANCE_YOUR_CALM
        })?;
        if is_last || !sent {
            return Ok(());
        }
    }
}

/// A stream that is sending a body.
struct Sending<'a> {
    stream: &'a mut SendStream<Piece>,
    progress: &'a Arc<StreamProgress>,
    pace: Pace,
}

impl Sending<'_> {
    /// Sends a chunk of the body, and waits until its memory is released; `false` if the stream has ended.
    async fn chunk(&mut self, mut chunk: Bytes, is_last: bool) -> Result<bool, TooSlow> {
        if chunk.is_empty() && is_last && !self.send(Bytes::new(), true) {
            return Ok(false);
        }
        // The end of the chunk before the last may wait for the socket while the next chunk is read.
        let copies_end = !is_last && chunk.len() >= COPIED_FROM_MIN;
        while !chunk.is_empty() {
            let Some(capacity) = self.capacity(chunk.len()).await? else { return Ok(false) };
            let mut piece = chunk.split_to(capacity.min(chunk.len()));
            if chunk.is_empty() && copies_end {
                piece = Bytes::copy_from_slice(&piece);
            }
            if !self.send(piece, is_last && chunk.is_empty()) {
                return Ok(false);
            }
        }
        let held_max = if is_last { 0 } else { SEND_BYTES_MAX };
        self.pace.wait(|cx| self.progress.poll_held_at_most(held_max, cx)).await?;
        Ok(true)
    }

    /// Hands bytes to `h2`; `false` if the client has reset the stream or disconnected.
    fn send(&mut self, bytes: Bytes, is_last: bool) -> bool {
        self.stream.send_data(Piece::new(bytes, self.progress), is_last).is_ok()
    }

    /// Waits until the client's windows and the socket admit some of `bytes`; `None` if the stream has ended.
    async fn capacity(&mut self, bytes: usize) -> Result<Option<usize>, TooSlow> {
        let Self { stream, progress, pace } = self;
        let bytes = bytes.min(SEND_BYTES_MAX);
        let admitted = pace.wait(|cx| {
            std::task::ready!(progress.poll_held_at_most(UNSENT_BYTES_MAX - bytes, cx));
            stream.reserve_capacity(bytes);
            poll_capacity(stream, cx)
        });
        Ok(admitted.await?.map(|capacity| capacity.min(bytes)))
    }
}

/// Ready when a stream has capacity; `None` if it has ended.
fn poll_capacity(stream: &mut SendStream<Piece>, cx: &mut Context<'_>) -> Poll<Option<usize>> {
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
        let shared = Shared::default();
        let size = size_of_output(|(request, respond, exchange)| {
            answer(request, respond, &handler, &limits, (exchange, &shared))
        });
        assert!(size < LARGE, "{size}");
    }
}
