//! `POST /api/v1/names/refresh`: resolves a name now, bypassing the cache.

use crate::http::answer::{Answer, json};
use crate::http::error_responses::BadRequest;
use crate::http::extract::{Audited, Authenticated};
use crate::http::parameters::{bad_request, read_body};
use crate::operations::Operations;
use api::names::{NameStepView, RefreshRequest, RefreshedView};
use api::text::seconds;
use axum::extract::State;
use axum::http::StatusCode;
use bytes::Bytes;
use content::{Name, NameError, Resolution};
use p2p_bridge::epoch;
use p2p_bridge::names::NameStep;

pub(super) fn step_view(step: &NameStep) -> NameStepView {
    NameStepView {
        name: step.name.to_string(),
        source: step.source.name().to_owned(),
        value: step.value.clone(),
        error: step.error.as_ref().map(ToString::to_string),
        age_seconds: step.age.map(seconds),
        fresh_for_seconds: step.fresh_for.map(seconds),
        valid_until_at: step.valid_until.map(epoch::seconds),
        sequence: step.sequence,
    }
}

/// The resolution of a name, as a path.
pub fn path_of(resolution: &Resolution) -> String {
    let segments = resolution.segments.iter();
    segments.fold(format!("/ipfs/{}", resolution.root), |path, segment| path + "/" + segment)
}

/// Parses a name, with or without `/ipns/`.
pub fn read_name(text: &str) -> Result<Name, content::names::InvalidName> {
    Name::parse(text.strip_prefix("/ipns/").unwrap_or(text).trim_end_matches('/'))
}

/// Resolves a name now, bypassing the cache. Later requests use the new resolution.
#[utoipa::path(post, path = "/api/v1/names/refresh", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = RefreshRequest, content_type = "application/json"),
    responses((status = 200, description = "The former and the new resolution", body = RefreshedView), BadRequest))]
pub async fn refresh(
    State(operations): State<Operations>,
    Authenticated(bearer): Authenticated,
    Audited(audit_context): Audited,
    body: Bytes,
) -> Answer {
    let request: RefreshRequest = read_body(&body)?;
    audit_context.note(&request);
    let name = read_name(&request.name).map_err(bad_request)?;
    let _permit = operations.begin(&bearer)?;
    let refreshed = operations.parts().names.refresh(&name).await;
    let old = refreshed.old.as_ref().map(path_of);
    let new = refreshed.new.as_ref().ok().map(path_of);
    let view = RefreshedView {
        name: name.to_string(),
        changed: new.is_some() && old != new,
        old,
        new,
        error: refreshed.new.as_ref().err().map(NameError::to_string),
        steps: refreshed.after.iter().map(step_view).collect(),
    };
    Ok(json(StatusCode::OK, &view))
}
