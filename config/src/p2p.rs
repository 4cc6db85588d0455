//! [`P2p`]: the settings of the peer-to-peer network. Part of the [`crate::schema`], with the same rules for comments.

use crate::values::{AddressPattern, ServeTo, as_text, gateways, multiaddrs, patterns, peers, routers};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The peer-to-peer network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct P2p {
    /// Multiaddrs to listen on for peers: TCP (/ip4/0.0.0.0/tcp/4001), QUIC (/ip4/0.0.0.0/udp/4001/quic-v1) and, for
    /// browsers behind a TLS proxy, WebSocket (/ip4/0.0.0.0/tcp/4002/ws). Port 0 selects a free port.
    #[serde(deserialize_with = "multiaddrs")]
    pub listen: Vec<Multiaddr>,
    /// Multiaddrs to announce instead of the listen addresses, for nodes whose own addresses cannot be reached from
    /// outside: behind port forwarding, or in a cluster. Empty: the listen addresses, and those that other peers
    /// observe.
    #[serde(deserialize_with = "multiaddrs")]
    pub announce: Vec<Multiaddr>,
    /// Multiaddrs to announce in addition, such as a name: /dns4/peer.example.org/tcp/4001.
    #[serde(deserialize_with = "multiaddrs")]
    pub announce_also: Vec<Multiaddr>,
    /// Networks (10.0.0.0/8), addresses or multiaddrs that are never announced. A multiaddr matches every address that
    /// begins with it. Private addresses are never announced in the public DHT.
    #[serde(deserialize_with = "patterns", serialize_with = "as_text")]
    pub no_announce: Vec<AddressPattern>,
    /// Bootstrap peers, each ending in /p2p/PEERID. Empty ("none" on the command line and in the environment): the node
    /// connects to peerings only.
    #[serde(deserialize_with = "peers")]
    pub bootstrap: Vec<Multiaddr>,
    /// Peering: peers to stay connected to and to request blocks from first, each ending in /p2p/PEERID.
    #[serde(deserialize_with = "peers")]
    pub peering: Vec<Multiaddr>,
    /// Serve only content that is stored locally: no p2p listener and no connections to peers.
    pub offline: bool,
    /// The DHT mode. "auto": a client, and a server once peers confirm that this node is reachable; always a server in
    /// the DHT of the local network. "server": a server from the start, for nodes that are known to be reachable.
    /// "client": never a server, which saves traffic. "off": the DHT is not used, and providers are found through
    /// peerings, routers and gateways only.
    pub dht: DhtMode,
    /// Find peers in the local network by multicast DNS. For homes and offices: hosting providers may take it for a
    /// scan.
    pub mdns: bool,
    /// Dial private, loopback and link-local addresses from the public DHT, provider records or routers. For tests and
    /// private networks: on the public network, untrusted peers could make this node probe its local network.
    pub dial_private: bool,
    /// The content to announce in the DHT. "roots": the CIDs of pins, which is enough for clients that request a path
    /// from its root. "pinned": also every block of the pinned DAGs. "all": all stored blocks, including cached ones.
    /// "none": nothing. Each step needs more announcements.
    pub provide: Provide,
    /// The interval at which provider records are announced again. It must be less than provider_record_hours, or
    /// records expire in between.
    pub reprovide_hours: u64,
    /// How long provider records are valid, both this node's and those it stores for other peers. The public network
    /// uses 48.
    pub provider_record_hours: u64,
    /// Base URLs of Delegated Routing V1 services to query for providers and IPNS records in addition to the DHT, such
    /// as "https://example.org" for https://example.org/routing/v1. They learn which content is requested.
    #[serde(deserialize_with = "routers")]
    pub routers: Vec<String>,
    /// Base URLs of trustless gateways to fetch blocks from in addition to peers, such as "https://example.org" for
    /// https://example.org/ipfs/CID. Their responses are verified. They learn which content is requested.
    #[serde(deserialize_with = "gateways")]
    pub gateways: Vec<String>,
    /// Also fetch from trustless gateways that provider records name.
    pub http_retrieval: bool,
    /// Request what a reader needs of a file, a directory or a DAG from trustless gateways as one CAR, verified as it
    /// streams, and not block by block. They learn by which paths content is requested. It is new: false, the default,
    /// is block by block.
    pub http_cars: bool,
    /// The file with the pre-shared key of a private network, in any encoding of swarm.key. The node connects only to
    /// peers with the same key, over TCP only. Empty: DATA_DIR/swarm.key if it exists, and otherwise the public
    /// network.
    pub swarm_key: PathBuf,
    /// Fail to start without the key of a private network, so that a lost file does not make a node public. The
    /// environment variable LIBP2P_FORCE_PNET=1 does the same.
    pub private_only: bool,
    /// Listen through circuit relays when peers report that this node cannot be reached.
    pub relay_client: bool,
    /// Relays to listen through, each ending in /p2p/PEERID. Empty: relays that the node discovers in the network.
    #[serde(deserialize_with = "peers")]
    pub relays: Vec<Multiaddr>,
    /// Upgrade relayed connections to direct ones by hole punching (DCUtR).
    pub hole_punching: bool,
    /// Request port mappings from the router of a home or office, by UPnP.
    pub upnp: bool,
    /// The maximum number of peer connections. Above it, the least useful connections are closed; peerings stay
    /// connected.
    pub connections_max: u64,
    /// The maximum number of inbound connections from one IP address. Loopback addresses do not count.
    pub connections_per_ip_max: u64,
    /// The maximum number of inbound connections from one network: an IPv4 /24 or an IPv6 /48. Loopback addresses do
    /// not count.
    pub connections_per_subnet_max: u64,
    /// The maximum number of simultaneous dials. Further dials are queued.
    pub pending_dials_max: u64,
    /// The memory budget of messages of all peers: received messages that are not yet handled, and messages that peers
    /// have not yet read. When it is used up, peers are read more slowly (backpressure). The largest Bitswap message
    /// has 4 MiB. The buffers of QUIC connections have up to twice as much in addition, and 1 MiB for each connection.
    pub network_memory_bytes_max: u64,
    /// How long a peer that sent invalid blocks or flooded this node is banned: neither dialled nor accepted. 0: no
    /// bans.
    pub ban_seconds: u64,
    /// The peers to serve blocks to: "everyone", or any of "peerings" (the peers in peering) and peer IDs. Empty: none,
    /// which saves the uplink of a site whose clients use HTTP.
    pub serve_to: ServeTo,
    /// Transfer whole DAGs in one answer, compressed as they are stored, between nodes that support it: other Causeways.
    /// Everything else is exchanged by Bitswap. With false it is Bitswap only, in both directions.
    pub dag_protocol: bool,
}

/// The DHT mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DhtMode {
    /// A client of the public DHT, and a server once peers confirm that this node is reachable; always a server
    /// locally.
    #[default]
    Auto,
    /// A server from the start.
    Server,
    /// Never a server.
    Client,
    /// The DHT is not used.
    Off,
}

/// The content to announce in the DHT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provide {
    /// The root CIDs of pins.
    #[default]
    Roots,
    /// Every block of the pinned DAGs.
    Pinned,
    /// All stored blocks.
    All,
    /// Nothing.
    #[serde(rename = "none")]
    Nothing,
}

/// The public network's bootstrap peers, as all IPFS implementations ship them.
const BOOTSTRAP: [&str; 5] = [
    "/dnsaddr/bootstrap.libp2p.io/p2p/QmNnooDu7bfjPFoTZYxMNLWUQJyrVwtbZg5gBMjTezGAJN",
    "/dnsaddr/bootstrap.libp2p.io/p2p/QmQCU2EcMqAqQPR2i9bChDtGNJchTbq5TbXJJ16u19uLTa",
    "/dnsaddr/bootstrap.libp2p.io/p2p/QmbLHAnMoJPWSCR5Zhtx6BHJX9KiKNN6tpvbUcqanj75Nb",
    "/dnsaddr/bootstrap.libp2p.io/p2p/QmcZf59bWwK5XFi76CZX8cbJ4BhTzzA3gU1ZjYZcYW3dwt",
    "/ip4/104.131.131.82/tcp/4001/p2p/QmaCpDMGvV2BGHeYERUEnRQAwe3N8SzbUtfsmvsqQLuvuJ",
];
/// The domain of the public network's bootstrap peers.
const BOOTSTRAP_DOMAIN: &str = "bootstrap.libp2p.io";

const P2P_LISTEN: [&str; 2] = ["/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/4001/quic-v1"];

impl Default for P2p {
    fn default() -> Self {
        Self {
            listen: known_good(&P2P_LISTEN),
            announce: Vec::new(),
            announce_also: Vec::new(),
            no_announce: Vec::new(),
            bootstrap: known_good(&BOOTSTRAP),
            peering: Vec::new(),
            offline: false,
            dht: DhtMode::Auto,
            mdns: false,
            dial_private: false,
            provide: Provide::Roots,
            reprovide_hours: 22,
            provider_record_hours: 48,
            routers: Vec::new(),
            gateways: Vec::new(),
            http_retrieval: true,
            http_cars: false,
            swarm_key: PathBuf::new(),
            private_only: false,
            relay_client: true,
            relays: Vec::new(),
            hole_punching: true,
            upnp: true,
            connections_max: 1024,
            connections_per_ip_max: 32,
            connections_per_subnet_max: 128,
            pending_dials_max: 256,
            network_memory_bytes_max: 256 << 20,
            ban_seconds: 600,
            serve_to: ServeTo::Everyone,
            dag_protocol: true,
        }
    }
}

/// Parses this file's constants; a test checks that all parse.
fn known_good(texts: &[&str]) -> Vec<Multiaddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Whether an address is that of a bootstrap peer of the public network, by its peer ID or its name.
pub fn is_public_bootstrap(address: &Multiaddr) -> bool {
    let public = known_good(&BOOTSTRAP);
    address.iter().any(|part| match part {
        Protocol::P2p(_) => public.iter().any(|known| known.iter().last().as_ref() == Some(&part)),
        Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) | Protocol::Dnsaddr(name) => {
            let below = name.strip_suffix(BOOTSTRAP_DOMAIN);
            below.is_some_and(|labels| labels.is_empty() || labels.ends_with('.'))
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_addresses_all_parse() {
        let p2p = P2p::default();
        assert_eq!(p2p.bootstrap.len(), BOOTSTRAP.len());
        assert_eq!(p2p.listen.len(), P2P_LISTEN.len());
    }

    #[test]
    fn bootstrap_peers_of_the_public_network_are_recognised_by_id_and_by_name() {
        const PUBLIC: &str = "QmNnooDu7bfjPFoTZYxMNLWUQJyrVwtbZg5gBMjTezGAJN";
        const OTHER: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        let table = [
            (format!("/dnsaddr/bootstrap.libp2p.io/p2p/{PUBLIC}"), true),
            (format!("/ip4/192.0.2.1/tcp/4001/p2p/{PUBLIC}"), true),
            (format!("/dnsaddr/va1.bootstrap.libp2p.io/p2p/{OTHER}"), true),
            (format!("/dnsaddr/notbootstrap.libp2p.io/p2p/{OTHER}"), false),
            (format!("/ip4/10.0.0.1/tcp/4001/p2p/{OTHER}"), false),
        ];
        for (address, expected) in table {
            assert_eq!(is_public_bootstrap(&address.parse().expect("a multiaddr")), expected, "{address}");
        }
        assert!(P2p::default().bootstrap.iter().all(is_public_bootstrap));
    }
}
