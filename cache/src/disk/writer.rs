//! The one thread that changes the store, and the queue that leads to it.
//!
//! Commands are taken as they came, grouped, and each group is written as one batch: a group is in the store as a whole
//! or not at all, and so are the sums that it carries. Between groups the thread evicts what is over budget and lets go
//! of the members of removed pins, a chunk at a time, so that neither holds up what is waiting for long.
//!
//! A write that fails takes its group with it: cached blocks are dropped and counted, pins get the error. Sequence and
//! pin numbers that it used are not used again, in case that part of it is found in the log after a crash.

use super::schema::{
    BLOCKS, BLOCKS_BY_PIN, FIFO, INDEX, IndexRecord, KEY_TOTALS, META, PINS, PINS_BY_BLOCK, PinId, PinRecord, Totals,
    block_of_pin, member, pin_of_block, release_key, released_pin,
};
use super::store::{Store, fifo_seq};
use super::value::Encoder;
use super::{DiskOptions, Stats, StoreError};
use crate::pins::{PinError, PinState, PinSummary};
use bytes::Bytes;
use content::{BlockKey, Cid};
use rocksdb::WriteBatch;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::{error, info, warn};

/// A group is written when it has grown to this size, or when nothing more is waiting.
const GROUP_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The most blocks that one eviction or release batch removes.
const CHUNK_ROWS: usize = 1024;

/// What a command takes in the queue beside its block, in bytes.
const COMMAND_BYTES: usize = 512;

/// Eviction goes on to this fraction below the budget, so that a full cache is not cut at every group.
const SLACK: u64 = 64;

/// Room that a command holds in the queue until its group is written.
pub(crate) type Room = OwnedSemaphorePermit;

type Reply<T> = oneshot::Sender<T>;

pub(crate) enum Command {
    /// Keep a block while there is room.
    Cache { key: BlockKey, data: Bytes, room: Room },
    /// Forget a block whose value could not be read.
    Forget { key: BlockKey, room: Room },
    /// Begin a pin, or go on with the one that this root has.
    Begin { root: Cid, name: Option<String>, reply: Reply<Result<PinId, StoreError>> },
    /// Begin a scaffold: a pin without a root or record that protects blocks until it is released or the store reopened.
    Scaffold { reply: Reply<Result<PinId, StoreError>> },
    /// Keep a block as a member of a pin.
    Member { key: BlockKey, data: Bytes, attempt: Arc<Attempt>, room: Room },
    /// Mark a pin complete, if all of its members were written.
    Finish { attempt: Arc<Attempt>, reply: Reply<Result<PinSummary, PinError>> },
    /// Take a pin away; its members are let go later.
    Remove { root: Cid, reply: Reply<Result<bool, StoreError>> },
    /// Let go of a scaffold.
    Release { pin: PinId },
    /// Answer when everything before is on the disk.
    Flush { reply: Reply<Result<(), StoreError>> },
    /// The same, and stop.
    Close { reply: Reply<Result<(), StoreError>> },
}

/// One effort to pin something: its members go to the writer without waiting for each, so the first failure is kept here.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) pin: PinId,
    /// `None` for a scaffold.
    pub(crate) root: Option<Cid>,
    failure: OnceLock<Failure>,
}

#[derive(Debug, Clone)]
enum Failure {
    Store(StoreError),
    Removed,
}

impl Attempt {
    pub(crate) fn new(pin: PinId, root: Option<Cid>) -> Arc<Self> {
        Arc::new(Self { pin, root, failure: OnceLock::new() })
    }

    fn fail(&self, failure: Failure) {
        _ = self.failure.set(failure);
    }

    /// The first thing that went wrong, if anything did.
    pub(crate) fn check(&self) -> Result<(), PinError> {
        match (self.failure.get(), self.root) {
            (None, _) => Ok(()),
            (Some(Failure::Store(error)), _) => Err(PinError::Store(error.clone())),
            (Some(Failure::Removed), Some(root)) => Err(PinError::Removed { root }),
            (Some(Failure::Removed), None) => Err(PinError::Store(StoreError::Closed)),
        }
    }
}

/// The way to the writer: bounded in bytes. Dropping it ends the writer after what is queued, and waits for that.
#[derive(Debug)]
pub(crate) struct Queue {
    sender: Option<Sender<Command>>,
    room: Arc<Semaphore>,
    bytes_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    pub(crate) fn start(store: Arc<Store>, stats: Arc<Stats>, options: &DiskOptions) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        // The largest block must fit, and tokio counts permits of one caller in 32 bits.
        let bytes_max = options.queue_bytes_max.clamp(content::MAX_BLOCK_BYTES + COMMAND_BYTES, 1 << 30);
        let room = Arc::new(Semaphore::new(bytes_max));
        let writer = Writer::new(store, stats, options.cache_bytes_max, Arc::clone(&room))?;
        let thread = std::thread::Builder::new().name("disk-writer".to_owned());
        let thread = thread.spawn(move || writer.run(&receiver)).map_err(StoreError::io)?;
        Ok(Self { sender: Some(sender), room, bytes_max, thread: Some(thread) })
    }

    /// Waits until a block of this size has room.
    pub(crate) async fn room(&self, data_bytes: usize) -> Result<Room, StoreError> {
        let room = Arc::clone(&self.room).acquire_many_owned(self.permits(data_bytes));
        room.await.map_err(|_| StoreError::Closed)
    }

    /// Room for a block of this size, if there is some now.
    pub(crate) fn try_room(&self, data_bytes: usize) -> Option<Room> {
        Arc::clone(&self.room).try_acquire_many_owned(self.permits(data_bytes)).ok()
    }

    fn permits(&self, data_bytes: usize) -> u32 {
        u32::try_from((data_bytes + COMMAND_BYTES).min(self.bytes_max)).unwrap_or(u32::MAX)
    }

    pub(crate) fn send(&self, command: Command) -> Result<(), StoreError> {
        let sender = self.sender.as_ref().ok_or(StoreError::Closed)?;
        sender.send(command).map_err(|_| StoreError::Closed)
    }

    /// Sends a command and waits for its answer.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.map_err(|_| StoreError::Closed)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has said so already.
            _ = thread.join();
        }
    }
}

/// What a caller hears when its group is written or is not.
type Notice = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// One batch in the making, with a view of the rows that it changes: later commands of a group see the earlier ones.
struct Group {
    batch: WriteBatch,
    index: HashMap<BlockKey, Option<IndexRecord>>,
    members: HashSet<(BlockKey, PinId)>,
    pins: HashMap<Cid, Option<PinRecord>>,
    totals: Totals,
    sync: bool,
    cached: u64,
    attempts: Vec<Arc<Attempt>>,
    notices: Vec<Notice>,
    rooms: Vec<Room>,
}

impl Group {
    fn new(totals: Totals) -> Self {
        Self {
            batch: WriteBatch::default(),
            index: HashMap::new(),
            members: HashSet::new(),
            pins: HashMap::new(),
            totals,
            sync: false,
            cached: 0,
            attempts: Vec::new(),
            notices: Vec::new(),
            rooms: Vec::new(),
        }
    }

    fn full(&self) -> bool {
        self.batch.size_in_bytes() >= GROUP_BYTES_MAX || self.rooms.len() >= CHUNK_ROWS
    }
}

/// Whether the thread goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

struct Writer {
    store: Arc<Store>,
    stats: Arc<Stats>,
    encoder: Encoder,
    cache_bytes_max: u64,
    totals: Totals,
    /// Pins whose members are still to be let go.
    releasing: VecDeque<PinId>,
    /// Whoever waits for that to end.
    flushes: Vec<Reply<Result<(), StoreError>>>,
    /// The disk refuses writes: said once, not for every batch.
    failing: bool,
    room: Arc<Semaphore>,
}

impl Drop for Writer {
    /// However the thread ends, nobody must wait for room that will never come.
    fn drop(&mut self) {
        self.room.close();
    }
}

impl Writer {
    fn new(
        store: Arc<Store>,
        stats: Arc<Stats>,
        cache_bytes_max: u64,
        room: Arc<Semaphore>,
    ) -> Result<Self, StoreError> {
        let encoder = Encoder::new().map_err(StoreError::io)?;
        let totals = store.totals()?;
        let releasing = leftovers(&store)?;
        let writer = Self {
            store,
            stats,
            encoder,
            cache_bytes_max,
            totals,
            releasing,
            flushes: Vec::new(),
            failing: false,
            room,
        };
        writer.publish();
        Ok(writer)
    }

    fn run(mut self, commands: &Receiver<Command>) {
        self.evict();
        while let Some(first) = self.next(commands) {
            let next = match first {
                Some(first) => self.group(first, commands),
                None => self.release_chunk(),
            };
            if next == Next::Stop {
                return;
            }
            self.evict();
            self.answer_flushes();
        }
        if let Err(error) = self.store.sync() {
            error!(%error, "the disk refused to sync when the store was closed");
        }
    }

    /// The next command; `Some(None)` when there is only background work; `None` when all handles are gone.
    fn next(&self, commands: &Receiver<Command>) -> Option<Option<Command>> {
        if self.releasing.is_empty() {
            return commands.recv().ok().map(Some);
        }
        match commands.try_recv() {
            Ok(command) => Some(Some(command)),
            Err(TryRecvError::Empty) => Some(None),
            // What is left to release is released when the store is opened again.
            Err(TryRecvError::Disconnected) => None,
        }
    }

    /// Takes commands until the group is full or nobody waits, and writes it.
    fn group(&mut self, first: Command, commands: &Receiver<Command>) -> Next {
        let mut group = Group::new(self.totals);
        let mut command = Some(first);
        while let Some(current) = command {
            match current {
                Command::Flush { reply } => {
                    self.commit(group);
                    self.flushes.push(reply);
                    return Next::Continue;
                }
                Command::Close { reply } => {
                    self.commit(group);
                    return self.close(reply);
                }
                Command::Forget { key, room } => {
                    // Read and judged again with nothing pending: the block may have been replaced meanwhile.
                    self.commit(group);
                    self.forget(&key);
                    drop(room);
                    return Next::Continue;
                }
                Command::Remove { root, reply } => {
                    self.commit(group);
                    self.remove(root, reply);
                    return Next::Continue;
                }
                Command::Release { pin } => {
                    self.commit(group);
                    self.releasing.push_back(pin);
                    return Next::Continue;
                }
                other => self.stage(&mut group, other),
            }
            command = if group.full() { None } else { commands.try_recv().ok() };
        }
        self.commit(group);
        Next::Continue
    }

    /// Adds a command to the group. One that cannot be added fails by itself and leaves the group as it was: rows are
    /// looked up before any is staged.
    fn stage(&mut self, group: &mut Group, command: Command) {
        match command {
            Command::Cache { key, data, room } => {
                group.rooms.push(room);
                match self.stage_cached(group, key, &data) {
                    Ok(()) => group.cached += 1,
                    Err(error) => self.drop_cached(1, &error),
                }
            }
            Command::Member { key, data, attempt, room } => {
                group.rooms.push(room);
                if let Err(failure) = self.stage_member(group, key, &data, &attempt) {
                    attempt.fail(failure);
                }
                if group.attempts.last().is_none_or(|last| !Arc::ptr_eq(last, &attempt)) {
                    group.attempts.push(attempt);
                }
            }
            Command::Begin { root, name, reply } => {
                let pin = self.stage_begin(group, root, name);
                notify(group, pin, reply);
            }
            Command::Scaffold { reply } => {
                let pin = self.stage_scaffold(group);
                notify(group, pin, reply);
            }
            Command::Finish { attempt, reply } => self.stage_finish(group, attempt, reply),
            // Handled by `group`.
            Command::Forget { .. }
            | Command::Remove { .. }
            | Command::Release { .. }
            | Command::Flush { .. }
            | Command::Close { .. } => {}
        }
    }

    fn stage_cached(&mut self, group: &mut Group, key: BlockKey, data: &[u8]) -> Result<(), StoreError> {
        if self.index(group, &key)?.is_some() {
            return Ok(());
        }
        // A member of a pin that was found damaged and forgotten comes back as a member.
        let seq = if self.has_pin(&key, None)? { 0 } else { group.totals.take_seq() };
        self.stage_block(group, key, data, seq)
    }

    fn stage_member(
        &mut self,
        group: &mut Group,
        key: BlockKey,
        data: &[u8],
        attempt: &Attempt,
    ) -> Result<(), Failure> {
        let mut record = self.record_of(group, attempt)?;
        let block = key.to_bytes();
        let rows = (pin_of_block(&block, attempt.pin), block_of_pin(attempt.pin, &block));
        let is_member = group.members.contains(&(key, attempt.pin)) || self.store.holds(PINS_BY_BLOCK, &rows.0)?;
        match self.index(group, &key)? {
            None => self.stage_block(group, key, data, 0)?,
            Some(held) => self.move_to(group, key, held, 0)?,
        }
        if is_member {
            return Ok(());
        }
        group.batch.put_cf(self.store.family(PINS_BY_BLOCK)?, rows.0, []);
        group.batch.put_cf(self.store.family(BLOCKS_BY_PIN)?, rows.1, []);
        group.members.insert((key, attempt.pin));
        if let (Some(root), Some(record)) = (attempt.root, record.as_mut()) {
            record.blocks += 1;
            record.bytes += data.len() as u64;
            self.stage_pin(group, root, record.clone())?;
        }
        Ok(())
    }

    /// The record of an attempt's pin; `None` for a scaffold, which has none.
    fn record_of(&self, group: &Group, attempt: &Attempt) -> Result<Option<PinRecord>, Failure> {
        let Some(root) = attempt.root else { return Ok(None) };
        match self.pin(group, root)? {
            Some(record) if record.id == attempt.pin => Ok(Some(record)),
            _ => Err(Failure::Removed),
        }
    }

    fn stage_begin(&self, group: &mut Group, root: Cid, name: Option<String>) -> Result<PinId, StoreError> {
        let record = match self.pin(group, root)? {
            Some(record) if name.is_none() => return Ok(record.id),
            Some(record) => PinRecord { name, ..record },
            None => PinRecord::new(take_pin(group), name),
        };
        let pin = record.id;
        self.stage_pin(group, root, record)?;
        Ok(pin)
    }

    fn stage_scaffold(&self, group: &mut Group) -> Result<PinId, StoreError> {
        let meta = self.store.family(META)?;
        let pin = take_pin(group);
        group.batch.put_cf(meta, release_key(pin), []);
        Ok(pin)
    }

    fn stage_finish(&self, group: &mut Group, attempt: Arc<Attempt>, reply: Reply<Result<PinSummary, PinError>>) {
        let summary = match self.finished(group, &attempt) {
            Ok(summary) => summary,
            Err(error) => {
                _ = reply.send(Err(error));
                return;
            }
        };
        group.sync = true;
        let notice = move |written: Result<(), StoreError>| {
            // Members of the same group failed or were written with it; earlier groups have told the attempt.
            _ = reply.send(written.map_err(PinError::Store).and_then(|()| attempt.check()).map(|()| summary));
        };
        group.notices.push(Box::new(notice));
    }

    fn finished(&self, group: &mut Group, attempt: &Attempt) -> Result<PinSummary, PinError> {
        attempt.check()?;
        let Some(root) = attempt.root else { return Err(PinError::Store(StoreError::Closed)) };
        let record = self.pin(group, root)?.filter(|record| record.id == attempt.pin);
        let record = record.ok_or(PinError::Removed { root })?;
        if let Some(key) = BlockKey::of(&root)
            && !group.members.contains(&(key, attempt.pin))
            && !self.store.holds(PINS_BY_BLOCK, &pin_of_block(&key.to_bytes(), attempt.pin))?
        {
            return Err(PinError::RootMissing { root });
        }
        let record = PinRecord { state: PinState::Complete, ..record };
        let summary = record.summary(root);
        self.stage_pin(group, root, record)?;
        Ok(summary)
    }

    /// Stages a block that is not held yet.
    fn stage_block(&mut self, group: &mut Group, key: BlockKey, data: &[u8], seq: u64) -> Result<(), StoreError> {
        let (blocks, index, fifo) = (self.store.family(BLOCKS)?, self.store.family(INDEX)?, self.store.family(FIFO)?);
        let block = key.to_bytes();
        let value = self.encoder.encode(data);
        let size = |len: usize| u32::try_from(len).map_err(|_| StoreError::io("a block is larger than 4 GiB"));
        let record = IndexRecord { size: size(data.len())?, stored: size(value.len())?, seq };
        group.batch.put_cf(blocks, &block, value);
        group.batch.put_cf(index, &block, record.to_bytes());
        if !record.pinned() {
            group.batch.put_cf(fifo, seq.to_be_bytes(), &block);
        }
        group.totals.add(record);
        group.index.insert(key, Some(record));
        Ok(())
    }

    /// Gives a block that is held another place: `seq` in the fifo, or 0 for pinned.
    fn move_to(&self, group: &mut Group, key: BlockKey, held: IndexRecord, seq: u64) -> Result<(), StoreError> {
        if held.seq == seq {
            return Ok(());
        }
        let (index, fifo) = (self.store.family(INDEX)?, self.store.family(FIFO)?);
        let block = key.to_bytes();
        let record = IndexRecord { seq, ..held };
        if !held.pinned() {
            group.batch.delete_cf(fifo, held.seq.to_be_bytes());
        }
        if !record.pinned() {
            group.batch.put_cf(fifo, seq.to_be_bytes(), &block);
        }
        group.batch.put_cf(index, &block, record.to_bytes());
        group.totals.remove(held);
        group.totals.add(record);
        group.index.insert(key, Some(record));
        Ok(())
    }

    fn stage_pin(&self, group: &mut Group, root: Cid, record: PinRecord) -> Result<(), StoreError> {
        group.batch.put_cf(self.store.family(PINS)?, root.to_bytes(), record.to_bytes());
        group.pins.insert(root, Some(record));
        Ok(())
    }

    fn index(&self, group: &Group, key: &BlockKey) -> Result<Option<IndexRecord>, StoreError> {
        match group.index.get(key) {
            Some(staged) => Ok(*staged),
            None => self.store.index(&key.to_bytes()),
        }
    }

    fn pin(&self, group: &Group, root: Cid) -> Result<Option<PinRecord>, StoreError> {
        match group.pins.get(&root) {
            Some(staged) => Ok(staged.clone()),
            None => self.store.pin(&root.to_bytes()),
        }
    }

    /// Whether a pin other than `except` has the block as a member, by what is written.
    fn has_pin(&self, key: &BlockKey, except: Option<PinId>) -> Result<bool, StoreError> {
        let block = key.to_bytes();
        let except = except.map(|pin| pin_of_block(&block, pin));
        for row in self.store.keys_with_prefix(PINS_BY_BLOCK, &block)? {
            if except.as_deref() != Some(&*row?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the group and tells everyone who has a part in it.
    fn commit(&mut self, mut group: Group) {
        let written = self.write(&mut group);
        if let Err(error) = &written {
            self.drop_cached(group.cached, error);
            for attempt in &group.attempts {
                attempt.fail(Failure::Store(error.clone()));
            }
        }
        for notice in group.notices {
            notice(written.clone());
        }
    }

    fn write(&mut self, group: &mut Group) -> Result<(), StoreError> {
        if group.batch.is_empty() && !group.sync {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut group.batch);
        batch.put_cf(self.store.family(META)?, KEY_TOTALS, group.totals.to_bytes());
        let written = self.store.write(batch, group.sync);
        match &written {
            Ok(()) => self.totals = group.totals,
            Err(_) => {
                self.totals.next_seq = group.totals.next_seq;
                self.totals.next_pin = group.totals.next_pin;
            }
        }
        self.note(&written);
        self.publish();
        written
    }

    /// Says when the disk begins to refuse writes and when it stops.
    fn note(&mut self, written: &Result<(), StoreError>) {
        match written {
            Ok(()) if self.failing => info!("the disk takes writes again"),
            Ok(()) => {}
            Err(error) => {
                self.stats.write_errors.inc();
                if !self.failing {
                    error!(%error, "the disk refuses writes: nothing is cached on it and pins fail until it recovers");
                }
            }
        }
        self.failing = written.is_err();
    }

    fn drop_cached(&self, blocks: u64, error: &StoreError) {
        if blocks > 0 {
            self.stats.dropped_writes.inc_by(blocks);
            tracing::debug!(blocks, %error, "blocks were not cached");
        }
    }

    fn publish(&self) {
        self.stats.cached_bytes.store(self.totals.cached_bytes, Ordering::Relaxed);
        self.stats.pinned_bytes.store(self.totals.pinned_bytes, Ordering::Relaxed);
        self.stats.blocks.store(self.totals.blocks, Ordering::Relaxed);
    }

    /// Removes the oldest blocks that are not pinned until the rest is within the budget.
    fn evict(&mut self) {
        while self.totals.cached_bytes > self.cache_bytes_max {
            if let Err(error) = self.evict_chunk() {
                // Tried again after the next group.
                warn!(%error, "blocks could not be evicted");
                return;
            }
        }
    }

    fn evict_chunk(&mut self) -> Result<(), StoreError> {
        let target = self.cache_bytes_max - self.cache_bytes_max / SLACK;
        let mut group = Group::new(self.totals);
        let (mut blocks, mut rows) = (0, 0);
        for row in self.store.rows_from(FIFO, &self.totals.head.to_be_bytes())?.take(CHUNK_ROWS) {
            if group.totals.cached_bytes <= target {
                break;
            }
            let (seq, block) = row?;
            let seq = fifo_seq(&seq)?;
            rows += 1;
            blocks += u64::from(self.stage_eviction(&mut group, seq, &block)?);
            group.totals.head = seq + 1;
        }
        if rows == 0 {
            // Nothing is left to evict, so the sum is wrong: a batch that failed can leave that behind.
            warn!(bytes = self.totals.cached_bytes, "the store's sums were off and have been put right");
            group.totals.cached_bytes = 0;
            group.sync = true;
        }
        let bytes = self.totals.cached_bytes - group.totals.cached_bytes;
        self.write(&mut group)?;
        if rows > 0 {
            self.stats.evicted_blocks.inc_by(blocks);
            self.stats.evicted_bytes.inc_by(bytes);
        }
        Ok(())
    }

    /// Whether there was a block to evict: a row may be left over from a batch that failed.
    fn stage_eviction(&self, group: &mut Group, seq: u64, block: &[u8]) -> Result<bool, StoreError> {
        group.batch.delete_cf(self.store.family(FIFO)?, seq.to_be_bytes());
        let record = self.store.index(block)?.filter(|record| record.seq == seq);
        if let Some(record) = record {
            self.stage_deletion(group, block, record)?;
        }
        Ok(record.is_some())
    }

    fn stage_deletion(&self, group: &mut Group, block: &[u8], record: IndexRecord) -> Result<(), StoreError> {
        group.batch.delete_cf(self.store.family(BLOCKS)?, block);
        group.batch.delete_cf(self.store.family(INDEX)?, block);
        group.totals.remove(record);
        Ok(())
    }

    /// Forgets a block if its value still cannot be read.
    fn forget(&mut self, key: &BlockKey) {
        let block = key.to_bytes();
        let Err(StoreError::Corrupt(reason)) = self.store.block(&block) else { return };
        self.stats.corrupt_blocks.inc();
        match self.forget_block(&block) {
            Ok(pinned) => error!(?key, pinned, %reason, "a block is damaged on disk: forgotten, to be fetched again"),
            Err(error) => error!(?key, %reason, %error, "a block is damaged on disk and cannot be forgotten"),
        }
    }

    fn forget_block(&mut self, block: &[u8]) -> Result<bool, StoreError> {
        let mut group = Group::new(self.totals);
        let record = self.store.index(block)?;
        match record {
            Some(record) => {
                if !record.pinned() {
                    group.batch.delete_cf(self.store.family(FIFO)?, record.seq.to_be_bytes());
                }
                self.stage_deletion(&mut group, block, record)?;
            }
            None => group.batch.delete_cf(self.store.family(BLOCKS)?, block),
        }
        self.write(&mut group)?;
        Ok(record.is_some_and(IndexRecord::pinned))
    }

    /// The pin is gone when this is answered; its members follow a chunk at a time.
    fn remove(&mut self, root: Cid, reply: Reply<Result<bool, StoreError>>) {
        let removed = self.remove_record(root);
        if let Ok(Some(pin)) = removed {
            self.releasing.push_back(pin);
        }
        _ = reply.send(removed.map(|pin| pin.is_some()));
    }

    fn remove_record(&mut self, root: Cid) -> Result<Option<PinId>, StoreError> {
        let Some(record) = self.store.pin(&root.to_bytes())? else { return Ok(None) };
        let mut group = Group::new(self.totals);
        group.batch.delete_cf(self.store.family(PINS)?, root.to_bytes());
        group.batch.put_cf(self.store.family(META)?, release_key(record.id), []);
        group.sync = true;
        self.write(&mut group)?;
        Ok(Some(record.id))
    }

    /// Lets go of some members of the pin that is first in line.
    fn release_chunk(&mut self) -> Next {
        let Some(pin) = self.releasing.front().copied() else { return Next::Continue };
        match self.release_members(pin) {
            Ok(0) => _ = self.releasing.pop_front(),
            Ok(_) => {}
            Err(error) => {
                // Its mark stays in `meta`, so it is taken up again when the store is opened.
                warn!(pin = pin.0, %error, "the members of a removed pin could not be let go");
                self.releasing.pop_front();
            }
        }
        Next::Continue
    }

    fn release_members(&mut self, pin: PinId) -> Result<usize, StoreError> {
        let mut group = Group::new(self.totals);
        let prefix = pin.0.to_be_bytes();
        let mut members = 0;
        for row in self.store.keys_with_prefix(BLOCKS_BY_PIN, &prefix)?.take(CHUNK_ROWS) {
            self.stage_release(&mut group, pin, &row?)?;
            members += 1;
        }
        if members == 0 {
            group.batch.delete_cf(self.store.family(META)?, release_key(pin));
        }
        self.write(&mut group)?;
        Ok(members)
    }

    fn stage_release(&self, group: &mut Group, pin: PinId, row: &[u8]) -> Result<(), StoreError> {
        group.batch.delete_cf(self.store.family(BLOCKS_BY_PIN)?, row);
        let block = member(row, pin).unwrap_or_default();
        group.batch.delete_cf(self.store.family(PINS_BY_BLOCK)?, pin_of_block(block, pin));
        let key = BlockKey::from_bytes(block).ok_or_else(|| StoreError::corrupt("a pin's member is malformed"))?;
        let held = self.index(group, &key)?;
        match held {
            Some(held) if held.pinned() && !self.has_pin(&key, Some(pin))? => {
                let seq = group.totals.take_seq();
                self.move_to(group, key, held, seq)
            }
            _ => Ok(()),
        }
    }

    fn answer_flushes(&mut self) {
        if !self.releasing.is_empty() || self.flushes.is_empty() {
            return;
        }
        let synced = self.store.sync();
        for reply in self.flushes.drain(..) {
            _ = reply.send(synced.clone());
        }
    }

    fn close(&mut self, reply: Reply<Result<(), StoreError>>) -> Next {
        // From here on callers are refused instead of waiting for room.
        self.room.close();
        let synced = self.store.sync();
        for flush in self.flushes.drain(..) {
            _ = flush.send(synced.clone());
        }
        _ = reply.send(synced);
        Next::Stop
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn take_pin(group: &mut Group) -> PinId {
    let pin = PinId(group.totals.next_pin);
    group.totals.next_pin += 1;
    pin
}

/// Answers with what was staged when it is written, or at once with what kept it from being staged.
fn notify<T: Send + 'static>(group: &mut Group, staged: Result<T, StoreError>, reply: Reply<Result<T, StoreError>>) {
    match staged {
        Ok(value) => group.notices.push(Box::new(move |written| _ = reply.send(written.map(|()| value)))),
        Err(error) => _ = reply.send(Err(error)),
    }
}

/// Pins that were being released, and scaffolds that stood, when the store was last closed or its process killed.
fn leftovers(store: &Store) -> Result<VecDeque<PinId>, StoreError> {
    let rows = store.keys_with_prefix(META, b"release/")?;
    rows.filter_map(|row| row.map(|key| released_pin(&key)).transpose()).collect()
}
