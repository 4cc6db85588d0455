//! The operator's listener: health without a token, everything else with it.
//!
//! | module | concern |
//! |---|---|
//! | [`guard`] | who may ask |
//! | [`store_api`] | the API of the store |
//! | [`store_views`] | what is said of the store, here and by commands |
//! | [`upload`] | a body that is read as it comes |
//! | [`answer`] | JSON, and words for what goes wrong |
//!
//! Axum and tower-http live here, where a few microseconds do not matter.

pub mod answer;
mod guard;
pub mod store_api;
pub mod store_views;
mod upload;

use self::answer::{Answer, Refusal, json};
use self::store_views::VersionView;
use crate::health::Health;
use crate::names_api;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cache::BlockStore;
use p2p_bridge::names::publish::Publisher;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

/// How long an admin request may take whose answer is at hand.
const TIMEOUT: Duration = Duration::from_secs(30);
/// What the exposition format of `prometheus-client` is
/// (<https://prometheus.io/docs/specs/om/open_metrics_spec/#overall-structure>).
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the operator is shown.
pub struct Admin {
    /// Every metric of the process.
    pub registry: Registry,
    /// What `/readyz` answers.
    pub health: Arc<Health>,
    /// What publishes names.
    pub publisher: Option<Arc<Publisher>>,
    /// The node's store.
    pub store: Arc<dyn BlockStore>,
    /// What a bearer has to know, if anything.
    pub token: config::Secret,
}

/// The routes of the admin listener.
pub fn router(admin: Admin) -> Router {
    let admin = Arc::new(admin);
    let names = admin
        .publisher
        .as_ref()
        .map_or_else(Router::new, |publisher| names_api::routes(Arc::clone(publisher), admin.token.reveal().is_some()));
    let timeout = || TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, TIMEOUT);
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .route("/api/v1/version", get(version))
        .merge(names)
        .merge(store_api::quick_routes(&admin.store))
        .layer(timeout())
        .merge(store_api::long_routes(&admin.store))
        .method_not_allowed_fallback(another_method)
        .fallback(nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(&admin), guard::check));
    let open = Router::new()
        .route("/healthz", get(|| async { Health::alive() }))
        .route("/readyz", get(|State(admin): State<Arc<Admin>>| async move { admin.health.ready() }))
        .layer(timeout());
    open.merge(guarded).layer(CatchPanicLayer::new()).layer(TraceLayer::new_for_http()).with_state(admin)
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &admin.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n")).into_response()
        }
    }
}

async fn version() -> Answer {
    Ok(json(StatusCode::OK, &VersionView { version: env!("CARGO_PKG_VERSION").to_owned() }))
}

async fn nothing(request: Request) -> Response {
    let words = "there is no such page on the admin listener; try /metrics, /healthz, /readyz, /api/v1/store/stats or \
                 /api/v1/names/keys";
    Refusal(StatusCode::NOT_FOUND, words.to_owned()).to_sender(request.into_body())
}

async fn another_method(request: Request) -> Response {
    let words = "this is asked for with another method: the header Allow says with which";
    Refusal(StatusCode::METHOD_NOT_ALLOWED, words.to_owned()).to_sender(request.into_body())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Stage;
    use axum::body::Body;
    use axum::http::header::{ALLOW, AUTHORIZATION, HOST, ORIGIN, RETRY_AFTER};
    use bytes::Bytes;
    use cache::memory::{self, MemoryOptions};
    use content::{Block, car, codec, hashes};
    use futures::stream;
    use http_body_util::BodyExt as _;
    use p2p_bridge::names::NamesOptions;
    use p2p_bridge::names::keystore::Keystore;
    use p2p_bridge::options::PublishOptions;
    use serde_json::Value;
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;
    use tower::ServiceExt as _;

    fn admin(token: &str) -> Admin {
        Admin {
            registry: Registry::default(),
            health: Arc::default(),
            publisher: None,
            store: memory::open(&MemoryOptions::default()).expect("opens"),
            token: token.into(),
        }
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
    async fn only_health_is_without_a_token() {
        let health = Arc::new(Health::default());
        let router = router(Admin { health: Arc::clone(&health), ..admin("secret") });
        let table = [
            ("/healthz", None, 200),
            ("/readyz", None, 503),
            ("/metrics", None, 401),
            ("/metrics", Some("Bearer secret"), 200),
            ("/metrics", Some("bearer secret"), 200),
            ("/metrics", Some("Bearer secre"), 401),
            ("/metrics", Some("Bearer secrets"), 401),
            ("/metrics", Some("Basic secret"), 401),
            ("/metrics", Some("Bearer"), 401),
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
    async fn without_a_token_in_the_settings_none_is_asked_for() {
        assert_eq!(status(&router(admin("")), "/metrics", None).await, 200);
    }

    /// A block that the store does not hold.
    fn absent() -> Block {
        Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from_static(b"nobody has this")).expect("a block")
    }

    fn archive(roots: &[&Block], blocks: &[&Block]) -> Vec<u8> {
        let roots: Vec<_> = roots.iter().map(|block| *block.cid()).collect();
        let sections = blocks.iter().flat_map(|block| <[Bytes; 2]>::from(car::section(block)));
        std::iter::once(car::header(&roots)).chain(sections).collect::<Vec<_>>().concat()
    }

    /// Everything there is, and a good answer's status where the store is empty.
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

    fn with_names(admin: Admin, dir: &std::path::Path) -> Admin {
        let registry = &mut Registry::default();
        let names = p2p_bridge::Names::new(NamesOptions { offline: true, ..NamesOptions::default() }, None, registry);
        let keys = Arc::new(Keystore::open(dir, Duration::ZERO).expect("opens"));
        let names = names.expect("good options");
        let publisher = Publisher::start(PublishOptions::default(), dir, keys, names, Vec::new(), registry);
        Admin { publisher: Some(Arc::new(publisher.expect("starts"))), ..admin }
    }

    #[tokio::test]
    async fn every_route_asks_for_the_token_and_refuses_strange_pages() {
        let dir = tempfile::tempdir().expect("a folder");
        let router = router(with_names(admin("secret"), dir.path()));
        for (method, path, good) in routes() {
            let api = path.starts_with("/api/");
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
                let (status, answer) = send(&router, request, Body::empty()).await;
                assert_eq!(status, expected, "{method} {path} {authorization:?} {origin:?}");
                let says_why = method == "HEAD" || !error(&answer).is_empty();
                assert!(status < 400 || says_why, "{method} {path}: {:?}", answer.body());
            }
        }
    }

    #[tokio::test]
    async fn other_methods_are_told_which_ones_there_are() {
        let router = router(admin(""));
        for (method, path, _) in routes().into_iter().filter(|(_, path, _)| !path.contains("names")) {
            for other in
                ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"].into_iter().filter(|other| *other != method)
            {
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
    async fn an_archive_goes_in_and_comes_out_again() {
        let router = router(admin(""));
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
        // The query, the media type, the archive, the status, and words of the answer.
        let table = [
            ("", "", whole.clone(), 415, "application/vnd.ipld.car"),
            ("", "application/octet-stream", whole.clone(), 415, "application/vnd.ipld.car"),
            ("?roots=first", store_api::CAR, whole.clone(), 400, "and not"),
            ("?root=last", store_api::CAR, whole.clone(), 400, "no parameter"),
            (&long, store_api::CAR, whole.clone(), 400, "255 characters"),
            ("", store_api::CAR, Vec::new(), 400, "ends in the middle of the header"),
            ("", store_api::CAR, b"no archive at all".to_vec(), 400, "header"),
            ("", store_api::CAR, whole[..whole.len() - 1].to_vec(), 400, "ends in the middle of a section"),
            ("", store_api::CAR, archive(&[], &[one]), 400, "names no roots"),
            ("", store_api::CAR, archive(&[&absent()], &[one]), 400, "is incomplete"),
            ("?roots=last", store_api::CAR, whole.clone(), 400, "names roots already"),
            ("?roots=last", store_api::CAR, late(&[one]), 400, "does not end with a list"),
            ("?roots=last", store_api::CAR, late(&[]), 400, "names no roots"),
            ("", store_api::CAR, whole, 200, "\"blocks\":1,\"bytes\":3}"),
            ("?roots=last&name=a+b", "Application/VND.ipld.car; version=1", late(&[two, three, &list]), 200, "\"a b\""),
        ];
        for (query, kind, body, expected, words) in table {
            let (status, answer) = import(query, kind, body).await;
            let text = String::from_utf8_lossy(answer.body()).into_owned();
            assert!(status == expected && text.contains(words), "{query} {kind}: {status} {text}");
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
            assert_eq!(answer.headers()[CONTENT_TYPE], store_api::CAR);
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

    #[tokio::test]
    async fn a_few_operations_are_under_way_at_a_time() {
        let router = router(admin(""));
        let request = || Request::builder().method("POST").uri("/api/v1/store/import");
        // An upload is under way when it is waited for.
        let begun = Arc::new(AtomicUsize::new(0));
        let endless = || {
            let mut begun = Some(Arc::clone(&begun));
            Body::from_stream(stream::poll_fn(move |_| {
                begun.take().into_iter().for_each(|begun| _ = begun.fetch_add(1, Ordering::Relaxed));
                Poll::<Option<io::Result<Bytes>>>::Pending
            }))
        };
        let mut uploads = Vec::new();
        for _ in 0..store_api::OPERATIONS_MAX {
            let request = request().header(CONTENT_TYPE, store_api::CAR).body(endless()).expect("a request");
            uploads.push(tokio::spawn(router.clone().oneshot(request)));
        }
        while begun.load(Ordering::Relaxed) < store_api::OPERATIONS_MAX {
            tokio::task::yield_now().await;
        }
        assert_eq!(status(&router, "/api/v1/store/stats", None).await, 429);
        let (status, answer) = send(&router, request().header(CONTENT_TYPE, store_api::CAR), Body::empty()).await;
        assert!(status == 429 && answer.headers().contains_key(RETRY_AFTER) && error(&answer).contains("4 operations"));
        let one = format!("/api/v1/store/blocks/{}", absent().cid());
        assert_eq!(self::status(&router, &one, None).await, 404, "what is at hand is answered");
        uploads.iter().for_each(|upload| upload.abort());
    }

    #[tokio::test]
    async fn a_store_that_is_closed_is_no_fault_of_whoever_asks() {
        let admin = admin("");
        admin.store.close().await.expect("closes");
        let router = router(admin);
        let list = car::roots_block(&[*absent().cid()]).expect("a short list");
        let body = Body::from(archive(&[], &[&absent(), &list]));
        let request = Request::builder().method("POST").uri("/api/v1/store/import?roots=last");
        let (status, answer) = send(&router, request.header(CONTENT_TYPE, store_api::CAR), body).await;
        assert!(status == 503 && error(&answer).contains("stopping"), "{status} {:?}", answer.body());
    }
}
