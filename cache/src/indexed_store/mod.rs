//! [`IndexedStore`]: a [`BlockStore`] with an in-memory index, the [`MemoryIndex`], over a storage backend.
//!
//! Goals: presence, sizes and pins are answered without waiting; one writer thread makes every change, as in
//! [`crate::disk`], so that eviction, pinning and deletion never race; a full queue applies backpressure; failed writes
//! are reported.
//!
//! | module | concern |
//! |---|---|
//! | [`backing`] | the storage backend: memory ([`crate::memory`]) or files ([`crate::flat`]) |
//! | `writer` | the writer thread |
//! | `scrub` | verifies every value in the background |
//!
//! Non-goals: more blocks than the index has memory for (use [`crate::Disk`]); recompressing pinned blocks.

pub(crate) mod backing;
mod scrub;
mod writer;

pub(crate) use self::scrub::step;

use self::backing::Backing;
use self::writer::{Command, Write, Writer};
use crate::disk::store::unreadable;
use crate::disk::{Figures, ScrubReport, StoreError};
use crate::memory_index::{Key, MemoryIndex, MissingChunk};
use crate::pins::{PinAttempt, PinChanges, PinError, PinState, PinSummary};
use crate::queue::Queue;
use crate::reports::MissingBlocks;
use crate::store::{BlockStore, Evict, Evicted, Held, IsHot, IsWithheld, OnProgress, ScrubPass, Stats, Withheld};
use bytes::Bytes;
use content::stored::{self, Shape, Stored, ValueError};
use content::{Block, BlockKey, BlockSource, Cid, SourceError};
use futures::future::{BoxFuture, FutureExt as _, ready};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// The maximum number of members of a pin that are looked up under one lock.
const MISSING_CHUNK: usize = 4096;

/// Limits and options of a store.
#[derive(Debug, Clone)]
pub(crate) struct StoreLimits {
    /// The budget of unpinned blocks, in bytes.
    pub(crate) cache_bytes_max: u64,
    /// The budget of all blocks, in bytes.
    pub(crate) bytes_max: u64,
    /// The free space to keep on the file system, in bytes.
    pub(crate) free_bytes_min: u64,
    /// How blocks are compressed.
    pub(crate) zstd: stored::CompressionOptions,
    /// The size of the write queue, in bytes.
    pub(crate) queue_bytes_max: usize,
    /// The number of concurrent reads.
    pub(crate) reads_max: usize,
}

/// An open store. Clones are handles to the same one; it closes when the last is dropped.
#[derive(Debug)]
pub(crate) struct IndexedStore<B: Backing> {
    inner: Arc<Inner<B>>,
}

impl<B: Backing> Clone for IndexedStore<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

#[derive(Debug)]
struct Inner<B: Backing> {
    // Dropped in this order: the writer ends before its backend is closed.
    queue: Queue<Command>,
    reads: Arc<Semaphore>,
    shared: Arc<Shared<B>>,
}

impl<B: Backing> Drop for Inner<B> {
    fn drop(&mut self) {
        self.shared.backing.mark_closed();
    }
}

/// State shared by readers and the writer.
struct Shared<B: Backing> {
    index: RwLock<MemoryIndex>,
    backing: B,
    stats: Arc<Stats>,
    changes: Arc<PinChanges>,
    is_hot: OnceLock<IsHot>,
    withheld: Withheld,
}

impl<B: Backing> std::fmt::Debug for Shared<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("backing", &self.backing).field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl<B: Backing> Shared<B> {
    /// If a thread panicked while it held the lock, the index may have entries without values; the next read of such a
    /// block detects that.
    fn index(&self) -> RwLockReadGuard<'_, MemoryIndex> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, MemoryIndex> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_hot(&self, key: &[u8]) -> bool {
        let Some(is_hot) = self.is_hot.get() else { return false };
        BlockKey::from_bytes(key).is_some_and(|key| is_hot(&key))
    }
}

impl<B: Backing> IndexedStore<B> {
    /// Starts a store with the contents of `index`.
    pub(crate) fn start(backing: B, index: MemoryIndex, limits: &StoreLimits) -> Result<Self, StoreError> {
        let shared = Shared {
            index: RwLock::new(index),
            backing,
            stats: Arc::<Stats>::default(),
            changes: Arc::<PinChanges>::default(),
            is_hot: OnceLock::new(),
            withheld: Withheld::default(),
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
        convert: fn(Stored) -> Result<T, ValueError>,
    ) -> Result<Option<T>, StoreError> {
        let bytes = key.to_bytes();
        if !self.inner.shared.index().touch(&bytes) {
            return Ok(None);
        }
        let read = move |shared: &Shared<B>| {
            let stored = shared.backing.read(&bytes)?;
            stored.map(|stored| convert(stored).map_err(unreadable)).transpose()
        };
        let found = if B::READS_BLOCK { self.read(read).await } else { read(&self.inner.shared) };
        self.unless_damaged(key, found)
    }

    /// Reads and fully verifies a stored block.
    async fn look(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        let wanted = *key;
        if self.inner.shared.index().value(&wanted.to_bytes()).is_none() {
            return Ok(None);
        }
        let read = move |shared: &Shared<B>| {
            let stored = scrub::verified(&shared.backing, &wanted)?;
            stored.map(|stored| stored.block().map_err(unreadable)).transpose()
        };
        self.unless_damaged(key, self.read(read).await)
    }

    fn unless_damaged<T>(&self, key: &BlockKey, found: Result<Option<T>, StoreError>) -> Result<Option<T>, StoreError> {
        match found {
            // Corrupt, or missing without having been deleted. If the queue is full, the next read of this block
            // reports it.
            Err(StoreError::Corrupt(_)) | Ok(None) => {
                if let Some(room) = self.inner.queue.try_room(0) {
                    _ = self.inner.queue.send(Command::DropCorrupt { key: *key, room });
                }
                Ok(None)
            }
            found => found,
        }
    }

    /// The permit is moved into the work: if the caller is dropped, it is released only when the thread is free.
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

    async fn write(&self, block: Block, attempt: Option<Arc<PinAttempt>>) -> Result<(), StoreError> {
        let room = self.inner.queue.room(block.memory_bytes()).await?;
        self.inner.queue.send(Command::Write(Write { block, attempt, room }))
    }
}

impl<B: Backing> Shared<B> {
    /// The forms of values, if the index has all of them.
    fn known_shapes(&self, keys: &[BlockKey]) -> Option<Vec<Option<Shape>>> {
        let index = self.index();
        let known = |key: &BlockKey| index.value(&key.to_bytes()).map_or(Some(None), |value| value.shape.map(Some));
        keys.iter().map(known).collect()
    }

    /// The form of a value, read from the backend if it is not known yet.
    fn shape(&self, key: &[u8]) -> Result<Option<Shape>, StoreError> {
        let Some(value) = self.index().value(key) else { return Ok(None) };
        if value.shape.is_some() {
            return Ok(value.shape);
        }
        let shape = match self.backing.shape(key) {
            // The next read of the block reports the corruption, and the block is deleted.
            Err(StoreError::Corrupt(_)) => None,
            shape => shape?,
        };
        shape.into_iter().for_each(|shape| self.index_mut().set_shape(key, shape));
        Ok(shape)
    }
}

impl<B: Backing> Shared<B> {
    /// Looks up the members of a partial pin. The lock is released after each chunk, and while rules are checked.
    fn missing(&self, root: &Cid) -> MissingBlocks {
        let mut missing = MissingBlocks::default();
        let Some(pin) = self.index().pin_of(root) else { return missing };
        let next = |after: Option<&Key>| self.index().missing_chunk(pin, after, MISSING_CHUNK);
        let mut chunk = next(None);
        while let Some(MissingChunk { last, missing: found }) = chunk {
            for (key, block_bytes) in found {
                missing.add(&key, block_bytes, &|key| self.withheld.has(key));
            }
            chunk = next(Some(&last));
        }
        missing
    }

    /// Reads the forms that are not known yet.
    fn figures(&self) -> Result<Figures, StoreError> {
        let keys: Vec<Key> = self.index().keys().map(|(key, ..)| Arc::clone(key)).collect();
        let mut figures = Figures::default();
        for key in keys {
            if let Some(shape) = self.shape(&key)? {
                figures.add_block(shape, self.index().has_pin(&key));
            }
        }
        self.index().summaries().iter().for_each(|pin| figures.count_pin(pin.state));
        Ok(figures)
    }
}

impl<B: Backing> BlockStore for IndexedStore<B> {
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
        let (index, key) = (self.inner.shared.index(), key.to_bytes());
        ready(Ok(index.value(&key).is_some() && index.has_pin(&key))).boxed()
    }

    fn pins(&self) -> BoxFuture<'_, Result<Vec<PinSummary>, StoreError>> {
        ready(Ok(self.inner.shared.index().summaries())).boxed()
    }

    fn pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<Option<PinSummary>, StoreError>> {
        let index = self.inner.shared.index();
        let record = index.pin_of(root).and_then(|pin| index.current(pin));
        ready(Ok(record.map(|record| record.summary(*root)))).boxed()
    }

    fn missing<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<MissingBlocks, StoreError>> {
        let root = *root;
        self.read(move |shared| Ok(shared.missing(&root))).boxed()
    }

    fn visit_keys(&self, which: Held, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        if which == Held::Roots {
            let pins = self.inner.shared.index().summaries();
            let roots = pins.iter().filter(|pin| pin.state == PinState::Complete);
            roots.filter_map(|pin| BlockKey::of(&pin.root)).for_each(|key| visit(&key.to_bytes()));
            return Ok(());
        }
        // The keys are copied so that the lock is not held during the visits.
        let index = self.inner.shared.index();
        let wanted = index.keys().filter(|(_, _, pinned)| which == Held::All || *pinned);
        let keys: Vec<Key> = wanted.map(|(key, ..)| Arc::clone(key)).collect();
        drop(index);
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

    fn begin_pin(&self, root: Cid, name: Option<String>) -> BoxFuture<'_, Result<Arc<PinAttempt>, StoreError>> {
        let begun = self.inner.queue.ask(move |reply| Command::Begin { root, name, reply });
        async move { Ok(PinAttempt::new(begun.await??, Some(root))) }.boxed()
    }

    fn begin_temporary_pin(&self) -> BoxFuture<'_, Result<Arc<PinAttempt>, StoreError>> {
        let begun = self.inner.queue.ask(|reply| Command::BeginTemporary { reply });
        async move { Ok(PinAttempt::new(begun.await??, None)) }.boxed()
    }

    fn put_member<'a>(&'a self, block: &'a Block, attempt: &'a Arc<PinAttempt>) -> BoxFuture<'a, Result<(), PinError>> {
        async move {
            attempt.check()?;
            Ok(self.write(block.clone(), Some(Arc::clone(attempt))).await?)
        }
        .boxed()
    }

    fn finish_pin(&self, attempt: Arc<PinAttempt>) -> BoxFuture<'_, Result<PinSummary, PinError>> {
        let finished = self.inner.queue.ask(|reply| Command::Finish { attempt, reply });
        async move { finished.await? }.boxed()
    }

    fn remove_pin_by_id<'a>(&'a self, root: &'a Cid, id: Option<u64>) -> BoxFuture<'a, Result<bool, StoreError>> {
        let removed = self.inner.queue.ask(move |reply| Command::Remove { root: *root, id, reply });
        async move { removed.await? }.boxed()
    }

    fn evict(&self, keys: Vec<BlockKey>, which: Evict) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        let evicted = self.inner.queue.ask(move |reply| Command::Evict { keys, which, reply });
        async move { evicted.await? }.boxed()
    }

    fn evictable(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        let (index, mut evictable) = (self.inner.shared.index(), Evicted::default());
        for key in keys.iter().map(BlockKey::to_bytes) {
            evictable += match index.value(&key) {
                None => Evicted::default(),
                Some(_) if index.has_pin(&key) => Evicted { pinned: 1, ..Evicted::default() },
                Some(value) => Evicted { blocks: 1, bytes: value.bytes, pinned: 0 },
            };
        }
        ready(Ok(evictable)).boxed()
    }

    fn shrink(&self, cached_bytes: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        let more = self.inner.queue.ask(move |reply| Command::Shrink { cached_bytes, reply });
        async move { more.await? }.boxed()
    }

    fn release(&self, temporary_pin: &PinAttempt) {
        _ = self.inner.queue.send(Command::Release { pin: temporary_pin.pin });
    }

    fn written(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.queue.ask(|reply| Command::Written { reply }).boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let flushed = self.inner.queue.ask(|reply| Command::Flush { reply });
        async move { flushed.await? }.boxed()
    }

    /// Deletions reclaim space at once.
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

    fn set_is_withheld(&self, is_withheld: IsWithheld) {
        self.inner.shared.withheld.set(is_withheld);
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
        self.run_scrub(pass, bytes_per_second, on_progress).boxed()
    }

    fn scrubbed_at(&self) -> BoxFuture<'_, Result<Option<SystemTime>, StoreError>> {
        async move {
            let ended_ms = self.read(|shared| Ok(shared.backing.scrub_position().ended_ms)).await?;
            Ok(UNIX_EPOCH.checked_add(Duration::from_millis(ended_ms)).filter(|_| ended_ms > 0))
        }
        .boxed()
    }
}

impl<B: Backing> BlockSource for IndexedStore<B> {
    /// Reads values in memory only. Whether a file read blocks is known only when it is opened, and on a network it
    /// always does.
    fn read_now(&self, cid: &Cid) -> Option<Block> {
        let Some(key) = BlockKey::of(cid) else { return Block::inline(cid) };
        let (shared, key) = (&self.inner.shared, key.to_bytes());
        if B::READS_BLOCK || !shared.index().touch(&key) {
            return None;
        }
        // A corrupt or missing value is handled by `find`.
        let data = shared.backing.read(&key).ok()??.block().ok()?;
        Some(Block::from_verified(*cid, data))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let Some(key) = BlockKey::of(cid) else {
            return ready(Block::inline(cid).ok_or(SourceError::NotFound { cid: *cid })).boxed();
        };
        let (store, cid) = (self.clone(), *cid);
        async move {
            let data = store.find(&key).await?.ok_or(SourceError::NotFound { cid })?;
            Ok(Block::from_verified(cid, data))
        }
        .boxed()
    }

    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        let Some(key) = BlockKey::of(cid) else { return ready(Ok(None)).boxed() };
        let store = self.clone();
        async move { Ok(store.look_up(&key, Ok).await?) }.boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        let is_stored = |key: BlockKey| self.inner.shared.index().value(&key.to_bytes()).is_some();
        ready(Ok(BlockKey::of(cid).is_none_or(is_stored))).boxed()
    }
}
