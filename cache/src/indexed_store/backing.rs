//! [`Backing`]: the storage backend of a [`super::IndexedStore`] for values and pins.

use crate::disk::StoreError;
use crate::memory_index::Key;
use crate::pins::{PinId, PinRecord};
use crate::space::Space;
use bytes::Bytes;
use content::Cid;
use content::stored::{Shape, Stored};
use futures::future::{BoxFuture, FutureExt as _, ready};
use std::fmt;

/// A value to write.
#[derive(Debug)]
pub(crate) struct NewValue {
    pub(crate) key: Key,
    pub(crate) shape: Shape,
    /// The value in pieces, to avoid a copy.
    pub(crate) pieces: [Bytes; 2],
    /// Whether its bytes must be synced.
    pub(crate) durable: bool,
}

/// The position of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ScrubPosition {
    /// When the last complete pass ended, in milliseconds since 1970; 0 if there was none.
    pub(crate) ended_ms: u64,
    /// The last key checked by the pass in progress; empty if there is none.
    pub(crate) at: Vec<u8>,
}

/// A storage backend. All methods may block. Any thread may read; only the writer thread calls the other methods,
/// except those for the position of a scrub.
pub(crate) trait Backing: fmt::Debug + Send + Sync + 'static {
    /// Whether reads do I/O and must run on a blocking thread.
    const READS_BLOCK: bool;

    /// The size of a value in the store, in bytes, with its overhead.
    fn cost(&self, key: &[u8], value_bytes: usize) -> u64;

    /// The free space of the shared file system.
    fn space(&self) -> Result<Space, StoreError>;

    /// The error for an operation that needs `needed` bytes free.
    fn shortage_error(&self, space: Space, needed: u64) -> StoreError;

    /// Writes and deletes a small file; an error means that writes of values would fail as well.
    fn probe(&self) -> Result<(), StoreError>;

    /// Writes values, each atomically, replacing existing ones. Returns their results in order. No two have the same
    /// key.
    fn write(&self, values: &[NewValue]) -> Vec<Result<(), StoreError>>;

    /// Reads a value; `None` if there is none. [`StoreError::Corrupt`] if it differs from what was written.
    fn read(&self, key: &[u8]) -> Result<Option<Stored>, StoreError>;

    /// The form of a value, without reading all of it.
    fn shape(&self, key: &[u8]) -> Result<Option<Shape>, StoreError>;

    /// Deletes a value. A missing value is not an error.
    fn delete(&self, key: &[u8]) -> Result<(), StoreError>;

    /// Allocates a pin ID that was never used before.
    fn allocate_pin_id(&self) -> Result<PinId, StoreError>;

    /// Writes a pin's record, durably.
    fn write_pin(&self, root: &Cid, record: &PinRecord) -> Result<(), StoreError>;

    /// Adds members, with their sizes as blocks, to an existing pin. They are durable after the next sync.
    fn add_members(&self, pin: PinId, members: &[(Key, u64)]) -> Result<(), StoreError>;

    /// Removes a pin, durably.
    fn remove_pin(&self, pin: PinId) -> Result<(), StoreError>;

    /// Syncs the names of durable values and the members of pins.
    fn sync(&self) -> Result<(), StoreError>;

    /// Records that the store is closed. A read may keep it open for a moment longer.
    fn mark_closed(&self) {}

    /// Completes when this process has released the store.
    fn released(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    /// The position of the scrub. If it cannot be read, the scrub starts again.
    fn scrub_position(&self) -> ScrubPosition;

    /// Saves the position of the scrub.
    fn save_scrub_position(&self, position: &ScrubPosition);
}
