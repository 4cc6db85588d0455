//! Which blocks a DAG has, as far as they are stored.
//!
//! The walk is that of [`content::dag`], without its waiting: here every block is at hand or missing. Blocks that have no links
//! by their codec are not read.

use crate::error::StoreError;
use bytes::Bytes;
use content::fingerprints::Fingerprints;
use content::{Block, BlockKey, Cid, codec, dag};

/// What a walk asks of a store. Everything here may block.
pub(crate) trait Stored {
    /// The length of a block that is held; `None` if it is not, or is known to be damaged.
    fn block_bytes(&self, key: &BlockKey) -> Result<Option<usize>, StoreError>;

    /// The bytes of a block that is held; `None` if they turn out damaged.
    fn block(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError>;
}

/// A block of a DAG.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visited {
    pub(crate) key: BlockKey,
    /// The length of the block; `None` if it is not here, or damaged.
    pub(crate) block_bytes: Option<usize>,
}

/// Shows each block of the DAG below a root, the root included, and says whether all links could be followed. A block that is
/// linked under two codecs is shown twice. Memory: some 40 bytes for each block.
///
/// # Errors
/// What the store said, or what `visit` said.
pub(crate) fn walk(
    store: &dyn Stored,
    root: Cid,
    visit: &mut dyn FnMut(Visited) -> Result<(), StoreError>,
) -> Result<bool, StoreError> {
    let (mut seen, mut waiting, mut complete) = (Fingerprints::default(), vec![root], true);
    seen.insert((root.codec(), root.hash()));
    while let Some(cid) = waiting.pop() {
        let links = match BlockKey::of(&cid) {
            None => Block::inline(&cid).and_then(|block| dag::links(&block).ok()),
            Some(key) => {
                let found = look(store, cid, &key)?;
                let (block_bytes, links) = found.map_or((None, None), |(bytes, links)| (Some(bytes), links));
                visit(Visited { key, block_bytes })?;
                links
            }
        };
        complete &= links.is_some();
        let new = links.into_iter().flatten().filter(|link| seen.insert((link.codec(), link.hash())));
        waiting.extend(new);
    }
    Ok(complete)
}

/// The length of a block in bytes, and its links if they can be read.
type Looked = (usize, Option<Vec<Cid>>);

/// Reads a block that is here.
fn look(store: &dyn Stored, cid: Cid, key: &BlockKey) -> Result<Option<Looked>, StoreError> {
    let Some(bytes) = store.block_bytes(key)? else { return Ok(None) };
    if matches!(cid.codec(), codec::RAW | codec::CBOR | codec::JSON) {
        return Ok(Some((bytes, Some(Vec::new()))));
    }
    let block = store.block(key)?.map(|data| Block::from_checked(cid, data));
    Ok(block.map(|block| (bytes, dag::links(&block).ok())))
}
