//! [`SharedBlocks`]: the steps by which blocks are stored, read, evicted and reconciled.

use super::index::{
    BlockIndex, BlockRow, Committed, EvictedObject, FinishedPin, IndexFigures, Listed, LostBlock, PinAttempt, PinId,
    WrittenObject,
};
use super::object::{self, Content, ObjectId};
use cache::pins::PinChanges;
use cache::{Evicted, PinError, PinSummary, StoreError};
use content::stored::Stored;
use content::{BlockKey, Cid};
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use objects::{ObjectError, Objects};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Blocks that are written, looked up or evicted in one transaction.
const BATCH: u32 = 256;
/// Objects that are written, read or deleted at the same time, for one call.
const CONCURRENCY: usize = 16;
/// Deletions that fail one after the other until no further ones are tried.
const FAILURES_MAX: usize = 16;
/// Blocks that are searched for in the storage at the same time, for all calls: each lists names.
const SEARCHES: usize = 8;
/// Those that are searched for or wait for it. More are not searched for.
const SEARCH_PLACES: usize = 64;
/// How often a write is repeated because its objects were no longer pending: it had been paused for [`PENDING_AGE`].
const WRITES_MAX: usize = 3;
/// How often a block is looked up again because its object has been replaced.
const READS_MAX: usize = 3;
/// For how long an object may be pending before it counts as left behind. It bounds what a gateway that has stopped
/// leaves in the storage; that nothing is lost does not depend on it.
const PENDING_AGE: Duration = Duration::from_secs(3600);

/// A block in its stored form.
#[derive(Debug, Clone)]
pub struct SharedBlock {
    /// The block.
    pub key: BlockKey,
    /// Its stored form. The block has been verified by its hash.
    pub stored: Stored,
}

/// What reconciling a slot has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Objects in the storage.
    pub objects: u64,
    /// Those of them that the index did not know, and that were deleted.
    pub orphans: u64,
    /// Whether there are more of them than were to be deleted.
    pub has_more_orphans: bool,
    /// Names that are not those of objects, which are left alone.
    pub foreign: u64,
    /// Blocks whose objects were missing or damaged.
    pub lost: u64,
}

impl AddAssign for Reconciled {
    fn add_assign(&mut self, other: Self) {
        let Self { objects, orphans, has_more_orphans, foreign, lost } = other;
        self.objects += objects;
        self.orphans += orphans;
        self.has_more_orphans |= has_more_orphans;
        self.foreign += foreign;
        self.lost += lost;
    }
}

/// What becomes of the differences between the storage and the index.
#[derive(Debug, Clone, Copy)]
enum Repair {
    /// Nothing.
    None,
    /// Orphans are deleted, up to a number, and blocks without an object are recorded as lost.
    Deleting { orphans_max: u64 },
}

/// The result of reading a block that the index has.
enum Read {
    /// The block.
    Found(Stored),
    /// The index does not have it any more.
    Missing,
    /// Its object is missing or damaged, which this has recorded.
    Lost,
}

impl Read {
    fn stored(self) -> Option<Stored> {
        match self {
            Self::Found(stored) => Some(stored),
            Self::Missing | Self::Lost => None,
        }
    }
}

/// The blocks of a site. Clones are handles to the same ones.
#[derive(Debug, Clone)]
pub struct SharedBlocks {
    index: Arc<dyn BlockIndex>,
    objects: Arc<dyn Objects>,
    /// What the storage is marked with.
    mark: Arc<str>,
    searches: Arc<Semaphore>,
    search_places: Arc<Semaphore>,
    pending_age: Duration,
    generations: Generations,
    /// Whom losses are reported to.
    changes: Option<Arc<PinChanges>>,
}

/// Where generations come from.
#[derive(Clone)]
struct Generations(Arc<dyn Fn() -> Result<u64, StoreError> + Send + Sync>);

impl fmt::Debug for Generations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Generations")
    }
}

impl SharedBlocks {
    /// Opens the blocks of a site. The storage is marked as that of the site when it is opened for the first time, and
    /// has to have the mark from then on.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: the index or the storage cannot be reached, or the storage is not that of the site.
    pub async fn open(index: Arc<dyn BlockIndex>, objects: Arc<dyn Objects>, site: &str) -> Result<Self, StoreError> {
        let identity = index.identity().await?;
        // The number tells the index from another one of the same name, whose gateways would delete what it does not
        // know.
        let mark: Arc<str> = format!("{site} {:016x}", identity.id).into();
        match identity.is_marked {
            true => objects::require_marker(&*objects, &mark).await.map_err(unavailable)?,
            false => {
                objects::check_marker(&*objects, &mark).await.map_err(unavailable)?;
                index.set_marked().await?;
            }
        }
        let generations = Generations(Arc::new(random_number));
        let [searches, search_places] = [SEARCHES, SEARCH_PLACES].map(|permits| Arc::new(Semaphore::new(permits)));
        Ok(Self { index, objects, mark, searches, search_places, pending_age: PENDING_AGE, generations, changes: None })
    }

    /// What the storage is marked with.
    pub fn mark(&self) -> &Arc<str> {
        &self.mark
    }

    /// The same with another age of pending objects.
    #[must_use]
    pub fn with_pending_age(mut self, age: Duration) -> Self {
        self.pending_age = age;
        self
    }

    /// The same, which reports the roots of pins that it finds to have lost a block, for any reader.
    #[must_use]
    pub fn reporting_to(self, changes: Arc<PinChanges>) -> Self {
        Self { changes: Some(changes), ..self }
    }

    /// The same with generations that are not random, but as unique.
    #[cfg(test)]
    pub(super) fn with_generations(
        mut self,
        generate: impl Fn() -> Result<u64, StoreError> + Send + Sync + 'static,
    ) -> Self {
        self.generations = Generations(Arc::new(generate));
        self
    }

    /// Stores blocks that are not stored yet, as members of a pin if one is given. They are durable when this returns.
    /// Fewer may be stored if it fails or is dropped.
    ///
    /// # Errors
    /// [`PinError::Store`], [`PinError::Removed`].
    pub async fn put(&self, blocks: Vec<SharedBlock>, pin: Option<&PinAttempt>) -> Result<(), PinError> {
        self.put_all(blocks, pin, true).await
    }

    /// The same for blocks that were not stored a moment ago: they are not looked up before they are written.
    ///
    /// # Errors
    /// The same.
    pub async fn put_new(&self, blocks: Vec<SharedBlock>, pin: Option<&PinAttempt>) -> Result<(), PinError> {
        self.put_all(blocks, pin, false).await
    }

    async fn put_all(
        &self,
        blocks: Vec<SharedBlock>,
        pin: Option<&PinAttempt>,
        may_be_stored: bool,
    ) -> Result<(), PinError> {
        // Each once, and in one order for all gateways, so that transactions do not wait for each other in a circle.
        let blocks: BTreeMap<BlockKey, Stored> = blocks.into_iter().map(|block| (block.key, block.stored)).collect();
        let mut blocks = blocks.into_iter();
        loop {
            let batch: BTreeMap<_, _> = blocks.by_ref().take(BATCH as usize).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.put_batch(batch, pin, may_be_stored).await?;
        }
    }

    async fn put_batch(
        &self,
        mut rest: BTreeMap<BlockKey, Stored>,
        pin: Option<&PinAttempt>,
        may_be_stored: bool,
    ) -> Result<(), PinError> {
        for attempt in 0..WRITES_MAX {
            if may_be_stored || attempt > 0 {
                for key in self.already_stored(rest.keys().copied().collect(), pin).await? {
                    rest.remove(&key);
                }
            }
            if !rest.is_empty() {
                for key in self.write(&rest, pin).await? {
                    rest.remove(&key);
                }
            }
            if rest.is_empty() {
                return Ok(());
            }
        }
        Err(StoreError::Busy.into())
    }

    /// Those of the blocks that are stored; they become members of the pin.
    async fn already_stored(&self, keys: Vec<BlockKey>, pin: Option<&PinAttempt>) -> Result<Vec<BlockKey>, PinError> {
        let Some(pin) = pin else {
            return Ok(self.index.locate(keys).await?.iter().map(|row| row.object.key).collect());
        };
        match self.index.add_members(keys, pin.id).await? {
            Committed::Blocks(objects) => Ok(objects.iter().map(|object| object.key).collect()),
            Committed::PinRemoved => Err(PinError::Removed { root: pin.root }),
        }
    }

    /// Writes blocks. Returns those that are stored now.
    async fn write(
        &self,
        blocks: &BTreeMap<BlockKey, Stored>,
        pin: Option<&PinAttempt>,
    ) -> Result<Vec<BlockKey>, PinError> {
        let written = self.write_objects(blocks).await?;
        self.commit(written, pin).await
    }

    /// Writes blocks that are not stored, as objects that are no block's: they are pending until they are committed
    /// ([`Self::commit`]) or discarded ([`Self::discard`]), or swept when they are old.
    ///
    /// # Errors
    /// [`StoreError`]; none of them stays then.
    pub async fn write_pending(&self, blocks: Vec<SharedBlock>) -> Result<Vec<WrittenObject>, StoreError> {
        let blocks: BTreeMap<BlockKey, Stored> = blocks.into_iter().map(|block| (block.key, block.stored)).collect();
        self.write_objects(&blocks).await
    }

    async fn write_objects(&self, blocks: &BTreeMap<BlockKey, Stored>) -> Result<Vec<WrittenObject>, StoreError> {
        let attempts = blocks
            .iter()
            .map(|(key, stored)| Ok((ObjectId { key: *key, generation: (self.generations.0)()? }, stored)));
        let attempts = attempts.collect::<Result<Vec<_>, StoreError>>()?;
        let new: Vec<ObjectId> = attempts.iter().map(|(object, _)| *object).collect();
        self.index.register(new.clone()).await?;
        let writing = attempts.iter().map(|(object, stored)| self.write_object(*object, stored).boxed());
        match concurrently(writing.collect()).await {
            Ok(written) => Ok(written),
            Err(error) => {
                self.discard(new).await;
                Err(error)
            }
        }
    }

    /// Makes objects that were written, at most 256, those of their blocks, and the blocks members of a pin if one is
    /// given. Returns the blocks that are stored now, also as other objects. One that is not among them has to be written
    /// again, because its object was not pending any more.
    ///
    /// # Errors
    /// [`PinError::Store`], [`PinError::Removed`].
    pub async fn commit(
        &self,
        written: Vec<WrittenObject>,
        pin: Option<&PinAttempt>,
    ) -> Result<Vec<BlockKey>, PinError> {
        let new: Vec<ObjectId> = written.iter().map(|written| written.object).collect();
        match self.index.commit(written, pin.map(|pin| pin.id)).await? {
            Committed::Blocks(objects) => {
                let objects: BTreeSet<ObjectId> = objects.into_iter().collect();
                let stored: BTreeSet<BlockKey> = objects.iter().map(|object| object.key).collect();
                // Another gateway was faster.
                let is_needless = |object: &ObjectId| stored.contains(&object.key) && !objects.contains(object);
                self.discard(new.into_iter().filter(is_needless).collect()).await;
                Ok(stored.into_iter().collect())
            }
            Committed::PinRemoved => {
                self.discard(new).await;
                Err(pin.map_or(StoreError::Closed.into(), |pin| PinError::Removed { root: pin.root }))
            }
        }
    }

    /// Deletes objects that were written or attempted to, and that are not those of blocks: no commit of them was asked
    /// for, or it has said so. Those with which that fails are swept later.
    pub async fn discard(&self, objects: Vec<ObjectId>) {
        if let Err(error) = self.delete(objects).await {
            tracing::debug!(%error, "some objects that are not needed could not be deleted, and are swept later");
        }
    }

    async fn write_object(&self, object: ObjectId, stored: &Stored) -> Result<WrittenObject, StoreError> {
        let content = object::encode(&object.key, stored.value());
        let content = content.ok_or_else(|| StoreError::Io("a block is too long for an object".into()))?;
        let bytes = u32::try_from(content.len()).unwrap_or(u32::MAX);
        self.objects.put(&object.name(), content).await.map_err(unavailable)?;
        Ok(WrittenObject { object, bytes, shape: stored.shape() })
    }

    /// Makes those of the blocks that are stored members of a pin, and returns them. They are durable when this returns.
    ///
    /// # Errors
    /// [`PinError::Store`], [`PinError::Removed`].
    pub async fn add_members(&self, keys: Vec<BlockKey>, pin: &PinAttempt) -> Result<Vec<BlockKey>, PinError> {
        // In one order for all gateways.
        let keys: BTreeSet<BlockKey> = keys.into_iter().collect();
        let (keys, mut members) = (Vec::from_iter(keys), Vec::new());
        for keys in keys.chunks(BATCH as usize) {
            members.extend(self.already_stored(keys.to_vec(), Some(pin)).await?);
        }
        Ok(members)
    }

    /// Reads blocks, in the order of their keys; `None` for one that is not stored. While the index cannot be reached,
    /// the storage is searched for each.
    ///
    /// # Errors
    /// [`StoreError`], for each block.
    pub async fn get(&self, keys: &[BlockKey]) -> Vec<Result<Option<Stored>, StoreError>> {
        match self.locate(keys).await {
            Ok(rows) => self.read_all(keys, &rows).await,
            // The index can be reached.
            Err(StoreError::Busy) => vec![Err(StoreError::Busy); keys.len()],
            Err(error) => {
                tracing::debug!(%error, "blocks are searched for in the storage");
                in_order(keys.iter().map(|key| self.find(*key).boxed()).collect()).await
            }
        }
    }

    /// The same, but does not search the storage: fails while the index cannot be reached.
    ///
    /// # Errors
    /// [`StoreError`], for each block.
    pub async fn get_indexed(&self, keys: &[BlockKey]) -> Vec<Result<Option<Stored>, StoreError>> {
        match self.locate(keys).await {
            Ok(rows) => self.read_all(keys, &rows).await,
            Err(error) => vec![Err(error); keys.len()],
        }
    }

    async fn read_all(
        &self,
        keys: &[BlockKey],
        rows: &BTreeMap<BlockKey, BlockRow>,
    ) -> Vec<Result<Option<Stored>, StoreError>> {
        let read = |key| self.read(rows.get(key).copied()).map(|read| Ok(read?.stored())).boxed();
        in_order(keys.iter().map(read).collect()).await
    }

    /// Those of the blocks that are stored, as the index says. Reads no objects.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn locate(&self, keys: &[BlockKey]) -> Result<BTreeMap<BlockKey, BlockRow>, StoreError> {
        let rows = self.index.locate(keys.to_vec()).await?;
        Ok(rows.into_iter().map(|row| (row.object.key, row)).collect())
    }

    /// Those of the blocks that pins have, also if they were lost.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pinned(&self, keys: Vec<BlockKey>) -> Result<Vec<BlockKey>, StoreError> {
        self.index.pinned(keys).await
    }

    /// At most so many of the lost blocks of a root's pin, in the order of their keys, after one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lost(
        &self,
        root: Cid,
        after: Option<BlockKey>,
        blocks_max: u32,
    ) -> Result<Vec<LostBlock>, StoreError> {
        self.index.lost(root, after, blocks_max).await
    }

    /// The roots of pins that lost blocks within the given time, whichever gateway has found it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pins_with_losses(&self, within: Duration) -> Result<Vec<Cid>, StoreError> {
        self.index.pins_with_losses(within).await
    }

    /// The keys of at most so many blocks of a slot, in their order, after one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn keys_of_slot(
        &self,
        slot: u8,
        which: Listed,
        after: Option<BlockKey>,
        keys_max: u32,
    ) -> Result<Vec<BlockKey>, StoreError> {
        let objects = self.index.objects_of_slot(slot, which, after, keys_max).await?;
        Ok(objects.iter().map(|object| object.key).collect())
    }

    /// Counts blocks as used, so that they are evicted later.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn mark_used(&self, keys: Vec<BlockKey>) -> Result<(), StoreError> {
        self.index.mark_used(keys).await
    }

    /// Reads a block that the index has.
    async fn read(&self, row: Option<BlockRow>) -> Result<Read, StoreError> {
        let Some(BlockRow { mut object, .. }) = row else { return Ok(Read::Missing) };
        let mut failed = None;
        for _ in 0..READS_MAX {
            if let Some(stored) = self.read_object(object).await? {
                return Ok(Read::Found(stored));
            }
            match self.index.locate(vec![object.key]).await?.first() {
                // It has been evicted.
                None => return Ok(Read::Missing),
                Some(row) if row.object == object && failed == Some(object) => return self.lose(object).await,
                // Read again: another object, or one that could not be read at the first time.
                Some(row) => {
                    failed = Some(object);
                    object = row.object;
                }
            }
        }
        Err(StoreError::Busy)
    }

    /// The block in an object; `None` if there is no object, or it is damaged.
    async fn read_object(&self, object: ObjectId) -> Result<Option<Stored>, StoreError> {
        let content = match self.objects.get(&object.name()).await {
            Ok(Some(content)) => object::decode(&object.key, &content),
            Ok(None) | Err(ObjectError::TooLong { .. }) => Content::Damaged,
            Err(error) => return Err(unavailable(error)),
        };
        match content {
            Content::Block(stored) => Ok(Some(stored)),
            Content::Damaged => Ok(None),
            Content::Newer => Err(StoreError::UnknownRecord { key: object.name().into() }),
        }
    }

    /// A block of which the storage may have an object, without the index.
    async fn find(&self, key: BlockKey) -> Result<Option<Stored>, StoreError> {
        let _place = self.search_places.try_acquire().map_err(|_| StoreError::Busy)?;
        let _permit = self.searches.acquire().await.map_err(|_| StoreError::Closed)?;
        let prefix = object::name_prefix(&key);
        let mut listed = self.objects.list(&prefix);
        while let Some(found) = listed.next().await {
            let object = ObjectId::of_name(&found.map_err(unavailable)?.name).filter(|object| object.key == key);
            if let Some(object) = object
                && let Some(stored) = self.read_object(object).await?
            {
                return Ok(Some(stored));
            }
        }
        Ok(None)
    }

    /// Records that the object of a block is missing or damaged.
    async fn lose(&self, object: ObjectId) -> Result<Read, StoreError> {
        // Nothing is lost because another bucket or folder is there instead.
        self.check_storage().await?;
        let Some(roots) = self.index.lose(object).await? else { return Ok(Read::Missing) };
        let (name, pins) = (object.name(), roots.len());
        tracing::warn!(object = %name, pins, "an object of the site's storage is missing or damaged");
        if let Some(changes) = &self.changes {
            roots.into_iter().for_each(|root| changes.note(root));
        }
        self.discard(vec![object]).await;
        Ok(Read::Lost)
    }

    /// Checks that the storage can be read, and is that of the site.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn check_storage(&self) -> Result<(), StoreError> {
        objects::require_marker(&*self.objects, &self.mark).await.map_err(unavailable)
    }

    /// Deletes pending objects. Goes on after a failure, unless the index cannot be reached or the storage fails again
    /// and again.
    async fn delete(&self, objects: Vec<ObjectId>) -> Result<(), StoreError> {
        let (mut failure, mut in_succession) = (None, 0);
        for batch in objects.chunks(BATCH as usize) {
            let deletions = batch.iter().map(|object| self.delete_object(*object).boxed()).collect::<Vec<_>>();
            let mut results = stream::iter(deletions).buffered(CONCURRENCY);
            let (mut objects, mut deleted) = (batch.iter(), Vec::new());
            while in_succession < FAILURES_MAX
                && let (Some(object), Some(result)) = (objects.next(), results.next().await)
            {
                match result {
                    Ok(()) => {
                        deleted.push(*object);
                        in_succession = 0;
                    }
                    Err(error) => {
                        failure = Some(error);
                        in_succession += 1;
                    }
                }
            }
            if !deleted.is_empty() {
                self.index.remove_pending(deleted).await?;
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn delete_object(&self, object: ObjectId) -> Result<(), StoreError> {
        self.objects.delete(&object.name()).await.map_err(unavailable)
    }

    /// Begins a pin, or resumes the root's existing one; a `name` replaces the existing one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn begin_pin(&self, root: Cid, name: Option<String>) -> Result<PinAttempt, StoreError> {
        self.index.begin_pin(root, name).await
    }

    /// Makes a pin complete. The caller has put every block of the DAG since the attempt began.
    ///
    /// # Errors
    /// [`PinError`].
    pub async fn finish_pin(&self, attempt: PinAttempt) -> Result<PinSummary, PinError> {
        let root = attempt.root;
        match self.index.finish_pin(attempt).await? {
            FinishedPin::Complete(summary) => Ok(*summary),
            FinishedPin::RootMissing => Err(PinError::RootMissing { root }),
            FinishedPin::Lost => Err(PinError::Lost { root }),
            FinishedPin::Removed => Err(PinError::Removed { root }),
        }
    }

    /// The pin of a root.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pin(&self, root: Cid) -> Result<Option<PinSummary>, StoreError> {
        self.index.pin(root).await
    }

    /// At most so many pins, in the order of their ids, after one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pins(&self, after: Option<PinId>, pins_max: u32) -> Result<Vec<PinSummary>, StoreError> {
        self.index.pins(after, pins_max).await
    }

    /// Amounts. Counts pins and pending objects, but not blocks.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn figures(&self) -> Result<IndexFigures, StoreError> {
        self.index.figures().await
    }

    /// The pin of a root after all changes that were asked for before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn current_pin(&self, root: Cid) -> Result<Option<PinSummary>, StoreError> {
        self.index.current_pin(root).await
    }

    /// Removes a pin, with this ID if one is given. Returns whether there was one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn remove_pin(&self, root: Cid, id: Option<u64>) -> Result<bool, StoreError> {
        self.index.remove_pin(root, id).await
    }

    /// Releases members of removed pins. Returns whether there may be more.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn release_members(&self) -> Result<bool, StoreError> {
        self.index.release_members(BATCH).await
    }

    /// Evicts blocks that no pin has, until their objects have no more than this size together, or so many batches have
    /// been evicted. Does nothing while another gateway does the same. Returns what it has evicted.
    ///
    /// # Errors
    /// [`StoreError`]; some may have been evicted.
    pub async fn evict(&self, cached_bytes_max: u64, batches_max: usize) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        for _ in 0..batches_max {
            let batch = self.index.evict(cached_bytes_max, BATCH).await?;
            if batch.is_empty() {
                break;
            }
            evicted += self.delete_evicted(batch).await?;
        }
        Ok(evicted)
    }

    /// Deletes those of the blocks that no pin has.
    ///
    /// # Errors
    /// [`StoreError`]; some may have been deleted.
    pub async fn evict_unpinned(&self, keys: &[BlockKey]) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        for keys in keys.chunks(BATCH as usize) {
            let batch = self.index.evict_blocks(keys.to_vec()).await?;
            evicted += self.delete_evicted(batch).await?;
            evicted.pinned += self.index.pinned(keys.to_vec()).await?.len() as u64;
        }
        Ok(evicted)
    }

    /// Deletes blocks, also those that pins have, which become partial. Returns their roots as well.
    ///
    /// # Errors
    /// [`StoreError`]; some may have been deleted.
    pub async fn evict_all(&self, keys: &[BlockKey]) -> Result<(Evicted, BTreeSet<Cid>), StoreError> {
        let (mut evicted, mut partial) = (Evicted::default(), BTreeSet::new());
        for keys in keys.chunks(BATCH as usize) {
            evicted += self.delete_evicted(self.index.evict_blocks(keys.to_vec()).await?).await?;
            let mut lost = Vec::new();
            for BlockRow { object, bytes, .. } in self.index.locate(keys.to_vec()).await? {
                if let Some(roots) = self.index.lose(object).await? {
                    lost.push(EvictedObject { object, bytes });
                    partial.extend(roots);
                }
            }
            evicted += self.delete_evicted(lost).await?;
        }
        Ok((evicted, partial))
    }

    async fn delete_evicted(&self, objects: Vec<EvictedObject>) -> Result<Evicted, StoreError> {
        let bytes = objects.iter().map(|evicted| u64::from(evicted.bytes)).sum();
        let blocks = objects.len() as u64;
        self.delete(objects.iter().map(|evicted| evicted.object).collect()).await?;
        Ok(Evicted { blocks, bytes, pinned: 0 })
    }

    /// Deletes objects that gateways have left behind, at most a batch. Returns how many.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn sweep(&self) -> Result<usize, StoreError> {
        let objects = self.index.sweep(self.pending_age, BATCH).await?;
        let count = objects.len();
        self.delete(objects).await?;
        Ok(count)
    }

    /// Compares the objects of a slot with the index: deletes those that the index does not know, but not more than
    /// `orphans_max` and a batch, and removes blocks whose objects are missing. Reads no objects but those that are not
    /// listed. Memory is that of the names of a slot, which are a 256th of all.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reconcile(&self, slot: u8, orphans_max: u64) -> Result<Reconciled, StoreError> {
        self.compare(slot, Repair::Deleting { orphans_max }).await
    }

    /// What [`Self::reconcile`] would find. Changes nothing. `orphans` are those that it would delete.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn plan_reconcile(&self, slot: u8) -> Result<Reconciled, StoreError> {
        self.compare(slot, Repair::None).await
    }

    async fn compare(&self, slot: u8, repair: Repair) -> Result<Reconciled, StoreError> {
        let mut found = Reconciled::default();
        // Before the listing: the objects of these blocks have been written.
        let mut unlisted = self.objects_of_slot(slot).await?;
        let prefix = object::slot_prefix(slot);
        let mut pages = self.objects.list(&prefix).chunks(BATCH as usize);
        while let Some(page) = pages.next().await {
            let mut candidates = Vec::new();
            for listed in page {
                let Some(object) = ObjectId::of_name(&listed.map_err(unavailable)?.name) else {
                    found.foreign += 1;
                    continue;
                };
                found.objects += 1;
                if !unlisted.remove(&object) {
                    candidates.push(object);
                }
            }
            match repair {
                Repair::Deleting { orphans_max } => self.delete_orphans(candidates, orphans_max, &mut found).await?,
                Repair::None => found.orphans += self.count_orphans(candidates).await?,
            }
        }
        for object in unlisted {
            found.lost += u64::from(self.is_lost(object, repair).await?);
        }
        Ok(found)
    }

    /// Whether the object of a block, which was not listed, is missing or damaged. That is recorded unless nothing is
    /// to be changed.
    async fn is_lost(&self, object: ObjectId, repair: Repair) -> Result<bool, StoreError> {
        // Most of them have been evicted meanwhile.
        let row = self.index.locate(vec![object.key]).await?.first().copied();
        let Some(row) = row.filter(|row| row.object == object) else { return Ok(false) };
        match repair {
            Repair::Deleting { .. } => Ok(matches!(self.read(Some(row)).await?, Read::Lost)),
            Repair::None => Ok(self.read_object(object).await?.is_none()),
        }
    }

    async fn count_orphans(&self, candidates: Vec<ObjectId>) -> Result<u64, StoreError> {
        if candidates.is_empty() {
            return Ok(0);
        }
        Ok(self.index.orphans(candidates).await?.len() as u64)
    }

    /// Deletes those of the objects that the index does not know, after they were listed: an object is pending before
    /// it is written, so that one that is listed and unknown was pending once, and cannot become that of a block.
    async fn delete_orphans(
        &self,
        candidates: Vec<ObjectId>,
        orphans_max: u64,
        found: &mut Reconciled,
    ) -> Result<(), StoreError> {
        if candidates.is_empty() {
            return Ok(());
        }
        if found.orphans >= orphans_max {
            found.has_more_orphans = true;
            return Ok(());
        }
        let orphans = self.index.register_orphans(candidates).await?;
        found.orphans += orphans.len() as u64;
        self.delete(orphans).await
    }

    async fn objects_of_slot(&self, slot: u8) -> Result<BTreeSet<ObjectId>, StoreError> {
        const PAGE: u32 = 4096;
        let (mut objects, mut after) = (BTreeSet::new(), None);
        loop {
            let page = self.index.objects_of_slot(slot, Listed::Stored, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(objects) };
            after = Some(last.key);
            objects.extend(page);
        }
    }
}

/// The result of each, some at the same time, in their order.
async fn in_order<T>(requests: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    stream::iter(requests).buffered(CONCURRENCY).collect().await
}

/// The results of all, some at the same time, in their order.
async fn concurrently<T>(requests: Vec<BoxFuture<'_, Result<T, StoreError>>>) -> Result<Vec<T>, StoreError> {
    stream::iter(requests).buffered(CONCURRENCY).try_collect().await
}

fn random_number() -> Result<u64, StoreError> {
    getrandom::u64().map_err(|error| StoreError::Io(error.to_string().into()))
}

fn unavailable(error: ObjectError) -> StoreError {
    StoreError::Unavailable { reason: format!("the storage of the site: {error}").into() }
}
