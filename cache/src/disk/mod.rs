//! [`Disk`]: the blocks that outlive the process.
//!
//! Goals: presence and sizes answered without reading values; cached blocks written behind the reader's back, pins
//! written through to the disk; a budget that eviction keeps; damage found on reading is never served, and forgotten so
//! that the block is fetched again; a disk that fails degrades to no disk.
//!
//! How it is built: values lie in segment files, appended in the order in which they came; RocksDB holds the index that says
//! where, the pins and the segments' records. A cached value is copied once on its way to the disk and never again, unless it
//! is read; eviction deletes the oldest segment whole, and its space is back at once. Pinned values have segments of
//! their own, which are collected when less than half of one is still needed.
//!
//! One thread owns every change (`writer`), so that eviction, pinning and forgetting never race; it takes commands from a
//! queue that is bounded in bytes, groups them, and writes each group as one batch. What the system has in its memory is read
//! where it is asked for, without a thread in between ([`BlockSource::read_now`]). Other reads go to tokio's blocking threads, several
//! blocks at a time (`reads`), by at most [`DiskOptions::reads_max`] threads. tokio parks and reuses those threads as well as a
//! pool of our own would; a miss, the common case of a cold fetch, is mostly told from bloom filters in memory without one.
//!
//! Measured before, and why it is so: with the values in RocksDB (BlobDB), half of a fetching client's processor time went
//! to the log, blob files and their collection, each of which copies and sums every block.
//!
//! RocksDB stops taking writes when its own compaction meets damage. The store then goes on reading, says so, and rebuilds its
//! index when it is next opened: values tell by themselves whose they are, and the pin journal
//! ([`crate::pin_journal`]) says which pins there were.
//!
//! | module | concern |
//! |---|---|
//! | `schema`, `record` | rows of the index; how a value lies in a segment |
//! | `store` | RocksDB and reads; `files`: the segment files |
//! | `reads` | look-ups that wait for the disk, several at a time |
//! | `writer` | the thread that changes all of it |
//! | `touched` | what was read since it was written |
//! | [`scrub`] | every value checked, in the background |
//! | `recompress` | pinned values made smaller, in the background |
//! | `reserve` | space that is kept for the day when the disk is full |
//! | [`offline`], `mend` | looking at a store that no gateway runs on, and mending its index |
//! | [`rebuild`], `scan`, `index_files` | an index that is damaged, made anew from the segments |
//! | `watermarks` | whether the index has everything that was acknowledged |
//! | `block_store` | all of it as a [`crate::BlockStore`] |
//!
//! Non-goals: exact recency, which would write on every read.

mod block_store;
#[cfg(test)]
pub(crate) mod faults;
pub(crate) mod files;
mod index_files;
mod mend;
pub mod offline;
mod reads;
pub mod rebuild;
mod recompress;
pub(crate) mod record;
pub(crate) mod reserve;
mod scan;
pub(crate) mod schema;
pub(crate) mod scrub;
pub(crate) mod store;
mod touched;
mod watermarks;
pub(crate) mod writer;

pub use self::mend::Disagreements;
pub use self::offline::{CheckReport, Figures, Offline, Repaired};
pub use self::rebuild::{RebuildProgress, Rebuilt};
pub use self::recompress::Recompressed;
pub use self::scrub::{Fault, Finding, LackingPin, ScrubProgress, ScrubReport};
pub use crate::error::StoreError;

use self::reads::Reads;
use self::schema::{INDEX, IndexRecord, PINS, PinRecord};
use self::store::{Lock, Store};
use self::writer::{Command, Queue};
use bytes::Bytes;
use content::{Block, BlockKey, BlockSource, Cid, SourceError};
use futures::future::{BoxFuture, FutureExt as _, ready};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Semaphore;

use crate::pins::{PinChanges, PinState, PinSummary};
use crate::store::{Evicted, Held, Stats, StoreStats};
use crate::stored::{self, Shape, Stored};

/// How a store is to be run. Every field has a default that suits a small server.
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// The most that blocks which are not pinned may take on the disk, in bytes: their segment files, and 160 bytes for
    /// each block in the index. What is written while a segment is being evicted may lie above it for a moment.
    pub cache_bytes_max: u64,
    /// What is left free on the file system, in bytes. Where there is less, the cache shrinks; when it is gone, nothing
    /// is stored and pins fail.
    pub free_bytes_min: u64,
    /// The most that is kept for the day when the disk is full, in bytes, out of what is left free: a 32nd of the file system where
    /// that is less. 0 for nothing.
    pub reserve_bytes_max: u64,
    /// How long a segment file grows, in bytes; those of cached blocks at most to a sixteenth of their budget.
    pub segment_bytes_max: u32,
    /// How blocks are compressed.
    pub zstd: stored::Options,
    /// The most that may wait to be written, in bytes.
    pub queue_bytes_max: usize,
    /// Reads that run at the same time.
    pub reads_max: usize,
    /// Memory for RocksDB's indexes, filters and rows, in bytes.
    pub block_cache_bytes: usize,
    /// The most files that are kept open, RocksDB's and segments, half of each. Below the limit that most systems give a
    /// process (1,024).
    pub open_files_max: i32,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            cache_bytes_max: 20 * 1024 * 1024 * 1024,
            free_bytes_min: 1024 * 1024 * 1024,
            // Tests copy whole stores, and there are many at a time.
            reserve_bytes_max: if cfg!(test) { 0 } else { 64 * 1024 * 1024 },
            segment_bytes_max: 256 * 1024 * 1024,
            zstd: stored::Options::default(),
            queue_bytes_max: 16 * 1024 * 1024,
            reads_max: 32,
            block_cache_bytes: 64 * 1024 * 1024,
            open_files_max: 512,
        }
    }
}

/// An open store. Clones are handles to the same one; it closes when the last is gone.
#[derive(Debug, Clone)]
pub struct Disk {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // Dropped in this order: the writer ends before the store is let go.
    queue: Queue,
    look_ups: Arc<Reads>,
    reads: Arc<Semaphore>,
    stats: Arc<Stats>,
    changes: Arc<PinChanges>,
    store: Arc<Store>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A read that nobody waits for any more may hold the store for a moment longer.
        self.store.lock().note_closed();
    }
}

impl Disk {
    /// Opens the store in `dir`, creating it if need be. Blocks the thread: the log of a process that was killed is
    /// replayed here, a store that an earlier release wrote is brought up to date, and an index that turns out damaged is
    /// rebuilt, which reads every block. A store that this process has closed, and that a read still holds, is waited for, for ten
    /// seconds at most.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::NewerSchema`], or what the file system said.
    pub fn open(dir: &Path, options: DiskOptions) -> Result<Self, StoreError> {
        let lock = store::lock(dir)?;
        let stats = Arc::<Stats>::default();
        let opened = Self::try_open(dir, &options, &lock, &stats);
        let Err(StoreError::IndexDamaged(reason)) = opened else { return opened };
        let rebuilt = rebuild::run(dir, &options, &lock, &reason, &mut rebuild::log_progress())?;
        stats.index_rebuilds.inc();
        stats.lacking_pins.store(rebuilt.lacking.len() as u64, Ordering::Relaxed);
        Self::try_open(dir, &options, &lock, &stats)
    }

    fn try_open(dir: &Path, options: &DiskOptions, lock: &Lock, stats: &Arc<Stats>) -> Result<Self, StoreError> {
        let store = Arc::new(open_store(dir, options, lock)?);
        store.report_to(stats);
        let (stats, changes) = (Arc::clone(stats), Arc::<PinChanges>::default());
        let queue = writer::start(Arc::clone(&store), Arc::clone(&stats), Arc::clone(&changes), options)?;
        let reads = Arc::new(Semaphore::new(options.reads_max.max(1)));
        let look_ups = Reads::new(Arc::clone(&store), options.reads_max);
        Ok(Self { inner: Arc::new(Inner { queue, look_ups, reads, stats, changes, store }) })
    }

    /// Whether there is a store in a directory.
    pub fn is_in(dir: &Path) -> bool {
        Store::is_in(dir)
    }

    /// Keeps a block for as long as the budget allows. Returns when the block has room in the queue, before it is
    /// written; until then it is not found here. A write that fails is counted and logged, and the block is gone.
    pub async fn put_cached(&self, block: Block) {
        let sent = match self.inner.queue.room(block.data().len()).await {
            Ok(room) => self.inner.queue.send(Command::Cache { block, room }),
            Err(closed) => Err(closed),
        };
        if sent.is_err() {
            self.count_dropped_write();
        }
    }

    /// The size of a block in bytes, if it is here.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn size(&self, key: &BlockKey) -> Result<Option<u64>, StoreError> {
        let block = key.to_bytes();
        if !self.inner.store.may_hold(&block) {
            return Ok(None);
        }
        Ok(self.read(move |store| store.index(&block)).await?.map(|record| record.shape.block_bytes() as u64))
    }

    /// Whether a block is protected by a pin, complete or not.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn is_pinned(&self, key: &BlockKey) -> Result<bool, StoreError> {
        let block = key.to_bytes();
        Ok(self.read(move |store| store.index(&block)).await?.is_some_and(|record| record.pinned()))
    }

    /// Every pin, complete or partial, by root.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn pins(&self) -> Result<Vec<PinSummary>, StoreError> {
        self.read(Store::pins).await
    }

    /// The pin of a root, complete or partial, if it has one.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn pin(&self, root: &Cid) -> Result<Option<PinSummary>, StoreError> {
        let root = *root;
        let record = self.read(move |store| store.pin(&root.to_bytes())).await?;
        Ok(record.map(|record| record.summary(root)))
    }

    /// Shows the binary multihash of each block of a kind, without reading the block. Blocks the thread, for about a second
    /// and a million blocks; holds nothing up.
    ///
    /// # Errors
    /// What the disk said; whatever was shown before is here.
    pub fn visit_keys(&self, held: Held, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        let store = &self.inner.store;
        if held == Held::Roots {
            for row in store.rows_from(PINS, &[])? {
                let pin = summary(&row?)?;
                let key = BlockKey::of(&pin.root).filter(|_| pin.state == PinState::Complete);
                key.into_iter().for_each(|key| visit(&key.to_bytes()));
            }
            return Ok(());
        }
        for row in store.rows_from(INDEX, &[])? {
            let (key, record) = row?;
            if held == Held::All || IndexRecord::from_bytes(&record).is_some_and(IndexRecord::pinned) {
                visit(&key);
            }
        }
        Ok(())
    }

    /// Returns when everything that was asked for before has been written and synced, the members of removed pins have been
    /// let go, and their space has been given back.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or what the disk said to the sync.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.inner.queue.ask(|reply| Command::Flush { reply }).await?
    }

    /// Gives back what space there is to be had: moves together what is left of pinned segments of which more than a
    /// sixteenth is not needed any more, and rewrites the index without what was deleted from it. Segments of cached
    /// blocks are left alone, for they go as a whole. Takes a while, during which the store works.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or what the disk said.
    pub async fn compact(&self) -> Result<(), StoreError> {
        self.inner.queue.ask(|reply| Command::Compact { reply }).await??;
        self.read(Store::compact_index).await
    }

    /// Writes what is queued, syncs and stops the writer. Reads go on; later writes are refused.
    ///
    /// # Errors
    /// What the disk said to the sync. Closing twice is no error.
    pub async fn close(&self) -> Result<(), StoreError> {
        let closed = self.inner.queue.ask(|reply| Command::Close { reply }).await;
        self.inner.store.lock().note_closed();
        closed.unwrap_or(Ok(()))
    }

    /// Done when nothing in this process holds the store any more, so that it can be opened again.
    pub(crate) fn released(&self) -> BoxFuture<'static, ()> {
        self.inner.store.lock().freed().boxed()
    }

    /// Asks this of every block that is to be evicted, and keeps those for which it is true: blocks that readers have in
    /// memory are not read from here, and would go first.
    pub(crate) fn favour(&self, is_favoured: impl Fn(&BlockKey) -> bool + Send + Sync + 'static) {
        self.inner.store.touched.favour(is_favoured);
    }

    /// This moment's figures.
    pub fn stats(&self) -> StoreStats {
        self.inner.stats.now()
    }

    /// The figures, for a reader that must not keep the store open.
    pub(crate) fn live_stats(&self) -> Arc<Stats> {
        Arc::clone(&self.inner.stats)
    }

    /// The forms that blocks are stored in, in the order of their keys; `None` for one that is not here. No value is read.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn shapes(&self, keys: Vec<BlockKey>) -> Result<Vec<Option<Shape>>, StoreError> {
        let shape = |store: &Store, key: &BlockKey| Ok(store.index(&key.to_bytes())?.map(|record| record.shape));
        self.read(move |store| keys.iter().map(|key| shape(store, key)).collect()).await
    }

    /// What an eviction of blocks, all of them different, that spares what is pinned would come to.
    ///
    /// # Errors
    /// What the disk said.
    pub(crate) async fn evictable(&self, keys: Vec<BlockKey>) -> Result<Evicted, StoreError> {
        self.read(move |store| {
            let mut evictable = Evicted::default();
            for block in keys.iter().map(BlockKey::to_bytes) {
                evictable += match store.index(&block)? {
                    None => Evicted::default(),
                    Some(_) if store.has_pin(&block)? => Evicted { pinned: 1, ..Evicted::default() },
                    Some(held) => Evicted { blocks: 1, bytes: held.cost(&block), pinned: 0 },
                };
            }
            Ok(evictable)
        })
        .await
    }

    /// The bytes of a block. A block that turns out damaged is not here, and is on its way to be forgotten.
    pub(crate) async fn find(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        let block = key.to_bytes();
        if !self.inner.store.may_hold(&block) {
            return Ok(None);
        }
        self.unless_damaged(key, self.inner.look_ups.block(block).await)
    }

    /// The bytes of a block, checked in every way, which counts as no reading.
    pub(crate) async fn look(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        let sought = *key;
        self.unless_damaged(key, self.read(move |store| store.look(&sought)).await)
    }

    /// A block as it is stored.
    pub(crate) async fn stored(&self, key: &BlockKey) -> Result<Option<Stored>, StoreError> {
        let block = key.to_bytes();
        if let Some(stored) = self.inner.store.stored_now(&block) {
            return Ok(Some(stored));
        }
        if !self.inner.store.may_hold(&block) {
            return Ok(None);
        }
        self.unless_damaged(key, self.inner.look_ups.stored(block).await)
    }

    fn unless_damaged<T>(&self, key: &BlockKey, found: Result<Option<T>, StoreError>) -> Result<Option<T>, StoreError> {
        if !matches!(found, Err(StoreError::Corrupt(_))) {
            return found;
        }
        // If the queue is full, the next read of this block reports it.
        if let Some(room) = self.inner.queue.try_room(0) {
            _ = self.inner.queue.send(Command::Forget { key: *key, room });
        }
        Ok(None)
    }

    /// The pins that lose blocks or get them back, for a reader that must not keep the store open.
    pub(crate) fn pin_changes(&self) -> Arc<PinChanges> {
        Arc::clone(&self.inner.changes)
    }

    fn count_scrubbed(&self, step: &scrub::Step) {
        self.inner.stats.scrubbed_blocks.inc_by(step.blocks);
        self.inner.stats.scrubbed_bytes.inc_by(step.bytes);
    }

    fn count_recompressed(&self, saved_bytes: u64) {
        self.inner.stats.recompressed_saved_bytes.inc_by(saved_bytes);
    }

    fn count_pass(&self, lacking_pins: usize) {
        self.inner.stats.scrub_passes.inc();
        self.inner.stats.lacking_pins.store(lacking_pins as u64, Ordering::Relaxed);
    }

    /// Counts a block that was to be cached and was not.
    pub(crate) fn count_dropped_write(&self) {
        self.inner.stats.dropped_writes.inc();
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.inner.queue
    }

    #[cfg(test)]
    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.inner.store
    }

    /// The permit travels with the work: a caller who leaves does not make room before the thread is free.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = Arc::clone(&self.inner.reads).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let store = Arc::clone(&self.inner.store);
        let work = move || {
            let _permit = permit;
            work(&store)
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::Closed)?
    }
}

/// Opens a store whose folder is locked.
///
/// # Errors
/// Those of [`Disk::open`], and [`StoreError::IndexDamaged`].
fn open_store(dir: &Path, options: &DiskOptions, lock: &Lock) -> Result<Store, StoreError> {
    if let Some(reason) = index_files::unusable(dir)? {
        return Err(StoreError::index_damaged(reason));
    }
    Store::open(dir, options, Lock::clone(lock))
}

fn parse_pin((root, record): &store::Row) -> Result<(Cid, PinRecord), StoreError> {
    let root = Cid::try_from(&**root).map_err(StoreError::corrupt)?;
    let record = PinRecord::from_bytes(record).ok_or_else(|| StoreError::corrupt("a pin is malformed"))?;
    Ok((root, record))
}

fn summary(row: &store::Row) -> Result<PinSummary, StoreError> {
    let (root, record) = parse_pin(row)?;
    Ok(record.summary(root))
}

impl BlockSource for Disk {
    /// What is in memory: its place in RocksDB's, its value in the system's.
    fn read_now(&self, cid: &Cid) -> Option<Block> {
        let Some(key) = BlockKey::of(cid) else { return Block::inline(cid) };
        let data = self.inner.store.stored_now(&key.to_bytes())?.block().ok()?;
        Some(Block::from_checked(*cid, data))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let Some(key) = BlockKey::of(cid) else { return inline(cid) };
        let (disk, cid) = (self.clone(), *cid);
        async move {
            let data = disk.find(&key).await?.ok_or(SourceError::NotFound { cid })?;
            Ok(Block::from_checked(cid, data))
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        let Some(key) = BlockKey::of(cid) else { return ready(Ok(true)).boxed() };
        let disk = self.clone();
        async move { Ok(disk.size(&key).await?.is_some()) }.boxed()
    }
}

fn inline(cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
    ready(Block::inline(cid).ok_or(SourceError::NotFound { cid: *cid })).boxed()
}
