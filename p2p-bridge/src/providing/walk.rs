//! One walk: asking ever closer peers until the closest that answer are known.
//!
//! A state machine without I/O or clock: whoever drives it asks the peers that [`Walk::next_to_ask`] names and reports what became
//! of each. A peer that does not answer in time is reported as failed, so a walk ends as soon as its peers do.
//!
//! It differs from the one in `libp2p-kad` in that what it knows can be read while it goes on, which the first announcement
//! of a key needs, and in that its concurrency is that of somebody who waits.

use super::keyspace::{Distance, PREFIX_BITS_MAX, Position, Prefix, REPLICATION};
use libp2p::{Multiaddr, PeerId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Questions under way at once.
const CONCURRENCY: usize = 12;
/// Peers remembered. Those farthest from the target are forgotten first.
const PEERS_MAX: usize = 256;
/// Questions of one walk. Invented peers end there.
const QUESTIONS_MAX: usize = 256;

/// Peers that did not answer and count towards how far a walk has seen. Of those that routing tables name, about a quarter are
/// gone, and around one target it may be more.
const DEAD_MAX: usize = REPLICATION / 2;

/// A peer that can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub id: PeerId,
    /// Where it is said to be; none if the routing table knows.
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
pub struct Walk {
    target: Arc<[u8]>,
    position: Position,
    ourselves: PeerId,
    candidates: BTreeMap<Distance, Candidate>,
    under_way: usize,
    asked: usize,
}

impl Walk {
    /// A walk that begins with peers which are known already.
    pub fn new(target: Arc<[u8]>, ourselves: PeerId, seeds: impl IntoIterator<Item = Peer>) -> Self {
        let position = Position::of(&target);
        let mut walk = Self { target, position, ourselves, candidates: BTreeMap::new(), under_way: 0, asked: 0 };
        walk.learn(seeds);
        walk
    }

    /// What peers are asked about.
    pub fn target(&self) -> Arc<[u8]> {
        Arc::clone(&self.target)
    }

    /// Where the target lies.
    pub fn position(&self) -> Position {
        self.position
    }

    fn learn(&mut self, peers: impl IntoIterator<Item = Peer>) {
        for peer in peers {
            if peer.id == self.ourselves {
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
                // Its answer is still to come.
                self.candidates.insert(distance, last);
                return;
            }
        }
    }

    /// The closest that have not failed, with what is known of each.
    fn closest_hopeful(&self) -> impl Iterator<Item = (&Distance, &Candidate)> {
        self.candidates.iter().filter(|(_, candidate)| candidate.state != State::Failed).take(REPLICATION)
    }

    /// The next peer to ask about the target, if one is to be asked now.
    pub fn next_to_ask(&mut self) -> Option<Peer> {
        if self.under_way >= CONCURRENCY || self.asked >= QUESTIONS_MAX {
            return None;
        }
        let distance = *self.closest_hopeful().find(|(_, candidate)| candidate.state == State::New)?.0;
        let candidate = self.candidates.get_mut(&distance)?;
        candidate.state = State::Asked;
        self.under_way += 1;
        self.asked += 1;
        Some(candidate.peer.clone())
    }

    /// A peer named peers that it thinks closer to the target.
    pub fn answered(&mut self, peer: &PeerId, closer: impl IntoIterator<Item = Peer>) {
        if self.settle(peer, State::Answered) {
            self.learn(closer);
        }
    }

    /// A peer cannot be reached, or did not answer in time.
    pub fn failed(&mut self, peer: &PeerId) {
        self.settle(peer, State::Failed);
    }

    fn settle(&mut self, peer: &PeerId, state: State) -> bool {
        let distance = Position::of_peer(peer).distance(&self.position);
        match self.candidates.get_mut(&distance) {
            Some(candidate) if candidate.state == State::Asked => {
                candidate.state = state;
                self.under_way -= 1;
                true
            }
            _ => false,
        }
    }

    /// Whether the closest peers have all answered, or nobody is left to ask.
    pub fn is_over(&self) -> bool {
        let spent = self.asked >= QUESTIONS_MAX && self.under_way == 0;
        spent || self.closest_hopeful().all(|(_, candidate)| candidate.state == State::Answered)
    }

    /// The closest that have answered, closest first; all others that did follow.
    pub fn answering(&self) -> impl Iterator<Item = &Peer> {
        let answered = self.candidates.values().filter(|candidate| candidate.state == State::Answered);
        answered.map(|candidate| &candidate.peer)
    }

    /// The closest that have not failed, whether they were asked or not, and how far they are.
    pub fn hopeful(&self) -> impl Iterator<Item = (Distance, &Peer)> {
        self.closest_hopeful().map(|(distance, candidate)| (*distance, &candidate.peer))
    }

    /// How many peers it has heard of.
    pub fn heard(&self) -> usize {
        self.candidates.len()
    }

    /// Peers that did not answer.
    pub fn failures(&self) -> impl Iterator<Item = &PeerId> {
        let failed = self.candidates.values().filter(|candidate| candidate.state == State::Failed);
        failed.map(|candidate| &candidate.peer.id)
    }

    /// What a walk that is over has covered: every peer below this prefix is among those that answered. It is never longer than
    /// what can be walked to, however close together peers say that they are.
    pub fn covered(&self) -> Prefix {
        match self.radius() {
            Some(radius) => Prefix::within(&self.position, &radius),
            None => Prefix::ALL,
        }
    }

    /// How many peers there are in all, judging by how close together those around the target are.
    pub fn estimate(&self) -> f64 {
        let answered = |radius: &Distance| {
            let within = self.candidates.range(..=*radius);
            within.filter(|(_, candidate)| candidate.state == State::Answered).count() as f64
        };
        match self.radius() {
            Some(radius) => answered(&radius) / radius.share().max(2_f64.powi(-i32::from(PREFIX_BITS_MAX))),
            None => self.answering().count() as f64,
        }
    }

    /// How far the last of the closest is: an answer has room for so many, and what lies beyond may have been left out of all
    /// of them. The dead take that room too, so a usual share of them counts. Further ones do not: anybody can name any number
    /// of peers that are not there, as close to the target as he likes, and would have us walk for ever in what he made up.
    fn radius(&self) -> Option<Distance> {
        let mut dead = 0;
        let mut counted = self.candidates.iter().filter(|(_, candidate)| {
            dead += usize::from(candidate.state != State::Answered);
            candidate.state == State::Answered || dead <= DEAD_MAX
        });
        counted.nth(REPLICATION - 1).map(|(distance, _)| *distance)
    }
}
