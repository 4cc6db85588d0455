//! The negative cache of dials: addresses at which dials of their peers failed, and peers seen alive.
//!
//! The cache changes the order of dials, not whether they happen: an unreachable provider is dialled when no better one
//! is left. Anyone can publish provider records, so the cache keys are chosen with care:
//!
//! - A refused or timed-out *address* counts against the address, for any peer ID: only its owner decides whether it
//!   answers.
//! - Another peer at an address, an overdue dial, or a failed circuit counts only against the *pair* of peer and
//!   address: a record that names a third party's address with a made-up peer ID, or a third party's peer ID with dead
//!   addresses, does not affect the good pair.
//! - A later connection proves that the peer is alive: earlier failures of its addresses are ignored for that peer.
//!
//! Consecutive failures double the time that they count, from [`FIRST`] to [`LONGEST`]. Bounded in entries, with the
//! oldest evicted first. Entries are keyed hashes, so that an attacker cannot construct collisions. A state machine
//! that is passed the clock.

use crate::recent::{Recent, recent};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// How long the first failure counts.
const FIRST: Duration = Duration::from_secs(10);
/// The maximum time that a failure counts.
const LONGEST: Duration = Duration::from_secs(300);
/// Maximum cached failures.
const FAILURES_MAX: usize = 16_384;
/// Maximum peers that are known to have been alive.
const ALIVE_MAX: usize = 4_096;
/// How long a peer counts as seen alive.
const ALIVE_TTL: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Copy)]
struct Failure {
    at: Instant,
    /// How long it counts after `at`.
    lasts: Duration,
}

impl Failure {
    fn counts(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < self.lasts
    }
}

/// The negative cache of dials.
#[derive(Debug)]
pub struct Unreachable {
    hasher: RandomState,
    failures: Recent<u64, Failure>,
    alive: Recent<PeerId, Instant>,
}

impl Default for Unreachable {
    fn default() -> Self {
        Self { hasher: RandomState::new(), failures: recent(FAILURES_MAX), alive: recent(ALIVE_MAX) }
    }
}

impl Unreachable {
    /// Records that nothing answered at an address. For a circuit, only the pair of peer and address is recorded: the
    /// relay itself may be working.
    pub fn address_failed(&mut self, peer: &PeerId, address: &Multiaddr, now: Instant) {
        let address = bare(address, peer);
        let key = if is_circuit(&address) { self.pair(peer, &address) } else { self.hasher.hash_one(&address) };
        self.failed(key, now);
    }

    /// Records that a peer was not found at an address: another peer is there, or the dial is overdue.
    pub fn pair_failed(&mut self, peer: &PeerId, address: &Multiaddr, now: Instant) {
        let key = self.pair(peer, &bare(address, peer));
        self.failed(key, now);
    }

    /// Records that a peer is or was connected, at `address` if this node dialled it.
    pub fn alive(&mut self, peer: PeerId, address: Option<&Multiaddr>, now: Instant) {
        if let Some(address) = address {
            let address = bare(address, &peer);
            let pair = self.pair(&peer, &address);
            self.failures.remove(&pair);
            self.failures.remove(&self.hasher.hash_one(&address));
        }
        self.alive.insert(peer, now);
    }

    /// Whether a peer was connected recently.
    pub fn was_alive(&self, peer: &PeerId, now: Instant) -> bool {
        self.alive.peek(peer).is_some_and(|seen| now.saturating_duration_since(*seen) < ALIVE_TTL)
    }

    /// Whether a dial of a peer at an address is likely to fail.
    pub fn is_unreachable(&self, peer: &PeerId, address: &Multiaddr, now: Instant) -> bool {
        let address = bare(address, peer);
        let alive = self.alive.peek(peer);
        let keys = [self.hasher.hash_one(&address), self.pair(peer, &address)];
        let counts = |failure: &Failure| failure.counts(now) && alive.is_none_or(|seen| *seen < failure.at);
        keys.iter().filter_map(|key| self.failures.peek(key)).any(counts)
    }

    fn failed(&mut self, key: u64, now: Instant) {
        let before = self.failures.peek(&key).copied();
        let lasts = match before {
            // One dial may be recorded twice: when it is overdue, and when it fails.
            Some(failure) if now.saturating_duration_since(failure.at) < FIRST => failure.lasts,
            Some(failure) if now.saturating_duration_since(failure.at) < LONGEST * 2 => {
                (failure.lasts * 2).min(LONGEST)
            }
            _ => FIRST,
        };
        self.failures.insert(key, Failure { at: now, lasts });
    }

    fn pair(&self, peer: &PeerId, address: &Multiaddr) -> u64 {
        self.hasher.hash_one((peer, address))
    }
}

/// An address without the peer's own ID at its end.
fn bare(address: &Multiaddr, peer: &PeerId) -> Multiaddr {
    let mut address = address.clone();
    if address.iter().last() == Some(Protocol::P2p(*peer)) {
        address.pop();
    }
    address
}

fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/192.0.2.1/tcp/{port}").parse().expect("an address")
    }

    #[test]
    fn consecutive_failures_count_for_longer_each_time() {
        let (mut cache, peer, mut now) = (Unreachable::default(), PeerId::random(), Instant::now());
        let mut expected = FIRST;
        for _ in 0..8 {
            cache.address_failed(&peer, &address(1), now);
            cache.address_failed(&peer, &address(1).with(Protocol::P2p(peer)), now);
            assert!(cache.is_unreachable(&peer, &address(1), now + expected - Duration::from_millis(1)));
            assert!(!cache.is_unreachable(&peer, &address(1), now + expected));
            now += expected;
            expected = (expected * 2).min(LONGEST);
        }
        now += LONGEST * 2;
        cache.address_failed(&peer, &address(1), now);
        assert!(!cache.is_unreachable(&peer, &address(1), now + FIRST), "an old failure does not extend the time");
    }

    #[test]
    fn records_of_an_attacker_do_not_count_against_an_honest_peer() {
        let (mut cache, now) = (Unreachable::default(), Instant::now());
        let (honest, attacker) = (PeerId::random(), PeerId::random());
        let (good, dead) = (address(1), address(2));
        // The honest peer's ID with addresses that drop packets, or refuse.
        cache.pair_failed(&honest, &dead, now);
        cache.address_failed(&honest, &dead, now);
        assert!(!cache.is_unreachable(&honest, &good, now));
        // The honest peer's address with another ID: it answers with its own.
        cache.pair_failed(&attacker, &good, now);
        assert!(cache.is_unreachable(&attacker, &good, now) && !cache.is_unreachable(&honest, &good, now));
        // A relay without a reservation of one peer still serves others.
        let circuit = good.clone().with(Protocol::P2p(PeerId::random())).with(Protocol::P2pCircuit);
        cache.address_failed(&attacker, &circuit, now);
        assert!(cache.is_unreachable(&attacker, &circuit, now) && !cache.is_unreachable(&honest, &circuit, now));
    }

    #[test]
    fn a_connection_makes_a_peer_reachable_again() {
        let (mut cache, start) = (Unreachable::default(), Instant::now());
        let [back, other] = [0; 2].map(|_| PeerId::random());
        for peer in [&back, &other] {
            cache.address_failed(peer, &address(1), start);
        }
        let now = start + Duration::from_secs(1);
        // An inbound connection: the address itself may still be dead for others.
        cache.alive(back, None, now);
        assert!(!cache.is_unreachable(&back, &address(1), now) && cache.is_unreachable(&other, &address(1), now));
        assert!(
            cache.was_alive(&back, now) && !cache.was_alive(&back, now + ALIVE_TTL) && !cache.was_alive(&other, now)
        );
        // An outbound connection: something answers at the address.
        cache.alive(back, Some(&address(1)), now);
        assert!(!cache.is_unreachable(&other, &address(1), now));
        let later = now + Duration::from_secs(1);
        cache.pair_failed(&back, &address(1), later);
        assert!(cache.is_unreachable(&back, &address(1), later), "later failures count");
    }

    proptest! {
        /// The cache is bounded after any steps.
        #[test]
        fn a_flood_costs_bounded_memory(steps in prop::collection::vec((0_u8..4, 0_u16..64), 0..600)) {
            let mut cache = Unreachable { failures: recent(16), alive: recent(8), ..Unreachable::default() };
            let peers: Vec<PeerId> = (0..16).map(|_| PeerId::random()).collect();
            let mut now = Instant::now();
            for (what, n) in steps {
                let peer = peers[usize::from(n) % 16];
                match what {
                    0 => cache.address_failed(&peer, &address(n), now),
                    1 => cache.pair_failed(&peer, &address(n), now),
                    2 => cache.alive(peer, Some(&address(n)), now),
                    _ => cache.alive(peer, None, now),
                }
                now += Duration::from_millis(u64::from(n));
                prop_assert!(cache.failures.len() <= 16);
                prop_assert!(cache.alive.len() <= 8);
                if what >= 2 {
                    prop_assert!(!cache.is_unreachable(&peer, &address(n), now));
                }
            }
        }
    }
}
