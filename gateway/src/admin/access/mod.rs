//! Who may do what on the admin listener.
//!
//! | module | concern |
//! |---|---|
//! | [`scope`] | what a token is good for |
//! | [`secret`] | what a token looks like, and what is kept of it |
//! | [`book`] | the tokens that the operator has given out |
//! | [`doorkeeper`] | which of them, if any, a request bears; how often one may guess |
//!
//! Goals: nothing but health is answered without a token; what is kept of a token is of no use to a thief; a token that is
//! revoked is of no use from the next request on; guessing costs more than it brings.
//!
//! There are three kinds, told apart by where they come from:
//!
//! | kind | kept in | good for | owns pins as |
//! |---|---|---|---|
//! | the settings' | `admin.token` | everything | `operator` |
//! | the local one | `DATA_DIR/admin.token`, readable by whoever runs the gateway | everything | `operator` |
//! | given out | `DATA_DIR/tokens.json`, as hashes | its scopes | its id |
//!
//! Non-goals: accounts, passwords and sessions; a proxy in front may have them, and bear a token.

pub mod book;
pub mod doorkeeper;
pub mod scope;
pub mod secret;

pub use self::doorkeeper::Doorkeeper;
pub use self::scope::{Scope, Scopes};

use super::answer::Refusal;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// Under which name the operator owns pins.
pub const OPERATOR: &str = "operator";

/// How much the owner of a token may keep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Pins, in whatever state. `null`: as many as the gateway takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins_max: Option<u64>,
    /// Bytes of the DAGs that are pinned, each counted in full. `null`: as many as the gateway takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
}

/// Who asks: what a request's token says. Handlers take it as an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// Names the owner of what the bearer pins. Never used twice.
    pub id: Arc<str>,
    /// What the operator calls the token.
    pub name: Arc<str>,
    /// What it is good for.
    pub scopes: Scopes,
    /// How much may be kept for it.
    pub quota: Quota,
}

impl Bearer {
    /// The operator, who may do everything.
    pub fn operator() -> Self {
        Self { id: OPERATOR.into(), name: OPERATOR.into(), scopes: Scopes::all(), quota: Quota::default() }
    }

    /// Whether this is the operator, to whom all pins are shown.
    pub fn is_operator(&self) -> bool {
        &*self.id == OPERATOR
    }

    /// Whether the token is good for something.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(scope)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Bearer {
    type Rejection = Refusal;

    /// # Errors
    /// Only if the guard was left out, which must not let anybody in.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let unguarded = || Refusal(StatusCode::UNAUTHORIZED, "this needs a token".to_owned());
        parts.extensions.get::<Self>().cloned().ok_or_else(unguarded)
    }
}
