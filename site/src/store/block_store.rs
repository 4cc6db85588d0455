//! Implements [`BlockStore`] for [`SiteStore`].

use super::source::verified;
use super::writer::{Item, Which, shared_pin};
use super::{Inner, SiteStore};
use crate::blocks::{Listed, LostBlock};
use bytes::Bytes;
use cache::disk::Figures;
use cache::pins::{PinAttempt, PinChanges, PinError, PinSummary};
use cache::store::{BlockStore, Evict, Evicted, Held, IsHot, IsWithheld, OnProgress, ScrubPass, Stats};
use cache::{MissingBlocks, PinState, Recompressed, ScrubReport, StoreError, raw_cid};
use content::stored::{Shape, Stored};
use content::{Block, BlockKey, BlockSource, Cid, SourceError};
use futures::future::{BoxFuture, FutureExt as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Rows that are read from the index at a time.
const PAGE: u32 = 1000;
/// How long closing waits for the shared storage.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

impl Inner {
    async fn get(
        &self,
        cid: &Cid,
        from_disk: BoxFuture<'static, Result<Block, SourceError>>,
    ) -> Result<Block, SourceError> {
        match from_disk.await {
            Ok(block) => Ok(block),
            Err(failed) => match self.source.get(cid).await {
                // The disk may have it.
                Err(SourceError::NotFound { .. }) => Err(failed),
                result => result,
            },
        }
    }

    /// A block in the shared storage, verified, which does not count as used.
    async fn look_shared(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        let Some(stored) = self.shared_stored(key).await? else { return Ok(None) };
        let block =
            verified(raw_cid(key), Some(stored)).map_err(|error| StoreError::Corrupt(error.to_string().into()))?;
        Ok(Some(block.data().clone()))
    }

    async fn shared_stored(&self, key: &BlockKey) -> Result<Option<Stored>, StoreError> {
        self.shared.get(&[*key]).await.into_iter().next().unwrap_or(Ok(None))
    }

    async fn shapes(&self, keys: Vec<BlockKey>) -> Result<Vec<Option<Shape>>, StoreError> {
        let mut shapes = self.disk.shapes(keys.clone()).await?;
        let lacking: Vec<BlockKey> =
            keys.iter().zip(&shapes).filter(|(_, shape)| shape.is_none()).map(|(key, _)| *key).collect();
        if lacking.is_empty() {
            return Ok(shapes);
        }
        let rows = self.shared.locate(&lacking).await?;
        for (key, shape) in keys.iter().zip(&mut shapes) {
            if let (None, Some(row)) = (&shape, rows.get(key)) {
                let unknown = || StoreError::UnknownRecord { key: row.object.name().into() };
                *shape = Some(row.shape.ok_or_else(unknown)?);
            }
        }
        Ok(shapes)
    }

    async fn pins(&self) -> Result<Vec<PinSummary>, StoreError> {
        let mut pins: Vec<PinSummary> = Vec::new();
        loop {
            let page = self.shared.pins(pins.last().map(|pin| pin.id), PAGE).await?;
            if page.is_empty() {
                return Ok(pins);
            }
            pins.extend(page);
        }
    }

    async fn missing(&self, root: &Cid) -> Result<MissingBlocks, StoreError> {
        let (mut missing, mut after) = (MissingBlocks::default(), None);
        loop {
            let page = self.shared.lost(*root, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(missing) };
            after = Some(last.key);
            for LostBlock { key, block_bytes } in page {
                missing.add(&key.to_bytes(), block_bytes, &|key| self.is_withheld(key));
            }
        }
    }

    async fn visit_roots(&self, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        for pin in self.pins().await? {
            if let (PinState::Complete, Some(key)) = (pin.state, BlockKey::of(&pin.root)) {
                visit(&key.to_bytes());
            }
        }
        Ok(())
    }

    async fn visit_shared(&self, which: Listed, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        for slot in 0..=u8::MAX {
            let mut after = None;
            loop {
                let page = self.shared.keys_of_slot(slot, which, after, PAGE).await?;
                let Some(last) = page.last() else { break };
                after = Some(*last);
                page.iter().for_each(|key| visit(&key.to_bytes()));
            }
        }
        Ok(())
    }

    async fn begin_pin(&self, root: Cid, name: Option<String>) -> Result<Arc<PinAttempt>, StoreError> {
        let begun = self.shared.begin_pin(root, name).await?;
        Ok(PinAttempt::shared(begun.id, begun.losses, root))
    }

    async fn put_member(&self, item: Item, attempt: &Arc<PinAttempt>) -> Result<(), PinError> {
        attempt.check()?;
        Ok(self.writer.put_member(item, attempt).await?)
    }

    /// Makes a block a member of a temporary pin, on the own disk.
    async fn hold(&self, cid: Cid, attempt: &Arc<PinAttempt>) -> Result<(), PinError> {
        if matches!(self.disk.has(&cid).await, Ok(true)) {
            return self.disk.put_held_member(cid, attempt).await;
        }
        let block = self.source.get(&cid).await.map_err(PinError::unread)?;
        self.disk.put_member(&block, attempt).await
    }

    async fn finish_pin(&self, attempt: Arc<PinAttempt>) -> Result<PinSummary, PinError> {
        let Some(pin) = shared_pin(&attempt) else { return self.disk.finish_pin(attempt).await };
        self.writer.settled(&attempt).await?;
        attempt.check()?;
        self.shared.finish_pin(pin).await
    }

    async fn remove_pin(&self, root: &Cid, id: Option<u64>) -> Result<bool, StoreError> {
        let has_removed = self.shared.remove_pin(*root, id).await?;
        self.removed.notify_one();
        Ok(has_removed)
    }

    async fn evict(&self, keys: Vec<BlockKey>, which: Evict) -> Result<Evicted, StoreError> {
        let on_disk = self.disk.evict(keys.clone(), which).await?;
        // What is queued is written before, so that it is not written after.
        self.writer.written(Which::All).await?;
        let withheld = keys.iter().copied().filter(|key| self.is_withheld(key)).collect();
        self.ahead.discard(&withheld).await;
        let shared = match which {
            Evict::Unpinned => self.shared.evict_unpinned(&keys).await?,
            Evict::Everything => {
                let (evicted, partial) = self.shared.evict_all(&keys).await?;
                partial.into_iter().for_each(|root| self.changes.note(root));
                evicted
            }
        };
        Ok(both(on_disk, shared))
    }

    async fn evictable(&self, keys: Vec<BlockKey>) -> Result<Evicted, StoreError> {
        let on_disk = self.disk.evictable(keys.clone()).await?;
        let pinned = self.shared.pinned(keys.clone()).await?;
        let mut rows = self.shared.locate(&keys).await?;
        rows.retain(|key, _| !pinned.contains(key));
        let bytes = rows.values().map(|row| u64::from(row.bytes)).sum();
        Ok(both(on_disk, Evicted { blocks: rows.len() as u64, bytes, pinned: pinned.len() as u64 }))
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.writer.written(Which::Members).await?;
        // Members of removed pins are released by all gateways, and their blocks are evicted when there is no room.
        self.removed.notify_one();
        self.disk.flush().await
    }

    /// The amounts of the own disk, with the pins of the site.
    async fn figures(&self) -> Result<Figures, StoreError> {
        let mut figures = self.disk.figures().await?;
        let shared = self.shared.figures().await?;
        figures.pinned.blocks += shared.pinned_blocks;
        figures.pinned.block_bytes += shared.pinned_block_bytes;
        figures.pinned.stored_bytes += shared.pinned_bytes;
        figures.pins += shared.pins;
        figures.partial_pins += shared.partial_pins;
        Ok(figures)
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.writer.close();
        self.ahead.close();
        let ending = async {
            // Pins that were not acknowledged are resumed, here or elsewhere.
            _ = self.writer.written(Which::All).await;
            self.ahead.ended().await;
        };
        _ = tokio::time::timeout(CLOSE_TIMEOUT, ending).await;
        self.upkeep.abort();
        self.disk.close().await
    }
}

/// What was deleted on the own disk, and in the shared storage. Blocks that were in both count once, if those of one are
/// among those of the other.
fn both(on_disk: Evicted, shared: Evicted) -> Evicted {
    Evicted {
        blocks: on_disk.blocks.max(shared.blocks),
        bytes: on_disk.bytes + shared.bytes,
        pinned: on_disk.pinned.max(shared.pinned),
    }
}

impl BlockSource for SiteStore {
    fn read_now(&self, cid: &Cid) -> Option<Block> {
        self.inner.disk.read_now(cid)
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (inner, cid) = (Arc::clone(&self.inner), *cid);
        let from_disk = inner.disk.get(&cid);
        async move { inner.get(&cid, from_disk).await }.boxed()
    }

    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        let (store, key) = (self.clone(), BlockKey::of(cid));
        async move {
            match key {
                Some(key) => Ok(store.stored(&key).await?),
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        let (on_disk, shared) = (self.inner.disk.has(cid), self.inner.source.has(cid));
        async move { Ok(matches!(on_disk.await, Ok(true)) || shared.await?) }.boxed()
    }
}

impl BlockStore for SiteStore {
    fn handle(&self) -> Arc<dyn BlockStore> {
        Arc::new(self.clone())
    }

    fn ended(&self) -> BoxFuture<'static, ()> {
        self.inner.disk.ended()
    }

    fn find<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        async move {
            let on_disk = self.inner.disk.find(key).await;
            if let Ok(Some(data)) = on_disk {
                return Ok(Some(data));
            }
            match self.inner.source.get(&raw_cid(key)).await {
                Ok(block) => Ok(Some(block.data().clone())),
                // The disk may have it.
                Err(SourceError::NotFound { .. }) => on_disk,
                Err(error) => Err(StoreError::Unavailable { reason: error.to_string().into() }),
            }
        }
        .boxed()
    }

    fn look<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        async move {
            match self.inner.disk.look(key).await {
                Ok(Some(data)) => Ok(Some(data)),
                failed => match self.inner.look_shared(key).await {
                    Ok(None) => failed,
                    result => result,
                },
            }
        }
        .boxed()
    }

    fn stored<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<Option<Stored>, StoreError>> {
        async move {
            match self.inner.disk.stored(key).await {
                Ok(Some(stored)) => Ok(Some(stored)),
                failed => match self.inner.source.stored(*key).await {
                    Ok(None) => failed,
                    result => result,
                },
            }
        }
        .boxed()
    }

    fn shapes(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<Option<Shape>>, StoreError>> {
        self.inner.shapes(keys).boxed()
    }

    fn is_pinned<'a>(&'a self, key: &'a BlockKey) -> BoxFuture<'a, Result<bool, StoreError>> {
        async move { Ok(!self.inner.shared.pinned(vec![*key]).await?.is_empty()) }.boxed()
    }

    fn pins(&self) -> BoxFuture<'_, Result<Vec<PinSummary>, StoreError>> {
        self.inner.pins().boxed()
    }

    fn pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<Option<PinSummary>, StoreError>> {
        self.inner.shared.pin(*root).boxed()
    }

    fn missing<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<MissingBlocks, StoreError>> {
        self.inner.missing(root).boxed()
    }

    /// Of the keys in the shared storage, those that this gateway provides; of those on its own disk all. They may be
    /// visited twice.
    fn visit_keys(&self, which: Held, visit: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        let Inner { disk, runtime, members, .. } = &*self.inner;
        if which == Held::All {
            disk.visit_keys(Held::All, visit)?;
        }
        let share = members.get().map(|members| members.share_of_keys());
        let visit = &mut |key: &[u8]| {
            if share.as_ref().is_none_or(|share| share.has(key)) {
                visit(key);
            }
        };
        match which {
            Held::Roots => runtime.block_on(self.inner.visit_roots(visit)),
            Held::Pinned => runtime.block_on(self.inner.visit_shared(Listed::Pinned, visit)),
            Held::All => runtime.block_on(self.inner.visit_shared(Listed::Stored, visit)),
        }
    }

    fn put_cached(&self, block: Block) -> BoxFuture<'_, ()> {
        if self.inner.keeps_cached
            && let Err(error) = self.inner.writer.try_cache(block.clone())
        {
            tracing::debug!(%error, "a block is not put into the site's storage");
        }
        self.inner.disk.put_cached(block)
    }

    fn count_dropped_write(&self) {
        self.inner.disk.count_dropped_write();
    }

    fn pin_changes(&self) -> Arc<PinChanges> {
        Arc::clone(&self.inner.changes)
    }

    fn begin_pin(&self, root: Cid, name: Option<String>) -> BoxFuture<'_, Result<Arc<PinAttempt>, StoreError>> {
        self.inner.begin_pin(root, name).boxed()
    }

    fn begin_temporary_pin(&self) -> BoxFuture<'_, Result<Arc<PinAttempt>, StoreError>> {
        self.inner.disk.begin_temporary_pin()
    }

    fn put_member<'a>(&'a self, block: &'a Block, attempt: &'a Arc<PinAttempt>) -> BoxFuture<'a, Result<(), PinError>> {
        match attempt.root() {
            Some(_) => self.inner.put_member(Item::Block(block.clone()), attempt).boxed(),
            None => {
                self.inner.ahead.put(attempt.id(), block);
                self.inner.disk.put_member(block, attempt)
            }
        }
    }

    fn put_held_member<'a>(&'a self, cid: Cid, attempt: &'a Arc<PinAttempt>) -> BoxFuture<'a, Result<(), PinError>> {
        match attempt.root() {
            Some(_) => self.inner.put_member(Item::Held(cid), attempt).boxed(),
            None => self.inner.hold(cid, attempt).boxed(),
        }
    }

    fn finish_pin(&self, attempt: Arc<PinAttempt>) -> BoxFuture<'_, Result<PinSummary, PinError>> {
        self.inner.finish_pin(attempt).boxed()
    }

    fn current_pin<'a>(&'a self, root: &'a Cid) -> BoxFuture<'a, Result<Option<PinSummary>, StoreError>> {
        self.inner.shared.current_pin(*root).boxed()
    }

    fn remove_pin_by_id<'a>(&'a self, root: &'a Cid, id: Option<u64>) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.inner.remove_pin(root, id).boxed()
    }

    /// The blocks that a pin has are those of the site; its count of deleted blocks is that of the own disk or that of the
    /// shared storage, whichever is larger.
    fn evict(&self, keys: Vec<BlockKey>, which: Evict) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        self.inner.evict(keys, which).boxed()
    }

    fn evictable(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        self.inner.evictable(keys).boxed()
    }

    fn shrink(&self, cached_bytes: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.inner.disk.shrink(cached_bytes)
    }

    fn release(&self, temporary_pin: &PinAttempt) {
        self.inner.disk.release(temporary_pin);
        self.inner.ahead.release(temporary_pin.id());
    }

    fn written(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            self.inner.disk.written().await?;
            self.inner.writer.written(Which::Members).await
        }
        .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.flush().boxed()
    }

    fn compact(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.disk.compact()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.close().boxed()
    }

    fn released(&self) -> BoxFuture<'static, ()> {
        self.inner.disk.released()
    }

    fn set_is_hot(&self, is_hot: IsHot) {
        self.inner.disk.set_is_hot(is_hot);
    }

    fn set_is_withheld(&self, is_withheld: IsWithheld) {
        let inner = Arc::clone(&self.inner.is_withheld);
        _ = inner.set(is_withheld);
        self.inner.disk.set_is_withheld(Box::new(move |key| inner.get().is_some_and(|is_withheld| is_withheld(key))));
    }

    /// The amounts of the own disk, with the pins of the site.
    fn figures(&self) -> BoxFuture<'_, Result<Figures, StoreError>> {
        self.inner.figures().boxed()
    }

    /// The counters of the own disk. What is in the shared storage is not on it.
    fn live_stats(&self) -> Arc<Stats> {
        self.inner.disk.live_stats()
    }

    /// Verifies the own disk. Blocks in the shared storage are verified when they are read.
    fn scrub<'a>(
        &'a self,
        pass: ScrubPass,
        bytes_per_second: Option<u64>,
        on_progress: OnProgress<'a>,
    ) -> BoxFuture<'a, Result<ScrubReport, StoreError>> {
        self.inner.disk.scrub(pass, bytes_per_second, on_progress)
    }

    fn scrubbed_at(&self) -> BoxFuture<'_, Result<Option<SystemTime>, StoreError>> {
        self.inner.disk.scrubbed_at()
    }

    fn recompress_pinned(
        &self,
        level: u8,
        bytes_per_second: Option<u64>,
    ) -> BoxFuture<'_, Result<Recompressed, StoreError>> {
        self.inner.disk.recompress_pinned(level, bytes_per_second)
    }
}
