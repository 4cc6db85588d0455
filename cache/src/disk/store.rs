//! [`Store`]: RocksDB with our column families, the segment files beside it, and reads of single records.
//!
//! Everything here blocks. Reads may come from any thread; writes come from the writer thread alone.

#[cfg(test)]
use super::faults::{Call, Fault};
use super::files::Files;
use super::index_files::{self, Stage};
use super::reserve::Reserve;
use super::schema::{
    BLOCKS_BY_PIN, Counters, FAMILIES, INDEX, IndexRecord, KEY_COUNTERS, KEY_SCHEMA, KEY_SCRUB, KEY_SYNCED, KEY_TRIED,
    Kind, META, PINS, PINS_BY_BLOCK, PLACES, PinRecord, Place, SCHEMA, SEGMENTS, ScrubRecord, SegmentRecord,
    TriedRecord, release_key, take_u32,
};
use super::touched::Touched;
use super::watermarks::Watermarks;
use super::{DiskOptions, parse_pin, record, summary};
use crate::database::{self, Access, Database};
use crate::error::StoreError;
use crate::lock::{DirLock, LockError};
use crate::pin_journal::{self, Condition, PinJournal};
use crate::pins::{PinId, PinState, PinSummary};
use crate::space::Space;
use crate::store::Stats;
use crate::stored::{Stored, ValueError};
use crate::{dag, folder};
use bytes::Bytes;
use content::block::BlockError;
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tracing::{error, info, warn};

const MIB: usize = 1024 * 1024;

/// Where the segment files are.
pub(super) const SEGMENTS_DIR: &str = "segments";

/// How much of a family's newest rows is in memory at most, in bytes, before they become a file.
const WRITE_BUFFER_BYTES_MAX: usize = 8 * MIB;

const BLOOM_BITS_PER_KEY: f64 = 10.0;

pub(crate) type Row = (Box<[u8]>, Box<[u8]>);

/// Keeps others out of a store.
pub(crate) type Lock = Arc<DirLock>;

#[derive(Debug)]
pub(crate) struct Store {
    // Dropped in this order: the lock outlives the database.
    database: Database,
    pub(crate) files: Files,
    pub(crate) reserve: Reserve,
    pub(crate) touched: Touched,
    dir: PathBuf,
    watermarks: Mutex<Watermarks>,
    /// Whether the index is known to have everything that was acknowledged.
    is_whole: bool,
    /// Whether the index was found to agree with the journal. One that does not must not tell the journal what it has.
    pub(super) agrees: bool,
    /// RocksDB found its own files damaged.
    damaged: AtomicBool,
    /// Where that is told.
    stats: OnceLock<Arc<Stats>>,
    lock: Lock,
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.agrees {
            self.watermarks().note_manifest(&self.dir);
        }
    }
}

impl Store {
    /// Opens the store in `dir`, which is `lock`ed, and compares its index with the pin journal.
    ///
    /// # Errors
    /// [`StoreError::IndexDamaged`] if RocksDB or the journal finds it so, [`StoreError::NewerSchema`], or what the file system
    /// said.
    pub(crate) fn open(dir: &Path, options: &DiskOptions, lock: Lock) -> Result<Self, StoreError> {
        let manifest = index_files::manifest(dir);
        refuse_unknown_families(dir)?;
        let mut store = Self::open_families(dir, options, lock)?;
        store.check_schema(dir)?;
        store.compare_with_journal(manifest).inspect_err(|error| {
            // Whoever opens it next must not have to find out again.
            if matches!(error, StoreError::IndexDamaged(_))
                && let Err(error) = index_files::mark(dir, Stage::Damaged)
            {
                warn!(%error, "that the index is damaged could not be noted");
            }
        })?;
        store.agrees = true;
        Ok(store)
    }

    /// Opens the store in `dir` whatever its journal says.
    pub(super) fn open_families(dir: &Path, options: &DiskOptions, lock: Lock) -> Result<Self, StoreError> {
        let reserve = reserve(dir, options)?;
        let (bounds, at, settings) = (IndexBounds::of(&reserve), dir.to_owned(), options.clone());
        let database = Database::open(move |access| open_database(&at, &settings, bounds, access))?;
        let open_max = u64::try_from(options.open_files_max).unwrap_or(u64::MAX) / 2;
        let files = Files::open(dir.join(SEGMENTS_DIR), open_max)?;
        // Only now: a journal without an index tells of one that was lost.
        let (journal, found) = PinJournal::open(dir).map_err(|error| unjournaled(dir, &error))?;
        Ok(Self {
            database,
            files,
            reserve,
            touched: Touched::default(),
            dir: dir.to_owned(),
            watermarks: Watermarks::new(journal, found).into(),
            is_whole: false,
            agrees: false,
            damaged: AtomicBool::new(false),
            stats: OnceLock::new(),
            lock,
        })
    }

    /// Where it is.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What keeps other owners out of the directory.
    pub(crate) fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Whether there is a store in a directory.
    pub(crate) fn is_in(dir: &Path) -> bool {
        index_files::is_store(dir)
    }

    /// Where the store tells that its index is damaged.
    pub(crate) fn report_to(&self, stats: &Arc<Stats>) {
        _ = self.stats.set(Arc::clone(stats));
    }

    /// Whether the index is known to have everything that was acknowledged, so that what it does not name is garbage.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Finds out whether the index lost writes that were acknowledged, and brings the journal up to date. `manifest` is what
    /// was there before RocksDB opened it.
    fn compare_with_journal(&mut self, manifest: Option<(u64, u64)>) -> Result<(), StoreError> {
        let Some(found) = self.watermarks().take_found() else { return Ok(()) };
        let rewrites = found.is_worth_rewriting();
        let known = found.watermark.unwrap_or_default();
        if self.database.now().latest_sequence_number() < known.sequence {
            return Err(StoreError::index_damaged("its log lost writes that were acknowledged"));
        }
        if manifest.is_some_and(|manifest| manifest < (known.manifest, known.manifest_bytes)) {
            return Err(StoreError::index_damaged("its manifest lost changes"));
        }
        let mut standing = found.pins;
        let (mut missing, mut removed) = (Vec::new(), Vec::new());
        for row in self.rows_from(PINS, &[])? {
            let (root, record) = parse_pin(&row?)?;
            match standing.remove(&record.id) {
                _ if found.removed.contains(&record.id) => removed.push((root, record.id)),
                // What is partial grows without a sync, here and there.
                Some((_, entered)) if entered.state == PinState::Complete && entered.blocks > record.blocks => {
                    return Err(StoreError::index_damaged(format!("it lost members of the pin of {root}")));
                }
                Some((_, entered)) if entered.name == record.name && entered.state == record.state => {}
                _ => missing.push((root, record)),
            }
        }
        let lost = standing.values().filter(|(_, record)| record.state == PinState::Complete);
        if let Some((root, _)) = lost.clone().next() {
            let (lost, root) = (lost.count(), *root);
            return Err(StoreError::index_damaged(format!("it lost {lost} pins, that of {root} among them")));
        }
        // An index that is only read is opened again later.
        for (root, pin) in removed.into_iter().filter(|_| self.is_writable()) {
            info!(%root, "a pin is removed, as was asked for when the store was last open");
            if let Err(error) = self.remove_pin_rows(&root, pin) {
                warn!(%root, %error, "it cannot be removed now, and is when the store is next opened");
            }
        }
        self.is_whole = found.condition == Condition::Whole && known.sequence > 0;
        let entered = match rewrites || !standing.is_empty() {
            true => self.rewrite_journal(),
            false => self.enter_pins(&missing, true),
        };
        if let Err(error) = entered {
            warn!(%error, "the pin journal could not be brought up to date, and is when the store is next opened");
        }
        Ok(())
    }

    /// Takes a pin away whose members are to be let go.
    fn remove_pin_rows(&self, root: &Cid, pin: PinId) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        batch.delete_cf(self.family(PINS)?, root.to_bytes());
        batch.put_cf(self.family(META)?, release_key(pin), []);
        self.write(batch, true)
    }

    /// Makes the journal say what the index says, anew.
    pub(super) fn rewrite_journal(&self) -> Result<(), StoreError> {
        let pins: Vec<_> = self.rows_from(PINS, &[])?.map(|row| parse_pin(&row?)).collect::<Result<_, _>>()?;
        self.sync_log()?;
        let mut watermarks = self.watermarks();
        let noted = watermarks.noted();
        let rewritten = watermarks.journal.rewrite(SCHEMA, noted, pins.into_iter());
        rewritten.map_err(|error| unjournaled(&self.dir, &error))
    }

    /// Enters pins in the journal, which the index has already.
    pub(crate) fn enter_pins(&self, pins: &[(Cid, PinRecord)], durable: bool) -> Result<(), StoreError> {
        if pins.is_empty() {
            return Ok(());
        }
        self.watermarks().journal.enter(pins, durable).map_err(|error| unjournaled(&self.dir, &error))
    }

    /// Strikes a pin out of the journal, before the index lets it go.
    pub(crate) fn strike_out_pin(&self, pin: PinId) -> Result<(), StoreError> {
        self.watermarks().journal.strike_out(pin).map_err(|error| unjournaled(&self.dir, &error))
    }

    /// The same taken back: the index has not let it go.
    pub(crate) fn restore_pin(&self, pin: PinId) {
        if let Err(error) = self.watermarks().journal.restore(pin) {
            warn!(%error, "a pin could not be removed, and is when the store is next opened");
        }
    }

    fn watermarks(&self) -> MutexGuard<'_, Watermarks> {
        // Every change of them is a write to a file, which may fail as well.
        self.watermarks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_synced(&self) {
        self.watermarks().note_sequence(self.database.now().latest_sequence_number(), &self.dir);
    }

    /// An error of RocksDB's. If it says that the index is damaged, that is noted for the next start, and told.
    fn said(&self, error: rocksdb::Error) -> StoreError {
        let error = StoreError::from(error);
        if matches!(error, StoreError::IndexDamaged(_)) && !self.damaged.swap(true, Ordering::Relaxed) {
            error!(%error, "the index of the store is damaged; the next start rebuilds it");
            if let Err(error) = index_files::mark(&self.dir, Stage::Damaged) {
                error!(%error, "that could not be noted for the next start");
            }
            if let Some(stats) = self.stats.get() {
                stats.index_damaged.store(true, Ordering::Relaxed);
            }
        }
        error
    }

    /// A row.
    pub(crate) fn pinned(&self, family: &str, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>, StoreError> {
        let (db, family) = self.database.family(family)?;
        db.get_pinned_cf(family, key).map_err(|error| self.said(error))
    }

    /// Writes the schema of a new store, and refuses one that this release does not know.
    fn check_schema(&self, dir: &Path) -> Result<(), StoreError> {
        match self.pinned(META, KEY_SCHEMA)? {
            None => {
                let (db, meta) = self.database.family(META)?;
                db.put_cf(meta, KEY_SYNCED, Place::default().to_key())?;
                self.write_schema()
            }
            Some(found) => known_schema(dir, &found),
        }
    }

    pub(crate) fn write_schema(&self) -> Result<(), StoreError> {
        let (db, meta) = self.database.family(META)?;
        db.put_cf(meta, KEY_SCHEMA, SCHEMA.to_be_bytes()).map_err(|error| self.said(error))
    }

    /// A family, for a batch.
    pub(crate) fn family(&self, name: &str) -> Result<&ColumnFamily, StoreError> {
        Ok(self.database.family(name)?.1)
    }

    /// Whether the index can be changed. A disk without space may let it be read only.
    pub(crate) fn is_writable(&self) -> bool {
        self.database.is_writable()
    }

    /// Opens the index for writing, if it is not. For the thread that writes.
    ///
    /// # Errors
    /// [`StoreError::Full`] while there is no space for that.
    pub(crate) fn make_writable(&self) -> Result<(), StoreError> {
        self.database.make_writable()
    }

    /// Whether a block may be here, from memory alone: `false` is certain.
    pub(crate) fn may_hold(&self, block: &[u8]) -> bool {
        let is_damaged = self.damaged.load(Ordering::Relaxed);
        is_damaged || self.database.family(INDEX).map_or(true, |(db, index)| db.key_may_exist_cf(index, block))
    }

    /// A block as it is stored. [`StoreError::Corrupt`] means that this value cannot be read and never will.
    pub(crate) fn stored(&self, block: &[u8]) -> Result<Option<Stored>, StoreError> {
        let Some((record, value)) = self.find(block)? else { return Ok(None) };
        let stored = Stored::read(value).map_err(unreadable)?;
        self.touched.touch(record.place.segment, record.place.offset);
        Ok(Some(stored))
    }

    /// A block as it is stored, if neither the index nor the value has to be waited for. `None` says nothing.
    pub(crate) fn stored_now(&self, block: &[u8]) -> Option<Stored> {
        let record = self.index_now(block)?;
        let len = record::record_bytes(block, record.shape.value_bytes());
        self.taken(record.place, self.files.read_now(record.place.segment, record.place.offset, len)?, block)
    }

    /// The value in what was read from the place of a block, if it is that. It counts as used.
    pub(crate) fn taken(&self, place: Place, found: Bytes, block: &[u8]) -> Option<Stored> {
        let stored = Stored::read(record::value(found, block)?).ok()?;
        self.touched.touch(place.segment, place.offset);
        Some(stored)
    }

    /// A block's record and value. A value that moves or goes while it is looked for is looked for again.
    fn find(&self, block: &[u8]) -> Result<Option<(IndexRecord, Bytes)>, StoreError> {
        let mut sought = self.index(block)?;
        while let Some(record) = sought {
            let read = self.value(block, record);
            if read.is_ok() {
                return read.map(|value| Some((record, value)));
            }
            let now = self.index(block)?;
            if now == sought {
                return read.map(|value| Some((record, value)));
            }
            sought = now;
        }
        Ok(None)
    }

    /// The value that an index record names.
    pub(crate) fn value(&self, block: &[u8], record: IndexRecord) -> Result<Bytes, StoreError> {
        let len = record::record_bytes(block, record.shape.value_bytes());
        let found = self.files.read(record.place.segment, record.place.offset, len)?;
        record::value(found, block).ok_or_else(|| StoreError::corrupt("a value is not what was written"))
    }

    /// The value that an index record names, checked in every way: its checksum, its form, and the hash of its block. A
    /// checksum tells what the disk did to a value; only the hash tells what was done to it before. This counts as no
    /// reading: what is checked is not wanted more for it.
    pub(crate) fn verified(&self, key: &BlockKey, record: IndexRecord) -> Result<Stored, StoreError> {
        let stored = Stored::read(self.value(&key.to_bytes(), record)?).map_err(unreadable)?;
        if stored.shape() != record.shape {
            return Err(StoreError::corrupt("a value has another form than the index says"));
        }
        check_hash(key, &stored)?;
        Ok(stored)
    }

    /// The bytes of a block, checked like that. A value that moves or goes while it is looked at is looked for again.
    pub(crate) fn look(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        let block = key.to_bytes();
        let mut sought = self.index(&block)?;
        while let Some(record) = sought {
            match self.verified(key, record) {
                Ok(stored) => return stored.block().map(Some).map_err(unreadable),
                Err(error) => match self.index(&block)? {
                    now if now == sought => return Err(error),
                    now => sought = now,
                },
            }
        }
        Ok(None)
    }

    pub(crate) fn index(&self, block: &[u8]) -> Result<Option<IndexRecord>, StoreError> {
        self.record(INDEX, block, IndexRecord::from_bytes)
    }

    /// The same without waiting: `None` as well where memory does not tell.
    fn index_now(&self, block: &[u8]) -> Option<IndexRecord> {
        let (db, index) = self.database.family(INDEX).ok()?;
        let bytes = db.get_pinned_cf_opt(index, block, &from_memory()).ok()??;
        IndexRecord::from_bytes(&bytes)
    }

    /// The records of several blocks, which are in order, in the same order.
    pub(crate) fn indexes<'a>(
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
            .map(|row| row.map_err(|error| self.said(error)))
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

    /// How far the scrub has come. Advice that cannot be read is no advice.
    pub(crate) fn scrub_record(&self) -> Result<ScrubRecord, StoreError> {
        Ok(self.pinned(META, KEY_SCRUB)?.and_then(|bytes| ScrubRecord::from_bytes(&bytes)).unwrap_or_default())
    }

    /// Which pinned values were recompressed. Advice too.
    pub(crate) fn tried_record(&self) -> Result<TriedRecord, StoreError> {
        Ok(self.pinned(META, KEY_TRIED)?.and_then(|bytes| TriedRecord::from_bytes(&bytes)).unwrap_or_default())
    }

    /// Up to where pinned values are synced, if that was ever noted.
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

    /// The rows of a family from `from` on. Does not fill the block cache: it serves bulk work.
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
        Ok(rows.map(|row| row.map_err(|error| self.said(error))))
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

    /// The keys that begin with `prefix`, from `from` on.
    pub(crate) fn keys_with_prefix_from<'a>(
        &'a self,
        family: &str,
        prefix: &'a [u8],
        from: &[u8],
    ) -> Result<impl Iterator<Item = Result<Box<[u8]>, StoreError>> + 'a, StoreError> {
        let keys = self.rows_from(family, from)?.map(|row| Ok(row?.0));
        // An error ends no iteration: whoever reads the keys has to see it.
        Ok(keys.take_while(move |key| !matches!(key, Ok(key) if !key.starts_with(prefix))))
    }

    /// Writes a batch as a whole or not at all. With `sync` it has reached the disk on return, and all before it.
    pub(crate) fn write(&self, batch: WriteBatch, sync: bool) -> Result<(), StoreError> {
        #[cfg(test)]
        let fault = self.files.faults.meet(Call::Batch);
        #[cfg(test)]
        if let Some(fault @ (Fault::Refused(_) | Fault::Half(_))) = fault {
            return Err(of_fault(fault));
        }
        #[cfg(test)]
        let volatile = self.files.volatile.lock().expect("no test panics here");
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        self.database.now().write_opt(batch, &options).map_err(|error| self.said(error))?;
        #[cfg(test)]
        if let Some(fault) = fault {
            return Err(of_fault(fault));
        }
        #[cfg(test)]
        if sync {
            self.note_synced_logs(volatile);
        }
        if sync {
            self.note_synced();
        }
        Ok(())
    }

    /// Writes a batch that is on the disk when its families were flushed.
    pub(super) fn write_unlogged(&self, batch: WriteBatch) -> Result<(), StoreError> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.database.now().write_opt(batch, &options).map_err(|error| self.said(error))
    }

    /// Forces to the disk what was written to a family, log or no log.
    pub(super) fn flush_family(&self, family: &str) -> Result<(), StoreError> {
        let (db, family) = self.database.family(family)?;
        db.flush_cf(family).map_err(|error| self.said(error))
    }

    #[cfg(test)]
    fn note_synced_logs(&self, mut volatile: std::sync::MutexGuard<'_, super::files::Volatile>) {
        for entry in std::fs::read_dir(self.database.now().path()).expect("reads").flatten() {
            let is_log = entry.path().extension().is_some_and(|extension| extension == "log");
            // One that is done with may go at any time.
            if let (true, Ok(log)) = (is_log, entry.metadata()) {
                volatile.logs.insert(entry.file_name(), log.len());
            }
        }
    }

    /// Deletes the file of the oldest cached segment that has one, but for the one that is written to, and says whether there
    /// was one. Its blocks are not found any more, and their rows go when the segment is evicted. The last file of all stays: a
    /// store without any looks as if its disk were not mounted.
    pub(crate) fn give_up_cached(&self, segments: &BTreeMap<u32, SegmentRecord>, tail: Option<u32>) -> bool {
        let Ok(files) = self.files.list() else { return false };
        let is_cached = |segment: &u32| {
            segments.get(segment).is_some_and(|record| record.kind == Kind::Cached && Some(*segment) != tail)
        };
        let Some(oldest) = files.iter().copied().filter(is_cached).min().filter(|_| files.len() > 1) else {
            return false;
        };
        warn!(segment = oldest, "the disk is full: a segment of cached blocks was given up");
        let is_deleted = self.files.delete(oldest).is_ok();
        self.files.settle();
        is_deleted
    }

    /// Gives the dead stretches of a segment back to the file system, and says whether it takes them. A segment of which the
    /// rows do not agree is left as it is.
    pub(crate) fn punch_dead(&self, segment: u32, record: SegmentRecord) -> Result<bool, StoreError> {
        // What is dead must be so after a power cut too.
        self.sync_index()?;
        let Some(stretches) = self.dead_stretches(segment, record)? else { return Ok(true) };
        for stretch in stretches {
            if !self.files.punch(segment, stretch)? {
                return Ok(false);
            }
        }
        self.files.settle();
        Ok(true)
    }

    /// What lies between the records of a segment, in whole blocks of the file system. `None` if a row names what the index
    /// does not, or no row names what the index does.
    fn dead_stretches(&self, segment: u32, counted: SegmentRecord) -> Result<Option<Vec<Range<u32>>>, StoreError> {
        let (mut dead, mut end, mut live) = (Vec::new(), 0, 0_u64);
        for row in self.rows_from(PLACES, &segment.to_be_bytes())? {
            let (place, block) = row?;
            let Some(place) = Place::from_key(&place) else { return Ok(None) };
            if place.segment != segment {
                break;
            }
            let Some(record) = self.index(&block)?.filter(|record| record.place == place) else { return Ok(None) };
            dead.extend(whole_blocks(end..place.offset));
            let bytes = record::record_bytes(&block, record.shape.value_bytes());
            live += bytes as u64;
            end = place.offset.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
        dead.extend(whole_blocks(end..counted.written));
        Ok((live == u64::from(counted.live)).then_some(dead))
    }

    /// Forces to the disk what the index says, also one that is open for reading: another process may have written its log.
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

    /// Rewrites every family of the index without what was deleted from it.
    pub(crate) fn compact_index(&self) -> Result<(), StoreError> {
        for name in FAMILIES {
            let (db, family) = self.database.family(name)?;
            // It is written anew before the old goes.
            let bytes = db.property_int_value_cf(family, "rocksdb.live-sst-files-size")?.unwrap_or_default();
            if self.files.space()?.free_bytes < bytes.saturating_add(self.reserve.headroom_bytes()) {
                warn!(
                    family = name,
                    bytes, "the disk has no space to rewrite this part of the index: it is left as it is"
                );
                continue;
            }
            db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
        }
        Ok(())
    }

    /// Forces the log to the disk, with an empty batch. `flush_wal` would not do: RocksDB takes what it says of a log whose last
    /// append found no space for damage, and then takes no write until it is opened again.
    pub(crate) fn sync_log(&self) -> Result<(), StoreError> {
        #[cfg(test)]
        self.files.faults.check(Call::SyncLog).map_err(StoreError::io)?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        self.database.now().write_opt(WriteBatch::default(), &synced).map_err(|error| self.said(error))?;
        #[cfg(test)]
        self.note_synced_logs(self.files.volatile.lock().expect("no test panics here"));
        self.note_synced();
        Ok(())
    }
}

impl dag::Stored for Store {
    fn block_bytes(&self, key: &BlockKey) -> Result<Option<usize>, StoreError> {
        match self.index(&key.to_bytes()) {
            Err(StoreError::Corrupt(_)) => Ok(None),
            held => Ok(held?.map(|held| held.shape.block_bytes())),
        }
    }

    fn block(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        match self.look(key) {
            Err(StoreError::Corrupt(_)) => Ok(None),
            looked => looked,
        }
    }
}

fn unjournaled(dir: &Path, error: &io::Error) -> StoreError {
    if crate::space::is_full(error) {
        // By how much, the writer tells.
        return StoreError::Full { free: 0, needed: 0 };
    }
    StoreError::io(format!("{}: {error}", dir.join(pin_journal::NAME).display()))
}

#[cfg(test)]
fn of_fault(fault: Fault) -> StoreError {
    let error = fault.error();
    if crate::space::is_full(&error) { StoreError::Full { free: 0, needed: 0 } } else { StoreError::io(error) }
}

/// What file systems give back at a time, in bytes: most have blocks of this size, and larger ones take what they can.
const HOLE_BYTES: u32 = 4096;

/// The whole blocks in a stretch, if there are any. What shares a block with a record is left: it is in one page with it.
fn whole_blocks(stretch: Range<u32>) -> Option<Range<u32>> {
    let (start, end) = (stretch.start.checked_next_multiple_of(HOLE_BYTES)?, stretch.end / HOLE_BYTES * HOLE_BYTES);
    (start < end).then_some(start..end)
}

fn read_record<T>(family: &str, bytes: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> Result<T, StoreError> {
    read(bytes).ok_or_else(|| StoreError::corrupt(format!("a record in {family} is malformed")))
}

/// Checks that a value is of the block that a key names.
pub(crate) fn check_hash(key: &BlockKey, stored: &Stored) -> Result<(), StoreError> {
    let cid = Cid::new_v1(codec::RAW, *key.multihash());
    match Block::verify(cid, stored.block().map_err(unreadable)?) {
        // What a later release hashed with a function that this one does not know is not damaged.
        Ok(_) | Err(BlockError::Hash(_)) => Ok(()),
        Err(error) => Err(StoreError::corrupt(error)),
    }
}

/// What it means that a value cannot be unpacked.
pub(crate) fn unreadable(error: ValueError) -> StoreError {
    match error {
        ValueError::Memory => StoreError::io(error),
        error => StoreError::corrupt(error),
    }
}

/// For reads that must not wait.
fn from_memory() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_read_tier(ReadTier::BlockCache);
    options
}

/// Locks a folder, which is made if need be. RocksDB has a lock of its own, but only says so in prose.
pub(crate) fn lock(dir: &Path) -> Result<Lock, StoreError> {
    folder::make(dir).map_err(|error| StoreError::io(format!("{}: {error}", dir.display())))?;
    match DirLock::take(dir) {
        Ok(lock) => Ok(Arc::new(lock)),
        Err(LockError::InUse) => Err(StoreError::InUse { dir: dir.to_owned() }),
        Err(LockError::Unsupported) => {
            Err(StoreError::io(format!("{}: this file system does not lock files", dir.display())))
        }
        Err(LockError::Io(error)) => Err(StoreError::io(format!("{}: {error}", dir.display()))),
    }
}

/// Refuses a store with other column families than this schema has. A newer schema may have families that RocksDB would not open
/// without their options. So that the refusal can name the schema, it is read from the families that are known, without writing.
fn refuse_unknown_families(dir: &Path) -> Result<(), StoreError> {
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
    known_schema(dir, &schema.unwrap_or_default())?;
    Err(StoreError::corrupt(format!("column families {found:?} are not those of schema {SCHEMA}")))
}

fn known_schema(dir: &Path, found: &[u8]) -> Result<(), StoreError> {
    let found = take_u32(&mut &*found).ok_or_else(|| StoreError::corrupt("the schema version is malformed"))?;
    if found > SCHEMA {
        return Err(StoreError::NewerSchema { dir: dir.to_owned(), found, known: SCHEMA });
    }
    Ok(())
}

/// The reserve of a store. It is given up now if there is too little space to open the index.
fn reserve(dir: &Path, options: &DiskOptions) -> Result<Reserve, StoreError> {
    let space = Space::of(dir).map_err(|error| StoreError::io(format!("{}: {error}", dir.display())))?;
    let reserve = Reserve::of(dir, space, options.reserve_bytes_max);
    if !reserve.is_enough_to_open(space) {
        reserve.release();
    }
    Ok(reserve)
}

/// How much of the index is in its log alone, in bytes: what is in the log when a process is killed is written to files when
/// the store is opened again, and the reserve has room for that.
#[derive(Debug, Clone, Copy)]
struct IndexBounds {
    log_bytes: u64,
    write_buffer_bytes: usize,
}

impl IndexBounds {
    fn of(reserve: &Reserve) -> Self {
        // A quiet family must not keep all of the log alive, whether there is a reserve or not.
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
    // A process that is killed, or a machine that loses its power, leaves a log whose end may be torn in any way: keep everything
    // before that. Whether more than an end is gone, the watermark in the pin journal tells.
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    db.set_max_total_wal_size(bounds.log_bytes);
    db.set_max_open_files((options.open_files_max / 2).max(16));
    db.set_max_background_jobs(2);
    // Written pages go out steadily instead of in one burst that stalls a synced pin.
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
        // Within the budget of the cache, and kept there by preference: `has` is answered from them.
        table.set_cache_index_and_filter_blocks(true);
        table.set_cache_index_and_filter_blocks_with_high_priority(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        table.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
        table.set_format_version(5);
        let mut cf = Options::default();
        cf.set_block_based_table_factory(&table);
        // Keys are digests: nothing is left to gain.
        cf.set_compression_type(DBCompressionType::None);
        cf.set_write_buffer_size(bounds.write_buffer_bytes);
        if name == BLOCKS_BY_PIN || name == PINS_BY_BLOCK {
            // Each pin id is repeated for all of its blocks.
            cf.set_compression_type(DBCompressionType::Lz4);
        }
        ColumnFamilyDescriptor::new(name, cf)
    };
    FAMILIES.into_iter().map(family).collect()
}
