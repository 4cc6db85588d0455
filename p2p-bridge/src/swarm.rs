//! Builds the swarm: protocols and limits, over the transports of [`crate::transport`].
//!
//! Addresses are tried QUIC first with a head start (Happy Eyeballs, RFC 8305).

use crate::admission::Admission;
use crate::bitswap;
use crate::nat::Behaviours;
use crate::nat::guarded::Guarded;
use crate::nat::port_mapping::PortMapping;
use crate::options::BridgeOptions;
use crate::private_network::SwarmKey;
use crate::scope::{Scope, Scoped};
use crate::transport;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::kad::{self, store::MemoryStore, store::MemoryStoreConfig};
use libp2p::swarm::NetworkBehaviour;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{PeerId, Swarm, autonat, dcutr, identify, mdns, ping, relay};
use std::num::NonZeroUsize;
use std::time::Duration;

/// How long a connection that nobody uses stays open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Keys for which providers are remembered, per scope.
const PROVIDED_KEYS_MAX: usize = 65_536;
/// Lifetime of a provider record (<https://specs.ipfs.tech/routing/kad-dht/#provider-record-routing>).
const PROVIDER_TTL: Duration = Duration::from_secs(48 * 3600);
/// How often our own are published again.
const REPROVIDE_EVERY: Duration = Duration::from_secs(22 * 3600);
/// Peers that one DHT query asks at a time. Peers that are gone cost a time-out each, and many are: as many as Kubo asks.
const PARALLELISM: NonZeroUsize = NonZeroUsize::new(10).expect("ten is not zero");
/// How long one DHT query may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Every protocol of the node. The doorkeeper comes first, so that it is asked first.
#[derive(NetworkBehaviour)]
pub struct Behaviour {
    pub admission: Admission,
    pub bitswap: bitswap::behaviour::Behaviour,
    pub wan: Scoped,
    pub lan: Scoped,
    pub identify: identify::Behaviour,
    ping: ping::Behaviour,
    relay: relay::client::Behaviour,
    dcutr: Toggle<Guarded<dcutr::Behaviour>>,
    upnp: Toggle<PortMapping>,
    autonat: Toggle<Guarded<autonat::v2::client::Behaviour>>,
    autonat_server: Toggle<Guarded<autonat::v2::server::Behaviour>>,
    autonat_v1: Toggle<Guarded<autonat::v1::Behaviour>>,
    mdns: Toggle<mdns::tokio::Behaviour>,
}

impl Behaviour {
    /// The DHT of a scope.
    pub fn dht(&mut self, scope: Scope) -> &mut Scoped {
        match scope {
            Scope::Wan => &mut self.wan,
            Scope::Lan => &mut self.lan,
        }
    }
}

/// A swarm that listens nowhere yet, on the private network of a key or on the public one.
///
/// # Errors
/// When the TLS or Noise keys cannot be derived from the identity, or the system's resolver is not to be had.
pub async fn build(
    keypair: Keypair,
    private: Option<SwarmKey>,
    admission: Admission,
    bitswap: bitswap::behaviour::Behaviour,
    options: &BridgeOptions,
) -> Result<Swarm<Behaviour>, transport::TransportError> {
    let behaviour = |keypair: &Keypair, relay: relay::client::Behaviour| {
        let peer = keypair.public().to_peer_id();
        let nat = Behaviours::new(peer, options);
        let about = identify::Config::new("ipfs/0.1.0".to_owned(), keypair.public())
            .with_agent_version(concat!("causeway/", env!("CARGO_PKG_VERSION")).to_owned())
            // Its cache would offer any address that a peer claims to whoever dials, past the wall between the scopes.
            .with_cache_size(0)
            // Circuits come and go while peers are connected.
            .with_push_listen_addr_updates(true);
        Behaviour {
            admission,
            bitswap,
            wan: dht(Scope::Wan, peer),
            lan: dht(Scope::Lan, peer),
            identify: identify::Behaviour::new(about),
            ping: ping::Behaviour::default(),
            relay,
            dcutr: nat.dcutr,
            upnp: nat.upnp,
            autonat: nat.autonat,
            autonat_server: nat.autonat_server,
            autonat_v1: nat.autonat_v1,
            mdns: Toggle::from(None),
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
        Some(key) => transport::private(keypair, key, behaviour, swarm_config),
        None => transport::public(keypair, behaviour, swarm_config).await,
    }
}

/// One scope of the DHT. Peers enter its table only through identify, with addresses of the scope; records enter its
/// store only after a check (`keep_provider` of the task).
fn dht(scope: Scope, peer: PeerId) -> Scoped {
    let store = MemoryStoreConfig { max_provided_keys: PROVIDED_KEYS_MAX, ..MemoryStoreConfig::default() };
    let mut config = kad::Config::new(scope.protocol());
    config
        .set_kbucket_inserts(kad::BucketInserts::Manual)
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_caching(kad::Caching::Disabled)
        .set_provider_record_ttl(Some(PROVIDER_TTL))
        .set_provider_publication_interval(Some(REPROVIDE_EVERY))
        .set_parallelism(PARALLELISM)
        .set_query_timeout(QUERY_TIMEOUT);
    let mut kademlia = kad::Behaviour::with_config(peer, MemoryStore::with_config(peer, store), config);
    if scope == Scope::Lan {
        // Whoever shares our network can reach us. The public scope serves once a public address is known.
        kademlia.set_mode(Some(kad::Mode::Server));
    }
    Scoped::new(scope, kademlia)
}
