//! Traverses a DAG within the store.
//!
//! The traversal is that of [`content::dag`] without waiting: every block is either stored or missing. Blocks whose
//! codec has no links are not read.

use crate::error::StoreError;
use bytes::Bytes;
use content::fingerprints::Fingerprints;
use content::{Block, BlockKey, Cid, codec, dag};

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
/// block that is linked under two codecs is visited twice. Memory: some 40 bytes for each block.
///
/// # Errors
/// [`StoreError`], of the store or of `visit`.
pub(crate) fn walk(
    store: &dyn Stored,
    root: Cid,
    visit: &mut dyn FnMut(Visited) -> Result<(), StoreError>,
) -> Result<bool, StoreError> {
    let (mut seen, mut pending, mut complete) = (Fingerprints::default(), vec![root], true);
    seen.insert((root.codec(), root.hash()));
    while let Some(cid) = pending.pop() {
        let links = match BlockKey::of(&cid) {
            None => Block::inline(&cid).and_then(|block| dag::links(&block).ok()),
            Some(key) => {
                let found = links_of(store, cid, &key)?;
                let (block_bytes, links) = found.map_or((None, None), |(bytes, links)| (Some(bytes), links));
                visit(Visited { key, block_bytes })?;
                links
            }
        };
        complete &= links.is_some();
        let new = links.into_iter().flatten().filter(|link| seen.insert((link.codec(), link.hash())));
        pending.extend(new);
    }
    Ok(complete)
}

/// The length of a block in bytes, and its links if they can be read.
type BlockLinks = (usize, Option<Vec<Cid>>);

/// The length and links of a block, if it is stored.
fn links_of(store: &dyn Stored, cid: Cid, key: &BlockKey) -> Result<Option<BlockLinks>, StoreError> {
    let Some(bytes) = store.block_bytes(key)? else { return Ok(None) };
    if matches!(cid.codec(), codec::RAW | codec::CBOR | codec::JSON) {
        return Ok(Some((bytes, Some(Vec::new()))));
    }
    let block = store.block(key)?.map(|data| Block::from_verified(cid, data));
    Ok(block.map(|block| (bytes, dag::links(&block).ok())))
}
