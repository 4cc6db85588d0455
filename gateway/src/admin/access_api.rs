//! The admin API of tokens and the audit log. The operator's own tokens alone make and revoke tokens: any other that could would give
//! itself what it has not.
//!
//! | request | does |
//! |---|---|
//! | `GET /api/v1/token` | says whose token was borne, and what it is good for |
//! | `GET /api/v1/tokens` | lists the tokens that were given out, without anything that opens |
//! | `POST /api/v1/tokens` `{scopes, name?, quota?, expires_seconds?}` | makes one, and shows it this once |
//! | `DELETE /api/v1/tokens/ID_OR_NAME` | revokes one |
//! | `GET /api/v1/audit?limit=` | the last changes, the newest first |

use super::access::book::{Book, BookError, Entry, Terms};
use super::access::{Bearer, Quota, Scope};
use super::answer::{Answer, ErrorView, Refusal, json, stopping};
use super::audit::{self, AuditLog, Detail};
use super::noted::Noted;
use super::parameters::{Parameters, read_body};
use super::refusals::{DiskFailed, WrongParameters, WrongRequest};
use axum::extract::{DefaultBodyLimit, Path as Segment, State};
use axum::http::{StatusCode, Uri};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use utoipa::{IntoResponses, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Entries of the audit log in an answer, unless the request says otherwise.
const ENTRIES: usize = 100;
/// The most that are given.
const ENTRIES_MAX: usize = 10_000;
/// The largest request for a token, in bytes.
const BODY_BYTES_MAX: usize = 16 * 1024;

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

impl From<Entry> for TokenView {
    fn from(entry: Entry) -> Self {
        let Entry { id, name, scopes, quota, created_at, expires_at, .. } = entry;
        Self { id, name, scopes: scopes.into(), quota, created_at: Some(created_at), expires_at }
    }
}

impl From<&Bearer> for TokenView {
    fn from(bearer: &Bearer) -> Self {
        let (id, name) = (bearer.id.to_string(), bearer.name.to_string());
        Self { id, name, scopes: bearer.scopes.into(), quota: bearer.quota, created_at: None, expires_at: None }
    }
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

impl From<CreateToken> for Terms {
    fn from(asked: CreateToken) -> Self {
        let CreateToken { scopes, name, quota, expires_seconds } = asked;
        Self { name, scopes: scopes.into(), quota, lifetime: expires_seconds.map(Duration::from_secs) }
    }
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

/// 409 about the tokens.
#[derive(IntoResponses)]
#[response(status = 409, description = "Another token has the name")]
pub struct NameTaken(pub ErrorView);

/// The last changes.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// The newest first.
    pub entries: Vec<audit::Entry>,
}

#[derive(Clone)]
struct Access {
    book: Book,
    audit: Arc<AuditLog>,
}

impl Access {
    /// The tokens that were given out, as they are kept.
    async fn listed(&self) -> Result<Vec<Entry>, Refusal> {
        self.with_book(Book::list).await
    }

    /// Does something with the book where it may block.
    async fn with_book<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Book) -> Result<T, BookError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let book = self.book.clone();
        Ok(tokio::task::spawn_blocking(move || work(&book)).await.map_err(|_| stopping())??)
    }
}

/// The routes.
pub fn routes(data_dir: &Path, audit: &Arc<AuditLog>) -> OpenApiRouter {
    let access = Access { book: Book::of(data_dir), audit: Arc::clone(audit) };
    let tokens = OpenApiRouter::default().routes(routes!(tokens, create_token)).routes(routes!(revoke_token));
    let routes = tokens.routes(routes!(own_token)).routes(routes!(last_changes));
    routes.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).with_state(access)
}

impl From<BookError> for Refusal {
    fn from(error: BookError) -> Self {
        Self(error.status(), error.to_string())
    }
}

/// Whose token was borne. Any will do.
#[utoipa::path(get, path = "/api/v1/token", tag = "access", security(("bearer" = [])),
    responses((status = 200, description = "The token", body = TokenView)))]
async fn own_token(State(access): State<Access>, bearer: Bearer) -> Answer {
    if bearer.is_operator() {
        return Ok(json(StatusCode::OK, &TokenView::from(&bearer)));
    }
    // When it was made and when it ends is kept with those that were given out.
    let given = access.listed().await?.into_iter().find(|entry| *entry.id == *bearer.id);
    Ok(json(StatusCode::OK, &given.map_or_else(|| TokenView::from(&bearer), TokenView::from)))
}

/// The tokens that were given out.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "access", security(("bearer" = ["operate"])),
    responses((status = 200, description = "The tokens", body = TokensView)))]
async fn tokens(State(access): State<Access>) -> Answer {
    let tokens = access.listed().await?.into_iter().map(TokenView::from).collect();
    Ok(json(StatusCode::OK, &TokensView { tokens }))
}

/// Makes a token. The operator's own token is needed for it.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "access", security(("bearer" = ["operator"])),
    request_body(content = CreateToken, content_type = "application/json"),
    responses((status = 201, description = "The token, which is shown this once", body = CreatedToken), WrongRequest,
        NameTaken, DiskFailed, (status = 507, description = "There are too many tokens", body = ErrorView)))]
async fn create_token(State(access): State<Access>, noted: Noted, body: Bytes) -> Answer {
    let asked: CreateToken = read_body(&body)?;
    noted.note(&asked);
    let (kept, token) = access.with_book(move |book| book.create(asked.into())).await?;
    let created = CreatedToken { token: token.reveal(), kept: kept.into() };
    Ok(Detail::of(&created.kept).with(json(StatusCode::CREATED, &created)))
}

/// Revokes a token: it is good for nothing from the next request on. What it has pinned stays. The operator's own token is needed for
/// it.
#[utoipa::path(delete, path = "/api/v1/tokens/{token}", tag = "access", security(("bearer" = ["operator"])),
    params(("token" = String, Path, description = "Its id or its name")),
    responses((status = 200, description = "The token that was", body = TokenView), WrongRequest,
        (status = 404, description = "There is none", body = ErrorView), DiskFailed))]
async fn revoke_token(State(access): State<Access>, Segment(token): Segment<String>) -> Answer {
    let removed = TokenView::from(access.with_book(move |book| book.remove(&token)).await?);
    Ok(Detail::of(&removed).with(json(StatusCode::OK, &removed)))
}

/// The last changes, the newest first.
#[utoipa::path(get, path = "/api/v1/audit", tag = "access", security(("bearer" = ["operate"])),
    params(("limit" = Option<u32>, Query, description = "How many, 100 if left out", minimum = 1, maximum = 10000)),
    responses((status = 200, description = "The changes", body = AuditView), WrongParameters))]
async fn last_changes(State(access): State<Access>, uri: Uri) -> Answer {
    let limit = Parameters::of(&uri, &["limit"])?.number("limit", 1..=ENTRIES_MAX)?.unwrap_or(ENTRIES);
    let read = tokio::task::spawn_blocking(move || access.audit.last(limit)).await.map_err(|_| stopping())?;
    let failed = |error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, format!("the audit log cannot be read: {error}"));
    Ok(json(StatusCode::OK, &AuditView { entries: read.map_err(failed)? }))
}
