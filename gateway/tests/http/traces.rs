//! Traces of requests: the tree of a cold fetch, bounds, errors, aborted bodies, and who may choose to be traced.

use crate::dag::{directory, file, noise, raw};
use crate::hosts::Names;
use crate::site::{Setup, Site, until};
use crate::upstream::FakeNetwork;
use content::ipns::Record;
use content::names::Key;
use content::{Block, Name, NameError, NameObserver, NameResolver, Resolution, SourceError};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use services::telemetry::export::{Queue, TelemetryMetrics};
use services::telemetry::trace::{BLOCK_SPANS_MAX, DROPPED_SPANS, EndedTrace};
use services::telemetry::{AttributeValue, Sampler, Span, SpanKind, Tracer};
use std::sync::{Arc, Mutex};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// A gateway whose traces are kept.
struct Traced {
    site: Site,
    queue: Arc<Queue>,
    taken: Mutex<Vec<EndedTrace>>,
}

impl Traced {
    async fn start(ratio: f64, setup: Setup) -> Self {
        let queue = Arc::new(Queue::new(TelemetryMetrics::default()));
        let tracer = Tracer::new(Sampler::new(ratio), Arc::clone(&queue));
        let site = Setup { tracer: Some(Arc::new(tracer)), ..setup }.start().await;
        Self { site, queue, taken: Mutex::default() }
    }

    /// The next trace: a response may have been received before its trace has ended.
    async fn next(&self) -> EndedTrace {
        let has_one = || {
            let mut taken = self.taken.lock().expect("is sound");
            taken.extend(self.queue.take());
            !taken.is_empty()
        };
        until(has_one, "the end of a trace").await;
        self.taken.lock().expect("is sound").remove(0)
    }
}

fn named<'a>(trace: &'a EndedTrace, name: &str) -> Vec<&'a Span> {
    trace.spans.iter().filter(|span| span.name == name).collect()
}

/// The names of the spans above a span, the nearest first.
fn above<'a>(trace: &'a EndedTrace, span: &Span) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut parent = span.parent;
    while let Some(above) = trace.spans.iter().find(|span| Some(span.id) == parent) {
        names.push(&*above.name);
        parent = above.parent;
    }
    names
}

fn attribute<'a>(span: &'a Span, key: &str) -> Option<&'a AttributeValue> {
    span.attributes.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
}

fn number(span: &Span, key: &str) -> Option<i64> {
    attribute(span, key).map(|value| match value {
        AttributeValue::Integer(value) => *value,
        other => panic!("{key} is {other:?}"),
    })
}

fn text<'a>(span: &'a Span, key: &str) -> Option<&'a str> {
    attribute(span, key).map(|value| match value {
        AttributeValue::Text(value) => &**value,
        other => panic!("{key} is {other:?}"),
    })
}

#[tokio::test]
async fn a_cold_fetch_is_a_tree_and_a_warm_one_is_counted() {
    let leaves = [raw(noise(1, 1000)), raw(noise(2, 1000)), raw(noise(3, 1000))];
    let file = file(&leaves);
    let root = directory(&[("file", &file)]);
    let all: Vec<&Block> = leaves.iter().chain([&file, &root]).collect();
    let network = FakeNetwork::new(all, []);
    let setup = Setup { upstream: Some(network), names: Arc::new(Names { site: *root.cid() }), ..Setup::new(&[]) };
    let traced = Traced::start(1.0, setup).await;
    let path = format!("/ipfs/{}/file", root.cid());
    let get = async |path: &str| {
        let answer = traced.site.get(path).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.bytes().await.expect("is whole").len(), 3000);
        traced.next().await
    };
    let trace = get(&format!("{path}?secret=1")).await;
    let request = &trace.spans[0];
    assert_eq!((request.kind, &*request.name, request.parent), (SpanKind::Server, "GET /ipfs/*", None));
    assert_eq!(text(request, "url.path"), Some(&*path));
    assert_eq!(number(request, "http.response.status_code"), Some(200));
    assert_eq!(number(request, "http.response.body.size"), Some(3000));
    assert_eq!(text(request, "causeway.tier"), Some("network"));
    assert_eq!((number(request, "causeway.blocks.network"), &request.error), (Some(5), &None), "{request:?}");
    let spans: Vec<_> = named(&trace, "block").iter().map(|span| above(&trace, span)).collect();
    assert_eq!(spans.len(), 5, "{trace:?}");
    let in_path = ["path resolution", "GET /ipfs/*"];
    assert_eq!(spans.iter().filter(|above| **above == in_path).count(), 2, "the directory and the file: {spans:?}");
    assert!(spans.iter().all(|above| above.last() == Some(&"GET /ipfs/*")));
    for (name, count) in [("network fetch", 5), ("disk read", 5), ("network session", 1)] {
        let spans = named(&trace, name);
        assert_eq!(spans.len(), count, "{name}: {trace:?}");
        let expected = if name == "network session" { "GET /ipfs/*" } else { "block" };
        assert!(spans.iter().all(|span| above(&trace, span)[0] == expected), "{name}");
    }
    assert!(trace.spans.iter().all(|span| span.start <= span.end));

    let trace = get(&path).await;
    assert!(named(&trace, "block").is_empty() && named(&trace, "network session").is_empty(), "{trace:?}");
    let request = &trace.spans[0];
    assert_eq!(text(request, "causeway.tier"), Some("ram"));
    assert!(number(request, "causeway.blocks.ram") >= Some(4), "{request:?}");
    assert_eq!(number(request, "causeway.blocks.network"), Some(0));
}

#[tokio::test]
async fn blocks_of_the_shared_storage_of_a_site_are_a_tier_of_their_own() {
    let leaves = [raw(noise(1, 1000)), raw(noise(2, 1000))];
    let file = file(&leaves);
    let shared = cache::memory::open(&cache::memory::MemoryOptions::default()).expect("opens");
    for block in leaves.iter().chain([&file]) {
        shared.put_cached(block.clone()).await;
    }
    shared.flush().await.expect("writes");
    let traced = Traced::start(1.0, Setup { shared: Some(shared), ..Setup::new(&[]) }).await;
    let path = format!("/ipfs/{}", file.cid());
    let answer = traced.site.get(&path).await;
    let tier = answer.headers()["server-timing"].to_str().expect("text").to_owned();
    assert_eq!((answer.status().as_u16(), &*tier), (200, "tier;desc=\"site\""));
    assert_eq!(answer.bytes().await.expect("is whole").len(), 2000);
    let trace = traced.next().await;
    let request = &trace.spans[0];
    assert_eq!(text(request, "causeway.tier"), Some("site"));
    let blocks = ["disk", "site", "network"].map(|tier| number(request, &format!("causeway.blocks.{tier}")));
    assert_eq!(blocks, [Some(0), Some(3), Some(0)], "{request:?}");
    let reads = named(&trace, "site read");
    assert_eq!(reads.len(), 3, "{trace:?}");
    for read in reads {
        assert_eq!(above(&trace, read)[0], "block");
        assert!(matches!(attribute(read, "causeway.site.hit"), Some(AttributeValue::Boolean(true))), "{read:?}");
    }
    assert!(named(&trace, "block").iter().all(|block| text(block, "causeway.block.tier") == Some("site")));

    assert_eq!(traced.site.get(&path).await.bytes().await.expect("is whole").len(), 2000);
    let again = traced.next().await;
    let request = &again.spans[0];
    assert_eq!((text(request, "causeway.tier"), attribute(request, "causeway.blocks.site")), (Some("ram"), None));
    assert_eq!(traced.site.metric("causeway_http_tier_requests_total{tier=\"site\"}"), 1);
}

/// Names that are looked up whenever they are resolved.
struct LookedUp {
    names: Names,
    observer: Option<Arc<dyn NameObserver>>,
}

impl NameResolver for LookedUp {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        let (found, observer, name) = (self.names.resolve(name), self.observer.clone(), name.clone());
        async move {
            observer.iter().for_each(|observer| observer.look_up_began(&name, false));
            let found = found.await;
            observer.iter().for_each(|observer| observer.look_up_ended(Some(found.as_ref().map(|_| ()))));
            found
        }
        .boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        self.names.record(key)
    }

    fn observed(&self, observer: Arc<dyn NameObserver>) -> Option<Arc<dyn NameResolver>> {
        Some(Arc::new(Self { names: Names { site: self.names.site }, observer: Some(observer) }))
    }
}

#[tokio::test]
async fn look_ups_of_names_have_spans_below_their_step() {
    let file = raw(noise(1, 1000));
    let names = LookedUp { names: Names { site: *file.cid() }, observer: None };
    let setup = Setup { upstream: Some(FakeNetwork::new([&file], [])), names: Arc::new(names), ..Setup::new(&[]) };
    let traced = Traced::start(1.0, setup).await;
    let known = "k51qzi5uqu5dk3v4rmjber23h16xnr23bsggmqqil9z2gduiis5se8dht36dam";
    // The name, its span, and whether that is of an error.
    let table = [
        (known, "ipns search", false),
        ("site.example", "dnslink query", false),
        ("busy.example", "dnslink query", true),
    ];
    for (name, kind, fails) in table {
        let answer = traced.site.get(&format!("/ipns/{name}")).await;
        assert_eq!(answer.status().is_success(), !fails, "{name}");
        let trace = traced.next().await;
        let [span] = named(&trace, kind)[..] else { panic!("one {kind}: {trace:?}") };
        assert_eq!(above(&trace, span), ["name resolution", "GET /ipns/*"]);
        assert_eq!(
            (text(span, "causeway.name"), span.error.is_some(), span.kind),
            (Some(name), fails, SpanKind::Client)
        );
    }
}

#[tokio::test]
async fn spans_of_a_long_file_are_bounded() {
    let leaves: Vec<Block> = (0..120).map(|n| raw(noise(n, 500))).collect();
    let file = file(&leaves);
    let network = FakeNetwork::new(leaves.iter().chain([&file]), []);
    let traced = Traced::start(1.0, Setup { upstream: Some(network), ..Setup::new(&[]) }).await;
    let answer = traced.site.get(&format!("/ipfs/{}", file.cid())).await;
    assert_eq!(answer.bytes().await.expect("is whole").len(), 60_000);
    let trace = traced.next().await;
    let of_blocks: usize = ["block", "disk read", "network fetch"].iter().map(|name| named(&trace, name).len()).sum();
    assert_eq!(of_blocks, BLOCK_SPANS_MAX);
    // Each block has a span, and below it those of its look-ups on the disk and in the network.
    let dropped = 3 * 121 - i64::try_from(BLOCK_SPANS_MAX).expect("few");
    assert_eq!(number(&trace.spans[0], DROPPED_SPANS), Some(dropped), "{:?}", trace.spans[0]);
    assert_eq!(number(&trace.spans[0], "http.response.body.size"), Some(60_000));
    assert_eq!(number(&trace.spans[0], "causeway.blocks.network"), Some(121));
    // No span is without its parent.
    assert!(trace.spans[1..].iter().all(|span| above(&trace, span).last() == Some(&"GET /ipfs/*")));
}

#[tokio::test]
async fn errors_and_aborted_bodies_are_errors_of_the_spans() {
    let leaves = [raw(noise(1, 1 << 20)), raw(noise(2, 1 << 20)), raw(noise(3, 1 << 20))];
    let file = file(&leaves);
    // The last leaf is missing.
    let network = FakeNetwork::new([&file, &leaves[0], &leaves[1]], []);
    let traced = Traced::start(1.0, Setup { upstream: Some(network), ..Setup::new(&[]) }).await;
    let answer = traced.site.try_send("GET", &format!("/ipfs/{}", file.cid()), &[]).await;
    if let Ok(answer) = answer {
        answer.bytes().await.expect_err("is aborted");
    }
    let trace = traced.next().await;
    let request = &trace.spans[0];
    assert!(request.error.is_some() && text(request, "error.type").is_some(), "{request:?}");
    assert!(named(&trace, "body").iter().all(|body| body.error.is_some()), "{trace:?}");
    let failed = |span: &&&Span| span.error.is_some();
    assert_eq!(named(&trace, "network fetch").iter().filter(failed).count(), 1, "{trace:?}");

    // A missing root is an error of the gateway, and a missing path is one of the client.
    let answer = traced.site.get(&format!("/ipfs/{}", raw("absent").cid())).await;
    let trace = traced.next().await;
    let request = &trace.spans[0];
    assert_eq!(number(request, "http.response.status_code"), Some(i64::from(answer.status().as_u16())));
    assert_eq!(request.error.is_some(), answer.status().is_server_error(), "{request:?}");
    assert_eq!(traced.site.get("/ipfs/nonsense").await.status(), 400);
    let trace = traced.next().await;
    assert_eq!((&trace.spans[0].error, text(&trace.spans[0], "error.type")), (&None, None));
}

#[tokio::test]
async fn a_followers_trace_says_so() {
    let block = raw("shared");
    let root = directory(&[("file", &block)]);
    let network = FakeNetwork::new([&root, &block], [&root]);
    let setup = Setup { upstream: Some(Arc::clone(&network) as _), ..Setup::new(&[]) };
    let traced = Arc::new(Traced::start(1.0, setup).await);
    let path = format!("/ipfs/{}/file", root.cid());
    let ask = || {
        let (traced, path) = (Arc::clone(&traced), path.clone());
        tokio::spawn(async move { traced.site.get(&path).await.status().as_u16() })
    };
    let first = ask();
    until(|| network.waiting() == 1, "the first request").await;
    let second = ask();
    traced.site.until_metric("causeway_http_walks_joined_total", 1).await;
    network.gate.add_permits(1);
    assert_eq!((first.await.expect("ends"), second.await.expect("ends")), (200, 200));
    let traces = [traced.next().await, traced.next().await];
    let follows = |trace: &EndedTrace| {
        let steps = named(trace, "path resolution");
        steps.iter().any(|step| attribute(step, "causeway.singleflight.follower").is_some())
    };
    let fetches = |trace: &EndedTrace| !named(trace, "network fetch").is_empty();
    let (leaders, followers): (Vec<_>, Vec<_>) = traces.iter().partition(|trace| fetches(trace));
    assert_eq!((leaders.len(), followers.len()), (1, 1), "{traces:?}");
    assert!(follows(followers[0]) && !follows(leaders[0]));
}

#[tokio::test]
async fn only_a_trusted_proxy_chooses_what_is_traced() {
    let block = raw("hello");
    let path = format!("/ipfs/{}", block.cid());
    for (trusted, ratio, parent, expected) in [
        (true, 0.0, PARENT, Some(true)),
        (true, 1.0, PARENT, Some(true)),
        (true, 1.0, UNSAMPLED, None),
        (true, 0.0, "malformed", None),
        (true, 1.0, "malformed", Some(false)),
        (false, 0.0, PARENT, None),
        (false, 1.0, PARENT, Some(false)),
        (false, 1.0, UNSAMPLED, Some(false)),
    ] {
        let mut setup = Setup::new(&[&block]);
        if trusted {
            setup.http.trusted_proxies = vec!["127.0.0.1".parse().expect("is valid")];
        }
        let traced = Traced::start(ratio, setup).await;
        let headers = [("traceparent", parent), ("tracestate", "a=1"), ("x-forwarded-for", "203.0.113.7")];
        assert_eq!(traced.site.send("GET", &path, &headers).await.status(), 200);
        traced.site.until_metric("causeway_http_requests_in_flight", 0).await;
        let traces = traced.queue.take();
        let found = traces.first().map(|trace| {
            let (request, is_parents) = (&trace.spans[0], trace.id.to_string() == PARENT[3..35]);
            assert_eq!(request.parent.map(|id| id.to_string()), is_parents.then(|| PARENT[36..52].to_owned()));
            assert_eq!(trace.state.as_str(), if is_parents { "a=1" } else { "" });
            assert_eq!(text(request, "client.address"), Some(if trusted { "203.0.113.7" } else { "127.0.0.1" }));
            is_parents
        });
        assert_eq!(found, expected, "{trusted} {ratio} {parent}");
    }
}

#[tokio::test]
async fn a_failed_request_names_its_problem() {
    let block = raw("x");
    let network = FakeNetwork::new([], [&block]);
    network.fail_with([SourceError::Closed]);
    network.gate.add_permits(1);
    let traced = Traced::start(1.0, Setup { upstream: Some(network), ..Setup::new(&[]) }).await;
    let answer = traced.site.get(&format!("/ipfs/{}", block.cid())).await;
    assert!(answer.status().is_server_error(), "{}", answer.status());
    let trace = traced.next().await;
    let request = &trace.spans[0];
    assert_eq!(text(request, "error.type"), Some(answer.status().as_str()));
    assert!(request.error.as_ref().is_some_and(|error| !error.is_empty()), "{request:?}");
    assert!(named(&trace, "path resolution")[0].error.is_some(), "{trace:?}");
}
