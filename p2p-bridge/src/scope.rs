//! The two scopes of the DHT, public and local, and the wall between them.
//!
//! Kubo runs two Kademlia networks side by side: `/ipfs/kad/1.0.0` among public addresses, `/ipfs/lan/kad/1.0.0` among
//! private and loopback ones. [`Scoped`] wraps one `kad::Behaviour` and lets only addresses of its scope through, in both
//! directions. So a private address that a stranger put into the public DHT is never dialled (hosters complain of such
//! scans), and our private addresses are never published there.

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::kad::{self, store::MemoryStore};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::{ExternalAddrConfirmed, ExternalAddrExpired};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::{Deref, DerefMut};
use std::task::{Context, Poll};

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

    /// Whether an address belongs here. Host names count as public.
    pub fn admits(self, address: &Multiaddr) -> bool {
        let public = match address.iter().next() {
            Some(Protocol::Ip4(ip)) => is_public(ip.into()),
            Some(Protocol::Ip6(ip)) => is_public(ip.into()),
            Some(Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) | Protocol::Dnsaddr(_)) => true,
            _ => return false,
        };
        public == (self == Self::Wan)
    }
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
    // Only 2000::/3 is global unicast; 2001:db8::/32 in it is documentation.
    let [first, second, ..] = ip.segments();
    first & 0xe000 == 0x2000 && !(first == 0x2001 && second == 0x0db8)
}

/// A Kademlia behaviour that hears and speaks of addresses of one scope only.
pub struct Scoped {
    scope: Scope,
    inner: kad::Behaviour<MemoryStore>,
}

impl Scoped {
    /// Puts a behaviour behind the wall.
    pub fn new(scope: Scope, inner: kad::Behaviour<MemoryStore>) -> Self {
        Self { scope, inner }
    }

    /// Where the routing table and the running queries know a peer to be. The behaviour tells that only to whoever is about
    /// to dial.
    pub fn addresses_of(&mut self, peer: PeerId) -> Vec<Multiaddr> {
        let nobody = ConnectionId::new_unchecked(usize::MAX);
        self.handle_pending_outbound_connection(nobody, Some(peer), &[], Endpoint::Dialer).unwrap_or_default()
    }
}

impl Deref for Scoped {
    type Target = kad::Behaviour<MemoryStore>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl DerefMut for Scoped {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

impl NetworkBehaviour for Scoped {
    type ConnectionHandler = THandler<kad::Behaviour<MemoryStore>>;
    type ToSwarm = kad::Event;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_inbound_connection(connection, peer, local, remote)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        let mut known = self.inner.handle_pending_outbound_connection(connection, peer, addresses, role)?;
        known.retain(|address| self.scope.admits(address));
        Ok(known)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port_use: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_outbound_connection(connection, peer, address, role, port_use)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ExternalAddrConfirmed(confirmed) if !self.scope.admits(confirmed.addr) => {}
            FromSwarm::ExternalAddrExpired(expired) if !self.scope.admits(expired.addr) => {}
            FromSwarm::NewListenAddr(listen) if !self.scope.admits(listen.addr) => {}
            FromSwarm::ExpiredListenAddr(listen) if !self.scope.admits(listen.addr) => {}
            // An address that we listen on is as good as confirmed to whoever shares its network, and without it our
            // provider records on the local DHT would name no address at all.
            FromSwarm::NewListenAddr(listen) if self.scope.admits(listen.addr) => {
                self.inner.on_swarm_event(event);
                self.inner
                    .on_swarm_event(FromSwarm::ExternalAddrConfirmed(ExternalAddrConfirmed { addr: listen.addr }));
            }
            FromSwarm::ExpiredListenAddr(listen) if self.scope.admits(listen.addr) => {
                self.inner.on_swarm_event(event);
                self.inner.on_swarm_event(FromSwarm::ExternalAddrExpired(ExternalAddrExpired { addr: listen.addr }));
            }
            _ => self.inner.on_swarm_event(event),
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, connection: ConnectionId, event: THandlerOutEvent<Self>) {
        self.inner.on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.inner.poll(cx)
    }
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
            ("/memory/1", false, false),
        ];
        for (address, wan, lan) in table {
            let address: Multiaddr = address.parse().expect("address");
            assert_eq!((Scope::Wan.admits(&address), Scope::Lan.admits(&address)), (wan, lan), "{address}");
        }
    }
}
