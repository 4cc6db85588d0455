//! Restarts under load over TLS: HTTP/2 and HTTP/3, on a socket of systemd, with requests of many clients, each of
//! which has one connection at a time. Over HTTP/2 they have one address, that of a trusted proxy, whose handshakes all
//! begin when the new gateway accepts.
//!
//! A request that the server has not processed is sent again, as the versions of HTTP have it (RFC 9113, sections 6.8
//! and 8.7; RFC 9114, sections 5.2 and 5.3). The UDP socket of HTTP/3 is closed in a restart, as no service manager
//! keeps it: a client whose connection over QUIC is refused, or gets no answer, connects over TCP, as browsers do.

use crate::restart::{
    Clients, Content, PHASE_REQUESTS, PHASES, Requests, content, launch, listening_socket, restart_under_load,
};
use crate::support::causeway::Launch;
use crate::support::certificate;
use bytes::{Buf as _, Bytes};
use futures::FutureExt as _;
use h3::error::{Code, StreamError};
use http::Request;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// The number of clients of a proxy: more than one client may have unfinished handshakes.
const PROXIED: u8 = 200;
/// The number of clients over HTTP/3, whose first packets the UDP socket has to hold while this machine is busy.
const DIRECT: u8 = 50;
/// The address of a proxy.
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 1);
/// Every request with such a number has its client connect again.
const RECONNECTS_EVERY: u64 = 21;
/// How long a client waits for a connection over QUIC before it uses TCP. Handshakes are late while this machine is
/// busy; a gateway that drains refuses new connections at once.
const QUIC_TIMEOUT: Duration = Duration::from_secs(10);

/// Clients over TLS.
struct EncryptedClients {
    address: SocketAddr,
    content: Vec<Content>,
    tcp: TlsConnector,
    /// `None` if the clients do not try HTTP/3.
    quic: Option<quinn::ClientConfig>,
    clients: Vec<Client>,
    next_connection: AtomicU64,
    /// The number of requests of each phase that were answered over HTTP/3.
    answered_over_http3: [AtomicU64; PHASES],
}

struct Client {
    address: Ipv4Addr,
    connection: Mutex<Option<Connection>>,
}

/// An open connection.
#[derive(Clone)]
struct Connection {
    id: u64,
    requests: OpenRequests,
}

#[derive(Clone)]
enum OpenRequests {
    Http2(h2::client::SendRequest<Bytes>),
    Http3(h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>),
}

/// How a request ended that has not failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Answered,
    /// The server says that it has not processed it.
    Unprocessed,
}

impl EncryptedClients {
    /// Clients with HTTP/3 connect directly, each from an address of its own, and others through a proxy.
    fn new(address: SocketAddr, content: Vec<Content>, certificate: &Path, http3: bool) -> Self {
        let tcp = TlsConnector::from(Arc::new(certificate::trusting(certificate, "h2")));
        let address_of = |number| if http3 { Ipv4Addr::new(127, 0, 1, number + 1) } else { PROXY };
        let clients = (0..if http3 { DIRECT } else { PROXIED })
            .map(|number| Client { address: address_of(number), connection: Mutex::default() });
        Self {
            address,
            content,
            tcp,
            quic: http3.then(|| quic(certificate::trusting(certificate, "h3"))),
            clients: clients.collect(),
            next_connection: AtomicU64::default(),
            answered_over_http3: Default::default(),
        }
    }

    /// The connection of a client: the one that it has, or a new one.
    async fn connection(&self, client: &Client, reconnects: bool) -> Result<Connection, String> {
        let mut connection = client.connection.lock().await;
        if let Some(open) = connection.as_ref().filter(|_| !reconnects) {
            return Ok(open.clone());
        }
        let over_quic = match &self.quic {
            Some(config) => self.connect_quic(config, client.address).await,
            None => None,
        };
        let requests = match over_quic {
            Some(requests) => requests,
            None => self.connect_tcp(client.address).await?,
        };
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        Ok(connection.insert(Connection { id, requests }).clone())
    }

    async fn connect_tcp(&self, client: Ipv4Addr) -> Result<OpenRequests, String> {
        let socket = TcpSocket::new_v4().map_err(|error| error.to_string())?;
        socket.bind((client, 0).into()).map_err(|error| format!("binding: {error}"))?;
        let stream = socket.connect(self.address).await.map_err(|error| format!("connecting: {}", error.kind()))?;
        let name = ServerName::try_from("localhost").expect("a name");
        let shaking = self.tcp.connect(name, stream);
        let encrypted = shaking.await.map_err(|error| format!("the TLS handshake: {error}"))?;
        let (requests, connection) =
            h2::client::handshake(encrypted).await.map_err(|error| format!("the start of HTTP/2: {error}"))?;
        tokio::spawn(connection.map(drop));
        Ok(OpenRequests::Http2(requests))
    }

    async fn connect_quic(&self, config: &quinn::ClientConfig, client: Ipv4Addr) -> Option<OpenRequests> {
        let endpoint = quinn::Endpoint::client((client, 0).into()).ok()?;
        let connecting = endpoint.connect_with(config.clone(), self.address, "localhost").expect("can connect");
        let connection = timeout(QUIC_TIMEOUT, connecting).await.ok()?.ok()?;
        let (mut connection, requests) = h3::client::new(h3_quinn::Connection::new(connection)).await.ok()?;
        tokio::spawn(async move {
            connection.wait_idle().await;
            drop(endpoint);
        });
        Some(OpenRequests::Http3(requests))
    }
}

impl Clients for EncryptedClients {
    async fn send(&self, number: u64, requests: &Requests) -> Result<(), String> {
        let index = usize::try_from(number).expect("fits");
        let (client, (path, expected)) =
            (&self.clients[index % self.clients.len()], &self.content[index % self.content.len()]);
        let mut reconnects = number.is_multiple_of(RECONNECTS_EVERY);
        loop {
            let connection = self.connection(client, reconnects).await?;
            reconnects = false;
            let is_http3 = matches!(connection.requests, OpenRequests::Http3(_));
            let ending = match connection.requests {
                OpenRequests::Http2(open) => over_http2(open, path, expected).await,
                OpenRequests::Http3(open) => over_http3(open, path, expected).await,
            };
            match ending? {
                Ending::Answered => {
                    let phase = usize::try_from(number / PHASE_REQUESTS).expect("fits");
                    self.answered_over_http3[phase].fetch_add(u64::from(is_http3), Ordering::Relaxed);
                    return Ok(());
                }
                Ending::Unprocessed => {
                    requests.send_again();
                    let mut current = client.connection.lock().await;
                    if current.as_ref().is_some_and(|current| current.id == connection.id) {
                        *current = None;
                    }
                }
            }
        }
    }
}

fn request(path: &str) -> Request<()> {
    Request::get(format!("https://127.0.0.1{path}")).body(()).expect("a request")
}

/// Checks a response.
fn check(status: http::StatusCode, body: &[u8], expected: &[u8]) -> Result<Ending, String> {
    match status == 200 && body == expected {
        true => Ok(Ending::Answered),
        false => Err(format!("{status} with {} bytes", body.len())),
    }
}

async fn over_http2(requests: h2::client::SendRequest<Bytes>, path: &str, expected: &[u8]) -> Result<Ending, String> {
    let sending = async {
        let (response, _) = requests.ready().await?.send_request(request(path), true)?;
        response.await
    };
    let response = match sending.await {
        Ok(response) => response,
        Err(error) if is_unprocessed(&error) => return Ok(Ending::Unprocessed),
        Err(error) => return Err(format!("HTTP/2: {error}")),
    };
    let (status, mut stream, mut body) = (response.status(), response.into_body(), Vec::new());
    while let Some(data) = stream.data().await {
        let data = data.map_err(|error| format!("a truncated response over HTTP/2: {error}"))?;
        body.extend_from_slice(&data);
        stream.flow_control().release_capacity(data.len()).map_err(|error| error.to_string())?;
    }
    check(status, &body, expected)
}

/// Whether the server, with GOAWAY or a reset, says that it has not processed a request.
fn is_unprocessed(error: &h2::Error) -> bool {
    let is_last = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    error.is_remote() && (is_last || error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

async fn over_http3(
    mut requests: h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>,
    path: &str,
    expected: &[u8],
) -> Result<Ending, String> {
    let sending = async {
        let mut stream = requests.send_request(request(path)).await?;
        // If it is refused, the response tells.
        _ = stream.finish().await;
        Ok::<_, StreamError>((stream.recv_response().await?, stream))
    };
    let (response, mut stream) = match sending.await {
        Ok(answered) => answered,
        Err(error) if is_unprocessed_over_http3(&error) => return Ok(Ending::Unprocessed),
        Err(error) => return Err(format!("HTTP/3: {error}")),
    };
    let mut body = Vec::new();
    loop {
        let data = stream.recv_data().await.map_err(|error| format!("a truncated response over HTTP/3: {error}"))?;
        let Some(mut data) = data else { return check(response.status(), &body, expected) };
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
}

/// The same over HTTP/3. A connection that ends without an error has been announced to end.
fn is_unprocessed_over_http3(error: &StreamError) -> bool {
    match error {
        // `h3` hides the variant of a request that follows GOAWAY.
        error if error.to_string() == "Remote is closing the connection" => true,
        // A server processes no request before the handshake is complete (RFC 9001, section 5.7). Its own may not be when
        // the client's is.
        error if error.to_string().ends_with("closed during the handshake") => true,
        StreamError::RemoteTerminate { code, .. } => *code == Code::H3_REQUEST_REJECTED,
        error => error.is_h3_no_error(),
    }
}

fn quic(config: ClientConfig) -> quinn::ClientConfig {
    let tls = QuicClientConfig::try_from(config).expect("TLS 1.3");
    quinn::ClientConfig::new(Arc::new(tls))
}

/// A gateway with HTTP/3 on a socket of systemd, or with HTTP/2 alone.
fn encrypted_launch(dir: &Path, http3: bool) -> (Launch, SocketAddr, PathBuf) {
    let (socket, address) = listening_socket();
    let (certificate, key) = certificate::write(dir);
    let launch = launch(dir)
        .set("CAUSEWAY_HTTP_TLS_LISTEN", "127.0.0.1:0")
        .set("CAUSEWAY_HTTP_TLS_CERTIFICATE", certificate.display())
        .set("CAUSEWAY_HTTP_TLS_KEY", key.display())
        .set("CAUSEWAY_HTTP_HTTP3", http3)
        .set("CAUSEWAY_HTTP_TRUSTED_PROXIES", PROXY)
        .activated_by(socket, "https");
    (launch, address, certificate)
}

/// Restarts a gateway with TLS under load; returns the number of requests of each phase that were answered over HTTP/3.
async fn restart_encrypted(http3: bool) -> [u64; PHASES] {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let (launch, address, certificate) = encrypted_launch(dir.path(), http3);
    let content = content(&launch, dir.path());
    let node = launch.start().await;
    assert_eq!(node.tls_address(), address.to_string(), "it uses the socket");
    let clients = Arc::new(EncryptedClients::new(address, content, &certificate, http3));
    restart_under_load(&launch, node, Arc::clone(&clients)).await;
    clients.answered_over_http3.each_ref().map(|answered| answered.load(Ordering::Relaxed))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_over_http2_while_the_gateway_restarts() {
    assert_eq!(restart_encrypted(false).await, [0; PHASES]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_over_http3_while_the_gateway_restarts() {
    let answered = restart_encrypted(true).await;
    eprintln!("{answered:?} requests were answered over HTTP/3");
    // Clients use it again after the restarts.
    assert!(answered[0] > PHASE_REQUESTS / 2 && answered[PHASES - 1] > PHASE_REQUESTS / 4, "{answered:?}");
}

/// A process that is ended by SIGKILL closes no connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_http3_learns_at_once_that_a_restarted_gateway_has_lost_its_connection() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let (launch, address, certificate) = encrypted_launch(dir.path(), true);
    let node = launch.start().await;
    let mut config = quic(certificate::trusting(&certificate, "h3"));
    let mut transport = quinn::TransportConfig::default();
    transport.keep_alive_interval(Some(Duration::from_millis(100)));
    config.transport_config(Arc::new(transport));
    let endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    let connection = endpoint.connect_with(config, address, "localhost").expect("can connect").await.expect("connects");
    drop(node);
    assert_eq!(connection.close_reason(), None, "killed, it closes nothing");
    let node = launch.start().await;
    // Without a reset, it ends with the idle timeout.
    assert_eq!(connection.closed().await, quinn::ConnectionError::Reset);
    node.stop().await;
}
