//! The files of the index, as far as they can be checked without RocksDB; and the durable mark that the index must be
//! rebuilt.
//!
//! All functions here block.

use super::files::Files;
use super::store::SEGMENTS_DIR;
use super::{StoreError, schema};
use crate::folder;
use crate::pin_journal::{self, PinJournal};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

const CURRENT: &str = "CURRENT";
const MANIFEST: &str = "MANIFEST-";

/// Exists while the index must be rebuilt.
const MARK: &str = "index.rebuild";

/// Exists while blocks without a known pin are kept.
const UNCLAIMED: &str = "pins.unclaimed";

/// The directory of the last damaged index.
const ASIDE: &str = "index.damaged";

/// The stage of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The index is damaged.
    Damaged,
    /// The damaged index was moved aside, and the new one is not complete.
    Rebuilding,
}

impl Stage {
    fn as_str(self) -> &'static str {
        match self {
            Self::Damaged => "damaged\n",
            Self::Rebuilding => "rebuilding\n",
        }
    }
}

/// Whether a directory contains a store.
pub(super) fn is_store(dir: &Path) -> bool {
    dir.join(CURRENT).exists() || dir.join(MARK).exists() || dir.join(pin_journal::NAME).exists() || has_segments(dir)
}

fn has_segments(dir: &Path) -> bool {
    Files::list_in(&dir.join(SEGMENTS_DIR)).is_ok_and(|segments| !segments.is_empty())
}

/// Why the index of a store cannot be used, as far as its files show.
///
/// # Errors
/// I/O errors.
pub(super) fn unusable(dir: &Path) -> Result<Option<String>, StoreError> {
    if stage(dir)?.is_some() {
        return Ok(Some("it was found damaged before and has not been rebuilt yet".to_owned()));
    }
    let current = match fs::read(dir.join(CURRENT)) {
        Ok(current) => current,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(is_store(dir).then(|| "its file CURRENT is missing".to_owned()));
        }
        Err(error) => return Err(failed(&dir.join(CURRENT), &error)),
    };
    let Some(name) = manifest_name(&current) else { return Ok(Some("its file CURRENT is damaged".to_owned())) };
    Ok((!dir.join(&name).exists()).then(|| format!("its file {name} is missing")))
}

/// The name of the manifest, from the content of CURRENT.
fn manifest_name(current: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(current).ok()?.strip_suffix('\n')?;
    manifest_number(name).map(|_| name.to_owned())
}

fn manifest_number(name: &str) -> Option<u64> {
    name.strip_prefix(MANIFEST)?.parse().ok()
}

/// The number of the current manifest and its size, in bytes.
pub(super) fn manifest(dir: &Path) -> Option<(u64, u64)> {
    let name = manifest_name(&fs::read(dir.join(CURRENT)).ok()?)?;
    Some((manifest_number(&name)?, dir.join(&name).metadata().ok()?.len()))
}

/// The stage of a pending rebuild.
pub(super) fn stage(dir: &Path) -> Result<Option<Stage>, StoreError> {
    match fs::read(dir.join(MARK)) {
        Ok(content) if content == Stage::Rebuilding.as_str().as_bytes() => Ok(Some(Stage::Rebuilding)),
        Ok(_) => Ok(Some(Stage::Damaged)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&dir.join(MARK), &error)),
    }
}

/// Marks durably that the index must be rebuilt.
///
/// # Errors
/// I/O errors.
pub(super) fn mark(dir: &Path, stage: Stage) -> Result<(), StoreError> {
    let (path, temporary) = (dir.join(MARK), dir.join("index.rebuild.new"));
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(stage.as_str().as_bytes())?;
        file.sync_data()?;
        fs::rename(&temporary, &path)?;
        folder::sync(dir)
    };
    write().map_err(|error: io::Error| failed(&path, &error))
}

/// Removes the mark durably, when the index is rebuilt.
///
/// # Errors
/// I/O errors.
pub(super) fn unmark(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(MARK);
    fs::remove_file(&path).and_then(|()| folder::sync(dir)).map_err(|error| failed(&path, &error))
}

/// Marks durably that blocks are kept without a pin in the journal, so that another rebuild keeps them too.
///
/// # Errors
/// I/O errors.
pub(super) fn mark_unclaimed(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(UNCLAIMED);
    let write = || {
        File::create(&path)?.sync_all()?;
        folder::sync(dir)
    };
    write().map_err(|error: io::Error| failed(&path, &error))
}

/// Whether that mark exists.
pub(super) fn has_unclaimed(dir: &Path) -> bool {
    dir.join(UNCLAIMED).exists()
}

/// Removes that mark: the operator releases the blocks.
///
/// # Errors
/// I/O errors.
pub(super) fn unmark_unclaimed(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(UNCLAIMED);
    match fs::remove_file(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| folder::sync(dir)).map_err(|error| failed(&path, &error)),
    }
}

/// Moves the files of the damaged index into a directory of their own, replacing an earlier one. An interrupted move is
/// continued.
///
/// # Errors
/// I/O errors.
pub(super) fn move_aside(dir: &Path) -> Result<PathBuf, StoreError> {
    let aside = dir.join(ASIDE);
    let mut of_index = index_files(dir)?;
    // CURRENT is moved first: if it is missing, the move was interrupted.
    of_index.sort_by_key(|path| path.file_name().is_none_or(|name| name != CURRENT));
    let begins = dir.join(CURRENT).exists() && aside.exists();
    let move_all = || {
        if begins {
            fs::remove_dir_all(&aside)?;
        }
        fs::create_dir_all(&aside)?;
        for path in &of_index {
            fs::rename(path, aside.join(path.file_name().unwrap_or_default()))?;
        }
        folder::sync(&aside)?;
        folder::sync(dir)
    };
    move_all().map_err(|error: io::Error| failed(&aside, &error))?;
    Ok(aside)
}

/// Deletes the damaged index that was moved aside, and returns whether there was one.
///
/// # Errors
/// I/O errors.
pub(super) fn delete_aside(dir: &Path) -> Result<bool, StoreError> {
    match fs::remove_dir_all(dir.join(ASIDE)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(&dir.join(ASIDE), &error)),
    }
}

/// Deletes the files of an incomplete index.
///
/// # Errors
/// I/O errors.
pub(super) fn delete(dir: &Path) -> Result<(), StoreError> {
    index_files(dir)?.iter().try_for_each(|path| fs::remove_file(path).map_err(|error| failed(path, &error)))
}

/// RocksDB's files, except for its lock and its message log.
fn index_files(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let names = fs::read_dir(dir).map_err(|error| failed(dir, &error))?;
    let names = names.map(|entry| Ok(entry.map_err(|error| failed(dir, &error))?.path()));
    names.filter(|path| path.as_ref().map_or(true, |path| is_index_file(path))).collect()
}

fn is_index_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
    name == CURRENT
        || name == "IDENTITY"
        || name.starts_with(MANIFEST)
        || name.starts_with("OPTIONS-")
        || ["sst", "log", "dbtmp"].contains(&suffix)
}

/// Fails if the index cannot be rebuilt: blocks of schema 1 are in RocksDB's blob files, and a newer release may have
/// another segment format.
///
/// # Errors
/// [`StoreError::NewerSchema`], [`StoreError::Corrupt`], or I/O errors.
pub(super) fn check_rebuildable(dir: &Path) -> Result<(), StoreError> {
    let journal = PinJournal::read(dir).map_err(|error| failed(&dir.join(pin_journal::NAME), &error))?;
    if let Some(found) = journal.schema.filter(|found| *found > schema::SCHEMA) {
        return Err(StoreError::NewerSchema { dir: dir.to_owned(), found, known: schema::SCHEMA });
    }
    let names = fs::read_dir(dir).map_err(|error| failed(dir, &error))?;
    let has_blobs = names.flatten().any(|entry| entry.path().extension().is_some_and(|suffix| suffix == "blob"));
    if has_blobs {
        return Err(StoreError::corrupt(
            "its index is unusable, and an earlier release stored the blocks in it: restore the store from a backup, \
             or delete it",
        ));
    }
    Ok(())
}

fn failed(path: &Path, error: &io::Error) -> StoreError {
    StoreError::io(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_has_the_name_of_a_manifest_or_is_damaged() {
        for (current, name) in [
            (&b"MANIFEST-000012\n"[..], Some("MANIFEST-000012")),
            (b"MANIFEST-000012", None),
            (b"MANIFEST-\n", None),
            (b"MANIFEST-00001x\n", None),
            (b"MANIFESU-000012\n", None),
            (b"", None),
            (b"\xff\n", None),
        ] {
            assert_eq!(manifest_name(current).as_deref(), name, "{current:?}");
        }
    }

    #[test]
    fn missing_files_are_reported_and_a_mark_stays_until_it_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let unusable = || unusable(dir.path()).expect("looks");
        assert_eq!(unusable(), None, "there is no store");
        fs::create_dir(dir.path().join(SEGMENTS_DIR)).expect("makes");
        assert_eq!(unusable(), None, "there is nothing in it");
        fs::write(dir.path().join(SEGMENTS_DIR).join("00000001.segment"), "?").expect("writes");
        assert!(unusable().is_some_and(|why| why.contains("CURRENT is missing")));
        fs::write(dir.path().join(CURRENT), "MANIFEST-000007\n").expect("writes");
        assert!(unusable().is_some_and(|why| why.contains("MANIFEST-000007 is missing")));
        fs::write(dir.path().join("MANIFEST-000007"), "some bytes").expect("writes");
        assert_eq!((unusable(), manifest(dir.path())), (None, Some((7, 10))));
        mark(dir.path(), Stage::Damaged).expect("marks");
        assert!(unusable().is_some());
        move_aside(dir.path()).expect("moves");
        mark(dir.path(), Stage::Rebuilding).expect("marks");
        assert_eq!(stage(dir.path()).expect("reads"), Some(Stage::Rebuilding));
        assert!(!dir.path().join(CURRENT).exists() && dir.path().join(ASIDE).join(CURRENT).exists());
        unmark(dir.path()).expect("removes the mark");
        assert_eq!(stage(dir.path()).expect("reads"), None);
    }
}
