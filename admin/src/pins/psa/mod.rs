//! The IPFS Pinning Service API 1.0 (<https://ipfs.github.io/pinning-services-api-spec/>), below `/psa`.
//!
//! | request | does |
//! |---|---|
//! | `GET /psa/pins` | lists the token's pins |
//! | `POST /psa/pins` | creates a pin |
//! | `GET /psa/pins/ID` | shows a pin and its status |
//! | `POST /psa/pins/ID` | replaces a pin |
//! | `DELETE /psa/pins/ID` | removes a pin |
//!
//! | module | concern |
//! |---|---|
//! | [`views`] | the specification's objects |
//! | [`query`] | the filters of a list |
//! | [`failure`] | errors |
//!
//! Goals: the specification to the letter, so that existing clients work unchanged. A token lists and changes only its
//! own pins; the pin of another token is answered like one that does not exist.
//!
//! A departure: a list that is filtered by name and not by status has pins in every status, where the specification's
//! default is `pinned`. The official compliance tool pins content without providers, and expects to find the pin by its
//! name.
//!
//! Where the specification leaves the choice open: times have a precision of a millisecond, no two pins have the same
//! creation time, and a filter by time may be more precise; unknown parameters and fields are ignored, since services
//! have extensions of their own; the same root may be pinned repeatedly, each time as a new request; CIDs are compared
//! regardless of their version, and are written in their default base.

pub mod failure;
pub mod query;
pub mod views;

use self::failure::{NoSuchPin, PinRejected, PsaFailure};
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
use services::audit::ResponseDetail;
use services::audit::context::AuditContext;
use services::pinning::{Owner, PinParameters, PinRequest, Pins, PinsError};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The maximum length of a body, in bytes: a pin with the maximum of metadata, each byte escaped.
const BODY_BYTES_MAX: usize = 256 * 1024;

/// A `requestid` in the path.
type Id = Result<Path<String>, PathRejection>;

/// The `requestid`. One that is not UTF-8 does not exist.
fn request_id(id: Id) -> Result<String, PinsError> {
    id.map(|Path(id)| id).map_err(|_| PinsError::NotFound)
}

/// What handlers answer.
type Answer = Result<Response, PsaFailure>;

/// The routes.
pub fn routes(pins: Arc<Pins>) -> OpenApiRouter {
    OpenApiRouter::default().routes(routes!(list, add)).routes(routes!(get, replace, remove)).with_state(pins)
}

/// Lists the token's pins, the newest first. Without `status` and `name`, only pins with the status `pinned`.
#[utoipa::path(get, path = "/psa/pins", tag = "pinning", security(("bearer" = ["pin"])),
    params(
        ("cid" = Option<Vec<String>>, Query, description = "Any of these CIDs, separated by commas",
            style = Form, explode = false, min_items = 1, max_items = 10),
        ("name" = Option<String>, Query, description = "Only pins with this name", max_length = 255),
        ("match" = Option<query::MatchView>, Query, description = "How the name is compared; exact by default"),
        ("status" = Option<Vec<StatusView>>, Query, description = "Any of these statuses, separated by commas; by \
            default pinned, or any status if name is given", style = Form, explode = false, min_items = 1),
        ("before" = Option<String>, Query, description = "Created before this time (RFC 3339)", format = DateTime),
        ("after" = Option<String>, Query, description = "Created after this time (RFC 3339)", format = DateTime),
        ("limit" = Option<i32>, Query, description = "The maximum number of pins; 10 by default",
            minimum = 1, maximum = 1000),
        ("meta" = Option<String>, Query, description = "Only pins with all of these key-value pairs: a JSON object of \
            strings"),
    ),
    responses(
        (status = 200, description = "The pins, and their number on all pages", body = PinResultsView),
        (status = 400, description = "A parameter is invalid", body = PinningError)))]
async fn list(State(pins): State<Arc<Pins>>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    let filter = filter(uri.query().unwrap_or_default())?;
    let delegates = views::delegates(&pins).await;
    let page = pins.list(&bearer.id, &filter).await;
    Ok(json(StatusCode::OK, &views::results(&page, &pins, &delegates)))
}

/// Creates a pin.
#[utoipa::path(post, path = "/psa/pins", tag = "pinning", security(("bearer" = ["pin"])), request_body = PinView,
    responses((status = 202, description = "The pin is created", body = PinStatusView), PinRejected))]
async fn add(
    State(pins): State<Arc<Pins>>,
    Authenticated(bearer): Authenticated,
    Audited(audit_context): Audited,
    body: Body,
) -> Answer {
    let wanted = views::wanted(&read(body).await?)?;
    record_request(&audit_context, &wanted);
    accepted(&pins, pins.request(&Owner::from(&bearer), wanted).await?).await
}

/// Shows a pin and its status.
#[utoipa::path(get, path = "/psa/pins/{requestid}", tag = "pinning", security(("bearer" = ["pin"])),
    params(("requestid" = String, Path, description = "The requestid of the pin")),
    responses((status = 200, description = "The pin", body = PinStatusView), NoSuchPin))]
async fn get(State(pins): State<Arc<Pins>>, Authenticated(bearer): Authenticated, id: Id) -> Answer {
    let request = pins.get(&bearer.id, &request_id(id)?).ok_or(PinsError::NotFound)?;
    Ok(json(StatusCode::OK, &views::pin_status(&request, &pins, &views::delegates(&pins).await)))
}

/// Replaces a pin. Blocks that both pins have stay pinned throughout.
#[utoipa::path(post, path = "/psa/pins/{requestid}", tag = "pinning", security(("bearer" = ["pin"])),
    params(("requestid" = String, Path, description = "The requestid of the pin to replace")), request_body = PinView,
    responses(
        (status = 202, description = "The new pin is created, with a new requestid",
            body = PinStatusView), PinRejected, NoSuchPin))]
async fn replace(
    State(pins): State<Arc<Pins>>,
    Authenticated(bearer): Authenticated,
    Audited(audit_context): Audited,
    id: Id,
    body: Body,
) -> Answer {
    let wanted = views::wanted(&read(body).await?)?;
    record_request(&audit_context, &wanted);
    accepted(&pins, pins.replace(&Owner::from(&bearer), &request_id(id)?, wanted).await?).await
}

/// Removes a pin. Its blocks that no other pin has are unpinned.
#[utoipa::path(delete, path = "/psa/pins/{requestid}", tag = "pinning", security(("bearer" = ["pin"])),
    params(("requestid" = String, Path, description = "The requestid of the pin")),
    responses((status = 202, description = "The pin is removed"), NoSuchPin))]
async fn remove(State(pins): State<Arc<Pins>>, Authenticated(bearer): Authenticated, id: Id) -> Answer {
    pins.remove(&bearer.id, &request_id(id)?).await?;
    Ok(StatusCode::ACCEPTED.into_response())
}

/// Adds the CID to the audit context, so that the audit log has it even if the request is rejected.
fn record_request(audit_context: &AuditContext, wanted: &PinParameters) {
    audit_context.note(&serde_json::json!({ "cid": wanted.root.to_string() }));
}

async fn accepted(pins: &Pins, request: PinRequest) -> Answer {
    let view = views::pin_status(&request, pins, &views::delegates(pins).await);
    let detail = ResponseDetail(serde_json::json!({ "requestid": view.requestid, "cid": view.pin.cid }));
    Ok(detail.with(json(StatusCode::ACCEPTED, &view)))
}

/// Reads the body of a pin.
pub(in crate::pins) async fn read(body: Body) -> Result<bytes::Bytes, PsaFailure> {
    let too_much = |_| {
        PsaFailure::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body of a pin must have at most {BODY_BYTES_MAX} bytes and be complete"),
        )
    };
    axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(too_much)
}
