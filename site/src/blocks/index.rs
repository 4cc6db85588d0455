//! [`BlockIndex`]: which blocks are in the shared storage, as which objects, and which pins have them.
//!
//! What a method changes is one transaction. One whose caller got an error, or has left, may have been carried out nonetheless,
//! also later: its sender does not know which.

use super::object::ObjectId;
use cache::{PinSummary, StoreError};
use content::stored::Shape;
use content::{BlockKey, Cid};
use futures::future::BoxFuture;
use std::fmt;
use std::time::Duration;

/// Identifies a pin within the site. It is never used again.
pub type PinId = u64;

/// An object that has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenObject {
    /// The object.
    pub object: ObjectId,
    /// Its size, in bytes.
    pub bytes: u32,
    /// The stored form of the block.
    pub shape: Shape,
}

/// A block that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRow {
    /// Its object.
    pub object: ObjectId,
    /// The size of the object, in bytes.
    pub bytes: u32,
    /// The stored form of the block; `None` if it is of a later release.
    pub shape: Option<Shape>,
}

/// A block of a pin that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostBlock {
    /// The block.
    pub key: BlockKey,
    /// Its size, in bytes.
    pub block_bytes: u32,
}

/// Which blocks of a slot are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// All that are stored.
    Stored,
    /// Those of them that pins have.
    Pinned,
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    /// The objects of the blocks as they are now. An object that was written and is not here is not that of a block:
    /// either the block has another one, which is here, or the object was not pending any more.
    Blocks(Vec<ObjectId>),
    /// There is no such pin any more. Nothing was changed.
    PinRemoved,
}

/// An attempt to complete a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinAttempt {
    /// The pin.
    pub id: PinId,
    /// Its root.
    pub root: Cid,
    /// How many blocks of the pin had been lost when the attempt began.
    pub losses: u64,
}

/// The result of an attempt to complete a pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishedPin {
    /// It is complete.
    Complete(Box<PinSummary>),
    /// Its root is not among its members.
    RootMissing,
    /// Blocks of it were lost meanwhile.
    Lost,
    /// It was removed meanwhile.
    Removed,
}

/// A block that was removed from the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictedObject {
    /// Its object, which is to be deleted.
    pub object: ObjectId,
    /// The size of the object, in bytes.
    pub bytes: u32,
}

/// Tells an index from another one of the same name, such as one that was created again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexIdentity {
    /// A random number.
    pub id: u64,
    /// Whether a storage has been marked as that of the index.
    pub is_marked: bool,
}

/// Amounts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexFigures {
    /// Blocks that pins have, and that are stored.
    pub pinned_blocks: u64,
    /// Their objects' size, in bytes.
    pub pinned_bytes: u64,
    /// Their size, in bytes.
    pub pinned_block_bytes: u64,
    /// Other blocks.
    pub cached_blocks: u64,
    /// Their objects' size, in bytes.
    pub cached_bytes: u64,
    /// Objects that are being written or deleted, or were left behind.
    pub pending_objects: u64,
    /// Complete pins.
    pub pins: u64,
    /// Partial pins.
    pub partial_pins: u64,
}

/// The index of the blocks of a site.
pub trait BlockIndex: Send + Sync + fmt::Debug {
    /// Records objects as pending, before they are written.
    ///
    /// # Errors
    /// [`StoreError`].
    fn register(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Makes written objects those of their blocks, and the blocks members of a pin. A block that has an object already
    /// keeps it, and the one that was written stays pending. An object that is not pending, or is marked to be deleted,
    /// does not become that of a block. There is one object for a block.
    ///
    /// # Errors
    /// [`StoreError`].
    fn commit(&self, written: Vec<WrittenObject>, pin: Option<PinId>) -> BoxFuture<'_, Result<Committed, StoreError>>;

    /// Makes those of the blocks that are stored members of a pin.
    ///
    /// # Errors
    /// [`StoreError`].
    fn add_members(&self, keys: Vec<BlockKey>, pin: PinId) -> BoxFuture<'_, Result<Committed, StoreError>>;

    /// Those of the blocks that are stored.
    ///
    /// # Errors
    /// [`StoreError`].
    fn locate(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<BlockRow>, StoreError>>;

    /// Counts blocks as used now. Which are evicted first depends on it.
    ///
    /// # Errors
    /// [`StoreError`].
    fn mark_used(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Records that the object of a block is missing or corrupt, if the block still has it. The object becomes pending,
    /// and marked to be deleted. The block stays a member of its pins, which become partial. Returns their roots;
    /// `None` if the block has another object or none.
    ///
    /// # Errors
    /// [`StoreError`].
    fn lose(&self, object: ObjectId) -> BoxFuture<'_, Result<Option<Vec<Cid>>, StoreError>>;

    /// Those of the blocks that pins have, also if they were lost.
    ///
    /// # Errors
    /// [`StoreError`].
    fn pinned(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<BlockKey>, StoreError>>;

    /// At most so many of the lost blocks of a root's pin, in the order of their keys, after one.
    ///
    /// # Errors
    /// [`StoreError`].
    fn lost(
        &self,
        root: Cid,
        after: Option<BlockKey>,
        blocks_max: u32,
    ) -> BoxFuture<'_, Result<Vec<LostBlock>, StoreError>>;

    /// The roots of pins that lost blocks within the given time.
    ///
    /// # Errors
    /// [`StoreError`].
    fn pins_with_losses(&self, within: Duration) -> BoxFuture<'_, Result<Vec<Cid>, StoreError>>;

    /// Removes some of the blocks that no pin has, those first that were used least recently, if all of their objects
    /// have more than the given size: at most so many, and not more than is necessary. Their objects become pending, and
    /// marked to be deleted. None are returned also while another gateway does the same.
    ///
    /// # Errors
    /// [`StoreError`].
    fn evict(&self, cached_bytes_max: u64, blocks_max: u32) -> BoxFuture<'_, Result<Vec<EvictedObject>, StoreError>>;

    /// Removes those of the blocks that no pin has. Their objects become pending, and marked to be deleted.
    ///
    /// # Errors
    /// [`StoreError`].
    fn evict_blocks(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<EvictedObject>, StoreError>>;

    /// Marks at most so many pending objects that have been so for the given time, and returns them: they are to be
    /// deleted. Returns each again after that time, until it is removed.
    ///
    /// # Errors
    /// [`StoreError`].
    fn sweep(&self, age: Duration, objects_max: u32) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>>;

    /// Removes pending objects, after they were deleted.
    ///
    /// # Errors
    /// [`StoreError`].
    fn remove_pending(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Records those of the objects that are neither a block's nor pending as pending, marked to be deleted, and
    /// returns them. A change and not a look-up: a server that was replaced answers look-ups, but accepts no changes.
    ///
    /// # Errors
    /// [`StoreError`].
    fn register_orphans(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>>;

    /// Those of the objects that are neither a block's nor pending. Changes nothing, so none of them may be deleted
    /// because of it.
    ///
    /// # Errors
    /// [`StoreError`].
    fn orphans(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>>;

    /// At most so many objects of the blocks of a slot ([`ObjectId::slot`]), in the order of their keys, after one.
    ///
    /// # Errors
    /// [`StoreError`].
    fn objects_of_slot(
        &self,
        slot: u8,
        which: Listed,
        after: Option<BlockKey>,
        objects_max: u32,
    ) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>>;

    /// Begins a pin, or resumes the root's existing one; a `name` replaces the existing one.
    ///
    /// # Errors
    /// [`StoreError`].
    fn begin_pin(&self, root: Cid, name: Option<String>) -> BoxFuture<'_, Result<PinAttempt, StoreError>>;

    /// Makes a pin complete, unless blocks of it were lost since the attempt began. The caller has added every block of
    /// the DAG in between.
    ///
    /// # Errors
    /// [`StoreError`].
    fn finish_pin(&self, attempt: PinAttempt) -> BoxFuture<'_, Result<FinishedPin, StoreError>>;

    /// The pin of a root after all changes that this index was asked for before.
    ///
    /// # Errors
    /// [`StoreError`].
    fn current_pin(&self, root: Cid) -> BoxFuture<'_, Result<Option<PinSummary>, StoreError>>;

    /// Removes the pin of a root, with this ID if one is given. Returns whether there was one. Its members are released by
    /// [`Self::release_members`].
    ///
    /// # Errors
    /// [`StoreError`].
    fn remove_pin(&self, root: Cid, id: Option<u64>) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Releases at most so many members of a removed pin. Blocks that no other pin has can be evicted from then on.
    /// Returns whether there may be more.
    ///
    /// # Errors
    /// [`StoreError`].
    fn release_members(&self, members_max: u32) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// The pin of a root.
    ///
    /// # Errors
    /// [`StoreError`].
    fn pin(&self, root: Cid) -> BoxFuture<'_, Result<Option<PinSummary>, StoreError>>;

    /// At most so many pins, in the order of their ids, after one.
    ///
    /// # Errors
    /// [`StoreError`].
    fn pins(&self, after: Option<PinId>, pins_max: u32) -> BoxFuture<'_, Result<Vec<PinSummary>, StoreError>>;

    /// Which index this is.
    ///
    /// # Errors
    /// [`StoreError`].
    fn identity(&self) -> BoxFuture<'_, Result<IndexIdentity, StoreError>>;

    /// Records that the storage is marked as that of the index.
    ///
    /// # Errors
    /// [`StoreError`].
    fn set_marked(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Amounts. Counts pins and pending objects, but not blocks.
    ///
    /// # Errors
    /// [`StoreError`].
    fn figures(&self) -> BoxFuture<'_, Result<IndexFigures, StoreError>>;
}
