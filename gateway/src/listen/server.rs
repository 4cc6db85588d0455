//! The HTTP server: accept loop, TLS handshake, tunnels.
//!
//! Goals: no client can keep a connection open without progress, or exhaust the connections of others
//! ([`crate::listen::admission`]); a panic in a connection does not end the process; a drain answers every connection
//! that was accepted ([`crate::listen::drain`]).
//!
//! A connection speaks HTTP/1.1 ([`http1`]), or HTTP/2 ([`http2`]) if its client chooses it in the TLS handshake.
//! HTTP/3 has an accept loop of its own ([`crate::listen::http3`]).

use crate::listen::admission::{self, Admission};
use crate::listen::connection::{Connection, CountedConnection};
use crate::listen::drain::{Drain, ShutdownSignal};
use crate::listen::monitored::MonitoredStream;
use crate::listen::proxy_protocol::ProxyHeaders;
use crate::listen::rate::{Paced, RateMin};
use crate::listen::socket::{Listener, Socket};
use crate::listen::tls::Tls;
use crate::listen::tls::certificate::HTTP_2;
use crate::listen::{http1, http2};
use crate::metrics::HttpMetrics;
use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use http_body_util::{Either, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use services::client_budgets::ClientBudgets;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// The body of a request, which is empty over HTTP/2 and HTTP/3.
pub type RequestBody = Either<Paced<Incoming>, Empty<Bytes>>;

/// An extension of a response that does not count as a request in progress, because its client is at its limit: it is
/// small, and over HTTP/2 and HTTP/3 a connection has few of them at a time.
#[derive(Debug, Clone, Copy)]
pub struct Uncounted;

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The pause after a failed accept, which is usually a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    /// The PROXY protocol, if the listener speaks it.
    pub proxy_headers: Option<Arc<ProxyHeaders>>,
    /// The header `Alt-Svc` of responses over TLS, if HTTP/3 is spoken at the same address.
    pub alt_svc: Option<HeaderValue>,
    /// The memory of response bodies, of which HTTP/3 takes what waits for acknowledgements. `None` for no limit but
    /// that of each connection.
    pub memory: Option<Arc<ClientBudgets>>,
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
            proxy_headers: None,
            alt_svc: None,
            memory: None,
        }
    }

    /// Adds `Alt-Svc` (RFC 7838, section 3) to a response over TLS, unless a trusted proxy asks, whose clients would
    /// bypass it, or the connection is a tunnel, whose hosts are others.
    pub(super) fn announce_http3(&self, connection: &Connection, headers: &mut http::HeaderMap) {
        if let Some(alt_svc) = self.alt_svc.as_ref()
            && connection.is_encrypted()
            && connection.tunnel_client().is_none()
            && !self.admission.is_exempt(connection.peer().ip())
        {
            headers.insert(http::header::ALT_SVC, alt_svc.clone());
        }
    }
}

/// Accepts connections until the drain begins, and serves each in its own task.
pub async fn serve<H, F, B>(
    listener: impl Into<Listener>,
    limits: ConnectionLimits,
    metrics: Arc<HttpMetrics>,
    drain: Drain,
    handler: H,
) where
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let listener = listener.into();
    let accepting = drain.hold();
    let spawn = |accepted| {
        let connection = accept(accepted, &limits);
        let (limits, metrics, handler, stop) = (limits.clone(), Arc::clone(&metrics), handler.clone(), drain.signal());
        drain.spawn(async move {
            metrics.plain.connections.inc();
            let serving = async {
                if let Some((socket, counted)) = identify(connection, &limits, &metrics, &stop).await {
                    serve_connection(socket, counted, &limits, handler, stop).await;
                }
            };
            let served = AssertUnwindSafe(serving).catch_unwind().await;
            metrics.plain.connections.dec();
            if served.is_err() {
                metrics.plain.panics.inc();
                tracing::error!("a panic closed a connection: this is a bug, please report it with the message above");
            }
        });
    };
    while let Some(accepted) = drain.or_stop(listener.accept()).await {
        match accepted {
            Ok(accepted) => spawn(accepted),
            Err(error) => pause_after_accept_error(&error).await,
        }
    }
    listener.close().into_iter().for_each(spawn);
    drop(accepting);
}

/// A connection that was accepted.
enum Accepted {
    /// Its client is its peer.
    Counted(Socket, CountedConnection),
    /// Its proxy tells the address of its client.
    OfProxy(Socket, SocketAddr),
}

/// Counts a connection in the order of arrival: tasks start in any order, and an older connection must not evict a
/// newer one. One whose client is not known yet is counted later.
fn accept((socket, peer): (Socket, SocketAddr), limits: &ConnectionLimits) -> Accepted {
    match limits.proxy_headers {
        Some(_) => Accepted::OfProxy(socket, peer),
        None => Accepted::Counted(socket, CountedConnection::register(&limits.admission, peer)),
    }
}

/// Waits for the address of the client of a connection. Returns `None` if it must be closed.
async fn identify(
    connection: Accepted,
    limits: &ConnectionLimits,
    metrics: &HttpMetrics,
    stop: &ShutdownSignal,
) -> Option<(Socket, CountedConnection)> {
    let (mut socket, peer) = match connection {
        Accepted::Counted(socket, counted) => return Some((socket, counted)),
        Accepted::OfProxy(socket, peer) => (socket, peer),
    };
    let headers = limits.proxy_headers.as_ref()?;
    // Boxed, because other connections need no room for it.
    let reading = Box::pin(stop.or_first_request_grace(headers.read(&mut socket, peer)));
    match reading.await? {
        Ok(client) => Some((socket, CountedConnection::register(&limits.admission, client))),
        Err(refusal) => {
            metrics.proxy_connection_refused(refusal.reason());
            None
        }
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
    socket: Socket,
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
    socket.set_nodelay();
    let monitored = MonitoredStream::new(socket, limits, Arc::clone(&state));
    match &limits.tls {
        None => http1::serve(monitored, limits, &handler, &stop, &state).await,
        Some(tls) => {
            // Boxed, because other connections need no room for it.
            let shaking = tls.accept(monitored, &state, (&limits.admission, limits.header_timeout));
            let shaken = Box::pin(stop.or_first_request_grace(shaking)).await;
            let Some(encrypted) = shaken.flatten() else { return };
            state.encrypt();
            if encrypted.get_ref().1.alpn_protocol() == Some(HTTP_2) {
                return Box::pin(http2::serve(encrypted, limits, &handler, &stop, &state)).await;
            }
            http1::serve(encrypted, limits, &handler, &stop, &state).await;
        }
    }
    // A tunnel carries the same kind of requests.
    if let Some(tunnel) = state.take_tunnel()
        && let Ok(tunnel) = tunnel.await
    {
        http1::serve(TokioIo::new(tunnel), limits, &handler, &stop, &state).await;
    }
}
