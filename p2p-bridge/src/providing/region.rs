//! Learning every peer of a region of the key space, by as few walks as that takes.
//!
//! A walk that is over has heard of all peers within the distance of the last of its closest, and so of all below some
//! prefix ([`Walk::covered`]). Further walks go where the region is not covered yet. The region grows until it holds as many
//! peers as a record needs: the closest peers of every key below it are then known.

use super::keyspace::{Position, Prefix, REPLICATION};
use super::walk::{Peer, Walk};
use libp2p::PeerId;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Walks for one region. A slot holds that many times some ten peers only in a network of several million.
const WALKS_MAX: u32 = 64;

/// A region whose peers are known.
#[derive(Debug, Clone)]
pub struct Region {
    /// What was covered.
    pub prefix: Prefix,
    /// Every peer below it that answers, and some beyond.
    pub peers: Arc<Vec<(Position, Peer)>>,
    /// How many peers the whole network has, judging by this region.
    pub estimate: f64,
    /// Walks that it took.
    pub walks: u32,
}

/// What [`Exploration::advance`] found out.
#[derive(Debug)]
pub enum Progress {
    /// The walk under way goes on.
    Walking,
    /// A new walk begins: seeds for this target are wanted ([`Exploration::walk_to`]).
    Next(Arc<[u8]>),
    /// The region is known.
    Done(Region),
    /// Nobody answered.
    Alone,
}

/// A region that is being explored.
#[derive(Debug)]
pub struct Exploration {
    ourselves: PeerId,
    prefix: Prefix,
    covered: Vec<Prefix>,
    peers: BTreeMap<Position, Peer>,
    silent: HashSet<PeerId>,
    estimates: Vec<f64>,
    walk: Walk,
    walks: u32,
}

impl Exploration {
    /// Explores at least `prefix`, beginning at a key below it.
    pub fn new(prefix: Prefix, target: Arc<[u8]>, ourselves: PeerId, seeds: impl IntoIterator<Item = Peer>) -> Self {
        Self {
            ourselves,
            prefix,
            covered: Vec::new(),
            peers: BTreeMap::new(),
            silent: HashSet::new(),
            estimates: Vec::new(),
            walk: Walk::new(target, ourselves, seeds),
            walks: 1,
        }
    }

    /// The walk under way.
    pub fn walk(&mut self) -> &mut Walk {
        &mut self.walk
    }

    /// Goes on with another walk, as [`Progress::Next`] asked. What is known already is taken along.
    pub fn walk_to(&mut self, target: Arc<[u8]>, seeds: impl IntoIterator<Item = Peer>) {
        let silent = &self.silent;
        let known = self.peers.values().cloned().chain(seeds).filter(|peer| !silent.contains(&peer.id));
        self.walk = Walk::new(target, self.ourselves, known);
        self.walks += 1;
    }

    /// Takes stock. To be called whenever the walk has heard something.
    pub fn advance(&mut self) -> Progress {
        if !self.walk.is_over() {
            return Progress::Walking;
        }
        self.take_in();
        if self.peers.is_empty() {
            return Progress::Alone;
        }
        loop {
            let gap = self.prefix.first_uncovered(&self.covered).filter(|_| self.walks < WALKS_MAX);
            // Hardly ever is there none: then what lies below is too little to matter.
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

    fn take_in(&mut self) {
        let covered = self.walk.covered();
        self.covered.push(covered);
        // A region is never smaller than what one walk has covered.
        if covered.covers(&self.prefix) {
            self.prefix = covered;
        }
        self.estimates.push(self.walk.estimate());
        self.silent.extend(self.walk.failures().copied());
        for peer in self.walk.answering() {
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
    /// Which of its peers the record of a key belongs at, in no order, and whether we would be one of them ourselves.
    ///
    /// A million keys go through here: distances are compared by their first 64 bits, which no two peers share.
    pub fn closest(&self, position: &Position, ourselves: &Position) -> (Vec<usize>, bool) {
        let near = |(index, (at, _)): (usize, &(Position, Peer))| (at.distance(position).head(), index);
        let mut near: Vec<(u64, usize)> = self.peers.iter().enumerate().map(near).collect();
        let own = ourselves.distance(position).head();
        let mut ours = true;
        if near.len() >= REPLICATION {
            let (_, farthest, _) = near.select_nth_unstable(REPLICATION - 1);
            ours = own < farthest.0;
            near.truncate(REPLICATION);
        }
        (near.into_iter().map(|(_, index)| index).collect(), ours)
    }
}
