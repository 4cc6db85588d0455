//! Salvages a pin metadata store with damaged files: what can be read is written to new files, and the damaged files
//! are kept.
//!
//! Goals: everything readable is kept, wherever the damage is; nothing is deleted; a process that is killed at any
//! point leaves the damaged store or the new one; rows are verified by RocksDB's block checksums.
//!
//! Rows are read in two ways, and the results are merged:
//!
//! 1. from the files as they are, skipping damaged parts of the log and of the tables;
//! 2. from a copy for which RocksDB's repair creates a new manifest: if the first way cannot open the database, or a
//!    table whose own index is damaged hides others.
//!
//! If only the latest change of a row was lost, its earlier value is found, also if the change was a deletion.
//!
//! | directory | contents |
//! |---|---|
//! | `pins.rebuilding` | salvage in progress: deleted at the next start |
//! | `pins.rebuilt` | a complete new pin metadata store, which is to replace `pins` |
//! | `pins.damaged-N` | the damaged files |

use super::sequence::{self, SyncedSequence};
use super::{LOCK_FILES, Rows, damage, options};
use crate::disk::StoreError;
use crate::disk::store::Row;
use crate::folder;
use rocksdb::{DB, DBRecoveryMode, Direction, IteratorMode, ReadOptions, WriteBatch, WriteOptions};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tracing::{info, warn};

/// The maximum number of seeks for rows behind damaged blocks. A damaged block takes some hundred.
const PROBES_MAX: u32 = 200_000;

/// Rows per write batch.
const BATCH_ROWS: usize = 1_000;

/// The result of salvaging a damaged pin metadata store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvage {
    /// What is damaged.
    pub damage: String,
    /// The number of records that could be read.
    pub records: u64,
    /// The directory of the damaged files; `None` if the new files could not be written ([`Salvage::unwritten`]).
    pub kept: Option<PathBuf>,
    /// Why the new files could not be written; the pin metadata store is read-only.
    pub unwritten: Option<String>,
}

/// Completes or rolls back an interrupted salvage.
pub(super) fn recover_interrupted(dir: &Path) -> io::Result<()> {
    remove(&beside(dir, "rebuilding"))?;
    let rebuilt = beside(dir, "rebuilt");
    if !rebuilt.exists() {
        return Ok(());
    }
    if dir.exists() {
        // The damaged store was not moved yet; it is salvaged again.
        return remove(&rebuilt);
    }
    fs::rename(&rebuilt, dir)?;
    sync_parent(dir)
}

/// Whether a directory has files of a pin metadata store but no `CURRENT` file.
pub(super) fn has_lost_current(dir: &Path) -> bool {
    let is_table_or_log = |name: &str| name.ends_with(".sst") || name.ends_with(".log");
    let is_ours = |name: &str| is_table_or_log(name) || name.starts_with("MANIFEST-") || name == sequence::NAME;
    let Ok(entries) = fs::read_dir(dir) else { return false };
    !dir.join("CURRENT").exists() && entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_ours))
}

/// What a pin metadata store has lost that RocksDB takes for interrupted writes, if anything: acknowledged changes at
/// the end of its log, or changes at the end of its manifest.
///
/// In the latter case, there are tables newer than all that the manifest names, which RocksDB would delete. A process
/// killed while it wrote a table leaves the same state; those rows are also in the log, so that a salvage loses
/// nothing.
pub(super) fn lost_changes(dir: &Path) -> Option<&'static str> {
    // A record that is missing within a log, or at the end of one that is not the last, is followed by later ones: only
    // the first mode stops there.
    let modes = [DBRecoveryMode::PointInTime, DBRecoveryMode::SkipAnyCorruptedRecord];
    let db = modes.into_iter().find_map(|mode| open_to_read(dir, mode).ok())?;
    if !unknown_tables(&db, dir).is_empty() {
        Some("the manifest of the list of pins has lost changes")
    } else if db.latest_sequence_number() < SyncedSequence::read(dir) {
        Some("the log of the list of pins has lost changes that were acknowledged")
    } else {
        None
    }
}

/// Deletes tables that the manifest does not name.
pub(super) fn remove_unknown_tables(dir: &Path) {
    let Ok(db) = open_to_read(dir, DBRecoveryMode::SkipAnyCorruptedRecord) else { return };
    for path in unknown_tables(&db, dir) {
        if let Err(error) = fs::remove_file(&path) {
            warn!(path = %path.display(), %error, "an incomplete table of the list of pins could not be deleted");
        }
    }
}

/// Tables newer than all that the manifest names.
fn unknown_tables(db: &DB, dir: &Path) -> Vec<PathBuf> {
    let Ok(live) = db.live_files() else { return Vec::new() };
    let number = |name: &str| name.trim_start_matches('/').strip_suffix(".sst")?.parse::<u64>().ok();
    let newest_live = live.iter().filter_map(|file| number(&file.name)).max();
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let is_newer =
        |entry: &fs::DirEntry| entry.file_name().to_str().and_then(number).is_some_and(|at| Some(at) > newest_live);
    entries.flatten().filter(is_newer).map(|entry| entry.path()).collect()
}

/// Whether only the end of the log is unreadable, as after a kill or power loss: no record follows.
pub(super) fn is_torn_tail(dir: &Path) -> bool {
    let read = |mode| {
        let rows = open_to_read(dir, mode).and_then(|db| all_rows(&db));
        rows.ok()
    };
    let before = read(DBRecoveryMode::PointInTime);
    before.is_some() && before == read(DBRecoveryMode::SkipAnyCorruptedRecord)
}

/// Every row that can be read.
pub(super) fn read(dir: &Path) -> Rows {
    let (mut rows, whole) = match open_to_read(dir, DBRecoveryMode::SkipAnyCorruptedRecord) {
        Ok(db) => {
            let (rows, whole) = probed_rows(&db);
            (rows, whole && unknown_tables(&db, dir).is_empty())
        }
        Err(error) => {
            info!(%error, "the list of pins cannot be opened without repair");
            (Rows::new(), false)
        }
    };
    if !whole {
        match repaired_rows(dir) {
            Ok(others) => others.into_iter().for_each(|(key, value)| _ = rows.entry(key).or_insert(value)),
            Err(error) => {
                warn!(%error, "RocksDB cannot repair the list of pins; records readable without repair are kept")
            }
        }
    }
    rows
}

/// Replaces a damaged pin metadata store by a new one with these rows, and returns the directory of the damaged files.
pub(super) fn replace(dir: &Path, rows: &Rows) -> Result<PathBuf, StoreError> {
    let with_path = |error: io::Error| StoreError::io(format!("{}: {error}", dir.display()));
    let (building, built) = (beside(dir, "rebuilding"), beside(dir, "rebuilt"));
    remove(&building).map_err(with_path)?;
    write(&building, rows)?;
    fs::rename(&building, &built).map_err(with_path)?;
    sync_parent(dir).map_err(with_path)?;
    let kept = unused(dir);
    fs::rename(dir, &kept).map_err(with_path)?;
    fs::rename(&built, dir).map_err(with_path)?;
    sync_parent(dir).map_err(with_path)?;
    Ok(kept)
}

fn write(dir: &Path, rows: &Rows) -> Result<(), StoreError> {
    folder::create(dir).map_err(|error| StoreError::io(format!("{}: {error}", dir.display())))?;
    let db = DB::open(&options(), dir)?;
    let rows: Vec<_> = rows.iter().collect();
    for rows in rows.chunks(BATCH_ROWS) {
        let mut batch = WriteBatch::default();
        rows.iter().for_each(|(key, value)| batch.put(key, value));
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        db.write_opt(batch, &synced)?;
    }
    Ok(())
}

fn open_to_read(dir: &Path, mode: DBRecoveryMode) -> Result<DB, StoreError> {
    let mut options = options();
    options.create_if_missing(false);
    options.set_wal_recovery_mode(mode);
    // Without paranoid checks, RocksDB skips damaged log records in every mode.
    options.set_paranoid_checks(matches!(mode, DBRecoveryMode::PointInTime));
    Ok(DB::open_for_read_only(&options, dir, false)?)
}

/// Every row, or an error if one cannot be read.
pub(super) fn all_rows(db: &DB) -> Result<Rows, StoreError> {
    let mut rows = Rows::new();
    for row in rows_from(db, b"") {
        let (key, value) = row.map_err(damage)?;
        rows.insert(key.into(), value.into());
    }
    Ok(rows)
}

/// The number of rows, or an error if one cannot be read.
pub(super) fn count_rows(db: &DB) -> Result<u64, StoreError> {
    rows_from(db, b"").try_fold(0, |count, row| row.map(|_| count + 1)).map_err(damage)
}

fn rows_from<'a>(db: &'a DB, from: &[u8]) -> impl Iterator<Item = Result<Row, rocksdb::Error>> + 'a {
    let mut reading = ReadOptions::default();
    reading.fill_cache(false);
    db.iterator_opt(IteratorMode::From(from, Direction::Forward), reading)
}

/// Every row that is not in a damaged block, and whether there was no damage. After a damaged block, reading continues
/// with the next readable key.
fn probed_rows(db: &DB) -> (Rows, bool) {
    let (mut rows, mut from, mut probes, mut whole) = (Rows::new(), Vec::new(), 0, true);
    loop {
        let mut last = from.clone();
        let mut failed = false;
        for row in rows_from(db, &from) {
            let Ok((key, value)) = row else {
                failed = true;
                break;
            };
            last = key.to_vec();
            rows.insert(key.into(), value.into());
        }
        if !failed {
            return (rows, whole);
        }
        whole = false;
        let next = successors(&last).find(|probe| {
            probes += 1;
            probes > PROBES_MAX || rows_from(db, probe).next().is_none_or(|row| row.is_ok())
        });
        match next {
            Some(next) if probes <= PROBES_MAX => from = next,
            _ => return (rows, false),
        }
    }
}

/// Keys after a key, nearer ones first: one byte is increased, starting with the last. Record keys are distributed
/// evenly, so that some step skips the damaged block and little more.
fn successors(key: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    // The empty key precedes all others.
    let first = (key.is_empty()).then(|| (0..=u8::MAX).map(|byte| vec![byte]));
    let others = (0..key.len()).rev().flat_map(move |at| {
        (key[at]..u8::MAX).map(move |byte| {
            let mut next = key[..=at].to_vec();
            next[at] = byte + 1;
            next
        })
    });
    first.into_iter().flatten().chain(others)
}

/// The rows of a copy that RocksDB repaired.
fn repaired_rows(dir: &Path) -> Result<Rows, StoreError> {
    let copy = beside(dir, "rebuilding");
    let with_path = |error: io::Error| StoreError::io(format!("{}: {error}", copy.display()));
    remove(&copy).map_err(with_path)?;
    copy_files(dir, &copy).map_err(with_path)?;
    let rows = DB::repair(&options(), &copy)
        .map_err(StoreError::from)
        .and_then(|()| open_to_read(&copy, DBRecoveryMode::SkipAnyCorruptedRecord))
        .map(|db| probed_rows(&db).0);
    remove(&copy).map_err(with_path)?;
    rows
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let is_data = entry.file_type()?.is_file() && !LOCK_FILES.iter().any(|lock| entry.file_name() == *lock);
        if is_data {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn beside(dir: &Path, what: &str) -> PathBuf {
    dir.with_added_extension(what)
}

/// The first unused name for damaged files.
fn unused(dir: &Path) -> PathBuf {
    let mut number = 1_u32;
    loop {
        let path = beside(dir, &format!("damaged-{number}"));
        if !path.exists() {
            return path;
        }
        number += 1;
    }
}

fn sync_parent(dir: &Path) -> io::Result<()> {
    dir.parent().map_or(Ok(()), folder::sync)
}

#[cfg(test)]
mod tests {
    use super::super::{Change, WritableDb, open_checked};
    use super::*;
    use proptest::prelude::*;

    /// The logs with records, the oldest first.
    fn logs(dir: &Path) -> Vec<PathBuf> {
        let mut logs: Vec<_> = fs::read_dir(dir).expect("lists").map(|entry| entry.expect("lists").path()).collect();
        logs.retain(|path| {
            path.extension().is_some_and(|extension| extension == "log")
                && fs::metadata(path).is_ok_and(|file| file.len() > 0)
        });
        logs.sort_unstable();
        logs
    }

    /// While a table is being written, its log is followed by another one. RocksDB takes the end of either for that of an
    /// interrupted write.
    #[test]
    fn an_older_log_that_lost_its_end_is_damage() {
        let home = tempfile::tempdir().expect("a directory");
        let sound = home.path().join("sound");
        let database = WritableDb::open(&sound).expect("opens");
        // No tables are written.
        database.db.cancel_all_background_work(true);
        for number in 0..100_000_u32 {
            let record = Change::Put(number.to_be_bytes().into(), vec![b'x'; 10_000]);
            database.write(&[record]).expect("writes");
            if logs(&sound).len() > 1 {
                break;
            }
        }
        drop(database);
        let all = logs(&sound);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(open_checked(&sound, |options| DB::open_for_read_only(options, &sound, false)).is_ok());
        for log in all {
            let bytes = fs::read(&log).expect("reads");
            fs::write(&log, &bytes[..bytes.len() - 100]).expect("writes");
            let opened = open_checked(&sound, |options| DB::open_for_read_only(options, &sound, false));
            assert!(matches!(opened, Err(StoreError::Corrupt(_))), "{}: {opened:?}", log.display());
            fs::write(&log, bytes).expect("writes");
        }
    }

    proptest! {
        #[test]
        fn successors_are_greater_and_reach_every_greater_key(key: Vec<u8>, other: Vec<u8>) {
            let key = &key[..key.len().min(6)];
            let all: Vec<_> = successors(key).collect();
            prop_assert!(all.iter().all(|next| next.as_slice() > key || key.is_empty()));
            // Every greater key without this prefix has a successor at or before it.
            if other.as_slice() > key && !other.starts_with(key) {
                prop_assert!(all.iter().any(|next| next <= &other));
            }
        }
    }
}
