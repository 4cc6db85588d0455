//! `/api/v1/drain`: graceful drain, before the process stops or during maintenance.
//!
//! While the gateway drains, `/readyz` answers 503, so that load balancers send no new traffic; requests that still
//! arrive are answered. The listeners stop accepting connections only if the process is to stop, as after SIGTERM.

use crate::http::answer::{Answer, ApiError, json};
use crate::http::error_responses::BadRequest;
use crate::http::extract::Audited;
use crate::http::parameters::{Parameters, read_body};
use crate::operations::Operations;
use api::drain::{DrainRequest, StageView};
use api::error::ErrorView;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use bytes::Bytes;
use services::health::Stage;

/// Starts draining: `/readyz` answers 503. With `stop`, also stops the process gracefully.
#[utoipa::path(post, path = "/api/v1/drain", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = DrainRequest, content_type = "application/json"),
    responses((status = 202, description = "The gateway drains", body = StageView), BadRequest))]
pub async fn begin(State(operations): State<Operations>, Audited(audit_context): Audited, body: Bytes) -> Answer {
    let request: DrainRequest = read_body(&body)?;
    audit_context.note(&request);
    let DrainRequest { stop } = request;
    operations.parts().health.enter(Stage::Draining);
    tracing::info!(stop, "draining at an operator's request");
    if stop {
        operations.parts().stop.cancel();
    }
    Ok(json(StatusCode::ACCEPTED, &operations.stage()))
}

/// Ends draining: `/readyz` answers 200 again.
#[utoipa::path(delete, path = "/api/v1/drain", tag = "operations", security(("bearer" = ["operate"])),
    responses((status = 200, description = "The gateway serves", body = StageView), BadRequest,
        (status = 409, description = "The process is stopping or starting", body = ErrorView)))]
pub async fn end(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    if operations.is_stopping() {
        return Err(ApiError(StatusCode::CONFLICT, "the gateway is stopping: draining cannot be ended".to_owned()));
    }
    if !operations.parts().health.resume() {
        return Err(ApiError(StatusCode::CONFLICT, "the gateway is starting: it serves once it is ready".to_owned()));
    }
    tracing::info!("serving again at an operator's request");
    Ok(json(StatusCode::OK, &operations.stage()))
}

impl Operations {
    /// The stage of the process.
    pub(super) fn stage(&self) -> StageView {
        let stage = match self.parts().health.stage() {
            Stage::Starting => "starting",
            Stage::Serving => "serving",
            Stage::Draining | Stage::Ending => "draining",
        };
        StageView { stage: stage.to_owned(), stopping: self.is_stopping() }
    }

    /// Whether the process is stopping, at the request of an operator or because of a signal.
    fn is_stopping(&self) -> bool {
        self.parts().stop.is_cancelled() || self.parts().health.stage() == Stage::Ending
    }
}
