//! [`LateStore`]: a block store whose removals of pins fail, with or without an effect, or take effect later, as those
//! of a database do.

use bytes::Bytes;
use cache::pins::{PinAttempt, PinChanges};
use cache::store::{IsHot, IsWithheld, OnProgress};
use cache::{
    BlockStore, Evict, Evicted, Figures, Held, MissingBlocks, PinError, PinSummary, ScrubPass, ScrubReport, Stats,
    StoreError,
};
use content::stored::{Shape, Stored};
use content::{Block, BlockKey, BlockSource, Cid, SourceError};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// What becomes of the removal of a pin.
#[derive(Debug, Clone, Copy)]
pub enum Removal {
    /// The pin is removed.
    Succeeds,
    /// It is not removed, and an error is returned.
    Fails,
    /// It is removed, and an error is returned.
    AnswerIsLost,
    /// An error is returned. It is removed at [`LateStore::flush_late`].
    IsLate,
}

/// A store with faults. Handles have them in common.
#[derive(Debug, Clone)]
pub struct LateStore {
    inner: Arc<dyn BlockStore>,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Debug, Default)]
struct Faults {
    /// Those of the next removals.
    next: VecDeque<Removal>,
    late: Vec<(Cid, Option<u64>)>,
}

impl LateStore {
    pub fn new(inner: Arc<dyn BlockStore>) -> Self {
        Self { inner, faults: Arc::default() }
    }

    /// What becomes of the next removal.
    pub fn next(&self, removal: Removal) {
        self.faults.lock().expect("a list").next.push_back(removal);
    }

    /// The number of removals whose faults are still to come.
    pub fn faults(&self) -> usize {
        self.faults.lock().expect("a list").next.len()
    }

    /// Removals succeed from now on.
    pub fn repair(&self) {
        self.faults.lock().expect("a list").next.clear();
    }

    /// Late removals take effect.
    pub async fn flush_late(&self) {
        let late = std::mem::take(&mut self.faults.lock().expect("a list").late);
        for (root, id) in late {
            self.inner.remove_pin_by_id(&root, id).await.expect("removes");
        }
    }
}

impl BlockSource for LateStore {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.inner.get(cid)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.inner.has(cid)
    }
}

impl BlockStore for LateStore {
    fn remove_pin_by_id<'a>(&'a self, root: &'a Cid, id: Option<u64>) -> BoxFuture<'a, Result<bool, StoreError>> {
        let removal = self.faults.lock().expect("a list").next.pop_front().unwrap_or(Removal::Succeeds);
        let lost = || Err(StoreError::Unavailable { reason: "the database did not answer".into() });
        async move {
            match removal {
                Removal::Succeeds => self.inner.remove_pin_by_id(root, id).await,
                Removal::Fails => lost(),
                Removal::AnswerIsLost => self.inner.remove_pin_by_id(root, id).await.and_then(|_| lost()),
                Removal::IsLate => {
                    self.faults.lock().expect("a list").late.push((*root, id));
                    lost()
                }
            }
        }
        .boxed()
    }

    fn handle(&self) -> Arc<dyn BlockStore> {
        Arc::new(self.clone())
    }

    fn ended(&self) -> BoxFuture<'static, ()> {
        self.inner.ended()
    }

    fn find<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.inner.find(key)
    }

    fn look<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.inner.look(key)
    }

    fn stored<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Stored>, StoreError>> {
        self.inner.stored(key)
    }

    fn shapes(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<Option<Shape>>, StoreError>> {
        self.inner.shapes(keys)
    }

    fn is_pinned<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.inner.is_pinned(key)
    }

    fn pins(&self) -> BoxFuture<'_, Result<Vec<PinSummary>, StoreError>> {
        self.inner.pins()
    }

    fn pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<Option<PinSummary>, StoreError>> {
        self.inner.pin(root)
    }

    fn missing<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<MissingBlocks, StoreError>> {
        self.inner.missing(root)
    }

    fn visit_keys(&self, which: Held, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        self.inner.visit_keys(which, visit)
    }

    fn put_cached(&self, block: Block) -> BoxFuture<'_, ()> {
        self.inner.put_cached(block)
    }

    fn count_dropped_write(&self) {
        self.inner.count_dropped_write();
    }

    fn pin_changes(&self) -> Arc<PinChanges> {
        self.inner.pin_changes()
    }

    fn begin_pin(&self, root: Cid, name: Option<String>) -> BoxFuture<'_, Result<Arc<PinAttempt>, StoreError>> {
        self.inner.begin_pin(root, name)
    }

    fn begin_temporary_pin(&self) -> BoxFuture<'_, Result<Arc<PinAttempt>, StoreError>> {
        self.inner.begin_temporary_pin()
    }

    fn put_member<'a>(&'a self, block: &'a Block, attempt: &'a Arc<PinAttempt>) -> BoxFuture<'a, Result<(), PinError>> {
        self.inner.put_member(block, attempt)
    }

    fn finish_pin(&self, attempt: Arc<PinAttempt>) -> BoxFuture<'_, Result<PinSummary, PinError>> {
        self.inner.finish_pin(attempt)
    }

    fn evict(&self, keys: Vec<BlockKey>, which: Evict) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        self.inner.evict(keys, which)
    }

    fn evictable(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        self.inner.evictable(keys)
    }

    fn shrink(&self, cached_bytes: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.inner.shrink(cached_bytes)
    }

    fn release(&self, temporary_pin: &PinAttempt) {
        self.inner.release(temporary_pin);
    }

    fn written(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.written()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.flush()
    }

    fn compact(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.compact()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.close()
    }

    fn set_is_hot(&self, is_hot: IsHot) {
        self.inner.set_is_hot(is_hot);
    }

    fn set_is_withheld(&self, is_withheld: IsWithheld) {
        self.inner.set_is_withheld(is_withheld);
    }

    fn figures(&self) -> BoxFuture<'_, Result<Figures, StoreError>> {
        self.inner.figures()
    }

    fn live_stats(&self) -> Arc<Stats> {
        self.inner.live_stats()
    }

    fn scrub<'a>(
        &'a self,
        pass: ScrubPass,
        bytes_per_second: Option<u64>,
        on_progress: OnProgress<'a>,
    ) -> BoxFuture<'a, Result<ScrubReport, StoreError>> {
        self.inner.scrub(pass, bytes_per_second, on_progress)
    }

    fn scrubbed_at(&self) -> BoxFuture<'_, Result<Option<SystemTime>, StoreError>> {
        self.inner.scrubbed_at()
    }
}
