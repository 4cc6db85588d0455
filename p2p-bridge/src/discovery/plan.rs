//! Which of the found providers are dialled, and when: hedged dials over providers, as Happy Eyeballs (RFC 8305) hedges
//! over addresses.
//!
//! A search has a window of pending dials. An overdue dial, as measured by [`super::dial_times`], leaves the window and
//! widens it by one: it may still succeed, but the next providers are dialled meanwhile. So the window doubles with
//! each deadline without an answer, as in TCP slow start, and a hundred dead providers delay a live one by three or
//! four deadlines. A failed dial is replaced at once.
//!
//! Providers are dialled in the order of their [`Rank`], and within a rank those first whose network failed least in
//! this search. Everything is bounded, because records are free to create: total and pending dials per search, queued
//! providers (evicted from the network with the most of them), attempts and addresses per provider. A state machine
//! that is passed the clock, one per search.

use super::dialer::PATIENCE;
use crate::dht::Network;
use crate::dialable::is_same;
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The initial window.
const WINDOW: usize = 8;
/// The maximum window.
const WINDOW_MAX: usize = 64;
/// Maximum dials in the window, and pending in total, while a member serves the session but more members would help.
const SERVED_WINDOW: usize = 3;
const SERVED_PENDING_MAX: usize = 8;
/// Maximum dials of one search.
const DIALS_MAX: usize = 256;
/// Maximum dials of one search to unreachable providers: in the window (one, while a member serves), and in total.
const UNREACHABLE_WINDOW: usize = 4;
const UNREACHABLE_MAX: usize = 16;
/// Maximum dials of one provider in one search; each one tries only untried addresses.
const ATTEMPTS_MAX: u8 = 3;
/// Maximum addresses of one provider.
const ADDRESSES_MAX: usize = 24;
/// Maximum queued providers.
const WAITING_MAX: usize = 256;
/// How long a provider is delayed whose addresses exceed the rate limit.
const DELAY: Duration = Duration::from_secs(8);
/// With so many session members the search dials no more: further ones cause duplicates rather than speed.
pub const MEMBERS_ENOUGH: usize = 4;

/// A provider and its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// The peer ID.
    pub peer: PeerId,
    /// Known addresses; may be empty.
    pub addresses: Vec<Multiaddr>,
}

/// How promising a provider is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// It was connected recently.
    SeenAlive,
    /// It has a direct QUIC address, which takes the fewest round trips.
    Quic,
    /// It has a direct address over another transport.
    Direct,
    /// It has only relayed addresses, or must be looked up in the DHT.
    Indirect,
    /// It was dialled in this search, and has untried addresses.
    Again,
    /// All of its addresses are in the negative cache.
    Unreachable,
}

#[derive(Debug)]
struct Candidate {
    provider: Provider,
    rank: Rank,
    network: Network,
    order: u64,
}

#[derive(Debug)]
struct PendingDial {
    began: Instant,
    /// When it becomes overdue; `None` if it is already.
    deadline: Option<Instant>,
    rank: Rank,
    network: Network,
    /// Addresses that this dial does not try.
    rest: Vec<Multiaddr>,
}

#[derive(Debug, Default)]
struct Dialled {
    attempts: u8,
    addresses: Vec<Multiaddr>,
}

/// The dials of one search.
#[derive(Debug)]
pub struct Plan {
    waiting: Vec<Candidate>,
    pending: HashMap<PeerId, PendingDial>,
    /// Providers delayed until a time.
    delayed: Vec<(Instant, Provider, Rank)>,
    dialled: HashMap<PeerId, Dialled>,
    /// Dials of each network in this search that were overdue or failed.
    failures: HashMap<Network, u32>,
    window: usize,
    dials: usize,
    dials_of_unreachable: usize,
    next_order: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            pending: HashMap::new(),
            delayed: Vec::new(),
            dialled: HashMap::new(),
            failures: HashMap::new(),
            window: WINDOW,
            dials: 0,
            dials_of_unreachable: 0,
            next_order: 0,
        }
    }
}

impl Plan {
    /// Adds a found provider. New addresses of a queued provider are merged; a provider that was already dialled is
    /// queued again if it has untried addresses. `rank` computes the rank of the result.
    pub fn add(&mut self, provider: Provider, rank: impl Fn(&Provider) -> Rank) {
        let Provider { peer, mut addresses } = provider;
        if let Some(dialled) = self.dialled.get(&peer) {
            addresses.retain(|address| !dialled.addresses.contains(address));
        }
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.provider.peer == peer) {
            merge(&mut waiting.provider.addresses, addresses);
            waiting.network = network(&waiting.provider);
            if waiting.rank != Rank::Again {
                waiting.rank = rank(&waiting.provider);
            }
            return;
        }
        match self.dialled.get(&peer) {
            None => {
                let mut provider = Provider { peer, addresses: Vec::new() };
                merge(&mut provider.addresses, addresses);
                let rank = rank(&provider);
                self.queue(provider, rank);
            }
            Some(dialled) if dialled.attempts < ATTEMPTS_MAX && dialled.addresses.len() < ADDRESSES_MAX => {
                self.queue_again(peer, addresses);
            }
            Some(_) => {}
        }
    }

    /// The next provider to dial now, if any. Call it until it returns `None`, and report each provider with
    /// [`Plan::began`] or [`Plan::postpone`], or not at all if it must not be dialled. `members` is the number of
    /// session members that have sent blocks, and `pending_max` the maximum pending dials per search.
    pub fn next(&mut self, members: usize, pending_max: usize, now: Instant) -> Option<(Provider, Rank)> {
        self.update_window(now);
        if members >= MEMBERS_ENOUGH || self.dials >= DIALS_MAX {
            return None;
        }
        let served = members > 0;
        let (window, pending_max) = match served {
            true => (SERVED_WINDOW, pending_max.min(SERVED_PENDING_MAX)),
            false => (self.window, pending_max),
        };
        let in_time = || self.pending.values().filter(|dial| dial.deadline.is_some());
        if in_time().count() >= window || self.pending.len() >= pending_max {
            return None;
        }
        let best = self.best()?;
        if self.waiting.get(best)?.rank == Rank::Unreachable {
            let hopeless = in_time().filter(|dial| dial.rank == Rank::Unreachable).count();
            let window = if served { 1 } else { UNREACHABLE_WINDOW };
            if hopeless >= window || self.dials_of_unreachable >= UNREACHABLE_MAX {
                return None;
            }
        }
        let Candidate { provider, rank, .. } = self.waiting.swap_remove(best);
        self.dials += 1;
        self.dials_of_unreachable += usize::from(rank == Rank::Unreachable);
        let dialled = self.dialled.entry(provider.peer).or_default();
        dialled.attempts = dialled.attempts.saturating_add(1);
        merge(&mut dialled.addresses, provider.addresses.clone());
        Some((provider, rank))
    }

    /// Records that a dial of this provider is pending, and overdue at `deadline`. `rest` are the addresses that it
    /// does not try.
    pub fn began(&mut self, provider: &Provider, rank: Rank, rest: Vec<Multiaddr>, deadline: Instant, now: Instant) {
        let dial = PendingDial { began: now, deadline: Some(deadline), rank, network: network(provider), rest };
        self.pending.insert(provider.peer, dial);
    }

    /// Dials to abort because providers are queued and the maximum of pending dials is reached: those that are overdue
    /// and at least [`PATIENCE`] old, the oldest first.
    pub fn displaced(&self, members: usize, pending_max: usize, now: Instant) -> Vec<PeerId> {
        if members > 0 || self.pending.len() < pending_max || !self.is_waiting() {
            return Vec::new();
        }
        let is_old =
            |dial: &PendingDial| dial.deadline.is_none() && now.saturating_duration_since(dial.began) >= PATIENCE;
        let mut old: Vec<_> = self.pending.iter().filter(|(_, dial)| is_old(dial)).collect();
        old.sort_by_key(|(_, dial)| dial.began);
        old.into_iter().take(self.waiting.len()).map(|(peer, _)| *peer).collect()
    }

    /// Requeues a provider whose dial could not start for a local reason.
    pub fn postpone(&mut self, provider: Provider, rank: Rank) {
        self.uncount_dial(&provider.peer, rank);
        self.queue(provider, rank);
    }

    /// Records the end of a dial. The `untried` addresses may still lead to the provider.
    pub fn ended(&mut self, peer: &PeerId, connected: bool, untried: &[Multiaddr]) {
        let Some(mut dial) = self.pending.remove(peer) else { return };
        if connected {
            return;
        }
        if dial.deadline.is_some() {
            *self.failures.entry(dial.network).or_default() += 1;
        }
        merge(&mut dial.rest, untried.to_vec());
        self.queue_again(*peer, dial.rest);
    }

    /// Whether a dial will start later: of a queued or delayed provider, or of untried addresses when a pending dial is
    /// overdue.
    pub fn is_waiting(&self) -> bool {
        let hope =
            |candidate: &Candidate| candidate.rank != Rank::Unreachable || self.dials_of_unreachable < UNREACHABLE_MAX;
        let has_more = |(peer, dial): (&PeerId, &PendingDial)| {
            dial.deadline.is_some() && !dial.rest.is_empty() && self.attempts(peer) < ATTEMPTS_MAX
        };
        let waits = || self.waiting.iter().any(hope) || !self.delayed.is_empty();
        self.dials < DIALS_MAX && (waits() || self.pending.iter().any(has_more))
    }

    fn attempts(&self, peer: &PeerId) -> u8 {
        self.dialled.get(peer).map_or(0, |dialled| dialled.attempts)
    }

    /// Delays a provider whose addresses exceed the rate limit by [`DELAY`], up to [`ATTEMPTS_MAX`] times. The limit
    /// may be used up by records of other peers that name these addresses.
    pub fn delay(&mut self, provider: Provider, rank: Rank, now: Instant) {
        self.uncount_total(rank);
        if self.delayed.len() < WAITING_MAX && self.attempts(&provider.peer) < ATTEMPTS_MAX {
            self.delayed.push((now + DELAY, provider, rank));
        }
    }

    /// Queues a delayed provider at once, because it answered at one of its addresses.
    pub fn hasten(&mut self, peer: &PeerId, found_at: &Multiaddr) {
        let is_it =
            |waits: &Provider| waits.peer == *peer && waits.addresses.iter().any(|address| is_same(address, found_at));
        for (_, provider, rank) in self.delayed.extract_if(.., |(_, waits, _)| is_it(waits)).collect::<Vec<_>>() {
            self.uncount_attempt(peer);
            self.queue(provider, rank);
        }
    }

    fn uncount_total(&mut self, rank: Rank) {
        self.dials = self.dials.saturating_sub(1);
        self.dials_of_unreachable = self.dials_of_unreachable.saturating_sub(usize::from(rank == Rank::Unreachable));
    }

    /// Uncounts a dial that did not start.
    fn uncount_dial(&mut self, peer: &PeerId, rank: Rank) {
        self.uncount_total(rank);
        self.uncount_attempt(peer);
    }

    fn uncount_attempt(&mut self, peer: &PeerId) {
        if let Some(dialled) = self.dialled.get_mut(peer) {
            dialled.attempts = dialled.attempts.saturating_sub(1);
        }
    }

    /// Removes overdue dials from the window and widens it. Queues their untried addresses, and providers whose delay
    /// is over.
    fn update_window(&mut self, now: Instant) {
        for (_, provider, rank) in self.delayed.extract_if(.., |(until, ..)| *until <= now).collect::<Vec<_>>() {
            self.queue(provider, rank);
        }
        let mut untried = Vec::new();
        for (peer, dial) in &mut self.pending {
            if dial.deadline.is_some_and(|deadline| deadline <= now) {
                dial.deadline = None;
                self.window = (self.window + 1).min(WINDOW_MAX);
                *self.failures.entry(dial.network).or_default() += 1;
                untried.push((*peer, std::mem::take(&mut dial.rest)));
            }
        }
        for (peer, addresses) in untried {
            self.queue_again(peer, addresses);
        }
    }

    fn best(&self) -> Option<usize> {
        let failures = |network: &Network| self.failures.get(network).copied().unwrap_or(0);
        let key =
            |(_, candidate): &(usize, &Candidate)| (candidate.rank, failures(&candidate.network), candidate.order);
        self.waiting.iter().enumerate().min_by_key(key).map(|(place, _)| place)
    }

    fn queue_again(&mut self, peer: PeerId, untried: Vec<Multiaddr>) {
        if !untried.is_empty() && self.attempts(&peer) < ATTEMPTS_MAX {
            self.queue(Provider { peer, addresses: untried }, Rank::Again);
        }
    }

    /// Queues a provider. If the queue is full, a provider of the network with the most of them is evicted, or the new
    /// one is dropped if it belongs to that network.
    fn queue(&mut self, provider: Provider, rank: Rank) {
        let network = network(&provider);
        if self.waiting.len() >= WAITING_MAX {
            let mut networks: HashMap<Network, usize> = HashMap::new();
            for waiting in &self.waiting {
                *networks.entry(waiting.network).or_default() += 1;
            }
            let heaviest = networks.into_iter().max_by_key(|(_, count)| *count).map(|(network, _)| network);
            let of_heaviest = |candidate: &Candidate| Some(candidate.network) == heaviest;
            let Some(place) = self.waiting.iter().rposition(of_heaviest).filter(|_| heaviest != Some(network)) else {
                return;
            };
            self.waiting.remove(place);
        }
        let order = self.next_order;
        self.next_order += 1;
        self.waiting.push(Candidate { provider, rank, network, order });
    }
}

fn network(provider: &Provider) -> Network {
    provider.addresses.first().map_or_else(Network::default, Network::of)
}

/// Adds new addresses, up to the maximum.
fn merge(known: &mut Vec<Multiaddr>, addresses: Vec<Multiaddr>) {
    for address in addresses {
        if known.len() < ADDRESSES_MAX && !known.contains(&address) {
            known.push(address);
        }
    }
}

#[cfg(test)]
mod tests;
