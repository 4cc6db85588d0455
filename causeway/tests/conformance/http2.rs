//! The way to a gateway over TLS and HTTP/2: a front, which sends the requests that it receives over HTTP/1.1 as
//! streams of one connection.
//!
//! What a request target, a host and a header are remains as the table has them. A response that is incomplete over
//! HTTP/2 is incomplete at the front.

use crate::support::certificate::trusting;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use h2::client::SendRequest;
use http::response::Parts;
use http::uri::Scheme;
use http::{Request, Uri};
use rustls::pki_types::ServerName;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The window of a stream and of the connection: the front takes all.
const WINDOW_BYTES: u32 = 1 << 24;

/// Starts a front of the server at `server`, a gateway or nginx, which has this certificate; returns its address.
pub async fn front(server: SocketAddr, certificate: &Path) -> SocketAddr {
    let requests = connect(server, certificate).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let requests = requests.clone();
            tokio::spawn(async move {
                if let Err(error) = pass_on(stream, requests).await {
                    eprintln!("a request was not passed on over HTTP/2: {error}");
                }
            });
        }
    });
    address
}

/// Connects to a server that chooses this protocol.
pub async fn encrypted(server: SocketAddr, certificate: &Path, protocol: &str) -> TlsStream<TcpStream> {
    let config = trusting(certificate, protocol);
    let stream = TcpStream::connect(server).await.expect("connects");
    let name = ServerName::try_from("localhost").expect("a name");
    let encrypted = TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("shakes hands");
    assert_eq!(encrypted.get_ref().1.alpn_protocol(), Some(protocol.as_bytes()));
    encrypted
}

async fn connect(server: SocketAddr, certificate: &Path) -> SendRequest<Bytes> {
    let encrypted = encrypted(server, certificate, "h2").await;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    let (requests, connection) = builder.handshake(encrypted).await.expect("shakes hands");
    tokio::spawn(connection);
    requests
}

/// Passes one request on, and its response back.
async fn pass_on(mut stream: TcpStream, requests: SendRequest<Bytes>) -> Result<(), String> {
    let request = request(&mut stream).await?;
    let headless = request.method() == http::Method::HEAD;
    let mut requests = requests.ready().await.map_err(|error| error.to_string())?;
    let (answer, _) = requests.send_request(request, true).map_err(|error| error.to_string())?;
    let response = answer.await.map_err(|error| error.to_string())?;
    let (parts, body) = response.into_parts();
    let body = futures::stream::unfold(body, |mut body| async {
        let data = body.data().await?.map_err(std::io::Error::other);
        let _ = data.as_ref().map(|data| body.flow_control().release_capacity(data.len()));
        Some((data, body))
    });
    pass_back(&mut stream, parts, headless, body).await.map_err(|error| error.to_string())
}

/// Receives the head of a request.
pub async fn head(stream: &mut TcpStream) -> Result<String, String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.map_err(|error| error.to_string())?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Receives a request.
pub async fn request(stream: &mut TcpStream) -> Result<Request<()>, String> {
    request_of(&head(stream).await?)
}

/// The header with the scheme that the tables expect in redirects, unless they set it themselves.
pub const SCHEME: (&str, &str) = ("x-forwarded-proto", "http");

/// Whether a request names its scheme.
pub fn has_scheme<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| name.eq_ignore_ascii_case(SCHEME.0))
}

/// The request of a head.
fn request_of(head: &str) -> Result<Request<()>, String> {
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target)) = (first.next(), first.next()) else { return Err(format!("no request: {head}")) };
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(": ")).collect();
    let host = headers.iter().find(|(name, _)| *name == "Host").map_or("", |(_, host)| *host);
    let uri = match target.contains("://") {
        true => target.parse::<Uri>().map_err(http::Error::from),
        false => Uri::builder().scheme(Scheme::HTTPS).authority(host).path_and_query(target).build(),
    };
    let mut request = Request::builder().method(method).uri(uri.map_err(|error| format!("{target}: {error}"))?);
    for (name, value) in headers.iter().filter(|(name, _)| !matches!(*name, "Host" | "Connection")) {
        request = request.header(*name, *value);
    }
    if !has_scheme(headers.iter().map(|(name, _)| *name)) {
        request = request.header(SCHEME.0, SCHEME.1);
    }
    request.body(()).map_err(|error| error.to_string())
}

/// Passes a response back, in chunks if it has no length, so that an incomplete one is recognised.
pub async fn pass_back(
    stream: &mut TcpStream,
    parts: Parts,
    headless: bool,
    body: impl Stream<Item = std::io::Result<Bytes>>,
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} \r\n", parts.status.as_u16());
    for (name, value) in &parts.headers {
        let _ = write!(head, "{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes()));
    }
    let has_body = !headless && !matches!(parts.status.as_u16(), 204 | 304);
    let chunked = has_body && !parts.headers.contains_key(http::header::CONTENT_LENGTH);
    head += if chunked { "transfer-encoding: chunked\r\n\r\n" } else { "\r\n" };
    stream.write_all(head.as_bytes()).await?;
    let mut body = pin!(body);
    while let Some(data) = body.next().await {
        let data = data?;
        if chunked && !data.is_empty() {
            stream.write_all(format!("{:x}\r\n", data.len()).as_bytes()).await?;
        }
        stream.write_all(&data).await?;
        if chunked && !data.is_empty() {
            stream.write_all(b"\r\n").await?;
        }
    }
    stream.write_all(if chunked { &b"0\r\n\r\n"[..] } else { &b""[..] }).await
}
