//! Who may be connected with us: budgets, bans, and room for those who are useful.
//!
//! Goals: no stranger, however many ids, addresses or offences, can take the connections that others need; peers that the
//! operator named always get one; what is refused is refused before it costs a handshake where its address decides that.
//!
//! Non-goals: bytes and streams of a connection, which its handlers bound.
//!
//! | module | concern |
//! |---|---|
//! | [`budget`] | counting connections |
//! | [`reputation`] | offences and bans |
//! | [`trim`] | whose connections are closed when there are too many |

pub mod budget;
pub mod reputation;
pub mod trim;

use budget::{Budget, Direction, Limits, Refusal};
use libp2p::core::transport::PortUse;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::{ConnectionEstablished, DialFailure, ListenFailure};
use libp2p::swarm::{
    ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};
use reputation::{Offence, Reputation, Standing};
use std::collections::HashSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The doorkeeper of the swarm. See the module's documentation.
pub struct Admission {
    budget: Budget,
    reputation: Reputation,
    trusted: HashSet<PeerId>,
}

/// The IP address at the other end; `None` for a circuit, whose first address is the relay's, and for names.
pub fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    if address.iter().any(|part| part == Protocol::P2pCircuit) {
        return None;
    }
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => Some(ip.into()),
        Some(Protocol::Ip6(ip)) => Some(IpAddr::V6(ip).to_canonical()),
        _ => None,
    }
}

impl Admission {
    /// A doorkeeper who lets the `trusted` in whatever there is of others, and never bans them.
    pub fn new(limits: Limits, ban: Duration, trusted: HashSet<PeerId>) -> Self {
        Self { budget: Budget::new(limits), reputation: Reputation::new(ban), trusted }
    }

    /// Dials that may be under way.
    pub fn pending_dials_max(&self) -> usize {
        self.budget.limits().pending_outgoing
    }

    /// A peer did something wrong, from `ip` if that is known; what it is to us from now on. Whoever is banned is to be
    /// disconnected by the caller. A trusted peer is throttled at worst.
    pub fn offended(&mut self, peer: PeerId, ip: Option<IpAddr>, offence: Offence, now: Instant) -> Standing {
        if self.trusted.contains(&peer) {
            return Standing::Good;
        }
        self.reputation.record(peer, ip, offence, now)
    }

    /// What a peer is to us.
    pub fn standing(&self, peer: &PeerId, now: Instant) -> Standing {
        self.reputation.standing(peer, now)
    }

    /// How many established connections there are, and how many there may be.
    pub fn established(&self) -> (usize, usize) {
        (self.budget.established(), self.budget.limits().established)
    }

    /// How many peers are banned.
    pub fn banned(&self) -> usize {
        self.reputation.banned()
    }

    /// Whether the operator named a peer.
    pub fn is_trusted(&self, peer: &PeerId) -> bool {
        self.trusted.contains(peer)
    }

    /// Forgets what is over. Call it now and then.
    pub fn sweep(&mut self, now: Instant) {
        self.reputation.sweep(now);
    }

    fn admit(&self, peer: &PeerId, address: &Multiaddr, direction: Direction) -> Result<(), Refusal> {
        let now = Instant::now();
        let trusted = self.trusted.contains(peer);
        let address_banned = ip_of(address).is_some_and(|ip| self.reputation.is_address_banned(ip, now));
        if !trusted && (address_banned || self.reputation.is_banned(peer, now)) {
            return Err(Refusal::Banned);
        }
        self.budget.admit(peer, direction, trusted)
    }
}

fn direction_of(endpoint: &ConnectedPoint) -> Direction {
    if endpoint.is_listener() { Direction::Incoming } else { Direction::Outgoing }
}

impl NetworkBehaviour for Admission {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        let ip = ip_of(remote);
        if ip.is_some_and(|ip| self.reputation.is_address_banned(ip, Instant::now())) {
            return Err(ConnectionDenied::new(Refusal::Banned));
        }
        self.budget.knock(id, ip).map_err(ConnectionDenied::new)
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.admit(&peer, remote, Direction::Incoming).map_err(ConnectionDenied::new)?;
        Ok(dummy::ConnectionHandler)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: Option<PeerId>,
        _: &[Multiaddr],
        _: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        let trusted = peer.is_some_and(|peer| self.trusted.contains(&peer));
        if !trusted && peer.is_some_and(|peer| self.reputation.is_banned(&peer, Instant::now())) {
            return Err(ConnectionDenied::new(Refusal::Banned));
        }
        self.budget.dial(id, trusted).map_err(ConnectionDenied::new)?;
        Ok(Vec::new())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.admit(&peer, address, Direction::Outgoing).map_err(ConnectionDenied::new)?;
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { peer_id, connection_id, endpoint, .. }) => {
                self.budget.established_with(connection_id, peer_id, direction_of(endpoint));
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. })
            | FromSwarm::DialFailure(DialFailure { connection_id, .. })
            | FromSwarm::ListenFailure(ListenFailure { connection_id, .. }) => self.budget.gone(connection_id),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_an_address() {
        let peer = PeerId::random();
        let table = [
            ("/ip4/198.51.100.1/tcp/4001".to_owned(), Some("198.51.100.1")),
            ("/ip6/::ffff:198.51.100.1/udp/4001/quic-v1".to_owned(), Some("198.51.100.1")),
            ("/ip6/2001:db8::1/tcp/1".to_owned(), Some("2001:db8::1")),
            (format!("/ip4/198.51.100.1/tcp/4001/p2p/{peer}/p2p-circuit"), None),
            ("/dns4/example.org/tcp/443/wss".to_owned(), None),
        ];
        for (address, expected) in table {
            let ip = ip_of(&address.parse().expect("address"));
            assert_eq!(ip, expected.map(|ip| ip.parse().expect("ip")), "{address}");
        }
    }

    #[test]
    fn the_banned_are_refused_and_the_trusted_never_are() {
        let (friend, stranger) = (PeerId::random(), PeerId::random());
        let mut door = Admission::new(Limits::default(), Duration::from_secs(60), [friend].into());
        let now = Instant::now();
        let address: Multiaddr = "/ip4/198.51.100.1/tcp/4001".parse().expect("address");
        for peer in [friend, stranger] {
            for _ in 0..10 {
                door.offended(peer, ip_of(&address), Offence::Lie, now);
            }
        }
        let mut id = 0;
        let mut dial = |door: &mut Admission, peer| {
            id += 1;
            let id = ConnectionId::new_unchecked(id);
            door.handle_pending_outbound_connection(id, Some(peer), &[], Endpoint::Dialer).is_ok()
        };
        assert!(dial(&mut door, friend) && !dial(&mut door, stranger));
        assert!(door.admit(&friend, &address, Direction::Incoming).is_ok());
        assert_eq!(door.admit(&stranger, &address, Direction::Incoming), Err(Refusal::Banned));
        assert_eq!((door.banned(), door.standing(&friend, now)), (1, Standing::Good));
    }
}
