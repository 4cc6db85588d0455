//! The listener as a whole: authentication, authorisation, the audit log, and the routes of the store.

use crate::http::openapi::Requirement;
use crate::operations::testing;
use crate::uploads::tests::archive;
use crate::*;
use api::access::{Quota, Scope, Scopes};
use api::audit;
use axum::body::Body;
use axum::http::Method;
use axum::http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use bytes::Bytes;
use cache::memory::{self, MemoryOptions};
use content::{Block, car, codec, hashes};
use futures::stream;
use gateway::listen::connection::Connection;
use http_body_util::BodyExt as _;
use p2p_bridge::names::NamesOptions;
use p2p_bridge::names::keystore::Keystore;
use p2p_bridge::names::store::NameStore;
use p2p_bridge::options::PublishOptions;
use serde_json::{Value, json};
use services::access::authenticator;
use services::access::token_store::{TokenParameters, TokenStore};
use services::denylists::lists::Lists;
use services::health::Stage;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

/// A listener, and its data folder.
struct Listener {
    router: Router,
    document: OpenApi,
    store: Arc<dyn BlockStore>,
    dir: tempfile::TempDir,
}

const SETTINGS: &str = "secret";

/// All routes, with a store in memory.
fn listener(health: Arc<Health>) -> Listener {
    listener_in(tempfile::tempdir().expect("a folder"), health)
}

/// All routes, with an existing data folder.
fn listener_in(dir: tempfile::TempDir, health: Arc<Health>) -> Listener {
    listener_with(dir, health, true)
}

/// All routes, with or without the console.
fn listener_with(dir: tempfile::TempDir, health: Arc<Health>, console: bool) -> Listener {
    let local = authenticator::local(dir.path()).expect("makes");
    let store = memory::open(&MemoryOptions::default()).expect("opens");
    let lists = lists(dir.path());
    let (sources, pins) = (Arc::new(held(&store, &lists)), Pins::idle(&store));
    let uploads = uploads(&store, &pins, dir.path());
    let bounds = (&config::Uploads::default()).into();
    let parts = ResumableUploads::open(
        uploads.clone(),
        &dir.path().join("parts"),
        bounds,
        authenticator::principal_lookup(TokenStore::of(dir.path())),
    );
    let (names, publisher) = publisher(&dir.path().join("p2p"));
    let rpc = Rpc::new(kubo_rpc::Dependencies {
        sources: Arc::clone(&sources),
        names,
        policy: Arc::new(content::AllowAll),
        store: Arc::clone(&store),
        publisher: Arc::clone(&publisher),
        bridge: None,
        peer_id: *publisher.keys().get("self").expect("a key").0.key.peer_id(),
        pins: Arc::clone(&pins),
        uploads: uploads.clone(),
        limits: gateway::limits::RequestLimits::default(),
    });
    let settings = testing::settings(|_| ());
    let node = testing::world_over(Arc::clone(&store), Arc::default(), settings, &[], NamesOptions::default());
    let admin = Admin {
        registry: Registry::default(),
        health,
        publisher: Some(publisher),
        store: Arc::clone(&store),
        sources,
        pins,
        rpc,
        authenticator: Authenticator::new(Some(SETTINGS), Some(local), TokenStore::of(dir.path())),
        audit: Arc::new(AuditLog::open(dir.path()).expect("opens")),
        tokens: TokenStore::of(dir.path()),
        operations: Some(node.operations),
        control: control(lists, &store),
        uploads,
        parts: parts.expect("opens"),
        console,
    };
    let (router, document) = router_and_description(admin);
    Listener { router, document, store, dir }
}

fn lists(dir: &std::path::Path) -> Arc<Lists> {
    let settings = config::PolicySettings::default();
    futures::executor::block_on(Lists::open(&settings, dir)).expect("opens")
}

fn control(lists: Arc<Lists>, store: &Arc<dyn BlockStore>) -> Arc<Control> {
    let metrics = cache::TierMetrics::register(&mut Registry::default());
    let policy = Arc::clone(lists.running()) as _;
    let tiers = cache::Tiers::new(cache::Ram::new(1 << 20), Arc::clone(store), policy, metrics);
    Arc::new(Control::new(lists, tiers))
}

/// The store as the only source of blocks.
fn held(store: &Arc<dyn BlockStore>, lists: &Lists) -> Sources {
    let (local, again) = (store.handle(), store.handle());
    let open = move |_: &content::Cid, _| again.handle() as Arc<dyn content::BlockSource>;
    Sources {
        local,
        open_session: Box::new(open),
        fetches: Arc::new(services::limiter::Limiter::new(8, 8)),
        policy: Arc::clone(lists.running()) as _,
    }
}

fn uploads(store: &Arc<dyn BlockStore>, pins: &Arc<Pins>, data_dir: &std::path::Path) -> Uploads {
    let limits = services::uploads::UploadLimits::new(&config::Uploads::default(), &config::Cache::default());
    let policy = Arc::new(content::AllowAll);
    Uploads::new(store, policy, Arc::clone(pins), limits, data_dir).expect("opens")
}

fn publisher(dir: &std::path::Path) -> (Arc<p2p_bridge::Names>, Arc<Publisher>) {
    let registry = &mut Registry::default();
    let names = p2p_bridge::Names::new(NamesOptions { offline: true, ..NamesOptions::default() }, None, registry);
    let keys = NameStore::open(dir, Keystore::open(dir, Duration::ZERO).expect("opens"), None).expect("opens");
    let names = names.expect("good options");
    let publisher = Publisher::start(PublishOptions::default(), keys, Arc::clone(&names), Vec::new(), registry);
    (names, Arc::new(publisher))
}

impl Listener {
    /// A token with one scope.
    fn token(&self, scope: Scope) -> String {
        let scopes = [scope].into_iter().collect();
        let terms = TokenParameters { name: Some(scope.to_string()), scopes, quota: Quota::default(), lifetime: None };
        TokenStore::of(self.dir.path()).create(terms).expect("makes").1.reveal()
    }
}

/// The routes, to whose requests the operator's token is added, and the listener behind them.
fn for_the_operator() -> (Router, Listener) {
    let listener = listener(Arc::default());
    let show = async |mut request: Request, next: middleware::Next| {
        let value = format!("Bearer {SETTINGS}").parse().expect("a header");
        request.headers_mut().insert(AUTHORIZATION, value);
        next.run(request).await
    };
    (listener.router.clone().layer(middleware::from_fn(show)), listener)
}

async fn status(router: &Router, path: &str, authorization: Option<&str>) -> u16 {
    let mut request = Request::builder().uri(path);
    if let Some(value) = authorization {
        request = request.header(AUTHORIZATION, value);
    }
    let request = request.body(Body::empty()).expect("a request");
    router.clone().oneshot(request).await.expect("answers").status().as_u16()
}

#[tokio::test]
async fn only_health_needs_no_token() {
    let health = Arc::new(Health::default());
    let Listener { router, dir, .. } = listener(Arc::clone(&health));
    let local = format!("Bearer {}", authenticator::read_local(dir.path()).expect("is there").reveal());
    let table = [
        ("/healthz", None, 200),
        ("/readyz", None, 503),
        ("/metrics", None, 401),
        ("/metrics", Some("Bearer secret"), 200),
        ("/metrics", Some("bearer secret"), 200),
        ("/metrics", Some(&*local), 200),
        ("/metrics", Some("Bearer secre"), 401),
        ("/metrics", Some("Bearer secrets"), 401),
        ("/metrics", Some("Basic secret"), 401),
        ("/metrics", Some("Bearer"), 401),
        ("/metrics", Some("Bearer "), 401),
        ("/anything", None, 401),
        ("/anything", Some("Bearer secret"), 404),
    ];
    for (path, authorization, expected) in table {
        assert_eq!(status(&router, path, authorization).await, expected, "{path} {authorization:?}");
    }
    health.enter(Stage::Serving);
    assert_eq!(status(&router, "/readyz", None).await, 200);
}

#[tokio::test]
async fn the_console_needs_no_token_and_can_be_switched_off() {
    let on = listener(Arc::default());
    let off = listener_with(tempfile::tempdir().expect("a folder"), Arc::default(), false);
    // The path, the token, and the status with the console and without it.
    let table = [
        ("/", None, 200, 401),
        ("/", Some("Bearer secret"), 200, 404),
        ("/", Some("Bearer wrong"), 200, 401),
        ("/console/app.js", None, 200, 401),
        ("/console/nothing.js", None, 404, 401),
        ("/console/", None, 401, 401),
        ("/console", Some("Bearer secret"), 404, 404),
        ("/index.html", None, 401, 401),
        ("/api/v1/version", None, 401, 401),
    ];
    for (path, authorization, with, without) in table {
        let found = [status(&on.router, path, authorization).await, status(&off.router, path, authorization).await];
        assert_eq!(found, [with, without], "{path} {authorization:?}");
    }
    let (status, answer) = send(&on.router, Request::builder().method("POST").uri("/"), Body::empty()).await;
    assert!(status == 405 && error(&answer).contains("Allow"), "{status} {:?}", answer.body());
    // The page calls the API from its own origin; a page of another origin may not, even with the token.
    for (origin, site, expected) in [
        ("http://127.0.0.1:8081", "same-origin", 200),
        ("http://127.0.0.1:8080", "same-site", 403),
        ("https://evil.example", "cross-site", 403),
    ] {
        let request = Request::builder().uri("/api/v1/version").header(HOST, "127.0.0.1:8081");
        let request = request.header(ORIGIN, origin).header("sec-fetch-site", site);
        let request = request.header(AUTHORIZATION, "Bearer secret");
        let (status, answer) = send(&on.router, request, Body::empty()).await;
        assert_eq!(status, expected, "{origin}");
        assert!(!answer.headers().contains_key("access-control-allow-origin"));
    }
}

/// A path of a template, whose objects do not exist.
fn example(template: &str) -> String {
    let parts = template.split('/').map(|part| if part.starts_with('{') { "nothing" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn every_operation_requires_the_scope_in_its_description() {
    let listener = listener(Arc::default());
    let permissions = Permissions::of(&listener.document);
    let tokens = Scope::ALL.map(|scope| (scope, listener.token(scope)));
    let mut seen = 0_u32;
    for (template, method, asked) in permissions.all() {
        if matches!(template, "/healthz" | "/readyz") {
            assert_eq!(asked, None, "{template} is open");
            continue;
        }
        let asked = asked.unwrap_or_else(|| panic!("{method} {template} asks for nothing"));
        let path = example(template);
        let ask = async |token: Option<&str>| {
            let request = Request::builder().method(method).uri(&path).header(HOST, "127.0.0.1:8081");
            // Each operation is requested from another address, since repeated wrong tokens are rate limited.
            let from = Connection::new(([127, 0, 1, u8::try_from(seen).expect("few")], 1).into());
            let request = request.extension(Arc::new(from));
            let given = token.map(|token| (AUTHORIZATION, format!("Bearer {token}")));
            let request = given.into_iter().fold(request, |request, (name, value)| request.header(name, value));
            let request = request.body(Body::empty()).expect("a request");
            listener.router.clone().oneshot(request).await.expect("answers")
        };
        for wrong in [None, Some("wrong")] {
            let response = ask(wrong).await;
            assert_eq!(response.status(), 401, "{method} {path} {wrong:?}");
            assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer", "{method} {path}");
        }
        for (scope, token) in &tokens {
            // No issued token is the operator's own.
            let good = asked == Requirement::AnyToken || asked == Requirement::Scope(*scope);
            let status = ask(Some(token)).await.status().as_u16();
            assert_eq!(status != 403, good, "{method} {path} with {scope}: {status}");
            assert_ne!(status, 401, "{method} {path} with {scope}");
        }
        seen += 1;
    }
    assert!(seen >= 20, "{seen} operations were tried");
}

#[tokio::test]
async fn only_the_operator_creates_and_revokes_tokens() {
    let listener = listener(Arc::default());
    let all = Scopes::all();
    let terms = TokenParameters { name: Some("all".to_owned()), scopes: all, quota: Quota::default(), lifetime: None };
    let (_, good_for_all) = TokenStore::of(listener.dir.path()).create(terms).expect("makes");
    let ask = async |method: &str, path: &str, token: &str, body: Value| {
        let request = Request::builder().method(method).uri(path).header(AUTHORIZATION, format!("Bearer {token}"));
        let (status, answer) = send(&listener.router, request, Body::from(body.to_string())).await;
        (status, serde_json::from_slice::<Value>(answer.body()).unwrap_or_default())
    };
    let asked = json!({"scopes": ["read"], "name": "ci", "quota": {"pins_max": 3}, "expires_seconds": 60});
    let (status, told) = ask("POST", "/api/v1/tokens", &good_for_all.reveal(), asked.clone()).await;
    assert!(status == 403 && told["error"].as_str().unwrap_or_default().contains("operator's own token"), "{told}");

    let (status, made) = ask("POST", "/api/v1/tokens", SETTINGS, asked.clone()).await;
    assert_eq!((status, &made["name"], &made["quota"]["pins_max"]), (201, &json!("ci"), &json!(3)), "{made}");
    let token = made["token"].as_str().expect("it is shown").to_owned();
    let (status, own) = ask("GET", "/api/v1/token", &token, Value::Null).await;
    assert_eq!((status, &own["id"], &own["scopes"]), (200, &made["id"], &json!(["read"])), "it is valid at once");
    assert_eq!(ask("POST", "/api/v1/tokens", SETTINGS, asked).await.0, 409);
    for wrong in
        [json!({"scopes": []}), json!({"scopes": ["root"]}), json!({"scopes": ["read"], "name": ""}), json!({})]
    {
        assert_eq!(ask("POST", "/api/v1/tokens", SETTINGS, wrong.clone()).await.0, 400, "{wrong}");
    }
    let (_, unnamed) = ask("POST", "/api/v1/tokens", SETTINGS, json!({"scopes": ["pin"]})).await;
    assert_eq!(unnamed["name"], "token-1");

    assert_eq!(ask("DELETE", "/api/v1/tokens/ci", &good_for_all.reveal(), Value::Null).await.0, 403);
    assert_eq!(ask("DELETE", "/api/v1/tokens/ci", SETTINGS, Value::Null).await.0, 200);
    assert_eq!(ask("DELETE", "/api/v1/tokens/ci", SETTINGS, Value::Null).await.0, 404);
    assert_eq!(ask("GET", "/api/v1/token", &token, Value::Null).await.0, 401, "it is revoked");
    // The log has the token's ID and not its secret.
    let log = std::fs::read_to_string(listener.dir.path().join("audit.log")).expect("reads");
    let secret = token.rsplit_once('_').expect("a secret").1;
    assert!(log.contains(made["id"].as_str().expect("an id")) && !log.contains(secret), "{log}");
}

#[tokio::test]
async fn routes_without_a_description_are_forbidden() {
    let listener = listener(Arc::default());
    let undescribed = Permissions::default();
    assert_eq!(undescribed.required("/api/v1/version", &Method::GET), None);
    let described = Permissions::of(&listener.document);
    assert_eq!(described.required("/api/v1/version", &Method::GET), Some(Requirement::AnyToken));
    assert_eq!(described.required("/api/v1/version", &Method::HEAD), Some(Requirement::AnyToken));
    assert_eq!(described.required("/metrics", &Method::HEAD), Some(Requirement::Scope(Scope::Read)));
    assert_eq!(described.required("/api/v1/store/compact", &Method::POST), Some(Requirement::Scope(Scope::Operate)));
    assert_eq!(
        described.required("/api/v1/store/compact", &Method::PUT),
        Some(Requirement::AnyToken),
        "the router says 405"
    );
}

#[tokio::test]
async fn errors_have_the_format_of_the_requested_api() {
    let listener = listener(Arc::default());
    let table = [
        ("/api/v1/anything", "/error"),
        ("/psa/anything", "/error/details"),
        ("/api/v0/anything", "/Message"),
        ("/psalm", "/error"),
    ];
    for (path, message) in table {
        let (status, answer) = send(&listener.router, Request::builder().uri(path), Body::empty()).await;
        let value: Value = serde_json::from_slice(answer.body()).expect("JSON");
        let message = value.pointer(message).and_then(Value::as_str).unwrap_or_default();
        assert!(status == 401 && message.contains("Bearer TOKEN"), "{path}: {value}");
    }
}

#[tokio::test]
async fn the_audit_log_has_every_change_and_nothing_else() {
    let listener = listener(Arc::default());
    let pin = listener.token(Scope::Pin);
    let table = [
        ("GET", "/api/v1/store/stats", SETTINGS),
        ("POST", "/api/v1/store/compact?why=not", SETTINGS),
        ("POST", "/api/v1/store/compact", &*pin),
        ("POST", "/api/v1/store/compact", "wrong"),
        ("DELETE", "/api/v1/names/keys/nobody", SETTINGS),
        ("POST", "/api/v1/anything", SETTINGS),
    ];
    for (method, path, token) in table {
        let request = Request::builder().method(method).uri(path).header(AUTHORIZATION, format!("Bearer {token}"));
        send(&listener.router, request, Body::empty()).await;
    }
    let request = Request::builder().uri("/api/v1/audit?limit=9").header(AUTHORIZATION, format!("Bearer {SETTINGS}"));
    let (status, answer) = send(&listener.router, request, Body::empty()).await;
    assert_eq!(status, 200);
    let view: api::audit::AuditView = serde_json::from_slice(answer.body()).expect("a view");
    let told =
        |entry: &audit::AuditEntry| (entry.method.clone(), entry.path.clone(), entry.status, entry.token.clone());
    let expected = [("DELETE", "/api/v1/names/keys/nobody", 404), ("POST", "/api/v1/store/compact?why=not", 400)];
    let expected = expected.map(|(method, path, status)| (method.into(), path.into(), Some(status), "operator".into()));
    assert_eq!(view.entries.iter().map(told).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn routes_that_take_space_on_the_disk_exist() {
    let listener = listener(Arc::default());
    for route in guard::TAKES_SPACE {
        assert!(listener.document.paths.paths.contains_key(route), "{route}");
    }
}

/// The audit log is a file that cannot be written.
#[tokio::test]
async fn a_change_that_cannot_be_recorded_is_not_made() {
    let dir = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink("/dev/full", dir.path().join("audit.log")).expect("links");
    let listener = listener_in(dir, Arc::default());
    let ask = async |method: &str, path: &str, body: String| {
        let request = Request::builder().method(method).uri(path).header(AUTHORIZATION, format!("Bearer {SETTINGS}"));
        send(&listener.router, request, Body::from(body)).await
    };
    let rule = json!({"cid": absent().cid().to_string()}).to_string();
    for (path, body) in
        [("/api/v1/denylists/local/rules", rule), ("/api/v1/names/keys", json!({"name": "new"}).to_string())]
    {
        let (status, answer) = ask("POST", path, body).await;
        let message = error(&answer);
        assert!(status == 507 && message.contains("nothing was changed"), "{path}: {status} {message}");
    }
    let (status, answer) = ask("GET", "/api/v1/denylists/local/rules", String::new()).await;
    let rules: Value = serde_json::from_slice(answer.body()).expect("JSON");
    assert_eq!((status, &rules["rules"]), (200, &json!([])));
    let (status, answer) = ask("GET", "/api/v1/names/keys", String::new()).await;
    assert!(status == 200 && !String::from_utf8_lossy(answer.body()).contains("new"), "{answer:?}");
    // Kubo's clients receive the error in their own format.
    let (status, answer) = ask("POST", "/api/v0/key/gen?arg=new", String::new()).await;
    let told: Value = serde_json::from_slice(answer.body()).expect("JSON");
    assert!(status == 507 && told["Message"].as_str().unwrap_or_default().contains("nothing was changed"), "{told}");
}

/// The entries of the audit log, the newest first.
async fn audited(listener: &Listener) -> Vec<audit::AuditEntry> {
    let request = Request::builder().uri("/api/v1/audit?limit=99").header(AUTHORIZATION, format!("Bearer {SETTINGS}"));
    let (status, answer) = send(&listener.router, request, Body::empty()).await;
    assert_eq!(status, 200);
    serde_json::from_slice::<api::audit::AuditView>(answer.body()).expect("a view").entries
}

#[tokio::test]
async fn the_audit_log_has_the_request_whatever_its_result() {
    let listener = listener(Arc::default());
    let long = format!("/ipfs/{}{}", absent().cid(), "/".repeat(17_000));
    let cid = absent().cid().to_string();
    // Method, path, body, status, and a part of what is written.
    let table = [
        ("POST", "/api/v1/purge", format!("{{\"path\": \"{long}\"}}"), 200, ("/path", &long[..1000])),
        ("POST", "/api/v1/purge", "{\"cid\": \"nonsense\"}".to_owned(), 400, ("/cid", "nonsense")),
        ("POST", "/api/v1/warm", "{\"path\": \"nonsense\"}".to_owned(), 400, ("/path", "nonsense")),
        ("PUT", "/api/v1/log/level", "{\"level\": \"loud\"}".to_owned(), 400, ("/level", "loud")),
        ("POST", "/api/v1/names/keys/nobody/rename", "{\"to\": \"site\"}".to_owned(), 404, ("/to", "site")),
        ("POST", "/api/v1/names/publish", "{\"path\": \"nonsense\"}".to_owned(), 400, ("/path", "nonsense")),
        ("POST", "/api/v1/denylists/local/rules", format!("{{\"cid\": \"{cid}\"}}"), 201, ("/rule", &*cid)),
    ];
    for (method, path, body, expected, (pointer, message)) in table {
        let request = Request::builder().method(method).uri(path).header(AUTHORIZATION, format!("Bearer {SETTINGS}"));
        let (status, answer) = send(&listener.router, request, Body::from(body)).await;
        assert_eq!(status, expected, "{method} {path}: {}", error(&answer));
        let entry = audited(&listener).await.swap_remove(0);
        let detail = entry.detail.unwrap_or_default();
        let told = detail.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        assert!(entry.path == path && told.contains(message), "{path}: {detail}");
    }
}

#[tokio::test]
async fn the_audit_log_has_the_overriding_method_and_the_result_of_an_upload() {
    const PIECE: (&str, &str) = ("content-type", "application/offset+octet-stream");
    let listener = listener(Arc::default());
    let ask = async |method: &str, path: &str, headers: &[(&str, &str)], body: &'static str| {
        let request = Request::builder().method(method).uri(path).header(AUTHORIZATION, format!("Bearer {SETTINGS}"));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        send(&listener.router, request, Body::from(body)).await
    };
    let (status, created) = ask("POST", "/api/v1/uploads", &[("upload-length", "12")], "").await;
    assert_eq!(status, 201, "{}", error(&created));
    let at = created.headers()["location"].to_str().expect("text").to_owned();
    let instead = |method: &'static str| ("x-http-method-override", method);
    assert_eq!(ask("POST", &at, &[instead("PATCH"), ("upload-offset", "0"), PIECE], "hello ").await.0, 204);
    assert_eq!(ask("POST", &at, &[instead("HEAD")], "").await.0, 200);
    let (status, last) = ask("PATCH", &at, &[("upload-offset", "6"), PIECE], "world\n").await;
    assert_eq!(status, 204, "{}", error(&last));
    let root = last.headers()["x-ipfs-path"].to_str().expect("text").trim_start_matches("/ipfs/").to_owned();
    assert_eq!(ask("POST", &at, &[instead("DELETE")], "").await.0, 204);
    // Other routes ignore the header, and their requests are recorded.
    assert_eq!(ask("POST", "/api/v1/store/compact", &[instead("HEAD")], "").await.0, 200);

    let told: Vec<_> = audited(&listener).await.into_iter().map(|entry| (entry.method, entry.detail)).collect();
    let post = |method: Option<&str>| ("POST".to_owned(), method.map(|method| json!({ "method": method })));
    let last = ("PATCH".to_owned(), Some(json!({ "roots": [root], "bytes": 12 })));
    assert_eq!(told, [post(None), post(Some("DELETE")), last, post(Some("PATCH")), post(None)]);
}

/// The served document equals the one in the repository, from which clients may be generated.
#[tokio::test]
async fn the_served_description_is_the_one_in_the_repository() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../api/openapi.json");
    let (router, _behind) = for_the_operator();
    let (status, answer) = send(&router, Request::builder().uri("/api/v1/openapi.json"), Body::empty()).await;
    assert_eq!(status, 200);
    let served: Value = serde_json::from_slice(answer.body()).expect("JSON");
    if std::env::var_os("CAUSEWAY_BLESS").is_some() {
        std::fs::write(path, format!("{served:#}\n")).expect("writes");
    }
    let checked_in: Value = serde_json::from_slice(&std::fs::read(path).expect("is there")).expect("JSON");
    assert!(served == checked_in, "api/openapi.json is not what is served: run this test with CAUSEWAY_BLESS=1");
}

/// A block that is not stored.
fn absent() -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from_static(b"nobody has this")).expect("a block")
}

/// Routes, with the status of a valid request to an empty store.
fn routes() -> Vec<(&'static str, String, u16)> {
    let absent = absent();
    let store = |path: &str| format!("/api/v1/store/{path}");
    vec![
        ("GET", "/metrics".to_owned(), 200),
        ("GET", "/api/v1/version".to_owned(), 200),
        ("GET", store("stats"), 200),
        ("POST", store("check"), 200),
        ("POST", store("check?bytes_per_second=1000000"), 200),
        ("POST", store("compact"), 200),
        ("GET", store(&format!("export/{}", absent.cid())), 404),
        ("GET", store(&format!("blocks/{}", absent.cid())), 404),
        ("HEAD", store(&format!("blocks/{}", absent.cid())), 404),
        ("POST", store("import"), 415),
        ("GET", "/api/v1/names/keys".to_owned(), 200),
        ("GET", "/api/v1/names/publish".to_owned(), 200),
        ("POST", "/api/v1/names/keys/nobody/export".to_owned(), 404),
        ("DELETE", "/api/v1/names/keys/nobody".to_owned(), 404),
    ]
}

async fn send(router: &Router, request: axum::http::request::Builder, body: Body) -> (u16, Response<Bytes>) {
    let response = router.clone().oneshot(request.body(body).expect("a request")).await.expect("answers");
    let status = response.status().as_u16();
    let (head, body) = response.into_parts();
    (status, Response::from_parts(head, body.collect().await.expect("a body").to_bytes()))
}

fn error(answer: &Response<Bytes>) -> String {
    let value: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    value["error"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn every_route_requires_a_token_and_rejects_cross_site_requests() {
    let listener = listener(Arc::default());
    let router = &listener.router;
    for (method, path, good) in routes() {
        let api = path != "/metrics";
        let table = [
            (None, None, 401),
            (Some("Bearer wrong"), None, 401),
            (Some("Bearer secret"), None, good),
            (Some("Bearer secret"), Some("https://evil.example"), if api { 403 } else { good }),
            (None, Some("https://evil.example"), if api { 403 } else { 401 }),
        ];
        for (authorization, origin, expected) in table {
            let mut request = Request::builder().method(method).uri(&path).header(HOST, "127.0.0.1:8081");
            let given = [(AUTHORIZATION, authorization), (ORIGIN, origin)];
            for (name, value) in given.into_iter().filter_map(|(name, value)| Some((name, value?))) {
                request = request.header(name, value);
            }
            let (status, answer) = send(router, request, Body::empty()).await;
            assert_eq!(status, expected, "{method} {path} {authorization:?} {origin:?}");
            let says_why = method == "HEAD" || !error(&answer).is_empty();
            assert!(status < 400 || says_why, "{method} {path}: {:?}", answer.body());
        }
    }
}

#[tokio::test]
async fn other_methods_are_answered_with_the_allowed_ones() {
    let (router, _behind) = for_the_operator();
    for (method, path, _) in routes().into_iter().filter(|(_, path, _)| !path.contains("names")) {
        for other in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"].into_iter().filter(|other| *other != method) {
            if (method, other) == ("HEAD", "GET") {
                continue;
            }
            let (status, answer) = send(&router, Request::builder().method(other).uri(&path), Body::empty()).await;
            assert!(status == 405 && error(&answer).contains("Allow"), "{other} {path}: {status}");
            let allowed = answer.headers()[ALLOW].to_str().expect("text");
            assert!(allowed.split(',').any(|allowed| allowed == method), "{other} {path}: {allowed}");
        }
    }
}

#[tokio::test]
async fn an_archive_is_imported_and_exported_again() {
    let (router, _behind) = for_the_operator();
    let blocks: Vec<Block> = [&b"one"[..], b"two", b"three"]
        .into_iter()
        .map(|data| Block::of(codec::RAW, hashes::SHA2_256, 32, data.into()).expect("a block"))
        .collect();
    let [one, two, three] = &blocks[..] else { panic!("three blocks") };
    let list = car::roots_block(&[*three.cid(), *two.cid()]).expect("a short list");
    let whole = archive(&[one], &[one]);
    let import = |query: &str, kind: &str, body: Vec<u8>| {
        let uri = format!("/api/v1/store/import{query}");
        send(&router, Request::builder().method("POST").uri(uri).header(CONTENT_TYPE, kind), Body::from(body))
    };
    let long = format!("?name={}", "a".repeat(256));
    let late = |blocks: &[&Block]| archive(&[], blocks);
    // The query, the media type, the archive, the status, and a part of the answer.
    let table = [
        ("", "", whole.clone(), 415, "application/vnd.ipld.car"),
        ("", "application/octet-stream", whole.clone(), 415, "application/vnd.ipld.car"),
        ("?roots=first", api::store::CAR, whole.clone(), 400, "and not"),
        ("?root=last", api::store::CAR, whole.clone(), 400, "no parameter"),
        (&long, api::store::CAR, whole.clone(), 400, "255 characters"),
        ("?pin=old", api::store::CAR, whole.clone(), 400, "and not"),
        ("?pin=requested&name=a", api::store::CAR, whole.clone(), 400, "have their names"),
        ("?pin=requested", api::store::CAR, whole.clone(), 409, "no pin is requested"),
        ("", api::store::CAR, Vec::new(), 400, "ends in the middle of the header"),
        ("", api::store::CAR, b"no archive at all".to_vec(), 400, "header"),
        ("", api::store::CAR, whole[..whole.len() - 1].to_vec(), 400, "ends in the middle of a section"),
        ("", api::store::CAR, archive(&[], &[one]), 400, "has no roots"),
        ("", api::store::CAR, archive(&[&absent()], &[one]), 400, "is incomplete"),
        ("?roots=last", api::store::CAR, whole.clone(), 400, "must have no roots"),
        ("?roots=last", api::store::CAR, late(&[one]), 400, "does not end with a list"),
        ("?roots=last", api::store::CAR, late(&[]), 400, "has no roots"),
        ("?pin=new", api::store::CAR, whole.clone(), 200, "\"blocks\":1,\"bytes\":3}"),
        ("?pin=requested&roots=header", api::store::CAR, whole, 200, "\"blocks\":1,\"bytes\":3}"),
        ("?roots=last&name=a+b", "Application/VND.ipld.car; version=1", late(&[two, three, &list]), 200, "\"a b\""),
    ];
    for (query, kind, body, expected, message) in table {
        let (status, answer) = import(query, kind, body).await;
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        assert!(status == expected && text.contains(message), "{query} {kind}: {status} {text}");
    }

    // The same as zstd.
    let coded = |coding: &'static str, body: Vec<u8>| {
        let request =
            Request::builder().method("POST").uri("/api/v1/store/import").header(CONTENT_TYPE, api::store::CAR);
        send(&router, request.header("content-encoding", coding), Body::from(body))
    };
    let encoded = crate::uploads::tests::zstd(&archive(&[one], &[one]));
    let table = [
        ("gzip", encoded.clone(), 415, "zstd"),
        ("zstd", archive(&[one], &[one]), 400, "not zstd"),
        ("zstd", encoded[..encoded.len() - 1].to_vec(), 400, "truncated"),
        ("zstd", [&encoded[..], b"garbage"].concat(), 400, "something else follows"),
        ("zstd", encoded, 200, "\"blocks\":1,\"bytes\":3}"),
    ];
    for (coding, body, expected, message) in table {
        let (status, answer) = coded(coding, body).await;
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        assert!(status == expected && text.contains(message), "{coding}: {status} {text}");
        let named = answer.headers().get("accept-encoding").and_then(|value| value.to_str().ok());
        assert_eq!(named, (status == 415).then_some("zstd"), "{coding}");
    }

    let get = |method: &'static str, path: String| {
        send(&router, Request::builder().method(method).uri(format!("/api/v1/store/{path}")), Body::empty())
    };
    for block in &blocks {
        let (status, answer) = get("GET", format!("blocks/{}", block.cid())).await;
        assert_eq!((status, answer.body()), (200, block.data()));
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/vnd.ipld.raw");
        assert_eq!(get("HEAD", format!("blocks/{}", block.cid())).await.0, 200);
        let (status, answer) = get("GET", format!("export/{}", block.cid())).await;
        assert_eq!((status, answer.body()), (200, &Bytes::from(archive(&[block], &[block]))));
        assert_eq!(answer.headers()[CONTENT_TYPE], api::store::CAR);
    }
    assert_eq!(get("GET", format!("blocks/{}", list.cid())).await.0, 404, "the list of roots is not kept");
    let inline = "bafkqaddjnzzxazldoqwxizltoq";
    assert_eq!(get("GET", format!("blocks/{inline}")).await.1.body().len(), 12);
    for path in ["blocks/nothing", "export/nothing", "stats?json=1", "blocks/bafkqaddjnzzxazldoqwxizltoq?a=b"] {
        let (status, answer) = get("GET", path.to_owned()).await;
        assert!(status == 400 && !error(&answer).is_empty(), "{path}: {status}");
    }
    for query in ["bytes_per_second=0", "bytes_per_second=fast", "rate=1", "bytes_per_second=-1"] {
        assert_eq!(get("POST", format!("check?{query}")).await.0, 400, "{query}");
    }
    let (_, answer) = get("GET", "stats".to_owned()).await;
    let stats: Value = serde_json::from_slice(answer.body()).expect("JSON");
    assert_eq!((&stats["pinned"]["blocks"], &stats["pins"]), (&3.into(), &3.into()), "{stats}");
    let (_, answer) = get("POST", "check".to_owned()).await;
    let text = String::from_utf8(answer.body().to_vec()).expect("text");
    let last: Value = serde_json::from_str(text.lines().next_back().expect("a line")).expect("JSON");
    assert_eq!((&last["report"]["clean"], &last["report"]["blocks"]), (&true.into(), &3.into()), "{text}");
    let (_, answer) = get("POST", "compact".to_owned()).await;
    let compacted: Value = serde_json::from_slice(answer.body()).expect("JSON");
    assert_eq!(compacted["bytes_before"], compacted["bytes_after"], "{compacted}");
}

/// A token with the scope `read` cannot read withheld content, and no token can import it again.
#[tokio::test]
async fn withheld_content_is_neither_sent_nor_imported() {
    let (router, behind) = for_the_operator();
    let raw = |data: &'static [u8]| Block::of(codec::RAW, hashes::SHA2_256, 32, data.into()).expect("a block");
    let (denied, below, free) = (raw(b"denied"), raw(b"below"), raw(b"free"));
    let inline = "bafkqaddjnzzxazldoqwxizltoq";
    let deny = async |path: String, status: u16| {
        let body = json!({"path": path, "status": status}).to_string();
        let request = Request::builder().method("POST").uri("/api/v1/denylists/local/rules");
        assert_eq!(send(&router, request, Body::from(body)).await.0, 201, "{path}");
    };
    deny(format!("/ipfs/{}", denied.cid()), 451).await;
    deny(format!("/ipfs/{}/a", below.cid()), 410).await;
    deny(format!("/ipfs/{inline}"), 410).await;
    // The blocks may be stored nevertheless: another process stored them, or a list was added later.
    for block in [&denied, &below, &free] {
        behind.store.put_cached(block.clone()).await;
    }
    behind.store.flush().await.expect("flushes");
    let get = async |method: &'static str, path: String| {
        let request = Request::builder().method(method).uri(format!("/api/v1/{path}"));
        send(&router, request, Body::empty()).await.0
    };
    let (denied_cid, below_cid, free_cid) = (denied.cid(), below.cid(), free.cid());
    let table = [
        (format!("store/blocks/{denied_cid}"), 451),
        (format!("store/export/{denied_cid}"), 451),
        (format!("fetch/{free_cid}/{denied_cid}"), 451),
        (format!("store/blocks/{inline}"), 410),
        (format!("fetch/{free_cid}/{inline}"), 410),
        // A block below which a path is withheld is served, and its DAG is not exported.
        (format!("store/blocks/{below_cid}"), 200),
        (format!("store/export/{below_cid}"), 410),
        (format!("store/export/{free_cid}"), 200),
    ];
    for (path, expected) in table {
        assert_eq!(get("GET", path.clone()).await, expected, "{path}");
    }
    assert_eq!(get("HEAD", format!("store/blocks/{denied_cid}")).await, 451);
    // With or without its data, as a block or as a root.
    let reference = car::reference(denied_cid).to_vec();
    let list = car::roots_block(&[*free_cid]).expect("a short list");
    let named = [archive(&[], &[&free]), reference, archive(&[], &[&list])[car::header(&[]).len()..].to_vec()].concat();
    let imports = [
        ("", archive(&[&free], &[&free, &denied]), 451),
        ("", archive(&[&denied], &[&denied]), 451),
        ("?roots=last", named, 451),
        ("", archive(&[&free], &[&free]), 200),
    ];
    for (query, body, expected) in imports {
        let request = Request::builder().method("POST").uri(format!("/api/v1/store/import{query}"));
        let request = request.header(CONTENT_TYPE, api::store::CAR);
        let (status, answer) = send(&router, request, Body::from(body)).await;
        assert_eq!(status, expected, "{query}: {}", error(&answer));
    }
}

#[tokio::test]
async fn the_number_of_running_operations_is_limited() {
    let (router, _behind) = for_the_operator();
    let request = || Request::builder().method("POST").uri("/api/v1/store/import");
    // An upload runs once its body is polled.
    let begun = Arc::new(AtomicUsize::new(0));
    let endless = || {
        let mut begun = Some(Arc::clone(&begun));
        Body::from_stream(stream::poll_fn(move |_| {
            begun.take().into_iter().for_each(|begun| _ = begun.fetch_add(1, Ordering::Relaxed));
            Poll::<Option<io::Result<Bytes>>>::Pending
        }))
    };
    let mut uploads = Vec::new();
    // One token may have three of the four permits.
    let share = store::OPERATIONS_MAX - 1;
    for _ in 0..share {
        let request = request().header(CONTENT_TYPE, api::store::CAR).body(endless()).expect("a request");
        uploads.push(tokio::spawn(router.clone().oneshot(request)));
    }
    while begun.load(Ordering::Relaxed) < share {
        tokio::task::yield_now().await;
    }
    assert_eq!(status(&router, "/api/v1/store/stats", None).await, 429);
    let (status, answer) = send(&router, request().header(CONTENT_TYPE, api::store::CAR), Body::empty()).await;
    assert!(status == 429 && answer.headers().contains_key(RETRY_AFTER) && error(&answer).contains("this token has"));
    let one = format!("/api/v1/store/blocks/{}", absent().cid());
    assert_eq!(self::status(&router, &one, None).await, 404, "other routes are not limited");
    uploads.iter().for_each(|upload| upload.abort());
}

#[tokio::test]
async fn a_closed_store_is_answered_with_503() {
    let (router, behind) = for_the_operator();
    behind.store.close().await.expect("closes");
    let list = car::roots_block(&[*absent().cid()]).expect("a short list");
    let body = Body::from(archive(&[], &[&absent(), &list]));
    let request = Request::builder().method("POST").uri("/api/v1/store/import?roots=last");
    let (status, answer) = send(&router, request.header(CONTENT_TYPE, api::store::CAR), body).await;
    assert!(status == 503 && error(&answer).contains("stopping"), "{status} {:?}", answer.body());
}
