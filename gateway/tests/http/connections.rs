//! Connections: limits, timeouts and graceful drain.

use crate::dag::{file, noise, raw};
use crate::site::{PATIENCE, Setup, Site, header, until};
use content::Block;
use gateway::listen::drain::Drain;
use gateway::listen::server::{ConnectionLimits, serve};
use gateway::metrics::HttpMetrics;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

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
async fn idle_connections_are_closed() {
    let mut setup = Setup::new(&[]);
    setup.http.header_timeout_seconds = 1;
    let site = setup.start().await;
    // No bytes, a partial request, a partial HTTP/2 preface, and a connection after its first request.
    let idle = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    for sent in ["", "GET / HT", "PRI * HT", idle] {
        let (answer, _) = site.exchange(sent).await;
        let answer = String::from_utf8(answer).expect("text");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408") || sent == idle, "{sent:?}: {answer}");
    }
    site.until_metric("causeway_http_connections", 0).await;
}

#[tokio::test]
async fn the_head_timeout_does_not_run_while_a_response_is_sent() {
    let leaves: Vec<Block> = (0..8).map(|seed| raw(noise(seed, 1 << 20))).collect();
    let large = file(&leaves);
    let mut setup = Setup::new(&leaves.iter().chain([&large]).collect::<Vec<_>>());
    setup.http.header_timeout_seconds = 1;
    let site = setup.start().await;
    let mut stream = site.connect(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", large.cid())).await;
    let (mut read, mut bytes) = (0, vec![0; 4 << 20]);
    // Longer than the timeout of a head, while the response is being sent.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(1200)).await;
        read += stream.read(&mut bytes).await.expect("goes on");
    }
    let mut rest = Vec::new();
    stream
        .read_to_end(&mut rest)
        .await
        .expect("an orderly end: the connection is closed after the client has read all");
    assert!(read + rest.len() > 8 << 20, "the whole file arrived: {}", read + rest.len());
}

#[tokio::test]
async fn clients_that_do_not_read_are_disconnected() {
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
async fn a_head_that_is_too_long_is_rejected() {
    let site = Setup::new(&[]).start().await;
    let (answer, _) = site.exchange(&format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(100_000))).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

/// A file that a slow client reads for a long time.
fn long_file() -> (Block, Vec<Block>) {
    let leaves: Vec<Block> = (0..16).map(|seed| raw(noise(seed, 1 << 20))).collect();
    (file(&leaves), leaves)
}

/// A connection whose client reads the beginning of a long response.
async fn reads_slowly(site: &Site, large: &Block) -> TcpStream {
    let mut reader = site.connect(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", large.cid())).await;
    reader.read_exact(&mut [0; 1000]).await.expect("a head");
    reader
}

#[tokio::test]
async fn requests_over_the_limit_wait_and_health_checks_do_not() {
    let (large, leaves) = long_file();
    let text = raw("hello");
    let mut setup = Setup::new(&leaves.iter().chain([&large, &text]).collect::<Vec<_>>());
    setup.http.connections_max = 1;
    let site = setup.start().await;
    let mut busy = reads_slowly(&site, &large).await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(site.get(path).await.status(), 200, "{path}");
    }
    let refused = site.get(&format!("/ipfs/{}", text.cid())).await;
    assert_eq!((refused.status().as_u16(), header(&refused, "retry-after")), (503, "5"));
    for attempt in 1..=5 {
        let mut next = site.connect(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", text.cid())).await;
        site.until_metric("causeway_http_requests_in_flight", 2).await;
        drop(busy);
        let mut answer = [0; 15];
        tokio::time::timeout(PATIENCE, next.read_exact(&mut answer)).await.expect("in time").expect("an answer");
        if answer == *b"HTTP/1.1 200 OK" {
            return;
        }
        // The server may have seen the end of the other connection too late, if this machine is busy.
        assert!(answer.starts_with(b"HTTP/1.1 503") && attempt < 5, "{}", String::from_utf8_lossy(&answer));
        drop(next);
        site.until_metric("causeway_http_connections", 0).await;
        busy = reads_slowly(&site, &large).await;
    }
}

/// Connects from another address of this machine.
pub async fn connect_from(address: [u8; 4], site: &Site, request: &str) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind((address, 0).into()).expect("an address of this machine");
    let mut stream = socket.connect(site.address).await.expect("connects");
    stream.write_all(request.as_bytes()).await.expect("sends");
    stream
}

/// The response to a complete request from another address, after which the connection is closed.
async fn ask_from(address: [u8; 4], site: &Site, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut stream = connect_from(address, site, &request).await;
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("in time");
    read.map(|_| answer).unwrap_or_default()
}

#[tokio::test]
async fn one_address_cannot_exhaust_the_connections_of_others() {
    let (large, leaves) = long_file();
    let text = raw("hello");
    let mut setup = Setup::new(&leaves.iter().chain([&large, &text]).collect::<Vec<_>>());
    (setup.http.connections_max, setup.http.client_connections_max) = (40, 30);
    let site = setup.start().await;
    let path = format!("/ipfs/{}", text.cid());
    let slow = format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", large.cid());
    // Incomplete heads, and responses that are not read.
    for sent in ["GET / HTT", &slow] {
        let mut flood = Vec::new();
        for _ in 0..100 {
            flood.push(connect_from([127, 0, 0, 2], &site, sent).await);
        }
        for address in [[127, 0, 0, 3], [127, 0, 0, 4]] {
            let answer = ask_from(address, &site, &path).await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{sent:?}: {answer}");
        }
        let health = ask_from([127, 0, 0, 2], &site, "/healthz").await;
        assert!(health.starts_with("HTTP/1.1 200"), "{sent:?}: {health}");
        until(|| site.metric("causeway_http_connections") <= 30 + 8, "the others to end").await;
        drop(flood);
        site.until_metric("causeway_http_connections", 0).await;
    }
}

#[tokio::test]
async fn the_longest_idle_connection_is_evicted() {
    let text = raw("hello");
    let mut setup = Setup::new(&[&text]);
    setup.http.connections_max = 3;
    let site = setup.start().await;
    let path = format!("/ipfs/{}", text.cid());
    let mut idle = Vec::new();
    for last in 2..5 {
        idle.push(connect_from([127, 0, 0, last], &site, "GET / HTT").await);
        site.until_metric("causeway_http_connections", u64::from(last) - 1).await;
    }
    let answer = ask_from([127, 0, 0, 9], &site, &path).await;
    assert!(answer.ends_with("hello"), "{answer}");
    let ended = tokio::time::timeout(PATIENCE, idle[0].read(&mut [0; 1])).await.expect("in time");
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    // The other connections stay open.
    for stream in &mut idle[1..] {
        stream.write_all(b"P/1.1\r\nHost: x\r\n\r\n").await.expect("sends");
        let mut answer = [0; 8];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.expect("in time").expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1");
    }
}

#[tokio::test]
async fn a_client_behind_a_proxy_has_a_request_limit_and_the_proxy_has_none() {
    let (large, leaves) = long_file();
    let text = raw("hello");
    let mut setup = Setup::new(&leaves.iter().chain([&large, &text]).collect::<Vec<_>>());
    setup.http.client_connections_max = 2;
    setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
    setup.http.trusted_proxies = vec!["127.0.0.1/32".parse().expect("an address")];
    let site = setup.start().await;
    let slow =
        |client: &str| format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\n\r\n", large.cid());
    let mut busy = Vec::new();
    for client in ["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        let mut stream = site.connect(&slow(client)).await;
        let mut head = [0; 15];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("in time").expect("an answer");
        assert_eq!(&head, b"HTTP/1.1 200 OK", "{client}");
        busy.push(stream);
    }
    let path = format!("/ipfs/{}", large.cid());
    let refused = site.send("GET", &path, &[("x-forwarded-for", "192.0.2.1")]).await;
    assert_eq!((refused.status().as_u16(), header(&refused, "retry-after")), (429, "5"));
    let other = site.send("GET", &path, &[("x-forwarded-for", "192.0.2.4")]).await;
    assert_eq!(other.status(), 200);
    let short = format!("/ipfs/{}", text.cid());
    let hit = site.send("GET", &short, &[("x-forwarded-for", "192.0.2.2")]).await;
    assert_eq!(hit.status(), 200, "requests that are answered at once do not count");
}

#[tokio::test]
async fn clients_that_read_below_the_minimum_rate_are_disconnected() {
    let leaves: Vec<Block> = (0..8).map(|seed| raw(noise(seed, 1 << 20))).collect();
    let large = file(&leaves.iter().cycle().take(64).cloned().collect::<Vec<_>>());
    let mut setup = Setup::new(&leaves.iter().chain([&large]).collect::<Vec<_>>());
    (setup.http.rate_bytes_min, setup.http.rate_window_seconds) = (4 << 20, 1);
    let site = setup.start().await;
    let mut slow = site.connect_slowly(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", large.cid())).await;
    let begun = std::time::Instant::now();
    // A quarter of the minimum rate.
    let mut piece = vec![0; 100 << 10];
    while slow.read_exact(&mut piece).await.is_ok() {
        assert!(begun.elapsed() < PATIENCE, "it is never disconnected");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    site.until_metric("causeway_http_responses_aborted_total{reason=\"client\"}", 1).await;
}

#[tokio::test]
async fn a_request_has_one_host_and_its_lines_end_with_cr_lf() {
    let text = raw("hello");
    let site = Setup::new(&[&text]).start().await;
    let path = format!("/ipfs/{}", text.cid());
    let table = [
        (format!("GET {path} HTTP/1.1\r\nHost: x\r\n"), "200"),
        (format!("GET {path} HTTP/1.1\r\nHost:\r\n"), "200"),
        (format!("GET {path} HTTP/1.1\r\nHost: [::1]:8080\r\n"), "200"),
        (format!("GET {path} HTTP/1.0\r\n"), "200"),
        (format!("GET {path} HTTP/1.1\r\n"), "400"),
        (format!("GET {path} HTTP/1.1\r\nHost: x\r\nHost: x\r\n"), "400"),
        (format!("GET {path} HTTP/1.1\r\nHost: x\r\nhost: y\r\n"), "400"),
        (format!("GET {path} HTTP/1.0\r\nHost: x\r\nHost: y\r\n"), "400"),
        (format!("GET {path} HTTP/1.1\r\nHost: a b\r\n"), "400"),
        (format!("GET {path} HTTP/1.1\r\nHost: user@x\r\n"), "400"),
        (format!("GET http://x{path} HTTP/1.1\r\n"), "400"),
        (format!("GET {path} HTTP/1.1\nHost: x\r\n"), "400"),
        (format!("GET {path} HTTP/1.1\r\nHost: x\n"), "400"),
        (format!("GET {path} HTTP/1.1\r\nHost: x\r\nX: a\nY: b\r\n"), "400"),
    ];
    for (head, status) in table {
        let (answer, _) = site.exchange(&format!("{head}Connection: close\r\n\r\n")).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.get(9..12) == Some(status), "{head:?}: {answer}");
    }
    // The same after a body, and at the end of a head.
    let smuggled =
        "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na\nbGET /healthz HTTP/1.1\r\nHost: x\r\n\n";
    let (answer, _) = site.exchange(smuggled).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("HTTP/1.1 400"), "{answer}");
}

#[tokio::test]
async fn a_drain_finishes_open_requests_and_accepts_no_new_connections() {
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
async fn a_drain_has_a_timeout() {
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
async fn a_panic_ends_one_connection_and_is_counted() {
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = Arc::new(HttpMetrics::register(&mut registry));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    let limits = ConnectionLimits::of(&config::Http::default());
    let handler = |request: http::Request<gateway::listen::server::RequestBody>, _| async move {
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
    assert_eq!(metrics.plain.panics.get(), 1);
    until(|| metrics.plain.connections.get() == 0, "every connection to end").await;
}
