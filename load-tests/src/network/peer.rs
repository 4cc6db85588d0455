//! libp2p peers in this process: a swarm of any behaviour, and one that connects and opens streams.

use super::streams::Streams;
use anyhow::{Context, Result, bail};
use futures::StreamExt as _;
use libp2p::core::upgrade;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm, SwarmBuilder, identify, noise, ping, tcp, tls, yamux};
use std::time::Duration;
use tokio::time::timeout;

/// For a connection to be made and its protocols to be identified.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(600);
/// Identification itself is a stream: the connection is closed soon after it.
const PROTOCOLS_IDLE: Duration = Duration::from_secs(10);

/// A new identity over TCP and QUIC. Connections without streams are closed after `idle`.
pub fn swarm<B: NetworkBehaviour>(idle: Duration, behaviour: impl FnOnce(&Keypair) -> B) -> Result<Swarm<B>> {
    let swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), (noise::Config::new, tls::Config::new), yamux::Config::default)?
        .with_quic()
        .with_behaviour(|key| behaviour(key))?
        // A new stream costs no round trip of its own where there is one protocol to negotiate.
        .with_swarm_config(|config| {
            let lazy = upgrade::Version::V1Lazy;
            config.with_idle_connection_timeout(idle).with_substream_upgrade_protocol_override(lazy)
        })
        .build();
    Ok(swarm)
}

/// The protocol by which peers tell each other what they speak.
pub fn identify(key: &Keypair) -> identify::Config {
    identify::Config::new("ipfs/0.1.0".to_owned(), key.public())
}

/// Listens, and returns the port.
pub async fn listen<B: NetworkBehaviour>(swarm: &mut Swarm<B>, address: &str) -> Result<u16> {
    swarm.listen_on(address.parse()?)?;
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            return port(&address).context("an address without a port");
        }
    }
}

pub fn port(address: &Multiaddr) -> Option<u16> {
    address.iter().find_map(|part| match part {
        Protocol::Tcp(port) | Protocol::Udp(port) => Some(port),
        _ => None,
    })
}

/// A peer that connects and opens streams.
#[derive(NetworkBehaviour)]
pub struct Behaviour {
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    pub streams: Toggle<Streams>,
}

impl Behaviour {
    /// Without streams, the peer speaks no protocol of IPFS.
    pub fn new(key: &Keypair, streams: Option<Streams>) -> Self {
        Self {
            identify: identify::Behaviour::new(identify(key)),
            ping: ping::Behaviour::default(),
            streams: streams.into(),
        }
    }
}

/// Connects, and returns when the peer's protocols are known: a Go peer does not respond before.
pub async fn connect(swarm: &mut Swarm<Behaviour>, address: Multiaddr) -> Result<PeerId> {
    Ok(identified(swarm, address).await?.0)
}

/// The protocols that a peer speaks, as it tells every peer that connects.
pub async fn protocols(address: &str) -> Result<Vec<StreamProtocol>> {
    let mut swarm = swarm(PROTOCOLS_IDLE, |key| Behaviour::new(key, None))?;
    Ok(identified(&mut swarm, address.parse()?).await?.1.protocols)
}

async fn identified(swarm: &mut Swarm<Behaviour>, address: Multiaddr) -> Result<(PeerId, identify::Info)> {
    swarm.dial(address)?;
    let identified = async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                    peer_id, info, ..
                })) => return Ok((peer_id, info)),
                SwarmEvent::OutgoingConnectionError { error, .. } => bail!("{error}"),
                SwarmEvent::ConnectionClosed { cause, .. } => bail!("closed: {cause:?}"),
                _ => {}
            }
        }
    };
    timeout(CONNECT_TIMEOUT, identified).await.context("no connection")?
}

/// Drives a swarm for as long as the future is polled.
pub async fn drive<B: NetworkBehaviour>(swarm: &mut Swarm<B>) {
    loop {
        swarm.select_next_some().await;
    }
}
