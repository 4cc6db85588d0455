//! Clients that abuse HTTP/2: floods of frames, streams that are opened and reset, heads without an end.
//!
//! Each sends frames of its own making. The server must end its connection or its streams, hold no more than the streams
//! of one connection meanwhile, and serve another client.

use crate::dag::{noise, raw};
use crate::site::{PATIENCE, Setup, Site, until};
use crate::upstream::FakeNetwork;
use content::Block;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::{TcpSocket, TcpStream};
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

fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

/// The setting of the window of streams (RFC 9113, section 6.5.2).
fn initial_window(bytes: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&[0, 4][..], &bytes.to_be_bytes()].concat())
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
    /// Streams that ended in good order.
    ended: Vec<u32>,
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
        if matches!(header[3], DATA | HEADERS) && header[4] & END_STREAM > 0 {
            received.ended.push(stream);
        }
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

    /// A client with a small receive buffer, which reads nothing until [`Unread::read`].
    async fn unread(site: &Site) -> Unread {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a size");
        let stream = socket.connect(site.encrypted().address).await.expect("connects");
        let stream = site.encrypted().encrypt_http2(stream).await;
        let (reads, mut writes) = tokio::io::split(stream);
        writes.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sends");
        Unread { writes, reads }
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

/// A client that reads nothing yet.
struct Unread {
    writes: WriteHalf<TlsStream<TcpStream>>,
    reads: ReadHalf<TlsStream<TcpStream>>,
}

impl Unread {
    async fn send(&mut self, frames: &[u8]) {
        self.writes.write_all(frames).await.expect("sends");
        self.writes.flush().await.expect("sends");
    }

    fn read(self) -> Client {
        Client { writes: self.writes, received: tokio::spawn(receive(self.reads)) }
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

/// CVE-2025-8671: streams that the server has to reset, because of errors of the client.
#[tokio::test]
async fn errors_that_make_the_server_reset_streams_end_the_connection() {
    let (site, network, path) = site().await;
    // A window that is too large (RFC 9113, section 6.9.1).
    let one = |stream: u32| [get(stream, &path), window_update(stream, (1 << 31) - 1)].concat();
    let flood = Client::new(&site).await.flood(|round| (0..30).flat_map(|n| one((round * 30 + n) * 2 + 1)).collect());
    let (received, in_flight) = beside(&site, flood).await;
    assert_eq!(received.goaway, Some(ENHANCE_YOUR_CALM), "{received:?}");
    assert!(in_flight <= STREAMS_MAX, "{in_flight}");
    site.until_metric("causeway_http_requests_in_flight", 0).await;
    until(|| network.waiting() == 0, "the fetches to end").await;
}

/// A site with this block, and a send timeout of two seconds.
async fn impatient_site(block: &Block) -> Site {
    let mut setup = Setup { tls: true, ..Setup::new(&[block]) };
    setup.http.send_timeout_seconds = 2;
    setup.start().await
}

/// Requests for the same path on the first streams.
fn gets(path: &str, streams: u32) -> Vec<u8> {
    (0..streams).flat_map(|number| get(2 * number + 1, path)).collect()
}

/// A client that has responses queued, and then shrinks the windows of their streams below zero (RFC 9113, section
/// 6.9.2).
#[tokio::test]
async fn shrinking_windows_hold_no_memory() {
    let block = raw(noise(1, 100_000));
    let site = impatient_site(&block).await;
    let memory = Arc::clone(site.gateway.limits().memory.all());
    let all = memory.left();
    let mut client = Client::unread(&site).await;
    let streams = u32::try_from(STREAMS_MAX).expect("fits");
    client.send(&[initial_window(1 << 20), window_update(0, 1 << 30)].concat()).await;
    client.send(&gets(&format!("/ipfs/{}", block.cid()), streams)).await;
    // The socket is full, after it has taken some responses.
    let in_flight = || site.metric("causeway_http_requests_in_flight");
    let mut before = 0;
    while in_flight() < 20 || in_flight() != before {
        before = in_flight();
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    // The client reads only after it has shrunk the windows.
    client.send(&initial_window(0)).await;
    let mut client = client.read();
    until(|| memory.left() == all, "the memory to be released").await;
    site.until_metric("causeway_http_requests_in_flight", 0).await;
    // The connection goes on.
    let next = 2 * streams + 1;
    client.send(&[get(next, "/healthz"), window_update(next, 100)].concat()).await.expect("sends");
    client.send(&frame(GOAWAY, 0, 0, &[0; 8])).await.expect("sends");
    drop(client.writes);
    let received = tokio::time::timeout(PATIENCE, client.received).await.expect("an end in time").expect("no panic");
    let reset = received.resets.iter().filter(|(_, reason)| *reason == ENHANCE_YOUR_CALM).count();
    assert!(reset > 0 && reset + received.ended.len() == streams as usize + 1, "{received:?}");
    assert!(received.ended.contains(&next), "{received:?}");
}

/// Answers without content, of which the client reads none: their heads count as requests in progress.
#[tokio::test]
async fn heads_that_are_not_read_count() {
    const LIMIT: u64 = 8;
    let text = raw("hello");
    let mut setup = Setup { tls: true, ..Setup::new(&[&text]) };
    setup.limits.client_requests_max = LIMIT as usize;
    let site = setup.start().await;
    let mut client = Client::unread(&site).await;
    client.send(&frame(SETTINGS, 0, 0, &[])).await;
    let request = [&[0x42, 4][..], b"HEAD", &head(&format!("/ipfs/{}", text.cid()))[1..]].concat();
    let in_flight = || site.metric("causeway_http_requests_in_flight");
    let answered = || site.metric("causeway_http_requests_total{method=\"HEAD\",code=\"2xx\"}");
    let (mut next, mut sent) = (1, 0);
    let flooding = async {
        while in_flight() < LIMIT {
            let some = (0..20).flat_map(|n| frame(HEADERS, END_STREAM | END_HEADERS, next + 2 * n, &request));
            client.send(&some.collect::<Vec<u8>>()).await;
            (next, sent) = (next + 40, sent + 20);
            // No more streams than the server admits.
            until(|| answered() + in_flight() >= sent || in_flight() >= LIMIT, "the requests to be answered").await;
        }
    };
    tokio::time::timeout(PATIENCE, flooding).await.expect("heads that wait count");
    client.send(&get(next, "/healthz")).await;
    // Those that are not counted are few.
    assert!(in_flight() < LIMIT + 8, "{}", in_flight());
    let client = client.read();
    site.until_metric("causeway_http_requests_in_flight", 0).await;
    drop(client);
}

/// A client that admits nothing for ever, and shows with pings that it is there.
#[tokio::test]
async fn windows_that_stay_closed_hold_no_memory() {
    let block = raw(noise(1, 100_000));
    let site = impatient_site(&block).await;
    let memory = Arc::clone(site.gateway.limits().memory.all());
    let all = memory.left();
    let mut client = Client::new(&site).await;
    let streams = u32::try_from(STREAMS_MAX).expect("fits");
    client.send(&[initial_window(0), gets(&format!("/ipfs/{}", block.cid()), streams)].concat()).await.expect("sends");
    until(|| memory.left() < all, "memory to be in use").await;
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    let started = Instant::now();
    while memory.left() < all || site.metric("causeway_http_requests_in_flight") > 0 {
        assert!(started.elapsed() < PATIENCE, "the streams are reset");
        client.send(&frame(PING, 0, 0, &[7; 8])).await.expect("sends");
        pace.tick().await;
    }
    client.send(&frame(GOAWAY, 0, 0, &[0; 8])).await.expect("sends");
    drop(client.writes);
    let received = tokio::time::timeout(PATIENCE, client.received).await.expect("an end in time").expect("no panic");
    assert!(received.ended.is_empty(), "{received:?}");
    let reset = received.resets.iter().filter(|(_, reason)| *reason == ENHANCE_YOUR_CALM).count();
    assert_eq!(reset, streams as usize, "{received:?}");
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
