//! [`Files`]: the files of a form (`multipart/form-data`, RFC 7578), as streams.
//!
//! Goals: files of any length are streamed in little memory; the length of a part's head is limited; a client that
//! stalls is timed out.
//!
//! Non-goals: folders and paths, which only `add` supports and [`services::uploads`] parses.

use crate::http::answer::{self, ErrorFormat, decoded};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::command::Command;
use crate::kubo_rpc::problem::RpcError;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use futures::future::poll_fn;
use futures::stream::{BoxStream, Stream, StreamExt as _};
use http_body::{Body as _, Frame};
use multer::{Field, Multipart};
use services::uploads::limits::import_memory_bytes;
use services::uploads::request_body::{RequestBody, StallTimer, boxed, broken};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// How long a client may stall while it sends the body.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum length of the head of a part, and of what follows the form, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The maximum length of arguments in a body, in bytes.
const TEXT_BYTES_MAX: usize = 64 * 1024;

/// The boundary of the parts, if a body is a form.
pub fn boundary(headers: &HeaderMap) -> Option<String> {
    let media_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    multer::parse_boundary(media_type).ok()
}

/// The files of a form, in order.
pub struct Files {
    form: Multipart<'static>,
    allowance: Arc<AtomicUsize>,
    rest: UnreadFormBody,
    /// The maximum memory of importing the files as CARs, and of decoding the body alone, in bytes.
    memory_bytes: (usize, usize),
}

/// The unread rest of the body of a form.
#[derive(Clone)]
pub struct UnreadFormBody(Arc<Mutex<Option<RequestBody>>>);

impl UnreadFormBody {
    fn take(&self) -> Body {
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        body.map_or_else(Body::empty, |body| Body::new(body.into_rest()))
    }

    /// The response to the client. After an error, the rest of the body is read and discarded for a while.
    pub fn answer(&self, done: Result<Response, RpcError>) -> Response {
        match done {
            Ok(response) => response,
            Err(error) => answer::with_lingering_read(error.into_response(), self.take()),
        }
    }
}

/// Parses the head of a request whose body is a form of files.
///
/// # Errors
/// The error response.
pub fn receive(command: &Command, request: Request) -> Result<(Call, Files), Response> {
    let (head, body) = request.into_parts();
    let body = decoded(&head.headers, body, ErrorFormat::Kubo)?;
    let read = |head: &Parts| {
        let call = Call::of(command, head)?;
        let message = "the command needs files: send them as multipart/form-data";
        Ok((call, boundary(&head.headers).ok_or_else(|| RpcError::bad_request(message))?))
    };
    match read(&head) {
        Ok((call, boundary)) => Ok((call, Files::new(body, boundary))),
        Err(error) => Err(RpcError::with_lingering_read(error, body)),
    }
}

impl Files {
    /// The files of a body.
    pub fn new(body: RequestBody, boundary: String) -> Self {
        Self::with_stall_timeout(body, boundary, STALL_TIMEOUT)
    }

    fn with_stall_timeout(body: RequestBody, boundary: String, stall_timeout: Duration) -> Self {
        let allowance = Arc::<AtomicUsize>::default();
        let memory_bytes = (import_memory_bytes(&body), body.decoder_bytes_max());
        let rest = UnreadFormBody(Arc::new(Mutex::new(Some(body))));
        let (body, left) = (rest.clone(), Arc::clone(&allowance));
        let stall = StallTimer::new(stall_timeout);
        let pieces = FormChunks { body, allowance: left, stall, yielded: false };
        Self { form: Multipart::new(pieces, boundary), allowance, rest, memory_bytes }
    }

    /// The maximum memory of importing the files as CARs, in bytes.
    pub fn import_memory_bytes(&self) -> usize {
        self.memory_bytes.0
    }

    /// The maximum memory of decoding the body, in bytes.
    pub fn decoder_bytes_max(&self) -> usize {
        self.memory_bytes.1
    }

    /// A handle of the unread rest of the body, to answer the client with.
    pub fn rest(&self) -> UnreadFormBody {
        self.rest.clone()
    }

    /// The next file. The unread rest of the previous file is skipped.
    ///
    /// # Errors
    /// The form is invalid, or the body cannot be read.
    pub async fn next(&mut self) -> Result<Option<File>, RpcError> {
        self.allowance.store(HEAD_BYTES_MAX, Ordering::Relaxed);
        let field = self.form.next_field().await.map_err(unreadable)?;
        self.allowance.store(usize::MAX, Ordering::Relaxed);
        if field.is_none() {
            self.read_epilogue().await?;
        }
        Ok(field.map(File))
    }

    /// Reads what follows the form to the end of the body, so that an encoded body with an invalid end is an error.
    async fn read_epilogue(&mut self) -> Result<(), RpcError> {
        let mut left = HEAD_BYTES_MAX;
        loop {
            let next = poll_fn(|cx| match &mut *self.rest.0.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(body) => Pin::new(body).poll_frame(cx),
                None => Poll::Ready(None),
            });
            let stalled = |_| unread(&io::Error::new(io::ErrorKind::TimedOut, "the client sent no end of it"));
            let next = tokio::time::timeout(STALL_TIMEOUT, next).await.map_err(stalled)?;
            let Some(frame) = next.transpose().map_err(|error| unread(&broken(error)))? else { return Ok(()) };
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            left = left.checked_sub(bytes).ok_or_else(|| {
                RpcError::bad_request(format!("the form is followed by more than {HEAD_BYTES_MAX} bytes"))
            })?;
        }
    }
}

/// A file of a form.
pub struct File(Field<'static>);

impl File {
    /// Reads the whole file, up to `bytes_max`.
    ///
    /// # Errors
    /// The file is too long, or the body cannot be read.
    pub async fn read(&mut self, bytes_max: usize) -> Result<Bytes, RpcError> {
        let mut read = BytesMut::new();
        while let Some(piece) = self.0.chunk().await.map_err(unreadable)? {
            if read.len() + piece.len() > bytes_max {
                let message = format!("a file has more than {bytes_max} bytes, the maximum for this command");
                return Err(RpcError { status: StatusCode::PAYLOAD_TOO_LARGE, message });
            }
            read.extend_from_slice(&piece);
        }
        Ok(read.freeze())
    }

    /// Its bytes, as a stream of chunks.
    pub fn into_pieces(self) -> BoxStream<'static, io::Result<Bytes>> {
        self.0.map(|piece| piece.map_err(cause)).boxed()
    }
}

/// The first file of a form, as text.
///
/// # Errors
/// The file is not UTF-8, is too long, or cannot be read.
pub async fn first_as_text(body: Body, boundary: String) -> Result<String, RpcError> {
    let mut files = Files::new(boxed(body), boundary);
    let Some(mut file) = files.next().await? else { return Ok(String::new()) };
    let text = file.read(TEXT_BYTES_MAX).await?;
    String::from_utf8(text.into()).map_err(|_| RpcError::bad_request("the arguments in the body are not UTF-8"))
}

/// The chunks of a body, for the form parser.
///
/// `multer` reads its stream until it is pending before it parses anything. So this stream is pending once after each
/// chunk, to make it parse; and while it searches for the next part, the number of bytes that it may buffer is limited.
struct FormChunks {
    body: UnreadFormBody,
    allowance: Arc<AtomicUsize>,
    stall: StallTimer,
    yielded: bool,
}

impl FormChunks {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let received = loop {
            let (next, received) = match &mut *self.body.0.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(body) => (Pin::new(&mut *body).poll_frame(cx), body.received()),
                None => (Poll::Ready(None), 0),
            };
            let Poll::Ready(next) = next else { break received };
            self.stall.stop();
            // Trailers are ignored.
            match next.map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Ok(Ok(piece))) => return Poll::Ready(Some(Ok(piece))),
                Some(Ok(Err(_))) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(broken(error)))),
            }
        };
        self.stall.poll_stalled(received, cx).map(|stalled| Some(Err(stalled)))
    }
}

impl Stream for FormChunks {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.yielded) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = std::task::ready!(self.poll_piece(cx));
        let Some(Ok(piece)) = &next else { return Poll::Ready(next) };
        self.yielded = true;
        let left = self.allowance.load(Ordering::Relaxed);
        if left == 0 {
            let message = format!("a part of the form has a head of more than {HEAD_BYTES_MAX} bytes");
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::InvalidData, message))));
        }
        // A chunk may contain the end of a head and much of a file.
        if left != usize::MAX {
            self.allowance.store(left.saturating_sub(piece.len()), Ordering::Relaxed);
        }
        Poll::Ready(next)
    }
}

fn unreadable(error: multer::Error) -> RpcError {
    match error {
        multer::Error::StreamReadFailed(_) => unread(&cause(error)),
        error => RpcError::bad_request(format!("the form cannot be read: {error}")),
    }
}

/// The error of the body, if that is why the form cannot be read.
fn cause(error: multer::Error) -> io::Error {
    match error {
        multer::Error::StreamReadFailed(error) => {
            error.downcast::<io::Error>().map_or_else(io::Error::other, |error| *error)
        }
        error => io::Error::other(error),
    }
}

/// The error of a body that could not be read to its end.
pub fn unread(error: &io::Error) -> RpcError {
    let status = match error.kind() {
        io::ErrorKind::TimedOut => StatusCode::REQUEST_TIMEOUT,
        _ => StatusCode::BAD_REQUEST,
    };
    RpcError { status, message: format!("the body cannot be read: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use proptest::prelude::*;

    fn form(parts: &[&[u8]]) -> Vec<u8> {
        let mut form = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            form.extend_from_slice(b"--xyz\r\nContent-Disposition: form-data; name=\"file");
            form.extend_from_slice(format!("-{index}\"; filename=\"\"\r\n").as_bytes());
            form.extend_from_slice(b"Content-Type: application/octet-stream\r\n\r\n");
            form.extend_from_slice(part);
            form.extend_from_slice(b"\r\n");
        }
        form.extend_from_slice(b"--xyz--\r\n");
        form
    }

    fn files(body: Vec<u8>, piece_bytes: usize) -> Files {
        let pieces = body.chunks(piece_bytes).map(|piece| io::Result::Ok(Bytes::copy_from_slice(piece)));
        let pieces: Vec<_> = pieces.collect();
        Files::new(boxed(Body::from_stream(stream::iter(pieces))), "xyz".to_owned())
    }

    async fn read_all(mut files: Files) -> Result<Vec<Bytes>, RpcError> {
        let mut all = Vec::new();
        while let Some(mut file) = files.next().await? {
            all.push(file.read(1 << 20).await?);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn files_are_read_in_order_with_chunks_of_any_size() {
        let long = vec![b'\r'; 200_000];
        for piece_bytes in [1 << 20, 4096, 7] {
            let found = read_all(files(form(&[b"one", b"", &long]), piece_bytes)).await.expect("reads");
            assert_eq!(found, [&b"one"[..], b"", &long], "{piece_bytes}");
        }
        assert!(read_all(files(form(&[]), 5)).await.expect("reads").is_empty());
    }

    #[tokio::test]
    async fn invalid_forms_and_files_that_are_too_long_are_rejected() {
        let head = |media_type: &str| HeaderMap::from_iter([(CONTENT_TYPE, media_type.parse().expect("a value"))]);
        assert_eq!(boundary(&HeaderMap::new()), None);
        assert_eq!(boundary(&head("multipart/form-data")), None);
        assert_eq!(boundary(&head("multipart/form-data; boundary=xyz")).as_deref(), Some("xyz"));
        let whole = form(&[b"one"]);
        for cut in [0, 10, whole.len() - 12] {
            let error = read_all(files(whole[..cut].to_vec(), 100)).await.expect_err("cut");
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{cut}");
        }
        let mut all = files(form(&[b"12345"]), 100);
        let mut file = all.next().await.expect("reads").expect("a file");
        assert_eq!(file.read(4).await.expect_err("too long").status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn a_client_that_stalls_is_timed_out() {
        let silent = stream::iter([io::Result::Ok(Bytes::from_static(b"--xyz\r\n"))]).chain(stream::pending());
        let body = boxed(Body::from_stream(silent));
        let files = Files::with_stall_timeout(body, "xyz".to_owned(), Duration::from_millis(20));
        let error = read_all(files).await.expect_err("it never ends");
        assert_eq!(error.status, StatusCode::REQUEST_TIMEOUT, "{error}");
    }

    #[tokio::test]
    async fn an_endless_head_is_not_buffered() {
        let endless = [&b"--xyz\r\nX: "[..], &vec![b'y'; 1 << 20]].concat();
        let error = read_all(files(endless, 8 * 1024)).await.expect_err("endless");
        assert!(error.message.contains("head"), "{error}");
    }

    proptest! {
        #[test]
        fn no_body_panics(
            body in prop::collection::vec(prop_oneof![Just(b'-'), Just(b'\r'), Just(b'\n'), any::<u8>()], 0..200),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let body = [&b"--xyz\r\n"[..], &body].concat();
            // Constructing the reader creates a timer, which needs the runtime.
            _ = runtime.block_on(async { read_all(files(body, 16)).await });
        }
    }
}
