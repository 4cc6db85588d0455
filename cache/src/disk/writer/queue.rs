//! The writer's commands and their queue.

use super::super::schema::{PinId, Place};
use super::super::store::Store;
use super::super::{DiskOptions, StoreError};
use super::read_only::WriterState;
use crate::pins::{BegunPin, PinAttempt, PinChanges, PinError, PinSummary};
use crate::queue::{self, Reply, Room};
use crate::store::{Evict, Evicted, Stats};
use content::stored::{Slice, Stored};
use content::{Block, BlockKey, Cid};
use std::sync::Arc;

/// What the writer is asked to do.
pub(crate) enum Command {
    /// A change that is staged, and written together with those around it.
    Change(Change),
    /// A command before which all staged changes are written.
    Barrier(Barrier),
}

impl Command {
    /// Whether this reclaims disk space.
    pub(super) fn reclaims_space(&self) -> bool {
        use Barrier::{Compact, Evict, Remove, Shrink};
        matches!(self, Self::Barrier(Remove { .. } | Evict { .. } | Shrink { .. } | Compact { .. }))
    }
}

impl From<Change> for Command {
    fn from(change: Change) -> Self {
        Self::Change(change)
    }
}

impl From<Barrier> for Command {
    fn from(barrier: Barrier) -> Self {
        Self::Barrier(barrier)
    }
}

/// A change of blocks, pins or advisory rows.
pub(crate) enum Change {
    /// Caches a block.
    Cache { block: Block, room: Room },
    /// Replaces a pinned value, if it is still at that place.
    Replace { key: BlockKey, place: Place, value: Stored, room: Room },
    /// Writes an advisory row of `meta`, without a sync.
    PutMeta { key: &'static [u8], record: Vec<u8> },
    /// Begins a pin, or resumes the root's pin.
    Begin { root: Cid, name: Option<String>, reply: Reply<Result<BegunPin, StoreError>> },
    /// Begins a temporary pin, which protects blocks until it is released or the store is reopened.
    BeginTemporary { reply: Reply<Result<BegunPin, StoreError>> },
    /// Stores a block as a member of a pin.
    Member { block: Block, attempt: Arc<PinAttempt>, room: Room },
    /// Stores a block as a slice of a stored block, as a member of a pin.
    Slice { slice: Box<(BlockKey, Slice)>, attempt: Arc<PinAttempt>, room: Room },
    /// Adds a stored block as a member of a pin, without its bytes.
    StoredMember { cid: Cid, attempt: Arc<PinAttempt>, room: Room },
    /// Marks a pin complete, if all of its members were written.
    Finish { attempt: Arc<PinAttempt>, reply: Reply<Result<PinSummary, PinError>> },
}

/// A command that needs the earlier changes on the disk.
pub(crate) enum Barrier {
    /// Deletes a block whose value could not be read, if it is corrupt.
    DropCorrupt { key: BlockKey, room: Room },
    /// Deletes blocks.
    Evict { keys: Vec<BlockKey>, which: Evict, reply: Reply<Result<Evicted, StoreError>> },
    /// Evicts some of the oldest cached blocks, and replies whether more must be evicted.
    Shrink { cached_bytes: u64, reply: Reply<Result<bool, StoreError>> },
    /// Garbage-collects every worthwhile pinned segment, and replies like `Flush`.
    Compact { reply: Reply<Result<(), StoreError>> },
    /// Makes pins with missing blocks partial.
    MarkPartial { roots: Vec<Cid>, reply: Reply<Result<(), StoreError>> },
    /// Removes a pin, with this ID if one is given; its members are unpinned later.
    Remove { root: Cid, id: Option<u64>, reply: Reply<Result<bool, StoreError>> },
    /// Releases a temporary pin.
    Release { pin: PinId },
    /// Replies when all earlier writes are readable.
    Written { reply: Reply<()> },
    /// Replies when all earlier work is done and synced.
    Flush { reply: Reply<Result<(), StoreError>> },
    /// Syncs, and stops the thread.
    Close { reply: Reply<Result<(), StoreError>> },
}

/// The writer's queue.
pub(crate) type Queue = queue::Queue<Command>;

/// Starts the writer.
pub(crate) fn start(
    store: Arc<Store>,
    stats: Arc<Stats>,
    changes: Arc<PinChanges>,
    options: &DiskOptions,
) -> Result<Queue, StoreError> {
    Queue::start(
        options.queue_bytes_max,
        |room| WriterState::new(store, stats, changes, options, room),
        WriterState::run,
    )
}
