//! The links of a block, and every block of a DAG: what recursive pins need.
//!
//! Goals: a whole DAG can be walked however large its blocks' neighbourhoods are, with a bounded number of blocks in
//! memory; nothing is visited twice.
//!
//! Non-goal: order. Blocks come as they arrive.

use crate::block::Block;
use crate::cid::{BlockKey, Cid, codec};
use crate::dagpb::PbNode;
use crate::fingerprints::Fingerprints;
use crate::ipld::{self, IpldError};
use crate::source::{BlockSource, SourceError, at_hand};
use crate::unixfs::NodeError;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt as _};
use std::sync::Arc;

/// Why a DAG cannot be walked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DagError {
    /// A block cannot be understood.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A block did not come.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// The CIDs that a block links to, in stored order, repeated as often as they occur: the links of dag-pb nodes and those
/// of dag-cbor (tag 42, <https://ipld.io/specs/codecs/dag-cbor/spec/#links>) and dag-json documents (`{"/": "…"}`,
/// <https://ipld.io/specs/codecs/dag-json/spec/#links>). Raw blocks and plain CBOR and JSON have none by definition.
///
/// # Errors
/// [`NodeError::Unsupported`] for other codecs: their links are unknown, which is not the same as none.
/// [`NodeError::Malformed`] for bytes that break the format, and for dag-json that is too complex to be read
/// ([`crate::ipld`]).
pub fn links(block: &Block) -> Result<Vec<Cid>, NodeError> {
    let cid = block.cid();
    match cid.codec() {
        leaf if is_leaf(leaf) => Ok(Vec::new()),
        codec::DAG_PB => links_pb(block).map_err(|reason| NodeError::malformed(cid, reason)),
        codec::DAG_CBOR => ipld::links_cbor(block).map_err(|error| unreadable(cid, error)),
        codec::DAG_JSON => ipld::links_json(block).map_err(|error| unreadable(cid, error)),
        codec => Err(NodeError::Unsupported { cid: *cid, codec }),
    }
}

fn unreadable(cid: &Cid, error: IpldError) -> NodeError {
    match error {
        IpldError::Malformed { cid, reason } => NodeError::Malformed { cid, reason },
        error => NodeError::malformed(cid, error),
    }
}

fn links_pb(block: &Block) -> Result<Vec<Cid>, crate::dagpb::PbError> {
    PbNode::decode(block.data().clone())?.links().map(|link| link?.cid()).collect()
}

/// Whether blocks of a codec have no links, whatever their bytes are.
fn is_leaf(codec: u64) -> bool {
    matches!(codec, codec::RAW | codec::CBOR | codec::JSON)
}

/// A block that a walk came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visited {
    /// One that was read.
    Block(Block),
    /// One that has no links, by its codec, and was not read. Whether it is there is not known.
    Leaf(Cid),
}

/// Every block of the DAG below `root`, the root included, each once, as they arrive; up to `concurrency` are fetched at
/// a time. Inline blocks are not emitted, since there is nothing to keep, but their links are followed. Bytes that are
/// linked under two codecs are two blocks here, because their links differ.
///
/// Memory: besides `concurrency` blocks, some 40 bytes for every block that a link was seen to: blocks are told apart by 128 bits of
/// a hash with keys that nobody else knows, so that two are as unlikely to be taken for one as two CIDs are to be equal. After an error
/// the stream ends.
///
/// # Errors
/// In the stream: [`DagError`].
pub fn walk_all(
    source: Arc<dyn BlockSource>,
    root: Cid,
    concurrency: usize,
) -> BoxStream<'static, Result<Block, DagError>> {
    let blocks = walk(source, root, concurrency, true);
    let block = |visited| match visited {
        Visited::Block(block) => Some(block),
        Visited::Leaf(_) => None,
    };
    blocks.filter_map(move |visited| ready(visited.map(block).transpose())).boxed()
}

/// The same walk for who holds the blocks and only needs their names: those that have no links are not read.
///
/// # Errors
/// In the stream: [`DagError`].
pub fn walk_links(
    source: Arc<dyn BlockSource>,
    root: Cid,
    concurrency: usize,
) -> BoxStream<'static, Result<Visited, DagError>> {
    walk(source, root, concurrency, false)
}

fn walk(
    source: Arc<dyn BlockSource>,
    root: Cid,
    concurrency: usize,
    reads_leaves: bool,
) -> BoxStream<'static, Result<Visited, DagError>> {
    let mut walk = Walk {
        source,
        concurrency: concurrency.max(1),
        reads_leaves,
        seen: Fingerprints::default(),
        waiting: Vec::new(),
        fetches: FuturesUnordered::new(),
    };
    walk.see(root);
    stream::try_unfold(walk, |mut walk| async move { Ok(walk.next().await?.map(|block| (block, walk))) }).boxed()
}

/// A walk under way.
struct Walk {
    source: Arc<dyn BlockSource>,
    concurrency: usize,
    reads_leaves: bool,
    /// Every CID that is or was on the way, whatever its version: that makes no difference to what a block is.
    seen: Fingerprints,
    /// The last found goes first: depth before breadth keeps this short.
    waiting: Vec<Cid>,
    fetches: FuturesUnordered<BoxFuture<'static, Result<Block, SourceError>>>,
}

impl Walk {
    async fn next(&mut self) -> Result<Option<Visited>, DagError> {
        loop {
            while self.fetches.len() < self.concurrency
                && let Some(cid) = self.waiting.pop()
            {
                if !self.reads_leaves && is_leaf(cid.codec()) && BlockKey::of(&cid).is_some() {
                    return Ok(Some(Visited::Leaf(cid)));
                }
                self.fetches.push(match at_hand(&*self.source, &cid) {
                    Some(block) => ready(Ok(block)).boxed(),
                    None => self.source.get(&cid),
                });
            }
            let Some(block) = self.fetches.next().await.transpose()? else { return Ok(None) };
            for link in links(&block)?.into_iter().rev() {
                self.see(link);
            }
            if block.key().is_some() {
                return Ok(Some(Visited::Block(block)));
            }
        }
    }

    fn see(&mut self, cid: Cid) {
        if self.seen.insert((cid.codec(), cid.hash())) {
            self.waiting.push(cid);
        }
    }
}
