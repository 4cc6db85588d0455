//! An index and a storage in memory, which carry out requests when and as the test says.

use crate::blocks::{
    BlockIndex, BlockRow, Committed, EvictedObject, FinishedPin, Form, IndexFigures, IndexIdentity, Listed, LostBlock,
    ObjectId, PinAttempt, PinId, WrittenObject,
};
use bytes::Bytes;
use cache::{PinState, PinSummary, StoreError};
use content::{BlockKey, Cid};
use futures::channel::oneshot;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, BoxStream, StreamExt as _};
use objects::{ListedObject, ObjectError, Objects};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out and answered.
    Answered,
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is not carried out.
    Refused,
}

/// A request that was sent.
type Request = Box<dyn FnOnce(&mut State, Fate) + Send>;

/// The index and the storage of a site.
#[derive(Clone)]
pub struct Services(Arc<Mutex<World>>);

struct World {
    state: State,
    /// `None`: requests are carried out at once.
    requests: Option<Vec<Request>>,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Services")
    }
}

impl Services {
    /// Services that carry out requests at once.
    pub fn immediate() -> Self {
        Self(Arc::new(Mutex::new(World { state: State::default(), requests: None })))
    }

    /// Services that carry out requests with [`Self::carry_out`].
    pub fn deferred() -> Self {
        Self(Arc::new(Mutex::new(World { state: State::default(), requests: Some(Vec::new()) })))
    }

    /// Tells them from others.
    fn id(&self) -> u64 {
        Arc::as_ptr(&self.0).addr() as u64
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().expect("no test panics with it")
    }

    /// Looks at, or changes, the state, past the requests.
    pub fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.world().state)
    }

    /// The number of requests that were sent and not carried out.
    pub fn waiting(&self) -> usize {
        self.world().requests.as_ref().map_or(0, Vec::len)
    }

    /// Carries out the request at an index.
    pub fn carry_out(&self, index: usize, fate: Fate) {
        let world = &mut *self.world();
        let request = world.requests.as_mut().expect("are deferred").swap_remove(index);
        request(&mut world.state, fate);
    }

    /// Sends a request when it is first polled. It is carried out also if its sender does not wait for the answer any more.
    fn request<T: Send + 'static>(
        &self,
        effect: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, ()>> {
        let services = self.clone();
        async move {
            let (answer, answered) = oneshot::channel();
            let request = move |state: &mut State, fate| {
                let result = (fate != Fate::Refused).then(|| effect(state));
                // Its sender may have left.
                _ = answer.send(result.filter(|_| fate == Fate::Answered));
            };
            {
                let world = &mut *services.world();
                match &mut world.requests {
                    Some(requests) => requests.push(Box::new(request)),
                    None => request(&mut world.state, Fate::Answered),
                }
            }
            answered.await.ok().flatten().ok_or(())
        }
        .boxed()
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// `None`: lost.
    pub generation: Option<u64>,
    /// Whether a pin has it. Kept as the tables do, and not computed from the members.
    pub pinned: bool,
    bytes: u32,
    form: Form,
    used: u64,
}

#[derive(Debug, Clone)]
pub struct Pin {
    pub root: Cid,
    name: Option<String>,
    pub complete: bool,
    pub removed: bool,
    losses: u64,
    /// Whether it has lost blocks lately, which is until a test says otherwise.
    lost_lately: bool,
    blocks: u64,
    bytes: u64,
}

/// The tables, and the objects.
#[derive(Debug, Default)]
pub struct State {
    pub objects: BTreeMap<String, Bytes>,
    pub blocks: BTreeMap<BlockKey, Row>,
    /// By their generations: the block, and whether it is marked. An age would only delay collection, and is not
    /// simulated, except that a long one collects nothing.
    pub pending: BTreeMap<u64, (BlockKey, bool)>,
    pub pins: BTreeMap<PinId, Pin>,
    pub members: BTreeSet<(PinId, BlockKey)>,
    is_marked: bool,
    ticks: u64,
}

impl State {
    fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    fn is_alive(&self, pin: PinId) -> bool {
        self.pins.get(&pin).is_some_and(|pin| !pin.removed)
    }

    fn object(&self, key: &BlockKey) -> Option<ObjectId> {
        let generation = self.blocks.get(key)?.generation?;
        Some(ObjectId { key: *key, generation })
    }

    fn add_member(&mut self, id: PinId, key: BlockKey) {
        let row = self.blocks.get_mut(&key).expect("has a row");
        row.pinned = true;
        let block_bytes = row.form.block_bytes;
        if self.members.insert((id, key)) {
            let pin = self.pins.get_mut(&id).expect("is alive");
            pin.blocks += 1;
            pin.bytes += u64::from(block_bytes);
        }
    }

    fn commit(&mut self, written: Vec<WrittenObject>, pin: Option<PinId>) -> Committed {
        if pin.is_some_and(|pin| !self.is_alive(pin)) {
            return Committed::PinRemoved;
        }
        let mut objects = Vec::new();
        for WrittenObject { object: ObjectId { key, generation }, bytes, shape } in written {
            if self.pending.get(&generation) != Some(&(key, false)) {
                continue;
            }
            let used = self.tick();
            let form = Form::of(shape);
            let new = Row { generation: None, pinned: false, bytes, form, used };
            let row = self.blocks.entry(key).or_insert(new);
            if row.generation.is_none() {
                (row.generation, row.bytes, row.form) = (Some(generation), bytes, form);
                self.pending.remove(&generation);
            }
            let current = row.generation.unwrap_or(generation);
            if let Some(pin) = pin {
                self.add_member(pin, key);
            }
            objects.push(ObjectId { key, generation: current });
        }
        Committed::Blocks(objects)
    }

    fn add_members(&mut self, keys: &[BlockKey], pin: PinId) -> Committed {
        if !self.is_alive(pin) {
            return Committed::PinRemoved;
        }
        let held: Vec<ObjectId> = keys.iter().filter_map(|key| self.object(key)).collect();
        held.iter().for_each(|object| self.add_member(pin, object.key));
        Committed::Blocks(held)
    }

    fn lose(&mut self, object: ObjectId) -> Option<Vec<Cid>> {
        let row = self.blocks.get_mut(&object.key).filter(|row| row.generation == Some(object.generation))?;
        row.generation = None;
        if !row.pinned {
            self.blocks.remove(&object.key);
        }
        self.pending.insert(object.generation, (object.key, true));
        let having = |id: &PinId| self.members.contains(&(*id, object.key));
        let pins = self.pins.iter_mut().filter(|(id, pin)| !pin.removed && having(id));
        let lost = |(_, pin): (&PinId, &mut Pin)| {
            pin.losses += 1;
            pin.lost_lately = true;
            pin.complete = false;
            pin.root
        };
        Some(pins.map(lost).collect())
    }

    fn evict(&mut self, cached_bytes_max: u64, max: usize) -> Vec<EvictedObject> {
        let mut excess = self.figures().cached_bytes.saturating_sub(cached_bytes_max);
        let mut cached: Vec<_> = self.blocks.iter().filter(|(_, row)| !row.pinned).collect();
        cached.sort_by_key(|(_, row)| row.used);
        let is_too_much = |(_, row): &(&BlockKey, &Row)| {
            let before = excess;
            excess = excess.saturating_sub(row.bytes.into());
            before > 0
        };
        let keys: Vec<BlockKey> = cached.into_iter().take(max).take_while(is_too_much).map(|(key, _)| *key).collect();
        self.evict_blocks(&keys)
    }

    fn evict_blocks(&mut self, keys: &[BlockKey]) -> Vec<EvictedObject> {
        let keys: BTreeSet<&BlockKey> = keys.iter().collect();
        let unpinned = keys.into_iter().filter_map(|key| {
            let row = self.blocks.get(key).filter(|row| !row.pinned)?;
            let generation = row.generation.expect("only pinned blocks are lost and have a row");
            Some(EvictedObject { object: ObjectId { key: *key, generation }, bytes: row.bytes })
        });
        let evicted: Vec<EvictedObject> = unpinned.collect();
        for EvictedObject { object, .. } in &evicted {
            self.blocks.remove(&object.key);
            self.pending.insert(object.generation, (object.key, true));
        }
        evicted
    }

    fn sweep(&mut self, max: usize) -> Vec<ObjectId> {
        let due = self.pending.iter_mut().take(max);
        due.map(|(generation, (key, is_marked))| {
            *is_marked = true;
            ObjectId { key: *key, generation: *generation }
        })
        .collect()
    }

    fn orphans(&self, objects: Vec<ObjectId>) -> Vec<ObjectId> {
        let is_known = |object: &ObjectId| {
            self.object(&object.key) == Some(*object) || self.pending.contains_key(&object.generation)
        };
        objects.into_iter().filter(|object| !is_known(object)).collect()
    }

    fn register_orphans(&mut self, objects: Vec<ObjectId>) -> Vec<ObjectId> {
        let orphans = self.orphans(objects);
        self.pending.extend(orphans.iter().map(|object| (object.generation, (object.key, true))));
        orphans
    }

    fn begin_pin(&mut self, root: Cid, name: Option<String>) -> PinAttempt {
        let existing = self.pins.iter_mut().find(|(_, pin)| pin.root == root && !pin.removed);
        let (id, losses) = match existing {
            Some((id, pin)) => {
                pin.name = name.or(pin.name.take());
                (*id, pin.losses)
            }
            None => {
                // Also above all removed ones.
                let id = self.tick() << 8;
                let pin = Pin {
                    root,
                    name,
                    complete: false,
                    removed: false,
                    losses: 0,
                    lost_lately: false,
                    blocks: 0,
                    bytes: 0,
                };
                self.pins.insert(id, pin);
                (id, 0)
            }
        };
        PinAttempt { id, root, losses }
    }

    fn finish_pin(&mut self, attempt: PinAttempt) -> FinishedPin {
        let is_member = |key| self.members.contains(&(attempt.id, key));
        let has_root = BlockKey::of(&attempt.root).is_none_or(is_member);
        match self.pins.get_mut(&attempt.id) {
            None => FinishedPin::Removed,
            Some(pin) if pin.removed => FinishedPin::Removed,
            Some(pin) if pin.losses != attempt.losses => FinishedPin::Lost,
            Some(_) if !has_root => FinishedPin::RootMissing,
            Some(pin) => {
                pin.complete = true;
                FinishedPin::Complete(Box::new(summary(attempt.id, pin)))
            }
        }
    }

    fn remove_pin(&mut self, root: &Cid, id: Option<u64>) -> bool {
        let is_that =
            |(found, pin): &(&u64, &mut Pin)| pin.root == *root && !pin.removed && id.is_none_or(|id| id == **found);
        self.pins.iter_mut().find(is_that).map(|(_, pin)| pin.removed = true).is_some()
    }

    fn release_members(&mut self, max: usize) -> bool {
        let Some(id) = self.pins.iter().find(|(_, pin)| pin.removed).map(|(id, _)| *id) else { return false };
        let released: Vec<_> = self.members.iter().filter(|(pin, _)| *pin == id).take(max).copied().collect();
        for member in &released {
            self.members.remove(member);
            let key = member.1;
            if self.members.iter().any(|(_, other)| *other == key) {
                continue;
            }
            let used = self.tick();
            let row = self.blocks.get_mut(&key).expect("a member has a row");
            (row.pinned, row.used) = (false, used);
            if row.generation.is_none() {
                self.blocks.remove(&key);
            }
        }
        if released.is_empty() {
            self.pins.remove(&id);
        }
        true
    }

    fn figures(&self) -> IndexFigures {
        let mut figures = IndexFigures { pending_objects: self.pending.len() as u64, ..IndexFigures::default() };
        for pin in self.pins.values().filter(|pin| !pin.removed) {
            *if pin.complete { &mut figures.pins } else { &mut figures.partial_pins } += 1;
        }
        for row in self.blocks.values().filter(|row| row.generation.is_some()) {
            let (blocks, bytes) = match row.pinned {
                true => (&mut figures.pinned_blocks, &mut figures.pinned_bytes),
                false => (&mut figures.cached_blocks, &mut figures.cached_bytes),
            };
            *blocks += 1;
            *bytes += u64::from(row.bytes);
            figures.pinned_block_bytes += if row.pinned { u64::from(row.form.block_bytes) } else { 0 };
        }
        figures
    }
}

fn summary(id: PinId, pin: &Pin) -> PinSummary {
    let state = if pin.complete { PinState::Complete } else { PinState::Partial };
    let Pin { root, blocks, bytes, .. } = *pin;
    PinSummary { root, id, name: pin.name.clone(), created: UNIX_EPOCH, state, blocks, bytes, packed: None }
}

/// The index of simulated services.
#[derive(Debug, Clone)]
pub struct SimulatedIndex(pub Services);

impl SimulatedIndex {
    fn ask<T: Send + 'static>(
        &self,
        effect: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let answer = self.0.request(effect);
        async move { answer.await.map_err(|()| StoreError::Unavailable { reason: "simulated".into() }) }.boxed()
    }
}

fn at_most(count: u32) -> usize {
    usize::try_from(count).expect("fits")
}

impl BlockIndex for SimulatedIndex {
    fn register(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ask(move |state| {
            state.pending.extend(objects.iter().map(|object| (object.generation, (object.key, false))));
        })
    }

    fn commit(&self, written: Vec<WrittenObject>, pin: Option<PinId>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        self.ask(move |state| state.commit(written, pin))
    }

    fn add_members(&self, keys: Vec<BlockKey>, pin: PinId) -> BoxFuture<'_, Result<Committed, StoreError>> {
        self.ask(move |state| state.add_members(&keys, pin))
    }

    fn locate(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<BlockRow>, StoreError>> {
        self.ask(move |state| {
            let keys: BTreeSet<_> = keys.iter().collect();
            let row = |key| {
                let Row { bytes, form, .. } = *state.blocks.get(key)?;
                Some(BlockRow { object: state.object(key)?, bytes, shape: form.shape(key, bytes) })
            };
            keys.into_iter().filter_map(row).collect()
        })
    }

    fn mark_used(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ask(move |state| {
            for key in keys {
                let used = state.tick();
                if let Some(row) = state.blocks.get_mut(&key) {
                    row.used = used;
                }
            }
        })
    }

    fn lose(&self, object: ObjectId) -> BoxFuture<'_, Result<Option<Vec<Cid>>, StoreError>> {
        self.ask(move |state| state.lose(object))
    }

    fn pinned(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<BlockKey>, StoreError>> {
        self.ask(move |state| {
            let keys: BTreeSet<_> = keys.into_iter().collect();
            keys.into_iter().filter(|key| state.blocks.get(key).is_some_and(|row| row.pinned)).collect()
        })
    }

    fn lost(
        &self,
        root: Cid,
        after: Option<BlockKey>,
        blocks_max: u32,
    ) -> BoxFuture<'_, Result<Vec<LostBlock>, StoreError>> {
        self.ask(move |state| {
            let pin = state.pins.iter().find(|(_, pin)| pin.root == root && !pin.removed);
            let Some((id, _)) = pin else { return Vec::new() };
            let following = |key: &BlockKey| after.is_none_or(|after| key.to_bytes() > after.to_bytes());
            let lost = state.members.iter().filter(|(pin, key)| pin == id && following(key)).filter_map(|(_, key)| {
                let row = state.blocks.get(key).filter(|row| row.generation.is_none())?;
                Some(LostBlock { key: *key, block_bytes: row.form.block_bytes })
            });
            let mut lost: Vec<LostBlock> = lost.collect();
            lost.sort_by_key(|lost| lost.key.to_bytes());
            lost.truncate(at_most(blocks_max));
            lost
        })
    }

    fn pins_with_losses(&self, within: Duration) -> BoxFuture<'_, Result<Vec<Cid>, StoreError>> {
        self.ask(move |state| {
            let pins = state.pins.values().filter(|pin| !pin.removed && pin.lost_lately && !within.is_zero());
            pins.map(|pin| pin.root).collect()
        })
    }

    fn evict(&self, cached_bytes_max: u64, blocks_max: u32) -> BoxFuture<'_, Result<Vec<EvictedObject>, StoreError>> {
        self.ask(move |state| state.evict(cached_bytes_max, at_most(blocks_max)))
    }

    fn evict_blocks(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<EvictedObject>, StoreError>> {
        self.ask(move |state| state.evict_blocks(&keys))
    }

    fn sweep(&self, age: Duration, objects_max: u32) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>> {
        self.ask(move |state| if age.is_zero() { state.sweep(at_most(objects_max)) } else { Vec::new() })
    }

    fn remove_pending(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ask(move |state| objects.iter().for_each(|object| _ = state.pending.remove(&object.generation)))
    }

    fn register_orphans(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>> {
        self.ask(move |state| state.register_orphans(objects))
    }

    fn orphans(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>> {
        self.ask(move |state| state.orphans(objects))
    }

    fn objects_of_slot(
        &self,
        slot: u8,
        which: Listed,
        after: Option<BlockKey>,
        objects_max: u32,
    ) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>> {
        self.ask(move |state| {
            let is_listed = |(_, row): &(&BlockKey, &Row)| which == Listed::Stored || row.pinned;
            let objects = state.blocks.iter().filter(is_listed).map(|(key, _)| key).filter_map(|key| state.object(key));
            let following = |object: &ObjectId| {
                object.slot() == slot && after.is_none_or(|after| object.key.to_bytes() > after.to_bytes())
            };
            let mut objects: Vec<ObjectId> = objects.filter(following).collect();
            objects.sort_by_key(|object| object.key.to_bytes());
            objects.truncate(at_most(objects_max));
            objects
        })
    }

    fn begin_pin(&self, root: Cid, name: Option<String>) -> BoxFuture<'_, Result<PinAttempt, StoreError>> {
        self.ask(move |state| state.begin_pin(root, name))
    }

    fn finish_pin(&self, attempt: PinAttempt) -> BoxFuture<'_, Result<FinishedPin, StoreError>> {
        self.ask(move |state| state.finish_pin(attempt))
    }

    fn remove_pin(&self, root: Cid, id: Option<u64>) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.ask(move |state| state.remove_pin(&root, id))
    }

    fn release_members(&self, members_max: u32) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.ask(move |state| state.release_members(at_most(members_max)))
    }

    fn pin(&self, root: Cid) -> BoxFuture<'_, Result<Option<PinSummary>, StoreError>> {
        self.ask(move |state| {
            let pin = state.pins.iter().find(|(_, pin)| pin.root == root && !pin.removed);
            pin.map(|(id, pin)| summary(*id, pin))
        })
    }

    fn current_pin(&self, root: Cid) -> BoxFuture<'_, Result<Option<PinSummary>, StoreError>> {
        self.ask(move |state| {
            let pin = state.pins.iter().find(|(_, pin)| pin.root == root && !pin.removed);
            pin.map(|(id, pin)| summary(*id, pin))
        })
    }

    fn pins(&self, after: Option<PinId>, pins_max: u32) -> BoxFuture<'_, Result<Vec<PinSummary>, StoreError>> {
        self.ask(move |state| {
            let pins = state.pins.iter().filter(|(id, pin)| !pin.removed && after.is_none_or(|after| **id > after));
            pins.map(|(id, pin)| summary(*id, pin)).take(at_most(pins_max)).collect()
        })
    }

    fn identity(&self) -> BoxFuture<'_, Result<IndexIdentity, StoreError>> {
        let id = self.0.id();
        self.ask(move |state| IndexIdentity { id, is_marked: state.is_marked })
    }

    fn set_marked(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ask(|state| state.is_marked = true)
    }

    fn figures(&self) -> BoxFuture<'_, Result<IndexFigures, StoreError>> {
        self.ask(|state| state.figures())
    }
}

/// The storage of simulated services.
#[derive(Debug, Clone)]
pub struct SimulatedObjects(pub Services);

impl SimulatedObjects {
    fn ask<T: Send + 'static>(
        &self,
        effect: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, ObjectError>> {
        let answer = self.0.request(effect);
        async move { answer.await.map_err(|()| ObjectError::Unavailable { reason: "simulated".into() }) }.boxed()
    }
}

impl Objects for SimulatedObjects {
    fn put<'a>(&'a self, name: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), ObjectError>> {
        let name = name.to_owned();
        self.ask(move |state| _ = state.objects.insert(name, data))
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, ObjectError>> {
        let name = name.to_owned();
        self.ask(move |state| state.objects.get(&name).cloned())
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), ObjectError>> {
        let name = name.to_owned();
        self.ask(move |state| _ = state.objects.remove(&name))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListedObject, ObjectError>> {
        let prefix = prefix.to_owned();
        let listing = self.ask(move |state| {
            let names = state.objects.iter().filter(|(name, _)| name.starts_with(&prefix));
            let listed = names.map(|(name, data)| ListedObject { name: name.clone(), bytes: data.len() as u64 });
            listed.collect::<Vec<_>>()
        });
        stream::once(listing)
            .flat_map(|listed| match listed {
                Ok(listed) => stream::iter(listed).map(Ok).boxed(),
                Err(error) => stream::once(async { Err(error) }).boxed(),
            })
            .boxed()
    }
}
