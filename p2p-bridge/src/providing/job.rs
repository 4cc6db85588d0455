//! The sweep of one region: find its peers, then send each the keys that it is among the closest for.
//!
//! All keys of a chunk for one peer go in one batch. A failed peer is retried once, and then excluded from the rest of
//! the job. Progress is recorded per chunk, so that a restart repeats at most one.

use super::desk::{Action, Owner, RequestQueue};
use super::keys::{Batch, Keys, Window};
use super::keyspace::{Position, Prefix};
use super::region::{Exploration, Progress, Region};
use super::walk::Peer;
use libp2p::PeerId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Keys per chunk, which takes some 10 ms of CPU. An offset has 4 bytes, and each key has 20 of them: 0.7 MB.
const CHUNK_KEYS: usize = 8_192;

/// The routing table.
pub trait Table {
    /// The closest peers to a target in the routing table, closest first.
    fn closest(&mut self, target: &[u8]) -> Vec<Peer>;
    /// The estimated number of peers in the network, based on the density around the node; `None` while too few are
    /// known.
    fn estimate(&mut self) -> Option<f64>;
}

/// The result of a step of a job.
#[derive(Debug)]
pub enum JobEvent {
    /// The region is explored.
    Explored(Region),
    /// Slots and new keys were announced.
    Announced {
        /// The region.
        region: Prefix,
        /// The slots.
        slots: Vec<u16>,
        /// New keys that were announced.
        new: Vec<Vec<u8>>,
        /// The total number of keys.
        keys: usize,
    },
    /// No peer could be reached, or too few. The job is over.
    Failed {
        /// New keys that were not announced.
        new: Vec<Vec<u8>>,
    },
    /// Everything was announced. The job is over.
    Finished,
}

#[derive(Debug)]
enum Stage {
    Exploring(Box<Exploration>),
    /// Explored, but without keys yet.
    Explored,
    Announcing(Region),
}

#[derive(Debug, Default)]
struct Chunk {
    slots: Vec<u16>,
    new: Vec<Vec<u8>>,
    keys: usize,
    /// Records to send.
    wanted: usize,
    /// Records that peers accepted.
    stored: usize,
    waiting: VecDeque<(Peer, Batch)>,
    in_flight: usize,
}

/// The sweep of one region.
#[derive(Debug)]
pub struct Job {
    id: u64,
    stage: Stage,
    next_target: Option<Arc<[u8]>>,
    window: Arc<Window>,
    slots: VecDeque<u16>,
    new: Vec<Vec<u8>>,
    chunk: Option<Chunk>,
    /// Failures of peers in this job.
    failures: HashMap<PeerId, u32>,
}

impl Job {
    /// A job whose region must be explored.
    pub fn exploring(id: u64, exploration: Exploration) -> Self {
        Self::at(id, Stage::Exploring(Box::new(exploration)))
    }

    /// A job whose region is known.
    pub fn announcing(id: u64) -> Self {
        Self::at(id, Stage::Explored)
    }

    fn at(id: u64, stage: Stage) -> Self {
        let (slots, new, failures) = (VecDeque::new(), Vec::new(), HashMap::new());
        Self { id, stage, next_target: None, window: Arc::default(), slots, new, chunk: None, failures }
    }

    /// Sets the region and the keys to announce.
    pub fn assign(&mut self, region: Region, window: Arc<Window>, slots: VecDeque<u16>, new: Vec<Vec<u8>>) {
        self.stage = Stage::Announcing(region);
        (self.window, self.slots, self.new) = (window, slots, new);
    }

    /// Handles a FIND_NODE response, or with `None` its failure.
    pub fn answered(&mut self, peer: &PeerId, closer: Option<Vec<Peer>>) {
        let Stage::Exploring(exploration) = &mut self.stage else { return };
        match closer {
            Some(closer) => exploration.walk().answered(peer, closer),
            None => exploration.walk().failed(peer),
        }
    }

    /// Handles the result of an announcement.
    pub fn announced(&mut self, peer: Peer, batch: Batch, taken: bool) {
        let Some(chunk) = &mut self.chunk else { return };
        chunk.in_flight -= 1;
        if taken {
            chunk.stored += batch.len();
            return;
        }
        let failures = self.failures.entry(peer.id).or_default();
        *failures += 1;
        if *failures == 1 {
            chunk.waiting.push_back((peer, batch));
        }
    }

    /// Makes all progress that needs no response.
    pub fn advance(
        &mut self,
        requests: &mut RequestQueue,
        table: &mut dyn Table,
        local: &Position,
    ) -> Option<JobEvent> {
        if let Stage::Exploring(_) = self.stage {
            return self.explore(requests, table);
        }
        let Stage::Announcing(region) = &self.stage else { return None };
        let chunk = self.chunk.get_or_insert_with(|| {
            let mut chunk = Chunk::default();
            let keys = Arc::new(chunk.fill(&self.window, &mut self.slots, &mut self.new));
            chunk.assign_keys(region, &keys, local, requests);
            chunk
        });
        while requests.has_capacity()
            && let Some((peer, batch)) = chunk.waiting.pop_front()
        {
            if self.failures.get(&peer.id).is_some_and(|failures| *failures > 1) {
                continue;
            }
            chunk.in_flight += 1;
            requests.announce(Owner::Job(self.id), peer, batch);
        }
        if chunk.in_flight > 0 || !chunk.waiting.is_empty() {
            return None;
        }
        let Chunk { slots, new, keys, wanted, stored, .. } = self.chunk.take()?;
        if stored * 2 < wanted {
            let unannounced = new.into_iter().chain(std::mem::take(&mut self.new)).collect();
            return Some(JobEvent::Failed { new: unannounced });
        }
        if slots.is_empty() && new.is_empty() {
            return Some(JobEvent::Finished);
        }
        Some(JobEvent::Announced { region: region.prefix, slots, new, keys })
    }

    fn explore(&mut self, requests: &mut RequestQueue, table: &mut dyn Table) -> Option<JobEvent> {
        loop {
            let Stage::Exploring(exploration) = &mut self.stage else { return None };
            if let Some(target) = self.next_target.take() {
                let seeds = table.closest(&target);
                exploration.walk_to(target, seeds);
            }
            while requests.has_capacity()
                && let Some(peer) = exploration.walk().next_to_ask()
            {
                let target = exploration.walk().target();
                requests.ask(Owner::Job(self.id), peer, target);
            }
            match exploration.advance() {
                Progress::Walking => return None,
                Progress::Next(target) => self.next_target = Some(target),
                Progress::NoPeers => return Some(JobEvent::Failed { new: Vec::new() }),
                Progress::Done(region) => {
                    self.stage = Stage::Explored;
                    return Some(JobEvent::Explored(region));
                }
            }
        }
    }
}

impl Chunk {
    /// Takes new keys, and then slots, until the chunk is full.
    fn fill(&mut self, window: &Window, slots: &mut VecDeque<u16>, new: &mut Vec<Vec<u8>>) -> Keys {
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

    /// Assigns each key to its closest peers.
    fn assign_keys(&mut self, region: &Region, keys: &Arc<Keys>, local: &Position, requests: &mut RequestQueue) {
        let mut offsets: Vec<Vec<u32>> = vec![Vec::new(); region.peers.len()];
        for (offset, key) in keys.iter() {
            let (closest, includes_local) = region.closest(&Position::of(key), local);
            self.wanted += closest.len();
            closest.into_iter().for_each(|index| offsets[index].push(offset));
            if includes_local {
                requests.push(Action::Keep(key.to_vec()));
            }
        }
        let batches = region.peers.iter().zip(offsets).filter(|(_, offsets)| !offsets.is_empty());
        let batches = batches.map(|((_, peer), offsets)| (peer.clone(), Batch { keys: Arc::clone(keys), offsets }));
        self.waiting = batches.collect();
    }
}
