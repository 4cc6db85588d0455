//! `/api/v1/log/level`: the log level.

use crate::http::answer::{Answer, ApiError, json};
use crate::http::error_responses::BadRequest;
use crate::http::extract::Audited;
use crate::http::parameters::{Parameters, bad_request, read_body};
use api::error::ErrorView;
use api::log_level::{LevelRequest, LevelView};
use axum::http::{StatusCode, Uri};
use bytes::Bytes;
use p2p_bridge::epoch;
use services::logging::{self, LevelNow, LogLevel};
use std::time::Duration;

/// The maximum duration of a temporary level, in seconds: a week.
const DURATION_SECONDS_MAX: u64 = 7 * 24 * 3600;

pub(super) fn view(now: LevelNow) -> LevelView {
    LevelView { level: now.level, configured: now.configured, until_at: now.until.map(epoch::seconds) }
}

fn level() -> Result<&'static LogLevel, ApiError> {
    let message = "the log level cannot be changed: the program that embeds the gateway configures the log";
    logging::level().ok_or_else(|| ApiError(StatusCode::CONFLICT, message.to_owned()))
}

/// The log level.
#[utoipa::path(get, path = "/api/v1/log/level", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The level", body = LevelView), BadRequest,
        (status = 409, description = "The gateway does not configure the log", body = ErrorView)))]
pub async fn read(uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    Ok(json(StatusCode::OK, &view(level()?.now())))
}

/// Changes the log level, permanently or for a time.
#[utoipa::path(put, path = "/api/v1/log/level", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = LevelRequest, content_type = "application/json"),
    responses((status = 200, description = "The level", body = LevelView), BadRequest,
        (status = 409, description = "The gateway does not configure the log", body = ErrorView)))]
pub async fn write(Audited(audit_context): Audited, body: Bytes) -> Answer {
    let request: LevelRequest = read_body(&body)?;
    audit_context.note(&request);
    let LevelRequest { level: text, duration_seconds } = request;
    let duration = match duration_seconds {
        Some(seconds) if !(1..=DURATION_SECONDS_MAX).contains(&seconds) => {
            return Err(bad_request(format!("duration_seconds must be from 1 to {DURATION_SECONDS_MAX} (a week)")));
        }
        seconds => seconds.map(Duration::from_secs),
    };
    logging::read(&text).map_err(|reason| bad_request(format!("level: {reason}")))?;
    let now = level()?.set(&text, duration).map_err(|reason| bad_request(format!("level: {reason}")))?;
    tracing::warn!(level = now.level, "the log level was changed by an operator");
    Ok(json(StatusCode::OK, &view(now)))
}
