//! [`WriteAhead`]: writes the blocks of uploads to the shared storage before their roots are known.
//!
//! An upload is pinned when all of it has been received. Until then a temporary pin on the own disk protects its blocks,
//! and meanwhile their objects are written as pending ones, which the pin only has to commit.
//!
//! Goals: at its end, an upload waits only for what is left by then; what is written ahead is bounded, in memory and in the
//! storage; a failure has no consequence, since a block that was not written ahead is written when it is pinned.
//!
//! Non-goals: durability. Nothing is acknowledged because an object is pending. Those that no pin commits are deleted
//! when the temporary pin is released, and swept if the gateway has stopped before.

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
/// Blocks that were written ahead, or are to be, of all uploads.
const BLOCKS_MAX: usize = 16 * 1024;
/// Blocks of a batch, and batches that are written at the same time for an upload.
const BATCH_BLOCKS: usize = 64;
const BATCHES: usize = 2;

/// How long a pin waits for blocks that are being written. One whose storage hangs writes them itself, and fails as it does
/// without this.
const WAIT_MAX: Duration = Duration::from_secs(10);

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
    state: Mutex<State>,
    /// A batch has ended, or an upload.
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
}

/// A block that is written ahead.
struct Ahead {
    upload: UploadId,
    /// `None` while it waits or is being written.
    written: Option<WrittenObject>,
}

#[derive(Default)]
struct Upload {
    queue: VecDeque<Queued>,
    /// Tasks that write its batches.
    running: usize,
    /// The storage or the index has failed: the rest is not written ahead.
    has_failed: bool,
}

struct Queued {
    key: BlockKey,
    block: Block,
    _room: OwnedSemaphorePermit,
}

impl WriteAhead {
    /// Call it in a Tokio runtime.
    pub(super) fn new(shared: SharedBlocks, zstd: CompressionOptions, is_withheld: Withheld) -> Self {
        let (room, changed) = (Arc::new(Semaphore::new(BYTES_MAX)), Notify::new());
        let (runtime, state) = (Handle::current(), Mutex::default());
        Self { inner: Arc::new(Inner { shared, zstd, is_withheld, runtime, room, state, changed }) }
    }

    /// Writes a block of an upload, if there is room and it is not being written.
    pub(super) fn put(&self, upload: UploadId, block: &Block) {
        let Some(key) = block.key() else { return };
        let bytes = u32::try_from(block.memory_bytes() + ITEM_BYTES).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.inner.room).try_acquire_many_owned(bytes) else { return };
        let queued = Queued { key, block: block.clone(), _room: room };
        if self.inner.state().push(upload, queued) {
            self.inner.runtime.spawn(Arc::clone(&self.inner).run(upload));
        }
    }

    /// Takes the objects of those of the blocks that were written ahead, when none of them is being written, or after
    /// [`WAIT_MAX`]: they are to be committed or discarded.
    pub(super) async fn take(&self, keys: &BTreeSet<BlockKey>) -> Vec<WrittenObject> {
        let end = Instant::now() + WAIT_MAX;
        loop {
            // Before the look at the state, so that no change in between is missed.
            let changed = self.inner.changed.notified();
            let is_waiting = self.inner.state().has_unwritten(keys);
            if !is_waiting || timeout_at(end, changed).await.is_err() {
                return self.inner.state().take(keys);
            }
        }
    }

    /// Ends an upload: objects that no pin has taken are deleted, in the background.
    pub(super) fn release(&self, upload: UploadId) {
        let left = self.inner.state().remove(upload);
        self.inner.changed.notify_waiters();
        if !left.is_empty() {
            let shared = self.inner.shared.clone();
            self.inner.runtime.spawn(async move { shared.discard(left).await });
        }
    }
}

impl State {
    /// Queues a block. Whether a task is to be started for the upload.
    fn push(&mut self, upload: UploadId, queued: Queued) -> bool {
        if self.blocks.len() >= BLOCKS_MAX || self.blocks.contains_key(&queued.key) {
            return false;
        }
        let going_on = self.uploads.entry(upload).or_default();
        if going_on.has_failed {
            return false;
        }
        self.blocks.insert(queued.key, Ahead { upload, written: None });
        going_on.queue.push_back(queued);
        let is_started = going_on.running < BATCHES;
        going_on.running += usize::from(is_started);
        is_started
    }

    /// The next blocks of an upload. Without any, its task ends.
    fn next_batch(&mut self, upload: UploadId) -> Vec<Queued> {
        let Some(going_on) = self.uploads.get_mut(&upload) else { return Vec::new() };
        let count = going_on.queue.len().min(BATCH_BLOCKS);
        if count == 0 {
            going_on.running -= 1;
        }
        going_on.queue.drain(..count).collect()
    }

    /// Whether one of the blocks waits or is being written.
    fn has_unwritten(&self, keys: &BTreeSet<BlockKey>) -> bool {
        keys.iter().any(|key| self.blocks.get(key).is_some_and(|ahead| ahead.written.is_none()))
    }

    /// The objects of those of the blocks that are written. The others are not needed any more.
    fn take(&mut self, keys: &BTreeSet<BlockKey>) -> Vec<WrittenObject> {
        keys.iter().filter_map(|key| self.blocks.remove(key)?.written).collect()
    }

    /// Records what became of a batch. Returns objects that are not needed.
    fn end_batch(
        &mut self,
        upload: UploadId,
        keys: &[BlockKey],
        written: Result<Vec<WrittenObject>, StoreError>,
    ) -> Vec<ObjectId> {
        let mut needless = Vec::new();
        match written {
            Ok(written) => {
                for written in written {
                    match self.blocks.get_mut(&written.object.key).filter(|ahead| ahead.upload == upload) {
                        // It was put once more after a pin had not waited for it.
                        Some(ahead) => needless.extend(ahead.written.replace(written).map(|former| former.object)),
                        // The upload has ended, or a pin has not waited for it.
                        None => needless.push(written.object),
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "blocks of an upload were not written ahead");
                self.stop(upload);
            }
        }
        // Those that are stored already, are withheld or have failed.
        for key in keys {
            if self.blocks.get(key).is_some_and(|ahead| ahead.upload == upload && ahead.written.is_none()) {
                self.blocks.remove(key);
            }
        }
        needless
    }

    /// Writes nothing more of an upload.
    fn stop(&mut self, upload: UploadId) {
        let Some(going_on) = self.uploads.get_mut(&upload) else { return };
        going_on.has_failed = true;
        for queued in going_on.queue.drain(..) {
            self.blocks.remove(&queued.key);
        }
    }

    /// Removes an upload. Returns its objects that no pin has taken.
    fn remove(&mut self, upload: UploadId) -> Vec<ObjectId> {
        self.uploads.remove(&upload);
        let of_upload = self.blocks.extract_if(|_, ahead| ahead.upload == upload);
        of_upload.filter_map(|(_, ahead)| Some(ahead.written?.object)).collect()
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the batches of an upload, until nothing of it waits.
    async fn run(self: Arc<Self>, upload: UploadId) {
        loop {
            let batch = self.state().next_batch(upload);
            if batch.is_empty() {
                return;
            }
            let keys: Vec<BlockKey> = batch.iter().map(|queued| queued.key).collect();
            // In a task of its own, so that its end is recorded also if it panics.
            let writing = tokio::spawn(Arc::clone(&self).write(batch));
            let written = writing.await.unwrap_or(Err(StoreError::Closed));
            let needless = self.state().end_batch(upload, &keys, written);
            self.changed.notify_waiters();
            self.shared.discard(needless).await;
        }
    }

    /// Writes those of the blocks that are not stored.
    async fn write(self: Arc<Self>, batch: Vec<Queued>) -> Result<Vec<WrittenObject>, StoreError> {
        let keys: Vec<BlockKey> = batch.iter().map(|queued| queued.key).collect();
        let stored = self.shared.locate(&keys).await?;
        let is_new =
            |queued: &&Queued| !stored.contains_key(&queued.key) && !is_withheld(&self.is_withheld, &queued.key);
        let new: Vec<_> = batch.iter().filter(is_new).map(|queued| (queued.key, queued.block.clone())).collect();
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let zstd = self.zstd;
        let encoding = tokio::task::spawn_blocking(move || encode(&new, zstd));
        let blocks = encoding.await.unwrap_or(Err(StoreError::Closed))?;
        self.shared.write_pending(blocks).await
    }
}
