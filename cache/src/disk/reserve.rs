//! [`Reserve`]: disk space reserved for operations on a full disk.
//!
//! Goals: unpinning, eviction, takedowns and opening the store change the index, which takes some space before it
//! reclaims any: RocksDB writes to its log, and opening the store writes the recovered log to tables. The reserve is
//! released for that, and recreated when there is space.
//!
//! It is a directory of several files, so that it reserves inodes as well as bytes. Their blocks are allocated and
//! never written. If the file system cannot allocate without writing, there is no reserve.
//!
//! Non-goals: space for values; a guarantee, since another process may take the released space.

use crate::space::{self, Space};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const FOLDER: &str = "reserve";

/// The number of reserved inodes: opening RocksDB creates about six files.
const FILES: u64 = 8;

/// The minimum size, in bytes, and the part of the file system that it takes otherwise.
const BYTES_MIN: u64 = 2 << 20;
const SHARE: u64 = 32;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Reserve {
    folder: PathBuf,
    bytes: u64,
    is_allocated: AtomicBool,
    /// The file system does not support `fallocate`.
    is_unsupported: AtomicBool,
}

impl Reserve {
    /// The reserve of a store, allocated or not, of at most `bytes_max`.
    pub(crate) fn of(dir: &Path, space: Space, bytes_max: u64) -> Self {
        let folder = dir.join(FOLDER);
        let is_allocated = fs::read_dir(&folder).is_ok_and(|files| files.count() as u64 == FILES);
        let bytes = (space.total_bytes / SHARE).max(BYTES_MIN).min(bytes_max);
        Self { folder, bytes, is_allocated: AtomicBool::new(is_allocated), is_unsupported: AtomicBool::new(false) }
    }

    /// Its intended size, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its current size, in bytes.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        if self.is_allocated.load(Ordering::Relaxed) { self.bytes } else { 0 }
    }

    /// The space that ordinary writes leave free beside the reserve, in bytes, so that RocksDB does not run out of
    /// space first.
    pub(crate) fn headroom_bytes(&self) -> u64 {
        self.bytes / 4
    }

    /// The space needed to open the index, in bytes, since its log is written to tables.
    pub(crate) fn bytes_to_open(&self) -> u64 {
        self.bytes / 2 + self.headroom_bytes()
    }

    /// Whether the disk has that space, without the reserve.
    pub(crate) fn is_enough_to_open(&self, space: Space) -> bool {
        space.free_bytes >= self.bytes_to_open() && space.free_inodes.is_none_or(|files| files >= FILES)
    }

    /// Whether the reserve should be allocated.
    pub(crate) fn is_wanted(&self) -> bool {
        self.bytes > 0 && self.allocated_bytes() == 0 && !self.is_unsupported.load(Ordering::Relaxed)
    }

    /// Allocates the reserve, unless it exists or space is short. Failing to is not an error.
    pub(crate) fn make(&self, space: Space) {
        let has_room = space.free_bytes >= self.bytes + 2 * self.headroom_bytes();
        let has_files = space.free_inodes.is_none_or(|files| files >= 2 * FILES);
        if !self.is_wanted() || !has_room || !has_files {
            return;
        }
        match self.allocate() {
            Ok(()) => self.is_allocated.store(true, Ordering::Relaxed),
            Err(error) => {
                tracing::debug!(%error, "the reserve for a full disk could not be allocated");
                self.is_unsupported.store(error.kind() == ErrorKind::Unsupported, Ordering::Relaxed);
                _ = fs::remove_dir_all(&self.folder);
            }
        }
    }

    fn allocate(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        for number in 0..FILES {
            let file = File::create(self.folder.join(number.to_string()))?;
            fallocate(&file, FallocateFlags::empty(), 0, self.bytes / FILES)?;
        }
        Ok(())
    }

    /// Releases the reserve, and returns whether there was one.
    pub(crate) fn release(&self) -> bool {
        match fs::remove_dir_all(&self.folder) {
            Ok(()) => {
                self.folder.parent().into_iter().for_each(space::settle);
                self.is_allocated.swap(false, Ordering::Relaxed)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => {
                tracing::warn!(%error, "the reserve for a full disk could not be released");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_allocated_released_and_found_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let space = |free_bytes, free_inodes| Space { free_bytes, free_inodes, total_bytes: 100 << 20 };
        let reserve = Reserve::of(dir.path(), space(0, None), 64 << 20);
        assert_eq!((reserve.bytes(), reserve.allocated_bytes()), (100 * (1 << 20) / 32, 0));
        // It is not allocated if bytes or inodes are short.
        reserve.make(space(4 << 20, None));
        reserve.make(space(50 << 20, Some(8)));
        assert!(reserve.allocated_bytes() == 0 && !reserve.release());
        reserve.make(space(50 << 20, Some(100)));
        if reserve.allocated_bytes() == 0 {
            return;
        }
        assert_eq!(Reserve::of(dir.path(), space(0, None), 64 << 20).allocated_bytes(), reserve.bytes());
        assert!(reserve.release() && !reserve.release());
        assert_eq!((reserve.allocated_bytes(), fs::read_dir(dir.path()).expect("lists").count()), (0, 0));
    }
}
