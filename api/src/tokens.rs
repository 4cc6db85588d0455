//! Bearer tokens of the admin API.

use crate::access::{Quota, Scope};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A token, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// By what it is found, and what its pins belong to.
    pub id: String,
    /// What the operator calls it.
    pub name: String,
    /// What it is good for.
    pub scopes: Vec<Scope>,
    /// How much may be kept for it.
    pub quota: Quota,
    /// When it was made, in seconds since the Unix epoch; not said of the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<u64>,
    /// From when on it is good for nothing, in seconds since the Unix epoch; left out if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

/// The tokens, in the answer to a question for all.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TokensView {
    /// In the order in which they were made.
    pub tokens: Vec<TokenView>,
}

/// Asks for a new token.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// What it is to be good for.
    pub scopes: Vec<Scope>,
    /// What to call it; "token-" and a number if that is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How much may be kept for it.
    #[serde(default)]
    pub quota: Quota,
    /// For how long it is to be good; until it is revoked if that is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_seconds: Option<u64>,
}

/// A token that was made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// What is borne. It is shown this once.
    pub token: String,
    /// What is kept of it.
    #[serde(flatten)]
    pub kept: TokenView,
}
