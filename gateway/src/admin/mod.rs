//! The operator's listener: health without a token, everything else with one.
//!
//! ```text
//! guard.rs      who asks (access/), whether the token is good for it (openapi.rs), and what goes into the audit log (audit/)
//!   → the area that the path belongs to, each with routes of its own
//!   → answer.rs   JSON, and words for what goes wrong
//! ```
//!
//! | module | concern |
//! |---|---|
//! | [`access`], [`access_api`] | tokens and what they are good for; who asks |
//! | [`guard`] | who may ask |
//! | [`audit`], [`noted`] | who changed what; what is said of it besides |
//! | [`openapi`] | the description of the API, which the routes and the guard follow |
//! | [`node_api`] | health, metrics, the release, the description |
//! | [`store_api`], [`store_views`] | the API of the store, and what is said of it, here and by commands |
//! | [`have_api`], [`fetch_api`] | which blocks are here; blocks from wherever they are |
//! | [`names_api`] | the API of keys and names |
//! | [`parameters`] | the query and the body of a request |
//! | [`long`] | what operations that take long have in common |
//! | [`upload`] | a body that is read as it comes |
//! | [`answer`], [`refusals`] | JSON, and words for what goes wrong; what many operations refuse |
//!
//! Axum and tower-http live here, where a few microseconds do not matter.

pub mod access;
pub mod access_api;
pub mod answer;
pub mod audit;
pub mod fetch_api;
mod guard;
pub mod have_api;
pub mod long;
pub mod names_api;
mod node_api;
pub mod noted;
pub mod openapi;
pub mod parameters;
pub mod refusals;
pub mod store_api;
pub mod store_views;
pub mod upload;

use self::access::Doorkeeper;
use self::access::book::Book;
use self::answer::{Dialect, Refusal, while_sending};
use self::audit::AuditLog;
use self::openapi::Permissions;
use crate::control::{self, Control};
use crate::errors::Problem;
use crate::health::Health;
use crate::intake::resumable::{self, Parts};
use crate::intake::{self, Intake};
use crate::kubo_rpc::{self, Rpc};
use crate::operations::{self, Operations};
use crate::pinning::{Pins, overview, psa};
use crate::redact;
use crate::request;
use crate::server::Connection;
use crate::source::Sources;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware;
use axum::response::Response;
use bytes::Bytes;
use cache::BlockStore;
use p2p_bridge::names::publish::Publisher;
use prometheus_client::registry::Registry;
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
    pub doorkeeper: Doorkeeper,
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
    pub intake: Intake,
    /// The uploads that come in parts.
    pub parts: Arc<Parts>,
}

/// What every request of the listener meets.
struct Shared {
    registry: Registry,
    health: Arc<Health>,
    doorkeeper: Doorkeeper,
    audit: Arc<AuditLog>,
    permissions: Permissions,
    /// The description of the API, as JSON.
    document: Bytes,
}

/// The routes of the admin listener.
pub fn router(admin: Admin) -> Router {
    described(admin).0
}

/// The same, with their description.
pub fn described(admin: Admin) -> (Router, OpenApi) {
    let Admin { registry, health, publisher, store, sources, pins, doorkeeper, audit, data_dir, .. } = admin;
    let Admin { rpc, operations: on_node, control, intake, parts, .. } = admin;
    let names = publisher.map(names_api::routes);
    let own = [
        store_api::quick_routes(&store, &pins, &intake, &sources.policy),
        have_api::routes(&store),
        access_api::routes(&data_dir, &audit),
        psa::routes(Arc::clone(&pins)),
        overview::routes(Arc::clone(&pins), Book::of(&data_dir)),
        control::routes(Arc::clone(&control)),
    ];
    let quick = names.into_iter().chain(own).chain(on_node.clone().map(operations::routes));
    let quick = quick.fold(OpenApiRouter::default(), OpenApiRouter::merge);
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, TIMEOUT);
    let long = [
        store_api::long_routes(&store, &pins, &intake, &sources.policy),
        fetch_api::long_routes(&sources),
        kubo_rpc::long_routes(rpc),
        control::long_routes(control),
        intake::api::long_routes(intake),
        resumable::api::long_routes(parts),
    ];
    let areas = long.into_iter().fold(quick.layer(timeout), OpenApiRouter::merge);
    let areas = areas.merge(on_node.map_or_else(OpenApiRouter::default, operations::long_routes));
    let (health_routes, guarded) = (node_api::health_routes(), node_api::routes());
    let (areas, described) = areas.split_for_parts();
    let (health_routes, of_health) = health_routes.split_for_parts();
    let (guarded, of_node) = guarded.split_for_parts();
    let document = openapi::complete(of_health.merge_from(of_node).merge_from(described));
    let shared = Arc::new(Shared {
        registry,
        health,
        doorkeeper,
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
        Err(problem) => Err(problem),
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
