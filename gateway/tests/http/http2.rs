//! Requests over TLS and HTTP/2: origins, broken responses, and clients that do not read.

use crate::dag::{file, noise, raw};
use crate::site::{FailingNetwork, PATIENCE, Setup, Site, until};
use crate::upstream::FakeNetwork;
use bytes::Bytes;
use content::{Block, Cid, SourceError, Stall};
use futures::StreamExt as _;
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use http::{Request, Response, StatusCode, Version};
use reqwest::Client;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

fn stalled(cid: Cid) -> SourceError {
    SourceError::Stalled { cid, stall: Stall::default() }
}

/// A connection, and the task that drives it to its end.
struct Connected {
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

async fn connect_with(site: &Site, set: impl FnOnce(&mut h2::client::Builder)) -> Connected {
    let mut builder = h2::client::Builder::new();
    set(&mut builder);
    let stream = site.encrypted().connect_http2().await;
    let (requests, connection) = builder.handshake(stream).await.expect("shakes hands");
    Connected { requests: requests.ready().await.expect("is ready"), connection: tokio::spawn(connection) }
}

async fn connect(site: &Site) -> Connected {
    connect_with(site, |_| {}).await
}

impl Connected {
    /// Sends a request, and waits for the head of its response.
    async fn get(&mut self, path: &str) -> Result<Response<RecvStream>, h2::Error> {
        let request = Request::get(format!("https://127.0.0.1{path}")).body(()).expect("a request");
        self.send(request).await
    }

    async fn send(&mut self, request: Request<()>) -> Result<Response<RecvStream>, h2::Error> {
        let ready = std::future::poll_fn(|cx| self.requests.poll_ready(cx)).await;
        ready.expect("the connection is open");
        let answer = self.requests.send_request(request, true).expect("sends").0;
        tokio::time::timeout(PATIENCE, answer).await.expect("an answer in time")
    }

    /// The whole body of a path.
    async fn body(&mut self, path: &str) -> Result<Vec<u8>, h2::Error> {
        read(self.get(path).await?.into_body()).await
    }

    /// Waits for the end of the connection; returns the reason that the server gave.
    async fn ended(self) -> Option<Reason> {
        // The client keeps its end open meanwhile.
        let Self { requests, connection } = self;
        let end = tokio::time::timeout(PATIENCE, connection).await.expect("an end in time").expect("no panic");
        drop(requests);
        end.err().and_then(|error| error.reason())
    }
}

async fn read(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len()).expect("was received");
        all.extend_from_slice(&data);
    }
    Ok(all)
}

/// A site with TLS, and the setup changed by `set`.
async fn site(blocks: &[&Block], set: impl FnOnce(&mut Setup)) -> Site {
    let mut setup = Setup { tls: true, ..Setup::new(blocks) };
    set(&mut setup);
    setup.start().await
}

/// Clients that speak HTTP/1.1 without and with TLS, and HTTP/2.
pub fn clients(site: &Site) -> [(Version, String, Client); 3] {
    let builder = || site.encrypted().client();
    [
        (Version::HTTP_11, site.url(""), builder()),
        (Version::HTTP_11, site.encrypted().url(""), builder().http1_only()),
        (Version::HTTP_2, site.encrypted().url(""), builder()),
    ]
    .map(|(version, base, client)| (version, base, client.build().expect("a client")))
}

#[tokio::test]
async fn subdomains_have_the_scheme_and_the_authority_of_the_request() {
    let text = raw("hello");
    let site = site(&[&text], |_| {}).await;
    let cid = text.cid();
    let mut connection = connect(&site).await;
    let ask = |target: &str, host: Option<&str>| {
        let builder = host.into_iter().fold(Request::get(target), |builder, host| builder.header("host", host));
        builder.body(()).expect("a request")
    };
    let redirect = connection.send(ask(&format!("https://localhost:8443/ipfs/{cid}"), None)).await.expect("answers");
    let location = redirect.headers()["location"].to_str().expect("text");
    assert_eq!((redirect.status().as_u16(), location), (301, &*format!("https://{cid}.ipfs.localhost:8443/")));
    let content = connection.send(ask(location, None)).await.expect("answers");
    assert_eq!((content.status().as_u16(), read(content.into_body()).await.expect("a body")), (200, b"hello".to_vec()));
    // The same connection carries requests to several origins, and each request has one.
    let table = [("localhost:8443", 301), ("elsewhere.example", 400)];
    for (host, status) in table {
        let request = ask(&format!("https://localhost:8443/ipfs/{cid}"), Some(host));
        assert_eq!(connection.send(request).await.expect("answers").status().as_u16(), status, "{host}");
    }
}

#[tokio::test]
async fn tunnels_are_refused() {
    let site = site(&[], |_| {}).await;
    let mut connection = connect(&site).await;
    let request = Request::connect("127.0.0.1:80").body(()).expect("a request");
    assert_eq!(connection.send(request).await.expect("answers").status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(connection.body("/healthz").await.expect("goes on"), b"ok\n");
}

#[tokio::test]
async fn a_broken_response_is_a_stream_reset() {
    let leaves = [raw(noise(1, 200_000)), raw(noise(2, 200_000))];
    let large = file(&leaves);
    let (upstream, gate) = FailingNetwork::gated(stalled);
    let site = site(&[&large, &leaves[0]], |setup| setup.upstream = Some(upstream)).await;
    let mut connection = connect(&site).await;
    let response = connection.get(&format!("/ipfs/{}", large.cid())).await.expect("a head");
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-length"], "400000");
    let reading = tokio::spawn(read(response.into_body()));
    site.until_metric("causeway_http_requests_in_flight", 1).await;
    gate.add_permits(1);
    let error = reading.await.expect("no panic").expect_err("the body is broken, not over");
    assert_eq!((error.is_reset(), error.reason()), (true, Some(Reason::INTERNAL_ERROR)));
    // Other requests of the connection are not affected.
    assert_eq!(connection.body("/healthz").await.expect("goes on"), b"ok\n");
    site.until_metric("causeway_http_responses_aborted_total{reason=\"stalled\"}", 1).await;
    site.until_metric("causeway_http_connections", 1).await;
}

#[tokio::test]
async fn a_cancelled_request_ends() {
    let absent = raw("far away");
    let network = FakeNetwork::new([&absent], [&absent]);
    let upstream = Arc::clone(&network) as Arc<_>;
    let site = site(&[], |setup| setup.upstream = Some(upstream)).await;
    let mut connection = connect(&site).await;
    let path = format!("/ipfs/{}", absent.cid());
    tokio::select! {
        answer = connection.get(&path) => panic!("{answer:?}"),
        () = until(|| network.waiting() == 1, "the request to wait") => {}
    }
    site.until_metric("causeway_http_requests_cancelled_total", 1).await;
    until(|| network.waiting() == 0, "the fetch to end").await;
    assert_eq!(connection.body("/healthz").await.expect("goes on"), b"ok\n");
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
    // With a window that the first bytes fill, and with one that admits none.
    for window in [65_535, 0] {
        let mut connection = connect_with(&site, |builder| _ = builder.initial_window_size(window)).await;
        let metric = "causeway_http_responses_aborted_total{reason=\"client\"}";
        let aborted = site.metric(metric);
        let mut unread = connection.get(&format!("/ipfs/{}", large.cid())).await.expect("a head").into_body();
        site.until_metric(metric, aborted + 1).await;
        site.until_metric("causeway_http_requests_in_flight", 0).await;
        let error = loop {
            match unread.data().await.expect("no orderly end") {
                Ok(data) => assert!(!data.is_empty() && window > 0),
                Err(error) => break error,
            }
        };
        assert_eq!((error.is_reset(), error.reason()), (true, Some(Reason::ENHANCE_YOUR_CALM)));
        let response = connection.get("/healthz").await.expect("goes on");
        assert_eq!(response.status(), StatusCode::OK);
    }
}

/// The last bytes of a response are held back by the client's window as well: the request has not ended before.
#[tokio::test]
async fn a_small_response_is_in_progress_until_the_client_admits_its_last_byte() {
    let text = raw("hello, world");
    let site = site(&[&text], |_| {}).await;
    let mut connection = connect_with(&site, |builder| _ = builder.initial_window_size(11)).await;
    let mut body = connection.get(&format!("/ipfs/{}", text.cid())).await.expect("a head").into_body();
    let first = body.data().await.expect("more").expect("data");
    assert_eq!((&first[..], site.metric("causeway_http_requests_in_flight")), (&b"hello, worl"[..], 1));
    body.flow_control().release_capacity(11).expect("was received");
    assert_eq!(body.data().await.expect("more").expect("data"), "d");
    assert!(body.data().await.is_none(), "an orderly end");
    site.until_metric("causeway_http_requests_in_flight", 0).await;
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
    let mut connection = connect_with(&site, |builder| _ = builder.initial_window_size(1000)).await;
    let mut body = connection.get(&format!("/ipfs/{}", large.cid())).await.expect("a head").into_body();
    let error = loop {
        match body.data().await.expect("no orderly end") {
            // The client takes some kilobytes a second.
            Ok(data) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                body.flow_control().release_capacity(data.len()).expect("was received");
            }
            Err(error) => break error,
        }
    };
    assert_eq!((error.is_reset(), error.reason()), (true, Some(Reason::ENHANCE_YOUR_CALM)));
    site.until_metric("causeway_http_responses_aborted_total{reason=\"client\"}", 1).await;
}

/// Streams that are not read share the memory that one request has over HTTP/1.1.
#[tokio::test]
async fn the_streams_of_a_connection_share_its_memory() {
    const SHARE: usize = 4 << 20;
    let files: Vec<(Block, Vec<Block>)> = (0..60)
        .map(|seed| {
            let leaves = vec![raw(noise(2 * seed, 200_000)), raw(noise(2 * seed + 1, 200_000))];
            (file(&leaves), leaves)
        })
        .collect();
    let blocks: Vec<_> = files.iter().flat_map(|(root, leaves)| leaves.iter().chain([root])).collect();
    let site = site(&blocks, |setup| setup.limits.window_bytes_max = SHARE).await;
    let shared = Arc::clone(site.gateway.limits().memory.all());
    let all = shared.left();
    let mut connection = connect_with(&site, |builder| _ = builder.initial_window_size(0)).await;
    let mut unread = Vec::new();
    for (root, leaves) in &files {
        // Files of several blocks, and single blocks.
        for block in [root, &leaves[0]] {
            if unread.len() < 100 {
                unread.push(connection.get(&format!("/ipfs/{}", block.cid())).await.expect("a head"));
            }
        }
    }
    let used = all - shared.left();
    assert!(used > 0 && used <= SHARE, "{used}");
    // Another client is served from the rest.
    let mut other = connect(&site).await;
    assert_eq!(other.body(&format!("/ipfs/{}", files[0].0.cid())).await.expect("a body").len(), 400_000);
    drop((unread, connection));
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
    let mut waiting = Vec::new();
    for block in &absent[..3] {
        // On connections of their own.
        let mut connection = connect(&site).await;
        let path = format!("/ipfs/{}", block.cid());
        waiting.push(tokio::spawn(async move { connection.get(&path).await.map(|response| response.status()) }));
    }
    until(|| network.waiting() == 3, "the requests to wait").await;
    let mut connection = connect(&site).await;
    let response = connection.get(&format!("/ipfs/{}", absent[3].cid())).await.expect("answers");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    // Health checks need no permit.
    assert_eq!(connection.body("/healthz").await.expect("goes on"), b"ok\n");
    network.gate.add_permits(3);
    for waiting in waiting {
        assert_eq!(waiting.await.expect("no panic").expect("answers"), StatusCode::OK);
    }
}

/// Answers from memory count until the client has taken them, also if they are small.
#[tokio::test]
async fn answers_from_memory_count_as_requests_in_progress() {
    let text = raw("hello, world");
    let site = site(&[&text], |setup| setup.limits.client_requests_max = 3).await;
    let path = format!("/ipfs/{}", text.cid());
    // Nothing is taken.
    let mut slow = connect_with(&site, |builder| _ = builder.initial_window_size(0)).await;
    let mut unread = Vec::new();
    for status in [StatusCode::OK, StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let response = slow.get(&path).await.expect("a head");
        assert_eq!(response.status(), status);
        unread.push(response);
    }
    // On another connection of the client as well.
    let mut other = connect(&site).await;
    assert_eq!(other.get(&path).await.expect("answers").status(), StatusCode::TOO_MANY_REQUESTS);
    // What is not counted is limited by connection.
    for _ in 0..3 {
        unread.push(slow.get("/healthz").await.expect("is always answered"));
    }
    for path in ["/healthz", &path] {
        let error = slow.get(path).await.expect_err("is refused");
        assert_eq!((error.is_reset(), error.reason()), (true, Some(Reason::REFUSED_STREAM)), "{path}");
    }
    assert_eq!(other.body("/healthz").await.expect("is always answered"), b"ok\n");
    // Heads without a body hold nothing.
    drop(unread);
    for _ in 0..8 {
        let head = Request::head(format!("https://127.0.0.1{path}")).body(()).expect("a request");
        assert_eq!(slow.send(head).await.expect("answers").status(), StatusCode::OK);
    }
    drop(slow);
    site.until_metric("causeway_http_requests_in_flight", 0).await;
    assert_eq!(other.body(&path).await.expect("answers"), b"hello, world");
}

/// One limit for a client, over HTTP/2 and through a proxy.
#[tokio::test]
async fn a_client_of_a_proxy_has_the_same_limit_over_http2() {
    let absent: Vec<Block> = (0..3).map(|number| raw(format!("far away {number}"))).collect();
    let network = FakeNetwork::new(&absent, &absent);
    let upstream = Arc::clone(&network) as Arc<_>;
    let site = site(&[], |setup| {
        setup.upstream = Some(upstream);
        setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
        setup.limits.client_requests_max = 2;
    })
    .await;
    let [(_, plain, proxy), _, (_, encrypted, proxy_http2)] = clients(&site);
    let ask = |client: &Client, base: &str, block: &Block, address: &str| {
        client.get(format!("{base}/ipfs/{}", block.cid())).header("x-forwarded-for", address).send()
    };
    let waiting = [
        tokio::spawn(ask(&proxy, &plain, &absent[0], "192.0.2.1")),
        tokio::spawn(ask(&proxy_http2, &encrypted, &absent[1], "192.0.2.1")),
    ];
    until(|| network.waiting() == 2, "the requests to wait").await;
    for (client, base) in [(&proxy, &plain), (&proxy_http2, &encrypted)] {
        let refused = ask(client, base, &absent[2], "192.0.2.1").await.expect("answers");
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "{base}");
    }
    // Another client of the proxy.
    let other = tokio::spawn(ask(&proxy_http2, &encrypted, &absent[2], "192.0.2.2"));
    until(|| network.waiting() == 3, "its request to wait").await;
    network.gate.add_permits(3);
    for waiting in waiting.into_iter().chain([other]) {
        assert_eq!(waiting.await.expect("no panic").expect("answers").status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_drain_finishes_open_requests_and_closes_idle_connections() {
    let leaves = [raw(noise(1, 200_000)), raw(noise(2, 200_000))];
    let large = file(&leaves);
    let network = FakeNetwork::new(&leaves, [&leaves[1]]);
    let upstream = Arc::clone(&network) as Arc<_>;
    let site = site(&[&large], |setup| setup.upstream = Some(upstream)).await;
    let (idle, mut busy) = (connect(&site).await, connect(&site).await);
    // A client that does not answer.
    let silent = site.encrypted().connect_http2().await;
    let response = busy.get(&format!("/ipfs/{}", large.cid())).await.expect("a head");
    let reading = tokio::spawn(read(response.into_body()));
    until(|| network.waiting() == 1, "the rest to be fetched").await;
    let drain = site.drain.clone();
    let drained = tokio::spawn(async move { drain.finish(PATIENCE).await });
    assert_eq!(idle.ended().await, None);
    network.gate.add_permits(1);
    assert_eq!(reading.await.expect("no panic").expect("a whole body").len(), 400_000);
    assert_eq!(busy.ended().await, None);
    assert!(drained.await.expect("no panic"), "nothing is left open");
    drop(silent);
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let site = site(&[], |setup| setup.http.header_timeout_seconds = 1).await;
    // Before the preface, before the first request, and after it.
    let silent = site.encrypted().connect_http2().await;
    let fresh = connect(&site).await;
    let mut answered = connect(&site).await;
    assert_eq!(answered.body("/healthz").await.expect("answers"), b"ok\n");
    assert_eq!((fresh.ended().await, answered.ended().await), (None, None));
    site.until_metric("causeway_http_connections", 0).await;
    drop(silent);
}

#[tokio::test]
async fn responses_stream_at_the_same_time() {
    let (large, leaves) = long_file(8);
    let blocks: Vec<_> = leaves.iter().chain([&large]).collect();
    let site = site(&blocks, |_| {}).await;
    let connection = connect(&site).await;
    let reads = (0..8).map(|_| {
        let mut requests = connection.requests.clone();
        let request = Request::get(format!("https://127.0.0.1/ipfs/{}", large.cid())).body(()).expect("a request");
        async move {
            let response = requests.send_request(request, true).expect("sends").0.await.expect("a head");
            read(response.into_body()).await.expect("a body")
        }
    });
    let bodies: Vec<Vec<u8>> = futures::stream::iter(reads).buffer_unordered(8).collect().await;
    let expected: Vec<u8> = leaves.iter().flat_map(|leaf| leaf.data().to_vec()).collect();
    assert!(bodies.len() == 8 && bodies.iter().all(|body| *body == expected));
}
