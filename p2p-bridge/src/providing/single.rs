//! The first announcement of one key, with the lowest latency.
//!
//! Announcements start during the walk: a peer that is almost certainly among the closest, given the estimated network
//! size, gets the record as soon as it is discovered. The others get it when the walk is over.

use super::desk::{Owner, RequestQueue};
use super::job::Table;
use super::keys::Batch;
use super::keyspace::{Distance, REPLICATION};
use super::walk::{ClosestPeersLookup, Peer};
use libp2p::PeerId;
use std::collections::HashMap;

/// With n peers in the network, a peer that is closer than this over n is among the 20 closest with a probability of 90
/// %: the number of peers that are closer still is Poisson distributed.
const CLOSEST_SHARE: f64 = 14.5;
/// The maximum size of a small network, in peers.
const SMALL_NETWORK: f64 = 1.5 * REPLICATION as f64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordState {
    Pending,
    Stored,
    Failed,
}

/// The announcement of one key.
#[derive(Debug)]
pub struct Single {
    id: u64,
    /// The key.
    pub key: Vec<u8>,
    /// The walk; `None` if the closest peers were known.
    walk: Option<ClosestPeersLookup>,
    records: HashMap<PeerId, RecordState>,
    /// The number of peers that should get the record; known when the walk is over.
    wanted: Option<usize>,
}

impl Single {
    /// A key whose closest peers must be found.
    pub fn walking(id: u64, key: Vec<u8>, walk: ClosestPeersLookup) -> Self {
        Self { id, key, walk: Some(walk), records: HashMap::new(), wanted: None }
    }

    /// A key whose closest peers are known.
    pub fn known(id: u64, key: Vec<u8>, closest: Vec<Peer>, requests: &mut RequestQueue) -> Self {
        let mut single = Self { id, key, walk: None, records: HashMap::new(), wanted: Some(closest.len()) };
        closest.into_iter().for_each(|peer| single.announce(peer, requests));
        single
    }

    fn announce(&mut self, peer: Peer, requests: &mut RequestQueue) {
        if self.records.insert(peer.id, RecordState::Pending).is_none() {
            requests.announce(Owner::Single(self.id), peer, Batch::single(&self.key));
        }
    }

    /// Handles a FIND_NODE response, or with `None` its failure.
    pub fn answered(&mut self, peer: &PeerId, closer: Option<Vec<Peer>>) {
        match (&mut self.walk, closer) {
            (Some(walk), Some(closer)) => walk.answered(peer, closer),
            (Some(walk), None) => walk.failed(peer),
            (None, _) => {}
        }
    }

    /// Handles the result of an announcement.
    pub fn announced(&mut self, peer: &PeerId, taken: bool) {
        self.records.insert(*peer, if taken { RecordState::Stored } else { RecordState::Failed });
    }

    /// Makes all progress that needs no response. `estimate` is the estimated number of peers in the network.
    pub fn advance(&mut self, requests: &mut RequestQueue, table: &mut dyn Table, estimate: Option<f64>) {
        let Some(walk) = &mut self.walk else { return };
        if self.wanted.is_some() {
            return;
        }
        while let Some(peer) = walk.next_to_ask() {
            let target = walk.target();
            requests.ask(Owner::Single(self.id), peer, target);
        }
        let has_record = |peer: &Peer| self.records.contains_key(&peer.id);
        let mut now: Vec<Peer> = Vec::new();
        if walk.is_over() {
            self.wanted = Some(walk.responded().take(REPLICATION).count());
            now.extend(walk.responded().take(REPLICATION).filter(|peer| !has_record(peer)).cloned());
        } else {
            let estimate = estimate.or_else(|| table.estimate());
            let discovered = walk.discovered();
            let sure = walk
                .not_failed()
                .filter(|(distance, peer)| is_surely_closest(distance, estimate, discovered) && !has_record(peer));
            let room = REPLICATION.saturating_sub(self.records.len());
            now.extend(sure.map(|(_, peer)| peer.clone()).take(room));
        }
        now.into_iter().for_each(|peer| self.announce(peer, requests));
    }

    /// The result, once complete: whether at least half of the records were accepted, and how many.
    pub fn outcome(&self) -> Option<(bool, usize)> {
        let wanted = self.wanted?;
        let count = |state| self.records.values().filter(|known| **known == state).count();
        let stored = count(RecordState::Stored);
        (count(RecordState::Pending) == 0).then_some((stored > 0 && stored * 2 >= wanted, stored))
    }

    /// The estimated number of peers in the network, if a walk is over.
    pub fn estimate(&self) -> Option<f64> {
        let walk = self.walk.as_ref().filter(|walk| walk.is_over())?;
        (walk.responded().next().is_some()).then(|| walk.estimate())
    }

    /// The distance of the farthest of the closest peers, if the walk found enough for a record.
    pub fn radius(&self) -> Option<Distance> {
        let walk = self.walk.as_ref().filter(|walk| walk.is_over())?;
        let last = walk.responded().nth(REPLICATION - 1)?;
        Some(super::keyspace::Position::of_peer(&last.id).distance(&walk.position()))
    }
}

fn is_surely_closest(distance: &Distance, estimate: Option<f64>, discovered: usize) -> bool {
    match estimate {
        // In a small network the remaining peers are good enough, and they get the record as well.
        Some(peers) => peers <= SMALL_NETWORK || distance.share() * peers < CLOSEST_SHARE,
        // The walk has not discovered more, so these may be all peers.
        None => discovered < REPLICATION,
    }
}
