//! The PROXY protocol, version 2: a proxy in front tells the address of its client before the first byte of HTTP or
//! TLS.
//!
//! Goals: a client cannot choose its own address, because headers are read from trusted proxies only and are required
//! there; connections whose header is missing are bounded in number and time; nothing after the header is consumed.
//!
//! A connection counts as one of the proxy while its header is awaited, and then as one of the client
//! ([`crate::listen::admission`]). The address of the header replaces that of the peer: whether `X-Forwarded-For` counts
//! depends on it.
//!
//! Non-goal: version 1, whose length only shows at its end.

mod header;

use self::header::{HeaderError, Progress};
use crate::listen::admission::{self, Admission, Bounds, Evictable};
use crate::listen::socket::Socket;
use crate::metrics::ProxyRefusal;
use bytes::BufMut as _;
use config::{ShownAddress, TrustedProxy};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The maximum number of connections whose header is awaited.
const PENDING_MAX: usize = 1024;
/// The time for a header before its connection can be replaced by another one. Proxies send it with the first segment.
const GRACE: Duration = Duration::from_secs(1);
/// The initial size of the buffer of a header: that of one with two IPv6 addresses and a few fields.
const USUAL_BYTES: usize = 128;

/// Why a connection is closed before its first request.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    #[error("only http.trusted_proxies may connect where the PROXY protocol is spoken")]
    Untrusted,
    #[error("{0}")]
    Header(#[from] HeaderError),
    #[error("its PROXY protocol header was not sent in time (http.header_timeout_seconds)")]
    Timeout,
    #[error("too many other connections wait for their PROXY protocol headers")]
    Full,
    #[error("it ended before its PROXY protocol header")]
    Closed,
}

impl Refusal {
    /// The reason, as metrics count it.
    pub fn reason(&self) -> ProxyRefusal {
        match self {
            Self::Untrusted => ProxyRefusal::Untrusted,
            Self::Header(HeaderError::Version1) => ProxyRefusal::Version1,
            Self::Header(_) => ProxyRefusal::Invalid,
            Self::Timeout => ProxyRefusal::Timeout,
            Self::Full => ProxyRefusal::Full,
            Self::Closed => ProxyRefusal::Closed,
        }
    }
}

/// Reads the headers of the connections of trusted proxies.
pub struct ProxyHeaders {
    trusted: Vec<TrustedProxy>,
    timeout: Duration,
    pending: Arc<Admission>,
    /// Whether the log has a warning about a proxy.
    warned: AtomicBool,
}

impl ProxyHeaders {
    /// Headers of the configured proxies.
    pub fn of(http: &config::Http) -> Self {
        let trusted = http.trusted_proxies.clone();
        let bounds =
            Bounds { all: PENDING_MAX, each: PENDING_MAX, exempt: trusted.clone(), patience: admission::PATIENCE };
        Self {
            trusted,
            timeout: Duration::from_secs(http.header_timeout_seconds),
            pending: Arc::new(Admission::new(bounds)),
            warned: AtomicBool::default(),
        }
    }

    /// Reads the header of a connection from `peer`: the address of the client, which is that of the proxy if the proxy
    /// speaks for itself.
    ///
    /// # Errors
    /// Why the connection must be closed.
    pub(super) async fn read(&self, socket: &mut Socket, peer: SocketAddr) -> Result<SocketAddr, Refusal> {
        let source = self.read_source(socket, peer).await;
        let source = source.inspect_err(|refusal| self.log(ShownAddress(peer.ip().to_canonical()), refusal))?;
        Ok(source.unwrap_or(peer))
    }

    async fn read_source(&self, socket: &mut Socket, peer: SocketAddr) -> Result<Option<SocketAddr>, Refusal> {
        let address = peer.ip().to_canonical();
        if !self.trusted.iter().any(|proxy| proxy.includes(address)) {
            return Err(Refusal::Untrusted);
        }
        let pending = Arc::new(PendingHeader { since: Instant::now(), evicted: CancellationToken::new() });
        let slot = self.pending.register(address, Arc::clone(&pending) as _);
        let reading = async {
            slot.admitted().await.map_err(|_| Refusal::Full)?;
            read_header(socket).await
        };
        tokio::select! {
            read = tokio::time::timeout(self.timeout, reading) => read.unwrap_or(Err(Refusal::Timeout)),
            () = pending.evicted.cancelled() => Err(Refusal::Full),
        }
    }

    /// Logs why a connection is closed: the first error of a proxy's configuration as a warning, and not the next
    /// thousand.
    fn log(&self, peer: ShownAddress, refusal: &Refusal) {
        let is_of_configuration = matches!(refusal, Refusal::Header(_) | Refusal::Timeout);
        if is_of_configuration && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%peer, "a connection of a proxy was closed: {refusal}; further ones are logged as debug");
        } else {
            tracing::debug!(%peer, "a connection was closed: {refusal}");
        }
    }
}

/// Reads a header, and no byte after it.
async fn read_header(socket: &mut Socket) -> Result<Option<SocketAddr>, Refusal> {
    let mut received = Vec::with_capacity(USUAL_BYTES);
    loop {
        let missing = match header::parse(&received)? {
            Progress::Complete(source) => return Ok(source),
            Progress::Partial { missing } => missing,
        };
        match socket.read_buf(&mut (&mut received).limit(missing)).await {
            Ok(0) | Err(_) => return Err(Refusal::Closed),
            Ok(_) => {}
        }
    }
}

/// A connection whose header is awaited.
struct PendingHeader {
    since: Instant,
    evicted: CancellationToken,
}

impl Evictable for PendingHeader {
    fn idle_since(&self) -> Option<Instant> {
        (self.since.elapsed() >= GRACE).then_some(self.since)
    }

    fn evict(&self) {
        self.evicted.cancel();
    }
}
