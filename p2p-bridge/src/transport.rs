//! How bytes travel between peers.
//!
//! TCP with Noise or TLS and yamux, QUIC, and WebSocket over TCP; names are resolved as the system does it. Circuits through
//! relays are a transport too.

use libp2p::identity::Keypair;
use libp2p::swarm::NetworkBehaviour;
use libp2p::{Swarm, SwarmBuilder, noise, relay, swarm, tcp, tls, yamux};

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
) -> Result<Swarm<B>, TransportError> {
    let tcp = tcp::Config::default().nodelay(true);
    let swarm = SwarmBuilder::with_existing_identity(keypair)
        .with_tokio()
        .with_tcp(tcp, (noise::Config::new, tls::Config::new), yamux::Config::default)?
        .with_quic_config(|mut quic| {
            quic.max_concurrent_stream_limit = STREAMS_PER_CONNECTION_MAX;
            quic
        })
        .with_dns()
        .map_err(|error| format!("cannot read the system's resolver configuration: {error}"))?
        .with_websocket((noise::Config::new, tls::Config::new), yamux::Config::default)
        .await?
        .with_relay_client(noise::Config::new, yamux::Config::default)?
        .with_behaviour(behaviour)
        .map_err(|error| error.to_string())?
        .with_swarm_config(config)
        .build();
    Ok(swarm)
}
