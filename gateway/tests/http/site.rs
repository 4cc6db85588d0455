//! A gateway on a free port, and its clients.

use crate::certificate::{Encrypted, Files};
use bytes::Bytes;
use cache::{BlockStore, Disk, DiskOptions, Ram, SiteTier, TierMetrics, Tiers};
use content::ipns::Record;
use content::names::Key;
use content::{
    AllowAll, Block, BlockSource, Cid, MemoryBlocks, Name, NameError, NameResolver, Policy, Resolution, SourceError,
};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use gateway::limits::RequestLimits;
use gateway::listen::connection::Connection;
use gateway::listen::drain::Drain;
use gateway::listen::server::{ConnectionLimits, RequestBody, serve};
use gateway::listen::socket::Listener;
use gateway::metrics::HttpMetrics;
use gateway::pipeline::{Gateway, Wiring};
use gateway::public;
use gateway::represent::encoded::Encoded;
use gateway::resolve::source::{FetchPermits, PermitSource, Sources};
use gateway::routing_v1::finder::PeerFinder;
use gateway::routing_v1::metrics::RoutingMetrics;
use gateway::routing_v1::{self, Routing};
use http_body_util::Full;
use prometheus_client::registry::Registry;
use reqwest::Response;
use services::health::{Health, Stage};
use services::isolation::Isolation;
use services::limiter::Limiter;
use services::telemetry::Tracer;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// The timeout of conditions that tests wait for.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The setup of a gateway.
pub struct Setup {
    pub blocks: Vec<Block>,
    /// The storage that this gateway shares with the others of its site, if it belongs to one.
    pub shared: Option<Arc<dyn BlockStore>>,
    pub upstream: Option<Arc<dyn BlockSource>>,
    pub policy: Arc<dyn Policy>,
    pub limits: RequestLimits,
    pub http: config::Http,
    pub welcome: Option<Cid>,
    pub names: Arc<dyn NameResolver>,
    pub routing: Option<(Arc<dyn PeerFinder>, routing_v1::RoutingResponseLimits)>,
    /// Whether there is a listener with TLS as well, which speaks HTTP/3, too.
    pub tls: bool,
    /// Begins traces, if requests are traced.
    pub tracer: Option<Arc<Tracer>>,
    pub isolation: Option<Arc<Isolation>>,
}

impl Setup {
    pub fn new(blocks: &[&Block]) -> Self {
        Self {
            blocks: blocks.iter().map(|block| (*block).clone()).collect(),
            shared: None,
            upstream: None,
            policy: Arc::new(AllowAll),
            limits: RequestLimits::default(),
            http: config::Http::default(),
            welcome: None,
            names: Arc::new(NoNames),
            routing: None,
            tls: false,
            tracer: None,
            isolation: None,
        }
    }

    pub async fn start(self) -> Site {
        let dir = TempDir::new().expect("a temporary folder");
        let disk = Disk::open(&dir.path().join("store"), DiskOptions::default()).expect("the store opens");
        let mut registry = Registry::default();
        let tier_metrics = TierMetrics::register(&mut registry);
        let (ram, policy) = (Ram::new(64 << 20), Arc::clone(&self.policy));
        let tiers = match self.shared {
            None => Tiers::new(ram, disk.handle(), policy, tier_metrics),
            Some(store) => {
                let [blocks, blocks_for_peers] = [store.handle(), store.handle()].map(|handle| Arc::new(handle) as _);
                let wait_max = std::time::Duration::from_secs(60);
                let site = SiteTier { blocks, blocks_for_peers, store, wait_max };
                Tiers::of_site(ram, disk.handle(), site, policy, tier_metrics)
            }
        };
        for block in self.blocks {
            disk.put_cached(block).await;
        }
        disk.flush().await.expect("the blocks are written");
        let metrics = Arc::new(HttpMetrics::register(&mut registry));
        let health = Arc::<Health>::default();
        health.enter(Stage::Serving);
        let (names, http) = (Arc::clone(&self.names), &self.http);
        let routing = self.routing.map(|(finder, limits)| {
            let metrics = RoutingMetrics::register(&mut registry);
            Routing::new(
                finder,
                names,
                Arc::new(tiers.local()),
                Arc::clone(tiers.policy()),
                routing_v1::limiter(http),
                limits,
                metrics,
            )
        });
        let look_ups = LookUps::default();
        let wiring = Wiring {
            routing,
            encoded: self.http.zstd.then(|| Encoded::new(tiers.clone(), 16 << 20)),
            sources: Arc::new(sources(&tiers, self.upstream, &self.http, &look_ups)),
            names: self.names,
            policy: self.policy,
            metrics: Arc::clone(&metrics),
            health: Arc::clone(&health),
            welcome: self.welcome,
        };
        let gateway = Gateway::new(wiring, &self.http, self.limits).tracing_with(self.tracer);
        let gateway = Arc::new(gateway.refusing_while(self.isolation));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("is bound");
        let drain = Drain::default();
        let memory = Some(Arc::clone(&gateway.limits().memory));
        let limits = ConnectionLimits { memory, ..ConnectionLimits::of(&self.http) };
        let encrypted = match self.tls {
            true => {
                let (files, certificate) = Files::new();
                let (listener, limits, socket) = files.listeners(&limits).await;
                let address = listener.local_addr().expect("is bound");
                let parts = || (Arc::clone(&metrics), drain.clone(), Arc::clone(&gateway));
                let (of_quic, draining, answering) = parts();
                tokio::spawn(public::serve_http3(socket.into(), limits.clone(), of_quic, draining, answering));
                let (of_tcp, draining, answering) = parts();
                tokio::spawn(public::serve(listener.into(), limits, of_tcp, draining, answering));
                Some(Encrypted { address, certificate })
            }
            false => None,
        };
        tokio::spawn(public::serve(listener.into(), limits, metrics, drain.clone(), Arc::clone(&gateway)));
        Site { address, encrypted, gateway, registry, health, drain, look_ups, _dir: dir }
    }
}

fn sources(tiers: &Tiers, upstream: Option<Arc<dyn BlockSource>>, http: &config::Http, look_ups: &LookUps) -> Sources {
    let upstream = upstream.unwrap_or_else(|| Arc::new(MemoryBlocks::new()));
    let local = Arc::new(CountingSource { source: tiers.held(), look_ups: Arc::clone(look_ups) });
    let through = tiers.clone();
    let open = move |_: &Cid, gate: FetchPermits| {
        let observer = gate.lookup_observer();
        Arc::new(through.observed(Arc::new(PermitSource::new(Arc::clone(&upstream), gate)), observer)) as _
    };
    let fetches = Arc::new(Limiter::new(http.misses_max as usize, http.client_misses_max as usize));
    Sources { local, open_session: Box::new(open), fetches, policy: Arc::clone(tiers.policy()) }
}

/// The number of block look-ups of requests, counted before memory and disk.
type LookUps = Arc<Mutex<HashMap<Cid, u64>>>;

/// Counts look-ups.
struct CountingSource<S> {
    source: S,
    look_ups: LookUps,
}

impl<S: BlockSource> BlockSource for CountingSource<S> {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        *self.look_ups.lock().expect("is sound").entry(*cid).or_default() += 1;
        self.source.peek(cid)
    }

    fn read_now(&self, cid: &Cid) -> Option<Block> {
        self.source.read_now(cid)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.source.inline(cid)
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.source.get(cid)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.source.has(cid)
    }
}

/// Resolves no names.
pub struct NoNames;

impl NameResolver for NoNames {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        futures::future::ready(Err(match name.clone() {
            Name::Domain(domain) => NameError::NoDnsLink { domain },
            name => NameError::Offline { name },
        }))
        .boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        futures::future::ready(Err(NameError::Offline { name: Name::Key(*key) })).boxed()
    }
}

/// A running gateway.
pub struct Site {
    pub address: SocketAddr,
    encrypted: Option<Encrypted>,
    pub gateway: Arc<Gateway>,
    pub health: Arc<Health>,
    pub drain: Drain,
    registry: Registry,
    look_ups: LookUps,
    _dir: TempDir,
}

impl Site {
    /// The listener with TLS.
    pub fn encrypted(&self) -> &Encrypted {
        self.encrypted.as_ref().expect("there is a listener with TLS")
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> reqwest::Response {
        self.try_send(method, path, headers).await.expect("a response")
    }

    /// The same for a response that may be aborted: the reset may discard all that was sent before.
    pub async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> reqwest::Result<reqwest::Response> {
        p2p_bridge::tls::use_ring();
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build();
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let mut request = client.expect("a client").request(method, self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await
    }

    pub async fn get(&self, path: &str) -> reqwest::Response {
        self.send("GET", path, &[]).await
    }

    /// Sends raw bytes and reads to the end; returns what was received before the connection was closed or reset.
    pub async fn exchange(&self, request: &str) -> (Vec<u8>, std::io::Result<()>) {
        let mut stream = self.connect(request).await;
        let mut answer = Vec::new();
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an end in time");
        (answer, end.map(|_| ()))
    }

    /// Connects and sends raw bytes.
    pub async fn connect(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("connects");
        stream.write_all(request.as_bytes()).await.expect("sends");
        stream
    }

    /// The same with a small receive buffer.
    pub async fn connect_slowly(&self, request: &str) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a size");
        let mut stream = socket.connect(self.address).await.expect("connects");
        stream.write_all(request.as_bytes()).await.expect("sends");
        stream
    }

    /// The number of look-ups of a block so far.
    pub fn look_ups(&self, block: &Block) -> u64 {
        self.look_ups.lock().expect("is sound").get(block.cid()).copied().unwrap_or_default()
    }

    /// The value of a metric, by its name with labels.
    pub fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("encodes");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().expect("a whole number")
    }

    /// Waits until a metric is `expected`.
    pub async fn until_metric(&self, name: &str, expected: u64) {
        until(|| self.metric(name) == expected, &format!("{name} {expected}")).await;
    }
}

/// A server whose answers are the address of the peer, once the connection is admitted and the gate lets it pass.
pub struct PeerEcho {
    pub metrics: Arc<HttpMetrics>,
    pub drain: Drain,
    /// A request waits for one permit, unless its path is "/".
    pub gate: Arc<Semaphore>,
    serving: tokio::task::JoinHandle<()>,
}

impl PeerEcho {
    pub fn start(listener: impl Into<Listener>, limits: ConnectionLimits) -> Self {
        let metrics = Arc::new(HttpMetrics::register(&mut Registry::default()));
        let (drain, gate) = (Drain::default(), Arc::new(Semaphore::new(0)));
        let gated = Arc::clone(&gate);
        let handler = move |request: http::Request<RequestBody>, connection: Arc<Connection>| {
            let gate = Arc::clone(&gated);
            async move {
                if connection.admitted().await.is_err() {
                    return http::Response::new(Full::new(Bytes::from_static(b"full")));
                }
                if request.uri().path() != "/" {
                    gate.acquire().await.expect("is open").forget();
                }
                http::Response::new(Full::new(Bytes::from(connection.peer().to_string())))
            }
        };
        let serving = tokio::spawn(serve(listener.into(), limits, Arc::clone(&metrics), drain.clone(), handler));
        Self { metrics, drain, gate, serving }
    }

    /// Waits until no more connections are accepted.
    pub async fn closed(self) {
        self.serving.await.expect("no panic");
    }
}

/// Waits for a condition that other tasks fulfil.
pub async fn until(condition: impl Fn() -> bool, what: &str) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::task::yield_now().await;
    }
}

/// A network without content: requests fail once the gate is open.
pub struct FailingNetwork {
    gate: Arc<Semaphore>,
    error: fn(Cid) -> SourceError,
    asked: AtomicU64,
}

impl FailingNetwork {
    /// With an open gate.
    pub fn at_once(error: fn(Cid) -> SourceError) -> Arc<Self> {
        let gate = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        Arc::new(Self { gate, error, asked: AtomicU64::default() })
    }

    /// With a gate that opens when the semaphore gets permits.
    pub fn gated(error: fn(Cid) -> SourceError) -> (Arc<Self>, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(0));
        (Arc::new(Self { gate: Arc::clone(&gate), error, asked: AtomicU64::default() }), gate)
    }

    /// The number of requested blocks so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

impl BlockSource for FailingNetwork {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let (gate, error) = (Arc::clone(&self.gate), (self.error)(*cid));
        async move {
            let _open = gate.acquire().await;
            Err(error)
        }
        .boxed()
    }

    fn has(&self, _cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        std::future::ready(Ok(false)).boxed()
    }
}

/// A header as text; empty if it is missing.
pub fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().expect("ASCII"))
}
