//! tus over HTTP: `/api/v1/uploads`.
//!
//! Departures: a client that says no version is taken for one of ours, so that curl can be used. The answer to the last piece comes when
//! the content is taken in, and names its paths (`X-Ipfs-Path`); if it cannot be taken in, that answer says why. `GET` says as JSON how an
//! upload goes and what became of it, which tus has no word for.

use crate::http::answer::{Refusal, json};
use crate::http::extract::{Audited, Authenticated};
use crate::http::method_override::stood_for;
use crate::http::openapi::Binary;
use crate::uploads::detail;
use api::error::ErrorView;
use api::uploads::{PartialState, PartialView, PartialsView};
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, LOCATION};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use services::uploads::error::UploadError;
use services::uploads::query::UploadParams;
use services::uploads::request_body::boxed;
use services::uploads::resumable::file::{Outcome, Record};
use services::uploads::resumable::headers::{self, EXTENSIONS, PIECE, VERSION};
use services::uploads::resumable::parts::{Parts, Piece, ResumableError, Wanted};
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
/// How many paths the answer to the last piece names.
const PATHS_MAX: usize = 16;

fn path_of(id: &str) -> String {
    format!("/api/v1/uploads/{id}")
}

fn view(parts: &Parts, id: &str, record: Record) -> PartialView {
    let expires_at = parts.expires_at(&record);
    let (state, result, failure) = match record.outcome {
        None if record.offset < record.length => (PartialState::Open, None, None),
        None => (PartialState::Complete, None, None),
        Some(Outcome::Done(view)) => (PartialState::Done, Some(view), None),
        Some(Outcome::Failed(failure)) => (PartialState::Failed, None, Some(failure)),
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

/// The routes, of which those that take bytes take as long as they need.
pub fn long_routes(parts: Arc<Parts>) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(abilities, list, create))
        .routes(routes!(offset, look, append, remove, overridden))
        .with_state(parts)
}

/// Statuses that several operations have, with what they mean.
fn described<const N: usize>(statuses: [(&str, &str); N]) -> BTreeMap<String, RefOr<Described>> {
    let error = || Content::new(Some(Ref::from_schema_name(ErrorView::name())));
    let described = |(status, about): (&str, &str)| {
        let response = ResponseBuilder::new().description(about).content("application/json", error());
        (status.to_owned(), RefOr::T(response.build()))
    };
    statuses.into_iter().map(described).collect()
}

/// There is no such upload.
struct Missing;

impl IntoResponses for Missing {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        described([("404", "There is none of the token's own, or it has expired")])
    }
}

/// The client speaks another tus.
struct OtherVersion;

impl IntoResponses for OtherVersion {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        described([("412", "Another version of tus is spoken")])
    }
}

/// The content must not be kept here.
struct Withheld;

impl IntoResponses for Withheld {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        described([
            ("410", "The operator has removed this content from here"),
            ("451", "This content is withheld for legal reasons"),
        ])
    }
}

/// An answer as tus wants it.
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

fn refused(error: impl Into<ResumableError>) -> Refusal {
    error.into().into()
}

/// Whether the client speaks our version of tus.
fn check_version(headers: &HeaderMap) -> Result<(), Refusal> {
    let words = format!("this speaks tus {VERSION}: see the header Tus-Version");
    if headers::speaks_ours(headers) { Ok(()) } else { Err(Refusal(StatusCode::PRECONDITION_FAILED, words)) }
}

fn insert_place(headers: &mut HeaderMap, parts: &Parts, record: &Record) {
    headers.insert(UPLOAD_OFFSET, record.offset.into());
    headers.insert(UPLOAD_LENGTH, record.length.into());
    let expires = UNIX_EPOCH.checked_add(Duration::from_secs(parts.expires_at(record)));
    if let Some(Ok(expires)) = expires.map(|expires| HeaderValue::from_str(&httpdate::fmt_http_date(expires))) {
        headers.insert(UPLOAD_EXPIRES, expires);
    }
    if let Some(Outcome::Done(view)) = &record.outcome {
        for root in view.roots.iter().take(PATHS_MAX) {
            // A CID is text.
            if let Ok(path) = HeaderValue::from_str(&root.path) {
                headers.append(X_IPFS_PATH, path);
            }
        }
    }
}

/// An answer to whoever sent bytes, or what stands for none: what has become of them is in the audit log.
fn changed(mut response: Response, parts: &Parts, record: &Record) -> Response {
    insert_place(response.headers_mut(), parts, record);
    match &record.outcome {
        Some(Outcome::Done(view)) => detail(view).with(response),
        _ => response,
    }
}

/// What tus is spoken here
#[utoipa::path(
    options, path = "/api/v1/uploads", tag = "upload", security(("bearer" = ["pin"])),
    responses((status = 204, description = "The headers say it")),
)]
async fn abilities(State(parts): State<Arc<Parts>>, _: Authenticated) -> Response {
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
    responses((status = 200, description = "All of them, also those that ended lately", body = PartialsView)),
)]
async fn list(State(parts): State<Arc<Parts>>, Authenticated(bearer): Authenticated) -> Response {
    let uploads = parts.list(&bearer).into_iter().map(|(id, record)| view(&parts, &id, record)).collect();
    tus(json(StatusCode::OK, &PartialsView { uploads }))
}

/// Begin a resumable upload (tus 1.0)
///
/// The parameters are those of `POST /upload`. What the content is and what it is called is said by `filetype` and `filename` in
/// `Upload-Metadata` (also `type` and `name`): a TAR or CAR is taken in as one.
#[utoipa::path(
    post, path = "/api/v1/uploads", tag = "upload", security(("bearer" = ["pin"])),
    params(
        UploadParams,
        ("Upload-Length" = u64, Header, description = "How many bytes it will have"),
        ("Upload-Metadata" = Option<String>, Header, description = "Keys, and values in base64"),
        ("Tus-Resumable" = Option<String>, Header, description = "1.0.0"),
    ),
    responses(
        (status = 201, description = "Pieces are sent to the Location", body = PartialView),
        (status = 400, description = "A header or parameter cannot be understood, or an empty upload not be taken in", body = ErrorView),
        (status = 409, description = "Somebody removed the pin of an empty upload", body = ErrorView),
        Withheld,
        OtherVersion,
        (status = 507, description = "There is no room for it, or the token's quota does not allow it", body = ErrorView),
    ),
)]
async fn create(State(parts): State<Arc<Parts>>, Authenticated(bearer): Authenticated, request: Request) -> Response {
    let wanted = check_version(request.headers()).and_then(|()| wanted(&request).map_err(refused));
    let created = match wanted {
        Ok(wanted) => parts.create(&bearer, wanted).await.map_err(refused),
        Err(refusal) => Err(refusal),
    };
    let (id, record) = match created {
        Ok(created) => created,
        Err(refusal) => return tus(refusal.to_sender(request.into_body())),
    };
    let created = tus(json(StatusCode::CREATED, &view(&parts, &id, record.clone())));
    let mut response = changed(created, &parts, &record);
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

/// How many bytes of a resumable upload are here (tus 1.0)
///
/// Whoever still sends is interrupted, so that the answer stands.
#[utoipa::path(
    head, path = "/api/v1/uploads/{id}", tag = "upload", security(("bearer" = ["pin"])),
    params(("id" = String, Path, description = "As in the Location")),
    responses(
        (status = 200, description = "Upload-Offset says it"),
        (status = 400, description = "It is complete and could not be taken in"),
        (status = 404, description = "There is none of the token's own, or it has expired"),
        (status = 409, description = "It is complete and its pin was removed while it was made"),
        (status = 410, description = "The operator has removed this content from here"),
        (status = 412, description = "Another version of tus is spoken"),
        (status = 423, description = "It is being taken in: ask again in a moment"),
        (status = 451, description = "This content is withheld for legal reasons"),
        (status = 507, description = "It is complete, and there was no space for it: send an empty piece to try again"),
    ),
)]
async fn offset(
    State(parts): State<Arc<Parts>>,
    Authenticated(bearer): Authenticated,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let found = match check_version(&headers) {
        Ok(()) => parts.offset(&bearer, &id).await.map_err(refused),
        Err(refusal) => Err(refusal),
    };
    match found {
        Ok(record) => {
            let mut response = tus(StatusCode::OK);
            insert_place(response.headers_mut(), &parts, &record);
            response
        }
        Err(refusal) => tus(refusal.0),
    }
}

/// How a resumable upload goes, and what became of it
#[utoipa::path(
    get, path = "/api/v1/uploads/{id}", tag = "upload", security(("bearer" = ["pin"])),
    params(("id" = String, Path, description = "As in the Location")),
    responses(
        (status = 200, description = "This moment's figures; nothing is interrupted", body = PartialView),
        Missing,
    ),
)]
async fn look(
    State(parts): State<Arc<Parts>>,
    Authenticated(bearer): Authenticated,
    Path(id): Path<String>,
) -> Response {
    match parts.look(&bearer, &id) {
        Ok(record) => tus(json(StatusCode::OK, &view(&parts, &id, record))),
        Err(error) => tus(refused(error)),
    }
}

/// Send a piece of a resumable upload (tus 1.0)
///
/// With the last piece the content is taken in and pinned, and the answer comes when that is done.
#[utoipa::path(
    patch, path = "/api/v1/uploads/{id}", tag = "upload", security(("bearer" = ["pin"])),
    params(
        ("id" = String, Path, description = "As in the Location"),
        ("Upload-Offset" = u64, Header, description = "Where the piece begins: what HEAD answered"),
        ("Tus-Resumable" = Option<String>, Header, description = "1.0.0"),
    ),
    request_body(content = inline(Binary), content_type = "application/offset+octet-stream"),
    responses(
        (status = 204, description = "It is on the disk up to Upload-Offset; X-Ipfs-Path if that was the last of it"),
        (status = 400, description = "A header cannot be understood, the body broke off, or the content cannot be taken in", body = ErrorView),
        Missing,
        (status = 409, description = "The upload is at another offset", body = ErrorView),
        Withheld,
        OtherVersion,
        (status = 423, description = "Somebody else sends or asks, or it is being taken in", body = ErrorView),
        (status = 507, description = "There is no space for it, or the token's quota does not allow it", body = ErrorView),
    ),
)]
async fn append(
    State(parts): State<Arc<Parts>>,
    Authenticated(bearer): Authenticated,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let begun = check_version(request.headers()).and_then(|()| check_piece(request.headers()));
    let offset = match begun {
        Ok(offset) => offset,
        Err(refusal) => return tus(refusal.to_sender(request.into_body())),
    };
    match parts.append(&bearer, &id, Piece::new(offset, boxed(request.into_body()))).await {
        (Ok(record), _) => changed(tus(StatusCode::NO_CONTENT), &parts, &record),
        (Err(error), rest) => tus(refused(error).to_sender(rest.map_or_else(Body::empty, Body::new))),
    }
}

/// Where a piece begins.
fn check_piece(headers: &HeaderMap) -> Result<u64, Refusal> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media_type.eq_ignore_ascii_case(PIECE) {
        let words = format!("a piece of an upload has the Content-Type {PIECE}");
        return Err(Refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, words));
    }
    headers::number(headers, "upload-offset").map_err(refused)
}

/// Give a resumable upload up, or forget what became of it (tus 1.0)
#[utoipa::path(
    delete, path = "/api/v1/uploads/{id}", tag = "upload", security(("bearer" = ["pin"])),
    params(("id" = String, Path, description = "As in the Location")),
    responses(
        (status = 204, description = "It is gone; what was pinned stays pinned"),
        Missing,
        OtherVersion,
        (status = 423, description = "It is being taken in: try again in a moment", body = ErrorView),
    ),
)]
async fn remove(
    State(parts): State<Arc<Parts>>,
    Authenticated(bearer): Authenticated,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    if let Err(refusal) = check_version(&headers) {
        return tus(refusal);
    }
    match parts.remove(&bearer, &id).await {
        Ok(()) => tus(StatusCode::NO_CONTENT),
        Err(error) => tus(refused(error)),
    }
}

/// The same, for clients that can send nothing but GET and POST (tus 1.0)
///
/// What is asked for, what is sent with it and what is answered is as with the method that the header names.
#[utoipa::path(
    post, path = "/api/v1/uploads/{id}", tag = "upload", security(("bearer" = ["pin"])),
    params(
        ("id" = String, Path, description = "As in the Location"),
        ("X-HTTP-Method-Override" = String, Header, description = "PATCH, HEAD or DELETE"),
    ),
    responses(
        (status = 200, description = "With HEAD: Upload-Offset says how many bytes are here"),
        (status = 204, description = "With PATCH: it is on the disk up to Upload-Offset. With DELETE: it is gone"),
        (status = 400, description = "A header cannot be understood, the body broke off, or the content cannot be taken in"),
        (status = 404, description = "There is none of the token's own, or it has expired"),
        (status = 409, description = "The upload is at another offset, or its pin was removed while it was made"),
        (status = 410, description = "The operator has removed this content from here"),
        (status = 412, description = "Another version of tus is spoken"),
        (status = 423, description = "Somebody else sends or asks, or it is being taken in"),
        (status = 451, description = "This content is withheld for legal reasons"),
        (status = 507, description = "There is no space for it, or the token's quota does not allow it"),
    ),
)]
async fn overridden(
    parts: State<Arc<Parts>>,
    bearer: Authenticated,
    Audited(noted): Audited,
    id: Path<String>,
    headers: HeaderMap,
    request: Request,
) -> Response {
    let method = stood_for(&headers);
    if let Some(method) = &method {
        noted.note(&serde_json::json!({ "method": method.as_str() }));
    }
    match method {
        Some(Method::PATCH) => append(parts, bearer, id, request).await,
        Some(Method::HEAD) => offset(parts, bearer, id, headers).await,
        Some(Method::DELETE) => remove(parts, bearer, id, headers).await,
        _ => {
            let words = "a POST to an upload needs the header X-HTTP-Method-Override: PATCH, HEAD or DELETE";
            tus(Refusal(StatusCode::BAD_REQUEST, words.to_owned()).to_sender(request.into_body()))
        }
    }
}
