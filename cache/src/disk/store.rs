//! [`Store`]: RocksDB with our column families, its options, and reads of single records.
//!
//! Everything here blocks. Reads may come from any thread; writes come from the writer thread alone.

use super::error::StoreError;
use super::schema::{
    BLOCKS, BLOCKS_BY_PIN, FAMILIES, FIFO, INDEX, IndexRecord, KEY_SCHEMA, KEY_TOTALS, META, PINS, PINS_BY_BLOCK,
    PinRecord, SCHEMA, Totals, take_u32,
};
use super::{DiskOptions, value};
use bytes::Bytes;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, DBPinnableSlice,
    DBRecoveryMode, Direction, IteratorMode, Options, ReadOptions, WriteBatch, WriteOptions,
};
use std::fs::{File, TryLockError};
use std::path::Path;
#[cfg(test)]
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: usize = 1024 * 1024;

/// Held for as long as the store is open. RocksDB has a lock of its own, but only says so in prose.
const LOCK_FILE: &str = "causeway.lock";

/// Values from this size on are kept in blob files, so that compaction moves keys and not blocks.
const BLOB_BYTES_MIN: u64 = 4 * 1024;

/// The log is cut at this size: a quiet family must not keep all of it alive.
const WAL_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Files of keys that are written before they are merged.
const L0_FILES: i32 = 16;

const BLOOM_BITS_PER_KEY: f64 = 10.0;

pub(crate) type Row = (Box<[u8]>, Box<[u8]>);

#[derive(Debug)]
pub(crate) struct Store {
    // Dropped in this order: the lock outlives the database.
    db: DB,
    _lock: File,
    /// Makes writes fail, as a full disk would.
    #[cfg(test)]
    pub(crate) broken: AtomicBool,
}

impl Store {
    pub(crate) fn open(dir: &Path, options: &DiskOptions) -> Result<Self, StoreError> {
        std::fs::create_dir_all(dir).map_err(|error| StoreError::io(format!("{}: {error}", dir.display())))?;
        let lock = lock(dir)?;
        refuse_unknown_families(dir)?;
        let db = DB::open_cf_descriptors(&db_options(options), dir, families(options))?;
        let store = Self {
            db,
            _lock: lock,
            #[cfg(test)]
            broken: AtomicBool::new(false),
        };
        store.check_schema(dir)?;
        Ok(store)
    }

    fn check_schema(&self, dir: &Path) -> Result<(), StoreError> {
        match self.db.get_cf(self.family(META)?, KEY_SCHEMA)? {
            None => Ok(self.db.put_cf(self.family(META)?, KEY_SCHEMA, SCHEMA.to_be_bytes())?),
            Some(found) => known_schema(dir, &found),
        }
    }

    pub(crate) fn family(&self, name: &str) -> Result<&ColumnFamily, StoreError> {
        self.db.cf_handle(name).ok_or_else(|| StoreError::corrupt(format!("column family {name} is missing")))
    }

    /// Whether a block may be here, from memory alone: `false` is certain.
    pub(crate) fn may_hold(&self, block: &[u8]) -> bool {
        self.family(INDEX).map_or(true, |index| self.db.key_may_exist_cf(index, block))
    }

    /// The bytes of a block. [`StoreError::Corrupt`] means that this value cannot be read and never will.
    pub(crate) fn block(&self, block: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let Some(stored) = self.pinned(BLOCKS, block)? else { return Ok(None) };
        value::decode(&stored).map(Some).map_err(StoreError::corrupt)
    }

    pub(crate) fn index(&self, block: &[u8]) -> Result<Option<IndexRecord>, StoreError> {
        self.record(INDEX, block, IndexRecord::from_bytes)
    }

    pub(crate) fn pin(&self, root: &[u8]) -> Result<Option<PinRecord>, StoreError> {
        self.record(PINS, root, PinRecord::from_bytes)
    }

    pub(crate) fn totals(&self) -> Result<Totals, StoreError> {
        Ok(self.record(META, KEY_TOTALS, Totals::from_bytes)?.unwrap_or_default())
    }

    pub(crate) fn holds(&self, family: &str, key: &[u8]) -> Result<bool, StoreError> {
        Ok(self.pinned(family, key)?.is_some())
    }

    fn pinned(&self, family: &str, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>, StoreError> {
        Ok(self.db.get_pinned_cf(self.family(family)?, key)?)
    }

    fn record<T>(&self, family: &str, key: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>, StoreError> {
        let Some(bytes) = self.pinned(family, key)? else { return Ok(None) };
        let record = read(&bytes).ok_or_else(|| StoreError::corrupt(format!("a record in {family} is malformed")))?;
        Ok(Some(record))
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
        let keys = self.rows_from(family, prefix)?.map(|row| Ok(row?.0));
        // An error ends no iteration: whoever reads the keys has to see it.
        Ok(keys.take_while(move |key| !matches!(key, Ok(key) if !key.starts_with(prefix))))
    }

    /// Writes a batch as a whole or not at all. With `sync` it has reached the disk on return, and all before it.
    pub(crate) fn write(&self, batch: WriteBatch, sync: bool) -> Result<(), StoreError> {
        #[cfg(test)]
        if self.broken.load(Ordering::Relaxed) {
            return Err(StoreError::io("made to fail"));
        }
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        Ok(self.db.write_opt(batch, &options)?)
    }

    /// Forces the log to the disk.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        Ok(self.db.flush_wal(true)?)
    }

    /// Moves everything from memory into files.
    #[cfg(test)]
    pub(crate) fn flush_memory(&self) -> Result<(), StoreError> {
        FAMILIES.iter().try_for_each(|name| Ok(self.db.flush_cf(self.family(name)?)?))
    }
}

fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK_FILE);
    let failed = |error: std::io::Error| StoreError::io(format!("{}: {error}", path.display()));
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// A newer schema may have families that RocksDB would not open without being told how. So that the refusal can name the
/// schema, it is read from the families that are known, without writing.
fn refuse_unknown_families(dir: &Path) -> Result<(), StoreError> {
    if !dir.join("CURRENT").exists() {
        return Ok(());
    }
    let found = DB::list_cf(&Options::default(), dir)?;
    if found.iter().all(|name| FAMILIES.contains(&name.as_str())) {
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

fn db_options(options: &DiskOptions) -> Options {
    let mut db = Options::default();
    db.create_if_missing(true);
    db.create_missing_column_families(true);
    // A process that is killed leaves a log whose end may be torn: keep everything before that.
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    db.set_max_total_wal_size(WAL_BYTES_MAX);
    db.set_max_open_files(options.open_files_max);
    db.set_max_background_jobs(2);
    // Written pages go out steadily instead of in one burst that stalls a synced pin.
    db.set_bytes_per_sync(MIB as u64);
    db.set_wal_bytes_per_sync(MIB as u64);
    db.set_keep_log_file_num(4);
    db.set_max_log_file_size(MIB);
    db
}

fn families(options: &DiskOptions) -> Vec<ColumnFamilyDescriptor> {
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
        // Keys are digests and values compressed already: nothing is left to gain.
        cf.set_compression_type(DBCompressionType::None);
        cf.set_write_buffer_size(8 * MIB);
        if name == BLOCKS {
            keep_values_apart(&mut cf);
        }
        if name == BLOCKS_BY_PIN || name == PINS_BY_BLOCK {
            // Each pin id is repeated for all of its blocks.
            cf.set_compression_type(DBCompressionType::Lz4);
        }
        ColumnFamilyDescriptor::new(name, cf)
    };
    FAMILIES.into_iter().map(family).collect()
}

/// BlobDB. Eviction is by age and blob files are written by age, so most files of a full cache die whole and are deleted
/// without being rewritten; the collector rewrites the oldest quarter where pinned blocks keep a file alive.
fn keep_values_apart(cf: &mut Options) {
    cf.set_enable_blob_files(true);
    cf.set_min_blob_size(BLOB_BYTES_MIN);
    cf.set_blob_file_size(256 * MIB as u64);
    cf.set_blob_compression_type(DBCompressionType::None);
    cf.set_enable_blob_gc(true);
    cf.set_blob_gc_age_cutoff(0.25);
    cf.set_blob_gc_force_threshold(0.5);
    // Every compaction moves what lives in the oldest quarter, whether or not anything around it died. The files that it is
    // there to merge hold a few dozen keys each, so it may wait for many of them; with four, a tenth of the time of a cold fetch went there.
    cf.set_level_zero_file_num_compaction_trigger(L0_FILES);
    cf.set_level_zero_slowdown_writes_trigger(3 * L0_FILES);
    cf.set_level_zero_stop_writes_trigger(4 * L0_FILES);
}

/// The sequence that a `fifo` key stands for.
pub(crate) fn fifo_seq(key: &[u8]) -> Result<u64, StoreError> {
    key.try_into().map(u64::from_be_bytes).map_err(|_| StoreError::corrupt(format!("a key in {FIFO} is malformed")))
}
