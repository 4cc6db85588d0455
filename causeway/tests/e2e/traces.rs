//! Traces of a running gateway, received by the OpenTelemetry Collector: the tree of a cold fetch, `traceparent`,
//! TLS, sampling, the identifiers in logs, and a collector that is dead.

use crate::support::causeway::{Causeway, Launch};
use crate::support::noise::Noise;
use crate::support::otelcol::{Collector, ReceivedSpan};
use crate::support::{client, eventually};
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
const INLINE: &str = "/ipfs/bafkqac3imvwgy3zao5xxe3de";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A node that exports to a collector, and has its access log in a file.
fn launch(dir: &Path, endpoint: &str, ratio: &str, log: &Path) -> Launch {
    Launch::new(dir)
        .set("CAUSEWAY_P2P_DAG_PROTOCOL", true)
        .set("CAUSEWAY_TELEMETRY_OTLP_ENDPOINT", endpoint)
        .set("CAUSEWAY_TELEMETRY_SAMPLE_RATIO", ratio)
        .set("CAUSEWAY_TELEMETRY_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        .set("CAUSEWAY_LOG_ACCESS", "log")
        .set("CAUSEWAY_LOG_ACCESS_FORMAT", "json")
        .set("CAUSEWAY_LOG_ACCESS_FILE", log.display())
        .set("CAUSEWAY_LOG_ACCESS_ADDRESSES", "truncated")
}

/// Requests a path with a `traceparent`.
async fn get_traced(node: &Causeway, path: &str, parent: &str) -> u16 {
    let request = client().get(node.url(path)).header("traceparent", parent).header("tracestate", "a=1");
    let response = request.send().await.expect("is answered");
    let status = response.status().as_u16();
    response.bytes().await.expect("is whole");
    status
}

/// The access log's line of a path.
async fn logged(log: &Path, path: &str) -> Value {
    eventually("the request is logged", TIMEOUT, async || {
        let text = fs::read_to_string(log).unwrap_or_default();
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["path"] == path).ok_or(text.clone())
    })
    .await
}

/// The names of the spans above a span, the nearest first.
fn above<'a>(spans: &'a [ReceivedSpan], span: &'a ReceivedSpan) -> Vec<&'a str> {
    let by_id: HashMap<&str, &ReceivedSpan> = spans.iter().map(|span| (span.text("spanId"), span)).collect();
    let mut names = Vec::new();
    let mut next = by_id.get(span.text("parentSpanId"));
    while let Some(span) = next {
        names.push(span.text("name"));
        next = by_id.get(span.text("parentSpanId"));
    }
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_fetch_has_its_tree_at_the_collector() {
    let (dir, of_holder) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let bytes = Noise::bytes(813, 900_000);
    let (holder, cid) = Causeway::with_file(of_holder.path(), &bytes).await;
    let collector = Collector::start(of_holder.path(), None).await;
    let log = dir.path().join("access.log");
    let node = launch(dir.path(), &collector.endpoint(), "0", &log)
        .set("CAUSEWAY_HTTP_TRUSTED_PROXIES", "127.0.0.1")
        .peering(holder.tcp())
        .start()
        .await;
    node.until_connected().await;
    let path = format!("/ipfs/{cid}");
    assert_eq!(get_traced(&node, &format!("{path}?secret=1"), &format!("00-{TRACE}-{PARENT}-01")).await, 200);
    let spans = collector.trace(TRACE, TIMEOUT).await;

    let request = spans.iter().find(|span| span.span["kind"] == 2).expect("a request");
    assert_eq!((request.text("name"), request.text("parentSpanId")), ("GET /ipfs/*", PARENT));
    assert_eq!(request.text("traceState"), "a=1");
    let expected = [
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("http.response.body.size", "900000"),
        ("http.route", "/ipfs/*"),
        ("url.path", &*path),
        ("url.scheme", "http"),
        ("network.protocol.version", "1.1"),
        ("client.address", "127.0.0.0"),
        ("server.address", "127.0.0.1"),
        ("causeway.tier", "network"),
    ];
    for (key, value) in expected {
        assert_eq!(request.attribute(key).as_deref(), Some(value), "{key}: {request:?}");
    }
    assert_eq!(request.of_resource("service.name").as_deref(), Some("causeway"));
    assert_eq!(request.of_resource("deployment.environment.name").as_deref(), Some("test"));
    assert!(!format!("{spans:?}").contains("secret"), "{spans:?}");

    // Each span is below the request.
    for span in spans.iter().filter(|span| span.text("spanId") != request.text("spanId")) {
        assert_eq!(above(&spans, span).last(), Some(&"GET /ipfs/*"), "{span:?}");
        assert!(span.text("startTimeUnixNano") >= request.text("startTimeUnixNano"), "{span:?}");
    }
    let named = |name: &str| spans.iter().filter(|span| span.text("name") == name).collect::<Vec<_>>();
    let fetches = named("network fetch");
    assert!(fetches.iter().any(|fetch| above(&spans, fetch) == ["block", "path resolution", "GET /ipfs/*"]));
    // A root and four leaves.
    let blocks = named("block");
    assert_eq!((blocks.len(), fetches.len()), (5, 5), "{spans:?}");
    assert!(blocks.iter().all(|block| block.attribute("causeway.block.tier").as_deref() == Some("network")));
    assert!(named("disk read").iter().all(|read| read.attribute("causeway.disk.hit").as_deref() == Some("false")));
    let [session] = named("network session")[..] else { panic!("{spans:?}") };
    assert_eq!(session.attribute("causeway.network.blocks").as_deref(), Some("5"), "{session:?}");
    // The first block may be asked for before the peer's protocols are known.
    let (bitswap, transfers) = (named("bitswap"), named("dag transfer"));
    let blocks = bitswap.iter().chain(&transfers).map(|span| span.attribute("causeway.network.blocks"));
    let blocks: u32 = blocks.map(|blocks| blocks.expect("is counted").parse::<u32>().expect("a number")).sum();
    assert_eq!(blocks, 5, "{spans:?}");
    for (spans, attribute) in [(bitswap, "causeway.bitswap.peers_asked"), (transfers, "causeway.dag.peers_asked")] {
        assert!(spans.iter().all(|span| span.attribute(attribute).as_deref() == Some("1")), "{spans:?}");
    }
    assert!(named("http source").is_empty());
    let searches = named("dht search");
    assert!(!searches.is_empty(), "{spans:?}");
    assert!(searches.iter().all(|search| search.attribute("causeway.dht.scope").is_some()), "{searches:?}");
    assert_eq!(logged(&log, &path).await["trace_id"], TRACE);

    // Neither an unsampled parent, nor a malformed one with a ratio of zero.
    for parent in [format!("00-{TRACE}-{PARENT}-00"), format!("00-{TRACE}-{PARENT}-1")] {
        assert_eq!(get_traced(&node, INLINE, &parent).await, 200);
    }
    let line = logged(&log, INLINE).await;
    assert_eq!(line["trace_id"], Value::Null, "{line}");
    node.stop().await;
    assert_eq!(collector.trace(TRACE, TIMEOUT).await.len(), spans.len());
    holder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untrusted_client_cannot_choose_and_exports_are_encrypted() {
    let dir = TempDir::new().expect("a folder");
    let names = ["localhost", "127.0.0.1"].map(str::to_owned);
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names).expect("is created");
    let (certificate, key) = (dir.path().join("collector.pem"), dir.path().join("collector.key"));
    fs::write(&certificate, cert.pem()).expect("writes");
    fs::write(&key, signing_key.serialize_pem()).expect("writes");
    let collector = Collector::start(dir.path(), Some((&certificate, &key))).await;
    let (log, headers) = (dir.path().join("access.log"), dir.path().join("headers"));
    fs::write(&headers, "authorization=Bearer%20token\n").expect("writes");
    let node = launch(dir.path(), &collector.endpoint(), "1", &log)
        .set("CAUSEWAY_P2P_OFFLINE", true)
        .set("CAUSEWAY_TELEMETRY_OTLP_CA", certificate.display())
        .set("CAUSEWAY_TELEMETRY_OTLP_HEADERS_FILE", headers.display())
        .start()
        .await;
    assert_eq!(get_traced(&node, INLINE, &format!("00-{TRACE}-{PARENT}-01")).await, 200);
    let id = logged(&log, INLINE).await["trace_id"].as_str().expect("is sampled").to_owned();
    assert_ne!(id, TRACE);
    // What is not stored is an error of the gateway, and of its request's span.
    let absent = "/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";
    let status = node.get(absent).await.status;
    let failed = logged(&log, absent).await["trace_id"].as_str().expect("is sampled").to_owned();
    let exported = node.metrics_when(|metrics| metrics.sample("causeway_trace_spans_exported_total") > 1).await;
    assert_eq!(exported.sample("causeway_trace_spans_dropped_total{reason=\"export\"}"), 0);
    node.stop().await;
    let spans = collector.trace(&id, TIMEOUT).await;
    let request = spans.iter().find(|span| span.span["kind"] == 2).expect("a request");
    assert_eq!((request.text("parentSpanId"), request.text("traceState")), ("", ""));
    let spans = collector.trace(&failed, TIMEOUT).await;
    let request = spans.iter().find(|span| span.span["kind"] == 2).expect("a request");
    assert_eq!(request.attribute("http.response.status_code"), Some(status.to_string()));
    let is_error = request.span["status"]["code"] == 2;
    assert_eq!((is_error, request.attribute("error.type").is_some()), (status >= 500, status >= 500), "{request:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_collector_changes_nothing_but_the_metric() {
    let dir = TempDir::new().expect("a folder");
    // Connections are accepted by the kernel, and nothing is answered.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    // A socket that is bound and does not listen: nothing else gets its port.
    let refusing = tokio::net::TcpSocket::new_v4().expect("a socket");
    refusing.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let addresses = [("silent", silent.local_addr()), ("refusing", refusing.local_addr())];
    for (name, address) in addresses.map(|(name, address)| (name, address.expect("is bound"))) {
        let (data, log) = (dir.path().join(name), dir.path().join(format!("{name}.log")));
        fs::create_dir(&data).expect("creates");
        let node = launch(&data, &format!("http://{address}"), "1", &log).set("CAUSEWAY_P2P_OFFLINE", true);
        let node = node.set("CAUSEWAY_LOG_LEVEL", "debug").start().await;
        for _ in 0..200 {
            assert_eq!(node.get(INLINE).await.status, 200);
        }
        if name == "refusing" {
            node.metrics_when(|metrics| metrics.sample("causeway_trace_exports_failed_total") > 1).await;
            let printed = node.process.stderr();
            assert_eq!(printed.matches("traces cannot be exported").count(), 1, "{printed}");
        }
        let metrics = node.metrics().await;
        assert_eq!(metrics.sample("causeway_trace_spans_exported_total"), 0);
        assert_eq!(metrics.sample("causeway_trace_spans_dropped_total{reason=\"queue\"}"), 0);
        let start = std::time::Instant::now();
        node.stop().await;
        assert!(start.elapsed() < Duration::from_secs(30), "{name}: {:?}", start.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_be_used_are_named_before_the_start() {
    let dir = TempDir::new().expect("a folder");
    let table: [(&'static str, &str, &str); 5] = [
        ("CAUSEWAY_TELEMETRY_OTLP_ENDPOINT", "127.0.0.1:4317", "telemetry.otlp_endpoint"),
        ("CAUSEWAY_TELEMETRY_OTLP_ENDPOINT", "http://user:secret@127.0.0.1:4318", "telemetry.otlp_headers"),
        ("CAUSEWAY_TELEMETRY_SAMPLE_RATIO", "1.5", "telemetry.sample_ratio"),
        ("CAUSEWAY_TELEMETRY_RESOURCE_ATTRIBUTES", "nonsense", "telemetry.resource_attributes"),
        ("CAUSEWAY_TELEMETRY_OTLP_HEADERS_FILE", "/missing/headers", "telemetry.otlp_headers_file"),
    ];
    for (variable, value, named) in table {
        let launch = Launch::new(dir.path()).set("CAUSEWAY_TELEMETRY_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        let error = launch.set(variable, value).run(&["config", "check"]).expect_err("is refused");
        assert!(error.contains(named) && !error.contains("secret"), "{variable}={value}: {error}");
    }
}
