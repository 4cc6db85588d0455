//! Extractors: the authenticated client of a request ([`Authenticated`]), and its audit context ([`Audited`]).
//!
//! [`crate::http::guard`] puts both into the extensions of each request.

use crate::http::answer::ApiError;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use services::access::Principal;
use services::audit::context::AuditContext;
use std::convert::Infallible;

/// The authenticated client of the request.
pub struct Authenticated(pub Principal);

impl<S: Send + Sync> FromRequestParts<S> for Authenticated {
    type Rejection = ApiError;

    /// # Errors
    /// 401 if the guard did not run: a route without the guard must not serve anything.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let unguarded = || ApiError(StatusCode::UNAUTHORIZED, "this needs a token".to_owned());
        parts.extensions.get::<Principal>().cloned().map(Self).ok_or_else(unguarded)
    }
}

/// The audit context: a handler adds to it what the audit log records about the request.
pub struct Audited(pub AuditContext);

impl<S: Send + Sync> FromRequestParts<S> for Audited {
    type Rejection = Infallible;

    /// Without the guard there is no audit log, and nothing reads the context.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get::<AuditContext>().cloned().unwrap_or_default()))
    }
}
