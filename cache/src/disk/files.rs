//! [`Files`]: the segment files, to which values are appended and which are deleted as a whole.
//!
//! Goals: a value is copied once on its way to the disk; deleting reclaims space at once; synced data is durable.
//!
//! Non-goals: the places of values, which the index has. A file without a segment record was left by an interrupted
//! write, and is deleted when the store is opened.
//!
//! All functions here block. Any thread may read; only the writer thread writes.

#[cfg(test)]
use super::faults::{Call, Fault, Faults};
use crate::error::StoreError;
use crate::folder;
use crate::space::{self, Space};
use bytes::Bytes;
use moka::sync::Cache;
use rustix::buffer::spare_capacity;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv, preadv2};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, IoSliceMut, Write as _};
use std::num::NonZero;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SUFFIX: &str = "segment";

/// The file that is written to probe the disk.
const PROBE: &str = "probe";

/// The unit in which a device reads: an unreadable sector is lost as a whole.
const SECTOR_BYTES: u64 = 4096;

/// The segment files of a store.
#[derive(Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    open: Cache<u32, Arc<File>>,
    /// Files with unsynced writes. They stay open, since the kernel reports an asynchronous write error only once, and
    /// only to descriptors that were open at the time.
    unsynced: Mutex<HashMap<u32, Arc<File>>>,
    /// Writes that power loss would undo.
    #[cfg(test)]
    pub(crate) volatile: Mutex<Volatile>,
    /// Injected faults.
    #[cfg(test)]
    pub(crate) faults: Faults,
}

/// Unsynced writes, for tests of power loss. Holding its lock blocks all writes.
#[cfg(test)]
#[derive(Debug, Default, Clone)]
pub(crate) struct Volatile {
    /// Places in segments and their lengths.
    pub(crate) values: Vec<(u32, u32, usize)>,
    /// Segments whose files were created.
    pub(crate) names: Vec<u32>,
    /// The length of each of RocksDB's logs at its last sync, by file name.
    pub(crate) logs: HashMap<std::ffi::OsString, u64>,
}

impl Files {
    /// The segment files in `dir`, which is created if need be. At most `open_max` stay open.
    pub(crate) fn open(dir: PathBuf, open_max: u64) -> Result<Self, StoreError> {
        let sync_parent = || dir.parent().map_or(Ok(()), folder::sync);
        fs::create_dir_all(&dir).and_then(|()| sync_parent()).map_err(|error| failed(&dir, &error))?;
        let open = Cache::new(open_max);
        Ok(Self {
            dir,
            open,
            unsynced: Mutex::default(),
            #[cfg(test)]
            volatile: super::faults::INHERITED.take().unwrap_or_default().into(),
            #[cfg(test)]
            faults: Faults::opening(),
        })
    }

    /// Writes at a place in a segment, which is created if it is new, and stays open until it is synced if
    /// `to_be_synced`.
    pub(crate) fn write(&self, segment: u32, offset: u32, bytes: &[u8], to_be_synced: bool) -> Result<(), StoreError> {
        #[cfg(test)]
        if !self.path(segment).exists() {
            self.faults.check(Call::Create).map_err(|error| failed(&self.path(segment), &error))?;
        }
        #[cfg(test)]
        let (bytes, fault) = self.faults.truncate_write(bytes);
        #[cfg(test)]
        let mut volatile = self.volatile.lock().expect("no test panics here");
        #[cfg(test)]
        if !self.path(segment).exists() {
            volatile.names.push(segment);
        }
        #[cfg(test)]
        volatile.values.push((segment, offset, bytes.len()));
        let write = |file: Arc<File>| {
            if to_be_synced {
                self.unsynced().entry(segment).or_insert_with(|| Arc::clone(&file));
            }
            file.write_all_at(bytes, u64::from(offset))
        };
        let written = self.file(segment, true).and_then(write);
        #[cfg(test)]
        let written = written.and(fault);
        written.map_err(|error| failed(&self.path(segment), &error))
    }

    /// Reads from a place in a segment. The result is shorter if the file ends earlier.
    pub(crate) fn read(&self, segment: u32, offset: u32, len: usize) -> Result<Bytes, StoreError> {
        self.try_read(segment, offset.into(), len).map_err(|error| failed(&self.path(segment), &error))
    }

    fn try_read(&self, segment: u32, offset: u64, len: usize) -> io::Result<Bytes> {
        #[cfg(test)]
        self.faults.check(Call::Read)?;
        match self.file(segment, false).and_then(|file| read_at(&file, offset, len)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Bytes::new()),
            read => read,
        }
    }

    /// Reads like [`Self::read`], with zeros for unreadable sectors; also returns the number of unreadable bytes.
    pub(crate) fn read_past_damage(&self, segment: u32, offset: u32, len: usize) -> Result<(Bytes, usize), StoreError> {
        let with_path = |error: io::Error| failed(&self.path(segment), &error);
        let offset = u64::from(offset);
        match self.try_read(segment, offset, len) {
            Err(error) if is_unreadable(&error) => {}
            read => return read.map(|bytes| (bytes, 0)).map_err(with_path),
        }
        let end = self.file(segment, false).and_then(|file| Ok(file.metadata()?.len())).map_err(with_path)?;
        let end = end.min(offset.saturating_add(len as u64));
        let (mut bytes, mut unreadable, mut at) = (Vec::with_capacity(len), 0, offset);
        while at < end {
            let piece = (SECTOR_BYTES - at % SECTOR_BYTES).min(end - at) as usize;
            match self.try_read(segment, at, piece) {
                Ok(read) => bytes.extend_from_slice(&read),
                Err(error) if is_unreadable(&error) => unreadable += piece,
                Err(error) => return Err(with_path(error)),
            }
            at += piece as u64;
            bytes.resize(usize::try_from(at - offset).unwrap_or(usize::MAX).min(len), 0);
        }
        Ok((bytes.into(), unreadable))
    }

    /// Reads several adjacent ranges, each into a buffer of its own. Buffers are shorter if the file ends earlier.
    pub(crate) fn read_many(&self, segment: u32, offset: u32, lengths: &[usize]) -> Result<Vec<Bytes>, StoreError> {
        if let [length] = lengths {
            return Ok(vec![self.read(segment, offset, *length)?]);
        }
        let mut buffers: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; *length]).collect();
        let mut slices: Vec<IoSliceMut<'_>> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let (mut rest, mut at) = (&mut *slices, u64::from(offset));
        let file = self.file(segment, false);
        let read = file.and_then(|file| {
            while !rest.is_empty() {
                match preadv(&file, rest, at) {
                    Ok(0) => break,
                    Ok(count) => {
                        at += count as u64;
                        IoSliceMut::advance_slices(&mut rest, count);
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(at - u64::from(offset))
        });
        let mut read = read.map_err(|error| failed(&self.path(segment), &error))?;
        for buffer in &mut buffers {
            let of_this = usize::try_from(read).unwrap_or(usize::MAX).min(buffer.len());
            buffer.truncate(of_this);
            read -= of_this as u64;
        }
        Ok(buffers.into_iter().map(Bytes::from).collect())
    }

    /// Reads from a place in a segment, if all of it is in the page cache.
    pub(crate) fn read_now(&self, segment: u32, offset: u32, len: usize) -> Option<Bytes> {
        let file = self.open.get(&segment)?;
        let mut buffer = vec![0; len];
        let read = preadv2(&file, &mut [IoSliceMut::new(&mut buffer)], u64::from(offset), ReadWriteFlags::NOWAIT);
        (read == Ok(len)).then(|| buffer.into())
    }

    /// Starts asynchronous writeback of a range of a segment, so that a later sync is short. Advisory, so errors are
    /// ignored.
    pub(crate) fn start_writeback(&self, segment: u32, offset: u32, len: u32) {
        // On `POSIX_FADV_DONTNEED`, Linux starts writeback of dirty pages.
        _ = self
            .file(segment, false)
            .map(|file| fadvise(&file, offset.into(), NonZero::new(len.into()), Advice::DontNeed));
    }

    /// Syncs a segment.
    pub(crate) fn sync(&self, segment: u32) -> Result<(), StoreError> {
        #[cfg(test)]
        self.inject_sync_fault(segment).map_err(|error| failed(&self.path(segment), &error))?;
        #[cfg(test)]
        self.volatile.lock().expect("no test panics here").values.retain(|(of, ..)| *of != segment);
        let kept = self.unsynced().get(&segment).map(Arc::clone);
        let file = kept.map_or_else(|| self.file(segment, false), Ok);
        file.and_then(|file| file.sync_data()).map_err(|error| failed(&self.path(segment), &error))?;
        self.unsynced().remove(&segment);
        Ok(())
    }

    /// Drops a segment from the page cache, where supported, so that the next reads come from the disk. A missing file
    /// is not an error.
    pub(crate) fn drop_page_cache(&self, segment: u32) -> Result<(), StoreError> {
        #[cfg(target_os = "linux")]
        let advise = |file: Arc<File>| Ok(fadvise(&*file, 0, None, Advice::DontNeed)?);
        #[cfg(not(target_os = "linux"))]
        let advise = |_| Ok(());
        match self.file(segment, false).and_then(advise) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&self.path(segment), &error)),
            _ => Ok(()),
        }
    }

    /// Syncs the directory entries of the files.
    pub(crate) fn sync_names(&self) -> Result<(), StoreError> {
        #[cfg(test)]
        self.faults.check(Call::SyncNames).map_err(|error| failed(&self.dir, &error))?;
        #[cfg(test)]
        self.volatile.lock().expect("no test panics here").names.clear();
        folder::sync(&self.dir).map_err(|error| failed(&self.dir, &error))
    }

    /// Whether a segment has a file.
    pub(crate) fn has(&self, segment: u32) -> bool {
        self.path(segment).exists()
    }

    /// Deletes a segment. A missing one is not an error. Reads in progress complete.
    pub(crate) fn delete(&self, segment: u32) -> Result<(), StoreError> {
        #[cfg(test)]
        self.faults.check(Call::Delete).map_err(|error| failed(&self.path(segment), &error))?;
        #[cfg(test)]
        let mut volatile = self.volatile.lock().expect("no test panics here");
        #[cfg(test)]
        volatile.values.retain(|(of, ..)| *of != segment);
        let removed = fs::remove_file(self.path(segment));
        self.unsynced().remove(&segment);
        self.open.invalidate(&segment);
        // The cache drops invalidated files only in its maintenance, and an open file keeps its space.
        self.open.run_pending_tasks();
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&self.path(segment), &error)),
            _ => Ok(()),
        }
    }

    #[cfg(test)]
    fn inject_sync_fault(&self, segment: u32) -> io::Result<()> {
        let Some(fault) = self.faults.inject(Call::Sync) else { return Ok(()) };
        let volatile = self.volatile.lock().expect("no test panics here");
        let lost = volatile.values.iter().filter(|(of, ..)| *of == segment && matches!(fault, Fault::Half(_)));
        for (_, offset, len) in lost {
            self.file(segment, false)?.write_all_at(&vec![0; *len], u64::from(*offset))?;
        }
        Err(fault.error())
    }

    /// The segments that have files, in no order.
    pub(crate) fn list(&self) -> Result<Vec<u32>, StoreError> {
        Self::list_in(&self.dir)
    }

    /// The same of a store that is not open.
    pub(crate) fn list_in(dir: &Path) -> Result<Vec<u32>, StoreError> {
        let names = fs::read_dir(dir).map_err(|error| failed(dir, &error))?;
        let names = names.map(|entry| Ok(entry.map_err(|error| failed(dir, &error))?.path()));
        names.filter_map(|path| path.map(|path| segment(&path)).transpose()).collect()
    }

    /// The free space of the file system.
    pub(crate) fn space(&self) -> Result<Space, StoreError> {
        Space::of(&self.dir).map_err(|error| failed(&self.dir, &error))
    }

    /// Makes the space of deleted files available.
    pub(crate) fn settle(&self) {
        space::settle(&self.dir);
    }

    /// The error for an operation that needs `needed` bytes free.
    pub(crate) fn shortage_error(&self, space: Space, needed: u64) -> StoreError {
        space.shortage_error(&self.dir, needed)
    }

    /// Creates, writes, syncs and deletes a file; an error means that writes of values would fail as well.
    pub(crate) fn probe(&self) -> Result<(), StoreError> {
        #[cfg(test)]
        for call in [Call::Create, Call::Write] {
            self.faults.check(call).map_err(|error| failed(&self.dir, &error))?;
        }
        let path = self.dir.join(PROBE);
        let probed = File::create(&path).and_then(|mut file| {
            file.write_all(&[0; 4096])?;
            file.sync_all()
        });
        _ = fs::remove_file(&path);
        probed.map_err(|error| failed(&path, &error))
    }

    /// Truncates a segment to `len` bytes. No row may ever have referred to the rest.
    pub(crate) fn truncate(&self, segment: u32, len: u32) -> Result<(), StoreError> {
        let truncated = self.file(segment, false).and_then(|file| file.set_len(u64::from(len)));
        truncated.map_err(|error| failed(&self.path(segment), &error))
    }

    /// Punches a hole for a range of a segment, and returns whether the file system supports it. The range reads as
    /// zeros from then on. That it is dead must have been synced.
    pub(crate) fn punch(&self, segment: u32, range: Range<u32>) -> Result<bool, StoreError> {
        let (offset, len) = (u64::from(range.start), u64::from(range.end.saturating_sub(range.start)));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match self.file(segment, false).and_then(|file| Ok(fallocate(&*file, flags, offset, len)?)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(failed(&self.path(segment), &error)),
        }
    }

    fn file(&self, segment: u32, create: bool) -> io::Result<Arc<File>> {
        if let Some(file) = self.open.get(&segment) {
            return Ok(file);
        }
        let options = || File::options().read(true).write(true).create(create).truncate(false).open(self.path(segment));
        let file = Arc::new(options()?);
        self.open.insert(segment, Arc::clone(&file));
        if file.metadata()?.nlink() == 0 {
            // It was deleted concurrently, and an open file would keep its space.
            self.open.invalidate(&segment);
        }
        Ok(file)
    }

    fn unsynced(&self) -> MutexGuard<'_, HashMap<u32, Arc<File>>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn path(&self, segment: u32) -> PathBuf {
        self.dir.join(format!("{segment:08x}.{SUFFIX}"))
    }
}

/// Reads `len` bytes, or up to the end of the file.
fn read_at(file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
    let mut buffer = Vec::with_capacity(len);
    while buffer.len() < len {
        let at = offset + buffer.len() as u64;
        match pread(file, spare_capacity(&mut buffer), at) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // The capacity may be larger than requested.
    buffer.truncate(len);
    Ok(buffer.into())
}

/// Whether the device failed to read.
fn is_unreadable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

fn segment(path: &Path) -> Option<u32> {
    let name = path.file_stem()?.to_str()?;
    (path.extension()? == SUFFIX).then(|| u32::from_str_radix(name, 16).ok()).flatten()
}

fn failed(path: &Path, error: &io::Error) -> StoreError {
    if space::is_full(error) {
        // The writer adds the figures.
        return StoreError::Full { free: 0, needed: 0 };
    }
    StoreError::io(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsynced_files_stay_open() {
        let dir = tempfile::tempdir().expect("a directory");
        // The cache keeps no file open.
        let files = Files::open(dir.path().join("segments"), 0).expect("opens");
        for to_be_synced in [true, false] {
            files.write(1, 0, b"value", to_be_synced).expect("writes");
            // If the file were opened again, it would not exist.
            fs::remove_file(files.path(1)).expect("deletes");
            assert_eq!(files.sync(1).is_ok(), to_be_synced);
            files.sync(1).expect_err("it is no longer open");
        }
        files.write(1, 0, b"value", true).expect("writes");
        files.delete(1).expect("deletes");
        files.sync(1).expect_err("it is deleted");
    }
}
