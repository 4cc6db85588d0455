//! An index that is damaged, made anew: from the segments, whose records tell whose they are, and from the pin journal.
//!
//! Goals: every block that can be read is found again; no pin is lost, and one that cannot be completed says so; nothing
//! that may be pinned is evicted meanwhile; a rebuild that is cut off is begun again; memory grows with the number of
//! segments and of pins alone, and with one DAG at a time.
//!
//! How: the damaged index is set aside. Each segment is read ([`super::scan`]); of several values of a block the one that was
//! written last counts. Then each pin of the journal is walked from its root, which tells its members, those that are missing
//! included. What no pin has in a segment with members of pins was let go before, and is forgotten; segments without
//! any are of the cache.
//!
//! If the journal was damaged too, what pins may have had is not known: every block stays, as a member of
//! [`UNCLAIMED`], until the operator lets go of that.
//!
//! Non-goals: which pins were being removed, and what was let go and not overwritten: some of it may be cached again.
//!
//! Everything here blocks.

use super::index_files::{self, Stage};
use super::mend;
use super::scan::{self, FoundValue};
use super::schema::{
    BLOCKS_BY_PIN, Counters, FAMILIES, INDEX, IndexRecord, KEY_COUNTERS, KEY_SYNCED, Kind, META, PINS, PINS_BY_BLOCK,
    PLACES, PinId, PinRecord, Place, SCHEMA, SEGMENTS, SegmentRecord, block_of_pin, pin_of_block, release_key,
};
use super::scrub::{self, LackingPin};
use super::store::{Lock, SEGMENTS_DIR, Store};
use super::{DiskOptions, StoreError};
use crate::dag;
use crate::pin_journal::{self, Condition, PinJournal, Watermark};
use crate::pins::PinState;
use content::Cid;
use rocksdb::WriteBatch;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The pin of blocks that may have been pinned while nothing says by which pin. It has no root and no record.
pub(crate) const UNCLAIMED: PinId = PinId(0);

/// Rows that one batch changes.
const BATCH_ROWS: usize = 2048;

/// Between two lines of progress in the log.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// How far a rebuild has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RebuildProgress {
    /// Segments that were read.
    pub segments: usize,
    /// How many there are.
    pub segments_total: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// Values that were found, the older ones of a block included.
    pub blocks: u64,
    /// Bytes of segments that belong to no value which is whole: damaged ones, and what lies between.
    pub damaged_bytes: u64,
    /// Pins whose members were looked up.
    pub pins: usize,
    /// How many there are.
    pub pins_total: usize,
}

/// What a rebuild came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Why it was needed.
    pub reason: String,
    /// What was read.
    pub progress: RebuildProgress,
    /// Pins that lack blocks now.
    pub lacking: Vec<LackingPin>,
    /// Blocks that stay although no pin is known to have them, since the pin journal was damaged too.
    pub unclaimed: u64,
}

/// Who is shown how far a rebuild has come.
pub type OnRebuild<'a> = &'a mut dyn FnMut(&RebuildProgress);

/// Tells the log every few seconds how far a rebuild has come.
pub(super) fn log_progress() -> impl FnMut(&RebuildProgress) {
    let mut told = Instant::now();
    move |progress| {
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            let RebuildProgress { segments, segments_total, blocks, pins, pins_total, .. } = progress;
            let mib = progress.bytes >> 20;
            info!(segments, segments_total, mib, blocks, pins, pins_total, "rebuilding the index of the store");
        }
    }
}

/// Rebuilds the index of the store in `dir`, which is locked and not open.
///
/// # Errors
/// [`StoreError::NewerSchema`], [`StoreError::Corrupt`] if there is nothing to rebuild it from, or what the file system said. It
/// is begun again when the store is next opened.
pub(super) fn run(
    dir: &Path,
    options: &DiskOptions,
    lock: &Lock,
    reason: &str,
    on_progress: OnRebuild<'_>,
) -> Result<Rebuilt, StoreError> {
    warn!(%reason, "the index of the store is damaged: rebuilding it from the stored blocks");
    index_files::check_rebuildable(dir)?;
    let pins = known_pins(dir, options, lock)?;
    check_mounted(dir, &pins)?;
    if index_files::stage(dir)? != Some(Stage::Rebuilding) {
        index_files::mark(dir, Stage::Damaged)?;
        let aside = index_files::set_aside(dir)?;
        info!(path = %aside.display(), "the damaged index is kept here; it is not needed any more");
        index_files::mark(dir, Stage::Rebuilding)?;
    }
    index_files::delete(dir)?;
    let rebuilt = match rebuild(dir, options, lock, reason, &pins, &mut *on_progress) {
        // The damaged one may take the space that the new one needs.
        Err(error) if error.is_full() && index_files::clear_aside(dir)? => {
            warn!(%error, "the index could not be rebuilt: the damaged one is deleted, and it is tried again");
            index_files::delete(dir)?;
            rebuild(dir, options, lock, reason, &pins, on_progress)?
        }
        rebuilt => rebuilt?,
    };
    index_files::unmark(dir)?;
    tell(&rebuilt);
    Ok(rebuilt)
}

fn tell(rebuilt: &Rebuilt) {
    let Rebuilt { progress, lacking, unclaimed, .. } = rebuilt;
    let RebuildProgress { segments, blocks, damaged_bytes, pins, .. } = *progress;
    warn!(segments, blocks, damaged_bytes, pins, lacking = lacking.len(), "the index of the store was rebuilt");
    for pin in lacking {
        warn!(root = %pin.root, name = pin.name, missing = pin.missing, "a pin lacks blocks since the index was rebuilt");
    }
    if *unclaimed > 0 {
        let advice = "when \"causeway pin ls\" shows every pin as complete, \"causeway store repair --release-unclaimed\" lets \
                      go of the others";
        warn!(
            blocks = unclaimed,
            "blocks are kept that no known pin has, because the pin journal was damaged too: {advice}"
        );
    }
}

/// The pins that there were, and whether those are all.
struct KnownPins {
    pins: BTreeMap<PinId, (Cid, PinRecord)>,
    are_all: bool,
}

/// What the journal says; and the damaged index, if the journal is not whole.
fn known_pins(dir: &Path, options: &DiskOptions, lock: &Lock) -> Result<KnownPins, StoreError> {
    let path = dir.join(pin_journal::NAME);
    let found = PinJournal::read(dir).map_err(|error| StoreError::io(format!("{}: {error}", path.display())))?;
    let (mut pins, removed) = (found.pins, found.removed);
    if found.condition == Condition::Whole {
        // One that was written by a rebuild from less does not know whose the unclaimed blocks are.
        return Ok(KnownPins { pins, are_all: !index_files::has_unclaimed(dir) });
    }
    warn!(condition = ?found.condition, "the pin journal is not whole: looking for pins in the damaged index");
    let harvested =
        if index_files::stage(dir)? == Some(Stage::Rebuilding) { None } else { harvest(dir, options, lock) };
    let (is_read, are_all) = (harvested.is_some(), harvested.is_some() && !index_files::has_unclaimed(dir));
    for (root, record) in harvested.into_iter().flatten().filter(|(_, record)| !removed.contains(&record.id)) {
        pins.entry(record.id).or_insert((root, record));
    }
    if is_read {
        // Who begins again finds no index to ask.
        let enter = || PinJournal::open(dir)?.0.rewrite(SCHEMA, Watermark::default(), pins.values().cloned());
        enter().map_err(|error| StoreError::io(format!("{}: {error}", path.display())))?;
    }
    Ok(KnownPins { pins, are_all })
}

/// The pins of a damaged index, if all of them can be read.
fn harvest(dir: &Path, options: &DiskOptions, lock: &Lock) -> Option<Vec<(Cid, PinRecord)>> {
    index_files::manifest(dir)?;
    let store = Store::open_families(dir, options, Lock::clone(lock)).ok()?;
    let rows = store.rows_from(PINS, &[]).ok()?;
    rows.map(|row| super::parse_pin(&row?)).collect::<Result<_, StoreError>>().ok()
}

/// Pins without any segment are no pins that lost their blocks: what the segments are on is not there.
fn check_mounted(dir: &Path, known: &KnownPins) -> Result<(), StoreError> {
    let segments = dir.join(SEGMENTS_DIR);
    let has_segments = segments.is_dir() && !super::files::Files::list_in(&segments)?.is_empty();
    if !has_segments && known.pins.values().any(|(_, record)| record.blocks > 0) {
        return Err(StoreError::io("the folder of segments is empty: is what it is on not mounted?"));
    }
    Ok(())
}

fn rebuild(
    dir: &Path,
    options: &DiskOptions,
    lock: &Lock,
    reason: &str,
    known: &KnownPins,
    on_progress: OnRebuild<'_>,
) -> Result<Rebuilt, StoreError> {
    let mut store = Store::open_families(dir, options, Lock::clone(lock))?;
    let mut rebuild = Rebuild { store: &store, batch: WriteBatch::default(), staged: HashMap::new(), on_progress };
    let mut progress = RebuildProgress { pins_total: known.pins.len(), ..RebuildProgress::default() };
    let segments = rebuild.read_segments(&mut progress)?;
    for (root, record) in latest(&known.pins) {
        rebuild.restore_pin(*root, record)?;
        progress.pins += 1;
        (rebuild.on_progress)(&progress);
    }
    let unclaimed = rebuild.sort_out(known.are_all)?;
    rebuild.count_segments(&segments, known)?;
    rebuild.write()?;
    store.write_schema()?;
    FAMILIES.iter().try_for_each(|family| store.flush_family(family))?;
    if unclaimed > 0 {
        index_files::note_unclaimed(dir)?;
    }
    store.rewrite_journal()?;
    store.agrees = true;
    let lacking = scrub::lacking(&store, &BTreeMap::new())?;
    Ok(Rebuilt { reason: reason.to_owned(), progress, lacking, unclaimed })
}

/// A root has one pin: the one that was made last.
fn latest(pins: &BTreeMap<PinId, (Cid, PinRecord)>) -> impl Iterator<Item = (&Cid, &PinRecord)> {
    pins.values().map(|(root, record)| (root, record)).collect::<HashMap<_, _>>().into_iter()
}

struct Rebuild<'a> {
    store: &'a Store,
    batch: WriteBatch,
    /// The places of blocks in the batch.
    staged: HashMap<Vec<u8>, Place>,
    on_progress: OnRebuild<'a>,
}

impl Rebuild<'_> {
    /// Names every value that is whole, as a cached one for now. Gives how long each segment is, in bytes.
    fn read_segments(&mut self, progress: &mut RebuildProgress) -> Result<BTreeMap<u32, u32>, StoreError> {
        let files = &self.store.files;
        let mut segments = files.list()?;
        segments.sort_unstable();
        progress.segments_total = segments.len();
        let mut lengths = BTreeMap::new();
        for segment in segments {
            // What counts is what is on the disk.
            files.sync(segment)?;
            files.forget_cached(segment)?;
            let scanned = scan::segment(files, segment, &mut |value| self.name(value))?;
            lengths.insert(segment, u32::try_from(scanned.bytes).unwrap_or(u32::MAX));
            progress.segments += 1;
            progress.blocks += scanned.blocks;
            progress.bytes += scanned.bytes;
            progress.damaged_bytes += scanned.damaged_bytes;
            (self.on_progress)(progress);
        }
        files.sync_names()?;
        self.write()?;
        Ok(lengths)
    }

    fn name(&mut self, found: FoundValue) -> Result<(), StoreError> {
        let FoundValue { key, place, value } = found;
        let block = key.to_bytes();
        let former = match self.staged.get(&block) {
            Some(place) => Some(*place),
            None => self.store.index(&block)?.map(|record| record.place),
        };
        let places = self.store.family(PLACES)?;
        if let Some(former) = former {
            self.batch.delete_cf(places, former.to_key());
        }
        let record = IndexRecord { shape: value.shape(), kind: Kind::Cached, place };
        self.batch.put_cf(self.store.family(INDEX)?, &block, record.to_bytes());
        self.batch.put_cf(places, place.to_key(), &block);
        self.staged.insert(block, place);
        self.write_some()
    }

    /// Finds the members of a pin.
    fn restore_pin(&mut self, root: Cid, record: &PinRecord) -> Result<(), StoreError> {
        let (id, store) = (record.id, self.store);
        let (by_block, by_pin) = (store.family(PINS_BY_BLOCK)?, store.family(BLOCKS_BY_PIN)?);
        let (mut blocks, mut bytes, mut missing) = (0, 0, 0);
        let complete = dag::walk(store, root, &mut |visited| {
            let block = visited.key.to_bytes();
            // One that is linked under two codecs is one member.
            let row = pin_of_block(&block, id);
            if store.holds(PINS_BY_BLOCK, &row)? {
                return Ok(());
            }
            let mut batch = WriteBatch::default();
            batch.put_cf(by_block, row, []);
            batch.put_cf(by_pin, block_of_pin(id, &block), []);
            blocks += 1;
            bytes += visited.block_bytes.unwrap_or_default() as u64;
            missing += u64::from(visited.block_bytes.is_none());
            store.write_unlogged(batch)
        })?;
        let whole = complete && missing == 0;
        let state = if whole { record.state } else { PinState::Partial };
        let record = PinRecord { blocks, bytes, state, ..record.clone() };
        self.batch.put_cf(store.family(PINS)?, root.to_bytes(), record.to_bytes());
        self.write_some()
    }

    /// Tells pinned blocks from cached ones, and forgets what was let go. Gives how many blocks stay that no pin has.
    fn sort_out(&mut self, are_all: bool) -> Result<u64, StoreError> {
        self.write()?;
        let store = self.store;
        let mut has_members: BTreeMap<u32, bool> = BTreeMap::new();
        for row in store.rows_from(INDEX, &[])? {
            let (block, record) = row?;
            if let Some(record) = IndexRecord::from_bytes(&record) {
                *has_members.entry(record.place.segment).or_default() |= store.has_pin(&block)?;
            }
        }
        let mut unclaimed = 0;
        for row in store.rows_from(INDEX, &[])? {
            let (block, record) = row?;
            let Some(record) = IndexRecord::from_bytes(&record) else { continue };
            let is_pinned = has_members.get(&record.place.segment) == Some(&true);
            match (store.has_pin(&block)?, is_pinned) {
                (true, _) => self.keep_pinned(&block, record)?,
                (false, _) if !are_all => {
                    self.claim(&block)?;
                    self.keep_pinned(&block, record)?;
                    unclaimed += 1;
                }
                (false, true) => self.forget(&block, record)?,
                (false, false) => {}
            }
            self.write_some()?;
        }
        self.write()?;
        Ok(unclaimed)
    }

    fn keep_pinned(&mut self, block: &[u8], record: IndexRecord) -> Result<(), StoreError> {
        let record = IndexRecord { kind: Kind::Pinned, ..record };
        self.batch.put_cf(self.store.family(INDEX)?, block, record.to_bytes());
        Ok(())
    }

    fn claim(&mut self, block: &[u8]) -> Result<(), StoreError> {
        self.batch.put_cf(self.store.family(PINS_BY_BLOCK)?, pin_of_block(block, UNCLAIMED), []);
        self.batch.put_cf(self.store.family(BLOCKS_BY_PIN)?, block_of_pin(UNCLAIMED, block), []);
        Ok(())
    }

    fn forget(&mut self, block: &[u8], record: IndexRecord) -> Result<(), StoreError> {
        self.batch.delete_cf(self.store.family(INDEX)?, block);
        self.batch.delete_cf(self.store.family(PLACES)?, record.place.to_key());
        Ok(())
    }

    /// Counts what is in each segment, and which numbers come next.
    fn count_segments(&mut self, lengths: &BTreeMap<u32, u32>, known: &KnownPins) -> Result<(), StoreError> {
        let family = self.store.family(SEGMENTS)?;
        let counted = mend::count_all(self.store)?;
        for (segment, length) in lengths {
            // One in which nothing can be read is the first to be evicted.
            let record = counted.get(segment).copied().unwrap_or_else(|| SegmentRecord::new(Kind::Cached));
            let record = SegmentRecord { written: record.written.max(*length), ..record };
            self.batch.put_cf(family, segment.to_be_bytes(), record.to_bytes());
        }
        let segment = lengths.last_key_value().map_or(1, |(last, _)| last.saturating_add(1));
        let pin = known.pins.last_key_value().map_or(1, |(last, _)| last.0.saturating_add(1));
        let meta = self.store.family(META)?;
        self.batch.put_cf(meta, KEY_COUNTERS, Counters { segment, pin }.to_bytes());
        // All of it was read from the disk.
        self.batch.put_cf(meta, KEY_SYNCED, Place { segment, offset: 0 }.to_key());
        Ok(())
    }

    fn write_some(&mut self) -> Result<(), StoreError> {
        if self.batch.len() < BATCH_ROWS { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.staged.clear();
        self.store.write_unlogged(std::mem::take(&mut self.batch))
    }
}

/// How many blocks stay that no known pin has.
pub(super) fn count_unclaimed(store: &Store) -> Result<u64, StoreError> {
    let prefix = UNCLAIMED.0.to_be_bytes();
    let mut unclaimed = 0;
    for row in store.keys_with_prefix(BLOCKS_BY_PIN, &prefix)? {
        let row = row?;
        let pins = store.keys_with_prefix(PINS_BY_BLOCK, &row[prefix.len()..])?.take(2);
        unclaimed += u64::from(pins.collect::<Result<Vec<_>, _>>()?.len() == 1);
    }
    Ok(unclaimed)
}

/// Has the writer let go of them when the store is next opened.
pub(super) fn release_unclaimed(store: &Store) -> Result<(), StoreError> {
    let mut batch = WriteBatch::default();
    batch.put_cf(store.family(META)?, release_key(UNCLAIMED), []);
    store.write(batch, true)
}

/// Names the values of a segment that no row names, as far as the index does not have their blocks; gives whether there is
/// anything in it that is to be kept. One that holds a member of a pin is a segment of pinned blocks, and the rest of it is let go.
///
/// # Errors
/// What the disk said.
pub(super) fn adopt(store: &Store, segment: u32) -> Result<bool, StoreError> {
    let (mut found, mut wanted) = (BTreeMap::new(), false);
    let scanned = scan::segment(&store.files, segment, &mut |value| {
        let block = value.key.to_bytes();
        if store.index(&block)?.is_none() {
            wanted |= store.has_pin(&block)?;
            found.insert(block, (value.place, value.value.shape()));
        }
        Ok(())
    })?;
    let kind = if wanted { Kind::Pinned } else { Kind::Cached };
    let mut record = SegmentRecord::new(kind);
    let mut batch = WriteBatch::default();
    for (block, (place, shape)) in found {
        if wanted && !store.has_pin(&block)? {
            continue;
        }
        let index = IndexRecord { shape, kind, place };
        batch.put_cf(store.family(INDEX)?, &block, index.to_bytes());
        batch.put_cf(store.family(PLACES)?, place.to_key(), &block);
        mend::count_block(&mut record, &block, index);
    }
    if record.blocks == 0 {
        // Unreadable records may belong to a pin: the file is kept, and scanned again at the next start.
        return Ok(scanned.unreadable_bytes > 0);
    }
    record.written = record.written.max(u32::try_from(scanned.bytes).unwrap_or(u32::MAX));
    batch.put_cf(store.family(SEGMENTS)?, segment.to_be_bytes(), record.to_bytes());
    let mut counters = store.counters()?;
    counters.segment = counters.segment.max(segment.saturating_add(1));
    batch.put_cf(store.family(META)?, KEY_COUNTERS, counters.to_bytes());
    store.write(batch, true)?;
    warn!(segment, blocks = record.blocks, "a segment that the index did not name was taken in");
    Ok(true)
}
