//! The pins of all owners, for the operator, and new ones.
//!
//! | request | does |
//! |---|---|
//! | `GET /api/v1/pins?owner=&cid=&name=&match=&status=&older_than=&limit=` | lists the pins of all owners |
//! | `POST /api/v1/pins` | creates a pin of the request's own token, as `POST /psa/pins` does, or of another owner |
//! | `POST /api/v1/pins/ID/retry` | has a failed or waiting pin of any owner tried at once |
//! | `DELETE /api/v1/pins/ID` | removes a pin of any owner, for example of a revoked token |
//! | `GET /api/v1/pins/owners` | the usage of each owner, and the length of the queue |
//!
//! Owners list and change their own pins through the Pinning Service API ([`crate::pins::psa`]), with the same
//! identifiers.

use crate::http::answer::{Answer, ApiError, json, stopping};
use crate::http::extract::{Audited, Authenticated};
use crate::http::guard::insufficient_scope;
use crate::http::parameters::{Parameters, bad_request};
use crate::pins::psa;
use crate::pins::psa::failure::PsaFailure;
use crate::pins::psa::query::{self, MatchView};
use crate::pins::psa::views::status;
use api::access::{OPERATOR, Scope};
use api::error::ErrorView;
use api::pins::{NewPinView, OwnedPinView, OwnedPinsView, OwnerView, OwnersView};
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use libp2p::Multiaddr;
use p2p_bridge::epoch;
use services::access::token_store::{StoredToken, TokenStore};
use services::audit::ResponseDetail;
use services::pinning::{Filter, Owner, PinRequest, Pins, PinsError, StatusCounts};
use std::collections::HashMap;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The default and the maximum number of pins on a page.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;

/// The routes.
pub fn routes(pins: Arc<Pins>, token_store: TokenStore) -> OpenApiRouter {
    let routes = OpenApiRouter::default().routes(routes!(list, add)).routes(routes!(owners));
    let routes = routes.routes(routes!(remove)).routes(routes!(retry));
    routes.with_state(Overview { pins, token_store })
}

/// The pin service, and the token store for the names of owners.
#[derive(Clone)]
struct Overview {
    pins: Arc<Pins>,
    token_store: TokenStore,
}

/// The names of tokens, by their IDs.
struct TokenNames(HashMap<String, String>);

impl TokenNames {
    fn of(&self, id: &str) -> Option<String> {
        if id == OPERATOR { Some(OPERATOR.to_owned()) } else { self.0.get(id).cloned() }
    }

    /// The ID of a token, given its ID or its name. Unknown IDs are kept, since a revoked token may still have pins.
    fn id_of(&self, owner: String) -> String {
        if owner == OPERATOR {
            return owner;
        }
        let called = self.0.iter().find(|(_, name)| **name == owner).map(|(id, _)| id.clone());
        if self.0.contains_key(&owner) { owner } else { called.unwrap_or(owner) }
    }
}

impl Overview {
    /// The names of the tokens; empty if the token store cannot be read, so that the pins are still shown.
    async fn token_names(&self) -> Result<TokenNames, ApiError> {
        let token_store = self.token_store.clone();
        let tokens = tokio::task::spawn_blocking(move || token_store.list()).await.map_err(|_| stopping())?;
        let tokens = tokens
            .inspect_err(|error| {
                tracing::warn!(%error, "the token store cannot be read: owners of pins are \
                shown without names")
            })
            .unwrap_or_default();
        Ok(TokenNames(tokens.into_iter().map(|token| (token.id, token.name)).collect()))
    }
}

impl Overview {
    /// The owner with an ID or a name, and its quota.
    async fn owner(&self, id_or_name: String) -> Result<Owner, ApiError> {
        if id_or_name == OPERATOR {
            return Ok(Owner::operator());
        }
        let token_store = self.token_store.clone();
        let tokens = tokio::task::spawn_blocking(move || token_store.list()).await.map_err(|_| stopping())??;
        owner_among(tokens, &id_or_name)
    }

    async fn accepted(&self, request: &PinRequest) -> Answer {
        let view = owned_pin(request, &self.token_names().await?);
        let detail = ResponseDetail(serde_json::json!({ "requestid": view.requestid, "cid": view.cid }));
        Ok(detail.with(json(StatusCode::ACCEPTED, &view)))
    }
}

/// The owner with an ID, or else the only one with a name.
pub(super) fn owner_among(tokens: Vec<StoredToken>, id_or_name: &str) -> Result<Owner, ApiError> {
    let owner = |token: &StoredToken| Owner {
        id: token.id.as_str().into(),
        pins_max: token.quota.pins_max,
        bytes_max: token.quota.bytes_max,
    };
    if let Some(token) = tokens.iter().find(|token| token.id == id_or_name) {
        return Ok(owner(token));
    }
    let mut named = tokens.iter().filter(|token| token.name == id_or_name);
    match (named.next(), named.next()) {
        (Some(token), None) => Ok(owner(token)),
        (None, _) => Err(bad_request(format!("there is no token with the ID or name \"{id_or_name}\" to own the pin"))),
        (Some(_), Some(_)) => {
            Err(bad_request(format!("several tokens have the name \"{id_or_name}\": give the ID of the owner's")))
        }
    }
}

fn owned_pin(request: &PinRequest, names: &TokenNames) -> OwnedPinView {
    OwnedPinView {
        requestid: request.id.to_string(),
        owner: request.owner.to_string(),
        owner_name: names.of(&request.owner),
        cid: request.root.to_string(),
        name: request.name.clone(),
        meta: request.meta.clone(),
        origins: request.origins.iter().map(Multiaddr::to_string).collect(),
        status: status(request.status),
        blocks: request.progress.blocks,
        bytes: request.progress.bytes,
        details: request.details.as_deref().map(str::to_owned),
        attempts: request.attempts,
        next_attempt_at: request.next_attempt.map(epoch::seconds),
        created_at: epoch::seconds(request.created),
    }
}

/// Lists the pins of all owners, the newest first.
#[utoipa::path(get, path = "/api/v1/pins", tag = "pinning", security(("bearer" = ["operate"])),
    params(
        ("owner" = Option<String>, Query, description = "Only pins of this token, by its ID or name"),
        ("cid" = Option<String>, Query, description = "Only pins with these roots, separated by commas"),
        ("name" = Option<String>, Query, description = "Only pins with this name", max_length = 255),
        ("match" = Option<MatchView>, Query, description = "How the name is compared; exact by default"),
        ("status" = Option<String>, Query, description = "Any of queued, pinning, pinned and failed, separated by \
            commas; all by default"),
        ("older_than" = Option<String>, Query, description = "Only pins created before this pin, by its requestid"),
        ("limit" = Option<u32>, Query, description = "The maximum number of pins; 100 by default",
            minimum = 1, maximum = 1000)),
    responses(
        (status = 200, description = "The pins", body = OwnedPinsView),
        (status = 400, description = "A parameter is unknown or invalid", body = ErrorView),
        (status = 404, description = "The pin in older_than does not exist", body = ErrorView)))]
async fn list(State(overview): State<Overview>, uri: Uri) -> Answer {
    let pins = &overview.pins;
    let known = ["owner", "cid", "name", "match", "status", "older_than", "limit"];
    let parameters = Parameters::of(&uri, &known)?;
    let text = |name: &str| parameters.get(name).map(|text| text.into_owned());
    let before = match text("older_than") {
        Some(id) => Some(pins.created(&id).ok_or_else(no_such_pin)?),
        None => None,
    };
    let how = text("match").map(|how| query::strategy(&how)).transpose().map_err(bad_filter)?.unwrap_or_default();
    let filter = Filter {
        roots: text("cid")
            .map(|text| query::roots(text.split(',')))
            .transpose()
            .map_err(bad_filter)?
            .unwrap_or_default(),
        name: text("name").map(|text| query::name(&text)).transpose().map_err(bad_filter)?.map(|name| (name, how)),
        statuses: text("status")
            .map(|text| query::statuses(text.split(',')))
            .transpose()
            .map_err(bad_filter)?
            .unwrap_or_default(),
        before,
        limit: parameters.number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT),
        ..Filter::default()
    };
    let names = overview.token_names().await?;
    let page = match text("owner").map(|owner| names.id_of(owner)) {
        Some(owner) => pins.list(&owner, &filter).await,
        None => pins.list_all(&filter).await,
    };
    let shown = page.requests.iter().map(|request| owned_pin(request, &names)).collect();
    let StatusCounts { queued, pinning, pinned, failed } = page.by_status;
    let by_status = [("queued", queued), ("pinning", pinning), ("pinned", pinned), ("failed", failed)];
    let by_status = by_status.into_iter().map(|(status, count)| (status.to_owned(), count as u64)).collect();
    Ok(json(StatusCode::OK, &OwnedPinsView { count: page.count as u64, by_status, pins: shown }))
}

/// Creates a pin of the request's own token, as `POST /psa/pins` does. With the scope `operate` also one of another
/// owner, whose quota it counts towards.
#[utoipa::path(post, path = "/api/v1/pins", tag = "pinning", security(("bearer" = ["pin"])),
    request_body(content = NewPinView, content_type = "application/json"),
    responses((status = 202, description = "The pin is created", body = OwnedPinView),
        (status = 400, description = "The pin is invalid or exceeds a limit, or there is no such owner",
            body = ErrorView),
        (status = 403, description = "The token lacks the scope operate, which another owner needs", body = ErrorView),
        (status = 409, description = "The token's quota is used up", body = ErrorView),
        (status = 507, description = "The pin service is full", body = ErrorView)))]
async fn add(
    State(overview): State<Overview>,
    Authenticated(bearer): Authenticated,
    Audited(audit_context): Audited,
    uri: Uri,
    body: Body,
) -> Answer {
    Parameters::of(&uri, &[])?;
    let body = psa::read(body).await?;
    let wanted = psa::views::wanted(&body)?;
    let owner = named_owner(&body)?;
    audit_context.note(&serde_json::json!({ "cid": wanted.root.to_string(), "owner": owner }));
    let owner = match owner {
        None => Owner::from(&bearer),
        Some(_) if !bearer.may(Scope::Operate) => return Err(insufficient_scope(&bearer, Scope::Operate)),
        Some(owner) => overview.owner(owner).await?,
    };
    let request = overview.pins.request(&owner, wanted).await.map_err(PsaFailure::from)?;
    overview.accepted(&request).await
}

/// The owner that a body names.
fn named_owner(body: &[u8]) -> Result<Option<String>, ApiError> {
    serde_json::from_slice(body).map(|NewPinView { owner, .. }| owner).map_err(bad_request)
}

/// Has a failed or waiting pin of any owner tried as soon as a worker is free. A pin that is being fetched is left
/// alone.
#[utoipa::path(post, path = "/api/v1/pins/{requestid}/retry", tag = "pinning", security(("bearer" = ["operate"])),
    params(("requestid" = String, Path, description = "The requestid of the pin")),
    responses((status = 202, description = "The pin is tried", body = OwnedPinView),
        (status = 400, description = "A parameter is unknown or invalid", body = ErrorView),
        (status = 404, description = "There is no such pin", body = ErrorView),
        (status = 409, description = "The pin is complete, its missing blocks are withheld, or the quota of its owner \
            is used up", body = ErrorView)))]
async fn retry(State(overview): State<Overview>, id: Result<Path<String>, PathRejection>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let Ok(Path(id)) = id else { return Err(no_such_pin()) };
    match overview.pins.retry(&id).await {
        Ok(request) => overview.accepted(&request).await,
        Err(PinsError::Invalid(message)) => Err(ApiError(StatusCode::CONFLICT, message)),
        Err(error) => Err(PsaFailure::from(error).into()),
    }
}

/// The usage of each owner, and the number of pins in each state.
#[utoipa::path(get, path = "/api/v1/pins/owners", tag = "pinning", security(("bearer" = ["operate"])),
    responses((status = 200, description = "The owners of pins", body = OwnersView),
        (status = 400, description = "A parameter is unknown or invalid", body = ErrorView)))]
async fn owners(State(overview): State<Overview>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let (pins, names) = (&overview.pins, overview.token_names().await?);
    let counts = pins.counts();
    let view = |(owner, used): (Arc<str>, services::pinning::QuotaUsage)| OwnerView {
        owner: owner.to_string(),
        owner_name: names.of(&owner),
        pins: used.pins,
        bytes: used.bytes,
    };
    let view = OwnersView {
        owners: pins.owners().into_iter().map(view).collect(),
        pending: counts.pending,
        pinned: counts.pinned,
        failed: counts.failed,
        queued_roots: counts.queued_roots,
        active_roots: counts.active_roots,
    };
    Ok(json(StatusCode::OK, &view))
}

/// Removes a pin of any owner.
#[utoipa::path(delete, path = "/api/v1/pins/{requestid}", tag = "pinning", security(("bearer" = ["operate"])),
    params(("requestid" = String, Path, description = "The requestid of the pin")),
    responses((status = 204, description = "The pin is removed"),
        (status = 400, description = "A parameter is unknown or invalid", body = ErrorView),
        (status = 404, description = "There is no such pin", body = ErrorView)))]
async fn remove(State(overview): State<Overview>, id: Result<Path<String>, PathRejection>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let Ok(Path(id)) = id else { return Err(no_such_pin()) };
    match overview.pins.remove_any(&id).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT.into_response()),
        Err(PinsError::Store(error)) => Err(error.into()),
        Err(_) => Err(no_such_pin()),
    }
}

fn no_such_pin() -> ApiError {
    ApiError(StatusCode::NOT_FOUND, PinsError::NotFound.to_string())
}

impl From<PsaFailure> for ApiError {
    fn from(failure: PsaFailure) -> Self {
        Self(failure.status(), failure.details().to_owned())
    }
}

fn bad_filter(failure: PsaFailure) -> ApiError {
    bad_request(failure.details())
}
