//! A disk that is full: what is left free, what is given up when that is gone, and when it is over.
//!
//! Values are refused while space is left, so that RocksDB always has some for its log and its files: in order of urgency there are
//!
//! 1. the bytes that are to stay free by the settings, out of which
//! 2. the [`super::super::reserve`] is kept, and
//! 3. some headroom, of which rows that give space back are written.
//!
//! Evicted blocks go first. When the headroom is half gone, the reserve is given up; when that is gone too, the oldest cached
//! segments lose their files before their rows. Pinned segments of which little is left are moved together where all of what is
//! left has room, and get holes otherwise.
//!
//! Another process may fill the disk to its last byte at any moment. RocksDB then takes nothing for a while and looks every few
//! seconds whether there is space again, so rows that give space back are tried again for that long.

use super::super::StoreError;
use super::super::schema::{KEY_COUNTERS, Kind, META};
use super::Writer;
use super::group::GROUP_BYTES_MAX;
use crate::store::Trouble;
use rocksdb::WriteBatch;
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// What a group may take, in bytes.
const GROUP_COST_MAX: usize = GROUP_BYTES_MAX + content::MAX_BLOCK_BYTES;

/// How long RocksDB may take to see that there is space again, and how often that is tried.
const RECOVERY_MAX: Duration = Duration::from_secs(15);
const TRY_EVERY: Duration = Duration::from_millis(100);

impl Writer {
    /// What writes of rows are left, in bytes.
    pub(super) fn headroom_bytes(&self) -> u64 {
        self.store.reserve.headroom_bytes()
    }

    /// What values leave free, in bytes. The reserve is part of what is to stay free, and is made again before any value is
    /// written.
    pub(super) fn free_bytes_min(&self) -> u64 {
        let reserve = &self.store.reserve;
        let beside = self.options.free_bytes_min.saturating_sub(reserve.held_bytes());
        beside.max(reserve.bytes() - reserve.held_bytes() + reserve.headroom_bytes())
    }

    /// That so many bytes can be written and leave what is needed.
    pub(super) fn check_free_space(&self, needed: u64, bytes: usize) -> Result<(), StoreError> {
        let space = self.store.files.space()?;
        if space.free_bytes < needed.saturating_add(bytes as u64) || space.is_out_of_inodes() {
            return Err(self.store.files.shortage_error(space, needed));
        }
        Ok(())
    }

    /// How much less the file system has left than is to be left free, with what a group may take, in bytes.
    pub(crate) fn shortage_bytes(&self) -> u64 {
        match self.check_free_space(self.free_bytes_min(), GROUP_COST_MAX) {
            Err(StoreError::Full { free, needed }) => needed.saturating_add(GROUP_COST_MAX as u64) - free,
            // A segment is a file.
            Err(StoreError::NoInodes { .. }) => u64::from(self.segment_bytes_max(Kind::Cached)),
            _ => 0,
        }
    }

    /// An error of a write, with what the disk has left if that is what it is about.
    pub(super) fn told(&self, error: StoreError) -> StoreError {
        let (StoreError::Full { free: 0, needed: 0 }, Ok(space)) = (&error, self.store.files.space()) else {
            return error;
        };
        let needed = self.free_bytes_min();
        let has_some = space.free_bytes > needed.saturating_add(GROUP_COST_MAX as u64) && !space.is_out_of_inodes();
        match has_some {
            true => StoreError::io(
                "No space left, although the file system has some: the index looks for it every 5 seconds; if this lasts, is \
                 there a quota?",
            ),
            false => self.store.files.shortage_error(space, needed),
        }
    }

    /// Gives the reserve up before RocksDB meets the end of the disk.
    pub(super) fn keep_headroom(&self) {
        let reserve = &self.store.reserve;
        let Ok(space) = self.store.files.space() else { return };
        let is_short = space.free_bytes < reserve.headroom_bytes() / 2 || space.is_out_of_inodes();
        if is_short && reserve.release() {
            warn!("the disk is full: the reserve was given up, so that something can be unpinned or evicted");
        }
    }

    pub(super) fn wants_reserve(&self) -> bool {
        self.store.reserve.is_wanted()
    }

    /// Writes rows that take next to no space and give some back. On a disk without any, something is given up for them.
    pub(super) fn write_rows(&self, batch: WriteBatch, sync: bool) -> Result<(), StoreError> {
        let rows = batch.data().to_vec();
        let mut refused = match self.store.write(batch, sync) {
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
                return Err(refused);
            }
            thread::sleep(TRY_EVERY);
            match self.store.write(WriteBatch::from_data(&rows), sync) {
                Err(error) if error.is_full() => refused = error,
                written => return written,
            }
        }
    }

    /// Whether there is space again, and RocksDB is about to see it.
    fn has_headroom(&self) -> bool {
        self.headroom_bytes() > 0 && self.check_free_space(self.headroom_bytes(), 0).is_ok()
    }

    /// Says before anything is written that there is no room for it, not even in the place of what is cached.
    pub(super) fn note_shortage(&mut self) {
        let lacking = self.check_free_space(self.free_bytes_min(), GROUP_COST_MAX).err();
        if let Some(error) = lacking.filter(|_| self.shortage_bytes() > self.sums.cached_bytes) {
            warn!(%error, "nothing can be stored");
            self.failing = Some(Trouble::of(&error));
        }
    }

    /// Gives up the reserve, or the file of the oldest cached segment, if the disk has no headroom. Its rows go when the
    /// segment is evicted, which comes next.
    fn make_space(&self) -> bool {
        if self.store.reserve.release() {
            warn!("the disk is full: the reserve was given up, so that something can be unpinned or evicted");
            return true;
        }
        let has_none = self.check_free_space(self.headroom_bytes(), 0).is_err();
        has_none && self.store.give_up_cached(&self.segments, self.tails.get(Kind::Cached))
    }

    /// Looks whether a disk that refused writes takes them again, and makes the reserve if there is space for it.
    pub(super) fn look_at_the_disk(&mut self) {
        if let Ok(space) = self.store.files.space() {
            self.store.reserve.make(space);
        }
        let Some(trouble) = self.failing else { return };
        match self.probe() {
            Ok(()) => self.note_recovery(),
            Err(error) => self.failing = Some(Trouble::of(&error)),
        }
        if self.failing != Some(trouble) {
            info!(was = trouble.word(), now = self.failing.map(Trouble::word), "the state of the disk has changed");
        }
        self.publish();
    }

    /// Writes a little of everything that is written otherwise.
    fn probe(&self) -> Result<(), StoreError> {
        self.check_free_space(self.free_bytes_min(), GROUP_COST_MAX)?;
        self.store.files.probe()?;
        self.probe_index()
    }

    /// Whether the index takes writes.
    pub(super) fn probe_index(&self) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        batch.put_cf(self.store.family(META)?, KEY_COUNTERS, self.counters.to_bytes());
        self.store.write(batch, true).map_err(|error| self.told(error))
    }
}
