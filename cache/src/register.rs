//! [`Register`]: small records beside the store, such as who asked for which pin.
//!
//! Goals: what was written is on the disk when [`Register::write`] returns, all of a batch or nothing; a few megabytes
//! of memory however much there is; the same in memory, for gateways that are to leave nothing behind.
//!
//! Non-goals: blocks; several processes; what a record means.
//!
//! Records lie in a RocksDB of their own and not in the store's: every kind of store has the same register, and a store
//! that is moved away or begun anew takes nobody's wishes with it.

use crate::disk::StoreError;
use crate::disk::store::lock;
use crate::folder;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBRecoveryMode, Direction, IteratorMode, Options, ReadOptions, WriteBatch,
    WriteOptions,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

const MIB: usize = 1024 * 1024;

/// The log of the newest records is cut at this size.
const LOG_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// One change of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes a record, in the place of one that has the same key.
    Put(Vec<u8>, Vec<u8>),
    /// Removes a record, if it is there.
    Delete(Vec<u8>),
}

/// An open register. Clones are handles to the same one; it closes when the last is gone.
#[derive(Debug, Clone)]
pub struct Register {
    kind: Arc<Kind>,
}

#[derive(Debug)]
enum Kind {
    Disk {
        // Dropped in this order: the lock outlives the database.
        db: DB,
        _lock: File,
    },
    Memory(RwLock<BTreeMap<Vec<u8>, Vec<u8>>>),
}

impl Register {
    /// Opens the register in a folder, which is made if need be. Blocks the thread.
    ///
    /// # Errors
    /// [`StoreError::InUse`], or what the file system said.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        folder::make(dir).map_err(|error| StoreError::io(format!("{}: {error}", dir.display())))?;
        let lock = lock(dir)?;
        let db = DB::open(&options(), dir)?;
        Ok(Self { kind: Arc::new(Kind::Disk { db, _lock: lock }) })
    }

    /// Whether there is a register in a folder.
    pub fn is_in(dir: &Path) -> bool {
        dir.join("CURRENT").exists()
    }

    /// An empty register that ends with the process.
    pub fn memory() -> Self {
        Self { kind: Arc::new(Kind::Memory(RwLock::default())) }
    }

    /// A record. Blocks the thread, for a moment.
    ///
    /// # Errors
    /// What the disk said.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match &*self.kind {
            Kind::Disk { db, .. } => Ok(db.get(key)?),
            Kind::Memory(map) => Ok(map.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()),
        }
    }

    /// Shows the records whose keys begin with `prefix`, in the order of their keys, until `visit` breaks off. Blocks
    /// the thread.
    ///
    /// # Errors
    /// What the disk said; whatever was shown before is here.
    pub fn scan(
        &self,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        match &*self.kind {
            Kind::Disk { db, .. } => {
                let mut reading = ReadOptions::default();
                // Who reads everything once leaves the cache to those who read something again.
                reading.fill_cache(false);
                for row in db.iterator_opt(IteratorMode::From(prefix, Direction::Forward), reading) {
                    let (key, value) = row?;
                    if !key.starts_with(prefix) || visit(&key, &value).is_break() {
                        break;
                    }
                }
            }
            Kind::Memory(map) => {
                let map = map.read().unwrap_or_else(PoisonError::into_inner);
                let from = map.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix));
                for (key, value) in from {
                    if visit(key, value).is_break() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes all changes or none, in their order. They are on the disk when this returns. A caller who leaves may or
    /// may not have made them.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let register = self.clone();
        tokio::task::spawn_blocking(move || register.write_now(changes)).await.map_err(|_| StoreError::Closed)?
    }

    /// The same for a thread that may wait.
    ///
    /// # Errors
    /// What the disk said.
    pub fn write_now(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        match &*self.kind {
            Kind::Disk { db, .. } => {
                let mut batch = WriteBatch::default();
                for change in changes {
                    match change {
                        Change::Put(key, value) => batch.put(key, value),
                        Change::Delete(key) => batch.delete(key),
                    }
                }
                let mut synced = WriteOptions::default();
                synced.set_sync(true);
                Ok(db.write_opt(batch, &synced)?)
            }
            Kind::Memory(map) => {
                let mut map = map.write().unwrap_or_else(PoisonError::into_inner);
                for change in changes {
                    match change {
                        Change::Put(key, value) => _ = map.insert(key, value),
                        Change::Delete(key) => _ = map.remove(&key),
                    }
                }
                Ok(())
            }
        }
    }
}

/// Small in every way: a million records are a few hundred megabytes at most.
fn options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(2 * MIB));
    table.set_cache_index_and_filter_blocks(true);
    table.set_format_version(5);
    let mut db = Options::default();
    db.create_if_missing(true);
    // A process that is killed leaves a log whose end may be torn: keep everything before that.
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    db.set_max_total_wal_size(LOG_BYTES_MAX);
    db.set_write_buffer_size(2 * MIB);
    db.set_max_open_files(32);
    db.set_max_background_jobs(1);
    db.set_keep_log_file_num(2);
    db.set_max_log_file_size(MIB);
    db.set_block_based_table_factory(&table);
    db
}
