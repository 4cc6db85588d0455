//! The transports between peers.
//!
//! TCP with Noise or TLS and yamux, QUIC, and WebSocket over TCP, with the system's DNS configuration, and relay
//! circuits. Address filters ([`crate::address_filter`]) wrap all of them, and each socket transport.
//!
//! On a private network, each of these except QUIC is encrypted with the network's key below all protocols.

use crate::address_filter::{DialFilter, OperatorAddresses, SocketFilter};
use crate::counted::{Bandwidth, Counted, Via, Yamux};
use crate::peer_tls::{self, TlsUpgrade};
use crate::private_network::SwarmKey;
use crate::quic::{self, QuicTransport};
use crate::tcp::TcpTransport;
use futures::future::{BoxFuture, Either, FutureExt as _};
use futures::io::BufWriter;
use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, OrTransport};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo, Version};
use libp2p::core::{ConnectedPoint, Negotiated};
use libp2p::identity::Keypair;
use libp2p::pnet::PnetConfig;
use libp2p::swarm::NetworkBehaviour;
use libp2p::tls::TlsStream;
use libp2p::{PeerId, Swarm, SwarmBuilder, Transport, dns, noise, relay, swarm, websocket, yamux};

/// Why the transports cannot be built.
pub type TransportError = Box<dyn std::error::Error + Send + Sync>;

/// State that the transports of a swarm share with other modules.
pub struct Shared<'a> {
    /// The bandwidth counters.
    pub bandwidth: &'a Bandwidth,
    /// The addresses that the operator gave, whose names may resolve to any IP address.
    pub operator: OperatorAddresses,
    /// The memory of QUIC connections.
    pub quic: quic::Budget,
}

/// A transport of authenticated, multiplexed connections.
type Connections = Boxed<(PeerId, StreamMuxerBox)>;

/// A swarm over all transports of the public network.
///
/// # Errors
/// If the TLS or Noise keys cannot be derived from the identity, or the system's resolver configuration cannot be read.
pub fn public<B: NetworkBehaviour>(
    keypair: Keypair,
    behaviour: impl FnOnce(&Keypair, relay::client::Behaviour) -> B,
    config: impl FnOnce(swarm::Config) -> swarm::Config,
    Shared { bandwidth, operator, quic }: Shared<'_>,
) -> Result<Swarm<B>, TransportError> {
    let yamux = |via| Yamux::new(bandwidth.meter(via));
    let security = Security::new(&keypair)?;
    let noise = noise::Config::new(&keypair)?;
    let (circuits, relay) = relay::client::new(keypair.public().to_peer_id());
    let tcp = authenticated(sockets(), security.clone(), yamux(Via::Tcp));
    let quic = QuicTransport::new(&keypair, quic)?.map(counted(bandwidth));
    let direct = either(SocketFilter::new(quic).map(boxed).boxed(), tcp);
    let direct = dns::tokio::Transport::system(direct).map_err(resolver)?.boxed();
    let over_websocket = authenticated(websocket::Config::new(resolving()?), security, yamux(Via::WebSocket));
    let circuits = authenticated(circuits, noise, yamux(Via::Circuit));
    let all = either(circuits, either(over_websocket, direct));
    build(keypair, DialFilter::new(all, operator), relay, behaviour, config)
}

/// A swarm over the transports of a private network: TCP, WebSocket and circuits. QUIC has built-in encryption, with no
/// layer below it for the network's key, so QUIC addresses can be neither listened on nor dialled.
///
/// # Errors
/// If the Noise keys cannot be derived from the identity, or the system's resolver configuration cannot be read.
pub fn private<B: NetworkBehaviour>(
    keypair: Keypair,
    key: SwarmKey,
    behaviour: impl FnOnce(&Keypair, relay::client::Behaviour) -> B,
    config: impl FnOnce(swarm::Config) -> swarm::Config,
    Shared { bandwidth, operator, .. }: Shared<'_>,
) -> Result<Swarm<B>, TransportError> {
    let (circuits, relay) = relay::client::new(keypair.public().to_peer_id());
    let noise = noise::Config::new(&keypair)?;
    // Circuits too: otherwise a relay could connect members with outside peers. Kubo does the same.
    let sockets = OrTransport::new(circuits, OrTransport::new(websocket::Config::new(resolving()?), resolving()?));
    let protected = sockets.and_then(move |socket, _| PnetConfig::new(key.reveal()).handshake(socket));
    let authenticated = protected.upgrade(Version::V1Lazy).authenticate(noise).multiplex(yamux::Config::default());
    let authenticated = authenticated.map(counted(bandwidth)).map(boxed);
    build(keypair, DialFilter::new(authenticated.boxed(), operator), relay, behaviour, config)
}

fn build<B: NetworkBehaviour>(
    keypair: Keypair,
    transport: DialFilter<Connections>,
    relay: relay::client::Behaviour,
    behaviour: impl FnOnce(&Keypair, relay::client::Behaviour) -> B,
    config: impl FnOnce(swarm::Config) -> swarm::Config,
) -> Result<Swarm<B>, TransportError> {
    let swarm = SwarmBuilder::with_existing_identity(keypair)
        .with_tokio()
        .with_other_transport(|_| transport)?
        .with_behaviour(|keypair| behaviour(keypair, relay))
        .map_err(|error| error.to_string())?
        .with_swarm_config(config)
        .build();
    Ok(swarm)
}

/// TCP with the filter of destinations.
fn sockets() -> SocketFilter<TcpTransport> {
    SocketFilter::new(TcpTransport::default())
}

/// The same with DNS resolution.
fn resolving() -> Result<dns::tokio::Transport<SocketFilter<TcpTransport>>, TransportError> {
    dns::tokio::Transport::system(sockets()).map_err(resolver)
}

/// Upgrades a transport of byte streams with security and yamux.
fn authenticated<T, S, C>(streams: T, security: S, yamux: Yamux) -> Connections
where
    T: Transport + Send + Unpin + 'static,
    T::Output: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    T::Error: Send + Sync + 'static,
    T::Dial: Send + 'static,
    T::ListenerUpgrade: Send + 'static,
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: InboundConnectionUpgrade<Negotiated<T::Output>, Output = (PeerId, C)>
        + OutboundConnectionUpgrade<
            Negotiated<T::Output>,
            Output = (PeerId, C),
            Error = <S as InboundConnectionUpgrade<Negotiated<T::Output>>>::Error,
        > + Clone
        + Send
        + 'static,
    <S as InboundConnectionUpgrade<Negotiated<T::Output>>>::Error: std::error::Error + Send + Sync + 'static,
    <S as InboundConnectionUpgrade<Negotiated<T::Output>>>::Future: Send,
    <S as OutboundConnectionUpgrade<Negotiated<T::Output>>>::Future: Send,
    <S::InfoIter as IntoIterator>::IntoIter: Send,
    S::Info: Send,
{
    streams.upgrade(Version::V1Lazy).authenticate(security).multiplex(yamux).map(boxed).boxed()
}

/// The first of two transports that supports an address.
fn either(one: Connections, other: Connections) -> Connections {
    OrTransport::new(one, other).map(|either, _| either.into_inner()).boxed()
}

fn boxed<M>((peer, muxer): (PeerId, M), _: ConnectedPoint) -> (PeerId, StreamMuxerBox)
where
    M: libp2p::core::StreamMuxer + Send + 'static,
    M::Substream: Send + 'static,
    M::Error: Send + Sync + 'static,
{
    (peer, StreamMuxerBox::new(muxer))
}

/// Noise or TLS, as negotiated. Noise has no cipher but ChaCha20, so the dialer proposes TLS first if its processor has
/// instructions for AES, and Noise first otherwise.
#[derive(Clone)]
struct Security {
    noise: noise::Config,
    tls: TlsUpgrade,
    tls_first: bool,
}

/// The error of either.
#[derive(Debug, thiserror::Error)]
enum SecurityError {
    #[error(transparent)]
    Noise(#[from] noise::Error),
    #[error(transparent)]
    Tls(#[from] std::io::Error),
}

type Secured<S> = (PeerId, Either<noise::Output<S>, BufWriter<TlsStream<S>>>);

/// What is gathered before it is encrypted: a frame of yamux, whose head and body (16 KiB at most) are written one after
/// the other, and small frames that follow each other. A write to TLS is a record and a write to the socket, so that a
/// head would be a packet of its own. Noise gathers by itself. yamux flushes when it has nothing more to write.
const TLS_WRITE_BYTES: usize = 32 * 1024;

fn gathered<S: AsyncRead + AsyncWrite + Unpin>((peer, stream): (PeerId, TlsStream<S>)) -> Secured<S> {
    (peer, Either::Right(BufWriter::with_capacity(TLS_WRITE_BYTES, stream)))
}

impl Security {
    fn new(keypair: &Keypair) -> Result<Self, TransportError> {
        let (noise, tls) = (noise::Config::new(keypair)?, TlsUpgrade::new(keypair)?);
        Ok(Self { noise, tls, tls_first: peer_tls::has_aes() })
    }

    fn is_noise(&self, protocol: &'static str) -> bool {
        self.noise.protocol_info().into_iter().any(|known| known == protocol)
    }
}

impl UpgradeInfo for Security {
    type Info = &'static str;
    type InfoIter = Vec<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        let (noise, tls) = (self.noise.protocol_info(), self.tls.protocol_info());
        if self.tls_first { tls.chain(noise).collect() } else { noise.chain(tls).collect() }
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> InboundConnectionUpgrade<S> for Security {
    type Output = Secured<S>;
    type Error = SecurityError;
    type Future = BoxFuture<'static, Result<Secured<S>, SecurityError>>;

    fn upgrade_inbound(self, socket: S, info: Self::Info) -> Self::Future {
        async move {
            if self.is_noise(info) {
                let (peer, stream) = self.noise.upgrade_inbound(socket, info).await?;
                return Ok((peer, Either::Left(stream)));
            }
            Ok(gathered(self.tls.upgrade_inbound(socket, info).await?))
        }
        .boxed()
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> OutboundConnectionUpgrade<S> for Security {
    type Output = Secured<S>;
    type Error = SecurityError;
    type Future = BoxFuture<'static, Result<Secured<S>, SecurityError>>;

    fn upgrade_outbound(self, socket: S, info: Self::Info) -> Self::Future {
        async move {
            if self.is_noise(info) {
                let (peer, stream) = self.noise.upgrade_outbound(socket, info).await?;
                return Ok((peer, Either::Left(stream)));
            }
            Ok(gathered(self.tls.upgrade_outbound(socket, info).await?))
        }
        .boxed()
    }
}

/// Counts a connection's bytes by the transport of its address.
fn counted<M>(bandwidth: &Bandwidth) -> impl Fn((PeerId, M), ConnectedPoint) -> (PeerId, Counted<M>) + Clone + use<M> {
    let bandwidth = bandwidth.clone();
    move |(peer, muxer), endpoint| {
        let via = Via::of(endpoint.get_remote_address());
        (peer, Counted::new(muxer, bandwidth.meter(via)))
    }
}

fn resolver(error: std::io::Error) -> TransportError {
    format!("cannot read the system's resolver configuration: {error}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_decides_which_security_is_proposed_first() {
        let mut security = Security::new(&Keypair::generate_ed25519()).expect("keys");
        for (tls_first, expected) in [(true, ["/tls/1.0.0", "/noise"]), (false, ["/noise", "/tls/1.0.0"])] {
            security.tls_first = tls_first;
            assert_eq!(UpgradeInfo::protocol_info(&security), expected);
        }
    }
}
