//! Resumable uploads: tus 1.0 (<https://tus.io/protocols/resumable-upload>) at `/api/v1/uploads`.
//!
//! Departures: a request without the header `Tus-Resumable` is accepted, so that curl can be used. The answer to the
//! last `PATCH` is sent once the content is imported, and has its paths (`X-Ipfs-Path`) or the error of the import. The
//! body of a `PATCH` may have `Content-Encoding: zstd`; lengths and offsets are those of the content, so that a client
//! can continue with another body, encoded or not.
//! `GET` shows the state and the result of an upload as JSON, which tus does not specify.

use crate::http::answer::{ApiError, ErrorFormat, UnreadBody, decoded, json};
use crate::http::extract::{Audited, Authenticated};
use crate::http::method_override::overridden_method;
use crate::http::openapi::Binary;
use crate::uploads::detail;
use api::error::ErrorView;
use api::uploads::{PartialState, PartialView, PartialsView};
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use services::uploads::error::UploadError;
use services::uploads::query::UploadParams;
use services::uploads::resumable::headers::{self, EXTENSIONS, PIECE, VERSION};
use services::uploads::resumable::parts::{Piece, Wanted};
use services::uploads::resumable::record::{Record, UploadOutcome};
use services::uploads::resumable::{ResumableError, ResumableUploads};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use utoipa::openapi::{Content, Ref, RefOr, Response as Described, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const TUS_RESUMABLE: HeaderName = HeaderName::from_static("tus-resumable");
const TUS_VERSION: HeaderName = HeaderName::from_static("tus-version");
const TUS_EXTENSION: HeaderName = HeaderName::from_static("tus-extension");
const TUS_MAX_SIZE: HeaderName = HeaderName::from_static("tus-max-size");
const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
const UPLOAD_LENGTH: HeaderName = HeaderName::from_static("upload-length");
const UPLOAD_EXPIRES: HeaderName = HeaderName::from_static("upload-expires");
const X_IPFS_PATH: HeaderName = HeaderName::from_static("x-ipfs-path");
/// The maximum number of paths in the answer to the last `PATCH`.
const PATHS_MAX: usize = 16;

fn path_of(id: &str) -> String {
    format!("/api/v1/uploads/{id}")
}

fn view(parts: &ResumableUploads, id: &str, record: Record) -> PartialView {
    let expires_at = parts.expires_at(&record);
    let (state, result, failure) = match record.outcome {
        None if record.offset < record.length => (PartialState::Open, None, None),
        None => (PartialState::Complete, None, None),
        Some(UploadOutcome::Done(view)) => (PartialState::Done, Some(view), None),
        Some(UploadOutcome::Failed(failure)) => (PartialState::Failed, None, Some(failure)),
    };
    let Record { offset, length, name, created_at, .. } = record;
    PartialView {
        id: id.to_owned(),
        path: path_of(id),
        state,
        offset,
        length,
        name,
        created_at,
        expires_at,
        result,
        failure,
    }
}

/// The long-running routes, which have no timeout.
pub fn long_running_routes(parts: Arc<ResumableUploads>) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(abilities, list, create))
        .routes(routes!(offset, look, append, remove, overridden))
        .with_state(parts)
}

/// Error responses that several operations list in the OpenAPI description.
fn described<const N: usize>(statuses: [(&str, &str); N]) -> BTreeMap<String, RefOr<Described>> {
    let error = || Content::new(Some(Ref::from_schema_name(ErrorView::name())));
    let described = |(status, about): (&str, &str)| {
        let response = ResponseBuilder::new().description(about).content("application/json", error());
        (status.to_owned(), RefOr::T(response.build()))
    };
    statuses.into_iter().map(described).collect()
}

/// 404: there is no such upload.
struct Missing;

impl IntoResponses for Missing {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        described([("404", "The token has no such upload, or the upload has expired")])
    }
}

/// 412: the client uses another version of tus.
struct OtherVersion;

impl IntoResponses for OtherVersion {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        described([("412", "The client uses another version of tus")])
    }
}

/// 410 and 451: the policy withholds the content.
struct Withheld;

impl IntoResponses for Withheld {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        described([
            ("410", "The policy withholds the content"),
            ("451", "The policy withholds the content for legal reasons"),
        ])
    }
}

/// Adds the headers of tus to an answer.
fn tus(response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    let headers = response.headers_mut();
    headers.insert(TUS_RESUMABLE, HeaderValue::from_static(VERSION));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if response.status() == StatusCode::PRECONDITION_FAILED {
        response.headers_mut().insert(TUS_VERSION, HeaderValue::from_static(VERSION));
    }
    response
}

fn api_error(error: impl Into<ResumableError>) -> ApiError {
    error.into().into()
}

/// Checks that the client uses the supported version of tus.
fn check_version(headers: &HeaderMap) -> Result<(), ApiError> {
    let message = format!("the gateway supports tus {VERSION}: see the header Tus-Version");
    if headers::speaks_ours(headers) { Ok(()) } else { Err(ApiError(StatusCode::PRECONDITION_FAILED, message)) }
}

fn insert_progress_headers(headers: &mut HeaderMap, parts: &ResumableUploads, record: &Record) {
    headers.insert(UPLOAD_OFFSET, record.offset.into());
    headers.insert(UPLOAD_LENGTH, record.length.into());
    let expires = UNIX_EPOCH.checked_add(Duration::from_secs(parts.expires_at(record)));
    if let Some(Ok(expires)) = expires.map(|expires| HeaderValue::from_str(&httpdate::fmt_http_date(expires))) {
        headers.insert(UPLOAD_EXPIRES, expires);
    }
    if let Some(UploadOutcome::Done(view)) = &record.outcome {
        for root in view.roots.iter().take(PATHS_MAX) {
            // A path of a CID is a valid header value.
            if let Ok(path) = HeaderValue::from_str(&root.path) {
                headers.append(X_IPFS_PATH, path);
            }
        }
    }
}

/// Adds the headers with the progress of an upload, and its result for the audit log.
fn with_progress(mut response: Response, parts: &ResumableUploads, record: &Record) -> Response {
    insert_progress_headers(response.headers_mut(), parts, record);
    match &record.outcome {
        Some(UploadOutcome::Done(view)) => detail(view).with(response),
        _ => response,
    }
}

/// The supported version and extensions of tus
#[utoipa::path(
    options, path = "/api/v1/uploads", tag = "upload", security(("bearer" = ["pin"])),
    responses((status = 204, description = "The headers Tus-Version, Tus-Extension and Tus-Max-Size")),
)]
async fn abilities(State(parts): State<Arc<ResumableUploads>>, _: Authenticated) -> Response {
    let mut response = tus(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(TUS_VERSION, HeaderValue::from_static(VERSION));
    headers.insert(TUS_EXTENSION, HeaderValue::from_static(EXTENSIONS));
    headers.insert(TUS_MAX_SIZE, parts.length_max().into());
    response
}

/// The token's own resumable uploads
#[utoipa::path(
    get, path = "/api/v1/uploads", tag = "upload", security(("bearer" = ["pin"])),
    responses((status = 200, description = "All uploads, including those that ended recently", body = PartialsView)),
)]
async fn list(State(parts): State<Arc<ResumableUploads>>, Authenticated(bearer): Authenticated) -> Response {
    match parts.list(&bearer).await {
        Ok(listed) => {
            let uploads = listed.into_iter().map(|(id, record)| view(&parts, &id, record)).collect();
            tus(json(StatusCode::OK, &PartialsView { uploads }))
        }
        Err(error) => tus(api_error(error)),
    }
}

/// Create a resumable upload (tus 1.0)
///
/// The parameters are those of `POST /upload`. `filetype` and `filename` in `Upload-Metadata` (also `type` and `name`)
/// are the media type and the name of the content: a TAR or CAR is imported as an archive.
#[utoipa::path(
    post, path = "/api/v1/uploads", tag = "upload", security(("bearer" = ["pin"])),
    params(
        UploadParams,
        ("Upload-Length" = u64, Header, description = "The length of the upload in bytes"),
        ("Upload-Metadata" = Option<String>, Header, description = "Keys, and values in base64"),
        ("Tus-Resumable" = Option<String>, Header, description = "1.0.0"),
    ),
    responses(
        (status = 201, description = "The upload is created; PATCH the Location", body = PartialView),
        (status = 400, description = "A header or parameter is invalid, or an empty upload cannot be imported",
            body = ErrorView),
        Withheld,
        OtherVersion,
        (status = 507, description = "The disk is full, or the upload exceeds the token's quota", body = ErrorView),
    ),
)]
async fn create(
    State(parts): State<Arc<ResumableUploads>>,
    Authenticated(bearer): Authenticated,
    request: Request,
) -> Response {
    let wanted = check_version(request.headers()).and_then(|()| wanted(&request).map_err(api_error));
    let created = match wanted {
        Ok(wanted) => parts.create(&bearer, wanted).await.map_err(api_error),
        Err(error) => Err(error),
    };
    let (id, record) = match created {
        Ok(created) => created,
        Err(error) => return tus(error.with_lingering_read(request.into_body())),
    };
    let created = tus(json(StatusCode::CREATED, &view(&parts, &id, record.clone())));
    let mut response = with_progress(created, &parts, &record);
    if let Ok(location) = HeaderValue::from_str(&path_of(&id)) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

fn wanted(request: &Request) -> Result<Wanted, UploadError> {
    let length = headers::number(request.headers(), "upload-length")?;
    let metadata = headers::metadata(request.headers())?;
    let first = |keys: &[&str]| keys.iter().find_map(|key| metadata.get(*key)).cloned();
    Ok(Wanted {
        length,
        query: request.uri().query().unwrap_or_default().to_owned(),
        media_type: first(&["filetype", "type", "contentType"]).unwrap_or_default(),
        name: first(&["filename", "name"]),
    })
}

/// The offset of a resumable upload (tus 1.0)
///
/// A running PATCH is interrupted, so that the offset stays valid.
#[utoipa::path(
    head, path = "/api/v1/uploads/{id}", tag = "upload", security(("bearer" = ["pin"])),
    params(("id" = String, Path, description = "The ID in the Location")),
    responses(
        (status = 200, description = "The header Upload-Offset has the offset"),
        (status = 400, description = "The upload is complete, and its import failed"),
        (status = 404, description = "The token has no such upload, or the upload has expired"),
        (status = 409, description = "The upload is complete, and a block that its archive refers to is no \
            longer stored"),
        (status = 410, description = "The policy withholds the content"),
        (status = 412, description = "The client uses another version of tus"),
        (status = 423, description = "The upload is being imported: try again in a moment"),
        (status = 451, description = "The policy withholds the content for legal reasons"),
        (status = 507, description = "The upload is complete, and the disk was full: send an empty PATCH to try again"),
    ),
)]
async fn offset(
    State(parts): State<Arc<ResumableUploads>>,
    Authenticated(bearer): Authenticated,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let found = match check_version(&headers) {
        Ok(()) => parts.offset(&bearer, &id).await.map_err(api_error),
        Err(error) => Err(error),
    };
    match found {
        Ok(record) => {
            let mut response = tus(StatusCode::OK);
            insert_progress_headers(response.headers_mut(), &parts, &record);
            response
        }
        Err(error) => tus(without_body(error)),
    }
}

/// An error as the response to `HEAD`.
fn without_body(error: ApiError) -> Response {
    let mut response = error.0.into_response();
    if let Some(retry_after) = error.into_response().headers().get(RETRY_AFTER) {
        response.headers_mut().insert(RETRY_AFTER, retry_after.clone());
    }
    response
}

/// The state and the result of a resumable upload
#[utoipa::path(
    get, path = "/api/v1/uploads/{id}", tag = "upload", security(("bearer" = ["pin"])),
    params(("id" = String, Path, description = "The ID in the Location")),
    responses(
        (status = 200, description = "The current state; a running PATCH is not interrupted", body = PartialView),
        Missing,
    ),
)]
async fn look(
    State(parts): State<Arc<ResumableUploads>>,
    Authenticated(bearer): Authenticated,
    Path(id): Path<String>,
) -> Response {
    match parts.look(&bearer, &id).await {
        Ok(record) => tus(json(StatusCode::OK, &view(&parts, &id, record))),
        Err(error) => tus(api_error(error)),
    }
}

/// Append to a resumable upload (tus 1.0)
///
/// The last PATCH imports and pins the content, and is answered once that is done. With `Content-Encoding: zstd` the
/// body is compressed, and the offset is that of the content.
#[utoipa::path(
    patch, path = "/api/v1/uploads/{id}", tag = "upload", security(("bearer" = ["pin"])),
    params(
        ("id" = String, Path, description = "The ID in the Location"),
        ("Upload-Offset" = u64, Header, description = "The offset of the body, as HEAD answered it"),
        ("Tus-Resumable" = Option<String>, Header, description = "1.0.0"),
    ),
    request_body(content = inline(Binary), content_type = "application/offset+octet-stream"),
    responses(
        (status = 204, description = "The upload is on the disk up to Upload-Offset; X-Ipfs-Path if it is complete"),
        (status = 400, description = "A header is invalid, the body is incomplete, or the content cannot be \
            imported", body = ErrorView),
        Missing,
        (status = 409, description = "The upload is at another offset", body = ErrorView),
        Withheld,
        OtherVersion,
        (status = 423, description = "Another request uses the upload, or the upload is being imported",
            body = ErrorView),
        (status = 507, description = "The disk is full, or the upload exceeds the token's quota", body = ErrorView),
    ),
)]
async fn append(
    State(parts): State<Arc<ResumableUploads>>,
    Authenticated(bearer): Authenticated,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let begun = check_version(request.headers()).and_then(|()| check_piece(request.headers()));
    let offset = match begun {
        Ok(offset) => offset,
        Err(error) => return tus(error.with_lingering_read(request.into_body())),
    };
    let (head, body) = request.into_parts();
    let body = match decoded(&head.headers, body, ErrorFormat::Admin) {
        Ok(body) => body,
        Err(response) => return tus(response),
    };
    match parts.append(&bearer, &id, Piece::new(offset, body)).await {
        (Ok(record), _) => with_progress(tus(StatusCode::NO_CONTENT), &parts, &record),
        (Err(error), rest) => {
            tus(api_error(error).with_lingering_read(rest.map_or_else(|| Body::empty().into(), UnreadBody::from)))
        }
    }
}

/// Checks the media type of a PATCH, and returns its offset.
fn check_piece(headers: &HeaderMap) -> Result<u64, ApiError> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media_type.eq_ignore_ascii_case(PIECE) {
        let message = format!("a PATCH of an upload needs the header \"Content-Type: {PIECE}\"");
        return Err(ApiError(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    headers::number(headers, "upload-offset").map_err(api_error)
}

/// Cancel a resumable upload, or delete its record (tus 1.0)
#[utoipa::path(
    delete, path = "/api/v1/uploads/{id}", tag = "upload", security(("bearer" = ["pin"])),
    params(("id" = String, Path, description = "The ID in the Location")),
    responses(
        (status = 204, description = "The upload is deleted; pinned content stays pinned"),
        Missing,
        OtherVersion,
        (status = 423, description = "The upload is being imported: try again in a moment", body = ErrorView),
    ),
)]
async fn remove(
    State(parts): State<Arc<ResumableUploads>>,
    Authenticated(bearer): Authenticated,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    if let Err(error) = check_version(&headers) {
        return tus(error);
    }
    match parts.remove(&bearer, &id).await {
        Ok(()) => tus(StatusCode::NO_CONTENT),
        Err(error) => tus(api_error(error)),
    }
}

/// PATCH, HEAD or DELETE for clients that can only send GET and POST (tus 1.0)
///
/// The header X-HTTP-Method-Override names the method, whose parameters, body and answers apply.
#[utoipa::path(
    post, path = "/api/v1/uploads/{id}", tag = "upload", security(("bearer" = ["pin"])),
    params(
        ("id" = String, Path, description = "The ID in the Location"),
        ("X-HTTP-Method-Override" = String, Header, description = "PATCH, HEAD or DELETE"),
    ),
    responses(
        (status = 200, description = "HEAD: the header Upload-Offset has the offset"),
        (status = 204, description = "PATCH: the upload is on the disk up to Upload-Offset. DELETE: the upload is \
            deleted"),
        (status = 400, description = "A header is invalid, the body is incomplete, or the content cannot be imported"),
        (status = 404, description = "The token has no such upload, or the upload has expired"),
        (status = 409, description = "The upload is at another offset, or a block that its archive refers to is no \
            longer stored"),
        (status = 410, description = "The policy withholds the content"),
        (status = 412, description = "The client uses another version of tus"),
        (status = 423, description = "Another request uses the upload, or the upload is being imported"),
        (status = 451, description = "The policy withholds the content for legal reasons"),
        (status = 507, description = "The disk is full, or the upload exceeds the token's quota"),
    ),
)]
async fn overridden(
    parts: State<Arc<ResumableUploads>>,
    bearer: Authenticated,
    Audited(audit_context): Audited,
    id: Path<String>,
    headers: HeaderMap,
    request: Request,
) -> Response {
    let method = overridden_method(&headers);
    if let Some(method) = &method {
        audit_context.note(&serde_json::json!({ "method": method.as_str() }));
    }
    match method {
        Some(Method::PATCH) => append(parts, bearer, id, request).await,
        Some(Method::HEAD) => offset(parts, bearer, id, headers).await,
        Some(Method::DELETE) => remove(parts, bearer, id, headers).await,
        _ => {
            let message = "a POST to an upload needs the header X-HTTP-Method-Override: PATCH, HEAD or DELETE";
            tus(ApiError(StatusCode::BAD_REQUEST, message.to_owned()).with_lingering_read(request.into_body()))
        }
    }
}
