//! What operations that take long have in common: a place among so many, work that goes on without whoever asked for it,
//! and lines of JSON that tell how far it has come.

use crate::http::answer::{Refusal, stopping};
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde::Serialize;
use services::access::Principal;
use services::limiter::{Full, Limiter, Permit};
use std::sync::Arc;
use std::time::Duration;

/// How often it is told how far an operation has come.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// The media type of lines of JSON.
const LINES: &str = "application/x-ndjson";

/// A permit for an operation that takes long.
///
/// # Errors
/// 429: with the words if there are no more, and with others for a token that has its share.
pub fn place(limiter: &Arc<Limiter>, bearer: &Principal, words: impl FnOnce() -> String) -> Result<Permit, Refusal> {
    limiter.try_acquire(bearer).map_err(|full| {
        let words = match full {
            Full::All => words(),
            Full::Client => {
                "this token has as many such operations under way as one token may have: try again when one has ended"
                    .to_owned()
            }
        };
        Refusal(StatusCode::TOO_MANY_REQUESTS, words)
    })
}

/// Work that goes on when whoever asked for it leaves, and keeps its place until it is done.
///
/// # Errors
/// 503 if it came to no end.
pub async fn apart<T: Send + 'static>(
    place: impl Send + 'static,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Refusal> {
    let working = tokio::spawn(async move {
        let done = work.await;
        drop(place);
        done
    });
    working.await.map_err(|_| stopping())
}

/// A line of JSON.
pub fn line(view: &impl Serialize) -> Bytes {
    // A view of numbers and texts can be written.
    let mut text = serde_json::to_vec(view).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

/// Lines of JSON as an answer, which nobody keeps.
pub fn lines(lines: Body) -> Response {
    ([(CONTENT_TYPE, LINES), (CACHE_CONTROL, "no-store")], lines).into_response()
}
