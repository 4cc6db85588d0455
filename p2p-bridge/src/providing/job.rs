//! The sweep of one region: learn its peers, then give each the keys that belong at it.
//!
//! All keys of a chunk for one peer go in one batch. A peer that fails is tried once more, and then left out of the rest of
//! the job. What was announced is accounted for chunk by chunk, so that a restart repeats no more than one.

use super::desk::{Action, Desk, Owner};
use super::keys::{Batch, Keys, Window};
use super::keyspace::{Position, Prefix};
use super::region::{Exploration, Progress, Region};
use super::walk::Peer;
use libp2p::PeerId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Keys that are shared out at a time, which takes some 10 ms. A place in a list has 4 bytes, and each key 20: 0.7 MB.
const CHUNK_KEYS: usize = 8_192;

/// What there is of peers before anybody was asked.
pub trait Table {
    /// The closest peers to a target in the routing table, closest first.
    fn closest(&mut self, target: &[u8]) -> Vec<Peer>;
    /// How many peers the network has, judging by how close our neighbours are; nothing while too few are known.
    fn estimate(&mut self) -> Option<f64>;
}

/// What became of a chunk, or of the job.
#[derive(Debug)]
pub enum Outcome {
    /// The region is known now.
    Explored(Region),
    /// These slots and these new keys were announced.
    Announced {
        /// The region.
        region: Prefix,
        /// The slots.
        slots: Vec<u16>,
        /// Keys announced on their own account.
        new: Vec<Vec<u8>>,
        /// How many keys there were.
        keys: usize,
    },
    /// Nobody could be reached, or too few. The job is over; these were not announced.
    Failed {
        /// Keys that still are to be announced.
        new: Vec<Vec<u8>>,
    },
    /// Everything was announced. The job is over.
    Finished,
}

#[derive(Debug)]
enum Stage {
    Exploring(Box<Exploration>),
    /// Explored; what is to be announced has not been said yet.
    Explored,
    Announcing(Region),
}

#[derive(Debug, Default)]
struct Chunk {
    slots: Vec<u16>,
    new: Vec<Vec<u8>>,
    keys: usize,
    /// Records that there should be.
    wanted: usize,
    /// Records that a peer took.
    placed: usize,
    waiting: VecDeque<(Peer, Batch)>,
    under_way: usize,
}

/// One region's sweep.
#[derive(Debug)]
pub struct Job {
    id: u64,
    stage: Stage,
    seeking: Option<Arc<[u8]>>,
    window: Arc<Window>,
    slots: VecDeque<u16>,
    new: Vec<Vec<u8>>,
    chunk: Option<Chunk>,
    /// Peers that failed so far, and how often.
    failures: HashMap<PeerId, u32>,
}

impl Job {
    /// A job whose region is still to be explored.
    pub fn exploring(id: u64, exploration: Exploration) -> Self {
        Self::at(id, Stage::Exploring(Box::new(exploration)))
    }

    /// A job whose region is known.
    pub fn announcing(id: u64) -> Self {
        Self::at(id, Stage::Explored)
    }

    fn at(id: u64, stage: Stage) -> Self {
        let (slots, new, failures) = (VecDeque::new(), Vec::new(), HashMap::new());
        Self { id, stage, seeking: None, window: Arc::default(), slots, new, chunk: None, failures }
    }

    /// What is to be announced in its region.
    pub fn assign(&mut self, region: Region, window: Arc<Window>, slots: VecDeque<u16>, new: Vec<Vec<u8>>) {
        self.stage = Stage::Announcing(region);
        (self.window, self.slots, self.new) = (window, slots, new);
    }

    /// A peer answered a question, or (with nothing) did not.
    pub fn answered(&mut self, peer: &PeerId, closer: Option<Vec<Peer>>) {
        let Stage::Exploring(exploration) = &mut self.stage else { return };
        match closer {
            Some(closer) => exploration.walk().answered(peer, closer),
            None => exploration.walk().failed(peer),
        }
    }

    /// A peer took a batch, or did not.
    pub fn announced(&mut self, peer: Peer, batch: Batch, taken: bool) {
        let Some(chunk) = &mut self.chunk else { return };
        chunk.under_way -= 1;
        if taken {
            chunk.placed += batch.len();
            return;
        }
        let failures = self.failures.entry(peer.id).or_default();
        *failures += 1;
        if *failures == 1 {
            chunk.waiting.push_back((peer, batch));
        }
    }

    /// Moves as far as possible without waiting.
    pub fn advance(&mut self, desk: &mut Desk, table: &mut dyn Table, ourselves: &Position) -> Option<Outcome> {
        if let Stage::Exploring(_) = self.stage {
            return self.explore(desk, table);
        }
        let Stage::Announcing(region) = &self.stage else { return None };
        let chunk = self.chunk.get_or_insert_with(|| {
            let mut chunk = Chunk::default();
            let keys = Arc::new(chunk.gather(&self.window, &mut self.slots, &mut self.new));
            chunk.share_out(region, &keys, ourselves, desk);
            chunk
        });
        while desk.has_room()
            && let Some((peer, batch)) = chunk.waiting.pop_front()
        {
            if self.failures.get(&peer.id).is_some_and(|failures| *failures > 1) {
                continue;
            }
            chunk.under_way += 1;
            desk.announce(Owner::Job(self.id), peer, batch);
        }
        if chunk.under_way > 0 || !chunk.waiting.is_empty() {
            return None;
        }
        let Chunk { slots, new, keys, wanted, placed, .. } = self.chunk.take()?;
        if placed * 2 < wanted {
            let unannounced = new.into_iter().chain(std::mem::take(&mut self.new)).collect();
            return Some(Outcome::Failed { new: unannounced });
        }
        if slots.is_empty() && new.is_empty() {
            return Some(Outcome::Finished);
        }
        Some(Outcome::Announced { region: region.prefix, slots, new, keys })
    }

    fn explore(&mut self, desk: &mut Desk, table: &mut dyn Table) -> Option<Outcome> {
        loop {
            let Stage::Exploring(exploration) = &mut self.stage else { return None };
            if let Some(target) = self.seeking.take() {
                let seeds = table.closest(&target);
                exploration.walk_to(target, seeds);
            }
            while desk.has_room()
                && let Some(peer) = exploration.walk().next_to_ask()
            {
                let target = exploration.walk().target();
                desk.ask(Owner::Job(self.id), peer, target);
            }
            match exploration.advance() {
                Progress::Walking => return None,
                Progress::Next(target) => self.seeking = Some(target),
                Progress::Alone => return Some(Outcome::Failed { new: Vec::new() }),
                Progress::Done(region) => {
                    self.stage = Stage::Explored;
                    return Some(Outcome::Explored(region));
                }
            }
        }
    }
}

impl Chunk {
    /// Takes new keys, and then slots, until there are enough.
    fn gather(&mut self, window: &Window, slots: &mut VecDeque<u16>, new: &mut Vec<Vec<u8>>) -> Keys {
        let mut keys = Keys::default();
        let mut seen = HashSet::new();
        while keys.len() < CHUNK_KEYS
            && let Some(key) = new.pop()
        {
            keys.push(&key);
            seen.insert(key.clone());
            self.new.push(key);
        }
        while keys.len() < CHUNK_KEYS
            && let Some(slot) = slots.pop_front()
        {
            self.slots.push(slot);
            let of_slot = window.keys(slot).into_iter().flat_map(Keys::iter);
            of_slot.filter(|(_, key)| !seen.contains(*key)).for_each(|(_, key)| keys.push(key));
        }
        self.keys = keys.len();
        keys
    }

    /// Gives each key to the peers that it belongs at.
    fn share_out(&mut self, region: &Region, keys: &Arc<Keys>, ourselves: &Position, desk: &mut Desk) {
        let mut places: Vec<Vec<u32>> = vec![Vec::new(); region.peers.len()];
        for (place, key) in keys.iter() {
            let (closest, ours) = region.closest(&Position::of(key), ourselves);
            self.wanted += closest.len();
            closest.into_iter().for_each(|index| places[index].push(place));
            if ours {
                desk.push(Action::Keep(key.to_vec()));
            }
        }
        let batches = region.peers.iter().zip(places).filter(|(_, places)| !places.is_empty());
        let batches = batches.map(|((_, peer), places)| (peer.clone(), Batch { keys: Arc::clone(keys), places }));
        self.waiting = batches.collect();
    }
}
