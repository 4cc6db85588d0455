//! What the admin API answers: JSON, and for what goes wrong `{"error": "…"}` with words that say what to do. Two parts of it are
//! other people's APIs and have forms of their own ([`Dialect`]).
//!
//! Goals: whoever sends a large body hears why it is refused. An answer that ends before the body does would have the system
//! reset the connection under it, and the words would be lost; so what still comes is read for a while, and thrown away.

use api::error::ErrorView;
use api::error::KuboError;
use api::error::PinningError;
use api::error::PinningErrorWords;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cache::StoreError;
use content::Verdict;
use futures::future::ready;
use futures::stream::{self, StreamExt as _};
use http_body::Body as _;
use serde::Serialize;
use services::audit::AuditError;
use services::uploads::UploadError;
use services::uploads::error::STOPPING;
use services::uploads::request_body::RequestBody;
use services::uploads::resumable::parts::ResumableError;
use std::time::Duration;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema as _, ToSchema};

/// How long a sender may be silent before nothing more is expected of it, once it was answered.
const SILENCE: Duration = Duration::from_secs(1);
/// How long one is listened to that goes on sending.
const LINGER: Duration = Duration::from_secs(30);
/// When whoever finds everything busy is to come back, in seconds.
const RETRY_SECONDS: u16 = 5;

/// How errors are told, by the path that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// [`ErrorView`].
    Ours,
    /// [`PinningError`].
    Pinning,
    /// [`KuboError`].
    Kubo,
}

impl Dialect {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Ours, Self::Pinning, Self::Kubo];

    /// What is spoken at a path.
    pub fn of(path: &str) -> Self {
        let is_below =
            |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match path {
            _ if is_below("/psa") => Self::Pinning,
            _ if is_below("/api/v0") => Self::Kubo,
            _ => Self::Ours,
        }
    }

    /// The name and the schema of its errors.
    pub fn schema(self) -> (String, RefOr<Schema>) {
        match self {
            Self::Ours => (ErrorView::name().into_owned(), ErrorView::schema()),
            Self::Pinning => (PinningError::name().into_owned(), PinningError::schema()),
            Self::Kubo => (KuboError::name().into_owned(), KuboError::schema()),
        }
    }

    /// A refusal in its own form.
    pub fn refuse(self, Refusal(status, words): Refusal) -> Response {
        let mut response = match self {
            Self::Ours => json(status, &ErrorView { error: words }),
            Self::Pinning => {
                let reason = status.canonical_reason().unwrap_or("Error").to_uppercase().replace([' ', '-', '\''], "_");
                json(status, &PinningError { error: PinningErrorWords { reason, details: Some(words) } })
            }
            Self::Kubo => {
                let code = match status {
                    StatusCode::TOO_MANY_REQUESTS => 3,
                    StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => 4,
                    status => u32::from(status.is_client_error()),
                };
                json(status, &KuboError { message: words, code, kind: "error".to_owned() })
            }
        };
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        response
    }
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
    pub fn to_sender(self, body: impl Into<RestOfBody>) -> Response {
        let RestOfBody(body) = body.into();
        while_sending(self.into_response(), body)
    }
}

/// What a client has still to send.
pub struct RestOfBody(Body);

impl From<Body> for RestOfBody {
    fn from(body: Body) -> Self {
        Self(body)
    }
}

impl From<RequestBody> for RestOfBody {
    fn from(body: RequestBody) -> Self {
        Self(Body::new(body))
    }
}

/// An answer to somebody who may still be sending `body`.
pub fn while_sending(answer: Response, body: Body) -> Response {
    if body.is_end_stream() {
        return answer;
    }
    let (head, words) = answer.into_parts();
    let rest = stream::once(listen(body)).filter_map(|()| ready(None::<Result<Bytes, axum::Error>>));
    Response::from_parts(head, Body::from_stream(words.into_data_stream().chain(rest)))
}

/// Reads what a sender still sends who was answered, so that the answer is not lost.
pub async fn listen(body: Body) {
    let mut rest = body.into_data_stream();
    let to_the_end = async { while let Ok(Some(Ok(_))) = tokio::time::timeout(SILENCE, rest.next()).await {} };
    _ = tokio::time::timeout(LINGER, to_the_end).await;
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        Dialect::Ours.refuse(self)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let status = match &error {
            error if error.is_full() => StatusCode::INSUFFICIENT_STORAGE,
            StoreError::Closed => return stopping(),
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

/// The status of what the policy does not let out or in.
pub fn status_of(verdict: Verdict) -> StatusCode {
    match verdict {
        Verdict::Legal => StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS,
        Verdict::Unlisted => StatusCode::FORBIDDEN,
        Verdict::Gone | Verdict::Allow => StatusCode::GONE,
    }
}

/// The gateway ends, and the store is closed already or about to be.
pub fn stopping() -> Refusal {
    Refusal(StatusCode::SERVICE_UNAVAILABLE, STOPPING.to_owned())
}

impl From<AuditError> for Refusal {
    fn from(error: AuditError) -> Self {
        let status = match error {
            AuditError::Full => StatusCode::INSUFFICIENT_STORAGE,
            AuditError::Failed(_) | AuditError::Closed => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}

impl From<UploadError> for Refusal {
    fn from(error: UploadError) -> Self {
        let (status, words) = error.failure();
        Self(status, words)
    }
}

impl From<ResumableError> for Refusal {
    fn from(error: ResumableError) -> Self {
        let (status, words) = error.failure();
        Self(status, words)
    }
}
