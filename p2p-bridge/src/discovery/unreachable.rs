//! The negative cache of dials: which addresses did not lead to their peers lately, and which peers were seen alive.
//!
//! What is cached changes the order of dials and not whether there are any: an unreachable provider comes last, and is dialled
//! when no better one is left. Anybody can write provider records, so that the keys are chosen with care:
//!
//! - A refused or timed-out *address* counts against the address, whoever is said to be there. Nobody but its owner decides
//!   whether it answers.
//! - Another peer at an address, an overdue dial, or a circuit that failed counts against the *pair* of peer and address only:
//!   a record that names somebody else's address under a made-up peer id, or somebody else's peer id with dead addresses,
//!   leaves the good pair as it was.
//! - Whoever was connected since is alive: all that was held against its addresses before is ignored for that peer.
//!
//! Failures in a row double the time that they count, from [`FIRST`] to [`LONGEST`]. Bounded in entries; the oldest goes first.
//! Entries are keyed hashes, so that nobody can choose what they collide with. A state machine that is handed the clock.

use super::recent::Recent;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// How long the first failure counts.
const FIRST: Duration = Duration::from_secs(10);
/// How long a failure counts at most.
const LONGEST: Duration = Duration::from_secs(300);
/// Failures that are cached.
const FAILURES_MAX: usize = 16_384;
/// Peers that are known to have been alive.
const ALIVE_MAX: usize = 4_096;
/// How long a peer counts as seen lately.
const LATELY: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Copy)]
struct Failure {
    at: Instant,
    /// How long it counts from then on.
    lasts: Duration,
}

impl Failure {
    fn counts(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < self.lasts
    }
}

/// The cache.
#[derive(Debug)]
pub struct Unreachable {
    hasher: RandomState,
    failures: Recent<u64, Failure>,
    alive: Recent<PeerId, Instant>,
}

impl Default for Unreachable {
    fn default() -> Self {
        let (failures, alive) = (Recent::new(FAILURES_MAX), Recent::new(ALIVE_MAX));
        Self { hasher: RandomState::new(), failures, alive }
    }
}

impl Unreachable {
    /// Nothing answered at an address, whoever was expected there. A circuit counts against the peer behind it only: the relay
    /// may be well.
    pub fn address_failed(&mut self, peer: &PeerId, address: &Multiaddr, now: Instant) {
        let address = bare(address, peer);
        let key = if is_circuit(&address) { self.pair(peer, &address) } else { self.hasher.hash_one(&address) };
        self.failed(key, now);
    }

    /// A peer was not found at an address: somebody else is there, or the dial is overdue.
    pub fn pair_failed(&mut self, peer: &PeerId, address: &Multiaddr, now: Instant) {
        let key = self.pair(peer, &bare(address, peer));
        self.failed(key, now);
    }

    /// A peer is connected, or just was; at this address, if we dialled it.
    pub fn alive(&mut self, peer: PeerId, address: Option<&Multiaddr>, now: Instant) {
        if let Some(address) = address {
            let address = bare(address, &peer);
            let pair = self.pair(&peer, &address);
            self.failures.remove(&pair);
            self.failures.remove(&self.hasher.hash_one(&address));
        }
        self.alive.insert(peer, now, now);
    }

    /// Whether a peer was connected lately.
    pub fn was_alive(&self, peer: &PeerId, now: Instant) -> bool {
        self.alive.get(peer).is_some_and(|seen| now.saturating_duration_since(*seen) < LATELY)
    }

    /// Whether a dial of a peer at an address is likely to fail.
    pub fn is_unreachable(&self, peer: &PeerId, address: &Multiaddr, now: Instant) -> bool {
        let address = bare(address, peer);
        let alive = self.alive.get(peer);
        let keys = [self.hasher.hash_one(&address), self.pair(peer, &address)];
        let counts = |failure: &Failure| failure.counts(now) && alive.is_none_or(|seen| *seen < failure.at);
        keys.iter().filter_map(|key| self.failures.get(key)).any(counts)
    }

    fn failed(&mut self, key: u64, now: Instant) {
        let before = self.failures.get(&key).copied();
        let lasts = match before {
            // One dial may be told of twice: when it is overdue, and when it fails.
            Some(failure) if now.saturating_duration_since(failure.at) < FIRST => failure.lasts,
            Some(failure) if now.saturating_duration_since(failure.at) < LONGEST * 2 => {
                (failure.lasts * 2).min(LONGEST)
            }
            _ => FIRST,
        };
        self.failures.insert(key, Failure { at: now, lasts }, now);
    }

    fn pair(&self, peer: &PeerId, address: &Multiaddr) -> u64 {
        self.hasher.hash_one((peer, address))
    }
}

/// An address without the peer's own id at its end.
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
    fn failures_count_for_a_while_and_longer_each_time_in_a_row() {
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
        assert!(!cache.is_unreachable(&peer, &address(1), now + FIRST), "what was long ago is forgotten");
    }

    #[test]
    fn records_of_an_attacker_do_not_count_against_an_honest_peer() {
        let (mut cache, now) = (Unreachable::default(), Instant::now());
        let (honest, attacker) = (PeerId::random(), PeerId::random());
        let (good, dead) = (address(1), address(2));
        // The honest peer's id with addresses that swallow packets, or refuse.
        cache.pair_failed(&honest, &dead, now);
        cache.address_failed(&honest, &dead, now);
        assert!(!cache.is_unreachable(&honest, &good, now));
        // The honest peer's address under another id: it answers, as somebody else.
        cache.pair_failed(&attacker, &good, now);
        assert!(cache.is_unreachable(&attacker, &good, now) && !cache.is_unreachable(&honest, &good, now));
        // A relay that has nobody behind it serves others all the same.
        let circuit = good.clone().with(Protocol::P2p(PeerId::random())).with(Protocol::P2pCircuit);
        cache.address_failed(&attacker, &circuit, now);
        assert!(cache.is_unreachable(&attacker, &circuit, now) && !cache.is_unreachable(&honest, &circuit, now));
    }

    #[test]
    fn who_was_connected_since_is_reachable() {
        let (mut cache, start) = (Unreachable::default(), Instant::now());
        let [back, other] = [0; 2].map(|_| PeerId::random());
        for peer in [&back, &other] {
            cache.address_failed(peer, &address(1), start);
        }
        let now = start + Duration::from_secs(1);
        // It connected to us: the address itself may still be dead for others.
        cache.alive(back, None, now);
        assert!(!cache.is_unreachable(&back, &address(1), now) && cache.is_unreachable(&other, &address(1), now));
        assert!(cache.was_alive(&back, now) && !cache.was_alive(&back, now + LATELY) && !cache.was_alive(&other, now));
        // We dialled it: somebody answers there.
        cache.alive(back, Some(&address(1)), now);
        assert!(!cache.is_unreachable(&other, &address(1), now));
        let later = now + Duration::from_secs(1);
        cache.pair_failed(&back, &address(1), later);
        assert!(cache.is_unreachable(&back, &address(1), later), "what fails afterwards counts");
    }

    proptest! {
        /// Whatever happens, and however often, the cache holds no more than it may.
        #[test]
        fn a_flood_costs_bounded_memory(steps in prop::collection::vec((0_u8..4, 0_u16..64), 0..600)) {
            let mut cache = Unreachable { failures: Recent::new(16), alive: Recent::new(8), ..Unreachable::default() };
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
                prop_assert!(cache.failures.held() <= 16);
                prop_assert!(cache.alive.held() <= 8);
                if what >= 2 {
                    prop_assert!(!cache.is_unreachable(&peer, &address(n), now));
                }
            }
        }
    }
}
