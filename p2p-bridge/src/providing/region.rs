//! Finding all peers of a region of the key space with as few walks as possible.
//!
//! A finished walk has discovered all peers within the distance of the farthest of its closest peers, and so all below
//! some prefix ([`ClosestPeersLookup::covered`]). Further walks target the parts of the region that are not covered
//! yet. The region grows until it has as many peers as a record needs: then the closest peers of every key below it are
//! known.

use super::keyspace::{Position, Prefix, REPLICATION};
use super::walk::{ClosestPeersLookup, Peer};
use libp2p::PeerId;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Maximum walks for one region. A slot has that many times ten peers only in a network of several million.
const WALKS_MAX: u32 = 64;

/// A region whose peers are known.
#[derive(Debug, Clone)]
pub struct Region {
    /// The prefix of the region.
    pub prefix: Prefix,
    /// All responding peers below it, and some beyond.
    pub peers: Arc<Vec<(Position, Peer)>>,
    /// The estimated number of peers in the network, based on this region.
    pub estimate: f64,
    /// The number of walks that it took.
    pub walks: u32,
}

/// The result of [`Exploration::advance`].
#[derive(Debug)]
pub enum Progress {
    /// The current walk continues.
    Walking,
    /// A new walk is needed: call [`Exploration::walk_to`] with seeds for this target.
    Next(Arc<[u8]>),
    /// The region is known.
    Done(Region),
    /// No peer responded.
    NoPeers,
}

/// A region that is being explored.
#[derive(Debug)]
pub struct Exploration {
    local_id: PeerId,
    prefix: Prefix,
    covered: Vec<Prefix>,
    peers: BTreeMap<Position, Peer>,
    failed: HashSet<PeerId>,
    estimates: Vec<f64>,
    walk: ClosestPeersLookup,
    walks: u32,
}

impl Exploration {
    /// Explores at least `prefix`, starting at a key below it.
    pub fn new(prefix: Prefix, target: Arc<[u8]>, local_id: PeerId, seeds: impl IntoIterator<Item = Peer>) -> Self {
        Self {
            local_id,
            prefix,
            covered: Vec::new(),
            peers: BTreeMap::new(),
            failed: HashSet::new(),
            estimates: Vec::new(),
            walk: ClosestPeersLookup::new(target, local_id, seeds),
            walks: 1,
        }
    }

    /// The current walk.
    pub fn walk(&mut self) -> &mut ClosestPeersLookup {
        &mut self.walk
    }

    /// Starts another walk, as [`Progress::Next`] requested. Known peers are added to the seeds.
    pub fn walk_to(&mut self, target: Arc<[u8]>, seeds: impl IntoIterator<Item = Peer>) {
        let failed = &self.failed;
        let known = self.peers.values().cloned().chain(seeds).filter(|peer| !failed.contains(&peer.id));
        self.walk = ClosestPeersLookup::new(target, self.local_id, known);
        self.walks += 1;
    }

    /// Updates the state. Call it after every change of the walk.
    pub fn advance(&mut self) -> Progress {
        if !self.walk.is_over() {
            return Progress::Walking;
        }
        self.absorb_walk();
        if self.peers.is_empty() {
            return Progress::NoPeers;
        }
        loop {
            let gap = self.prefix.first_uncovered(&self.covered).filter(|_| self.walks < WALKS_MAX);
            // There is almost always a key; otherwise the gap is negligibly small.
            if let Some(target) = gap.and_then(|gap| gap.key_below()) {
                return Progress::Next(target.into());
            }
            if let Some(gap) = gap {
                self.covered.push(gap);
                continue;
            }
            match self.prefix.parent() {
                Some(parent) if self.peers_below() < REPLICATION && self.walks < WALKS_MAX => self.prefix = parent,
                _ => return Progress::Done(self.region()),
            }
        }
    }

    fn absorb_walk(&mut self) {
        let covered = self.walk.covered();
        self.covered.push(covered);
        // A region is never smaller than what one walk has covered.
        if covered.covers(&self.prefix) {
            self.prefix = covered;
        }
        self.estimates.push(self.walk.estimate());
        self.failed.extend(self.walk.failures().copied());
        for peer in self.walk.responded() {
            self.peers.insert(Position::of_peer(&peer.id), peer.clone());
        }
    }

    fn peers_below(&self) -> usize {
        self.peers.keys().filter(|position| self.prefix.contains(position)).count()
    }

    fn region(&mut self) -> Region {
        let estimate = self.estimates.iter().sum::<f64>() / self.estimates.len().max(1) as f64;
        let peers = Arc::new(std::mem::take(&mut self.peers).into_iter().collect());
        Region { prefix: self.prefix, peers, estimate, walks: self.walks }
    }
}

impl Region {
    /// The indexes of the closest peers of a key, in no order, and whether the node itself would be among them.
    ///
    /// Called for up to a million keys: distances are compared by their first 64 bits, which no two peers share.
    pub fn closest(&self, position: &Position, local: &Position) -> (Vec<usize>, bool) {
        let near = |(index, (at, _)): (usize, &(Position, Peer))| (at.distance(position).head(), index);
        let mut near: Vec<(u64, usize)> = self.peers.iter().enumerate().map(near).collect();
        let own = local.distance(position).head();
        let mut includes_local = true;
        if near.len() >= REPLICATION {
            let (_, farthest, _) = near.select_nth_unstable(REPLICATION - 1);
            includes_local = own < farthest.0;
            near.truncate(REPLICATION);
        }
        (near.into_iter().map(|(_, index)| index).collect(), includes_local)
    }
}
