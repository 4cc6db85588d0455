//! [`Relays`]: selects the relays to reserve slots at.
//!
//! A state machine; the caller passes the time in. Configured relays are used until the node is known to be reachable.
//! Without configured relays, connected peers that are relays are used, and only when the node is known to be
//! unreachable. Two reservations at a time suffice, and a relay that refuses or fails is backed off.

use crate::reachability::Verdict;
use crate::redial::peer_of;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The maximum number of concurrent reservations.
const RESERVATIONS_MAX: usize = 2;
/// The maximum number of known relays.
const KNOWN_MAX: usize = 32;
/// The maximum number of relays in back-off; beyond it, the ones that end first are evicted.
const BACK_OFFS_MAX: usize = 256;
const FIRST_BACK_OFF: Duration = Duration::from_secs(10);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct BackOff {
    until: Instant,
    length: Duration,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Relays {
    /// Configured relays and their addresses, in the order of use.
    configured: Vec<(PeerId, Multiaddr)>,
    /// Whether discovered relays may be used.
    discover: bool,
    discovered: HashMap<PeerId, Multiaddr>,
    reservations: HashMap<ListenerId, Reservation>,
    back_offs: HashMap<PeerId, BackOff>,
}

#[derive(Debug)]
struct Reservation {
    relay: PeerId,
    accepted: bool,
}

impl Relays {
    /// Relays from multiaddrs that end in `/p2p/ID`; none if not `wanted`.
    pub fn new(wanted: bool, configured: &[Multiaddr]) -> Self {
        let named = configured.iter().filter(|_| wanted);
        let configured: Vec<_> = named.filter_map(|address| Some((peer_of(address)?, address.clone()))).collect();
        Self { discover: wanted && configured.is_empty(), configured, ..Self::default() }
    }

    /// A connected peer supports the relay protocol.
    pub fn discovered(&mut self, peer: PeerId, address: Multiaddr) {
        if self.discover && (self.discovered.len() < KNOWN_MAX || self.discovered.contains_key(&peer)) {
            self.discovered.insert(peer, address);
        }
    }

    /// A peer disconnected.
    pub fn left(&mut self, peer: &PeerId) {
        self.discovered.remove(peer);
    }

    /// The circuit addresses to listen on now, with their relays. The caller reports the result by [`Relays::asked`] or
    /// [`Relays::refused`].
    pub fn due(&mut self, verdict: Verdict, now: Instant) -> Vec<(PeerId, Multiaddr)> {
        let wanted = match verdict {
            Verdict::Unknown => !self.configured.is_empty(),
            Verdict::Reachable => false,
            Verdict::Unreachable => true,
        };
        if !wanted {
            return Vec::new();
        }
        let mut due: Vec<(PeerId, Multiaddr)> = Vec::new();
        let known = self.configured.iter().map(|(peer, at)| (peer, at)).chain(&self.discovered);
        for (peer, address) in known {
            if self.reservations.len() + due.len() >= RESERVATIONS_MAX {
                break;
            }
            let reserved = self.reservations.values().any(|reservation| reservation.relay == *peer)
                || due.iter().any(|(other, _)| other == peer);
            let backed_off = self.back_offs.get(peer).is_some_and(|back_off| now < back_off.until);
            if !reserved && !backed_off {
                due.push((*peer, circuit(*peer, address)));
            }
        }
        due
    }

    /// A reservation was requested.
    pub fn asked(&mut self, relay: PeerId, listener: ListenerId) {
        self.reservations.insert(listener, Reservation { relay, accepted: false });
    }

    /// A reservation could not be requested.
    pub fn refused(&mut self, relay: PeerId, now: Instant) {
        if self.back_offs.len() >= BACK_OFFS_MAX {
            let soonest = self.back_offs.iter().min_by_key(|(_, back_off)| back_off.until).map(|(peer, _)| *peer);
            self.back_offs.retain(|peer, _| Some(*peer) != soonest);
        }
        let length =
            self.back_offs.get(&relay).map_or(FIRST_BACK_OFF, |back_off| (back_off.length * 2).min(LONGEST_BACK_OFF));
        self.back_offs.insert(relay, BackOff { until: now + length, length });
        // Try the next address of a relay with several.
        if let Some(index) = self.configured.iter().position(|(peer, _)| *peer == relay) {
            let tried = self.configured.remove(index);
            self.configured.push(tried);
        }
    }

    /// A relay accepted or renewed a reservation.
    pub fn accepted(&mut self, relay: &PeerId) {
        for reservation in self.reservations.values_mut().filter(|reservation| reservation.relay == *relay) {
            reservation.accepted = true;
        }
        self.back_offs.remove(relay);
    }

    /// A listener closed; if it was a circuit, the relay refused, failed or disconnected.
    pub fn closed(&mut self, listener: ListenerId, now: Instant) {
        if let Some(reservation) = self.reservations.remove(&listener) {
            self.refused(reservation.relay, now);
        }
    }

    /// The relays to disconnect from, because the node is reachable. Disconnecting is how a reservation is released:
    /// libp2p's behaviour fails if a listener closes while a relay renews its reservation.
    pub fn surplus(&self, verdict: Verdict) -> Vec<PeerId> {
        let accepted =
            self.reservations.values().filter(|reservation| reservation.accepted && verdict == Verdict::Reachable);
        accepted.map(|reservation| reservation.relay).collect()
    }

    /// The number of reservations.
    pub fn reservations(&self) -> usize {
        self.reservations.values().filter(|reservation| reservation.accepted).count()
    }
}

/// The circuit address to listen on.
fn circuit(relay: PeerId, address: &Multiaddr) -> Multiaddr {
    let address = address.clone();
    let full = if peer_of(&address).is_some() { address } else { address.with(Protocol::P2p(relay)) };
    full.with(Protocol::P2pCircuit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(port: u16) -> (PeerId, Multiaddr) {
        (PeerId::random(), format!("/ip4/198.51.100.1/tcp/{port}").parse().expect("a multiaddr"))
    }

    fn named(count: u16) -> Vec<Multiaddr> {
        (1..=count).map(relay).map(|(peer, address)| address.with(Protocol::P2p(peer))).collect()
    }

    fn start(relays: &mut Relays, verdict: Verdict, now: Instant) -> Vec<(PeerId, ListenerId)> {
        let due = relays.due(verdict, now).into_iter().map(|(peer, _)| (peer, ListenerId::next()));
        let started: Vec<_> = due.collect();
        started.iter().for_each(|(peer, listener)| relays.asked(*peer, *listener));
        started
    }

    #[test]
    fn relays_are_used_only_when_needed() {
        use Verdict::{Reachable, Unknown, Unreachable};
        let table = [
            (true, 3, Unknown, 2),
            (true, 3, Unreachable, 2),
            (true, 3, Reachable, 0),
            (true, 0, Unknown, 0),
            (true, 0, Unreachable, 2),
            (false, 3, Unreachable, 0),
            (false, 0, Unreachable, 0),
        ];
        let now = Instant::now();
        for (wanted, configured, verdict, expected) in table {
            let configured = named(configured);
            let mut relays = Relays::new(wanted, &configured);
            for (peer, address) in (10..15).map(relay) {
                relays.discovered(peer, address);
            }
            let due = relays.due(verdict, now);
            assert_eq!(due.len(), expected, "{wanted} {configured:?} {verdict:?}");
            for (peer, address) in due {
                assert!(address.to_string().ends_with(&format!("/p2p/{peer}/p2p-circuit")), "{address}");
                let from = configured.iter().any(|named| peer_of(named) == Some(peer));
                assert_eq!(from, !configured.is_empty(), "configured relays are used instead of others");
            }
        }
    }

    #[test]
    fn a_relay_that_refuses_is_backed_off_and_another_is_asked() {
        let mut now = Instant::now();
        let mut relays = Relays::new(true, &named(3));
        let first = start(&mut relays, Verdict::Unknown, now);
        assert!(start(&mut relays, Verdict::Unknown, now).is_empty(), "two are enough");
        relays.closed(first[0].1, now);
        let second = start(&mut relays, Verdict::Unknown, now);
        assert!(second.len() == 1 && first.iter().all(|(peer, _)| *peer != second[0].0));
        relays.closed(second[0].1, now);
        assert!(start(&mut relays, Verdict::Unknown, now).is_empty(), "both are backed off");
        let mut asked = 0;
        for _ in 0..3600 {
            now += Duration::from_secs(1);
            for (_, listener) in start(&mut relays, Verdict::Unknown, now) {
                asked += 1;
                relays.closed(listener, now);
            }
        }
        assert!((10..=20).contains(&asked), "{asked}: the back-off doubles");
    }

    #[test]
    fn reservations_are_released_when_the_node_is_reachable() {
        let now = Instant::now();
        let mut relays = Relays::new(true, &[]);
        let discovered: Vec<_> = (1..=2).map(relay).collect();
        discovered.iter().for_each(|(peer, address)| relays.discovered(*peer, address.clone()));
        let started = start(&mut relays, Verdict::Unreachable, now);
        assert_eq!((started.len(), relays.reservations()), (2, 0));
        relays.accepted(&discovered[0].0);
        assert_eq!(relays.reservations(), 1);
        assert!(relays.surplus(Verdict::Unreachable).is_empty());
        assert_eq!(relays.surplus(Verdict::Reachable), [discovered[0].0], "the other one is still pending");
        relays.left(&discovered[0].0);
        for (_, listener) in started {
            relays.closed(listener, now);
        }
        assert_eq!(relays.reservations(), 0);
        let later = now + LONGEST_BACK_OFF;
        assert_eq!(relays.due(Verdict::Unreachable, later).len(), 1, "a disconnected relay is not known any more");
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let mut relays = Relays::new(true, &[]);
        for port in 0..1000 {
            let (peer, address) = relay(port);
            relays.discovered(peer, address);
            relays.refused(peer, now);
        }
        assert_eq!((relays.discovered.len(), relays.back_offs.len()), (KNOWN_MAX, BACK_OFFS_MAX));
    }
}
