//! Whether the index agrees with itself and with the files that are there, and what makes it agree again.
//!
//! Goals: `index` is believed, since it says where each value is, and a value tells by its checksum whether that is so;
//! what is derived from it (`places`, the sums of `segments`, the next numbers) is made anew from it; each change is right by
//! itself, so a repair that is cut off is begun again. Memory grows with the number of segments alone.
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

/// Rows that one batch changes.
const BATCH_ROWS: usize = 1024;

/// Where the index disagreed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disagreements {
    /// Blocks of which the index is malformed, or names a place where they are not. They are forgotten.
    pub blocks: u64,
    /// Rows of `places` that are missing or that the index does not confirm.
    pub places: u64,
    /// Records of segments that are missing, too many or do not count what is there; and the next numbers, if they were
    /// used already.
    pub segments: u64,
    /// Files that no segment has.
    pub files: u64,
}

impl Disagreements {
    /// How many in all.
    pub fn total(&self) -> u64 {
        self.blocks + self.places + self.segments + self.files
    }
}

/// Looks for disagreements, and does away with them if `mend` says so.
pub(super) fn survey(store: &Store, mend: bool) -> Result<Disagreements, StoreError> {
    let mut survey = Survey { store, mend, batch: WriteBatch::default(), found: Disagreements::default() };
    survey.places()?;
    survey.index()?;
    let segments = survey.segments(count_all(store)?)?;
    survey.counters(&segments)?;
    survey.write()?;
    survey.files(&segments)?;
    Ok(survey.found)
}

struct Survey<'a> {
    store: &'a Store,
    mend: bool,
    batch: WriteBatch,
    found: Disagreements,
}

type Segments = BTreeMap<u32, SegmentRecord>;

impl Survey<'_> {
    /// Takes away rows that the index does not confirm. Comes first, so that what is left has a claim.
    fn places(&mut self) -> Result<(), StoreError> {
        for row in self.store.rows_from(PLACES, &[])? {
            let (place, block) = row?;
            let named = index(self.store, &block)?.map(|record| record.place);
            if named.is_none() || named != Place::from_key(&place) {
                self.found.places += 1;
                self.batch.delete_cf(self.store.family(PLACES)?, place);
                self.write_some()?;
            }
        }
        self.write()
    }

    /// Adds rows of `places` that are missing, and takes away what cannot be.
    fn index(&mut self) -> Result<(), StoreError> {
        for row in self.store.rows_from(INDEX, &[])? {
            let (block, record) = row?;
            match (BlockKey::from_bytes(&block), IndexRecord::from_bytes(&record)) {
                (Some(key), Some(record)) => self.claim(&key, &block, record)?,
                _ => self.forget(&block)?,
            }
            self.write_some()?;
        }
        self.write()
    }

    /// Sees to it that the place which a block's record names is its own, if its value is there. A value names its block, so
    /// no two blocks have one place.
    fn claim(&mut self, key: &BlockKey, block: &[u8], record: IndexRecord) -> Result<(), StoreError> {
        let place = record.place.to_key();
        let found = self.store.pinned(PLACES, &place)?;
        if found.as_deref() == Some(block) {
            return Ok(());
        }
        if matches!(self.store.verified(key, record), Err(StoreError::Corrupt(_))) {
            return self.forget(block);
        }
        self.found.places += 1;
        self.batch.put_cf(self.store.family(PLACES)?, place, block);
        let contested = found.is_some();
        // Whoever else claims the place and has had its turn is wrong. Those whose turn comes have to find this row.
        if let Some(other) = found.filter(|other| **other < *block)
            && index(self.store, &other)?.is_some_and(|other| other.place == record.place)
        {
            self.forget(&other)?;
        }
        if contested { self.write() } else { Ok(()) }
    }

    fn forget(&mut self, block: &[u8]) -> Result<(), StoreError> {
        self.found.blocks += 1;
        self.batch.delete_cf(self.store.family(INDEX)?, block);
        Ok(())
    }

    /// Makes the records count what was counted. Gives the segments that there are then.
    fn segments(&mut self, mut counted: Segments) -> Result<Segments, StoreError> {
        let family = self.store.family(SEGMENTS)?;
        let files: BTreeSet<u32> = self.store.files.list()?.into_iter().collect();
        for row in self.store.rows_from(SEGMENTS, &[])? {
            let (key, record) = row?;
            let segment = <[u8; 4]>::try_from(&*key).ok().map(u32::from_be_bytes);
            match (segment, SegmentRecord::from_bytes(&record)) {
                // One of which nothing is left may still be the one that values are appended to.
                (Some(segment), Some(record)) if counted.contains_key(&segment) || files.contains(&segment) => {
                    let counts = counted.entry(segment).or_insert_with(|| SegmentRecord::new(record.kind));
                    counts.written = counts.written.max(record.written);
                    // What holds anything pinned must not be evicted.
                    counts.kind = if record.kind == Kind::Pinned { Kind::Pinned } else { counts.kind };
                }
                // Written anew below.
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

    /// Numbers that were used are not used again.
    fn counters(&mut self, segments: &Segments) -> Result<(), StoreError> {
        let found = match self.store.counters() {
            Err(StoreError::Corrupt(_)) => Counters::default(),
            counters => counters?,
        };
        let mut counters = found;
        if let Some((last, _)) = segments.last_key_value() {
            counters.segment = counters.segment.max(last.saturating_add(1));
        }
        // What comes must not lie before what is known to be synced.
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

    /// Takes in what files have that nobody names, and deletes those that have nothing, when it is on the disk that nobody
    /// names them.
    fn files(&mut self, segments: &Segments) -> Result<(), StoreError> {
        for file in self.store.files.list()?.into_iter().filter(|file| !segments.contains_key(file)) {
            self.found.files += 1;
            if self.mend && !rebuild::adopt(self.store, file)? {
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
        if self.mend && !batch.is_empty() { self.store.write(batch, true) } else { Ok(()) }
    }
}

/// What the index says of a block, if that can be read.
fn index(store: &Store, block: &[u8]) -> Result<Option<IndexRecord>, StoreError> {
    Ok(store.pinned(INDEX, block)?.and_then(|record| IndexRecord::from_bytes(&record)))
}

/// Counts what is in each segment.
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

/// Counts a block that is in a segment.
pub(super) fn count_block(segment: &mut SegmentRecord, block: &[u8], record: IndexRecord) {
    let bytes = u32::try_from(record::record_bytes(block, record.shape.value_bytes())).unwrap_or(u32::MAX);
    segment.blocks += 1;
    segment.live = segment.live.saturating_add(bytes);
    segment.written = segment.written.max(record.place.offset.saturating_add(bytes));
    if record.pinned() {
        segment.kind = Kind::Pinned;
    }
}
