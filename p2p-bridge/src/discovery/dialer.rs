//! The dials of providers over all searches: their budget, the addresses that each tries, and the statistics of their
//! results.
//!
//! [`super::plan`] chooses the next provider of one search. This module decides for all searches whether the budget
//! allows the dial, which addresses it tries, and when it is overdue. A quarter of the node's dials is reserved for
//! other purposes: DHT queries must continue while dials of providers hang. When the budget is exhausted, overdue dials
//! that are at least [`PATIENCE`] old are aborted in favour of others.
//!
//! No I/O, and the clock is passed in.

use super::dial_times::DialTimes;
use super::plan::{Provider, Rank};
use super::rate_limits::RateLimits;
use super::unreachable::Unreachable;
use crate::admission::ip_of;
use crate::counted::Via;
use crate::dialable::is_same;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Maximum addresses that one dial tries.
const ADDRESSES_MAX: usize = 8;
/// The minimum age of an overdue dial before it is aborted for others: TCP retransmits a lost SYN after a second.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// How to proceed with the next provider.
#[derive(Debug, Clone, PartialEq)]
pub enum Start {
    /// Dial it, then call [`Dialer::dialling`].
    Dial {
        /// The addresses to try.
        addresses: Vec<Multiaddr>,
        /// The addresses that this dial does not try.
        rest: Vec<Multiaddr>,
        /// When the dial becomes overdue.
        deadline: Instant,
    },
    /// A dial of these addresses is already in progress.
    UnderWay {
        /// When it becomes overdue.
        deadline: Instant,
    },
    /// No address is known: look up the peer by its ID, then call [`Dialer::dialling`] without a connection.
    LookUp {
        /// When the look-up becomes overdue.
        deadline: Instant,
    },
    /// The budget of dials is exhausted.
    Full,
    /// All of its addresses exceed the rate limit of dials.
    Limited,
}

/// How a dial failed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Failure<'a> {
    /// These addresses did not answer, or the handshake failed.
    Addresses(&'a [Multiaddr]),
    /// Another peer answered at this address.
    AnotherPeer {
        /// The address.
        address: &'a Multiaddr,
        /// The ID that the peer proved.
        found: PeerId,
    },
    /// For a reason of this node.
    Ours,
}

#[derive(Debug)]
struct PendingDial {
    began: Instant,
    deadline: Instant,
    is_overdue: bool,
    /// Whether it is being aborted.
    is_aborting: bool,
    addresses: Vec<Multiaddr>,
    dials: Vec<ConnectionId>,
}

/// The dials in progress, and the statistics of earlier ones.
#[derive(Debug)]
pub struct Dialer {
    times: DialTimes,
    unreachable: Unreachable,
    rate_limits: RateLimits,
    pending: HashMap<PeerId, PendingDial>,
    pending_max: usize,
}

impl Dialer {
    /// A dialer for a node with at most `pending_dials_max` pending dials in total.
    pub fn new(pending_dials_max: usize) -> Self {
        Self {
            times: DialTimes::default(),
            unreachable: Unreachable::default(),
            rate_limits: RateLimits::default(),
            pending: HashMap::new(),
            pending_max: (pending_dials_max - pending_dials_max / 4).max(1),
        }
    }

    /// The maximum dials of one search in progress: two thirds, so that a search whose providers are all dead leaves
    /// capacity to others.
    pub fn search_max(&self) -> usize {
        (self.pending_max - self.pending_max / 3).max(1)
    }

    /// The rank of a provider.
    pub fn rank(&self, provider: &Provider, now: Instant) -> Rank {
        let Provider { peer, addresses } = provider;
        let mut reachable = addresses.iter().filter(|address| !self.is_unreachable(peer, address, now));
        let best = reachable.by_ref().map(carrier).min();
        match best {
            None if !addresses.is_empty() => Rank::Unreachable,
            _ if self.unreachable.was_alive(peer, now) => Rank::SeenAlive,
            Some(Carrier::Quic) => Rank::Quic,
            Some(Carrier::Direct) => Rank::Direct,
            Some(Carrier::Circuit) | None => Rank::Indirect,
        }
    }

    /// Decides how to dial a provider.
    pub fn start(&mut self, provider: &Provider, now: Instant) -> Start {
        let Provider { peer, addresses } = provider;
        let before = self.pending.get(peer);
        let tried = |address: &Multiaddr| before.is_some_and(|dial| dial.addresses.contains(address));
        let untried: Vec<Multiaddr> = addresses.iter().filter(|address| !tried(address)).cloned().collect();
        if let Some(dial) = before
            && untried.is_empty()
        {
            return Start::UnderWay { deadline: dial.deadline };
        }
        // A looked-up peer already has its slot; a further dial of a peer with more addresses takes another one.
        let own = before.map_or(0, |dial| usize::from(dial.dials.is_empty() && !dial.is_aborting));
        if self.occupied() >= self.pending_max + own {
            return Start::Full;
        }
        if untried.is_empty() {
            return Start::LookUp { deadline: now + super::dial_times::CEILING };
        }
        let (chosen, rest) = self.choose(peer, untried, now);
        let (chosen, too_often): (Vec<_>, Vec<_>) =
            chosen.into_iter().partition(|address| self.rate_limits.take(peer, address, now));
        if chosen.is_empty() {
            tracing::debug!(%peer, addresses = too_often.len(), "not dialled: all addresses exceed the rate limit");
            return Start::Limited;
        }
        let deadline = now + self.times.deadline(&chosen);
        Start::Dial { addresses: chosen, rest, deadline }
    }

    /// Whether a dial of a peer at an address is likely to fail.
    fn is_unreachable(&self, peer: &PeerId, address: &Multiaddr, now: Instant) -> bool {
        self.unreachable.is_unreachable(peer, address, now) || self.rate_limits.belongs_to_other(peer, address, now)
    }

    /// The addresses of one dial, and the remaining ones. Reachable addresses are not mixed with unreachable ones; QUIC
    /// comes before TCP, and TCP before circuits.
    fn choose(&self, peer: &PeerId, untried: Vec<Multiaddr>, now: Instant) -> (Vec<Multiaddr>, Vec<Multiaddr>) {
        let (mut chosen, mut rest): (Vec<_>, Vec<_>) =
            untried.into_iter().partition(|address| !self.is_unreachable(peer, address, now));
        if chosen.is_empty() {
            std::mem::swap(&mut chosen, &mut rest);
        }
        chosen.sort_by_key(carrier);
        rest.splice(0..0, chosen.drain(ADDRESSES_MAX.min(chosen.len())..));
        (chosen, rest)
    }

    /// Returns the tokens of a dial that could not start.
    pub fn not_begun(&mut self, addresses: &[Multiaddr]) {
        addresses.iter().for_each(|address| self.rate_limits.return_tokens(address));
    }

    /// Records the start of a dial, or of a look-up of the peer's addresses.
    pub fn dialling(
        &mut self,
        peer: PeerId,
        dial: Option<ConnectionId>,
        addresses: Vec<Multiaddr>,
        deadline: Instant,
        now: Instant,
    ) {
        let known = self.pending.entry(peer).or_insert_with(|| PendingDial {
            began: now,
            deadline,
            is_overdue: false,
            is_aborting: false,
            addresses: Vec::new(),
            dials: Vec::new(),
        });
        (known.deadline, known.is_overdue, known.is_aborting) = (deadline, false, false);
        known.addresses.extend(addresses);
        known.dials.extend(dial);
    }

    /// Whether a dial of this peer, or a look-up of its addresses, is in progress.
    pub fn is_under_way(&self, peer: &PeerId) -> bool {
        self.pending.contains_key(peer)
    }

    /// Records that a peer is connected. `dialled` is the address and the duration, if this node dialled; `failed` are
    /// the addresses that failed before.
    pub fn connected(
        &mut self,
        peer: PeerId,
        dialled: Option<(&Multiaddr, Duration)>,
        failed: &[Multiaddr],
        now: Instant,
    ) {
        let before = self.pending.remove(&peer);
        for address in failed {
            self.unreachable.address_failed(&peer, address, now);
        }
        if let Some((address, took)) = dialled {
            self.times.succeeded(address, took);
            self.rate_limits.answered(peer, address, now);
        }
        // Tokens of other addresses at the same host are returned too. Other hosts that the peer announced need not be
        // its own.
        if let Some((dialled, _)) = dialled {
            let host = ip_of(dialled);
            let is_there = |address: &&Multiaddr| is_same(address, dialled) || host.is_some() && ip_of(address) == host;
            let addresses = before.iter().flat_map(|dial| &dial.addresses).filter(is_there);
            addresses.for_each(|address| self.rate_limits.return_tokens(address));
        }
        self.unreachable.alive(peer, dialled.map(|(address, _)| address), now);
    }

    /// Records that the last connection to a peer closed: it was alive until now.
    pub fn disconnected(&mut self, peer: PeerId, now: Instant) {
        self.unreachable.alive(peer, None, now);
    }

    /// Records that a dial of a peer failed, also one of another part of the node. `None` if another dial of the peer
    /// is in progress; otherwise the addresses that may still lead to it: libp2p ends the whole dial when another peer
    /// answers first.
    pub fn failed(
        &mut self,
        peer: &PeerId,
        dial: ConnectionId,
        failure: Failure<'_>,
        now: Instant,
    ) -> Option<Vec<Multiaddr>> {
        let is_of_a_search = self.pending.get(peer).is_some_and(|pending| pending.dials.contains(&dial));
        if let Failure::Addresses(addresses) = failure {
            addresses.iter().for_each(|address| self.rate_limits.not_answered(peer, address));
        }
        match failure {
            Failure::Addresses(addresses) if is_of_a_search => {
                addresses.iter().for_each(|address| self.unreachable.address_failed(peer, address, now));
            }
            // Peers can make a hole punch fail, at an address that they choose.
            Failure::Addresses(addresses) => {
                addresses.iter().for_each(|address| self.unreachable.pair_failed(peer, address, now));
            }
            Failure::AnotherPeer { address, found } => {
                self.unreachable.pair_failed(peer, address, now);
                self.rate_limits.answered(found, address, now);
            }
            Failure::Ours => {}
        }
        let Some(pending) = self.pending.get_mut(peer) else { return Some(Vec::new()) };
        pending.dials.retain(|other| *other != dial);
        if !pending.dials.is_empty() {
            return None;
        }
        let mut addresses = self.pending.remove(peer).map(|ended| ended.addresses).unwrap_or_default();
        match failure {
            Failure::AnotherPeer { address: wrong, .. } => addresses.retain(|address| !is_same(address, wrong)),
            Failure::Addresses(_) | Failure::Ours => addresses.clear(),
        }
        Some(addresses)
    }

    /// Whether a dial is in progress that is not overdue.
    pub fn has_dials_in_time(&self, now: Instant) -> bool {
        self.pending.values().any(|dial| !dial.dials.is_empty() && dial.deadline > now)
    }

    /// Records that a look-up found no addresses.
    pub fn not_found(&mut self, peer: &PeerId) {
        if self.pending.get(peer).is_some_and(|dial| dial.dials.is_empty()) {
            self.pending.remove(peer);
        }
    }

    /// Marks the dials that became overdue, and returns how many.
    pub fn tick(&mut self, now: Instant) -> usize {
        let mut overdue = 0;
        for (peer, dial) in &mut self.pending {
            if dial.deadline <= now && !dial.is_overdue {
                dial.is_overdue = true;
                overdue += 1;
                for address in &dial.addresses {
                    self.unreachable.pair_failed(peer, address, now);
                    self.rate_limits.not_answered(peer, address);
                }
            }
        }
        overdue
    }

    /// Marks a dial as being aborted. `false` if it is not in progress, or was marked before.
    pub fn abort(&mut self, peer: &PeerId) -> bool {
        self.pending.get_mut(peer).is_some_and(|dial| !std::mem::replace(&mut dial.is_aborting, true))
    }

    /// The number of connections being opened, and look-ups.
    fn occupied(&self) -> usize {
        self.pending.values().filter(|dial| !dial.is_aborting).map(|dial| dial.dials.len().max(1)).sum()
    }

    /// The oldest overdue dial that is at least [`PATIENCE`] old, among those that may be aborted.
    pub fn oldest_overdue(&self, now: Instant, may_abort: impl Fn(&PeerId) -> bool) -> Option<PeerId> {
        let is_old = |dial: &PendingDial| dial.is_overdue && now.saturating_duration_since(dial.began) >= PATIENCE;
        let old = self.pending.iter().filter(|(peer, dial)| !dial.is_aborting && is_old(dial) && may_abort(peer));
        old.min_by_key(|(_, dial)| dial.began).map(|(peer, _)| *peer)
    }
}

/// The transport of an address, in the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Carrier {
    Quic,
    Direct,
    Circuit,
}

fn carrier(address: &Multiaddr) -> Carrier {
    match Via::of(address) {
        Via::Quic => Carrier::Quic,
        Via::Tcp | Via::WebSocket => Carrier::Direct,
        Via::Circuit => Carrier::Circuit,
    }
}

#[cfg(test)]
mod tests;
