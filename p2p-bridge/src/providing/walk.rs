//! A walk: an iterative FIND_NODE look-up of the closest responding peers of a target.
//!
//! A state machine without I/O or clock: the caller sends requests to the peers that
//! [`ClosestPeersLookup::next_to_ask`] returns, and reports each response or failure. The caller sets the timeouts.
//!
//! Unlike the query of `libp2p-kad`, its intermediate state can be read, which the first announcement of a key needs,
//! and its concurrency is tuned for latency.

use super::keyspace::{Distance, PREFIX_BITS_MAX, Position, Prefix, REPLICATION};
use libp2p::{Multiaddr, PeerId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum requests in flight.
const CONCURRENCY: usize = 12;
/// Maximum candidates. Those farthest from the target are evicted first.
const PEERS_MAX: usize = 256;
/// Maximum requests of one walk, which limits walks through invented peers.
const REQUESTS_MAX: usize = 256;

/// Maximum failed peers that count towards the covered radius. About a quarter of the peers in routing tables are gone,
/// and around one target it may be more.
const DEAD_MAX: usize = REPLICATION / 2;

/// A peer that can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The peer ID.
    pub id: PeerId,
    /// Known addresses; none if the routing table has them.
    pub addresses: Vec<Multiaddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Asked,
    Answered,
    Failed,
}

#[derive(Debug)]
struct Candidate {
    peer: Peer,
    state: State,
}

/// A walk towards one target.
#[derive(Debug)]
pub struct ClosestPeersLookup {
    target: Arc<[u8]>,
    position: Position,
    local_id: PeerId,
    candidates: BTreeMap<Distance, Candidate>,
    in_flight: usize,
    asked: usize,
}

impl ClosestPeersLookup {
    /// A walk that starts with known peers.
    pub fn new(target: Arc<[u8]>, local_id: PeerId, seeds: impl IntoIterator<Item = Peer>) -> Self {
        let position = Position::of(&target);
        let mut walk = Self { target, position, local_id, candidates: BTreeMap::new(), in_flight: 0, asked: 0 };
        walk.learn(seeds);
        walk
    }

    /// The target key.
    pub fn target(&self) -> Arc<[u8]> {
        Arc::clone(&self.target)
    }

    /// The position of the target.
    pub fn position(&self) -> Position {
        self.position
    }

    fn learn(&mut self, peers: impl IntoIterator<Item = Peer>) {
        for peer in peers {
            if peer.id == self.local_id {
                continue;
            }
            let distance = Position::of_peer(&peer.id).distance(&self.position);
            let known = self
                .candidates
                .entry(distance)
                .or_insert(Candidate { peer: Peer { id: peer.id, addresses: Vec::new() }, state: State::New });
            if known.peer.addresses.is_empty() {
                known.peer.addresses = peer.addresses;
            }
        }
        while self.candidates.len() > PEERS_MAX {
            let Some((distance, last)) = self.candidates.pop_last() else { return };
            if last.state == State::Asked {
                // Its response is still pending.
                self.candidates.insert(distance, last);
                return;
            }
        }
    }

    /// The closest candidates that have not failed.
    fn closest_not_failed(&self) -> impl Iterator<Item = (&Distance, &Candidate)> {
        self.candidates.iter().filter(|(_, candidate)| candidate.state != State::Failed).take(REPLICATION)
    }

    /// The next peer to ask about the target, if the concurrency allows one.
    pub fn next_to_ask(&mut self) -> Option<Peer> {
        if self.in_flight >= CONCURRENCY || self.asked >= REQUESTS_MAX {
            return None;
        }
        let distance = *self.closest_not_failed().find(|(_, candidate)| candidate.state == State::New)?.0;
        let candidate = self.candidates.get_mut(&distance)?;
        candidate.state = State::Asked;
        self.in_flight += 1;
        self.asked += 1;
        Some(candidate.peer.clone())
    }

    /// Handles a response with closer peers.
    pub fn answered(&mut self, peer: &PeerId, closer: impl IntoIterator<Item = Peer>) {
        if self.finish_request(peer, State::Answered) {
            self.learn(closer);
        }
    }

    /// Records that a peer could not be reached, or did not respond in time.
    pub fn failed(&mut self, peer: &PeerId) {
        self.finish_request(peer, State::Failed);
    }

    fn finish_request(&mut self, peer: &PeerId, state: State) -> bool {
        let distance = Position::of_peer(peer).distance(&self.position);
        match self.candidates.get_mut(&distance) {
            Some(candidate) if candidate.state == State::Asked => {
                candidate.state = state;
                self.in_flight -= 1;
                true
            }
            _ => false,
        }
    }

    /// Whether the closest peers have all responded, or no candidate is left.
    pub fn is_over(&self) -> bool {
        let spent = self.asked >= REQUESTS_MAX && self.in_flight == 0;
        spent || self.closest_not_failed().all(|(_, candidate)| candidate.state == State::Answered)
    }

    /// The peers that have responded, closest first.
    pub fn responded(&self) -> impl Iterator<Item = &Peer> {
        let answered = self.candidates.values().filter(|candidate| candidate.state == State::Answered);
        answered.map(|candidate| &candidate.peer)
    }

    /// The closest peers that have not failed, whether they were asked or not, with their distance.
    pub fn not_failed(&self) -> impl Iterator<Item = (Distance, &Peer)> {
        self.closest_not_failed().map(|(distance, candidate)| (*distance, &candidate.peer))
    }

    /// The number of discovered peers.
    pub fn discovered(&self) -> usize {
        self.candidates.len()
    }

    /// The peers that did not respond.
    pub fn failures(&self) -> impl Iterator<Item = &PeerId> {
        let failed = self.candidates.values().filter(|candidate| candidate.state == State::Failed);
        failed.map(|candidate| &candidate.peer.id)
    }

    /// The prefix that a finished walk has covered: all peers below it are among those that responded. It is never
    /// longer than the longest prefix a walk can target, however close together the peers appear.
    pub fn covered(&self) -> Prefix {
        match self.radius() {
            Some(radius) => Prefix::within(&self.position, &radius),
            None => Prefix::ALL,
        }
    }

    /// The estimated number of peers in the network, based on the density around the target.
    pub fn estimate(&self) -> f64 {
        let answered = |radius: &Distance| {
            let within = self.candidates.range(..=*radius);
            within.filter(|(_, candidate)| candidate.state == State::Answered).count() as f64
        };
        match self.radius() {
            Some(radius) => answered(&radius) / radius.share().max(2_f64.powi(-i32::from(PREFIX_BITS_MAX))),
            None => self.responded().count() as f64,
        }
    }

    /// The distance of the farthest of the closest peers: a response has only so many entries, and peers beyond may be
    /// missing in all responses. Failed peers occupy entries too, so the usual share of them counts. More do not count:
    /// an attacker can return any number of nonexistent peers close to the target, and would keep the walk going
    /// forever.
    fn radius(&self) -> Option<Distance> {
        let mut dead = 0;
        let mut counted = self.candidates.iter().filter(|(_, candidate)| {
            dead += usize::from(candidate.state != State::Answered);
            candidate.state == State::Answered || dead <= DEAD_MAX
        });
        counted.nth(REPLICATION - 1).map(|(distance, _)| *distance)
    }
}
