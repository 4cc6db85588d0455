//! [`Disk`]: the store on a local disk.
//!
//! Goals: presence and sizes are answered without reading values; cached blocks are written asynchronously, pins are
//! synced; eviction keeps the budget; a corrupt block is never served, and is deleted so that it is fetched again; a
//! failing disk degrades to no disk.
//!
//! Design: values are appended to segment files in the order of their arrival; RocksDB has the index of their
//! locations, the pins and the segments' records. A cached value is copied once on its way to the disk and never again,
//! unless it is read; eviction deletes the oldest segment as a whole, which reclaims its space at once. Pinned values
//! have segments of their own, which are garbage-collected when less than half of one is live.
//!
//! One thread makes every change (`writer`), so that eviction, pinning and deletion never race; it takes commands from
//! a queue that is bounded in bytes, groups them, and writes each group as one batch. Values in the page cache are read
//! on the calling thread ([`BlockSource::read_now`]). Other reads run on tokio's blocking threads, several blocks at a
//! time (`reads`), on at most [`DiskOptions::reads_max`] threads. A miss, the common case of a cold fetch, is mostly
//! detected with bloom filters in memory, without a thread.
//!
//! This design was measured: with the values in RocksDB (BlobDB), half of a fetching client's processor time was spent
//! on the write-ahead log, blob files and their collection, each of which copies and checksums every block.
//!
//! RocksDB stops writing when its compaction finds corruption. The store then becomes read-only, reports it, and
//! rebuilds its index when it is next opened: each value's record names its block, and the pin journal
//! ([`crate::pin_journal`]) has the pins.
//!
//! | module | concern |
//! |---|---|
//! | `schema`, `record` | rows of the index; the format of a value in a segment |
//! | `store` | RocksDB and reads; `files`: the segment files |
//! | `reads` | batched look-ups that wait for the disk |
//! | `writer` | the thread that makes all changes |
//! | `reference_bits` | which blocks were read since they were written |
//! | `packed` | the packed files among the pins |
//! | [`scrub`] | verifies every value in the background |
//! | `recompress` | recompresses pinned values in the background |
//! | `reserve` | disk space reserved for operations on a full disk |
//! | [`offline`], `repair` | inspects a store that no gateway uses, and repairs its index |
//! | [`rebuild`], `scan`, `index_files` | rebuilds a damaged index from the segments |
//! | `watermarks` | detects whether the index has all acknowledged writes |
//! | `block_store` | implements [`crate::BlockStore`] |
//!
//! Non-goals: exact recency, which would need a write for every read.

mod block_store;
#[cfg(test)]
pub(crate) mod faults;
pub(crate) mod files;
mod index_files;
pub mod offline;
mod packed;
mod reads;
pub mod rebuild;
mod recompress;
pub(crate) mod record;
mod reference_bits;
mod repair;
pub(crate) mod reserve;
mod scan;
pub(crate) mod schema;
pub(crate) mod scrub;
pub(crate) mod store;
mod watermarks;
pub(crate) mod writer;

pub use self::offline::{CheckReport, Figures, Offline, Repaired};
pub use self::rebuild::{RebuildProgress, Rebuilt};
pub use self::recompress::Recompressed;
pub use self::repair::Inconsistencies;
pub use self::scrub::{Fault, Finding, IncompletePin, ScrubProgress, ScrubReport};
pub use crate::error::StoreError;

use self::reads::Reads;
use self::schema::{INDEX, IndexRecord, PINS, PinRecord};
use self::store::{Lock, Store};
use self::writer::{Barrier, Change, Queue};
use bytes::Bytes;
use content::{Block, BlockKey, BlockSource, Cid, SourceError};
use futures::future::{BoxFuture, FutureExt as _, ready};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Semaphore;

use crate::pins::{PinChanges, PinState, PinSummary};
use crate::reports::MissingBlocks;
use crate::store::{Evicted, Held, Stats, StoreStats, Withheld};
use content::stored::{self, Shape, Stored};

/// Options of a store. The defaults suit a small server.
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// The budget of unpinned blocks, in bytes: their segment files, and 160 bytes for each block in the index. It may
    /// be exceeded temporarily while a segment is being evicted.
    pub cache_bytes_max: u64,
    /// The space to keep free on the file system, in bytes. With less, the cache shrinks; when there is none left,
    /// nothing is stored and pins fail.
    pub free_bytes_min: u64,
    /// The maximum size of the reserve for operations on a full disk, in bytes, as part of the space to keep free: a
    /// 32nd of the file system if that is less. 0 for no reserve.
    pub reserve_bytes_max: u64,
    /// The maximum size of a segment file, in bytes; for cached blocks at most a sixteenth of their budget.
    pub segment_bytes_max: u32,
    /// How blocks are compressed.
    pub zstd: stored::CompressionOptions,
    /// The size of the write queue, in bytes.
    pub queue_bytes_max: usize,
    /// The number of concurrent reads.
    pub reads_max: usize,
    /// Memory for RocksDB's indexes, filters and rows, in bytes.
    pub block_cache_bytes: usize,
    /// The maximum number of open files, half RocksDB's and half segments. Below the usual limit of a process (1,024).
    pub open_files_max: i32,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            cache_bytes_max: 20 * 1024 * 1024 * 1024,
            free_bytes_min: 1024 * 1024 * 1024,
            // Tests copy whole stores, many concurrently.
            reserve_bytes_max: if cfg!(test) { 0 } else { 64 * 1024 * 1024 },
            segment_bytes_max: 256 * 1024 * 1024,
            zstd: stored::CompressionOptions::default(),
            queue_bytes_max: 16 * 1024 * 1024,
            reads_max: 32,
            block_cache_bytes: 64 * 1024 * 1024,
            open_files_max: 512,
        }
    }
}

/// An open store. Clones are handles to the same one; it closes when the last is dropped.
#[derive(Debug, Clone)]
pub struct Disk {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // Dropped in this order: the writer ends before the store is closed.
    queue: Queue,
    look_ups: Arc<Reads>,
    reads: Arc<Semaphore>,
    stats: Arc<Stats>,
    changes: Arc<PinChanges>,
    withheld: Arc<Withheld>,
    store: Arc<Store>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A read whose caller is gone may keep the store open for a moment longer.
        self.store.lock().mark_closed();
    }
}

impl Disk {
    /// Opens the store in `dir`, creating it if need be. Blocks the thread: the write-ahead log of a killed process is
    /// replayed, and a damaged index is rebuilt, which reads every block. If
    /// a store that this process has closed is still being read, waits for it, for ten seconds at most.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::NewerSchema`], or I/O errors.
    pub fn open(dir: &Path, options: DiskOptions) -> Result<Self, StoreError> {
        let lock = store::lock(dir)?;
        let stats = Arc::<Stats>::default();
        let opened = Self::try_open(dir, &options, &lock, &stats);
        let Err(StoreError::IndexDamaged(reason)) = opened else { return opened };
        rebuild::run(dir, &options, &lock, &reason, &mut rebuild::log_progress())?;
        stats.index_rebuilds.inc();
        Self::try_open(dir, &options, &lock, &stats)
    }

    fn try_open(dir: &Path, options: &DiskOptions, lock: &Lock, stats: &Arc<Stats>) -> Result<Self, StoreError> {
        let store = Arc::new(open_store(dir, options, lock)?);
        store.report_to(stats);
        let (stats, changes) = (Arc::clone(stats), Arc::<PinChanges>::default());
        let queue = writer::start(Arc::clone(&store), Arc::clone(&stats), Arc::clone(&changes), options)?;
        let reads = Arc::new(Semaphore::new(options.reads_max.max(1)));
        let look_ups = Reads::new(Arc::clone(&store), options.reads_max);
        let withheld = Arc::default();
        Ok(Self { inner: Arc::new(Inner { queue, look_ups, reads, stats, changes, withheld, store }) })
    }

    /// Whether a directory contains a store.
    pub fn is_in(dir: &Path) -> bool {
        Store::is_in(dir)
    }

    /// Queues a block to be cached. Completes when the block has room in the queue, before it is written and readable.
    /// A failed write is counted and logged, and the block is not cached.
    pub async fn put_cached(&self, block: Block) {
        let sent = match self.inner.queue.room(block.memory_bytes()).await {
            Ok(room) => self.inner.queue.send(Change::Cache { block, room }),
            Err(closed) => Err(closed),
        };
        if sent.is_err() {
            self.count_dropped_write();
        }
    }

    /// The size of a block in bytes, if it is stored.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn size(&self, key: &BlockKey) -> Result<Option<u64>, StoreError> {
        let block = key.to_bytes();
        if !self.inner.store.may_hold(&block) {
            return Ok(None);
        }
        Ok(self.read(move |store| store.held(&block)).await?.map(|record| record.shape.block_bytes() as u64))
    }

    /// Whether a pin, complete or partial, has the block.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn is_pinned(&self, key: &BlockKey) -> Result<bool, StoreError> {
        let block = key.to_bytes();
        Ok(self.read(move |store| store.index(&block)).await?.is_some_and(|record| record.pinned()))
    }

    /// Every pin, complete or partial, by root.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pins(&self) -> Result<Vec<PinSummary>, StoreError> {
        self.read(Store::pins).await
    }

    /// The pin of a root, complete or partial, if it has one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pin(&self, root: &Cid) -> Result<Option<PinSummary>, StoreError> {
        let root = *root;
        let record = self.read(move |store| store.pin(&root.to_bytes())).await?;
        Ok(record.map(|record| record.summary(root)))
    }

    /// The members of a root's partial pin that are not stored.
    pub(crate) async fn missing(&self, root: &Cid) -> Result<MissingBlocks, StoreError> {
        let (root, withheld) = (root.to_bytes(), Arc::clone(&self.inner.withheld));
        self.read(move |store| match store.pin(&root)? {
            Some(pin) if pin.state == PinState::Partial => scrub::missing(store, &pin, &|key| withheld.has(key)),
            _ => Ok(MissingBlocks::default()),
        })
        .await
    }

    /// Calls `visit` with the binary multihash of each selected block, without reading it. Blocks the thread, for about
    /// a second per million blocks, but no other operation.
    ///
    /// # Errors
    /// [`StoreError`]; the blocks visited before are stored.
    pub fn visit_keys(&self, which: Held, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        let store = &self.inner.store;
        if which == Held::Roots {
            for row in store.rows_from(PINS, &[])? {
                let pin = summary(&row?)?;
                let roots = [Some(pin.root), pin.packed].into_iter().flatten();
                let keys = roots.filter(|_| pin.state == PinState::Complete).filter_map(|root| BlockKey::of(&root));
                keys.for_each(|key| visit(&key.to_bytes()));
            }
            return Ok(());
        }
        for row in store.rows_from(INDEX, &[])? {
            let (key, record) = row?;
            let record = IndexRecord::from_bytes(&record);
            let is_selected = which == Held::All || record.is_some_and(IndexRecord::pinned);
            if is_selected && record.map_or(Ok(true), |record| store.has_base(record))? {
                visit(&key);
            }
        }
        Ok(())
    }

    /// Completes when all earlier operations have been written and synced, the members of removed pins are unpinned,
    /// and their space is reclaimed.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or the error of the sync.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.inner.queue.ask(|reply| Barrier::Flush { reply }).await?
    }

    /// Reclaims space: rewrites pinned segments of which more than a sixteenth is dead, and compacts the index.
    /// Segments of cached blocks are deleted only as a whole. May take long; the store stays usable.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn compact(&self) -> Result<(), StoreError> {
        self.inner.queue.ask(|reply| Barrier::Compact { reply }).await??;
        self.read(Store::compact_index).await
    }

    /// Writes what is queued, syncs and stops the writer. Reads still work; later writes are rejected.
    ///
    /// # Errors
    /// The error of the sync. Closing twice is not an error.
    pub async fn close(&self) -> Result<(), StoreError> {
        let closed = self.inner.queue.ask(|reply| Barrier::Close { reply }).await;
        self.inner.store.lock().mark_closed();
        closed.unwrap_or(Ok(()))
    }

    /// Completes when this process has released the store, so that it can be opened again.
    pub(crate) fn released(&self) -> BoxFuture<'static, ()> {
        self.inner.store.lock().released().boxed()
    }

    /// Sets the predicate for blocks in the RAM cache, which eviction spares within limits.
    pub(crate) fn set_is_hot(&self, is_hot: impl Fn(&BlockKey) -> bool + Send + Sync + 'static) {
        self.inner.store.reference_bits.set_is_hot(is_hot);
    }

    /// The current figures.
    pub fn stats(&self) -> StoreStats {
        self.inner.stats.now()
    }

    /// The store's counters, which do not keep the store open.
    pub(crate) fn live_stats(&self) -> Arc<Stats> {
        Arc::clone(&self.inner.stats)
    }

    /// The stored forms of blocks, in the order of their keys; `None` for a missing block. Reads no values.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn shapes(&self, keys: Vec<BlockKey>) -> Result<Vec<Option<Shape>>, StoreError> {
        let shape = |store: &Store, key: &BlockKey| Ok(store.held(&key.to_bytes())?.map(|record| record.shape));
        self.read(move |store| keys.iter().map(|key| shape(store, key)).collect()).await
    }

    /// The plain file of a packed file that is pinned, by the root of its zstd file.
    pub fn plain_file(&self, zstd_file: &BlockKey) -> Option<Cid> {
        self.inner.store.plain_file(zstd_file)
    }

    /// What evicting the unpinned ones of these distinct blocks would remove.
    ///
    /// # Errors
    /// [`StoreError`].
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

    /// The bytes of a block. A corrupt block counts as missing, and its deletion is queued.
    pub(crate) async fn find(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        let block = key.to_bytes();
        if !self.inner.store.may_hold(&block) {
            return Ok(None);
        }
        self.unless_damaged(key, self.inner.look_ups.block(block).await)
    }

    /// The bytes of a block, fully verified. Does not count as use.
    pub(crate) async fn look(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        let wanted = *key;
        self.unless_damaged(key, self.read(move |store| store.look(&wanted)).await)
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
            _ = self.inner.queue.send(Barrier::DropCorrupt { key: *key, room });
        }
        Ok(None)
    }

    /// Change notifications of pins, which do not keep the store open.
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

    fn count_pass(&self, lacking: &[IncompletePin]) {
        let damaged = lacking.iter().filter(|pin| pin.is_damaged()).count();
        self.inner.stats.scrub_passes.inc();
        self.inner.stats.lacking_pins.store(damaged as u64, Ordering::Relaxed);
    }

    pub(crate) fn withheld(&self) -> &Arc<Withheld> {
        &self.inner.withheld
    }

    /// Counts a block that was not cached.
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

    /// The permit is moved into the work: if the caller is dropped, it is released only when the thread is free.
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
    /// Reads a block whose index row is in RocksDB's cache and whose value is in the page cache.
    fn read_now(&self, cid: &Cid) -> Option<Block> {
        let Some(key) = BlockKey::of(cid) else { return Block::inline(cid) };
        let data = self.inner.store.stored_now(&key.to_bytes())?.block().ok()?;
        Some(Block::from_verified(*cid, data))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let Some(key) = BlockKey::of(cid) else { return inline(cid) };
        let (disk, cid) = (self.clone(), *cid);
        async move {
            let data = disk.find(&key).await?.ok_or(SourceError::NotFound { cid })?;
            Ok(Block::from_verified(cid, data))
        }
        .boxed()
    }

    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        let Some(key) = BlockKey::of(cid) else { return ready(Ok(None)).boxed() };
        let disk = self.clone();
        async move { Ok(disk.stored(&key).await?) }.boxed()
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
