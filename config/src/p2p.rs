//! [`P2p`]: the settings of the peer-to-peer network. Part of the [`crate::schema`]; what holds for its comments holds for
//! these.

use crate::values::{AddressPattern, ServeTo, as_text, gateways, multiaddrs, patterns, peers, routers};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The peer-to-peer network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct P2p {
    /// Multiaddrs to listen on for peers: TCP (/ip4/0.0.0.0/tcp/4001), QUIC (/ip4/0.0.0.0/udp/4001/quic-v1) and, for peers
    /// in browsers behind a proxy that speaks TLS, WebSocket (/ip4/0.0.0.0/tcp/4002/ws). Port 0 takes a free one.
    #[serde(deserialize_with = "multiaddrs")]
    pub listen: Vec<Multiaddr>,
    /// Multiaddrs to tell other peers instead of those that are listened on, which are kept to ourselves then. Meant for
    /// nodes whose own addresses cannot be reached from outside: behind a port forwarding, or in a cluster. Empty: the
    /// listening ones, and what peers report.
    #[serde(deserialize_with = "multiaddrs")]
    pub announce: Vec<Multiaddr>,
    /// Multiaddrs to tell other peers beside those, such as a name: /dns4/peer.example.org/tcp/4001.
    #[serde(deserialize_with = "multiaddrs")]
    pub announce_also: Vec<Multiaddr>,
    /// Networks (10.0.0.0/8), addresses or multiaddrs that no peer is told of, whoever reports them. A multiaddr stands for
    /// every address that begins with it. Private addresses are kept from the public DHT without being listed here.
    #[serde(deserialize_with = "patterns", serialize_with = "as_text")]
    pub no_announce: Vec<AddressPattern>,
    /// Peers to join the network through, each ending in /p2p/PEERID. Empty ("none" on the command line and in the
    /// environment): nobody is contacted who is not a peering.
    #[serde(deserialize_with = "peers")]
    pub bootstrap: Vec<Multiaddr>,
    /// Peers to stay connected to and to ask first, each ending in /p2p/PEERID.
    #[serde(deserialize_with = "peers")]
    pub peering: Vec<Multiaddr>,
    /// Serve only what is held here: no listener for peers, no connection to any.
    pub offline: bool,
    /// The part that is taken in the DHT. "auto": ask it as a client, and answer others as a server from when peers show
    /// that they can reach us; the local network's own DHT is always answered. "server": answer at once, for nodes that are
    /// known to be reachable. "client": never answer, which saves traffic and helps nobody. "off": neither ask nor answer;
    /// content is then found through peerings, routers and gateways alone.
    pub dht: DhtMode,
    /// Find peers in the local network by multicast DNS. Hosters may take that for a scan, so it is for homes and offices.
    pub mdns: bool,
    /// Dial private, loopback and link-local addresses that the public DHT, a provider record or a router names. For tests
    /// and for networks of one's own: on the public network, anybody could have us knock at our neighbours' doors.
    pub dial_private: bool,
    /// What is announced in the DHT as to be had here. "roots": the CIDs that are pinned, which is enough for whoever asks
    /// for a path from its root. "pinned": every block of the pinned DAGs too, for those who ask in the middle. "all": whatever
    /// is held, cached blocks included. "none": nothing. Each step costs more announcements.
    pub provide: Provide,
    /// How often what is announced is announced again. It must be less than provider_record_hours, or it would be forgotten
    /// in between.
    pub reprovide_hours: u64,
    /// How long an announcement counts, ours among other peers and theirs here. The public network agreed on 48.
    pub provider_record_hours: u64,
    /// Base URLs of services that are asked for providers and IPNS records beside the DHT, such as "https://example.org" for
    /// those that answer at https://example.org/routing/v1. They learn what is asked for here.
    #[serde(deserialize_with = "routers")]
    pub routers: Vec<String>,
    /// Base URLs of trustless gateways that are asked for blocks beside peers, such as "https://example.org" for those that
    /// answer at https://example.org/ipfs/CID. What they send is verified. They learn what is asked for here.
    #[serde(deserialize_with = "gateways")]
    pub gateways: Vec<String>,
    /// Also ask the trustless gateways that provider records name.
    pub http_retrieval: bool,
    /// The file with the key of a private network, in any of the encodings of swarm.key. Only peers that have the same key
    /// are spoken to, over TCP alone. Empty: DATA_DIR/swarm.key if that exists, and otherwise the public network.
    pub swarm_key: PathBuf,
    /// Refuse to start without the key of a private network, so that a lost file does not make a node public. The
    /// environment variable LIBP2P_FORCE_PNET=1 asks for the same.
    pub private_only: bool,
    /// Listen through relays, public peers that pass connections on, when others show that they cannot reach us.
    pub relay_client: bool,
    /// Relays to listen through, each ending in /p2p/PEERID. Empty: those that are met on the network.
    #[serde(deserialize_with = "peers")]
    pub relays: Vec<Multiaddr>,
    /// Replace connections that came through a relay by direct ones: both sides dial at the same moment (DCUtR).
    pub hole_punching: bool,
    /// Ask the router of a home or office to forward our ports, by UPnP.
    pub upnp: bool,
    /// Connections with peers at a time. Beyond it, the least useful ones are closed; peerings are kept.
    pub connections_max: u64,
    /// Connections that others open from one IP address at a time. Loopback addresses do not count.
    pub connections_per_ip_max: u64,
    /// Connections that others open from one network at a time: 24 bits of an IPv4 address, 48 bits of an IPv6 one. Loopback
    /// addresses do not count.
    pub connections_per_subnet_max: u64,
    /// Peers that are dialled at a time. Further ones wait.
    pub pending_dials_max: u64,
    /// Bytes of messages that are held over all peers: what they sent and was not yet handled, and what they have not taken
    /// yet. When they are used up, peers are read more slowly. The largest message of Bitswap has 4 MiB.
    pub network_memory_bytes_max: u64,
    /// How long a peer that lied or flooded is neither dialled nor accepted. 0: nobody is banned.
    pub ban_seconds: u64,
    /// Who gets blocks from us: "everyone", or any of "peerings" (the peers listed as such) and peer ids. Empty: nobody.
    /// A site whose visitors come by HTTP can save its uplink so.
    pub serve_to: ServeTo,
}

/// The part that is taken in the DHT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DhtMode {
    /// A client of the public DHT until others can reach us; always a server of the local one.
    #[default]
    Auto,
    /// A server at once.
    Server,
    /// Never a server.
    Client,
    /// Neither DHT is spoken.
    Off,
}

/// What is announced in the DHT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provide {
    /// The CIDs that are pinned.
    #[default]
    Roots,
    /// Every block of the pinned DAGs.
    Pinned,
    /// Every block that is held.
    All,
    /// Nothing.
    #[serde(rename = "none")]
    Nothing,
}

/// The public network's bootstrap peers, as every IPFS implementation ships them.
const BOOTSTRAP: [&str; 5] = [
    "/dnsaddr/bootstrap.libp2p.io/p2p/QmNnooDu7bfjPFoTZYxMNLWUQJyrVwtbZg5gBMjTezGAJN",
    "/dnsaddr/bootstrap.libp2p.io/p2p/QmQCU2EcMqAqQPR2i9bChDtGNJchTbq5TbXJJ16u19uLTa",
    "/dnsaddr/bootstrap.libp2p.io/p2p/QmbLHAnMoJPWSCR5Zhtx6BHJX9KiKNN6tpvbUcqanj75Nb",
    "/dnsaddr/bootstrap.libp2p.io/p2p/QmcZf59bWwK5XFi76CZX8cbJ4BhTzzA3gU1ZjYZcYW3dwt",
    "/ip4/104.131.131.82/tcp/4001/p2p/QmaCpDMGvV2BGHeYERUEnRQAwe3N8SzbUtfsmvsqQLuvuJ",
];
/// The domain below which the public network's bootstrap peers have their names.
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
        }
    }
}

/// Parses this file's own constants; a test checks that none is lost.
fn known_good(texts: &[&str]) -> Vec<Multiaddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Whether an address leads to a bootstrap peer of the public network, by its peer id or its name.
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
    fn bootstrap_peers_of_the_public_network_are_known_by_id_and_by_name() {
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
