//! HTTP/3: requests over QUIC, at the UDP port of the listener with TLS.
//!
//! Goals: the same answers, limits and ends of responses as over HTTP/2. What a client can make the server hold or
//! compute is bounded: handshakes and connections ([`Tls::begin_handshake`], [`crate::listen::admission`]), streams and
//! what they receive ([`load`], [`frames`]), what is sent and not acknowledged ([`window`]), and the time for both ([`stream`]). A
//! client whose address is not validated takes little: when many such handshakes are pending, or have just failed, its
//! address is validated first (Retry, RFC 9000, section 8.1.2).
//!
//! QUIC is quinn's, and frames and header fields are `h3`'s, an early version without a promise of stability. What it
//! does not bound is bounded in [`transport`], below it.
//!
//! Non-goals: early data (0-RTT), which can be replayed; connections that move to another address, since limits, logs
//! and permits go by the address that was validated; server push, datagrams, WebTransport, priorities; the dynamic
//! table of QPACK, which `h3` does not use.

mod frames;
mod load;
mod stream;
mod transport;
mod window;

use self::load::ClientLoad;
use self::transport::{Accepted, Transport};
use self::window::{SendWindow, WINDOW_BYTES_MIN};
use crate::headers::header;
use crate::listen::connection::{Connection, CountedConnection};
use crate::listen::drain::{Drain, ShutdownSignal};
use crate::listen::http2::progress::{ConnectionProgress, Piece};
use crate::listen::server::{ConnectionLimits, RequestBody};
use crate::listen::tls::{MissingCertificate, Tls, handshake};
use crate::metrics::HttpMetrics;
use aws_lc_rs::hmac;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use h3::error::Code;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::crypto::{CryptoError, HmacKey};
use quinn::{Endpoint, EndpointConfig, IdleTimeout, Incoming, TokioRuntime, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// The maximum number of open streams with requests. RFC 9114, section 6.1, recommends no less.
const STREAMS_MAX: u32 = 100;
/// The same of other streams: three that HTTP/3 needs, and some that are not known.
const OTHER_STREAMS_MAX: u32 = 8;
/// What a client may send ahead on one stream, and on all of a connection, in bytes.
const STREAM_WINDOW_BYTES: u32 = 32 * 1024;
const RECEIVE_WINDOW_BYTES: u32 = 64 * 1024;
/// The maximum number of unfinished handshakes of addresses that are not validated; further ones are validated first.
const UNVALIDATED_MAX: usize = 32;
/// First packets of connections that are not accepted yet: their number, and the bytes of one and of all.
const INCOMING_MAX: usize = 256;
const INCOMING_BYTES: u64 = 16 * 1024;
const INCOMING_TOTAL_BYTES: u64 = 1024 * 1024;
/// The idle timeout, in milliseconds as QUIC has it, and the interval of keep-alive frames.
const IDLE_TIMEOUT_MS: u32 = 30_000;
const IDLE_TIMEOUT: Duration = Duration::from_millis(IDLE_TIMEOUT_MS as u64);
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The time for a client to receive GOAWAY, after which its requests are refused.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of requests after the last one that are still answered after the first GOAWAY.
const LATER_REQUESTS: usize = 1 << 20;
/// The maximum length of a head, if the setting is larger.
const HEAD_BYTES_MAX: usize = 512 * 1024;
/// How long clients may cache `Alt-Svc`, in seconds.
const ALT_SVC_SECONDS: u32 = 24 * 3600;

/// The value of `Alt-Svc` that announces HTTP/3 at a UDP port of the same host (RFC 9114, section 3.1.1).
pub fn alt_svc(port: u16) -> HeaderValue {
    header(&format!("h3=\":{port}\"; ma={ALT_SVC_SECONDS}"))
}

/// The UDP socket of HTTP/3.
pub struct QuicSocket {
    /// Bound to the port of the listener with TLS.
    pub udp: UdpSocket,
    /// The secret that the tokens of stateless resets are made of (RFC 9000, section 10.3). If it is the same after a
    /// restart, a client learns with its next packet that the connection is gone, and connects again; otherwise it waits
    /// until its idle timeout. `None` is a random one.
    pub reset_secret: Option<[u8; 32]>,
}

impl QuicSocket {
    /// The configuration of the endpoint. Its key is that of this address alone: with a common one, a packet to one
    /// endpoint would yield the token that ends a connection of another (RFC 9000, section 21.11).
    fn endpoint_config(&self) -> io::Result<EndpointConfig> {
        let Some(secret) = &self.reset_secret else { return Ok(EndpointConfig::default()) };
        let address = self.udp.local_addr()?;
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let of_address = |usage: &str| hmac::sign(&secret, format!("{usage} {address}").as_bytes());
        let reset_key = hmac::Key::new(hmac::HMAC_SHA256, of_address("stateless reset").as_ref());
        let mut config = EndpointConfig::new(Arc::new(ResetKey(reset_key)));
        // Packets for connection IDs that an earlier process issued are answered with a reset, and others ignored.
        let mut key = [0; size_of::<u64>()];
        key.iter_mut().zip(of_address("connection IDs").as_ref()).for_each(|(byte, derived)| *byte = *derived);
        let key = u64::from_le_bytes(key);
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(key)));
        Ok(config)
    }
}

/// HMAC-SHA-256, as QUIC takes it. That of quinn depends on which libraries its other users choose.
struct ResetKey(hmac::Key);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(hmac::sign(&self.0, data).as_ref());
    }

    fn signature_len(&self) -> usize {
        self.0.algorithm().tag_len()
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        hmac::verify(&self.0, data, signature).map_err(|_| CryptoError)
    }
}

impl From<UdpSocket> for QuicSocket {
    fn from(udp: UdpSocket) -> Self {
        Self { udp, reset_secret: None }
    }
}

/// What the streams of a connection share.
struct Shared {
    load: Arc<ClientLoad>,
    progress: Arc<ConnectionProgress>,
    uncounted: AtomicUsize,
    window: SendWindow,
}

/// Accepts connections until the drain begins, and serves each in its own task.
///
/// # Errors
/// The socket cannot be used, or the limits have no certificate for QUIC.
pub async fn serve<H, F, B>(
    socket: impl Into<QuicSocket>,
    limits: ConnectionLimits,
    metrics: Arc<HttpMetrics>,
    drain: Drain,
    handler: H,
) -> io::Result<()>
where
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    let Some((tls, config)) = limits.tls.as_ref().and_then(|tls| Some((Arc::clone(tls), tls.quic()?))) else {
        return Err(io::Error::other("there is no certificate for HTTP/3"));
    };
    let mut configs = Configs { quic: Arc::clone(&config), current: Arc::new(server_config(config)) };
    let first = Some(quinn::ServerConfig::clone(&configs.current));
    let socket = socket.into();
    let endpoint = Endpoint::new(socket.endpoint_config()?, first, socket.udp, Arc::new(TokioRuntime))?;
    let (draining, served) = (drain.hold(), TaskTracker::new());
    let unvalidated = Arc::<AtomicUsize>::default();
    // Also those that are closing, of which clients may make many that are not admitted.
    let states_max = limits.admission.connections_max().saturating_add(handshake::HANDSHAKES_MAX);
    while let Some(accepted) = drain.or_stop(endpoint.accept()).await {
        let Some(incoming) = accepted else { return Err(io::Error::other("the UDP socket has failed")) };
        if endpoint.open_connections() >= states_max {
            incoming.ignore();
            continue;
        }
        let Some(pending) = Pending::begin(&incoming, &unvalidated) else {
            metrics.plain.quic_retries.inc();
            // It may, since its address is not validated.
            _ = incoming.retry();
            continue;
        };
        let (limits, metrics, handler, stop) = (limits.clone(), Arc::clone(&metrics), handler.clone(), drain.signal());
        let (tls, config) = (Arc::clone(&tls), configs.current(&tls));
        let (config, missing) = on_demand(config, &tls);
        let (client, token) = (client_of(&incoming), served.token());
        drain.spawn(async move {
            let _token = token;
            let open = OpenConnection::begin(&metrics);
            let serving = async {
                let shaking = Box::pin(stop.or_first_request_grace(shake(incoming, config, &tls, &limits)));
                let Some((connection, state)) = shaking.await.flatten() else {
                    drop(open);
                    return Box::pin(end_failed(pending, missing, client, &stop)).await;
                };
                drop(pending);
                let counted = CountedConnection::register_state(&limits.admission, state);
                Box::pin(serve_connection(connection, &counted.state, &limits, &handler, &stop)).await;
            };
            if AssertUnwindSafe(serving).catch_unwind().await.is_err() {
                metrics.plain.panics.inc();
                tracing::error!("a panic closed a connection: this is a bug, please report it with the message above");
            }
        });
    }
    // New connections are refused, so that their clients use TCP, until the others have ended. Then their last packets
    // are sent.
    served.close();
    let mut ended = pin!(async {
        served.wait().await;
        _ = tokio::time::timeout(CLOSE_TIMEOUT, endpoint.wait_idle()).await;
    });
    loop {
        tokio::select! {
            () = ended.as_mut() => break,
            Some(incoming) = endpoint.accept() => incoming.refuse(),
        }
    }
    drop(draining);
    Ok(())
}

/// An open connection in the metrics.
struct OpenConnection<'a>(&'a HttpMetrics);

impl<'a> OpenConnection<'a> {
    fn begin(metrics: &'a HttpMetrics) -> Self {
        metrics.plain.connections.inc();
        metrics.plain.quic_connections.inc();
        Self(metrics)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.plain.connections.dec();
        self.0.plain.quic_connections.dec();
    }
}

/// An unfinished handshake, which is counted if its client's address is not validated.
struct Pending(Option<Arc<AtomicUsize>>);

impl Pending {
    /// `None` if the address must be validated first.
    fn begin(incoming: &Incoming, unvalidated: &Arc<AtomicUsize>) -> Option<Self> {
        if incoming.remote_address_validated() {
            return Some(Self(None));
        }
        let one_more = |count: usize| (count < UNVALIDATED_MAX).then_some(count + 1);
        unvalidated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self(Some(Arc::clone(unvalidated))))
    }

    /// Counts a handshake that has failed, while QUIC may store its state: a datagram that closes the connection that it
    /// opens leaves it until the idle timeout.
    async fn outlast(self, state: Duration, stop: &ShutdownSignal) {
        if self.0.is_some() {
            _ = tokio::time::timeout(state, stop.wait()).await;
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(unvalidated) = &self.0 {
            unvalidated.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What remains of a handshake that has failed: its state, and the certificate that it did not find.
async fn end_failed(pending: Pending, missing: Option<MissingCertificate>, client: IpAddr, stop: &ShutdownSignal) {
    let order = async {
        if let Some(missing) = missing {
            _ = stop.or_first_request_grace(missing.order(client)).await;
        }
    };
    tokio::join!(order, pending.outlast(IDLE_TIMEOUT, stop));
}

/// The client that the rates of certificates on demand count a handshake for. An address that is not validated may be
/// forged, so that all such clients have one share, and use up no share of others.
fn client_of(incoming: &Incoming) -> IpAddr {
    let validated = incoming.remote_address_validated().then(|| incoming.remote_address().ip());
    validated.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED))
}

/// The configuration of one connection, whose handshake tells which certificate it did not find.
fn on_demand(config: Arc<quinn::ServerConfig>, tls: &Tls) -> (Arc<quinn::ServerConfig>, Option<MissingCertificate>) {
    let Some((quic, missing)) = tls.quic_on_demand() else { return (config, None) };
    let mut of_one = quinn::ServerConfig::clone(&config);
    of_one.crypto = quic;
    (Arc::new(of_one), Some(missing))
}

/// The configuration of connections, which changes with the certificate.
struct Configs {
    quic: Arc<QuicServerConfig>,
    current: Arc<quinn::ServerConfig>,
}

impl Configs {
    /// The configuration of the next connection.
    fn current(&mut self, tls: &Tls) -> Arc<quinn::ServerConfig> {
        if let Some(quic) = tls.quic().filter(|quic| !Arc::ptr_eq(quic, &self.quic)) {
            // All else stays, such as the key of the tokens that validate addresses.
            let mut changed = quinn::ServerConfig::clone(&self.current);
            changed.crypto = Arc::clone(&quic) as _;
            (self.quic, self.current) = (quic, Arc::new(changed));
        }
        Arc::clone(&self.current)
    }
}

fn server_config(quic: Arc<QuicServerConfig>) -> quinn::ServerConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(STREAMS_MAX.into())
        .max_concurrent_uni_streams(OTHER_STREAMS_MAX.into())
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .receive_window(RECEIVE_WINDOW_BYTES.into())
        .send_window(WINDOW_BYTES_MIN as u64)
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MS))))
        .keep_alive_interval(Some(KEEP_ALIVE));
    let mut tokens = quinn::ValidationTokenConfig::default();
    // Addresses are validated by the handshake, or by Retry.
    tokens.sent(0).log(Arc::new(quinn::NoneTokenLog));
    let mut config = quinn::ServerConfig::with_crypto(quic);
    config
        .transport_config(Arc::new(transport))
        .validation_token_config(tokens)
        .migration(false)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_TOTAL_BYTES);
    config
}

/// Performs a handshake with a client, within the timeout. The client is refused if there are too many.
async fn shake(
    incoming: Incoming,
    config: Arc<quinn::ServerConfig>,
    tls: &Tls,
    limits: &ConnectionLimits,
) -> Option<(quinn::Connection, Arc<Connection>)> {
    let state = Arc::new(Connection::new(incoming.remote_address()));
    let slot = tls.begin_handshake(&state, &limits.admission);
    let shaking = async {
        slot.admitted().await.ok()?;
        let connecting = incoming.accept_with(config).ok()?;
        connecting.await.inspect_err(|error| tracing::debug!(%error, "the QUIC handshake failed")).ok()
    };
    let connection = tokio::select! {
        shaken = tokio::time::timeout(handshake::TIMEOUT.min(limits.header_timeout), shaking) => shaken.ok().flatten(),
        () = state.evicted() => None,
    };
    connection.map(|connection| (connection, Arc::clone(&state)))
}

fn var_int(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

/// Serves the requests of a connection.
async fn serve_connection<H, F, B>(
    quic: quinn::Connection,
    state: &Arc<Connection>,
    limits: &ConnectionLimits,
    handler: &H,
    stop: &ShutdownSignal,
) where
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + Unpin,
{
    state.encrypt();
    state.multiplex();
    let load = ClientLoad::new(limits.head_bytes_max);
    let (transport, accepted) = Transport::new(quic.clone(), &load);
    let budget = limits.memory.as_ref().map(|memory| memory.of(state.peer().ip()));
    let window = SendWindow::new(quic.clone(), budget);
    let shared = Shared { load, progress: Arc::default(), uncounted: AtomicUsize::default(), window };
    let mut builder = h3::server::builder();
    // `h3` makes room for as many fields as a head may have, and a header map has at most 24,576.
    builder.max_field_section_size(limits.head_bytes_max.min(HEAD_BYTES_MAX) as u64).send_grease(false);
    let built = tokio::select! {
        built = builder.build(transport) => built,
        () = state.head_overdue(limits.header_timeout) => return,
        () = state.evicted() => return,
    };
    let mut connection = match built {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "a connection ended before its first request"),
    };
    let code = requests(&mut connection, &accepted, handler, limits, (state, &shared), stop).await;
    // Before `h3` closes the connection without an error.
    quic.close(var_int(code.value()), b"");
}

/// Answers the requests of a connection; returns why it ends.
async fn requests<H, F, B>(
    connection: &mut h3::server::Connection<Transport, Piece>,
    accepted: &Accepted,
    handler: &H,
    limits: &ConnectionLimits,
    (state, shared): (&Arc<Connection>, &Shared),
    stop: &ShutdownSignal,
) -> Code
where
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + Unpin,
{
    let mut answers = FuturesUnordered::new();
    let mut ending_since: Option<Instant> = None;
    // `h3` can announce only requests after one that it has accepted.
    let (mut has_accepted, mut has_announced) = (false, false);
    let mut overdue = pin!(state.head_overdue(limits.header_timeout));
    let mut ended = pin!(async {
        tokio::select! {
            () = state.evicted() => true,
            () = stop.wait() => false,
        }
    });
    let mut unused = pin!(async {
        match stop.is_sent() {
            true => state.unused_in_drain().await,
            false => state.head_overdue(CLOSE_TIMEOUT).await,
        }
    });
    let mut refuses = pin!(tokio::time::sleep(Duration::MAX));
    loop {
        tokio::select! {
            // Requests that have arrived come before the ends of their connection.
            biased;
            Some(answered) = answers.next() => {
                if let Err(code) = answered {
                    return code;
                }
                if answers.is_empty() {
                    shared.window.release();
                }
            }
            next = connection.accept() => {
                let resolver = match next {
                    Ok(Some(resolver)) => resolver,
                    Ok(None) => return Code::H3_NO_ERROR,
                    Err(error) => {
                        tracing::debug!(%error, "a connection ended");
                        return Code::H3_NO_ERROR;
                    }
                };
                let Some(stream) = accepted.take() else { return Code::H3_INTERNAL_ERROR };
                has_accepted = true;
                // A client that does not take notice of the end.
                if ending_since.is_some_and(|since| since.elapsed() >= CLOSE_TIMEOUT) {
                    stream.control.reset_with(Code::H3_REQUEST_REJECTED.value());
                    continue;
                }
                let answering = stream::answer(resolver, stream, handler, limits, (state, shared));
                answers.push(Box::pin(answering));
            }
            () = overdue.as_mut() => return Code::H3_NO_ERROR,
            is_evicted = ended.as_mut(), if ending_since.is_none() => {
                if is_evicted && state.awaiting_head_since().is_some() {
                    return Code::H3_NO_ERROR;
                }
                ending_since = Some(Instant::now());
            }
            // The client can tell which of its requests were not answered.
            () = refuses.as_mut(), if has_announced => {
                if !send_goaway(connection, 1).await && answers.is_empty() {
                    return Code::H3_NO_ERROR;
                }
                refuses.as_mut().reset(far_future());
            }
            () = unused.as_mut(), if ending_since.is_some() => return Code::H3_NO_ERROR,
        }
        if ending_since.is_some() && has_accepted && !has_announced {
            // Requests that the client has sent already are still answered, also if GOAWAY cannot be sent.
            has_announced = true;
            match send_goaway(connection, LATER_REQUESTS).await {
                true => refuses.as_mut().reset(Instant::now() + CLOSE_TIMEOUT),
                false if answers.is_empty() => return Code::H3_NO_ERROR,
                // A second one cannot be sent then.
                false => {}
            }
        }
    }
}

/// A time that does not come.
fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(365 * 24 * 3600)
}

/// Sends GOAWAY: the client may send so many requests after the last one (RFC 9114, section 5.2). Returns `false` if
/// the client does not take it.
async fn send_goaway(connection: &mut h3::server::Connection<Transport, Piece>, later_requests: usize) -> bool {
    tokio::time::timeout(CLOSE_TIMEOUT, connection.shutdown(later_requests)).await.is_ok_and(|sent| sent.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failed_handshake_counts_as_long_as_quic_may_store_its_state() {
        let unvalidated = Arc::new(AtomicUsize::new(1));
        let count = || unvalidated.load(Ordering::Relaxed);
        let pending = || Pending(Some(Arc::clone(&unvalidated)));
        let (begun, drain) = (Instant::now(), Drain::default());
        let (state, stop) = (Duration::from_millis(300), drain.signal());
        let mut outlasting = pin!(pending().outlast(state, &stop));
        assert!(tokio::time::timeout(state / 3, outlasting.as_mut()).await.is_err());
        assert_eq!(count(), 1);
        outlasting.await;
        assert!(count() == 0 && begun.elapsed() >= state);
        // A client whose address is validated is counted elsewhere, and a drain does not wait.
        let (hour, soon) = (Duration::from_secs(3600), Duration::from_secs(10));
        tokio::time::timeout(soon, Pending(None).outlast(hour, &stop)).await.expect("at once");
        unvalidated.store(1, Ordering::Relaxed);
        assert!(drain.finish(Duration::from_secs(1)).await);
        tokio::time::timeout(soon, pending().outlast(hour, &stop)).await.expect("at once");
        assert_eq!(count(), 0);
    }
}
