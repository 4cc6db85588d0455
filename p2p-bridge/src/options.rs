//! [`BridgeOptions`]: options of the bridge.
//!
//! Goals: one group of options per concern, with the defaults of the node's configuration, so that callers set only
//! what differs. Non-goals: reading files and validating values, which the caller does.

use crate::network_policy::NetworkPolicy;
use ipnet::IpNet;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// Options of the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeOptions {
    /// The directory of the key pair and the table of known peers. Created if missing.
    pub data_dir: PathBuf,
    /// Addresses to listen on.
    pub listen: Vec<Multiaddr>,
    /// Addresses to announce instead of the listening addresses. If empty, those and the observed addresses are
    /// announced.
    pub announce: Vec<Multiaddr>,
    /// Addresses to announce in addition.
    pub announce_also: Vec<Multiaddr>,
    /// Addresses that are never announced.
    pub no_announce: NoAnnounce,
    /// Bootstrap peers, each ending in `/p2p/ID`.
    pub bootstrap: Vec<Multiaddr>,
    /// Peers to stay connected to and to ask first, each ending in `/p2p/ID`.
    pub peering: Vec<Multiaddr>,
    /// Discover peers in the local network by multicast DNS.
    pub mdns: bool,
    /// Dial private, loopback and link-local addresses from the public DHT, provider records or routers.
    pub dial_private: bool,
    /// The maximum time without progress while fetching a block.
    pub stall_timeout: Duration,
    /// The DHT.
    pub dht: DhtOptions,
    /// Announcing provider records.
    pub provide: ProvideOptions,
    /// Publishing IPNS records.
    pub publish: PublishOptions,
    /// Routers and gateways over HTTP.
    pub http: HttpOptions,
    /// NAT traversal.
    pub nat: NatOptions,
    /// The private network, if configured.
    pub private: PrivateNetwork,
    /// Limits of connections.
    pub budget: ConnectionBudget,
    /// Bitswap.
    pub bitswap: BitswapOptions,
    /// Which content is neither fetched nor announced.
    pub policy: NetworkPolicy,
    /// Whether the node is one gateway of a site, which ask each other for blocks.
    pub member_lookups: bool,
}

impl BridgeOptions {
    /// Options of a node without listeners, bootstrap peers and peerings; everything else has the configuration's
    /// default.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            listen: Vec::new(),
            announce: Vec::new(),
            announce_also: Vec::new(),
            no_announce: NoAnnounce::default(),
            bootstrap: Vec::new(),
            peering: Vec::new(),
            mdns: false,
            dial_private: false,
            stall_timeout: Duration::from_secs(30),
            dht: DhtOptions::default(),
            provide: ProvideOptions::default(),
            publish: PublishOptions::default(),
            http: HttpOptions::default(),
            nat: NatOptions::default(),
            private: PrivateNetwork::default(),
            budget: ConnectionBudget::default(),
            bitswap: BitswapOptions::default(),
            policy: NetworkPolicy::default(),
            member_lookups: false,
        }
    }
}

/// Addresses that are never announced, whatever their source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoAnnounce {
    /// Hides addresses that begin with an IP address in one of these networks.
    pub networks: Vec<IpNet>,
    /// Hides addresses that begin with one of these multiaddrs.
    pub prefixes: Vec<Multiaddr>,
}

impl NoAnnounce {
    /// Whether an address is hidden.
    pub fn hides(&self, address: &Multiaddr) -> bool {
        let ip = match address.iter().next() {
            Some(Protocol::Ip4(ip)) => Some(IpAddr::from(ip)),
            Some(Protocol::Ip6(ip)) => Some(ip.to_canonical()),
            _ => None,
        };
        ip.is_some_and(|ip| self.networks.iter().any(|network| network.contains(&ip)))
            || self.prefixes.iter().any(|prefix| address.starts_with(prefix))
    }
}

/// Options of the DHT.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DhtOptions {
    /// Client, server, both or neither.
    pub mode: DhtMode,
}

/// The mode of the DHT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DhtMode {
    /// A client of the public DHT until the node is publicly reachable; always a server of the local DHT.
    #[default]
    Auto,
    /// A server of both DHTs from the start.
    Server,
    /// Always a client of both.
    Client,
    /// The DHT is disabled.
    Off,
}

/// Announcing provider records, and their lifetime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvideOptions {
    /// Which blocks are announced.
    pub strategy: ProvideStrategy,
    /// The interval of reannouncing. Less than `record_lifetime`.
    pub every: Duration,
    /// The lifetime of provider records, both the node's own and those it stores
    /// (<https://specs.ipfs.tech/routing/kad-dht/#provider-record-routing>).
    pub record_lifetime: Duration,
}

impl Default for ProvideOptions {
    fn default() -> Self {
        Self { strategy: ProvideStrategy::default(), every: 22 * HOUR, record_lifetime: 48 * HOUR }
    }
}

/// Which blocks are announced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProvideStrategy {
    /// The roots of pinned DAGs.
    #[default]
    Roots,
    /// All blocks of pinned DAGs.
    Pinned,
    /// All stored blocks.
    All,
    /// Nothing.
    Nothing,
}

/// Publishing IPNS records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishOptions {
    /// The validity of a record.
    pub lifetime: Duration,
    /// The interval of republishing. Less than `lifetime`.
    pub every: Duration,
    /// The TTL of a record: how long resolvers may cache its value. At most `lifetime`.
    pub ttl: Duration,
    /// The timeout of a search for the records that other nodes have of a key.
    pub comparison_timeout: Duration,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self {
            lifetime: 48 * HOUR,
            every: 4 * HOUR,
            ttl: Duration::from_secs(300),
            comparison_timeout: Duration::from_secs(10),
        }
    }
}

/// Routers and gateways over HTTP. Base URLs have no trailing slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpOptions {
    /// Base URLs of delegated routers (`/routing/v1`), which are asked for providers and IPNS records in addition to
    /// the DHT.
    pub routers: Vec<String>,
    /// Base URLs of trustless gateways, which are asked for blocks in addition to peers.
    pub gateways: Vec<String>,
    /// Also ask the trustless gateways that provider records name.
    pub from_records: bool,
    /// Request what a reader will need as one CAR.
    pub cars: bool,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self { routers: Vec::new(), gateways: Vec::new(), from_records: true, cars: false }
    }
}

/// NAT traversal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatOptions {
    /// Reserve slots at relays when the node is not reachable.
    pub relay_client: bool,
    /// Relays to use, each ending in `/p2p/ID`. If empty, relays are discovered on the network.
    pub relays: Vec<Multiaddr>,
    /// Upgrade relayed connections to direct ones by hole punching (DCUtR).
    pub hole_punching: bool,
    /// Map ports at the local router by UPnP.
    pub upnp: bool,
}

impl Default for NatOptions {
    fn default() -> Self {
        Self { relay_client: true, relays: Vec::new(), hole_punching: true, upnp: true }
    }
}

/// The private network, if configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrivateNetwork {
    /// The key file. `None`: the public network.
    pub key_file: Option<PathBuf>,
}

/// Limits of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionBudget {
    /// The maximum number of connections.
    pub connections_max: u32,
    /// The maximum number of inbound connections from one IP address; loopback addresses do not count.
    pub per_ip_max: u32,
    /// The maximum number of inbound connections from one IPv4 /24 or IPv6 /48; loopback addresses do not count.
    pub per_subnet_max: u32,
    /// The maximum number of concurrent dials.
    pub pending_dials_max: u32,
    /// The maximum memory of messages over all peers, in bytes.
    pub memory_bytes_max: usize,
    /// How long a misbehaving peer is banned. Zero disables bans.
    pub ban: Duration,
}

impl Default for ConnectionBudget {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            per_ip_max: 32,
            per_subnet_max: 128,
            pending_dials_max: 256,
            memory_bytes_max: 256 << 20,
            ban: Duration::from_secs(600),
        }
    }
}

/// Options of Bitswap, and of the DAG protocol beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitswapOptions {
    /// Which peers are served blocks.
    pub serve_to: ServeTo,
    /// Whether DAGs are transferred in one answer between peers that support it ([`crate::dag`]), in either direction.
    pub dag_protocol: bool,
}

impl Default for BitswapOptions {
    fn default() -> Self {
        Self { serve_to: ServeTo::default(), dag_protocol: true }
    }
}

/// Which peers are served blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServeTo {
    /// All peers.
    #[default]
    Everyone,
    /// Only these peers. The caller includes the peerings that are to be served.
    Only(HashSet<PeerId>),
}

impl ServeTo {
    /// Whether a peer is served blocks.
    pub fn admits(&self, peer: &PeerId) -> bool {
        match self {
            Self::Everyone => true,
            Self::Only(peers) => peers.contains(peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hidden_by_network_or_prefix() {
        let hidden = NoAnnounce {
            networks: vec!["10.0.0.0/8".parse().expect("a network"), "fd00::/8".parse().expect("a network")],
            prefixes: ["/ip4/192.0.2.1/tcp/4001", "/dns4/inside.example"]
                .map(|text| text.parse().expect(text))
                .to_vec(),
        };
        let table = [
            ("/ip4/10.1.2.3/tcp/4001", true),
            ("/ip6/::ffff:10.1.2.3/udp/4001/quic-v1", true),
            ("/ip6/fd00::1/tcp/4001", true),
            ("/ip6/2001:db8::1/tcp/4001", false),
            ("/ip4/192.0.2.1/tcp/4001/ws", true),
            ("/ip4/192.0.2.1/tcp/4002", false),
            ("/dns4/inside.example/tcp/4001", true),
            ("/dns4/inside.example.org/tcp/4001", false),
        ];
        for (address, expected) in table {
            assert_eq!(hidden.hides(&address.parse().expect("a multiaddr")), expected, "{address}");
        }
        assert!(!NoAnnounce::default().hides(&"/ip4/10.1.2.3/tcp/4001".parse().expect("a multiaddr")));
    }

    #[test]
    fn blocks_are_served_to_all_peers_or_to_a_list() {
        let (listed, other) = (PeerId::random(), PeerId::random());
        let only = ServeTo::Only([listed].into());
        assert!(ServeTo::Everyone.admits(&other) && only.admits(&listed));
        assert!(!only.admits(&other) && !ServeTo::Only(HashSet::new()).admits(&listed));
    }
}
