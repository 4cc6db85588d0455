//! `GET /api/v1/site`: the site that the gateway belongs to.

use crate::http::answer::{Answer, ApiError, json};
use crate::operations::Operations;
use api::error::ErrorView;
use api::site::SiteView;
use axum::extract::State;
use axum::http::StatusCode;
use cache::StoreError;
use futures::future::BoxFuture;
use std::sync::Arc;

/// Reads the state of a site.
pub type SiteLookup = Arc<dyn Fn() -> BoxFuture<'static, Result<SiteView, StoreError>> + Send + Sync>;

/// The site that the gateway belongs to: its gateways, and what is in its storage.
#[utoipa::path(get, path = "/api/v1/site", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The site", body = SiteView),
        (status = 404, description = "The gateway does not belong to a site", body = ErrorView),
        (status = 503, description = "The database of the site cannot be reached", body = ErrorView)))]
pub async fn read(State(operations): State<Operations>) -> Answer {
    let message = "this gateway does not belong to a site: see [site] in the settings";
    let site = operations.parts().site.as_ref();
    let site = site.ok_or_else(|| ApiError(StatusCode::NOT_FOUND, message.to_owned()))?;
    Ok(json(StatusCode::OK, &site().await?))
}
