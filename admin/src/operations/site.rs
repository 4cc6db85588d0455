//! The site that the gateway belongs to.
//!
//! | request | does |
//! |---|---|
//! | `GET /api/v1/site` | shows its gateways, and what is in its storage |
//! | `POST /api/v1/site/reconcile` | compares its storage with the index in its database |

use crate::http::answer::{Answer, ApiError, json};
use crate::http::error_responses::BadRequest;
use crate::http::extract::{Audited, Authenticated};
use crate::http::long_running;
use crate::http::parameters::read_body;
use crate::operations::Operations;
use api::error::ErrorView;
use api::site::{ReconcileLine, ReconcileRequest, SiteView};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use bytes::Bytes;
use cache::StoreError;
use futures::future::BoxFuture;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// The maximum number of buffered lines.
const LINES_MAX: usize = 8;

/// Reads the state of a site.
pub type SiteLookup = Arc<dyn Fn() -> BoxFuture<'static, Result<SiteView, StoreError>> + Send + Sync>;

/// Compares the storage of a site with its index, and sends lines: progress as long as there is room for it, and a
/// report or an error at the end. Dropping the future stops it.
pub type SiteReconciliation =
    Arc<dyn Fn(ReconcileRequest, mpsc::Sender<ReconcileLine>) -> BoxFuture<'static, ()> + Send + Sync>;

/// The operations on a site.
#[derive(Clone)]
pub struct SiteOperations {
    /// Reads its state.
    pub lookup: SiteLookup,
    /// Compares its storage with its index.
    pub reconcile: SiteReconciliation,
}

impl Operations {
    fn site(&self) -> Result<&SiteOperations, ApiError> {
        let message = "this gateway does not belong to a site: see [site] in the settings";
        self.parts().site.as_ref().ok_or_else(|| ApiError(StatusCode::NOT_FOUND, message.to_owned()))
    }
}

/// The site that the gateway belongs to: its gateways, and what is in its storage.
#[utoipa::path(get, path = "/api/v1/site", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The site", body = SiteView),
        (status = 404, description = "The gateway does not belong to a site", body = ErrorView),
        (status = 503, description = "The database of the site cannot be reached", body = ErrorView)))]
pub async fn read(State(operations): State<Operations>) -> Answer {
    Ok(json(StatusCode::OK, &(operations.site()?.lookup)().await?))
}

/// Compares the storage of the site with the index in its database: objects that the index does not know are deleted,
/// and pins that lack a block become incomplete. Ends when the client disconnects; what was done until then is done.
/// One gateway of the site does it at a time. The last line is a report or an error.
#[utoipa::path(post, path = "/api/v1/site/reconcile", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = ReconcileRequest, content_type = "application/json"),
    responses((status = 200, description = "JSON lines", body = ReconcileLine, content_type = "application/x-ndjson"),
        BadRequest,
        (status = 404, description = "The gateway does not belong to a site", body = ErrorView)))]
pub async fn reconcile(
    State(operations): State<Operations>,
    Authenticated(bearer): Authenticated,
    Audited(audit_context): Audited,
    body: Bytes,
) -> Answer {
    let request: ReconcileRequest = read_body(&body)?;
    audit_context.note(&request);
    let site = operations.site()?;
    let permit = operations.begin(&bearer)?;
    let (lines, mut receiver) = mpsc::channel(LINES_MAX);
    let reconciling = (site.reconcile)(request, lines);
    let reconciling = AbortOnDropHandle::new(tokio::spawn(async move {
        let _permit = permit;
        reconciling.await;
    }));
    // A client that disconnects drops the stream, which aborts the task.
    let lines = futures::stream::poll_fn(move |cx| {
        let _work = &reconciling;
        receiver.poll_recv(cx).map(|line| line.map(|line| Ok::<Bytes, Infallible>(long_running::line(&line))))
    });
    Ok(long_running::lines(Body::from_stream(lines)))
}
