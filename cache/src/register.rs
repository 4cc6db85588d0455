//! [`Register`]: small records beside the store, such as who asked for which pin.
//!
//! Goals: what was written is on the disk when [`Register::write`] returns, all of a batch or nothing; a few megabytes
//! of memory however much there is; the same in memory, for gateways that are to leave nothing behind.
//!
//! Non-goals: blocks; several processes; what a record means.
//!
//! Records lie in a RocksDB of their own and not in the store's: every kind of store has the same register, and a store
//! that is moved away or begun anew takes nobody's wishes with it.
//!
//! Neither damaged files nor a full disk keep it from opening: what can be read of damaged files is written anew, and on a disk
//! without space the records can be read until there is some again ([`Register::open_or_salvage`]).

mod salvage;

pub use self::salvage::Salvage;

use crate::disk::StoreError;
use crate::disk::store::{Lock, lock};
use crate::folder;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBRecoveryMode, Direction, IteratorMode, Options, ReadOptions, WriteBatch,
    WriteOptions,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tracing::{error, warn};

const MIB: usize = 1024 * 1024;

/// The log of the newest records is cut at this size.
const LOG_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How often it is tried to open a register of a disk that was full.
const TRIED_EVERY: Duration = Duration::from_secs(1);

/// What says that a register is open: nothing of its content.
const LOCK_FILES: [&str; 2] = ["LOCK", "causeway.lock"];

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

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
    salvage: Option<Arc<Salvage>>,
}

#[derive(Debug)]
enum Kind {
    Disk {
        // Dropped in this order: the lock outlives the database.
        db: DB,
        dir: PathBuf,
        _lock: Lock,
    },
    Memory(RwLock<Rows>),
    /// What was read of files that cannot be written.
    ReadOnly {
        rows: Rows,
        why: StoreError,
        _lock: Lock,
    },
    /// The files of a disk that was full.
    Later {
        later: Later,
        _lock: Lock,
    },
}

/// A database that is read until there is space to open it.
#[derive(Debug)]
struct Later {
    dir: PathBuf,
    read: DB,
    opened: OnceLock<DB>,
    /// When it was tried last, and what that said.
    tried: Mutex<(Instant, StoreError)>,
}

impl Later {
    /// The database, which is opened now if it was not.
    fn open(&self) -> Result<&DB, StoreError> {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(db) = self.opened.get() {
            return Ok(db);
        }
        if tried.0.elapsed() < TRIED_EVERY {
            return Err(tried.1.clone());
        }
        match open_sound(&self.dir) {
            Ok(db) => Ok(self.opened.get_or_init(|| db)),
            Err(error) => {
                *tried = (Instant::now(), error.clone());
                Err(error)
            }
        }
    }
}

/// Where records are read from.
enum View<'a> {
    Db(&'a DB),
    Memory(&'a RwLock<Rows>),
    Rows(&'a Rows),
}

impl Kind {
    fn view(&self) -> View<'_> {
        match self {
            Self::Disk { db, .. } => View::Db(db),
            Self::Memory(rows) => View::Memory(rows),
            Self::ReadOnly { rows, .. } => View::Rows(rows),
            Self::Later { later, .. } => View::Db(later.opened.get().unwrap_or(&later.read)),
        }
    }
}

impl Register {
    /// Opens the register in a folder, which is made if need be. Blocks the thread.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Corrupt`] if its files are damaged, or what the file system said.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let lock = take(dir)?;
        Ok(Self::of(open_sound(dir)?, dir, lock))
    }

    /// The same, whatever of its files is damaged: the records that can be read are written anew, and the damaged files are kept
    /// beside ([`Register::salvage`]). If that is not possible, they can be read and not changed; nor can those of a full disk, until
    /// it has space again.
    ///
    /// # Errors
    /// [`StoreError::InUse`], or what the file system said.
    pub fn open_or_salvage(dir: &Path) -> Result<Self, StoreError> {
        let lock = take(dir)?;
        let damage = match open_sound(dir) {
            Ok(db) => return Ok(Self::of(db, dir, lock)),
            Err(StoreError::Corrupt(damage)) => damage,
            Err(full @ StoreError::Full { .. }) => return Self::until_there_is_space(dir, full, lock),
            Err(error) => return Err(error),
        };
        warn!(dir = %dir.display(), %damage, "the list of pins is damaged: what can be read of it is written anew");
        let rows = salvage::read(dir);
        let (damage, records) = (damage.to_string(), rows.len() as u64);
        let mut salvage = Salvage { damage, records, kept: None, unwritten: None };
        let kind = match salvage::replace(dir, &rows).and_then(|kept| Ok((kept, reopen(dir)?))) {
            Ok((kept, kind)) => {
                salvage.kept = Some(kept);
                kind
            }
            Err(why) => {
                error!(%why, "the list of pins cannot be written anew: it can be read, and not changed");
                salvage.unwritten = Some(why.to_string());
                Kind::ReadOnly { rows, why, _lock: lock }
            }
        };
        Ok(Self { kind: Arc::new(kind), salvage: Some(Arc::new(salvage)) })
    }

    /// Opens the register in a folder only to look at it: nothing of it is changed.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Corrupt`] if its files are damaged, or what the file system said.
    pub fn open_to_look(dir: &Path) -> Result<Self, StoreError> {
        let lock = lock(dir)?;
        let (db, _) = open_checked(dir, |options| DB::open_for_read_only(options, dir, false))?;
        let why = StoreError::io("the list of pins was opened only to look at it");
        Ok(Self::new(Kind::ReadOnly { rows: salvage::all_rows(&db)?, why, _lock: lock }))
    }

    fn until_there_is_space(dir: &Path, full: StoreError, lock: Lock) -> Result<Self, StoreError> {
        if !Self::is_in(dir) {
            return Err(full);
        }
        let (read, records) = open_checked(dir, |options| DB::open_for_read_only(options, dir, false))?;
        warn!(dir = %dir.display(), records, "the disk is full: the list of pins can be read, and not changed until there is space");
        let (opened, tried) = (OnceLock::new(), Mutex::new((Instant::now(), full)));
        let later = Later { dir: dir.to_owned(), read, opened, tried };
        Ok(Self::new(Kind::Later { later, _lock: lock }))
    }

    fn new(kind: Kind) -> Self {
        Self { kind: Arc::new(kind), salvage: None }
    }

    fn of(db: DB, dir: &Path, lock: Lock) -> Self {
        Self::new(Kind::Disk { db, dir: dir.to_owned(), _lock: lock })
    }

    /// How many records there are, if all of them can be read. Nothing is changed.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Corrupt`] if its files are damaged, or what the file system said.
    pub fn check(dir: &Path) -> Result<u64, StoreError> {
        let _lock = lock(dir)?;
        open_checked(dir, |options| DB::open_for_read_only(options, dir, false)).map(|(_, records)| records)
    }

    /// What was done about damaged files when this was opened.
    pub fn salvage(&self) -> Option<&Salvage> {
        self.salvage.as_deref()
    }

    /// Whether it cannot be changed.
    pub fn is_read_only(&self) -> bool {
        match &*self.kind {
            Kind::ReadOnly { .. } => true,
            Kind::Later { later, .. } => later.opened.get().is_none(),
            Kind::Disk { .. } | Kind::Memory(_) => false,
        }
    }

    /// Where it is; nowhere if it is in memory.
    pub fn dir(&self) -> Option<&Path> {
        match &*self.kind {
            Kind::Disk { dir, .. } => Some(dir),
            Kind::Later { later, .. } => Some(&later.dir),
            Kind::Memory(_) | Kind::ReadOnly { .. } => None,
        }
    }

    /// Whether there is a register in a folder.
    pub fn is_in(dir: &Path) -> bool {
        dir.join("CURRENT").exists()
    }

    /// An empty register that ends with the process.
    pub fn memory() -> Self {
        Self::new(Kind::Memory(RwLock::default()))
    }

    /// A record. Blocks the thread, for a moment.
    ///
    /// # Errors
    /// What the disk said.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.kind.view() {
            View::Db(db) => Ok(db.get(key)?),
            View::Memory(rows) => Ok(rows.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()),
            View::Rows(rows) => Ok(rows.get(key).cloned()),
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
        match self.kind.view() {
            View::Db(db) => {
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
            View::Memory(rows) => scan_rows(&rows.read().unwrap_or_else(PoisonError::into_inner), prefix, visit),
            View::Rows(rows) => scan_rows(rows, prefix, visit),
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
            Kind::Later { later, .. } => write_to(later.open()?, changes),
            Kind::ReadOnly { why, .. } => Err(why.clone()),
            Kind::Disk { db, .. } => write_to(db, changes),
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

fn write_to(db: &DB, changes: Vec<Change>) -> Result<(), StoreError> {
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

fn scan_rows(rows: &Rows, prefix: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) {
    let from = rows.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix));
    for (key, value) in from {
        if visit(key, value).is_break() {
            break;
        }
    }
}

/// Takes a folder, which is made if need be, for this process.
fn take(dir: &Path) -> Result<Lock, StoreError> {
    let told = |error: std::io::Error| StoreError::io(format!("{}: {error}", dir.display()));
    salvage::tidy(dir).map_err(told)?;
    folder::create(dir).map_err(told)?;
    lock(dir)
}

fn reopen(dir: &Path) -> Result<Kind, StoreError> {
    let lock = lock(dir)?;
    Ok(Kind::Disk { db: open_sound(dir)?, dir: dir.to_owned(), _lock: lock })
}

/// Opens a database of which every record can be read.
fn open_sound(dir: &Path) -> Result<DB, StoreError> {
    let opened = open_checked(dir, |options| DB::open(options, dir)).map(|(db, _)| db);
    if let Err(StoreError::Full { .. }) = &opened {
        // Tables that it began to make of its log: there were none that the manifest does not name before. What is in them is in
        // the log still, and found later they would look like what a damaged manifest leaves.
        salvage::remove_unknown_tables(dir);
    }
    opened
}

/// Opens a database in one way or another, and counts its records, every one of which can be read. The log must be whole,
/// but for its end.
fn open_checked(dir: &Path, open: impl Fn(&Options) -> Result<DB, rocksdb::Error>) -> Result<(DB, u64), StoreError> {
    if salvage::lost_its_head(dir) {
        return Err(headless(dir));
    }
    if salvage::has_unknown_tables(dir) {
        return Err(StoreError::corrupt("the manifest of the list of pins lost changes"));
    }
    let mut strict = options();
    strict.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    let db = match open(&strict).map_err(damage) {
        // What a power cut leaves of the last record need not look like the beginning of one.
        Err(StoreError::Corrupt(_)) if salvage::is_torn_tail(dir) => open(&options()).map_err(damage)?,
        db => db?,
    };
    let records = salvage::count_rows(&db)?;
    Ok((db, records))
}

/// What RocksDB says of files that are damaged, missing or cannot be read, as damage; a disk that is full, or a folder that is
/// somebody else's, is none.
fn damage(error: rocksdb::Error) -> StoreError {
    use rocksdb::ErrorKind;
    let words = error.to_string();
    let is_unreadable = ["No such file", "Input/output error"].iter().any(|sign| words.contains(sign));
    match error.kind() {
        ErrorKind::Corruption | ErrorKind::InvalidArgument | ErrorKind::NotFound => StoreError::corrupt(words),
        ErrorKind::IOError if is_unreadable => StoreError::corrupt(words),
        _ => error.into(),
    }
}

fn headless(dir: &Path) -> StoreError {
    StoreError::corrupt(format!("{} has records, and the file CURRENT, which leads to them, is gone", dir.display()))
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
    // Small tables: one whose own index is damaged takes its records along.
    db.set_write_buffer_size(MIB / 2);
    db.set_target_file_size_base(MIB as u64 / 2);
    db.set_max_open_files(32);
    db.set_max_background_jobs(1);
    db.set_keep_log_file_num(2);
    db.set_max_log_file_size(MIB);
    db.set_block_based_table_factory(&table);
    db
}
