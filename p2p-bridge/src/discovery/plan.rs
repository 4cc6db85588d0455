//! Which of the providers that were found are dialled, and when: a hedge over providers as Happy Eyeballs (RFC 8305) is one
//! over addresses.
//!
//! The first few are dialled at once, whoever names them. After that, one more at a time: when a dial fails, or when none of those
//! under way has brought a member within [`HEDGE_AFTER`]. So neither an address that swallows packets nor a list of a thousand
//! dead providers delays the one that works, and nobody can have us dial a thousand hosts. A state machine that is handed the
//! clock; one for each search.

use libp2p::{Multiaddr, PeerId};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Providers that are dialled at once when they are found.
const AT_ONCE: usize = 3;
/// Another is dialled when those under way took this long.
const HEDGE_AFTER: Duration = Duration::from_millis(250);
/// Dials of one search that may be under way.
const UNDER_WAY_MAX: usize = 8;
/// Providers that one search dials at most.
const DIALLED_MAX: usize = 32;
/// Providers that wait to be dialled; further ones are forgotten.
const WAITING_MAX: usize = 256;
/// Members of a session that are enough: more add duplicates rather than speed.
pub const MEMBERS_ENOUGH: usize = 4;

/// A provider and where it may be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// Who it is.
    pub peer: PeerId,
    /// Addresses that somebody named; they may be none.
    pub addresses: Vec<Multiaddr>,
}

/// The dials of one search.
#[derive(Debug, Default)]
pub struct Plan {
    waiting: VecDeque<PeerId>,
    addresses: HashMap<PeerId, Vec<Multiaddr>>,
    under_way: HashSet<PeerId>,
    dialled: HashSet<PeerId>,
    latest: Option<Instant>,
}

impl Plan {
    /// Somebody named a provider. Addresses of one that waits already are added to those it has.
    pub fn add(&mut self, provider: Provider) {
        let Provider { peer, addresses } = provider;
        if self.dialled.contains(&peer) {
            return;
        }
        if !self.addresses.contains_key(&peer) {
            if self.waiting.len() >= WAITING_MAX {
                return;
            }
            self.waiting.push_back(peer);
        }
        let known = self.addresses.entry(peer).or_default();
        for address in addresses {
            if !known.contains(&address) {
                known.push(address);
            }
        }
    }

    /// The next provider to dial, if it is time for one: call it until it returns `None`. `members` says how many providers
    /// the session has that proved themselves.
    pub fn next(&mut self, members: usize, now: Instant) -> Option<Provider> {
        let full = self.under_way.len() >= UNDER_WAY_MAX || self.dialled.len() >= DIALLED_MAX;
        if full || members >= MEMBERS_ENOUGH || !self.is_due(now) {
            return None;
        }
        let peer = self.waiting.pop_front()?;
        self.under_way.insert(peer);
        self.dialled.insert(peer);
        self.latest = Some(now);
        Some(Provider { peer, addresses: self.addresses.remove(&peer).unwrap_or_default() })
    }

    fn is_due(&self, now: Instant) -> bool {
        let late = self.latest.is_none_or(|latest| now.saturating_duration_since(latest) >= HEDGE_AFTER);
        self.under_way.len() < AT_ONCE || late
    }

    /// A dial ended, one way or the other.
    pub fn ended(&mut self, peer: &PeerId) {
        self.under_way.remove(peer);
    }

    /// Whether somebody waits to be dialled, and will be.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.dialled.len() < DIALLED_MAX
    }

    /// A dial could not begin, for a reason that is not the provider's: its turn comes again.
    pub fn postpone(&mut self, provider: Provider) {
        let Provider { peer, addresses } = provider;
        self.under_way.remove(&peer);
        self.dialled.remove(&peer);
        self.waiting.push_front(peer);
        self.addresses.insert(peer, addresses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider() -> Provider {
        Provider { peer: PeerId::random(), addresses: Vec::new() }
    }

    fn dials(plan: &mut Plan, members: usize, now: Instant) -> Vec<PeerId> {
        std::iter::from_fn(|| plan.next(members, now)).map(|provider| provider.peer).collect()
    }

    #[test]
    fn a_few_at_once_then_one_for_each_failure_or_delay() {
        let start = Instant::now();
        let mut plan = Plan::default();
        let all: Vec<Provider> = (0..100).map(|_| provider()).collect();
        let peers: Vec<PeerId> = all.iter().map(|provider| provider.peer).collect();
        all.into_iter().for_each(|provider| plan.add(provider));
        assert_eq!(dials(&mut plan, 0, start), peers[..3]);
        assert_eq!(dials(&mut plan, 0, start + HEDGE_AFTER / 2), []);
        plan.ended(&peers[1]);
        assert_eq!(dials(&mut plan, 0, start + HEDGE_AFTER / 2), peers[3..4]);
        let later = start + HEDGE_AFTER * 2;
        assert_eq!(dials(&mut plan, 0, later), peers[4..5], "one hedge at a time");
        assert_eq!(dials(&mut plan, MEMBERS_ENOUGH, later + HEDGE_AFTER), [], "there are enough");
        let mut clock = later;
        let mut total = 5;
        for _ in 0..100 {
            clock += HEDGE_AFTER;
            total += dials(&mut plan, 0, clock).len();
            assert!(plan.under_way.len() <= UNDER_WAY_MAX);
        }
        assert_eq!(plan.under_way.len(), UNDER_WAY_MAX);
        for peer in &peers {
            plan.ended(peer);
            clock += HEDGE_AFTER;
            total += dials(&mut plan, 0, clock).len();
        }
        assert_eq!(total, DIALLED_MAX, "nobody can have us dial everybody");
        assert!(!plan.is_waiting(), "who will never be dialled is not waited for");
    }

    #[test]
    fn addresses_of_one_provider_are_merged_and_it_is_dialled_once() {
        let now = Instant::now();
        let mut plan = Plan::default();
        let addresses: Vec<Multiaddr> =
            [1, 2].map(|port| format!("/ip4/192.0.2.1/tcp/{port}").parse().expect("address")).into();
        let peer = PeerId::random();
        for known in [&addresses[..1], &addresses[..], &addresses[1..]] {
            plan.add(Provider { peer, addresses: known.to_vec() });
        }
        assert_eq!(plan.next(0, now), Some(Provider { peer, addresses }));
        plan.add(Provider { peer, addresses: Vec::new() });
        assert!(!plan.is_waiting() && plan.next(0, now).is_none());
        let turned_away = provider();
        plan.add(turned_away.clone());
        plan.add(provider());
        assert_eq!(plan.next(0, now).as_ref(), Some(&turned_away));
        plan.postpone(turned_away.clone());
        assert_eq!(plan.next(0, now), Some(turned_away), "first in line again");
        assert!(plan.next(0, now).is_some());
        for _ in 0..2 * WAITING_MAX {
            plan.add(provider());
        }
        assert_eq!((plan.waiting.len(), plan.addresses.len()), (WAITING_MAX, WAITING_MAX));
    }
}
