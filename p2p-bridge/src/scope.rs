//! The two scopes of the DHT, public and local: which addresses belong to which, and which may be dialled.
//!
//! Kubo runs two Kademlia networks: `/ipfs/kad/1.0.0` for public addresses, `/ipfs/lan/kad/1.0.0` for private and
//! loopback ones. [`crate::dht::behaviour`] separates them in both directions: a private address that an untrusted peer
//! put into the public DHT is never dialled (hosting providers report such scans as abuse), and the node's private
//! addresses are never published there.
//!
//! Addresses are checked by their whole shape ([`crate::dialable`]); those of an unsupported shape belong to no scope.
//! The IP addresses of a host name are checked when it is resolved ([`crate::address_filter`]).

use crate::dialable::{Host, Shape};
use libp2p::{Multiaddr, StreamProtocol};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

crate::label_values! {
    /// The scope of a DHT.
    pub enum Scope {
        /// Publicly reachable addresses.
        Wan = "wan",
        /// Private, link-local and loopback addresses.
        Lan = "lan",
    }
}

impl Scope {
    /// The protocol ID of this scope's DHT.
    pub const fn protocol(self) -> StreamProtocol {
        StreamProtocol::new(match self {
            Self::Wan => "/ipfs/kad/1.0.0",
            Self::Lan => "/ipfs/lan/kad/1.0.0",
        })
    }

    /// Whether an address belongs to this scope. Host names count as public, except for names that public DNS does not
    /// have. Addresses of an unsupported shape belong to no scope.
    pub fn admits(self, address: &Multiaddr) -> bool {
        Shape::read(address).is_ok_and(|shape| self.has(&shape))
    }

    fn has(self, shape: &Shape<'_>) -> bool {
        let scope = match &shape.host {
            Host::Ip(ip) => Reach::of(*ip).scope(),
            Host::Name(name) if is_local_name(name) => Some(Self::Lan),
            Host::Name(_) => Some(Self::Wan),
            Host::Memory => None,
        };
        scope == Some(self)
    }
}

/// How far an IP address is reachable (IANA special-purpose address registries).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// From the public internet.
    Public,
    /// Within a private network or this machine.
    Private,
    /// No host, or a host behind an embedded address: unspecified, multicast, broadcast and reserved addresses, and
    /// tunnels that embed an IPv4 address (6to4, Teredo).
    Nowhere,
}

impl Reach {
    /// How far an IP address is reachable.
    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::of_v4(ip),
            IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or_else(|| Self::of_v6(ip), Self::of_v4),
        }
    }

    fn of_v4(ip: Ipv4Addr) -> Self {
        let [a, b, c, _] = ip.octets();
        let shared = a == 100 && (64..128).contains(&b);
        let protocol_assignments = a == 192 && b == 0 && c == 0;
        let benchmarking = a == 198 && (b == 18 || b == 19);
        // 192.88.99.0/24 was the anycast prefix of 6to4 relays.
        let relay_anycast = a == 192 && b == 88 && c == 99;
        if a == 0 || a >= 224 || relay_anycast {
            Self::Nowhere
        } else if ip.is_private()
            || ip.is_loopback()
            || ip.is_link_local()
            || ip.is_documentation()
            || shared
            || protocol_assignments
            || benchmarking
        {
            Self::Private
        } else {
            Self::Public
        }
    }

    fn of_v6(ip: Ipv6Addr) -> Self {
        let [first, second, third, fourth, fifth, sixth, high, low] = ip.segments();
        // NAT64 (RFC 6052): a router translates to the embedded IPv4 address, which must be public.
        if [first, second, third, fourth, fifth, sixth] == [0x0064, 0xff9b, 0, 0, 0, 0] {
            let [a, b] = high.to_be_bytes();
            let [c, d] = low.to_be_bytes();
            let is_public = Self::of_v4(Ipv4Addr::new(a, b, c, d)) == Self::Public;
            return if is_public { Self::Public } else { Self::Nowhere };
        }
        let is_unique_local = first & 0xfe00 == 0xfc00;
        // fe80::/10 is link-local, fec0::/10 was site-local.
        let is_of_link_or_site = first & 0xff80 == 0xfe80;
        let is_documentation = (first == 0x2001 && second == 0x0db8) || (first == 0x3fff && second < 0x1000);
        if ip.is_loopback() || is_unique_local || is_of_link_or_site || is_documentation {
            return Self::Private;
        }
        // Only 2000::/3 is global unicast. Within it, 2001::/23 is for protocols: Teredo (2001::/32) embeds IPv4
        // addresses, as 6to4 (2002::/16) does, which may be private.
        let is_assignment = first == 0x2001 && second < 0x0200;
        let is_global = first & 0xe000 == 0x2000 && first != 0x2002 && !is_assignment;
        if is_global { Self::Public } else { Self::Nowhere }
    }

    fn scope(self) -> Option<Scope> {
        match self {
            Self::Public => Some(Scope::Wan),
            Self::Private => Some(Scope::Lan),
            Self::Nowhere => None,
        }
    }
}

/// Whether an IP address is publicly reachable.
pub fn is_public(ip: IpAddr) -> bool {
    Reach::of(ip) == Reach::Public
}

/// Whether an address has a supported shape and an IP address as its host. A host name may resolve to any address,
/// local ones included, so names are dialled only if the operator gave them.
pub fn is_literal(address: &Multiaddr) -> bool {
    Shape::read(address).is_ok_and(|shape| shape.is_literal())
}

/// Decides which addresses belong to which scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddressPolicy {
    /// The public scope admits private addresses too: for tests and private networks.
    pub dial_private: bool,
}

impl AddressPolicy {
    /// Whether an address belongs to a scope.
    pub fn admits(self, scope: Scope, address: &Multiaddr) -> bool {
        Shape::read(address).is_ok_and(|shape| self.has(scope, &shape))
    }

    fn has(self, scope: Scope, shape: &Shape<'_>) -> bool {
        let tolerated = || Scope::Lan.has(shape) || shape.host == Host::Memory;
        scope.has(shape) || self.dial_private && scope == Scope::Wan && tolerated()
    }

    /// Whether an address from an untrusted peer may be dialled in a scope: by a transport of the swarm, without DNS,
    /// at a port that is not reserved for another service, and without a request path of the peer's choice.
    pub fn may_dial(self, scope: Scope, address: &Multiaddr) -> bool {
        Shape::read(address).is_ok_and(|shape| {
            let is_harmless = shape.is_literal() && shape.has_free_port() && shape.has_plain_path();
            shape.is_dialled() && self.has(scope, &shape) && (self.dial_private || is_harmless)
        })
    }

    /// The same for either scope, for addresses that are not from the public network.
    pub fn may_dial_in_any(self, address: &Multiaddr) -> bool {
        Scope::ALL.into_iter().any(|scope| self.may_dial(scope, address))
    }

    /// Whether the DHT of a scope is used over a connection with this remote address. Relayed connections are excluded,
    /// because they are few and short.
    pub fn speaks_over(self, scope: Scope, remote: &Multiaddr) -> bool {
        Shape::read(remote).is_ok_and(|shape| self.has(scope, &shape) && !shape.is_circuit())
    }
}

/// Whether a host name can only be local: a single label, as of containers, or a domain that is not public (RFC 6761,
/// RFC 6762, RFC 8375, and the domains of clusters).
fn is_local_name(name: &str) -> bool {
    const LOCAL: [&str; 6] = [".localhost", ".local", ".internal", ".home.arpa", ".lan", ".test"];
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    !name.contains('.') || LOCAL.iter().any(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_ranges_are_not_in_the_public_scope() {
        let public = ["8.8.8.8", "192.0.1.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"];
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
            "192.88.99.1",
            "239.255.255.250",
            "240.0.0.1",
            "::8.8.8.8",
            "::127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b:1::8.8.8.8",
            "2002:808:808::1",
        ];
        for ip in public {
            assert!(is_public(ip.parse().expect("ip")), "{ip}");
        }
        for ip in special {
            assert!(!is_public(ip.parse().expect("ip")), "{ip}");
        }
    }

    #[test]
    fn unusable_addresses_are_in_no_scope() {
        let nowhere = [
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "ff02::1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::1",
            "2002:7f00:1::",
            "2001::1",
            "::127.0.0.1",
            "100::1",
        ];
        for ip in nowhere {
            assert_eq!(Reach::of(ip.parse().expect("ip")), Reach::Nowhere, "{ip}");
            let family = if ip.contains(':') { "ip6" } else { "ip4" };
            let address: Multiaddr = format!("/{family}/{ip}/tcp/4001").parse().expect("address");
            let lenient = AddressPolicy { dial_private: true };
            assert!(Scope::ALL.into_iter().all(|scope| !lenient.may_dial(scope, &address)), "{ip}");
        }
        for ip in
            ["10.0.0.1", "127.0.0.1", "169.254.1.1", "192.168.0.1", "::1", "fe80::1", "fc00::1", "::ffff:10.0.0.1"]
        {
            assert_eq!(Reach::of(ip.parse().expect("ip")), Reach::Private, "{ip}");
        }
    }

    #[test]
    fn an_address_with_several_hosts_is_in_no_scope() {
        let others = [
            "/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/5001",
            "/ip4/8.8.8.8/tcp/1/dns4/localhost/tcp/5001",
            "/ip4/8.8.8.8/udp/1/quic-v1/ip4/127.0.0.1/tcp/5001",
            "/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/5001/ws",
            "/dns4/example.org/tcp/1/ip4/127.0.0.1/tcp/5001",
            "/ip4/127.0.0.1/tcp/1/ip4/8.8.8.8/tcp/5001",
        ];
        for text in others {
            let address: Multiaddr = text.parse().expect(text);
            for borders in [false, true].map(|dial_private| AddressPolicy { dial_private }) {
                for scope in Scope::ALL {
                    let judged = [borders.admits(scope, &address), borders.may_dial(scope, &address)];
                    assert_eq!(judged, [false; 2], "{text}");
                    assert!(!borders.speaks_over(scope, &address), "{text}");
                }
            }
            assert!(!is_literal(&address), "{text}");
        }
    }

    #[test]
    fn untrusted_peers_cannot_choose_names_reserved_ports_or_paths() {
        // An address, and whether it is dialled if an untrusted peer supplies it: by default, and with `dial_private`.
        let table = [
            ("/ip4/8.8.8.8/tcp/4001", true, true),
            ("/ip4/8.8.8.8/udp/4001/quic-v1", true, true),
            ("/ip4/8.8.8.8/tcp/443/tls/ws", true, true),
            ("/ip4/8.8.8.8/tcp/443/tls/sni/example.org/ws", true, true),
            ("/ip4/8.8.8.8/tcp/80/ws", true, true),
            ("/ip4/8.8.8.8/tcp/25", false, true),
            ("/ip4/8.8.8.8/udp/53/quic-v1", false, true),
            ("/ip4/8.8.8.8/tcp/443/x-parity-ws/%2Fapi%2Fv0%2Fid", false, true),
            ("/dns4/example.org/tcp/4001", false, true),
            ("/ip4/10.0.0.1/tcp/4001", false, true),
            ("/ip4/8.8.8.8/udp/4001/quic-v1/webtransport", false, false),
            ("/ip4/8.8.8.8/tcp/443/https", false, false),
        ];
        for (text, strictly, with_dial_private) in table {
            let address: Multiaddr = text.parse().expect(text);
            let may = |dial_private| AddressPolicy { dial_private }.may_dial(Scope::Wan, &address);
            assert_eq!((may(false), may(true)), (strictly, with_dial_private), "{text}");
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
    fn the_public_scope_admits_private_addresses_only_with_dial_private() {
        // An address, and whether the public DHT is used over it: by default, and with `dial_private`.
        let table = [
            ("/ip4/8.8.8.8/tcp/4001", true, true),
            ("/ip4/10.0.0.1/tcp/4001", false, true),
            ("/ip6/::1/udp/4001/quic-v1", false, true),
            ("/memory/7", false, true),
            ("/dns4/kubo/tcp/4001", false, true),
            ("/ip4/8.8.8.8/tcp/4001/p2p-circuit", false, false),
            ("/p2p-circuit", false, false),
        ];
        for (address, strictly, with_dial_private) in table {
            let address: Multiaddr = address.parse().expect("address");
            let speaks = |dial_private| AddressPolicy { dial_private }.speaks_over(Scope::Wan, &address);
            assert_eq!((speaks(false), speaks(true)), (strictly, with_dial_private), "{address}");
            let local = |dial_private| AddressPolicy { dial_private }.speaks_over(Scope::Lan, &address);
            assert_eq!(local(false), local(true), "{address}: the local scope does not change");
        }
    }
}
