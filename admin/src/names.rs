//! The admin API of names: the IPNS keys of this node, and the records that are published with them.
//!
//! | request | does |
//! |---|---|
//! | `GET /api/v1/names/keys` | lists the keys |
//! | `POST /api/v1/names/keys` `{name, type?}` | creates a key |
//! | `POST /api/v1/names/keys/import` `{name, key, format?}` | imports a key: PEM, or protobuf in base64 |
//! | `POST /api/v1/names/keys/NAME/export` `{format?}` | exports a private key |
//! | `POST /api/v1/names/keys/NAME/rename` `{to}` | renames a key |
//! | `DELETE /api/v1/names/keys/NAME` | deletes a key |
//! | `GET /api/v1/names/publish` | lists the published names |
//! | `POST /api/v1/names/publish` `{path, key?, lifetime_seconds?, ttl_seconds?}` | publishes a path under a name |
//!
//! Times are seconds since the Unix epoch.

use crate::http::answer::{Answer, ApiError, json};
use crate::http::error_responses::{BadRequest, DiskFailed, SiteUnavailable};
use crate::http::extract::Audited;
use crate::http::parameters::read_body;
use api::error::ErrorView;
use api::keys::{
    CreateKey, ExportKey, ExportedKey, ImportKey, KeyView, KeysView, Publish, PublishedList, PublishedView, RenameKey,
};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use bytes::Bytes;
use cid::multibase::Base;
use p2p_bridge::names::key_format::{FormatError, KeyFormat, KeyKind};
use p2p_bridge::names::keystore::{KeyError, KeyInfo, SELF};
use p2p_bridge::names::publish::{PublishError, Published, Publisher};
use p2p_bridge::names::store::NameStore;
use services::audit::ResponseDetail;
use services::views::keys;
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoResponses;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The maximum length of a request body, in bytes: enough for any key in PEM.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// How long a request to publish waits until the first peer has the record.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// 409: a key conflicts with an existing one.
#[derive(IntoResponses)]
#[response(status = 409, description = "The key or its name conflicts with an existing key")]
pub struct KeyConflict(pub ErrorView);

#[derive(Clone)]
struct Names {
    publisher: Arc<Publisher>,
}

/// The routes.
pub fn routes(publisher: Arc<Publisher>) -> OpenApiRouter {
    let keys = OpenApiRouter::default().routes(routes!(list_keys, create_key)).routes(routes!(remove_key));
    // A key may have the name "import".
    let keys = keys.routes(routes!(import_key, remove_key_import));
    let keys = keys.routes(routes!(export_key)).routes(routes!(rename_key));
    let routes = keys.routes(routes!(list_published, publish));
    routes.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).with_state(Names { publisher })
}

impl From<KeyError> for ApiError {
    fn from(error: KeyError) -> Self {
        Self(keys::status(&error), error.to_string())
    }
}

impl From<FormatError> for ApiError {
    fn from(error: FormatError) -> Self {
        KeyError::from(error).into()
    }
}

impl From<PublishError> for ApiError {
    fn from(error: PublishError) -> Self {
        let status = match error {
            PublishError::Key(error) => return error.into(),
            PublishError::Path { .. }
            | PublishError::Loop
            | PublishError::Terms
            | PublishError::SharedLifetime
            | PublishError::Entry(_) => StatusCode::BAD_REQUEST,
            PublishError::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            PublishError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}

fn format(text: Option<String>) -> Result<Option<KeyFormat>, ApiError> {
    Ok(text.map(|text| text.parse()).transpose()?)
}

/// Runs `work` on the keys on a thread where it may block.
async fn with_keys<T: Send + 'static>(
    names: &Names,
    work: impl FnOnce(&NameStore) -> Result<T, KeyError> + Send + 'static,
) -> Result<T, ApiError> {
    let publisher = Arc::clone(&names.publisher);
    let done = tokio::task::spawn_blocking(move || {
        let done = work(publisher.keys());
        publisher.keys_changed();
        done
    });
    Ok(done.await.map_err(|_| ApiError::from(PublishError::Stopping))??)
}

/// The keys that names are published with.
#[utoipa::path(get, path = "/api/v1/names/keys", tag = "names", security(("bearer" = ["read"])),
    responses((status = 200, description = "The keys", body = KeysView), BadRequest, DiskFailed))]
async fn list_keys(State(names): State<Names>) -> Answer {
    let keys = names.publisher.keys().list().into_iter().map(keys::key).collect();
    Ok(json(StatusCode::OK, &KeysView { keys }))
}

/// Creates a key.
#[utoipa::path(post, path = "/api/v1/names/keys", tag = "names", security(("bearer" = ["operate"])),
    request_body(content = CreateKey, content_type = "application/json"),
    responses((status = 201, description = "The key", body = KeyView), BadRequest, KeyConflict, DiskFailed,
        SiteUnavailable))]
async fn create_key(State(names): State<Names>, Audited(audit_context): Audited, body: Bytes) -> Answer {
    let CreateKey { name, kind } = read_body(&body)?;
    audit_context.note(&serde_json::json!({ "name": name }));
    let kind: KeyKind = kind.map_or(Ok(KeyKind::Ed25519), |kind| kind.parse())?;
    let created = keys::key(with_keys(&names, move |keys| keys.create(&name, kind)).await?);
    Ok(ResponseDetail::of(&created).with(json(StatusCode::CREATED, &created)))
}

/// Imports a key.
#[utoipa::path(post, path = "/api/v1/names/keys/import", tag = "names", security(("bearer" = ["operate"])),
    request_body(content = ImportKey, content_type = "application/json"),
    responses((status = 201, description = "The key", body = KeyView), BadRequest, KeyConflict, DiskFailed,
        SiteUnavailable))]
async fn import_key(State(names): State<Names>, body: Bytes) -> Answer {
    let ImportKey { name, key, format: text } = read_body(&body)?;
    let format = format(text)?.unwrap_or_else(|| KeyFormat::guess(key.as_bytes()));
    let bytes = match format {
        KeyFormat::Pem => key.into_bytes(),
        KeyFormat::Protobuf => Base::Base64Pad.decode(key.trim()).map_err(|_| FormatError::Protobuf)?,
    };
    let imported = keys::key(with_keys(&names, move |keys| keys.import(&name, Some(format), &bytes)).await?);
    Ok(ResponseDetail::of(&imported).with(json(StatusCode::CREATED, &imported)))
}

/// Exports a private key.
#[utoipa::path(post, path = "/api/v1/names/keys/{name}/export", tag = "names", security(("bearer" = ["operate"])),
    params(("name" = String, Path, description = "The name of the key")),
    request_body(content = ExportKey, content_type = "application/json"),
    responses((status = 200, description = "The key", body = ExportedKey), BadRequest, KeyConflict,
        DiskFailed))]
async fn export_key(State(names): State<Names>, Path(name): Path<String>, body: Bytes) -> Answer {
    let ExportKey { format: text } = read_body(&body)?;
    let format = format(text)?.unwrap_or_default();
    let called = name.clone();
    let bytes = with_keys(&names, move |keys| keys.export(&called, format)).await?;
    let key = match format {
        KeyFormat::Pem => String::from_utf8_lossy(&bytes).into_owned(),
        KeyFormat::Protobuf => Base::Base64Pad.encode(&bytes),
    };
    Ok(json(StatusCode::OK, &ExportedKey { name, format: format.to_string(), key }))
}

/// Renames a key.
#[utoipa::path(post, path = "/api/v1/names/keys/{name}/rename", tag = "names", security(("bearer" = ["operate"])),
    params(("name" = String, Path, description = "The name of the key")),
    request_body(content = RenameKey, content_type = "application/json"),
    responses((status = 200, description = "The key", body = KeyView), BadRequest, KeyConflict, DiskFailed,
        SiteUnavailable))]
async fn rename_key(
    State(names): State<Names>,
    Audited(audit_context): Audited,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer {
    let RenameKey { to } = read_body(&body)?;
    audit_context.note(&serde_json::json!({ "to": to }));
    let renamed = with_keys(&names, move |keys| keys.rename(&name, &to)).await?;
    Ok(json(StatusCode::OK, &keys::key(renamed)))
}

/// Deletes a key and stops publishing its name.
#[utoipa::path(delete, path = "/api/v1/names/keys/{name}", tag = "names", security(("bearer" = ["operate"])),
    params(("name" = String, Path, description = "The name of the key")),
    responses((status = 200, description = "The deleted key", body = KeyView), BadRequest, KeyConflict,
        DiskFailed, SiteUnavailable))]
async fn remove_key(State(names): State<Names>, Path(name): Path<String>) -> Answer {
    let removed = names.publisher.remove_key(&name).await?;
    Ok(json(StatusCode::OK, &keys::key(removed)))
}

/// Deletes the key with the name "import".
#[utoipa::path(delete, path = "/api/v1/names/keys/import", tag = "names", security(("bearer" = ["operate"])),
    responses((status = 200, description = "The deleted key", body = KeyView), BadRequest, KeyConflict,
        DiskFailed, SiteUnavailable))]
async fn remove_key_import(names: State<Names>) -> Answer {
    remove_key(names, Path("import".to_owned())).await
}

/// The published names.
#[utoipa::path(get, path = "/api/v1/names/publish", tag = "names", security(("bearer" = ["read"])),
    responses((status = 200, description = "The published names", body = PublishedList), BadRequest, DiskFailed))]
async fn list_published(State(names): State<Names>) -> Answer {
    let targets = names.publisher.targets();
    let view = |(info, entry): (Option<KeyInfo>, Published)| keys::published(info, &entry, targets);
    let published = names.publisher.list().into_iter().map(view).collect();
    Ok(json(StatusCode::OK, &PublishedList { published }))
}

/// Publishes a path under a name. Answers once a peer has the record, or after five seconds.
///
/// The first publication with a key searches the network for earlier records, for ten seconds at most, and continues
/// their sequence numbers.
#[utoipa::path(post, path = "/api/v1/names/publish", tag = "names", security(("bearer" = ["operate"])),
    request_body(content = Publish, content_type = "application/json"),
    responses((status = 200, description = "The published name", body = PublishedView), BadRequest, KeyConflict,
        DiskFailed, SiteUnavailable))]
async fn publish(State(names): State<Names>, Audited(audit_context): Audited, body: Bytes) -> Answer {
    let Publish { path, key, lifetime_seconds, ttl_seconds } = read_body(&body)?;
    let key = key.unwrap_or_else(|| SELF.to_owned());
    audit_context.note(&serde_json::json!({ "key": key, "path": path }));
    let (lifetime, ttl) = (lifetime_seconds.map(Duration::from_secs), ttl_seconds.map(Duration::from_secs));
    let published = names.publisher.publish(&key, &path, lifetime, ttl).await?;
    let settled = names.publisher.settled(published, PUBLISH_TIMEOUT).await;
    let info = names.publisher.keys().find(&settled.key).map(|(info, _)| info);
    let view = keys::published(info, &settled, names.publisher.targets());
    let detail = ResponseDetail(serde_json::json!({ "key": view.key, "name": view.name, "value": view.value }));
    Ok(detail.with(json(StatusCode::OK, &view)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::body::Body;
    use axum::extract::Request;
    use http_body_util::BodyExt as _;
    use p2p_bridge::names::NamesOptions;
    use p2p_bridge::names::keystore::Keystore;
    use p2p_bridge::options::PublishOptions;
    use prometheus_client::registry::Registry;
    use serde_json::Value;
    use tower::ServiceExt as _;

    const VALUE: &str = "/ipfs/bafkqaddjnzzxazldoqwxizltoq";

    fn api(dir: &std::path::Path) -> Router {
        let registry = &mut Registry::default();
        let names = p2p_bridge::Names::new(NamesOptions { offline: true, ..NamesOptions::default() }, None, registry);
        let keys = NameStore::open(dir, Keystore::open(dir, PUBLISH_TIMEOUT).expect("opens"), None).expect("opens");
        let names = names.expect("good options");
        let publisher = Publisher::start(PublishOptions::default(), keys, names, Vec::new(), registry);
        routes(Arc::new(publisher)).into()
    }

    async fn ask(api: &Router, request: Request<Body>) -> (u16, Value) {
        let response = api.clone().oneshot(request).await.expect("answers");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    fn request(method: &str, path: &str, body: &str) -> Request<Body> {
        let request = Request::builder().method(method).uri(format!("/api/v1/names/{path}"));
        request.body(Body::from(body.to_owned())).expect("a request")
    }

    #[tokio::test]
    async fn every_request_and_what_it_answers() {
        let dir = tempfile::tempdir().expect("a folder");
        let api = api(dir.path());
        let long = format!("{{\"name\": \"{}\"}}", "a".repeat(200));
        // Method, path, body, status, and a word of the answer.
        let table = [
            ("GET", "keys", "", 200, "\"self\""),
            ("POST", "keys", "{\"name\": \"site\"}", 201, "ed25519"),
            ("POST", "keys", "{\"name\": \"site\"}", 409, "already exists"),
            ("POST", "keys", "{\"name\": \"other\", \"type\": \"secp256k1\"}", 201, "secp256k1"),
            ("POST", "keys", "{\"name\": \"third\", \"type\": \"rsa\"}", 400, "only be imported"),
            ("POST", "keys", "{\"name\": \"third\", \"type\": \"dsa\"}", 400, "not a kind of key"),
            ("POST", "keys", "{\"name\": \"../third\"}", 400, "cannot name a key"),
            ("POST", "keys", "{\"name\": \"self\"}", 400, "node's identity"),
            ("POST", "keys", &long, 400, "cannot name a key"),
            ("POST", "keys", "{\"nam\": \"third\"}", 400, "unknown field"),
            ("POST", "keys", "nonsense", 400, "JSON"),
            ("POST", "keys/import", "{\"name\": \"third\", \"key\": \"nonsense\"}", 400, "libp2p private key"),
            ("POST", "keys/other/rename", "{\"to\": \"site\"}", 409, "already exists"),
            ("POST", "keys/other/rename", "{\"to\": \"page\"}", 200, "page"),
            ("POST", "keys/other/export", "", 404, "no key"),
            ("POST", "keys/..%2f..%2fidentity/export", "", 400, "cannot name a key"),
            ("POST", "keys/page/export", "{\"format\": \"pem-pkcs8-cleartext\"}", 400, "only Ed25519 and RSA"),
            ("POST", "keys/site/export", "{\"format\": \"pem-pkcs8-cleartext\"}", 200, "BEGIN PRIVATE KEY"),
            ("POST", "keys/self/export", "", 400, "node's identity"),
            ("POST", "publish", "{\"path\": \"nonsense\"}", 400, "is not a valid path"),
            ("POST", "publish", &format!("{{\"path\": \"{VALUE}\", \"key\": \"nobody\"}}"), 404, "no key"),
            (
                "POST",
                "publish",
                &format!("{{\"path\": \"{VALUE}\", \"lifetime_seconds\": 1}}"),
                400,
                "lifetime must be",
            ),
            ("POST", "publish", &format!("{{\"path\": \"{VALUE}\", \"key\": \"site\"}}"), 200, "once a node is online"),
            ("GET", "publish", "", 200, VALUE),
            ("POST", "keys", "{\"name\": \"import\"}", 201, "import"),
            ("DELETE", "keys/import", "", 200, "import"),
            ("DELETE", "keys/self", "", 400, "node's identity"),
            ("DELETE", "keys/site", "", 200, "ed25519"),
            ("DELETE", "keys/site", "", 404, "no key"),
            ("GET", "publish", "", 200, "[]"),
        ];
        for (method, path, body, status, word) in table {
            let (got, answer) = ask(&api, request(method, path, body)).await;
            let text = answer.to_string();
            assert!(got == status && text.contains(word), "{method} {path} {body}: {got} {text}");
            assert_eq!(answer.get("error").is_some(), status >= 400, "{text}");
        }
    }

    #[tokio::test]
    async fn an_exported_key_can_be_imported() {
        let (one, two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (from, to) = (api(one.path()), api(two.path()));
        let (_, created) = ask(&from, request("POST", "keys", "{\"name\": \"site\"}")).await;
        for format in ["libp2p-protobuf-cleartext", "pem-pkcs8-cleartext"] {
            let (_, exported) =
                ask(&from, request("POST", "keys/site/export", &format!("{{\"format\": \"{format}\"}}"))).await;
            let (status, imported) = ask(&to, request("POST", "keys/import", &exported.to_string())).await;
            assert_eq!((status, &imported), (201, &created), "{format}");
            ask(&to, request("DELETE", "keys/site", "")).await;
        }
    }

    #[tokio::test]
    async fn bodies_that_are_too_large_are_rejected() {
        let dir = tempfile::tempdir().expect("a folder");
        let large = format!("{{\"name\": \"{}\"}}", "a".repeat(BODY_BYTES_MAX));
        assert_eq!(ask(&api(dir.path()), request("POST", "keys", &large)).await.0, 413);
    }
}
