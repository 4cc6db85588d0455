//! [`Database`]: a RocksDB that serves reads although the disk has no space to open it for writing.
//!
//! Goals: opening for writing needs space, for a log and a manifest of its own and for what is recovered from the former log;
//! where there is none, the database is opened for reading alone, and for writing later, in the place where it is.
//!
//! How: the database that is open for reading is kept until the process ends, so that whoever reads goes on; every later call
//! meets the one that is open for writing. Nothing is written in between, so both hold the same.
//!
//! Non-goals: damage, which fails as before.

use crate::error::StoreError;
use rocksdb::{ColumnFamily, DB, Options};
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// How a database is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    Write,
}

/// What every database begins with. RocksDB allocates megabytes for each file that it is about to write; where there is less left,
/// one file is given all of it and the next one none.
pub(crate) fn options() -> Options {
    Options::default().get_options_from_string("allow_fallocate=false").unwrap_or_default()
}

/// Opens it.
type Open = Box<dyn Fn(Access) -> Result<DB, rocksdb::Error> + Send + Sync>;

/// See the module.
pub(crate) struct Database {
    /// The first that was opened.
    first: DB,
    /// The one that is open for writing, if that came later.
    writable: OnceLock<DB>,
    /// Held by the thread that opens it for writing.
    opening: Mutex<()>,
    /// `None` if the first is open for writing.
    open: Option<Open>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("is_writable", &self.is_writable()).finish_non_exhaustive()
    }
}

impl Database {
    /// Opens a database for writing, or for reading where there is no space for that.
    pub(crate) fn open(
        open: impl Fn(Access) -> Result<DB, rocksdb::Error> + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        match open(Access::Write).map_err(StoreError::from) {
            Ok(first) => Ok(Self { first, writable: OnceLock::new(), opening: Mutex::default(), open: None }),
            Err(full @ StoreError::Full { .. }) => {
                // One that is not there yet cannot be read either.
                let first = open(Access::ReadOnly).map_err(|_| full)?;
                let open: Option<Open> = Some(Box::new(open));
                Ok(Self { first, writable: OnceLock::new(), opening: Mutex::default(), open })
            }
            Err(error) => Err(error),
        }
    }

    /// The database, as it is open now.
    pub(crate) fn now(&self) -> &DB {
        self.writable.get().unwrap_or(&self.first)
    }

    /// The database with one of its families: both as they are open now, for a handle of one is none of the other.
    pub(crate) fn family(&self, name: &str) -> Result<(&DB, &ColumnFamily), StoreError> {
        let db = self.now();
        let family = db.cf_handle(name);
        Ok((db, family.ok_or_else(|| StoreError::corrupt(format!("column family {name} is missing")))?))
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.open.is_none() || self.writable.get().is_some()
    }

    /// Opens it for writing if it is not.
    ///
    /// # Errors
    /// [`StoreError::Full`] while there is no space; whoever reads goes on.
    pub(crate) fn make_writable(&self) -> Result<(), StoreError> {
        if self.is_writable() {
            return Ok(());
        }
        let _one_at_a_time = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = self.open.as_ref().filter(|_| self.writable.get().is_none()) {
            _ = self.writable.set(open(Access::Write)?);
        }
        Ok(())
    }
}
