//! Answers of the admin API: JSON, and errors as `{"error": "…"}`. The Pinning Service API and Kubo's RPC have error
//! formats of their own ([`ErrorFormat`]).
//!
//! Goals: a client that sends a large body receives the error that rejects it. If the server closed the connection
//! while the client still sends, the kernel would reset it and the client would lose the answer. So the server reads
//! and discards the rest of the body for a while ("lingering close" in nginx).

use api::error::ErrorView;
use api::error::KuboError;
use api::error::PinningError;
use api::error::PinningErrorWords;
use axum::body::Body;
use axum::http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cache::StoreError;
use content::Verdict;
use content::stored::coding::ZSTD;
use futures::future::ready;
use futures::stream::{self, StreamExt as _};
use http_body::Body as _;
use serde::Serialize;
use services::audit::AuditError;
use services::uploads::UploadError;
use services::uploads::error::STOPPING;
use services::uploads::request_body::{BodyCoding, RequestBody};
use services::uploads::resumable::ResumableError;
use std::time::Duration;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema as _, ToSchema};

/// A lingering read ends when the client sends nothing for so long (nginx: `lingering_timeout`).
const LINGERING_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum duration of a lingering read (nginx: `lingering_time`).
const LINGERING_TIME: Duration = Duration::from_secs(30);
/// The `Retry-After` of 429 and 503, in seconds.
const RETRY_SECONDS: u16 = 5;

/// The format of errors, by the path of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorFormat {
    /// [`ErrorView`].
    Admin,
    /// [`PinningError`].
    Pinning,
    /// [`KuboError`].
    Kubo,
}

impl ErrorFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Admin, Self::Pinning, Self::Kubo];

    /// The format for a path.
    pub fn of(path: &str) -> Self {
        let is_below =
            |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match path {
            _ if is_below("/psa") => Self::Pinning,
            _ if is_below("/api/v0") => Self::Kubo,
            _ => Self::Admin,
        }
    }

    /// The name and the schema of the error object.
    pub fn schema(self) -> (String, RefOr<Schema>) {
        match self {
            Self::Admin => (ErrorView::name().into_owned(), ErrorView::schema()),
            Self::Pinning => (PinningError::name().into_owned(), PinningError::schema()),
            Self::Kubo => (KuboError::name().into_owned(), KuboError::schema()),
        }
    }

    /// An error as a response in this format.
    pub fn response(self, ApiError(status, message): ApiError) -> Response {
        let response = match self {
            Self::Admin => json(status, &ErrorView { error: message }),
            Self::Pinning => {
                let reason = status.canonical_reason().unwrap_or("Error").to_uppercase().replace([' ', '-', '\''], "_");
                json(status, &PinningError { error: PinningErrorWords { reason, details: Some(message) } })
            }
            Self::Kubo => {
                let code = match status {
                    StatusCode::TOO_MANY_REQUESTS => 3,
                    StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => 4,
                    status => u32::from(status.is_client_error()),
                };
                json(status, &KuboError { message, code, kind: "error".to_owned() })
            }
        };
        with_retry_after(response)
    }
}

/// A response that says when to try again, if its status is one of those that pass: 429 or 503.
pub fn with_retry_after(mut response: Response) -> Response {
    if matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
    }
    response
}

/// Why a request failed: the status, and the message for the client.
#[derive(Debug)]
pub struct ApiError(pub StatusCode, pub String);

/// What handlers answer.
pub type Answer = Result<Response, ApiError>;

/// A value as a JSON answer that no cache stores.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => (status, [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl ApiError {
    /// The error as a response to a client that may still be sending `body`.
    pub fn with_lingering_read(self, body: impl Into<UnreadBody>) -> Response {
        let UnreadBody(body) = body.into();
        with_lingering_read(self.into_response(), body)
    }
}

/// The unread rest of a request body.
pub struct UnreadBody(pub(crate) Body);

impl From<Body> for UnreadBody {
    fn from(body: Body) -> Self {
        Self(body)
    }
}

impl From<RequestBody> for UnreadBody {
    fn from(body: RequestBody) -> Self {
        Self(Body::new(body.into_rest()))
    }
}

/// The body of a request, which is decoded while it is read.
///
/// # Errors
/// 415 in this format, with the content coding that is supported (RFC 9110, section 15.5.16).
pub fn decoded(headers: &HeaderMap, body: Body, error_format: ErrorFormat) -> Result<RequestBody, Response> {
    let error = match BodyCoding::of(headers) {
        Ok(coding) => return Ok(RequestBody::new(body, coding)),
        Err(error) => ApiError(StatusCode::UNSUPPORTED_MEDIA_TYPE, error.to_string()),
    };
    let mut response = error_format.response(error);
    response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static(ZSTD));
    Err(with_lingering_read(response, body))
}

/// An answer to a client that may still be sending `body`, which is read and discarded for a while.
pub fn with_lingering_read(answer: Response, body: Body) -> Response {
    if body.is_end_stream() {
        return answer;
    }
    let (head, error) = answer.into_parts();
    let rest = stream::once(linger(body)).filter_map(|()| ready(None::<Result<Bytes, axum::Error>>));
    Response::from_parts(head, Body::from_stream(error.into_data_stream().chain(rest)))
}

/// Reads and discards what an already answered client still sends, so that the client receives the answer.
pub async fn linger(body: Body) {
    let mut rest = body.into_data_stream();
    let to_the_end =
        async { while let Ok(Some(Ok(_))) = tokio::time::timeout(LINGERING_TIMEOUT, rest.next()).await {} };
    _ = tokio::time::timeout(LINGERING_TIME, to_the_end).await;
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        ErrorFormat::Admin.response(self)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let status = match &error {
            error if error.is_full() => StatusCode::INSUFFICIENT_STORAGE,
            StoreError::Closed => return stopping(),
            StoreError::Busy | StoreError::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

/// The status of content that the policy withholds.
pub fn status_of(verdict: Verdict) -> StatusCode {
    match verdict {
        Verdict::Legal => StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS,
        Verdict::Unlisted => StatusCode::FORBIDDEN,
        Verdict::Gone | Verdict::Allow => StatusCode::GONE,
    }
}

/// 503: the gateway is stopping, and the store is closed or about to be.
pub fn stopping() -> ApiError {
    ApiError(StatusCode::SERVICE_UNAVAILABLE, STOPPING.to_owned())
}

impl From<AuditError> for ApiError {
    fn from(error: AuditError) -> Self {
        let status = match error {
            AuditError::Full => StatusCode::INSUFFICIENT_STORAGE,
            AuditError::Failed(_) | AuditError::Closed => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        let (status, message) = error.failure();
        Self(status, message)
    }
}

impl From<ResumableError> for ApiError {
    fn from(error: ResumableError) -> Self {
        let (status, message) = error.failure();
        Self(status, message)
    }
}
