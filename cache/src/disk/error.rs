//! [`StoreError`]: what can go wrong with the disk, and what its owner can do about it.

use content::SourceError;
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
        "the disk has {} MiB left, and {} MiB are to stay free (cache.disk_free_bytes_min): make room on it",
        free >> 20, needed >> 20
    )]
    Full {
        /// What is left, in bytes.
        free: u64,
        /// What is to stay free, in bytes.
        needed: u64,
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
    #[error(
        "the store is damaged ({0}): check the disk's health; to start afresh, move the store's directory away, import \
         pinned content again and let the rest be fetched"
    )]
    Corrupt(Arc<str>),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    pub(crate) fn corrupt(what: impl std::fmt::Display) -> Self {
        Self::Corrupt(what.to_string().into())
    }

    pub(crate) fn io(what: impl std::fmt::Display) -> Self {
        Self::Io(what.to_string().into())
    }
}

impl From<rocksdb::Error> for StoreError {
    fn from(error: rocksdb::Error) -> Self {
        match error.kind() {
            rocksdb::ErrorKind::Corruption => Self::corrupt(error),
            rocksdb::ErrorKind::ShutdownInProgress => Self::Closed,
            _ => Self::io(error),
        }
    }
}

impl From<StoreError> for SourceError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Closed => Self::Closed,
            other => Self::Store(other.to_string().into()),
        }
    }
}
