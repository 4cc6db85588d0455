//! Implements [`BlockStore`] for [`Disk`].

use super::writer::{Barrier, Change};
use super::{Disk, Figures, Recompressed, ScrubReport, StoreError};
use crate::pins::{PinAttempt, PinChanges, PinError, PinSummary};
use crate::reports::MissingBlocks;
use crate::store::{BlockStore, Evict, Evicted, Held, IsHot, IsWithheld, OnProgress, ScrubPass, Stats};
use bytes::Bytes;
use content::stored::{Shape, Slice, Stored};
use content::{Block, BlockKey, Cid};
use futures::future::{BoxFuture, FutureExt as _};
use std::sync::Arc;
use std::time::SystemTime;

impl BlockStore for Disk {
    fn handle(&self) -> Arc<dyn BlockStore> {
        Arc::new(self.clone())
    }

    fn ended(&self) -> BoxFuture<'static, ()> {
        self.queue().ended().boxed()
    }

    fn find<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.find(key).boxed()
    }

    fn look<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.look(key).boxed()
    }

    fn stored<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Stored>, StoreError>> {
        self.stored(key).boxed()
    }

    fn shapes(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<Option<Shape>>, StoreError>> {
        self.shapes(keys).boxed()
    }

    fn is_pinned<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.is_pinned(key).boxed()
    }

    fn pins(&self) -> BoxFuture<'_, Result<Vec<PinSummary>, StoreError>> {
        self.pins().boxed()
    }

    fn pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<Option<PinSummary>, StoreError>> {
        self.pin(root).boxed()
    }

    fn missing<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<MissingBlocks, StoreError>> {
        self.missing(root).boxed()
    }

    fn visit_keys(&self, which: Held, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        self.visit_keys(which, visit)
    }

    fn put_cached(&self, block: Block) -> BoxFuture<'_, ()> {
        self.put_cached(block).boxed()
    }

    fn count_dropped_write(&self) {
        self.count_dropped_write();
    }

    fn pin_changes(&self) -> Arc<PinChanges> {
        self.pin_changes()
    }

    fn begin_pin(&self, root: Cid, name: Option<String>) -> BoxFuture<'_, Result<Arc<PinAttempt>, StoreError>> {
        let begun = self.queue().ask(move |reply| Change::Begin { root, name, reply });
        async move { Ok(PinAttempt::new(begun.await??, Some(root))) }.boxed()
    }

    fn begin_temporary_pin(&self) -> BoxFuture<'_, Result<Arc<PinAttempt>, StoreError>> {
        let begun = self.queue().ask(|reply| Change::BeginTemporary { reply });
        async move { Ok(PinAttempt::new(begun.await??, None)) }.boxed()
    }

    fn put_member<'a>(&'a self, block: &'a Block, attempt: &'a Arc<PinAttempt>) -> BoxFuture<'a, Result<(), PinError>> {
        async move {
            attempt.check()?;
            let room = self.queue().room(block.data().len()).await?;
            let (block, attempt) = (block.clone(), Arc::clone(attempt));
            Ok(self.queue().send(Change::Member { block, attempt, room })?)
        }
        .boxed()
    }

    fn put_held_member<'a>(&'a self, cid: Cid, attempt: &'a Arc<PinAttempt>) -> BoxFuture<'a, Result<(), PinError>> {
        async move {
            attempt.check()?;
            let room = self.queue().room(0).await?;
            Ok(self.queue().send(Change::StoredMember { cid, attempt: Arc::clone(attempt), room })?)
        }
        .boxed()
    }

    fn takes_slices(&self) -> bool {
        true
    }

    fn put_slice<'a>(
        &'a self,
        leaf: &'a Cid,
        slice: Slice,
        attempt: &'a Arc<PinAttempt>,
    ) -> BoxFuture<'a, Result<(), PinError>> {
        async move {
            attempt.check()?;
            let Some(key) = BlockKey::of(leaf) else { return Ok(()) };
            let room = self.queue().room(slice.value_bytes()).await?;
            let slice = Box::new((key, slice));
            Ok(self.queue().send(Change::Slice { slice, attempt: Arc::clone(attempt), room })?)
        }
        .boxed()
    }

    fn plain_file(&self, zstd_file: &BlockKey) -> Option<Cid> {
        self.plain_file(zstd_file)
    }

    fn zstd_file(&self, root: &Cid) -> Option<Cid> {
        self.inner.store.zstd_file(root)
    }

    fn finish_pin(&self, attempt: Arc<PinAttempt>) -> BoxFuture<'_, Result<PinSummary, PinError>> {
        let finished = self.queue().ask(|reply| Change::Finish { attempt, reply });
        async move { finished.await? }.boxed()
    }

    fn remove_pin_by_id<'a>(&'a self, root: &'a Cid, id: Option<u64>) -> BoxFuture<'a, Result<bool, StoreError>> {
        let removed = self.queue().ask(move |reply| Barrier::Remove { root: *root, id, reply });
        async move { removed.await? }.boxed()
    }

    fn evict(&self, keys: Vec<BlockKey>, which: Evict) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        let evicted = self.queue().ask(move |reply| Barrier::Evict { keys, which, reply });
        async move { evicted.await? }.boxed()
    }

    fn evictable(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        self.evictable(keys).boxed()
    }

    fn shrink(&self, cached_bytes: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        let more = self.queue().ask(move |reply| Barrier::Shrink { cached_bytes, reply });
        async move { more.await? }.boxed()
    }

    fn release(&self, temporary_pin: &PinAttempt) {
        _ = self.queue().send(Barrier::Release { pin: temporary_pin.pin });
    }

    fn written(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.queue().ask(|reply| Barrier::Written { reply }).boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.flush().boxed()
    }

    fn compact(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.compact().boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.close().boxed()
    }

    fn released(&self) -> BoxFuture<'static, ()> {
        self.released()
    }

    fn set_is_hot(&self, is_hot: IsHot) {
        self.set_is_hot(is_hot);
    }

    fn set_is_withheld(&self, is_withheld: IsWithheld) {
        self.withheld().set(is_withheld);
    }

    fn figures(&self) -> BoxFuture<'_, Result<Figures, StoreError>> {
        self.figures().boxed()
    }

    fn live_stats(&self) -> Arc<Stats> {
        self.live_stats()
    }

    fn scrub<'a>(
        &'a self,
        pass: ScrubPass,
        bytes_per_second: Option<u64>,
        on_progress: OnProgress<'a>,
    ) -> BoxFuture<'a, Result<ScrubReport, StoreError>> {
        match pass {
            ScrubPass::GoOn => self.scrub(bytes_per_second, on_progress).boxed(),
            ScrubPass::All => self.scrub_all(bytes_per_second, on_progress).boxed(),
        }
    }

    fn scrubbed_at(&self) -> BoxFuture<'_, Result<Option<SystemTime>, StoreError>> {
        self.scrubbed_at().boxed()
    }

    fn recompress_pinned(
        &self,
        level: u8,
        bytes_per_second: Option<u64>,
    ) -> BoxFuture<'_, Result<Recompressed, StoreError>> {
        self.recompress_pinned(level, bytes_per_second).boxed()
    }
}
