//! `/api/v1/drain`: no more traffic is wanted, before the process ends or while something is done to it.
//!
//! While it drains, `/readyz` answers 503, so that balancers send nobody any more; whoever comes is answered all the
//! same. Only when the process is to end are no more connections taken, as after SIGTERM.

use crate::http::answer::{Answer, Refusal, json};
use crate::http::extract::Audited;
use crate::http::parameters::{Parameters, read_body};
use crate::http::refusals::WrongRequest;
use crate::operations::Operations;
use api::drain::{DrainRequest, StageView};
use api::error::ErrorView;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use bytes::Bytes;
use services::health::Stage;

/// Says on `/readyz` that no more traffic is wanted; ends the process in good order, if that is asked for.
#[utoipa::path(post, path = "/api/v1/drain", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = DrainRequest, content_type = "application/json"),
    responses((status = 202, description = "It drains", body = StageView), WrongRequest))]
pub async fn begin(State(operations): State<Operations>, Audited(noted): Audited, body: Bytes) -> Answer {
    let request: DrainRequest = read_body(&body)?;
    noted.note(&request);
    let DrainRequest { stop } = request;
    operations.parts().health.enter(Stage::Draining);
    tracing::info!(stop, "draining, as an operator asked");
    if stop {
        operations.parts().stop.cancel();
    }
    Ok(json(StatusCode::ACCEPTED, &operations.stage()))
}

/// Says on `/readyz` that traffic is welcome again.
#[utoipa::path(delete, path = "/api/v1/drain", tag = "operations", security(("bearer" = ["operate"])),
    responses((status = 200, description = "It serves", body = StageView), WrongRequest,
        (status = 409, description = "The process is about to end, or is starting", body = ErrorView)))]
pub async fn end(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    if operations.is_stopping() {
        return Err(Refusal(StatusCode::CONFLICT, "the gateway is about to end".to_owned()));
    }
    if !operations.parts().health.resume() {
        return Err(Refusal(StatusCode::CONFLICT, "the gateway is starting: it serves as soon as it can".to_owned()));
    }
    tracing::info!("serving again, as an operator asked");
    Ok(json(StatusCode::OK, &operations.stage()))
}

impl Operations {
    /// How far along its life the process is.
    pub(super) fn stage(&self) -> StageView {
        let stage = match self.parts().health.stage() {
            Stage::Starting => "starting",
            Stage::Serving => "serving",
            Stage::Draining | Stage::Ending => "draining",
        };
        StageView { stage: stage.to_owned(), stopping: self.is_stopping() }
    }

    /// Whether the process is about to end, because an operator or a signal wants it to.
    fn is_stopping(&self) -> bool {
        self.parts().stop.is_cancelled() || self.parts().health.stage() == Stage::Ending
    }
}
