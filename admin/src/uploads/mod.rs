//! `POST /upload`: a file, a form, a TAR or a CAR in; roots, pinned and on the disk, out.
//!
//! The answer is one object of JSON at the end. Who asks for lines (`Accept: application/x-ndjson`) hears in between how far it has come;
//! whoever does not read them holds nothing up.

pub mod resumable;
#[cfg(test)]
mod resumable_tests;
#[cfg(test)]
pub(crate) mod tests;

use crate::http::answer::{Refusal, json, listen};
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
use services::audit::Detail;
use services::uploads::query::{self, UploadParams};
use services::uploads::request_body::boxed;
use services::uploads::views as upload_views;
use services::uploads::{Order, Taken, Uploads, Watchers};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use utoipa::openapi::Paths;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

/// The media type of lines of JSON.
const LINES: &str = "application/x-ndjson";
/// How many roots of an upload are written to the audit log.
const NOTED_ROOTS_MAX: usize = 16;
/// How often a line says how far an upload has come.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// The routes, which take as long as they need.
pub fn long_routes(uploads: Uploads) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(upload)).routes(at_root(routes!(upload))).with_state(uploads)
}

/// The same at a shorter path.
fn at_root<S>((schemas, paths, router): UtoipaMethodRouter<S>) -> UtoipaMethodRouter<S> {
    let mut moved = Paths::new();
    for mut item in paths.paths.into_values() {
        if let Some(operation) = &mut item.post {
            operation.operation_id = Some("upload_at_root".to_owned());
            operation.summary = Some("Take content in and pin it, at a shorter path".to_owned());
            operation.description = Some("The same as `/api/v1/upload`.".to_owned());
        }
        moved.paths.insert("/upload".to_owned(), item);
    }
    (schemas, moved, router)
}

/// Take content in and pin it
///
/// The body is a file; a form whose parts are files (`multipart/form-data`); a TAR, not compressed; or a CAR, by its Content-Type. What
/// is answered is pinned and on the disk. With `Accept: application/x-ndjson` the answer is lines: `progress` now and then, and `done` or
/// `error` at the end.
#[utoipa::path(
    post, path = "/api/v1/upload", tag = "upload", security(("bearer" = ["pin"])), params(UploadParams),
    request_body(content(
        (inline(Binary) = "application/octet-stream"),
        (inline(Files) = "multipart/form-data"),
        (inline(Binary) = "application/x-tar"),
        (inline(Binary) = "application/vnd.ipld.car"),
    )),
    responses(
        (status = 200, description = "It is pinned and on the disk", content(
            (UploadView = "application/json"),
            (UploadLine = "application/x-ndjson"),
        )),
        (status = 400, description = "The upload cannot be read, or a parameter", body = ErrorView),
        (status = 409, description = "Somebody removed the pin while it was being made", body = ErrorView),
        (status = 410, description = "The operator has removed a block of it from here", body = ErrorView),
        (status = 451, description = "A block of it is withheld for legal reasons", body = ErrorView),
        (status = 507, description = "There is no space for it, or the token's quota does not allow it", body = ErrorView),
    ),
)]
async fn upload(State(uploads): State<Uploads>, Authenticated(bearer): Authenticated, request: Request) -> Response {
    match query::terms(request.uri(), request.headers()) {
        Ok((terms, form)) => {
            let order = Order { owner: bearer, terms, form, watchers: Watchers::default() };
            if wants_lines(request.headers()) {
                return in_lines(uploads, order, request.into_body());
            }
            match uploads.take(order, boxed(request.into_body())).await {
                Ok(taken) => done(taken),
                Err(failed) => Refusal::from(failed.error).to_sender(failed.rest),
            }
        }
        Err(error) => Refusal::from(error).to_sender(request.into_body()),
    }
}

/// The answer, and what the audit log says of it.
fn done(taken: Taken) -> Response {
    let view = upload_views::upload(taken);
    detail(&view).with(json(StatusCode::OK, &view))
}

/// What the audit log says of an upload.
pub(super) fn detail(view: &UploadView) -> Detail {
    let roots: Vec<&str> = view.roots.iter().take(NOTED_ROOTS_MAX).map(|root| root.cid.as_str()).collect();
    Detail(serde_json::json!({ "roots": roots, "bytes": view.bytes }))
}

fn wants_lines(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut types = values.flat_map(|value| value.split(',')).map(|range| range.split(';').next().unwrap_or(range));
    types.any(|range| range.trim().eq_ignore_ascii_case(LINES))
}

/// Answers in lines, while the upload runs.
fn in_lines(uploads: Uploads, order: Order, body: Body) -> Response {
    let progress = Arc::clone(&order.watchers.progress);
    let taking = tokio::spawn(async move { uploads.take(order, boxed(body)).await });
    let glances = move || UploadLine::Progress(upload_views::progress(progress.now()));
    let lines = Body::from_stream(lines(taking, glances));
    ([(CONTENT_TYPE, LINES), (CACHE_CONTROL, "no-store")], lines).into_response()
}

type Taking = JoinHandle<Result<Taken, services::uploads::Failed>>;

/// What is still to be said.
enum Left {
    /// The upload runs.
    Lines(Taking),
    /// It has failed, and its sender may not have noticed.
    Rest(Body),
    Nothing,
}

fn lines(
    taking: Taking,
    glance: impl Fn() -> UploadLine + Send,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold((Left::Lines(taking), glance), |(left, glance)| async move {
        let (line, left) = match left {
            Left::Nothing => return None,
            Left::Rest(rest) => {
                listen(rest).await;
                return None;
            }
            Left::Lines(mut taking) => match tokio::time::timeout(PROGRESS_EVERY, &mut taking).await {
                Err(_) => (glance(), Left::Lines(taking)),
                Ok(ended) => last(ended.ok()),
            },
        };
        Some((Ok(written(&line)), (left, glance)))
    })
}

fn last(ended: Option<Result<Taken, services::uploads::Failed>>) -> (UploadLine, Left) {
    let failure = |Refusal(status, error)| UploadLine::Error(FailureView { status: status.as_u16(), error });
    match ended {
        Some(Ok(taken)) => (UploadLine::Done(upload_views::upload(taken)), Left::Nothing),
        Some(Err(failed)) => (failure(failed.error.into()), Left::Rest(Body::new(failed.rest))),
        None => (failure(crate::http::answer::stopping()), Left::Nothing),
    }
}

fn written(line: &UploadLine) -> Bytes {
    // A view of numbers and texts can be written.
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text.into()
}
