//! From a root CID and path segments to a block (<https://specs.ipfs.tech/http-gateways/path-gateway/>).
//!
//! A segment is a name in a UnixFS directory or a plain dag-pb node, or a key or index in a document (dag-cbor, dag-json and
//! the plain formats, which merely have no links). A link in a document is followed before the next segment.
//!
//! Goals: what the gateway's `X-Ipfs-Roots` header and its CAR responses need comes out of the walk itself; every way to
//! fail names the block and the segment where it did; a document is decoded once, within the bounds of [`crate::ipld`].
//!
//! Non-goals: following symlinks, which gateways do not do; the logical form of dag-pb (`Links/0/Hash`), which gateways
//! do not walk either.

use crate::block::Block;
use crate::cid::Cid;
use crate::ipld::{self, Ipld, IpldError};
use crate::policy::{AllowAll, Policy, Verdict};
use crate::source::{BlockSource, SourceError, fetch};
use crate::unixfs::dir::{self, DirError};
use crate::unixfs::{Node, NodeError};

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The block of the last segment: the one that it names, or the one that holds the value that it names.
    pub block: Block,
    /// The root, then the CID of the block that each segment leads to: what `X-Ipfs-Roots` lists. A segment that stays
    /// inside a document repeats the document's CID. The inner shards of a large directory are not among them: they
    /// belong to no segment.
    pub roots: Vec<Cid>,
    /// Every block that was read on the way to the last one, which is not among them, in the order in which they were
    /// read: what proves the path. Inner shards are among them.
    pub passed: Vec<Cid>,
    /// The segments that lead to a value inside `block`; none if the path ends with the block itself.
    pub remainder: Vec<String>,
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// A directory has no such name, or a document no such key or index there.
    #[error("there is no link named \"{name}\" under {parent}")]
    NoLink {
        /// The directory or document.
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
    /// A document on the way is larger than what is read here ([`ipld::MAX_ITEMS`], [`ipld::MAX_DEPTH`]).
    #[error("{cid} is too complex a document to be walked through")]
    TooComplex {
        /// The block.
        cid: Cid,
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

impl From<IpldError> for WalkError {
    fn from(error: IpldError) -> Self {
        match error {
            IpldError::NotConvertible { cid, .. } => Self::Unsupported { cid, codec: cid.codec() },
            IpldError::Malformed { cid, reason } => Self::Malformed { cid, reason },
            IpldError::TooComplex { cid } => Self::TooComplex { cid },
        }
    }
}

/// What a block makes of the segments that come to it.
struct Step {
    /// How many of them it takes, at least one.
    taken: usize,
    /// The block that they lead to, or `None` when they all end at a value inside this one.
    next: Option<Cid>,
    /// The inner shards that had to be read for it.
    shards: Vec<Cid>,
}

/// Follows `segments` (percent-decoded, none empty) from `root`, and fetches the block at the end, whatever its codec. Only
/// blocks that are walked through have to be understood.
///
/// # Errors
/// [`WalkError`] names the first step that failed.
pub async fn resolve(source: &dyn BlockSource, root: Cid, segments: &[String]) -> Result<Resolved, WalkError> {
    resolve_under(source, &AllowAll, root, segments).await
}

/// The same, as far as a policy allows: it is asked at each step about the rest of the path, before the block is.
///
/// # Errors
/// [`WalkError`] names the first step that failed; [`SourceError::Refused`] what begins a path that the policy refuses.
pub async fn resolve_under(
    source: &dyn BlockSource,
    policy: &dyn Policy,
    root: Cid,
    segments: &[String],
) -> Result<Resolved, WalkError> {
    let work = source.work();
    check_path(policy, &root, segments, None)?;
    let mut block = fetch(source, &root).await?;
    let (mut roots, mut passed) = (Vec::with_capacity(segments.len() + 1), Vec::new());
    roots.push(root);
    let mut rest = segments;
    while let Some(name) = rest.first() {
        let here = *block.cid();
        work.charge_decoding(&block);
        work.turn().await?;
        let step = match ipld::is_document(here.codec()) {
            true => through_document(&block, rest)?,
            false => through_node(source, &block, name).await?,
        };
        roots.extend(std::iter::repeat_n(here, step.taken - usize::from(step.next.is_some())));
        let Some(next) = step.next else { break };
        rest = rest.get(step.taken..).unwrap_or_default();
        check_path(policy, &next, rest, None)?;
        block = fetch(source, &next).await?;
        roots.push(next);
        passed.push(here);
        passed.extend(step.shards);
    }
    Ok(Resolved { block, roots, passed, remainder: rest.to_vec() })
}

/// Asks a policy about a path that is more than its root, which blocks are checked by, and may go on with `more`.
///
/// # Errors
/// [`SourceError::Refused`].
pub fn check_path(policy: &dyn Policy, root: &Cid, rest: &[String], more: Option<&str>) -> Result<(), SourceError> {
    if !policy.decides_paths() || rest.is_empty() && more.is_none() {
        return Ok(());
    }
    match policy.check_path(root, &joined(rest, more)) {
        Verdict::Allow => Ok(()),
        verdict => Err(SourceError::Refused { cid: *root, verdict }),
    }
}

/// A path as policies have it.
pub fn joined(segments: &[String], more: Option<&str>) -> String {
    let mut path = segments.join("/");
    if let Some(more) = more {
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(more);
    }
    path
}

impl Resolved {
    /// Each root on the way, with what of the path is left there.
    pub fn ways<'a>(&'a self, segments: &'a [String]) -> impl Iterator<Item = (&'a Cid, &'a [String])> {
        self.roots.iter().enumerate().filter_map(|(index, root)| Some((root, segments.get(index..)?)))
    }

    /// Asks a policy about what is called `more` at the end of a path that was walked, by each root on the way.
    ///
    /// # Errors
    /// [`SourceError::Refused`].
    pub fn check_further(&self, policy: &dyn Policy, segments: &[String], more: &str) -> Result<(), SourceError> {
        self.ways(segments).try_for_each(|(root, rest)| check_path(policy, root, rest, Some(more)))
    }

    /// Asks a policy about an answer that holds everything below the end of a path that was walked.
    ///
    /// # Errors
    /// [`SourceError::Refused`].
    pub fn check_below(&self, policy: &dyn Policy, segments: &[String]) -> Result<(), SourceError> {
        if !policy.decides_paths() {
            return Ok(());
        }
        self.ways(segments).try_for_each(|(root, rest)| match policy.check_below(root, &joined(rest, None)) {
            Verdict::Allow => Ok(()),
            verdict => Err(SourceError::Refused { cid: *root, verdict }),
        })
    }
}

/// Goes down a document as far as it reaches: to the first link, or to where the segments end.
fn through_document(block: &Block, segments: &[String]) -> Result<Step, WalkError> {
    let document = ipld::decode(block)?;
    let mut value = &document;
    for (index, name) in segments.iter().enumerate() {
        value = value.get(name).ok_or_else(|| WalkError::NoLink { parent: *block.cid(), name: name.clone() })?;
        if let Ipld::Link(next) = value {
            return Ok(Step { taken: index + 1, next: Some(**next), shards: Vec::new() });
        }
    }
    Ok(Step { taken: segments.len(), next: None, shards: Vec::new() })
}

/// Goes from a UnixFS directory or a plain dag-pb node to one of its links.
async fn through_node(source: &dyn BlockSource, block: &Block, name: &str) -> Result<Step, WalkError> {
    let cid = *block.cid();
    let mut shards = Vec::new();
    let found = match Node::decode(block)? {
        Node::Plain(node) => dir::lookup_link(&cid, &node, name),
        _ => dir::lookup_through(source, block, name, &mut shards).await,
    };
    match found {
        Ok(Some(next)) => Ok(Step { taken: 1, next: Some(next), shards }),
        Ok(None) => Err(WalkError::NoLink { parent: cid, name: name.to_owned() }),
        Err(DirError::NotADirectory { cid }) => Err(WalkError::NotADirectory { cid, name: name.to_owned() }),
        Err(DirError::Node(error)) => Err(error.into()),
        Err(DirError::Source(error)) => Err(error.into()),
    }
}
