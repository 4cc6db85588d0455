//! [`MetadataLog`]: an ordered log of changes of metadata records, to which several services may append.
//!
//! Goals: a service that decides on the records as of one position, and appends what it decided, never overwrites a
//! change that it has not seen; one implementation for a single node, which costs it nothing, and room for one in a
//! database that several nodes share (docs/internals/metadata-log.md).
//!
//! Non-goals: the meaning of records; history. A log may drop old entries, since the records contain them.

use super::{Change, Salvage};
use crate::disk::StoreError;
use futures::future::BoxFuture;
use std::fmt;
use std::path::Path;
use tokio::sync::watch;

/// A position in a log: that of its latest entry that is known. The default is the beginning.
///
/// A number alone does not name an entry where a log can lose its latest entries, such as a database whose standby takes
/// over: then others get their numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// Increases with each entry.
    pub number: u64,
    /// A random identifier of the entry; 0 where entries cannot be lost.
    pub tag: u64,
}

impl LogPosition {
    /// A position in a log that does not lose entries.
    pub const fn untagged(number: u64) -> Self {
        Self { number, tag: 0 }
    }
}

/// Changes that were appended together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// The position of this entry.
    pub position: LogPosition,
    /// The changes, in their order.
    pub changes: Vec<Change>,
}

/// The result of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Appended {
    /// The changes are durable, and the latest entry of the log is here.
    At(LogPosition),
    /// Others have appended, and nothing was written. The oldest of their entries, at least one: the caller applies
    /// them and decides again.
    Behind(Vec<LogEntry>),
    /// Others have appended, and nothing was written. The log no longer has all of their entries: the caller reads the
    /// records again ([`MetadataLog::read`]) and decides again.
    Truncated,
}

/// An ordered log of changes of metadata records.
///
/// A state that is read at one position, with the entries after it applied in order, equals the state that is read at
/// the position of the last of them.
pub trait MetadataLog: fmt::Debug + Send + Sync {
    /// Calls `visit` with every record, in the order of keys, as of one position, which it returns. Blocks the thread.
    /// `visit` must not append, since the log may be locked.
    ///
    /// # Errors
    /// [`StoreError`]; the records that were visited before exist.
    fn read(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<LogPosition, StoreError>;

    /// Appends changes as one entry if the latest entry is at `after`: one transaction, atomic, and durable when it
    /// returns. Without changes nothing is appended: that tells whether the caller is behind.
    ///
    /// # Errors
    /// [`StoreError`]. The changes may have been appended nonetheless, and so they may if the future is dropped. Then
    /// the next append of the caller is behind, and returns them.
    fn append(&self, after: LogPosition, changes: Vec<Change>) -> BoxFuture<'static, Result<Appended, StoreError>>;

    /// The latest position, as a hint for services that wait for the changes of others. It may lag, or miss some.
    /// `None` if no other writer can append.
    fn watch(&self) -> Option<watch::Receiver<LogPosition>> {
        None
    }

    /// Whether every append fails, because the records are damaged and are served as they were read.
    fn is_read_only(&self) -> bool {
        false
    }

    /// What was salvaged when it was opened, if its files were damaged.
    fn salvage(&self) -> Option<&Salvage> {
        None
    }

    /// The directory of its files, if it has any.
    fn dir(&self) -> Option<&Path> {
        None
    }
}
