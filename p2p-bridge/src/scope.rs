//! The two scopes of the DHT, public and local, and which addresses belong to which.
//!
//! Kubo runs two Kademlia networks side by side: `/ipfs/kad/1.0.0` among public addresses, `/ipfs/lan/kad/1.0.0` among
//! private and loopback ones. [`crate::dht::behaviour`] keeps them apart, in both directions. So a private address that a
//! stranger put into the public DHT is never dialled (hosters complain of such scans), and our private addresses are never
//! published there.

pub use crate::dht::behaviour::Scoped;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, StreamProtocol};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Which addresses a DHT is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Addresses that anybody can reach.
    Wan,
    /// Private, link-local and loopback addresses.
    Lan,
}

impl Scope {
    /// Both scopes.
    pub const ALL: [Self; 2] = [Self::Wan, Self::Lan];

    /// The protocol that this scope's DHT speaks.
    pub const fn protocol(self) -> StreamProtocol {
        StreamProtocol::new(match self {
            Self::Wan => "/ipfs/kad/1.0.0",
            Self::Lan => "/ipfs/lan/kad/1.0.0",
        })
    }

    /// Whether an address belongs here. Host names count as public, but for those that no public server knows.
    pub fn admits(self, address: &Multiaddr) -> bool {
        let public = match address.iter().next() {
            Some(Protocol::Ip4(ip)) => is_public(ip.into()),
            Some(Protocol::Ip6(ip)) => is_public(ip.into()),
            Some(Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) | Protocol::Dnsaddr(name)) => {
                !is_local_name(&name)
            }
            _ => return false,
        };
        public == (self == Self::Wan)
    }
}

/// Whether an address says where it leads. A name may lead anywhere, our own network included, once it is resolved: so names
/// are dialled if the operator gave them, and not on a stranger's word.
pub fn is_literal(address: &Multiaddr) -> bool {
    matches!(address.iter().next(), Some(Protocol::Ip4(_) | Protocol::Ip6(_) | Protocol::Memory(_)))
}

/// Whether an IP address is reachable from the public internet (IANA special-purpose address registries).
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or_else(|| is_public_v6(ip), is_public_v4),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let protocol_assignments = a == 192 && b == 0 && c == 0;
    let benchmarking = a == 198 && (b == 18 || b == 19);
    let reserved = a == 0 || a >= 240;
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || ip.is_multicast()
        || shared
        || protocol_assignments
        || benchmarking
        || reserved)
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    // Only 2000::/3 is global unicast; in it, 2001::/23 is for protocols, of which Teredo (2001::/32) leads to IPv4 addresses
    // as 6to4 (2002::/16) does, and those may be anybody's; 2001:db8::/32 and 3fff::/20 are documentation.
    let [first, second, ..] = ip.segments();
    let assignments = first == 0x2001 && second < 0x0200;
    let documentation = (first == 0x2001 && second == 0x0db8) || (first == 0x3fff && second < 0x1000);
    first & 0xe000 == 0x2000 && first != 0x2002 && !assignments && !documentation
}

/// Which addresses belong to which scope on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Borders {
    /// The public scope admits private addresses too. For tests, and for networks of one's own.
    pub dial_private: bool,
}

impl Borders {
    /// Whether an address belongs to a scope.
    pub fn admits(self, scope: Scope, address: &Multiaddr) -> bool {
        let tolerated = || self.dial_private && scope == Scope::Wan && is_reachable_privately(address);
        scope.admits(address) || tolerated()
    }

    /// Whether the DHT of a scope is spoken over a connection with this remote address. Not through relays, whose
    /// connections are few and short.
    pub fn speaks_over(self, scope: Scope, remote: &Multiaddr) -> bool {
        self.admits(scope, remote) && !remote.iter().any(|part| part == Protocol::P2pCircuit)
    }
}

/// Private addresses, and those of simulated networks.
fn is_reachable_privately(address: &Multiaddr) -> bool {
    Scope::Lan.admits(address) || matches!(address.iter().next(), Some(Protocol::Memory(_)))
}

/// Whether a host name can only be of the local network: one label, as containers have, or a domain that is not public
/// (RFC 6761, RFC 6762, RFC 8375, and what clusters use).
fn is_local_name(name: &str) -> bool {
    const LOCAL: [&str; 6] = [".localhost", ".local", ".internal", ".home.arpa", ".lan", ".test"];
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    !name.contains('.') || LOCAL.iter().any(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_special_range_is_kept_out_of_the_public_scope() {
        let public = ["8.8.8.8", "192.0.1.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8"];
        let special = [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "2001:db8::1",
            "2001:0:a00:1::1",
            "2002:a00:1::1",
            "3fff:fff::1",
            "ff02::1",
            "::ffff:10.0.0.1",
        ];
        for ip in public {
            assert!(is_public(ip.parse().expect("ip")), "{ip}");
        }
        for ip in special {
            assert!(!is_public(ip.parse().expect("ip")), "{ip}");
        }
    }

    #[test]
    fn every_address_is_in_one_scope_at_most() {
        let table = [
            ("/ip4/8.8.8.8/tcp/4001", true, false),
            ("/ip4/127.0.0.1/udp/4001/quic-v1", false, true),
            ("/ip6/fe80::1/tcp/4001", false, true),
            ("/dns4/example.com/tcp/4001", true, false),
            ("/dns/kubo/tcp/4001", false, true),
            ("/dns4/peers.default.svc.cluster.local/tcp/4001", false, true),
            ("/memory/1", false, false),
        ];
        for (address, wan, lan) in table {
            let address: Multiaddr = address.parse().expect("address");
            assert_eq!((Scope::Wan.admits(&address), Scope::Lan.admits(&address)), (wan, lan), "{address}");
        }
    }

    #[test]
    fn the_public_scope_takes_private_addresses_only_if_told_to() {
        // An address, and whether the public DHT is spoken there strictly, and with `dial_private`.
        let table = [
            ("/ip4/8.8.8.8/tcp/4001", true, true),
            ("/ip4/10.0.0.1/tcp/4001", false, true),
            ("/ip6/::1/udp/4001/quic-v1", false, true),
            ("/memory/7", false, true),
            ("/dns4/kubo/tcp/4001", false, true),
            ("/ip4/8.8.8.8/tcp/4001/p2p-circuit", false, false),
            ("/p2p-circuit", false, false),
        ];
        for (address, strictly, told) in table {
            let address: Multiaddr = address.parse().expect("address");
            let speaks = |dial_private| Borders { dial_private }.speaks_over(Scope::Wan, &address);
            assert_eq!((speaks(false), speaks(true)), (strictly, told), "{address}");
            let local = |dial_private| Borders { dial_private }.speaks_over(Scope::Lan, &address);
            assert_eq!(local(false), local(true), "{address}: the local scope stays what it is");
        }
    }
}
