//! A graceful drain fails no request: whatever a client sends at that moment is answered, or its connection ends so that
//! the client can tell that it was not.

use crate::certificate::Files;
use crate::site::{PATIENCE, PeerEcho, until};
use gateway::listen::proxy_protocol::ProxyHeaders;
use gateway::listen::server::ConnectionLimits;
use gateway::listen::socket::Listener;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    (listener, address)
}

fn echo(listener: impl Into<Listener>) -> PeerEcho {
    PeerEcho::start(listener, ConnectionLimits::of(&config::Http::default()))
}

/// Connections that the server has accepted.
async fn connected(echo: &PeerEcho, address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(TcpStream::connect(address).await.expect("connects"));
    }
    let count = i64::try_from(count).expect("few");
    until(|| echo.metrics.plain.connections.get() == count, "the connections").await;
    streams
}

fn drain(echo: &PeerEcho) -> JoinHandle<bool> {
    let drain = echo.drain.clone();
    tokio::spawn(async move { drain.finish(PATIENCE).await })
}

/// Waits until the drain has begun: the listener is closed.
async fn begun(address: SocketAddr) {
    let start = Instant::now();
    while TcpStream::connect(address).await.is_ok() {
        assert!(start.elapsed() < PATIENCE, "the listener is not closed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reads one response whose body is an address.
async fn response(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.windows(4).any(|window| window == b"\r\n\r\n") || !text.ends_with(b"7.0.0.1:") {
        let read = timeout(PATIENCE, stream.read_u8()).await.expect("in time");
        text.push(read.expect("a response"));
    }
    // The port.
    let mut rest = [0; 8];
    _ = stream.read(&mut rest).await;
    String::from_utf8(text).expect("text")
}

/// All that is received before the end, which is not a reset.
async fn to_end(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut text)).await.expect("in time").expect("no reset");
    text
}

#[tokio::test]
async fn requests_that_arrive_as_the_drain_begins_are_answered() {
    let (listener, address) = listener().await;
    let echo = echo(listener);
    // A connection without a request so far, one that is reused, and one whose request is being answered.
    let [new, reused, busy] = connected(&echo, address, 3).await.try_into().expect("three");
    let (mut new, mut reused, mut busy): (TcpStream, TcpStream, TcpStream) = (new, reused, busy);
    reused.write_all(REQUEST).await.expect("sends");
    assert!(!response(&mut reused).await.to_lowercase().contains("connection: close"));
    busy.write_all(b"GET /gated HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sends");

    let draining = drain(&echo);
    begun(address).await;
    // Both at once: an idle connection ends soon.
    for stream in [&mut reused, &mut new] {
        stream.write_all(REQUEST).await.expect("sends");
    }
    for stream in [&mut new, &mut reused] {
        let text = to_end(stream).await.to_lowercase();
        assert!(text.starts_with("http/1.1 200") && text.contains("\r\nconnection: close\r\n"), "{text}");
    }
    echo.gate.add_permits(1);
    let text = to_end(&mut busy).await.to_lowercase();
    assert!(text.starts_with("http/1.1 200") && text.contains("\r\nconnection: close\r\n"), "{text}");
    drop((new, reused, busy));
    assert!(draining.await.expect("no panic"));
    echo.closed().await;
}

#[tokio::test]
async fn a_request_that_comes_too_late_is_not_answered_with_a_reset() {
    let (listener, address) = listener().await;
    let echo = echo(listener);
    let mut idle = connected(&echo, address, 1).await;
    let draining = drain(&echo);
    // The server ends the idle connection, and the request crosses its end.
    assert_eq!(to_end(&mut idle[0]).await, "");
    idle[0].write_all(REQUEST).await.expect("sends");
    idle[0].write_all(REQUEST).await.expect("there was no reset");
    assert_eq!(timeout(PATIENCE, idle[0].read(&mut [0; 1])).await.expect("in time").expect("no reset"), 0);
    // It does not wait for a client that never ends its connection.
    assert!(draining.await.expect("no panic"));
}

#[tokio::test]
async fn established_connections_are_accepted_unless_another_process_does() {
    for shared in [false, true] {
        let (listener, address) = listener().await;
        let inherited = listener.into_std().expect("a socket");
        let kept = inherited.try_clone().expect("a copy, as systemd has it");
        let listener = Listener::from(TcpListener::from_std(inherited).expect("a socket"));
        let echo = echo(if shared { listener.shared() } else { listener });
        // The loop accepts nothing any more when the connections are made: this runtime has one thread.
        let draining = drain(&echo);
        let std_streams: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(address).expect("connects")).collect();
        let mut streams = Vec::new();
        for stream in std_streams {
            stream.set_nonblocking(true).expect("a socket");
            let mut stream = TcpStream::from_std(stream).expect("a socket");
            stream.write_all(REQUEST).await.expect("sends");
            streams.push(stream);
        }
        let next = if shared {
            assert!(draining.await.expect("no panic"));
            Some(self::echo(TcpListener::from_std(kept).expect("a socket")))
        } else {
            drop(kept);
            None
        };
        for stream in &mut streams {
            assert!(response(stream).await.starts_with("HTTP/1.1 200"), "shared: {shared}");
        }
        drop(streams);
        echo.closed().await;
        if let Some(next) = next {
            assert!(next.drain.finish(PATIENCE).await);
        }
    }
}

/// Clients that send nothing, where a TLS handshake and a header of the PROXY protocol are awaited for ten seconds.
#[tokio::test]
async fn connections_without_a_handshake_or_a_header_end_as_those_without_a_request() {
    let trusted_proxies = vec!["127.0.0.1".parse().expect("an address")];
    let http = config::Http { trusted_proxies, ..config::Http::default() };
    let limits = ConnectionLimits::of(&http);
    let (files, _) = Files::new();
    let with_tls = files.listener(&limits, true).await;
    let proxied = ConnectionLimits { proxy_headers: Some(Arc::new(ProxyHeaders::of(&http))), ..limits };
    let ends = [with_tls, (listener().await.0, proxied)].map(async |(listener, limits)| {
        let address = listener.local_addr().expect("is bound");
        let echo = PeerEcho::start(listener, limits);
        let idle = connected(&echo, address, 1).await;
        let start = Instant::now();
        assert!(drain(&echo).await.expect("no panic"));
        assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
        drop(idle);
    });
    futures::future::join_all(ends).await;
}
