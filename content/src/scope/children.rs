//! [`expand`]: the blocks below a block that belong to a response. Pure: what is read, and in which order, is up to the
//! caller.
//!
//! A response begins with a [`Child`] that is its root. Each child has a [`Role`], which says what of the response is
//! below it: the rest of a path, a range of a file, everything. So the two sides of a transfer agree on which blocks
//! belong to it.

use super::{DagScope, EntityBytes, ScopeOptions};
use crate::block::{Block, MAX_BLOCK_BYTES};
use crate::cid::{Cid, codec};
use crate::dag;
use crate::dagpb::PbNode;
use crate::ipld::{self, IpldError};
use crate::unixfs::dir::{decode_child_shard, next_child_shard};
use crate::unixfs::{FileNode, Node, NodeError, ShardNode};
use crate::walk::{self, PathStep};
use std::ops::Range;
use std::sync::Arc;

/// The minimum that a fetch counts against the window, in bytes, so that tiny blocks do not cause thousands of
/// concurrent fetches.
const EXPECTED_BYTES_MIN: usize = 64 * 1024;
/// What a fetch of a block of unknown size counts, in bytes: the common chunk size of files.
const EXPECTED_BYTES_UNKNOWN: usize = 256 * 1024;

/// A block that belongs to a response.
#[derive(Debug, Clone)]
pub struct Child {
    /// The block, as its parent names it.
    pub cid: Cid,
    /// What is below it.
    pub role: Role,
    /// The size that its parent declares, in bytes: of a part of a file, or of a whole DAG. Not trustworthy.
    pub declared_bytes: Option<u64>,
}

/// The role of a block, which determines the blocks below it that belong to the response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role(pub(super) RoleKind);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RoleKind {
    /// No blocks below it.
    BlockOnly,
    /// All blocks below it.
    All,
    /// The blocks of the file or the directory.
    Entity(Option<EntityBytes>),
    /// The blocks of the file.
    File(Option<EntityBytes>),
    /// The child shards of a HAMT directory. The shards above use so many bits of the hash.
    Shard { bits_above: u32 },
    /// A range of a file: all of it, or the overlap with `wanted`.
    Part { range: Range<u64>, wanted: Option<Range<u64>> },
    /// The rest of a path, and what is at its end.
    Path(Box<PathRole>),
}

/// The way that is left of a path. There is a name for the block that has this role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathRole {
    names: Arc<[String]>,
    /// The index of the name that is looked up in the block.
    next: usize,
    /// The number of hash bits of that name that shards above the block use.
    bits_above: u32,
    options: ScopeOptions,
}

/// The children of a block, in the order of its links.
#[derive(Debug)]
pub struct ChildIter {
    cid: Cid,
    next: usize,
    children: Children,
    /// The memory that it keeps alive, in bytes.
    pub(super) bytes: usize,
}

#[derive(Debug)]
enum Children {
    Path(Vec<Cid>),
    One(Option<Box<Child>>),
    Pb(PbNode),
    Links(CidList),
    Shards { shard: ShardNode, bits: u32 },
    Parts { file: FileNode, offset: u64, wanted: Option<Range<u64>> },
}

/// The blocks below a block that belong to the response, by its role; `None` if there are none. The block is decoded,
/// and no other is read.
///
/// A path that does not continue has no blocks below its last one.
///
/// # Errors
/// [`NodeError`] if the block cannot be decoded.
pub fn expand(block: &Block, role: &Role) -> Result<Option<ChildIter>, NodeError> {
    match &role.0 {
        RoleKind::BlockOnly => Ok(None),
        RoleKind::All => children_of_dag(block),
        RoleKind::Entity(bytes) => children_of_entity(block, *bytes, true),
        RoleKind::File(bytes) => children_of_entity(block, *bytes, false),
        RoleKind::Shard { bits_above } => {
            let (shard, bits) = decode_child_shard(block, *bits_above)?;
            Ok(ChildIter::new(block, Children::Shards { shard, bits }))
        }
        RoleKind::Part { range, wanted } => children_of_part(block, range, wanted.clone()),
        RoleKind::Path(path) => child_on_path(block, path),
    }
}

impl Child {
    pub(super) fn new(cid: Cid, role: Role, declared_bytes: Option<u64>) -> Self {
        Self { cid, role, declared_bytes }
    }

    /// The first block of a response: that of a path, then of `options` at the end of the path.
    pub fn root(root: Cid, path: Vec<String>, options: ScopeOptions) -> Self {
        Self::new(root, Role::on_path(path.into(), 0, options), None)
    }

    /// What a fetch of the block counts against a window, in bytes.
    pub fn expected_bytes(&self) -> usize {
        match self.role.0 {
            RoleKind::Shard { .. } => EXPECTED_BYTES_MIN,
            _ => expected_bytes(self.declared_bytes),
        }
    }

    /// Whether every occurrence of the block has the same blocks below it. Not so for a file node that is partly
    /// wanted, or a block on the way to another.
    pub fn has_same_children(&self) -> bool {
        match &self.role.0 {
            RoleKind::All | RoleKind::Shard { .. } => true,
            RoleKind::Part { range, wanted } => {
                wanted.as_ref().is_none_or(|wanted| wanted.start <= range.start && range.end <= wanted.end)
            }
            RoleKind::BlockOnly | RoleKind::Entity(_) | RoleKind::File(_) | RoleKind::Path(_) => false,
        }
    }

    /// Whether the block has no children, by its CID and role.
    pub fn is_leaf(&self) -> bool {
        self.cid.codec() == codec::RAW || matches!(self.role.0, RoleKind::BlockOnly)
    }

    /// Whether the block has children, unless its parent is wrong about it: it is on the way of a path, a shard, or its
    /// declared size is more than that of a block.
    pub fn is_inner(&self) -> bool {
        let is_large = || self.declared_bytes.is_some_and(|bytes| bytes > MAX_BLOCK_BYTES as u64);
        !self.is_leaf() && (matches!(self.role.0, RoleKind::Shard { .. } | RoleKind::Path(_)) || is_large())
    }
}

impl Role {
    /// No blocks below it.
    pub(super) const BLOCK_ONLY: Self = Self(RoleKind::BlockOnly);

    /// The role of the block at the end of the path of a request.
    pub(super) fn of_terminal(options: &ScopeOptions) -> Self {
        Self(match options.scope {
            DagScope::Block => RoleKind::BlockOnly,
            DagScope::Entity => RoleKind::Entity(options.entity_bytes),
            DagScope::File => RoleKind::File(options.entity_bytes),
            DagScope::All => RoleKind::All,
        })
    }

    /// The bytes of the file that the block and those below it have, if the block is a part of a file.
    pub fn range(&self) -> Option<&Range<u64>> {
        match &self.0 {
            RoleKind::Part { range, .. } => Some(range),
            _ => None,
        }
    }

    /// The number of names that are left of the path; zero at its end and below.
    pub fn names_left(&self) -> usize {
        match &self.0 {
            RoleKind::Path(path) => path.names.len().saturating_sub(path.next),
            _ => 0,
        }
    }

    /// Whether the block is the root of the file or the directory that is requested.
    pub fn is_entity(&self) -> bool {
        matches!(self.0, RoleKind::Entity(_) | RoleKind::File(_))
    }

    /// The role of a block from which the names from `next` on are left.
    fn on_path(names: Arc<[String]>, next: usize, options: ScopeOptions) -> Self {
        if next >= names.len() {
            return Self::of_terminal(&options);
        }
        Self(RoleKind::Path(Box::new(PathRole { names, next, bits_above: 0, options })))
    }
}

/// What a fetch counts against the window, in bytes. A size beyond that of any block is that of a whole subtree.
pub(crate) fn expected_bytes(size: Option<u64>) -> usize {
    match size.map(usize::try_from) {
        None | Some(Ok(0)) => EXPECTED_BYTES_UNKNOWN,
        Some(Ok(size)) if size <= MAX_BLOCK_BYTES => size.max(EXPECTED_BYTES_MIN),
        Some(_) => EXPECTED_BYTES_MIN,
    }
}

/// The next block of a path.
fn child_on_path(block: &Block, path: &PathRole) -> Result<Option<ChildIter>, NodeError> {
    let rest = path.names.get(path.next..).unwrap_or_default();
    let (cid, role) = match walk::step(block, rest, path.bits_above)? {
        PathStep::Link { resolved_count, cid } => {
            (cid, Role::on_path(Arc::clone(&path.names), path.next + resolved_count, path.options))
        }
        PathStep::Shard { cid, bits } => {
            (cid, Role(RoleKind::Path(Box::new(PathRole { bits_above: bits, ..path.clone() }))))
        }
        // The path ends inside of the document.
        PathStep::Value => return expand(block, &Role::of_terminal(&path.options)),
        PathStep::Missing => return Ok(None),
    };
    Ok(ChildIter::new(block, Children::One(Some(Box::new(Child::new(cid, role, None))))))
}

fn children_of_dag(block: &Block) -> Result<Option<ChildIter>, NodeError> {
    let children = match block.cid().codec() {
        codec::DAG_PB => {
            let node = PbNode::decode(block.data().clone());
            Children::Pb(node.map_err(|reason| NodeError::malformed(block.cid(), reason))?)
        }
        codec::DAG_CBOR => Children::Links(CidList::of(&ipld::links_cbor_leniently(block))),
        codec::DAG_JSON => {
            let mut links = Vec::new();
            match ipld::links_json(block, &mut |cid| links.push(cid)) {
                Ok(()) => Children::Links(CidList::of(&links)),
                Err(IpldError::TooComplex { .. }) => return dag::links(block).map(|_| None),
                // A block that is not JSON has no links.
                Err(_) => return Ok(None),
            }
        }
        _ => match dag::links(block) {
            Ok(links) => Children::Links(CidList::of(&links)),
            // The links of an unsupported codec are unknown, and ignored.
            Err(NodeError::Unsupported { .. }) => return Ok(None),
            Err(error) => return Err(error),
        },
    };
    Ok(ChildIter::new(block, children))
}

fn children_of_entity(
    block: &Block,
    bytes: Option<EntityBytes>,
    lists_directories: bool,
) -> Result<Option<ChildIter>, NodeError> {
    match Node::decode(block) {
        Ok(Node::File(file)) => {
            let wanted = match bytes.map(|bytes| bytes.resolve(file.size())) {
                None => None,
                Some(Some(wanted)) => Some(wanted),
                Some(None) => return Ok(None),
            };
            Ok(children_of_file(block, file, 0, wanted))
        }
        Ok(Node::HamtShard(shard)) if lists_directories => {
            let bits = shard.slot_bits();
            Ok(ChildIter::new(block, Children::Shards { shard, bits }))
        }
        Ok(Node::Directory(_) | Node::HamtShard(_) | Node::Symlink { .. } | Node::Plain(_))
        | Err(NodeError::Unsupported { .. }) => Ok(None),
        // A dag-pb node without UnixFS data is a single block.
        Err(_) if PbNode::decode(block.data().clone()).is_ok() => Ok(None),
        Err(error) => Err(error),
    }
}

fn children_of_part(
    block: &Block,
    range: &Range<u64>,
    wanted: Option<Range<u64>>,
) -> Result<Option<ChildIter>, NodeError> {
    let malformed = |reason: String| Err(NodeError::malformed(block.cid(), reason));
    match Node::decode(block)? {
        Node::File(file) if file.size() == range.end - range.start => {
            Ok(children_of_file(block, file, range.start, wanted))
        }
        Node::File(file) => malformed(format!("it has {} bytes of a file, not those of {range:?}", file.size())),
        _ => malformed("it is to be a part of a file, but is something else".to_owned()),
    }
}

fn children_of_file(block: &Block, file: FileNode, start: u64, wanted: Option<Range<u64>>) -> Option<ChildIter> {
    // The data of a node precedes that of its children. Decoding checked that the sizes do not overflow.
    let offset = start.saturating_add(file.data().len() as u64);
    ChildIter::new(block, Children::Parts { file, offset, wanted })
}

impl ChildIter {
    /// The blocks of a path, in order, each without its children.
    pub(super) fn path(path: Vec<Cid>, terminal: Cid) -> Self {
        Self { cid: terminal, next: 0, bytes: path.len() * size_of::<Cid>(), children: Children::Path(path) }
    }

    /// `None` if there are no children.
    fn new(block: &Block, children: Children) -> Option<Self> {
        let count = match &children {
            Children::Path(path) => path.len(),
            Children::One(child) => usize::from(child.is_some()),
            Children::Pb(node) => node.link_count(),
            Children::Links(links) => links.ends.len(),
            Children::Shards { .. } => 1,
            Children::Parts { file, .. } => file.child_count(),
        };
        (count > 0).then(|| Self { cid: *block.cid(), next: 0, bytes: block.data().len(), children })
    }

    /// The memory that the iterator keeps alive, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The next child; `None` at the end. Nothing follows an error.
    ///
    /// # Errors
    /// [`NodeError`] if a link is malformed.
    pub fn next_child(&mut self) -> Result<Option<Child>, NodeError> {
        let index = self.next;
        self.next += 1;
        let child = match &mut self.children {
            Children::Path(path) => path.get(index).map(|cid| Child::new(*cid, Role::BLOCK_ONLY, None)),
            Children::One(child) => child.take().map(|child| *child),
            Children::Pb(node) => {
                match node.link(index).map(|link| link.and_then(|link| Ok((link.cid()?, link.tsize)))) {
                    None => None,
                    Some(Ok((cid, tsize))) => Some(Child::new(cid, Role(RoleKind::All), tsize)),
                    Some(Err(reason)) => return Err(NodeError::malformed(&self.cid, reason)),
                }
            }
            Children::Links(links) => links.get(index).map(|cid| Child::new(cid, Role(RoleKind::All), None)),
            Children::Shards { shard, bits } => match next_child_shard(&self.cid, shard, index)? {
                None => None,
                Some((after, cid)) => {
                    self.next = after;
                    Some(Child::new(cid, Role(RoleKind::Shard { bits_above: *bits }), None))
                }
            },
            Children::Parts { file, offset, wanted } => {
                let Some((index, range)) = next_part(file, index, offset, wanted.as_ref()) else { return Ok(None) };
                self.next = index + 1;
                let cid = match file.child_cid(index) {
                    Some(cid) => cid.map_err(|reason| NodeError::malformed(&self.cid, reason))?,
                    None => return Err(NodeError::malformed(&self.cid, "a link is missing")),
                };
                let size = range.end - range.start;
                Some(Child::new(cid, Role(RoleKind::Part { range, wanted: wanted.clone() }), Some(size)))
            }
        };
        Ok(child)
    }
}

/// The next wanted part of a file from the child at `index` on: its index and range. `offset` is the offset of that
/// child, and is advanced to the end of the part.
fn next_part(
    file: &FileNode,
    mut index: usize,
    offset: &mut u64,
    wanted: Option<&Range<u64>>,
) -> Option<(usize, Range<u64>)> {
    while let Some(size) = file.child_size(index) {
        let range = *offset..offset.saturating_add(size);
        if wanted.is_some_and(|wanted| range.start >= wanted.end) {
            return None;
        }
        *offset = range.end;
        if wanted.is_none_or(|wanted| range.end > wanted.start && !range.is_empty()) {
            return Some((index, range));
        }
        index += 1;
    }
    None
}

/// Concatenated CIDs: a tenth of the memory of single ones, and no more than the block that has them.
#[derive(Debug)]
struct CidList {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl CidList {
    fn of(cids: &[Cid]) -> Self {
        let mut list = Self { bytes: Vec::new(), ends: Vec::with_capacity(cids.len()) };
        for cid in cids {
            list.bytes.extend_from_slice(&cid.to_bytes());
            // The CIDs take no more bytes than their block.
            list.ends.push(list.bytes.len() as u32);
        }
        list
    }

    fn get(&self, index: usize) -> Option<Cid> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Cid::try_from(&self.bytes[start..end]).ok()
    }
}
