//! Requests over HTTP/3: how it is announced, broken responses, clients that do not read, drains.

use crate::certificate::{Encrypted, Files};
use crate::dag::{file, noise, raw};
use crate::quic::{Http3, get, read, reset_code};
use crate::site::{FailingNetwork, PATIENCE, Setup, Site, until};
use crate::upstream::FakeNetwork;
use bytes::Bytes;
use content::{Block, Cid, SourceError, Stall};
use futures::StreamExt as _;
use gateway::listen::drain::Drain;
use gateway::listen::http3;
use gateway::listen::server::ConnectionLimits;
use gateway::metrics::{CertificateMetrics, HttpMetrics};
use h3::error::Code;
use http::{Request, StatusCode};
use http_body_util::Full;
use prometheus_client::registry::Registry;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn stalled(cid: Cid) -> SourceError {
    SourceError::Stalled { cid, stall: Stall::default() }
}

/// A site with TLS and HTTP/3, and the setup changed by `set`.
async fn site(blocks: &[&Block], set: impl FnOnce(&mut Setup)) -> Site {
    let mut setup = Setup { tls: true, ..Setup::new(blocks) };
    set(&mut setup);
    setup.start().await
}

#[tokio::test]
async fn http3_is_announced_over_tls_alone() {
    let site = site(&[], |_| {}).await;
    let expected = format!("h3=\":{}\"; ma=86400", site.encrypted().address.port());
    for builder in [site.encrypted().client(), site.encrypted().client().http1_only()] {
        let url = site.encrypted().url("/healthz");
        let response = builder.build().expect("a client").get(url).send().await.expect("answers");
        assert_eq!(crate::site::header(&response, "alt-svc"), expected, "{:?}", response.version());
    }
    assert!(!site.get("/healthz").await.headers().contains_key("alt-svc"));
    // Clients of a trusted proxy would bypass it.
    let proxied = self::site(&[], |setup| setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")]);
    let proxied = proxied.await;
    let client = proxied.encrypted().client().build().expect("a client");
    let response = client.get(proxied.encrypted().url("/healthz")).send().await.expect("answers");
    assert!(!response.headers().contains_key("alt-svc"));
}

#[tokio::test]
async fn fields_of_http1_connections_are_malformed() {
    let site = site(&[], |_| {}).await;
    let mut connection = Http3::connect(&site).await;
    let table = [("connection", "close"), ("transfer-encoding", "chunked"), ("keep-alive", "1"), ("te", "gzip")];
    for (name, value) in table {
        let request = Request::get("https://localhost/healthz").header(name, value).body(()).expect("a request");
        let error = connection.send(request).await.err().expect(name);
        assert_eq!(reset_code(&error), Some(Code::H3_MESSAGE_ERROR), "{name}: {error}");
    }
    let request = Request::get("https://localhost/healthz").header("te", "trailers").body(()).expect("a request");
    assert_eq!(connection.send(request).await.expect("answers").0.status(), StatusCode::OK);
}

#[tokio::test]
async fn subdomains_have_the_scheme_and_the_authority_of_the_request() {
    let text = raw("hello");
    let site = site(&[&text], |_| {}).await;
    let cid = text.cid();
    let mut connection = Http3::connect(&site).await;
    let ask = |target: &str| Request::get(target).body(()).expect("a request");
    let (redirect, _) = connection.send(ask(&format!("https://localhost:8443/ipfs/{cid}"))).await.expect("answers");
    let location = redirect.headers()["location"].to_str().expect("text");
    assert_eq!((redirect.status().as_u16(), location), (301, &*format!("https://{cid}.ipfs.localhost:8443/")));
    let (content, stream) = connection.send(ask(location)).await.expect("answers");
    assert_eq!((content.status().as_u16(), read(stream).await.expect("a body")), (200, b"hello".to_vec()));
    // The scheme that a client claims to have used is that of a trusted proxy, or ignored.
    let forged = Request::get(format!("https://localhost:8443/ipfs/{cid}")).header("x-forwarded-proto", "http");
    let (redirect, _) = connection.send(forged.body(()).expect("a request")).await.expect("answers");
    assert!(redirect.headers()["location"].to_str().expect("text").starts_with("https://"));
    let tunnel = Request::connect("127.0.0.1:80").body(()).expect("a request");
    match connection.send(tunnel).await {
        Ok((head, _)) => assert_eq!(head.status(), StatusCode::METHOD_NOT_ALLOWED),
        // A stream that is malformed for `h3`.
        Err(error) => assert_eq!(reset_code(&error), Some(Code::H3_MESSAGE_ERROR), "{error}"),
    }
    assert_eq!(connection.body("/healthz").await.expect("goes on"), b"ok\n");
}

#[tokio::test]
async fn a_trusted_proxy_tells_the_scheme_and_the_client() {
    let text = raw("hello");
    let trusts = |setup: &mut Setup| {
        setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
        setup.limits.client_requests_max = 1;
    };
    let absent = raw("far away");
    let network = FakeNetwork::new([&absent], [&absent]);
    let upstream = Arc::clone(&network) as Arc<_>;
    let site = site(&[&text], |setup| {
        trusts(setup);
        setup.upstream = Some(upstream);
    })
    .await;
    let mut connection = Http3::connect(&site).await;
    let request =
        Request::get(format!("https://localhost:8443/ipfs/{}", text.cid())).header("x-forwarded-proto", "http");
    let (redirect, _) = connection.send(request.body(()).expect("a request")).await.expect("answers");
    assert!(redirect.headers()["location"].to_str().expect("text").starts_with("http://"));
    // Each client of the proxy has its own limit.
    let ask = |client: &str| {
        let request =
            Request::get(format!("https://127.0.0.1/ipfs/{}", absent.cid())).header("x-forwarded-for", client);
        request.body(()).expect("a request")
    };
    let mut waiting = connection.begin(ask("192.0.2.1")).await.expect("sends");
    until(|| network.waiting() == 1, "the request to wait").await;
    let (refused, _) = connection.send(ask("192.0.2.1")).await.expect("answers");
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let mut other = connection.begin(ask("192.0.2.2")).await.expect("sends");
    site.until_metric("causeway_http_requests_in_flight", 2).await;
    network.gate.add_permits(2);
    for stream in [&mut waiting, &mut other] {
        assert_eq!(stream.recv_response().await.expect("answers").status(), StatusCode::OK);
    }
}

/// Neither with a length nor without one does a broken response look complete.
#[tokio::test]
async fn a_broken_response_is_a_stream_reset() {
    let leaves = [raw(noise(1, 200_000)), raw(noise(2, 200_000))];
    let large = file(&leaves);
    for query in ["", "?format=car"] {
        let (upstream, gate) = FailingNetwork::gated(stalled);
        let site = site(&[&large, &leaves[0]], |setup| setup.upstream = Some(upstream)).await;
        let mut connection = Http3::connect(&site).await;
        let (head, stream) = connection.get(&format!("/ipfs/{}{query}", large.cid())).await.expect("a head");
        assert_eq!((head.status(), head.headers().contains_key("content-length")), (StatusCode::OK, query.is_empty()));
        let reading = tokio::spawn(read(stream));
        site.until_metric("causeway_http_requests_in_flight", 1).await;
        gate.add_permits(1);
        let error = reading.await.expect("no panic").expect_err("the body is broken, not over");
        assert_eq!(reset_code(&error), Some(Code::H3_INTERNAL_ERROR), "{error}");
        // Other requests of the connection are not affected.
        assert_eq!(connection.body("/healthz").await.expect("goes on"), b"ok\n");
        site.until_metric("causeway_http_responses_aborted_total{reason=\"stalled\"}", 1).await;
        site.until_metric("causeway_http_connections", 1).await;
        site.until_metric("causeway_http_quic_connections", 1).await;
    }
}

#[tokio::test]
async fn a_cancelled_request_ends_and_so_do_those_of_a_client_that_leaves() {
    let absent = raw("far away");
    let network = FakeNetwork::new([&absent], [&absent]);
    let upstream = Arc::clone(&network) as Arc<_>;
    let site = site(&[], |setup| setup.upstream = Some(upstream)).await;
    let mut connection = Http3::connect(&site).await;
    let stream = connection.begin(get(&format!("/ipfs/{}", absent.cid()))).await.expect("sends");
    until(|| network.waiting() == 1, "the request to wait").await;
    drop(stream);
    site.until_metric("causeway_http_requests_cancelled_total", 1).await;
    until(|| network.waiting() == 0, "the fetch to end").await;
    assert_eq!(connection.body("/healthz").await.expect("goes on"), b"ok\n");
    let _stream = connection.begin(get(&format!("/ipfs/{}", absent.cid()))).await.expect("sends");
    until(|| network.waiting() == 1, "the request to wait").await;
    connection.quic.close(0_u32.into(), b"");
    site.until_metric("causeway_http_requests_cancelled_total", 2).await;
    until(|| network.waiting() == 0, "the fetch to end").await;
    site.until_metric("causeway_http_quic_connections", 0).await;
    assert_eq!(site.metric("causeway_http_panics_total"), 0);
}

/// A file of so many MiB.
fn long_file(mebibytes: u8) -> (Block, Vec<Block>) {
    let leaves: Vec<Block> = (0..mebibytes).map(|seed| raw(noise(seed, 1 << 20))).collect();
    (file(&leaves), leaves)
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_reset_and_others_go_on() {
    let (large, leaves) = long_file(4);
    let blocks: Vec<_> = leaves.iter().chain([&large]).collect();
    let site = site(&blocks, |setup| setup.http.send_timeout_seconds = 1).await;
    let memory = Arc::clone(site.gateway.limits().memory.all());
    let all = memory.left();
    // With a window that the first bytes fill, and with one that the head fills.
    for window in [65_535_u32, 1000] {
        let set = |transport: &mut quinn::TransportConfig| _ = transport.stream_receive_window(window.into());
        let mut connection = Http3::connect_with(site.encrypted(), set).await;
        let metric = "causeway_http_responses_aborted_total{reason=\"client\"}";
        let aborted = site.metric(metric);
        let (_, unread) = connection.get(&format!("/ipfs/{}", large.cid())).await.expect("a head");
        site.until_metric(metric, aborted + 1).await;
        site.until_metric("causeway_http_requests_in_flight", 0).await;
        let error = read(unread).await.expect_err("no orderly end");
        assert_eq!(reset_code(&error), Some(Code::H3_EXCESSIVE_LOAD), "{error}");
        assert_eq!(connection.body("/healthz").await.expect("goes on"), b"ok\n");
        until(|| memory.left() == all, "the memory to be released").await;
    }
}

#[tokio::test]
async fn a_stream_below_the_minimum_rate_is_reset() {
    let (large, leaves) = long_file(4);
    let blocks: Vec<_> = leaves.iter().chain([&large]).collect();
    let site = site(&blocks, |setup| {
        setup.http.rate_bytes_min = 1 << 30;
        setup.http.rate_window_seconds = 1;
    })
    .await;
    let set = |transport: &mut quinn::TransportConfig| _ = transport.stream_receive_window(8192_u32.into());
    let mut connection = Http3::connect_with(site.encrypted(), set).await;
    let (_, mut stream) = connection.get(&format!("/ipfs/{}", large.cid())).await.expect("a head");
    let error = loop {
        match stream.recv_data().await {
            Ok(data) => {
                assert!(data.is_some(), "no orderly end");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(reset_code(&error), Some(Code::H3_EXCESSIVE_LOAD), "{error}");
    site.until_metric("causeway_http_responses_aborted_total{reason=\"client\"}", 1).await;
}

/// What is sent and not acknowledged is of the same memory as what is read ahead, and bounded by it.
#[tokio::test]
async fn sent_bytes_are_of_the_clients_memory() {
    const SHARE: usize = 4 << 20;
    let (large, leaves) = long_file(16);
    let blocks: Vec<_> = leaves.iter().chain([&large]).collect();
    let site = site(&blocks, |setup| setup.limits.window_bytes_max = SHARE).await;
    let shared = Arc::clone(site.gateway.limits().memory.all());
    let all = shared.left();
    let mut connection = Http3::connect(&site).await;
    let path = format!("/ipfs/{}", large.cid());
    let expected: Vec<u8> = leaves.iter().flat_map(|leaf| leaf.data().to_vec()).collect();
    assert!(connection.body(&path).await.expect("a body") == expected);
    until(|| shared.left() == all, "the memory to be released").await;
    // Streams that are not read: what they read ahead, and one send window.
    let set = |transport: &mut quinn::TransportConfig| {
        transport.stream_receive_window((1_u32 << 16).into()).receive_window((1_u32 << 30).into());
    };
    let mut slow = Http3::connect_with(site.encrypted(), set).await;
    let mut unread = Vec::new();
    for _ in 0..100 {
        unread.push(slow.get(&path).await.expect("a head"));
    }
    let used = all - shared.left();
    assert!(used > 0 && used <= 2 * SHARE, "{used}");
    assert!(connection.body(&path).await.expect("another client is served") == expected);
    drop(unread);
    slow.quic.close(0_u32.into(), b"");
    until(|| shared.left() == all, "the memory to be released").await;
}

#[tokio::test]
async fn one_client_has_a_limit_of_requests_over_all_its_streams() {
    let absent: Vec<Block> = (0..4).map(|number| raw(format!("far away {number}"))).collect();
    let network = FakeNetwork::new(&absent, &absent);
    let upstream = Arc::clone(&network) as Arc<_>;
    let site = site(&[], |setup| {
        setup.upstream = Some(upstream);
        setup.limits.client_requests_max = 3;
    })
    .await;
    let path = |number: usize| format!("/ipfs/{}", absent[number].cid());
    // On connections of their own, one of them over HTTP/2.
    let http2 = site.encrypted().client().build().expect("a client").get(site.encrypted().url(&path(0))).send();
    let http2 = tokio::spawn(http2);
    let (mut one, mut other) = (Http3::connect(&site).await, Http3::connect(&site).await);
    let mut waiting =
        [one.begin(get(&path(1))).await.expect("sends"), other.begin(get(&path(2))).await.expect("sends")];
    until(|| network.waiting() == 3, "the requests to wait").await;
    let (refused, _) = one.get(&path(3)).await.expect("answers");
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    // Health checks need no permit.
    assert_eq!(one.body("/healthz").await.expect("goes on"), b"ok\n");
    network.gate.add_permits(3);
    for stream in &mut waiting {
        assert_eq!(stream.recv_response().await.expect("answers").status(), StatusCode::OK);
    }
    assert_eq!(http2.await.expect("no panic").expect("answers").status(), StatusCode::OK);
}

/// Connections over QUIC and TCP are counted together.
#[tokio::test]
async fn a_client_has_a_limit_of_connections() {
    let site = site(&[], |setup| setup.http.client_connections_max = 2).await;
    let mut connections = Vec::new();
    for _ in 0..3 {
        // Others are idle when their client has acknowledged what they have received.
        let mut connection = Http3::connect_when_accepted(&site).await;
        assert_eq!(connection.body("/healthz").await.expect("answers"), b"ok\n");
        connections.push(connection);
    }
    // The third one has replaced one of them, and that over TCP the next.
    assert_eq!(closed_one(&mut connections).await.ended().await, Some(Code::H3_NO_ERROR.value()));
    let http2 = site.encrypted().client().build().expect("a client");
    let response = http2.get(site.encrypted().url("/healthz")).send().await.expect("answers");
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(closed_one(&mut connections).await.ended().await, Some(Code::H3_NO_ERROR.value()));
    assert_eq!(connections.remove(0).body("/healthz").await.expect("stays"), b"ok\n");
}

/// Takes the connection that is closed, as soon as there is one.
async fn closed_one(connections: &mut Vec<Http3>) -> Http3 {
    until(|| connections.iter().any(Http3::is_closed), "one to be closed").await;
    let closed = connections.iter().position(Http3::is_closed).expect("one");
    connections.remove(closed)
}

#[tokio::test]
async fn a_drain_finishes_open_requests_and_closes_idle_connections() {
    let leaves = [raw(noise(1, 200_000)), raw(noise(2, 200_000))];
    let large = file(&leaves);
    let network = FakeNetwork::new(&leaves, [&leaves[1]]);
    let upstream = Arc::clone(&network) as Arc<_>;
    let site = site(&[&large], |setup| setup.upstream = Some(upstream)).await;
    let (mut idle, mut busy) = (Http3::connect(&site).await, Http3::connect(&site).await);
    assert_eq!(idle.body("/healthz").await.expect("answers"), b"ok\n");
    let (_, stream) = busy.get(&format!("/ipfs/{}", large.cid())).await.expect("a head");
    let reading = tokio::spawn(read(stream));
    until(|| network.waiting() == 1, "the rest to be fetched").await;
    let drain = site.drain.clone();
    let drained = tokio::spawn(async move { drain.finish(PATIENCE).await });
    assert_eq!(idle.ended().await, Some(Code::H3_NO_ERROR.value()));
    // The client is told to send no more requests here.
    let begun = Instant::now();
    while busy.get("/healthz").await.is_ok() {
        assert!(begun.elapsed() < PATIENCE, "the client is not told");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // New connections are refused.
    let encrypted = site.encrypted();
    crate::quic::connect_quic(encrypted, encrypted.address, |_| {}).await.expect_err("none is accepted");
    network.gate.add_permits(1);
    assert_eq!(reading.await.expect("no panic").expect("a whole body").len(), 400_000);
    assert_eq!(busy.ended().await, Some(Code::H3_NO_ERROR.value()));
    assert!(drained.await.expect("no panic"), "nothing is left open");
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let site = site(&[], |setup| setup.http.header_timeout_seconds = 1).await;
    // Before the first request, and after it.
    let fresh = Http3::connect(&site).await;
    let mut answered = Http3::connect(&site).await;
    assert_eq!(answered.body("/healthz").await.expect("answers"), b"ok\n");
    let no_error = Some(Code::H3_NO_ERROR.value());
    assert_eq!((fresh.ended().await, answered.ended().await), (no_error, no_error));
    site.until_metric("causeway_http_connections", 0).await;
}

#[tokio::test]
async fn responses_stream_at_the_same_time() {
    let (large, leaves) = long_file(8);
    let blocks: Vec<_> = leaves.iter().chain([&large]).collect();
    let site = site(&blocks, |_| {}).await;
    let connection = Http3::connect(&site).await;
    let reads = (0..8).map(|_| {
        let mut requests = connection.requests.clone();
        let request = get(&format!("/ipfs/{}", large.cid()));
        async move {
            let mut stream = requests.send_request(request).await.expect("sends");
            // A failure shows in the response.
            _ = stream.finish().await;
            stream.recv_response().await.expect("a head");
            read(stream).await.expect("a body")
        }
    });
    let bodies: Vec<Vec<u8>> = futures::stream::iter(reads).buffer_unordered(8).collect().await;
    let expected: Vec<u8> = leaves.iter().flat_map(|leaf| leaf.data().to_vec()).collect();
    assert!(bodies.len() == 8 && bodies.iter().all(|body| *body == expected));
}

#[tokio::test]
async fn a_renewed_certificate_is_used_by_the_next_connection() {
    let (files, first) = Files::new();
    let metrics = CertificateMetrics::default();
    let (tcp, limits) = files.watched_listener(&ConnectionLimits::of(&config::Http::default()), &metrics).await;
    drop(tcp);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.set_nonblocking(true).expect("is set");
    let address = socket.local_addr().expect("is bound");
    let handler = |_, _| async { http::Response::new(Full::new(Bytes::from_static(b"fine"))) };
    let http = Arc::new(HttpMetrics::register(&mut Registry::default()));
    tokio::spawn(http3::serve(socket, limits, http, Drain::default(), handler));
    let with = |certificate: &rustls::pki_types::CertificateDer<'static>| Encrypted {
        address,
        certificate: certificate.clone(),
    };
    let mut old = Http3::connect_with(&with(&first), |_| {}).await;
    assert_eq!(old.body("/").await.expect("answers"), b"fine");
    let second = files.renew();
    let begun = Instant::now();
    let endpoint = loop {
        match crate::quic::connect_quic(&with(&second), address, |_| {}).await {
            Ok(connected) => break connected,
            Err(_) => assert!(begun.elapsed() < PATIENCE, "the new certificate is not used"),
        }
    };
    crate::quic::connect_quic(&with(&first), address, |_| {}).await.expect_err("it is another's now");
    // Open connections go on.
    assert_eq!(old.body("/").await.expect("answers"), b"fine");
    drop(endpoint);
}
