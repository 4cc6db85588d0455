//! The links of blocks, whatever their codec.

use crate::block::Block;
use crate::cid::{Cid, codec};
use crate::dagpb::PbNode;
use crate::ipld::{self, IpldError};
use crate::source::SourceError;
use crate::unixfs::NodeError;

/// Why a DAG cannot be walked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DagError {
    /// A block cannot be understood.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A block did not come.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// There is no memory left to remember where the walk has been.
    #[error("there is no memory left at the moment to follow a DAG of so many blocks: try again later")]
    Memory,
}

/// The CIDs that a block links to, in stored order, repeated as often as they occur: the links of dag-pb nodes and those
/// of dag-cbor (tag 42, <https://ipld.io/specs/codecs/dag-cbor/spec/#links>) and dag-json documents (`{"/": "…"}`,
/// <https://ipld.io/specs/codecs/dag-json/spec/#links>). Raw blocks and plain CBOR and JSON have none by definition.
///
/// A CID takes some 150 bytes in memory, and eight in a block: [`for_each_link`] does without all of them at once.
///
/// # Errors
/// [`NodeError::Unsupported`] for other codecs: their links are unknown, which is not the same as none.
/// [`NodeError::Malformed`] for bytes that break the format, and for dag-json that is too complex to be read
/// ([`crate::ipld`]).
pub fn links(block: &Block) -> Result<Vec<Cid>, NodeError> {
    let mut links = Vec::new();
    for_each_link(block, &mut |cid| links.push(cid))?;
    Ok(links)
}

/// Hands on what [`links`] would list, one by one. Some may have been handed on before an error.
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

/// Whether blocks of a codec have no links, whatever their bytes are.
pub(crate) fn is_leaf(codec: u64) -> bool {
    matches!(codec, codec::RAW | codec::CBOR | codec::JSON)
}
