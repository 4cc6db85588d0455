//! Checks the consistency of the index, also with the segment files, and repairs it.
//!
//! Goals: the family `index` is authoritative, since each value's checksum verifies its place; derived data (`places`,
//! the sums in `segments`, the next IDs) is recomputed from it; each change is correct by itself, so an interrupted
//! repair can be repeated. Memory grows only with the number of segments.
//!
//! Non-goals: values, which a scrub checks; the families of pins.

use super::schema::{
    Counters, INDEX, IndexRecord, KEY_COUNTERS, Kind, META, PINS, PLACES, PinRecord, Place, SEGMENTS, SegmentRecord,
    released_pin,
};
use super::store::Store;
use super::{StoreError, rebuild, record};
use content::BlockKey;
use rocksdb::WriteBatch;
use std::collections::{BTreeMap, BTreeSet};

/// Rows per batch.
const BATCH_ROWS: usize = 1024;

/// Inconsistencies of the index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inconsistencies {
    /// Blocks with a malformed index record, or one with a wrong place. They are removed.
    pub blocks: u64,
    /// Rows of `places` that are missing or inconsistent with the index.
    pub places: u64,
    /// Records of segments that are missing, superfluous or wrong; and the next IDs, if they are already used.
    pub segments: u64,
    /// Files without a segment record.
    pub files: u64,
}

impl Inconsistencies {
    /// The total number.
    pub fn total(&self) -> u64 {
        self.blocks + self.places + self.segments + self.files
    }
}

/// Checks the index, and repairs it if `repairs`.
pub(super) fn check_index(store: &Store, repairs: bool) -> Result<Inconsistencies, StoreError> {
    let mut check = IndexCheck { store, repairs, batch: WriteBatch::default(), found: Inconsistencies::default() };
    check.places()?;
    check.index()?;
    let segments = check.segments(count_all(store)?)?;
    check.counters(&segments)?;
    check.write()?;
    check.files(&segments)?;
    Ok(check.found)
}

struct IndexCheck<'a> {
    store: &'a Store,
    repairs: bool,
    batch: WriteBatch,
    found: Inconsistencies,
}

type Segments = BTreeMap<u32, SegmentRecord>;

impl IndexCheck<'_> {
    /// Removes rows of `places` that are inconsistent with the index. Runs first, so that the remaining rows are valid.
    fn places(&mut self) -> Result<(), StoreError> {
        for row in self.store.rows_from(PLACES, &[])? {
            let (place, block) = row?;
            let indexed = index(self.store, &block)?.map(|record| record.place);
            if indexed.is_none() || indexed != Place::from_key(&place) {
                self.found.places += 1;
                self.batch.delete_cf(self.store.family(PLACES)?, place);
                self.write_some()?;
            }
        }
        self.write()
    }

    /// Adds missing rows of `places`, and removes malformed index records.
    fn index(&mut self) -> Result<(), StoreError> {
        for row in self.store.rows_from(INDEX, &[])? {
            let (block, record) = row?;
            match (BlockKey::from_bytes(&block), IndexRecord::from_bytes(&record)) {
                (Some(key), Some(record)) => self.check_place(&key, &block, record)?,
                _ => self.remove(&block)?,
            }
            self.write_some()?;
        }
        self.write()
    }

    /// Makes the row of a block's place refer to the block, if its value is there. A value's record contains the key,
    /// so no two blocks share a place.
    fn check_place(&mut self, key: &BlockKey, block: &[u8], record: IndexRecord) -> Result<(), StoreError> {
        let place = record.place.to_key();
        let found = self.store.pinned(PLACES, &place)?;
        if found.as_deref() == Some(block) {
            return Ok(());
        }
        if matches!(self.store.verified(key, record), Err(StoreError::Corrupt(_))) {
            return self.remove(block);
        }
        self.found.places += 1;
        self.batch.put_cf(self.store.family(PLACES)?, place, block);
        let is_conflict = found.is_some();
        // Another block with this place that was checked before is wrong. Blocks checked later must see this row.
        if let Some(other) = found.filter(|other| **other < *block)
            && index(self.store, &other)?.is_some_and(|other| other.place == record.place)
        {
            self.remove(&other)?;
        }
        if is_conflict { self.write() } else { Ok(()) }
    }

    fn remove(&mut self, block: &[u8]) -> Result<(), StoreError> {
        self.found.blocks += 1;
        self.batch.delete_cf(self.store.family(INDEX)?, block);
        Ok(())
    }

    /// Corrects the records of segments, and returns them.
    fn segments(&mut self, mut counted: Segments) -> Result<Segments, StoreError> {
        let family = self.store.family(SEGMENTS)?;
        let files: BTreeSet<u32> = self.store.files.list()?.into_iter().collect();
        for row in self.store.rows_from(SEGMENTS, &[])? {
            let (key, record) = row?;
            let segment = <[u8; 4]>::try_from(&*key).ok().map(u32::from_be_bytes);
            match (segment, SegmentRecord::from_bytes(&record)) {
                // A segment without live values may still be the current one.
                (Some(segment), Some(record)) if counted.contains_key(&segment) || files.contains(&segment) => {
                    let counts = counted.entry(segment).or_insert_with(|| SegmentRecord::new(record.kind));
                    counts.written = counts.written.max(record.written);
                    // A segment with a pinned value must not be evicted.
                    counts.kind = if record.kind == Kind::Pinned { Kind::Pinned } else { counts.kind };
                }
                // Rewritten below.
                (Some(segment), None) if counted.contains_key(&segment) => {}
                _ => {
                    self.found.segments += 1;
                    self.batch.delete_cf(family, key);
                }
            }
        }
        for (segment, record) in &counted {
            let key = segment.to_be_bytes();
            if self.store.pinned(SEGMENTS, &key)?.as_deref() != Some(&record.to_bytes()) {
                self.found.segments += 1;
                self.batch.put_cf(family, key, record.to_bytes());
            }
        }
        Ok(counted)
    }

    /// Corrects the next IDs, so that used IDs are not reused.
    fn counters(&mut self, segments: &Segments) -> Result<(), StoreError> {
        let found = match self.store.counters() {
            Err(StoreError::Corrupt(_)) => Counters::default(),
            counters => counters?,
        };
        let mut counters = found;
        if let Some((last, _)) = segments.last_key_value() {
            counters.segment = counters.segment.max(last.saturating_add(1));
        }
        // New values must not be placed before the synced place.
        let synced = self.store.synced()?.unwrap_or_default();
        let after = if synced.offset > 0 { synced.segment.saturating_add(1) } else { synced.segment };
        if !segments.contains_key(&synced.segment) {
            counters.segment = counters.segment.max(after);
        }
        for row in self.store.rows_from(PINS, &[])? {
            let pin = PinRecord::from_bytes(&row?.1).map_or(0, |record| record.id.0);
            counters.pin = counters.pin.max(pin.saturating_add(1));
        }
        for row in self.store.rows_from(META, &[])? {
            let pin = released_pin(&row?.0).map_or(0, |pin| pin.0);
            counters.pin = counters.pin.max(pin.saturating_add(1));
        }
        if counters != found {
            self.found.segments += 1;
            self.batch.put_cf(self.store.family(META)?, KEY_COUNTERS, counters.to_bytes());
        }
        Ok(())
    }

    /// Adds the values of files without records to the index, and deletes files without values, after the removal of
    /// their rows was synced.
    fn files(&mut self, segments: &Segments) -> Result<(), StoreError> {
        for file in self.store.files.list()?.into_iter().filter(|file| !segments.contains_key(file)) {
            self.found.files += 1;
            if self.repairs && !rebuild::adopt(self.store, file)? {
                self.store.files.delete(file)?;
            }
        }
        Ok(())
    }

    fn write_some(&mut self) -> Result<(), StoreError> {
        if self.batch.len() < BATCH_ROWS { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let batch = std::mem::take(&mut self.batch);
        if self.repairs && !batch.is_empty() { self.store.write(batch, true) } else { Ok(()) }
    }
}

/// The index record of a block, if it is valid.
fn index(store: &Store, block: &[u8]) -> Result<Option<IndexRecord>, StoreError> {
    Ok(store.pinned(INDEX, block)?.and_then(|record| IndexRecord::from_bytes(&record)))
}

/// Computes the records of all segments from the index.
pub(super) fn count_all(store: &Store) -> Result<BTreeMap<u32, SegmentRecord>, StoreError> {
    let mut counted = Segments::new();
    for row in store.rows_from(INDEX, &[])? {
        let (block, record) = row?;
        if let Some(record) = IndexRecord::from_bytes(&record) {
            let segment = counted.entry(record.place.segment).or_insert_with(|| SegmentRecord::new(record.kind));
            count_block(segment, &block, record);
        }
    }
    Ok(counted)
}

/// Adds a block to the record of its segment.
pub(super) fn count_block(segment: &mut SegmentRecord, block: &[u8], record: IndexRecord) {
    let bytes = u32::try_from(record::record_bytes(block, record.value_bytes())).unwrap_or(u32::MAX);
    segment.blocks += 1;
    segment.live = segment.live.saturating_add(bytes);
    segment.written = segment.written.max(record.place.offset.saturating_add(bytes));
    if record.pinned() {
        segment.kind = Kind::Pinned;
    }
}
