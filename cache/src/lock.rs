//! [`DirLock`]: an exclusive lock on a store's directory.
//!
//! Goals: a second process fails at once; a store that this process has just closed can be opened again without a race.
//!
//! A store is closed when its last handle is dropped, but the lock is released later: a read on a blocking thread may
//! keep the store open for a moment, and a forked child process has the locked file open until `exec`. So the process
//! keeps a table of the directories that it has locked. Opening a directory that is in use fails at once; opening one
//! whose owner has closed it waits until the lock is free, for a bounded time.
//!
//! Non-goals: locks across machines, which `flat::lock` adds.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The lock file.
const LOCK_FILE: &str = "causeway.lock";

/// The maximum wait for a lock whose owner in this process has closed its store.
const RELEASE_MAX: Duration = Duration::from_secs(10);

/// A forked child closes its copy of the file without a notification: the lock is polled at this interval.
const RETRY_EVERY: Duration = Duration::from_millis(5);

/// The device and the inode of a lock file.
type Id = (u64, u64);

/// The state of a directory that this process has or had locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The store is in use.
    Active,
    /// The store was closed; its lock is free or soon will be.
    Closed,
}

/// The directories that this process locked. An entry stays when the lock is released, since a forked child may still
/// hold it.
static OWNERS: Mutex<Option<HashMap<Id, Owner>>> = Mutex::new(None);

/// Notified when this process releases a lock.
static RELEASED: Condvar = Condvar::new();

fn owners() -> MutexGuard<'static, Option<HashMap<Id, Owner>>> {
    // Every change is one call, so that a panic leaves a consistent table.
    OWNERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a directory could not be locked.
#[derive(Debug)]
pub(crate) enum LockError {
    /// It is locked already.
    InUse,
    /// The file system does not support locking this file.
    Unsupported,
    /// The lock file cannot be used.
    Io(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A locked directory. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct DirLock {
    /// `None` while this is being dropped.
    file: Option<File>,
    id: Id,
    /// Cancelled when the lock is released.
    released: CancellationToken,
}

impl DirLock {
    /// Locks an existing directory. Blocks the thread while the lock is held by a store that this process has closed
    /// already, for [`RELEASE_MAX`] at most.
    ///
    /// # Errors
    /// [`LockError`].
    pub(crate) fn take(dir: &Path) -> Result<Self, LockError> {
        Self::take_with_timeout(dir, RELEASE_MAX)
    }

    fn take_with_timeout(dir: &Path, timeout: Duration) -> Result<Self, LockError> {
        let path = dir.join(LOCK_FILE);
        let deadline = Instant::now() + timeout;
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            let metadata = file.metadata()?;
            let id = (metadata.dev(), metadata.ino());
            // Locked until the attempt is done, so that the owner does not change in between.
            let mut table = owners();
            let known = table.get_or_insert_default();
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    known.insert(id, Owner::Active);
                    return Ok(Self { file: Some(file), id, released: CancellationToken::new() });
                }
                Err(Errno::WOULDBLOCK) => {}
                Err(Errno::NOLCK | Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => {
                    return Err(LockError::Unsupported);
                }
                Err(error) => return Err(LockError::Io(error.into())),
            }
            if known.get(&id) != Some(&Owner::Closed) || Instant::now() >= deadline {
                return Err(LockError::InUse);
            }
            drop(RELEASED.wait_timeout(table, RETRY_EVERY));
        }
    }

    /// Records that the store is closed: the next opener waits until the lock is free.
    pub(crate) fn mark_closed(&self) {
        owners().get_or_insert_default().insert(self.id, Owner::Closed);
    }

    /// Completes when this process has released the lock.
    pub(crate) fn released(&self) -> WaitForCancellationFutureOwned {
        self.released.clone().cancelled_owned()
    }

    /// The lock file, to find its file system.
    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        let mut table = owners();
        self.file = None;
        table.get_or_insert_default().insert(self.id, Owner::Closed);
        RELEASED.notify_all();
        self.released.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn a_directory_that_is_in_use_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let lock = DirLock::take(dir.path()).expect("is free");
        for _ in 0..2 {
            let refused = DirLock::take_with_timeout(dir.path(), Duration::from_secs(3600));
            assert!(matches!(refused, Err(LockError::InUse)));
        }
        drop(lock);
        DirLock::take(dir.path()).expect("is free again");
    }

    #[test]
    fn a_closed_directory_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let lock = DirLock::take(dir.path()).expect("is free");
        lock.mark_closed();
        let refused = DirLock::take_with_timeout(dir.path(), Duration::from_millis(20));
        assert!(matches!(refused, Err(LockError::InUse)), "the wait is bounded");
        let (begun, waits) = mpsc::channel();
        let path = dir.path().to_owned();
        let successor = thread::spawn(move || {
            begun.send(()).expect("the receiver exists");
            DirLock::take(&path).map(drop).is_ok()
        });
        waits.recv().expect("it runs");
        drop(lock);
        assert!(successor.join().expect("does not panic"));
    }

    /// Simulates a child process between `fork` and `exec`, which has the same open file.
    #[test]
    fn a_copy_of_the_file_that_outlives_the_owner_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let lock = DirLock::take(dir.path()).expect("is free");
        let copy = lock.file().expect("is open").try_clone().expect("is copied");
        drop(lock);
        let refused = DirLock::take_with_timeout(dir.path(), Duration::from_millis(20));
        assert!(matches!(refused, Err(LockError::InUse)), "the copy keeps the lock");
        let path = dir.path().to_owned();
        let successor = thread::spawn(move || DirLock::take(&path).map(drop).is_ok());
        drop(copy);
        assert!(successor.join().expect("does not panic"));
    }
}
