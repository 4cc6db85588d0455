//! Clients that abuse HTTP/2: floods of frames, streams that are opened and reset, heads without an end.
//!
//! Each sends frames of its own making. The server must end its connection, hold no more than the streams of one
//! connection meanwhile, and serve another client.

use crate::dag::raw;
use crate::site::{PATIENCE, Setup, Site, until};
use crate::upstream::FakeNetwork;
use content::Block;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;

/// The maximum number of streams of a connection.
const STREAMS_MAX: u64 = 100;

/// Types of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const UNKNOWN: u8 = 42;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const NO_ERROR: u32 = 0;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("is small").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of a GET, in HPACK (RFC 7541) without Huffman codes and without entries of the dynamic table.
fn head(path: &str) -> Vec<u8> {
    // `:method: GET` and `:scheme: https`, then `:authority` and `:path` as literals.
    let mut head = vec![0x82, 0x87];
    for (name, value) in [(0x01, "127.0.0.1"), (0x04, path)] {
        head.extend([name, u8::try_from(value.len()).ok().filter(|length| *length < 127).expect("is short")]);
        head.extend(value.as_bytes());
    }
    head
}

fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &head(path))
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// What the server sent until it closed the connection.
#[derive(Debug, Default)]
struct Received {
    /// The reason of the last GOAWAY.
    goaway: Option<u32>,
    /// The reasons of resets, by stream.
    resets: Vec<(u32, u32)>,
    /// The number of frames.
    frames: u64,
}

/// A client after its preface.
struct Client {
    writes: WriteHalf<TlsStream<TcpStream>>,
    received: JoinHandle<Received>,
}

/// Reads frames until the connection is closed.
async fn receive(mut reads: ReadHalf<TlsStream<TcpStream>>) -> Received {
    let mut received = Received::default();
    let mut header = [0; 9];
    while reads.read_exact(&mut header).await.is_ok() {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; length as usize];
        if reads.read_exact(&mut payload).await.is_err() {
            break;
        }
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four bytes"));
        let stream = u32::from_be_bytes(header[5..9].try_into().expect("four bytes"));
        received.frames += 1;
        match header[3] {
            GOAWAY => received.goaway = Some(number(4)),
            RST_STREAM => received.resets.push((stream, number(0))),
            _ => {}
        }
    }
    received
}

impl Client {
    async fn new(site: &Site) -> Self {
        let stream = site.encrypted().connect_http2().await;
        let (reads, mut writes) = tokio::io::split(stream);
        writes.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sends");
        writes.write_all(&frame(SETTINGS, 0, 0, &[])).await.expect("sends");
        Self { writes, received: tokio::spawn(receive(reads)) }
    }

    async fn send(&mut self, frames: &[u8]) -> io::Result<()> {
        self.writes.write_all(frames).await?;
        self.writes.flush().await
    }

    /// Sends the same frames until the server ends the connection; returns what it sent.
    async fn flood(mut self, mut frames: impl FnMut(u32) -> Vec<u8>) -> Received {
        let flooding = async {
            let mut round = 0;
            while !self.received.is_finished() && self.send(&frames(round)).await.is_ok() {
                round += 1;
                tokio::task::yield_now().await;
            }
            self.received.await.expect("no panic")
        };
        tokio::time::timeout(PATIENCE, flooding).await.expect("the server ends the connection")
    }

    async fn ended(self) -> Received {
        tokio::time::timeout(PATIENCE, self.received).await.expect("an end in time").expect("no panic")
    }
}

/// A site with a block that the network holds back, and its path.
async fn site() -> (Site, Arc<FakeNetwork>, String) {
    let absent = raw("far away");
    let network = FakeNetwork::new([&absent], [&absent]);
    let setup = Setup { tls: true, upstream: Some(Arc::clone(&network) as _), ..Setup::new(&[]) };
    let path = format!("/ipfs/{}", absent.cid());
    (setup.start().await, network, path)
}

/// Asks as another client while `abuse` runs, again and again; returns its output, and the most requests in progress.
async fn beside<T>(site: &Site, abuse: impl Future<Output = T>) -> (T, u64) {
    let client = site.encrypted().client().build().expect("a client");
    let url = site.encrypted().url("/healthz");
    let mut in_flight_max = 0;
    let asking = async {
        loop {
            let begun = Instant::now();
            assert_eq!(client.get(&url).send().await.expect("answers").status(), 200);
            assert!(begun.elapsed() < PATIENCE / 2, "the other client waited");
            in_flight_max = in_flight_max.max(site.metric("causeway_http_requests_in_flight"));
        }
    };
    let output = tokio::select! {
        output = abuse => output,
        () = asking => unreachable!("it does not end"),
    };
    (output, in_flight_max)
}

#[tokio::test]
async fn floods_of_frames_end_the_connection() {
    let (site, ..) = site().await;
    let window = frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
    let table = [
        ("PING", frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("SETTINGS with a value", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])),
        ("WINDOW_UPDATE", window),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])),
        ("an unknown type", frame(UNKNOWN, 0, 0, &[1])),
    ];
    for (name, one) in table {
        let some = one.repeat(50);
        let flood = Client::new(&site).await.flood(|_| some.clone());
        let (received, _) = beside(&site, flood).await;
        assert_eq!(received.goaway, Some(ENHANCE_YOUR_CALM), "{name}: {received:?}");
        assert!(received.frames < 5_000, "{name}: {received:?}");
    }
    site.until_metric("causeway_http_connections", 0).await;
}

/// A client that sends pings and reads no answers.
#[tokio::test]
async fn a_flood_without_reading_ends_the_connection() {
    let (site, ..) = site().await;
    let mut stream = site.encrypted().connect_http2().await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sends");
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.expect("sends");
    let some = frame(PING, 0, 0, &[7; 8]).repeat(50);
    let flooding = async { while stream.write_all(&some).await.is_ok() {} };
    let (ended, _) = beside(&site, tokio::time::timeout(PATIENCE, flooding)).await;
    assert!(ended.is_ok(), "the server ends the connection");
}

#[tokio::test]
async fn empty_data_frames_end_the_connection() {
    let (site, _, path) = site().await;
    let mut client = Client::new(&site).await;
    client.send(&frame(HEADERS, END_HEADERS, 1, &head(&path))).await.expect("sends");
    let some = frame(DATA, 0, 1, &[]).repeat(50);
    let (received, in_flight) = beside(&site, client.flood(|_| some.clone())).await;
    assert_eq!(received.goaway, Some(ENHANCE_YOUR_CALM), "{received:?}");
    assert!(in_flight <= STREAMS_MAX);
    site.until_metric("causeway_http_requests_in_flight", 0).await;
}

/// CVE-2023-44487: streams that are reset as soon as they are opened.
#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let (site, network, path) = site().await;
    let one = |stream: u32| [get(stream, &path), reset(stream)].concat();
    let flood = Client::new(&site).await.flood(|round| (0..30).flat_map(|n| one((round * 30 + n) * 2 + 1)).collect());
    let (received, in_flight) = beside(&site, flood).await;
    assert_eq!(received.goaway, Some(ENHANCE_YOUR_CALM), "{received:?}");
    assert!(in_flight <= STREAMS_MAX, "{in_flight}");
    site.until_metric("causeway_http_requests_in_flight", 0).await;
    until(|| network.waiting() == 0, "the fetches to end").await;
}

/// The same by a client that waits until its requests have begun.
#[tokio::test]
async fn resets_of_requests_in_progress_end_the_connection() {
    const AT_ONCE: u32 = 90;
    let (site, network, path) = site().await;
    let mut client = Client::new(&site).await;
    let started = Instant::now();
    let mut next = 1;
    while !client.received.is_finished() {
        assert!(started.elapsed() < PATIENCE, "the server ends the connection");
        let streams = || (0..AT_ONCE).map(|n| next + 2 * n);
        let requests: Vec<u8> = streams().flat_map(|stream| get(stream, &path)).collect();
        let resets: Vec<u8> = streams().flat_map(reset).collect();
        if client.send(&requests).await.is_err() {
            break;
        }
        let in_flight = || site.metric("causeway_http_requests_in_flight");
        until(|| in_flight() == u64::from(AT_ONCE) || client.received.is_finished(), "the requests to begin").await;
        if client.send(&resets).await.is_err() {
            break;
        }
        until(|| in_flight() == 0 || client.received.is_finished(), "the requests to end").await;
        next += 2 * AT_ONCE;
    }
    assert_eq!(client.ended().await.goaway, Some(ENHANCE_YOUR_CALM));
    until(|| network.waiting() == 0, "the fetches to end").await;
}

#[tokio::test]
async fn streams_over_the_limit_are_refused() {
    let (site, network, path) = site().await;
    let mut client = Client::new(&site).await;
    let streams = u32::try_from(STREAMS_MAX).expect("fits") + 5;
    let requests: Vec<u8> = (0..streams).flat_map(|number| get(2 * number + 1, &path)).collect();
    client.send(&requests).await.expect("sends");
    site.until_metric("causeway_http_requests_in_flight", STREAMS_MAX).await;
    until(|| network.waiting() == 1, "the requests to wait for one fetch").await;
    network.gate.add_permits(1);
    site.until_metric("causeway_http_requests_in_flight", 0).await;
    client.send(&frame(GOAWAY, 0, 0, &[0; 8])).await.expect("sends");
    drop(client.writes);
    let received = tokio::time::timeout(PATIENCE, client.received).await.expect("an end in time").expect("no panic");
    let refused: Vec<_> = received.resets.iter().filter(|(_, reason)| *reason == REFUSED_STREAM).collect();
    assert_eq!(refused.len(), 5, "{received:?}");
    assert!(received.goaway.is_none_or(|reason| reason == NO_ERROR), "{received:?}");
}

/// A head in endless `CONTINUATION` frames, empty or not.
#[tokio::test]
async fn endless_heads_end_the_connection() {
    let (site, ..) = site().await;
    for fragment in [Vec::new(), [0x00, 0x01, b'a', 0x01, b'b'].repeat(200)] {
        let mut client = Client::new(&site).await;
        client.send(&frame(HEADERS, END_STREAM, 1, &head("/"))).await.expect("sends");
        let some = frame(CONTINUATION, 0, 1, &fragment).repeat(20);
        let (received, in_flight) = beside(&site, client.flood(|_| some.clone())).await;
        assert_eq!(received.goaway, Some(ENHANCE_YOUR_CALM), "{received:?}");
        // A request without a head has not begun.
        assert!(in_flight <= 1, "{in_flight}");
    }
}

#[tokio::test]
async fn a_head_that_is_too_long_is_rejected() {
    let (site, ..) = site().await;
    let client = site.encrypted().client().build().expect("a client");
    let request =
        |bytes: usize| client.get(site.encrypted().url("/healthz")).header("x-long", "x".repeat(bytes)).send();
    assert_eq!(request(20_000).await.expect("answers").status(), 200);
    // The client may see the reset that follows the response.
    match request(40_000).await {
        Ok(response) => assert_eq!(response.status(), 431),
        Err(error) => assert!(error.is_request(), "{error}"),
    }
    assert_eq!(request(0).await.expect("answers").status(), 200);
}

/// Pings do not keep a connection without requests open.
#[tokio::test]
async fn pings_do_not_keep_a_connection_open() {
    let mut setup = Setup { tls: true, ..Setup::new(&[] as &[&Block]) };
    setup.http.header_timeout_seconds = 1;
    let site = setup.start().await;
    let mut client = Client::new(&site).await;
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    let started = Instant::now();
    while !client.received.is_finished() && client.send(&frame(PING, 0, 0, &[7; 8])).await.is_ok() {
        assert!(started.elapsed() < PATIENCE, "the server closes the connection");
        pace.tick().await;
    }
    assert_eq!(client.ended().await.goaway, Some(NO_ERROR));
}

/// A client that confirms no end of its connection, and sends requests as before.
#[tokio::test]
async fn requests_do_not_keep_a_connection_open_that_ends() {
    let (site, network, path) = site().await;
    let mut client = Client::new(&site).await;
    client.send(&get(1, &path)).await.expect("sends");
    until(|| network.waiting() == 1, "the request to wait").await;
    let drain = site.drain.clone();
    let drained = tokio::spawn(async move { drain.finish(PATIENCE).await });
    network.gate.add_permits(1);
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    let mut next = 3;
    while !client.received.is_finished() && client.send(&get(next, "/healthz")).await.is_ok() && !drained.is_finished()
    {
        next += 2;
        pace.tick().await;
    }
    assert!(drained.await.expect("no panic"), "the server closes the connection");
    let received = client.ended().await;
    assert_eq!(received.goaway, Some(NO_ERROR));
    assert!(received.resets.iter().all(|(_, reason)| *reason == REFUSED_STREAM), "{received:?}");
}
