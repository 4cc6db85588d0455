//! The links of blocks of every codec.

use crate::block::Block;
use crate::cid::{Cid, codec};
use crate::dagpb::PbNode;
use crate::ipld::{self, IpldError};
use crate::source::SourceError;
use crate::unixfs::NodeError;

/// Why a DAG cannot be traversed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DagError {
    /// A block cannot be decoded.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A block was not received.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The memory for the state of the traversal is used up.
    #[error("not enough memory is free to traverse a DAG of so many blocks; retry later")]
    Memory,
    /// The DAG has more blocks than the traversal may visit.
    #[error("the DAG has more than {max} blocks")]
    TooManyBlocks {
        /// The maximum.
        max: usize,
    },
    /// The links that the traversal has yet to follow exceed its limit.
    #[error("the traversal of the DAG would have to keep more than {max_bytes} bytes of links")]
    TooManyLinks {
        /// The maximum, in bytes.
        max_bytes: usize,
    },
}

/// The CIDs that a block links to, in stored order and with repeats: the links of dag-pb nodes, and those of dag-cbor
/// (tag 42, <https://ipld.io/specs/codecs/dag-cbor/spec/#links>) and dag-json documents (`{"/": "…"}`,
/// <https://ipld.io/specs/codecs/dag-json/spec/#links>). Raw blocks, plain CBOR and plain JSON have none by definition.
///
/// A CID takes some 150 bytes in memory, but as few as eight in a block: [`for_each_link`] needs no list.
///
/// # Errors
/// [`NodeError::Unsupported`] for other codecs, whose links are unknown. [`NodeError::Malformed`] for malformed blocks,
/// and for dag-json documents beyond the limits of [`crate::ipld`].
pub fn links(block: &Block) -> Result<Vec<Cid>, NodeError> {
    let mut links = Vec::new();
    for_each_link(block, &mut |cid| links.push(cid))?;
    Ok(links)
}

/// Calls `each` for every link that [`links`] would return. Some links may precede an error.
///
/// # Errors
/// Those of [`links`].
pub fn for_each_link(block: &Block, each: &mut dyn FnMut(Cid)) -> Result<(), NodeError> {
    let cid = block.cid();
    match cid.codec() {
        leaf if is_leaf(leaf) => Ok(()),
        codec::DAG_PB => links_pb(block, each).map_err(|reason| NodeError::malformed(cid, reason)),
        codec::DAG_CBOR => ipld::links_cbor(block, each).map_err(|error| unreadable(cid, error)),
        codec::DAG_JSON => ipld::links_json(block, each).map_err(|error| unreadable(cid, error)),
        codec => Err(NodeError::Unsupported { cid: *cid, codec }),
    }
}

fn unreadable(cid: &Cid, error: IpldError) -> NodeError {
    match error {
        IpldError::Malformed { cid, reason } => NodeError::Malformed { cid, reason },
        error => NodeError::malformed(cid, error),
    }
}

fn links_pb(block: &Block, each: &mut dyn FnMut(Cid)) -> Result<(), crate::dagpb::PbError> {
    for link in PbNode::decode(block.data().clone())?.links() {
        each(link?.cid()?);
    }
    Ok(())
}

/// Whether blocks of a codec never have links.
pub(crate) fn is_leaf(codec: u64) -> bool {
    matches!(codec, codec::RAW | codec::CBOR | codec::JSON)
}
