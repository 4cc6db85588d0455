//! The PROXY protocol, version 2, and Unix sockets: whose connections are counted, and which are refused.

use crate::site::{PATIENCE, PeerEcho, until};
use gateway::listen::proxy_protocol::ProxyHeaders;
use gateway::listen::server::ConnectionLimits;
use gateway::listen::unix;
use gateway::metrics::ProxyRefusal;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::timeout;

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
/// Waits for a permit of the server.
const GATED: &str = "GET /gated HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// A header with the client's address.
fn of_client(last: u8) -> Vec<u8> {
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", &[192, 0, 2, last][..], &[198, 51, 100, 1, 0, 7, 0, 80]].concat()
}

fn limits(trusted: &str, set: impl FnOnce(&mut config::Http)) -> ConnectionLimits {
    let mut http =
        config::Http { trusted_proxies: vec![trusted.parse().expect("is valid")], ..config::Http::default() };
    set(&mut http);
    ConnectionLimits { proxy_headers: Some(Arc::new(ProxyHeaders::of(&http))), ..ConnectionLimits::of(&http) }
}

async fn tcp(limits: ConnectionLimits) -> (PeerEcho, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    (PeerEcho::start(listener, limits), address)
}

/// All that is received before the end; empty if the connection is reset.
async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut answer = String::new();
    let read = timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("in time");
    read.map(|_| answer).unwrap_or_default()
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    stream.write_all(bytes).await.expect("sends");
}

async fn ask(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    send(&mut stream, bytes).await;
    answer(&mut stream).await
}

#[tokio::test]
async fn the_address_of_the_header_is_that_of_the_client() {
    let (echo, address) = tcp(limits("127.0.0.1", |_| {})).await;
    let request = |header: &[u8]| [header, REQUEST.as_bytes()].concat();
    let text = ask(address, &request(&of_client(1))).await;
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n\r\n192.0.2.1:7"), "{text}");
    // A proxy that speaks for itself.
    let text = ask(address, &request(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")).await;
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("\r\n\r\n127.0.0.1:"), "{text}");
    // In pieces.
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.set_nodelay(true).expect("a socket");
    for byte in of_client(2) {
        send(&mut stream, &[byte]).await;
        tokio::task::yield_now().await;
    }
    send(&mut stream, REQUEST.as_bytes()).await;
    assert!(answer(&mut stream).await.ends_with("192.0.2.2:7"));

    assert!(ask(address, &request(b"")).await.is_empty(), "a header is required");
    assert!(ask(address, &request(b"PROXY TCP4 192.0.2.1 127.0.0.1 7 80\r\n")).await.is_empty());
    let unknown = request(b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0");
    assert!(ask(address, &unknown).await.is_empty(), "an unknown client is not the proxy");
    for (reason, expected) in [(ProxyRefusal::Invalid, 2), (ProxyRefusal::Version1, 1), (ProxyRefusal::Untrusted, 0)] {
        assert_eq!(echo.metrics.proxy_connections_refused(reason), expected, "{reason:?}");
    }
    until(|| echo.metrics.plain.connections.get() == 0, "every connection to end").await;
}

#[tokio::test]
async fn other_peers_are_refused_and_headers_have_a_timeout() {
    let (echo, address) = tcp(limits("192.0.2.1", |_| {})).await;
    assert!(ask(address, &[&of_client(1)[..], REQUEST.as_bytes()].concat()).await.is_empty());
    assert_eq!(echo.metrics.proxy_connections_refused(ProxyRefusal::Untrusted), 1);

    let (echo, address) = tcp(limits("127.0.0.1", |http| http.header_timeout_seconds = 1)).await;
    assert!(ask(address, &of_client(1)[..20]).await.is_empty(), "it ends although the header is incomplete");
    until(|| echo.metrics.proxy_connections_refused(ProxyRefusal::Timeout) == 1, "the timeout").await;
}

#[tokio::test]
async fn each_client_of_a_proxy_has_its_own_connection_limit() {
    let (echo, address) = tcp(limits("127.0.0.1", |http| http.client_connections_max = 1)).await;
    let mut busy = TcpStream::connect(address).await.expect("connects");
    send(&mut busy, &[&of_client(1)[..], GATED.as_bytes()].concat()).await;
    until(|| echo.metrics.plain.connections.get() == 1, "the first connection").await;
    let other = ask(address, &[&of_client(2)[..], REQUEST.as_bytes()].concat()).await;
    assert!(other.ends_with("192.0.2.2:7"), "{other}");
    let full = ask(address, &[&of_client(1)[..], REQUEST.as_bytes()].concat()).await;
    assert!(full.ends_with("full"), "{full}");
    echo.gate.add_permits(1);
    assert!(answer(&mut busy).await.ends_with("192.0.2.1:7"));
}

#[tokio::test]
async fn peers_of_a_unix_socket_share_an_address_unless_they_are_proxies() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("http.sock");
    for (trusted, expected) in [("127.0.0.1", "full"), ("unix:", "0.0.0.0:0")] {
        let limits =
            ConnectionLimits { proxy_headers: None, ..limits(trusted, |http| http.client_connections_max = 1) };
        let echo = PeerEcho::start(unix::bind(&path, 0o600).await.expect("binds"), limits);
        let mut busy = UnixStream::connect(&path).await.expect("connects");
        send(&mut busy, GATED.as_bytes()).await;
        until(|| echo.metrics.plain.connections.get() == 1, "the first connection").await;
        let mut second = UnixStream::connect(&path).await.expect("connects");
        send(&mut second, REQUEST.as_bytes()).await;
        let text = answer(&mut second).await;
        assert!(text.ends_with(expected), "{trusted}: {text}");
        echo.gate.add_permits(1);
        assert!(answer(&mut busy).await.ends_with("0.0.0.0:0"));
        assert!(echo.drain.finish(PATIENCE).await);
        echo.closed().await;
        assert!(!path.exists(), "the file is removed");
    }
    // The PROXY protocol over a Unix socket.
    let echo = PeerEcho::start(unix::bind(&path, 0o600).await.expect("binds"), limits("unix:", |_| {}));
    let mut stream = UnixStream::connect(&path).await.expect("connects");
    send(&mut stream, &[&of_client(3)[..], REQUEST.as_bytes()].concat()).await;
    assert!(answer(&mut stream).await.ends_with("192.0.2.3:7"));
    assert!(timeout(Duration::from_secs(20), echo.drain.finish(PATIENCE)).await.expect("in time"));
}
