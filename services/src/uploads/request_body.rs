//! [`RequestBody`]: the body of a request, decoded while it is read; and [`Upload`]: a reader of it, with a timeout if
//! the client stalls.
//!
//! A body with `Content-Encoding: zstd` is decoded before anything else sees it, so limits, quotas and progress count
//! decoded bytes, and a bomb ends at the first limit that it exceeds. At most [`PIECE_BYTES`] are decoded at a time.
//! What a client sends after a failure is read and discarded without decoding it.
//!
//! Non-goals: other codings, which are rejected with 415 and `Accept-Encoding: zstd` (RFC 9110, section 15.5.16).

use bytes::Bytes;
use content::stored::coding::{BodyDecoder, CodingError, DECODER_BYTES_MAX, ZSTD};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::coop;
use tokio::time::{Instant, Sleep};

/// The timeout of a read while the client sends nothing. Time in which the gateway does not read does not count.
const STALL: Duration = Duration::from_secs(60);
/// The maximum number of bytes that are decoded at a time.
const PIECE_BYTES: usize = 128 * 1024;

/// Why reading a body failed.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// The content coding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyCoding {
    /// The body is the content itself.
    Identity,
    /// The body is zstd (RFC 8878).
    Zstd,
}

/// The content coding of a body is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a body with \"Content-Encoding: {0}\" is not supported: send it as {ZSTD} or uncompressed")]
pub struct UnsupportedCoding(String);

impl BodyCoding {
    /// The coding that the headers of a request name.
    ///
    /// # Errors
    /// [`UnsupportedCoding`], also for several codings.
    pub fn of(headers: &HeaderMap) -> Result<Self, UnsupportedCoding> {
        let values = headers.get_all(CONTENT_ENCODING).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        let codings = values.collect::<Vec<_>>().join(", ");
        match codings.trim() {
            "" => Ok(Self::Identity),
            coding if coding.eq_ignore_ascii_case("identity") => Ok(Self::Identity),
            coding if coding.eq_ignore_ascii_case(ZSTD) => Ok(Self::Zstd),
            other => Err(UnsupportedCoding(other.chars().take(80).collect())),
        }
    }
}

/// The body of a request, independent of the HTTP library.
pub struct RequestBody {
    body: UnsyncBoxBody<Bytes, BodyError>,
    state: BodyState,
    /// The number of pieces that were received. Several of them may be decoded to one.
    received: u64,
}

enum BodyState {
    /// The body is passed on as it is.
    Plain,
    /// The body is decoded; the decoder is created with the first piece.
    Encoded(Option<Box<Decoding>>),
    /// Decoding failed.
    Failed,
}

/// A body that is being decoded.
struct Decoding {
    decoder: BodyDecoder,
    /// What was received and not decoded.
    input: Bytes,
    /// Whether the whole body was received.
    is_received: bool,
}

/// Converts the body of a request of any HTTP library, whose content is not encoded.
pub fn boxed<B>(body: B) -> RequestBody
where
    B: http_body::Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
{
    RequestBody::new(body, BodyCoding::Identity)
}

impl RequestBody {
    /// Converts the body of a request of any HTTP library.
    pub fn new<B>(body: B, coding: BodyCoding) -> Self
    where
        B: http_body::Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
    {
        let state = match coding {
            BodyCoding::Identity => BodyState::Plain,
            BodyCoding::Zstd => BodyState::Encoded(None),
        };
        Self { body: body.map_err(Into::into).boxed_unsync(), state, received: 0 }
    }

    /// The number of pieces that were received so far, by which a reader knows that the client has not stalled.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The unread rest, as the client sends it, to be discarded.
    #[must_use]
    pub fn into_rest(self) -> Self {
        Self { state: BodyState::Plain, ..self }
    }

    /// The maximum memory that decoding takes, in bytes.
    pub fn decoder_bytes_max(&self) -> usize {
        match self.state {
            BodyState::Plain => 0,
            BodyState::Encoded(_) | BodyState::Failed => DECODER_BYTES_MAX + PIECE_BYTES,
        }
    }

    /// The next decoded piece; `None` at the end of a complete body.
    fn poll_decoded(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let BodyState::Encoded(decoding) = &mut self.state else {
            return Poll::Ready(Some(Err(CodingError::Truncated.into())));
        };
        let decoding = match decoding {
            Some(decoding) => decoding,
            None => decoding.insert(Box::new(Decoding {
                decoder: BodyDecoder::new()?,
                input: Bytes::new(),
                is_received: false,
            })),
        };
        loop {
            // A body that decodes to much is always ready, so it yields in between.
            let progress = ready!(coop::poll_proceed(cx));
            let mut piece = Vec::with_capacity(PIECE_BYTES);
            decoding.decoder.decode(&mut decoding.input, &mut piece)?;
            progress.made_progress();
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(piece.into())));
            }
            if decoding.is_received {
                decoding.decoder.finish()?;
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => decoding.is_received = true,
                // Trailers are ignored.
                Some(frame) => {
                    self.received += 1;
                    decoding.input = frame?.into_data().unwrap_or_default();
                }
            }
        }
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if matches!(self.state, BodyState::Plain) {
            return Pin::new(&mut self.body).poll_frame(cx);
        }
        let next = ready!(self.poll_decoded(cx));
        if matches!(next, Some(Err(_))) {
            self.state = BodyState::Failed;
        }
        Poll::Ready(next.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.state, BodyState::Plain) && self.body.is_end_stream()
    }

    /// The length of an encoded body says nothing about that of its content.
    fn size_hint(&self) -> SizeHint {
        if matches!(self.state, BodyState::Plain) { self.body.size_hint() } else { SizeHint::default() }
    }
}

/// The timer of a reader of a body, which ends if the client sends nothing. Time in which the gateway does not read does
/// not count.
pub struct StallTimer {
    timeout: Duration,
    sleep: Pin<Box<Sleep>>,
    /// The number of pieces that were received when the timer was set.
    waiting_since: Option<u64>,
}

impl StallTimer {
    /// A timer that is not running.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, sleep: Box::pin(tokio::time::sleep(timeout)), waiting_since: None }
    }

    /// Stops the timer: there was something to read.
    pub fn stop(&mut self) {
        self.waiting_since = None;
    }

    /// Waits for the client, from which so many pieces were [received](RequestBody::received): the time begins with
    /// each of them. Completes with the error when the client has stalled.
    pub fn poll_stalled(&mut self, received: u64, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.waiting_since.replace(received) != Some(received) {
            let until = Instant::now() + self.timeout;
            self.sleep.as_mut().reset(until);
        }
        ready!(self.sleep.as_mut().poll(cx));
        let words = format!("the client sent nothing for {} s", self.timeout.as_secs());
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, words))
    }
}

/// A body that is read in a streaming fashion: only the last piece is buffered.
pub struct Upload {
    body: RequestBody,
    piece: Bytes,
    stall: StallTimer,
}

impl Upload {
    /// Reads a body.
    pub fn new(body: RequestBody) -> Self {
        Self::with_timeout(body, STALL)
    }

    fn with_timeout(body: RequestBody, timeout: Duration) -> Self {
        Self { body, piece: Bytes::new(), stall: StallTimer::new(timeout) }
    }

    /// The unread rest of the body, as the client sends it.
    pub fn into_rest(self) -> RequestBody {
        self.body.into_rest()
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        while let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(cx) {
            self.stall.stop();
            let Some(frame) = next.transpose().map_err(broken)? else { return Poll::Ready(Ok(None)) };
            // Trailers are ignored.
            if let Ok(piece) = frame.into_data() {
                return Poll::Ready(Ok(Some(piece)));
            }
        }
        self.stall.poll_stalled(self.body.received(), cx).map(Err)
    }
}

/// Whether reading a body failed because its content coding is invalid, and not because it was interrupted.
pub fn is_coding_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<CodingError>())
}

/// Converts the error of a body: [`io::ErrorKind::TimedOut`] if the client is too slow, which its connection reports
/// with the same kind, or [`io::ErrorKind::ConnectionAborted`].
pub fn broken(error: BodyError) -> io::Error {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(found) = cause {
        match found.downcast_ref::<io::Error>() {
            Some(slow) if slow.kind() == io::ErrorKind::TimedOut => {
                return io::Error::new(io::ErrorKind::TimedOut, slow.to_string());
            }
            _ => cause = found.source(),
        }
    }
    io::Error::new(io::ErrorKind::ConnectionAborted, error)
}

impl AsyncRead for Upload {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.piece.is_empty() {
            match ready!(self.poll_piece(cx))? {
                Some(piece) => self.piece = piece,
                None => return Poll::Ready(Ok(())),
            }
        }
        let taken = self.piece.len().min(buf.remaining());
        buf.put_slice(&self.piece.split_to(taken));
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::io::AsyncReadExt as _;

    fn body_of(pieces: impl futures::Stream<Item = io::Result<Bytes>> + Send + 'static) -> RequestBody {
        boxed(StreamBody::new(pieces.map(|piece| piece.map(Frame::data))))
    }

    fn pieces(pieces: &[&'static str]) -> Vec<io::Result<Bytes>> {
        pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect()
    }

    #[tokio::test]
    async fn a_body_is_read_and_its_unread_rest_returned() {
        let mut upload = Upload::new(body_of(stream::iter(pieces(&["one", "", "two", "three"]))));
        let mut read = [0; 5];
        upload.read_exact(&mut read).await.expect("it was sent");
        assert_eq!(&read, b"onetw");
        let rest = upload.into_rest().collect().await.expect("reads").to_bytes();
        assert_eq!(rest, "three");
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let values = values.iter().map(|value| (CONTENT_ENCODING, value.parse().expect("a value")));
        let mut headers = HeaderMap::new();
        values.for_each(|(name, value)| _ = headers.append(name, value));
        headers
    }

    #[test]
    fn zstd_is_the_only_coding() {
        let table: [(&[&str], Option<BodyCoding>); 12] = [
            (&[], Some(BodyCoding::Identity)),
            (&[""], Some(BodyCoding::Identity)),
            (&["Identity"], Some(BodyCoding::Identity)),
            (&["zstd"], Some(BodyCoding::Zstd)),
            (&[" ZStd "], Some(BodyCoding::Zstd)),
            (&["gzip"], None),
            (&["br"], None),
            (&["x-zstd"], None),
            (&["zstd, zstd"], None),
            (&["zstd", "zstd"], None),
            (&["gzip", "zstd"], None),
            (&["zstd;q=1"], None),
        ];
        for (values, expected) in table {
            assert_eq!(BodyCoding::of(&headers(values)).ok(), expected, "{values:?}");
        }
        let error = BodyCoding::of(&headers(&["gzip"])).expect_err("unsupported");
        assert!(error.to_string().contains("gzip") && error.to_string().contains("zstd"), "{error}");
    }

    fn zstd(content: &[u8]) -> Bytes {
        let mut encoder = content::stored::coding::BodyEncoder::new().expect("memory");
        let mut parts = encoder.encode(&Bytes::copy_from_slice(content)).expect("memory");
        parts.extend(encoder.finish().expect("memory"));
        parts.concat().into()
    }

    /// An encoded body in pieces of so many bytes.
    fn encoded(body: &Bytes, piece_bytes: usize) -> RequestBody {
        let pieces: Vec<io::Result<Bytes>> = body.chunks(piece_bytes).map(|piece| Ok(body.slice_ref(piece))).collect();
        RequestBody::new(StreamBody::new(stream::iter(pieces).map(|piece| piece.map(Frame::data))), BodyCoding::Zstd)
    }

    async fn read(body: RequestBody) -> Result<Vec<u8>, io::Error> {
        let mut read = Vec::new();
        Upload::new(body).read_to_end(&mut read).await.map(|_| read)
    }

    #[tokio::test]
    async fn an_encoded_body_is_decoded_in_pieces() {
        let content = b"what was sent. ".repeat(100_000);
        for piece_bytes in [1, 1000, 1 << 20] {
            let mut body = encoded(&zstd(&content), piece_bytes);
            assert_eq!((body.size_hint().lower(), body.size_hint().upper(), body.is_end_stream()), (0, None, false));
            assert!(body.decoder_bytes_max() > 8 << 20);
            let first = body.frame().await.expect("a frame").expect("decodes").into_data().expect("data");
            assert!(first.len() <= PIECE_BYTES && content.starts_with(&first));
            assert!(read(encoded(&zstd(&content), piece_bytes)).await.expect("decodes") == content);
        }
        assert_eq!(read(encoded(&zstd(b""), 3)).await.expect("decodes"), b"");
        assert_eq!(boxed(http_body_util::Full::from("plain")).decoder_bytes_max(), 0);
    }

    #[tokio::test]
    async fn an_invalid_encoded_body_is_an_error_that_says_so() {
        let whole = zstd(&b"what was sent. ".repeat(1000));
        let table = [
            ("nothing", Bytes::new(), "truncated"),
            ("half", whole.slice(..whole.len() / 2), "truncated"),
            ("all but a byte", whole.slice(..whole.len() - 1), "truncated"),
            ("garbage behind it", [&whole[..], b"garbage"].concat().into(), "something else follows"),
            ("the content itself", Bytes::from_static(b"what was sent"), "not zstd"),
        ];
        for (name, body, words) in table {
            let error = read(encoded(&body, 100)).await.expect_err(name);
            assert!(error.to_string().contains(words), "{name}: {error}");
        }
        // Its error does not go away, and the rest is what the client sent.
        let mut body = encoded(&Bytes::from_static(b"garbage and more of it"), 8);
        for _ in 0..2 {
            assert!(body.frame().await.expect("a frame").is_err());
        }
        assert_eq!(body.into_rest().collect().await.expect("reads").to_bytes(), "and more of it");
    }

    #[tokio::test]
    async fn the_rest_of_an_encoded_body_is_not_decoded() {
        let bomb = zstd(&vec![0; 64 << 20]);
        let mut body = encoded(&bomb, 1000);
        body.frame().await.expect("a frame").expect("decodes");
        let rest = body.into_rest().collect().await.expect("reads").to_bytes();
        assert!(rest.len() + 1000 >= bomb.len() && rest.len() < bomb.len(), "{} of {}", rest.len(), bomb.len());
    }

    #[tokio::test]
    async fn a_stalled_client_times_out() {
        let silent = stream::iter(pieces(&["one", "two"])).chain(stream::pending());
        let mut upload = Upload::with_timeout(body_of(silent), Duration::from_millis(10));
        let mut read = Vec::new();
        let error = upload.read_to_end(&mut read).await.expect_err("it never ends");
        assert_eq!((error.kind(), &read[..]), (io::ErrorKind::TimedOut, &b"onetwo"[..]));
        // A client that sends slowly has not stalled, though nothing can be decoded yet.
        let whole = zstd(&(0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<_>>());
        let slow: Vec<Bytes> = whole.chunks(whole.len() / 20).map(Bytes::copy_from_slice).collect();
        let slow = stream::iter(slow).then(|piece| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, io::Error>(Frame::data(piece))
        });
        let body = RequestBody::new(StreamBody::new(slow), BodyCoding::Zstd);
        let mut upload = Upload::with_timeout(body, Duration::from_secs(1));
        let mut content = Vec::new();
        assert_eq!(upload.read_to_end(&mut content).await.expect("it does not stall"), 100_000);
        for (kind, expected) in [
            (io::ErrorKind::Other, io::ErrorKind::ConnectionAborted),
            (io::ErrorKind::TimedOut, io::ErrorKind::TimedOut),
        ] {
            let broken = stream::iter([Err::<Bytes, _>(io::Error::new(kind, "what went wrong"))]);
            let error = Upload::new(body_of(broken)).read_to_end(&mut read).await.expect_err("broken off");
            assert_eq!(error.kind(), expected);
        }
    }
}
