//! What the listener says of the process: health, metrics, the release, and the description of the API.

use crate::http::Shared;
use crate::http::answer::{Answer, json};
use api::store::VersionView;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use services::health::Health;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// What the exposition format of `prometheus-client` is
/// (<https://prometheus.io/docs/specs/om/open_metrics_spec/#overall-structure>).
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is answered without a token.
pub fn health_routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::default().routes(routes!(healthz)).routes(routes!(readyz))
}

/// What is answered to whoever may look.
pub fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::default().routes(routes!(metrics)).routes(routes!(version)).routes(routes!(openapi))
}

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", tag = "health",
    responses((status = 200, description = "It does", content_type = "text/plain")))]
async fn healthz() -> Response {
    Health::alive().into_response()
}

/// Whether the gateway answers requests.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = 200, description = "It does", content_type = "text/plain"),
    (status = 503, content_type = "text/plain",
        description = "It is starting, draining, or degraded, and says why; in JSON for clients that accept it")))]
async fn readyz(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.health.ready(&headers).into_response()
}

/// Every metric, in the OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The metrics", content_type = "application/openmetrics-text")))]
async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &shared.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n")).into_response()
        }
    }
}

/// Which release answers. Any token will do.
#[utoipa::path(get, path = "/api/v1/version", tag = "operations", security(("bearer" = [])),
    responses((status = 200, description = "The release", body = VersionView)))]
async fn version() -> Answer {
    Ok(json(StatusCode::OK, &VersionView { version: env!("CARGO_PKG_VERSION").to_owned() }))
}

/// This description. Any token will do.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "api", security(("bearer" = [])),
    responses((status = 200, description = "An OpenAPI document", content_type = "application/json")))]
async fn openapi(State(shared): State<Arc<Shared>>) -> Response {
    ([(CONTENT_TYPE, "application/json")], shared.document.clone()).into_response()
}
