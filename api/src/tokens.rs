//! Bearer tokens of the admin API.

use crate::access::{Quota, Scope};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// The ID, which also identifies the owner of pins.
    pub id: String,
    /// The name.
    pub name: String,
    /// The scopes that it authorises.
    pub scopes: Vec<Scope>,
    /// The quota.
    pub quota: Quota,
    /// When it was created, in seconds since the Unix epoch; omitted for the operator's own token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<u64>,
    /// When it expires, in seconds since the Unix epoch; omitted if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

/// All tokens.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TokensView {
    /// The tokens, in the order of creation.
    pub tokens: Vec<TokenView>,
}

/// Creates a token.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// The scopes that it authorises.
    pub scopes: Vec<Scope>,
    /// The name; "token-" and a number by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The quota.
    #[serde(default)]
    pub quota: Quota,
    /// The time until it expires, in seconds; by default it is valid until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_seconds: Option<u64>,
}

/// A new token.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// The bearer token. It is shown only once.
    pub token: String,
    /// The stored metadata.
    #[serde(flatten)]
    pub kept: TokenView,
}
