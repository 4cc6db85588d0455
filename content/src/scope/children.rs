//! [`ChildIter`]: iterates over the children of a block within a scope.

use super::{DagScope, EntityBytes, ScopeOptions};
use crate::block::{Block, MAX_BLOCK_BYTES};
use crate::cid::{Cid, codec};
use crate::dag;
use crate::dagpb::PbNode;
use crate::ipld::{self, IpldError};
use crate::unixfs::dir::{decode_child_shard, next_child_shard};
use crate::unixfs::{FileNode, Node, NodeError, ShardNode};
use std::ops::Range;

/// The minimum that a fetch counts against the window, in bytes, so that tiny blocks do not cause thousands of
/// concurrent fetches.
const EXPECTED_BYTES_MIN: usize = 64 * 1024;
/// What a fetch of a block of unknown size counts, in bytes: the common chunk size of files.
const EXPECTED_BYTES_UNKNOWN: usize = 256 * 1024;

/// A block that is to be emitted.
#[derive(Debug, Clone)]
pub(super) struct Child {
    pub(super) cid: Cid,
    pub(super) role: Role,
    /// The expected size, in bytes.
    pub(super) expected_bytes: usize,
}

/// The role of a block, which determines the blocks below it that belong to the response.
#[derive(Debug, Clone)]
pub(super) enum Role {
    /// No blocks below it.
    BlockOnly,
    /// All blocks below it.
    All,
    /// The blocks of the file or the directory.
    Entity(Option<EntityBytes>),
    /// The child shards of a HAMT directory. The shards above use so many bits of the hash.
    Shard { bits_above: u32 },
    /// A range of a file: all of it, or the overlap with `wanted`.
    Part { range: Range<u64>, wanted: Option<Range<u64>> },
}

/// An iterator over the children of a block.
pub(super) struct ChildIter {
    cid: Cid,
    next: usize,
    children: Children,
    /// The memory that it keeps alive, in bytes.
    pub(super) bytes: usize,
}

enum Children {
    Path(Vec<Cid>),
    Pb(PbNode),
    Links(CidList),
    Shards { shard: ShardNode, bits: u32 },
    Parts { file: FileNode, offset: u64, wanted: Option<Range<u64>> },
}

impl Child {
    pub(super) fn new(cid: Cid, role: Role, size: Option<u64>) -> Self {
        Self { cid, role, expected_bytes: expected_bytes(size) }
    }

    /// Whether every occurrence of the block has the same blocks below it. Not so for a file node that is partly
    /// wanted.
    pub(super) fn has_same_children(&self) -> bool {
        match &self.role {
            Role::All | Role::Shard { .. } => true,
            Role::Part { range, wanted } => {
                wanted.as_ref().is_none_or(|wanted| wanted.start <= range.start && range.end <= wanted.end)
            }
            Role::BlockOnly | Role::Entity(_) => false,
        }
    }

    /// Whether the block has no children, by its CID and role.
    pub(super) fn is_leaf(&self) -> bool {
        self.cid.codec() == codec::RAW || matches!(self.role, Role::BlockOnly)
    }

    /// The children of the block; `None` if it has none.
    pub(super) fn children(&self, block: &Block) -> Result<Option<ChildIter>, NodeError> {
        match &self.role {
            Role::BlockOnly => Ok(None),
            Role::All => children_of_dag(block),
            Role::Entity(bytes) => children_of_entity(block, *bytes),
            Role::Shard { bits_above } => {
                let (shard, bits) = decode_child_shard(block, *bits_above)?;
                Ok(ChildIter::new(block, Children::Shards { shard, bits }))
            }
            Role::Part { range, wanted } => children_of_part(block, range, wanted.clone()),
        }
    }
}

impl Role {
    /// The role of the block at the end of the path of a request.
    pub(super) fn of_terminal(options: &ScopeOptions) -> Self {
        match options.scope {
            DagScope::Block => Self::BlockOnly,
            DagScope::Entity => Self::Entity(options.entity_bytes),
            DagScope::All => Self::All,
        }
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

fn children_of_entity(block: &Block, bytes: Option<EntityBytes>) -> Result<Option<ChildIter>, NodeError> {
    match Node::decode(block) {
        Ok(Node::File(file)) => {
            let wanted = match bytes.map(|bytes| bytes.resolve(file.size())) {
                None => None,
                Some(Some(wanted)) => Some(wanted),
                Some(None) => return Ok(None),
            };
            Ok(children_of_file(block, file, 0, wanted))
        }
        Ok(Node::HamtShard(shard)) => {
            let bits = shard.slot_bits();
            Ok(ChildIter::new(block, Children::Shards { shard, bits }))
        }
        Ok(Node::Directory(_) | Node::Symlink { .. } | Node::Plain(_)) | Err(NodeError::Unsupported { .. }) => Ok(None),
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
            Children::Pb(node) => node.link_count(),
            Children::Links(links) => links.ends.len(),
            Children::Shards { .. } => 1,
            Children::Parts { file, .. } => file.child_count(),
        };
        (count > 0).then(|| Self { cid: *block.cid(), next: 0, bytes: block.data().len(), children })
    }

    /// The next child; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Child>, NodeError> {
        let index = self.next;
        self.next += 1;
        let child = match &mut self.children {
            Children::Path(path) => path.get(index).map(|cid| Child::new(*cid, Role::BlockOnly, None)),
            Children::Pb(node) => {
                match node.link(index).map(|link| link.and_then(|link| Ok((link.cid()?, link.tsize)))) {
                    None => None,
                    Some(Ok((cid, tsize))) => Some(Child::new(cid, Role::All, tsize)),
                    Some(Err(reason)) => return Err(NodeError::malformed(&self.cid, reason)),
                }
            }
            Children::Links(links) => links.get(index).map(|cid| Child::new(cid, Role::All, None)),
            Children::Shards { shard, bits } => match next_child_shard(&self.cid, shard, index)? {
                None => None,
                Some((after, cid)) => {
                    self.next = after;
                    let size = Some(EXPECTED_BYTES_MIN as u64);
                    Some(Child::new(cid, Role::Shard { bits_above: *bits }, size))
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
                Some(Child::new(cid, Role::Part { range, wanted: wanted.clone() }, Some(size)))
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
