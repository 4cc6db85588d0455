//! [`Backing`]: where a [`super::LedgerStore`] keeps values and pins.

use crate::disk::StoreError;
use crate::ledger::Key;
use crate::pins::{PinId, PinRecord};
use crate::space::Space;
use crate::stored::{Shape, Stored};
use bytes::Bytes;
use content::Cid;
use futures::future::{BoxFuture, FutureExt as _, ready};
use std::fmt;

/// A value on its way.
#[derive(Debug)]
pub(crate) struct NewValue {
    pub(crate) key: Key,
    pub(crate) shape: Shape,
    /// In pieces, which are not copied before they have to be.
    pub(crate) pieces: [Bytes; 2],
    /// Whether its bytes are to be on the disk when it is found.
    pub(crate) durable: bool,
}

/// How far a scrub has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ScrubNote {
    /// When a pass last reached the end, in milliseconds since 1970; 0 if none has.
    pub(crate) ended_ms: u64,
    /// The last key that was checked of a pass that is under way; empty if none is.
    pub(crate) at: Vec<u8>,
}

/// Where values and pins are. Everything here may block. Reads come from any thread, all else from the writer's alone, but for
/// the notes of a scrub.
pub(crate) trait Backing: fmt::Debug + Send + Sync + 'static {
    /// Whether a read waits for anything, and so belongs on a thread that may block.
    const READS_BLOCK: bool;

    /// What a value takes, in bytes, with what is around it.
    fn cost(&self, key: &[u8], value_bytes: usize) -> u64;

    /// What is left of what others use as well.
    fn space(&self) -> Result<Space, StoreError>;

    /// Why there is no space, for who needs so many bytes left.
    fn shortage_error(&self, space: Space, needed: u64) -> StoreError;

    /// Writes a little, and takes it away again: an error says that values would meet it too.
    fn probe(&self) -> Result<(), StoreError>;

    /// Writes values, each as a whole or not at all, and in the place of a former one if there is one. What became of each is
    /// told in their order. No two have the same key.
    fn write(&self, values: &[NewValue]) -> Vec<Result<(), StoreError>>;

    /// Reads a value; `None` if there is none. [`StoreError::Corrupt`] means that it is not what was written.
    fn read(&self, key: &[u8]) -> Result<Option<Stored>, StoreError>;

    /// The form of a value, without reading all of it.
    fn shape(&self, key: &[u8]) -> Result<Option<Shape>, StoreError>;

    /// Deletes a value. One that is not there is no error.
    fn delete(&self, key: &[u8]) -> Result<(), StoreError>;

    /// A pin id that was never given before.
    fn take_pin(&self) -> Result<PinId, StoreError>;

    /// Writes what is known of a pin, durably.
    fn write_pin(&self, root: &Cid, record: &PinRecord) -> Result<(), StoreError>;

    /// Adds members, with their bytes as blocks, to a pin that was written. They are durable after the next sync.
    fn add_members(&self, pin: PinId, members: &[(Key, u64)]) -> Result<(), StoreError>;

    /// Takes a pin away, durably.
    fn remove_pin(&self, pin: PinId) -> Result<(), StoreError>;

    /// Forces to the disk which durable values there are, and the members of pins.
    fn sync(&self) -> Result<(), StoreError>;

    /// Takes note that the store is closed. A read may hold it for a moment longer.
    fn mark_closed(&self) {}

    /// Done when nothing in this process holds the store any more.
    fn released(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    /// How far the scrub has come. Advice that cannot be read is no advice.
    fn scrub_note(&self) -> ScrubNote;

    /// Notes it.
    fn note_scrub(&self, note: &ScrubNote);
}
