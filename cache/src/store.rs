//! [`BlockStore`]: the interface between the local block store and its users.
//!
//! Goals: object-safe, so that a setting chooses the store; exactly the operations that the tiers, pins, importers and
//! maintenance need; every store gives the same guarantees, which `tests/suite` checks for each.
//!
//! | store | values | index | for |
//! |---|---|---|---|
//! | [`crate::Disk`] | segment files | RocksDB | a local disk: any number of blocks |
//! | [`crate::flat`] | one file each | in memory, from the files | a network file system; inspection with other tools |
//! | [`crate::memory`] | a map | in memory | content that need not outlive the process |
//!
//! Non-goals: tools of one store, such as [`crate::Offline`], which repairs RocksDB's index.

use crate::error::StoreError;
use crate::pins::{PinAttempt, PinChanges, PinError, PinSummary};
use crate::reports::{Figures, Finding, MissingBlocks, Recompressed, ScrubProgress, ScrubReport, raw_cid};
use bytes::Bytes;
use content::stored::{Shape, Slice, Stored};
use content::{Block, BlockKey, BlockSource, Cid, Policy, Verdict};
use futures::future::{BoxFuture, FutureExt as _, ready};
use prometheus_client::metrics::counter::Counter;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// Whether a block that is about to be evicted is in the RAM cache.
pub type IsHot = Box<dyn Fn(&BlockKey) -> bool + Send + Sync>;

/// Whether the content policy withholds a block.
pub type IsWithheld = Box<dyn Fn(&BlockKey) -> bool + Send + Sync>;

/// The blocks that a policy withholds, whatever their codecs.
pub fn withheld_by(policy: &Arc<dyn Policy>) -> IsWithheld {
    let policy = Arc::clone(policy);
    Box::new(move |key| policy.check(&raw_cid(key)) != Verdict::Allow)
}

/// A store's predicate for withheld blocks. Until it is set, no block is withheld.
#[derive(Default)]
pub(crate) struct Withheld(OnceLock<IsWithheld>);

impl Withheld {
    pub(crate) fn set(&self, is_withheld: IsWithheld) {
        _ = self.0.set(is_withheld);
    }

    pub(crate) fn has(&self, key: &BlockKey) -> bool {
        self.0.get().is_some_and(|is_withheld| is_withheld(key))
    }
}

impl fmt::Debug for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Withheld").finish_non_exhaustive()
    }
}

/// A scrub's callback: called after each step with the progress and the step's findings.
pub type OnProgress<'a> = &'a mut (dyn FnMut(&ScrubProgress, &[Finding]) + Send);

/// Why a store refuses packed files.
pub const NO_SLICES: &str = "this kind of store cannot have packed files: add the file without packing it (only a gateway with \
     cache.store = \"rocksdb\" that does not belong to a site can have them)";

/// Where a scrub starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubPass {
    /// Resumes an interrupted pass.
    GoOn,
    /// Starts from the first block.
    All,
}

/// A local block store: cached blocks within a budget, pinned blocks until they are unpinned.
///
/// A block that turns out corrupt when it is read is treated as missing and deleted, so that it is fetched again; if a
/// pin had it, it becomes a member of that pin again. Dropping the last handle writes what is queued and closes the
/// store.
pub trait BlockStore: BlockSource + fmt::Debug {
    /// Another handle to the same store.
    fn handle(&self) -> Arc<dyn BlockStore>;

    /// Completes when the writer has ended: the store was closed, or the writer panicked.
    fn ended(&self) -> BoxFuture<'static, ()>;

    /// The bytes of a block.
    ///
    /// # Errors
    /// [`StoreError`].
    fn find<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>>;

    /// The bytes of a block, fully verified. Does not count as use for eviction.
    ///
    /// # Errors
    /// [`StoreError`]; a corrupt block is not an error, but missing.
    fn look<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>>;

    /// A block as it is stored.
    ///
    /// # Errors
    /// [`StoreError`].
    fn stored<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Stored>, StoreError>>;

    /// The stored forms of blocks, in the order of their keys; `None` for a missing block. Reads no values.
    ///
    /// # Errors
    /// [`StoreError`].
    fn shapes(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<Option<Shape>>, StoreError>>;

    /// Whether a pin, complete or partial, has the block.
    ///
    /// # Errors
    /// [`StoreError`].
    fn is_pinned<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Every pin, complete or partial.
    ///
    /// # Errors
    /// [`StoreError`].
    fn pins(&self) -> BoxFuture<'_, Result<Vec<PinSummary>, StoreError>>;

    /// The pin of a root, complete or partial, if it has one.
    ///
    /// # Errors
    /// [`StoreError`].
    fn pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<Option<PinSummary>, StoreError>>;

    /// The same after everything that this store was asked to write before: also a pin whose begin was not awaited.
    ///
    /// # Errors
    /// [`StoreError`].
    fn current_pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<Option<PinSummary>, StoreError>> {
        async move {
            self.written().await?;
            self.pin(root).await
        }
        .boxed()
    }

    /// The members of a root's pin that are not stored; none if the pin is complete, or there is none. Reads no values,
    /// but looks up every member.
    ///
    /// # Errors
    /// [`StoreError`].
    fn missing<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<MissingBlocks, StoreError>>;

    /// Calls `visit` with the binary multihash of each selected block, without reading it. Blocks the thread, but no
    /// other operation.
    ///
    /// # Errors
    /// [`StoreError`]; the blocks visited before are stored.
    fn visit_keys(&self, which: Held, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError>;

    /// Queues a block to be cached. Completes when the block has room in the queue, before it is written and readable.
    /// A failed write is counted and logged, and the block is not cached.
    fn put_cached(&self, block: Block) -> BoxFuture<'_, ()>;

    /// Counts a block that was not cached.
    fn count_dropped_write(&self);

    /// Change notifications: the roots of pins that lost blocks or got some back. A pin is partial before its root is
    /// reported.
    fn pin_changes(&self) -> Arc<PinChanges>;

    /// Begins a pin, or resumes the root's existing pin; a `name` replaces the existing one.
    ///
    /// # Errors
    /// [`StoreError`].
    fn begin_pin(&self, root: Cid, name: Option<String>) -> BoxFuture<'_, Result<Arc<PinAttempt>, StoreError>>;

    /// Begins a temporary pin, which has no root and protects blocks until it is released or the store is next opened.
    ///
    /// # Errors
    /// [`StoreError`].
    fn begin_temporary_pin(&self) -> BoxFuture<'_, Result<Arc<PinAttempt>, StoreError>>;

    /// Queues a block as a member of a pin. A failed write is reported by a later call with the same attempt.
    ///
    /// # Errors
    /// The failure of an earlier member, or [`StoreError::Closed`].
    fn put_member<'a>(&'a self, block: &'a Block, attempt: &'a Arc<PinAttempt>) -> BoxFuture<'a, Result<(), PinError>>;

    /// Queues a block that is already stored as a member, without the caller reading it.
    ///
    /// # Errors
    /// Those of [`Self::put_member`]; by this call or a later one, that the block is missing.
    fn put_held_member<'a>(&'a self, cid: Cid, attempt: &'a Arc<PinAttempt>) -> BoxFuture<'a, Result<(), PinError>> {
        let read = self.get(&cid);
        async move {
            let block = read.await.map_err(PinError::unread)?;
            self.put_member(&block, attempt).await
        }
        .boxed()
    }

    /// Whether the store takes slices, so that it can have packed files ([`content::packed`]).
    fn takes_slices(&self) -> bool {
        false
    }

    /// Queues a leaf as a slice of a block that was put before, and as a member of a pin. A leaf that is pinned already
    /// stays as it is stored. From then on, a pin that has the leaf has that block too.
    ///
    /// # Errors
    /// Those of [`Self::put_member`]; by this call or a later one, that the block is missing. By default, that the
    /// store takes no slices.
    fn put_slice<'a>(
        &'a self,
        leaf: &'a Cid,
        slice: Slice,
        attempt: &'a Arc<PinAttempt>,
    ) -> BoxFuture<'a, Result<(), PinError>> {
        let _ = (leaf, slice, attempt);
        ready(Err(StoreError::io(NO_SLICES).into())).boxed()
    }

    /// The plain file of a packed file that is pinned, by the root of its zstd file.
    fn plain_file(&self, zstd_file: &BlockKey) -> Option<Cid> {
        let _ = zstd_file;
        None
    }

    /// The root of the zstd file of a pinned root, if it is that of a packed file.
    fn zstd_file(&self, root: &Cid) -> Option<Cid> {
        let _ = root;
        None
    }

    /// Marks a pin complete if all of its members were written. It is durable when this completes.
    ///
    /// # Errors
    /// [`PinError`]; the pin stays partial and protects the blocks written so far.
    fn finish_pin(&self, attempt: Arc<PinAttempt>) -> BoxFuture<'_, Result<PinSummary, PinError>>;

    /// Removes a pin; returns whether there was one. The removal is durable when this completes. Blocks that no other
    /// pin has are deleted soon after, except those in the RAM cache, which become the newest of the disk cache.
    ///
    /// # Errors
    /// [`StoreError`]; the pin may still be removed later, if the store is in a database that other gateways use.
    fn remove_pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.remove_pin_by_id(root, None)
    }

    /// The same, but only the pin with this [`PinSummary::id`] if one is given, so that a removal which was delayed
    /// does not remove a later pin of the root.
    ///
    /// # Errors
    /// As [`BlockStore::remove_pin`].
    fn remove_pin_by_id<'a>(&'a self, root: &'a Cid, id: Option<u64>) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Deletes blocks. They cannot be found any more when this completes. A deleted block stays a member of its pins,
    /// which become partial. Space on the disk is overwritten, or deleted with the values beside it. Any number of keys
    /// is allowed; up to a few thousand do not delay other operations.
    ///
    /// # Errors
    /// [`StoreError`]; some blocks may have been deleted.
    fn evict(&self, keys: Vec<BlockKey>, which: Evict) -> BoxFuture<'_, Result<Evicted, StoreError>>;

    /// What [`Self::evict`] with [`Evict::Unpinned`] would return for these distinct keys. Deletes nothing.
    ///
    /// # Errors
    /// [`StoreError`].
    fn evictable(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Evicted, StoreError>>;

    /// Evicts some of the oldest cached blocks, including those in the RAM cache, and returns whether the cache still
    /// takes more than `cached_bytes`. One call evicts a bounded amount, so that writes are not delayed: repeat it
    /// until it returns `false`.
    ///
    /// # Errors
    /// [`StoreError`].
    fn shrink(&self, cached_bytes: u64) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Releases a temporary pin in the background. If the store is closed already, the next start does it.
    fn release(&self, temporary_pin: &PinAttempt);

    /// Completes when every block put before is readable or has failed. Does not wait for other work or for a sync.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    fn written(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Completes when all earlier operations have been written, pinned blocks are synced, the members of removed pins
    /// are unpinned, and their space is reclaimed.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or the error of the sync.
    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Compacts the store: reclaims all space that can be reclaimed. May take long; the store stays usable.
    ///
    /// # Errors
    /// [`StoreError`].
    fn compact(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Writes what is queued, syncs and stops the writer. Reads still work; later writes are rejected.
    ///
    /// # Errors
    /// The error of the sync. Closing twice is not an error.
    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Completes when the last handle is dropped and this process has released the store, so that it can be opened
    /// again. Call it before dropping the last handle.
    fn released(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    /// Sets the predicate for blocks in the RAM cache. Eviction spares these within limits: reads of them do not reach
    /// the store, so they look unused. Only the first call has an effect.
    fn set_is_hot(&self, is_hot: IsHot);

    /// Sets the predicate for withheld blocks, by which reports tell them from lost ones. Only the first call has an
    /// effect.
    fn set_is_withheld(&self, is_withheld: IsWithheld);

    /// Amounts of stored blocks, by kind and form.
    ///
    /// # Errors
    /// [`StoreError`].
    fn figures(&self) -> BoxFuture<'_, Result<Figures, StoreError>>;

    /// The store's counters, which do not keep the store open.
    fn live_stats(&self) -> Arc<Stats>;

    /// The current figures.
    fn stats(&self) -> StoreStats {
        self.live_stats().now()
    }

    /// Verifies every stored value, at `bytes_per_second` or unlimited, and deletes corrupt blocks. Dropping the future
    /// interrupts the pass.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or an error of the index; corrupt values are not errors.
    fn scrub<'a>(
        &'a self,
        pass: ScrubPass,
        bytes_per_second: Option<u64>,
        on_progress: OnProgress<'a>,
    ) -> BoxFuture<'a, Result<ScrubReport, StoreError>>;

    /// When the last complete pass ended.
    ///
    /// # Errors
    /// [`StoreError`].
    fn scrubbed_at(&self) -> BoxFuture<'_, Result<Option<SystemTime>, StoreError>>;

    /// Recompresses pinned values with a zstd level that was not tried before, at `bytes_per_second` or unlimited, and
    /// replaces those that become sufficiently smaller. The default does nothing.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or an error of the index.
    fn recompress_pinned(
        &self,
        level: u8,
        bytes_per_second: Option<u64>,
    ) -> BoxFuture<'_, Result<Recompressed, StoreError>> {
        let _ = (level, bytes_per_second);
        ready(Ok(Recompressed::default())).boxed()
    }
}

/// A set of stored blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The roots of complete pins.
    Roots,
    /// Every block of a pin, complete or partial.
    Pinned,
    /// Every block.
    All,
}

/// Which of the given blocks are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evict {
    /// Those that no pin has.
    Unpinned,
    /// All of them.
    Everything,
}

/// The result of deleting blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Blocks deleted.
    pub blocks: u64,
    /// Their size in the store, in bytes.
    pub bytes: u64,
    /// Blocks kept because a pin has them.
    pub pinned: u64,
}

impl std::ops::AddAssign for Evicted {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.pinned += other.pinned;
    }
}

/// Figures of a store at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Size of the blocks that may be evicted, in bytes.
    pub cached_bytes: u64,
    /// Size of the pinned blocks, in bytes, including those not yet unpinned.
    pub pinned_bytes: u64,
    /// Cached and pinned blocks.
    pub blocks: u64,
    /// Blocks evicted since the store was opened.
    pub evicted_blocks: u64,
    /// Bytes evicted since the store was opened.
    pub evicted_bytes: u64,
    /// Blocks that were not cached.
    pub dropped_writes: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Blocks found corrupt and deleted.
    pub corrupt_blocks: u64,
    /// Blocks that scrubs checked since the store was opened.
    pub scrubbed_blocks: u64,
    /// Their size on the disk, in bytes.
    pub scrubbed_bytes: u64,
    /// Scrubs completed since then.
    pub scrub_passes: u64,
    /// Pins that the last complete scrub found to lack blocks that are not withheld.
    pub lacking_pins: u64,
    /// 1 if the index was damaged when the store was opened, and was rebuilt; else 0.
    pub index_rebuilds: u64,
    /// Whether the index is damaged: blocks that it does not find are fetched, nothing is stored, and the next start
    /// rebuilds it.
    pub index_damaged: bool,
    /// Bytes that recompressing pinned blocks saved since then.
    pub recompressed_saved_bytes: u64,
    /// Why the store is degraded, if it is.
    pub trouble: Option<DegradedReason>,
}

impl StoreStats {
    /// Whether the store is degraded: it stores nothing at the moment.
    pub fn degraded(&self) -> bool {
        self.trouble.is_some()
    }
}

/// Why a store is degraded, so that it stores nothing. In each of these states it serves stored blocks, and pins can be
/// removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DegradedReason {
    /// There is no space. Recovers when there is.
    Full = 1,
    /// The file system has no inodes left. Recovers when it has.
    NoInodes,
    /// Writes fail. Recovers when they succeed.
    Failing,
    /// The disk lost data that it had acknowledged. Lasts until the store is reopened.
    Broken,
    /// The index is damaged. Lasts until the store is reopened, which rebuilds it.
    IndexDamaged,
}

impl DegradedReason {
    const ALL: [Self; 5] = [Self::Full, Self::NoInodes, Self::Failing, Self::Broken, Self::IndexDamaged];

    /// The state that a write error causes.
    pub(crate) fn of(error: &StoreError) -> Self {
        match error {
            StoreError::Full { .. } | StoreError::MemoryFull { .. } => Self::Full,
            StoreError::NoInodes { .. } => Self::NoInodes,
            _ => Self::Failing,
        }
    }

    /// A short identifier.
    pub fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::NoInodes => "no_inodes",
            Self::Failing => "failing",
            Self::Broken => "broken",
            Self::IndexDamaged => "index_damaged",
        }
    }
}

impl fmt::Display for DegradedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => {
                "the disk is full, so nothing is stored: delete files on it, or unpin content; stored blocks are \
                 served, and writes resume automatically when there is space"
            }
            Self::NoInodes => {
                "the file system has no inodes left, so nothing is stored: delete files on it; stored blocks are \
                 served, and writes resume automatically when there are inodes"
            }
            Self::Failing => {
                "writes to the disk fail, so nothing is stored: check its health and its permissions; stored blocks \
                 are served, and writes resume automatically when the disk accepts them"
            }
            Self::Broken => {
                "the disk lost data that it had acknowledged, so nothing is pinned: check its health, and restart the \
                 gateway; stored blocks are served"
            }
            Self::IndexDamaged => {
                "the index of the store is damaged, so nothing is stored: check the disk's health, and restart the \
                 gateway, which rebuilds the index; blocks that the index finds are served"
            }
        })
    }
}

/// A store's counters, updated while it runs.
#[derive(Debug, Default)]
pub struct Stats {
    pub(crate) cached_bytes: AtomicU64,
    pub(crate) pinned_bytes: AtomicU64,
    pub(crate) blocks: AtomicU64,
    pub(crate) evicted_blocks: Counter,
    pub(crate) evicted_bytes: Counter,
    pub(crate) dropped_writes: Counter,
    pub(crate) write_errors: Counter,
    pub(crate) corrupt_blocks: Counter,
    pub(crate) scrubbed_blocks: Counter,
    pub(crate) scrubbed_bytes: Counter,
    pub(crate) scrub_passes: Counter,
    pub(crate) lacking_pins: AtomicU64,
    pub(crate) index_rebuilds: Counter,
    pub(crate) index_damaged: AtomicBool,
    pub(crate) recompressed_saved_bytes: Counter,
    /// The number of a [`DegradedReason`]; 0 for none.
    trouble: AtomicU8,
}

impl Stats {
    /// The current figures.
    pub fn now(&self) -> StoreStats {
        StoreStats {
            cached_bytes: self.cached_bytes.load(Ordering::Relaxed),
            pinned_bytes: self.pinned_bytes.load(Ordering::Relaxed),
            blocks: self.blocks.load(Ordering::Relaxed),
            evicted_blocks: self.evicted_blocks.get(),
            evicted_bytes: self.evicted_bytes.get(),
            dropped_writes: self.dropped_writes.get(),
            write_errors: self.write_errors.get(),
            corrupt_blocks: self.corrupt_blocks.get(),
            scrubbed_blocks: self.scrubbed_blocks.get(),
            scrubbed_bytes: self.scrubbed_bytes.get(),
            scrub_passes: self.scrub_passes.get(),
            recompressed_saved_bytes: self.recompressed_saved_bytes.get(),
            lacking_pins: self.lacking_pins.load(Ordering::Relaxed),
            index_rebuilds: self.index_rebuilds.get(),
            index_damaged: self.index_damaged.load(Ordering::Relaxed),
            trouble: self.trouble(),
        }
    }

    /// Why the store is degraded, if it is.
    pub fn trouble(&self) -> Option<DegradedReason> {
        if self.index_damaged.load(Ordering::Relaxed) {
            return Some(DegradedReason::IndexDamaged);
        }
        let number = self.trouble.load(Ordering::Relaxed);
        DegradedReason::ALL.into_iter().find(|trouble| *trouble as u8 == number)
    }

    pub(crate) fn set_trouble(&self, trouble: Option<DegradedReason>) {
        self.trouble.store(trouble.map_or(0, |trouble| trouble as u8), Ordering::Relaxed);
    }
}
