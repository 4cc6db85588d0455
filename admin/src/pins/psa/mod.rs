//! The IPFS Pinning Service API 1.0 (<https://ipfs.github.io/pinning-services-api-spec/>), below `/psa`.
//!
//! | request | does |
//! |---|---|
//! | `GET /psa/pins` | lists the token's pins |
//! | `POST /psa/pins` | asks for a pin |
//! | `GET /psa/pins/ID` | says how far it has come |
//! | `POST /psa/pins/ID` | asks for another in its place |
//! | `DELETE /psa/pins/ID` | removes it |
//!
//! | module | concern |
//! |---|---|
//! | [`views`] | the specification's objects |
//! | [`query`] | the filters of a list |
//! | [`failure`] | what is answered when something goes wrong |
//!
//! Goals: the specification to the letter, so that clients work as they are. A token sees and changes its own pins; for
//! others' there is no difference between one that is not there and one that is somebody else's.
//!
//! A departure: a list that is filtered by name and not by status has pins in every status, where the specification's
//! default is pinned ones. The official compliance tool asks for a pin that nobody has, and expects to find it by its
//! name like that.
//!
//! Where the specification leaves room: times are told to the millisecond, no two pins have the same, and a filter by
//! time may be finer; parameters and fields that it does not name are ignored, since services have such of their own; a
//! pin may be asked for as often as one likes, each time as another request; CIDs are compared whatever their version,
//! and are told in their usual base.

pub mod failure;
pub mod query;
pub mod views;

use self::failure::{NoSuchPin, NotAsked, PsaFailure};
use self::query::filter;
use crate::http::answer::json;
use crate::http::extract::{Audited, Authenticated};
use api::error::PinningError;
use api::pins::{PinResultsView, PinStatusView, PinView, StatusView};
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use services::audit::Detail;
use services::audit::context::AuditContext;
use services::pinning::{Owner, Pins, PinsError, Request, Wanted};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The largest body that is read: a pin with all of the metadata that it may have, each byte escaped.
const BODY_BYTES_MAX: usize = 256 * 1024;

/// A request's identifier, as it stands in the path.
type Id = Result<Path<String>, PathRejection>;

/// One that is not even text is nobody's.
fn named(id: Id) -> Result<String, PinsError> {
    id.map(|Path(id)| id).map_err(|_| PinsError::NotFound)
}

/// What handlers answer.
type Answer = Result<Response, PsaFailure>;

/// The routes; their answers are at hand.
pub fn routes(pins: Arc<Pins>) -> OpenApiRouter {
    OpenApiRouter::default().routes(routes!(list, add)).routes(routes!(get, replace, remove)).with_state(pins)
}

/// Lists the token's pins, the newest first; those that are pinned, unless `status` or `name` is given.
#[utoipa::path(get, path = "/psa/pins", tag = "pinning", security(("bearer" = ["pin"])),
    params(
        ("cid" = Option<Vec<String>>, Query, description = "Any of these CIDs, separated by commas",
            style = Form, explode = false, min_items = 1, max_items = 10),
        ("name" = Option<String>, Query, description = "This name", max_length = 255),
        ("match" = Option<query::MatchView>, Query, description = "How the name is compared; exact if left out"),
        ("status" = Option<Vec<StatusView>>, Query, description = "Any of these, with commas; if left out, \
            pinned, or any of them where a name is given", style = Form, explode = false, min_items = 1),
        ("before" = Option<String>, Query, description = "Asked for before this time (RFC 3339)", format = DateTime),
        ("after" = Option<String>, Query, description = "Asked for after this time (RFC 3339)", format = DateTime),
        ("limit" = Option<i32>, Query, description = "How many are shown at most; 10 if left out",
            minimum = 1, maximum = 1000),
        ("meta" = Option<String>, Query, description = "All of these pairs: a JSON object of texts"),
    ),
    responses(
        (status = 200, description = "The pins, and how many there are on all pages", body = PinResultsView),
        (status = 400, description = "A parameter is wrong", body = PinningError)))]
async fn list(State(pins): State<Arc<Pins>>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    let filter = filter(uri.query().unwrap_or_default())?;
    let delegates = views::delegates(&pins).await;
    let page = pins.list(&bearer.id, &filter).await;
    Ok(json(StatusCode::OK, &views::results(&page, &delegates)))
}

/// Asks for a pin.
#[utoipa::path(post, path = "/psa/pins", tag = "pinning", security(("bearer" = ["pin"])), request_body = PinView,
    responses((status = 202, description = "It is asked for", body = PinStatusView), NotAsked))]
async fn add(
    State(pins): State<Arc<Pins>>,
    Authenticated(bearer): Authenticated,
    Audited(noted): Audited,
    body: Body,
) -> Answer {
    let wanted = views::wanted(&read(body).await?)?;
    note(&noted, &wanted);
    accepted(&pins, pins.request(&Owner::from(&bearer), wanted).await?).await
}

/// Says how far a pin has come.
#[utoipa::path(get, path = "/psa/pins/{requestid}", tag = "pinning", security(("bearer" = ["pin"])),
    params(("requestid" = String, Path, description = "As it was told when the pin was asked for")),
    responses((status = 200, description = "The pin", body = PinStatusView), NoSuchPin))]
async fn get(State(pins): State<Arc<Pins>>, Authenticated(bearer): Authenticated, id: Id) -> Answer {
    let request = pins.get(&bearer.id, &named(id)?).ok_or(PinsError::NotFound)?;
    Ok(json(StatusCode::OK, &views::pin_status(&request, &views::delegates(&pins).await)))
}

/// Asks for another pin in the place of this one. Blocks that both have are not let go in between.
#[utoipa::path(post, path = "/psa/pins/{requestid}", tag = "pinning", security(("bearer" = ["pin"])),
    params(("requestid" = String, Path, description = "The pin that is to be replaced")), request_body = PinView,
    responses(
        (status = 202, description = "It is asked for, as a new request", body = PinStatusView), NotAsked, NoSuchPin))]
async fn replace(
    State(pins): State<Arc<Pins>>,
    Authenticated(bearer): Authenticated,
    Audited(noted): Audited,
    id: Id,
    body: Body,
) -> Answer {
    let wanted = views::wanted(&read(body).await?)?;
    note(&noted, &wanted);
    accepted(&pins, pins.replace(&Owner::from(&bearer), &named(id)?, wanted).await?).await
}

/// Removes a pin. What no other pin has of it is let go.
#[utoipa::path(delete, path = "/psa/pins/{requestid}", tag = "pinning", security(("bearer" = ["pin"])),
    params(("requestid" = String, Path, description = "The pin")),
    responses((status = 202, description = "It is removed"), NoSuchPin))]
async fn remove(State(pins): State<Arc<Pins>>, Authenticated(bearer): Authenticated, id: Id) -> Answer {
    pins.remove(&bearer.id, &named(id)?).await?;
    Ok(StatusCode::ACCEPTED.into_response())
}

/// Has the audit log say what was asked for, also if it is not accepted.
fn note(noted: &AuditContext, wanted: &Wanted) {
    noted.note(&serde_json::json!({ "cid": wanted.root.to_string() }));
}

async fn accepted(pins: &Pins, request: Request) -> Answer {
    let view = views::pin_status(&request, &views::delegates(pins).await);
    let detail = Detail(serde_json::json!({ "requestid": view.requestid, "cid": view.pin.cid }));
    Ok(detail.with(json(StatusCode::ACCEPTED, &view)))
}

async fn read(body: Body) -> Result<bytes::Bytes, PsaFailure> {
    let too_much = |_| {
        PsaFailure::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a pin is sent in {BODY_BYTES_MAX} bytes at most, and without a break"),
        )
    };
    axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(too_much)
}
