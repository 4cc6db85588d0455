//! [`BlockSource`]: the one seam between what reads DAGs and what holds blocks.
//!
//! Goals: object-safe, so that memory, disk, network and their combinations are interchangeable and can be wrapped (with
//! metrics, limits, faults); errors shaped by what the caller can do about them.
//!
//! Boxed futures cost nothing beside I/O, and a block that is at hand never gets there: [`BlockSource::peek`] answers it
//! without waiting or allocating.

use crate::block::Block;
use crate::cid::{BlockKey, Cid, is_identity};
pub use crate::source_error::{SourceError, Stall};
use crate::work::Work;
use bytes::Bytes;
use futures::future::{BoxFuture, ready};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// Somewhere that verified blocks come from.
pub trait BlockSource: Send + Sync {
    /// The block, if it can be had without waiting: no I/O, no lock held over I/O. The default holds nothing at hand.
    fn peek(&self, cid: &Cid) -> Option<Block> {
        let _ = cid;
        None
    }

    /// The block, if a slower tier has it where it is read without waiting, at the price of reading it: a disk whose data the
    /// operating system holds in memory. Asked after [`BlockSource::peek`]; the default has no such tier.
    fn read_now(&self, cid: &Cid) -> Option<Block> {
        let _ = cid;
        None
    }

    /// The block that an identity CID carries, unless the source has a reason not to give it: [`BlockSource::get`]
    /// tells that reason. The default knows none.
    fn inline(&self, cid: &Cid) -> Option<Block> {
        Block::inline(cid)
    }

    /// What counts the work that is done with these blocks. A request's own source has its budget; the default has
    /// none, and whoever asks has a counter of its own.
    fn work(&self) -> Work {
        Work::unlimited()
    }

    /// Finds a block. Dropping the future withdraws the caller's interest; work that nobody waits for is cancelled.
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>>;

    /// Whether [`BlockSource::get`] would find the block here, without reading its bytes and never by asking anybody else.
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

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        (**self).has(cid)
    }
}

/// The block, if it takes no waiting: it is inline in its CID, or the source has it at hand.
pub(crate) fn at_hand(source: &dyn BlockSource, cid: &Cid) -> Option<Block> {
    if is_identity(cid) { source.inline(cid) } else { source.peek(cid) }
}

/// The block, waiting for it only if it is not at hand.
pub(crate) async fn fetch(source: &dyn BlockSource, cid: &Cid) -> Result<Block, SourceError> {
    match at_hand(source, cid) {
        Some(block) => Ok(block),
        None => source.get(cid).await,
    }
}

/// Blocks in a map, without limit or eviction: for archives that are small enough to hold, and for tests. Everything it
/// holds is at hand; anything else is [`SourceError::NotFound`]. Like every tier it ignores codec and CID version, and
/// it answers inline blocks as well.
#[derive(Debug, Default)]
pub struct MemoryBlocks {
    blocks: RwLock<HashMap<BlockKey, Bytes>>,
}

impl MemoryBlocks {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Holds a block from now on. Inline blocks need no holding.
    pub fn insert(&self, block: &Block) {
        if let Some(key) = block.key() {
            self.blocks.write().unwrap_or_else(PoisonError::into_inner).insert(key, block.data().clone());
        }
    }

    /// Forgets a block; `true` if it was held.
    pub fn remove(&self, cid: &Cid) -> bool {
        let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        BlockKey::of(cid).is_some_and(|key| blocks.remove(&key).is_some())
    }

    /// How many blocks are held.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether no block is held.
    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// A map stays whole even if a thread panicked while it held the lock, so poisoning means nothing here.
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
        // The bytes became a `Block` by verification before they were inserted.
        self.read().get(&key).map(|data| Block::from_checked(*cid, data.clone()))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        Box::pin(ready(self.peek(cid).ok_or(SourceError::NotFound { cid: *cid })))
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        Box::pin(ready(Ok(self.peek(cid).is_some())))
    }
}
