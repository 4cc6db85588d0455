//! `GET /api/v1/requests`: what the public listener is answering at this moment.

use super::Operations;
use crate::admin::answer::{Answer, json, seconds};
use crate::admin::parameters::Parameters;
use crate::admin::refusals::WrongRequest;
use crate::running::Underway;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Requests in one answer, unless others are asked for.
const REQUESTS: usize = 100;
/// The most that may be asked for.
const REQUESTS_MAX: usize = 10_000;

/// A request that is being answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestView {
    /// Tells it from others, for as long as it is there.
    pub id: u64,
    /// Its method.
    pub method: String,
    /// Its path and query, cut if they are long.
    pub path: String,
    /// The host that it asks.
    pub host: String,
    /// Who asks: an IPv4 address, or an IPv6 network of 64 bits.
    pub client: String,
    /// How long it has been here.
    pub seconds: f64,
    /// The status of its response, once that has begun.
    pub status: Option<u16>,
    /// Bytes of the body that were handed over to be sent.
    pub sent_bytes: u64,
    /// What it waits for: `route` (where its host leads), `name`, `content`, `more` (of the content), or `client` (who
    /// has yet to take in what was sent).
    pub waits_for: String,
}

/// Requests that are being answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestsView {
    /// How many there are.
    pub count: usize,
    /// Those that have been here for longest come first.
    pub requests: Vec<RequestView>,
}

impl From<Underway> for RequestView {
    fn from(request: Underway) -> Self {
        Self {
            id: request.id,
            method: request.method,
            path: request.path,
            host: request.host,
            client: request.client.to_string(),
            seconds: seconds(request.since),
            status: request.status.map(|status| status.as_u16()),
            sent_bytes: request.sent_bytes,
            waits_for: request.waits_for.name().to_owned(),
        }
    }
}

/// The requests that the public listener is answering. What is answered at once, out of memory, is never among them.
#[utoipa::path(get, path = "/api/v1/requests", tag = "operations", security(("bearer" = ["read"])),
    params(("limit" = Option<usize>, Query, minimum = 1, maximum = 10000,
        description = "So many at most; 100 if it is left out")),
    responses((status = 200, description = "The requests", body = RequestsView), WrongRequest))]
pub async fn list(State(operations): State<Operations>, uri: Uri) -> Answer {
    let limit = Parameters::of(&uri, &["limit"])?.number("limit", 1..=REQUESTS_MAX)?.unwrap_or(REQUESTS);
    let (requests, count) = operations.parts().gateway.running.requests(limit);
    let requests = requests.into_iter().map(RequestView::from).collect();
    Ok(json(StatusCode::OK, &RequestsView { count, requests }))
}
