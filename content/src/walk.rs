//! From a root CID and path segments to a block (<https://specs.ipfs.tech/http-gateways/path-gateway/>).
//!
//! Goals: what the gateway's `X-Ipfs-Roots` header needs comes out of the walk itself; every way to fail names the block
//! and the segment where it did.
//!
//! Non-goals: paths inside dag-cbor and dag-json documents; following symlinks, which gateways do not do.

use crate::block::Block;
use crate::cid::Cid;
use crate::source::{BlockSource, SourceError, fetch};
use crate::unixfs::dir::{self, DirError};
use crate::unixfs::{Node, NodeError};

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The block of the last segment.
    pub block: Block,
    /// The root, then the CID of each segment: what `X-Ipfs-Roots` lists. The inner shards of a large directory are not
    /// among them: they belong to no segment.
    pub roots: Vec<Cid>,
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// A directory has no such name.
    #[error("there is no link named \"{name}\" under {parent}")]
    NoLink {
        /// The directory.
        parent: Cid,
        /// The missing segment.
        name: String,
    },
    /// The path goes on below something that has nothing below it: a file or a symlink.
    #[error("{cid} is not a directory, so it has no \"{name}\"")]
    NotADirectory {
        /// The file or symlink.
        cid: Cid,
        /// The segment that was to be found in it.
        name: String,
    },
    /// The path goes on below a block whose codec cannot be walked.
    #[error("{cid} has the codec 0x{codec:x}, in which paths are not supported")]
    Unsupported {
        /// The block.
        cid: Cid,
        /// Its multicodec.
        codec: u64,
    },
    /// A block on the way is malformed.
    #[error("{cid} is malformed: {reason}")]
    Malformed {
        /// The block.
        cid: Cid,
        /// What is wrong with it.
        reason: String,
    },
    /// A block on the way did not come.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl From<NodeError> for WalkError {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Unsupported { cid, codec } => Self::Unsupported { cid, codec },
            NodeError::Malformed { cid, reason } => Self::Malformed { cid, reason },
        }
    }
}

/// Follows `segments` (percent-decoded, none empty) from `root`, and fetches the block at the end, whatever its codec.
///
/// # Errors
/// [`WalkError`] names the first step that failed.
pub async fn resolve(source: &dyn BlockSource, root: Cid, segments: &[String]) -> Result<Resolved, WalkError> {
    let mut roots = Vec::with_capacity(segments.len() + 1);
    let mut block = fetch(source, &root).await?;
    roots.push(root);
    for name in segments {
        let next = step(source, &block, name).await?;
        block = fetch(source, &next).await?;
        roots.push(next);
    }
    Ok(Resolved { block, roots })
}

/// The CID of `name` in a block.
async fn step(source: &dyn BlockSource, block: &Block, name: &str) -> Result<Cid, WalkError> {
    let cid = *block.cid();
    let found = match Node::decode(block)? {
        Node::Plain(node) => dir::lookup_link(&cid, &node, name),
        _ => dir::lookup(source, block, name).await,
    };
    match found {
        Ok(Some(next)) => Ok(next),
        Ok(None) => Err(WalkError::NoLink { parent: cid, name: name.to_owned() }),
        Err(DirError::NotADirectory { cid }) => Err(WalkError::NotADirectory { cid, name: name.to_owned() }),
        Err(DirError::Node(error)) => Err(error.into()),
        Err(DirError::Source(error)) => Err(error.into()),
    }
}
