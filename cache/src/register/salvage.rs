//! A register whose files are damaged: what can be read of it is written anew, and the damaged files are kept.
//!
//! Goals: nothing that can be read is lost, wherever the damage is; nothing is deleted; a process that is killed at any point
//! leaves the damaged register or the new one, never neither; what is read is checked (RocksDB sums every block of rows).
//!
//! Rows are read in two ways, and what either finds counts:
//!
//! 1. from the files as they are, passing over what is damaged of the log and of the tables;
//! 2. from a copy of which RocksDB's repair makes a new manifest: where the first cannot open the database at all, or a table
//!    whose own index is damaged hides others.
//!
//! A row that was deleted or replaced, and of which only that change was lost, is found as it was before.
//!
//! | folder | what |
//! |---|---|
//! | `pins.rebuilding` | work under way: deleted when it is found |
//! | `pins.rebuilt` | a new register that is whole, and is to take the place of `pins` |
//! | `pins.damaged-N` | the damaged files |

use super::{LOCK_FILES, Rows, damage, options};
use crate::disk::StoreError;
use crate::disk::store::Row;
use crate::folder;
use rocksdb::{DB, DBRecoveryMode, Direction, IteratorMode, ReadOptions, WriteBatch, WriteOptions};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tracing::{info, warn};

/// Looks for rows behind damaged ones, at most. A damaged block of rows takes some hundred.
const PROBES_MAX: u32 = 200_000;

/// Rows that are written at a time.
const ROWS_AT_ONCE: usize = 1_000;

/// What was done about a damaged register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvage {
    /// What was wrong.
    pub damage: String,
    /// Records that could be read.
    pub records: u64,
    /// Where the damaged files are; `None` if what was read could not be written anew ([`Salvage::unwritten`]).
    pub kept: Option<PathBuf>,
    /// Why what was read could not be written: the register can be read and not changed.
    pub unwritten: Option<String>,
}

/// Ends or takes back what a process that was killed had begun.
pub(super) fn tidy(dir: &Path) -> io::Result<()> {
    remove(&beside(dir, "rebuilding"))?;
    let rebuilt = beside(dir, "rebuilt");
    if !rebuilt.exists() {
        return Ok(());
    }
    if dir.exists() {
        // The damaged one is still in its place, and is read once more.
        return remove(&rebuilt);
    }
    fs::rename(&rebuilt, dir)?;
    sync_parent(dir)
}

/// Whether a folder has files of a register without the one that names them all.
pub(super) fn lost_its_head(dir: &Path) -> bool {
    let is_ours = |name: &str| name.ends_with(".sst") || name.ends_with(".log") || name.starts_with("MANIFEST-");
    let Ok(entries) = fs::read_dir(dir) else { return false };
    !dir.join("CURRENT").exists() && entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_ours))
}

/// Whether there are tables that are newer than all that the manifest names: the end of the manifest is lost, which RocksDB takes
/// for a write that was cut off, and deletes them. A process that was killed while it wrote a table leaves the same; what is in
/// that is in the log as well, so that nothing is lost by a salvage then.
pub(super) fn has_unknown_tables(dir: &Path) -> bool {
    !unknown_tables(dir).is_empty()
}

/// Deletes them.
pub(super) fn remove_unknown_tables(dir: &Path) {
    for path in unknown_tables(dir) {
        if let Err(error) = fs::remove_file(&path) {
            warn!(path = %path.display(), %error, "what could not be written of the list of pins cannot be deleted");
        }
    }
}

fn unknown_tables(dir: &Path) -> Vec<PathBuf> {
    let Ok(live) = open_to_read(dir, DBRecoveryMode::SkipAnyCorruptedRecord).and_then(|db| Ok(db.live_files()?)) else {
        return Vec::new();
    };
    let number = |name: &str| name.trim_start_matches('/').strip_suffix(".sst")?.parse::<u64>().ok();
    let newest_live = live.iter().filter_map(|file| number(&file.name)).max();
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let is_newer =
        |entry: &fs::DirEntry| entry.file_name().to_str().and_then(number).is_some_and(|at| Some(at) > newest_live);
    entries.flatten().filter(is_newer).map(|entry| entry.path()).collect()
}

/// Whether what cannot be read of the log is its end alone, as a process that was killed or a power cut leaves it: nothing
/// behind it is a record.
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
        Ok(db) => probed_rows(&db),
        Err(error) => {
            info!(%error, "the files of the list of pins cannot be read as they are");
            (Rows::new(), false)
        }
    };
    if !whole || has_unknown_tables(dir) {
        match repaired_rows(dir) {
            Ok(others) => others.into_iter().for_each(|(key, value)| _ = rows.entry(key).or_insert(value)),
            Err(error) => warn!(%error, "the list of pins cannot be repaired; what can be read without that is kept"),
        }
    }
    rows
}

/// Puts a new register with these rows in the place of a damaged one, and says where that is now.
pub(super) fn replace(dir: &Path, rows: &Rows) -> Result<PathBuf, StoreError> {
    let told = |error: io::Error| StoreError::io(format!("{}: {error}", dir.display()));
    let (building, built) = (beside(dir, "rebuilding"), beside(dir, "rebuilt"));
    remove(&building).map_err(told)?;
    write(&building, rows)?;
    fs::rename(&building, &built).map_err(told)?;
    sync_parent(dir).map_err(told)?;
    let kept = unused(dir);
    fs::rename(dir, &kept).map_err(told)?;
    fs::rename(&built, dir).map_err(told)?;
    sync_parent(dir).map_err(told)?;
    Ok(kept)
}

fn write(dir: &Path, rows: &Rows) -> Result<(), StoreError> {
    folder::create(dir).map_err(|error| StoreError::io(format!("{}: {error}", dir.display())))?;
    let db = DB::open(&options(), dir)?;
    let rows: Vec<_> = rows.iter().collect();
    for rows in rows.chunks(ROWS_AT_ONCE) {
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
    // Without these checks RocksDB passes over what is damaged of the log in every mode.
    options.set_paranoid_checks(matches!(mode, DBRecoveryMode::PointInTime));
    Ok(DB::open_for_read_only(&options, dir, false)?)
}

/// Every row, or that one cannot be read.
pub(super) fn all_rows(db: &DB) -> Result<Rows, StoreError> {
    let mut rows = Rows::new();
    for row in rows_from(db, b"") {
        let (key, value) = row.map_err(damage)?;
        rows.insert(key.into(), value.into());
    }
    Ok(rows)
}

/// How many rows there are, or that one cannot be read.
pub(super) fn count_rows(db: &DB) -> Result<u64, StoreError> {
    rows_from(db, b"").try_fold(0, |count, row| row.map(|_| count + 1)).map_err(damage)
}

fn rows_from<'a>(db: &'a DB, from: &[u8]) -> impl Iterator<Item = Result<Row, rocksdb::Error>> + 'a {
    let mut reading = ReadOptions::default();
    reading.fill_cache(false);
    db.iterator_opt(IteratorMode::From(from, Direction::Forward), reading)
}

/// Every row that is not in a damaged block, and whether none is: behind a damaged block, reading goes on with the next key that
/// can be read.
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

/// Keys behind a key, nearer ones first: each of its bytes made larger, the last ones first. The names of records are even over
/// their digits, so that some step is as large as what is damaged and not much larger.
fn successors(key: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    // Of an empty key as of one before all others.
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
    let told = |error: io::Error| StoreError::io(format!("{}: {error}", copy.display()));
    remove(&copy).map_err(told)?;
    copy_files(dir, &copy).map_err(told)?;
    let rows = DB::repair(&options(), &copy)
        .map_err(StoreError::from)
        .and_then(|()| open_to_read(&copy, DBRecoveryMode::SkipAnyCorruptedRecord))
        .map(|db| probed_rows(&db).0);
    remove(&copy).map_err(told)?;
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

/// The first name for damaged files that nothing has.
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
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn successors_are_behind_a_key_and_reach_whatever_is(key: Vec<u8>, other: Vec<u8>) {
            let key = &key[..key.len().min(6)];
            let all: Vec<_> = successors(key).collect();
            prop_assert!(all.iter().all(|next| next.as_slice() > key || key.is_empty()));
            // Whatever does not begin with the key and is behind it has a successor at or before it.
            if other.as_slice() > key && !other.starts_with(key) {
                prop_assert!(all.iter().any(|next| next <= &other));
            }
        }
    }
}
