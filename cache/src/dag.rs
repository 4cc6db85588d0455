//! Traverses a DAG within the store.
//!
//! The traversal is that of [`content::dag`] without waiting: every block is either stored or missing. Blocks whose
//! codec has no links are not read.

use crate::error::StoreError;
use bytes::Bytes;
use content::frontier::{Frontier, Step};
use content::{Block, BlockKey, Cid};

/// What a traversal needs of a store. The methods may block.
pub(crate) trait Stored {
    /// The length of a block; `None` if it is missing or known to be corrupt.
    fn block_bytes(&self, key: &BlockKey) -> Result<Option<usize>, StoreError>;

    /// The bytes of a stored block; `None` if it turns out corrupt.
    fn block(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError>;
}

/// A block of a DAG.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visited {
    pub(crate) key: BlockKey,
    /// The length of the block; `None` if it is missing or corrupt.
    pub(crate) block_bytes: Option<usize>,
}

/// Calls `visit` with each block of the DAG, including the root, and returns whether all links could be followed. A
/// block that is linked under two codecs is visited twice. Memory: that of a [`Frontier`].
///
/// # Errors
/// [`StoreError`], of the store or of `visit`.
pub(crate) fn walk(
    store: &dyn Stored,
    root: Cid,
    visit: &mut dyn FnMut(Visited) -> Result<(), StoreError>,
) -> Result<bool, StoreError> {
    let (mut frontier, mut complete) = (Frontier::new(root, None), true);
    // Without limits, a step does not fail.
    while let Ok(step) = frontier.step() {
        match step {
            Step::Visit(cid) | Step::Revisit(cid) => {
                let found = find(store, cid, frontier.follows(&cid))?;
                if let Some(key) = BlockKey::of(&cid) {
                    visit(Visited { key, block_bytes: found.as_ref().map(|(bytes, _)| *bytes) })?;
                }
                complete &= found.is_some_and(|(_, block)| block.is_none_or(|block| frontier.push(&block).is_ok()));
            }
            Step::ReadAgain(cid) => {
                let block = find(store, cid, true)?.and_then(|(_, block)| block);
                if block.is_none_or(|block| frontier.resume(&block).is_err()) {
                    frontier.abandon(&cid);
                    complete = false;
                }
            }
            Step::Wait | Step::Done => break,
        }
    }
    Ok(complete)
}

/// The length of a block in bytes, if it is stored, and the block if `reads` is set.
fn find(store: &dyn Stored, cid: Cid, reads: bool) -> Result<Option<(usize, Option<Block>)>, StoreError> {
    let Some(key) = BlockKey::of(&cid) else {
        return Ok(Block::inline(&cid).map(|block| (block.data().len(), Some(block))));
    };
    let Some(bytes) = store.block_bytes(&key)? else { return Ok(None) };
    if !reads {
        return Ok(Some((bytes, None)));
    }
    Ok(store.block(&key)?.map(|data| (bytes, Some(Block::from_verified(cid, data)))))
}
