//! [`Faults`]: fault injection for tests: file system calls of a store that fail wholly or partially, and hooks before
//! each of them. Compiled for tests only.
//!
//! Non-goals: RocksDB's own file operations, of which only the calls in [`super::store`] are covered; a real full file
//! system, which `tests/full.rs` uses.

use super::files::Volatile;
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::sync::{Mutex, MutexGuard};

/// A file system call of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    /// Creates a segment's file.
    Create,
    /// Writes values to a segment.
    Write,
    /// Syncs a segment.
    Sync,
    /// Syncs the directory of segments.
    SyncNames,
    /// Reads a value.
    Read,
    /// Deletes a segment's file.
    Delete,
    /// Writes a batch to RocksDB.
    Batch,
    /// Syncs RocksDB's log.
    SyncLog,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call has no effect.
    Refused(Errno),
    /// A write writes only the first half. A sync loses the data, as after a failed writeback, which systems report
    /// only once. Any other call has no effect.
    Half(Errno),
    /// The call takes effect but returns an error, as when its implicit sync fails.
    Unheard(Errno),
}

impl Fault {
    pub(crate) fn error(self) -> io::Error {
        let (Self::Refused(errno) | Self::Half(errno) | Self::Unheard(errno)) = self;
        errno.into()
    }
}

thread_local! {
    /// Unsynced writes of the previous process, for the next store opened on this thread.
    pub(crate) static INHERITED: Cell<Option<Volatile>> = const { Cell::new(None) };
    /// The faults while that store is opened, and after.
    pub(crate) static OPENING: Cell<Option<Plan>> = const { Cell::new(None) };
}

pub(crate) type Plan = Box<dyn FnMut(Call) -> Option<Fault> + Send>;

/// The injected faults.
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
    /// The faults planned for the store that is being opened.
    pub(super) fn opening() -> Self {
        Self { plan: OPENING.take().into() }
    }

    /// Runs `plan` before every later call, on the calling thread.
    pub(crate) fn plan(&self, plan: impl FnMut(Call) -> Option<Fault> + Send + 'static) {
        *self.lock() = Some(Box::new(plan));
    }

    /// Fails every call of a kind.
    pub(crate) fn refuse(&self, refused: Call, errno: Errno) {
        self.plan(move |call| (call == refused).then_some(Fault::Refused(errno)));
    }

    /// Removes all faults.
    pub(crate) fn clear(&self) {
        *self.lock() = None;
    }

    /// The fault of a call, if there is one.
    pub(crate) fn inject(&self, call: Call) -> Option<Fault> {
        self.lock().as_mut().and_then(|plan| plan(call))
    }

    /// The same for calls that cannot fail partially.
    pub(crate) fn check(&self, call: Call) -> io::Result<()> {
        self.inject(call).map_or(Ok(()), |fault| Err(fault.error()))
    }

    /// The part of `bytes` to write, and the result to return.
    pub(crate) fn truncate_write<'a>(&self, bytes: &'a [u8]) -> (&'a [u8], io::Result<()>) {
        match self.inject(Call::Write) {
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
