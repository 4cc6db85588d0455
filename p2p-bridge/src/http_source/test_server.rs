//! A gateway for tests with a configurable behaviour: handwritten HTTP/1.1 over loopback, because no correct server
//! sends incomplete bodies. Over TLS it is correct, and may use HTTP/2.

use crate::tls;
use content::scope::{DagScope, ScopeOptions};
use content::stored::coding::BodyEncoder;
use content::{Block, Cid, codec, hashes};
use futures::future::BoxFuture;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use reqwest::Certificate;
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// How it responds to a request for a block that it has.
#[derive(Debug, Clone)]
pub enum ServerMode {
    /// As specified.
    Honest,
    /// With the block as zstd.
    Zstd,
    /// With this body in this content coding.
    Coded(&'static str, Vec<u8>),
    /// With the head of the right block and other bytes.
    InvalidBlock,
    /// With five MiB, with or without `Content-Length`.
    Huge { announced: bool },
    /// Never.
    Silent,
    /// With half of the block, and then nothing.
    Stalling,
    /// With half of the block, and closes the connection.
    Breaking,
    /// With this status line and headers.
    Says(String),
    /// Closes the connection without a response.
    Hanging,
}

/// A request for a CAR.
#[derive(Debug, Clone, PartialEq)]
pub struct CarRequest {
    pub root: Cid,
    pub path: Vec<String>,
    pub scope: ScopeOptions,
    /// The number of requests for CARs before it.
    pub number: usize,
}

/// The response to a request for a CAR.
#[derive(Debug, Clone)]
pub struct CarResponse {
    /// The status line, and headers besides the length of the body.
    pub head: String,
    pub body: Vec<u8>,
    /// The length that is announced. Without it, the body ends with the connection.
    pub announced: Option<usize>,
    pub then: Then,
}

/// What happens after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The next request is read.
    Serve,
    /// The connection is closed.
    Close,
    /// Nothing.
    Hang,
    /// The body is sent again, without an end.
    Repeat,
}

impl CarResponse {
    /// A CAR, as specified.
    pub fn of(body: Vec<u8>) -> Self {
        let announced = Some(body.len());
        Self {
            head: "200 OK\r\nContent-Type: application/vnd.ipld.car; version=1".to_owned(),
            body,
            announced,
            then: Then::Serve,
        }
    }

    /// The same as zstd.
    pub fn zstd(body: &[u8]) -> Self {
        let response = Self::of(zstd(body));
        Self { head: format!("{}\r\nContent-Encoding: zstd", response.head), ..response }
    }

    /// No CAR.
    pub fn says(head: &str) -> Self {
        Self { head: head.to_owned(), body: Vec::new(), announced: Some(0), then: Then::Serve }
    }

    /// Only the beginning is sent, and the connection is closed.
    pub fn broken_after(mut self, bytes: usize) -> Self {
        self.body.truncate(bytes);
        Self { then: Then::Close, ..self }
    }
}

type CarAnswers = dyn Fn(CarRequest) -> BoxFuture<'static, CarResponse> + Send + Sync;

/// A received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedRequest {
    pub method: String,
    pub path: String,
    pub headers: String,
}

struct State {
    /// How requests for CARs are answered; without, as those for blocks.
    cars: Mutex<Option<Arc<CarAnswers>>>,
    car_requests: Mutex<Vec<CarRequest>>,
    blocks: Mutex<HashMap<Cid, Block>>,
    mode: Mutex<ServerMode>,
    asked: Mutex<Vec<ReceivedRequest>>,
    connections: AtomicUsize,
    /// The bytes of CARs that flow control has let through, over HTTP/2.
    car_bytes: AtomicUsize,
}

/// The server. It stops with the test's runtime.
#[derive(Clone)]
pub struct TestServer {
    address: SocketAddr,
    over_tls: bool,
    state: Arc<State>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes as zstd.
pub fn zstd(data: &[u8]) -> Vec<u8> {
    let mut encoder = BodyEncoder::new().expect("memory");
    let mut parts = encoder.encode(&bytes::Bytes::copy_from_slice(data)).expect("memory");
    parts.extend(encoder.finish().expect("memory"));
    parts.concat()
}

/// A raw block with these bytes.
pub fn block(data: impl Into<bytes::Bytes>) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, data.into()).expect("block")
}

impl TestServer {
    /// Starts a server with these blocks.
    pub async fn start(mode: ServerMode, blocks: &[Block]) -> Self {
        Self::listen(mode, blocks, None).await
    }

    /// Starts a TLS server with these blocks and one version of HTTP (`h2` or `http/1.1`). Its certificate is for
    /// `name`; also returns the issuing root certificate, which no system trusts.
    pub async fn start_tls(name: &str, version: &str, blocks: &[Block]) -> (Self, Certificate) {
        tls::use_ring();
        let [issuer_key, key] = [(); 2].map(|()| KeyPair::generate().expect("a key"));
        let mut issuer = CertificateParams::default();
        issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = issuer.self_signed(&issuer_key).expect("a root");
        let named = CertificateParams::new([name.to_owned()]).expect("a name");
        let issuer = Issuer::from_params(&issuer, &issuer_key);
        let certificate = named.signed_by(&key, &issuer).expect("a certificate");
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .expect("a key for the certificate");
        config.alpn_protocols = vec![version.as_bytes().to_vec()];
        let server = Self::listen(ServerMode::Honest, blocks, Some(TlsAcceptor::from(Arc::new(config)))).await;
        (server, Certificate::from_der(root.der()).expect("a certificate"))
    }

    async fn listen(mode: ServerMode, blocks: &[Block], tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let blocks = blocks.iter().map(|block| (*block.cid(), block.clone())).collect();
        let state = Arc::new(State {
            cars: Mutex::default(),
            car_requests: Mutex::default(),
            blocks: Mutex::new(blocks),
            mode: Mutex::new(mode),
            asked: Mutex::default(),
            connections: AtomicUsize::default(),
            car_bytes: AtomicUsize::default(),
        });
        let address = listener.local_addr().expect("bound");
        let server = Self { address, over_tls: tls.is_some(), state: state.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                state.connections.fetch_add(1, Ordering::Relaxed);
                match &tls {
                    Some(tls) => _ = tokio::spawn(serve_tls(tls.clone(), stream, state.clone())),
                    None => _ = tokio::spawn(serve(stream, state.clone())),
                }
            }
        });
        server
    }

    /// Its URL; with a host name over TLS, for the certificate.
    pub fn url(&self) -> String {
        if self.over_tls {
            return format!("https://localhost:{}", self.address.port());
        }
        format!("http://{}", self.address)
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }

    /// The bytes of CARs that flow control has let through, over HTTP/2.
    pub fn car_bytes(&self) -> usize {
        self.state.car_bytes.load(Ordering::Relaxed)
    }

    pub fn multiaddr(&self) -> libp2p::Multiaddr {
        format!("/ip4/{}/tcp/{}/http", self.address.ip(), self.address.port()).parse().expect("multiaddr")
    }

    pub fn set_mode(&self, mode: ServerMode) {
        *lock(&self.state.mode) = mode;
    }

    /// Answers requests for CARs.
    pub fn answer_cars(&self, answers: impl Fn(CarRequest) -> BoxFuture<'static, CarResponse> + Send + Sync + 'static) {
        *lock(&self.state.cars) = Some(Arc::new(answers));
    }

    /// The requests for CARs.
    pub fn car_requests(&self) -> Vec<CarRequest> {
        lock(&self.state.car_requests).clone()
    }

    /// The number of requests for single blocks.
    pub fn block_requests(&self) -> usize {
        self.asked().iter().filter(|request| request.method == "GET" && request.path.contains("format=raw")).count()
    }

    pub fn asked(&self) -> Vec<ReceivedRequest> {
        lock(&self.state.asked).clone()
    }
}

async fn serve_tls(tls: TlsAcceptor, stream: TcpStream, state: Arc<State>) {
    // A client that does not trust the certificate disconnects.
    let Ok(stream) = tls.accept(stream).await else { return };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        serve_http2(stream, state).await;
    } else {
        serve(stream, state).await;
    }
}

async fn serve_http2(stream: impl AsyncRead + AsyncWrite + Unpin, state: Arc<State>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let asked = ReceivedRequest {
            method: request.method().to_string(),
            path: request.uri().path_and_query().expect("a path").to_string(),
            headers: format!("{:?}", request.headers()),
        };
        lock(&state.asked).push(asked.clone());
        tokio::spawn(answer_http2(respond, state.clone(), asked.path));
    }
}

async fn answer_http2(mut respond: h2::server::SendResponse<bytes::Bytes>, state: Arc<State>, path: String) {
    let head = |status: u16, content_type: &str| {
        let head = http::Response::builder().status(status).header("content-type", content_type);
        head.body(()).expect("a head")
    };
    let car = car_request(&state, &path).zip(lock(&state.cars).clone());
    if let Some((request, answers)) = car {
        lock(&state.car_requests).push(request.clone());
        let mut data = bytes::Bytes::from(answers(request).await.body);
        // The client may have disconnected.
        let Ok(mut body) = respond.send_response(head(200, "application/vnd.ipld.car"), false) else { return };
        while !data.is_empty() {
            body.reserve_capacity(data.len());
            let Some(Ok(bytes)) = std::future::poll_fn(|cx| body.poll_capacity(cx)).await else { return };
            let part = data.split_to(bytes.min(data.len()));
            state.car_bytes.fetch_add(part.len(), Ordering::Relaxed);
            if body.send_data(part, data.is_empty()).is_err() {
                return;
            }
        }
        return;
    }
    let name = path.split('?').next().and_then(|path| path.rsplit('/').next());
    let held = name.and_then(|name| name.parse().ok()).and_then(|cid| lock(&state.blocks).get(&cid).cloned());
    let status = if held.is_some() { 200 } else { 404 };
    let data = held.map(|block| block.data().clone()).unwrap_or_default();
    if let Ok(mut body) = respond.send_response(head(status, "application/vnd.ipld.raw"), false) {
        let _ = body.send_data(data, true);
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, state: Arc<State>) {
    let mut stream = BufReader::new(stream);
    while let Some(asked) = read_head(&mut stream).await {
        lock(&state.asked).push(asked.clone());
        if answer(&mut stream, &state, &asked).await.is_none() {
            return;
        }
    }
}

async fn read_head(stream: &mut (impl AsyncBufRead + Unpin)) -> Option<ReceivedRequest> {
    let mut first = String::new();
    stream.read_line(&mut first).await.ok().filter(|bytes| *bytes > 0)?;
    let mut headers = String::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok().filter(|bytes| *bytes > 0)?;
        if line == "\r\n" {
            break;
        }
        headers.push_str(&line.to_ascii_lowercase());
    }
    let mut words = first.split_whitespace().map(str::to_owned);
    Some(ReceivedRequest { method: words.next()?, path: words.next()?, headers })
}

/// `None` if the connection is to be closed.
async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    state: &State,
    asked: &ReceivedRequest,
) -> Option<()> {
    if let Some(request) = car_request(state, &asked.path) {
        lock(&state.car_requests).push(request.clone());
        let answers = lock(&state.cars).clone();
        if let Some(answers) = answers {
            return send_car(stream, answers(request).await).await;
        }
    }
    let cid = asked.path.split('?').next()?.split('/').nth(2)?.parse::<Cid>().ok()?;
    let held = lock(&state.blocks).get(&cid).cloned();
    let mode = lock(&state.mode).clone();
    let ok = |length: usize| {
        format!("HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ipld.raw\r\nContent-Length: {length}\r\n\r\n")
    };
    let Some(block) = held else {
        return send(stream, b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\n", b"none").await;
    };
    let (data, half) = (block.data(), block.data().len() / 2);
    if asked.method == "HEAD" && matches!(mode, ServerMode::Honest | ServerMode::InvalidBlock) {
        return send(stream, ok(data.len()).as_bytes(), b"").await;
    }
    match mode {
        ServerMode::Honest => send(stream, ok(data.len()).as_bytes(), data).await,
        ServerMode::Zstd => send_coded(stream, "zstd", &zstd(data)).await,
        ServerMode::Coded(coding, body) => send_coded(stream, coding, &body).await,
        ServerMode::InvalidBlock => {
            let mut other = data.to_vec();
            other.iter_mut().take(1).for_each(|byte| *byte ^= 1);
            send(stream, ok(other.len()).as_bytes(), &other).await
        }
        ServerMode::Huge { announced: true } => send(stream, ok(5 << 20).as_bytes(), &vec![0; 5 << 20]).await,
        ServerMode::Huge { announced: false } => {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ipld.raw\r\nConnection: close\r\n\r\n";
            send(stream, head.as_bytes(), &vec![0; 5 << 20]).await;
            None
        }
        ServerMode::Silent => wait_for_the_end(stream).await,
        ServerMode::Stalling => {
            send(stream, ok(data.len()).as_bytes(), &data[..half]).await?;
            wait_for_the_end(stream).await
        }
        ServerMode::Breaking => {
            send(stream, ok(data.len()).as_bytes(), &data[..half]).await?;
            None
        }
        ServerMode::Says(head) => {
            send(stream, format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n").as_bytes(), b"").await
        }
        ServerMode::Hanging => None,
    }
}

/// The request for a CAR with this path and query.
fn car_request(state: &State, path: &str) -> Option<CarRequest> {
    let (path, query) = path.split_once('?')?;
    let parameter = |name: &str| query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name));
    parameter("format").filter(|(_, format)| *format == "car")?;
    let mut segments = path.split('/').skip(2).map(decoded);
    let entity_bytes = parameter("entity-bytes").map(|(_, range)| range.parse().expect("a range"));
    let scope = DagScope::parse(parameter("dag-scope")?.1).expect("a scope");
    Some(CarRequest {
        root: segments.next()?.parse().ok()?,
        path: segments.collect(),
        scope: ScopeOptions { scope, entity_bytes, duplicates: false },
        number: lock(&state.car_requests).len(),
    })
}

fn decoded(name: &str) -> String {
    let (mut out, mut bytes) = (Vec::new(), name.bytes());
    while let Some(byte) = bytes.next() {
        let hex = |digit: u8| char::from(digit).to_digit(16).expect("a digit") as u8;
        match byte {
            b'%' => out.push(hex(bytes.next().expect("two")) * 16 + hex(bytes.next().expect("two"))),
            byte => out.push(byte),
        }
    }
    String::from_utf8(out).expect("is UTF-8")
}

async fn send_car(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), response: CarResponse) -> Option<()> {
    let CarResponse { head, body, announced, then } = response;
    let length = announced.map(|bytes| format!("Content-Length: {bytes}\r\n")).unwrap_or_default();
    send(stream, format!("HTTP/1.1 {head}\r\n{length}\r\n").as_bytes(), &body).await?;
    match then {
        Then::Serve if announced.is_some() => Some(()),
        Then::Serve | Then::Close => None,
        Then::Hang => wait_for_the_end(stream).await,
        Then::Repeat => loop {
            send(stream, b"", &body).await?;
        },
    }
}

async fn send_coded(stream: &mut (impl AsyncWrite + Unpin), coding: &str, body: &[u8]) -> Option<()> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ipld.raw\r\nContent-Encoding: {coding}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    send(stream, head.as_bytes(), body).await
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), head: &[u8], body: &[u8]) -> Option<()> {
    stream.write_all(head).await.ok()?;
    stream.write_all(body).await.ok()?;
    stream.flush().await.ok()
}

async fn wait_for_the_end(stream: &mut (impl AsyncRead + Unpin)) -> Option<()> {
    let _ = tokio::time::timeout(Duration::from_secs(120), stream.read_u8()).await;
    None
}
