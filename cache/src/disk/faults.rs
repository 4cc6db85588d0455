//! [`Faults`]: what tests make of the file system below a store: calls that fail, wholly or half-way, and a look at the disk
//! before each of them. Exists in tests alone.
//!
//! Non-goals: what RocksDB does with its own files, of which only the calls of [`super::store`] are met here; a real file
//! system that is full is in `tests/full.rs`.

use super::files::Volatile;
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::sync::{Mutex, MutexGuard};

/// What the store asks of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    /// A segment's file is made.
    Create,
    /// Values are written to a segment.
    Write,
    /// A segment is synced.
    Sync,
    /// The names of segments are synced.
    SyncNames,
    /// A value is read.
    Read,
    /// A segment's file is deleted.
    Delete,
    /// A batch is written to RocksDB.
    Batch,
    /// RocksDB's log is synced.
    SyncLog,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is done.
    Refused(Errno),
    /// Of what is to be written, the first half is. What is to be synced is lost, as after a failed write-back, of which
    /// systems tell only once. Any other call is refused.
    Half(Errno),
    /// It is done and said not to be, as when the sync fails that is part of it.
    Unheard(Errno),
}

impl Fault {
    pub(crate) fn error(self) -> io::Error {
        let (Self::Refused(errno) | Self::Half(errno) | Self::Unheard(errno)) = self;
        errno.into()
    }
}

thread_local! {
    /// What the process before left unsynced, for the next store that is opened on this thread.
    pub(crate) static INHERITED: Cell<Option<Volatile>> = const { Cell::new(None) };
    /// What is to happen while that is opened, and after.
    pub(crate) static OPENING: Cell<Option<Plan>> = const { Cell::new(None) };
}

pub(crate) type Plan = Box<dyn FnMut(Call) -> Option<Fault> + Send>;

/// What is to happen.
#[derive(Default)]
pub(crate) struct Faults {
    plan: Mutex<Option<Plan>>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}

impl Faults {
    /// Those that were planned for the store that is being opened.
    pub(super) fn opening() -> Self {
        Self { plan: OPENING.take().into() }
    }

    /// Asks this before every call from now on, on the thread that makes it.
    pub(crate) fn plan(&self, plan: impl FnMut(Call) -> Option<Fault> + Send + 'static) {
        *self.lock() = Some(Box::new(plan));
    }

    /// Refuses every call of a kind.
    pub(crate) fn refuse(&self, refused: Call, errno: Errno) {
        self.plan(move |call| (call == refused).then_some(Fault::Refused(errno)));
    }

    /// Lets everything succeed again.
    pub(crate) fn clear(&self) {
        *self.lock() = None;
    }

    /// What is to become of a call.
    pub(crate) fn meet(&self, call: Call) -> Option<Fault> {
        self.lock().as_mut().and_then(|plan| plan(call))
    }

    /// The same for calls that are either done or not.
    pub(crate) fn check(&self, call: Call) -> io::Result<()> {
        self.meet(call).map_or(Ok(()), |fault| Err(fault.error()))
    }

    /// What is to be written of `bytes`, and what is to be said then.
    pub(crate) fn cut<'a>(&self, bytes: &'a [u8]) -> (&'a [u8], io::Result<()>) {
        match self.meet(Call::Write) {
            None => (bytes, Ok(())),
            Some(fault @ Fault::Refused(_)) => (&[], Err(fault.error())),
            Some(fault @ Fault::Half(_)) => (&bytes[..bytes.len() / 2], Err(fault.error())),
            Some(fault @ Fault::Unheard(_)) => (bytes, Err(fault.error())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Plan>> {
        self.plan.lock().expect("no plan panics")
    }
}
