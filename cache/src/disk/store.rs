//! [`Store`]: RocksDB with its column families, the segment files, and reads of single records.
//!
//! All functions here block. Any thread may read; only the writer thread writes.

#[cfg(test)]
use super::faults::{Call, Fault};
use super::files::Files;
use super::index_files::{self, Stage};
use super::packed::PackedPins;
use super::reference_bits::ReferenceBits;
use super::reserve::Reserve;
use super::schema::{
    BLOCKS_BY_PIN, Counters, FAMILIES, INDEX, IndexRecord, KEY_COUNTERS, KEY_SCHEMA, KEY_SCRUB, KEY_SYNCED, KEY_TRIED,
    Kind, META, PINS, PINS_BY_BLOCK, PLACES, PinRecord, Place, RecompressRecord, SCHEMA, SCHEMA_UNPACKED, SEGMENTS,
    ScrubRecord, SegmentRecord, release_key, take_u32,
};
use super::watermarks::Watermarks;
use super::{DiskOptions, parse_pin, record, summary};
use crate::database::{self, Access, Database};
use crate::error::StoreError;
use crate::lock::{DirLock, LockError};
use crate::pin_journal::{self, JournalState, PinJournal};
use crate::pins::{PinId, PinState, PinSummary};
use crate::space::Space;
use crate::store::Stats;
use crate::{dag, folder};
use bytes::Bytes;
use content::block::BlockError;
use content::stored::{Slice, Stored, ValueError};
use content::{Block, BlockKey, Cid, codec};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, DBPinnableSlice,
    DBRecoveryMode, Direction, IteratorMode, Options, ReadOptions, ReadTier, WriteBatch, WriteOptions,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use tracing::{error, info, warn};

const MIB: usize = 1024 * 1024;

/// The directory of the segment files.
pub(super) const SEGMENTS_DIR: &str = "segments";

/// The maximum size of a column family's memtable, in bytes.
const WRITE_BUFFER_BYTES_MAX: usize = 8 * MIB;

const BLOOM_BITS_PER_KEY: f64 = 10.0;

pub(crate) type Row = (Box<[u8]>, Box<[u8]>);

/// The lock on a store's directory.
pub(crate) type Lock = Arc<DirLock>;

#[derive(Debug)]
pub(crate) struct Store {
    // Dropped in this order: the lock outlives the database.
    database: Database,
    pub(crate) files: Files,
    pub(crate) reserve: Reserve,
    pub(crate) reference_bits: ReferenceBits,
    dir: PathBuf,
    watermarks: Mutex<Watermarks>,
    /// The schema version of the index.
    schema: AtomicU32,
    packed: RwLock<PackedPins>,
    /// Whether the index is known to have all acknowledged writes.
    is_complete: bool,
    /// Whether the index matches_journal with the journal. Otherwise it must not update the journal.
    pub(super) matches_journal: bool,
    /// Whether RocksDB found its own files corrupt.
    damaged: AtomicBool,
    /// Where index damage is reported.
    stats: OnceLock<Arc<Stats>>,
    lock: Lock,
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.matches_journal {
            self.watermarks().record_manifest(&self.dir);
        }
    }
}

impl Store {
    /// Opens the store in the locked directory `dir`, and compares its index with the pin journal.
    ///
    /// # Errors
    /// [`StoreError::IndexDamaged`] if RocksDB or the journal detects damage, [`StoreError::NewerSchema`], or I/O
    /// errors.
    pub(crate) fn open(dir: &Path, options: &DiskOptions, lock: Lock) -> Result<Self, StoreError> {
        let manifest = index_files::manifest(dir);
        reject_unknown_families(dir)?;
        let mut store = Self::open_families(dir, options, lock)?;
        store.check_schema(dir)?;
        store.compare_with_journal(manifest).inspect_err(|error| {
            // Marked, so that the next start need not detect it again.
            if matches!(error, StoreError::IndexDamaged(_))
                && let Err(error) = index_files::mark(dir, Stage::Damaged)
            {
                warn!(%error, "the index could not be marked as damaged");
            }
        })?;
        store.matches_journal = true;
        store.load_packed()?;
        Ok(store)
    }

    /// Reads which pins are packed files.
    fn load_packed(&self) -> Result<(), StoreError> {
        for row in self.rows_from(PINS, &[])? {
            let (root, record) = parse_pin(&row?)?;
            self.set_packed(root, record.packed.as_ref());
        }
        Ok(())
    }

    /// Sets the zstd file of a pinned root, after its record was written.
    pub(crate) fn set_packed(&self, root: Cid, zstd_file: Option<&Cid>) {
        self.packed.write().unwrap_or_else(PoisonError::into_inner).set(root, zstd_file);
    }

    /// The plain file of a packed file that is pinned, by the root of its zstd file.
    pub(crate) fn plain_file(&self, zstd_file: &BlockKey) -> Option<Cid> {
        self.packed.read().unwrap_or_else(PoisonError::into_inner).plain_file(zstd_file)
    }

    /// Opens the store in `dir` without comparing it with its journal.
    pub(super) fn open_families(dir: &Path, options: &DiskOptions, lock: Lock) -> Result<Self, StoreError> {
        let reserve = reserve(dir, options)?;
        let (bounds, at, settings) = (IndexBounds::of(&reserve), dir.to_owned(), options.clone());
        let database = Database::open(move |access| open_database(&at, &settings, bounds, access))?;
        let open_max = u64::try_from(options.open_files_max).unwrap_or(u64::MAX) / 2;
        let files = Files::open(dir.join(SEGMENTS_DIR), open_max)?;
        // Created only after the index, since a journal without an index means that the index was lost.
        let (journal, found) = PinJournal::open(dir).map_err(|error| journal_error(dir, &error))?;
        Ok(Self {
            database,
            files,
            reserve,
            reference_bits: ReferenceBits::default(),
            dir: dir.to_owned(),
            watermarks: Watermarks::new(journal, found).into(),
            schema: AtomicU32::new(SCHEMA_UNPACKED),
            packed: RwLock::default(),
            is_complete: false,
            matches_journal: false,
            damaged: AtomicBool::new(false),
            stats: OnceLock::new(),
            lock,
        })
    }

    /// The store's directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The lock on the store's directory.
    pub(crate) fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Whether a directory contains a store.
    pub(crate) fn is_in(dir: &Path) -> bool {
        index_files::is_store(dir)
    }

    /// Sets the stats in which index damage is reported.
    pub(crate) fn report_to(&self, stats: &Arc<Stats>) {
        _ = self.stats.set(Arc::clone(stats));
    }

    /// Whether the index is known to have all acknowledged writes, so that data that it does not name is garbage.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Checks whether the index lost acknowledged writes, and updates the journal. `manifest` is the state before
    /// RocksDB opened it.
    fn compare_with_journal(&mut self, manifest: Option<(u64, u64)>) -> Result<(), StoreError> {
        let Some(found) = self.watermarks().take_journal_contents() else { return Ok(()) };
        let rewrites = found.is_worth_rewriting() || found.schema.is_some_and(|schema| schema != self.schema());
        let known = found.watermark.unwrap_or_default();
        if self.database.now().latest_sequence_number() < known.sequence {
            return Err(StoreError::index_damaged("its log lost writes that were acknowledged"));
        }
        if manifest.is_some_and(|manifest| manifest < (known.manifest, known.manifest_bytes)) {
            return Err(StoreError::index_damaged("its manifest lost changes"));
        }
        let mut journaled = found.pins;
        let (mut missing, mut removed) = (Vec::new(), Vec::new());
        for row in self.rows_from(PINS, &[])? {
            let (root, record) = parse_pin(&row?)?;
            match journaled.remove(&record.id) {
                _ if found.removed.contains(&record.id) => removed.push((root, record.id)),
                // Partial pins grow without a sync, in the index and in the journal.
                Some((_, entered)) if entered.state == PinState::Complete && entered.blocks > record.blocks => {
                    return Err(StoreError::index_damaged(format!("it lost members of the pin of {root}")));
                }
                Some((_, entered))
                    if entered.name == record.name
                        && entered.state == record.state
                        && entered.packed == record.packed => {}
                _ => missing.push((root, record)),
            }
        }
        let lost = journaled.values().filter(|(_, record)| record.state == PinState::Complete);
        if let Some((root, _)) = lost.clone().next() {
            let (lost, root) = (lost.count(), *root);
            return Err(StoreError::index_damaged(format!("it lost {lost} pins, among them that of {root}")));
        }
        // A read-only index is opened again later.
        for (root, pin) in removed.into_iter().filter(|_| self.is_writable()) {
            info!(%root, "an interrupted removal of a pin is completed");
            if let Err(error) = self.remove_pin_rows(&root, pin) {
                warn!(%root, %error, "the pin cannot be removed now; the next start tries again");
            }
        }
        self.is_complete = found.state == JournalState::Intact && known.sequence > 0;
        let updated = match rewrites || !journaled.is_empty() {
            true => self.rewrite_journal(),
            false => self.append_pins(&missing, true),
        };
        if let Err(error) = updated {
            warn!(%error, "the pin journal could not be updated; the next start tries again");
        }
        Ok(())
    }

    /// Removes a pin's record and schedules the unpinning of its members.
    fn remove_pin_rows(&self, root: &Cid, pin: PinId) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        batch.delete_cf(self.family(PINS)?, root.to_bytes());
        batch.put_cf(self.family(META)?, release_key(pin), []);
        self.write(batch, true)
    }

    /// Rewrites the journal from the index.
    pub(super) fn rewrite_journal(&self) -> Result<(), StoreError> {
        let pins: Vec<_> = self.rows_from(PINS, &[])?.map(|row| parse_pin(&row?)).collect::<Result<_, _>>()?;
        self.sync_log()?;
        let mut watermarks = self.watermarks();
        let watermark = watermarks.current();
        let rewritten = watermarks.journal.rewrite(self.schema(), watermark, pins.into_iter());
        rewritten.map_err(|error| journal_error(&self.dir, &error))
    }

    /// Appends pins to the journal that the index already has.
    pub(crate) fn append_pins(&self, pins: &[(Cid, PinRecord)], durable: bool) -> Result<(), StoreError> {
        if pins.is_empty() {
            return Ok(());
        }
        self.watermarks().journal.append(pins, durable).map_err(|error| journal_error(&self.dir, &error))
    }

    /// Marks a pin removed in the journal, before the index removes it.
    pub(crate) fn mark_pin_removed(&self, pin: PinId) -> Result<(), StoreError> {
        self.watermarks().journal.mark_removed(pin).map_err(|error| journal_error(&self.dir, &error))
    }

    /// Reverts [`Self::mark_pin_removed`], because the index could not remove the pin.
    pub(crate) fn restore_pin(&self, pin: PinId) {
        if let Err(error) = self.watermarks().journal.restore(pin) {
            warn!(%error, "a pin could not be removed; the next start removes it");
        }
    }

    fn watermarks(&self) -> MutexGuard<'_, Watermarks> {
        // A panic leaves a consistent state: every change is one file write, which may fail anyway.
        self.watermarks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_synced_sequence(&self) {
        self.watermarks().record_sequence(self.database.now().latest_sequence_number(), &self.dir);
    }

    /// Converts an error of RocksDB. If the index is damaged, marks it for the next start, logs and reports it.
    fn db_error(&self, error: rocksdb::Error) -> StoreError {
        let error = StoreError::from(error);
        if matches!(error, StoreError::IndexDamaged(_)) && !self.damaged.swap(true, Ordering::Relaxed) {
            error!(%error, "the index of the store is damaged; the next start rebuilds it");
            if let Err(error) = index_files::mark(&self.dir, Stage::Damaged) {
                error!(%error, "the index could not be marked as damaged for the next start");
            }
            if let Some(stats) = self.stats.get() {
                stats.index_damaged.store(true, Ordering::Relaxed);
            }
        }
        error
    }

    /// Reads a row.
    pub(crate) fn pinned(&self, family: &str, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>, StoreError> {
        let (db, family) = self.database.family(family)?;
        db.get_pinned_cf(family, key).map_err(|error| self.db_error(error))
    }

    /// The zstd file of a pinned root, if it is that of a packed file.
    pub(crate) fn zstd_file(&self, root: &Cid) -> Option<Cid> {
        self.packed.read().unwrap_or_else(PoisonError::into_inner).zstd_file(root)
    }

    /// Writes the schema version of a new store, and rejects one that this release does not know.
    fn check_schema(&self, dir: &Path) -> Result<(), StoreError> {
        match self.pinned(META, KEY_SCHEMA)? {
            None => {
                let (db, meta) = self.database.family(META)?;
                db.put_cf(meta, KEY_SYNCED, Place::default().to_key())?;
                self.write_schema(SCHEMA_UNPACKED)
            }
            Some(found) => {
                self.schema.store(known_schema(dir, &found)?, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    pub(crate) fn write_schema(&self, schema: u32) -> Result<(), StoreError> {
        let (db, meta) = self.database.family(META)?;
        db.put_cf(meta, KEY_SCHEMA, schema.to_be_bytes()).map_err(|error| self.db_error(error))?;
        self.schema.store(schema, Ordering::Relaxed);
        Ok(())
    }

    /// The schema version of the index.
    pub(crate) fn schema(&self) -> u32 {
        self.schema.load(Ordering::Relaxed)
    }

    /// Records that a batch raised the schema version, also in the journal.
    pub(crate) fn raised_schema(&self) {
        self.schema.store(SCHEMA, Ordering::Relaxed);
        if let Err(error) = self.rewrite_journal() {
            warn!(%error, "the pin journal could not be updated; the next start tries again");
        }
    }

    /// A column family, for a batch.
    pub(crate) fn family(&self, name: &str) -> Result<&ColumnFamily, StoreError> {
        Ok(self.database.family(name)?.1)
    }

    /// Whether the index can be changed. On a full disk it may be read-only.
    pub(crate) fn is_writable(&self) -> bool {
        self.database.is_writable()
    }

    /// Opens the index for writing, unless it is. Called by the writer thread.
    ///
    /// # Errors
    /// [`StoreError::Full`] while there is no space.
    pub(crate) fn make_writable(&self) -> Result<(), StoreError> {
        self.database.make_writable()
    }

    /// Whether a block may be stored, from memory only: `false` is certain.
    pub(crate) fn may_hold(&self, block: &[u8]) -> bool {
        let is_damaged = self.damaged.load(Ordering::Relaxed);
        is_damaged || self.database.family(INDEX).map_or(true, |(db, index)| db.key_may_exist_cf(index, block))
    }

    /// A block in its stored form. [`StoreError::Corrupt`] is permanent.
    pub(crate) fn stored(&self, block: &[u8]) -> Result<Option<Stored>, StoreError> {
        let Some((record, value)) = self.find(block)? else { return Ok(None) };
        let stored = match Slice::read(&value).map_err(unreadable)? {
            None => Some(Stored::read(value).map_err(unreadable)?),
            Some(slice) => self.resolve(&slice)?,
        };
        self.reference_bits.touch(record.place.segment, record.place.offset);
        Ok(stored)
    }

    /// The block of a slice in the form in which it would be stored alone; `None` if its base is missing.
    fn resolve(&self, slice: &Slice) -> Result<Option<Stored>, StoreError> {
        let Some((record, value)) = self.find(&slice.base.to_bytes())? else { return Ok(None) };
        let base = Stored::read(value).and_then(|base| base.block()).map_err(unreadable)?;
        self.reference_bits.touch(record.place.segment, record.place.offset);
        slice.resolve(&base).map(Some).map_err(unreadable)
    }

    /// A block in its stored form, if its index row and its value are in memory. `None` may also mean that they are not
    /// in memory.
    pub(crate) fn stored_now(&self, block: &[u8]) -> Option<Stored> {
        let record = self.index_now(block)?;
        let found = self.record_now(block, record)?;
        if record.base.is_none() {
            return self.decode_record(record.place, found, block);
        }
        let slice = Slice::read(&record::value(found, block)?).ok()??;
        let base = slice.base.to_bytes();
        let record = self.index_now(&base)?;
        let stored = self.decode_record(record.place, self.record_now(&base, record)?, &base)?;
        slice.resolve(&stored.block().ok()?).ok()
    }

    /// The bytes at the place of a record, if they are in memory.
    fn record_now(&self, block: &[u8], record: IndexRecord) -> Option<Bytes> {
        let len = record::record_bytes(block, record.value_bytes());
        self.files.read_now(record.place.segment, record.place.offset, len)
    }

    /// The value of a block in the bytes read from its place, if they are its record and it is not a slice. Counts as
    /// use.
    pub(crate) fn decode_record(&self, place: Place, found: Bytes, block: &[u8]) -> Option<Stored> {
        let stored = Stored::read(record::value(found, block)?).ok()?;
        self.reference_bits.touch(place.segment, place.offset);
        Some(stored)
    }

    /// A block's record and value. Retries if the value is moved or deleted concurrently.
    fn find(&self, block: &[u8]) -> Result<Option<(IndexRecord, Bytes)>, StoreError> {
        let mut indexed = self.index(block)?;
        while let Some(record) = indexed {
            let read = self.value(block, record);
            if read.is_ok() {
                return read.map(|value| Some((record, value)));
            }
            let now = self.index(block)?;
            if now == indexed {
                return read.map(|value| Some((record, value)));
            }
            indexed = now;
        }
        Ok(None)
    }

    /// The value of an index record.
    pub(crate) fn value(&self, block: &[u8], record: IndexRecord) -> Result<Bytes, StoreError> {
        let len = record::record_bytes(block, record.value_bytes());
        let found = self.files.read(record.place.segment, record.place.offset, len)?;
        record::value(found, block).ok_or_else(|| StoreError::corrupt("a value differs from what was written"))
    }

    /// The value of an index record, fully verified: its checksum, its form, and the hash of its block. The checksum
    /// detects corruption on the disk, the hash also earlier corruption. Does not count as use.
    pub(crate) fn verified(&self, key: &BlockKey, record: IndexRecord) -> Result<Stored, StoreError> {
        let value = self.value(&key.to_bytes(), record)?;
        let slice = Slice::read(&value).map_err(unreadable)?;
        if slice.as_ref().map(|slice| slice.base) != record.base {
            return Err(StoreError::corrupt("a value's base differs from that in the index"));
        }
        let stored = match slice {
            None => Stored::read(value).map_err(unreadable)?,
            Some(slice) => {
                let stored = self.resolve(&slice)?;
                stored.ok_or_else(|| StoreError::corrupt("the block that has a slice's frame is missing"))?
            }
        };
        if stored.shape() != record.shape {
            return Err(StoreError::corrupt("a value's form differs from that in the index"));
        }
        check_hash(key, &stored)?;
        Ok(stored)
    }

    /// Whether a slice of the value of this base gives the block with this key.
    pub(crate) fn is_slice_of(&self, key: &BlockKey, slice: &Slice, base: IndexRecord) -> bool {
        let resolve = || {
            let base = Stored::read(self.value(&slice.base.to_bytes(), base)?).and_then(|base| base.block());
            let stored = base.and_then(|base| slice.resolve(&base)).map_err(unreadable)?;
            check_hash(key, &stored)
        };
        resolve().is_ok()
    }

    /// The bytes of a block, fully verified. Retries if the value is moved or deleted concurrently.
    pub(crate) fn look(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        let block = key.to_bytes();
        let mut indexed = self.held(&block)?;
        while let Some(record) = indexed {
            match self.verified(key, record) {
                Ok(stored) => return stored.block().map(Some).map_err(unreadable),
                Err(error) => match self.held(&block)? {
                    now if now == indexed => return Err(error),
                    now => indexed = now,
                },
            }
        }
        Ok(None)
    }

    pub(crate) fn index(&self, block: &[u8]) -> Result<Option<IndexRecord>, StoreError> {
        self.record(INDEX, block, IndexRecord::from_bytes)
    }

    /// The index record of a block, unless the block cannot be read because it is a slice whose base is missing.
    pub(crate) fn held(&self, block: &[u8]) -> Result<Option<IndexRecord>, StoreError> {
        match self.index(block)? {
            Some(record) if !self.has_base(record)? => Ok(None),
            found => Ok(found),
        }
    }

    /// Whether the base of a slice is stored; true for other blocks.
    pub(crate) fn has_base(&self, record: IndexRecord) -> Result<bool, StoreError> {
        record.base.map_or(Ok(true), |base| self.holds(INDEX, &base.to_bytes()))
    }

    /// Whether a block counts as stored: it has an index row, and its base has one if it is a slice. A malformed row
    /// counts, until a read or a repair removes it.
    pub(crate) fn counts(&self, block: &[u8]) -> Result<bool, StoreError> {
        let Some(row) = self.pinned(INDEX, block)? else { return Ok(false) };
        IndexRecord::from_bytes(&row).map_or(Ok(true), |record| self.has_base(record))
    }

    /// [`Self::index`] from memory only: `None` may also mean that the row is not in memory.
    fn index_now(&self, block: &[u8]) -> Option<IndexRecord> {
        let (db, index) = self.database.family(INDEX).ok()?;
        let bytes = db.get_pinned_cf_opt(index, block, &from_memory()).ok()??;
        IndexRecord::from_bytes(&bytes)
    }

    /// The records of several sorted blocks, in the same order.
    pub(crate) fn multi_index<'a>(
        &self,
        blocks: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Vec<Result<Option<IndexRecord>, StoreError>> {
        let (db, index) = match self.database.family(INDEX) {
            Ok(found) => found,
            Err(_) => return blocks.map(|block| self.index(block)).collect(),
        };
        let found = db.batched_multi_get_cf(index, blocks, true);
        found
            .into_iter()
            .map(|row| row.map_err(|error| self.db_error(error)))
            .map(|row| row?.map(|bytes| read_record(INDEX, &bytes, IndexRecord::from_bytes)).transpose())
            .collect()
    }

    pub(crate) fn pin(&self, root: &[u8]) -> Result<Option<PinRecord>, StoreError> {
        self.record(PINS, root, PinRecord::from_bytes)
    }

    /// Every pin, by root.
    pub(crate) fn pins(&self) -> Result<Vec<PinSummary>, StoreError> {
        self.rows_from(PINS, &[])?.map(|row| summary(&row?)).collect()
    }

    /// The position of the scrub; the default if it cannot be read.
    pub(crate) fn scrub_record(&self) -> Result<ScrubRecord, StoreError> {
        Ok(self.pinned(META, KEY_SCRUB)?.and_then(|bytes| ScrubRecord::from_bytes(&bytes)).unwrap_or_default())
    }

    /// The progress of recompression; the default if it cannot be read.
    pub(crate) fn recompress_record(&self) -> Result<RecompressRecord, StoreError> {
        Ok(self.pinned(META, KEY_TRIED)?.and_then(|bytes| RecompressRecord::from_bytes(&bytes)).unwrap_or_default())
    }

    /// The place up to which pinned values are synced, if recorded.
    pub(crate) fn synced(&self) -> Result<Option<Place>, StoreError> {
        Ok(self.pinned(META, KEY_SYNCED)?.and_then(|bytes| Place::from_key(&bytes)))
    }

    pub(crate) fn counters(&self) -> Result<Counters, StoreError> {
        Ok(self.record(META, KEY_COUNTERS, Counters::from_bytes)?.unwrap_or_default())
    }

    pub(crate) fn segments(&self) -> Result<Vec<(u32, SegmentRecord)>, StoreError> {
        let rows = self.rows_from(SEGMENTS, &[])?.map(|row| {
            let (key, record) = row?;
            let segment = <[u8; 4]>::try_from(&*key).ok().map(u32::from_be_bytes);
            let segment = segment.zip(SegmentRecord::from_bytes(&record));
            segment.ok_or_else(|| StoreError::corrupt("a segment's record is malformed"))
        });
        rows.collect()
    }

    pub(crate) fn holds(&self, family: &str, key: &[u8]) -> Result<bool, StoreError> {
        Ok(self.pinned(family, key)?.is_some())
    }

    fn record<T>(&self, family: &str, key: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>, StoreError> {
        self.pinned(family, key)?.map(|bytes| read_record(family, &bytes, read)).transpose()
    }

    /// The rows of a family starting at `from`. Does not fill the block cache, since it serves bulk work.
    pub(crate) fn rows_from(
        &self,
        family: &str,
        from: &[u8],
    ) -> Result<impl Iterator<Item = Result<Row, StoreError>> + '_, StoreError> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_iterate_lower_bound(from);
        let mode = IteratorMode::From(from, Direction::Forward);
        let (db, family) = self.database.family(family)?;
        let rows = db.iterator_cf_opt(family, options, mode);
        Ok(rows.map(|row| row.map_err(|error| self.db_error(error))))
    }

    /// The keys that begin with `prefix`.
    pub(crate) fn keys_with_prefix<'a>(
        &'a self,
        family: &str,
        prefix: &'a [u8],
    ) -> Result<impl Iterator<Item = Result<Box<[u8]>, StoreError>> + 'a, StoreError> {
        self.keys_with_prefix_from(family, prefix, prefix)
    }

    /// Whether any pin has a block.
    pub(crate) fn has_pin(&self, block: &[u8]) -> Result<bool, StoreError> {
        self.keys_with_prefix(PINS_BY_BLOCK, block)?.next().transpose().map(|row| row.is_some())
    }

    /// The keys that begin with `prefix`, starting at `from`.
    pub(crate) fn keys_with_prefix_from<'a>(
        &'a self,
        family: &str,
        prefix: &'a [u8],
        from: &[u8],
    ) -> Result<impl Iterator<Item = Result<Box<[u8]>, StoreError>> + 'a, StoreError> {
        let keys = self.rows_from(family, from)?.map(|row| Ok(row?.0));
        // Errors are passed on, so that the caller sees them.
        Ok(keys.take_while(move |key| !matches!(key, Ok(key) if !key.starts_with(prefix))))
    }

    /// Writes a batch atomically. With `sync`, it and all earlier writes are durable on return.
    pub(crate) fn write(&self, batch: WriteBatch, sync: bool) -> Result<(), StoreError> {
        #[cfg(test)]
        let fault = self.files.faults.inject(Call::Batch);
        #[cfg(test)]
        if let Some(fault @ (Fault::Refused(_) | Fault::Half(_))) = fault {
            return Err(of_fault(fault));
        }
        #[cfg(test)]
        let volatile = self.files.volatile.lock().expect("no test panics here");
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        self.database.now().write_opt(batch, &options).map_err(|error| self.db_error(error))?;
        #[cfg(test)]
        if let Some(fault) = fault {
            return Err(of_fault(fault));
        }
        #[cfg(test)]
        if sync {
            self.note_synced_logs(volatile);
        }
        if sync {
            self.record_synced_sequence();
        }
        Ok(())
    }

    /// Writes a batch without the write-ahead log; it is durable when its families are flushed.
    pub(super) fn write_unlogged(&self, batch: WriteBatch) -> Result<(), StoreError> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.database.now().write_opt(batch, &options).map_err(|error| self.db_error(error))
    }

    /// Flushes a family's memtable to the disk.
    pub(super) fn flush_family(&self, family: &str) -> Result<(), StoreError> {
        let (db, family) = self.database.family(family)?;
        db.flush_cf(family).map_err(|error| self.db_error(error))
    }

    #[cfg(test)]
    fn note_synced_logs(&self, mut volatile: std::sync::MutexGuard<'_, super::files::Volatile>) {
        for entry in std::fs::read_dir(self.database.now().path()).expect("reads").flatten() {
            let is_log = entry.path().extension().is_some_and(|extension| extension == "log");
            // RocksDB may delete an obsolete log at any time.
            if let (true, Ok(log)) = (is_log, entry.metadata()) {
                volatile.logs.insert(entry.file_name(), log.len());
            }
        }
    }

    /// Deletes the file of the oldest cached segment that has one, except the one being written, and returns whether
    /// there was one. Its blocks are missing from then on, and their rows are deleted when the segment is evicted. The
    /// last file is kept: a store without any would look as if its disk were not mounted.
    pub(crate) fn drop_oldest_cached_file(&self, segments: &BTreeMap<u32, SegmentRecord>, tail: Option<u32>) -> bool {
        let Ok(files) = self.files.list() else { return false };
        let is_cached = |segment: &u32| {
            segments.get(segment).is_some_and(|record| record.kind == Kind::Cached && Some(*segment) != tail)
        };
        let Some(oldest) = files.iter().copied().filter(is_cached).min().filter(|_| files.len() > 1) else {
            return false;
        };
        warn!(segment = oldest, "the disk is full: a segment of cached blocks was deleted");
        let is_deleted = self.files.delete(oldest).is_ok();
        self.files.settle();
        is_deleted
    }

    /// Punches holes for the dead ranges of a segment, and returns whether the file system supports it. A segment with
    /// inconsistent rows is left unchanged.
    pub(crate) fn punch_dead(&self, segment: u32, record: SegmentRecord) -> Result<bool, StoreError> {
        // The ranges must still be dead after power loss.
        self.sync_index()?;
        let Some(ranges) = self.dead_ranges(segment, record)? else { return Ok(true) };
        for range in ranges {
            if !self.files.punch(segment, range)? {
                return Ok(false);
            }
        }
        self.files.settle();
        Ok(true)
    }

    /// The ranges between the records of a segment, in whole file system blocks. `None` if the rows of `index` and
    /// `places` disagree.
    fn dead_ranges(&self, segment: u32, counted: SegmentRecord) -> Result<Option<Vec<Range<u32>>>, StoreError> {
        let (mut dead, mut end, mut live) = (Vec::new(), 0, 0_u64);
        for row in self.rows_from(PLACES, &segment.to_be_bytes())? {
            let (place, block) = row?;
            let Some(place) = Place::from_key(&place) else { return Ok(None) };
            if place.segment != segment {
                break;
            }
            let Some(record) = self.index(&block)?.filter(|record| record.place == place) else { return Ok(None) };
            dead.extend(whole_blocks(end..place.offset));
            let bytes = record::record_bytes(&block, record.value_bytes());
            live += bytes as u64;
            end = place.offset.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
        dead.extend(whole_blocks(end..counted.written));
        Ok((live == u64::from(counted.live)).then_some(dead))
    }

    /// Syncs the index, also if it is read-only: another process may have written its log.
    fn sync_index(&self) -> Result<(), StoreError> {
        if self.is_writable() {
            return self.sync_log();
        }
        let dir = self.database.now().path();
        let failed = |error: io::Error| StoreError::io(format!("{}: {error}", dir.display()));
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                File::open(&path).and_then(|log| log.sync_all()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Compacts every column family.
    pub(crate) fn compact_index(&self) -> Result<(), StoreError> {
        for name in FAMILIES {
            let (db, family) = self.database.family(name)?;
            // The new files are written before the old ones are deleted.
            let bytes = db.property_int_value_cf(family, "rocksdb.live-sst-files-size")?.unwrap_or_default();
            if self.files.space()?.free_bytes < bytes.saturating_add(self.reserve.headroom_bytes()) {
                warn!(
                    family = name,
                    bytes, "the disk has too little space to compact this column family; it is skipped"
                );
                continue;
            }
            db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
        }
        Ok(())
    }

    /// Syncs the write-ahead log with an empty batch. `flush_wal` is not used: after an append failed for lack of
    /// space, RocksDB takes its error for corruption, and then rejects writes until it is reopened.
    pub(crate) fn sync_log(&self) -> Result<(), StoreError> {
        #[cfg(test)]
        self.files.faults.check(Call::SyncLog).map_err(StoreError::io)?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        self.database.now().write_opt(WriteBatch::default(), &synced).map_err(|error| self.db_error(error))?;
        #[cfg(test)]
        self.note_synced_logs(self.files.volatile.lock().expect("no test panics here"));
        self.record_synced_sequence();
        Ok(())
    }
}

impl dag::Stored for Store {
    fn block_bytes(&self, key: &BlockKey) -> Result<Option<usize>, StoreError> {
        match self.held(&key.to_bytes()) {
            Err(StoreError::Corrupt(_)) => Ok(None),
            record => Ok(record?.map(|record| record.shape.block_bytes())),
        }
    }

    fn block(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        match self.look(key) {
            Err(StoreError::Corrupt(_)) => Ok(None),
            block => block,
        }
    }
}

fn journal_error(dir: &Path, error: &io::Error) -> StoreError {
    if crate::space::is_full(error) {
        // The writer adds the figures.
        return StoreError::Full { free: 0, needed: 0 };
    }
    StoreError::io(format!("{}: {error}", dir.join(pin_journal::NAME).display()))
}

#[cfg(test)]
fn of_fault(fault: Fault) -> StoreError {
    let error = fault.error();
    if crate::space::is_full(&error) { StoreError::Full { free: 0, needed: 0 } } else { StoreError::io(error) }
}

/// The granularity of punching holes, in bytes: the block size of most file systems.
const HOLE_BYTES: u32 = 4096;

/// The whole file system blocks in a range, if there are any. Blocks shared with a record are left.
fn whole_blocks(range: Range<u32>) -> Option<Range<u32>> {
    let (start, end) = (range.start.checked_next_multiple_of(HOLE_BYTES)?, range.end / HOLE_BYTES * HOLE_BYTES);
    (start < end).then_some(start..end)
}

fn read_record<T>(family: &str, bytes: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> Result<T, StoreError> {
    read(bytes).ok_or_else(|| StoreError::corrupt(format!("a record in {family} is malformed")))
}

/// Checks that a value matches the hash in its key.
pub(crate) fn check_hash(key: &BlockKey, stored: &Stored) -> Result<(), StoreError> {
    let cid = Cid::new_v1(codec::RAW, *key.multihash());
    match Block::verify(cid, stored.block().map_err(unreadable)?) {
        // A hash function that only a later release knows is no corruption.
        Ok(_) | Err(BlockError::Hash(_)) => Ok(()),
        Err(error) => Err(StoreError::corrupt(error)),
    }
}

/// Converts an error of decompressing a value.
pub(crate) fn unreadable(error: ValueError) -> StoreError {
    match error {
        ValueError::Memory => StoreError::io(error),
        error => StoreError::corrupt(error),
    }
}

/// Options for reads from memory only.
fn from_memory() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_read_tier(ReadTier::BlockCache);
    options
}

/// Creates a directory if need be, and locks it. RocksDB has a lock of its own, but no distinct error for it.
pub(crate) fn lock(dir: &Path) -> Result<Lock, StoreError> {
    folder::create(dir).map_err(|error| StoreError::io(format!("{}: {error}", dir.display())))?;
    match DirLock::take(dir) {
        Ok(lock) => Ok(Arc::new(lock)),
        Err(LockError::InUse) => Err(StoreError::InUse { dir: dir.to_owned() }),
        Err(LockError::Unsupported) => Err(StoreError::io(format!(
            "{}: this file system does not support file locks: put the data directory on one that does",
            dir.display()
        ))),
        Err(LockError::Io(error)) => Err(StoreError::io(format!("{}: {error}", dir.display()))),
    }
}

/// Rejects a store with column families that this schema does not have. A newer schema may have families that RocksDB
/// would not open; to name the schema in the error, it is read from the known families, read-only.
fn reject_unknown_families(dir: &Path) -> Result<(), StoreError> {
    if index_files::manifest(dir).is_none() {
        return Ok(());
    }
    let mut found = DB::list_cf(&Options::default(), dir)?;
    found.retain(|name| !FAMILIES.contains(&name.as_str()));
    if found.is_empty() {
        return Ok(());
    }
    let db = DB::open_cf_for_read_only(&Options::default(), dir, ["default", META], false)?;
    let schema = db.cf_handle(META).and_then(|meta| db.get_cf(meta, KEY_SCHEMA).transpose()).transpose()?;
    _ = known_schema(dir, &schema.unwrap_or_default())?;
    Err(StoreError::corrupt(format!("column families {found:?} are not those of schema {SCHEMA}")))
}

fn known_schema(dir: &Path, found: &[u8]) -> Result<u32, StoreError> {
    let found = take_u32(&mut &*found).ok_or_else(|| StoreError::corrupt("the schema version is malformed"))?;
    if found > SCHEMA {
        return Err(StoreError::NewerSchema { dir: dir.to_owned(), found, known: SCHEMA });
    }
    if found < SCHEMA_UNPACKED {
        // No release wrote one.
        return Err(StoreError::index_damaged(format!("its schema version is {found}")));
    }
    Ok(found)
}

/// The reserve of a store. It is released if there is too little space to open the index.
fn reserve(dir: &Path, options: &DiskOptions) -> Result<Reserve, StoreError> {
    let space = Space::of(dir).map_err(|error| StoreError::io(format!("{}: {error}", dir.display())))?;
    let reserve = Reserve::of(dir, space, options.reserve_bytes_max);
    if !reserve.is_enough_to_open(space) {
        reserve.release();
    }
    Ok(reserve)
}

/// Bounds for the part of the index that is only in the write-ahead log, in bytes: after a kill, it is written to
/// tables when the store is next opened, and the reserve has room for that.
#[derive(Debug, Clone, Copy)]
struct IndexBounds {
    log_bytes: u64,
    write_buffer_bytes: usize,
}

impl IndexBounds {
    fn of(reserve: &Reserve) -> Self {
        // Bounded even without a reserve, so that a rarely written family does not keep the whole log alive.
        let log_bytes = if reserve.bytes() == 0 { 64 * MIB as u64 } else { reserve.bytes() / 2 };
        let write_buffer = usize::try_from(log_bytes / 4).unwrap_or(usize::MAX);
        Self { log_bytes, write_buffer_bytes: write_buffer.min(WRITE_BUFFER_BYTES_MAX) }
    }
}

fn open_database(dir: &Path, options: &DiskOptions, bounds: IndexBounds, access: Access) -> Result<DB, rocksdb::Error> {
    let (settings, families) = (db_options(options, bounds), families(options, bounds));
    match access {
        Access::Write => DB::open_cf_descriptors(&settings, dir, families),
        Access::ReadOnly => DB::open_cf_descriptors_read_only(&settings, dir, families, false),
    }
}

fn db_options(options: &DiskOptions, bounds: IndexBounds) -> Options {
    let mut db = database::options();
    db.create_if_missing(true);
    db.create_missing_column_families(true);
    // A kill or power loss may leave a torn end of the log: keep everything before it. The watermark in the pin journal
    // detects whether more was lost.
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    db.set_max_total_wal_size(bounds.log_bytes);
    db.set_max_open_files((options.open_files_max / 2).max(16));
    db.set_max_background_jobs(2);
    // Written pages are flushed steadily, instead of in a burst that delays a synced pin.
    db.set_bytes_per_sync(MIB as u64);
    db.set_wal_bytes_per_sync(MIB as u64);
    db.set_keep_log_file_num(4);
    db.set_max_log_file_size(MIB);
    db
}

fn families(options: &DiskOptions, bounds: IndexBounds) -> Vec<ColumnFamilyDescriptor> {
    let cache = Cache::new_lru_cache(options.block_cache_bytes);
    let family = |name: &str| {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&cache);
        // Part of the cache's budget, with priority, since `has` needs them.
        table.set_cache_index_and_filter_blocks(true);
        table.set_cache_index_and_filter_blocks_with_high_priority(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        table.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
        table.set_format_version(5);
        let mut cf = Options::default();
        cf.set_block_based_table_factory(&table);
        // Keys are digests, which cannot be compressed.
        cf.set_compression_type(DBCompressionType::None);
        cf.set_write_buffer_size(bounds.write_buffer_bytes);
        if name == BLOCKS_BY_PIN || name == PINS_BY_BLOCK {
            // Each pin ID is repeated for all of its blocks.
            cf.set_compression_type(DBCompressionType::Lz4);
        }
        ColumnFamilyDescriptor::new(name, cf)
    };
    FAMILIES.into_iter().map(family).collect()
}
