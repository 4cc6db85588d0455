//! Authentication and authorisation on the admin listener: bearer tokens, their scopes and quotas ([`api::access`]).
//!
//! | module | concern |
//! |---|---|
//! | [`secret`] | what a token looks like, and what is stored of it |
//! | [`token_store`] | the tokens that the operator has created |
//! | [`authenticator`] | which of them, if any, a request carries; rate limit of failed attempts |
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

pub mod authenticator;
pub mod secret;
pub mod token_store;

pub use self::authenticator::Authenticator;
pub use api::access::{Scope, Scopes};

use api::access::{OPERATOR, Quota};
use std::sync::Arc;

/// Who asks: what a request's token says. Handlers take it as `Authenticated`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Names the owner of what the bearer pins. Never used twice.
    pub id: Arc<str>,
    /// What the operator calls the token.
    pub name: Arc<str>,
    /// What it is good for.
    pub scopes: Scopes,
    /// How much may be kept for it.
    pub quota: Quota,
}

impl Principal {
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
