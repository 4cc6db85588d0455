//! [`MetadataStore`]: a metadata store for small records beside the block store, such as who requested which pin.
//!
//! Goals: an entry is durable when [`MetadataLog::append`] returns, and atomic; memory stays within a few megabytes; an
//! in-memory variant for gateways that must leave no data behind.
//!
//! Non-goals: blocks; several processes; the meaning of records.
//!
//! The records are in a RocksDB of their own: every kind of block store has the same register, and moving or recreating
//! the block store does not affect it.
//!
//! It opens even with damaged files or a full disk: damaged files are replaced by what can be read of them, and on a
//! full disk the records are read-only until there is space ([`MetadataStore::open_or_salvage`]).
//!
//! | module | concern |
//! |---|---|
//! | [`log`] | [`MetadataLog`]: the interface of services, of which this store is the implementation for one node |
//! | [`log_suite`] | its contract, as tests of implementations |
//! | `history` | the position in the log of this process, and the latest entries |
//! | `salvage` | damaged files |
//! | `sequence` | detects acknowledged writes that are missing |

mod history;
pub mod log;
pub mod log_suite;
mod salvage;
mod sequence;

pub use self::log::{Appended, LogEntry, LogPosition, MetadataLog};
pub use self::salvage::Salvage;

use self::history::History;
use self::sequence::SyncedSequence;
use crate::disk::StoreError;
use crate::disk::store::{Lock, lock};
use crate::folder;
use futures::future::{BoxFuture, FutureExt as _};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBRecoveryMode, Direction, IteratorMode, Options, ReadOptions, WriteBatch,
    WriteOptions,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{error, warn};

const MIB: usize = 1024 * 1024;

/// The maximum size of the write-ahead log.
const WAL_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Interval between attempts to open a register for writing on a full disk.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Lock files, which are not part of the contents.
const LOCK_FILES: [&str; 2] = ["LOCK", "causeway.lock"];

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// One change of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes a record, replacing one with the same key.
    Put(Vec<u8>, Vec<u8>),
    /// Removes a record, if it exists.
    Delete(Vec<u8>),
}

/// An open register. Clones are handles to the same one; it closes when the last is dropped.
#[derive(Debug, Clone)]
pub struct MetadataStore {
    kind: Arc<Kind>,
    salvage: Option<Arc<Salvage>>,
    appending: Arc<Appending>,
}

/// What the writers of a register share.
#[derive(Debug, Default)]
struct Appending {
    /// Held during each write: entries are written one after another.
    history: Mutex<History>,
    /// Notified of each entry, if several services append.
    latest: Option<watch::Sender<LogPosition>>,
}

impl Appending {
    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum Kind {
    Disk {
        // Dropped in this order: the lock outlives the database.
        database: WritableDb,
        dir: PathBuf,
        _lock: Lock,
    },
    Memory(RwLock<Rows>),
    /// Records read from files that cannot be written.
    ReadOnly {
        rows: Rows,
        why: StoreError,
        _lock: Lock,
    },
    /// Opened read-only because the disk was full.
    Deferred {
        database: DeferredDb,
        _lock: Lock,
    },
}

/// A database that is read-only until there is space to open it for writing.
#[derive(Debug)]
struct DeferredDb {
    dir: PathBuf,
    read: DB,
    opened: OnceLock<WritableDb>,
    /// The last attempt and its error.
    last_attempt: Mutex<(Instant, StoreError)>,
}

impl DeferredDb {
    /// The database, opened for writing now if it was not.
    fn open(&self) -> Result<&WritableDb, StoreError> {
        let mut attempt = self.last_attempt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = self.opened.get() {
            return Ok(database);
        }
        if attempt.0.elapsed() < RETRY_EVERY {
            return Err(attempt.1.clone());
        }
        match WritableDb::open(&self.dir) {
            Ok(database) => Ok(self.opened.get_or_init(|| database)),
            Err(error) => {
                *attempt = (Instant::now(), error.clone());
                Err(error)
            }
        }
    }
}

/// A database that is open for writing.
#[derive(Debug)]
struct WritableDb {
    db: DB,
    sequence: SyncedSequence,
}

impl WritableDb {
    /// Opens a database and checks that every record can be read, and none is missing.
    fn open(dir: &Path) -> Result<Self, StoreError> {
        let opened = Self { db: open_checked_for_writing(dir)?, sequence: SyncedSequence::of(dir) };
        // RocksDB has written its log to tables, and synced them.
        opened.record_sequence();
        Ok(opened)
    }

    /// Applies changes atomically and durably.
    fn write(&self, changes: &[Change]) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        for change in changes {
            match change {
                Change::Put(key, value) => batch.put(key, value),
                Change::Delete(key) => batch.delete(key),
            }
        }
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        self.db.write_opt(batch, &synced)?;
        self.record_sequence();
        Ok(())
    }

    fn record_sequence(&self) {
        self.sequence.record(self.db.latest_sequence_number());
    }
}

/// The source of reads.
enum View<'a> {
    Db(&'a DB),
    Memory(&'a RwLock<Rows>),
    Rows(&'a Rows),
}

impl Kind {
    fn view(&self) -> View<'_> {
        match self {
            Self::Disk { database, .. } => View::Db(&database.db),
            Self::Memory(rows) => View::Memory(rows),
            Self::ReadOnly { rows, .. } => View::Rows(rows),
            Self::Deferred { database, .. } => {
                View::Db(database.opened.get().map_or(&database.read, |opened| &opened.db))
            }
        }
    }
}

impl MetadataStore {
    /// Opens the register in a directory, which is created if need be. Blocks the thread.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Corrupt`] if its files are damaged, or I/O errors.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let lock = create_and_lock(dir)?;
        Ok(Self::of(WritableDb::open(dir)?, dir, lock))
    }

    /// The same, but salvages damaged files: readable records are written to new files, and the damaged files are kept
    /// beside them ([`MetadataLog::salvage`]). If that fails, or while the disk is full, the register is read-only.
    ///
    /// # Errors
    /// [`StoreError::InUse`], or I/O errors.
    pub fn open_or_salvage(dir: &Path) -> Result<Self, StoreError> {
        let lock = create_and_lock(dir)?;
        let damage = match WritableDb::open(dir) {
            Ok(database) => return Ok(Self::of(database, dir, lock)),
            Err(StoreError::Corrupt(damage)) => damage,
            Err(full @ StoreError::Full { .. }) => return Self::until_there_is_space(dir, full, lock),
            Err(error) => return Err(error),
        };
        warn!(
            dir = %dir.display(), %damage,
            "the list of pins is damaged and is being rebuilt from the records that can be read"
        );
        let rows = salvage::read(dir);
        let (damage, records) = (damage.to_string(), rows.len() as u64);
        let mut salvage = Salvage { damage, records, kept: None, unwritten: None };
        let kind = match salvage::replace(dir, &rows).and_then(|kept| Ok((kept, reopen(dir)?))) {
            Ok((kept, kind)) => {
                salvage.kept = Some(kept);
                kind
            }
            Err(why) => {
                error!(%why, "the list of pins cannot be rebuilt and is read-only");
                salvage.unwritten = Some(why.to_string());
                Kind::ReadOnly { rows, why, _lock: lock }
            }
        };
        Ok(Self { salvage: Some(Arc::new(salvage)), ..Self::new(kind) })
    }

    /// Opens the register in a directory read-only.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Corrupt`] if its files are damaged, or I/O errors.
    pub fn open_read_only(dir: &Path) -> Result<Self, StoreError> {
        let lock = lock(dir)?;
        let (db, _) = open_checked(dir, |options| DB::open_for_read_only(options, dir, false))?;
        let why = StoreError::io("the list of pins was opened read-only");
        Ok(Self::new(Kind::ReadOnly { rows: salvage::all_rows(&db)?, why, _lock: lock }))
    }

    fn until_there_is_space(dir: &Path, full: StoreError, lock: Lock) -> Result<Self, StoreError> {
        if !Self::is_in(dir) {
            return Err(full);
        }
        let (read, records) = open_checked(dir, |options| DB::open_for_read_only(options, dir, false))?;
        warn!(dir = %dir.display(), records, "the disk is full, so the list of pins is read-only until there is space");
        let (opened, last_attempt) = (OnceLock::new(), Mutex::new((Instant::now(), full)));
        let database = DeferredDb { dir: dir.to_owned(), read, opened, last_attempt };
        Ok(Self::new(Kind::Deferred { database, _lock: lock }))
    }

    fn new(kind: Kind) -> Self {
        Self { kind: Arc::new(kind), salvage: None, appending: Arc::default() }
    }

    /// The same metadata store for several services of this process, each of which gets a clone of this one and learns
    /// what the others append: it keeps the latest entries, of so many bytes.
    ///
    /// # Panics
    /// If there are clones already: they would append without the order of the others.
    #[must_use]
    pub fn shared(self, entries_bytes_max: usize) -> Self {
        assert_eq!(Arc::strong_count(&self.appending), 1, "it is made shared before it is cloned");
        let history = Mutex::new(History::new(entries_bytes_max));
        let latest = Some(watch::Sender::new(LogPosition::default()));
        Self { appending: Arc::new(Appending { history, latest }), ..self }
    }

    fn of(database: WritableDb, dir: &Path, lock: Lock) -> Self {
        Self::new(Kind::Disk { database, dir: dir.to_owned(), _lock: lock })
    }

    /// Checks that all records can be read, and counts them. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Corrupt`] if its files are damaged, or I/O errors.
    pub fn check(dir: &Path) -> Result<u64, StoreError> {
        let _lock = lock(dir)?;
        open_checked(dir, |options| DB::open_for_read_only(options, dir, false)).map(|(_, records)| records)
    }

    /// Whether a directory contains a register.
    pub fn is_in(dir: &Path) -> bool {
        dir.join("CURRENT").exists()
    }

    /// An empty register in memory.
    pub fn memory() -> Self {
        Self::new(Kind::Memory(RwLock::default()))
    }

    /// Reads a record. Blocks the thread briefly.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.kind.view() {
            View::Db(db) => Ok(db.get(key)?),
            View::Memory(rows) => Ok(rows.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()),
            View::Rows(rows) => Ok(rows.get(key).cloned()),
        }
    }

    /// Calls `visit` with the records whose keys begin with `prefix`, in the order of their keys, until it breaks off.
    /// Blocks the thread.
    ///
    /// # Errors
    /// [`StoreError`]; the records visited before exist.
    pub fn scan(
        &self,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        match self.kind.view() {
            View::Db(db) => {
                let mut reading = ReadOptions::default();
                // A full scan must not evict the block cache.
                reading.fill_cache(false);
                for row in db.iterator_opt(IteratorMode::From(prefix, Direction::Forward), reading) {
                    let (key, value) = row?;
                    if !key.starts_with(prefix) || visit(&key, &value).is_break() {
                        break;
                    }
                }
            }
            View::Memory(rows) => scan_rows(&rows.read().unwrap_or_else(PoisonError::into_inner), prefix, visit),
            View::Rows(rows) => scan_rows(rows, prefix, visit),
        }
        Ok(())
    }

    /// For tests. Appends changes at whatever position: they are applied atomically, in their order, and are durable
    /// when this returns. If the future is dropped, they may or may not be applied.
    ///
    /// # Errors
    /// [`StoreError`].
    #[doc(hidden)]
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let register = self.clone();
        tokio::task::spawn_blocking(move || register.write_now(changes)).await.map_err(|_| StoreError::Closed)?
    }

    /// The same, blocking the thread.
    ///
    /// # Errors
    /// [`StoreError`].
    #[doc(hidden)]
    pub fn write_now(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        self.write_entry(&mut self.appending.lock(), changes).map(|_| ())
    }

    /// Appends changes if the latest entry is at `after`. Blocks the thread.
    fn append_now(&self, after: LogPosition, changes: Vec<Change>) -> Result<Appended, StoreError> {
        let mut history = self.appending.lock();
        match history.missed(after) {
            Some(missed) => Ok(missed),
            None => self.write_entry(&mut history, changes).map(Appended::At),
        }
    }

    fn write_entry(&self, history: &mut History, changes: Vec<Change>) -> Result<LogPosition, StoreError> {
        if changes.is_empty() {
            return Ok(history.last());
        }
        match &*self.kind {
            Kind::Deferred { database, .. } => database.open()?.write(&changes)?,
            Kind::ReadOnly { why, .. } => return Err(why.clone()),
            Kind::Disk { database, .. } => database.write(&changes)?,
            Kind::Memory(rows) => {
                let mut rows = rows.write().unwrap_or_else(PoisonError::into_inner);
                for change in &changes {
                    match change {
                        Change::Put(key, value) => _ = rows.insert(key.clone(), value.clone()),
                        Change::Delete(key) => _ = rows.remove(key),
                    }
                }
            }
        }
        let position = history.push(changes);
        if let Some(latest) = &self.appending.latest {
            latest.send_replace(position);
        }
        Ok(position)
    }
}

/// The log of one node. Its positions are those of this process, and its entries are kept for
/// [`MetadataStore::shared`] only.
impl MetadataLog for MetadataStore {
    fn read(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<LogPosition, StoreError> {
        // No entry is written meanwhile.
        let history = self.appending.lock();
        self.scan(b"", |key, value| {
            visit(key, value);
            ControlFlow::Continue(())
        })?;
        Ok(history.last())
    }

    fn append(&self, after: LogPosition, changes: Vec<Change>) -> BoxFuture<'static, Result<Appended, StoreError>> {
        let register = self.clone();
        let appending = async move {
            let appending = tokio::task::spawn_blocking(move || register.append_now(after, changes));
            appending.await.map_err(|_| StoreError::Closed)?
        };
        appending.boxed()
    }

    fn watch(&self) -> Option<watch::Receiver<LogPosition>> {
        self.appending.latest.as_ref().map(watch::Sender::subscribe)
    }

    fn is_read_only(&self) -> bool {
        match &*self.kind {
            Kind::ReadOnly { .. } => true,
            Kind::Deferred { database, .. } => database.opened.get().is_none(),
            Kind::Disk { .. } | Kind::Memory(_) => false,
        }
    }

    fn salvage(&self) -> Option<&Salvage> {
        self.salvage.as_deref()
    }

    fn dir(&self) -> Option<&Path> {
        match &*self.kind {
            Kind::Disk { dir, .. } => Some(dir),
            Kind::Deferred { database, .. } => Some(&database.dir),
            Kind::Memory(_) | Kind::ReadOnly { .. } => None,
        }
    }
}

fn scan_rows(rows: &Rows, prefix: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) {
    let from = rows.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix));
    for (key, value) in from {
        if visit(key, value).is_break() {
            break;
        }
    }
}

/// Creates a directory if need be, and locks it.
fn create_and_lock(dir: &Path) -> Result<Lock, StoreError> {
    let with_path = |error: std::io::Error| StoreError::io(format!("{}: {error}", dir.display()));
    salvage::recover_interrupted(dir).map_err(with_path)?;
    folder::create(dir).map_err(with_path)?;
    lock(dir)
}

fn reopen(dir: &Path) -> Result<Kind, StoreError> {
    let lock = lock(dir)?;
    Ok(Kind::Disk { database: WritableDb::open(dir)?, dir: dir.to_owned(), _lock: lock })
}

/// Opens a database for writing and checks that every record can be read.
fn open_checked_for_writing(dir: &Path) -> Result<DB, StoreError> {
    let opened = open_checked(dir, |options| DB::open(options, dir)).map(|(db, _)| db);
    if let Err(StoreError::Full { .. }) = &opened {
        // RocksDB may have started to flush its log to tables, which the manifest does not name yet. Their records are
        // still in the log, and later they would look like the result of a damaged manifest.
        salvage::remove_unknown_tables(dir);
    }
    opened
}

/// Opens a database with `open`, and counts its records, all of which must be readable. The log must be intact except
/// for a torn record at its end that was not acknowledged.
fn open_checked(dir: &Path, open: impl Fn(&Options) -> Result<DB, rocksdb::Error>) -> Result<(DB, u64), StoreError> {
    if salvage::has_lost_current(dir) {
        return Err(lost_current(dir));
    }
    if let Some(lost) = salvage::lost_changes(dir) {
        return Err(StoreError::corrupt(lost));
    }
    let mut strict = options();
    strict.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    let db = match open(&strict).map_err(damage) {
        // After power loss, the torn last record need not look like the beginning of a record.
        Err(StoreError::Corrupt(_)) if salvage::is_torn_tail(dir) => open(&options()).map_err(damage)?,
        db => db?,
    };
    let records = salvage::count_rows(&db)?;
    Ok((db, records))
}

/// Maps RocksDB's errors: damaged, missing and unreadable files are corruption; a full disk and a directory without
/// permissions are not.
fn damage(error: rocksdb::Error) -> StoreError {
    use rocksdb::ErrorKind;
    let message = error.to_string();
    let is_unreadable = ["No such file", "Input/output error"].iter().any(|text| message.contains(text));
    match error.kind() {
        ErrorKind::Corruption | ErrorKind::InvalidArgument | ErrorKind::NotFound => StoreError::corrupt(message),
        ErrorKind::IOError if is_unreadable => StoreError::corrupt(message),
        _ => error.into(),
    }
}

fn lost_current(dir: &Path) -> StoreError {
    StoreError::corrupt(format!(
        "{} has records, but the file CURRENT, which RocksDB needs to find them, is missing",
        dir.display()
    ))
}

/// Options for a small database: a million records are a few hundred megabytes at most.
fn options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(2 * MIB));
    table.set_cache_index_and_filter_blocks(true);
    table.set_format_version(5);
    let mut db = Options::default();
    db.create_if_missing(true);
    // A killed process may leave a torn record at the end of the log: keep everything before it.
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    db.set_max_total_wal_size(WAL_BYTES_MAX);
    // Small tables limit the loss if a table's own index is damaged.
    db.set_write_buffer_size(MIB / 2);
    db.set_target_file_size_base(MIB as u64 / 2);
    db.set_max_open_files(32);
    db.set_max_background_jobs(1);
    db.set_keep_log_file_num(2);
    db.set_max_log_file_size(MIB);
    db.set_block_based_table_factory(&table);
    db
}
