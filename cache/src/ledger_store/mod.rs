//! [`LedgerStore`]: a [`BlockStore`] whose index is a [`Ledger`] in memory, over whatever keeps the values.
//!
//! Goals: presence, sizes and pins are answered without waiting; one thread owns every change, as in [`crate::disk`], so that
//! eviction, pinning and forgetting never race; what has no room waits, and what cannot be written is told.
//!
//! | module | concern |
//! |---|---|
//! | [`backing`] | what keeps values and pins: memory ([`crate::memory`]) or files ([`crate::flat`]) |
//! | `writer` | the thread that changes all of it |
//! | `scrub` | every value checked, in the background |
//!
//! Non-goals: more blocks than their ledger has room for in memory, which [`crate::Disk`] is for; compressing anew what is
//! pinned.

pub(crate) mod backing;
mod scrub;
mod writer;

pub(crate) use self::scrub::step;

use self::backing::Backing;
use self::writer::{Command, Write, Writer};
use crate::disk::store::unreadable;
use crate::disk::{Figures, ScrubReport, StoreError};
use crate::ledger::{Key, Ledger};
use crate::pins::{Attempt, PinChanges, PinError, PinState, PinSummary};
use crate::queue::Queue;
use crate::store::{BlockStore, Evict, Evicted, Held, IsHot, OnProgress, ScrubPass, Stats};
use crate::stored::{self, Shape, Stored, ValueError};
use bytes::Bytes;
use content::{Block, BlockKey, BlockSource, Cid, SourceError};
use futures::future::{BoxFuture, FutureExt as _, ready};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// How a store is to be run.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// The most that blocks which are not pinned may take, in bytes.
    pub(crate) cache_bytes_max: u64,
    /// The most that all blocks may take, in bytes.
    pub(crate) bytes_max: u64,
    /// What others are left of what they use as well, in bytes.
    pub(crate) free_bytes_min: u64,
    /// How blocks are compressed.
    pub(crate) zstd: stored::Options,
    /// The most that may wait to be written, in bytes.
    pub(crate) queue_bytes_max: usize,
    /// Reads that run at the same time.
    pub(crate) reads_max: usize,
}

/// An open store. Clones are handles to the same one; it closes when the last is gone.
#[derive(Debug)]
pub(crate) struct LedgerStore<B: Backing> {
    inner: Arc<Inner<B>>,
}

impl<B: Backing> Clone for LedgerStore<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

#[derive(Debug)]
struct Inner<B: Backing> {
    // Dropped in this order: the writer ends before what it writes to is let go.
    queue: Queue<Command>,
    reads: Arc<Semaphore>,
    shared: Arc<Shared<B>>,
}

impl<B: Backing> Drop for Inner<B> {
    fn drop(&mut self) {
        self.shared.backing.mark_closed();
    }
}

/// What readers and the writer share.
struct Shared<B: Backing> {
    ledger: RwLock<Ledger>,
    backing: B,
    stats: Arc<Stats>,
    changes: Arc<PinChanges>,
    is_hot: OnceLock<IsHot>,
}

impl<B: Backing> std::fmt::Debug for Shared<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("backing", &self.backing).field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl<B: Backing> Shared<B> {
    /// A ledger stays right even if a thread panicked while it held the lock, as far as it is: a value that it has and that is
    /// not there is found out by whoever reads it.
    fn ledger(&self) -> RwLockReadGuard<'_, Ledger> {
        self.ledger.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn ledger_mut(&self) -> RwLockWriteGuard<'_, Ledger> {
        self.ledger.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_hot(&self, key: &[u8]) -> bool {
        let Some(is_hot) = self.is_hot.get() else { return false };
        BlockKey::from_bytes(key).is_some_and(|key| is_hot(&key))
    }
}

impl<B: Backing> LedgerStore<B> {
    /// Runs a store with what the ledger says is held.
    pub(crate) fn start(backing: B, ledger: Ledger, limits: &Limits) -> Result<Self, StoreError> {
        let shared = Shared {
            ledger: RwLock::new(ledger),
            backing,
            stats: Arc::<Stats>::default(),
            changes: Arc::<PinChanges>::default(),
            is_hot: OnceLock::new(),
        };
        let shared = Arc::new(shared);
        let writer = |room| Writer::new(Arc::clone(&shared), limits.clone(), room);
        let queue = Queue::start(limits.queue_bytes_max, writer, Writer::run)?;
        let reads = Arc::new(Semaphore::new(limits.reads_max.max(1)));
        Ok(Self { inner: Arc::new(Inner { queue, reads, shared }) })
    }

    async fn look_up<T: Send + 'static>(
        &self,
        key: &BlockKey,
        take: fn(Stored) -> Result<T, ValueError>,
    ) -> Result<Option<T>, StoreError> {
        let bytes = key.to_bytes();
        if !self.inner.shared.ledger().touch(&bytes) {
            return Ok(None);
        }
        let look = move |shared: &Shared<B>| {
            let stored = shared.backing.read(&bytes)?;
            stored.map(|stored| take(stored).map_err(unreadable)).transpose()
        };
        let found = if B::READS_BLOCK { self.read(look).await } else { look(&self.inner.shared) };
        self.unless_damaged(key, found)
    }

    /// The same for a block that is held, checked in every way.
    async fn look(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        let sought = *key;
        if self.inner.shared.ledger().held(&sought.to_bytes()).is_none() {
            return Ok(None);
        }
        let look = move |shared: &Shared<B>| {
            let stored = scrub::verified(&shared.backing, &sought)?;
            stored.map(|stored| stored.block().map_err(unreadable)).transpose()
        };
        self.unless_damaged(key, self.read(look).await)
    }

    fn unless_damaged<T>(&self, key: &BlockKey, found: Result<Option<T>, StoreError>) -> Result<Option<T>, StoreError> {
        match found {
            // Damaged, or gone although nobody took it away. If the queue is full, the next read of this block reports it.
            Err(StoreError::Corrupt(_)) | Ok(None) => {
                if let Some(room) = self.inner.queue.try_room(0) {
                    _ = self.inner.queue.send(Command::Forget { key: *key, room });
                }
                Ok(None)
            }
            found => found,
        }
    }

    /// The permit travels with the work: a caller who leaves does not make room before the thread is free.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared<B>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.inner.shared);
        let permit = Arc::clone(&self.inner.reads).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let work = move || {
            let _permit = permit;
            work(&shared)
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::Closed)?
    }

    async fn write(&self, block: Block, attempt: Option<Arc<Attempt>>) -> Result<(), StoreError> {
        let room = self.inner.queue.room(block.data().len()).await?;
        self.inner.queue.send(Command::Write(Write { block, attempt, room }))
    }
}

impl<B: Backing> Shared<B> {
    /// The forms of values, if the ledger knows all of them.
    fn known_shapes(&self, keys: &[BlockKey]) -> Option<Vec<Option<Shape>>> {
        let ledger = self.ledger();
        let known = |key: &BlockKey| ledger.held(&key.to_bytes()).map_or(Some(None), |held| held.shape.map(Some));
        keys.iter().map(known).collect()
    }

    /// The form of a value, looked at if nobody did before.
    fn shape(&self, key: &[u8]) -> Result<Option<Shape>, StoreError> {
        let Some(held) = self.ledger().held(key) else { return Ok(None) };
        if held.shape.is_some() {
            return Ok(held.shape);
        }
        let shape = match self.backing.shape(key) {
            // Whoever reads it finds that out too, and then it is forgotten.
            Err(StoreError::Corrupt(_)) => None,
            shape => shape?,
        };
        shape.into_iter().for_each(|shape| self.ledger_mut().learn(key, shape));
        Ok(shape)
    }
}

impl<B: Backing> Shared<B> {
    /// Every value's form is looked at that nobody looked at before.
    fn figures(&self) -> Result<Figures, StoreError> {
        let keys: Vec<Key> = self.ledger().keys().map(|(key, ..)| Arc::clone(key)).collect();
        let mut figures = Figures::default();
        for key in keys {
            if let Some(shape) = self.shape(&key)? {
                figures.add_block(shape, self.ledger().has_pin(&key));
            }
        }
        self.ledger().summaries().iter().for_each(|pin| figures.count_pin(pin.state));
        Ok(figures)
    }
}

impl<B: Backing> BlockStore for LedgerStore<B> {
    fn handle(&self) -> Arc<dyn BlockStore> {
        Arc::new(self.clone())
    }

    fn ended(&self) -> BoxFuture<'static, ()> {
        self.inner.queue.ended().boxed()
    }

    fn find<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.look_up(key, |stored| stored.block()).boxed()
    }

    fn look<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.look(key).boxed()
    }

    fn stored<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Stored>, StoreError>> {
        self.look_up(key, Ok).boxed()
    }

    fn shapes(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<Option<Shape>>, StoreError>> {
        if let Some(known) = self.inner.shared.known_shapes(&keys) {
            return ready(Ok(known)).boxed();
        }
        self.read(move |shared| keys.iter().map(|key| shared.shape(&key.to_bytes())).collect()).boxed()
    }

    fn is_pinned<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<bool, StoreError>> {
        let (ledger, key) = (self.inner.shared.ledger(), key.to_bytes());
        ready(Ok(ledger.held(&key).is_some() && ledger.has_pin(&key))).boxed()
    }

    fn pins(&self) -> BoxFuture<'_, Result<Vec<PinSummary>, StoreError>> {
        ready(Ok(self.inner.shared.ledger().summaries())).boxed()
    }

    fn pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<Option<PinSummary>, StoreError>> {
        let ledger = self.inner.shared.ledger();
        let record = ledger.pin_of(root).and_then(|pin| ledger.current(pin));
        ready(Ok(record.map(|record| record.summary(*root)))).boxed()
    }

    fn visit_keys(&self, held: Held, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        if held == Held::Roots {
            let pins = self.inner.shared.ledger().summaries();
            let roots = pins.iter().filter(|pin| pin.state == PinState::Complete);
            roots.filter_map(|pin| BlockKey::of(&pin.root)).for_each(|key| visit(&key.to_bytes()));
            return Ok(());
        }
        // Copied, since whoever visits may take their time.
        let ledger = self.inner.shared.ledger();
        let wanted = ledger.keys().filter(|(_, _, pinned)| held == Held::All || *pinned);
        let keys: Vec<Key> = wanted.map(|(key, ..)| Arc::clone(key)).collect();
        drop(ledger);
        keys.iter().for_each(|key| visit(key));
        Ok(())
    }

    fn put_cached(&self, block: Block) -> BoxFuture<'_, ()> {
        async move {
            if self.write(block, None).await.is_err() {
                self.count_dropped_write();
            }
        }
        .boxed()
    }

    fn count_dropped_write(&self) {
        self.inner.shared.stats.dropped_writes.inc();
    }

    fn pin_changes(&self) -> Arc<PinChanges> {
        Arc::clone(&self.inner.shared.changes)
    }

    fn begin_pin(&self, root: Cid, name: Option<String>) -> BoxFuture<'_, Result<Arc<Attempt>, StoreError>> {
        let begun = self.inner.queue.ask(move |reply| Command::Begin { root, name, reply });
        async move { Ok(Attempt::new(begun.await??, Some(root))) }.boxed()
    }

    fn begin_temporary_pin(&self) -> BoxFuture<'_, Result<Arc<Attempt>, StoreError>> {
        let begun = self.inner.queue.ask(|reply| Command::BeginTemporary { reply });
        async move { Ok(Attempt::new(begun.await??, None)) }.boxed()
    }

    fn put_member<'a>(&'a self, block: &'a Block, attempt: &'a Arc<Attempt>) -> BoxFuture<'a, Result<(), PinError>> {
        async move {
            attempt.check()?;
            Ok(self.write(block.clone(), Some(Arc::clone(attempt))).await?)
        }
        .boxed()
    }

    fn finish_pin(&self, attempt: Arc<Attempt>) -> BoxFuture<'_, Result<PinSummary, PinError>> {
        let finished = self.inner.queue.ask(|reply| Command::Finish { attempt, reply });
        async move { finished.await? }.boxed()
    }

    fn remove_pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<bool, StoreError>> {
        let removed = self.inner.queue.ask(|reply| Command::Remove { root: *root, reply });
        async move { removed.await? }.boxed()
    }

    fn evict(&self, keys: Vec<BlockKey>, which: Evict) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        let evicted = self.inner.queue.ask(move |reply| Command::Evict { keys, which, reply });
        async move { evicted.await? }.boxed()
    }

    fn evictable(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        let (ledger, mut evictable) = (self.inner.shared.ledger(), Evicted::default());
        for key in keys.iter().map(BlockKey::to_bytes) {
            evictable += match ledger.held(&key) {
                None => Evicted::default(),
                Some(_) if ledger.has_pin(&key) => Evicted { pinned: 1, ..Evicted::default() },
                Some(held) => Evicted { blocks: 1, bytes: held.bytes, pinned: 0 },
            };
        }
        ready(Ok(evictable)).boxed()
    }

    fn shrink(&self, cached_bytes: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        let more = self.inner.queue.ask(move |reply| Command::Shrink { cached_bytes, reply });
        async move { more.await? }.boxed()
    }

    fn release(&self, temporary_pin: &Attempt) {
        _ = self.inner.queue.send(Command::Release { pin: temporary_pin.pin });
    }

    fn written(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.queue.ask(|reply| Command::Written { reply }).boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let flushed = self.inner.queue.ask(|reply| Command::Flush { reply });
        async move { flushed.await? }.boxed()
    }

    /// What was deleted has given its space back already.
    fn compact(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.flush()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let closed = self.inner.queue.ask(|reply| Command::Close { reply });
        async move {
            let closed = closed.await.unwrap_or(Ok(()));
            self.inner.shared.backing.mark_closed();
            closed
        }
        .boxed()
    }

    fn released(&self) -> BoxFuture<'static, ()> {
        self.inner.shared.backing.released()
    }

    fn set_is_hot(&self, is_hot: IsHot) {
        _ = self.inner.shared.is_hot.set(is_hot);
    }

    fn figures(&self) -> BoxFuture<'_, Result<Figures, StoreError>> {
        self.read(Shared::figures).boxed()
    }

    fn live_stats(&self) -> Arc<Stats> {
        Arc::clone(&self.inner.shared.stats)
    }

    fn scrub<'a>(
        &'a self,
        pass: ScrubPass,
        bytes_per_second: Option<u64>,
        on_progress: OnProgress<'a>,
    ) -> BoxFuture<'a, Result<ScrubReport, StoreError>> {
        self.make_pass(pass, bytes_per_second, on_progress).boxed()
    }

    fn scrubbed_at(&self) -> BoxFuture<'_, Result<Option<SystemTime>, StoreError>> {
        async move {
            let ended_ms = self.read(|shared| Ok(shared.backing.scrub_note().ended_ms)).await?;
            Ok(UNIX_EPOCH.checked_add(Duration::from_millis(ended_ms)).filter(|_| ended_ms > 0))
        }
        .boxed()
    }
}

impl<B: Backing> BlockSource for LedgerStore<B> {
    /// What is in memory. Whether a file has to be waited for shows only when it is opened, and over a network it always has.
    fn read_now(&self, cid: &Cid) -> Option<Block> {
        let Some(key) = BlockKey::of(cid) else { return Block::inline(cid) };
        let (shared, key) = (&self.inner.shared, key.to_bytes());
        if B::READS_BLOCK || !shared.ledger().touch(&key) {
            return None;
        }
        // What is damaged or gone is dealt with by whoever waits for it.
        let data = shared.backing.read(&key).ok()??.block().ok()?;
        Some(Block::from_checked(*cid, data))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let Some(key) = BlockKey::of(cid) else {
            return ready(Block::inline(cid).ok_or(SourceError::NotFound { cid: *cid })).boxed();
        };
        let (store, cid) = (self.clone(), *cid);
        async move {
            let data = store.find(&key).await?.ok_or(SourceError::NotFound { cid })?;
            Ok(Block::from_checked(cid, data))
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        let held = |key: BlockKey| self.inner.shared.ledger().held(&key.to_bytes()).is_some();
        ready(Ok(BlockKey::of(cid).is_none_or(held))).boxed()
    }
}
