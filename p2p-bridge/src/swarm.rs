//! Builds the swarm: protocols and limits, over the transports of [`crate::transport`].
//!
//! Addresses are tried QUIC first with a head start (Happy Eyeballs, RFC 8305).

use crate::admission::Admission;
use crate::announced::{Announced, Telling};
use crate::bitswap;
use crate::dht::behaviour::Scoped;
use crate::nat::guarded::Guarded;
use crate::nat::port_mapping::PortMapping;
use crate::nat::{self, Behaviours};
use crate::options::BridgeOptions;
use crate::private_network::SwarmKey;
use crate::providing::announcer;
use crate::scope::Scope;
use crate::transport;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::swarm::NetworkBehaviour;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{Multiaddr, Swarm, autonat, dcutr, identify, mdns, ping, relay};
use std::time::Duration;

/// How long a connection that nobody uses stays open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Every protocol of the node. The doorkeeper comes first, so that it is asked first.
#[derive(NetworkBehaviour)]
pub struct Behaviour {
    pub admission: Admission,
    pub bitswap: bitswap::behaviour::Behaviour,
    pub wan: Scoped,
    pub lan: Scoped,
    pub announcer: announcer::Behaviour,
    pub identify: Telling<identify::Behaviour>,
    ping: ping::Behaviour,
    relay: relay::client::Behaviour,
    dcutr: Toggle<Guarded<dcutr::Behaviour>>,
    upnp: Toggle<PortMapping>,
    autonat: Toggle<Guarded<autonat::v2::client::Behaviour>>,
    autonat_server: Toggle<Guarded<autonat::v2::server::Behaviour>>,
    autonat_v1: Toggle<Guarded<autonat::v1::Behaviour>>,
    mdns: Toggle<Telling<mdns::tokio::Behaviour>>,
}

impl Behaviour {
    /// The DHT of a scope.
    pub fn dht(&mut self, scope: Scope) -> &mut Scoped {
        match scope {
            Scope::Wan => &mut self.wan,
            Scope::Lan => &mut self.lan,
        }
    }

    /// Has the candidates for our own address tested once more, if any are.
    pub fn test_addresses_again(&mut self) {
        if let Some(autonat) = self.autonat.as_mut() {
            let mapped = self.upnp.as_ref().into_iter().flat_map(PortMapping::mapped);
            autonat.begin_again(nat::autonat(), mapped);
        }
    }

    /// Has an address that is not ours any more tested no further.
    pub fn forget_address(&mut self, address: &Multiaddr) {
        if let Some(autonat) = self.autonat.as_mut() {
            autonat.forget(address);
        }
    }

    /// Addresses at which the router forwards to us.
    pub fn mapped_addresses(&self) -> usize {
        self.upnp.as_ref().map_or(0, |upnp| upnp.mapped().len())
    }
}

/// A swarm that listens nowhere yet, on the private network of a key or on the public one.
///
/// # Errors
/// When the TLS or Noise keys cannot be derived from the identity, or the system's resolver is not to be had.
pub fn build(
    keypair: Keypair,
    private: Option<SwarmKey>,
    admission: Admission,
    bitswap: bitswap::behaviour::Behaviour,
    [wan, lan]: [Scoped; 2],
    options: &BridgeOptions,
    shared: transport::Shared<'_>,
) -> Result<Swarm<Behaviour>, transport::TransportError> {
    let announced = Announced::new(options);
    let behaviour = |keypair: &Keypair, relay: relay::client::Behaviour| {
        let nat = Behaviours::new(keypair.public().to_peer_id(), options);
        let about = identify::Config::new("ipfs/0.1.0".to_owned(), keypair.public())
            .with_agent_version(concat!("causeway/", env!("CARGO_PKG_VERSION")).to_owned())
            // Its cache would offer any address that a peer claims to whoever dials, past the wall between the scopes.
            .with_cache_size(0)
            // Circuits come and go while peers are connected.
            .with_push_listen_addr_updates(true)
            .with_hide_listen_addrs(!announced.tells_all());
        let mdns = options.mdns.then(|| neighbours(keypair)).flatten();
        Behaviour {
            admission,
            bitswap,
            wan,
            lan,
            announcer: announcer::Behaviour::default(),
            identify: Telling::new(identify::Behaviour::new(about), announced.clone(), !announced.tells_all()),
            ping: ping::Behaviour::default(),
            relay,
            dcutr: nat.dcutr,
            upnp: nat.upnp,
            autonat: nat.autonat,
            autonat_server: nat.autonat_server,
            autonat_v1: nat.autonat_v1,
            mdns: Toggle::from(mdns.map(|mdns| Telling::new(mdns, announced.clone(), false))),
        }
    };
    let swarm_config = |config: libp2p::swarm::Config| {
        config
            .with_idle_connection_timeout(IDLE_TIMEOUT)
            .with_smart_dial()
            // Whoever proposes one protocol only sends its request along with the proposal: a round trip less for each
            // stream of the DHT.
            .with_substream_upgrade_protocol_override(Version::V1Lazy)
    };
    match private {
        Some(key) => transport::private(keypair, key, behaviour, swarm_config, shared),
        None => transport::public(keypair, behaviour, swarm_config, shared),
    }
}

/// Multicast DNS, if the system has it. A node that cannot find its neighbours is a node all the same.
fn neighbours(keypair: &Keypair) -> Option<mdns::tokio::Behaviour> {
    let started = mdns::tokio::Behaviour::new(mdns::Config::default(), keypair.public().to_peer_id());
    started
        .inspect_err(|error| tracing::warn!(%error, "peers of the local network cannot be found by multicast DNS"))
        .ok()
}
