//! [`Database`]: a RocksDB that serves reads even if the disk has no space to open it for writing.
//!
//! Goals: opening for writing needs space, for a new write-ahead log, a manifest and the data recovered from the old
//! log. Without that space, the database is opened read-only, and reopened for writing later without closing it.
//!
//! How: the read-only instance stays open until the process ends, so that readers are not interrupted; later calls use
//! the writable one. Nothing is written in between, so both have the same contents.
//!
//! Non-goals: recovering from corruption, which fails as usual.

use crate::error::StoreError;
use rocksdb::{ColumnFamily, DB, Options};
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// How a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    Write,
}

/// The base options of every database. By default, RocksDB preallocates megabytes for each new file; on a nearly full
/// disk, one file would take all the space and the next would fail.
pub(crate) fn options() -> Options {
    Options::default().get_options_from_string("allow_fallocate=false").unwrap_or_default()
}

/// Opens the database.
type Open = Box<dyn Fn(Access) -> Result<DB, rocksdb::Error> + Send + Sync>;

/// See the module documentation.
pub(crate) struct Database {
    /// The instance that was opened first.
    first: DB,
    /// The writable instance, if it was opened later.
    writable: OnceLock<DB>,
    /// Held while the database is opened for writing.
    opening: Mutex<()>,
    /// `None` if the first instance is writable.
    open: Option<Open>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("is_writable", &self.is_writable()).finish_non_exhaustive()
    }
}

impl Database {
    /// Opens a database for writing, or read-only if there is no space.
    pub(crate) fn open(
        open: impl Fn(Access) -> Result<DB, rocksdb::Error> + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        match open(Access::Write).map_err(StoreError::from) {
            Ok(first) => Ok(Self { first, writable: OnceLock::new(), opening: Mutex::default(), open: None }),
            Err(full @ StoreError::Full { .. }) => {
                // A database that does not exist yet cannot be opened read-only either.
                let first = open(Access::ReadOnly).map_err(|_| full)?;
                let open: Option<Open> = Some(Box::new(open));
                Ok(Self { first, writable: OnceLock::new(), opening: Mutex::default(), open })
            }
            Err(error) => Err(error),
        }
    }

    /// The current instance.
    pub(crate) fn now(&self) -> &DB {
        self.writable.get().unwrap_or(&self.first)
    }

    /// The current instance with one of its column families; family handles are valid for one instance only.
    pub(crate) fn family(&self, name: &str) -> Result<(&DB, &ColumnFamily), StoreError> {
        let db = self.now();
        let family = db.cf_handle(name);
        Ok((db, family.ok_or_else(|| StoreError::corrupt(format!("column family {name} is missing")))?))
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.open.is_none() || self.writable.get().is_some()
    }

    /// Opens the database for writing, unless it is.
    ///
    /// # Errors
    /// [`StoreError::Full`] while there is no space; reads still work.
    pub(crate) fn make_writable(&self) -> Result<(), StoreError> {
        if self.is_writable() {
            return Ok(());
        }
        let _guard = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = self.open.as_ref().filter(|_| self.writable.get().is_none()) {
            _ = self.writable.set(open(Access::Write)?);
        }
        Ok(())
    }
}
