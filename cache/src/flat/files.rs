//! [`Files`]: one file for each block, in the format of a segment's record ([`crate::disk::record`]).
//!
//! Goals: a file with its final name is complete, except for a cached one after power loss, which its checksum detects;
//! a durable value is synced before its file gets its final name, and the name is synced with the store.
//!
//! A file is written under a temporary name in its own directory and renamed, which atomically replaces an existing one
//! on every file system. A batch of values is written by several threads, since on a network each write waits for
//! several round trips.

use super::{calls, names};
use super::{failed, sync_folder, temporary};
use crate::disk::{StoreError, record};
use crate::indexed_store::backing::NewValue;
use crate::memory_index::Key;
use bytes::Bytes;
use content::MAX_BLOCK_BYTES;
use content::stored::{SHAPE_HEAD_BYTES, Shape, Stored};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::SystemTime;
use tracing::warn;

/// The maximum number of threads that write or list concurrently.
const THREADS: usize = 8;

/// The minimum number of unsynced values per thread.
const VALUES_PER_THREAD: usize = 4;

/// Smaller values are copied into one buffer, so that they are written in one call.
const BUFFER_BELOW_BYTES: usize = 64 * 1024;

/// The allocation unit of most file systems.
const ALLOCATED_BYTES: u64 = 4096;

/// The overhead of a file: its inode and its name.
const FILE_BYTES: u64 = 512;

/// The number of attempts to open a file that was replaced on the server (`ESTALE`).
const STALE_TRIES: usize = 3;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    /// Directories with entries that may not be synced.
    unsynced: Mutex<BTreeSet<PathBuf>>,
}

/// The file of a block.
#[derive(Debug)]
pub(super) struct FoundFile {
    pub(super) key: Key,
    /// Its size on the disk.
    pub(super) bytes: u64,
    pub(super) modified: SystemTime,
}

impl Files {
    /// The files below `dir`, which exists. The process that created directories in it may have been killed before
    /// their names were synced.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { unsynced: Mutex::new([dir.clone()].into()), dir }
    }

    /// The size of a value on the disk.
    pub(super) fn cost(key: &[u8], value_bytes: usize) -> u64 {
        cost_of_file(record::record_bytes(key, value_bytes) as u64)
    }

    pub(super) fn write(&self, values: &[NewValue]) -> Vec<Result<(), StoreError>> {
        let durable = values.iter().any(|value| value.durable);
        let threads = if durable { values.len() } else { values.len().div_ceil(VALUES_PER_THREAD) };
        in_threads(threads, values, |value| self.write_one(value))
    }

    fn write_one(&self, value: &NewValue) -> Result<(), StoreError> {
        let (folder, name) = names::place(&value.key);
        let folder = self.dir.join(folder);
        let head = record::head(&value.key, &value.pieces);
        let head = head.ok_or_else(|| StoreError::io("a block is too large for a record"))?;
        let temporary_path = temporary(&folder);
        let written = self
            .write_temporary(&folder, &temporary_path, &head, value)
            .and_then(|()| calls::rename(&temporary_path, &folder.join(name)));
        if let Err(error) = written {
            _ = fs::remove_file(&temporary_path);
            return Err(failed(&temporary_path, &error));
        }
        if value.durable {
            self.add_unsynced(folder);
        }
        Ok(())
    }

    /// Writes a record, synced if it must be durable, and creates its directory if need be.
    fn write_temporary(&self, folder: &Path, path: &Path, head: &[u8], value: &NewValue) -> io::Result<()> {
        let bytes: usize = value.pieces.iter().map(Bytes::len).sum();
        let buffer = if bytes < BUFFER_BELOW_BYTES { [head, &value.pieces.concat()].concat() } else { Vec::new() };
        let [first, second] = &value.pieces;
        let pieces: [&[u8]; 3] = if buffer.is_empty() { [head, first, second] } else { [&buffer, &[], &[]] };
        match calls::write_new(path, &pieces, value.durable) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                match calls::create_dir(folder) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                    _ => self.add_unsynced(self.dir.clone()),
                }
                calls::write_new(path, &pieces, value.durable)
            }
            written => written,
        }
    }

    fn add_unsynced(&self, folder: PathBuf) {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).insert(folder);
    }

    /// Syncs the names of durable values.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let unsynced = std::mem::take(&mut *self.unsynced.lock().unwrap_or_else(PoisonError::into_inner));
        let folders: Vec<_> = unsynced.into_iter().collect();
        in_threads(folders.len(), &folders, |folder| sync_folder(folder)).into_iter().collect()
    }

    /// Quarantines a block's file: renames it to a temporary name, so that the next start deletes it.
    pub(super) fn quarantine(&self, key: &[u8]) -> Result<(), StoreError> {
        let path = names::path(&self.dir, key);
        let folder = path.parent().unwrap_or(&self.dir);
        match calls::rename(&path, &temporary(folder)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(&path, &error)),
            _ => sync_folder(folder),
        }
    }

    /// The value of a block, if it has a file.
    pub(super) fn read(&self, key: &[u8]) -> Result<Option<Stored>, StoreError> {
        let len_max = record::record_bytes(key, MAX_BLOCK_BYTES + SHAPE_HEAD_BYTES);
        let Some(file) = self.read_up_to(key, len_max)? else { return Ok(None) };
        let value =
            record::value(file, key).ok_or_else(|| StoreError::corrupt("a value differs from what was written"))?;
        Ok(Some(Stored::read(value).map_err(StoreError::corrupt)?))
    }

    /// The form of a block's value, from the beginning of its file.
    pub(super) fn shape(&self, key: &[u8]) -> Result<Option<Shape>, StoreError> {
        let head_bytes = record::record_bytes(key, 0);
        let Some(file) = self.read_up_to(key, head_bytes + SHAPE_HEAD_BYTES)? else { return Ok(None) };
        let value = record::unchecked_value(&file, key);
        let shape = value.and_then(|(head, value_bytes)| Shape::from_head(head, value_bytes));
        shape.map(Some).ok_or_else(|| StoreError::corrupt("a value differs from what was written"))
    }

    /// The beginning of a block's file; `None` if it is missing or was deleted.
    fn read_up_to(&self, key: &[u8], len_max: usize) -> Result<Option<Bytes>, StoreError> {
        let path = names::path(&self.dir, key);
        for _ in 0..STALE_TRIES {
            match read_up_to(&path, len_max) {
                Err(error) if error.raw_os_error() == Some(Errno::STALE.raw_os_error()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                read => return read.map(Some).map_err(|error| failed(&path, &error)),
            }
        }
        Ok(None)
    }

    pub(super) fn delete(&self, key: &[u8]) -> Result<(), StoreError> {
        let path = names::path(&self.dir, key);
        match calls::remove(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(&path, &error)),
            _ => Ok(()),
        }
    }

    /// The files of all blocks, in no order. With `clean_up`, temporary files of earlier processes are deleted.
    pub(super) fn list(&self, clean_up: bool) -> Result<Vec<FoundFile>, StoreError> {
        let folders = entries(&self.dir)?;
        let listed = in_threads(folders.len().div_ceil(64), &folders, |folder| list_folder(folder, clean_up));
        listed.into_iter().try_fold(Vec::new(), |mut found, folder| {
            found.append(&mut folder?);
            Ok(found)
        })
    }
}

/// The size on the disk of a file of this length.
fn cost_of_file(len: u64) -> u64 {
    len.next_multiple_of(ALLOCATED_BYTES) + FILE_BYTES
}

fn read_up_to(path: &Path, len_max: usize) -> io::Result<Bytes> {
    let mut file = File::open(path)?;
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).min(len_max);
    // One byte more, so that the same read finds the end.
    let mut bytes = Vec::with_capacity(len + 1);
    (&mut file).take(len_max as u64).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

fn list_folder(folder: &Path, clean_up: bool) -> Result<Vec<FoundFile>, StoreError> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut found = Vec::new();
    for path in entries(folder)? {
        let Some(file) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if file.starts_with(names::TEMPORARY_PREFIX) {
            if clean_up {
                discard(&path);
            }
            continue;
        }
        let Some(key) = names::key(name, file) else { continue };
        let meta = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            meta => meta.map_err(|error| failed(&path, &error))?,
        };
        if meta.len() <= record::record_bytes(&key, 0) as u64 {
            // Power was lost before any of it was synced.
            if clean_up {
                discard(&path);
            }
            continue;
        }
        let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        found.push(FoundFile { key, bytes: cost_of_file(meta.len()), modified });
    }
    Ok(found)
}

fn discard(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        warn!(path = %path.display(), %error, "a temporary file could not be deleted");
    }
}

/// The entries of a directory; none if it is a file.
pub(super) fn entries(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let listed = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotADirectory => return Ok(Vec::new()),
        listed => listed.map_err(|error| failed(dir, &error))?,
    };
    listed.map(|entry| Ok(entry.map_err(|error| failed(dir, &error))?.path())).collect()
}

/// Runs `work` for each item, on up to `threads` threads; the results are in the order of the items.
fn in_threads<T: Sync, R: Send>(threads: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = threads.min(THREADS).min(items.len());
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let some = || {
        let mut done = Vec::new();
        while let Some((at, item)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, items.get(at)?)))
        {
            done.push((at, work(item)));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(some)).collect();
        let mut done = some();
        for other in others {
            // Propagate panics.
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..1_000).collect();
        for threads in [0, 1, 2, 8, 100] {
            assert_eq!(
                in_threads(threads, &items, |item| item * 2),
                items.iter().map(|item| item * 2).collect::<Vec<_>>()
            );
        }
        assert_eq!(in_threads(8, &[] as &[usize], |item| *item), []);
    }

    #[test]
    fn a_file_takes_whole_pages_and_an_inode() {
        for (len, bytes) in [(1, 4096), (4096, 4096), (4097, 8192), (262_188, 266_240)] {
            assert_eq!(cost_of_file(len), bytes + FILE_BYTES);
        }
    }
}
