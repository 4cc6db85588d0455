//! How bytes travel between peers.
//!
//! TCP with Noise or TLS and yamux, QUIC, and WebSocket over TCP; names are resolved as the system does it. Circuits through
//! relays are a transport too. Around all of them, and above the sockets, addresses are filtered ([`crate::address_filter`]).
//!
//! On a private network, each of these but QUIC is encrypted with the network's key before anything else is said on it.

use crate::address_filter::{Dials, OperatorAddresses, Sockets};
use crate::counted::{Bandwidth, Counted, Via, Yamux};
use crate::private_network::SwarmKey;
use futures::future::{BoxFuture, Either, FutureExt as _};
use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, OrTransport};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo, Version};
use libp2p::core::{ConnectedPoint, Negotiated};
use libp2p::identity::Keypair;
use libp2p::pnet::PnetConfig;
use libp2p::swarm::NetworkBehaviour;
use libp2p::{PeerId, Swarm, SwarmBuilder, Transport, dns, noise, quic, relay, swarm, tcp, tls, websocket, yamux};

/// Streams that a peer may open on one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 512;

/// Why the transports cannot be built.
pub type TransportError = Box<dyn std::error::Error + Send + Sync>;

/// What the transports of a swarm share with others.
pub struct Shared<'a> {
    /// What they carry.
    pub bandwidth: &'a Bandwidth,
    /// The names that lead anywhere.
    pub operator: OperatorAddresses,
}

/// A transport of authenticated, multiplexed connections.
type Connections = Boxed<(PeerId, StreamMuxerBox)>;

/// A swarm over every transport of the public network. Names lead anywhere if the operator gave them.
///
/// # Errors
/// When the TLS or Noise keys cannot be derived from the identity, or the system's resolver is not to be had.
pub fn public<B: NetworkBehaviour>(
    keypair: Keypair,
    behaviour: impl FnOnce(&Keypair, relay::client::Behaviour) -> B,
    config: impl FnOnce(swarm::Config) -> swarm::Config,
    Shared { bandwidth, operator }: Shared<'_>,
) -> Result<Swarm<B>, TransportError> {
    let yamux = |via| Yamux::new(bandwidth.meter(via));
    let security = Security::new(&keypair)?;
    let noise = noise::Config::new(&keypair)?;
    let (circuits, relay) = relay::client::new(keypair.public().to_peer_id());
    let tcp = authenticated(sockets(), security.clone(), yamux(Via::Tcp));
    let direct = either(Sockets::new(quic(&keypair).map(counted(bandwidth))).map(boxed).boxed(), tcp);
    let direct = dns::tokio::Transport::system(direct).map_err(resolver)?.boxed();
    let over_websocket = authenticated(websocket::Config::new(resolving()?), security, yamux(Via::WebSocket));
    let circuits = authenticated(circuits, noise, yamux(Via::Circuit));
    let all = either(circuits, either(over_websocket, direct));
    build(keypair, Dials::new(all, operator), relay, behaviour, config)
}

/// A swarm over the transports of a private network: TCP, WebSocket and circuits. QUIC brings an encryption of its own, below
/// which there is no room for the network's; addresses of it can be neither listened on nor dialled.
///
/// # Errors
/// When the Noise keys cannot be derived from the identity, or the system's resolver is not to be had.
pub fn private<B: NetworkBehaviour>(
    keypair: Keypair,
    key: SwarmKey,
    behaviour: impl FnOnce(&Keypair, relay::client::Behaviour) -> B,
    config: impl FnOnce(swarm::Config) -> swarm::Config,
    Shared { bandwidth, operator }: Shared<'_>,
) -> Result<Swarm<B>, TransportError> {
    let (circuits, relay) = relay::client::new(keypair.public().to_peer_id());
    let noise = noise::Config::new(&keypair)?;
    // Circuits too: without it, a relay could connect members with strangers. Kubo does the same.
    let sockets = OrTransport::new(circuits, OrTransport::new(websocket::Config::new(resolving()?), resolving()?));
    let protected = sockets.and_then(move |socket, _| PnetConfig::new(key.reveal()).handshake(socket));
    let authenticated = protected.upgrade(Version::V1Lazy).authenticate(noise).multiplex(yamux::Config::default());
    let authenticated = authenticated.map(counted(bandwidth)).map(boxed);
    build(keypair, Dials::new(authenticated.boxed(), operator), relay, behaviour, config)
}

fn build<B: NetworkBehaviour>(
    keypair: Keypair,
    transport: Dials<Connections>,
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

/// TCP, behind the filter of where a dial may end.
fn sockets() -> Sockets<tcp::tokio::Transport> {
    Sockets::new(tcp::tokio::Transport::new(tcp::Config::default().nodelay(true)))
}

/// The same, with names resolved above it.
fn resolving() -> Result<dns::tokio::Transport<Sockets<tcp::tokio::Transport>>, TransportError> {
    dns::tokio::Transport::system(sockets()).map_err(resolver)
}

/// A transport of byte streams, with security and yamux on it.
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

/// The first of two transports that knows an address.
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

/// Noise or TLS, whichever the peers agree on; we propose Noise first.
#[derive(Clone)]
struct Security {
    noise: noise::Config,
    tls: tls::Config,
}

/// What goes wrong with either.
#[derive(Debug, thiserror::Error)]
enum SecurityError {
    #[error(transparent)]
    Noise(#[from] noise::Error),
    #[error(transparent)]
    Tls(#[from] tls::UpgradeError),
}

type Secured<S> = (PeerId, Either<noise::Output<S>, tls::TlsStream<S>>);

impl Security {
    fn new(keypair: &Keypair) -> Result<Self, TransportError> {
        Ok(Self { noise: noise::Config::new(keypair)?, tls: tls::Config::new(keypair)? })
    }

    fn is_noise(&self, protocol: &'static str) -> bool {
        self.noise.protocol_info().into_iter().any(|known| known == protocol)
    }
}

impl UpgradeInfo for Security {
    type Info = &'static str;
    type InfoIter = Vec<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.noise.protocol_info().chain(self.tls.protocol_info()).collect()
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
            let (peer, stream) = self.tls.upgrade_inbound(socket, info).await?;
            Ok((peer, Either::Right(stream)))
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
            let (peer, stream) = self.tls.upgrade_outbound(socket, info).await?;
            Ok((peer, Either::Right(stream)))
        }
        .boxed()
    }
}

fn quic(keypair: &Keypair) -> quic::tokio::Transport {
    let mut config = quic::Config::new(keypair);
    config.max_concurrent_stream_limit = STREAMS_PER_CONNECTION_MAX;
    quic::tokio::Transport::new(config)
}

/// Has a connection's bytes counted, by the way that its address leads.
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
