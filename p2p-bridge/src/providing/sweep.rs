//! The planner: which keys are announced when, and to whom.
//!
//! Goals: a walk serves all keys of a region, so that a million keys cost some thousand walks; everything is announced
//! once in an interval, evenly over it ([`super::schedule`]); a new key is announced at once ([`super::single`]); what
//! failed is tried again, and a restart goes on.
//!
//! How it works: a slot that is due becomes a job ([`super::job`]). The job explores the smallest region around the slot that
//! has enough peers ([`super::region`]), and then announces every slot of it whose turn comes in that stretch of the ring.
//! Jobs begin far enough apart to be in regions of their own. In a network of fewer peers than a record needs, the region is
//! the whole key space: one walk, and everything goes to everybody.
//!
//! A state machine without I/O or clock: it is handed the time in seconds since the Unix epoch, is told what became of the
//! [`Action`]s that it asked for, and reads the routing table through [`Table`]. It sets no time-outs: whoever carries out
//! an action reports its failure.

use super::desk::{Action, Desk, Owner, RequestId};
use super::job::{Job, Outcome, Table};
use super::keys::{KEY_BYTES_MAX, Window};
use super::keyspace::{Position, Prefix, REPLICATION, SLOTS};
use super::region::{Exploration, Region};
use super::schedule::Schedule;
use super::single::Single;
use super::walk::{Peer, Walk};
use libp2p::PeerId;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Regions that are swept at once.
const JOBS_MAX: usize = 8;
/// New keys that are walked for one by one, at once. When more are waiting, they are swept.
const SINGLES_MAX: usize = 16;
/// New keys that may wait. Further ones wait for the sweep of their slot, which then is due at once.
const NEW_KEYS_MAX: usize = 65_536;
/// For how long the peers of a region count as known, in seconds.
const REGION_FRESH: u64 = 600;
/// Regions that are remembered.
const REGIONS_MAX: usize = 64;
/// For how long a window of keys is used, in seconds: a key that is no longer held may be announced for as long.
const WINDOW_FRESH: u64 = 900;
/// How long to wait after a failure, in seconds; doubles with every further one.
const REST_MIN: u64 = 10;
const REST_MAX: u64 = 600;
/// The weight of a new estimate of the network's size.
const ESTIMATE_WEIGHT: f64 = 0.2;

/// What happened since [`Sweep::take_counts`] was called last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys announced, each once however many peers took it.
    pub keys: u64,
    /// Records that a peer took.
    pub records: u64,
    /// Announcements that a peer did not take.
    pub failures: u64,
    /// Walks, of regions and of single keys.
    pub walks: u64,
}

/// How far a sweep is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    /// Keys that there were to announce when they were read last.
    pub keys: u64,
    /// New keys that wait.
    pub waiting: usize,
    /// Slots that are not due.
    pub slots_done: usize,
    /// For how long the longest waiting slot has been due, in seconds.
    pub lag: u64,
    /// How long it took the last time to announce everything that was due, in seconds.
    pub last_catch_up: u64,
}

/// The planner of one scope. See the module's documentation.
#[derive(Debug)]
pub struct Sweep {
    ourselves: PeerId,
    position: Position,
    schedule: Schedule,
    has_source: bool,
    window: Option<(Arc<Window>, u64)>,
    loading: bool,
    cursor: u16,
    new: BTreeMap<Position, Vec<u8>>,
    jobs: BTreeMap<u64, Job>,
    singles: BTreeMap<u64, Single>,
    /// Which job each slot is for, if any.
    taken: Vec<Option<u64>>,
    /// Where the jobs began whose regions are not known yet.
    starts: HashMap<u64, u16>,
    regions: VecDeque<(Region, u64)>,
    desk: Desk,
    next_id: u64,
    estimate: Option<f64>,
    failures: u32,
    resting_until: u64,
    behind_since: Option<u64>,
    last_catch_up: u64,
    counts: Counts,
    changed: bool,
    /// Whether there is anybody to hear us.
    open: bool,
    /// When it was last looked for what is due, and whether that is to be done again at once.
    planned: (u64, bool),
}

impl Sweep {
    /// A planner. Without a source of keys there is nothing to come back to, and only new keys are announced.
    pub fn new(ourselves: PeerId, schedule: Schedule, has_source: bool) -> Self {
        Self {
            ourselves,
            position: Position::of_peer(&ourselves),
            schedule,
            has_source,
            window: None,
            loading: false,
            cursor: 0,
            new: BTreeMap::new(),
            jobs: BTreeMap::new(),
            singles: BTreeMap::new(),
            taken: vec![None; usize::from(SLOTS)],
            starts: HashMap::new(),
            regions: VecDeque::new(),
            desk: Desk::default(),
            next_id: 0,
            estimate: None,
            failures: 0,
            resting_until: 0,
            behind_since: None,
            last_catch_up: 0,
            counts: Counts::default(),
            changed: false,
            open: false,
            planned: (0, true),
        }
    }

    /// A key to announce as soon as possible.
    pub fn provide(&mut self, key: &[u8], now: u64) {
        let position = Position::of(key);
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return;
        }
        if self.new.len() < NEW_KEYS_MAX || self.new.contains_key(&position) {
            self.new.insert(position, key.to_vec());
        } else if self.has_source {
            self.schedule.hurry(position.slot(), now);
            // What was read before may lack it.
            self.window = None;
        }
        self.changed = true;
    }

    /// A key that is no longer to be announced.
    pub fn withdraw(&mut self, key: &[u8]) {
        self.new.remove(&Position::of(key));
        self.singles.retain(|_, single| single.key != key);
        if let Some((window, _)) = &mut self.window {
            Arc::make_mut(window).remove(key);
        }
    }

    /// The keys that [`Action::Load`] asked for.
    pub fn loaded(&mut self, window: Window, now: u64) {
        self.loading = false;
        self.planned.1 = true;
        self.window = Some((Arc::new(window), now));
    }

    /// A peer answered a question, or (with nothing) did not.
    pub fn answered(&mut self, id: RequestId, closer: Option<Vec<Peer>>) {
        let Some(request) = self.desk.take(id) else { return };
        match request.owner {
            Owner::Job(id) => self.jobs.get_mut(&id).map(|job| job.answered(&request.peer.id, closer)),
            Owner::Single(id) => self.singles.get_mut(&id).map(|single| single.answered(&request.peer.id, closer)),
        };
    }

    /// A peer took the keys that it was told of, or did not.
    pub fn announced(&mut self, id: RequestId, taken: bool) {
        let Some(request) = self.desk.take(id) else { return };
        let Some(batch) = request.batch else { return };
        match taken {
            true => self.counts.records += batch.len() as u64,
            false => self.counts.failures += 1,
        }
        match request.owner {
            Owner::Job(id) => self.jobs.get_mut(&id).map(|job| job.announced(request.peer, batch, taken)),
            Owner::Single(id) => self.singles.get_mut(&id).map(|single| single.announced(&request.peer.id, taken)),
        };
    }

    /// A peer could not be asked or told.
    pub fn failed(&mut self, id: RequestId) {
        if self.desk.is_question(id) { self.answered(id, None) } else { self.announced(id, false) }
    }

    /// Moves as far as possible without waiting. To be called when something happened, and every second. `open` says whether
    /// there is anybody to hear us, and an address to name.
    pub fn advance(&mut self, now: u64, open: bool, table: &mut dyn Table) {
        self.open = open;
        loop {
            let open = open && now >= self.resting_until;
            if open {
                self.start_new(now, table);
            }
            // Something ends many times a second, and most of that makes no room.
            if open && std::mem::replace(&mut self.planned, (now, false)) != (now, false) {
                self.start_due(now, table);
            }
            self.drive_jobs(now, table);
            self.drive_singles(now, table);
            if !open || !self.planned.1 {
                break;
            }
        }
        self.watch(now);
    }

    /// The next thing to be done for it.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.desk.pop()
    }

    /// What happened since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// How far it is.
    pub fn status(&self, now: u64) -> Status {
        let (due, lag) =
            if self.has_source { (self.schedule.count_due(now), self.schedule.lag(now)) } else { Default::default() };
        // Nobody is late for an empty room.
        let lag = if self.open { lag } else { 0 };
        Status {
            keys: self.window.as_ref().map_or(0, |(window, _)| window.total),
            waiting: self.new.len() + self.singles.len(),
            slots_done: usize::from(SLOTS) - due,
            lag,
            last_catch_up: self.last_catch_up,
        }
    }

    /// The schedule to write, if it changed since the last call.
    pub fn take_changes(&mut self) -> Option<Vec<u8>> {
        let unannounced = self.new.keys().map(Position::slot);
        let under_way = self.singles.values().map(|single| Position::of(&single.key).slot());
        let image = self.changed.then(|| self.schedule.encode(unannounced.chain(under_way)));
        self.changed = false;
        image
    }

    // --- starting -----------------------------------------------------------------------------------------------------

    fn start_new(&mut self, now: u64, table: &mut dyn Table) {
        if self.new.len() + self.singles.len() <= SINGLES_MAX {
            while let Some((position, key)) = self.new.pop_first() {
                self.start_single(&position, key, now, table);
            }
            return;
        }
        let stride = self.stride();
        let alone = |slot: u16| self.starts.values().all(|start| start.abs_diff(slot) >= stride);
        let next = self.new.keys().map(Position::slot).find(|slot| alone(*slot));
        if let Some(slot) = next.filter(|_| self.jobs.len() < self.jobs_max()) {
            self.start_job(slot, now, table);
        }
    }

    fn start_single(&mut self, position: &Position, key: Vec<u8>, now: u64, table: &mut dyn Table) {
        let id = self.take_id();
        let single = match self.region(&Prefix::of_slot(position.slot()), now) {
            Some(region) => {
                let (closest, ours) = region.closest(position, &self.position);
                if ours {
                    self.desk.push(Action::Keep(key.clone()));
                }
                let closest = closest.into_iter().map(|index| region.peers[index].1.clone()).collect();
                Single::known(id, key, closest, &mut self.desk)
            }
            None => {
                let seeds = self.seeds(&key, table);
                let walk = Walk::new(key.as_slice().into(), self.ourselves, seeds);
                self.counts.walks += 1;
                Single::walking(id, key, walk)
            }
        };
        self.singles.insert(id, single);
    }

    fn start_due(&mut self, now: u64, table: &mut dyn Table) {
        if !self.has_source {
            return;
        }
        self.skip_empty(now);
        while self.jobs.len() < self.jobs_max() {
            let window = self.window.as_ref().filter(|(_, read)| now < read + WINDOW_FRESH).map(|(window, _)| window);
            let free = |slot: u16| !self.is_taken(slot);
            let Some(due) = self.schedule.next(self.cursor, now, free) else { return };
            let covered = |slot: u16| free(slot) && window.is_some_and(|window| window.covers(slot));
            let Some(slot) = self.schedule.next(self.cursor, now, covered) else {
                if !std::mem::replace(&mut self.loading, true) {
                    self.desk.push(Action::Load { first: due });
                }
                return;
            };
            self.cursor = (slot + self.stride()) % SLOTS;
            self.start_job(slot, now, table);
        }
    }

    /// Slots without keys need nobody's help.
    fn skip_empty(&mut self, now: u64) {
        let Some((window, read)) = &self.window else { return };
        if now >= read + WINDOW_FRESH {
            return;
        }
        let empty =
            |slot: &u16| window.covers(*slot) && window.keys(*slot).is_none() && self.schedule.is_due(*slot, now);
        let empty: Vec<u16> = (0..SLOTS).filter(empty).collect();
        for slot in empty {
            self.schedule.done(slot, &Prefix::of_slot(slot), now);
            self.changed = true;
        }
    }

    fn start_job(&mut self, slot: u16, now: u64, table: &mut dyn Table) {
        let id = self.take_id();
        self.starts.insert(id, slot);
        self.taken[usize::from(slot)].get_or_insert(id);
        let prefix = Prefix::of_slot(slot);
        if let Some(region) = self.region(&prefix, now) {
            self.jobs.insert(id, Job::announcing(id));
            self.assign(id, region, now);
            return;
        }
        let Some(target) = prefix.key_below() else { return self.end_job(id) };
        let seeds = self.seeds(&target, table);
        let exploration = Exploration::new(prefix, target.into(), self.ourselves, seeds);
        self.jobs.insert(id, Job::exploring(id, exploration));
    }

    /// What a job announces, now that its region is known.
    fn assign(&mut self, id: u64, region: Region, now: u64) {
        self.starts.remove(&id);
        let window = self.window.as_ref().map(|(window, _)| Arc::clone(window)).unwrap_or_default();
        let joins = |slot: &u16| {
            let taken = self.taken[usize::from(*slot)].is_some_and(|job| job != id);
            window.covers(*slot) && !taken && self.schedule.may_join(*slot, &region.prefix, now)
        };
        let slots: VecDeque<u16> = region.prefix.slots().filter(joins).collect();
        let below: Vec<Position> =
            self.new.keys().filter(|position| region.prefix.contains(position)).copied().collect();
        let new = below.iter().filter_map(|position| self.new.remove(position)).collect();
        slots.iter().for_each(|slot| self.taken[usize::from(*slot)] = Some(id));
        if let Some(job) = self.jobs.get_mut(&id) {
            job.assign(region, window, slots, new);
        }
    }

    fn is_taken(&self, slot: u16) -> bool {
        self.taken[usize::from(slot)].is_some()
    }

    /// Until the network's size is known, one job finds it out.
    fn jobs_max(&self) -> usize {
        if self.estimate.is_some() { JOBS_MAX } else { 1 }
    }

    /// How far jobs begin from each other, so that each has a region of its own.
    fn stride(&self) -> u16 {
        let share = 2.0 * REPLICATION as f64 / self.estimate.unwrap_or(1.0).max(1.0);
        ((share.min(1.0) * f64::from(SLOTS)) as u16).clamp(1, SLOTS / JOBS_MAX as u16)
    }

    /// A region that was explored a short while ago.
    fn region(&mut self, prefix: &Prefix, now: u64) -> Option<Region> {
        self.regions.retain(|(_, explored)| now < explored + REGION_FRESH);
        self.regions.iter().map(|(region, _)| region).find(|region| region.prefix.covers(prefix)).cloned()
    }

    /// Peers to begin a walk with: the closest in the routing table and in the regions next to the target.
    fn seeds(&self, target: &[u8], table: &mut dyn Table) -> Vec<Peer> {
        let position = Position::of(target);
        let mut known: Vec<_> = self.regions.iter().flat_map(|(region, _)| region.peers.iter()).collect();
        known.sort_unstable_by_key(|(at, _)| at.distance(&position));
        let known = known.into_iter().take(REPLICATION).map(|(_, peer)| peer.clone());
        table.closest(target).into_iter().take(REPLICATION).chain(known).collect()
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    // --- going on -----------------------------------------------------------------------------------------------------

    fn drive_jobs(&mut self, now: u64, table: &mut dyn Table) {
        let mut ids: Vec<u64> = self.jobs.keys().copied().collect();
        while let Some(id) = ids.pop() {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let Some(outcome) = job.advance(&mut self.desk, table, &self.position) else { continue };
            match outcome {
                Outcome::Explored(region) => {
                    self.counts.walks += u64::from(region.walks);
                    self.observe(region.estimate);
                    self.regions.push_back((region.clone(), now));
                    while self.regions.len() > REGIONS_MAX {
                        self.regions.pop_front();
                    }
                    self.assign(id, region, now);
                }
                Outcome::Announced { region, slots, new, keys } => self.succeeded(&region, &slots, &new, keys, now),
                Outcome::Failed { new } => {
                    self.end_job(id);
                    // Its peers may be gone.
                    self.regions.clear();
                    self.put_back(new);
                    self.rest(now);
                    continue;
                }
                Outcome::Finished => {
                    self.end_job(id);
                    continue;
                }
            }
            ids.push(id);
        }
    }

    fn end_job(&mut self, id: u64) {
        self.jobs.remove(&id);
        self.starts.remove(&id);
        self.taken.iter_mut().filter(|taken| **taken == Some(id)).for_each(|taken| *taken = None);
        self.planned.1 = true;
    }

    fn succeeded(&mut self, region: &Prefix, slots: &[u16], new: &[Vec<u8>], keys: usize, now: u64) {
        slots.iter().for_each(|slot| self.schedule.done(*slot, region, now));
        tracing::debug!(slots = slots.len(), new = new.len(), keys, "announced");
        self.counts.keys += keys as u64;
        self.failures = 0;
        self.changed = true;
    }

    fn drive_singles(&mut self, now: u64, table: &mut dyn Table) {
        let ids: Vec<u64> = self.singles.keys().copied().collect();
        for id in ids {
            let Some(single) = self.singles.get_mut(&id) else { continue };
            single.advance(&mut self.desk, table, self.estimate);
            let Some((succeeded, placed)) = single.outcome() else { continue };
            let (estimate, radius) = (single.estimate(), single.radius());
            let Some(single) = self.singles.remove(&id) else { continue };
            if let Some(estimate) = estimate {
                self.observe(estimate);
                let own = self.position.distance(&Position::of(&single.key));
                if radius.is_none_or(|radius| own < radius) {
                    self.desk.push(Action::Keep(single.key.clone()));
                }
            }
            tracing::debug!(placed, succeeded, "a key was announced");
            if succeeded {
                self.counts.keys += 1;
                self.failures = 0;
                self.changed = true;
            } else {
                self.put_back([single.key]);
                self.rest(now);
            }
        }
    }

    fn put_back(&mut self, keys: impl IntoIterator<Item = Vec<u8>>) {
        self.new.extend(keys.into_iter().map(|key| (Position::of(&key), key)));
    }

    fn observe(&mut self, estimate: f64) {
        let before = self.estimate.unwrap_or(estimate);
        self.estimate = Some(before + (estimate - before) * ESTIMATE_WEIGHT);
    }

    fn rest(&mut self, now: u64) {
        let rest = REST_MIN << self.failures.min(16);
        self.resting_until = now + rest.min(REST_MAX);
        self.failures = self.failures.saturating_add(1);
    }

    fn watch(&mut self, now: u64) {
        if !self.has_source {
            return;
        }
        match (self.schedule.count_due(now), self.behind_since) {
            (0, Some(since)) => {
                self.last_catch_up = now.saturating_sub(since);
                self.behind_since = None;
            }
            (1.., None) => self.behind_since = Some(now),
            _ => {}
        }
    }
}
