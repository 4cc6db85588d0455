//! The admin listener. Health endpoints and the files of the console need no credential; every other
//! route needs a bearer token.
//!
//! ```text
//! http/guard.rs   authentication (services::access), authorisation (http/openapi.rs), the audit log (services::audit)
//!   → the module that the path belongs to, each with routes of its own
//!   → http/answer.rs   JSON answers and error bodies
//! ```
//!
//! | module | routes |
//! |---|---|
//! | [`mod@http`] | shared by all routes: middleware, extractors, answers, the OpenAPI description |
//! | [`console`] | the web page of the listener, and its files |
//! | `node` | health, metrics, the version, the OpenAPI document |
//! | [`store`] | the block store: statistics, checks, compaction, CAR import and export, single blocks |
//! | [`have`] | which of a list of blocks are stored locally |
//! | [`fetch`] | a block, fetched from the network if it is not stored locally |
//! | [`names`] | IPNS keys and the records that are published with them |
//! | [`tokens`] | bearer tokens, and the audit log |
//! | [`pins`] | the Pinning Service API, and the pins of all owners |
//! | [`uploads`] | `POST /upload`, and resumable uploads (tus 1.0) |
//! | [`denylists`] | denylists, take-downs, and checks of content against them |
//! | [`operations`] | operating a running node: purge, warm, explain, peers, drain, statistics |
//! | [`kubo_rpc`] | Kubo's RPC (`/api/v0`) |
//!
//! Axum and tower-http are used here, where a few microseconds of latency do not matter.
//!
//! Non-goals: the services behind the routes (`services`); the JSON types ([`api`]); the public listener (`gateway`).

#![allow(clippy::result_large_err, reason = "errors name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod console;
pub mod denylists;
pub mod fetch;
pub mod have;
pub mod http;
pub mod kubo_rpc;
pub mod names;
mod node;
pub mod operations;
pub mod pins;
pub mod store;
pub mod tokens;
pub mod uploads;

use self::http::answer::{ApiError, ErrorFormat, with_lingering_read};
use self::http::openapi::{self, Permissions};
use self::http::{ListenerState, guard};
use crate::kubo_rpc::Rpc;
use crate::operations::Operations;
use crate::pins::{overview, psa};
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Router, middleware};
use cache::BlockStore;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use gateway::errors::Problem;
use gateway::listen::connection::Connection;
use gateway::listen::drain::Drain;
use gateway::listen::server::{self, ConnectionLimits, RequestBody};
use gateway::listen::socket::Listener;
use gateway::metrics::HttpMetrics;
use gateway::request;
use gateway::resolve::source::Sources;
use p2p_bridge::names::publish::Publisher;
use prometheus_client::registry::Registry;
use services::access::Authenticator;
use services::access::token_store::TokenStore;
use services::audit::AuditLog;
use services::denylists::Control;
use services::health::Health;
use services::pinning::Pins;
use services::redact;
use services::uploads::Uploads;
use services::uploads::resumable::ResumableUploads;
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt as _;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

/// The timeout of admin requests that do not depend on the network or on long disk scans.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The parts of the node that the admin listener reads and changes.
pub struct Admin {
    /// Every metric of the process.
    pub registry: Registry,
    /// The state that `/readyz` reports.
    pub health: Arc<Health>,
    /// The IPNS publisher.
    pub publisher: Option<Arc<Publisher>>,
    /// The node's block store.
    pub store: Arc<dyn BlockStore>,
    /// The sources of blocks, the network included.
    pub sources: Arc<Sources>,
    /// The pin service.
    pub pins: Arc<Pins>,
    /// The authenticator of bearer tokens.
    pub authenticator: Authenticator,
    /// The audit log.
    pub audit: Arc<AuditLog>,
    /// The tokens that were created.
    pub tokens: TokenStore,
    /// The state of Kubo's RPC.
    pub rpc: Rpc,
    /// The state of [`operations`].
    pub operations: Option<Operations>,
    /// The denylists.
    pub control: Arc<Control>,
    /// The upload service.
    pub uploads: Uploads,
    /// The resumable uploads.
    pub parts: Arc<ResumableUploads>,
    /// Whether the console is served.
    pub console: bool,
}

/// The routes of the admin listener.
pub fn router(admin: Admin) -> Router {
    router_and_description(admin).0
}

/// The routes of the admin listener, with their OpenAPI description.
pub fn router_and_description(admin: Admin) -> (Router, OpenApi) {
    let Admin { registry, health, publisher, store, sources, pins, authenticator, audit, .. } = admin;
    let Admin { tokens: token_store, rpc, operations: on_node, control, uploads, parts, console, .. } = admin;
    let names = publisher.map(names::routes);
    let own = [
        store::routes(&store, &pins, &uploads, &sources.policy),
        have::routes(&store),
        tokens::routes(token_store.clone(), &audit),
        psa::routes(Arc::clone(&pins)),
        overview::routes(Arc::clone(&pins), token_store),
        denylists::routes(Arc::clone(&control)),
    ];
    let quick = names.into_iter().chain(own).chain(on_node.clone().map(operations::routes));
    let quick = quick.fold(OpenApiRouter::default(), OpenApiRouter::merge);
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, TIMEOUT);
    let long = [
        store::long_running_routes(&store, &pins, &uploads, &sources.policy),
        fetch::long_running_routes(&sources),
        kubo_rpc::long_running_routes(rpc),
        denylists::long_running_routes(control),
        uploads::long_running_routes(uploads),
        uploads::resumable::long_running_routes(parts),
    ];
    let areas = long.into_iter().fold(quick.layer(timeout), OpenApiRouter::merge);
    let areas = areas.merge(on_node.map_or_else(OpenApiRouter::default, operations::long_running_routes));
    let (health_routes, guarded) = (node::health_routes(), node::routes());
    let (areas, of_areas) = areas.split_for_parts();
    let (health_routes, of_health) = health_routes.split_for_parts();
    let (guarded, of_node) = guarded.split_for_parts();
    let document = openapi::complete(of_health.merge_from(of_node).merge_from(of_areas));
    let shared = Arc::new(ListenerState {
        registry,
        health,
        authenticator,
        audit,
        permissions: Permissions::of(&document),
        // A document of strings always serialises.
        document: serde_json::to_vec(&document).unwrap_or_default().into(),
    });
    let guarded = guarded
        .with_state(Arc::clone(&shared))
        .merge(areas)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), guard::check));
    let console = if console { console::routes() } else { Router::new() };
    let console = console.method_not_allowed_fallback(method_not_allowed);
    let router = health_routes.with_state(shared).merge(console).merge(guarded);
    (router.layer(CatchPanicLayer::new()).layer(TraceLayer::new_for_http().make_span_with(span)), document)
}

/// The tracing span of a request. It leaves out the values of the query, since a client may send a token there.
fn span(request: &Request) -> tracing::Span {
    tracing::debug_span!("request", method = %request.method(), uri = redact::without_values(request.uri()))
}

/// Serves the routes on a socket until the drain begins.
pub fn serve(
    listener: Listener,
    limits: ConnectionLimits,
    metrics: Arc<HttpMetrics>,
    drain: Drain,
    router: Router,
) -> BoxFuture<'static, ()> {
    let handler = move |request: ::http::Request<RequestBody>, connection: Arc<Connection>| {
        answer(router.clone(), request.map(Body::new), connection)
    };
    server::serve(listener, limits, metrics, drain, handler).boxed()
}

/// Answers a request once admission control admits it. Health requests are admitted at once.
async fn answer(router: Router, mut request: Request, connection: Arc<Connection>) -> Response {
    let (head, body) = request.into_parts();
    let admitted = match request::check_host(&head) {
        Ok(()) if request::is_health_check(head.uri.path()) => Ok(()),
        Ok(()) => connection.admitted().await.map_err(Problem::from),
        Err(error) => Err(Problem::from(error)),
    };
    request = Request::from_parts(head, body);
    if let Err(problem) = admitted {
        return error_response(problem.status(), &problem.to_string(), request);
    }
    request.extensions_mut().insert(connection);
    match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

async fn not_found(request: Request) -> Response {
    let message = match ErrorFormat::of(request.uri().path()) {
        ErrorFormat::Kubo => kubo_rpc::no_such_command(),
        _ => "the admin listener has no such path; /api/v1/openapi.json describes all paths".to_owned(),
    };
    error_response(StatusCode::NOT_FOUND, &message, request)
}

async fn method_not_allowed(request: Request) -> Response {
    let message = "this path does not support the request's method; the header Allow lists the supported methods";
    error_response(StatusCode::METHOD_NOT_ALLOWED, message, request)
}

fn error_response(status: StatusCode, message: &str, request: Request) -> Response {
    let error_format = ErrorFormat::of(request.uri().path());
    with_lingering_read(error_format.response(ApiError(status, message.to_owned())), request.into_body())
}

#[cfg(test)]
mod tests;
