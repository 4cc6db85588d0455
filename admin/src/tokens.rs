//! The admin API of tokens and the audit log. Only the operator's own tokens create and revoke tokens: any other token
//! could escalate its privileges by creating a token with more scopes.
//!
//! | request | does |
//! |---|---|
//! | `GET /api/v1/token` | shows the name, scopes and quota of the request's own token |
//! | `GET /api/v1/tokens` | lists the issued tokens, without their secrets |
//! | `POST /api/v1/tokens` `{scopes, name?, quota?, expires_seconds?}` | creates a token, and shows it this once |
//! | `DELETE /api/v1/tokens/ID_OR_NAME` | revokes a token |
//! | `GET /api/v1/audit?limit=` | lists the latest audit entries, the newest first |

use crate::http::answer::{Answer, ApiError, json, stopping};
use crate::http::error_responses::{BadParameters, BadRequest, DiskFailed, SiteUnavailable};
use crate::http::extract::{Audited, Authenticated};
use crate::http::parameters::{Parameters, read_body};
use api::audit::AuditView;
use api::error::ErrorView;
use api::tokens::{CreateToken, CreatedToken, TokenView, TokensView};
use axum::extract::{DefaultBodyLimit, Path as Segment, State};
use axum::http::{StatusCode, Uri};
use bytes::Bytes;
use services::access::token_store::{StoredToken, TokenStore, TokenStoreError};
use services::audit::{AuditLog, ResponseDetail};
use services::views::tokens as views;
use std::sync::Arc;
use utoipa::IntoResponses;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Audit entries in an answer, by default.
const ENTRIES: usize = 100;
/// The maximum number of audit entries in an answer.
const ENTRIES_MAX: usize = 10_000;
/// The maximum length of a request body, in bytes.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// 409: the name of a token is in use.
#[derive(IntoResponses)]
#[response(status = 409, description = "Another token has the name")]
pub struct NameTaken(pub ErrorView);

#[derive(Clone)]
struct Access {
    store: TokenStore,
    audit: Arc<AuditLog>,
}

impl Access {
    /// The issued tokens, as the token store has them.
    async fn listed(&self) -> Result<Vec<StoredToken>, ApiError> {
        self.with_tokens(TokenStore::list).await
    }

    /// Runs `work` on a thread where it may block.
    async fn with_tokens<T: Send + 'static>(
        &self,
        work: impl FnOnce(&TokenStore) -> Result<T, TokenStoreError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let store = self.store.clone();
        Ok(tokio::task::spawn_blocking(move || work(&store)).await.map_err(|_| stopping())??)
    }
}

/// The routes.
pub fn routes(store: TokenStore, audit: &Arc<AuditLog>) -> OpenApiRouter {
    let access = Access { store, audit: Arc::clone(audit) };
    let tokens = OpenApiRouter::default().routes(routes!(tokens, create_token)).routes(routes!(revoke_token));
    let routes = tokens.routes(routes!(own_token)).routes(routes!(last_changes));
    routes.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).with_state(access)
}

impl From<TokenStoreError> for ApiError {
    fn from(error: TokenStoreError) -> Self {
        Self(error.status(), error.to_string())
    }
}

/// The token that the request sends. Any token may ask.
#[utoipa::path(get, path = "/api/v1/token", tag = "access", security(("bearer" = [])),
    responses((status = 200, description = "The token", body = TokenView)))]
async fn own_token(State(access): State<Access>, Authenticated(bearer): Authenticated) -> Answer {
    if bearer.is_operator() {
        return Ok(json(StatusCode::OK, &views::bearer(&bearer)));
    }
    // The token store has the times at which a token was created and expires.
    let given = access.listed().await?.into_iter().find(|entry| *entry.id == *bearer.id);
    Ok(json(StatusCode::OK, &given.map_or_else(|| views::bearer(&bearer), views::token)))
}

/// The issued tokens.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "access", security(("bearer" = ["operate"])),
    responses((status = 200, description = "The tokens", body = TokensView)))]
async fn tokens(State(access): State<Access>) -> Answer {
    let tokens = access.listed().await?.into_iter().map(views::token).collect();
    Ok(json(StatusCode::OK, &TokensView { tokens }))
}

/// Creates a token. In a site, it is valid at all gateways within a second. Needs the operator's own token.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "access", security(("bearer" = ["operator"])),
    request_body(content = CreateToken, content_type = "application/json"),
    responses((status = 201, description = "The token, which is shown this once", body = CreatedToken), BadRequest,
        NameTaken, DiskFailed, SiteUnavailable,
        (status = 507, description = "There are too many tokens", body = ErrorView)))]
async fn create_token(State(access): State<Access>, Audited(audit_context): Audited, body: Bytes) -> Answer {
    let request: CreateToken = read_body(&body)?;
    audit_context.note(&request);
    let (entry, token) = access.with_tokens(move |store| store.create(views::terms(request))).await?;
    let created = CreatedToken { token: token.reveal(), kept: views::token(entry) };
    Ok(ResponseDetail::of(&created.kept).with(json(StatusCode::CREATED, &created)))
}

/// Revokes a token: it is rejected from the next request on, and within a second by the other gateways of a site. Its
/// pins stay. Needs the operator's own token.
#[utoipa::path(delete, path = "/api/v1/tokens/{token}", tag = "access", security(("bearer" = ["operator"])),
    params(("token" = String, Path, description = "The token's ID or name")),
    responses((status = 200, description = "The revoked token", body = TokenView), BadRequest,
        (status = 404, description = "There is no such token", body = ErrorView),
        (status = 409, description = "The gateway and its site have tokens of this name: their IDs are in the error",
            body = ErrorView), DiskFailed, SiteUnavailable))]
async fn revoke_token(State(access): State<Access>, Segment(token): Segment<String>) -> Answer {
    let removed = views::token(access.with_tokens(move |store| store.remove(&token)).await?);
    Ok(ResponseDetail::of(&removed).with(json(StatusCode::OK, &removed)))
}

/// The latest entries of the audit log, the newest first.
#[utoipa::path(get, path = "/api/v1/audit", tag = "access", security(("bearer" = ["operate"])),
    params(("limit" = Option<u32>, Query, description = "The maximum number of entries; 100 by default",
        minimum = 1, maximum = 10000)),
    responses((status = 200, description = "The entries", body = AuditView), BadParameters))]
async fn last_changes(State(access): State<Access>, uri: Uri) -> Answer {
    let limit = Parameters::of(&uri, &["limit"])?.number("limit", 1..=ENTRIES_MAX)?.unwrap_or(ENTRIES);
    let read = tokio::task::spawn_blocking(move || access.audit.last(limit)).await.map_err(|_| stopping())?;
    let failed = |error| ApiError(StatusCode::INTERNAL_SERVER_ERROR, format!("the audit log cannot be read: {error}"));
    Ok(json(StatusCode::OK, &AuditView { entries: read.map_err(failed)? }))
}
