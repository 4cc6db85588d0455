//! Builds the swarm: protocols and limits, over the transports of [`crate::transport`].
//!
//! Addresses are dialled with a head start for QUIC (Happy Eyeballs, RFC 8305).

use crate::admission::Admission;
use crate::announced::{AnnounceFilter, Announced};
use crate::bitswap;
use crate::dag;
use crate::dht::behaviour::ScopedKad;
use crate::member_lookup;
use crate::nat::guarded::AddressFiltered;
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

/// How long an unused connection stays open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// All protocols of the node. Admission control comes first, so that it decides first.
#[derive(NetworkBehaviour)]
pub struct Behaviour {
    pub admission: Admission,
    pub bitswap: bitswap::behaviour::Behaviour,
    pub dag: dag::behaviour::Behaviour,
    member_lookup: member_lookup::behaviour::Behaviour,
    pub wan: ScopedKad,
    pub lan: ScopedKad,
    pub announcer: announcer::Behaviour,
    pub identify: AnnounceFilter<identify::Behaviour>,
    ping: ping::Behaviour,
    relay: relay::client::Behaviour,
    dcutr: Toggle<AddressFiltered<dcutr::Behaviour>>,
    upnp: Toggle<PortMapping>,
    autonat: Toggle<AddressFiltered<autonat::v2::client::Behaviour>>,
    autonat_server: Toggle<AddressFiltered<autonat::v2::server::Behaviour>>,
    autonat_v1: Toggle<AddressFiltered<autonat::v1::Behaviour>>,
    mdns: Toggle<AnnounceFilter<mdns::tokio::Behaviour>>,
}

impl Behaviour {
    /// The DHT of a scope.
    pub fn dht(&mut self, scope: Scope) -> &mut ScopedKad {
        match scope {
            Scope::Wan => &mut self.wan,
            Scope::Lan => &mut self.lan,
        }
    }

    /// Tests the candidates for external addresses again, if there are any.
    pub fn test_addresses_again(&mut self) {
        if let Some(autonat) = self.autonat.as_mut() {
            let mapped = self.upnp.as_ref().into_iter().flat_map(PortMapping::mapped);
            autonat.replace_inner(nat::autonat(), mapped);
        }
    }

    /// Stops testing an address that is no longer the node's.
    pub fn stop_testing(&mut self, address: &Multiaddr) {
        if let Some(autonat) = self.autonat.as_mut() {
            autonat.remove(address);
        }
    }

    /// The number of addresses that the router has mapped to the node.
    pub fn mapped_addresses(&self) -> usize {
        self.upnp.as_ref().map_or(0, |upnp| upnp.mapped().len())
    }
}

/// The protocols by which blocks are sent.
pub type BlockProtocols =
    (bitswap::behaviour::Behaviour, dag::behaviour::Behaviour, member_lookup::behaviour::Behaviour);

/// Builds a swarm without listeners, on a private network if there is a key, else on the public one.
///
/// # Errors
/// If the TLS or Noise keys cannot be derived from the identity, or the system's resolver configuration cannot be read.
pub fn build(
    keypair: Keypair,
    private: Option<SwarmKey>,
    admission: Admission,
    (bitswap, dag, member_lookup): BlockProtocols,
    [wan, lan]: [ScopedKad; 2],
    options: &BridgeOptions,
    shared: transport::Shared<'_>,
) -> Result<Swarm<Behaviour>, transport::TransportError> {
    let announced = Announced::new(options);
    let behaviour = |keypair: &Keypair, relay: relay::client::Behaviour| {
        let nat = Behaviours::new(keypair.public().to_peer_id(), options);
        let about = identify::Config::new("ipfs/0.1.0".to_owned(), keypair.public())
            .with_agent_version(concat!("causeway/", env!("CARGO_PKG_VERSION")).to_owned())
            // Its cache would supply any address that a peer claims to every dial, across the scopes.
            .with_cache_size(0)
            // Relay circuits are opened and closed while peers are connected.
            .with_push_listen_addr_updates(true)
            .with_hide_listen_addrs(!announced.announces_all());
        let mdns = options.mdns.then(|| mdns_behaviour(keypair)).flatten();
        Behaviour {
            admission,
            bitswap,
            dag,
            member_lookup,
            wan,
            lan,
            announcer: announcer::Behaviour::default(),
            identify: AnnounceFilter::new(
                identify::Behaviour::new(about),
                announced.clone(),
                !announced.announces_all(),
            ),
            ping: ping::Behaviour::default(),
            relay,
            dcutr: nat.dcutr,
            upnp: nat.upnp,
            autonat: nat.autonat,
            autonat_server: nat.autonat_server,
            autonat_v1: nat.autonat_v1,
            mdns: Toggle::from(mdns.map(|mdns| AnnounceFilter::new(mdns, announced.clone(), false))),
        }
    };
    let swarm_config = |config: libp2p::swarm::Config| {
        config
            .with_idle_connection_timeout(IDLE_TIMEOUT)
            .with_smart_dial()
            // A dialer that proposes a single protocol sends its request with the proposal, which saves a round trip
            // for each DHT stream.
            .with_substream_upgrade_protocol_override(Version::V1Lazy)
    };
    match private {
        Some(key) => transport::private(keypair, key, behaviour, swarm_config, shared),
        None => transport::public(keypair, behaviour, swarm_config, shared),
    }
}

/// Multicast DNS, if the system supports it. Without it, the node starts without local discovery.
fn mdns_behaviour(keypair: &Keypair) -> Option<mdns::tokio::Behaviour> {
    let started = mdns::tokio::Behaviour::new(mdns::Config::default(), keypair.public().to_peer_id());
    started
        .inspect_err(|error| tracing::warn!(%error, "cannot discover local peers: multicast DNS is not available"))
        .ok()
}
