//! API views of bearer tokens.

use crate::access::Principal;
use crate::access::token_store::{StoredToken, TokenParameters};
use api::tokens::{CreateToken, TokenView};
use std::time::Duration;

/// The view of a created token, without its secret.
pub fn token(entry: StoredToken) -> TokenView {
    let StoredToken { id, name, scopes, quota, created_at, expires_at, .. } = entry;
    TokenView { id, name, scopes: scopes.into(), quota, created_at: Some(created_at), expires_at }
}

/// The view of an authenticated client whose token is not in the token store.
pub fn bearer(bearer: &Principal) -> TokenView {
    let (id, name) = (bearer.id.to_string(), bearer.name.to_string());
    TokenView { id, name, scopes: bearer.scopes.into(), quota: bearer.quota, created_at: None, expires_at: None }
}

/// The requested parameters of a new token.
pub fn terms(CreateToken { scopes, name, quota, expires_seconds }: CreateToken) -> TokenParameters {
    TokenParameters { name, scopes: scopes.into(), quota, lifetime: expires_seconds.map(Duration::from_secs) }
}
