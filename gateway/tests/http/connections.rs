//! Connections: their limits, and their end.

use crate::dag::{file, noise, raw};
use crate::site::{PATIENCE, Setup, until};
use content::Block;
use gateway::metrics::HttpMetrics;
use gateway::server::{ConnectionLimits, Drain, serve};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test]
async fn requests_share_a_connection() {
    let text = raw("hello");
    let site = Setup::new(&[&text]).start().await;
    let one = format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", text.cid());
    let last = format!("HEAD /ipfs/{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", text.cid());
    let (answer, end) = site.exchange(&format!("{one}{one}{last}")).await;
    end.expect("an orderly end");
    let answer = String::from_utf8(answer).expect("text");
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 3, "{answer}");
    assert_eq!(answer.matches("\r\n\r\nhello").count(), 2, "{answer}");
    assert_eq!(site.metric("causeway_http_requests_total{method=\"GET\",code=\"2xx\"}"), 2);
}

#[tokio::test]
async fn whoever_sends_no_request_is_let_go() {
    let mut setup = Setup::new(&[]);
    setup.http.header_timeout_seconds = 1;
    let site = setup.start().await;
    // Nothing, half a request, half an HTTP/2 preface, and a connection that was used once.
    let idle = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    for sent in ["", "GET / HT", "PRI * HT", idle] {
        let (answer, _) = site.exchange(sent).await;
        let answer = String::from_utf8(answer).expect("text");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408") || sent == idle, "{sent:?}: {answer}");
    }
    site.until_metric("causeway_http_connections", 0).await;
}

#[tokio::test]
async fn whoever_reads_slowly_owes_no_request_meanwhile() {
    let leaves: Vec<Block> = (0..8).map(|seed| raw(noise(seed, 1 << 20))).collect();
    let large = file(&leaves);
    let mut setup = Setup::new(&leaves.iter().chain([&large]).collect::<Vec<_>>());
    setup.http.header_timeout_seconds = 1;
    let site = setup.start().await;
    let mut stream = site.connect(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", large.cid())).await;
    let (mut read, mut bytes) = (0, vec![0; 4 << 20]);
    // Longer than a head may take, with all of the rest on its way.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(1200)).await;
        read += stream.read(&mut bytes).await.expect("goes on");
    }
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.expect("an orderly end: the client is let go after it has read all");
    assert!(read + rest.len() > 8 << 20, "the whole file arrived: {}", read + rest.len());
}

#[tokio::test]
async fn whoever_does_not_read_is_let_go() {
    let leaves: Vec<Block> = (0..32).map(|seed| raw(noise(seed, 1 << 20))).collect();
    let large = file(&leaves);
    let mut setup = Setup::new(&leaves.iter().chain([&large]).collect::<Vec<_>>());
    setup.http.send_timeout_seconds = 1;
    let site = setup.start().await;
    let _unread = site.connect(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", large.cid())).await;
    site.until_metric("causeway_http_responses_aborted_total{reason=\"client\"}", 1).await;
    site.until_metric("causeway_http_connections", 0).await;
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let site = Setup::new(&[]).start().await;
    let (answer, _) = site.exchange(&format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(100_000))).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_their_turn() {
    let mut setup = Setup::new(&[]);
    setup.http.connections_max = 1;
    let site = setup.start().await;
    let mut first = site.connect("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut byte = [0];
    first.read_exact(&mut byte).await.expect("an answer");
    let mut second = site.connect("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!(site.metric("causeway_http_requests_total{method=\"GET\",code=\"2xx\"}"), 1);
    drop(first);
    tokio::time::timeout(PATIENCE, second.read_exact(&mut byte)).await.expect("in time").expect("an answer");
}

#[tokio::test]
async fn a_drain_finishes_what_is_open_and_takes_nothing_new() {
    let leaves: Vec<Block> = (0..16).map(|seed| raw(noise(seed, 1 << 20))).collect();
    let large = file(&leaves);
    let site = Setup::new(&leaves.iter().chain([&large]).collect::<Vec<_>>()).start().await;
    let mut reader = site.connect(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", large.cid())).await;
    let mut first = vec![0; 1000];
    reader.read_exact(&mut first).await.expect("a head");
    let idle = site.connect("").await;
    until(|| site.metric("causeway_http_connections") == 2, "both connections").await;

    let drain = site.drain.clone();
    let draining = tokio::spawn(async move { drain.finish(PATIENCE).await });
    site.until_metric("causeway_http_connections", 1).await;
    drop(idle);
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).await.expect("an orderly end");
    assert!(rest.len() + first.len() > 16 << 20, "the whole file arrived: {}", rest.len());
    assert!(draining.await.expect("no panic"), "nothing was left open");
    let refused = tokio::net::TcpStream::connect(site.address).await;
    assert!(refused.is_err(), "the listener is closed");
}

#[tokio::test]
async fn a_drain_does_not_wait_for_ever() {
    let leaves: Vec<Block> = (0..32).map(|seed| raw(noise(seed, 1 << 20))).collect();
    let large = file(&leaves);
    let site = Setup::new(&leaves.iter().chain([&large]).collect::<Vec<_>>()).start().await;
    let mut unread = site.connect(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", large.cid())).await;
    let mut first = vec![0; 1000];
    unread.read_exact(&mut first).await.expect("a head");
    assert!(!site.drain.finish(Duration::from_millis(50)).await);
    assert_eq!(site.drain.open(), 1);
    unread.shutdown().await.expect("closes");
}

#[tokio::test]
async fn a_defect_ends_one_connection_and_is_counted() {
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = Arc::new(HttpMetrics::register(&mut registry));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    let limits = ConnectionLimits::of(&config::Http::default());
    let handler = |request: http::Request<hyper::body::Incoming>, _| async move {
        assert_ne!(request.uri().path(), "/defect", "a defect of the test's own");
        http::Response::new(http_body_util::Full::new(bytes::Bytes::from_static(b"fine")))
    };
    tokio::spawn(serve(listener, limits, Arc::clone(&metrics), Drain::default(), handler));
    for (path, expected) in [("/", "fine"), ("/defect", ""), ("/", "fine")] {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sends");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an end");
        assert!(answer.ends_with(expected) && (path == "/" || answer.is_empty()), "{path}: {answer}");
    }
    assert_eq!(metrics.panics.get(), 1);
    until(|| metrics.connections.get() == 0, "every connection to end").await;
}
