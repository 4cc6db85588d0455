//! `POST /upload`: imports a file, a form, a TAR or a CAR, and answers with the roots once they are pinned and on the
//! disk.
//!
//! The answer is a JSON object. With `Accept: application/x-ndjson` it is JSON lines with progress events; a client
//! that does not read them does not delay the upload.
//!
//! | module | concern |
//! |---|---|
//! | [`resumable`] | resumable uploads (tus 1.0), `/api/v1/uploads` |

pub mod resumable;
#[cfg(test)]
mod resumable_tests;
#[cfg(test)]
pub(crate) mod tests;

use crate::http::answer::{ApiError, ErrorFormat, decoded, json, linger};
use crate::http::extract::Authenticated;
use crate::http::openapi::{Binary, Files};
use api::error::ErrorView;
use api::uploads::{FailureView, UploadLine, UploadView};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{self, Stream};
use services::audit::ResponseDetail;
use services::uploads::query::{self, UploadParams};
use services::uploads::request_body::RequestBody;
use services::uploads::views as upload_views;
use services::uploads::{ProgressReceivers, UploadRequest, UploadResult, Uploads};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use utoipa::openapi::Paths;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

/// The media type of JSON lines.
const LINES: &str = "application/x-ndjson";
/// The maximum number of roots of an upload in the audit log.
const AUDITED_ROOTS_MAX: usize = 16;
/// The interval of progress lines.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// The long-running routes, which have no timeout.
pub fn long_running_routes(uploads: Uploads) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(upload)).routes(at_root(routes!(upload))).with_state(uploads)
}

/// The same route at the path `/upload`.
fn at_root<S>((schemas, paths, router): UtoipaMethodRouter<S>) -> UtoipaMethodRouter<S> {
    let mut moved = Paths::new();
    for mut item in paths.paths.into_values() {
        if let Some(operation) = &mut item.post {
            operation.operation_id = Some("upload_at_root".to_owned());
            operation.summary = Some("Upload and pin content, at a shorter path".to_owned());
            operation.description = Some("The same as `/api/v1/upload`.".to_owned());
        }
        moved.paths.insert("/upload".to_owned(), item);
    }
    (schemas, moved, router)
}

/// Upload and pin content
///
/// By its Content-Type, the body is a file; a form whose parts are files (`multipart/form-data`); an uncompressed TAR;
/// or a CAR. With `Content-Encoding: zstd` it is any of these, compressed; all limits count the decoded bytes. When the
/// upload is answered, its roots are pinned and on the disk. With `Accept: application/x-ndjson` the answer is JSON
/// lines: `progress` at intervals, and `done` or `error` at the end.
#[utoipa::path(
    post, path = "/api/v1/upload", tag = "upload", security(("bearer" = ["pin"])), params(UploadParams),
    request_body(content(
        (inline(Binary) = "application/octet-stream"),
        (inline(Files) = "multipart/form-data"),
        (inline(Binary) = "application/x-tar"),
        (inline(Binary) = "application/vnd.ipld.car"),
    )),
    responses(
        (status = 200, description = "The content is pinned and on the disk", content(
            (UploadView = "application/json"),
            (UploadLine = "application/x-ndjson"),
        )),
        (status = 400, description = "The body or a parameter is invalid", body = ErrorView),
        (status = 409, description = "Another request removed the pin during the upload", body = ErrorView),
        (status = 410, description = "The policy withholds a block of the upload", body = ErrorView),
        (status = 415, description = "The Content-Encoding is not zstd, or an archive is compressed", body = ErrorView),
        (status = 451, description = "The policy withholds a block of the upload for legal reasons", body = ErrorView),
        (status = 507, description = "The disk is full, or the upload exceeds the token's quota", body = ErrorView),
    ),
)]
async fn upload(State(uploads): State<Uploads>, Authenticated(bearer): Authenticated, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = match decoded(&head.headers, body, ErrorFormat::Admin) {
        Ok(body) => body,
        Err(response) => return response,
    };
    match query::options(&head.uri, &head.headers) {
        Ok(options) => {
            let upload = UploadRequest { owner: bearer, options, watchers: ProgressReceivers::default(), import: None };
            if wants_lines(&head.headers) {
                return respond_in_lines(uploads, upload, body);
            }
            match uploads.take(upload, body).await {
                Ok(taken) => done(taken),
                Err(failed) => ApiError::from(failed.error).with_lingering_read(failed.rest),
            }
        }
        Err(error) => ApiError::from(error).with_lingering_read(body),
    }
}

/// The answer, with its audit detail.
fn done(taken: UploadResult) -> Response {
    let view = upload_views::upload(taken);
    detail(&view).with(json(StatusCode::OK, &view))
}

/// What the audit log records about an upload.
pub(super) fn detail(view: &UploadView) -> ResponseDetail {
    let roots: Vec<&str> = view.roots.iter().take(AUDITED_ROOTS_MAX).map(|root| root.cid.as_str()).collect();
    ResponseDetail(serde_json::json!({ "roots": roots, "bytes": view.bytes }))
}

fn wants_lines(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut types = values.flat_map(|value| value.split(',')).map(|range| range.split(';').next().unwrap_or(range));
    types.any(|range| range.trim().eq_ignore_ascii_case(LINES))
}

/// Answers with JSON lines while the upload runs.
fn respond_in_lines(uploads: Uploads, upload: UploadRequest, body: RequestBody) -> Response {
    let progress = Arc::clone(&upload.watchers.progress);
    let taking = tokio::spawn(async move { uploads.take(upload, body).await });
    let progress_line = move || UploadLine::Progress(upload_views::progress(progress.now()));
    let lines = Body::from_stream(lines(taking, progress_line));
    ([(CONTENT_TYPE, LINES), (CACHE_CONTROL, "no-store")], lines).into_response()
}

type Taking = JoinHandle<Result<UploadResult, services::uploads::Failed>>;

/// The remaining part of an answer in JSON lines.
enum Remaining {
    /// The upload is running.
    Lines(Taking),
    /// The upload has failed, and the client may still be sending the rest of the body.
    Rest(Body),
    Nothing,
}

fn lines(
    taking: Taking,
    progress_line: impl Fn() -> UploadLine + Send,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold((Remaining::Lines(taking), progress_line), |(remaining, progress_line)| async move {
        let (line, remaining) = match remaining {
            Remaining::Nothing => return None,
            Remaining::Rest(rest) => {
                linger(rest).await;
                return None;
            }
            Remaining::Lines(mut taking) => match tokio::time::timeout(PROGRESS_EVERY, &mut taking).await {
                Err(_) => (progress_line(), Remaining::Lines(taking)),
                Ok(ended) => last(ended.ok()),
            },
        };
        Some((Ok(json_line(&line)), (remaining, progress_line)))
    })
}

fn last(ended: Option<Result<UploadResult, services::uploads::Failed>>) -> (UploadLine, Remaining) {
    let failure = |ApiError(status, error)| UploadLine::Error(FailureView { status: status.as_u16(), error });
    match ended {
        Some(Ok(taken)) => (UploadLine::Done(upload_views::upload(taken)), Remaining::Nothing),
        Some(Err(failed)) => (failure(failed.error.into()), Remaining::Rest(Body::new(failed.rest))),
        None => (failure(crate::http::answer::stopping()), Remaining::Nothing),
    }
}

fn json_line(line: &UploadLine) -> Bytes {
    // A view of numbers and strings always serialises.
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text.into()
}
