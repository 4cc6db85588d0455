//! How many connections there are, and with whom: who may have another.
//!
//! Counting only, without I/O. A stranger can make many peer ids for nothing but has few addresses, so what strangers open is
//! also counted by address and by network. This machine's own addresses are exempt from that: whoever uses them has the
//! machine already, and tests and proxies put many peers behind one.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use libp2p::PeerId;
use libp2p::swarm::ConnectionId;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

/// The most connections of each kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Established ones over all peers, whoever opened them.
    pub established: usize,
    /// Established ones that others opened.
    pub incoming: usize,
    /// Established ones with one peer.
    pub per_peer: usize,
    /// Ones that others opened, or are opening, from one IP address.
    pub per_ip: usize,
    /// The same from one network: an IPv4 /24 or an IPv6 /48.
    pub per_subnet: usize,
    /// Ones that others are in the middle of opening.
    pub pending_incoming: usize,
    /// Dials under way.
    pub pending_outgoing: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self::of(1_024, 32, 128, 256)
    }
}

impl Limits {
    /// Limits from the settings. A quarter of all connections is kept for those that this node opens itself, so that
    /// strangers cannot cut it off.
    pub fn of(established: usize, per_ip: usize, per_subnet: usize, pending_outgoing: usize) -> Self {
        let incoming = (established - established / 4).max(1);
        // TCP, QUIC and WebSocket from both sides, and one to spare each time the peer changes its network.
        Self { established, incoming, per_peer: 8, per_ip, per_subnet, pending_incoming: 128, pending_outgoing }
    }
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// [`Limits::established`].
    #[error("there are too many connections")]
    Established,
    /// [`Limits::incoming`].
    #[error("others opened too many connections")]
    Incoming,
    /// [`Limits::per_peer`].
    #[error("there are too many connections with this peer")]
    PerPeer,
    /// [`Limits::per_ip`].
    #[error("there are too many connections from this address")]
    PerIp,
    /// [`Limits::per_subnet`].
    #[error("there are too many connections from this network")]
    PerSubnet,
    /// [`Limits::pending_incoming`].
    #[error("too many connections are being opened by others")]
    PendingIncoming,
    /// [`Limits::pending_outgoing`].
    #[error("too many dials are under way")]
    PendingOutgoing,
    /// The peer, or its address, misbehaved.
    #[error("the peer is banned for a while")]
    Banned,
}

/// Who opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The other side.
    Incoming,
    /// We did.
    Outgoing,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    direction: Direction,
    /// The peer, once the connection is established.
    peer: Option<PeerId>,
    /// Where a connection that others opened comes from, if that counts.
    ip: Option<IpAddr>,
}

/// The book of all connections.
#[derive(Debug, Default)]
pub struct Budget {
    limits: Limits,
    places: HashMap<ConnectionId, Place>,
    pending_incoming: usize,
    pending_outgoing: usize,
    incoming: usize,
    outgoing: usize,
    per_peer: HashMap<PeerId, usize>,
    per_ip: HashMap<IpAddr, usize>,
    per_subnet: HashMap<IpNet, usize>,
}

fn subnet(ip: IpAddr) -> IpNet {
    // The prefix lengths are within bounds, so neither can fail; the address itself is the net if one did.
    match ip {
        IpAddr::V4(ip) => Ipv4Net::new(ip, 24).map_or_else(|_| IpNet::from(IpAddr::V4(ip)), |net| net.trunc().into()),
        IpAddr::V6(ip) => Ipv6Net::new(ip, 48).map_or_else(|_| IpNet::from(IpAddr::V6(ip)), |net| net.trunc().into()),
    }
}

fn count<K: Hash + Eq>(map: &HashMap<K, usize>, key: &K) -> usize {
    map.get(key).copied().unwrap_or_default()
}

/// One less; what comes to nothing is forgotten, so that the map is as large as what is open.
fn decrement<K: Hash + Eq>(map: &mut HashMap<K, usize>, key: &K) {
    if let Some(value) = map.get_mut(key) {
        *value = value.saturating_sub(1);
        if *value == 0 {
            map.remove(key);
        }
    }
}

impl Budget {
    /// An empty book.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The limits that hold.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Established connections.
    pub fn established(&self) -> usize {
        self.incoming + self.outgoing
    }

    /// Somebody knocks. An `ip` of `None` is not counted by address.
    ///
    /// # Errors
    /// [`Refusal`], and nothing is counted.
    pub fn knock(&mut self, id: ConnectionId, ip: Option<IpAddr>) -> Result<(), Refusal> {
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
        self.places.insert(id, Place { direction: Direction::Incoming, peer: None, ip });
        Ok(())
    }

    /// We dial. Those who are `trusted` are dialled whatever else is under way.
    ///
    /// # Errors
    /// [`Refusal::PendingOutgoing`], and nothing is counted.
    pub fn dial(&mut self, id: ConnectionId, trusted: bool) -> Result<(), Refusal> {
        if self.pending_outgoing >= self.limits.pending_outgoing && !trusted {
            return Err(Refusal::PendingOutgoing);
        }
        self.pending_outgoing += 1;
        self.places.insert(id, Place { direction: Direction::Outgoing, peer: None, ip: None });
        Ok(())
    }

    /// Whether a connection that is open now may stay. Those who are `trusted` have it whatever there is of others.
    ///
    /// # Errors
    /// [`Refusal`]; [`Budget::gone`] is to be called for it, as for any other that ends.
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

    /// A connection is established.
    pub fn established_with(&mut self, id: ConnectionId, peer: PeerId, direction: Direction) {
        let place = self.places.entry(id).or_insert(Place { direction, peer: None, ip: None });
        if place.peer.is_some() {
            return;
        }
        place.peer = Some(peer);
        let (pending, established) = match direction {
            Direction::Incoming => (&mut self.pending_incoming, &mut self.incoming),
            Direction::Outgoing => (&mut self.pending_outgoing, &mut self.outgoing),
        };
        *pending = pending.saturating_sub(1);
        *established += 1;
        *self.per_peer.entry(peer).or_default() += 1;
    }

    /// A connection is closed, or never came to be.
    pub fn gone(&mut self, id: ConnectionId) {
        let Some(place) = self.places.remove(&id) else { return };
        let counter = match (place.direction, place.peer) {
            (Direction::Incoming, None) => &mut self.pending_incoming,
            (Direction::Outgoing, None) => &mut self.pending_outgoing,
            (Direction::Incoming, Some(_)) => &mut self.incoming,
            (Direction::Outgoing, Some(_)) => &mut self.outgoing,
        };
        *counter = counter.saturating_sub(1);
        if let Some(peer) = place.peer {
            decrement(&mut self.per_peer, &peer);
        }
        if let Some(ip) = place.ip {
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
    fn strangers_are_counted_by_address_and_by_network() {
        // Addresses that knock one after the other, and what the last of them hears.
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
                last = budget.knock(id(n), ip(address));
            }
            assert_eq!(last, expected, "{addresses:?}");
        }
    }

    #[test]
    fn the_trusted_come_in_when_strangers_have_filled_the_house() {
        let mut budget = Budget::new(limits());
        for n in 0..6 {
            assert_eq!(budget.knock(id(n), None), Ok(()));
            let peer = PeerId::random();
            assert_eq!(budget.admit(&peer, Direction::Incoming, false), Ok(()));
            budget.established_with(id(n), peer, Direction::Incoming);
        }
        let friend = PeerId::random();
        assert_eq!(budget.admit(&friend, Direction::Incoming, false), Err(Refusal::Incoming));
        assert_eq!(budget.admit(&friend, Direction::Incoming, true), Ok(()));
        for n in 10..12 {
            assert_eq!(budget.dial(id(n), false), Ok(()));
        }
        assert_eq!(budget.dial(id(12), false), Err(Refusal::PendingOutgoing));
        assert_eq!(budget.dial(id(12), true), Ok(()));
        for n in 10..12 {
            assert_eq!(budget.admit(&friend, Direction::Outgoing, false), Ok(()));
            budget.established_with(id(n), friend, Direction::Outgoing);
        }
        assert_eq!(budget.admit(&friend, Direction::Outgoing, true), Err(Refusal::PerPeer));
        assert_eq!(budget.admit(&PeerId::random(), Direction::Outgoing, false), Err(Refusal::Established));
    }

    proptest! {
        /// Whatever happens in whatever order, the counts are those of what is open, and nothing is left when all is gone.
        #[test]
        fn the_counts_are_those_of_what_is_open(steps in prop::collection::vec((0..4_u8, 0..12_usize, 0..4_u8), 0..200)) {
            let peers: Vec<PeerId> = (0..4).map(|_| PeerId::random()).collect();
            let mut budget = Budget::new(limits());
            for (step, n, who) in steps {
                let address = Some(IpAddr::from([198, 51, 100, who]));
                let known = budget.places.get(&id(n)).copied();
                match (step, known) {
                    (0, None) => _ = budget.knock(id(n), address),
                    (1, None) => _ = budget.dial(id(n), false),
                    (2, Some(place)) => {
                        let peer = peers[usize::from(who)];
                        if place.peer.is_none() && budget.admit(&peer, place.direction, false).is_ok() {
                            budget.established_with(id(n), peer, place.direction);
                        }
                    }
                    (3, _) => budget.gone(id(n)),
                    _ => {}
                }
                let established = budget.places.values().filter(|place| place.peer.is_some()).count();
                prop_assert_eq!(budget.established(), established);
                prop_assert_eq!(budget.pending_incoming + budget.pending_outgoing, budget.places.len() - established);
                prop_assert_eq!(budget.per_ip.values().sum::<usize>(), budget.places.values().filter(|place| place.ip.is_some()).count());
                prop_assert!(established <= 8 && budget.per_peer.values().all(|count| (1..=2).contains(count)));
                prop_assert!(budget.per_ip.values().all(|count| *count <= 3) && budget.per_subnet.values().all(|count| *count <= 4));
            }
            for n in 0..12 {
                budget.gone(id(n));
            }
            prop_assert!(budget.per_peer.is_empty() && budget.per_ip.is_empty() && budget.per_subnet.is_empty());
            prop_assert_eq!(budget.established() + budget.pending_incoming + budget.pending_outgoing, 0);
        }
    }
}
