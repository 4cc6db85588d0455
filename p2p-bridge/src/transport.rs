//! How bytes travel between peers.
//!
//! TCP with Noise or TLS and yamux, QUIC, and WebSocket over TCP; names are resolved as the system does it. Circuits through
//! relays are a transport too.
//!
//! On a private network, each of these but QUIC is encrypted with the network's key before anything else is said on it.

use crate::counted::{Bandwidth, Counted, Via, Yamux};
use crate::private_network::SwarmKey;
use libp2p::core::ConnectedPoint;
use libp2p::core::transport::OrTransport;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::pnet::PnetConfig;
use libp2p::swarm::NetworkBehaviour;
use libp2p::{PeerId, Swarm, SwarmBuilder, Transport as _, dns, noise, quic, relay, swarm, tcp, tls, websocket, yamux};

/// Streams that a peer may open on one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 512;

/// Why the transports cannot be built.
pub type TransportError = Box<dyn std::error::Error + Send + Sync>;

/// A swarm over every transport of the public network.
///
/// # Errors
/// When the TLS or Noise keys cannot be derived from the identity, or the system's resolver is not to be had.
pub async fn public<B: NetworkBehaviour>(
    keypair: Keypair,
    behaviour: impl FnOnce(&Keypair, relay::client::Behaviour) -> B,
    config: impl FnOnce(swarm::Config) -> swarm::Config,
    bandwidth: &Bandwidth,
) -> Result<Swarm<B>, TransportError> {
    let yamux = |via| {
        let meter = bandwidth.meter(via);
        move || Yamux::new(meter)
    };
    let swarm = SwarmBuilder::with_existing_identity(keypair)
        .with_tokio()
        .with_tcp(tcp_config(), (noise::Config::new, tls::Config::new), yamux(Via::Tcp))?
        .with_other_transport(|keypair| quic(keypair).map(counted(bandwidth)))?
        .with_dns()
        .map_err(resolver)?
        .with_websocket((noise::Config::new, tls::Config::new), yamux(Via::WebSocket))
        .await?
        .with_relay_client(noise::Config::new, yamux(Via::Circuit))?
        .with_behaviour(behaviour)
        .map_err(|error| error.to_string())?
        .with_swarm_config(config)
        .build();
    Ok(swarm)
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
    bandwidth: &Bandwidth,
) -> Result<Swarm<B>, TransportError> {
    let tcp = || dns::tokio::Transport::system(tcp::tokio::Transport::new(tcp_config())).map_err(resolver);
    let (circuits, relay) = relay::client::new(keypair.public().to_peer_id());
    let noise = noise::Config::new(&keypair)?;
    // Circuits too: without it, a relay could connect members with strangers. Kubo does the same.
    let sockets = OrTransport::new(circuits, OrTransport::new(websocket::Config::new(tcp()?), tcp()?));
    let protected = sockets.and_then(move |socket, _| PnetConfig::new(key.reveal()).handshake(socket));
    let authenticated = protected.upgrade(Version::V1Lazy).authenticate(noise).multiplex(yamux::Config::default());
    let authenticated = authenticated.map(counted(bandwidth));
    let swarm = SwarmBuilder::with_existing_identity(keypair)
        .with_tokio()
        .with_other_transport(|_| authenticated)?
        .with_behaviour(|keypair| behaviour(keypair, relay))
        .map_err(|error| error.to_string())?
        .with_swarm_config(config)
        .build();
    Ok(swarm)
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

fn tcp_config() -> tcp::Config {
    tcp::Config::default().nodelay(true)
}

fn resolver(error: std::io::Error) -> TransportError {
    format!("cannot read the system's resolver configuration: {error}").into()
}
