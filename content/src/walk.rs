//! Path resolution: from a root CID and segments to a block (<https://specs.ipfs.tech/http-gateways/path-gateway/>).
//!
//! A segment is a name in a UnixFS directory or a plain dag-pb node, or a key or index in a document (dag-cbor,
//! dag-json, and plain CBOR and JSON, which have no links). A link in a document is followed before the next segment.
//!
//! Goals: resolution returns what `X-Ipfs-Roots` and CAR responses need; every error names the block and the segment
//! where it occurred; a document is decoded once, within the limits of [`crate::ipld`].
//!
//! Non-goals: following symlinks, and the logical form of dag-pb (`Links/0/Hash`), neither of which gateways support.

use crate::block::Block;
use crate::cid::Cid;
use crate::dag_scope::{DagScope, ScopeOptions};
use crate::ipld::{self, Ipld, IpldError};
use crate::policy::{AllowAll, Policy, Verdict};
use crate::read_ahead::ReadAhead;
use crate::source::{BlockSource, SourceError, fetch_ahead};
use crate::unixfs::dir::{self, DirError, LookupStep};
use crate::unixfs::{Node, NodeError};

/// The result of path resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The block of the last segment: the one that it links to, or the document with the value that it names.
    pub block: Block,
    /// The root, then the CID of the block of each segment: the value of `X-Ipfs-Roots`. A segment inside a document
    /// repeats the CID of the document. The inner shards of a HAMT directory are left out, because they belong to no
    /// segment.
    pub roots: Vec<Cid>,
    /// Every block that was read before `block`, in the order of reading, inner shards included: the proof of the path.
    pub passed: Vec<Cid>,
    /// The segments that lead to a value inside `block`; empty if the path ends at the block.
    pub remainder: Vec<String>,
}

/// Why a path cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// A directory has no entry of this name, or a document no such key or index.
    #[error("there is no link named \"{name}\" under {parent}")]
    NoLink {
        /// The directory or document.
        parent: Cid,
        /// The missing segment.
        name: String,
    },
    /// The path continues below a file or a symlink.
    #[error("{cid} is not a directory, so it has no \"{name}\"")]
    NotADirectory {
        /// The file or symlink.
        cid: Cid,
        /// The segment below it.
        name: String,
    },
    /// The path continues below a block whose codec does not support paths.
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
    /// A document on the way exceeds [`ipld::MAX_ITEMS`] or [`ipld::MAX_DEPTH`].
    #[error("the document {cid} has more values or levels than path resolution supports")]
    TooComplex {
        /// The block.
        cid: Cid,
    },
    /// A block on the way was not received.
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

/// What the caller of a path resolution will read after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose {
    /// The part of the DAG at the end of the path.
    pub scope: ScopeOptions,
    /// A name that is looked up if the path ends at a directory.
    pub further: Option<&'static str>,
}

impl Default for Purpose {
    /// Nothing but the last block.
    fn default() -> Self {
        Self { scope: ScopeOptions { scope: DagScope::Block, ..ScopeOptions::default() }, further: None }
    }
}

impl Purpose {
    /// What is requested from a block on, of which the rest of the path is left.
    fn ahead(&self, root: &Cid, rest: &[String]) -> ReadAhead {
        let further = self.further.map(str::to_owned);
        ReadAhead { path: rest.iter().cloned().chain(further).collect(), ..ReadAhead::below(*root, self.scope) }
    }
}

/// How a block resolves the next segments.
struct Step {
    /// The number of segments that it resolves, at least one.
    resolved_count: usize,
    /// The block that they link to, or `None` if they all end at a value inside this one.
    next: Option<Cid>,
    /// The inner shards that were read.
    shards: Vec<Cid>,
}

/// Resolves `segments` (percent-decoded, none empty) from `root`, and fetches the last block, whatever its codec. Only
/// the blocks before it are decoded.
///
/// # Errors
/// [`WalkError`] for the first segment that cannot be resolved.
pub async fn resolve(source: &dyn BlockSource, root: Cid, segments: &[String]) -> Result<Resolved, WalkError> {
    resolve_under(source, &AllowAll, root, segments).await
}

/// The same under a policy, which is checked at each step for the rest of the path before the block is fetched.
///
/// # Errors
/// [`WalkError`] for the first segment that cannot be resolved; [`SourceError::RefusedPath`] if the policy denies the
/// path.
pub async fn resolve_under(
    source: &dyn BlockSource,
    policy: &dyn Policy,
    root: Cid,
    segments: &[String],
) -> Result<Resolved, WalkError> {
    resolve_for(source, policy, root, segments, &Purpose::default()).await
}

/// The same, and tells the source what will be read after the path.
///
/// # Errors
/// The same.
pub async fn resolve_for(
    source: &dyn BlockSource,
    policy: &dyn Policy,
    root: Cid,
    segments: &[String],
    purpose: &Purpose,
) -> Result<Resolved, WalkError> {
    let work = source.work();
    check_path(policy, &root, segments, None)?;
    let mut block = fetch_ahead(source, &root, || purpose.ahead(&root, segments)).await?;
    let (mut roots, mut passed) = (Vec::with_capacity(segments.len() + 1), Vec::new());
    roots.push(root);
    let mut rest = segments;
    while let Some(name) = rest.first() {
        let current = *block.cid();
        work.charge_decoding(&block);
        work.turn().await?;
        let step = match ipld::is_document(current.codec()) {
            true => resolve_in_document(&block, rest)?,
            false => resolve_in_node(source, &block, name, &|| purpose.ahead(&current, rest)).await?,
        };
        roots.extend(std::iter::repeat_n(current, step.resolved_count - usize::from(step.next.is_some())));
        let Some(next) = step.next else { break };
        rest = rest.get(step.resolved_count..).unwrap_or_default();
        check_path(policy, &next, rest, None)?;
        block = fetch_ahead(source, &next, || purpose.ahead(&next, rest)).await?;
        roots.push(next);
        passed.push(current);
        passed.extend(step.shards);
    }
    Ok(Resolved { block, roots, passed, remainder: rest.to_vec() })
}

/// Checks a path below a root, optionally extended by `more`. Without segments nothing is checked, since the root is
/// checked as a block.
///
/// # Errors
/// [`SourceError::RefusedPath`].
pub fn check_path(policy: &dyn Policy, root: &Cid, rest: &[String], more: Option<&str>) -> Result<(), SourceError> {
    if !policy.decides_paths() || rest.is_empty() && more.is_none() {
        return Ok(());
    }
    let path = joined(rest, more);
    match policy.check_path(root, &path) {
        Verdict::Allow => Ok(()),
        verdict => Err(SourceError::refused(root, &path, verdict)),
    }
}

/// A path in the form that policies take.
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
    /// Each root on the way, with the rest of the path from there.
    pub fn ways<'a>(&'a self, segments: &'a [String]) -> impl Iterator<Item = (&'a Cid, &'a [String])> {
        self.roots.iter().enumerate().filter_map(|(index, root)| Some((root, segments.get(index..)?)))
    }

    /// Checks the policy for the path extended by `more`, from each root on the way.
    ///
    /// # Errors
    /// [`SourceError::RefusedPath`].
    pub fn check_further(&self, policy: &dyn Policy, segments: &[String], more: &str) -> Result<(), SourceError> {
        self.ways(segments).try_for_each(|(root, rest)| check_path(policy, root, rest, Some(more)))
    }

    /// Checks the policy for a response with all content below the path, from each root on the way.
    ///
    /// # Errors
    /// [`SourceError::Refused`] or [`SourceError::RefusedPath`].
    pub fn check_below(&self, policy: &dyn Policy, segments: &[String]) -> Result<(), SourceError> {
        if !policy.decides_paths() {
            return Ok(());
        }
        self.ways(segments).try_for_each(|(root, rest)| {
            let path = joined(rest, None);
            match policy.check_below(root, &path) {
                Verdict::Allow => Ok(()),
                verdict => Err(SourceError::refused(root, &path, verdict)),
            }
        })
    }
}

/// What one block says of the rest of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathStep {
    /// The first `resolved_count` segments lead to another block.
    Link {
        /// The number of segments, at least one.
        resolved_count: usize,
        /// The block.
        cid: Cid,
    },
    /// The look-up of the first segment continues in a child shard.
    Shard {
        /// The child shard.
        cid: Cid,
        /// The number of hash bits that the shards above it use.
        bits: u32,
    },
    /// All segments lead to a value inside this document.
    Value,
    /// The path does not continue here.
    Missing,
}

/// The step from one block along the rest of a path, which is not empty, without reading any other block. `bits_above`
/// is from the last [`PathStep::Shard`], else zero.
///
/// # Errors
/// [`NodeError`] if the block is malformed, or too complex a document.
pub(crate) fn step(block: &Block, segments: &[String], bits_above: u32) -> Result<PathStep, NodeError> {
    if ipld::is_document(block.cid().codec()) {
        return match resolve_in_document(block, segments) {
            Ok(Step { resolved_count, next: Some(cid), .. }) => Ok(PathStep::Link { resolved_count, cid }),
            Ok(Step { next: None, .. }) => Ok(PathStep::Value),
            Err(error @ (WalkError::Malformed { .. } | WalkError::TooComplex { .. })) => {
                Err(NodeError::malformed(block.cid(), error))
            }
            Err(_) => Ok(PathStep::Missing),
        };
    }
    let Some(name) = segments.first() else { return Ok(PathStep::Value) };
    match dir::lookup_step(block, name, bits_above) {
        Ok(LookupStep::Found(cid)) => Ok(PathStep::Link { resolved_count: 1, cid }),
        Ok(LookupStep::Shard { cid, bits }) => Ok(PathStep::Shard { cid, bits }),
        Ok(LookupStep::Missing) | Err(DirError::Node(NodeError::Unsupported { .. }) | DirError::Source(_)) => {
            Ok(PathStep::Missing)
        }
        Err(DirError::NotADirectory { .. }) => match Node::decode(block)? {
            Node::Plain(node) => match dir::lookup_link(block.cid(), &node, name) {
                Ok(Some(cid)) => Ok(PathStep::Link { resolved_count: 1, cid }),
                Err(DirError::Node(error)) => Err(error),
                Ok(None) | Err(_) => Ok(PathStep::Missing),
            },
            _ => Ok(PathStep::Missing),
        },
        Err(DirError::Node(error)) => Err(error),
    }
}

/// Resolves segments inside a document, up to the first link or the end of the path.
fn resolve_in_document(block: &Block, segments: &[String]) -> Result<Step, WalkError> {
    let document = ipld::decode(block)?;
    let mut value = &document;
    for (index, name) in segments.iter().enumerate() {
        value = value.get(name).ok_or_else(|| WalkError::NoLink { parent: *block.cid(), name: name.clone() })?;
        if let Ipld::Link(next) = value {
            return Ok(Step { resolved_count: index + 1, next: Some(**next), shards: Vec::new() });
        }
    }
    Ok(Step { resolved_count: segments.len(), next: None, shards: Vec::new() })
}

/// Resolves one segment in a UnixFS directory or a plain dag-pb node.
async fn resolve_in_node(
    source: &dyn BlockSource,
    block: &Block,
    name: &str,
    ahead: &(dyn Fn() -> ReadAhead + Sync),
) -> Result<Step, WalkError> {
    let cid = *block.cid();
    let mut shards = Vec::new();
    let found = match Node::decode(block)? {
        Node::Plain(node) => dir::lookup_link(&cid, &node, name),
        _ => dir::lookup_ahead(source, block, name, &mut shards, ahead).await,
    };
    match found {
        Ok(Some(next)) => Ok(Step { resolved_count: 1, next: Some(next), shards }),
        Ok(None) => Err(WalkError::NoLink { parent: cid, name: name.to_owned() }),
        Err(DirError::NotADirectory { cid }) => Err(WalkError::NotADirectory { cid, name: name.to_owned() }),
        Err(DirError::Node(error)) => Err(error.into()),
        Err(DirError::Source(error)) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::denylist::{List, Matcher, Source};

    #[test]
    fn the_error_of_a_denied_path_names_the_path() {
        let root = "bafybeihrw75yfhdx5qsqgesdnxejtjybscwuclpusvxkuttep6h7pkgmze";
        let list = List::parse(format!("/ipfs/{root}/a/b%20c\n").as_bytes()).expect("a list");
        let policy = Matcher::new([Source { id: "list".into(), list, status: Verdict::Gone }]);
        let cid = crate::cid::parse(root).expect("a CID");
        let check = |segments: &[&str], more: Option<&str>| {
            let segments: Vec<String> = segments.iter().map(|name| (*name).to_owned()).collect();
            check_path(&policy, &cid, &segments, more).map_err(|error| error.to_string())
        };
        let denied = Err(format!("/ipfs/{root}/a/b c is not served here"));
        assert_eq!(check(&["a", "b c"], None), denied);
        assert_eq!(check(&["a"], Some("b c")), denied);
        assert_eq!(check(&["a"], None), Ok(()));
    }
}
