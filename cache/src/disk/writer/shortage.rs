//! Handling of a full disk: the space kept free, what is deleted when it runs out, and recovery.
//!
//! Writes of values fail while some space is left, so that RocksDB always has space for its log and its files. The
//! space consists of
//!
//! 1. the bytes that the settings keep free, out of which
//! 2. the [`super::super::reserve`] is allocated, and
//! 3. some headroom, in which rows that reclaim space are written.
//!
//! Blocks are evicted first. When the headroom is half used, the reserve is released; when that is used too, the files
//! of the oldest cached segments are deleted before their rows. Sparse pinned segments are moved if all of their live
//! values have room, and otherwise get holes punched.
//!
//! Another process may fill the disk to its last byte at any time. RocksDB then fails writes for a while and checks
//! every few seconds whether there is space again, so rows that reclaim space are retried for that long.

use super::super::StoreError;
use super::super::schema::{KEY_COUNTERS, Kind, META};
use super::Writer;
use super::group::GROUP_BYTES_MAX;
use crate::store::DegradedReason;
use rocksdb::WriteBatch;
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The maximum size of a group on the disk, in bytes.
const GROUP_COST_MAX: usize = GROUP_BYTES_MAX + content::MAX_BLOCK_BYTES;

/// How long RocksDB may take to notice that there is space again, and the interval of retries.
const RECOVERY_MAX: Duration = Duration::from_secs(15);
const RETRY_EVERY: Duration = Duration::from_millis(100);

impl Writer {
    /// The space kept for writes of rows, in bytes.
    pub(super) fn headroom_bytes(&self) -> u64 {
        self.store.reserve.headroom_bytes()
    }

    /// The space that writes of values must leave free, in bytes. The reserve is part of it, and is recreated before
    /// any value is written.
    pub(super) fn free_bytes_min(&self) -> u64 {
        let reserve = &self.store.reserve;
        let beside = self.options.free_bytes_min.saturating_sub(reserve.allocated_bytes());
        beside.max(reserve.bytes() - reserve.allocated_bytes() + reserve.headroom_bytes())
    }

    /// Checks that `needed` bytes stay free after writing `bytes`.
    pub(super) fn check_free_space(&self, needed: u64, bytes: usize) -> Result<(), StoreError> {
        let space = self.store.files.space()?;
        if space.free_bytes < needed.saturating_add(bytes as u64) || space.is_out_of_inodes() {
            return Err(self.store.files.shortage_error(space, needed));
        }
        Ok(())
    }

    /// How many bytes are missing from the space to keep free, including room for a group.
    pub(crate) fn shortage_bytes(&self) -> u64 {
        match self.check_free_space(self.free_bytes_min(), GROUP_COST_MAX) {
            Err(StoreError::Full { free, needed }) => needed.saturating_add(GROUP_COST_MAX as u64) - free,
            // A segment is a file.
            Err(StoreError::NoInodes { .. }) => u64::from(self.segment_bytes_max(Kind::Cached)),
            _ => 0,
        }
    }

    /// Adds the free space to an error about lack of space.
    pub(super) fn with_space_figures(&self, error: StoreError) -> StoreError {
        let (StoreError::Full { free: 0, needed: 0 }, Ok(space)) = (&error, self.store.files.space()) else {
            return error;
        };
        let needed = self.free_bytes_min();
        let has_some = space.free_bytes > needed.saturating_add(GROUP_COST_MAX as u64) && !space.is_out_of_inodes();
        match has_some {
            true => StoreError::io(
                "no space left, although the file system has some: RocksDB checks again every 5 seconds; if this \
                 lasts, check the disk quota",
            ),
            false => self.store.files.shortage_error(space, needed),
        }
    }

    /// Releases the reserve before RocksDB runs out of space.
    pub(super) fn keep_headroom(&self) {
        let reserve = &self.store.reserve;
        let Ok(space) = self.store.files.space() else { return };
        let is_short = space.free_bytes < reserve.headroom_bytes() / 2 || space.is_out_of_inodes();
        if is_short && reserve.release() {
            warn!("the disk is full: the reserve was released, so that content can be unpinned or evicted");
        }
    }

    pub(super) fn wants_reserve(&self) -> bool {
        self.store.reserve.is_wanted()
    }

    /// Writes rows that take little space and reclaim more. On a full disk, makes space for them and retries.
    pub(super) fn write_rows(&self, batch: WriteBatch, sync: bool) -> Result<(), StoreError> {
        let rows = batch.data().to_vec();
        let mut full = match self.store.write(batch, sync) {
            Err(error) if error.is_full() => error,
            written => return written,
        };
        let mut deadline = None;
        loop {
            if self.make_space() {
                deadline = Some(Instant::now() + RECOVERY_MAX);
            } else if self.has_headroom() {
                deadline.get_or_insert_with(|| Instant::now() + RECOVERY_MAX);
            }
            if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                return Err(full);
            }
            thread::sleep(RETRY_EVERY);
            match self.store.write(WriteBatch::from_data(&rows), sync) {
                Err(error) if error.is_full() => full = error,
                written => return written,
            }
        }
    }

    /// Whether there is space again, which RocksDB will notice soon.
    fn has_headroom(&self) -> bool {
        self.headroom_bytes() > 0 && self.check_free_space(self.headroom_bytes(), 0).is_ok()
    }

    /// Marks the store degraded at the start if there is no room for values, even after evicting all cached blocks.
    pub(super) fn note_shortage(&mut self) {
        let shortage = self.check_free_space(self.free_bytes_min(), GROUP_COST_MAX).err();
        if let Some(error) = shortage.filter(|_| self.shortage_bytes() > self.sums.cached_bytes) {
            warn!(%error, "nothing can be stored until there is space");
            self.failing = Some(DegradedReason::of(&error));
        }
    }

    /// Releases the reserve or, if the disk has no headroom, deletes the file of the oldest cached segment. Its rows
    /// are deleted by the following eviction.
    fn make_space(&self) -> bool {
        if self.store.reserve.release() {
            warn!("the disk is full: the reserve was released, so that content can be unpinned or evicted");
            return true;
        }
        let has_none = self.check_free_space(self.headroom_bytes(), 0).is_err();
        has_none && self.store.drop_oldest_cached_file(&self.segments, self.tails.get(Kind::Cached))
    }

    /// Probes whether writes succeed again, and allocates the reserve if there is space for it.
    pub(super) fn probe_disk(&mut self) {
        if let Ok(space) = self.store.files.space() {
            self.store.reserve.make(space);
        }
        let Some(trouble) = self.failing else { return };
        match self.probe() {
            Ok(()) => self.note_recovery(),
            Err(error) => self.failing = Some(DegradedReason::of(&error)),
        }
        if self.failing != Some(trouble) {
            info!(was = trouble.word(), now = self.failing.map(DegradedReason::word), "the state of the disk changed");
        }
        self.publish();
    }

    /// Tries small writes of a value and of the index.
    fn probe(&self) -> Result<(), StoreError> {
        self.check_free_space(self.free_bytes_min(), GROUP_COST_MAX)?;
        self.store.files.probe()?;
        self.probe_index()
    }

    /// Tries a write of the index.
    pub(super) fn probe_index(&self) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        batch.put_cf(self.store.family(META)?, KEY_COUNTERS, self.counters.to_bytes());
        self.store.write(batch, true).map_err(|error| self.with_space_figures(error))
    }
}
