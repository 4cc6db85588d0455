//! Admission control of the swarm: connection budgets, bans and trimming.
//!
//! Goals: untrusted peers cannot exhaust the connections, whatever the number of their peer IDs, addresses or offences;
//! peers that the operator configured are always admitted; connections that their address disqualifies are denied
//! before the handshake.
//!
//! Non-goals: the bytes and streams of a connection, which the handlers limit.
//!
//! | module | concern |
//! |---|---|
//! | [`budget`] | counting connections |
//! | [`reputation`] | offences, throttling and bans |
//! | [`trim`] | which connections are closed when there are too many |

pub mod budget;
pub mod reputation;
pub mod trim;

use crate::known_members::KnownMembers;
use budget::{Budget, ConnectionLimits, Denial, Direction};
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

/// Admission control as a network behaviour. See the module's documentation.
pub struct Admission {
    budget: Budget,
    reputation: Reputation,
    trusted: HashSet<PeerId>,
    members: KnownMembers,
}

/// The remote IP address; `None` for circuits, whose first address is the relay's, and for host names.
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
    /// Admits `trusted` peers beyond the limits, and never bans them.
    pub fn new(limits: ConnectionLimits, ban: Duration, trusted: HashSet<PeerId>) -> Self {
        Self {
            budget: Budget::new(limits),
            reputation: Reputation::new(ban),
            trusted,
            members: KnownMembers::default(),
        }
    }

    /// Trusts the gateways of the site as well.
    #[must_use]
    pub fn with_members(mut self, members: KnownMembers) -> Self {
        self.members = members;
        self
    }

    /// The maximum number of pending dials.
    pub fn pending_dials_max(&self) -> usize {
        self.budget.limits().pending_outgoing
    }

    /// Records an offence of a peer, from `ip` if known, and returns its standing. The caller disconnects banned peers.
    /// Trusted peers are at most throttled.
    pub fn offended(&mut self, peer: PeerId, ip: Option<IpAddr>, offence: Offence, now: Instant) -> Standing {
        if self.is_trusted(&peer) {
            return Standing::Good;
        }
        self.reputation.record(peer, ip, offence, now)
    }

    /// The standing of a peer.
    pub fn standing(&self, peer: &PeerId, now: Instant) -> Standing {
        self.reputation.standing(peer, now)
    }

    /// The number of established connections, and the limit.
    pub fn established(&self) -> (usize, usize) {
        (self.budget.established(), self.budget.limits().established)
    }

    /// The number of banned peers.
    pub fn banned(&self) -> usize {
        self.reputation.banned()
    }

    /// Whether the operator configured a peer, or it is a gateway of the site.
    pub fn is_trusted(&self, peer: &PeerId) -> bool {
        self.trusted.contains(peer) || self.members.contains(peer)
    }

    /// Removes expired state. Called regularly.
    pub fn sweep(&mut self, now: Instant) {
        self.reputation.sweep(now);
    }

    fn admit(&self, peer: &PeerId, address: &Multiaddr, direction: Direction) -> Result<(), Denial> {
        let now = Instant::now();
        let trusted = self.is_trusted(peer);
        let address_banned = ip_of(address).is_some_and(|ip| self.reputation.is_address_banned(ip, now));
        if !trusted && (address_banned || self.reputation.is_banned(peer, now)) {
            return Err(Denial::Banned);
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
            return Err(ConnectionDenied::new(Denial::Banned));
        }
        self.budget.admit_inbound(id, ip).map_err(ConnectionDenied::new)
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
        let trusted = peer.is_some_and(|peer| self.is_trusted(&peer));
        if !trusted && peer.is_some_and(|peer| self.reputation.is_banned(&peer, Instant::now())) {
            return Err(ConnectionDenied::new(Denial::Banned));
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
    fn the_remote_ip_is_read_from_the_address() {
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
    fn banned_peers_are_denied_and_trusted_ones_and_members_never() {
        let (configured, member) = (PeerId::random(), PeerId::random());
        let members = KnownMembers::default();
        members.replace([member].into());
        for trusted in [configured, member] {
            check_that_a_peer_is_trusted(trusted, configured, &members);
        }
    }

    fn check_that_a_peer_is_trusted(trusted: PeerId, configured: PeerId, members: &KnownMembers) {
        let untrusted = PeerId::random();
        let admission = Admission::new(ConnectionLimits::default(), Duration::from_secs(60), [configured].into());
        let mut admission = admission.with_members(members.clone());
        let now = Instant::now();
        let address: Multiaddr = "/ip4/198.51.100.1/tcp/4001".parse().expect("address");
        for peer in [trusted, untrusted] {
            for _ in 0..10 {
                admission.offended(peer, ip_of(&address), Offence::InvalidBlock, now);
            }
        }
        let mut id = 0;
        let mut dial = |admission: &mut Admission, peer| {
            id += 1;
            let id = ConnectionId::new_unchecked(id);
            admission.handle_pending_outbound_connection(id, Some(peer), &[], Endpoint::Dialer).is_ok()
        };
        assert!(dial(&mut admission, trusted) && !dial(&mut admission, untrusted));
        assert!(admission.admit(&trusted, &address, Direction::Incoming).is_ok());
        assert_eq!(admission.admit(&untrusted, &address, Direction::Incoming), Err(Denial::Banned));
        assert_eq!((admission.banned(), admission.standing(&trusted, now)), (1, Standing::Good));
    }
}
