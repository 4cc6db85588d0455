//! Connections: accepting, protecting, draining.
//!
//! Goals: no client can hold a connection without making progress, nor keep others out ([`crate::listen::admission`]); a connection never
//! takes the process down with it; a response that broke off resets its connection, so that not even HTTP/1.0 takes the end for the
//! end of the content; open requests finish before the process does.
//!
//! Non-goals: HTTP/2. Its streams would need budgets of their own: a client that grants no window holds a stream's memory without
//! ever being written to.

use crate::listen::admission::{self, Admission, Ticket};
use crate::listen::rate::{Paced, Rate, RateMin, too_slow};
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

/// How long to wait after the system refused to accept: for file descriptors to be freed, usually.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a new connection has for its first head before it is idle like those that were answered.
const FIRST_HEAD: Duration = Duration::from_secs(1);

/// What a connection may cost. Clones share the count of connections.
#[derive(Clone)]
pub struct ConnectionLimits {
    /// How long a request's head may take, and how long a connection may be idle.
    pub header_timeout: Duration,
    /// How long the client may leave unread what is sent.
    pub send_timeout: Duration,
    /// The least that a client takes of a response, and sends of a body.
    pub rate_min: RateMin,
    /// Bytes of a request's head.
    pub head_bytes_max: usize,
    /// How many there may be.
    pub admission: Arc<Admission>,
    /// What connections are encrypted with, if they are.
    pub tls: Option<Arc<Tls>>,
}

impl ConnectionLimits {
    /// The limits that are configured.
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

/// What the parts of one connection tell each other.
#[derive(Debug)]
pub struct Connection {
    peer: SocketAddr,
    reset: AtomicBool,
    /// The tunnel that the connection becomes, once it was agreed to.
    upgrade: Mutex<Option<OnUpgrade>>,
    /// Whether it is one.
    is_tunnel: AtomicBool,
    /// Who asked for the tunnel.
    tunnel_client: OnceLock<IpAddr>,
    /// Its place among all connections.
    ticket: OnceLock<Ticket>,
    /// Another one has its place.
    give_way: CancellationToken,
    /// Exchanges under way: from a request's head to the end of its response's body.
    exchanges: AtomicUsize,
    since: Instant,
    /// How long after that something was sent last, in milliseconds; 0 before anything was.
    sent: AtomicU64,
    /// Whether something waits to be sent.
    sending: AtomicBool,
}

impl Connection {
    /// A connection with whoever is at `peer`.
    pub fn new(peer: SocketAddr) -> Self {
        Self {
            peer,
            reset: AtomicBool::default(),
            upgrade: Mutex::default(),
            is_tunnel: AtomicBool::default(),
            tunnel_client: OnceLock::new(),
            ticket: OnceLock::new(),
            give_way: CancellationToken::new(),
            exchanges: AtomicUsize::default(),
            since: Instant::now(),
            sent: AtomicU64::default(),
            sending: AtomicBool::default(),
        }
    }

    /// Who is at the other end: a client, or a proxy before it.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether a tunnel may be asked for: there is none inside a tunnel.
    pub fn may_become_tunnel(&self) -> bool {
        !self.is_tunnel.load(Ordering::Relaxed)
    }

    /// Who asked for the tunnel that this is. Whoever speaks in a tunnel is behind the proxy that it goes through, so that nothing in
    /// it can be the proxy's word.
    pub fn tunnel_client(&self) -> Option<IpAddr> {
        self.tunnel_client.get().copied().filter(|_| !self.may_become_tunnel())
    }

    /// Waits until there is room for the connection among all, for a short while. Without that only questions about the process's
    /// health are answered.
    ///
    /// # Errors
    /// [`Full`]: what is full.
    pub async fn admitted(&self) -> Result<(), Full> {
        let Some(ticket) = self.ticket.get() else { return Ok(()) };
        tokio::select! {
            biased;
            admitted = ticket.admitted() => admitted,
            // Another one waits in its place.
            () = self.give_way.cancelled() => Err(Full::All),
        }
    }

    /// Agrees to the tunnel that a request of a client asks for: requests for the sites here come through it. It leads nowhere else.
    pub fn become_tunnel<B>(&self, request: &mut Request<B>, client: IpAddr) {
        // What is kept here holds on to the connection itself, so it must be taken out again, and is: when the exchange
        // that asked for it is over.
        if self.may_become_tunnel() {
            _ = self.tunnel_client.set(client);
            *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = Some(hyper::upgrade::on(request));
        }
    }

    fn take_tunnel(&self) -> Option<OnUpgrade> {
        self.is_tunnel.store(true, Ordering::Relaxed);
        self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Has the connection end with a reset (RST) instead of an orderly close.
    pub fn reset_on_close(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    /// Something was sent just now.
    fn sent(&self) {
        self.sending.store(false, Ordering::Relaxed);
        let after = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.sent.store(after.max(1), Ordering::Relaxed);
    }

    /// Since when the client has owed the head of a request, unless one is being answered or an answer waits to be sent.
    fn owed_since(&self) -> Option<Instant> {
        let owed = self.exchanges.load(Ordering::Relaxed) == 0 && !self.sending.load(Ordering::Relaxed);
        owed.then(|| self.since + Duration::from_millis(self.sent.load(Ordering::Relaxed)))
    }

    /// Waits until the client has owed the head of a request for too long.
    ///
    /// hyper makes a timer anew for each head. Here a connection has one for all of them, which is set again when it goes off too
    /// early: that is once a time-out and not once a request.
    async fn head_overdue(&self, timeout: Duration) {
        let mut wait = pin!(tokio::time::sleep(timeout));
        loop {
            wait.as_mut().await;
            let due = self.owed_since().unwrap_or_else(Instant::now) + timeout;
            if due <= Instant::now() {
                return;
            }
            wait.as_mut().reset(due);
        }
    }
}

impl admission::Member for Connection {
    fn idle_since(&self) -> Option<Instant> {
        // The first head of a new connection is on its way. Those that were answered give way before it: their clients
        // expect that, and try again.
        let is_new = self.sent.load(Ordering::Relaxed) == 0;
        self.owed_since().map(|since| if is_new { since + FIRST_HEAD } else { since })
    }

    fn give_way(&self) {
        self.give_way.cancel();
    }
}

/// An exchange under way, until it is dropped with the body of its response.
struct Underway(Arc<Connection>);

impl Underway {
    fn begin(connection: &Arc<Connection>) -> Self {
        connection.exchanges.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connection))
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.exchanges.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response, whose end is the end of the exchange.
struct Answer<B> {
    body: B,
    _underway: Underway,
}

impl<B: Body + Unpin> Body for Answer<B> {
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

/// What tells connections to stop.
#[derive(Debug, Clone, Default)]
struct Stop {
    token: CancellationToken,
    /// Whether it was told: all connections share the token's lock, and this is asked each time that one of them wakes.
    told: Arc<AtomicBool>,
}

impl Stop {
    fn now(&self) {
        self.told.store(true, Ordering::SeqCst);
        self.token.cancel();
    }

    /// Waits for it. Whoever polls this has to be one task from first to last, for only the first poll leaves its waker.
    async fn wait(&self) {
        let mut cancelled = pin!(self.token.cancelled());
        let mut waits = false;
        std::future::poll_fn(|cx| {
            if waits && !self.told.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            waits = true;
            cancelled.as_mut().poll(cx)
        })
        .await;
    }
}

/// Ends servers in good order. Clones end the same ones.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    stop: Stop,
    connections: TaskTracker,
}

impl Drain {
    /// Stops accepting, lets open requests finish, and says whether they did within `timeout`.
    pub async fn finish(&self, timeout: Duration) -> bool {
        self.stop.now();
        self.connections.close();
        tokio::time::timeout(timeout, self.connections.wait()).await.is_ok()
    }

    /// Connections that are still open.
    pub fn open(&self) -> usize {
        self.connections.len()
    }
}

/// Accepts connections until the drain begins, and serves each in a task of its own.
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
    while let Some(accepted) = unless_stopped(&drain, listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        let (limits, metrics, handler, stop) =
            (limits.clone(), Arc::clone(&metrics), handler.clone(), drain.stop.clone());
        // Counted in the order in which they came: tasks begin in any order, and an older connection would take a newer one's place.
        let counted = CountedConnection::enter(&limits.admission, peer);
        drain.connections.spawn(async move {
            metrics.connections.inc();
            let served = AssertUnwindSafe(connection(stream, counted, &limits, handler, stop)).catch_unwind().await;
            metrics.connections.dec();
            if served.is_err() {
                metrics.panics.inc();
                tracing::error!("a connection was closed because of a defect; the panic above says where");
            }
        });
    }
}

async fn unless_stopped<F: Future>(drain: &Drain, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        () = drain.stop.wait() => None,
        output = future => Some(output),
    }
}

/// A connection that was gone before it was accepted is no reason to wait.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "no connection can be accepted at the moment");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

async fn connection<H, F, B>(
    stream: TcpStream,
    counted: CountedConnection,
    limits: &ConnectionLimits,
    handler: H,
    stop: Stop,
) where
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let state = Arc::clone(&counted.state);
    // Without Nagle's wait for more: hyper writes a head and its body together.
    _ = stream.set_nodelay(true);
    let guarded = Guarded::new(stream, limits, Arc::clone(&state));
    match &limits.tls {
        None => exchanges(guarded, limits, &handler, &stop, &state).await,
        Some(tls) => {
            let encrypted = tokio::select! {
                encrypted = shake_hands(tls, guarded, limits) => encrypted,
                () = state.give_way.cancelled() => return,
            };
            let Some(encrypted) = encrypted else { return };
            exchanges(encrypted, limits, &handler, &stop, &state).await;
        }
    }
    // A tunnel carries the same kind of requests.
    if let Some(tunnel) = state.take_tunnel()
        && let Ok(tunnel) = tunnel.await
    {
        exchanges(TokioIo::new(tunnel), limits, &handler, &stop, &state).await;
    }
}

/// A connection that is counted until this is dropped.
struct CountedConnection {
    admission: Arc<Admission>,
    state: Arc<Connection>,
}

impl CountedConnection {
    fn enter(admission: &Arc<Admission>, peer: SocketAddr) -> Self {
        let state = Arc::new(Connection::new(peer));
        _ = state.ticket.set(admission.enter(peer.ip(), Arc::clone(&state) as _));
        Self { admission: Arc::clone(admission), state }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        // The list of connections has this one, which has its ticket: one of them must let go first.
        if let Some(ticket) = self.state.ticket.get() {
            self.admission.leave(ticket);
        }
    }
}

/// Begins TLS, which may take as long as a request's head.
async fn shake_hands(tls: &Tls, stream: Guarded, limits: &ConnectionLimits) -> Option<TlsStream<Guarded>> {
    match tokio::time::timeout(limits.header_timeout, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS was not agreed on");
            None
        }
        Err(_) => None,
    }
}

/// Serves one request after the other.
async fn exchanges<I, H, F, B>(io: I, limits: &ConnectionLimits, handler: &H, stop: &Stop, state: &Arc<Connection>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let underway = Underway::begin(state);
        let request = request.map(|body| Paced::new(body, limits.rate_min));
        // Boxed, because hyper keeps a place for it with each connection, idle or not.
        let response = Box::pin(handler(request, Arc::clone(state)));
        async move { Ok::<_, Infallible>(response.await.map(|body| Answer { body, _underway: underway })) }
    });
    let builder = builder(limits);
    let io = TokioIo::new(StrictLines::new(io));
    let mut serving = pin!(builder.serve_connection(io, service).with_upgrades());
    let mut overdue = pin!(state.head_overdue(limits.header_timeout));
    let result = tokio::select! {
        biased;
        result = serving.as_mut() => result,
        () = overdue.as_mut() => return,
        () = state.give_way.cancelled() => {
            // A request may have come just then.
            if state.owed_since().is_some() {
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
        tracing::debug!(%error, "a connection ended early");
    }
}

fn builder(limits: &ConnectionLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).max_buf_size(limits.head_bytes_max.max(8192));
    builder
}

/// A TCP stream whose client has to read what is sent, and at some rate.
struct Guarded {
    stream: TcpStream,
    state: Arc<Connection>,
    send_timeout: Duration,
    rate_min: RateMin,
    rate: Rate,
    unsent: Option<Pin<Box<Sleep>>>,
}

impl Guarded {
    fn new(stream: TcpStream, limits: &ConnectionLimits, state: Arc<Connection>) -> Self {
        let (send_timeout, rate_min) = (limits.send_timeout, limits.rate_min);
        Self { stream, state, send_timeout, rate_min, rate: Rate::new(rate_min), unsent: None }
    }

    /// Turns a wait that is too long into an error.
    fn watch(&mut self, cx: &mut Context<'_>, sending: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(sent) = sending {
            self.state.sent();
            if self.rate.moved(*sent.as_ref().unwrap_or(&0), Instant::now()) {
                return Poll::Ready(sent);
            }
            self.state.reset_on_close();
            return Poll::Ready(Err(too_slow("what is read of the response", self.rate_min)));
        }
        self.rate.wait(Instant::now());
        let deadline = Instant::now() + self.send_timeout;
        let sleep = self.unsent.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.state.sending.swap(true, Ordering::Relaxed) {
            sleep.as_mut().reset(deadline);
        }
        std::task::ready!(sleep.as_mut().poll(cx));
        self.state.reset_on_close();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
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

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.state.reset.load(Ordering::Relaxed) {
            _ = self.stream.set_zero_linger();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::admission::Member as _;

    /// A connection that began so long ago.
    fn begun(ago: Duration) -> Connection {
        let mut connection = Connection::new(([127, 0, 0, 1], 1).into());
        connection.since -= ago;
        connection
    }

    #[test]
    fn a_new_connection_outlasts_one_that_was_answered() {
        let answered = begun(FIRST_HEAD * 2);
        answered.sent();
        assert!(answered.idle_since() < begun(FIRST_HEAD / 2).idle_since());
        // Not for good.
        assert!(begun(FIRST_HEAD * 2).idle_since() < answered.idle_since());
        // While a request is being answered it does not give way.
        answered.exchanges.fetch_add(1, Ordering::Relaxed);
        assert_eq!(answered.idle_since(), None);
    }
}
