//! What the admin API answers: JSON, and for what goes wrong `{"error": "…"}` with words that say what to do.
//!
//! Goals: whoever sends a large body hears why it is refused. An answer that ends before the body does would have the system
//! reset the connection under it, and the words would be lost; so what still comes is read for a while, and thrown away.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cache::StoreError;
use futures::future::ready;
use futures::stream::{self, StreamExt as _};
use http_body::Body as _;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a sender may be silent before nothing more is expected of it, once it was answered.
const SILENCE: Duration = Duration::from_secs(1);
/// How long one is listened to that goes on sending.
const LINGER: Duration = Duration::from_secs(30);
/// When whoever finds everything busy is to come back, in seconds.
const RETRY_SECONDS: u16 = 5;

/// What is answered when something goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorView {
    /// What went wrong, and what to do.
    pub error: String,
}

/// Why a request is not answered as it was meant.
#[derive(Debug)]
pub struct Refusal(pub StatusCode, pub String);

/// What handlers answer.
pub type Answer = Result<Response, Refusal>;

/// A value as an answer, which nobody keeps.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => (status, [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl Refusal {
    /// The same for somebody who may still be sending `body`.
    pub fn to_sender(self, body: Body) -> Response {
        let (head, words) = self.into_response().into_parts();
        if body.is_end_stream() {
            return Response::from_parts(head, words);
        }
        let rest = stream::once(listen(body)).filter_map(|()| ready(None::<Result<Bytes, axum::Error>>));
        Response::from_parts(head, Body::from_stream(words.into_data_stream().chain(rest)))
    }
}

/// Reads what still comes.
async fn listen(body: Body) {
    let mut rest = body.into_data_stream();
    let to_the_end = async { while let Ok(Some(Ok(_))) = tokio::time::timeout(SILENCE, rest.next()).await {} };
    _ = tokio::time::timeout(LINGER, to_the_end).await;
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json(self.0, &ErrorView { error: self.1 });
        if self.0 == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        response
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let status = match error {
            StoreError::Full { .. } | StoreError::MemoryFull { .. } => StatusCode::INSUFFICIENT_STORAGE,
            StoreError::Closed => return stopping(),
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

/// The gateway ends, and the store is closed already or about to be.
pub fn stopping() -> Refusal {
    Refusal(StatusCode::SERVICE_UNAVAILABLE, "the gateway is stopping".to_owned())
}
