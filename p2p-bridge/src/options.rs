//! [`BridgeOptions`]: what the bridge is started with.
//!
//! Goals: one group of options for each concern, with the same defaults as the node's configuration has, so that whoever
//! starts a bridge names only what is special about it. Non-goals: reading files and checking values; whoever fills these
//! in has done so.

use crate::obeyed::Obeyed;
use ipnet::IpNet;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// What the bridge is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeOptions {
    /// Where the identity and the table of good peers are kept. Created if missing.
    pub data_dir: PathBuf,
    /// Addresses to listen on.
    pub listen: Vec<Multiaddr>,
    /// Addresses to tell other peers instead of those that are listened on. Empty: those, and what peers report.
    pub announce: Vec<Multiaddr>,
    /// Addresses to tell other peers beside those.
    pub announce_also: Vec<Multiaddr>,
    /// Addresses that nobody is told.
    pub no_announce: NoAnnounce,
    /// Peers to join the network through, each ending in `/p2p/ID`.
    pub bootstrap: Vec<Multiaddr>,
    /// Peers to stay connected to and to ask first, each ending in `/p2p/ID`.
    pub peering: Vec<Multiaddr>,
    /// Find peers in the local network by multicast DNS.
    pub mdns: bool,
    /// Dial private, loopback and link-local addresses that were learnt from the public DHT, provider records or routers.
    pub dial_private: bool,
    /// How long a wanted block may see no progress.
    pub stall_timeout: Duration,
    /// The part that is taken in the DHT.
    pub dht: DhtOptions,
    /// What is announced in the DHT.
    pub provide: ProvideOptions,
    /// IPNS records that are published here.
    pub publish: PublishOptions,
    /// Who is asked over HTTP.
    pub http: HttpOptions,
    /// How others reach us through NAT.
    pub nat: NatOptions,
    /// The private network, if it is one.
    pub private: PrivateNetwork,
    /// What connections may cost.
    pub budget: ConnectionBudget,
    /// Blocks given and taken.
    pub bitswap: BitswapOptions,
    /// What is neither fetched nor announced.
    pub policy: Obeyed,
}

impl BridgeOptions {
    /// A node that listens nowhere and knows nobody, with everything else as the configuration has it by default.
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
            policy: Obeyed::default(),
        }
    }
}

/// Addresses that no peer is told of, whoever reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoAnnounce {
    /// Addresses that begin with an IP address in one of these.
    pub networks: Vec<IpNet>,
    /// Addresses that begin with one of these.
    pub prefixes: Vec<Multiaddr>,
}

impl NoAnnounce {
    /// Whether an address is to be kept to ourselves.
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

/// The part that is taken in the DHT.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DhtOptions {
    /// Asking, answering, both or neither.
    pub mode: DhtMode,
}

/// Whether the DHT is asked and answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DhtMode {
    /// A client of the public DHT until others can reach us; always a server of the local one.
    #[default]
    Auto,
    /// A server of both at once.
    Server,
    /// A client of both, for ever.
    Client,
    /// Neither DHT is spoken.
    Off,
}

/// What is announced in the DHT, and how long announcements count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvideOptions {
    /// What is announced.
    pub strategy: ProvideStrategy,
    /// How often that is announced again. Less than `record_lifetime`.
    pub every: Duration,
    /// How long a provider record counts, ours among other peers and theirs here
    /// (<https://specs.ipfs.tech/routing/kad-dht/#provider-record-routing>).
    pub record_lifetime: Duration,
}

impl Default for ProvideOptions {
    fn default() -> Self {
        Self { strategy: ProvideStrategy::default(), every: 22 * HOUR, record_lifetime: 48 * HOUR }
    }
}

/// What is announced in the DHT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProvideStrategy {
    /// The CIDs that are pinned.
    #[default]
    Roots,
    /// Every block of the pinned DAGs.
    Pinned,
    /// Every block that is held.
    All,
    /// Nothing.
    Nothing,
}

/// How IPNS records are made that are published here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishOptions {
    /// How long a record is valid.
    pub lifetime: Duration,
    /// How often it is published again. Less than `lifetime`.
    pub every: Duration,
    /// How long others may remember what it says. At most `lifetime`.
    pub ttl: Duration,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self { lifetime: 48 * HOUR, every: 4 * HOUR, ttl: Duration::from_secs(300) }
    }
}

/// Who is asked over HTTP. Base URLs have no slash at their end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpOptions {
    /// Base URLs of services whose `/routing/v1` is asked for providers and IPNS records beside the DHT.
    pub routers: Vec<String>,
    /// Base URLs of trustless gateways that are asked for blocks beside peers.
    pub gateways: Vec<String>,
    /// Also ask the trustless gateways that provider records name.
    pub from_records: bool,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self { routers: Vec::new(), gateways: Vec::new(), from_records: true }
    }
}

/// How others reach us through NAT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatOptions {
    /// Listen through relays when others cannot reach us.
    pub relay_client: bool,
    /// Relays to listen through, each ending in `/p2p/ID`. Empty: those that are met on the network.
    pub relays: Vec<Multiaddr>,
    /// Replace relayed connections by direct ones (DCUtR).
    pub hole_punching: bool,
    /// Have the local router forward our ports.
    pub upnp: bool,
}

impl Default for NatOptions {
    fn default() -> Self {
        Self { relay_client: true, relays: Vec::new(), hole_punching: true, upnp: true }
    }
}

/// The private network, if it is one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrivateNetwork {
    /// The file with its key. None: the public network.
    pub key_file: Option<PathBuf>,
}

/// What connections may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionBudget {
    /// Connections at a time.
    pub connections_max: u32,
    /// Connections that others open from one IP address at a time; loopback addresses do not count.
    pub per_ip_max: u32,
    /// Connections that others open from one IPv4 /24 or IPv6 /48 at a time; loopback addresses do not count.
    pub per_subnet_max: u32,
    /// Dials at a time.
    pub pending_dials_max: u32,
    /// Bytes of messages held over all peers.
    pub memory_bytes_max: usize,
    /// How long a peer that lied or flooded is kept away. Zero: nobody is banned.
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

/// Blocks given and taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BitswapOptions {
    /// Who gets blocks from us.
    pub serve_to: ServeTo,
}

/// Who gets blocks from us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServeTo {
    /// Whoever asks.
    #[default]
    Everyone,
    /// These peers and nobody else; those of the peerings who are meant are among them.
    Only(HashSet<PeerId>),
}

impl ServeTo {
    /// Whether a peer gets blocks.
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
    fn what_is_not_announced_is_a_network_or_a_beginning() {
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
    fn blocks_are_for_everyone_or_for_a_list() {
        let (friend, stranger) = (PeerId::random(), PeerId::random());
        let only = ServeTo::Only([friend].into());
        assert!(ServeTo::Everyone.admits(&stranger) && only.admits(&friend));
        assert!(!only.admits(&stranger) && !ServeTo::Only(HashSet::new()).admits(&friend));
    }
}
