//! `GET /api/v1/requests`: the running requests of the public listener; `…/errors`: the latest that failed.

use crate::http::answer::{Answer, json};
use crate::http::error_responses::BadRequest;
use crate::http::parameters::Parameters;
use crate::operations::Operations;
use api::requests::{RequestErrorView, RequestErrorsView, RequestView, RequestsView};
use api::text::seconds;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use gateway::recent_errors::RecentError;
use gateway::running::RequestSnapshot;
use p2p_bridge::epoch;

/// The default number of requests in an answer.
const REQUESTS: usize = 100;
/// The maximum number of requests in an answer.
const REQUESTS_MAX: usize = 10_000;

pub(super) fn request_view(request: RequestSnapshot) -> RequestView {
    RequestView {
        id: request.id,
        method: request.method,
        path: request.path,
        host: request.host,
        client: config::ShownAddress(request.client).to_string(),
        seconds: seconds(request.since),
        status: request.status.map(|status| status.as_u16()),
        sent_bytes: request.sent_bytes,
        waits_for: request.waits_for.name().to_owned(),
    }
}

/// The running requests of the public listener. Requests that are answered at once from memory are never among them.
#[utoipa::path(get, path = "/api/v1/requests", tag = "operations", security(("bearer" = ["read"])),
    params(("limit" = Option<usize>, Query, minimum = 1, maximum = 10000,
        description = "The maximum number of requests; 100 by default")),
    responses((status = 200, description = "The requests", body = RequestsView), BadRequest))]
pub async fn list(State(operations): State<Operations>, uri: Uri) -> Answer {
    let limit = Parameters::of(&uri, &["limit"])?.number("limit", 1..=REQUESTS_MAX)?.unwrap_or(REQUESTS);
    let (requests, count) = operations.parts().gateway.running.requests(limit);
    let requests = requests.into_iter().map(request_view).collect();
    Ok(json(StatusCode::OK, &RequestsView { count, requests }))
}

fn error_view(error: RecentError) -> RequestErrorView {
    RequestErrorView {
        at: epoch::seconds(error.at),
        method: error.method,
        path: error.path,
        host: error.host,
        client: error.client,
        status: error.status.map(|status| status.as_u16()),
        reason: error.reason,
        seconds: seconds(error.took),
        trace_id: error.trace_id,
    }
}

/// The latest responses of the public listener that failed: with a status of the class 5xx, or aborted.
#[utoipa::path(get, path = "/api/v1/requests/errors", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The errors", body = RequestErrorsView), BadRequest))]
pub async fn errors(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let errors = operations.parts().gateway.errors.list().into_iter().map(error_view).collect();
    Ok(json(StatusCode::OK, &RequestErrorsView { errors }))
}
