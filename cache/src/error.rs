//! [`StoreError`]: errors of the block store, with what the operator can do about them.

use content::SourceError;
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;

/// Why the store cannot be opened, or why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process uses the same directory.
    #[error(
        "the store in {} is in use by another process: stop that process, or give this one a data directory of its own",
        dir.display()
    )]
    InUse {
        /// The store's directory.
        dir: PathBuf,
    },
    /// A process on another machine may use the same directory.
    #[error(
        "the store in {} is or was in use by {owner}: if no process there uses it any more, delete {} and start again",
        dir.display(), file.display()
    )]
    InUseElsewhere {
        /// The store's directory.
        dir: PathBuf,
        /// The host and process that hold the lock.
        owner: String,
        /// The lock file.
        file: PathBuf,
    },
    /// There is no store in the directory.
    #[error("there is no store in {}", dir.display())]
    Missing {
        /// The store's directory.
        dir: PathBuf,
    },
    /// A later release wrote this store.
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
    /// A later release wrote a record of this metadata store.
    #[error(
        "the record {key} was written by a newer release, and this one cannot read it: run that release or a later one"
    )]
    UnknownRecord {
        /// The key of the record.
        key: Arc<str>,
    },
    /// A metadata store that no other service shares was changed by another writer. A defect.
    #[error("the metadata was changed by another writer: restart the gateway, and report this")]
    OtherWriter,
    /// Others have changed the metadata too often meanwhile, or too much waits for what gateways share.
    #[error("the gateways of the site have too much to do at the moment: try again")]
    Busy,
    /// An I/O error.
    #[error("the store cannot read or write ({0}): check the disk's free space, permissions and health")]
    Io(Arc<str>),
    /// The file system has less free space than it must keep.
    #[error(
        "the disk has {} MiB left and must keep {} MiB free (cache.disk_free_bytes_min, and what the index needs): \
         delete files on it, or unpin content",
        free >> 20, needed >> 20
    )]
    Full {
        /// Free space, in bytes.
        free: u64,
        /// The space that must stay free, in bytes.
        needed: u64,
    },
    /// The file system has no free inodes, so that no file can be created.
    #[error(
        "the file system of {} has no inodes left, even if it has space: delete files on it, or recreate it with more \
         inodes",
        dir.display()
    )]
    NoInodes {
        /// A path on that file system.
        dir: PathBuf,
    },
    /// A memory store has no room for more pins.
    #[error(
        "pinned blocks take all {} MiB of the memory store (cache.memory_bytes_max): raise that setting, unpin \
         content, or choose a store on a disk",
        bytes_max >> 20
    )]
    MemoryFull {
        /// The store's budget, in bytes.
        bytes_max: u64,
    },
    /// Stored data is corrupt.
    #[error("the store is damaged ({0}): check the disk's health, stop the gateway and run \"causeway store repair\"")]
    Corrupt(Arc<str>),
    /// The index is corrupt or lost acknowledged writes. The blocks are intact; the next start rebuilds the index from
    /// them.
    #[error(
        "the index of the store is damaged ({0}): check the disk's health and start the gateway again, or stop it and \
         run \"causeway store repair\"; either rebuilds the index from the stored blocks"
    )]
    IndexDamaged(Arc<str>),
    /// What several gateways share cannot be reached now. The change may have been made; it can be repeated.
    #[error("the gateways of this site cannot change or read what they share at the moment: try again")]
    Unavailable {
        /// Why, for the operator: it may name hosts.
        reason: Arc<str>,
    },
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

    /// Whether the error is a lack of space or inodes.
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
            // A file is missing.
            rocksdb::ErrorKind::IOError if error.as_ref().contains("No such file") => Self::index_damaged(error),
            rocksdb::ErrorKind::ShutdownInProgress => Self::Closed,
            // The caller adds the figures if it knows the path.
            _ if is_full_message(error.as_ref()) => Self::Full { free: 0, needed: 0 },
            _ => Self::io(error),
        }
    }
}

/// Whether an error's text is the system's message for a full disk. RocksDB passes on only the text.
fn is_full_message(text: &str) -> bool {
    [Errno::NOSPC, Errno::DQUOT].into_iter().any(|errno| {
        let message = std::io::Error::from(errno).to_string();
        message.split(" (os error").next().is_some_and(|message| text.contains(message))
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
    fn a_full_disk_is_distinguished_from_a_broken_one() {
        let table = [
            (
                "IO error: No space left on device: While appending to file: /store/000012.log: No space left on \
                 device",
                true,
            ),
            ("IO error: Disk quota exceeded: While open a file for appending", true),
            ("IO error: Input/output error: While fdatasync", false),
            ("", false),
        ];
        for (text, full) in table {
            assert_eq!(is_full_message(text), full, "{text}");
        }
    }
}
