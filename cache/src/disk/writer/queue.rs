//! What the writer can be asked for, and the way to it.

use super::super::schema::{PinId, Place};
use super::super::store::Store;
use super::super::{DiskOptions, StoreError};
use super::waiting::Start;
use crate::pins::{Attempt, Begun, PinChanges, PinError, PinSummary};
use crate::queue::{self, Reply, Room};
use crate::store::{Evict, Evicted, Stats};
use crate::stored::Stored;
use content::{Block, BlockKey, Cid};
use std::sync::Arc;

pub(crate) enum Command {
    /// Keep a block while there is room.
    Cache { block: Block, room: Room },
    /// Forget a block whose value could not be read.
    Forget { key: BlockKey, room: Room },
    /// Forget blocks that somebody wants gone.
    Evict { keys: Vec<BlockKey>, which: Evict, reply: Reply<Result<Evicted, StoreError>> },
    /// Remove some of the oldest cached blocks, and say whether more are to go.
    Shrink { cached_bytes: u64, reply: Reply<Result<bool, StoreError>> },
    /// Put another value in the place of a pinned one, if that is still there.
    Replace { key: BlockKey, place: Place, value: Stored, room: Room },
    /// Write a row of `meta`, with no hurry.
    Remember { key: &'static [u8], record: Vec<u8> },
    /// Collect every pinned segment that is worth it, and answer as to `Flush`.
    Compact { reply: Reply<Result<(), StoreError>> },
    /// Begin a pin, or go on with the one that this root has.
    Begin { root: Cid, name: Option<String>, reply: Reply<Result<Begun, StoreError>> },
    /// Begin a temporary pin: a pin without a root or record that protects blocks until it is released or the store reopened.
    BeginTemporary { reply: Reply<Result<Begun, StoreError>> },
    /// Keep a block as a member of a pin.
    Member { block: Block, attempt: Arc<Attempt>, room: Room },
    /// The same for a block without links that is here and was not read for it.
    Held { cid: Cid, attempt: Arc<Attempt>, room: Room },
    /// Mark a pin complete, if all of its members were written.
    Finish { attempt: Arc<Attempt>, reply: Reply<Result<PinSummary, PinError>> },
    /// Make pins partial that were found to lack blocks.
    Lacking { roots: Vec<Cid>, reply: Reply<Result<(), StoreError>> },
    /// Take a pin away; its members are let go later.
    Remove { root: Cid, reply: Reply<Result<bool, StoreError>> },
    /// Let go of a temporary pin.
    Release { pin: PinId },
    /// Answer when everything before can be read.
    Written { reply: Reply<()> },
    /// Answer when everything before is on the disk.
    Flush { reply: Reply<Result<(), StoreError>> },
    /// The same, and stop.
    Close { reply: Reply<Result<(), StoreError>> },
}

/// The way to the writer.
pub(crate) type Queue = queue::Queue<Command>;

/// Starts the writer.
pub(crate) fn start(
    store: Arc<Store>,
    stats: Arc<Stats>,
    changes: Arc<PinChanges>,
    options: &DiskOptions,
) -> Result<Queue, StoreError> {
    Queue::start(options.queue_bytes_max, |room| Start::new(store, stats, changes, options, room), Start::run)
}
