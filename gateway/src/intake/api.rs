//! `POST /upload`: a file, a form, a TAR or a CAR in; roots, pinned and on the disk, out.
//!
//! The answer is one object of JSON at the end. Who asks for lines (`Accept: application/x-ndjson`) hears in between how far it has come;
//! whoever does not read them holds nothing up.

use super::query::{self, UploadParams};
use super::{Glance, Intake, Order, Root, Taken, Watchers};
use crate::admin::access::Bearer;
use crate::admin::answer::{ErrorView, Refusal, json, listen};
use crate::admin::audit::Detail;
use crate::admin::openapi::{Binary, Files};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use utoipa::ToSchema;
use utoipa::openapi::Paths;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

/// The media type of lines of JSON.
const LINES: &str = "application/x-ndjson";
/// How many roots of an upload are written to the audit log.
const NOTED_ROOTS_MAX: usize = 16;
/// How often a line says how far an upload has come.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// What became of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadView {
    /// Each thing at the top of the upload, in the order of names; or the folder around them; or the distinct roots of a CAR.
    pub roots: Vec<RootView>,
    /// Bytes of content that came: of files, or of a CAR's blocks.
    pub bytes: u64,
    /// Blocks that were made or came, repeated ones included.
    pub blocks: u64,
}

/// A root of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RootView {
    /// Its name in the upload; `null` for a folder around everything and in a CAR.
    pub name: Option<String>,
    /// Its CID.
    pub cid: String,
    /// Where a gateway serves it.
    pub path: String,
    /// The content of the files in it, in bytes; of a CAR's root, the bytes of its distinct blocks.
    pub bytes: u64,
    /// The request in the pin service that keeps it; `null` if nothing was pinned.
    pub pin: Option<String>,
}

impl From<Taken> for UploadView {
    fn from(Taken { roots, bytes, blocks }: Taken) -> Self {
        Self { roots: roots.into_iter().map(RootView::from).collect(), bytes, blocks }
    }
}

impl From<Root> for RootView {
    fn from(Root { name, cid, bytes, pin }: Root) -> Self {
        let name = Some(name).filter(|name| !name.is_empty());
        Self { name, cid: cid.to_string(), path: format!("/ipfs/{cid}"), bytes, pin }
    }
}

/// How far an upload has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GlanceView {
    /// Files and symlinks that are complete.
    pub files: u64,
    /// Bytes of content that were read.
    pub bytes: u64,
    /// The file that is being read; empty if it has no name.
    pub path: String,
}

impl From<Glance> for GlanceView {
    fn from(Glance { files, bytes, path }: Glance) -> Self {
        Self { files, bytes, path }
    }
}

/// Why an upload was not taken in, where the status was sent already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureView {
    /// The status that it would have had.
    pub status: u16,
    /// What went wrong, and what to do.
    pub error: String,
}

/// A line of the answer. The last is `done` or `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum UploadLine {
    /// How far it has come.
    Progress(GlanceView),
    /// What became of it.
    Done(UploadView),
    /// Why nothing became of it.
    Error(FailureView),
}

/// The routes, which take as long as they need.
pub fn long_routes(intake: Intake) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(upload)).routes(at_root(routes!(upload))).with_state(intake)
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
async fn upload(State(intake): State<Intake>, bearer: Bearer, request: Request) -> Response {
    match query::terms(request.uri(), request.headers()) {
        Ok((terms, form)) => {
            let order = Order { owner: bearer, terms, form, watchers: Watchers::default() };
            if wants_lines(request.headers()) {
                return in_lines(intake, order, request.into_body());
            }
            match intake.take(order, request.into_body()).await {
                Ok(taken) => done(taken),
                Err(failed) => failed.into_response(),
            }
        }
        Err(error) => Refusal::from(error).to_sender(request.into_body()),
    }
}

/// The answer, and what the audit log says of it.
fn done(taken: Taken) -> Response {
    let view = UploadView::from(taken);
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
fn in_lines(intake: Intake, order: Order, body: Body) -> Response {
    let progress = Arc::clone(&order.watchers.progress);
    let taking = tokio::spawn(async move { intake.take(order, body).await });
    let glances = move || UploadLine::Progress(progress.now().into());
    let lines = Body::from_stream(lines(taking, glances));
    ([(CONTENT_TYPE, LINES), (CACHE_CONTROL, "no-store")], lines).into_response()
}

type Taking = JoinHandle<Result<Taken, super::Failed>>;

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

fn last(ended: Option<Result<Taken, super::Failed>>) -> (UploadLine, Left) {
    let failure = |Refusal(status, error)| UploadLine::Error(FailureView { status: status.as_u16(), error });
    match ended {
        Some(Ok(taken)) => (UploadLine::Done(taken.into()), Left::Nothing),
        Some(Err(failed)) => (failure(failed.error.into()), Left::Rest(failed.rest)),
        None => (failure(crate::admin::answer::stopping()), Left::Nothing),
    }
}

fn written(line: &UploadLine) -> Bytes {
    // A view of numbers and texts can be written.
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text.into()
}
