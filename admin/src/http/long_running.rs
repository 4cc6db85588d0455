//! Shared by long-running operations: a permit of a concurrency limiter, cancellation-safe tasks, and progress as JSON
//! lines.

use crate::http::answer::{ApiError, stopping};
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

/// The interval of progress lines.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// The media type of JSON lines.
const LINES: &str = "application/x-ndjson";

/// A permit for a long-running operation.
///
/// # Errors
/// 429: with `message` if all permits are in use, and with a message of its own if the token has used up its share.
pub fn acquire(
    limiter: &Arc<Limiter>,
    bearer: &Principal,
    message: impl FnOnce() -> String,
) -> Result<Permit, ApiError> {
    limiter.try_acquire(bearer).map_err(|full| {
        let message = match full {
            Full::All => message(),
            Full::Client => {
                "this token has as many such operations running as one token may have: try again when one has ended"
                    .to_owned()
            }
        };
        ApiError(StatusCode::TOO_MANY_REQUESTS, message)
    })
}

/// Runs work as a cancellation-safe task: it runs to completion even if the client disconnects, and holds its permit
/// until then.
///
/// # Errors
/// 503 if the task is aborted.
pub async fn run_to_completion<T: Send + 'static>(
    permit: impl Send + 'static,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, ApiError> {
    let working = tokio::spawn(async move {
        let done = work.await;
        drop(permit);
        done
    });
    working.await.map_err(|_| stopping())
}

/// A JSON line.
pub fn line(view: &impl Serialize) -> Bytes {
    // A view of numbers and strings always serialises.
    let mut text = serde_json::to_vec(view).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

/// JSON lines as an answer that no cache stores.
pub fn lines(lines: Body) -> Response {
    ([(CONTENT_TYPE, LINES), (CACHE_CONTROL, "no-store")], lines).into_response()
}
