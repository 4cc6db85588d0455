//! The first announcement of one key, as fast as it can be had.
//!
//! Announcements go out while the walk goes on: a peer that is surely among the closest, by what is known of the network's
//! size, is told as soon as it is heard of. The rest follows when the walk has ended.

use super::desk::{Desk, Owner};
use super::job::Table;
use super::keys::Batch;
use super::keyspace::{Distance, REPLICATION};
use super::walk::{Peer, Walk};
use libp2p::PeerId;
use std::collections::HashMap;

/// With n peers, one that is closer than this over n is among the 20 closest with a probability of nine in ten: the number of
/// peers that are closer still is Poisson distributed.
const SURE: f64 = 14.5;
/// A network of so many peers is small.
const SMALL: f64 = 1.5 * REPLICATION as f64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    UnderWay,
    Placed,
    Failed,
}

/// One key on its way.
#[derive(Debug)]
pub struct Single {
    id: u64,
    /// The key.
    pub key: Vec<u8>,
    /// The walk; none if the closest were known.
    walk: Option<Walk>,
    told: HashMap<PeerId, Told>,
    /// How many should have it; known when the walk has ended.
    wanted: Option<usize>,
}

impl Single {
    /// A key whose closest peers are still to be found.
    pub fn walking(id: u64, key: Vec<u8>, walk: Walk) -> Self {
        Self { id, key, walk: Some(walk), told: HashMap::new(), wanted: None }
    }

    /// A key whose closest peers are known.
    pub fn known(id: u64, key: Vec<u8>, closest: Vec<Peer>, desk: &mut Desk) -> Self {
        let mut single = Self { id, key, walk: None, told: HashMap::new(), wanted: Some(closest.len()) };
        closest.into_iter().for_each(|peer| single.tell(peer, desk));
        single
    }

    fn tell(&mut self, peer: Peer, desk: &mut Desk) {
        if self.told.insert(peer.id, Told::UnderWay).is_none() {
            desk.announce(Owner::Single(self.id), peer, Batch::single(&self.key));
        }
    }

    /// A peer answered a question, or (with nothing) did not.
    pub fn answered(&mut self, peer: &PeerId, closer: Option<Vec<Peer>>) {
        match (&mut self.walk, closer) {
            (Some(walk), Some(closer)) => walk.answered(peer, closer),
            (Some(walk), None) => walk.failed(peer),
            (None, _) => {}
        }
    }

    /// A peer took the record, or did not.
    pub fn announced(&mut self, peer: &PeerId, taken: bool) {
        self.told.insert(*peer, if taken { Told::Placed } else { Told::Failed });
    }

    /// Moves as far as possible without waiting. `estimate` is how many peers there are.
    pub fn advance(&mut self, desk: &mut Desk, table: &mut dyn Table, estimate: Option<f64>) {
        let Some(walk) = &mut self.walk else { return };
        if self.wanted.is_some() {
            return;
        }
        while let Some(peer) = walk.next_to_ask() {
            let target = walk.target();
            desk.ask(Owner::Single(self.id), peer, target);
        }
        let told = |peer: &Peer| self.told.contains_key(&peer.id);
        let mut now: Vec<Peer> = Vec::new();
        if walk.is_over() {
            self.wanted = Some(walk.answering().take(REPLICATION).count());
            now.extend(walk.answering().take(REPLICATION).filter(|peer| !told(peer)).cloned());
        } else {
            let estimate = estimate.or_else(|| table.estimate());
            let heard = walk.heard();
            let sure = walk.hopeful().filter(|(distance, peer)| is_sure(distance, estimate, heard) && !told(peer));
            let room = REPLICATION.saturating_sub(self.told.len());
            now.extend(sure.map(|(_, peer)| peer.clone()).take(room));
        }
        now.into_iter().for_each(|peer| self.tell(peer, desk));
    }

    /// How it ended, when it has: whether at least half of the records that there should be were taken, and by how many.
    pub fn outcome(&self) -> Option<(bool, usize)> {
        let wanted = self.wanted?;
        let count = |state| self.told.values().filter(|told| **told == state).count();
        let placed = count(Told::Placed);
        (count(Told::UnderWay) == 0).then_some((placed > 0 && placed * 2 >= wanted, placed))
    }

    /// How many peers there are, if the walk has found out.
    pub fn estimate(&self) -> Option<f64> {
        let walk = self.walk.as_ref().filter(|walk| walk.is_over())?;
        (walk.answering().next().is_some()).then(|| walk.estimate())
    }

    /// How far the last of the closest is, when they are known and as many as a record needs.
    pub fn radius(&self) -> Option<Distance> {
        let walk = self.walk.as_ref().filter(|walk| walk.is_over())?;
        let last = walk.answering().nth(REPLICATION - 1)?;
        Some(super::keyspace::Position::of_peer(&last.id).distance(&walk.position()))
    }
}

fn is_sure(distance: &Distance, estimate: Option<f64>, heard: usize) -> bool {
    match estimate {
        // In a small network one of the rest is as good as the 20 that are known, and they are told as well.
        Some(peers) => peers <= SMALL || distance.share() * peers < SURE,
        // Nobody knows of more than these, so they may well be all.
        None => heard < REPLICATION,
    }
}
