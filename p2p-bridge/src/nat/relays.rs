//! [`Relays`]: which relays to listen through, and when.
//!
//! A state machine that is handed the clock. Relays that the operator names are used until peers are known to reach us
//! without; without such names, peers that turn out to be relays are used, and only when peers are known not to reach us. Two
//! at a time are enough, and a relay that refuses or breaks is left alone for a while.

use crate::reachability::Verdict;
use crate::redial::peer_of;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Relays listened through at a time.
const HELD_MAX: usize = 2;
/// Relays that are kept in mind.
const MET_MAX: usize = 32;
/// Relays that are left alone at a time; beyond it, whoever may be asked again soonest is forgotten.
const RESTS_MAX: usize = 256;
const FIRST_REST: Duration = Duration::from_secs(10);
const LONGEST_REST: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct Rest {
    until: Instant,
    length: Duration,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Relays {
    /// The operator's, each with where it is; asked in this order.
    configured: Vec<(PeerId, Multiaddr)>,
    /// Whether relays that are met may be used.
    meet: bool,
    met: HashMap<PeerId, Multiaddr>,
    held: HashMap<ListenerId, Held>,
    rests: HashMap<PeerId, Rest>,
}

#[derive(Debug)]
struct Held {
    relay: PeerId,
    accepted: bool,
}

impl Relays {
    /// Relays to listen through, from multiaddrs that end in `/p2p/ID`, and none if that is not `wanted`.
    pub fn new(wanted: bool, configured: &[Multiaddr]) -> Self {
        let named = configured.iter().filter(|_| wanted);
        let configured: Vec<_> = named.filter_map(|address| Some((peer_of(address)?, address.clone()))).collect();
        Self { meet: wanted && configured.is_empty(), configured, ..Self::default() }
    }

    /// A connected peer speaks the relay protocol, and can be reached here.
    pub fn met(&mut self, peer: PeerId, address: Multiaddr) {
        if self.meet && (self.met.len() < MET_MAX || self.met.contains_key(&peer)) {
            self.met.insert(peer, address);
        }
    }

    /// A peer is not connected any more.
    pub fn left(&mut self, peer: &PeerId) {
        self.met.remove(peer);
    }

    /// Addresses to listen on now, each with its relay. The answer to each goes to [`Relays::asked`] or
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
        let known = self.configured.iter().map(|(peer, at)| (peer, at)).chain(&self.met);
        for (peer, address) in known {
            if self.held.len() + due.len() >= HELD_MAX {
                break;
            }
            let held = self.held.values().any(|held| held.relay == *peer) || due.iter().any(|(other, _)| other == peer);
            let rests = self.rests.get(peer).is_some_and(|rest| now < rest.until);
            if !held && !rests {
                due.push((*peer, circuit(*peer, address)));
            }
        }
        due
    }

    /// A relay was asked for a reservation.
    pub fn asked(&mut self, relay: PeerId, listener: ListenerId) {
        self.held.insert(listener, Held { relay, accepted: false });
    }

    /// A relay could not even be asked.
    pub fn refused(&mut self, relay: PeerId, now: Instant) {
        if self.rests.len() >= RESTS_MAX {
            let soonest = self.rests.iter().min_by_key(|(_, rest)| rest.until).map(|(peer, _)| *peer);
            self.rests.retain(|peer, _| Some(*peer) != soonest);
        }
        let length = self.rests.get(&relay).map_or(FIRST_REST, |rest| (rest.length * 2).min(LONGEST_REST));
        self.rests.insert(relay, Rest { until: now + length, length });
        // The next address of a relay that has several.
        if let Some(index) = self.configured.iter().position(|(peer, _)| *peer == relay) {
            let tried = self.configured.remove(index);
            self.configured.push(tried);
        }
    }

    /// A relay accepted, or renewed, the reservation.
    pub fn accepted(&mut self, relay: &PeerId) {
        for held in self.held.values_mut().filter(|held| held.relay == *relay) {
            held.accepted = true;
        }
        self.rests.remove(relay);
    }

    /// A listener closed: if it was one through a relay, that refused, broke, or was left.
    pub fn closed(&mut self, listener: ListenerId, now: Instant) {
        if let Some(held) = self.held.remove(&listener) {
            self.refused(held.relay, now);
        }
    }

    /// Relays to disconnect from, because peers reach us without. That is how a reservation is given back: libp2p's
    /// behaviour does not bear it if a listener closes while a relay renews its reservation.
    pub fn surplus(&self, verdict: Verdict) -> Vec<PeerId> {
        let accepted = self.held.values().filter(|held| held.accepted && verdict == Verdict::Reachable);
        accepted.map(|held| held.relay).collect()
    }

    /// Relays through which we can be reached.
    pub fn reservations(&self) -> usize {
        self.held.values().filter(|held| held.accepted).count()
    }
}

/// The address to listen on to be reached through a relay.
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
    fn relays_are_used_when_they_are_needed() {
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
                relays.met(peer, address);
            }
            let due = relays.due(verdict, now);
            assert_eq!(due.len(), expected, "{wanted} {configured:?} {verdict:?}");
            for (peer, address) in due {
                assert!(address.to_string().ends_with(&format!("/p2p/{peer}/p2p-circuit")), "{address}");
                let from = configured.iter().any(|named| peer_of(named) == Some(peer));
                assert_eq!(from, !configured.is_empty(), "those who are named are used instead of others");
            }
        }
    }

    #[test]
    fn a_relay_that_refuses_rests_and_another_is_asked() {
        let mut now = Instant::now();
        let mut relays = Relays::new(true, &named(3));
        let first = start(&mut relays, Verdict::Unknown, now);
        assert!(start(&mut relays, Verdict::Unknown, now).is_empty(), "two are enough");
        relays.closed(first[0].1, now);
        let second = start(&mut relays, Verdict::Unknown, now);
        assert!(second.len() == 1 && first.iter().all(|(peer, _)| *peer != second[0].0));
        relays.closed(second[0].1, now);
        assert!(start(&mut relays, Verdict::Unknown, now).is_empty(), "both rest");
        let mut asked = 0;
        for _ in 0..3600 {
            now += Duration::from_secs(1);
            for (_, listener) in start(&mut relays, Verdict::Unknown, now) {
                asked += 1;
                relays.closed(listener, now);
            }
        }
        assert!((10..=20).contains(&asked), "{asked}: twice each time as long");
    }

    #[test]
    fn reservations_are_given_back_when_peers_reach_us() {
        let now = Instant::now();
        let mut relays = Relays::new(true, &[]);
        let met: Vec<_> = (1..=2).map(relay).collect();
        met.iter().for_each(|(peer, address)| relays.met(*peer, address.clone()));
        let started = start(&mut relays, Verdict::Unreachable, now);
        assert_eq!((started.len(), relays.reservations()), (2, 0));
        relays.accepted(&met[0].0);
        assert_eq!(relays.reservations(), 1);
        assert!(relays.surplus(Verdict::Unreachable).is_empty());
        assert_eq!(relays.surplus(Verdict::Reachable), [met[0].0], "the other one is still being asked");
        relays.left(&met[0].0);
        for (_, listener) in started {
            relays.closed(listener, now);
        }
        assert_eq!(relays.reservations(), 0);
        let later = now + LONGEST_REST;
        assert_eq!(relays.due(Verdict::Unreachable, later).len(), 1, "who left is not known any more");
    }

    #[test]
    fn strangers_fill_no_memory() {
        let now = Instant::now();
        let mut relays = Relays::new(true, &[]);
        for port in 0..1000 {
            let (peer, address) = relay(port);
            relays.met(peer, address);
            relays.refused(peer, now);
        }
        assert_eq!((relays.met.len(), relays.rests.len()), (MET_MAX, RESTS_MAX));
    }
}
