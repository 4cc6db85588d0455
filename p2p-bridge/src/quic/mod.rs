//! QUIC between peers: a libp2p transport on quinn.
//!
//! It speaks what libp2p's QUIC transport speaks (`/quic-v1`, TLS by the libp2p specification), with the same timeouts,
//! and listens, dials and punches holes in the same way. It is our own because libp2p's keeps quinn's configuration and
//! its sockets to itself. It differs in this:
//!
//! - **Congestion control**: a larger initial window, and a slow start that ends by delay (`congestion.rs`).
//! - **Memory**: windows of flow control (`flow_control.rs`) come from one budget for all connections (`budget.rs`).
//!   libp2p's transport promises each connection 15 MB.
//! - **Handshakes** are limited, and peers must prove their addresses while many are under way (`handshakes.rs`).
//!   Packets that begin none are no events of the listener.
//! - **Sockets** get large kernel buffers ([`crate::udp`]), and packets reach quinn one by one (`socket.rs`).
//! - AES-GCM is preferred where the processor has it, and no server name is sent ([`crate::peer_tls`]).
//! - Tokens for later connections are neither stored nor sent: a peer's token would be presented to others.
//!
//! Non-goals: QUIC's draft versions, datagrams, unidirectional streams, early data and connection migration.

mod address;
mod budget;
mod congestion;
mod connection;
mod flow_control;
mod handshakes;
mod hole_punching;
mod listener;
mod metrics;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod transport;

pub use budget::Budget;
pub use connection::Connection;
pub use stream::Stream;
pub use transport::QuicTransport;

use crate::peer_tls::{ConfigError, TlsIdentity};
use congestion::HyStartCubicConfig;
use libp2p::identity::Keypair;
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, EndpointConfig, NoneTokenLog, NoneTokenStore, ServerConfig, TransportConfig, ValidationTokenConfig,
    VarInt,
};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The version of QUIC that `/quic-v1` means.
const VERSION: u32 = 1;
/// The maximum number of streams that a peer may open on one connection.
const STREAMS_MAX: u32 = 256;
/// How long a connection lives without a packet of the peer, in milliseconds.
const IDLE_TIMEOUT_MS: u32 = 10_000;
/// How often a packet is sent on an idle connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// First packets of handshakes that wait to be accepted: how many, and the bytes that are kept of one and of all.
const INCOMING_MAX: usize = 256;
const INCOMING_BYTES: u64 = 16 * 1024;
const INCOMING_TOTAL_BYTES: u64 = 1024 * 1024;

/// Why a connection could not be made, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The dial could not begin.
    #[error(transparent)]
    Dial(#[from] quinn::ConnectError),
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    /// The handshake took too long.
    #[error("the handshake timed out")]
    HandshakeTimedOut,
    /// The certificate proves no identity.
    #[error("the peer has not proved its identity: {0}")]
    Identity(rustls::Error),
    /// A hole can only be punched from a socket that listens.
    #[error("no QUIC listener to punch a hole from")]
    NoListener,
    /// A hole is being punched to this address.
    #[error("a hole is already being punched to {0}")]
    HolePunchInProgress(SocketAddr),
}

/// Why the configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum QuicConfigError {
    /// The configuration of TLS.
    #[error(transparent)]
    Tls(#[from] ConfigError),
    /// There is no cipher suite for QUIC's first packets.
    #[error(transparent)]
    InitialCipherSuite(#[from] NoInitialCipherSuite),
}

/// The configuration of all endpoints.
#[derive(Clone)]
struct Config {
    endpoint: EndpointConfig,
    server: ServerConfig,
    client: ClientConfig,
    budget: Budget,
}

impl Config {
    fn new(keypair: &Keypair, budget: Budget) -> Result<Self, QuicConfigError> {
        let identity = TlsIdentity::new(keypair)?;
        let transport = Arc::new(transport_config());
        let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(identity.server()?)?));
        server.transport_config(transport.clone());
        server.migration(false);
        server.max_incoming(INCOMING_MAX);
        server.incoming_buffer_size(INCOMING_BYTES).incoming_buffer_size_total(INCOMING_TOTAL_BYTES);
        server.validation_token_config(no_tokens());
        let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(identity.client()?)?));
        client.transport_config(transport).token_store(Arc::new(NoneTokenStore));
        let mut endpoint = EndpointConfig::default();
        endpoint.supported_versions(vec![VERSION]);
        Ok(Self { endpoint, server, client, budget })
    }
}

/// No tokens for later connections (RFC 9000, section 8.1.3). All peers have the same (empty) server name, so that a
/// token would mostly be presented to another peer than the one that it is from, and a peer could send one that leaves
/// the first packet of another dial no room.
fn no_tokens() -> ValidationTokenConfig {
    let mut config = ValidationTokenConfig::default();
    config.sent(0).log(Arc::new(NoneTokenLog));
    config
}

fn transport_config() -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .allow_spin(false)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(VarInt::from_u32(IDLE_TIMEOUT_MS).into()))
        .receive_window(VarInt::from_u32(flow_control::RECEIVE_MIN))
        .stream_receive_window(VarInt::from_u32(flow_control::STREAM_RECEIVE_MAX))
        .send_window(flow_control::SEND_MIN)
        .congestion_controller_factory(Arc::new(HyStartCubicConfig));
    config
}
