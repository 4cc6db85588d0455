//! Answers in the format of Kubo's clients: one value, lines of values, or bytes.
//!
//! Goals: an error before the first line or byte has a status and a message of its own; an answer that fails later
//! never looks complete. For clients that accept trailers (`TE: trailers`, RFC 9110, section 6.5), the trailer
//! `X-Stream-Error` has the error, as in Kubo. For other clients the connection is reset in the middle of the body; an
//! answer of lines has the error as its last line, which the Go client recognises.

use crate::kubo_rpc::call::{Call, Encoding, StreamLimits};
use crate::kubo_rpc::problem::RpcError;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, TRAILER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use http_body::Frame;
use http_body_util::StreamBody;
use serde::Serialize;
use std::io;

/// The trailer with the error of an answer that fails after it began.
pub const STREAM_ERROR: HeaderName = HeaderName::from_static("x-stream-error");
/// Marks an answer of bytes.
const STREAM_OUTPUT: HeaderName = HeaderName::from_static("x-stream-output");
/// Marks an answer of several values.
const CHUNKED_OUTPUT: HeaderName = HeaderName::from_static("x-chunked-output");
/// The expected length of the answer in bytes.
pub const CONTENT_LENGTH_HINT: HeaderName = HeaderName::from_static("x-content-length");
/// The maximum length of an error in a trailer, in bytes.
const TRAILER_BYTES_MAX: usize = 1024;

/// What commands answer.
pub type Answer = Result<Response, RpcError>;

/// A value that a command answers with.
pub trait Output: Serialize {
    /// The text that Kubo's command line prints for it.
    fn text(&self) -> String;
}

/// The bytes of an answer, as a stream of chunks.
pub type Chunks = BoxStream<'static, Result<Bytes, RpcError>>;

/// Answers with one value.
pub fn once(call: &Call, value: &impl Output) -> Response {
    (headers(media_type(call.encoding)), write(call.encoding, value)).into_response()
}

/// Answers with values, each of which is sent as soon as it is available.
///
/// # Errors
/// The error of the first value.
pub async fn lines<T: Output + Send + 'static>(
    call: &Call,
    values: impl futures::Stream<Item = Result<T, RpcError>> + Send + 'static,
) -> Answer {
    let encoding = call.encoding;
    let chunks = values.map(move |value| value.map(|value| write(encoding, &value))).boxed();
    let mut response = stream(call, chunks, encoding == Encoding::Json).await?;
    response.headers_mut().extend(headers(media_type(encoding)));
    response.headers_mut().insert(CHUNKED_OUTPUT, HeaderValue::from_static("1"));
    Ok(response)
}

/// Answers with bytes.
///
/// # Errors
/// The error of the first chunk.
pub async fn bytes(call: &Call, media_type: &'static str, chunks: Chunks) -> Answer {
    let mut response = stream(call, chunks, false).await?;
    response.headers_mut().extend(headers(media_type));
    response.headers_mut().insert(STREAM_OUTPUT, HeaderValue::from_static("1"));
    Ok(response)
}

fn headers(media_type: &'static str) -> HeaderMap {
    HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // Untrusted content must not be rendered as a page of this listener.
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ])
}

fn media_type(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Json => "application/json",
        Encoding::Text => "text/plain",
    }
}

fn write(encoding: Encoding, value: &impl Output) -> Bytes {
    match encoding {
        Encoding::Text => value.text().into(),
        Encoding::Json => {
            // Values of numbers and strings always serialise.
            let mut line = serde_json::to_vec(value).unwrap_or_default();
            line.push(b'\n');
            line.into()
        }
    }
}

/// Answers with a stream of chunks, after its first chunk.
async fn stream(call: &Call, mut chunks: Chunks, has_lines: bool) -> Answer {
    let limits = call.limits();
    let first = limits.wait(chunks.next()).await?.transpose()?;
    let state = if first.is_some() { State::Streaming } else { State::Ended };
    let tail = ResponseStream { chunks, limits, has_lines, state };
    let rest = stream::unfold(tail, |mut tail| async move { Some((tail.next().await?, tail)) });
    let first = stream::iter(first.map(Part::Data));
    let frames = first.chain(rest).filter_map(|part| async {
        match part {
            Part::Data(bytes) | Part::ErrorLine(bytes) => Some(Ok(Frame::data(bytes))),
            Part::Trailer(message) => Some(Ok(Frame::trailers(HeaderMap::from_iter([(STREAM_ERROR, message)])))),
            Part::Broken => Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof))),
        }
    });
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    response.headers_mut().insert(TRAILER, HeaderValue::from_static("X-Stream-Error"));
    Ok(response)
}

/// The state of a streamed answer after its first chunk.
struct ResponseStream {
    chunks: Chunks,
    limits: StreamLimits,
    has_lines: bool,
    state: State,
}

enum State {
    Streaming,
    /// The error line is sent, and the body is aborted next.
    Aborting,
    Ended,
}

enum Part {
    Data(Bytes),
    /// The error as a line, after which the body is aborted.
    ErrorLine(Bytes),
    /// The error as a trailer.
    Trailer(HeaderValue),
    Broken,
}

impl ResponseStream {
    async fn next(&mut self) -> Option<Part> {
        match self.state {
            State::Ended => return None,
            State::Aborting => {
                // Lets the connection send the error line before it is reset.
                tokio::task::yield_now().await;
                self.state = State::Ended;
                return Some(Part::Broken);
            }
            State::Streaming => {}
        }
        let error = match self.limits.wait(self.chunks.next()).await {
            Ok(None) => {
                self.state = State::Ended;
                return None;
            }
            Ok(Some(Ok(bytes))) => return Some(Part::Data(bytes)),
            Ok(Some(Err(error))) | Err(error) => error,
        };
        tracing::debug!(%error, "an answer to a command was aborted");
        self.state = State::Ended;
        if self.limits.takes_trailers {
            return Some(Part::Trailer(trailer(&error.message)));
        }
        self.limits.reset_connection();
        if self.has_lines {
            self.state = State::Aborting;
            return Some(Part::ErrorLine(error.line().into()));
        }
        Some(Part::Broken)
    }
}

/// A message as a header value: invalid characters become spaces, and it is truncated.
fn trailer(message: &str) -> HeaderValue {
    let visible = message.chars().map(|c| if c.is_ascii_graphic() { c } else { ' ' }).take(TRAILER_BYTES_MAX);
    HeaderValue::from_str(&visible.collect::<String>()).unwrap_or(HeaderValue::from_static("the answer was aborted"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubo_rpc::command::{Answers, Arguments, Command, Input};
    use axum::extract::Request;
    use axum::http::header::TE;
    use gateway::listen::connection::Connection;
    use http_body_util::BodyExt as _;
    use std::sync::Arc;

    static COMMAND: Command = Command {
        path: "test",
        arguments: Arguments::NONE,
        options: &[],
        body: Input::Arguments,
        answers: Answers::Value,
    };

    #[derive(Serialize)]
    struct Number {
        number: u8,
    }

    impl Output for Number {
        fn text(&self) -> String {
            format!("{}!\n", self.number)
        }
    }

    fn call(query: &str, te: Option<&str>) -> Call {
        let mut request = Request::builder().uri(format!("/api/v0/test?{query}"));
        if let Some(te) = te {
            request = request.header(TE, te);
        }
        let request = request.extension(Arc::new(Connection::new(([127, 0, 0, 1], 1).into())));
        Call::of(&COMMAND, &request.body(()).expect("a request").into_parts().0).expect("a call")
    }

    fn numbers(until: u8, ends_well: bool) -> impl futures::Stream<Item = Result<Number, RpcError>> + Send + 'static {
        let end = (!ends_well).then(|| Err(RpcError::unprocessable("no more\nof them")));
        stream::iter((0..until).map(|number| Ok(Number { number })).chain(end))
    }

    #[tokio::test]
    async fn values_are_lines() {
        let response = lines(&call("", None), numbers(2, true)).await.expect("begins");
        assert_eq!(response.headers()["x-chunked-output"], "1");
        assert_eq!(response.headers()[TRAILER], "X-Stream-Error");
        let body = response.into_body().collect().await.expect("ends well").to_bytes();
        assert_eq!(body, "{\"number\":0}\n{\"number\":1}\n");
        let response = lines(&call("encoding=text", None), numbers(2, true)).await.expect("begins");
        assert_eq!(response.headers()[CONTENT_TYPE], "text/plain");
        assert_eq!(response.into_body().collect().await.expect("ends well").to_bytes(), "0!\n1!\n");
        let nothing = lines(&call("", None), numbers(0, true)).await.expect("begins");
        assert!(nothing.into_body().collect().await.expect("ends well").to_bytes().is_empty());
    }

    #[tokio::test]
    async fn an_error_before_the_first_value_has_a_status() {
        let error = lines(&call("", None), numbers(0, false)).await.expect_err("fails");
        assert_eq!(error.status, 422);
    }

    #[tokio::test]
    async fn an_answer_that_fails_later_never_looks_complete() {
        let mut body = lines(&call("", None), numbers(1, false)).await.expect("begins").into_body();
        let mut parts = Vec::new();
        while let Some(frame) = body.frame().await {
            parts.push(frame.map(|frame| frame.into_data().expect("data")));
        }
        let [Ok(_), Ok(message), Err(_)] = &parts[..] else { panic!("{parts:?}") };
        assert!(message.ends_with(b"\"Type\":\"error\"}\n"), "{message:?}");
        let chunks = stream::iter([Ok(Bytes::from_static(b"some")), Err(RpcError::unprocessable("gone"))]).boxed();
        let response = bytes(&call("", None), "text/plain", chunks).await.expect("begins");
        assert_eq!(response.headers()["x-stream-output"], "1");
        assert!(response.into_body().collect().await.is_err());
    }

    #[tokio::test]
    async fn clients_that_accept_trailers_receive_the_error_in_one() {
        let response = lines(&call("", Some("trailers")), numbers(1, false)).await.expect("begins");
        let body = response.into_body().collect().await.expect("ends well");
        assert_eq!(body.trailers().expect("trailers")[STREAM_ERROR], "no more of them");
        assert_eq!(body.to_bytes(), "{\"number\":0}\n");
    }
}
