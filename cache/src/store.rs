//! [`BlockStore`]: the seam between what uses the local store and what it is made of.
//!
//! Goals: object-safe, so that a setting chooses the store and nobody above knows which it is; exactly what the tiers, pins,
//! importers and the upkeep need; whatever one store promises, all do, which `tests/suite` shows of each.
//!
//! | store | values | index | for |
//! |---|---|---|---|
//! | [`crate::Disk`] | segment files | RocksDB | a disk of this machine: any number of blocks |
//! | [`crate::flat`] | a file each | a ledger in memory, made from the files | a network file system; looking at it with other tools |
//! | [`crate::memory`] | a map | a ledger in memory | what may be gone with the process |
//!
//! Non-goals: tools of one store, such as [`crate::Offline`], which mends RocksDB's index.

use crate::error::StoreError;
use crate::pins::{Attempt, PinChanges, PinError, PinSummary};
use crate::reports::{Figures, Finding, Recompressed, ScrubProgress, ScrubReport};
use crate::stored::{Shape, Stored};
use bytes::Bytes;
use content::{Block, BlockKey, BlockSource, Cid};
use futures::future::{BoxFuture, FutureExt as _, ready};
use prometheus_client::metrics::counter::Counter;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::SystemTime;

/// What is asked of every block that is to be evicted: whether somebody has it at hand for readers.
pub type IsFavoured = Box<dyn Fn(&BlockKey) -> bool + Send + Sync>;

/// Who watches a scrub: shown the progress after each step, with what the step found.
pub type OnProgress<'a> = &'a mut (dyn FnMut(&ScrubProgress, &[Finding]) + Send);

/// Which pass a scrub makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubPass {
    /// Goes on where a pass was left that did not reach the end.
    GoOn,
    /// Begins at the beginning.
    All,
}

/// Where blocks are kept between requests: cached ones within a budget, pinned ones until they are unpinned.
///
/// A block that turns out damaged when it is read is not there, and is forgotten so that it is fetched again; a member of a
/// pin comes back as one. Dropping the last handle writes what is queued and closes the store.
pub trait BlockStore: BlockSource + fmt::Debug {
    /// Another handle to the same store.
    fn handle(&self) -> Arc<dyn BlockStore>;

    /// Waits until nothing can be written any more: the store was closed, or its writer ended because of a defect.
    fn ended(&self) -> BoxFuture<'static, ()>;

    /// The bytes of a block.
    ///
    /// # Errors
    /// What the disk said.
    fn find<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>>;

    /// The bytes of a block, checked in every way. This counts as no reading, so that what is looked at stays no longer for it.
    ///
    /// # Errors
    /// What the disk said. One that turns out damaged is not here.
    fn look<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>>;

    /// A block as it is stored.
    ///
    /// # Errors
    /// What the disk said.
    fn stored<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Stored>, StoreError>>;

    /// The forms that blocks are stored in, in the order of their keys; `None` for one that is not here. No value is read.
    ///
    /// # Errors
    /// What the disk said.
    fn shapes(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<Option<Shape>>, StoreError>>;

    /// Whether a block is protected by a pin, complete or not.
    ///
    /// # Errors
    /// What the disk said.
    fn is_pinned<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Every pin, complete or partial.
    ///
    /// # Errors
    /// What the disk said.
    fn pins(&self) -> BoxFuture<'_, Result<Vec<PinSummary>, StoreError>>;

    /// The pin of a root, complete or partial, if it has one.
    ///
    /// # Errors
    /// What the disk said.
    fn pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<Option<PinSummary>, StoreError>>;

    /// Shows the binary multihash of each block of a kind, without reading the block. Blocks the thread; holds nothing up.
    ///
    /// # Errors
    /// What the disk said; whatever was shown before is here.
    fn visit_keys(&self, held: Held, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError>;

    /// Keeps a block for as long as the budget allows. Done when the block has room in the queue, before it is written; until
    /// then it need not be found here. A write that fails is counted and logged, and the block is gone.
    fn put_cached(&self, block: Block) -> BoxFuture<'_, ()>;

    /// Counts a block that was to be cached and was not.
    fn count_dropped_write(&self);

    /// The roots of pins that lose blocks, whatever finds that, or get some of them back. A pin that loses a block is
    /// partial before its root is noted here.
    fn pin_changes(&self) -> Arc<PinChanges>;

    /// Begins a pin, or goes on with the one that the root has; a `name` replaces the one that it has.
    ///
    /// # Errors
    /// What the disk said.
    fn begin_pin(&self, root: Cid, name: Option<String>) -> BoxFuture<'_, Result<Arc<Attempt>, StoreError>>;

    /// Begins a scaffold: a pin without a root, which protects blocks until it is released or the store is opened again.
    ///
    /// # Errors
    /// What the disk said.
    fn begin_scaffold(&self) -> BoxFuture<'_, Result<Arc<Attempt>, StoreError>>;

    /// Queues a block as a member. Whether it was written, the attempt tells: here before the next member, and when the pin
    /// is finished.
    ///
    /// # Errors
    /// What became of members before this one, or [`StoreError::Closed`].
    fn put_member<'a>(&'a self, block: &'a Block, attempt: &'a Arc<Attempt>) -> BoxFuture<'a, Result<(), PinError>>;

    /// Queues a block that is here, and that nobody needs to read, as a member. A store that has to read it does.
    ///
    /// # Errors
    /// The same; here or later, that the block is not here.
    fn put_held_member<'a>(&'a self, cid: Cid, attempt: &'a Arc<Attempt>) -> BoxFuture<'a, Result<(), PinError>> {
        let read = self.get(&cid);
        async move {
            let block = read.await.map_err(PinError::unread)?;
            self.put_member(&block, attempt).await
        }
        .boxed()
    }

    /// Marks a pin complete, if all of its members were written. It is on the disk when this is done.
    ///
    /// # Errors
    /// [`PinError`]; blocks written before stay protected, as a partial pin.
    fn finish_pin(&self, attempt: Arc<Attempt>) -> BoxFuture<'_, Result<PinSummary, PinError>>;

    /// Removes a pin and says whether there was one. That is on the disk when this is done; the blocks that no other pin
    /// has are deleted soon after, but for those that readers have in memory, which become the newest of the cache.
    ///
    /// # Errors
    /// What the disk said.
    fn remove_pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Forgets blocks, if they are here: they are not found any more when this is done. What a pin has stays one of its members
    /// if it goes too, as a damaged block does: the pin is partial from then on. What the disk still has of a value is
    /// overwritten or deleted with what lies beside it. Any number of keys may be asked for; a few thousand at a time
    /// hold nobody up.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or what the disk said; some may be gone then.
    fn evict(&self, keys: Vec<BlockKey>, which: Evict) -> BoxFuture<'_, Result<Evicted, StoreError>>;

    /// What [`Self::evict`] would answer now if these keys, all of them different, were to go unless they are pinned. Nothing goes.
    ///
    /// # Errors
    /// What the disk said.
    fn evictable(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Evicted, StoreError>>;

    /// Removes some of the blocks that were cached longest ago, whoever has them in memory, and says whether more are to go until
    /// the rest takes no more than `cached_bytes`. So much at a time that others can write in between: ask until it is `false`.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or what the disk said.
    fn shrink(&self, cached_bytes: u64) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Lets go of a scaffold, soon. If the store is closed already, that happens when it is opened again.
    fn release(&self, scaffold: &Attempt);

    /// Done when everything that was put before can be read, unless it could not be written. Waits for nothing else that the store
    /// has to do, and for no sync.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    fn written(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Done when everything that was asked for before has been written, what is pinned has been synced, the members of
    /// removed pins have been let go, and their space has been given back.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or what the disk said to the sync.
    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Gives back what space there is to be had. May take a while, during which the store works.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or what the disk said.
    fn compact(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Writes what is queued, syncs and ends writing. Reads go on; later writes are refused.
    ///
    /// # Errors
    /// What the disk said to the sync. Closing twice is no error.
    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Done when every handle is gone and nothing in this process holds the store any more, so that it can be opened again. Ask
    /// before the last handle goes.
    fn released(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    /// Asks this of every block that is to be evicted, and keeps those for which it is true within reason: blocks that
    /// readers have in memory are not read from here, and would go first. Only the first who wants to be asked is.
    fn favour(&self, is_favoured: IsFavoured);

    /// What the store holds, by kind and form.
    ///
    /// # Errors
    /// What the disk said.
    fn figures(&self) -> BoxFuture<'_, Result<Figures, StoreError>>;

    /// The figures of its work, for a reader that must not keep the store open.
    fn live_stats(&self) -> Arc<Stats>;

    /// This moment's figures.
    fn stats(&self) -> StoreStats {
        self.live_stats().now()
    }

    /// Checks every value that is here now, at so many bytes a second or as fast as it goes, and forgets what is damaged. Dropping the future interrupts the pass.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or what the disk said of the index; damaged values are no errors.
    fn scrub<'a>(
        &'a self,
        pass: ScrubPass,
        bytes_per_second: Option<u64>,
        on_progress: OnProgress<'a>,
    ) -> BoxFuture<'a, Result<ScrubReport, StoreError>>;

    /// When a pass last reached the end, if one has.
    ///
    /// # Errors
    /// What the disk said.
    fn scrubbed_at(&self) -> BoxFuture<'_, Result<Option<SystemTime>, StoreError>>;

    /// Tries a level of zstd on every pinned value that was not tried at it before, at so many bytes a second or as fast as it
    /// goes, and replaces those that become smaller by enough. A store that leaves values as they are has nothing to do.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or what the disk said of the index.
    fn recompress_pinned(
        &self,
        level: u8,
        bytes_per_second: Option<u64>,
    ) -> BoxFuture<'_, Result<Recompressed, StoreError>> {
        let _ = (level, bytes_per_second);
        ready(Ok(Recompressed::default())).boxed()
    }
}

/// Some of what a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The roots of the pins that are complete.
    Roots,
    /// Every block that a pin protects, complete or not.
    Pinned,
    /// Every block.
    All,
}

/// Which of the blocks that are to be forgotten go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evict {
    /// Those that no pin protects.
    Unpinned,
    /// All of them.
    Everything,
}

/// What became of blocks that were to be forgotten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Blocks that are gone.
    pub blocks: u64,
    /// What they took in the store, in bytes.
    pub bytes: u64,
    /// Blocks that stayed because a pin protects them.
    pub pinned: u64,
}

impl std::ops::AddAssign for Evicted {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.pinned += other.pinned;
    }
}

/// A moment's figures of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// What blocks that may be evicted take, in bytes.
    pub cached_bytes: u64,
    /// What pinned blocks take, in bytes, with what is still to be collected.
    pub pinned_bytes: u64,
    /// Blocks of both kinds.
    pub blocks: u64,
    /// Blocks evicted since the store was opened.
    pub evicted_blocks: u64,
    /// Bytes evicted since the store was opened.
    pub evicted_bytes: u64,
    /// Blocks that were to be cached and were not.
    pub dropped_writes: u64,
    /// Writes that the disk refused.
    pub write_errors: u64,
    /// Blocks found damaged and forgotten.
    pub corrupt_blocks: u64,
    /// Blocks that a scrub checked since the store was opened.
    pub scrubbed_blocks: u64,
    /// Their bytes on the disk.
    pub scrubbed_bytes: u64,
    /// Scrubs that reached the end since then.
    pub scrub_passes: u64,
    /// Pins that the last of these found to lack blocks.
    pub lacking_pins: u64,
    /// Whether the index was rebuilt when the store was opened, because it was damaged: 1 or 0.
    pub index_rebuilds: u64,
    /// The index turned out damaged: what it cannot find is fetched, nothing is stored, and the next start rebuilds it.
    pub index_damaged: bool,
    /// Bytes on the disk that recompressing pinned blocks saved since then.
    pub recompressed_saved_bytes: u64,
    /// Why nothing is stored at the moment, if that is so.
    pub trouble: Option<Trouble>,
}

impl StoreStats {
    /// Whether nothing is stored at the moment.
    pub fn degraded(&self) -> bool {
        self.trouble.is_some()
    }
}

/// Why a store stores nothing at the moment. In each of these states it serves what it holds, and pins can be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Trouble {
    /// There is no space. Ends by itself when there is.
    Full = 1,
    /// The file system has no inodes left. Ends by itself when it has.
    NoInodes,
    /// The disk refuses to write. Ends by itself when it writes again.
    Failing,
    /// The disk did not keep what it had taken. Ends when the store is opened again.
    Broken,
    /// The index is damaged. Ends when the store is opened again, which rebuilds it.
    IndexDamaged,
}

impl Trouble {
    const ALL: [Self; 5] = [Self::Full, Self::NoInodes, Self::Failing, Self::Broken, Self::IndexDamaged];

    /// What an error of a write stands for.
    pub(crate) fn of(error: &StoreError) -> Self {
        match error {
            StoreError::Full { .. } | StoreError::MemoryFull { .. } => Self::Full,
            StoreError::NoInodes { .. } => Self::NoInodes,
            _ => Self::Failing,
        }
    }

    /// A word for it.
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

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => {
                "the disk is full, so nothing is stored: make room on it, or unpin something; what is stored is served, and \
                 storing goes on by itself when there is space"
            }
            Self::NoInodes => {
                "the file system has no inodes left, so nothing is stored: delete files on it; what is stored is served, and \
                 storing goes on by itself when there are inodes"
            }
            Self::Failing => {
                "the disk refuses to write, so nothing is stored: check its health and its permissions; what is stored is \
                 served, and storing goes on by itself when the disk writes again"
            }
            Self::Broken => {
                "the disk did not keep what it had taken, so nothing is pinned: check its health, and restart; what is \
                 stored is served"
            }
            Self::IndexDamaged => {
                "the index of the store is damaged, so nothing is stored: check the disk's health, and restart, which rebuilds \
                 the index; what it still finds is served"
            }
        })
    }
}

/// Where a store leaves its figures while it works.
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
    /// The number of a [`Trouble`]; 0 for none.
    trouble: AtomicU8,
}

impl Stats {
    /// This moment's figures.
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

    /// Why nothing is stored at the moment, if that is so.
    pub fn trouble(&self) -> Option<Trouble> {
        if self.index_damaged.load(Ordering::Relaxed) {
            return Some(Trouble::IndexDamaged);
        }
        let number = self.trouble.load(Ordering::Relaxed);
        Trouble::ALL.into_iter().find(|trouble| *trouble as u8 == number)
    }

    pub(crate) fn set_trouble(&self, trouble: Option<Trouble>) {
        self.trouble.store(trouble.map_or(0, |trouble| trouble as u8), Ordering::Relaxed);
    }
}
