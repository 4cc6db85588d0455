//! The Pinning Service API over a router, on real stores: mainly what the official compliance tool does not test.

#[path = "../../../services/src/pinning/tests/world.rs"]
#[allow(dead_code, reason = "tests of the service use more of it")]
mod world;

use self::world::*;
use crate::pins::{overview, psa};
use api::access::Quota;
use axum::body::Body;
use axum::http::{Request as HttpRequest, StatusCode};
use axum::{Extension, Router};
use content::block::Block;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use services::access::token_store::{StoredToken, TokenParameters, TokenStore};
use services::access::{Principal, Scope};
use services::pinning;
use services::pinning::Pins;
use std::sync::Arc;
use tower::ServiceExt as _;

const ORIGIN: &str = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

/// A client of the API with one token.
struct Client {
    router: Router,
}

impl Client {
    fn new(pins: &Arc<Pins>, id: &str) -> Self {
        Self::limited(pins, Principal { id: id.into(), ..Principal::operator() })
    }

    fn limited(pins: &Arc<Pins>, bearer: Principal) -> Self {
        let (router, _) = psa::routes(Arc::clone(pins)).split_for_parts();
        Self { router: router.layer(Extension(bearer)) }
    }

    async fn send(&self, method: &str, path: &str, body: Vec<u8>) -> (StatusCode, Value) {
        let request = HttpRequest::builder().method(method).uri(format!("/psa/pins{path}"));
        let request = request.body(Body::from(body)).expect("a request");
        let response = self.router.clone().oneshot(request).await.expect("answers");
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.send("GET", path, Vec::new()).await
    }

    async fn post(&self, path: &str, pin: &Value) -> (StatusCode, Value) {
        self.send("POST", path, pin.to_string().into_bytes()).await
    }

    /// A pin that is accepted.
    async fn add(&self, pin: &Value) -> Value {
        let (status, answer) = self.post("", pin).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
        answer
    }

    /// The identifiers of a page.
    async fn ids(&self, query: &str) -> Vec<String> {
        let (status, page) = self.get(query).await;
        assert_eq!(status, StatusCode::OK, "{query}: {page}");
        page["results"].as_array().expect("a list").iter().map(id).collect()
    }
}

fn id(pin: &Value) -> String {
    pin["requestid"].as_str().expect("an id").to_owned()
}

fn cid(blocks: &[Block]) -> String {
    blocks[0].cid().to_string()
}

const ANY: &str = "status=queued,pinning,pinned,failed";

#[tokio::test]
async fn a_pin_is_created_shown_replaced_and_removed() {
    let world = World::new();
    let (one, other) = (dag("one", 0..5), dag("other", 3..8));
    world.upstream.has(&one);
    world.upstream.has(&other);
    let pins = world.start().await;
    let client = Client::new(&pins, "somebody");
    let asked = json!({ "cid": cid(&one), "name": "Ä name", "meta": { "app": "7" }, "origins": [ORIGIN] });
    let pin = client.add(&asked).await;
    assert_eq!(pin["pin"], asked);
    assert!(pin["delegates"].as_array().is_some_and(|delegates| delegates.len() == 1), "{pin}");
    assert!(["queued", "pinning", "pinned"].contains(&pin["status"].as_str().expect("a status")), "{pin}");
    let created = pin["created"].as_str().expect("a time");
    assert!(created.len() == 24 && created.ends_with('Z') && &created[19..20] == ".", "{created}");
    let path = format!("/{}", id(&pin));
    let done = until("it is pinned", async || {
        let (status, pin) = client.get(&path).await;
        assert_eq!(status, StatusCode::OK);
        (pin["status"] == "pinned").then_some(pin)
    })
    .await;
    assert_eq!((&done["pin"], &done["created"]), (&asked, &pin["created"]));
    let size = bytes_of(&one).to_string();
    assert_eq!(done["info"], json!({ "blocks": "6", "bytes": size, "dag_size": size }));
    let (status, next) = client.post(&path, &json!({ "cid": cid(&other) })).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_ne!(next["requestid"], pin["requestid"]);
    assert_eq!(client.get(&path).await.0, StatusCode::NOT_FOUND);
    let path = format!("/{}", id(&next));
    assert_eq!(client.send("DELETE", &path, Vec::new()).await, (StatusCode::ACCEPTED, Value::Null));
    for method in ["GET", "DELETE"] {
        let (status, failure) = client.send(method, &path, Vec::new()).await;
        assert_eq!((status, &failure["error"]["reason"]), (StatusCode::NOT_FOUND, &json!("NOT_FOUND")));
        assert!(failure["error"]["details"].is_string());
    }
    assert_eq!(client.post(&path, &json!({ "cid": cid(&one) })).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn lists_are_filtered_by_everything_and_paged_both_ways() {
    let world = World::new();
    let (one, other) = (dag("one", 0..1), dag("other", 0..2));
    world.upstream.has(&one);
    let pins = world.start().await;
    let client = Client::new(&pins, "somebody");
    let a = client.add(&json!({ "cid": cid(&one), "name": "Report 1", "meta": { "app": "x", "n": "1" } })).await;
    let b = client.add(&json!({ "cid": cid(&other), "name": "report 2", "meta": { "app": "x", "n": "2" } })).await;
    let c = client.add(&json!({ "cid": cid(&one), "name": null, "meta": null, "origins": null })).await;
    for pin in [&a, &c] {
        let path = format!("/{}", id(pin));
        until("pinned", async || (client.get(&path).await.1["status"] == "pinned").then_some(())).await;
    }
    let (a_id, b_id, c_id) = (id(&a), id(&b), id(&c));
    let (a_at, b_at) = (a["created"].as_str().expect("a time"), b["created"].as_str().expect("a time"));
    let both = format!("?{ANY}&cid={},{}", cid(&one), cid(&other));
    let meta = |text: &str| {
        format!("?{ANY}&meta={}", percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC))
    };
    let table = [
        (String::new(), vec![&c_id, &a_id]),
        ("?status=queued,pinning".to_owned(), vec![&b_id]),
        (format!("?{ANY}"), vec![&c_id, &b_id, &a_id]),
        (both, vec![&c_id, &b_id, &a_id]),
        (format!("?{ANY}&cid={}", cid(&other)), vec![&b_id]),
        (format!("?{ANY}&name=Report+1"), vec![&a_id]),
        ("?name=eport&match=partial".to_owned(), vec![&b_id, &a_id]),
        ("?name=eport&match=partial&status=pinned".to_owned(), vec![&a_id]),
        (format!("?cid={}", cid(&other)), vec![]),
        (format!("?{ANY}&name=REPORT%201&match=iexact"), vec![&a_id]),
        (format!("?{ANY}&name=eport&match=partial"), vec![&b_id, &a_id]),
        (format!("?{ANY}&name=Rep&match=partial"), vec![&a_id]),
        (format!("?{ANY}&name=REP&match=ipartial"), vec![&b_id, &a_id]),
        (meta("{\"app\":\"x\"}"), vec![&b_id, &a_id]),
        (meta("{\"app\":\"x\",\"n\":\"1\"}"), vec![&a_id]),
        (meta("{\"n\":\"3\"}"), vec![]),
        (meta("{}"), vec![&c_id, &b_id, &a_id]),
        (format!("?{ANY}&after={a_at}"), vec![&c_id, &b_id]),
        (format!("?{ANY}&before={b_at}"), vec![&a_id]),
        (format!("?{ANY}&after={a_at}&limit=1"), vec![&c_id]),
        (format!("?{ANY}&limit=2"), vec![&c_id, &b_id]),
        (format!("?{ANY}&something=else"), vec![&c_id, &b_id, &a_id]),
    ];
    for (query, expected) in table {
        assert_eq!(client.ids(&query).await.iter().collect::<Vec<_>>(), expected, "{query}");
    }
    let (_, page) = client.get(&format!("?{ANY}&limit=1")).await;
    assert_eq!((&page["count"], page["results"].as_array().map(Vec::len)), (&json!(3), Some(1)));
}

#[tokio::test]
async fn invalid_requests_are_rejected_and_change_nothing() {
    let world = World::new();
    let pins = world.start().await;
    let client = Client::new(&pins, "somebody");
    let good = cid(&dag("one", 0..1));
    let origins = |count: usize| (0..count).map(|port| ORIGIN.replace("4001", &port.to_string())).collect::<Vec<_>>();
    let texts = |count: usize| (0..count).map(|n| (n.to_string(), json!(""))).collect::<serde_json::Map<_, _>>();
    let bodies: Vec<(String, &str)> = vec![
        (String::new(), "not a pin"),
        ("null".to_owned(), "not a pin"),
        ("[]".to_owned(), "not a pin"),
        ("{}".to_owned(), "missing field `cid`"),
        ("{\"cid\": 1}".to_owned(), "not a pin"),
        (json!({ "cid": "QmNothing" }).to_string(), "not a CID"),
        (json!({ "cid": "" }).to_string(), "not a CID"),
        (json!({ "cid": good, "name": 1 }).to_string(), "not a pin"),
        (json!({ "cid": good, "name": "n".repeat(256) }).to_string(), "255 characters"),
        (json!({ "cid": good, "origins": "x" }).to_string(), "not a pin"),
        (json!({ "cid": good, "origins": ["x"] }).to_string(), "not a multiaddr"),
        (json!({ "cid": good, "origins": ["/ip4/127.0.0.1/tcp/1"] }).to_string(), "must end in /p2p/"),
        (json!({ "cid": good, "origins": origins(21) }).to_string(), "20 origins"),
        (json!({ "cid": good, "meta": { "a": 1 } }).to_string(), "not a pin"),
        (json!({ "cid": good, "meta": texts(1001) }).to_string(), "1000 keys"),
        (json!({ "cid": good, "meta": { "k": "v".repeat(20_000) } }).to_string(), "16384 bytes"),
    ];
    for (body, message) in bodies {
        let (status, failure) = client.send("POST", "", body.clone().into_bytes()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(failure["error"]["reason"], "BAD_REQUEST", "{body}");
        let details = failure["error"]["details"].as_str().unwrap_or_default();
        assert!(details.contains(message), "{body}: {details}");
    }
    let (status, _) = client.send("POST", "", vec![b' '; 300_000]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    for query in ["limit=0", "limit=1001", "status=done", "cid=x", "match=fuzzy&name=x", "before=now", "meta=%7B"] {
        let (status, failure) = client.get(&format!("?{query}")).await;
        assert_eq!((status, &failure["error"]["reason"]), (StatusCode::BAD_REQUEST, &json!("BAD_REQUEST")), "{query}");
    }
    assert_eq!(client.get(&format!("?{ANY}")).await.1["count"], 0);
    assert_eq!(client.get("/nothing").await.0, StatusCode::NOT_FOUND);
    assert_eq!(client.get("/%FF%00").await.0.as_u16() / 100, 4);
}

#[tokio::test]
async fn a_token_sees_and_changes_its_own_pins() {
    let world = World::new();
    let blocks = dag("one", 0..3);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let (one, other) = (Client::new(&pins, "one"), Client::new(&pins, "other"));
    let pin = one.add(&json!({ "cid": cid(&blocks), "name": "mine" })).await;
    let path = format!("/{}", id(&pin));
    for query in ["", "?name=mine", &format!("?{ANY}&cid={}", cid(&blocks)), &format!("?{ANY}")] {
        assert_eq!(other.ids(query).await, Vec::<String>::new(), "{query}");
    }
    assert_eq!(other.get(&path).await.0, StatusCode::NOT_FOUND);
    assert_eq!(other.send("DELETE", &path, Vec::new()).await.0, StatusCode::NOT_FOUND);
    assert_eq!(other.post(&path, &json!({ "cid": cid(&blocks) })).await.0, StatusCode::NOT_FOUND);
    assert_eq!(one.ids(&format!("?{ANY}")).await, [id(&pin)]);
    let own = other.add(&json!({ "cid": cid(&blocks) })).await;
    assert_eq!(one.send("DELETE", &path, Vec::new()).await.0, StatusCode::ACCEPTED);
    let path = format!("/{}", id(&own));
    until("the other's is pinned", async || (other.get(&path).await.1["status"] == "pinned").then_some(())).await;
    assert!(world.holds(&blocks[1]).await);
}

#[tokio::test]
async fn an_exceeded_quota_is_reported_as_the_specification_requires() {
    let world = World::new();
    let pins = world.start().await;
    let quota = api::access::Quota { pins_max: Some(1), bytes_max: None };
    let client = Client::limited(&pins, Principal { id: "poor".into(), quota, ..Principal::operator() });
    client.add(&json!({ "cid": cid(&dag("one", 0..1)) })).await;
    let (status, failure) = client.post("", &json!({ "cid": cid(&dag("other", 0..1)) })).await;
    assert_eq!((status, &failure["error"]["reason"]), (StatusCode::CONFLICT, &json!("INSUFFICIENT_FUNDS")));
}

#[test]
fn times_have_a_precision_of_a_millisecond() {
    let table = [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_595_871_148_276, "2020-07-27T17:32:28.276Z"),
        (1_595_871_148_270, "2020-07-27T17:32:28.270Z"),
        (1_595_871_148_200, "2020-07-27T17:32:28.200Z"),
        (1_595_871_148_006, "2020-07-27T17:32:28.006Z"),
    ];
    for (ms, expected) in table {
        assert_eq!(api::pins::rfc3339(services::pinning::index::time(ms)), expected);
    }
}

#[tokio::test]
async fn the_operator_creates_retries_and_counts_pins() {
    let mut world = World::new();
    world.options.give_up = std::time::Duration::from_millis(50);
    world.options.retry_first = std::time::Duration::from_millis(10);
    let blocks = dag("one", 0..5);
    let pins = world.start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let (router, _) = overview::routes(Arc::clone(&pins), TokenStore::of(dir.path())).split_for_parts();
    let bearer = Principal { id: "somebody".into(), ..Principal::operator() };
    let router: Router = router.layer(Extension(bearer));
    let send = async |method: &str, path: &str, body: Value| {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let request = HttpRequest::builder().method(method).uri(format!("/api/v1/pins{path}")).body(body);
        let response = router.clone().oneshot(request.expect("a request")).await.expect("answers");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice::<Value>(&body).unwrap_or_default())
    };
    let asked = json!({ "cid": cid(&blocks), "name": "Report 1", "meta": { "app": "7" } });
    let (status, pin) = send("POST", "", asked).await;
    assert_eq!((status, &pin["owner"], &pin["name"]), (202, &json!("somebody"), &json!("Report 1")), "{pin}");
    assert_eq!((&pin["cid"], &pin["meta"]["app"]), (&json!(cid(&blocks)), &json!("7")));
    let is = async |wanted: &str| {
        let query = format!("?status={wanted}&name=EPORT&match=ipartial");
        until(wanted, async || {
            let (status, page) = send("GET", &query, Value::Null).await;
            assert_eq!(status, 200, "{page}");
            (page["count"] == 1).then_some(page)
        })
        .await
    };
    let page = is("failed").await;
    assert_eq!(page["pins"][0]["requestid"], pin["requestid"], "{page}");
    assert_eq!(page["by_status"], json!({ "failed": 1, "pinned": 0, "pinning": 0, "queued": 0 }));
    let retry = format!("/{}/retry", id(&pin));
    let (status, retried) = send("POST", &retry, Value::Null).await;
    assert_eq!((status, &retried["requestid"]), (202, &pin["requestid"]), "{retried}");
    is("failed").await;
    world.upstream.has(&blocks);
    assert_eq!(send("POST", &retry, Value::Null).await.0, 202);
    is("pinned").await;
    let (_, page) = send("GET", "?status=failed", Value::Null).await;
    assert_eq!((&page["count"], &page["by_status"]["pinned"]), (&json!(0), &json!(1)), "{page}");
    let table = [
        (retry.as_str(), Value::Null, 409, "complete"),
        ("/nothing/retry", Value::Null, 404, "no such pin"),
        ("/nothing/retry?x=1", Value::Null, 400, "no parameter"),
        ("", json!({ "cid": "QmNothing" }), 400, "not a CID"),
        ("", json!({}), 400, "not a pin"),
        ("?x=1", json!({}), 400, "no parameter"),
    ];
    for (path, body, expected, message) in table {
        let (status, answer) = send("POST", path, body.clone()).await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == expected && error.contains(message), "{path} {body}: {status} {answer}");
    }
}

/// Whose a new pin is: the request's own token, or that of an operator's choice.
#[tokio::test]
async fn pins_are_created_for_other_owners_by_an_operator() {
    let world = World::new();
    let blocks = dag("one", 0..5);
    let pins = world.start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let tokens = TokenStore::of(dir.path());
    let quota = Quota { pins_max: Some(1), bytes_max: None };
    let parameters = |name: &str| TokenParameters {
        name: Some(name.to_owned()),
        scopes: [Scope::Pin].into_iter().collect(),
        quota,
        lifetime: None,
    };
    let [app, other] = ["app", "other"].map(|name| tokens.create(parameters(name)).expect("is created").0);
    let (router, _) = overview::routes(Arc::clone(&pins), tokens).split_for_parts();
    let send = async |scopes: &[Scope], owner: Option<&str>| {
        let bearer = Principal { id: "own".into(), scopes: scopes.iter().copied().collect(), ..Principal::operator() };
        let router: Router = router.clone().layer(Extension(bearer));
        let mut body = json!({ "cid": cid(&blocks), "name": "a name", "meta": { "a": "b" } });
        owner.iter().for_each(|owner| body["owner"] = json!(owner));
        let request = HttpRequest::builder().method("POST").uri("/api/v1/pins").body(Body::from(body.to_string()));
        let response = router.oneshot(request.expect("a request")).await.expect("answers");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice::<Value>(&body).unwrap_or_default())
    };
    let (pinning, operating) = (&[Scope::Pin][..], &[Scope::Pin, Scope::Operate][..]);
    let table = [
        (pinning, None, 202, "own"),
        (pinning, Some("app"), 403, "operate"),
        (pinning, Some("own"), 403, "operate"),
        (operating, Some("stranger"), 400, "there is no token"),
        (operating, Some("app"), 202, app.id.as_str()),
        (operating, Some("app"), 409, "quota of 1 pins"),
        (operating, Some(other.id.as_str()), 202, other.id.as_str()),
        (operating, Some("operator"), 202, "operator"),
        (operating, None, 202, "own"),
    ];
    for (scopes, owner, expected, words) in table {
        let (status, answer) = send(scopes, owner).await;
        let said = answer["owner"].as_str().or(answer["error"].as_str()).unwrap_or_default();
        assert!(status == expected && said.contains(words), "{scopes:?} {owner:?}: {status} {answer}");
        if status == 202 {
            assert_eq!((&answer["name"], &answer["meta"]["a"]), (&json!("a name"), &json!("b")), "{answer}");
        }
    }
}

#[test]
fn of_several_tokens_of_a_name_none_is_the_owner() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = TokenStore::of(dir.path());
    let parameters = |name: &str| TokenParameters {
        name: Some(name.to_owned()),
        scopes: [Scope::Pin].into_iter().collect(),
        quota: Quota::default(),
        lifetime: None,
    };
    let one = store.create(parameters("one")).expect("is created").0;
    let same = StoredToken { id: "another".to_owned(), ..one.clone() };
    let owner = |name: &str| overview::owner_among(vec![one.clone(), same.clone()], name).map(|owner| owner.id);
    assert_eq!(owner(&one.id).ok().as_deref(), Some(one.id.as_str()));
    assert_eq!(owner("another").ok().as_deref(), Some("another"));
    let refused = owner("one").expect_err("is ambiguous");
    assert!(refused.0 == StatusCode::BAD_REQUEST && refused.1.contains("several tokens"), "{}", refused.1);
}
