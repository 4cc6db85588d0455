//! Space that comes back: eviction of whole segments, oldest first, with a second chance for what was read again;
//! pinned segments of which little is left, whose rest is moved together; and blocks found damaged.

use super::super::StoreError;
use super::super::schema::{IndexRecord, Kind, PLACES, Place, SegmentRecord};
use super::group::Group;
use super::{CHUNK_ROWS, Writer};
use crate::store::{Evict, Evicted};
use crate::stored::Stored;
use bytes::Bytes;
use content::BlockKey;
use tracing::{error, warn};

/// A segment that is still being filled is not worth collecting below this size, unless nothing in it is needed.
const SPARSE_TAIL_BYTES_MIN: u32 = 1024 * 1024;

/// Chunks of eviction between two groups: a segment of blocks of the usual size is one.
const CHUNKS_AT_ONCE: usize = 8;

/// What an operator who wants the space back leaves of a pinned segment that is not needed: less than one part in this many.
const DEAD_SHARE_MAX: u32 = 16;

impl Writer {
    /// Removes the oldest cached segments until the rest is within the budget and leaves the disk the space that it should;
    /// or some of them, for what waits to be written must not wait for millions of tiny blocks.
    pub(super) fn evict(&mut self) {
        if !self.evicts {
            return;
        }
        // Looked up once: file systems give space back late.
        let target = self.cached_bytes_target();
        for _ in 0..CHUNKS_AT_ONCE {
            if self.sums.cached_bytes <= target {
                return;
            }
            // Nothing can be written anew where there is no space.
            match self.evict_chunk(self.shortage_bytes() == 0) {
                Ok(true) => {}
                Ok(false) => {
                    self.evicts = false;
                    return;
                }
                Err(error) => {
                    warn!(%error, "blocks could not be evicted");
                    self.evicts = false;
                    return;
                }
            }
        }
    }

    pub(super) fn has_to_evict(&self) -> bool {
        self.evicts && self.sums.cached_bytes > self.cached_bytes_target()
    }

    fn cached_bytes_target(&self) -> u64 {
        self.options.cache_bytes_max.min(self.sums.cached_bytes.saturating_sub(self.shortage_bytes()))
    }

    /// Evicts some of the oldest segments, and says whether more are to go until the rest takes no more than that.
    pub(super) fn shrink(&mut self, cached_bytes: u64) -> Result<bool, StoreError> {
        for _ in 0..CHUNKS_AT_ONCE {
            if self.sums.cached_bytes <= cached_bytes || !self.evict_chunk(false)? {
                return Ok(false);
            }
        }
        Ok(self.sums.cached_bytes > cached_bytes)
    }

    /// Evicts some of the oldest segment, and says whether there was one. What readers want is kept if there is `rescue`.
    fn evict_chunk(&mut self, rescue: bool) -> Result<bool, StoreError> {
        let Some(segment) = self.oldest_cached() else { return Ok(false) };
        if self.tails.contain(segment) {
            self.tails.set(Kind::Cached, None);
        }
        if self.rescued.0 != segment {
            self.rescued = (segment, 0);
        }
        // One that was given up for its space has nothing to be kept.
        let rescue = rescue && self.store.files.has(segment);
        let before = self.sums.cached_bytes;
        let (mut group, mut evicted) = (self.begin(), 0);
        let rows = self.rows(segment, CHUNK_ROWS)?;
        for (place, block) in &rows {
            evicted += u64::from(self.stage_eviction(&mut group, *place, block, rescue)?);
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

    /// The blocks whose values are in a segment, in their order on the disk.
    pub(super) fn rows(&self, segment: u32, rows_max: usize) -> Result<Vec<(Place, Bytes)>, StoreError> {
        let prefix = segment.to_be_bytes();
        let rows = self.store.rows_from(PLACES, &prefix)?.take(rows_max).map(|row| {
            let (place, block) = row?;
            let place = Place::from_key(&place).ok_or_else(|| StoreError::corrupt("a place is malformed"))?;
            Ok((place, Bytes::from(block)))
        });
        rows.take_while(|row| !matches!(row, Ok((place, _)) if place.segment != segment)).collect()
    }

    /// Whether the block goes: it may be kept, or the row may name nothing, left over from a batch that failed.
    fn stage_eviction(
        &mut self,
        group: &mut Group,
        place: Place,
        block: &[u8],
        rescue: bool,
    ) -> Result<bool, StoreError> {
        let Some((key, held)) = self.named(group, place, block)? else { return Ok(false) };
        let bytes = held.cost(block);
        let wanted = rescue && self.is_wanted(&key, place);
        // At most half of a segment, so that eviction gets on whatever is wanted.
        let half = self.segments.get(&place.segment).map_or(0, |record| u64::from(record.written) / 2);
        // One that cannot be read is no reason to keep the whole segment.
        if wanted && self.rescued.1 + bytes <= half && self.stage_move(group, key, held, Kind::Cached).is_ok() {
            self.rescued.1 += bytes;
            return Ok(false);
        }
        self.stage_removal(group, &key, held)?;
        Ok(true)
    }

    fn is_wanted(&self, key: &BlockKey, place: Place) -> bool {
        self.store.touched.is_touched(place.segment, place.offset) || self.store.touched.is_hot(key)
    }

    /// The block of a row in `places`, if the index agrees. A row that it does not know is taken away.
    fn named(
        &self,
        group: &mut Group,
        place: Place,
        block: &[u8],
    ) -> Result<Option<(BlockKey, IndexRecord)>, StoreError> {
        let key = BlockKey::from_bytes(block);
        let held = key.map(|key| self.index(group, &key)).transpose()?.flatten().filter(|held| held.place == place);
        if held.is_none() {
            group.batch.delete_cf(self.store.family(PLACES)?, place.to_key());
        }
        Ok(key.zip(held))
    }

    /// Stages that a value is written anew. One that turns out damaged is forgotten.
    pub(super) fn stage_move(
        &self,
        group: &mut Group,
        key: BlockKey,
        held: IndexRecord,
        kind: Kind,
    ) -> Result<(), StoreError> {
        match self.store.value(&key.to_bytes(), held) {
            Ok(value) => self.stage_value(group, key, kind, held.shape, [value, Bytes::new()]),
            Err(StoreError::Corrupt(reason)) => {
                self.report_damage(&key, held, &reason);
                self.stage_loss(group, &key, held)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether less than half of a pinned segment is still named.
    pub(super) fn is_sparse(&self, segment: u32) -> bool {
        self.segments.get(&segment).is_some_and(|record| {
            let filling = self.tails.contain(segment) && record.blocks > 0 && record.written < SPARSE_TAIL_BYTES_MIN;
            let gave_back = self.punched.get(&segment).is_some_and(|live| record.live > live / 2);
            record.kind == Kind::Pinned && !filling && !gave_back && record.live < record.written.div_ceil(2)
        })
    }

    /// The pinned segments of which more than one part in [`DEAD_SHARE_MAX`] is not named any more.
    pub(super) fn worth_compacting(&self) -> Vec<u32> {
        let dead = |record: &SegmentRecord| record.written.saturating_sub(record.live);
        let worth = |record: &SegmentRecord| dead(record) > record.written / DEAD_SHARE_MAX;
        let pinned = self.segments.iter().filter(|(_, record)| record.kind == Kind::Pinned);
        pinned.filter(|(_, record)| worth(record)).map(|(segment, _)| *segment).collect()
    }

    /// Moves some of what is left in a sparse segment to the end; the last of it takes the segment away. Where there is no space
    /// for that, the dead part of the segment is given back where it is.
    pub(super) fn collect_chunk(&mut self) {
        let Some(segment) = self.sparse.first().copied() else { return };
        let collected = if self.has_room_for(segment) { self.collect(segment) } else { self.punch(segment) };
        let collected = match collected {
            Err(error) if error.is_full() && self.sparse.contains(&segment) => self.punch(segment).map_err(|_| error),
            collected => collected,
        };
        if let Err(error) = collected {
            // Taken up again when something else in it goes, or when the store is opened.
            warn!(%error, "a sparse segment could not be collected");
            self.sparse.remove(&segment);
            self.uncollected = Some(error);
        }
    }

    fn collect(&mut self, segment: u32) -> Result<(), StoreError> {
        if self.tails.contain(segment) {
            self.tails.set(Kind::Pinned, None);
        }
        let mut group = self.begin();
        // It gives back more than it takes.
        group.into_reserve = true;
        let rows = self.rows(segment, CHUNK_ROWS)?;
        for (place, block) in &rows {
            if let Some((key, held)) = self.named(&mut group, *place, block)? {
                self.stage_move(&mut group, key, held, Kind::Pinned)?;
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

    /// Whether all that is left of a segment can be moved, so that no disk is full of halves.
    fn has_room_for(&self, segment: u32) -> bool {
        let live = self.segments.get(&segment).map_or(0, |record| record.live);
        self.check_free_space(self.headroom_bytes(), live as usize).is_ok()
    }

    /// Gives back what is dead of a pinned segment, where it is. That takes no space.
    fn punch(&mut self, segment: u32) -> Result<(), StoreError> {
        let Some(record) = self.segments.get(&segment).copied() else { return Ok(()) };
        if !self.store.punch_dead(segment, record)? {
            return Err(self.told(StoreError::Full { free: 0, needed: 0 }));
        }
        self.punched.insert(segment, record.live);
        self.sparse.remove(&segment);
        Ok(())
    }

    /// Stages a value for a block that still has its former one where it was.
    pub(super) fn stage_replacement(
        &self,
        group: &mut Group,
        key: BlockKey,
        place: Place,
        value: Stored,
    ) -> Result<(), StoreError> {
        let Some(held) = self.index(group, &key)?.filter(|held| held.place == place) else { return Ok(()) };
        let (shape, value) = value.into_pieces();
        self.stage_value(group, key, held.kind, shape, value)
    }

    /// Forgets a block if its value still is not what was written, or not what its hash says.
    pub(super) fn forget(&mut self, key: &BlockKey) {
        if let Err(error) = self.forget_damaged(key) {
            error!(?key, %error, "a block is damaged on disk and cannot be forgotten");
        }
    }

    pub(super) fn forget_damaged(&mut self, key: &BlockKey) -> Result<(), StoreError> {
        let Some(held) = self.store.index(&key.to_bytes())? else { return Ok(()) };
        let Err(StoreError::Corrupt(reason)) = self.store.verified(key, held) else { return Ok(()) };
        let mut group = self.begin();
        self.stage_loss(&mut group, key, held)?;
        self.write(&mut group)?;
        self.report_damage(key, held, &reason);
        Ok(())
    }

    /// Forgets blocks that somebody wants gone, so many at a time that the store goes on to be one that could be left.
    pub(super) fn evict_keys(&mut self, keys: &[BlockKey], which: Evict) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        for keys in keys.chunks(CHUNK_ROWS) {
            let (mut group, mut staged) = (self.begin(), Evicted::default());
            for key in keys {
                self.stage_wanted_gone(&mut group, key, which, &mut staged)?;
            }
            self.write(&mut group)?;
            self.stats.evicted_blocks.inc_by(staged.blocks);
            self.stats.evicted_bytes.inc_by(staged.bytes);
            evicted += staged;
        }
        Ok(evicted)
    }

    fn stage_wanted_gone(
        &self,
        group: &mut Group,
        key: &BlockKey,
        which: Evict,
        staged: &mut Evicted,
    ) -> Result<(), StoreError> {
        // A key that is asked for twice finds that it is staged already.
        let Some(held) = self.index(group, key)? else { return Ok(()) };
        if which == Evict::Unpinned && self.has_pin(key, None)? {
            staged.pinned += 1;
            return Ok(());
        }
        self.stage_loss(group, key, held)?;
        // It must not come back with a power cut: who asked for it relies on it.
        group.sync = true;
        staged.blocks += 1;
        staged.bytes += held.cost(&key.to_bytes());
        Ok(())
    }

    fn report_damage(&self, key: &BlockKey, held: IndexRecord, reason: &str) {
        self.stats.corrupt_blocks.inc();
        error!(?key, pinned = held.pinned(), %reason, "a block is damaged on disk: forgotten, to be fetched again");
    }
}
