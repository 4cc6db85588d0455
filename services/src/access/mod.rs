//! Authentication and authorisation on the admin listener: bearer tokens, their scopes and quotas ([`api::access`]).
//!
//! | module | concern |
//! |---|---|
//! | [`secret`] | the format of tokens, and their hashes |
//! | [`token_store`] | the tokens that the operator created |
//! | [`authenticator`] | authentication of requests; rate limit of failed attempts |
//!
//! Goals: everything but health requires a token; stored hashes are useless to a thief; a revoked token is rejected
//! from the next request on; guessing a token is infeasible.
//!
//! There are three kinds of tokens:
//!
//! | kind | stored in | authorises | owns pins as |
//! |---|---|---|---|
//! | of the settings | `admin.token` | everything | `operator` |
//! | local | `DATA_DIR/admin.token`, readable by the user that runs the gateway | everything | `operator` |
//! | created | `DATA_DIR/tokens.json`, as hashes | its scopes | its ID |
//! | created in a site | the database of the site, as hashes | its scopes, at every gateway | its ID |
//!
//! Non-goals: accounts, passwords and sessions; a proxy in front may provide them, and send a token.

pub mod authenticator;
pub mod secret;
pub mod token_store;

pub use self::authenticator::Authenticator;
pub use api::access::{Scope, Scopes};

use api::access::{OPERATOR, Quota};
use std::sync::Arc;

/// The authenticated client of a request. Handlers take it as `Authenticated`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The ID of the token, which owns the pins that are created with it. Never reused.
    pub id: Arc<str>,
    /// The token's name.
    pub name: Arc<str>,
    /// What the token authorises.
    pub scopes: Scopes,
    /// The token's quota.
    pub quota: Quota,
}

impl Principal {
    /// The operator, who has all scopes.
    pub fn operator() -> Self {
        Self { id: OPERATOR.into(), name: OPERATOR.into(), scopes: Scopes::all(), quota: Quota::default() }
    }

    /// Whether this is the operator, who sees the pins of all tokens.
    pub fn is_operator(&self) -> bool {
        &*self.id == OPERATOR
    }

    /// Whether the token authorises a scope.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(scope)
    }
}
