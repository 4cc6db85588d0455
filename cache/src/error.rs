//! [`StoreError`]: what can go wrong with the disk, and what its owner can do about it.

use content::SourceError;
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;

/// Why the store does not open or does not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process works on the same directory.
    #[error(
        "the store in {} is in use by another process: stop that process, or give this one a data directory of its own",
        dir.display()
    )]
    InUse {
        /// The store's directory.
        dir: PathBuf,
    },
    /// A process on another machine may work on the same directory.
    #[error(
        "the store in {} is in use by {owner}, or was when that ended: if nothing there uses it any more, delete {} and start \
         again",
        dir.display(), file.display()
    )]
    InUseElsewhere {
        /// The store's directory.
        dir: PathBuf,
        /// Who it is.
        owner: String,
        /// Where that is noted.
        file: PathBuf,
    },
    /// There is none to be looked at.
    #[error("there is no store in {}", dir.display())]
    Missing {
        /// The store's directory.
        dir: PathBuf,
    },
    /// A later release wrote the store.
    #[error(
        "the store in {} was written by a newer release (schema {found}; this release knows {known}): \
         run that release or a later one, or give this one a data directory of its own",
        dir.display()
    )]
    NewerSchema {
        /// The store's directory.
        dir: PathBuf,
        /// The schema of the store.
        found: u32,
        /// The latest schema that this release knows.
        known: u32,
    },
    /// The operating system refused to read or write.
    #[error("the store cannot read or write ({0}): check the disk's free space, permissions and health")]
    Io(Arc<str>),
    /// The file system is as full as it may become.
    #[error(
        "the disk has {} MiB left, and {} MiB are to stay free (cache.disk_free_bytes_min, and what the index needs): make room \
         on it, or unpin something",
        free >> 20, needed >> 20
    )]
    Full {
        /// What is left, in bytes.
        free: u64,
        /// What is to stay free, in bytes.
        needed: u64,
    },
    /// The file system has space, and no file can be made on it.
    #[error(
        "the file system of {} has no inodes left, though it may have space: delete files on it, or make it anew with more \
         inodes",
        dir.display()
    )]
    NoInodes {
        /// A path on that file system.
        dir: PathBuf,
    },
    /// A store in memory has no room for more pins.
    #[error(
        "pinned blocks take all of the {} MiB that the store in memory has (cache.memory_bytes_max): give it more, or choose \
         a store on a disk",
        bytes_max >> 20
    )]
    MemoryFull {
        /// What the store may take, in bytes.
        bytes_max: u64,
    },
    /// What was read is not what was written.
    #[error("the store is damaged ({0}): check the disk's health, stop the gateway and run \"causeway store repair\"")]
    Corrupt(Arc<str>),
    /// The index cannot be read, or lost what was acknowledged. The blocks are there, and a start rebuilds it from them.
    #[error(
        "the index of the store is damaged ({0}): check the disk's health and start the gateway again, or stop it and run \
         \"causeway store repair\"; either rebuilds the index from the stored blocks"
    )]
    IndexDamaged(Arc<str>),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    pub(crate) fn corrupt(what: impl std::fmt::Display) -> Self {
        Self::Corrupt(what.to_string().into())
    }

    pub(crate) fn index_damaged(what: impl std::fmt::Display) -> Self {
        Self::IndexDamaged(what.to_string().into())
    }

    /// Whether there is no room for what was to be stored.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::NoInodes { .. } | Self::MemoryFull { .. })
    }

    pub(crate) fn io(what: impl std::fmt::Display) -> Self {
        Self::Io(what.to_string().into())
    }
}

impl From<rocksdb::Error> for StoreError {
    fn from(error: rocksdb::Error) -> Self {
        match error.kind() {
            rocksdb::ErrorKind::Corruption => Self::index_damaged(error),
            // One of its files is gone.
            rocksdb::ErrorKind::IOError if error.as_ref().contains("No such file") => Self::index_damaged(error),
            rocksdb::ErrorKind::ShutdownInProgress => Self::Closed,
            // By how much the disk is full, whoever knows where it is may add.
            _ if says_full(error.as_ref()) => Self::Full { free: 0, needed: 0 },
            _ => Self::io(error),
        }
    }
}

/// Whether the text of an error has the system's words for a disk without space. RocksDB hands on nothing else of it.
fn says_full(text: &str) -> bool {
    [Errno::NOSPC, Errno::DQUOT].into_iter().any(|errno| {
        let words = std::io::Error::from(errno).to_string();
        words.split(" (os error").next().is_some_and(|words| text.contains(words))
    })
}

impl From<StoreError> for SourceError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Closed => Self::Closed,
            other => Self::Store(other.to_string().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_a_broken_one() {
        let table = [
            (
                "IO error: No space left on device: While appending to file: /store/000012.log: No space left on device",
                true,
            ),
            ("IO error: Disk quota exceeded: While open a file for appending", true),
            ("IO error: Input/output error: While fdatasync", false),
            ("", false),
        ];
        for (text, full) in table {
            assert_eq!(says_full(text), full, "{text}");
        }
    }
}
