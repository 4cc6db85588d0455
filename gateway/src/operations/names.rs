//! `POST /api/v1/names/refresh`: what a name stands for is looked up now, whatever is remembered of it.

use super::Operations;
use crate::admin::access::Bearer;
use crate::admin::answer::{Answer, json, seconds};
use crate::admin::noted::Noted;
use crate::admin::parameters::{read_body, wrong};
use crate::admin::refusals::WrongRequest;
use axum::extract::State;
use axum::http::StatusCode;
use bytes::Bytes;
use content::{Name, NameError, Resolution};
use p2p_bridge::epoch;
use p2p_bridge::names::NameStep;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which name is looked up.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RefreshRequest {
    /// An IPNS key or a domain, with or without `/ipns/` before it.
    pub name: String,
}

/// What is known of one of the names on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NameStepView {
    /// The name.
    pub name: String,
    /// Where that comes from: `list` (names.dnslink_map), `published` (here), `network`, `dns`, or `unknown`: it would
    /// have to be looked up.
    pub source: String,
    /// What it stands for.
    pub value: Option<String>,
    /// Why it stands for nothing.
    pub error: Option<String>,
    /// How long that has been known.
    pub age_seconds: Option<f64>,
    /// How long it counts as fresh. `null`: readers get it as long as it holds, and it is looked up again behind.
    pub fresh_for_seconds: Option<f64>,
    /// Until when the record holds.
    pub valid_until_at: Option<u64>,
    /// How often the record was changed.
    pub sequence: Option<u64>,
}

impl From<&NameStep> for NameStepView {
    fn from(step: &NameStep) -> Self {
        Self {
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
}

/// What a name stood for and stands for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RefreshedView {
    /// The name.
    pub name: String,
    /// Where it led to as far as was known, as a path.
    pub old: Option<String>,
    /// Where it leads to.
    pub new: Option<String>,
    /// Why it leads nowhere, or could not be looked up: what was known and still holds is answered with.
    pub error: Option<String>,
    /// Whether it leads elsewhere now.
    pub changed: bool,
    /// What is known now of each name on the way.
    pub steps: Vec<NameStepView>,
}

/// Where a name leads, as a path.
pub fn path_of(resolution: &Resolution) -> String {
    let segments = resolution.segments.iter();
    segments.fold(format!("/ipfs/{}", resolution.root), |path, segment| path + "/" + segment)
}

/// A name as it is typed.
pub fn read_name(text: &str) -> Result<Name, content::names::NotAName> {
    Name::parse(text.strip_prefix("/ipns/").unwrap_or(text).trim_end_matches('/'))
}

/// Looks up now what a name stands for. Readers are answered with what is found from then on.
#[utoipa::path(post, path = "/api/v1/names/refresh", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = RefreshRequest, content_type = "application/json"),
    responses((status = 200, description = "What it stood for and stands for", body = RefreshedView), WrongRequest))]
pub async fn refresh(State(operations): State<Operations>, bearer: Bearer, noted: Noted, body: Bytes) -> Answer {
    let request: RefreshRequest = read_body(&body)?;
    noted.note(&request);
    let name = read_name(&request.name).map_err(wrong)?;
    let _place = operations.begin(&bearer)?;
    let refreshed = operations.parts().names.refresh(&name).await;
    let old = refreshed.old.as_ref().map(path_of);
    let new = refreshed.new.as_ref().ok().map(path_of);
    let view = RefreshedView {
        name: name.to_string(),
        changed: new.is_some() && old != new,
        old,
        new,
        error: refreshed.new.as_ref().err().map(NameError::to_string),
        steps: refreshed.after.iter().map(NameStepView::from).collect(),
    };
    Ok(json(StatusCode::OK, &view))
}
