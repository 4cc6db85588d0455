//! The operator's listener: health without a token, everything else with it.
//!
//! Axum and tower-http live here, where a few microseconds do not matter.

use crate::health::Health;
use crate::names_api;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use p2p_bridge::names::publish::Publisher;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

/// How long any admin request may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// What the exposition format of `prometheus-client` is
/// (<https://prometheus.io/docs/specs/om/open_metrics_spec/#overall-structure>).
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the operator is shown.
pub struct Admin {
    /// Every metric of the process.
    pub registry: Registry,
    /// What `/readyz` answers.
    pub health: Arc<Health>,
    /// What publishes names.
    pub publisher: Option<Arc<Publisher>>,
    /// What a bearer has to know, if anything.
    pub token: config::Secret,
}

/// The routes of the admin listener.
pub fn router(admin: Admin) -> Router {
    let admin = Arc::new(admin);
    let names = admin
        .publisher
        .as_ref()
        .map_or_else(Router::new, |publisher| names_api::routes(Arc::clone(publisher), admin.token.reveal().is_some()));
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .merge(names)
        .fallback(nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(&admin), authorise));
    Router::new()
        .route("/healthz", get(|| async { Health::alive() }))
        .route("/readyz", get(|State(admin): State<Arc<Admin>>| async move { admin.health.ready() }))
        .merge(guarded)
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, TIMEOUT))
        .layer(CatchPanicLayer::new())
        .layer(TraceLayer::new_for_http())
        .with_state(admin)
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &admin.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n")).into_response()
        }
    }
}

async fn nothing() -> (StatusCode, &'static str) {
    (
        StatusCode::NOT_FOUND,
        "there is no such page on the admin listener; try /metrics, /healthz, /readyz or /api/v1/names/keys\n",
    )
}

async fn authorise(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    match admin.token.reveal() {
        Some(token) if !bears(request.headers(), token) => {
            let text = "this needs the header \"Authorization: Bearer TOKEN\" with the token of admin.token\n";
            (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], text).into_response()
        }
        _ => next.run(request).await,
    }
}

fn bears(headers: &HeaderMap, token: &str) -> bool {
    let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let credentials = value.and_then(|value| value.split_once(' '));
    credentials.is_some_and(|(scheme, given)| {
        scheme.eq_ignore_ascii_case("bearer") && same(given.trim().as_bytes(), token.as_bytes())
    })
}

/// Compares in a time that depends on the lengths alone.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |bits, (x, y)| std::hint::black_box(bits | (x ^ y)));
    a.len() == b.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Stage;
    use axum::body::Body;
    use tower::ServiceExt as _;

    async fn status(router: &Router, path: &str, authorization: Option<&str>) -> u16 {
        let mut request = Request::builder().uri(path);
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(Body::empty()).expect("a request");
        router.clone().oneshot(request).await.expect("answers").status().as_u16()
    }

    #[tokio::test]
    async fn only_health_is_without_a_token() {
        let health = Arc::new(Health::default());
        let router = router(Admin {
            registry: Registry::default(),
            health: Arc::clone(&health),
            publisher: None,
            token: "secret".into(),
        });
        let table = [
            ("/healthz", None, 200),
            ("/readyz", None, 503),
            ("/metrics", None, 401),
            ("/metrics", Some("Bearer secret"), 200),
            ("/metrics", Some("bearer secret"), 200),
            ("/metrics", Some("Bearer secre"), 401),
            ("/metrics", Some("Bearer secrets"), 401),
            ("/metrics", Some("Basic secret"), 401),
            ("/metrics", Some("Bearer"), 401),
            ("/anything", None, 401),
            ("/anything", Some("Bearer secret"), 404),
        ];
        for (path, authorization, expected) in table {
            assert_eq!(status(&router, path, authorization).await, expected, "{path} {authorization:?}");
        }
        health.enter(Stage::Serving);
        assert_eq!(status(&router, "/readyz", None).await, 200);
    }

    #[tokio::test]
    async fn without_a_token_in_the_settings_none_is_asked_for() {
        let admin = Admin {
            registry: Registry::default(),
            health: Arc::default(),
            publisher: None,
            token: config::Secret::default(),
        };
        assert_eq!(status(&router(admin), "/metrics", None).await, 200);
    }
}
