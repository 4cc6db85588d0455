//! The one thread that changes the store.
//!
//! Writes are taken as they came, and those that wait are written together; the ledger knows of a value when it is there, and
//! lets go of one before it is deleted. Between commands the thread evicts what is over budget and lets go of the members of
//! removed pins, a chunk at a time, so that nothing holds up what is waiting for long.
//!
//! A cached value that cannot be written is dropped and counted; the attempt whose member it is gets the error.

use super::backing::{Backing, NewValue};
use super::{Limits, Shared, scrub};
use crate::disk::StoreError;
use crate::ledger::{Held, Key};
use crate::pins::{Attempt, Begun, MemberFailure, Losses, PinError, PinId, PinRecord, PinState, PinSummary};
use crate::queue::{COMMAND_BYTES, PROBE_EVERY, Reply, Room, Wait, next_command};
use crate::store::{Evict, Evicted, Trouble};
use crate::stored::Encoder;
use content::{Block, BlockKey, Cid};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use tokio::sync::Semaphore;
use tracing::{debug, error, info, warn};

/// What is written together at most, in bytes,
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// and in writes.
const BATCH_WRITES_MAX: usize = 256;

/// The most blocks that one chunk of eviction or release looks at: twice what a batch brings, since as much may be spared as
/// goes.
const CHUNK_BLOCKS: usize = 2 * BATCH_WRITES_MAX;

pub(super) enum Command {
    Write(Write),
    /// Forget a block whose value could not be read.
    Forget {
        key: BlockKey,
        room: Room,
    },
    /// Forget blocks that somebody wants gone.
    Evict {
        keys: Vec<BlockKey>,
        which: Evict,
        reply: Reply<Result<Evicted, StoreError>>,
    },
    /// Remove some of the oldest cached blocks, and say whether more are to go.
    Shrink {
        cached_bytes: u64,
        reply: Reply<Result<bool, StoreError>>,
    },
    /// Begin a pin, or go on with the one that this root has.
    Begin {
        root: Cid,
        name: Option<String>,
        reply: Reply<Result<Begun, StoreError>>,
    },
    /// Begin a temporary pin. It stands in the ledger alone, so that nothing is left of it when the process ends.
    BeginTemporary {
        reply: Reply<Result<Begun, StoreError>>,
    },
    /// Mark a pin complete, if all of its members were written.
    Finish {
        attempt: Arc<Attempt>,
        reply: Reply<Result<PinSummary, PinError>>,
    },
    /// Take a pin away; its members are let go later.
    Remove {
        root: Cid,
        reply: Reply<Result<bool, StoreError>>,
    },
    /// Let go of a temporary pin.
    Release {
        pin: PinId,
    },
    /// Answer when everything before can be read.
    Written {
        reply: Reply<()>,
    },
    /// Answer when everything before is done.
    Flush {
        reply: Reply<Result<(), StoreError>>,
    },
    /// Sync, and stop.
    Close {
        reply: Reply<Result<(), StoreError>>,
    },
}

/// Keep a block: as a member of a pin if there is an attempt, else while there is room.
pub(super) struct Write {
    pub(super) block: Block,
    pub(super) attempt: Option<Arc<Attempt>>,
    pub(super) room: Room,
}

/// Whether the thread goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

pub(super) struct Writer<B: Backing> {
    shared: Arc<Shared<B>>,
    limits: Limits,
    encoder: Encoder,
    /// Taken from the queue, but not to be written with what came before.
    waiting: Option<Command>,
    /// What cached blocks are to take at most, in bytes.
    target_bytes: u64,
    /// Whoever waits for everything to be done.
    flushes: Vec<Reply<Result<(), StoreError>>>,
    /// Why writes are refused, if they are: said once, not for every batch.
    failing: Option<Trouble>,
    /// What was said to a sync that was refused. What had not been written then may be lost although a later sync succeeds,
    /// so nothing is acknowledged until the store is opened again.
    unsyncable: Option<StoreError>,
    /// Pins of which it is not known whether they are written, since they could not be removed.
    doubted: HashSet<PinId>,
    /// What pins lost since the store was opened.
    losses: Losses,
    room: Arc<Semaphore>,
}

/// Writes that are dealt with together.
#[derive(Default)]
struct Batch {
    values: Vec<NewValue>,
    /// Which of these is whose.
    by_key: HashMap<Key, usize>,
    writes: Vec<Staged>,
    bytes: usize,
    /// By how much what is pinned grows.
    pinned_bytes: u64,
    /// The roots of pins that may have a block back by it.
    returned: Vec<Cid>,
}

/// A write that waits for its value.
struct Staged {
    key: Key,
    /// The value, unless it is there already.
    value: Option<usize>,
    block_bytes: u64,
    attempt: Option<Arc<Attempt>>,
    _room: Room,
}

impl<B: Backing> Drop for Writer<B> {
    /// However the thread ends, nobody must wait for room that will never come.
    fn drop(&mut self) {
        self.room.close();
    }
}

impl<B: Backing> Writer<B> {
    pub(super) fn new(shared: Arc<Shared<B>>, limits: Limits, room: Arc<Semaphore>) -> Result<Self, StoreError> {
        let encoder = Encoder::new(limits.zstd).map_err(StoreError::io)?;
        let target_bytes = limits.cache_bytes_max;
        let losses = Losses::new(Arc::clone(&shared.changes), shared.ledger().has_partial_pins());
        let writer = Self {
            shared,
            limits,
            encoder,
            waiting: None,
            target_bytes,
            flushes: Vec::new(),
            failing: None,
            unsyncable: None,
            doubted: HashSet::new(),
            losses,
            room,
        };
        writer.publish();
        Ok(writer)
    }

    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        self.aim();
        while let Some(next) = self.next(commands) {
            match next {
                Some(command) => {
                    if self.handle(command, commands) == Next::Stop {
                        return;
                    }
                    self.aim();
                    self.evict_chunk();
                }
                None => self.tidy(),
            }
            self.publish();
            self.answer_flushes();
        }
        if let Err(error) = self.sync() {
            error!(%error, "the disk refused to sync when the store was closed");
        }
    }

    /// The next command: first one that was taken already, then as [`next_command`] has it.
    fn next(&mut self, commands: &Receiver<Command>) -> Option<Option<Command>> {
        let waiting = self.waiting.take().map(Some);
        let wait = match self.is_tidy() {
            false => Wait::Never,
            true if self.failing.is_some() => Wait::For(PROBE_EVERY),
            true => Wait::Forever,
        };
        waiting.or_else(|| next_command(commands, wait))
    }

    fn is_tidy(&self) -> bool {
        let ledger = self.shared.ledger();
        !ledger.is_leaving() && ledger.cached_bytes() <= self.target_bytes
    }

    /// A chunk of background work.
    fn tidy(&mut self) {
        if self.is_tidy() {
            return self.probe();
        }
        let leaving = self.shared.ledger().is_leaving();
        if leaving { self.release_chunk() } else { self.evict_chunk() }
    }

    fn handle(&mut self, command: Command, commands: &Receiver<Command>) -> Next {
        match command {
            Command::Write(first) => self.write(first, commands),
            Command::Forget { key, room } => {
                self.forget(&key);
                drop(room);
            }
            // Whoever hears that something is gone may look at the figures at once.
            Command::Evict { keys, which, reply } => {
                let evicted = self.evict_keys(&keys, which);
                self.publish();
                _ = reply.send(evicted);
            }
            Command::Shrink { cached_bytes, reply } => {
                let more = self.shrink(cached_bytes);
                self.publish();
                _ = reply.send(Ok(more));
            }
            Command::Begin { root, name, reply } => {
                let pin = self.begin(root, name);
                _ = reply.send(pin.map(|pin| self.losses.begun(pin)));
            }
            Command::BeginTemporary { reply } => {
                let pin = self.temporary_pin();
                _ = reply.send(pin.map(|pin| self.losses.begun(pin)));
            }
            Command::Finish { attempt, reply } => _ = reply.send(self.finish(&attempt)),
            Command::Remove { root, reply } => _ = reply.send(self.remove(&root)),
            Command::Release { pin } => self.shared.ledger_mut().remove_pin(pin),
            Command::Written { reply } => _ = reply.send(()),
            Command::Flush { reply } => self.flushes.push(reply),
            Command::Close { reply } => return self.close(reply),
        }
        Next::Continue
    }

    /// Takes writes until the batch is full or something else comes, and deals with them.
    fn write(&mut self, first: Write, commands: &Receiver<Command>) {
        let (mut batch, mut next) = (Batch::default(), Some(first));
        while let Some(write) = next.take() {
            self.stage(&mut batch, write);
            if batch.bytes >= BATCH_BYTES_MAX || batch.writes.len() >= BATCH_WRITES_MAX {
                break;
            }
            match commands.try_recv() {
                Ok(Command::Write(write)) => next = Some(write),
                Ok(other) => self.waiting = Some(other),
                Err(_) => {}
            }
        }
        self.commit(batch);
    }

    fn stage(&mut self, batch: &mut Batch, Write { block, attempt, room }: Write) {
        let Some(key) = block.key() else { return };
        let key = Key::from(key.to_bytes());
        let ledger = self.shared.ledger();
        if let Some(attempt) = attempt.as_ref().filter(|attempt| !ledger.has(attempt.pin)) {
            attempt.fail(MemberFailure::Removed);
            return;
        }
        let (held, has_pin) = (ledger.held(&key), ledger.has_pin(&key));
        if held.is_none() && has_pin && self.losses.any() {
            batch.returned.extend(ledger.pins_with(&key).into_iter().map(|(root, _)| root));
        }
        drop(ledger);
        // A member of a pin that was found damaged and forgotten comes back as a member.
        let durable = attempt.is_some() || has_pin;
        let staged = batch.by_key.get(&key).copied();
        let needed = staged.is_none() && held.is_none_or(|held| durable && !held.durable);
        let grows = durable && !has_pin && staged.is_none_or(|value| !batch.values[value].durable);
        let value = if needed { Some(self.encode(batch, &key, &block)) } else { staged };
        if grows {
            let bytes = match (value, held) {
                (None, Some(held)) => held.bytes,
                (value, _) => value.map_or(0, |value| self.cost(&batch.values[value])),
            };
            batch.pinned_bytes += bytes;
            if let Err(error) = self.check_room_for_pins(batch) {
                batch.pinned_bytes -= bytes;
                if needed {
                    batch.take_back(&key);
                }
                match attempt {
                    Some(attempt) => attempt.fail(MemberFailure::Store(error)),
                    None => _ = self.shared.stats.dropped_writes.inc(),
                }
                return;
            }
        }
        value.into_iter().for_each(|value| batch.values[value].durable |= durable);
        batch.bytes += COMMAND_BYTES;
        let block_bytes = block.data().len() as u64;
        batch.writes.push(Staged { key, value, block_bytes, attempt, _room: room });
    }

    /// Adds a block's value to the batch.
    fn encode(&mut self, batch: &mut Batch, key: &Key, block: &Block) -> usize {
        let (shape, pieces) = self.encoder.encode_in_pieces(block);
        batch.bytes += shape.value_bytes();
        batch.values.push(NewValue { key: Arc::clone(key), shape, pieces, durable: false });
        batch.by_key.insert(Arc::clone(key), batch.values.len() - 1);
        batch.values.len() - 1
    }

    fn cost(&self, value: &NewValue) -> u64 {
        self.shared.backing.cost(&value.key, value.shape.value_bytes())
    }

    fn check_room_for_pins(&self, batch: &Batch) -> Result<(), StoreError> {
        let pinned_bytes = self.shared.ledger().pinned_bytes().saturating_add(batch.pinned_bytes);
        if pinned_bytes > self.limits.bytes_max {
            return Err(StoreError::MemoryFull { bytes_max: self.limits.bytes_max });
        }
        Ok(())
    }

    fn commit(&mut self, batch: Batch) {
        let written = self.write_values(&batch);
        let mut ledger = self.shared.ledger_mut();
        for (value, _) in batch.values.iter().zip(&written).filter(|(_, written)| written.is_ok()) {
            let held = Held { bytes: self.cost(value), shape: Some(value.shape), durable: value.durable };
            ledger.put(&value.key, held);
        }
        drop(ledger);
        let mut members: BTreeMap<PinId, Vec<&Staged>> = BTreeMap::new();
        for write in &batch.writes {
            let failed = write.value.and_then(|value| written[value].as_ref().err());
            match (&write.attempt, failed) {
                (None, None) => {}
                (None, Some(error)) => {
                    self.shared.stats.dropped_writes.inc();
                    debug!(%error, "a block was not cached");
                }
                (Some(attempt), Some(error)) => attempt.fail(MemberFailure::Store(error.clone())),
                (Some(attempt), None) => members.entry(attempt.pin).or_default().push(write),
            }
        }
        for (pin, writes) in members {
            self.add_members(pin, &writes);
        }
        batch.returned.iter().for_each(|root| self.losses.returned(*root));
    }

    fn write_values(&mut self, batch: &Batch) -> Vec<Result<(), StoreError>> {
        if batch.values.is_empty() {
            return Vec::new();
        }
        let written = match self.check_free_space(batch.bytes) {
            Ok(()) => self.shared.backing.write(&batch.values),
            Err(error) => batch.values.iter().map(|_| Err(error.clone())).collect(),
        };
        match written.iter().find_map(|written| written.as_ref().err()) {
            Some(error) => self.note_refusal(error),
            None => self.note_recovery(),
        }
        written
    }

    /// Gives blocks that are there to a pin or temporary pin.
    fn add_members(&mut self, pin: PinId, writes: &[&Staged]) {
        let ledger = self.shared.ledger();
        let (mut seen, mut members) = (HashSet::new(), Vec::new());
        for write in writes {
            if seen.insert(&write.key) && !ledger.is_member(pin, &write.key) {
                members.push((Arc::clone(&write.key), write.block_bytes));
            }
        }
        drop(ledger);
        // A temporary pin is not written.
        let has_root = writes.iter().any(|write| write.attempt.as_ref().is_some_and(|attempt| attempt.root.is_some()));
        if has_root
            && !members.is_empty()
            && let Err(error) = self.shared.backing.add_members(pin, &members)
        {
            self.note_refusal(&error);
            let attempts = writes.iter().filter_map(|write| write.attempt.as_ref());
            attempts.for_each(|attempt| attempt.fail(MemberFailure::Store(error.clone())));
            return;
        }
        let mut ledger = self.shared.ledger_mut();
        for (key, block_bytes) in &members {
            ledger.add_member(pin, key, *block_bytes);
        }
    }

    fn take_pin(&mut self) -> Result<PinId, StoreError> {
        let taken = self.shared.backing.take_pin();
        taken.inspect_err(|error| self.note_refusal(error))
    }

    fn begin(&mut self, root: Cid, name: Option<String>) -> Result<PinId, StoreError> {
        let former = {
            let ledger = self.shared.ledger();
            ledger.pin_of(&root).and_then(|pin| ledger.record(pin).cloned())
        };
        let record = match former {
            Some(record) if name.is_none() || record.name == name => return Ok(record.id),
            Some(record) => PinRecord { name, ..record },
            None => PinRecord::new(self.take_pin()?, name),
        };
        let pin = record.id;
        if let Err(error) = self.shared.backing.write_pin(&root, &record) {
            self.note_refusal(&error);
            if !self.shared.ledger().has(pin) {
                // It may have been written all the same, and a root has one pin.
                _ = self.shared.backing.remove_pin(pin);
            }
            return Err(error);
        }
        self.shared.ledger_mut().set_pin(Some(root), record);
        Ok(pin)
    }

    fn temporary_pin(&mut self) -> Result<PinId, StoreError> {
        let pin = self.take_pin()?;
        self.shared.ledger_mut().set_pin(None, PinRecord::new(pin, None));
        Ok(pin)
    }

    fn finish(&mut self, attempt: &Attempt) -> Result<PinSummary, PinError> {
        attempt.check()?;
        self.losses.check(attempt)?;
        let Some(root) = attempt.root else { return Err(PinError::Store(StoreError::Closed)) };
        let (former, current) = {
            let ledger = self.shared.ledger();
            let removed = || PinError::Removed { root };
            let former = ledger.record(attempt.pin).cloned().ok_or_else(removed)?;
            if BlockKey::of(&root).is_some_and(|key| !ledger.is_member(attempt.pin, &key.to_bytes())) {
                return Err(PinError::RootMissing { root });
            }
            (former, ledger.current(attempt.pin).ok_or_else(removed)?)
        };
        let record = PinRecord { state: PinState::Complete, ..current };
        self.sync()?;
        if record != former || self.doubted.contains(&attempt.pin) {
            self.shared.backing.write_pin(&root, &record).inspect_err(|error| self.note_refusal(error))?;
        }
        self.doubted.remove(&attempt.pin);
        let summary = record.summary(root);
        self.shared.ledger_mut().set_pin(Some(root), record);
        Ok(summary)
    }

    /// The pin is gone when this returns; its members follow a chunk at a time.
    fn remove(&mut self, root: &Cid) -> Result<bool, StoreError> {
        let Some(pin) = self.shared.ledger().pin_of(root) else { return Ok(false) };
        if let Err(error) = self.shared.backing.remove_pin(pin) {
            self.doubted.insert(pin);
            return Err(error);
        }
        self.doubted.remove(&pin);
        self.losses.remove(pin);
        self.shared.ledger_mut().remove_pin(pin);
        Ok(true)
    }

    fn release_chunk(&mut self) {
        let shared = &self.shared;
        // Nothing is kept that was not asked for where there is no space.
        let rescue = self.shortage_bytes() == 0;
        let gone = shared.ledger_mut().let_go(CHUNK_BLOCKS, |key| rescue && shared.is_hot(key));
        gone.iter().for_each(|key| self.delete(key));
    }

    fn evict_chunk(&mut self) {
        let shared = &self.shared;
        if shared.ledger().cached_bytes() <= self.target_bytes {
            return;
        }
        let gone = shared.ledger_mut().evict(self.target_bytes, CHUNK_BLOCKS, |key| shared.is_hot(key));
        self.delete_evicted(&gone);
    }

    /// Removes some of the oldest blocks, and says whether more are to go until the rest takes no more than that.
    fn shrink(&self, cached_bytes: u64) -> bool {
        let gone = self.shared.ledger_mut().evict(cached_bytes, CHUNK_BLOCKS, |_| false);
        self.delete_evicted(&gone);
        self.shared.ledger().cached_bytes() > cached_bytes
    }

    fn delete_evicted(&self, gone: &[(Key, u64)]) {
        for (key, bytes) in gone {
            self.delete(key);
            self.shared.stats.evicted_blocks.inc();
            self.shared.stats.evicted_bytes.inc_by(*bytes);
        }
    }

    /// Forgets blocks that somebody wants gone. A value that could not be deleted is an error, for it would be here again when
    /// the store is next opened; the others go all the same.
    fn evict_keys(&mut self, keys: &[BlockKey], which: Evict) -> Result<Evicted, StoreError> {
        let (mut evicted, mut failed) = (Evicted::default(), None);
        for key in keys {
            let key = key.to_bytes();
            let Some(held) = self.shared.ledger().held(&key) else { continue };
            if which == Evict::Unpinned && self.shared.ledger().has_pin(&key) {
                evicted.pinned += 1;
                continue;
            }
            self.lose(&key);
            if let Err(error) = self.shared.backing.delete(&key) {
                warn!(%error, "a block that is to be gone could not be deleted");
                failed = Some(error);
            }
            evicted += Evicted { blocks: 1, bytes: held.bytes, pinned: 0 };
        }
        self.shared.stats.evicted_blocks.inc_by(evicted.blocks);
        self.shared.stats.evicted_bytes.inc_by(evicted.bytes);
        failed.map_or(Ok(evicted), Err)
    }

    /// Notes that a value is gone. Pins that have it are partial from then on: the file that is missing says so when the store
    /// is next opened.
    fn lose(&mut self, key: &[u8]) {
        let mut ledger = self.shared.ledger_mut();
        for (root, record) in ledger.pins_with(key) {
            let pin = record.id;
            if record.state == PinState::Complete {
                ledger.set_pin(Some(root), PinRecord { state: PinState::Partial, ..record });
            }
            self.losses.lost(pin, root);
        }
        ledger.lose(key);
    }

    /// Deletes a value that the ledger has let go of. What is left behind is found when the store is next opened.
    fn delete(&self, key: &[u8]) {
        if let Err(error) = self.shared.backing.delete(key) {
            warn!(%error, "a block could not be deleted; it counts again when the store is next opened");
        }
    }

    /// Decides what cached blocks may take. Looked up once after each change, since file systems give space back late.
    fn aim(&mut self) {
        let ledger = self.shared.ledger();
        let beside_pins = self.limits.bytes_max.saturating_sub(ledger.pinned_bytes());
        let cached_bytes = ledger.cached_bytes();
        drop(ledger);
        let shrunk = cached_bytes.saturating_sub(self.shortage_bytes());
        self.target_bytes = self.limits.cache_bytes_max.min(beside_pins);
        if shrunk < cached_bytes {
            self.target_bytes = self.target_bytes.min(shrunk);
        }
    }

    fn check_free_space(&self, bytes: usize) -> Result<(), StoreError> {
        let (space, needed) = (self.shared.backing.space()?, self.limits.free_bytes_min);
        if space.free_bytes < needed.saturating_add(bytes as u64) || space.is_out_of_inodes() {
            return Err(self.shared.backing.shortage_error(space, needed));
        }
        Ok(())
    }

    /// Looks whether writes are taken again.
    fn probe(&mut self) {
        let Some(trouble) = self.failing else { return };
        let probed = self.check_free_space(BATCH_BYTES_MAX + content::MAX_BLOCK_BYTES);
        match probed.and_then(|()| self.shared.backing.probe()) {
            Ok(()) => self.note_recovery(),
            Err(error) => self.failing = Some(Trouble::of(&error)),
        }
        if self.failing != Some(trouble) {
            // What was refused for lack of space may be evicted for less of it.
            self.aim();
        }
    }

    /// How much less is left to others than they are to be left, with what a batch may take, in bytes.
    fn shortage_bytes(&self) -> u64 {
        match self.check_free_space(BATCH_BYTES_MAX + content::MAX_BLOCK_BYTES) {
            Err(StoreError::Full { free, needed }) => {
                needed.saturating_add((BATCH_BYTES_MAX + content::MAX_BLOCK_BYTES) as u64) - free
            }
            // Each block has an inode, so a batch of blocks that go makes room for one that comes.
            Err(StoreError::NoInodes { .. }) => BATCH_BYTES_MAX as u64,
            _ => 0,
        }
    }

    /// Forgets a block if its value is gone, or still is not what was written or not what its hash says.
    fn forget(&mut self, key: &BlockKey) {
        let bytes = key.to_bytes();
        if self.shared.ledger().held(&bytes).is_none() {
            return;
        }
        let reason = match scrub::verified(&self.shared.backing, key) {
            Ok(Some(_)) => return,
            Ok(None) => "it is gone".into(),
            Err(StoreError::Corrupt(reason)) => reason,
            Err(error) => {
                debug!(?key, %error, "a block cannot be read");
                return;
            }
        };
        let pinned = self.shared.ledger().has_pin(&bytes);
        self.lose(&bytes);
        self.delete(&bytes);
        self.shared.stats.corrupt_blocks.inc();
        error!(?key, pinned, %reason, "a block is damaged on disk: forgotten, to be fetched again");
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if let Some(error) = &self.unsyncable {
            return Err(error.clone());
        }
        let synced = self.shared.backing.sync();
        if let Err(error) = &synced {
            error!(%error, "the disk refused to keep what it had taken: no pin is made until the store is opened again");
            self.unsyncable = Some(error.clone());
        }
        synced
    }

    fn answer_flushes(&mut self) {
        if self.flushes.is_empty() || !self.is_tidy() {
            return;
        }
        let synced = self.sync();
        for reply in self.flushes.drain(..) {
            _ = reply.send(synced.clone());
        }
    }

    fn close(&mut self, reply: Reply<Result<(), StoreError>>) -> Next {
        // From here on callers are refused instead of waiting for room.
        self.room.close();
        let synced = self.sync();
        for flush in self.flushes.drain(..) {
            _ = flush.send(synced.clone());
        }
        self.publish();
        _ = reply.send(synced);
        Next::Stop
    }

    /// Says when writes begin to be refused.
    fn note_refusal(&mut self, error: &StoreError) {
        self.shared.stats.write_errors.inc();
        if self.failing.replace(Trouble::of(error)).is_none() {
            error!(%error, "the disk refuses writes: nothing is cached on it and pins fail until it recovers");
        }
    }

    /// Says when that ends, which the next value that is written shows.
    fn note_recovery(&mut self) {
        if self.failing.take().is_some() {
            info!("the disk takes writes again");
        }
    }

    fn publish(&self) {
        let (stats, ledger) = (&self.shared.stats, self.shared.ledger());
        stats.cached_bytes.store(ledger.cached_bytes(), Ordering::Relaxed);
        stats.pinned_bytes.store(ledger.pinned_bytes(), Ordering::Relaxed);
        stats.blocks.store(ledger.count(), Ordering::Relaxed);
        stats.set_trouble(self.unsyncable.as_ref().map_or(self.failing, |_| Some(Trouble::Broken)));
    }
}

impl Batch {
    /// Takes back the value that was added last.
    fn take_back(&mut self, key: &Key) {
        self.by_key.remove(key);
        self.values.pop();
    }
}
