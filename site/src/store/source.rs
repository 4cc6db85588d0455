//! [`SharedSource`]: the blocks in the shared storage as a [`BlockSource`].
//!
//! Goals: a block is verified by its hash before it leaves, although the storage vouches for it by a checksum; nothing is
//! remembered of a block that is not there; untrusted peers cannot make the gateway list the storage.
//!
//! Non-goals: caching, and one read for several callers (`cache::Tiers`).

use crate::blocks::SharedBlocks;
use cache::StoreError;
use content::stored::Stored;
use content::{Block, BlockKey, BlockSource, Cid, SourceError};
use futures::future::{BoxFuture, FutureExt as _};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks whose use is remembered until it is recorded. More are not: which blocks are evicted first is then less exact.
const USED_MAX: usize = 4096;

/// Blocks that were read since this was last recorded.
#[derive(Debug, Clone, Default)]
pub(super) struct UsedBlocks(Arc<Mutex<BTreeSet<BlockKey>>>);

impl UsedBlocks {
    fn add(&self, key: BlockKey) {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if used.len() < USED_MAX {
            used.insert(key);
        }
    }

    pub(super) fn take(&self) -> BTreeSet<BlockKey> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The blocks in the shared storage. Clones share them.
#[derive(Debug, Clone)]
pub struct SharedSource {
    shared: SharedBlocks,
    used: UsedBlocks,
    /// Whether the storage is searched while the index cannot be reached, and reading counts as use.
    is_for_clients: bool,
}

impl SharedSource {
    pub(super) fn new(shared: SharedBlocks, used: UsedBlocks) -> Self {
        Self { shared, used, is_for_clients: true }
    }

    /// The same for untrusted peers. While the index cannot be reached it fails, and does not list the storage; what
    /// peers read does not count as used.
    #[must_use]
    pub fn for_peers(&self) -> Self {
        Self { is_for_clients: false, ..self.clone() }
    }

    /// A block in its stored form.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn stored(&self, key: BlockKey) -> Result<Option<Stored>, StoreError> {
        let read = match self.is_for_clients {
            true => self.shared.get(&[key]).await,
            false => self.shared.get_indexed(&[key]).await,
        };
        let stored = read.into_iter().next().unwrap_or(Ok(None))?;
        if self.is_for_clients && stored.is_some() {
            self.used.add(key);
        }
        Ok(stored)
    }

    /// Whether the index has a block.
    async fn is_stored(&self, key: BlockKey) -> Result<bool, StoreError> {
        Ok(!self.shared.locate(&[key]).await?.is_empty())
    }
}

/// A block by what the storage has for its key.
pub(super) fn verified(cid: Cid, stored: Option<Stored>) -> Result<Block, SourceError> {
    let stored = stored.ok_or(SourceError::NotFound { cid })?;
    Block::verify_stored(cid, stored).map_err(|error| {
        tracing::warn!(%cid, %error, "a block of the site's storage is not what its CID says");
        SourceError::Corrupt { cid }
    })
}

impl BlockSource for SharedSource {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (source, cid) = (self.clone(), *cid);
        async move {
            let Some(key) = BlockKey::of(&cid) else {
                return Block::inline(&cid).ok_or(SourceError::NotFound { cid });
            };
            verified(cid, source.stored(key).await?)
        }
        .boxed()
    }

    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        let (source, key) = (self.clone(), BlockKey::of(cid));
        async move {
            match key {
                Some(key) => Ok(source.stored(key).await?),
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        let (source, key) = (self.clone(), BlockKey::of(cid));
        async move {
            match key {
                Some(key) => Ok(source.is_stored(key).await?),
                None => Ok(true),
            }
        }
        .boxed()
    }
}
