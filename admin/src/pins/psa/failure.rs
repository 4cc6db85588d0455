//! [`PsaFailure`]: errors of the Pinning Service API (schema "Failure").

use crate::http::answer::{json, with_retry_after};
use api::error::{PinningError, PinningErrorWords};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cache::StoreError;
use services::pinning::PinsError;
use utoipa::IntoResponses;

/// The error responses of requests that create a pin, for the OpenAPI description.
#[derive(IntoResponses)]
pub enum PinRejected {
    /// 400.
    #[response(status = 400, description = "The pin is invalid or exceeds a limit")]
    Wrong(PinningError),
    /// 409.
    #[response(status = 409, description = "The token's quota is used up")]
    Quota(PinningError),
    /// 507.
    #[response(status = 507, description = "The pin service is full")]
    Full(PinningError),
}

/// 404: there is no such pin.
#[derive(IntoResponses)]
#[response(status = 404, description = "The token has no such pin")]
pub struct NoSuchPin(pub PinningError);

/// An error of the Pinning Service API.
#[derive(Debug)]
pub struct PsaFailure {
    status: StatusCode,
    reason: &'static str,
    details: String,
}

impl PsaFailure {
    /// An error whose reason follows from its status.
    pub fn new(status: StatusCode, details: impl ToString) -> Self {
        let reason = match status {
            StatusCode::BAD_REQUEST => "BAD_REQUEST",
            StatusCode::NOT_FOUND => "NOT_FOUND",
            StatusCode::CONFLICT => "INSUFFICIENT_FUNDS",
            StatusCode::PAYLOAD_TOO_LARGE => "PAYLOAD_TOO_LARGE",
            StatusCode::INSUFFICIENT_STORAGE => "INSUFFICIENT_STORAGE",
            StatusCode::SERVICE_UNAVAILABLE => "SERVICE_UNAVAILABLE",
            _ => "INTERNAL_SERVER_ERROR",
        };
        Self { status, reason, details: details.to_string() }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The message.
    pub fn details(&self) -> &str {
        &self.details
    }

    /// 400.
    pub fn bad_request(details: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, details)
    }
}

impl From<PinsError> for PsaFailure {
    fn from(error: PinsError) -> Self {
        let status = match &error {
            PinsError::NotFound => StatusCode::NOT_FOUND,
            PinsError::Invalid(_) => StatusCode::BAD_REQUEST,
            PinsError::Quota(_) | PinsError::TakenOver => StatusCode::CONFLICT,
            PinsError::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
            PinsError::Store(error) if error.is_full() => StatusCode::INSUFFICIENT_STORAGE,
            PinsError::Store(StoreError::Closed | StoreError::Busy | StoreError::Unavailable { .. }) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            PinsError::NotPinned { .. } | PinsError::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error)
    }
}

impl IntoResponse for PsaFailure {
    fn into_response(self) -> Response {
        let Self { status, reason, details } = self;
        let error = PinningErrorWords { reason: reason.to_owned(), details: Some(details) };
        with_retry_after(json(status, &PinningError { error }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::header::RETRY_AFTER;

    #[test]
    fn only_failures_that_pass_say_when_to_try_again() {
        let table = [
            (PinsError::Store(StoreError::Unavailable { reason: "no connection".into() }), 503, true),
            (PinsError::Store(StoreError::Busy), 503, true),
            (PinsError::Store(StoreError::Closed), 503, true),
            (PinsError::NotFound, 404, false),
            (PinsError::Full("of pins".to_owned()), 507, false),
        ];
        for (error, status, has_retry_after) in table {
            let response = PsaFailure::from(error).into_response();
            let found = (response.status().as_u16(), response.headers().contains_key(RETRY_AFTER));
            assert_eq!(found, (status, has_retry_after));
        }
    }
}
