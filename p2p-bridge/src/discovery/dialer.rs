//! The dials of providers over all searches: their budget, which addresses each tries, and what is learnt of how they end.
//!
//! [`super::plan`] says whose turn it is in one search. Whether there is room, by which addresses, and when the dial is overdue
//! is decided here, for all searches alike. A quarter of the node's dials is left to everybody else: a search must go on in the
//! DHT while dials of providers hang. When there is no room, dials that are overdue and had [`PATIENCE`] are aborted for others.
//!
//! Nothing here does I/O, and the clock is handed in.

use super::dial_times::DialTimes;
use super::plan::{Provider, Rank};
use super::targets::Targets;
use super::unreachable::Unreachable;
use crate::admission::ip_of;
use crate::counted::Via;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Addresses that one dial tries.
const ADDRESSES_MAX: usize = 8;
/// How long an overdue dial keeps its place at least when others need it: TCP sends a lost SYN again after a second.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// What is to be done about a provider whose turn it is.
#[derive(Debug, Clone, PartialEq)]
pub enum Start {
    /// Dial it; then call [`Dialer::dialling`].
    Dial {
        /// By these addresses.
        addresses: Vec<Multiaddr>,
        /// What this dial does not try.
        rest: Vec<Multiaddr>,
        /// When it is overdue.
        deadline: Instant,
    },
    /// It is being dialled by these addresses.
    UnderWay {
        /// When that is overdue.
        deadline: Instant,
    },
    /// Nobody said where it is: look it up by its id; then call [`Dialer::dialling`] without a connection.
    LookUp {
        /// When that is overdue.
        deadline: Instant,
    },
    /// Too many dials are under way.
    Full,
    /// All of its addresses were dialled too often just now.
    Limited,
}

/// How a dial failed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Failure<'a> {
    /// Nothing answered at these addresses, or nothing that finished a handshake.
    Addresses(&'a [Multiaddr]),
    /// Another peer is at this address.
    AnotherPeer {
        /// Where.
        address: &'a Multiaddr,
        /// Who proved to be there.
        found: PeerId,
    },
    /// For a reason of our own.
    Ours,
}

#[derive(Debug)]
struct UnderWay {
    began: Instant,
    deadline: Instant,
    is_overdue: bool,
    /// It is being aborted.
    is_leaving: bool,
    addresses: Vec<Multiaddr>,
    dials: Vec<ConnectionId>,
}

/// The dials under way, and what was learnt of those before.
#[derive(Debug)]
pub struct Dialer {
    times: DialTimes,
    unreachable: Unreachable,
    targets: Targets,
    under_way: HashMap<PeerId, UnderWay>,
    under_way_max: usize,
}

impl Dialer {
    /// A dialer for a node that may have so many dials under way in all.
    pub fn new(pending_dials_max: usize) -> Self {
        Self {
            times: DialTimes::default(),
            unreachable: Unreachable::default(),
            targets: Targets::default(),
            under_way: HashMap::new(),
            under_way_max: (pending_dials_max - pending_dials_max / 4).max(1),
        }
    }

    /// Dials of one search that may be under way: not more than two thirds, so that a search for what only dead peers have
    /// leaves room to others.
    pub fn search_max(&self) -> usize {
        (self.under_way_max - self.under_way_max / 3).max(1)
    }

    /// How promising a provider is.
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

    /// It is a provider's turn.
    pub fn start(&mut self, provider: &Provider, now: Instant) -> Start {
        let Provider { peer, addresses } = provider;
        let before = self.under_way.get(peer);
        let tried = |address: &Multiaddr| before.is_some_and(|dial| dial.addresses.contains(address));
        let untried: Vec<Multiaddr> = addresses.iter().filter(|address| !tried(address)).cloned().collect();
        if let Some(dial) = before
            && untried.is_empty()
        {
            return Start::UnderWay { deadline: dial.deadline };
        }
        // A peer that was looked up has its place already; a further dial of one that has more addresses takes another.
        let own = before.map_or(0, |dial| usize::from(dial.dials.is_empty() && !dial.is_leaving));
        if self.occupied() >= self.under_way_max + own {
            return Start::Full;
        }
        if untried.is_empty() {
            return Start::LookUp { deadline: now + super::dial_times::CEILING };
        }
        let (chosen, rest) = self.choose(peer, untried, now);
        let (chosen, too_often): (Vec<_>, Vec<_>) =
            chosen.into_iter().partition(|address| self.targets.take(peer, address, now));
        if chosen.is_empty() {
            tracing::debug!(%peer, addresses = too_often.len(), "not dialled: its addresses were dialled too often");
            return Start::Limited;
        }
        let deadline = now + self.times.deadline(&chosen);
        Start::Dial { addresses: chosen, rest, deadline }
    }

    /// Whether a dial of a peer at an address is likely to fail.
    fn is_unreachable(&self, peer: &PeerId, address: &Multiaddr, now: Instant) -> bool {
        self.unreachable.is_unreachable(peer, address, now) || self.targets.is_of_another(peer, address, now)
    }

    /// The addresses of one dial, and the others: reachable ones first and, if there are any, alone; QUIC before TCP before
    /// circuits.
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

    /// A dial could not begin after all: what it took of its targets is given back.
    pub fn not_begun(&mut self, addresses: &[Multiaddr]) {
        addresses.iter().for_each(|address| self.targets.give_back(address));
    }

    /// A dial began, or a search for the peer's addresses.
    pub fn dialling(
        &mut self,
        peer: PeerId,
        dial: Option<ConnectionId>,
        addresses: Vec<Multiaddr>,
        deadline: Instant,
        now: Instant,
    ) {
        let known = self.under_way.entry(peer).or_insert_with(|| UnderWay {
            began: now,
            deadline,
            is_overdue: false,
            is_leaving: false,
            addresses: Vec::new(),
            dials: Vec::new(),
        });
        (known.deadline, known.is_overdue, known.is_leaving) = (deadline, false, false);
        known.addresses.extend(addresses);
        known.dials.extend(dial);
    }

    /// Whether a dial of this peer, or a search for its addresses, is under way for a search.
    pub fn is_under_way(&self, peer: &PeerId) -> bool {
        self.under_way.contains_key(peer)
    }

    /// A peer is connected. `dialled` is the address, if we opened the connection, and how long that took; `failed` are the
    /// addresses that had failed before.
    pub fn connected(
        &mut self,
        peer: PeerId,
        dialled: Option<(&Multiaddr, Duration)>,
        failed: &[Multiaddr],
        now: Instant,
    ) {
        let before = self.under_way.remove(&peer);
        for address in failed {
            self.unreachable.address_failed(&peer, address, now);
        }
        if let Some((address, took)) = dialled {
            self.times.succeeded(address, took);
            self.targets.answered(peer, address, now);
        }
        // Those at the same host owe nothing either. Another host that the peer named need not be its own.
        if let Some((dialled, _)) = dialled {
            let host = ip_of(dialled);
            let is_there = |address: &&Multiaddr| is_same(address, dialled) || host.is_some() && ip_of(address) == host;
            let addresses = before.iter().flat_map(|dial| &dial.addresses).filter(is_there);
            addresses.for_each(|address| self.targets.give_back(address));
        }
        self.unreachable.alive(peer, dialled.map(|(address, _)| address), now);
    }

    /// The last connection to a peer closed: until now it was alive.
    pub fn disconnected(&mut self, peer: PeerId, now: Instant) {
        self.unreachable.alive(peer, None, now);
    }

    /// A dial of a peer failed, whoever wanted it. `None` if another dial of the peer is under way; otherwise addresses that
    /// may still lead to it: where another peer answers first, libp2p ends the whole dial.
    pub fn failed(
        &mut self,
        peer: &PeerId,
        dial: ConnectionId,
        failure: Failure<'_>,
        now: Instant,
    ) -> Option<Vec<Multiaddr>> {
        let is_of_a_search = self.under_way.get(peer).is_some_and(|under_way| under_way.dials.contains(&dial));
        if let Failure::Addresses(addresses) = failure {
            addresses.iter().for_each(|address| self.targets.silent(peer, address));
        }
        match failure {
            Failure::Addresses(addresses) if is_of_a_search => {
                addresses.iter().for_each(|address| self.unreachable.address_failed(peer, address, now));
            }
            // A hole punch may be made to fail, at an address that the other side names.
            Failure::Addresses(addresses) => {
                addresses.iter().for_each(|address| self.unreachable.pair_failed(peer, address, now));
            }
            Failure::AnotherPeer { address, found } => {
                self.unreachable.pair_failed(peer, address, now);
                self.targets.answered(found, address, now);
            }
            Failure::Ours => {}
        }
        let Some(under_way) = self.under_way.get_mut(peer) else { return Some(Vec::new()) };
        under_way.dials.retain(|other| *other != dial);
        if !under_way.dials.is_empty() {
            return None;
        }
        let mut addresses = self.under_way.remove(peer).map(|ended| ended.addresses).unwrap_or_default();
        match failure {
            Failure::AnotherPeer { address: wrong, .. } => addresses.retain(|address| !is_same(address, wrong)),
            Failure::Addresses(_) | Failure::Ours => addresses.clear(),
        }
        Some(addresses)
    }

    /// Whether a dial is under way that is not overdue.
    pub fn has_dials_in_time(&self, now: Instant) -> bool {
        self.under_way.values().any(|dial| !dial.dials.is_empty() && dial.deadline > now)
    }

    /// Nobody knows where a peer is.
    pub fn not_found(&mut self, peer: &PeerId) {
        if self.under_way.get(peer).is_some_and(|dial| dial.dials.is_empty()) {
            self.under_way.remove(peer);
        }
    }

    /// Notes the dials that became overdue. How many did.
    pub fn tick(&mut self, now: Instant) -> usize {
        let mut overdue = 0;
        for (peer, dial) in &mut self.under_way {
            if dial.deadline <= now && !dial.is_overdue {
                dial.is_overdue = true;
                overdue += 1;
                for address in &dial.addresses {
                    self.unreachable.pair_failed(peer, address, now);
                    self.targets.silent(peer, address);
                }
            }
        }
        overdue
    }

    /// A dial is to be aborted for others: `false` if it is not under way, or is being aborted already.
    pub fn abort(&mut self, peer: &PeerId) -> bool {
        self.under_way.get_mut(peer).is_some_and(|dial| !std::mem::replace(&mut dial.is_leaving, true))
    }

    /// Connections that are being opened, and look-ups.
    fn occupied(&self) -> usize {
        self.under_way.values().filter(|dial| !dial.is_leaving).map(|dial| dial.dials.len().max(1)).sum()
    }

    /// The oldest of the dials that are overdue and had [`PATIENCE`], of those that may be aborted.
    pub fn oldest_overdue(&self, now: Instant, may_abort: impl Fn(&PeerId) -> bool) -> Option<PeerId> {
        let is_old = |dial: &UnderWay| dial.is_overdue && now.saturating_duration_since(dial.began) >= PATIENCE;
        let old = self.under_way.iter().filter(|(peer, dial)| !dial.is_leaving && is_old(dial) && may_abort(peer));
        old.min_by_key(|(_, dial)| dial.began).map(|(peer, _)| *peer)
    }
}

/// Whether two addresses are the same but for the peer at their end.
pub(super) fn is_same(one: &Multiaddr, other: &Multiaddr) -> bool {
    let bare = |address: &Multiaddr| {
        let mut address = address.clone();
        if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
            address.pop();
        }
        address
    };
    bare(one) == bare(other)
}

/// What carries a connection, in the order in which it is wanted.
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
