//! Reclaims space: eviction of whole segments, oldest first, with a second chance for blocks that were read again;
//! garbage collection of sparse pinned segments; and deletion of corrupt blocks.

use super::super::StoreError;
use super::super::schema::{IndexRecord, Kind, PLACES, Place, SegmentRecord};
use super::group::{Group, NewValue};
use super::{CHUNK_ROWS, Writer};
use crate::store::{Evict, Evicted};
use bytes::Bytes;
use content::BlockKey;
use content::stored::Stored;
use tracing::{error, warn};

/// A segment that is still being filled is not collected below this size, unless it has no live values.
const SPARSE_TAIL_BYTES_MIN: u32 = 1024 * 1024;

/// Chunks of eviction between two groups: a segment of blocks of the usual size is one chunk.
const CHUNKS_MAX: usize = 8;

/// Compaction rewrites pinned segments of which more than one part in this many is dead.
const DEAD_DIVISOR: u32 = 16;

impl Writer {
    /// Evicts the oldest cached segments until the rest is within the budget and enough space is free; at most a few
    /// chunks, so that queued commands are not delayed by millions of tiny blocks.
    pub(super) fn evict(&mut self) {
        if !self.may_evict {
            return;
        }
        // Computed once, since file systems reclaim space late.
        let target = self.cached_bytes_target();
        for _ in 0..CHUNKS_MAX {
            if self.sums.cached_bytes <= target {
                return;
            }
            // Without space, no value can be moved.
            match self.evict_chunk(self.shortage_bytes() == 0) {
                Ok(true) => {}
                Ok(false) => {
                    self.may_evict = false;
                    return;
                }
                Err(error) => {
                    warn!(%error, "eviction failed; it is retried after the next write");
                    self.may_evict = false;
                    return;
                }
            }
        }
    }

    pub(super) fn has_to_evict(&self) -> bool {
        self.may_evict && self.sums.cached_bytes > self.cached_bytes_target()
    }

    fn cached_bytes_target(&self) -> u64 {
        self.options.cache_bytes_max.min(self.sums.cached_bytes.saturating_sub(self.shortage_bytes()))
    }

    /// Evicts some of the oldest segments, and returns whether the rest still takes more than `cached_bytes`.
    pub(super) fn shrink(&mut self, cached_bytes: u64) -> Result<bool, StoreError> {
        for _ in 0..CHUNKS_MAX {
            if self.sums.cached_bytes <= cached_bytes || !self.evict_chunk(false)? {
                return Ok(false);
            }
        }
        Ok(self.sums.cached_bytes > cached_bytes)
    }

    /// Evicts a chunk of the oldest segment, and returns whether there was one. With `spare_hot`, blocks in use get a
    /// second chance.
    fn evict_chunk(&mut self, spare_hot: bool) -> Result<bool, StoreError> {
        let Some(segment) = self.oldest_cached() else { return Ok(false) };
        if self.tails.contain(segment) {
            self.tails.set(Kind::Cached, None);
        }
        if self.second_chances.0 != segment {
            self.second_chances = (segment, 0);
        }
        // If its file was deleted for its space, nothing can be spared.
        let spare_hot = spare_hot && self.store.files.has(segment);
        let before = self.sums.cached_bytes;
        let (mut group, mut evicted) = (self.begin(), 0);
        let rows = self.rows(segment, CHUNK_ROWS)?;
        for (place, block) in &rows {
            evicted += u64::from(self.stage_eviction(&mut group, *place, block, spare_hot)?);
            if group.full() {
                break;
            }
        }
        if rows.is_empty() {
            self.stage_empty(&mut group, segment);
        }
        self.write(&mut group)?;
        self.stats.evicted_blocks.inc_by(evicted);
        self.stats.evicted_bytes.inc_by(before.saturating_sub(self.sums.cached_bytes));
        Ok(true)
    }

    fn oldest_cached(&self) -> Option<u32> {
        self.segments.iter().find(|(_, record)| record.kind == Kind::Cached).map(|(segment, _)| *segment)
    }

    /// The blocks with values in a segment, in disk order.
    pub(super) fn rows(&self, segment: u32, rows_max: usize) -> Result<Vec<(Place, Bytes)>, StoreError> {
        let prefix = segment.to_be_bytes();
        let rows = self.store.rows_from(PLACES, &prefix)?.take(rows_max).map(|row| {
            let (place, block) = row?;
            let place = Place::from_key(&place).ok_or_else(|| StoreError::corrupt("a place is malformed"))?;
            Ok((place, Bytes::from(block)))
        });
        rows.take_while(|row| !matches!(row, Ok((place, _)) if place.segment != segment)).collect()
    }

    /// Stages the eviction of a block, and returns whether it is evicted: it may be spared, or the row may be stale
    /// after a failed batch.
    fn stage_eviction(
        &mut self,
        group: &mut Group,
        place: Place,
        block: &[u8],
        spare_hot: bool,
    ) -> Result<bool, StoreError> {
        let Some((key, indexed)) = self.live_record(group, place, block)? else { return Ok(false) };
        let bytes = indexed.cost(block);
        let in_use = spare_hot && self.is_in_use(&key, place);
        // At most half of a segment is spared, so that eviction makes progress.
        let half = self.segments.get(&place.segment).map_or(0, |record| u64::from(record.written) / 2);
        // A block that cannot be moved is removed.
        if in_use && self.second_chances.1 + bytes <= half && self.stage_move(group, key, indexed, Kind::Cached).is_ok()
        {
            self.second_chances.1 += bytes;
            return Ok(false);
        }
        self.stage_removal(group, &key, indexed)?;
        Ok(true)
    }

    fn is_in_use(&self, key: &BlockKey, place: Place) -> bool {
        self.store.reference_bits.is_referenced(place.segment, place.offset) || self.store.reference_bits.is_hot(key)
    }

    /// The block and index record of a row in `places`. Stages the removal of a row that the index does not have.
    fn live_record(
        &self,
        group: &mut Group,
        place: Place,
        block: &[u8],
    ) -> Result<Option<(BlockKey, IndexRecord)>, StoreError> {
        let key = BlockKey::from_bytes(block);
        let indexed =
            key.map(|key| self.index(group, &key)).transpose()?.flatten().filter(|indexed| indexed.place == place);
        if indexed.is_none() {
            group.batch.delete_cf(self.store.family(PLACES)?, place.to_key());
        }
        Ok(key.zip(indexed))
    }

    /// Stages the move of a value to a new place. A corrupt value is removed instead.
    pub(super) fn stage_move(
        &self,
        group: &mut Group,
        key: BlockKey,
        indexed: IndexRecord,
        kind: Kind,
    ) -> Result<(), StoreError> {
        match self.store.value(&key.to_bytes(), indexed) {
            Ok(value) => {
                let IndexRecord { shape, base, .. } = indexed;
                self.stage_record(group, key, NewValue { kind, shape, base, value: [value, Bytes::new()] })
            }
            Err(StoreError::Corrupt(reason)) => {
                self.report_corruption(&key, indexed, &reason);
                self.stage_loss(group, &key, indexed)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether less than half of a pinned segment is live.
    pub(super) fn is_sparse(&self, segment: u32) -> bool {
        self.segments.get(&segment).is_some_and(|record| {
            let filling = self.tails.contain(segment) && record.blocks > 0 && record.written < SPARSE_TAIL_BYTES_MIN;
            let is_punched = self.punched.get(&segment).is_some_and(|live| record.live > live / 2);
            record.kind == Kind::Pinned && !filling && !is_punched && record.live < record.written.div_ceil(2)
        })
    }

    /// The pinned segments of which more than one part in [`DEAD_DIVISOR`] is dead.
    pub(super) fn worth_compacting(&self) -> Vec<u32> {
        let dead = |record: &SegmentRecord| record.written.saturating_sub(record.live);
        let worth = |record: &SegmentRecord| dead(record) > record.written / DEAD_DIVISOR;
        let pinned = self.segments.iter().filter(|(_, record)| record.kind == Kind::Pinned);
        pinned.filter(|(_, record)| worth(record)).map(|(segment, _)| *segment).collect()
    }

    /// Garbage-collects a chunk of a sparse segment: moves live values to the current segment; the last chunk deletes
    /// the file. Without space for that, punches holes for the dead ranges.
    pub(super) fn collect_chunk(&mut self) {
        let Some(segment) = self.sparse.first().copied() else { return };
        let collected = if self.has_room_for(segment) { self.collect(segment) } else { self.punch(segment) };
        let collected = match collected {
            Err(error) if error.is_full() && self.sparse.contains(&segment) => self.punch(segment).map_err(|_| error),
            collected => collected,
        };
        if let Err(error) = collected {
            // Retried when another of its values is removed, or when the store is opened.
            warn!(%error, "garbage collection of a segment failed");
            self.sparse.remove(&segment);
            self.collect_error = Some(error);
        }
    }

    fn collect(&mut self, segment: u32) -> Result<(), StoreError> {
        if self.tails.contain(segment) {
            self.tails.set(Kind::Pinned, None);
        }
        let mut group = self.begin();
        // It reclaims more space than it takes.
        group.into_reserve = true;
        let rows = self.rows(segment, CHUNK_ROWS)?;
        for (place, block) in &rows {
            if let Some((key, indexed)) = self.live_record(&mut group, *place, block)? {
                self.stage_move(&mut group, key, indexed, Kind::Pinned)?;
            }
            if group.full() {
                break;
            }
        }
        if rows.is_empty() {
            self.stage_empty(&mut group, segment);
        }
        self.write(&mut group)
    }

    /// Whether all live values of a segment can be moved, so that the disk is not filled with half-collected segments.
    fn has_room_for(&self, segment: u32) -> bool {
        let live = self.segments.get(&segment).map_or(0, |record| record.live);
        self.check_free_space(self.headroom_bytes(), live as usize).is_ok()
    }

    /// Punches holes for the dead ranges of a pinned segment, which needs no space.
    fn punch(&mut self, segment: u32) -> Result<(), StoreError> {
        let Some(record) = self.segments.get(&segment).copied() else { return Ok(()) };
        if !self.store.punch_dead(segment, record)? {
            return Err(self.with_space_figures(StoreError::Full { free: 0, needed: 0 }));
        }
        self.punched.insert(segment, record.live);
        self.sparse.remove(&segment);
        Ok(())
    }

    /// Stages a new value for a block whose old value is still at `place`.
    pub(super) fn stage_replacement(
        &self,
        group: &mut Group,
        key: BlockKey,
        place: Place,
        value: Stored,
    ) -> Result<(), StoreError> {
        let is_current = |indexed: &IndexRecord| indexed.place == place && indexed.base.is_none();
        let Some(indexed) = self.index(group, &key)?.filter(is_current) else { return Ok(()) };
        let (shape, value) = value.into_pieces();
        self.stage_value(group, key, indexed.kind, shape, value)
    }

    /// Deletes a block if its value is corrupt, and logs errors.
    pub(super) fn drop_corrupt(&mut self, key: &BlockKey) {
        if let Err(error) = self.delete_if_corrupt(key) {
            error!(?key, %error, "a block on disk is corrupt and cannot be deleted");
        }
    }

    /// Deletes a block if its value is corrupt. A slice stays if its base is the corrupt one, and can be read when the
    /// base is stored again.
    pub(super) fn delete_if_corrupt(&mut self, key: &BlockKey) -> Result<(), StoreError> {
        let Some(indexed) = self.store.index(&key.to_bytes())? else { return Ok(()) };
        if let Some(base) = &indexed.base {
            self.delete_value_if_corrupt(base)?;
            if !self.store.has_base(indexed)? {
                return Ok(());
            }
        }
        self.delete_value_if_corrupt(key)
    }

    fn delete_value_if_corrupt(&mut self, key: &BlockKey) -> Result<(), StoreError> {
        let Some(indexed) = self.store.index(&key.to_bytes())? else { return Ok(()) };
        let Err(StoreError::Corrupt(reason)) = self.store.verified(key, indexed) else { return Ok(()) };
        let mut group = self.begin();
        self.stage_loss(&mut group, key, indexed)?;
        self.write(&mut group)?;
        self.report_corruption(key, indexed, &reason);
        Ok(())
    }

    /// Deletes blocks, in batches that keep the store consistent after a crash.
    pub(super) fn evict_keys(&mut self, keys: &[BlockKey], which: Evict) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        for keys in keys.chunks(CHUNK_ROWS) {
            let (mut group, mut staged) = (self.begin(), Evicted::default());
            for key in keys {
                self.stage_deletion(&mut group, key, which, &mut staged)?;
            }
            self.write(&mut group)?;
            self.stats.evicted_blocks.inc_by(staged.blocks);
            self.stats.evicted_bytes.inc_by(staged.bytes);
            evicted += staged;
        }
        Ok(evicted)
    }

    fn stage_deletion(
        &self,
        group: &mut Group,
        key: &BlockKey,
        which: Evict,
        staged: &mut Evicted,
    ) -> Result<(), StoreError> {
        // A repeated key is staged already.
        let Some(indexed) = self.index(group, key)? else { return Ok(()) };
        if which == Evict::Unpinned && self.has_pin(key, None)? {
            staged.pinned += 1;
            return Ok(());
        }
        self.stage_loss(group, key, indexed)?;
        // Synced, so that a deleted block does not reappear after power loss.
        group.sync = true;
        staged.blocks += 1;
        staged.bytes += indexed.cost(&key.to_bytes());
        Ok(())
    }

    fn report_corruption(&self, key: &BlockKey, indexed: IndexRecord, reason: &str) {
        self.stats.corrupt_blocks.inc();
        error!(
            ?key, pinned = indexed.pinned(), %reason,
            "a block on disk is corrupt; it was deleted and is fetched again on demand"
        );
    }
}
