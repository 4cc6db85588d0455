//! [`Store`]: RocksDB with our column families, the segment files beside it, and reads of single records.
//!
//! Everything here blocks. Reads may come from any thread; writes come from the writer thread alone.

use super::error::StoreError;
#[cfg(test)]
use super::faults::{Call, Fault};
use super::files::Files;
use super::schema::{
    BLOCKS_BY_PIN, Counters, FAMILIES, INDEX, IndexRecord, KEY_COUNTERS, KEY_SCHEMA, KEY_SCRUB, KEY_SYNCED, KEY_TRIED,
    META, PINS, PINS_BY_BLOCK, PinRecord, Place, SCHEMA, SEGMENTS, ScrubRecord, SegmentRecord, TriedRecord, take_u32,
};
use super::touched::Touched;
use super::{DiskOptions, migrate, record, summary};
use crate::folder;
use crate::pins::PinSummary;
use crate::stored::{Stored, ValueError};
use bytes::Bytes;
use content::block::BlockError;
use content::{Block, BlockKey, Cid, codec};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, DBPinnableSlice,
    DBRecoveryMode, Direction, IteratorMode, Options, ReadOptions, ReadTier, WriteBatch, WriteOptions,
};
use std::fs::{File, TryLockError};
use std::path::Path;

const MIB: usize = 1024 * 1024;

/// Held for as long as the store is open. RocksDB has a lock of its own, but only says so in prose.
const LOCK_FILE: &str = "causeway.lock";

/// Where the segment files are.
const SEGMENTS_DIR: &str = "segments";

/// The log is cut at this size: a quiet family must not keep all of it alive.
const WAL_BYTES_MAX: u64 = 256 * 1024 * 1024;

const BLOOM_BITS_PER_KEY: f64 = 10.0;

pub(crate) type Row = (Box<[u8]>, Box<[u8]>);

#[derive(Debug)]
pub(crate) struct Store {
    // Dropped in this order: the lock outlives the database.
    db: DB,
    pub(crate) files: Files,
    pub(crate) touched: Touched,
    _lock: File,
}

impl Store {
    pub(crate) fn open(dir: &Path, options: &DiskOptions) -> Result<Self, StoreError> {
        folder::make(dir).map_err(|error| StoreError::io(format!("{}: {error}", dir.display())))?;
        let lock = lock(dir)?;
        refuse_lost_index(dir)?;
        let legacy = refuse_unknown_families(dir)?;
        let db = DB::open_cf_descriptors(&db_options(options), dir, families(options, &legacy))?;
        let open_max = u64::try_from(options.open_files_max).unwrap_or(u64::MAX) / 2;
        let store = Self {
            db,
            files: Files::open(dir.join(SEGMENTS_DIR), open_max)?,
            touched: Touched::default(),
            _lock: lock,
        };
        store.check_schema(dir)?;
        Ok(store)
    }

    /// Whether there is a store in a directory.
    pub(crate) fn is_in(dir: &Path) -> bool {
        dir.join("CURRENT").exists()
    }

    /// A store of an earlier schema keeps its number until [`super::migrate`] is done with it.
    fn check_schema(&self, dir: &Path) -> Result<(), StoreError> {
        match self.db.get_cf(self.family(META)?, KEY_SCHEMA)? {
            None => {
                self.db.put_cf(self.family(META)?, KEY_SYNCED, Place::default().to_key())?;
                self.write_schema()
            }
            Some(found) => known_schema(dir, &found),
        }
    }

    pub(crate) fn write_schema(&self) -> Result<(), StoreError> {
        Ok(self.db.put_cf(self.family(META)?, KEY_SCHEMA, SCHEMA.to_be_bytes())?)
    }

    /// Whether there is anything of an earlier schema.
    pub(crate) fn is_legacy(&self) -> bool {
        migrate::FAMILIES.iter().any(|name| self.db.cf_handle(name).is_some())
    }

    /// Takes away what only earlier schemas have.
    pub(crate) fn drop_legacy(&mut self) -> Result<(), StoreError> {
        for name in migrate::FAMILIES.iter().filter(|name| self.db.cf_handle(name).is_some()).collect::<Vec<_>>() {
            self.db.drop_cf(name)?;
        }
        Ok(())
    }

    pub(crate) fn family(&self, name: &str) -> Result<&ColumnFamily, StoreError> {
        self.db.cf_handle(name).ok_or_else(|| StoreError::corrupt(format!("column family {name} is missing")))
    }

    /// Whether a block may be here, from memory alone: `false` is certain.
    pub(crate) fn may_hold(&self, block: &[u8]) -> bool {
        self.family(INDEX).map_or(true, |index| self.db.key_may_exist_cf(index, block))
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
        let bytes = self.db.get_pinned_cf_opt(self.family(INDEX).ok()?, block, &from_memory()).ok()??;
        IndexRecord::from_bytes(&bytes)
    }

    /// The records of several blocks, which are in order, in the same order.
    pub(crate) fn indexes<'a>(
        &self,
        blocks: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Vec<Result<Option<IndexRecord>, StoreError>> {
        let index = match self.family(INDEX) {
            Ok(index) => index,
            Err(_) => return blocks.map(|block| self.index(block)).collect(),
        };
        let found = self.db.batched_multi_get_cf(index, blocks, true);
        found
            .into_iter()
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

    pub(crate) fn pinned(&self, family: &str, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>, StoreError> {
        Ok(self.db.get_pinned_cf(self.family(family)?, key)?)
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
        let rows = self.db.iterator_cf_opt(self.family(family)?, options, mode);
        Ok(rows.map(|row| row.map_err(StoreError::from)))
    }

    /// The keys that begin with `prefix`.
    pub(crate) fn keys_with_prefix<'a>(
        &'a self,
        family: &str,
        prefix: &'a [u8],
    ) -> Result<impl Iterator<Item = Result<Box<[u8]>, StoreError>> + 'a, StoreError> {
        self.keys_with_prefix_from(family, prefix, prefix)
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
            return Err(StoreError::io(fault.error()));
        }
        #[cfg(test)]
        let volatile = self.files.volatile.lock().expect("no test panics here");
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        self.db.write_opt(batch, &options)?;
        #[cfg(test)]
        if let Some(fault) = fault {
            return Err(StoreError::io(fault.error()));
        }
        #[cfg(test)]
        if sync {
            self.note_synced_logs(volatile);
        }
        Ok(())
    }

    #[cfg(test)]
    fn note_synced_logs(&self, mut volatile: std::sync::MutexGuard<'_, super::files::Volatile>) {
        for entry in std::fs::read_dir(self.db.path()).expect("reads").flatten() {
            let is_log = entry.path().extension().is_some_and(|extension| extension == "log");
            // One that is done with may go at any time.
            if let (true, Ok(log)) = (is_log, entry.metadata()) {
                volatile.logs.insert(entry.file_name(), log.len());
            }
        }
    }

    /// Rewrites every family of the index without what was deleted from it.
    pub(crate) fn compact_index(&self) -> Result<(), StoreError> {
        for name in FAMILIES {
            self.db.compact_range_cf(self.family(name)?, None::<&[u8]>, None::<&[u8]>);
        }
        Ok(())
    }

    /// Forces the log to the disk.
    pub(crate) fn sync_log(&self) -> Result<(), StoreError> {
        #[cfg(test)]
        self.files.faults.check(Call::SyncLog).map_err(StoreError::io)?;
        self.db.flush_wal(true)?;
        #[cfg(test)]
        self.note_synced_logs(self.files.volatile.lock().expect("no test panics here"));
        Ok(())
    }
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

pub(crate) fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK_FILE);
    let failed = |error: std::io::Error| StoreError::io(format!("{}: {error}", path.display()));
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Segments that no index knows would be deleted as left over: their pins were acknowledged by somebody.
fn refuse_lost_index(dir: &Path) -> Result<(), StoreError> {
    let segments = dir.join(SEGMENTS_DIR);
    let has_segments = !Store::is_in(dir) && segments.is_dir() && !Files::list_in(&segments)?.is_empty();
    if has_segments {
        return Err(StoreError::corrupt(format!("{} has blocks, and the index beside it is gone", segments.display())));
    }
    Ok(())
}

/// The families of earlier schemas that are here. A newer schema may have families that RocksDB would not open without
/// being told how. So that the refusal can name the schema, it is read from the families that are known, without writing.
fn refuse_unknown_families(dir: &Path) -> Result<Vec<String>, StoreError> {
    if !Store::is_in(dir) {
        return Ok(Vec::new());
    }
    let mut found = DB::list_cf(&Options::default(), dir)?;
    found.retain(|name| !FAMILIES.contains(&name.as_str()));
    if found.iter().all(|name| migrate::FAMILIES.contains(&name.as_str())) {
        return Ok(found);
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

fn db_options(options: &DiskOptions) -> Options {
    let mut db = Options::default();
    db.create_if_missing(true);
    db.create_missing_column_families(true);
    // A process that is killed leaves a log whose end may be torn: keep everything before that.
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    db.set_max_total_wal_size(WAL_BYTES_MAX);
    db.set_max_open_files((options.open_files_max / 2).max(16));
    db.set_max_background_jobs(2);
    // Written pages go out steadily instead of in one burst that stalls a synced pin.
    db.set_bytes_per_sync(MIB as u64);
    db.set_wal_bytes_per_sync(MIB as u64);
    db.set_keep_log_file_num(4);
    db.set_max_log_file_size(MIB);
    db
}

fn families(options: &DiskOptions, legacy: &[String]) -> Vec<ColumnFamilyDescriptor> {
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
        cf.set_write_buffer_size(8 * MIB);
        if name == BLOCKS_BY_PIN || name == PINS_BY_BLOCK {
            // Each pin id is repeated for all of its blocks.
            cf.set_compression_type(DBCompressionType::Lz4);
        }
        ColumnFamilyDescriptor::new(name, cf)
    };
    FAMILIES.into_iter().chain(legacy.iter().map(String::as_str)).map(family).collect()
}
