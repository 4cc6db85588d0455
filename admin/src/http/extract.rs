//! What handlers take of a request besides its body: who sends it ([`Authenticated`]), and the audit log's note on it ([`Audited`]).
//!
//! [`crate::http::guard`] puts both into the extensions of each request.

use crate::http::answer::Refusal;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use services::access::Principal;
use services::audit::context::AuditContext;
use std::convert::Infallible;

/// Who sends the request.
pub struct Authenticated(pub Principal);

impl<S: Send + Sync> FromRequestParts<S> for Authenticated {
    type Rejection = Refusal;

    /// # Errors
    /// Only if the guard was left out, which must not let anybody in.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let unguarded = || Refusal(StatusCode::UNAUTHORIZED, "this needs a token".to_owned());
        parts.extensions.get::<Principal>().cloned().map(Self).ok_or_else(unguarded)
    }
}

/// Where a handler notes what the audit log is to say of the request.
pub struct Audited(pub AuditContext);

impl<S: Send + Sync> FromRequestParts<S> for Audited {
    type Rejection = Infallible;

    /// Where there is no guard, there is no log: nothing reads what is noted then.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get::<AuditContext>().cloned().unwrap_or_default()))
    }
}
