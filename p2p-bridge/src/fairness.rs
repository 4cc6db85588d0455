//! [`Ledger`]: which peer is served next, and how much may be in flight to it, over all protocols that send blocks.
//!
//! Goals: fair shares in bytes, so that a peer with many requests does not delay others, whatever protocols it uses;
//! bounds for the bytes that are queued for one peer and for all; full use of long links; no I/O and no clock.
//!
//! Non-goals: what a peer asked for, which its protocol knows. A protocol says whether a peer waits for a look-up, takes
//! turns, and reports what they found and what was sent.
//!
//! *Allowance.* The bytes in flight to a peer are limited to [`ALLOWANCE_MIN`] at first. They are in flight until a stream
//! has taken them, not until the peer has them. The limit doubles each time the streams have taken as much as the limit,
//! up to [`ALLOWANCE_MAX`]: a fast reader over a long link soon has a full bandwidth-delay product in flight (16 MiB are
//! 2.5 Gbit/s at 50 ms; the Go implementation stops at 1 MiB), and a peer that does not read costs half a megabyte.
//! This is no ramp of round trips: streams take bytes as long as their windows allow, without an answer of the peer.
//!
//! *Fairness.* Deficit round robin (Shreedhar and Varghese, 1995), charged afterwards, since the size of a block is
//! only known when it was read: a peer whose debt exceeds a [`QUANTUM`] skips turns until it is paid, unless no other
//! peer waits. A peer that uses several protocols has the same turns as one that uses a single one.

use libp2p::PeerId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The initial limit of bytes in flight to a peer, until it has proved to read.
pub const ALLOWANCE_MIN: usize = 512 * 1024;
/// The maximum limit of bytes in flight to a peer.
pub const ALLOWANCE_MAX: usize = 16 * 1024 * 1024;
/// The maximum of bytes in flight to all peers.
pub const IN_FLIGHT_TOTAL_MAX: usize = 128 * 1024 * 1024;
/// The bytes that a peer is served per turn.
pub const QUANTUM: usize = 256 * 1024;
/// The maximum number of concurrent look-ups over all peers.
pub const LOOKUPS_MAX: usize = 32;
/// The maximum number of concurrent look-ups for one peer.
pub const LOOKUPS_PER_PEER: usize = 8;
/// The cost of a look-up, in addition to the bytes found.
pub const LOOKUP_COST: usize = 1024;
/// The assumed size of a block while it is looked up: a block of the usual size.
const EXPECTED_BYTES: usize = 256 * 1024;

/// The protocols that send blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// Bitswap.
    Bitswap,
    /// The DAG protocol.
    Dag,
}

impl Service {
    const COUNT: usize = 2;

    fn index(self) -> usize {
        match self {
            Self::Bitswap => 0,
            Self::Dag => 1,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Bitswap => Self::Dag,
            Self::Dag => Self::Bitswap,
        }
    }
}

/// A turn of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The peer.
    pub peer: PeerId,
    /// The number of concurrent look-ups: one if other peers wait. Each may find a [`QUANTUM`].
    pub lookups: usize,
}

#[derive(Debug)]
struct Account {
    /// Whether the peer waits for a look-up, for each protocol.
    waiting: [bool; Service::COUNT],
    /// The protocol of the last turn.
    last: Service,
    lookups: usize,
    /// Bytes that were found and are collected for a response.
    collected_bytes: usize,
    in_flight_bytes: [usize; Service::COUNT],
    /// The limit of bytes in flight.
    allowance: usize,
    /// Bytes sent since the limit last grew.
    sent_bytes: usize,
    /// Bytes served in advance of its turns.
    debt: usize,
    has_turn: bool,
    throttled: bool,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            waiting: [false; Service::COUNT],
            last: Service::Dag,
            lookups: 0,
            collected_bytes: 0,
            in_flight_bytes: [0; Service::COUNT],
            allowance: ALLOWANCE_MIN,
            sent_bytes: 0,
            debt: 0,
            has_turn: false,
            throttled: false,
        }
    }
}

impl Account {
    fn is_waiting(&self) -> bool {
        self.waiting.contains(&true)
    }

    fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes.iter().sum()
    }

    /// Bytes that are queued or may soon be.
    fn used_bytes(&self) -> usize {
        self.in_flight_bytes() + self.collected_bytes + self.lookups * EXPECTED_BYTES
    }

    fn lookups_max(&self) -> usize {
        if self.throttled { 1 } else { LOOKUPS_PER_PEER }
    }

    fn may_look_up(&self) -> bool {
        self.is_waiting() && self.lookups < self.lookups_max() && self.used_bytes() < self.allowance
    }

    /// The look-ups that may be started; at least one if [`Self::may_look_up`].
    fn lookups_left(&self) -> usize {
        let room = self.allowance.saturating_sub(self.used_bytes()).div_ceil(EXPECTED_BYTES);
        self.lookups_max().saturating_sub(self.lookups).min(room)
    }

    /// The protocol of the next turn: those for which the peer waits take turns.
    fn next_service(&self) -> Service {
        let other = self.last.other();
        if self.waiting[other.index()] { other } else { self.last }
    }

    /// A raised limit is kept while the peer is connected, and so is a debt that delays its turns. A peer that was
    /// scheduled stays until its turn comes.
    fn is_unused(&self) -> bool {
        let idle = !self.is_waiting() && self.used_bytes() == 0 && !self.has_turn && self.debt <= QUANTUM;
        idle && !self.throttled && self.allowance == ALLOWANCE_MIN
    }

    fn on_sent(&mut self, service: Service, bytes: usize) {
        self.in_flight_bytes[service.index()] -= bytes;
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
        if self.sent_bytes >= self.allowance {
            self.sent_bytes = 0;
            self.allowance = (self.allowance * 2).min(ALLOWANCE_MAX);
        }
    }

    fn reset_allowance(&mut self) {
        self.allowance = ALLOWANCE_MIN;
        self.sent_bytes = 0;
    }
}

/// The state machine.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: HashMap<PeerId, Account>,
    /// Peers that wait for look-ups, in the order of their turns.
    turns: VecDeque<PeerId>,
    lookups: usize,
    in_flight_bytes: usize,
}

impl Ledger {
    /// Records whether a peer waits for a look-up.
    pub fn set_waiting(&mut self, peer: PeerId, service: Service, waiting: bool) {
        if waiting || self.accounts.contains_key(&peer) {
            self.accounts.entry(peer).or_default().waiting[service.index()] = waiting;
            self.settle(peer);
        }
    }

    /// The next turn, in round robin over peers, if it is one of this protocol. The caller starts up to `lookups_max`
    /// look-ups, then calls [`Self::set_waiting`], and [`Self::looked_up`] when they are complete.
    pub fn next_turn(&mut self, service: Service, lookups_max: usize) -> Option<Turn> {
        if !self.has_capacity() {
            return None;
        }
        while let Some(peer) = self.turns.front().copied() {
            let others_wait = self.turns.len() > 1;
            let Some(account) = self.accounts.get_mut(&peer) else {
                self.turns.pop_front();
                continue;
            };
            if !account.may_look_up() {
                account.has_turn = false;
                self.turns.pop_front();
                self.settle(peer);
                continue;
            }
            if account.debt > QUANTUM && others_wait {
                account.debt -= QUANTUM;
                self.turns.rotate_left(1);
                continue;
            }
            if account.next_service() != service {
                return None;
            }
            // Debts of a peer that is alone are limited, so that a peer that arrives later is not preferred for more
            // than a turn.
            let debt = if others_wait { account.debt } else { account.debt.min(QUANTUM) };
            account.debt = debt.saturating_sub(QUANTUM);
            let left = account.lookups_left().min(LOOKUPS_MAX - self.lookups);
            let lookups = if others_wait { 1 } else { lookups_max.min(left).max(1) };
            account.lookups += lookups;
            account.last = service;
            account.has_turn = false;
            self.lookups += lookups;
            self.turns.pop_front();
            return Some(Turn { peer, lookups });
        }
        None
    }

    /// Whether the next turn is one of this protocol.
    pub fn is_turn_of(&self, service: Service) -> bool {
        let account = self.turns.front().and_then(|peer| self.accounts.get(peer));
        self.has_capacity() && account.is_some_and(|account| account.may_look_up() && account.next_service() == service)
    }

    fn has_capacity(&self) -> bool {
        self.lookups < LOOKUPS_MAX && self.in_flight_bytes < IN_FLIGHT_TOTAL_MAX
    }

    /// Look-ups of a turn are complete, and have found blocks of so many bytes, in `reads` reads. Returns whether the
    /// peer is still connected.
    pub fn looked_up(&mut self, peer: PeerId, lookups: usize, reads: usize, bytes: usize) -> bool {
        self.lookups = self.lookups.saturating_sub(lookups);
        let Some(account) = self.accounts.get_mut(&peer) else { return false };
        account.lookups = account.lookups.saturating_sub(lookups);
        account.debt += bytes + reads * LOOKUP_COST;
        self.settle(peer);
        true
    }

    /// Sets the bytes that were found and are not yet queued.
    pub fn set_collected(&mut self, peer: PeerId, bytes: usize) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.collected_bytes = bytes;
            self.settle(peer);
        }
    }

    /// Bytes were queued for a peer: they are in flight.
    pub fn queued(&mut self, peer: PeerId, service: Service, bytes: usize) {
        self.accounts.entry(peer).or_default().in_flight_bytes[service.index()] += bytes;
        self.in_flight_bytes += bytes;
        self.settle(peer);
    }

    /// Whether a peer may look up more, as far as its allowance and its look-ups in progress are concerned.
    pub fn may_look_up(&self, peer: &PeerId) -> bool {
        self.accounts.get(peer).is_some_and(Account::may_look_up)
    }

    /// The bytes in flight to a peer.
    pub fn in_flight_to(&self, peer: &PeerId) -> usize {
        self.accounts.get(peer).map_or(0, Account::in_flight_bytes)
    }

    /// What a peer was served in advance of its turns, in bytes.
    #[cfg(test)]
    pub fn debt(&self, peer: &PeerId) -> usize {
        self.accounts.get(peer).map_or(0, |account| account.debt)
    }

    /// Queued bytes were sent.
    pub fn sent(&mut self, peer: PeerId, service: Service, bytes: usize) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            let bytes = bytes.min(account.in_flight_bytes[service.index()]);
            self.in_flight_bytes -= bytes;
            account.on_sent(service, bytes);
            self.settle(peer);
        }
    }

    /// Queued bytes are not sent after all, through no fault of the peer: it cancelled them.
    pub fn withdrawn(&mut self, peer: PeerId, service: Service, bytes: usize) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            let bytes = bytes.min(account.in_flight_bytes[service.index()]);
            self.in_flight_bytes -= bytes;
            account.in_flight_bytes[service.index()] -= bytes;
            self.settle(peer);
        }
    }

    /// Queued bytes were dropped, because the peer does not read. Its limit is reset.
    pub fn dropped(&mut self, peer: PeerId, service: Service, bytes: usize) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.reset_allowance();
        }
        self.withdrawn(peer, service, bytes);
    }

    /// A connection was closed, and what was queued on it will not be reported as sent.
    pub fn lost(&mut self, peer: PeerId, service: Service) {
        self.dropped(peer, service, usize::MAX);
    }

    /// Removes a disconnected peer.
    pub fn disconnected(&mut self, peer: PeerId) {
        if let Some(account) = self.accounts.remove(&peer) {
            self.in_flight_bytes -= account.in_flight_bytes();
            if account.has_turn {
                self.turns.retain(|other| *other != peer);
            }
        }
    }

    /// Limits a peer to one look-up at a time, or lifts the limit.
    pub fn throttle(&mut self, peer: PeerId, throttled: bool) {
        if throttled || self.accounts.contains_key(&peer) {
            self.accounts.entry(peer).or_default().throttled = throttled;
            self.settle(peer);
        }
    }

    /// Schedules a peer that waits for look-ups, and removes an idle one.
    fn settle(&mut self, peer: PeerId) {
        let Some(account) = self.accounts.get_mut(&peer) else { return };
        if account.may_look_up() && !account.has_turn {
            account.has_turn = true;
            self.turns.push_back(peer);
        }
        if account.is_unused() {
            self.accounts.remove(&peer);
        }
    }

    /// The limit of bytes in flight to a peer.
    #[cfg(test)]
    pub(crate) fn allowance(&self, peer: &PeerId) -> usize {
        self.accounts.get(peer).map_or(ALLOWANCE_MIN, |account| account.allowance)
    }

    /// The bytes in flight to all peers.
    #[cfg(test)]
    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    /// The number of peers with an account.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.accounts.len()
    }
}

/// The ledger of the protocols of one swarm, which use it in turn. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SharedLedger(Arc<Mutex<Ledger>>);

impl SharedLedger {
    /// The ledger. It is consistent between calls, so that a panic elsewhere does not matter.
    pub fn get(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "fairness_tests.rs"]
mod tests;
