//! The planner: which keys are announced when, and to which peers.
//!
//! Goals: a walk serves all keys of a region, so that a million keys cost some thousand walks; all keys are announced
//! once per interval, evenly distributed ([`super::schedule`]); a new key is announced at once ([`super::single`]);
//! failures are retried, and a restart continues where the node stopped.
//!
//! A slot that is due becomes a job ([`super::job`]). The job explores the smallest region around the slot that has
//! enough peers ([`super::region`]), and then announces every slot of the region that becomes due meanwhile. Jobs start
//! far enough apart to be in different regions. In a network with fewer peers than a record needs, the region is the
//! whole key space: one walk, and all peers get all keys.
//!
//! A state machine without I/O or clock: it is passed the time in seconds since the Unix epoch and the results of its
//! [`Action`]s, and reads the routing table through [`Table`]. It sets no timeouts: the caller reports failed actions.

use super::desk::{Action, Owner, RequestId, RequestQueue};
use super::job::{Job, JobEvent, Table};
use super::keys::{KEY_BYTES_MAX, Window};
use super::keyspace::{Position, Prefix, REPLICATION, SLOTS};
use super::region::{Exploration, Region};
use super::schedule::Schedule;
use super::single::Single;
use super::walk::{ClosestPeersLookup, Peer};
use libp2p::PeerId;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Maximum concurrent jobs.
const JOBS_MAX: usize = 8;
/// Maximum concurrent walks for single new keys. If more keys are queued, their regions are swept.
const SINGLES_MAX: usize = 16;
/// Maximum queued new keys. Further keys make their slot due instead.
const NEW_KEYS_MAX: usize = 65_536;
/// How long an explored region is reused, in seconds.
const REGION_TTL: u64 = 600;
/// Maximum cached regions.
const REGIONS_MAX: usize = 64;
/// How long a window of keys is used, in seconds: a deleted key may be announced for as long.
const WINDOW_TTL: u64 = 900;
/// The back-off after a failure, in seconds; it doubles with every consecutive one.
const BACK_OFF_MIN: u64 = 10;
const BACK_OFF_MAX: u64 = 600;
/// The weight of a new estimate of the network size.
const ESTIMATE_WEIGHT: f64 = 0.2;

/// Counts since the last call of [`Sweep::take_counts`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Announced keys, counted once for all peers.
    pub keys: u64,
    /// Records that peers accepted.
    pub records: u64,
    /// Announcements that peers did not accept.
    pub failures: u64,
    /// Walks, of regions and of single keys.
    pub walks: u64,
}

/// The status of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    /// The number of keys to announce, as of the last read of the key source.
    pub keys: u64,
    /// New keys that are queued.
    pub waiting: usize,
    /// Slots that are not due.
    pub slots_done: usize,
    /// How long the most overdue slot has been due, in seconds.
    pub lag: u64,
    /// The duration of the last run that announced all due slots, in seconds.
    pub last_catch_up: u64,
}

/// The planner of one scope. See the module's documentation.
#[derive(Debug)]
pub struct Sweep {
    local_id: PeerId,
    position: Position,
    schedule: Schedule,
    has_source: bool,
    window: Option<(Arc<Window>, u64)>,
    loading: bool,
    cursor: u16,
    new: BTreeMap<Position, Vec<u8>>,
    jobs: BTreeMap<u64, Job>,
    singles: BTreeMap<u64, Single>,
    /// The job of each slot, if any.
    taken: Vec<Option<u64>>,
    /// The start slots of the jobs whose regions are not known yet.
    starts: HashMap<u64, u16>,
    regions: VecDeque<(Region, u64)>,
    requests: RequestQueue,
    next_id: u64,
    estimate: Option<f64>,
    failures: u32,
    back_off_until: u64,
    behind_since: Option<u64>,
    last_catch_up: u64,
    counts: Counts,
    changed: bool,
    /// Whether the node has peers and an address to announce.
    online: bool,
    /// When due slots were last searched, and whether to search again at once.
    planned: (u64, bool),
}

impl Sweep {
    /// A planner. Without a key source only new keys are announced, once.
    pub fn new(local_id: PeerId, schedule: Schedule, has_source: bool) -> Self {
        Self {
            local_id,
            position: Position::of_peer(&local_id),
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
            requests: RequestQueue::default(),
            next_id: 0,
            estimate: None,
            failures: 0,
            back_off_until: 0,
            behind_since: None,
            last_catch_up: 0,
            counts: Counts::default(),
            changed: false,
            online: false,
            planned: (0, true),
        }
    }

    /// Queues a key for announcement as soon as possible.
    pub fn provide(&mut self, key: &[u8], now: u64) {
        let position = Position::of(key);
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return;
        }
        if self.new.len() < NEW_KEYS_MAX || self.new.contains_key(&position) {
            self.new.insert(position, key.to_vec());
        } else if self.has_source {
            self.schedule.make_due(position.slot(), now);
            // The loaded window may lack it.
            self.window = None;
        }
        self.changed = true;
    }

    /// Removes a key that must no longer be announced.
    pub fn withdraw(&mut self, key: &[u8]) {
        self.new.remove(&Position::of(key));
        self.singles.retain(|_, single| single.key != key);
        if let Some((window, _)) = &mut self.window {
            Arc::make_mut(window).remove(key);
        }
    }

    /// Handles the keys that [`Action::Load`] requested.
    pub fn loaded(&mut self, window: Window, now: u64) {
        self.loading = false;
        self.planned.1 = true;
        self.window = Some((Arc::new(window), now));
    }

    /// Handles a FIND_NODE response, or with `None` its failure.
    pub fn answered(&mut self, id: RequestId, closer: Option<Vec<Peer>>) {
        let Some(request) = self.requests.take(id) else { return };
        match request.owner {
            Owner::Job(id) => self.jobs.get_mut(&id).map(|job| job.answered(&request.peer.id, closer)),
            Owner::Single(id) => self.singles.get_mut(&id).map(|single| single.answered(&request.peer.id, closer)),
        };
    }

    /// Handles the result of an announcement.
    pub fn announced(&mut self, id: RequestId, taken: bool) {
        let Some(request) = self.requests.take(id) else { return };
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

    /// Handles the failure of any request.
    pub fn failed(&mut self, id: RequestId) {
        if self.requests.is_find_node(id) { self.answered(id, None) } else { self.announced(id, false) }
    }

    /// Makes all progress that needs no response. Call it after every event, and every second. `online` says whether
    /// the node has peers and an address to announce.
    pub fn advance(&mut self, now: u64, online: bool, table: &mut dyn Table) {
        self.online = online;
        loop {
            let online = online && now >= self.back_off_until;
            if online {
                self.start_new(now, table);
            }
            // Requests end many times a second, and most of them do not end a job.
            if online && std::mem::replace(&mut self.planned, (now, false)) != (now, false) {
                self.start_due(now, table);
            }
            self.drive_jobs(now, table);
            self.drive_singles(now, table);
            if !online || !self.planned.1 {
                break;
            }
        }
        self.track_backlog(now);
    }

    /// The next action to execute.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.requests.pop()
    }

    /// The counts since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// The current status.
    pub fn status(&self, now: u64) -> Status {
        let (due, lag) =
            if self.has_source { (self.schedule.count_due(now), self.schedule.lag(now)) } else { Default::default() };
        // While the node is offline, nothing is late.
        let lag = if self.online { lag } else { 0 };
        Status {
            keys: self.window.as_ref().map_or(0, |(window, _)| window.total),
            waiting: self.new.len() + self.singles.len(),
            slots_done: usize::from(SLOTS) - due,
            lag,
            last_catch_up: self.last_catch_up,
        }
    }

    /// The schedule to save, if it changed since the last call.
    pub fn take_changes(&mut self) -> Option<Vec<u8>> {
        let unannounced = self.new.keys().map(Position::slot);
        let in_flight = self.singles.values().map(|single| Position::of(&single.key).slot());
        let image = self.changed.then(|| self.schedule.encode(unannounced.chain(in_flight)));
        self.changed = false;
        image
    }

    // --- starting -------------------------------------------------------------------------------------------------

    fn start_new(&mut self, now: u64, table: &mut dyn Table) {
        if self.new.len() + self.singles.len() <= SINGLES_MAX {
            while let Some((position, key)) = self.new.pop_first() {
                self.start_single(&position, key, now, table);
            }
            return;
        }
        let stride = self.stride();
        let is_apart = |slot: u16| self.starts.values().all(|start| start.abs_diff(slot) >= stride);
        let next = self.new.keys().map(Position::slot).find(|slot| is_apart(*slot));
        if let Some(slot) = next.filter(|_| self.jobs.len() < self.jobs_max()) {
            self.start_job(slot, now, table);
        }
    }

    fn start_single(&mut self, position: &Position, key: Vec<u8>, now: u64, table: &mut dyn Table) {
        let id = self.take_id();
        let single = match self.region(&Prefix::of_slot(position.slot()), now) {
            Some(region) => {
                let (closest, includes_local) = region.closest(position, &self.position);
                if includes_local {
                    self.requests.push(Action::Keep(key.clone()));
                }
                let closest = closest.into_iter().map(|index| region.peers[index].1.clone()).collect();
                Single::known(id, key, closest, &mut self.requests)
            }
            None => {
                let seeds = self.seeds(&key, table);
                let walk = ClosestPeersLookup::new(key.as_slice().into(), self.local_id, seeds);
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
        self.skip_empty_slots(now);
        while self.jobs.len() < self.jobs_max() {
            let window = self.window.as_ref().filter(|(_, read)| now < read + WINDOW_TTL).map(|(window, _)| window);
            let free = |slot: u16| !self.is_taken(slot);
            let Some(due) = self.schedule.next(self.cursor, now, free) else { return };
            let covered = |slot: u16| free(slot) && window.is_some_and(|window| window.covers(slot));
            let Some(slot) = self.schedule.next(self.cursor, now, covered) else {
                if !std::mem::replace(&mut self.loading, true) {
                    self.requests.push(Action::Load { first: due });
                }
                return;
            };
            self.cursor = (slot + self.stride()) % SLOTS;
            self.start_job(slot, now, table);
        }
    }

    /// Slots without keys need no announcement.
    fn skip_empty_slots(&mut self, now: u64) {
        let Some((window, read)) = &self.window else { return };
        if now >= read + WINDOW_TTL {
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
        let exploration = Exploration::new(prefix, target.into(), self.local_id, seeds);
        self.jobs.insert(id, Job::exploring(id, exploration));
    }

    /// Assigns the slots and new keys to a job whose region is known.
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

    /// Until the network size is known, only one job runs, which estimates it.
    fn jobs_max(&self) -> usize {
        if self.estimate.is_some() { JOBS_MAX } else { 1 }
    }

    /// The minimum distance between the start slots of jobs, so that each has its own region.
    fn stride(&self) -> u16 {
        let share = 2.0 * REPLICATION as f64 / self.estimate.unwrap_or(1.0).max(1.0);
        ((share.min(1.0) * f64::from(SLOTS)) as u16).clamp(1, SLOTS / JOBS_MAX as u16)
    }

    /// A recently explored region.
    fn region(&mut self, prefix: &Prefix, now: u64) -> Option<Region> {
        self.regions.retain(|(_, explored)| now < explored + REGION_TTL);
        self.regions.iter().map(|(region, _)| region).find(|region| region.prefix.covers(prefix)).cloned()
    }

    /// The seeds of a walk: the closest peers in the routing table and in the cached regions.
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

    // --- progress -------------------------------------------------------------------------------------------------

    fn drive_jobs(&mut self, now: u64, table: &mut dyn Table) {
        let mut ids: Vec<u64> = self.jobs.keys().copied().collect();
        while let Some(id) = ids.pop() {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let Some(outcome) = job.advance(&mut self.requests, table, &self.position) else { continue };
            match outcome {
                JobEvent::Explored(region) => {
                    self.counts.walks += u64::from(region.walks);
                    self.update_estimate(region.estimate);
                    self.regions.push_back((region.clone(), now));
                    while self.regions.len() > REGIONS_MAX {
                        self.regions.pop_front();
                    }
                    self.assign(id, region, now);
                }
                JobEvent::Announced { region, slots, new, keys } => self.succeeded(&region, &slots, &new, keys, now),
                JobEvent::Failed { new } => {
                    self.end_job(id);
                    // The peers of the cached regions may be gone.
                    self.regions.clear();
                    self.requeue(new);
                    self.back_off(now);
                    continue;
                }
                JobEvent::Finished => {
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
        tracing::debug!(slots = slots.len(), new = new.len(), keys, "announced the keys of a region");
        self.counts.keys += keys as u64;
        self.failures = 0;
        self.changed = true;
    }

    fn drive_singles(&mut self, now: u64, table: &mut dyn Table) {
        let ids: Vec<u64> = self.singles.keys().copied().collect();
        for id in ids {
            let Some(single) = self.singles.get_mut(&id) else { continue };
            single.advance(&mut self.requests, table, self.estimate);
            let Some((succeeded, stored)) = single.outcome() else { continue };
            let (estimate, radius) = (single.estimate(), single.radius());
            let Some(single) = self.singles.remove(&id) else { continue };
            if let Some(estimate) = estimate {
                self.update_estimate(estimate);
                let own = self.position.distance(&Position::of(&single.key));
                if radius.is_none_or(|radius| own < radius) {
                    self.requests.push(Action::Keep(single.key.clone()));
                }
            }
            tracing::debug!(stored, succeeded, "announced a new key");
            if succeeded {
                self.counts.keys += 1;
                self.failures = 0;
                self.changed = true;
            } else {
                self.requeue([single.key]);
                self.back_off(now);
            }
        }
    }

    fn requeue(&mut self, keys: impl IntoIterator<Item = Vec<u8>>) {
        self.new.extend(keys.into_iter().map(|key| (Position::of(&key), key)));
    }

    fn update_estimate(&mut self, estimate: f64) {
        let before = self.estimate.unwrap_or(estimate);
        self.estimate = Some(before + (estimate - before) * ESTIMATE_WEIGHT);
    }

    fn back_off(&mut self, now: u64) {
        let back_off = BACK_OFF_MIN << self.failures.min(16);
        self.back_off_until = now + back_off.min(BACK_OFF_MAX);
        self.failures = self.failures.saturating_add(1);
    }

    fn track_backlog(&mut self, now: u64) {
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
