//! [`BlockSource`]: the interface between readers of DAGs and tiers of blocks.
//!
//! Goals: object-safe, so that memory, disk, network and their combinations are interchangeable and can be wrapped
//! (with metrics, limits, faults); errors that tell the caller what to do.
//!
//! The cost of a boxed future is negligible beside I/O, and blocks in memory need none: [`BlockSource::peek`] returns
//! them without waiting or allocating.

use crate::block::Block;
use crate::cid::{BlockKey, Cid, is_identity};
use crate::read_ahead::ReadAhead;
pub use crate::source_error::{SourceError, Stall};
use crate::stored::Stored;
use crate::work::Work;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// A source of verified blocks.
pub trait BlockSource: Send + Sync {
    /// The block, if it is available without I/O and without a lock that is held during I/O. `None` by default.
    fn peek(&self, cid: &Cid) -> Option<Block> {
        let _ = cid;
        None
    }

    /// The block, if a slower tier can read it without blocking: a disk tier whose data is in the page cache. Called
    /// after [`BlockSource::peek`]; `None` by default.
    fn read_now(&self, cid: &Cid) -> Option<Block> {
        let _ = cid;
        None
    }

    /// The block of an identity CID, unless the source withholds it; then [`BlockSource::get`] returns the error. By
    /// default nothing is withheld.
    fn inline(&self, cid: &Cid) -> Option<Block> {
        Block::inline(cid)
    }

    /// The counter of the work that is done with these blocks. The source of a request has the request's budget. By
    /// default, each call returns a new counter without a limit.
    fn work(&self) -> Work {
        Work::unlimited()
    }

    /// Fetches a block. Dropping the future cancels the fetch, unless other callers wait for it.
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>>;

    /// Fetches a block like [`BlockSource::get`], and tells the source what will be requested after it. Callers use it
    /// for blocks that are not available at once. By default this is ignored.
    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        let _ = ahead;
        self.get(cid)
    }

    /// The block as it is stored locally, to be sent as it is to a peer that unpacks it. Never asks the network. `None` if
    /// it is not stored, or if the source does not know stored forms, which is the default: then [`BlockSource::get`]
    /// has the block.
    ///
    /// # Errors
    /// Those of [`BlockSource::get`].
    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        let _ = cid;
        ready(Ok(None)).boxed()
    }

    /// Whether the block is stored locally. Reads no data, and never asks the network.
    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>>;
}

impl<S: BlockSource + ?Sized> BlockSource for Arc<S> {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        (**self).peek(cid)
    }

    fn read_now(&self, cid: &Cid) -> Option<Block> {
        (**self).read_now(cid)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        (**self).inline(cid)
    }

    fn work(&self) -> Work {
        (**self).work()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        (**self).get(cid)
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        (**self).get_ahead(cid, ahead)
    }

    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        (**self).get_stored(cid)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        (**self).has(cid)
    }
}

/// The block, if it needs no waiting: it is inline in its CID, or [`BlockSource::peek`] has it.
pub(crate) fn peek_or_inline(source: &dyn BlockSource, cid: &Cid) -> Option<Block> {
    if is_identity(cid) { source.inline(cid) } else { source.peek(cid) }
}

/// The block, from [`BlockSource::get`] only if it is not available at once.
pub(crate) async fn fetch(source: &dyn BlockSource, cid: &Cid) -> Result<Block, SourceError> {
    match peek_or_inline(source, cid) {
        Some(block) => Ok(block),
        None => source.get(cid).await,
    }
}

/// The block, from [`BlockSource::get_ahead`] only if it is not available at once.
pub(crate) async fn fetch_ahead(
    source: &dyn BlockSource,
    cid: &Cid,
    ahead: impl FnOnce() -> ReadAhead,
) -> Result<Block, SourceError> {
    match peek_or_inline(source, cid) {
        Some(block) => Ok(block),
        None => source.get_ahead(cid, &ahead()).await,
    }
}

/// Blocks in a map, without limit or eviction: for small archives and for tests. [`BlockSource::peek`] returns every
/// stored block; for others, `get` fails with [`SourceError::NotFound`]. Like every tier it ignores the codec and the
/// version of CIDs, and it also returns inline blocks.
#[derive(Debug, Default)]
pub struct MemoryBlocks {
    blocks: RwLock<HashMap<BlockKey, Bytes>>,
}

impl MemoryBlocks {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores a block. Inline blocks are not stored.
    pub fn insert(&self, block: &Block) {
        if let Some(key) = block.key() {
            self.blocks.write().unwrap_or_else(PoisonError::into_inner).insert(key, block.data().clone());
        }
    }

    /// Deletes a block; `true` if it was stored.
    pub fn remove(&self, cid: &Cid) -> bool {
        let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        BlockKey::of(cid).is_some_and(|key| blocks.remove(&key).is_some())
    }

    /// The number of stored blocks.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether no block is stored.
    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// A map stays consistent even if a thread panics while it holds the lock, so poisoning is ignored.
    fn read(&self) -> RwLockReadGuard<'_, HashMap<BlockKey, Bytes>> {
        self.blocks.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FromIterator<Block> for MemoryBlocks {
    fn from_iter<I: IntoIterator<Item = Block>>(blocks: I) -> Self {
        let memory = Self::new();
        blocks.into_iter().for_each(|block| memory.insert(&block));
        memory
    }
}

impl BlockSource for MemoryBlocks {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        let Some(key) = BlockKey::of(cid) else { return Block::inline(cid) };
        // The bytes were verified before they were inserted.
        self.read().get(&key).map(|data| Block::from_verified(*cid, data.clone()))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        Box::pin(ready(self.peek(cid).ok_or(SourceError::NotFound { cid: *cid })))
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        Box::pin(ready(Ok(self.peek(cid).is_some())))
    }
}
