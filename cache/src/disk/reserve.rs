//! [`Reserve`]: space that the store keeps for the day when the disk is full.
//!
//! Goals: unpinning, eviction, take-downs and opening the store change the index, which takes some space before it gives any
//! back: RocksDB writes to its log, and what is recovered from the log when the store is opened becomes a file. The reserve is
//! given up for that, and made again when there is space.
//!
//! It is a folder of several files, so that it holds inodes as well as bytes. Their blocks are allocated and never written. Where the file
//! system does not allocate without writing, there is no reserve.
//!
//! Non-goals: space for values; a guarantee, for another process may take what was given up.

use crate::space::{self, Space};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const FOLDER: &str = "reserve";

/// Inodes that are kept: opening RocksDB makes about six files.
const FILES: u64 = 8;

/// The least that is kept, in bytes, and which part of the file system it is from there on.
const BYTES_MIN: u64 = 2 << 20;
const SHARE: u64 = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Reserve {
    folder: PathBuf,
    bytes: u64,
    is_held: AtomicBool,
    /// The file system does not allocate what is not written.
    is_unsupported: AtomicBool,
}

impl Reserve {
    /// The reserve of a store, whether it is there or not, of so many bytes at most.
    pub(crate) fn of(dir: &Path, space: Space, bytes_max: u64) -> Self {
        let folder = dir.join(FOLDER);
        let is_held = fs::read_dir(&folder).is_ok_and(|files| files.count() as u64 == FILES);
        let bytes = (space.total_bytes / SHARE).max(BYTES_MIN).min(bytes_max);
        Self { folder, bytes, is_held: AtomicBool::new(is_held), is_unsupported: AtomicBool::new(false) }
    }

    /// How much it is to have, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of the file system it takes now, in bytes.
    pub(crate) fn held_bytes(&self) -> u64 {
        if self.is_held.load(Ordering::Relaxed) { self.bytes } else { 0 }
    }

    /// What ordinary writes leave free beside the reserve, in bytes, so that RocksDB does not meet the end of the disk first.
    pub(crate) fn headroom_bytes(&self) -> u64 {
        self.bytes / 4
    }

    /// What it takes to open the index, in bytes: what was in its log is written to files.
    pub(crate) fn bytes_to_open(&self) -> u64 {
        self.bytes / 2 + self.headroom_bytes()
    }

    /// Whether the disk has that, without the reserve.
    pub(crate) fn is_enough_to_open(&self, space: Space) -> bool {
        space.free_bytes >= self.bytes_to_open() && space.free_inodes.is_none_or(|files| files >= FILES)
    }

    /// Whether there is none and there could be one.
    pub(crate) fn is_wanted(&self) -> bool {
        self.bytes > 0 && self.held_bytes() == 0 && !self.is_unsupported.load(Ordering::Relaxed)
    }

    /// Makes it, if it is not there and leaves as much again. That there is none is no error.
    pub(crate) fn make(&self, space: Space) {
        let has_room = space.free_bytes >= self.bytes + 2 * self.headroom_bytes();
        let has_files = space.free_inodes.is_none_or(|files| files >= 2 * FILES);
        if !self.is_wanted() || !has_room || !has_files {
            return;
        }
        match self.allocate() {
            Ok(()) => self.is_held.store(true, Ordering::Relaxed),
            Err(error) => {
                tracing::debug!(%error, "there is no reserve for a full disk");
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

    /// Gives it up, and says whether there was any.
    pub(crate) fn release(&self) -> bool {
        match fs::remove_dir_all(&self.folder) {
            Ok(()) => {
                self.folder.parent().into_iter().for_each(space::settle);
                self.is_held.swap(false, Ordering::Relaxed)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => {
                tracing::warn!(%error, "the reserve for a full disk could not be given up");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_given_up_and_found_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let space = |free_bytes, free_inodes| Space { free_bytes, free_inodes, total_bytes: 100 << 20 };
        let reserve = Reserve::of(dir.path(), space(0, None), 64 << 20);
        assert_eq!((reserve.bytes(), reserve.held_bytes()), (100 * (1 << 20) / 32, 0));
        // Neither bytes nor inodes are taken where they are short.
        reserve.make(space(4 << 20, None));
        reserve.make(space(50 << 20, Some(8)));
        assert!(reserve.held_bytes() == 0 && !reserve.release());
        reserve.make(space(50 << 20, Some(100)));
        if reserve.held_bytes() == 0 {
            return;
        }
        assert_eq!(Reserve::of(dir.path(), space(0, None), 64 << 20).held_bytes(), reserve.bytes());
        assert!(reserve.release() && !reserve.release());
        assert_eq!((reserve.held_bytes(), fs::read_dir(dir.path()).expect("lists").count()), (0, 0));
    }
}
