//! The OpenAPI 3.1 description of the admin API, and the permissions that follow from it.
//!
//! Goals: the description, the routes and the authorisation cannot disagree. Each handler is annotated with the
//! description of its operation; [`utoipa_axum`] makes the routes and the document from the same list; and the guard
//! authorises requests by the scopes in the document ([`Permissions`]). Statements that hold for every operation are
//! added here.
//!
//! `api/openapi.json` is the document as it is served. A test compares the two, and rewrites the file if
//! `CAUSEWAY_BLESS=1` is set.

use crate::http::answer::ErrorFormat;
use api::access::{OPERATOR, Scope};
use http::Method;
use std::collections::HashMap;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Components, Content, Info, License, OpenApi, Ref, RefOr, Response, ResponseBuilder, Tag};
use utoipa::{PartialSchema, ToSchema};

/// The name of the security scheme in the document. Operations declare `security(("bearer" = ["SCOPE"]))`.
pub const BEARER: &str = "bearer";

const ABOUT: &str = "\
The API of a Causeway gateway for its operator and for clients that pin content.

All requests except those for health need the header `Authorization: Bearer TOKEN`, with a token that has the scope of
the operation: `read`, `pin`, `operate` or `takedown`. `causeway token create` creates a token. Operations with the
scope `operator` need the operator's own token: the one in the settings, or the one in the file `admin.token` of the
data folder, which local commands use.

Times are seconds since the Unix epoch, in members with the name `at` or with a name that ends in `_at`. The Pinning
Service API has the times of its specification.

Errors are `{\"error\": \"…\"}`, with a message that says what to do. Below `/psa` and `/api/v0`, errors have the
format of the Pinning Service API and of Kubo's RPC.";

/// The media type of Server-Sent Events (<https://html.spec.whatwg.org/#server-sent-events>).
const EVENTS: &str = "text/event-stream";

/// The tags of the operations, with their descriptions.
const TAGS: [(&str, &str); 10] = [
    ("health", "Whether the gateway is alive and ready; needs no token"),
    ("pinning", "The IPFS Pinning Service API 1.0"),
    ("upload", "Uploads of content, which is pinned"),
    ("kubo", "A subset of Kubo's RPC"),
    ("store", "The local block store: statistics, checks, blocks and CAR archives"),
    ("names", "Keys, and IPNS names that are published with them"),
    ("control", "Denylists and take-downs"),
    ("operations", "Operating the running node: caches, peers, running requests, statistics, settings"),
    ("access", "Tokens, and the audit log"),
    ("api", "This OpenAPI document"),
];

/// The error statuses of every operation, mostly those of middleware before the handler runs.
const COMMON: [(u16, &str); 11] = [
    (401, "The token is missing, wrong, revoked or expired"),
    (403, "The token does not authorise the request, or a web page of another site sent it"),
    (404, "The path or the object does not exist"),
    (405, "The path does not support the method; the header Allow lists the supported methods"),
    (408, "The client stalled while it sent the body"),
    (413, "The body is too large"),
    (415, "The media type of the body is not supported"),
    (
        429,
        "A concurrency limit is reached, or the address sent too many wrong tokens; Retry-After says when to try again",
    ),
    (503, "The gateway is stopping, or the audit log cannot be written, without which no change is made"),
    (504, "The request timed out"),
    (507, "The disk is full"),
];

/// A binary body.
#[derive(Debug)]
pub struct Binary;

impl PartialSchema for Binary {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
    }
}

impl ToSchema for Binary {}

/// A form whose parts are files, with any part names.
#[derive(Debug)]
pub struct Files;

impl PartialSchema for Files {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::Object).additional_properties(Some(Binary::schema())).into()
    }
}

impl ToSchema for Files {}

/// Completes the document that the handlers' annotations make.
pub fn complete(mut document: OpenApi) -> OpenApi {
    document.info = Info::new("Causeway", env!("CARGO_PKG_VERSION"));
    document.info.description = Some(ABOUT.to_owned());
    document.info.license = Some(License::new(env!("CARGO_PKG_LICENSE")));
    document.tags = Some(TAGS.into_iter().map(|(name, about)| tag(name, about)).collect());
    let components = document.components.get_or_insert_with(Components::new);
    let mut scheme = Http::new(HttpAuthScheme::Bearer);
    scheme.description = Some("A token from \"causeway token create\", the settings, or the data folder".to_owned());
    components.add_security_scheme(BEARER, SecurityScheme::Http(scheme));
    for error_format in ErrorFormat::ALL {
        let (name, schema) = error_format.schema();
        components.schemas.insert(name, schema);
    }
    for (path, item) in &mut document.paths.paths {
        let (error_format, guarded) = (ErrorFormat::of(path), operations_mut(item).into_iter());
        let guarded = guarded.filter(|(_, operation)| requirement_of(operation).is_some());
        guarded.for_each(|(_, operation)| add_common(operation, error_format));
        operations_mut(item).into_iter().for_each(|(_, operation)| describe_events(operation));
    }
    document
}

/// Wraps the schema of Server-Sent Events: operations declare the schema of the JSON in the data field.
fn describe_events(operation: &mut Operation) {
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(Response { content, .. }) = response else { continue };
        if let Some(RefOr::T(content)) = content.get_mut(EVENTS) {
            let data = ObjectBuilder::new().schema_type(Type::String).content_media_type("application/json");
            let data = data.content_schema(content.schema.take());
            let kind = ObjectBuilder::new().schema_type(Type::String);
            let event = ObjectBuilder::new().schema_type(Type::Object).property("event", kind).property("data", data);
            content.schema = Some(event.required("event").required("data").into());
        }
    }
}

fn tag(name: &str, about: &str) -> Tag {
    let mut tag = Tag::new(name);
    tag.description = Some(about.to_owned());
    tag
}

fn add_common(operation: &mut Operation, error_format: ErrorFormat) {
    for (status, about) in COMMON {
        let known = &mut operation.responses.responses;
        known.entry(status.to_string()).or_insert_with(|| RefOr::T(error_response(about, error_format)));
    }
}

fn error_response(about: &str, error_format: ErrorFormat) -> Response {
    let schema = Ref::from_schema_name(error_format.schema().0);
    ResponseBuilder::new().description(about).content("application/json", Content::new(Some(schema))).build()
}

/// Each operation of a path, with its method.
fn operations_mut(item: &mut PathItem) -> Vec<(Method, &mut Operation)> {
    let PathItem { get, put, post, delete, head, patch, options, .. } = item;
    let all = [
        (Method::GET, get),
        (Method::PUT, put),
        (Method::POST, post),
        (Method::DELETE, delete),
        (Method::HEAD, head),
        (Method::PATCH, patch),
        (Method::OPTIONS, options),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?))).collect()
}

/// The requirement of an operation. Without one, the guard rejects the operation; health is routed around the guard.
fn requirement_of(operation: &Operation) -> Option<Requirement> {
    let required = operation.security.iter().flatten();
    // utoipa exposes the content of a requirement only through its JSON.
    let mut required = required.filter_map(|requirement| serde_json::to_value(requirement).ok());
    let scopes = required.find_map(|requirement| requirement.get(BEARER).cloned())?;
    match scopes.get(0) {
        None => Some(Requirement::AnyToken),
        Some(name) if name == OPERATOR => Some(Requirement::Operator),
        Some(scope) => scope.as_str()?.parse().ok().map(Requirement::Scope),
    }
}

/// The authorisation that an operation requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// A valid token with any scopes.
    AnyToken,
    /// A token with this scope.
    Scope(Scope),
    /// The operator's own token. No scope suffices.
    Operator,
}

/// The requirements of all operations, by path template and method.
#[derive(Debug, Clone, Default)]
pub struct Permissions {
    operations: HashMap<String, Vec<(Method, Option<Requirement>)>>,
}

impl Permissions {
    /// Reads the requirements from the document.
    pub fn of(document: &OpenApi) -> Self {
        let mut document = document.clone();
        let requirements =
            |item| operations_mut(item).into_iter().map(|(method, operation)| (method, requirement_of(operation)));
        let paths = document.paths.paths.iter_mut();
        Self { operations: paths.map(|(path, item)| (path.clone(), requirements(item).collect())).collect() }
    }

    /// The requirement of a request for a routed path. `None`: no token authorises it.
    pub fn required(&self, path: &str, method: &Method) -> Option<Requirement> {
        let known = self.operations.get(path)?;
        let of = |method: &Method| known.iter().find(|(known, _)| known == method).map(|(_, requirement)| *requirement);
        // The handler of GET also answers HEAD.
        let requirement = of(method).or_else(|| of(&Method::GET).filter(|_| *method == Method::HEAD));
        // The router answers other methods with 405.
        requirement.unwrap_or(Some(Requirement::AnyToken))
    }

    /// Every operation with its requirement.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Method, Option<Requirement>)> {
        self.operations.iter().flat_map(|(path, known)| {
            known.iter().map(move |(method, requirement)| (path.as_str(), method, *requirement))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::{Path, PathBuf};

    /// Every Rust file below a folder.
    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("lists");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let below = paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
        below.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
    }

    /// The schema names of the types of a file.
    fn schemas(source: &str) -> Vec<String> {
        let (mut names, mut derived, mut renamed) = (Vec::new(), false, None);
        for line in source.lines().map(str::trim) {
            derived |= line.starts_with("#[derive(") && line.contains("ToSchema");
            if let Some((_, rest)) = line.split_once("schema(as = ") {
                renamed = rest.split([',', ')']).next().map(str::to_owned);
            }
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if derived && words.any(|word| matches!(word, "struct" | "enum")) && !line.starts_with(['#', '/']) {
                names.extend(renamed.take().or_else(|| words.next().map(str::to_owned)));
                derived = false;
            }
        }
        names
    }

    /// If two types have the same schema name, the document has only one of the schemas and uses it for both.
    #[test]
    fn no_two_types_have_one_name() {
        assert_eq!(schemas("#[derive(ToSchema)]\n#[schema(as = B)]\npub struct A {\n}\nstruct C;"), ["B"]);
        let mut places: HashMap<String, PathBuf> = HashMap::new();
        let folders = [concat!(env!("CARGO_MANIFEST_DIR"), "/src"), concat!(env!("CARGO_MANIFEST_DIR"), "/../api/src")];
        for path in folders.into_iter().flat_map(|folder| sources(Path::new(folder))) {
            for name in schemas(&std::fs::read_to_string(&path).expect("reads")) {
                let other = places.insert(name.clone(), path.clone());
                assert_eq!(
                    other,
                    None,
                    "the schema name {name} is used here and in {}: rename one of them with \"as\"",
                    path.display()
                );
            }
        }
        assert!(places.contains_key("StatsView") && places.contains_key("ExplainedNetworkView"), "{places:?}");
    }
}
