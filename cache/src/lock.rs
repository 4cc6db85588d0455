//! [`DirLock`]: a store's directory belongs to one owner at a time.
//!
//! Goals: a second process is refused at once; a store that this process has just closed can be opened again without a race.
//!
//! A store is closed when its last handle is gone, but the lock is freed later: a read on a blocking thread may hold the store
//! for a moment longer, and a child process that was forked meanwhile has the locked file open until it executes its program.
//! So the process keeps a table of the directories that it has locked. Opening a directory that is in use is refused at
//! once; opening one whose owner has closed it waits until the lock is free, for a bounded time.
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

/// The file that is locked.
const LOCK_FILE: &str = "causeway.lock";

/// How long an owner of this process that has closed a store may still hold it.
const RELEASE_MAX: Duration = Duration::from_secs(10);

/// A forked child closes its copy of the file without telling: the lock is tried again this often.
const RETRY_EVERY: Duration = Duration::from_millis(5);

/// The device and the inode of a lock file.
type Id = (u64, u64);

/// What this process has to do with a directory that it has or had locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// A store that is in use.
    Active,
    /// A store that was closed, and whose lock is free or soon will be.
    Closed,
}

/// The directories that this process locked. An entry stays when the lock is freed, for a forked child may still hold it.
static OWNERS: Mutex<Option<HashMap<Id, Owner>>> = Mutex::new(None);

/// Notified when this process has freed a lock.
static FREED: Condvar = Condvar::new();

fn owners() -> MutexGuard<'static, Option<HashMap<Id, Owner>>> {
    // Every change is one call: a panic leaves a table that is whole.
    OWNERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a directory is not locked.
#[derive(Debug)]
pub(crate) enum LockError {
    /// It has another owner.
    InUse,
    /// The file system does not lock files, or not this one.
    Unsupported,
    /// The lock file cannot be used.
    Io(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A locked directory. Dropping it frees the lock.
#[derive(Debug)]
pub(crate) struct DirLock {
    /// `None` once it is being dropped.
    file: Option<File>,
    id: Id,
    /// Cancelled when the lock is free.
    freed: CancellationToken,
}

impl DirLock {
    /// Locks a directory that is there. Blocks the thread while a predecessor of this process that has closed its store
    /// still holds the lock, for [`RELEASE_MAX`] at most.
    ///
    /// # Errors
    /// [`LockError`].
    pub(crate) fn take(dir: &Path) -> Result<Self, LockError> {
        Self::take_within(dir, RELEASE_MAX)
    }

    fn take_within(dir: &Path, patience: Duration) -> Result<Self, LockError> {
        let path = dir.join(LOCK_FILE);
        let deadline = Instant::now() + patience;
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            let metadata = file.metadata()?;
            let id = (metadata.dev(), metadata.ino());
            // Held while the lock is tried, so that an owner does not come or go between the two.
            let mut table = owners();
            let known = table.get_or_insert_default();
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    known.insert(id, Owner::Active);
                    return Ok(Self { file: Some(file), id, freed: CancellationToken::new() });
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
            drop(FREED.wait_timeout(table, RETRY_EVERY));
        }
    }

    /// Says that the store is closed: whoever opens it again waits until the lock is free.
    pub(crate) fn note_closed(&self) {
        owners().get_or_insert_default().insert(self.id, Owner::Closed);
    }

    /// Done when the lock is free, as far as this process is concerned.
    pub(crate) fn freed(&self) -> WaitForCancellationFutureOwned {
        self.freed.clone().cancelled_owned()
    }

    /// The file, to ask which file system it is on.
    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        let mut table = owners();
        self.file = None;
        table.get_or_insert_default().insert(self.id, Owner::Closed);
        FREED.notify_all();
        self.freed.cancel();
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
            let refused = DirLock::take_within(dir.path(), Duration::from_secs(3600));
            assert!(matches!(refused, Err(LockError::InUse)));
        }
        drop(lock);
        DirLock::take(dir.path()).expect("is free again");
    }

    #[test]
    fn a_closed_directory_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let lock = DirLock::take(dir.path()).expect("is free");
        lock.note_closed();
        let refused = DirLock::take_within(dir.path(), Duration::from_millis(20));
        assert!(matches!(refused, Err(LockError::InUse)), "not for ever");
        let (begun, waits) = mpsc::channel();
        let path = dir.path().to_owned();
        let successor = thread::spawn(move || {
            begun.send(()).expect("somebody listens");
            DirLock::take(&path).map(drop).is_ok()
        });
        waits.recv().expect("it runs");
        drop(lock);
        assert!(successor.join().expect("does not panic"));
    }

    /// What a child process is between `fork` and `exec`: somebody who has the same open file.
    #[test]
    fn a_copy_of_the_file_that_outlives_the_owner_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let lock = DirLock::take(dir.path()).expect("is free");
        let copy = lock.file().expect("is open").try_clone().expect("is copied");
        drop(lock);
        let refused = DirLock::take_within(dir.path(), Duration::from_millis(20));
        assert!(matches!(refused, Err(LockError::InUse)), "the copy keeps the lock");
        let path = dir.path().to_owned();
        let successor = thread::spawn(move || DirLock::take(&path).map(drop).is_ok());
        drop(copy);
        assert!(successor.join().expect("does not panic"));
    }
}
