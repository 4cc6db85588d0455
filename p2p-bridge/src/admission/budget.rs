//! Connection budgets: admits connections within limits.
//!
//! Bookkeeping only, without I/O. Peer IDs are free but addresses are not, so inbound connections are also limited by
//! address and by network. Loopback addresses are exempt: their users have access to the machine anyway, and tests and
//! proxies put many peers behind one.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use libp2p::PeerId;
use libp2p::swarm::ConnectionId;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

/// The limits of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Established connections, inbound and outbound.
    pub established: usize,
    /// Established inbound connections.
    pub incoming: usize,
    /// Established connections to one peer.
    pub per_peer: usize,
    /// Inbound connections from one IP address, established or pending.
    pub per_ip: usize,
    /// Inbound connections from one network, an IPv4 /24 or an IPv6 /48, established or pending.
    pub per_subnet: usize,
    /// Pending inbound connections.
    pub pending_incoming: usize,
    /// Pending dials.
    pub pending_outgoing: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self::of(1_024, 32, 128, 256)
    }
}

impl Limits {
    /// Limits from the settings. A quarter of all connections is reserved for outbound ones, so that inbound
    /// connections cannot isolate the node.
    pub fn of(established: usize, per_ip: usize, per_subnet: usize, pending_outgoing: usize) -> Self {
        let incoming = (established - established / 4).max(1);
        // TCP, QUIC and WebSocket in both directions, with a reserve for peers that change their network.
        Self { established, incoming, per_peer: 8, per_ip, per_subnet, pending_incoming: 128, pending_outgoing }
    }
}

/// Why a connection is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// [`Limits::established`].
    #[error("the limit of connections is reached")]
    Established,
    /// [`Limits::incoming`].
    #[error("the limit of inbound connections is reached")]
    Incoming,
    /// [`Limits::per_peer`].
    #[error("the limit of connections to this peer is reached")]
    PerPeer,
    /// [`Limits::per_ip`].
    #[error("the limit of inbound connections from this address is reached")]
    PerIp,
    /// [`Limits::per_subnet`].
    #[error("the limit of inbound connections from this network is reached")]
    PerSubnet,
    /// [`Limits::pending_incoming`].
    #[error("the limit of pending inbound connections is reached")]
    PendingIncoming,
    /// [`Limits::pending_outgoing`].
    #[error("the limit of concurrent dials is reached")]
    PendingOutgoing,
    /// The peer or its address is banned.
    #[error("the peer is banned for a while")]
    Banned,
}

/// The direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The peer opened it.
    Incoming,
    /// This node opened it.
    Outgoing,
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    direction: Direction,
    /// The peer, once the connection is established.
    peer: Option<PeerId>,
    /// The remote address of an inbound connection, if it counts.
    ip: Option<IpAddr>,
}

/// The connections and their counters.
#[derive(Debug, Default)]
pub struct Budget {
    limits: Limits,
    connections: HashMap<ConnectionId, Connection>,
    pending_incoming: usize,
    pending_outgoing: usize,
    incoming: usize,
    outgoing: usize,
    per_peer: HashMap<PeerId, usize>,
    per_ip: HashMap<IpAddr, usize>,
    per_subnet: HashMap<IpNet, usize>,
}

fn subnet(ip: IpAddr) -> IpNet {
    // The prefix lengths are valid, so neither can fail; the fallback is the address alone.
    match ip {
        IpAddr::V4(ip) => Ipv4Net::new(ip, 24).map_or_else(|_| IpNet::from(IpAddr::V4(ip)), |net| net.trunc().into()),
        IpAddr::V6(ip) => Ipv6Net::new(ip, 48).map_or_else(|_| IpNet::from(IpAddr::V6(ip)), |net| net.trunc().into()),
    }
}

fn count<K: Hash + Eq>(map: &HashMap<K, usize>, key: &K) -> usize {
    map.get(key).copied().unwrap_or_default()
}

/// Decrements a counter and removes it at zero, so that the map is bounded by the open connections.
fn decrement<K: Hash + Eq>(map: &mut HashMap<K, usize>, key: &K) {
    if let Some(value) = map.get_mut(key) {
        *value = value.saturating_sub(1);
        if *value == 0 {
            map.remove(key);
        }
    }
}

impl Budget {
    /// A budget without connections.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The number of established connections.
    pub fn established(&self) -> usize {
        self.incoming + self.outgoing
    }

    /// Admits a pending inbound connection. Without `ip`, it does not count by address.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is counted then.
    pub fn admit_inbound(&mut self, id: ConnectionId, ip: Option<IpAddr>) -> Result<(), Refusal> {
        let ip = ip.map(|ip| ip.to_canonical()).filter(|ip| !ip.is_loopback());
        if self.pending_incoming >= self.limits.pending_incoming {
            return Err(Refusal::PendingIncoming);
        }
        if let Some(ip) = ip {
            if count(&self.per_ip, &ip) >= self.limits.per_ip {
                return Err(Refusal::PerIp);
            }
            if count(&self.per_subnet, &subnet(ip)) >= self.limits.per_subnet {
                return Err(Refusal::PerSubnet);
            }
            *self.per_ip.entry(ip).or_default() += 1;
            *self.per_subnet.entry(subnet(ip)).or_default() += 1;
        }
        self.pending_incoming += 1;
        self.connections.insert(id, Connection { direction: Direction::Incoming, peer: None, ip });
        Ok(())
    }

    /// Admits a dial. Dials of `trusted` peers are always admitted.
    ///
    /// # Errors
    /// [`Refusal::PendingOutgoing`]; nothing is counted then.
    pub fn dial(&mut self, id: ConnectionId, trusted: bool) -> Result<(), Refusal> {
        if self.pending_outgoing >= self.limits.pending_outgoing && !trusted {
            return Err(Refusal::PendingOutgoing);
        }
        self.pending_outgoing += 1;
        self.connections.insert(id, Connection { direction: Direction::Outgoing, peer: None, ip: None });
        Ok(())
    }

    /// Whether a newly opened connection is admitted. Those of `trusted` peers always are.
    ///
    /// # Errors
    /// [`Refusal`]; the caller calls [`Budget::gone`] for it, as for all closed connections.
    pub fn admit(&self, peer: &PeerId, direction: Direction, trusted: bool) -> Result<(), Refusal> {
        if count(&self.per_peer, peer) >= self.limits.per_peer {
            return Err(Refusal::PerPeer);
        }
        if trusted {
            return Ok(());
        }
        if direction == Direction::Incoming && self.incoming >= self.limits.incoming {
            return Err(Refusal::Incoming);
        }
        if self.established() >= self.limits.established {
            return Err(Refusal::Established);
        }
        Ok(())
    }

    /// A connection was established.
    pub fn established_with(&mut self, id: ConnectionId, peer: PeerId, direction: Direction) {
        let connection = self.connections.entry(id).or_insert(Connection { direction, peer: None, ip: None });
        if connection.peer.is_some() {
            return;
        }
        connection.peer = Some(peer);
        let (pending, established) = match direction {
            Direction::Incoming => (&mut self.pending_incoming, &mut self.incoming),
            Direction::Outgoing => (&mut self.pending_outgoing, &mut self.outgoing),
        };
        *pending = pending.saturating_sub(1);
        *established += 1;
        *self.per_peer.entry(peer).or_default() += 1;
    }

    /// A connection was closed or not established.
    pub fn gone(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let counter = match (connection.direction, connection.peer) {
            (Direction::Incoming, None) => &mut self.pending_incoming,
            (Direction::Outgoing, None) => &mut self.pending_outgoing,
            (Direction::Incoming, Some(_)) => &mut self.incoming,
            (Direction::Outgoing, Some(_)) => &mut self.outgoing,
        };
        *counter = counter.saturating_sub(1);
        if let Some(peer) = connection.peer {
            decrement(&mut self.per_peer, &peer);
        }
        if let Some(ip) = connection.ip {
            decrement(&mut self.per_ip, &ip);
            decrement(&mut self.per_subnet, &subnet(ip));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits() -> Limits {
        Limits {
            established: 8,
            incoming: 6,
            per_peer: 2,
            per_ip: 3,
            per_subnet: 4,
            pending_incoming: 5,
            pending_outgoing: 2,
        }
    }

    fn id(n: usize) -> ConnectionId {
        ConnectionId::new_unchecked(n)
    }

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("ip"))
    }

    #[test]
    fn inbound_connections_are_counted_by_address_and_network() {
        // Addresses of pending connections in order, and the result for the last.
        let table: [(&[&str], Result<(), Refusal>); 7] = [
            (&["198.51.100.1"; 3], Ok(())),
            (&["198.51.100.1"; 4], Err(Refusal::PerIp)),
            (
                &["198.51.100.1", "198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4"],
                Err(Refusal::PerSubnet),
            ),
            (&["198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4", "203.0.113.1"], Ok(())),
            (
                &["2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:3::1", "2001:db8:1:4::1", "2001:db8:1:5::1"],
                Err(Refusal::PerSubnet),
            ),
            (&["::ffff:198.51.100.1", "198.51.100.1", "198.51.100.1", "198.51.100.1"], Err(Refusal::PerIp)),
            (&["127.0.0.1"; 6], Err(Refusal::PendingIncoming)),
        ];
        for (addresses, expected) in table {
            let mut budget = Budget::new(limits());
            let mut last = Ok(());
            for (n, address) in addresses.iter().enumerate() {
                assert_eq!(last, Ok(()), "{addresses:?}");
                last = budget.admit_inbound(id(n), ip(address));
            }
            assert_eq!(last, expected, "{addresses:?}");
        }
    }

    #[test]
    fn trusted_peers_are_admitted_beyond_the_limits() {
        let mut budget = Budget::new(limits());
        for n in 0..6 {
            assert_eq!(budget.admit_inbound(id(n), None), Ok(()));
            let peer = PeerId::random();
            assert_eq!(budget.admit(&peer, Direction::Incoming, false), Ok(()));
            budget.established_with(id(n), peer, Direction::Incoming);
        }
        let trusted_peer = PeerId::random();
        assert_eq!(budget.admit(&trusted_peer, Direction::Incoming, false), Err(Refusal::Incoming));
        assert_eq!(budget.admit(&trusted_peer, Direction::Incoming, true), Ok(()));
        for n in 10..12 {
            assert_eq!(budget.dial(id(n), false), Ok(()));
        }
        assert_eq!(budget.dial(id(12), false), Err(Refusal::PendingOutgoing));
        assert_eq!(budget.dial(id(12), true), Ok(()));
        for n in 10..12 {
            assert_eq!(budget.admit(&trusted_peer, Direction::Outgoing, false), Ok(()));
            budget.established_with(id(n), trusted_peer, Direction::Outgoing);
        }
        assert_eq!(budget.admit(&trusted_peer, Direction::Outgoing, true), Err(Refusal::PerPeer));
        assert_eq!(budget.admit(&PeerId::random(), Direction::Outgoing, false), Err(Refusal::Established));
    }

    proptest! {
        /// The counters always match the open connections, and are empty when all are closed.
        #[test]
        fn the_counters_match_the_open_connections(
            steps in prop::collection::vec((0..4_u8, 0..12_usize, 0..4_u8), 0..200),
        ) {
            let peers: Vec<PeerId> = (0..4).map(|_| PeerId::random()).collect();
            let mut budget = Budget::new(limits());
            for (step, n, who) in steps {
                let address = Some(IpAddr::from([198, 51, 100, who]));
                let known = budget.connections.get(&id(n)).copied();
                match (step, known) {
                    (0, None) => _ = budget.admit_inbound(id(n), address),
                    (1, None) => _ = budget.dial(id(n), false),
                    (2, Some(connection)) => {
                        let peer = peers[usize::from(who)];
                        if connection.peer.is_none() && budget.admit(&peer, connection.direction, false).is_ok() {
                            budget.established_with(id(n), peer, connection.direction);
                        }
                    }
                    (3, _) => budget.gone(id(n)),
                    _ => {}
                }
                let established = budget.connections.values().filter(|connection| connection.peer.is_some()).count();
                prop_assert_eq!(budget.established(), established);
                let pending = budget.connections.len() - established;
                prop_assert_eq!(budget.pending_incoming + budget.pending_outgoing, pending);
                let with_ip = budget.connections.values().filter(|connection| connection.ip.is_some()).count();
                prop_assert_eq!(budget.per_ip.values().sum::<usize>(), with_ip);
                prop_assert!(established <= 8 && budget.per_peer.values().all(|count| (1..=2).contains(count)));
                prop_assert!(budget.per_ip.values().all(|count| *count <= 3));
                prop_assert!(budget.per_subnet.values().all(|count| *count <= 4));
            }
            for n in 0..12 {
                budget.gone(id(n));
            }
            prop_assert!(budget.per_peer.is_empty() && budget.per_ip.is_empty() && budget.per_subnet.is_empty());
            prop_assert_eq!(budget.established() + budget.pending_incoming + budget.pending_outgoing, 0);
        }
    }
}
