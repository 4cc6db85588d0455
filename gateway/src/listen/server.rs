//! The HTTP server: accept loop, timeouts, tunnels, graceful drain.
//!
//! Goals: no client can keep a connection open without progress, or exhaust the connections of others
//! ([`crate::listen::admission`]); a panic in a connection does not end the process; an aborted response resets its
//! connection, so that an HTTP/1.0 client does not take the end of the connection for the end of the content; a
//! graceful drain lets open requests finish.
//!
//! Non-goals: HTTP/2. Its streams would need limits of their own: a client with a closed flow-control window keeps the
//! stream's memory without the server ever writing.

use crate::listen::admission::{self, Admission, Slot};
use crate::listen::rate::{Paced, RateMeter, RateMin, too_slow};
use crate::listen::tls::Tls;
use crate::listen::wire::StrictLines;
use crate::metrics::HttpMetrics;
use bytes::Bytes;
use futures::FutureExt as _;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use services::limiter::Full;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The body of a request.
pub type RequestBody = Paced<Incoming>;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The pause after a failed accept, which is usually a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time for a new connection's first head, before the connection counts as idle.
const FIRST_HEAD_GRACE: Duration = Duration::from_secs(1);

/// The limits of a connection. Clones share the connection count.
#[derive(Clone)]
pub struct ConnectionLimits {
    /// The timeout of a request's head, and of an idle connection.
    pub header_timeout: Duration,
    /// The timeout of a write that the client does not read.
    pub send_timeout: Duration,
    /// The minimum rate at which a client reads a response and sends a body.
    pub rate_min: RateMin,
    /// The maximum length of a request's head, in bytes.
    pub head_bytes_max: usize,
    /// The connection limits.
    pub admission: Arc<Admission>,
    /// TLS, if the listener uses it.
    pub tls: Option<Arc<Tls>>,
}

impl ConnectionLimits {
    /// The configured limits.
    pub fn of(http: &config::Http) -> Self {
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let bounds = admission::Bounds {
            all: size(http.connections_max),
            each: size(http.client_connections_max),
            exempt: http.trusted_proxies.clone(),
            patience: admission::PATIENCE,
        };
        Self {
            header_timeout: Duration::from_secs(http.header_timeout_seconds),
            send_timeout: Duration::from_secs(http.send_timeout_seconds),
            rate_min: RateMin::of(http),
            head_bytes_max: size(http.head_bytes_max),
            admission: Arc::new(Admission::new(bounds)),
            tls: None,
        }
    }
}

/// The state that the parts of one connection share.
#[derive(Debug)]
pub struct Connection {
    peer: SocketAddr,
    reset: AtomicBool,
    /// The tunnel of the last request for one, and the address of its client, before the connection is upgraded.
    upgrade: Mutex<Option<(OnUpgrade, IpAddr)>>,
    /// The address of the client that requested the tunnel, once the connection is upgraded to one.
    tunnel_client: OnceLock<IpAddr>,
    /// Its slot in the admission control.
    slot: OnceLock<Slot>,
    /// Cancelled when the connection is evicted.
    evicted: CancellationToken,
    /// Requests in progress: from the head of each to the end of its response's body.
    exchanges: AtomicUsize,
    since: Instant,
    /// The time of the last write, in milliseconds after `since`; 0 before the first.
    sent: AtomicU64,
    /// Whether a write is pending.
    sending: AtomicBool,
}

impl Connection {
    /// A connection with the address `peer`.
    pub fn new(peer: SocketAddr) -> Self {
        Self {
            peer,
            reset: AtomicBool::default(),
            upgrade: Mutex::default(),
            tunnel_client: OnceLock::new(),
            slot: OnceLock::new(),
            evicted: CancellationToken::new(),
            exchanges: AtomicUsize::default(),
            since: Instant::now(),
            sent: AtomicU64::default(),
            sending: AtomicBool::default(),
        }
    }

    /// The address of the other end: a client or a proxy.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether a tunnel can be requested; nested tunnels are not supported.
    pub fn may_become_tunnel(&self) -> bool {
        self.tunnel_client.get().is_none()
    }

    /// The address of the client that requested this tunnel. A proxy that forwards the tunnel does not see its
    /// requests, so `X-Forwarded-*` headers in it come from the client and are not trusted.
    pub fn tunnel_client(&self) -> Option<IpAddr> {
        self.tunnel_client.get().copied()
    }

    /// Waits until the connection is admitted, for a limited time. Until then only health checks are answered.
    ///
    /// # Errors
    /// [`Full`]: which limit is reached.
    pub async fn admitted(&self) -> Result<(), Full> {
        let Some(slot) = self.slot.get() else { return Ok(()) };
        tokio::select! {
            biased;
            admitted = slot.admitted() => admitted,
            // The connection was evicted.
            () = self.evicted.cancelled() => Err(Full::All),
        }
    }

    /// Accepts the tunnel that a client requests. Requests in it are served by this gateway; it leads nowhere else. If
    /// the request is rejected, the connection is not upgraded, and another client of a proxy may request a tunnel.
    pub fn become_tunnel<B>(&self, request: &mut Request<B>, client: IpAddr) {
        // The upgrade holds a reference to this connection, so it must be taken out again: that happens at the end of
        // the exchange that requested it.
        if self.may_become_tunnel() {
            let requested = (hyper::upgrade::on(request), client);
            *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = Some(requested);
        }
    }

    fn take_tunnel(&self) -> Option<OnUpgrade> {
        let (upgrade, client) = self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        _ = self.tunnel_client.set(client);
        Some(upgrade)
    }

    /// Closes the connection with a reset (RST) instead of a FIN.
    pub fn reset_on_close(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    /// Records a completed write.
    fn sent(&self) {
        self.sending.store(false, Ordering::Relaxed);
        let after = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.sent.store(after.max(1), Ordering::Relaxed);
    }

    /// Since when the server waits for the head of a request; `None` while a request or a write is in progress.
    fn awaiting_head_since(&self) -> Option<Instant> {
        let awaits_head = self.exchanges.load(Ordering::Relaxed) == 0 && !self.sending.load(Ordering::Relaxed);
        awaits_head.then(|| self.since + Duration::from_millis(self.sent.load(Ordering::Relaxed)))
    }

    /// Waits until the timeout for the head of a request has passed.
    ///
    /// hyper creates a timer for each head. This uses one timer for the whole connection, which is reset only when it
    /// fires too early: once each timeout instead of once each request.
    async fn head_overdue(&self, timeout: Duration) {
        let mut wait = pin!(tokio::time::sleep(timeout));
        loop {
            wait.as_mut().await;
            let due = self.awaiting_head_since().unwrap_or_else(Instant::now) + timeout;
            if due <= Instant::now() {
                return;
            }
            wait.as_mut().reset(due);
        }
    }
}

impl admission::Evictable for Connection {
    fn idle_since(&self) -> Option<Instant> {
        // The first head of a new connection is expected soon. Answered connections are evicted first: clients expect
        // keep-alive connections to close, and retry.
        let is_new = self.sent.load(Ordering::Relaxed) == 0;
        self.awaiting_head_since().map(|since| if is_new { since + FIRST_HEAD_GRACE } else { since })
    }

    fn evict(&self) {
        self.evicted.cancel();
    }
}

/// A request in progress; dropped with the body of its response.
struct ActiveExchange(Arc<Connection>);

impl ActiveExchange {
    fn begin(connection: &Arc<Connection>) -> Self {
        connection.exchanges.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connection))
    }
}

impl Drop for ActiveExchange {
    fn drop(&mut self) {
        self.0.exchanges.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response, which ends the exchange when it is dropped.
struct ExchangeBody<B> {
    body: B,
    _exchange: ActiveExchange,
}

impl<B: Body + Unpin> Body for ExchangeBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The shutdown signal of all connections.
#[derive(Debug, Clone, Default)]
struct ShutdownSignal {
    token: CancellationToken,
    /// A copy of the token's state: all connections share the token's lock, and each wake-up checks this.
    sent: Arc<AtomicBool>,
}

impl ShutdownSignal {
    fn send(&self) {
        self.sent.store(true, Ordering::SeqCst);
        self.token.cancel();
    }

    /// Waits for the signal. Only the first poll registers a waker, so the same task must poll this to the end.
    async fn wait(&self) {
        let mut cancelled = pin!(self.token.cancelled());
        let mut waits = false;
        std::future::poll_fn(|cx| {
            if waits && !self.sent.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            waits = true;
            cancelled.as_mut().poll(cx)
        })
        .await;
    }
}

/// Drains servers gracefully. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    stop: ShutdownSignal,
    connections: TaskTracker,
}

impl Drain {
    /// Stops accepting and waits for open requests; returns whether they finished within `timeout`.
    pub async fn finish(&self, timeout: Duration) -> bool {
        self.stop.send();
        self.connections.close();
        tokio::time::timeout(timeout, self.connections.wait()).await.is_ok()
    }

    /// The number of open connections.
    pub fn open(&self) -> usize {
        self.connections.len()
    }
}

/// Accepts connections until the drain begins, and serves each in its own task.
pub async fn serve<H, F, B>(
    listener: TcpListener,
    limits: ConnectionLimits,
    metrics: Arc<HttpMetrics>,
    drain: Drain,
    handler: H,
) where
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    while let Some(accepted) = until_shutdown(&drain, listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after_accept_error(&error).await;
                continue;
            }
        };
        let (limits, metrics, handler, stop) =
            (limits.clone(), Arc::clone(&metrics), handler.clone(), drain.stop.clone());
        // Counted in the order of arrival: tasks start in any order, and an older connection must not evict a newer
        // one.
        let counted = CountedConnection::register(&limits.admission, peer);
        drain.connections.spawn(async move {
            metrics.plain.connections.inc();
            let serving = serve_connection(stream, counted, &limits, handler, stop);
            let served = AssertUnwindSafe(serving).catch_unwind().await;
            metrics.plain.connections.dec();
            if served.is_err() {
                metrics.plain.panics.inc();
                tracing::error!("a panic closed a connection: this is a bug, please report it with the message above");
            }
        });
    }
}

async fn until_shutdown<F: Future>(drain: &Drain, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        () = drain.stop.wait() => None,
        output = future => Some(output),
    }
}

/// A connection that was reset before it was accepted needs no pause.
async fn pause_after_accept_error(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "the server cannot accept connections: check the limit of open files");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

async fn serve_connection<H, F, B>(
    stream: TcpStream,
    counted: CountedConnection,
    limits: &ConnectionLimits,
    handler: H,
    stop: ShutdownSignal,
) where
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let state = Arc::clone(&counted.state);
    // No Nagle delay: hyper writes a head and its body together.
    _ = stream.set_nodelay(true);
    let monitored = MonitoredStream::new(stream, limits, Arc::clone(&state));
    match &limits.tls {
        None => serve_requests(monitored, limits, &handler, &stop, &state).await,
        Some(tls) => {
            let encrypted = tokio::select! {
                encrypted = tls_handshake(tls, monitored, limits) => encrypted,
                () = state.evicted.cancelled() => return,
            };
            let Some(encrypted) = encrypted else { return };
            serve_requests(encrypted, limits, &handler, &stop, &state).await;
        }
    }
    // A tunnel carries the same kind of requests.
    if let Some(tunnel) = state.take_tunnel()
        && let Ok(tunnel) = tunnel.await
    {
        serve_requests(TokioIo::new(tunnel), limits, &handler, &stop, &state).await;
    }
}

/// A connection that is counted until this is dropped.
struct CountedConnection {
    admission: Arc<Admission>,
    state: Arc<Connection>,
}

impl CountedConnection {
    fn register(admission: &Arc<Admission>, peer: SocketAddr) -> Self {
        let state = Arc::new(Connection::new(peer));
        _ = state.slot.set(admission.register(peer.ip(), Arc::clone(&state) as _));
        Self { admission: Arc::clone(admission), state }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        // The connection list refers to this connection, which owns its slot: this breaks the cycle.
        if let Some(slot) = self.state.slot.get() {
            self.admission.release(slot);
        }
    }
}

/// Performs the TLS handshake, within the timeout of a request's head.
async fn tls_handshake(
    tls: &Arc<Tls>,
    stream: MonitoredStream,
    limits: &ConnectionLimits,
) -> Option<TlsStream<MonitoredStream>> {
    let accepting = async { tls.acceptor().await?.accept(stream).await };
    match tokio::time::timeout(limits.header_timeout, accepting).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}

/// Serves the requests of a connection one after the other.
async fn serve_requests<I, H, F, B>(
    io: I,
    limits: &ConnectionLimits,
    handler: &H,
    stop: &ShutdownSignal,
    state: &Arc<Connection>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let exchange = ActiveExchange::begin(state);
        let request = request.map(|body| Paced::new(body, limits.rate_min));
        // Boxed, because hyper reserves its size for each connection, also for idle ones.
        let response = Box::pin(handler(request, Arc::clone(state)));
        async move { Ok::<_, Infallible>(response.await.map(|body| ExchangeBody { body, _exchange: exchange })) }
    });
    let builder = builder(limits);
    let io = TokioIo::new(StrictLines::new(io));
    let mut serving = pin!(builder.serve_connection(io, service).with_upgrades());
    let mut overdue = pin!(state.head_overdue(limits.header_timeout));
    let result = tokio::select! {
        biased;
        result = serving.as_mut() => result,
        () = overdue.as_mut() => return,
        () = state.evicted.cancelled() => {
            // A request may have arrived at the same time.
            if state.awaiting_head_since().is_some() {
                return;
            }
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                result = serving => result,
                () = overdue => return,
            }
        }
        () = stop.wait() => {
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                result = serving => result,
                () = overdue => return,
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

fn builder(limits: &ConnectionLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).max_buf_size(limits.head_bytes_max.max(8192));
    builder
}

/// A TCP stream with a write timeout and a minimum read rate of its client.
struct MonitoredStream {
    stream: TcpStream,
    state: Arc<Connection>,
    send_timeout: Duration,
    rate_min: RateMin,
    rate: RateMeter,
    unsent: Option<Pin<Box<Sleep>>>,
}

impl MonitoredStream {
    fn new(stream: TcpStream, limits: &ConnectionLimits, state: Arc<Connection>) -> Self {
        let (send_timeout, rate_min) = (limits.send_timeout, limits.rate_min);
        Self { stream, state, send_timeout, rate_min, rate: RateMeter::new(rate_min), unsent: None }
    }

    /// Fails writes that exceed the timeout or the minimum rate.
    fn check_progress(&mut self, cx: &mut Context<'_>, sending: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(sent) = sending {
            self.state.sent();
            if self.rate.record(*sent.as_ref().unwrap_or(&0), Instant::now()) {
                return Poll::Ready(sent);
            }
            self.state.reset_on_close();
            return Poll::Ready(Err(too_slow("reading of the response", self.rate_min)));
        }
        self.rate.start_wait(Instant::now());
        let deadline = Instant::now() + self.send_timeout;
        let sleep = self.unsent.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.state.sending.swap(true, Ordering::Relaxed) {
            sleep.as_mut().reset(deadline);
        }
        std::task::ready!(sleep.as_mut().poll(cx));
        self.state.reset_on_close();
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read the response (http.send_timeout_seconds)",
        )))
    }
}

impl AsyncRead for MonitoredStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for MonitoredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_progress(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check_progress(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for MonitoredStream {
    fn drop(&mut self) {
        if self.state.reset.load(Ordering::Relaxed) {
            _ = self.stream.set_zero_linger();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::admission::Evictable as _;

    /// A connection that began `ago`.
    fn connection_since(ago: Duration) -> Connection {
        let mut connection = Connection::new(([127, 0, 0, 1], 1).into());
        connection.since -= ago;
        connection
    }

    #[test]
    fn an_answered_connection_is_evicted_before_a_new_one() {
        let answered = connection_since(FIRST_HEAD_GRACE * 2);
        answered.sent();
        assert!(answered.idle_since() < connection_since(FIRST_HEAD_GRACE / 2).idle_since());
        // Only for a limited time.
        assert!(connection_since(FIRST_HEAD_GRACE * 2).idle_since() < answered.idle_since());
        // A connection that answers a request is not evicted.
        answered.exchanges.fetch_add(1, Ordering::Relaxed);
        assert_eq!(answered.idle_since(), None);
    }
}
