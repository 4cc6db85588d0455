//! [`WriteAhead`]: writes the blocks of uploads to the shared storage before their roots are known.
//!
//! An upload is pinned when all of it has been received. Until then a temporary pin on the own disk protects its
//! blocks, and meanwhile their objects are written as pending ones, which the pin only has to commit.
//!
//! Goals: at its end, an upload waits only for what is being written by then; what is written ahead is bounded, in
//! memory and in the storage; few batches are written at a time, so that pins and reads have their turn; no upload
//! takes all places; a failure has no consequence, since a block that was not written ahead is written when it is
//! pinned.
//!
//! Non-goals: durability. Nothing is acknowledged because an object is pending. Those that no pin commits are deleted
//! when the temporary pin is released, and swept if the gateway has stopped before.

#[cfg(test)]
mod tests;

use super::encoding::encode;
use super::{Withheld, is_withheld};
use crate::blocks::{ObjectId, SharedBlocks, WrittenObject};
use cache::StoreError;
use content::stored::CompressionOptions;
use content::{Block, BlockKey};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// The size of blocks that wait or are being written, of all uploads, in bytes. Further ones are not written ahead.
const BYTES_MAX: usize = 32 << 20;
/// What a block takes besides its bytes.
const ITEM_BYTES: usize = 512;
/// Blocks that were written ahead, or are to be, of all uploads, with objects that are being deleted. Of one upload.
const BLOCKS_MAX: usize = 16 * 1024;
const UPLOAD_BLOCKS_MAX: usize = BLOCKS_MAX / 4;
/// Blocks of a batch, and batches of one upload that are written at the same time.
const BATCH_BLOCKS: usize = 64;
const UPLOAD_BATCHES: usize = 2;
/// Batches that are written or deleted at the same time, of all uploads, so that pins and reads have their turn.
const BATCHES: usize = 4;
/// Objects that are deleted as one batch, after an upload.
const DISCARD_BLOCKS: usize = 256;

/// How long a pin waits for batches that are being written, of up to [`BATCH_BLOCKS`]. If the storage is slower, the
/// pin writes their blocks itself, and fails as it does without this.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// A temporary pin, by its ID.
type UploadId = u64;

/// Writes blocks ahead. Clones share what they write.
#[derive(Debug, Clone)]
pub(super) struct WriteAhead {
    inner: Arc<Inner>,
}

struct Inner {
    shared: SharedBlocks,
    zstd: CompressionOptions,
    is_withheld: Withheld,
    runtime: Handle,
    room: Arc<Semaphore>,
    batches: Semaphore,
    state: Mutex<State>,
    /// A batch has ended, or an upload, or objects were deleted.
    changed: Notify,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteAhead").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    blocks: HashMap<BlockKey, Ahead>,
    uploads: HashMap<UploadId, Upload>,
    /// The number of the last block that was put.
    puts: u64,
    /// Batches that are being written.
    writing: usize,
    /// Objects that are being deleted, or wait for it.
    discarding: usize,
    /// Nothing more is accepted.
    is_closed: bool,
}

/// A block that is written ahead. Each is queued, is being written, and is written.
struct Ahead {
    upload: UploadId,
    put: u64,
    stage: Stage,
}

enum Stage {
    /// It is in the queue of its upload.
    Queued,
    Writing,
    Written(WrittenObject),
}

#[derive(Default)]
struct Upload {
    queue: VecDeque<Queued>,
    /// Its blocks, in any stage.
    blocks: usize,
    /// Tasks that write its batches.
    running: usize,
    /// The storage or the index has failed: the rest is not written ahead.
    has_failed: bool,
}

struct Queued {
    put: Put,
    block: Block,
    _room: OwnedSemaphorePermit,
}

/// One put of a block. The number tells it from a later one of the same block, when a pin has taken over the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Put {
    key: BlockKey,
    number: u64,
}

impl WriteAhead {
    /// Call it in a Tokio runtime.
    pub(super) fn new(shared: SharedBlocks, zstd: CompressionOptions, is_withheld: Withheld) -> Self {
        let [room, batches] = [BYTES_MAX, BATCHES].map(Semaphore::new);
        let (room, changed) = (Arc::new(room), Notify::new());
        let (runtime, state) = (Handle::current(), Mutex::default());
        Self { inner: Arc::new(Inner { shared, zstd, is_withheld, runtime, room, batches, state, changed }) }
    }

    /// Writes a block of an upload, if there is room and it is not being written.
    pub(super) fn put(&self, upload: UploadId, block: &Block) {
        let Some(key) = block.key() else { return };
        let bytes = u32::try_from(block.memory_bytes() + ITEM_BYTES).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.inner.room).try_acquire_many_owned(bytes) else { return };
        if self.inner.state().push(upload, key, block, room) {
            self.inner.runtime.spawn(Arc::clone(&self.inner).run(upload));
        }
    }

    /// Takes over blocks for a pin, which writes those that are only queued. Returns the objects of those that were
    /// written, when none of them is being written, or after [`WAIT_MAX`]: they are to be committed or discarded.
    pub(super) async fn take(&self, keys: &BTreeSet<BlockKey>) -> Vec<WrittenObject> {
        let end = Instant::now() + WAIT_MAX;
        loop {
            // Before the look at the state, so that no change in between is missed.
            let changed = self.inner.changed.notified();
            let are_written = self.inner.state().take_queued(keys);
            if are_written || timeout_at(end, changed).await.is_err() {
                return self.inner.state().take(keys);
            }
        }
    }

    /// Deletes what was written of blocks. Those that are being written are deleted when they are written.
    pub(super) async fn discard(&self, keys: &BTreeSet<BlockKey>) {
        let objects = self.inner.state().take_needless(keys);
        self.inner.discard(objects).await;
    }

    /// Ends an upload: objects that no pin has taken are deleted, in the background.
    pub(super) fn release(&self, upload: UploadId) {
        let left = self.inner.state().remove(upload);
        self.inner.changed.notify_waiters();
        if !left.is_empty() {
            self.inner.runtime.spawn(Arc::clone(&self.inner).discard_batches(left));
        }
    }

    /// Accepts nothing more, and drops what is queued.
    pub(super) fn close(&self) {
        self.inner.state().close();
        self.inner.changed.notify_waiters();
    }

    /// After [`Self::close`]: completes when what no pin has taken is deleted.
    pub(super) async fn ended(&self) {
        let uploads: Vec<UploadId> = self.inner.state().uploads.keys().copied().collect();
        uploads.into_iter().for_each(|upload| self.release(upload));
        loop {
            let changed = self.inner.changed.notified();
            if self.inner.state().is_idle() {
                return;
            }
            changed.await;
        }
    }
}

impl State {
    /// Queues a block. Whether a task is to be started for the upload.
    fn push(&mut self, upload: UploadId, key: BlockKey, block: &Block, room: OwnedSemaphorePermit) -> bool {
        let is_full = self.blocks.len() + self.discarding >= BLOCKS_MAX;
        if self.is_closed || is_full || self.blocks.contains_key(&key) {
            return false;
        }
        let going_on = self.uploads.entry(upload).or_default();
        if going_on.has_failed || going_on.blocks >= UPLOAD_BLOCKS_MAX {
            return false;
        }
        self.puts += 1;
        let put = Put { key, number: self.puts };
        self.blocks.insert(key, Ahead { upload, put: put.number, stage: Stage::Queued });
        going_on.blocks += 1;
        going_on.queue.push_back(Queued { put, block: block.clone(), _room: room });
        let is_started = going_on.running < UPLOAD_BATCHES;
        going_on.running += usize::from(is_started);
        is_started
    }

    /// The next blocks of an upload, which are being written from now on. Without any, its task ends.
    fn next_batch(&mut self, upload: UploadId) -> Vec<Queued> {
        let Some(going_on) = self.uploads.get_mut(&upload) else { return Vec::new() };
        let count = going_on.queue.len().min(BATCH_BLOCKS);
        let batch: Vec<Queued> = going_on.queue.drain(..count).collect();
        match batch.is_empty() {
            true => going_on.running = going_on.running.saturating_sub(1),
            false => self.writing += 1,
        }
        for queued in &batch {
            if let Some(ahead) = self.current(queued.put) {
                ahead.stage = Stage::Writing;
            }
        }
        batch
    }

    /// The block of a put, if neither a pin has taken it over nor the upload has ended.
    fn current(&mut self, put: Put) -> Option<&mut Ahead> {
        self.blocks.get_mut(&put.key).filter(|ahead| ahead.put == put.number)
    }

    /// Takes those of the blocks that are only queued out of their queues. Whether none is being written.
    fn take_queued(&mut self, keys: &BTreeSet<BlockKey>) -> bool {
        let (mut are_written, mut uploads) = (true, BTreeSet::new());
        for key in keys {
            match self.blocks.get(key) {
                Some(Ahead { stage: Stage::Queued, upload, .. }) => {
                    uploads.insert(*upload);
                    self.remove_block(key);
                }
                Some(Ahead { stage: Stage::Writing, .. }) => are_written = false,
                Some(Ahead { stage: Stage::Written(_), .. }) | None => {}
            }
        }
        for upload in uploads {
            if let Some(going_on) = self.uploads.get_mut(&upload) {
                going_on.queue.retain(|queued| !keys.contains(&queued.put.key));
            }
        }
        are_written
    }

    /// The objects of those of the blocks that are written. The others are not needed any more.
    fn take(&mut self, keys: &BTreeSet<BlockKey>) -> Vec<WrittenObject> {
        self.take_queued(keys);
        let taken = keys.iter().filter_map(|key| match self.remove_block(key)?.stage {
            Stage::Written(written) => Some(written),
            Stage::Queued | Stage::Writing => None,
        });
        taken.collect()
    }

    /// The same, of objects that are to be deleted.
    fn take_needless(&mut self, keys: &BTreeSet<BlockKey>) -> Vec<ObjectId> {
        let objects: Vec<ObjectId> = self.take(keys).into_iter().map(|written| written.object).collect();
        self.discarding += objects.len();
        objects
    }

    fn remove_block(&mut self, key: &BlockKey) -> Option<Ahead> {
        let ahead = self.blocks.remove(key)?;
        if let Some(going_on) = self.uploads.get_mut(&ahead.upload) {
            going_on.blocks -= 1;
        }
        Some(ahead)
    }

    /// Records what became of a batch. Returns objects that are to be deleted.
    fn end_batch(
        &mut self,
        upload: UploadId,
        puts: &[Put],
        written: Result<Vec<WrittenObject>, StoreError>,
    ) -> Vec<ObjectId> {
        self.writing -= 1;
        let written = written.unwrap_or_else(|error| {
            tracing::debug!(%error, "blocks of an upload were not written ahead");
            self.stop(upload);
            Vec::new()
        });
        let mut written: HashMap<BlockKey, WrittenObject> =
            written.into_iter().map(|written| (written.object.key, written)).collect();
        let mut needless = Vec::new();
        for put in puts {
            match (self.current(*put), written.remove(&put.key)) {
                (Some(ahead), Some(written)) => ahead.stage = Stage::Written(written),
                // It is stored already, is withheld or has failed.
                (Some(_), None) => _ = self.remove_block(&put.key),
                // The upload has ended, or a pin has not waited for it.
                (None, Some(written)) => needless.push(written.object),
                (None, None) => {}
            }
        }
        self.discarding += needless.len();
        needless
    }

    /// Writes nothing more of an upload.
    fn stop(&mut self, upload: UploadId) {
        let Some(going_on) = self.uploads.get_mut(&upload) else { return };
        going_on.has_failed = true;
        for Queued { put, .. } in std::mem::take(&mut going_on.queue) {
            if self.current(put).is_some() {
                self.remove_block(&put.key);
            }
        }
    }

    /// Removes an upload. Returns its objects that no pin has taken, which are to be deleted.
    fn remove(&mut self, upload: UploadId) -> Vec<ObjectId> {
        self.uploads.remove(&upload);
        let of_upload = self.blocks.extract_if(|_, ahead| ahead.upload == upload);
        let objects = of_upload.filter_map(|(_, ahead)| match ahead.stage {
            Stage::Written(written) => Some(written.object),
            Stage::Queued | Stage::Writing => None,
        });
        let objects: Vec<ObjectId> = objects.collect();
        self.discarding += objects.len();
        objects
    }

    fn close(&mut self) {
        self.is_closed = true;
        let uploads: Vec<UploadId> = self.uploads.keys().copied().collect();
        uploads.into_iter().for_each(|upload| self.stop(upload));
    }

    /// Whether nothing is being written or deleted.
    fn is_idle(&self) -> bool {
        self.writing == 0 && self.discarding == 0
    }
}

/// Objects that are being deleted. They count until this is dropped.
struct Discarding<'a> {
    inner: &'a Inner,
    objects: usize,
}

impl Drop for Discarding<'_> {
    fn drop(&mut self) {
        self.inner.state().discarding -= self.objects;
        self.inner.changed.notify_waiters();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the batches of an upload, until nothing of it waits. While others are written, the next one is gathered.
    async fn run(self: Arc<Self>, upload: UploadId) {
        // It is never closed.
        while let Ok(_permit) = self.batches.acquire().await {
            let batch = self.state().next_batch(upload);
            if batch.is_empty() {
                return;
            }
            let puts: Vec<Put> = batch.iter().map(|queued| queued.put).collect();
            // In a task of its own, so that its end is recorded also if it panics.
            let writing = tokio::spawn(Arc::clone(&self).write(batch));
            let written = writing.await.unwrap_or(Err(StoreError::Closed));
            let needless = self.state().end_batch(upload, &puts, written);
            self.changed.notify_waiters();
            self.discard(needless).await;
        }
    }

    /// Deletes objects that count in `discarding`.
    async fn discard(&self, objects: Vec<ObjectId>) {
        if objects.is_empty() {
            return;
        }
        let _discarding = Discarding { inner: self, objects: objects.len() };
        self.shared.discard(objects).await;
    }

    /// The same for those of an upload that has ended.
    async fn discard_batches(self: Arc<Self>, objects: Vec<ObjectId>) {
        for batch in objects.chunks(DISCARD_BLOCKS) {
            let _permit = self.batches.acquire().await;
            self.discard(batch.to_vec()).await;
        }
    }

    /// Writes those of the blocks that are not stored.
    async fn write(self: Arc<Self>, batch: Vec<Queued>) -> Result<Vec<WrittenObject>, StoreError> {
        let keys: Vec<BlockKey> = batch.iter().map(|queued| queued.put.key).collect();
        let stored = self.shared.locate(&keys).await?;
        let is_new = |key: &BlockKey| !stored.contains_key(key) && !is_withheld(&self.is_withheld, key);
        let new = batch.iter().filter(|queued| is_new(&queued.put.key));
        let new: Vec<_> = new.map(|queued| (queued.put.key, queued.block.clone())).collect();
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let zstd = self.zstd;
        let encoding = tokio::task::spawn_blocking(move || encode(&new, zstd));
        let blocks = encoding.await.unwrap_or(Err(StoreError::Closed))?;
        self.shared.write_pending(blocks).await
    }
}
