//! The admin listener: health without a token, everything else with one.
//!
//! ```text
//! http/guard.rs   authentication (services::access), authorisation (http/openapi.rs), the audit log (services::audit)
//!   → the module that the path belongs to, each with routes of its own
//!   → http/answer.rs   JSON, and words for what goes wrong
//! ```
//!
//! | module | routes |
//! |---|---|
//! | [`mod@http`] | what all operations have in common |
//! | `node` | health, metrics, the release, the description |
//! | [`store`], [`have`], [`fetch`] | the block store; which blocks are stored locally; blocks from wherever they are |
//! | [`names`] | IPNS keys and what is published with them |
//! | [`tokens`] | bearer tokens, and the audit log |
//! | [`pins`] | the Pinning Service API, and the pins of all owners |
//! | [`uploads`] | `POST /upload`, and resumable uploads (tus 1.0) |
//! | [`denylists`] | denylists, take-downs, and what decides about content |
//! | [`operations`] | what an operator does with a node that runs: purge, warm, explain, peers, drain, figures |
//! | [`kubo_rpc`] | Kubo's RPC (`/api/v0`) |
//!
//! Axum and tower-http are used here, where a few microseconds do not matter.
//!
//! Non-goals: what the services do (`services`); the JSON bodies ([`api`]); the public listener (`gateway`).

#![allow(clippy::result_large_err, reason = "errors name the CID, whose digest has room for 128 bytes, and are rare")]

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

use self::http::answer::{Dialect, Refusal, while_sending};
use self::http::openapi::{self, Permissions};
use self::http::{Shared, guard};
use crate::kubo_rpc::Rpc;
use crate::operations::Operations;
use crate::pins::{overview, psa};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Router, middleware};
use cache::BlockStore;
use gateway::errors::Problem;
use gateway::listen::server::Connection;
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
use services::uploads::resumable::Parts;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt as _;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

/// How long an admin request may take whose answer is at hand.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What the operator is shown, and may change.
pub struct Admin {
    /// Every metric of the process.
    pub registry: Registry,
    /// What `/readyz` answers.
    pub health: Arc<Health>,
    /// What publishes names.
    pub publisher: Option<Arc<Publisher>>,
    /// The node's store.
    pub store: Arc<dyn BlockStore>,
    /// Where blocks are taken from, the network included.
    pub sources: Arc<Sources>,
    /// Who asked for what to be kept.
    pub pins: Arc<Pins>,
    /// Who may ask.
    pub authenticator: Authenticator,
    /// Where changes are written down.
    pub audit: Arc<AuditLog>,
    /// Where the node's data is.
    pub data_dir: PathBuf,
    /// What Kubo's commands work with.
    pub rpc: Rpc,
    /// What operators do with the node.
    pub operations: Option<Operations>,
    /// What is withheld.
    pub control: Arc<Control>,
    /// What takes uploads in.
    pub uploads: Uploads,
    /// The uploads that come in parts.
    pub parts: Arc<Parts>,
}

/// The routes of the admin listener.
pub fn router(admin: Admin) -> Router {
    described(admin).0
}

/// The same, with their description.
pub fn described(admin: Admin) -> (Router, OpenApi) {
    let Admin { registry, health, publisher, store, sources, pins, authenticator, audit, data_dir, .. } = admin;
    let Admin { rpc, operations: on_node, control, uploads, parts, .. } = admin;
    let names = publisher.map(names::routes);
    let own = [
        store::quick_routes(&store, &pins, &uploads, &sources.policy),
        have::routes(&store),
        tokens::routes(&data_dir, &audit),
        psa::routes(Arc::clone(&pins)),
        overview::routes(Arc::clone(&pins), TokenStore::of(&data_dir)),
        denylists::routes(Arc::clone(&control)),
    ];
    let quick = names.into_iter().chain(own).chain(on_node.clone().map(operations::routes));
    let quick = quick.fold(OpenApiRouter::default(), OpenApiRouter::merge);
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, TIMEOUT);
    let long = [
        store::long_routes(&store, &pins, &uploads, &sources.policy),
        fetch::long_routes(&sources),
        kubo_rpc::long_routes(rpc),
        denylists::long_routes(control),
        uploads::long_routes(uploads),
        uploads::resumable::long_routes(parts),
    ];
    let areas = long.into_iter().fold(quick.layer(timeout), OpenApiRouter::merge);
    let areas = areas.merge(on_node.map_or_else(OpenApiRouter::default, operations::long_routes));
    let (health_routes, guarded) = (node::health_routes(), node::routes());
    let (areas, described) = areas.split_for_parts();
    let (health_routes, of_health) = health_routes.split_for_parts();
    let (guarded, of_node) = guarded.split_for_parts();
    let document = openapi::complete(of_health.merge_from(of_node).merge_from(described));
    let shared = Arc::new(Shared {
        registry,
        health,
        authenticator,
        audit,
        permissions: Permissions::of(&document),
        // A document of texts can be written.
        document: serde_json::to_vec(&document).unwrap_or_default().into(),
    });
    let guarded = guarded
        .with_state(Arc::clone(&shared))
        .merge(areas)
        .method_not_allowed_fallback(another_method)
        .fallback(nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), guard::check));
    let router = health_routes.with_state(shared).merge(guarded);
    (router.layer(CatchPanicLayer::new()).layer(TraceLayer::new_for_http().make_span_with(span)), document)
}

/// What the log says of a request: never what is in its query, where a client may have put a token.
fn span(request: &Request) -> tracing::Span {
    tracing::debug_span!("request", method = %request.method(), uri = redact::without_values(request.uri()))
}

/// Answers what came over a connection, once there is room for that: health at once.
pub async fn answer(router: Router, mut request: Request, connection: Arc<Connection>) -> Response {
    let (head, body) = request.into_parts();
    let admitted = match request::check_host(&head) {
        Ok(()) if request::is_about_health(head.uri.path()) => Ok(()),
        Ok(()) => connection.admitted().await.map_err(Problem::from),
        Err(error) => Err(Problem::from(error)),
    };
    request = Request::from_parts(head, body);
    if let Err(problem) = admitted {
        return refuse(problem.status(), &problem.to_string(), request);
    }
    request.extensions_mut().insert(connection);
    match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

async fn nothing(request: Request) -> Response {
    let words = match Dialect::of(request.uri().path()) {
        Dialect::Kubo => kubo_rpc::no_such_command(),
        _ => "there is no such page on the admin listener; /api/v1/openapi.json describes all there are".to_owned(),
    };
    refuse(StatusCode::NOT_FOUND, &words, request)
}

async fn another_method(request: Request) -> Response {
    let words = "this is asked for with another method: the header Allow says with which";
    refuse(StatusCode::METHOD_NOT_ALLOWED, words, request)
}

fn refuse(status: StatusCode, words: &str, request: Request) -> Response {
    let dialect = Dialect::of(request.uri().path());
    while_sending(dialect.refuse(Refusal(status, words.to_owned())), request.into_body())
}

#[cfg(test)]
mod tests;
