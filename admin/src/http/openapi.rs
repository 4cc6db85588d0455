//! The description of the admin API (OpenAPI 3.1), and what follows from it.
//!
//! Goals: the description, the routes and who may use them cannot disagree. The handlers bear the description of their operation;
//! [`utoipa_axum`] makes routes and document of the same list; and the guard lets in whom the document names
//! ([`Permissions`]). What is true of every operation is added here.
//!
//! `api/openapi.json` is the document as it is served; a test compares them, and writes it anew with `CAUSEWAY_BLESS=1`.

use crate::http::answer::Dialect;
use api::access::{OPERATOR, Scope};
use http::Method;
use std::collections::HashMap;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Components, Content, Info, License, OpenApi, Ref, RefOr, Response, ResponseBuilder, Tag};
use utoipa::{PartialSchema, ToSchema};

/// What the document calls the way of showing a token. Operations ask for `security(("bearer" = ["SCOPE"]))`.
pub const BEARER: &str = "bearer";

const ABOUT: &str = "\
The API of a Causeway gateway for its operator and for clients that pin content.

Everything but health needs the header `Authorization: Bearer TOKEN`, with a token that is good for the scope that the operation
names: `read`, `pin`, `operate` or `takedown`. `causeway token create` makes one. Where the operation names `operator`, the operator's
own token is needed: the one in the settings, or in the file `admin.token` of the data folder, which commands there use.

Times are seconds since the Unix epoch, in members that are called `at` or end in `_at`; those of the Pinning Service API are as its
specification has them.

What goes wrong is answered with `{\"error\": \"…\"}`, in words that say what to do; below `/psa` and `/api/v0` in the form that the
Pinning Service API and Kubo's RPC have for it.";

/// The media type of Server-Sent Events (<https://html.spec.whatwg.org/#server-sent-events>).
const EVENTS: &str = "text/event-stream";

/// What the parts of the API are for.
const TAGS: [(&str, &str); 10] = [
    ("health", "Whether the gateway lives and is ready; without a token"),
    ("pinning", "The IPFS Pinning Service API 1.0"),
    ("upload", "Content that is sent here, and pinned"),
    ("kubo", "A subset of Kubo's RPC"),
    ("store", "The local store: figures, checks, blocks and archives"),
    ("names", "Keys, and IPNS names that are published with them"),
    ("control", "What is not served"),
    ("operations", "Caches, peers, running requests, figures, settings: what the process does, and how it goes on"),
    ("access", "Tokens, and who changed what"),
    ("api", "This description"),
];

/// The statuses that any operation may have, before its handler is asked.
const COMMON: [(u16, &str); 11] = [
    (401, "There is no token, or it is wrong, revoked or expired"),
    (403, "The token is not good for this, or a web page of another site asks"),
    (404, "There is no such thing"),
    (405, "This is asked for with another method, which the header Allow names"),
    (408, "Nothing came from the sender for too long"),
    (413, "More was sent than is taken"),
    (415, "What was sent is of another media type"),
    (429, "Too much is under way, or too many wrong tokens came from there; Retry-After says when to try again"),
    (503, "The gateway is stopping, or the audit log cannot be written, without which nothing is changed"),
    (504, "It took too long"),
    (507, "The disk is full"),
];

/// The bytes of a body that is no JSON.
#[derive(Debug)]
pub struct Binary;

impl PartialSchema for Binary {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
    }
}

impl ToSchema for Binary {}

/// A form whose parts are files, whatever the parts are called.
#[derive(Debug)]
pub struct Files;

impl PartialSchema for Files {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::Object).additional_properties(Some(Binary::schema())).into()
    }
}

impl ToSchema for Files {}

/// Completes what the handlers say of themselves.
pub fn complete(mut document: OpenApi) -> OpenApi {
    document.info = Info::new("Causeway", env!("CARGO_PKG_VERSION"));
    document.info.description = Some(ABOUT.to_owned());
    document.info.license = Some(License::new(env!("CARGO_PKG_LICENSE")));
    document.tags = Some(TAGS.into_iter().map(|(name, about)| tag(name, about)).collect());
    let components = document.components.get_or_insert_with(Components::new);
    let mut scheme = Http::new(HttpAuthScheme::Bearer);
    scheme.description =
        Some("A token of \"causeway token create\", of the settings, or of the data folder".to_owned());
    components.add_security_scheme(BEARER, SecurityScheme::Http(scheme));
    for dialect in Dialect::ALL {
        let (name, schema) = dialect.schema();
        components.schemas.insert(name, schema);
    }
    for (path, item) in &mut document.paths.paths {
        let (dialect, guarded) = (Dialect::of(path), operations_mut(item).into_iter());
        let guarded = guarded.filter(|(_, operation)| asked_by(operation).is_some());
        guarded.for_each(|(_, operation)| add_common(operation, dialect));
        operations_mut(item).into_iter().for_each(|(_, operation)| describe_events(operation));
    }
    document
}

/// What operations name as the schema of their events is that of the JSON in them.
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

fn add_common(operation: &mut Operation, dialect: Dialect) {
    for (status, about) in COMMON {
        let known = &mut operation.responses.responses;
        known.entry(status.to_string()).or_insert_with(|| RefOr::T(error_response(about, dialect)));
    }
}

fn error_response(about: &str, dialect: Dialect) -> Response {
    let schema = Ref::from_schema_name(dialect.schema().0);
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

/// What an operation asks for. One that says nothing of it is open if it is about health, and to nobody else.
fn asked_by(operation: &Operation) -> Option<Asked> {
    let required = operation.security.iter().flatten();
    // What a requirement holds is told by its JSON alone.
    let mut required = required.filter_map(|requirement| serde_json::to_value(requirement).ok());
    let scopes = required.find_map(|requirement| requirement.get(BEARER).cloned())?;
    match scopes.get(0) {
        None => Some(Asked::AnyToken),
        Some(name) if name == OPERATOR => Some(Asked::Operator),
        Some(scope) => scope.as_str()?.parse().ok().map(Asked::Scope),
    }
}

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A token, whatever it is good for.
    AnyToken,
    /// A token that is good for this.
    Scope(Scope),
    /// The operator's own token. No scope is enough.
    Operator,
}

/// Who may use which operation: by path template and method.
#[derive(Debug, Clone, Default)]
pub struct Permissions {
    operations: HashMap<String, Vec<(Method, Option<Asked>)>>,
}

impl Permissions {
    /// As the document says.
    pub fn of(document: &OpenApi) -> Self {
        let mut document = document.clone();
        let asked = |item| operations_mut(item).into_iter().map(|(method, operation)| (method, asked_by(operation)));
        let paths = document.paths.paths.iter_mut();
        Self { operations: paths.map(|(path, item)| (path.clone(), asked(item).collect())).collect() }
    }

    /// What a request for a path that is routed needs. `None`: nothing lets it in.
    pub fn asked(&self, path: &str, method: &Method) -> Option<Asked> {
        let known = self.operations.get(path)?;
        let of = |method: &Method| known.iter().find(|(known, _)| known == method).map(|(_, asked)| *asked);
        // A request for the head is answered by whatever answers the whole.
        let asked = of(method).or_else(|| of(&Method::GET).filter(|_| *method == Method::HEAD));
        // Another method is for the router to refuse.
        asked.unwrap_or(Some(Asked::AnyToken))
    }

    /// Every operation, with what it asks for.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Method, Option<Asked>)> {
        self.operations
            .iter()
            .flat_map(|(path, known)| known.iter().map(move |(method, asked)| (path.as_str(), method, *asked)))
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

    /// The names under which the types of a file are in the document.
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

    /// Of two types of one name the document has one, and describes what the other is in with it.
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
                    "{name} is here and in {}: give one of them another with \"as\"",
                    path.display()
                );
            }
        }
        assert!(places.contains_key("StatsView") && places.contains_key("ExplainedNetworkView"), "{places:?}");
    }
}
