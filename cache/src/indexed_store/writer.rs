//! The writer thread, which makes all changes of the store.
//!
//! Writes are processed in order, and queued writes are batched. The index has a value only after it is written, and
//! removes it before it is deleted. Between commands the thread evicts blocks over budget and unpins the members of
//! removed pins, in chunks, so that commands are not delayed for long.
//!
//! A cached value that cannot be written is dropped and counted; the write of a pin's member reports the error to its
//! attempt.

use super::backing::{Backing, NewValue};
use super::{Shared, StoreLimits, scrub};
use crate::disk::StoreError;
use crate::memory_index::{Key, ValueInfo};
use crate::pins::{BegunPin, MemberFailure, PinAttempt, PinError, PinId, PinLosses, PinRecord, PinState, PinSummary};
use crate::queue::{COMMAND_BYTES, PROBE_EVERY, Reply, Room, Wait, next_command};
use crate::store::{DegradedReason, Evict, Evicted};
use content::stored::Encoder;
use content::{Block, BlockKey, Cid};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use tokio::sync::Semaphore;
use tracing::{debug, error, info, warn};

/// The maximum size of a batch, in bytes.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The maximum number of writes in a batch.
const BATCH_WRITES_MAX: usize = 256;

/// The maximum number of blocks that one chunk of eviction or unpinning examines: twice a batch, since as many bytes
/// may be spared as are evicted.
const CHUNK_BLOCKS: usize = 2 * BATCH_WRITES_MAX;

pub(super) enum Command {
    Write(Write),
    /// Deletes a block whose value could not be read, if it is corrupt.
    DropCorrupt {
        key: BlockKey,
        room: Room,
    },
    /// Deletes blocks.
    Evict {
        keys: Vec<BlockKey>,
        which: Evict,
        reply: Reply<Result<Evicted, StoreError>>,
    },
    /// Evicts some of the oldest cached blocks, and replies whether more must be evicted.
    Shrink {
        cached_bytes: u64,
        reply: Reply<Result<bool, StoreError>>,
    },
    /// Begins a pin, or resumes the root's pin.
    Begin {
        root: Cid,
        name: Option<String>,
        reply: Reply<Result<BegunPin, StoreError>>,
    },
    /// Begins a temporary pin. It exists only in the index, so that it ends with the process.
    BeginTemporary {
        reply: Reply<Result<BegunPin, StoreError>>,
    },
    /// Marks a pin complete, if all of its members were written.
    Finish {
        attempt: Arc<PinAttempt>,
        reply: Reply<Result<PinSummary, PinError>>,
    },
    /// Removes a pin, with this ID if one is given; its members are unpinned later.
    Remove {
        root: Cid,
        id: Option<u64>,
        reply: Reply<Result<bool, StoreError>>,
    },
    /// Releases a temporary pin.
    Release {
        pin: PinId,
    },
    /// Replies when all earlier writes are readable.
    Written {
        reply: Reply<()>,
    },
    /// Replies when all earlier work is done.
    Flush {
        reply: Reply<Result<(), StoreError>>,
    },
    /// Syncs, and stops the thread.
    Close {
        reply: Reply<Result<(), StoreError>>,
    },
}

/// A block to store: a member of a pin if there is an attempt, else a cached block.
pub(super) struct Write {
    pub(super) block: Block,
    pub(super) attempt: Option<Arc<PinAttempt>>,
    pub(super) room: Room,
}

/// Whether the thread continues.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

pub(super) struct Writer<B: Backing> {
    shared: Arc<Shared<B>>,
    limits: StoreLimits,
    encoder: Encoder,
    /// A command taken from the queue that ended a batch and is processed next.
    deferred: Option<Command>,
    /// The current budget of cached blocks, in bytes.
    target_bytes: u64,
    /// Flush commands waiting for a reply.
    flushes: Vec<Reply<Result<(), StoreError>>>,
    /// Why writes fail, if they do; logged once, not for every batch.
    failing: Option<DegradedReason>,
    /// The error of a failed sync. Data not written by then may be lost even if a later sync succeeds, so nothing is
    /// acknowledged until the store is reopened.
    sync_error: Option<StoreError>,
    /// Pins whose removal failed, so that it is unknown whether they are still written.
    uncertain: HashSet<PinId>,
    /// Losses of pins since the store was opened.
    losses: PinLosses,
    room: Arc<Semaphore>,
}

/// A batch of writes.
#[derive(Default)]
struct Batch {
    values: Vec<NewValue>,
    /// The index in `values` of each key.
    by_key: HashMap<Key, usize>,
    writes: Vec<StagedWrite>,
    bytes: usize,
    /// The growth of the pinned bytes.
    pinned_bytes: u64,
    /// The roots of pins that may get a block back with this batch.
    returned: Vec<Cid>,
}

/// A write whose value is in the batch.
struct StagedWrite {
    key: Key,
    /// The index of the value, unless it is stored already.
    value: Option<usize>,
    block_bytes: u64,
    attempt: Option<Arc<PinAttempt>>,
    _room: Room,
}

impl<B: Backing> Drop for Writer<B> {
    /// However the thread ends, callers must not wait for room forever.
    fn drop(&mut self) {
        self.room.close();
    }
}

impl<B: Backing> Writer<B> {
    pub(super) fn new(shared: Arc<Shared<B>>, limits: StoreLimits, room: Arc<Semaphore>) -> Result<Self, StoreError> {
        let encoder = Encoder::new(limits.zstd).map_err(StoreError::io)?;
        let target_bytes = limits.cache_bytes_max;
        let losses = PinLosses::new(Arc::clone(&shared.changes), shared.index().has_partial_pins());
        let writer = Self {
            shared,
            limits,
            encoder,
            deferred: None,
            target_bytes,
            flushes: Vec::new(),
            failing: None,
            sync_error: None,
            uncertain: HashSet::new(),
            losses,
            room,
        };
        writer.publish();
        Ok(writer)
    }

    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        self.update_target();
        while let Some(next) = self.next(commands) {
            match next {
                Some(command) => {
                    if self.handle(command, commands) == Next::Stop {
                        return;
                    }
                    self.update_target();
                    self.evict_chunk();
                }
                None => self.background_chunk(),
            }
            self.publish();
            self.answer_flushes();
        }
        if let Err(error) = self.sync() {
            error!(%error, "the final sync failed when the store was closed");
        }
    }

    /// The next command: first the deferred one, then that of [`next_command`].
    fn next(&mut self, commands: &Receiver<Command>) -> Option<Option<Command>> {
        let deferred = self.deferred.take().map(Some);
        let wait = match self.is_idle() {
            false => Wait::Never,
            true if self.failing.is_some() => Wait::For(PROBE_EVERY),
            true => Wait::Forever,
        };
        deferred.or_else(|| next_command(commands, wait))
    }

    fn is_idle(&self) -> bool {
        let index = self.shared.index();
        !index.is_unpinning() && index.cached_bytes() <= self.target_bytes
    }

    /// Does a chunk of background work.
    fn background_chunk(&mut self) {
        if self.is_idle() {
            return self.probe();
        }
        let unpinning = self.shared.index().is_unpinning();
        if unpinning { self.unpin_chunk() } else { self.evict_chunk() }
    }

    fn handle(&mut self, command: Command, commands: &Receiver<Command>) -> Next {
        match command {
            Command::Write(first) => self.write(first, commands),
            Command::DropCorrupt { key, room } => {
                self.delete_if_corrupt(&key);
                drop(room);
            }
            // Updates the figures before the reply, so that the caller sees them.
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
                _ = reply.send(pin.map(|pin| self.losses.begin(pin)));
            }
            Command::BeginTemporary { reply } => {
                let pin = self.begin_temporary();
                _ = reply.send(pin.map(|pin| self.losses.begin(pin)));
            }
            Command::Finish { attempt, reply } => _ = reply.send(self.finish(&attempt)),
            Command::Remove { root, id, reply } => _ = reply.send(self.remove(&root, id)),
            Command::Release { pin } => self.shared.index_mut().remove_pin(pin),
            Command::Written { reply } => _ = reply.send(()),
            Command::Flush { reply } => self.flushes.push(reply),
            Command::Close { reply } => return self.close(reply),
        }
        Next::Continue
    }

    /// Collects writes until the batch is full or another command follows, and commits them.
    fn write(&mut self, first: Write, commands: &Receiver<Command>) {
        let (mut batch, mut next) = (Batch::default(), Some(first));
        while let Some(write) = next.take() {
            self.stage(&mut batch, write);
            if batch.bytes >= BATCH_BYTES_MAX || batch.writes.len() >= BATCH_WRITES_MAX {
                break;
            }
            match commands.try_recv() {
                Ok(Command::Write(write)) => next = Some(write),
                Ok(other) => self.deferred = Some(other),
                Err(_) => {}
            }
        }
        self.commit(batch);
    }

    fn stage(&mut self, batch: &mut Batch, Write { block, attempt, room }: Write) {
        let Some(key) = block.key() else { return };
        let key = Key::from(key.to_bytes());
        let index = self.shared.index();
        if let Some(attempt) = attempt.as_ref().filter(|attempt| !index.has(attempt.pin)) {
            attempt.fail(MemberFailure::Removed);
            return;
        }
        let (existing, has_pin) = (index.value(&key), index.has_pin(&key));
        if existing.is_none() && has_pin && self.losses.any() {
            batch.returned.extend(index.pins_with(&key).into_iter().map(|(root, _)| root));
        }
        drop(index);
        // A member of a pin that was deleted as corrupt becomes a member again.
        let durable = attempt.is_some() || has_pin;
        let staged = batch.by_key.get(&key).copied();
        let needed = staged.is_none() && existing.is_none_or(|existing| durable && !existing.durable);
        let grows = durable && !has_pin && staged.is_none_or(|value| !batch.values[value].durable);
        let value = if needed { Some(self.encode(batch, &key, &block)) } else { staged };
        if grows {
            let bytes = match (value, existing) {
                (None, Some(existing)) => existing.bytes,
                (value, _) => value.map_or(0, |value| self.cost(&batch.values[value])),
            };
            batch.pinned_bytes += bytes;
            if let Err(error) = self.check_room_for_pins(batch) {
                batch.pinned_bytes -= bytes;
                if needed {
                    batch.remove_last(&key);
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
        batch.writes.push(StagedWrite { key, value, block_bytes, attempt, _room: room });
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
        let pinned_bytes = self.shared.index().pinned_bytes().saturating_add(batch.pinned_bytes);
        if pinned_bytes > self.limits.bytes_max {
            return Err(StoreError::MemoryFull { bytes_max: self.limits.bytes_max });
        }
        Ok(())
    }

    fn commit(&mut self, batch: Batch) {
        let written = self.write_values(&batch);
        let mut index = self.shared.index_mut();
        for (value, _) in batch.values.iter().zip(&written).filter(|(_, written)| written.is_ok()) {
            let stored = ValueInfo { bytes: self.cost(value), shape: Some(value.shape), durable: value.durable };
            index.put(&value.key, stored);
        }
        drop(index);
        let mut members: BTreeMap<PinId, Vec<&StagedWrite>> = BTreeMap::new();
        for write in &batch.writes {
            let failed = write.value.and_then(|value| written[value].as_ref().err());
            match (&write.attempt, failed) {
                (None, None) => {}
                (None, Some(error)) => {
                    self.shared.stats.dropped_writes.inc();
                    debug!(%error, "a block could not be cached");
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
            Some(error) => self.note_write_error(error),
            None => self.note_recovery(),
        }
        written
    }

    /// Adds stored blocks to a pin or temporary pin.
    fn add_members(&mut self, pin: PinId, writes: &[&StagedWrite]) {
        let index = self.shared.index();
        let (mut seen, mut members) = (HashSet::new(), Vec::new());
        for write in writes {
            if seen.insert(&write.key) && !index.is_member(pin, &write.key) {
                members.push((Arc::clone(&write.key), write.block_bytes));
            }
        }
        drop(index);
        // A temporary pin exists only in the index.
        let has_root = writes.iter().any(|write| write.attempt.as_ref().is_some_and(|attempt| attempt.root.is_some()));
        if has_root
            && !members.is_empty()
            && let Err(error) = self.shared.backing.add_members(pin, &members)
        {
            self.note_write_error(&error);
            let attempts = writes.iter().filter_map(|write| write.attempt.as_ref());
            attempts.for_each(|attempt| attempt.fail(MemberFailure::Store(error.clone())));
            return;
        }
        let mut index = self.shared.index_mut();
        for (key, block_bytes) in &members {
            index.add_member(pin, key, *block_bytes);
        }
    }

    fn allocate_pin_id(&mut self) -> Result<PinId, StoreError> {
        let taken = self.shared.backing.allocate_pin_id();
        taken.inspect_err(|error| self.note_write_error(error))
    }

    fn begin(&mut self, root: Cid, name: Option<String>) -> Result<PinId, StoreError> {
        let former = {
            let index = self.shared.index();
            index.pin_of(&root).and_then(|pin| index.record(pin).cloned())
        };
        let record = match former {
            Some(record) if name.is_none() || record.name == name => return Ok(record.id),
            Some(record) => PinRecord { name, ..record },
            None => PinRecord::new(self.allocate_pin_id()?, name),
        };
        let pin = record.id;
        if let Err(error) = self.shared.backing.write_pin(&root, &record) {
            self.note_write_error(&error);
            if !self.shared.index().has(pin) {
                // The record may have been written despite the error, and a root has only one pin.
                _ = self.shared.backing.remove_pin(pin);
            }
            return Err(error);
        }
        self.shared.index_mut().set_pin(Some(root), record);
        Ok(pin)
    }

    fn begin_temporary(&mut self) -> Result<PinId, StoreError> {
        let pin = self.allocate_pin_id()?;
        self.shared.index_mut().set_pin(None, PinRecord::new(pin, None));
        Ok(pin)
    }

    fn finish(&mut self, attempt: &PinAttempt) -> Result<PinSummary, PinError> {
        attempt.check()?;
        self.losses.check(attempt)?;
        let Some(root) = attempt.root else { return Err(PinError::Store(StoreError::Closed)) };
        let (former, current) = {
            let index = self.shared.index();
            let removed = || PinError::Removed { root };
            let former = index.record(attempt.pin).cloned().ok_or_else(removed)?;
            if BlockKey::of(&root).is_some_and(|key| !index.is_member(attempt.pin, &key.to_bytes())) {
                return Err(PinError::RootMissing { root });
            }
            (former, index.current(attempt.pin).ok_or_else(removed)?)
        };
        let record = PinRecord { state: PinState::Complete, ..current };
        self.sync()?;
        if record != former || self.uncertain.contains(&attempt.pin) {
            self.shared.backing.write_pin(&root, &record).inspect_err(|error| self.note_write_error(error))?;
        }
        self.uncertain.remove(&attempt.pin);
        let summary = record.summary(root);
        self.shared.index_mut().set_pin(Some(root), record);
        Ok(summary)
    }

    /// Removes a pin durably, with this ID if one is given; its members are unpinned later, in chunks.
    fn remove(&mut self, root: &Cid, id: Option<u64>) -> Result<bool, StoreError> {
        let found = self.shared.index().pin_of(root);
        let Some(pin) = found.filter(|pin| pin.is_asked_for(id)) else { return Ok(false) };
        if let Err(error) = self.shared.backing.remove_pin(pin) {
            self.uncertain.insert(pin);
            return Err(error);
        }
        self.uncertain.remove(&pin);
        self.losses.remove(pin);
        self.shared.index_mut().remove_pin(pin);
        Ok(true)
    }

    fn unpin_chunk(&mut self) {
        let shared = &self.shared;
        // When space is short, unpinned blocks are deleted even if they are in RAM.
        let spare_hot = self.shortage_bytes() == 0;
        let gone = shared.index_mut().unpin_chunk(CHUNK_BLOCKS, |key| spare_hot && shared.is_hot(key));
        gone.iter().for_each(|key| self.delete(key));
    }

    fn evict_chunk(&mut self) {
        let shared = &self.shared;
        if shared.index().cached_bytes() <= self.target_bytes {
            return;
        }
        let gone = shared.index_mut().evict(self.target_bytes, CHUNK_BLOCKS, |key| shared.is_hot(key));
        self.delete_evicted(&gone);
    }

    /// Evicts some of the oldest blocks, and returns whether the rest still takes more than `cached_bytes`.
    fn shrink(&self, cached_bytes: u64) -> bool {
        let gone = self.shared.index_mut().evict(cached_bytes, CHUNK_BLOCKS, |_| false);
        self.delete_evicted(&gone);
        self.shared.index().cached_bytes() > cached_bytes
    }

    fn delete_evicted(&self, gone: &[(Key, u64)]) {
        for (key, bytes) in gone {
            self.delete(key);
            self.shared.stats.evicted_blocks.inc();
            self.shared.stats.evicted_bytes.inc_by(*bytes);
        }
    }

    /// Deletes blocks. A value that could not be deleted is an error, since it would reappear when the store is next
    /// opened; the others are deleted anyway.
    fn evict_keys(&mut self, keys: &[BlockKey], which: Evict) -> Result<Evicted, StoreError> {
        let (mut evicted, mut failed) = (Evicted::default(), None);
        for key in keys {
            let key = key.to_bytes();
            let Some(existing) = self.shared.index().value(&key) else { continue };
            if which == Evict::Unpinned && self.shared.index().has_pin(&key) {
                evicted.pinned += 1;
                continue;
            }
            self.mark_lost(&key);
            if let Err(error) = self.shared.backing.delete(&key) {
                warn!(%error, "a block could not be deleted: delete it again when the disk works");
                failed = Some(error);
            }
            evicted += Evicted { blocks: 1, bytes: existing.bytes, pinned: 0 };
        }
        self.shared.stats.evicted_blocks.inc_by(evicted.blocks);
        self.shared.stats.evicted_bytes.inc_by(evicted.bytes);
        failed.map_or(Ok(evicted), Err)
    }

    /// Records the loss of a value. Pins that have it become partial; after a restart, the missing file has the same
    /// effect.
    fn mark_lost(&mut self, key: &[u8]) {
        let mut index = self.shared.index_mut();
        for (root, record) in index.pins_with(key) {
            let pin = record.id;
            if record.state == PinState::Complete {
                index.set_pin(Some(root), PinRecord { state: PinState::Partial, ..record });
            }
            self.losses.lost(pin, root);
        }
        index.remove_value(key);
    }

    /// Deletes a value that was removed from the index. If that fails, the next start finds it.
    fn delete(&self, key: &[u8]) {
        if let Err(error) = self.shared.backing.delete(key) {
            warn!(%error, "a block could not be deleted; it is counted again when the store is next opened");
        }
    }

    /// Updates the budget of cached blocks. Free space is checked once after each change, since file systems reclaim
    /// space late.
    fn update_target(&mut self) {
        let index = self.shared.index();
        let beside_pins = self.limits.bytes_max.saturating_sub(index.pinned_bytes());
        let cached_bytes = index.cached_bytes();
        drop(index);
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

    /// Checks whether writes succeed again.
    fn probe(&mut self) {
        let Some(trouble) = self.failing else { return };
        let probed = self.check_free_space(BATCH_BYTES_MAX + content::MAX_BLOCK_BYTES);
        match probed.and_then(|()| self.shared.backing.probe()) {
            Ok(()) => self.note_recovery(),
            Err(error) => self.failing = Some(DegradedReason::of(&error)),
        }
        if self.failing != Some(trouble) {
            // The shortage changed, and with it the target of eviction.
            self.update_target();
        }
    }

    /// How many bytes are missing from the free space to keep, including room for a batch.
    fn shortage_bytes(&self) -> u64 {
        match self.check_free_space(BATCH_BYTES_MAX + content::MAX_BLOCK_BYTES) {
            Err(StoreError::Full { free, needed }) => {
                needed.saturating_add((BATCH_BYTES_MAX + content::MAX_BLOCK_BYTES) as u64) - free
            }
            // Each block has an inode, so evicting a batch of blocks makes room for another batch.
            Err(StoreError::NoInodes { .. }) => BATCH_BYTES_MAX as u64,
            _ => 0,
        }
    }

    /// Verifies a block again, and deletes it if its value is missing or corrupt.
    fn delete_if_corrupt(&mut self, key: &BlockKey) {
        let bytes = key.to_bytes();
        if self.shared.index().value(&bytes).is_none() {
            return;
        }
        let reason = match scrub::verified(&self.shared.backing, key) {
            Ok(Some(_)) => return,
            Ok(None) => "its file is missing".into(),
            Err(StoreError::Corrupt(reason)) => reason,
            Err(error) => {
                debug!(?key, %error, "a block cannot be read");
                return;
            }
        };
        let pinned = self.shared.index().has_pin(&bytes);
        self.mark_lost(&bytes);
        self.delete(&bytes);
        self.shared.stats.corrupt_blocks.inc();
        error!(?key, pinned, %reason, "a block on disk is corrupt; it was deleted and is fetched again on demand");
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if let Some(error) = &self.sync_error {
            return Err(error.clone());
        }
        let synced = self.shared.backing.sync();
        if let Err(error) = &synced {
            error!(
                %error,
                "the disk failed to sync, so that written data may be lost: no pin can be completed until the gateway \
                 is restarted"
            );
            self.sync_error = Some(error.clone());
        }
        synced
    }

    fn answer_flushes(&mut self) {
        if self.flushes.is_empty() || !self.is_idle() {
            return;
        }
        let synced = self.sync();
        for reply in self.flushes.drain(..) {
            _ = reply.send(synced.clone());
        }
    }

    fn close(&mut self, reply: Reply<Result<(), StoreError>>) -> Next {
        // From here on callers get an error instead of waiting for room.
        self.room.close();
        let synced = self.sync();
        for flush in self.flushes.drain(..) {
            _ = flush.send(synced.clone());
        }
        self.publish();
        _ = reply.send(synced);
        Next::Stop
    }

    /// Records a failed write, and logs the first one.
    fn note_write_error(&mut self, error: &StoreError) {
        self.shared.stats.write_errors.inc();
        if self.failing.replace(DegradedReason::of(error)).is_none() {
            error!(%error, "writes to the disk fail: nothing is cached on it and pins fail until it recovers");
        }
    }

    /// Records a successful write, and logs the recovery.
    fn note_recovery(&mut self) {
        if self.failing.take().is_some() {
            info!("writes to the disk succeed again");
        }
    }

    fn publish(&self) {
        let (stats, index) = (&self.shared.stats, self.shared.index());
        stats.cached_bytes.store(index.cached_bytes(), Ordering::Relaxed);
        stats.pinned_bytes.store(index.pinned_bytes(), Ordering::Relaxed);
        stats.blocks.store(index.count(), Ordering::Relaxed);
        stats.set_trouble(self.sync_error.as_ref().map_or(self.failing, |_| Some(DegradedReason::Broken)));
    }
}

impl Batch {
    /// Removes the value that was added last.
    fn remove_last(&mut self, key: &Key) {
        self.by_key.remove(key);
        self.values.pop();
    }
}
