//! Which of the providers that were found are dialled, and when: a hedge over providers as Happy Eyeballs (RFC 8305) is one
//! over addresses.
//!
//! A window of dials is under way. A dial that is overdue by what has been learnt of round trips ([`super::dial_times`]) leaves
//! the window and widens it by one: it may still succeed, but the next providers are dialled meanwhile. So the window doubles
//! with each deadline that passes in silence, as TCP's does in slow start, and a hundred dead providers delay the living one by
//! three or four deadlines. A dial that fails makes room for the next one at once.
//!
//! Providers are dialled in the order of their [`Rank`], and within one rank those first whose network failed least in this
//! search. Everything is bounded, because records cost nothing: dials of a search in all and under way, providers that wait (the
//! network with the most of them makes room), attempts and addresses of one provider. A state machine that is handed the clock;
//! one for each search.

use super::dialer::{PATIENCE, is_same};
use crate::dht::Network;
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Dials in the window when a search begins.
const WINDOW: usize = 8;
/// Dials in the window at most.
const WINDOW_MAX: usize = 64;
/// Dials in the window, and under way in all, while somebody serves the session but more could.
const SERVED_WINDOW: usize = 3;
const SERVED_UNDER_WAY_MAX: usize = 8;
/// Dials of one search in all.
const DIALS_MAX: usize = 256;
/// Dials of one search to providers that were unreachable lately: in the window (one, while somebody serves), and in all.
const UNREACHABLE_WINDOW: usize = 4;
const UNREACHABLE_MAX: usize = 16;
/// Dials of one provider in one search: further ones are of addresses that were not tried yet.
const ATTEMPTS_MAX: u8 = 3;
/// Addresses of one provider that are remembered.
const ADDRESSES_MAX: usize = 24;
/// Providers that wait to be dialled.
const WAITING_MAX: usize = 256;
/// How long a provider waits whose addresses were dialled too often.
const DELAY: Duration = Duration::from_secs(8);
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

/// How promising a provider is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// It was connected lately.
    SeenAlive,
    /// It has a direct address over QUIC, which takes the fewest round trips.
    Quic,
    /// It has another direct address.
    Direct,
    /// It is behind relays only, or has to be looked up in the DHT.
    Indirect,
    /// It was dialled in this search; other addresses are left.
    Again,
    /// None of its addresses led to it lately.
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
struct UnderWay {
    began: Instant,
    /// When it is overdue; none if it is already.
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
    under_way: HashMap<PeerId, UnderWay>,
    /// Providers that wait until then.
    delayed: Vec<(Instant, Provider, Rank)>,
    dialled: HashMap<PeerId, Dialled>,
    /// Dials of each network in this search that were overdue or failed.
    trouble: HashMap<Network, u32>,
    window: usize,
    dials: usize,
    dials_of_unreachable: usize,
    next_order: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            under_way: HashMap::new(),
            delayed: Vec::new(),
            dialled: HashMap::new(),
            trouble: HashMap::new(),
            window: WINDOW,
            dials: 0,
            dials_of_unreachable: 0,
            next_order: 0,
        }
    }
}

impl Plan {
    /// Somebody named a provider. Addresses of one that waits already are added to those it has; one that was dialled already
    /// waits again if there are addresses that were not tried. `rank` judges what is known of it then.
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
                self.wait(provider, rank);
            }
            Some(dialled) if dialled.attempts < ATTEMPTS_MAX && dialled.addresses.len() < ADDRESSES_MAX => {
                self.wait_again(peer, addresses);
            }
            Some(_) => {}
        }
    }

    /// The next provider to dial, if it is time for one: call it until it returns `None`, and tell what became of each by
    /// [`Plan::began`], [`Plan::postpone`] or nothing at all if it is not to be dialled. `members` says how many providers the
    /// session has that proved themselves, and `under_way_max` how many dials of one search may be under way.
    pub fn next(&mut self, members: usize, under_way_max: usize, now: Instant) -> Option<(Provider, Rank)> {
        self.widen(now);
        if members >= MEMBERS_ENOUGH || self.dials >= DIALS_MAX {
            return None;
        }
        let served = members > 0;
        let (window, under_way_max) = match served {
            true => (SERVED_WINDOW, under_way_max.min(SERVED_UNDER_WAY_MAX)),
            false => (self.window, under_way_max),
        };
        let in_time = || self.under_way.values().filter(|dial| dial.deadline.is_some());
        if in_time().count() >= window || self.under_way.len() >= under_way_max {
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

    /// A dial of this provider is under way, and overdue at `deadline`. It does not try the addresses that are the `rest`.
    pub fn began(&mut self, provider: &Provider, rank: Rank, rest: Vec<Multiaddr>, deadline: Instant, now: Instant) {
        let dial = UnderWay { began: now, deadline: Some(deadline), rank, network: network(provider), rest };
        self.under_way.insert(provider.peer, dial);
    }

    /// The dials that are to be aborted because others wait and no more may be under way: those that are overdue and had
    /// [`PATIENCE`], the oldest first.
    pub fn displaced(&self, members: usize, under_way_max: usize, now: Instant) -> Vec<PeerId> {
        if members > 0 || self.under_way.len() < under_way_max || !self.is_waiting() {
            return Vec::new();
        }
        let is_old = |dial: &UnderWay| dial.deadline.is_none() && now.saturating_duration_since(dial.began) >= PATIENCE;
        let mut old: Vec<_> = self.under_way.iter().filter(|(_, dial)| is_old(dial)).collect();
        old.sort_by_key(|(_, dial)| dial.began);
        old.into_iter().take(self.waiting.len()).map(|(peer, _)| *peer).collect()
    }

    /// A dial could not begin, for a reason that is not the provider's: its turn comes again.
    pub fn postpone(&mut self, provider: Provider, rank: Rank) {
        self.forget_dial(&provider.peer, rank);
        self.wait(provider, rank);
    }

    /// The dials of a provider ended, one way or the other. Those addresses that are `untried` may still lead to it.
    pub fn ended(&mut self, peer: &PeerId, connected: bool, untried: &[Multiaddr]) {
        let Some(mut dial) = self.under_way.remove(peer) else { return };
        if connected {
            return;
        }
        if dial.deadline.is_some() {
            *self.trouble.entry(dial.network).or_default() += 1;
        }
        merge(&mut dial.rest, untried.to_vec());
        self.wait_again(*peer, dial.rest);
    }

    /// Whether somebody waits to be dialled, and will be: now, after a while, or by further addresses when a dial is overdue.
    pub fn is_waiting(&self) -> bool {
        let hope =
            |candidate: &Candidate| candidate.rank != Rank::Unreachable || self.dials_of_unreachable < UNREACHABLE_MAX;
        let has_more = |(peer, dial): (&PeerId, &UnderWay)| {
            dial.deadline.is_some() && !dial.rest.is_empty() && self.attempts(peer) < ATTEMPTS_MAX
        };
        let waits = || self.waiting.iter().any(hope) || !self.delayed.is_empty();
        self.dials < DIALS_MAX && (waits() || self.under_way.iter().any(has_more))
    }

    fn attempts(&self, peer: &PeerId) -> u8 {
        self.dialled.get(peer).map_or(0, |dialled| dialled.attempts)
    }

    /// A provider's addresses were dialled too often, by whomever: its turn comes again after [`DELAY`], unless that was so
    /// [`ATTEMPTS_MAX`] times. Records that name somebody else's addresses hold up a dial of these.
    pub fn delay(&mut self, provider: Provider, rank: Rank, now: Instant) {
        self.discount(rank);
        if self.delayed.len() < WAITING_MAX && self.attempts(&provider.peer) < ATTEMPTS_MAX {
            self.delayed.push((now + DELAY, provider, rank));
        }
    }

    /// A provider was found at an address. If it is held up because its addresses were dialled too often, and this is one of
    /// them, its turn comes now.
    pub fn hasten(&mut self, peer: &PeerId, found_at: &Multiaddr) {
        let is_it =
            |waits: &Provider| waits.peer == *peer && waits.addresses.iter().any(|address| is_same(address, found_at));
        for (_, provider, rank) in self.delayed.extract_if(.., |(_, waits, _)| is_it(waits)).collect::<Vec<_>>() {
            self.take_back_attempt(peer);
            self.wait(provider, rank);
        }
    }

    fn discount(&mut self, rank: Rank) {
        self.dials = self.dials.saturating_sub(1);
        self.dials_of_unreachable = self.dials_of_unreachable.saturating_sub(usize::from(rank == Rank::Unreachable));
    }

    /// A dial that was counted and did not begin.
    fn forget_dial(&mut self, peer: &PeerId, rank: Rank) {
        self.discount(rank);
        self.take_back_attempt(peer);
    }

    fn take_back_attempt(&mut self, peer: &PeerId) {
        if let Some(dialled) = self.dialled.get_mut(peer) {
            dialled.attempts = dialled.attempts.saturating_sub(1);
        }
    }

    /// Overdue dials leave the window and widen it. Addresses that they did not try wait for their turn, and so do providers whose
    /// delay is over.
    fn widen(&mut self, now: Instant) {
        for (_, provider, rank) in self.delayed.extract_if(.., |(until, ..)| *until <= now).collect::<Vec<_>>() {
            self.wait(provider, rank);
        }
        let mut untried = Vec::new();
        for (peer, dial) in &mut self.under_way {
            if dial.deadline.is_some_and(|deadline| deadline <= now) {
                dial.deadline = None;
                self.window = (self.window + 1).min(WINDOW_MAX);
                *self.trouble.entry(dial.network).or_default() += 1;
                untried.push((*peer, std::mem::take(&mut dial.rest)));
            }
        }
        for (peer, addresses) in untried {
            self.wait_again(peer, addresses);
        }
    }

    fn best(&self) -> Option<usize> {
        let trouble = |network: &Network| self.trouble.get(network).copied().unwrap_or(0);
        let key = |(_, candidate): &(usize, &Candidate)| (candidate.rank, trouble(&candidate.network), candidate.order);
        self.waiting.iter().enumerate().min_by_key(key).map(|(place, _)| place)
    }

    fn wait_again(&mut self, peer: PeerId, untried: Vec<Multiaddr>) {
        if !untried.is_empty() && self.attempts(&peer) < ATTEMPTS_MAX {
            self.wait(Provider { peer, addresses: untried }, Rank::Again);
        }
    }

    /// A provider waits. If too many do, one of the network that most of them are of makes room: the newcomer, if it is of
    /// that network itself.
    fn wait(&mut self, provider: Provider, rank: Rank) {
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

/// Adds addresses that are not there yet, as many as are remembered.
fn merge(known: &mut Vec<Multiaddr>, addresses: Vec<Multiaddr>) {
    for address in addresses {
        if known.len() < ADDRESSES_MAX && !known.contains(&address) {
            known.push(address);
        }
    }
}

#[cfg(test)]
mod tests;
