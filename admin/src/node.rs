//! Health, metrics, the version, and the OpenAPI document.

use crate::http::ListenerState;
use crate::http::answer::{Answer, json};
use api::store::VersionView;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use content::stored::coding::ZSTD;
use services::health::Health;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The media type of `prometheus-client`'s exposition format
/// (<https://prometheus.io/docs/specs/om/open_metrics_spec/#overall-structure>).
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The routes that need no token.
pub fn health_routes() -> OpenApiRouter<Arc<ListenerState>> {
    OpenApiRouter::default().routes(routes!(healthz)).routes(routes!(readyz))
}

/// The routes that need a token.
pub fn routes() -> OpenApiRouter<Arc<ListenerState>> {
    OpenApiRouter::default().routes(routes!(metrics)).routes(routes!(version)).routes(routes!(openapi))
}

/// Whether the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "health",
    responses((status = 200, description = "The process is alive", content_type = "text/plain")))]
async fn healthz() -> Response {
    Health::alive().into_response()
}

/// Whether the gateway answers requests.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = 200, description = "The gateway is ready", content_type = "text/plain"),
    (status = 503, content_type = "text/plain",
        description = "The gateway is starting, draining or degraded; the body says why, in JSON for clients that \
            accept it")))]
async fn readyz(State(shared): State<Arc<ListenerState>>, headers: HeaderMap) -> Response {
    shared.health.ready(&headers).into_response()
}

/// Every metric, in the OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The metrics", content_type = "application/openmetrics-text")))]
async fn metrics(State(shared): State<Arc<ListenerState>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &shared.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be encoded: {error}\n")).into_response()
        }
    }
}

/// The version of the gateway. Any token may ask.
#[utoipa::path(get, path = "/api/v1/version", tag = "operations", security(("bearer" = [])),
    responses((status = 200, description = "The version", body = VersionView)))]
async fn version() -> Answer {
    let view = VersionView { version: env!("CARGO_PKG_VERSION").to_owned(), upload_codings: vec![ZSTD.to_owned()] };
    Ok(json(StatusCode::OK, &view))
}

/// This OpenAPI document. Any token may ask.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "api", security(("bearer" = [])),
    responses((status = 200, description = "An OpenAPI document", content_type = "application/json")))]
async fn openapi(State(shared): State<Arc<ListenerState>>) -> Response {
    ([(CONTENT_TYPE, "application/json")], shared.document.clone()).into_response()
}
