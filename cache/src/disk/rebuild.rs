//! Rebuilds a damaged index from the segments, whose records contain the blocks' keys, and from the pin journal.
//!
//! Goals: every readable block is found; no pin is lost, and a pin with missing blocks becomes partial; nothing that
//! may be pinned is evicted meanwhile; an interrupted rebuild starts again; memory grows only with the number of
//! segments and pins, and with one DAG at a time.
//!
//! How: the damaged index is moved aside. Each segment is scanned ([`super::scan`]); of several values of a block the
//! latest counts. Slices are verified when all segments are read, since their bases may follow them. Then each pin of
//! the journal is traversed from its root, which finds its members, including missing ones. Blocks without a pin in a
//! segment with members of pins were unpinned before, and are deleted; segments without members are cached.
//!
//! If the journal was damaged too, the pins may be incomplete: every block is kept, as a member of [`UNCLAIMED`], until
//! the operator releases that.
//!
//! Non-goals: pins that were being removed, and blocks that were deleted but not overwritten: some of them may be
//! cached again.
//!
//! All functions here block.

use super::index_files::{self, Stage};
use super::repair;
use super::scan::{self, FoundForm, FoundValue};
use super::schema::{
    BLOCKS_BY_PIN, Counters, FAMILIES, INDEX, IndexRecord, KEY_COUNTERS, KEY_SYNCED, Kind, META, PINS, PINS_BY_BLOCK,
    PLACES, PinId, PinRecord, Place, SCHEMA, SCHEMA_UNPACKED, SEGMENTS, SegmentRecord, UNVERIFIED, block_of_pin,
    pin_of_block, release_key,
};
use super::scrub::{self, IncompletePin};
use super::store::{Lock, SEGMENTS_DIR, Store};
use super::{DiskOptions, StoreError};
use crate::dag;
use crate::pin_journal::{self, JournalState, PinJournal, Watermark};
use crate::pins::PinState;
use content::{BlockKey, Cid};
use rocksdb::WriteBatch;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The pin of blocks that may have been pinned by unknown pins. It has no root and no record.
pub(crate) const UNCLAIMED: PinId = PinId(0);

/// Rows per batch.
const BATCH_ROWS: usize = 2048;

/// Interval of progress messages in the log.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Progress of a rebuild.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RebuildProgress {
    /// Segments read.
    pub segments: usize,
    /// The total number.
    pub segments_total: usize,
    /// Bytes read.
    pub bytes: u64,
    /// Values found, including older values of a block.
    pub blocks: u64,
    /// Bytes of segments that belong to no valid record.
    pub damaged_bytes: u64,
    /// Pins whose members were restored.
    pub pins: usize,
    /// The total number.
    pub pins_total: usize,
}

/// The result of a rebuild.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Why the rebuild was needed.
    pub reason: String,
    /// What the rebuild read.
    pub progress: RebuildProgress,
    /// Pins with missing blocks.
    pub lacking: Vec<IncompletePin>,
    /// Blocks kept without a known pin, because the pin journal was damaged too.
    pub unclaimed: u64,
}

/// The callback for a rebuild's progress.
pub type OnRebuild<'a> = &'a mut dyn FnMut(&RebuildProgress);

/// Logs the progress of a rebuild every few seconds.
pub(super) fn log_progress() -> impl FnMut(&RebuildProgress) {
    let mut logged = Instant::now();
    move |progress| {
        if logged.elapsed() >= PROGRESS_EVERY {
            logged = Instant::now();
            let RebuildProgress { segments, segments_total, blocks, pins, pins_total, .. } = progress;
            let mib = progress.bytes >> 20;
            info!(segments, segments_total, mib, blocks, pins, pins_total, "rebuilding the index of the store");
        }
    }
}

/// Rebuilds the index of the store in `dir`, which must be locked and not open.
///
/// # Errors
/// [`StoreError::NewerSchema`], [`StoreError::Corrupt`] if there is nothing to rebuild it from, or I/O errors. The next
/// start tries again.
pub(super) fn run(
    dir: &Path,
    options: &DiskOptions,
    lock: &Lock,
    reason: &str,
    on_progress: OnRebuild<'_>,
) -> Result<Rebuilt, StoreError> {
    warn!(%reason, "the index of the store is damaged and is being rebuilt from the stored blocks");
    index_files::check_rebuildable(dir)?;
    let pins = known_pins(dir, options, lock)?;
    check_mounted(dir, &pins)?;
    if index_files::stage(dir)? != Some(Stage::Rebuilding) {
        index_files::mark(dir, Stage::Damaged)?;
        let aside = index_files::move_aside(dir)?;
        info!(path = %aside.display(), "the damaged index was moved here; it is no longer needed and may be deleted");
        index_files::mark(dir, Stage::Rebuilding)?;
    }
    index_files::delete(dir)?;
    let rebuilt = match rebuild(dir, options, lock, reason, &pins, &mut *on_progress) {
        // The damaged index may take the space that the new one needs.
        Err(error) if error.is_full() && index_files::delete_aside(dir)? => {
            warn!(
                %error,
                "the index could not be rebuilt for lack of space; the damaged one is deleted, and the rebuild is \
                 retried"
            );
            index_files::delete(dir)?;
            rebuild(dir, options, lock, reason, &pins, on_progress)?
        }
        rebuilt => rebuilt?,
    };
    index_files::unmark(dir)?;
    log_result(&rebuilt);
    Ok(rebuilt)
}

fn log_result(rebuilt: &Rebuilt) {
    let Rebuilt { progress, lacking, unclaimed, .. } = rebuilt;
    let RebuildProgress { segments, blocks, damaged_bytes, pins, .. } = *progress;
    warn!(segments, blocks, damaged_bytes, pins, lacking = lacking.len(), "the index of the store was rebuilt");
    for pin in lacking {
        warn!(
            root = %pin.root, name = pin.name, missing = pin.missing,
            "a pin is incomplete since the index was rebuilt"
        );
    }
    if *unclaimed > 0 {
        let advice = "when \"causeway pin ls\" shows every pin as complete, run \
                      \"causeway store repair --release-unclaimed\" to delete the blocks without a pin";
        warn!(
            blocks = unclaimed,
            "blocks without a known pin are kept, because the pin journal was damaged too: {advice}"
        );
    }
}

/// The known pins, and whether they are all.
struct KnownPins {
    pins: BTreeMap<PinId, (Cid, PinRecord)>,
    are_all: bool,
}

/// The pins of the journal, and of the damaged index if the journal is damaged.
fn known_pins(dir: &Path, options: &DiskOptions, lock: &Lock) -> Result<KnownPins, StoreError> {
    let path = dir.join(pin_journal::NAME);
    let found = PinJournal::read(dir).map_err(|error| StoreError::io(format!("{}: {error}", path.display())))?;
    let (mut pins, removed) = (found.pins, found.removed);
    if found.state == JournalState::Intact {
        // A journal written by a rebuild with unclaimed blocks does not have their pins.
        return Ok(KnownPins { pins, are_all: !index_files::has_unclaimed(dir) });
    }
    warn!(state = ?found.state, "the pin journal is damaged or missing; pins are read from the damaged index as well");
    let indexed_pins =
        if index_files::stage(dir)? == Some(Stage::Rebuilding) { None } else { read_indexed_pins(dir, options, lock) };
    let (is_read, are_all) = (indexed_pins.is_some(), indexed_pins.is_some() && !index_files::has_unclaimed(dir));
    for (root, record) in indexed_pins.into_iter().flatten().filter(|(_, record)| !removed.contains(&record.id)) {
        pins.entry(record.id).or_insert((root, record));
    }
    if is_read {
        // Saved, since an interrupted rebuild has no index to read when it starts again.
        let schema = found.schema.unwrap_or(SCHEMA);
        let save = || PinJournal::open(dir)?.0.rewrite(schema, Watermark::default(), pins.values().cloned());
        save().map_err(|error| StoreError::io(format!("{}: {error}", path.display())))?;
    }
    Ok(KnownPins { pins, are_all })
}

/// The pins of a damaged index, if all of them can be read.
fn read_indexed_pins(dir: &Path, options: &DiskOptions, lock: &Lock) -> Option<Vec<(Cid, PinRecord)>> {
    index_files::manifest(dir)?;
    let store = Store::open_families(dir, options, Lock::clone(lock)).ok()?;
    let rows = store.rows_from(PINS, &[]).ok()?;
    rows.map(|row| super::parse_pin(&row?)).collect::<Result<_, StoreError>>().ok()
}

/// Fails if there are pins but no segments: the file system of the segments is not mounted.
fn check_mounted(dir: &Path, known: &KnownPins) -> Result<(), StoreError> {
    let segments = dir.join(SEGMENTS_DIR);
    let has_segments = segments.is_dir() && !super::files::Files::list_in(&segments)?.is_empty();
    if !has_segments && known.pins.values().any(|(_, record)| record.blocks > 0) {
        return Err(StoreError::io(
            "the directory of segments is empty: mount the file system that it is on, and start again",
        ));
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
    let has_slices = rebuild.add_slices()?;
    let is_packed = has_slices || known.pins.values().any(|(_, record)| record.packed.is_some());
    for (root, record) in latest(&known.pins) {
        rebuild.restore_pin(*root, record)?;
        progress.pins += 1;
        (rebuild.on_progress)(&progress);
    }
    let unclaimed = rebuild.classify_blocks(known.are_all)?;
    rebuild.count_segments(&segments, known)?;
    rebuild.write()?;
    store.write_schema(if is_packed { SCHEMA } else { SCHEMA_UNPACKED })?;
    FAMILIES.iter().try_for_each(|family| store.flush_family(family))?;
    if unclaimed > 0 {
        index_files::mark_unclaimed(dir)?;
    }
    store.rewrite_journal()?;
    store.matches_journal = true;
    let lacking = scrub::lacking(&store, &BTreeMap::new(), &|_| false)?;
    Ok(Rebuilt { reason: reason.to_owned(), progress, lacking, unclaimed })
}

/// The pins by root: of several pins of a root, the latest counts.
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
    /// Adds every valid value to the index, as a cached one for now. Returns the length of each segment, in bytes.
    fn read_segments(&mut self, progress: &mut RebuildProgress) -> Result<BTreeMap<u32, u32>, StoreError> {
        let files = &self.store.files;
        let mut segments = files.list()?;
        segments.sort_unstable();
        progress.segments_total = segments.len();
        let mut lengths = BTreeMap::new();
        for segment in segments {
            // Read from the disk, not from the page cache.
            files.sync(segment)?;
            files.drop_page_cache(segment)?;
            let scanned = scan::segment(files, segment, &mut |value| self.add_value(value))?;
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

    fn add_value(&mut self, found: FoundValue) -> Result<(), StoreError> {
        let FoundValue { key, place, value } = found;
        match value {
            FoundForm::Block(shape) => {
                self.add_record(&key.to_bytes(), IndexRecord { shape, kind: Kind::Cached, place, base: None })
            }
            FoundForm::Slice(slice) => {
                let record = IndexRecord { shape: slice.shape(), kind: Kind::Cached, place, base: Some(slice.base) };
                let block = key.to_bytes();
                let row = [&[u8::try_from(block.len()).unwrap_or(u8::MAX)], &*block, &record.to_bytes()].concat();
                self.batch.put_cf(self.store.family(META)?, [UNVERIFIED, &place.to_key()].concat(), row);
                self.write_some()
            }
        }
    }

    /// Adds the slices that match their hashes, and returns whether there are any. Of several values of a block the
    /// latest counts here too.
    fn add_slices(&mut self) -> Result<bool, StoreError> {
        let (store, mut any) = (self.store, false);
        for row in store.rows_from(META, UNVERIFIED)? {
            let (row, value) = row?;
            if !row.starts_with(UNVERIFIED) {
                break;
            }
            self.batch.delete_cf(store.family(META)?, &row);
            let found = value.split_first().and_then(|(length, rest)| rest.split_at_checked(usize::from(*length)));
            let found = found
                .and_then(|(block, record)| Some((BlockKey::from_bytes(block)?, IndexRecord::from_bytes(record)?)));
            let Some((key, record)) = found else { continue };
            let block = key.to_bytes();
            let former = match self.staged.get(&block) {
                Some(place) => Some(*place),
                None => store.index(&block)?.map(|record| record.place),
            };
            match store.verified(&key, record) {
                Ok(_) if former.is_none_or(|former| former < record.place) => {
                    any = true;
                    self.add_record(&block, record)?;
                }
                // A block that replaced it, or a slice of a block that is missing.
                Ok(_) | Err(StoreError::Corrupt(_)) => self.write_some()?,
                Err(error) => return Err(error),
            }
        }
        self.write()?;
        Ok(any)
    }

    fn add_record(&mut self, block: &[u8], record: IndexRecord) -> Result<(), StoreError> {
        let block = block.to_vec();
        let place = record.place;
        let former = match self.staged.get(&block) {
            Some(place) => Some(*place),
            None => self.store.index(&block)?.map(|record| record.place),
        };
        let places = self.store.family(PLACES)?;
        if let Some(former) = former {
            self.batch.delete_cf(places, former.to_key());
        }
        self.batch.put_cf(self.store.family(INDEX)?, &block, record.to_bytes());
        self.batch.put_cf(places, place.to_key(), &block);
        self.staged.insert(block, place);
        self.write_some()
    }

    /// Restores the members of a pin.
    fn restore_pin(&mut self, root: Cid, record: &PinRecord) -> Result<(), StoreError> {
        let (id, store) = (record.id, self.store);
        let (by_block, by_pin) = (store.family(PINS_BY_BLOCK)?, store.family(BLOCKS_BY_PIN)?);
        let (mut blocks, mut bytes, mut missing) = (0, 0, 0);
        let mut add = |block: Vec<u8>, block_bytes: Option<usize>| {
            // A block that is linked under two codecs is one member.
            let row = pin_of_block(&block, id);
            if store.holds(PINS_BY_BLOCK, &row)? {
                return Ok(());
            }
            let mut batch = WriteBatch::default();
            batch.put_cf(by_block, row, []);
            batch.put_cf(by_pin, block_of_pin(id, &block), []);
            blocks += 1;
            bytes += block_bytes.unwrap_or_default() as u64;
            missing += u64::from(block_bytes.is_none());
            store.write_unlogged(batch)
        };
        let mut complete = true;
        for root in record.roots(root) {
            complete &= dag::walk(store, root, &mut |visited| {
                let block = visited.key.to_bytes();
                let base = store.held(&block).unwrap_or_default().and_then(|record| record.base);
                add(block, visited.block_bytes)?;
                // A pin that has a slice has its base.
                base.map_or(Ok(()), |base| {
                    let bytes = store.index(&base.to_bytes())?.map(|record| record.shape.block_bytes());
                    add(base.to_bytes(), bytes)
                })
            })?;
        }
        let is_complete = complete && missing == 0;
        let state = if is_complete { record.state } else { PinState::Partial };
        let record = PinRecord { blocks, bytes, state, ..record.clone() };
        self.batch.put_cf(store.family(PINS)?, root.to_bytes(), record.to_bytes());
        self.write_some()
    }

    /// Separates pinned from cached blocks, and deletes unpinned ones. Returns the number of unclaimed blocks.
    fn classify_blocks(&mut self, are_all: bool) -> Result<u64, StoreError> {
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
                    self.add_to_unclaimed(&block)?;
                    self.keep_pinned(&block, record)?;
                    unclaimed += 1;
                }
                (false, true) => self.remove(&block, record)?,
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

    fn add_to_unclaimed(&mut self, block: &[u8]) -> Result<(), StoreError> {
        self.batch.put_cf(self.store.family(PINS_BY_BLOCK)?, pin_of_block(block, UNCLAIMED), []);
        self.batch.put_cf(self.store.family(BLOCKS_BY_PIN)?, block_of_pin(UNCLAIMED, block), []);
        Ok(())
    }

    fn remove(&mut self, block: &[u8], record: IndexRecord) -> Result<(), StoreError> {
        self.batch.delete_cf(self.store.family(INDEX)?, block);
        self.batch.delete_cf(self.store.family(PLACES)?, record.place.to_key());
        Ok(())
    }

    /// Writes the records of segments, and the next IDs.
    fn count_segments(&mut self, lengths: &BTreeMap<u32, u32>, known: &KnownPins) -> Result<(), StoreError> {
        let family = self.store.family(SEGMENTS)?;
        let counted = repair::count_all(self.store)?;
        for (segment, length) in lengths {
            // An unreadable segment counts as cached, and is evicted first.
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

/// The number of blocks without a known pin.
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

/// Schedules the unpinning of unclaimed blocks at the next start.
pub(super) fn release_unclaimed(store: &Store) -> Result<(), StoreError> {
    let mut batch = WriteBatch::default();
    batch.put_cf(store.family(META)?, release_key(UNCLAIMED), []);
    store.write(batch, true)
}

/// Adds the values of a segment without rows to the index, unless it has their blocks; returns whether the file must be
/// kept. A segment with a member of a pin becomes a pinned segment, without its other blocks.
///
/// # Errors
/// [`StoreError`].
pub(super) fn adopt(store: &Store, segment: u32) -> Result<bool, StoreError> {
    let (mut found, mut slices, mut has_members) = (BTreeMap::new(), Vec::new(), false);
    let scanned = scan::segment(&store.files, segment, &mut |value| {
        let FoundValue { key, place, value } = value;
        let block = key.to_bytes();
        match value {
            _ if store.index(&block)?.is_some() => {}
            FoundForm::Block(shape) => {
                has_members |= store.has_pin(&block)?;
                found.insert(block, IndexRecord { shape, kind: Kind::Cached, place, base: None });
            }
            FoundForm::Slice(slice) => slices.push((key, place, slice)),
        }
        Ok(())
    })?;
    for (key, place, slice) in slices {
        let (block, base) = (key.to_bytes(), slice.base.to_bytes());
        let base = found.get(&base).copied().map_or_else(|| store.index(&base), |record| Ok(Some(record)))?;
        if base.is_some_and(|record| store.is_slice_of(&key, &slice, record)) {
            has_members |= store.has_pin(&block)?;
            let record = IndexRecord { shape: slice.shape(), kind: Kind::Cached, place, base: Some(slice.base) };
            found.insert(block, record);
        }
    }
    let kind = if has_members { Kind::Pinned } else { Kind::Cached };
    let mut record = SegmentRecord::new(kind);
    let mut batch = WriteBatch::default();
    for (block, index) in found {
        if has_members && !store.has_pin(&block)? {
            continue;
        }
        let index = IndexRecord { kind, ..index };
        batch.put_cf(store.family(INDEX)?, &block, index.to_bytes());
        batch.put_cf(store.family(PLACES)?, index.place.to_key(), &block);
        repair::count_block(&mut record, &block, index);
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
    warn!(segment, blocks = record.blocks, "a segment without a record was added to the index");
    Ok(true)
}
