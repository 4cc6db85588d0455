//! Error responses that many operations of the admin API list in their description, each by name:
//! `responses((status = 200, …), BadRequest, DiskFailed)`.
//!
//! Errors that every operation may answer with are added by [`crate::http::openapi`], and errors of a single operation
//! are described with it.

use api::error::ErrorView;
use utoipa::IntoResponses;

/// 400: a parameter or the body is invalid.
#[derive(IntoResponses)]
#[response(status = 400, description = "A parameter or the body is invalid")]
pub struct BadRequest(pub ErrorView);

/// 400 of requests without a body: a parameter is unknown or has an invalid value.
#[derive(IntoResponses)]
#[response(status = 400, description = "A parameter is unknown or invalid")]
pub struct BadParameters(pub ErrorView);

/// 500: reading or writing the store or the data folder failed.
#[derive(IntoResponses)]
#[response(status = 500, description = "Reading or writing the disk failed")]
pub struct DiskFailed(pub ErrorView);

/// 410: the policy withholds the content.
#[derive(IntoResponses)]
#[response(status = 410, description = "The policy withholds the content")]
pub struct Withheld(pub ErrorView);

/// 451: the policy withholds the content for legal reasons.
#[derive(IntoResponses)]
#[response(status = 451, description = "The policy withholds the content for legal reasons")]
pub struct WithheldByLaw(pub ErrorView);

/// 503: what the gateways of a site share cannot be changed now.
#[derive(IntoResponses)]
#[response(
    status = 503,
    description = "The database of the site cannot be reached, too many changes wait, the gateway is stopping, or the \
    audit log cannot be written. Repeat the request"
)]
pub struct SiteUnavailable(pub ErrorView);
