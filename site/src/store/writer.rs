//! [`Writer`]: writes blocks to the shared storage in batches, in the background.
//!
//! Goals: batches become larger when the storage is slow: while one of a pin is written, its next one is gathered; a
//! batch is not begun for a first block when the others follow at once; memory is bounded in bytes, and cached blocks
//! never delay those of pins; a pin is completed only after every member of it was written.
//!
//! Non-goals: whether a block is stored, and in which steps it becomes so ([`SharedBlocks`]).

use super::ahead::WriteAhead;
use super::encoding::encode;
use super::{Withheld, is_withheld};
use crate::blocks::{PinAttempt as SharedPin, SharedBlocks, WrittenObject};
use cache::pins::{MemberFailure, PinAttempt};
use cache::{BlockStore, PinError, StoreError};
use content::stored::CompressionOptions;
use content::{Block, BlockKey, Cid, MAX_BLOCK_BYTES, SourceError};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};

/// The size of queued blocks, in bytes: of pins, and of those to be cached.
const MEMBERS_BYTES_MAX: usize = 32 << 20;
const CACHED_BYTES_MAX: usize = 16 << 20;
/// What a queued block takes besides its bytes.
const ITEM_BYTES: usize = 512;
/// Blocks of a batch, and the size of those that are encoded and sent at the same time for it, in bytes.
const BATCH_BLOCKS: usize = 256;
const PART_BYTES: usize = 8 << 20;
/// Batches that are written at the same time, each for another pin.
const BATCHES: usize = 4;
/// How long a batch is gathered that is not full and not waited for: blocks of a DAG that is on the own disk
/// follow each other within microseconds.
const GATHER_TIME: Duration = Duration::from_millis(5);

/// A block to be stored.
#[derive(Debug)]
pub(super) enum Item {
    /// It is here.
    Block(Block),
    /// It is in the shared storage, or on the own disk.
    Held(Cid),
}

impl Item {
    fn key(&self) -> Option<BlockKey> {
        BlockKey::of(match self {
            Self::Block(block) => block.cid(),
            Self::Held(cid) => cid,
        })
    }

    fn bytes(&self) -> usize {
        ITEM_BYTES
            + match self {
                Self::Block(block) => block.memory_bytes(),
                Self::Held(_) => 0,
            }
    }
}

type Attempt = Option<Arc<PinAttempt>>;

struct Queued {
    item: Item,
    _room: OwnedSemaphorePermit,
}

enum Command {
    /// A block, as a member of a pin if one is given.
    Put { attempt: Attempt, queued: Box<Queued> },
    /// Replies when what was put before for the attempt has been written, or has failed.
    Settle { attempt: Attempt, reply: oneshot::Sender<()> },
    /// The same for all members of pins, or for all blocks.
    SettleAll { which: Which, reply: oneshot::Sender<Vec<oneshot::Receiver<()>>> },
    /// Blocks that are only to be cached are not written any more.
    DropCached,
}

/// Which blocks are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those of pins.
    Members,
    /// Also those that are to be cached.
    All,
}

/// The writer of a store. When it is dropped, what is queued is written if the runtime lasts.
#[derive(Debug)]
pub(super) struct Writer {
    commands: mpsc::UnboundedSender<Command>,
    members_room: Arc<Semaphore>,
    cached_room: Arc<Semaphore>,
}

impl Writer {
    /// Starts the task that writes.
    pub(super) fn start(target: Target) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        let task = Task { target, batches: Vec::new(), running: JoinSet::new() };
        tokio::spawn(task.run(receiver));
        let room = |bytes| Arc::new(Semaphore::new(bytes));
        Self { commands, members_room: room(MEMBERS_BYTES_MAX), cached_room: room(CACHED_BYTES_MAX) }
    }

    /// Queues a member of a pin, when there is room.
    pub(super) async fn put_member(&self, item: Item, attempt: &Arc<PinAttempt>) -> Result<(), StoreError> {
        let room = Arc::clone(&self.members_room).acquire_many_owned(permits(&item));
        let queued = Queued { _room: room.await.map_err(|_| StoreError::Closed)?, item };
        self.send(Command::Put { attempt: Some(Arc::clone(attempt)), queued: Box::new(queued) })
    }

    /// Queues a block to be cached, if there is room.
    pub(super) fn try_cache(&self, block: Block) -> Result<(), StoreError> {
        let item = Item::Block(block);
        let room = Arc::clone(&self.cached_room).try_acquire_many_owned(permits(&item));
        let queued = Queued { _room: room.map_err(|_| StoreError::Busy)?, item };
        self.send(Command::Put { attempt: None, queued: Box::new(queued) })
    }

    /// Completes when every member of an attempt has been written, or has failed.
    pub(super) async fn settled(&self, attempt: &Arc<PinAttempt>) -> Result<(), StoreError> {
        let (reply, settled) = oneshot::channel();
        self.send(Command::Settle { attempt: Some(Arc::clone(attempt)), reply })?;
        settled.await.map_err(|_| StoreError::Closed)
    }

    /// Completes when what was put before has been written, or has failed.
    pub(super) async fn written(&self, which: Which) -> Result<(), StoreError> {
        let (reply, all) = oneshot::channel();
        self.send(Command::SettleAll { which, reply })?;
        for settled in all.await.map_err(|_| StoreError::Closed)? {
            settled.await.map_err(|_| StoreError::Closed)?;
        }
        Ok(())
    }

    /// Accepts nothing more, and drops what is only to be cached.
    pub(super) fn close(&self) {
        self.members_room.close();
        self.cached_room.close();
        _ = self.send(Command::DropCached);
    }

    fn send(&self, command: Command) -> Result<(), StoreError> {
        self.commands.send(command).map_err(|_| StoreError::Closed)
    }
}

fn permits(item: &Item) -> u32 {
    // A block fits into each of the queues.
    const { assert!(2 * MAX_BLOCK_BYTES + ITEM_BYTES < CACHED_BYTES_MAX) }
    u32::try_from(item.bytes().min(CACHED_BYTES_MAX)).unwrap_or(u32::MAX)
}

/// What is queued for one attempt, or to be cached.
struct Batch {
    attempt: Attempt,
    items: Vec<Queued>,
    /// The size of these, in bytes, and since when the first one of them waits.
    bytes: usize,
    since: Instant,
    /// How many were put, and how many of these, in their order, have been written or have failed.
    put: u64,
    done: u64,
    /// The task that writes some of them, and how many.
    running: Option<(Id, u64)>,
    /// Callers that wait, each with the number of blocks that it waits for.
    waiting: Vec<(u64, oneshot::Sender<()>)>,
}

impl Batch {
    fn of(attempt: Attempt) -> Self {
        let (bytes, since) = (0, Instant::now());
        Self { attempt, items: Vec::new(), bytes, since, put: 0, done: 0, running: None, waiting: Vec::new() }
    }

    fn push(&mut self, queued: Queued) {
        if self.items.is_empty() {
            self.since = Instant::now();
        }
        self.put += 1;
        self.bytes += queued.item.bytes();
        self.items.push(queued);
    }

    /// The items of the next part.
    fn take(&mut self) -> Vec<Queued> {
        let count = self.items.len().min(BATCH_BLOCKS);
        let items: Vec<Queued> = self.items.drain(..count).collect();
        self.bytes -= items.iter().map(|queued| queued.item.bytes()).sum::<usize>();
        items
    }

    /// When the next part is to be written, if there is one and none is being written; now, if it is full or waited for.
    fn due(&self) -> Option<Instant> {
        if self.items.is_empty() || self.running.is_some() {
            return None;
        }
        let is_full = self.items.len() >= BATCH_BLOCKS || self.bytes >= PART_BYTES;
        Some(if is_full || !self.waiting.is_empty() { self.since } else { self.since + GATHER_TIME })
    }

    /// Replies when all that was put so far is done.
    fn wait(&mut self, reply: oneshot::Sender<()>) {
        self.waiting.push((self.put, reply));
    }

    fn answer(&mut self) {
        let done = self.done;
        for (_, reply) in self.waiting.extract_if(.., |(count, _)| *count <= done) {
            // The caller may have left.
            _ = reply.send(());
        }
    }
}

struct Task {
    target: Target,
    /// Those with items, or of which a batch is being written. There are as many as there are pins in progress.
    batches: Vec<Batch>,
    running: JoinSet<()>,
}

fn is_same(one: &Attempt, other: &Attempt) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

impl Task {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut is_open = true;
        // What is queued is written also when nothing more is put.
        while is_open || !self.batches.is_empty() {
            let next_due = self.next_due();
            tokio::select! {
                () = sleep_until(next_due.unwrap_or_else(Instant::now)), if next_due.is_some() => {}
                command = commands.recv(), if is_open => match command {
                    Some(command) => self.take(command),
                    None => is_open = false,
                },
                Some(ended) = self.running.join_next_with_id(), if !self.running.is_empty() => match ended {
                    Ok((id, ())) => self.end(id, None),
                    Err(error) => self.end(error.id(), Some(StoreError::Closed)),
                },
            }
            self.start_batches();
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Put { attempt, queued } => self.batch(attempt).push(*queued),
            Command::Settle { attempt, reply } => self.batch(attempt).wait(reply),
            Command::DropCached => {
                for batch in self.batches.iter_mut().filter(|batch| batch.attempt.is_none()) {
                    batch.done += batch.items.len() as u64;
                    batch.items.clear();
                    batch.bytes = 0;
                }
            }
            Command::SettleAll { which, reply } => {
                let is_waited_for = |batch: &&mut Batch| which == Which::All || batch.attempt.is_some();
                let settled = self.batches.iter_mut().filter(is_waited_for).map(|batch| {
                    let (reply, settled) = oneshot::channel();
                    batch.wait(reply);
                    settled
                });
                // The caller may have left.
                _ = reply.send(settled.collect());
            }
        }
    }

    fn batch(&mut self, attempt: Attempt) -> &mut Batch {
        let index = self.batches.iter().position(|batch| is_same(&batch.attempt, &attempt)).unwrap_or_else(|| {
            self.batches.push(Batch::of(attempt));
            self.batches.len() - 1
        });
        &mut self.batches[index]
    }

    /// A task has ended, or has panicked: then its pin is not completed.
    fn end(&mut self, task: Id, failure: Option<StoreError>) {
        let is_ended = |batch: &&mut Batch| batch.running.is_some_and(|(running, _)| running == task);
        for batch in self.batches.iter_mut().filter(is_ended) {
            batch.done += batch.running.take().map_or(0, |(_, count)| count);
            if let (Some(failure), Some(attempt)) = (&failure, &batch.attempt) {
                attempt.fail(failure.clone().into());
            }
        }
    }

    /// When the next batch can be started.
    fn next_due(&self) -> Option<Instant> {
        match self.running.len() < BATCHES {
            true => self.batches.iter().filter_map(Batch::due).min(),
            false => None,
        }
    }

    /// Starts those that can be, and ends those of which nothing is left.
    fn start_batches(&mut self) {
        let now = Instant::now();
        for batch in self.batches.iter_mut().filter(|batch| batch.running.is_none()) {
            batch.answer();
            if batch.due().is_some_and(|due| due <= now) && self.running.len() < BATCHES {
                let items = batch.take();
                let count = items.len();
                let writing = self.target.clone().write_batch(batch.attempt.clone(), items);
                batch.running = Some((self.running.spawn(writing).id(), count as u64));
            }
        }
        self.batches.retain(|batch| batch.running.is_some() || !batch.items.is_empty());
        // Those that have waited longest are the next ones.
        self.batches.sort_by_key(|batch| batch.running.is_some());
    }
}

/// Where blocks are written.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) shared: SharedBlocks,
    /// The blocks of uploads, some of which are in the storage already.
    pub(super) ahead: WriteAhead,
    /// Where blocks are that are not given.
    pub(super) disk: Arc<dyn BlockStore>,
    pub(super) zstd: CompressionOptions,
    /// Blocks that are withheld by the time at which they are written are not.
    pub(super) is_withheld: Withheld,
}

impl Target {
    /// Writes a batch. Its attempt records a failure.
    async fn write_batch(self, attempt: Attempt, items: Vec<Queued>) {
        let written = match &attempt {
            // A member has failed before.
            Some(attempt) if attempt.check().is_err() => Ok(()),
            _ => self.write(attempt.as_deref(), items).await,
        };
        match (written, &attempt) {
            (Ok(()), _) => {}
            (Err(failure), Some(attempt)) => attempt.fail(failure),
            (Err(failure), None) => tracing::debug!(?failure, "blocks were not put into the site's storage"),
        }
    }

    async fn write(&self, attempt: Option<&PinAttempt>, items: Vec<Queued>) -> Result<(), MemberFailure> {
        let pin = attempt.and_then(shared_pin);
        let keys: BTreeSet<BlockKey> = items.iter().filter_map(|queued| queued.item.key()).collect();
        let stored: BTreeSet<BlockKey> = match &pin {
            Some(pin) => self.add_stored(keys, pin).await.map_err(failure)?,
            None => self.shared.locate(&Vec::from_iter(keys)).await?.into_keys().collect(),
        };
        let mut part = Part::default();
        for queued in items {
            // An identity CID has no key, and is not stored.
            let Some(key) = queued.item.key().filter(|key| !stored.contains(key)) else { continue };
            let block = self.block(&queued.item).await?;
            if is_withheld(&self.is_withheld, &key) {
                // A take-down has deleted it while it was waiting.
                match attempt {
                    Some(_) => return Err(MemberFailure::Missing(*block.cid())),
                    None => continue,
                }
            }
            part.add(key, block, queued);
            if part.bytes >= PART_BYTES {
                self.write_part(std::mem::take(&mut part), pin.as_ref()).await?;
            }
        }
        self.write_part(part, pin.as_ref()).await
    }

    /// Makes those of the blocks that are stored members of a pin, and those that were written ahead. Returns them.
    async fn add_stored(&self, keys: BTreeSet<BlockKey>, pin: &SharedPin) -> Result<BTreeSet<BlockKey>, PinError> {
        let ahead = self.ahead.take(&keys).await;
        let is_withheld = |written: &WrittenObject| is_withheld(&self.is_withheld, &written.object.key);
        let (withheld, ahead): (Vec<_>, Vec<_>) = ahead.into_iter().partition(is_withheld);
        self.shared.discard(withheld.into_iter().map(|written| written.object).collect()).await;
        let mut stored = BTreeSet::new();
        if !ahead.is_empty() {
            stored.extend(self.shared.commit(ahead, Some(pin)).await?);
        }
        let others: Vec<BlockKey> = keys.difference(&stored).copied().collect();
        if !others.is_empty() {
            stored.extend(self.shared.add_members(others, pin).await?);
        }
        Ok(stored)
    }

    /// The block of an item that is not in the shared storage.
    async fn block(&self, item: &Item) -> Result<Block, MemberFailure> {
        match item {
            Item::Block(block) => Ok(block.clone()),
            Item::Held(cid) => self.disk.get(cid).await.map_err(|error| match error {
                SourceError::NotFound { cid } => MemberFailure::Missing(cid),
                SourceError::Closed => StoreError::Closed.into(),
                error => StoreError::Io(error.to_string().into()).into(),
            }),
        }
    }

    async fn write_part(&self, part: Part, pin: Option<&SharedPin>) -> Result<(), MemberFailure> {
        if part.blocks.is_empty() {
            return Ok(());
        }
        let Part { blocks, queued, .. } = part;
        let zstd = self.zstd;
        let encoding = tokio::task::spawn_blocking(move || encode(&blocks, zstd));
        let blocks = encoding.await.unwrap_or(Err(StoreError::Closed))?;
        let written = self.shared.put_new(blocks, pin).await.map_err(failure);
        drop(queued);
        written
    }
}

/// Blocks that are encoded and sent together.
#[derive(Default)]
struct Part {
    blocks: Vec<(BlockKey, Block)>,
    bytes: usize,
    /// Their room in the queue.
    queued: Vec<Queued>,
}

impl Part {
    fn add(&mut self, key: BlockKey, block: Block, queued: Queued) {
        self.bytes += block.memory_bytes();
        self.blocks.push((key, block));
        self.queued.push(queued);
    }
}

/// The pin of an attempt in the site's index.
pub(super) fn shared_pin(attempt: &PinAttempt) -> Option<SharedPin> {
    Some(SharedPin { id: attempt.id(), root: *attempt.root()?, losses: attempt.losses() })
}

fn failure(error: PinError) -> MemberFailure {
    match error {
        PinError::Store(error) => MemberFailure::Store(error),
        PinError::Removed { .. } => MemberFailure::Removed,
        // No other one concerns members.
        error => MemberFailure::Store(StoreError::Io(error.to_string().into())),
    }
}
