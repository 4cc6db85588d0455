//! Refusals that many operations of the admin API list among their responses, each by a name:
//! `responses((status = 200, …), WrongRequest, DiskFailed)`.
//!
//! What every operation may refuse is listed by none of them ([`crate::http::openapi`]), and what is an operation's own is
//! described there.

use api::error::ErrorView;
use utoipa::IntoResponses;

/// 400: the parameters or the body are not what is asked for.
#[derive(IntoResponses)]
#[response(status = 400, description = "The request is wrong")]
pub struct WrongRequest(pub ErrorView);

/// 400 where there is no body: a parameter is unknown, or its value cannot be.
#[derive(IntoResponses)]
#[response(status = 400, description = "The parameters are wrong")]
pub struct WrongParameters(pub ErrorView);

/// 500: the store's disk, or that of the data folder.
#[derive(IntoResponses)]
#[response(status = 500, description = "The disk failed")]
pub struct DiskFailed(pub ErrorView);

/// 410: the policy withholds content.
#[derive(IntoResponses)]
#[response(status = 410, description = "It is withheld here")]
pub struct Withheld(pub ErrorView);

/// 451: the policy withholds content for legal reasons.
#[derive(IntoResponses)]
#[response(status = 451, description = "It is withheld here for legal reasons")]
pub struct WithheldByLaw(pub ErrorView);
