//! [`Below`]: what is below a block, as far as a scope reaches, one child at a time.

use super::{DagScope, EntityBytes, ScopeOptions};
use crate::block::{Block, MAX_BLOCK_BYTES};
use crate::cid::{Cid, codec};
use crate::dag;
use crate::dagpb::PbNode;
use crate::ipld::{self, IpldError};
use crate::unixfs::dir::{decode_child_shard, next_child_shard};
use crate::unixfs::{FileNode, Node, NodeError, ShardNode};
use std::ops::Range;

/// What a fetch counts for at least, in bytes: inner nodes are small, and tiny blocks must not mean thousands of fetches
/// at a time.
const EXPECTED_BYTES_MIN: usize = 64 * 1024;
/// What a fetch counts for when nothing is known of the block, in bytes: the size of chunks that most files are cut into.
const EXPECTED_BYTES_UNKNOWN: usize = 256 * 1024;

/// A block that is to come.
#[derive(Debug, Clone)]
pub(super) struct Child {
    pub(super) cid: Cid,
    pub(super) role: Role,
    /// How large it is believed to be.
    pub(super) expected_bytes: usize,
}

/// What a block is to a walk, which decides what is wanted below it.
#[derive(Debug, Clone)]
pub(super) enum Role {
    /// Nothing below it is wanted.
    Alone,
    /// Everything.
    All,
    /// What makes up the file or the directory that it is.
    Entity(Option<EntityBytes>),
    /// A shard of a directory: the shards below. Those down to its parent use so many bits of hash.
    Shard { bits_above: u32 },
    /// A stretch of a file: all of it, or what overlaps the range.
    Part { stretch: Range<u64>, wanted: Option<Range<u64>> },
}

/// The children of a block, from one of them on.
pub(super) struct Below {
    cid: Cid,
    next: usize,
    children: Children,
    /// How much memory it holds on to.
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

    /// Whether the same block, met again, has the same blocks below it: a part of a file that is not wanted whole has not.
    pub(super) fn is_whole(&self) -> bool {
        match &self.role {
            Role::All | Role::Shard { .. } => true,
            Role::Part { stretch, wanted } => {
                wanted.as_ref().is_none_or(|wanted| wanted.start <= stretch.start && stretch.end <= wanted.end)
            }
            Role::Alone | Role::Entity(_) => false,
        }
    }

    /// Whether nothing can be below the block, as its CID says.
    pub(super) fn is_leaf(&self) -> bool {
        self.cid.codec() == codec::RAW || matches!(self.role, Role::Alone)
    }

    /// What is below the block, if anything is.
    pub(super) fn below(&self, block: &Block) -> Result<Option<Below>, NodeError> {
        match &self.role {
            Role::Alone => Ok(None),
            Role::All => below_all(block),
            Role::Entity(bytes) => below_entity(block, *bytes),
            Role::Shard { bits_above } => {
                let (shard, bits) = decode_child_shard(block, *bits_above)?;
                Ok(Below::new(block, Children::Shards { shard, bits }))
            }
            Role::Part { stretch, wanted } => below_part(block, stretch, wanted.clone()),
        }
    }
}

impl Role {
    /// What the block is at which the path of a request ends.
    pub(super) fn of_terminal(options: &ScopeOptions) -> Self {
        match options.scope {
            DagScope::Block => Self::Alone,
            DagScope::Entity => Self::Entity(options.entity_bytes),
            DagScope::All => Self::All,
        }
    }
}

/// What a fetch counts for, in bytes. A size that exceeds that of any block is the size of a whole subtree.
pub(crate) fn expected_bytes(size: Option<u64>) -> usize {
    match size.map(usize::try_from) {
        None | Some(Ok(0)) => EXPECTED_BYTES_UNKNOWN,
        Some(Ok(size)) if size <= MAX_BLOCK_BYTES => size.max(EXPECTED_BYTES_MIN),
        Some(_) => EXPECTED_BYTES_MIN,
    }
}

fn below_all(block: &Block) -> Result<Option<Below>, NodeError> {
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
                // What is no JSON has no links that anybody could follow.
                Err(_) => return Ok(None),
            }
        }
        _ => match dag::links(block) {
            Ok(links) => Children::Links(CidList::of(&links)),
            // A document that nobody here can read has no links as far as this archive is concerned.
            Err(NodeError::Unsupported { .. }) => return Ok(None),
            Err(error) => return Err(error),
        },
    };
    Ok(Below::new(block, children))
}

fn below_entity(block: &Block, bytes: Option<EntityBytes>) -> Result<Option<Below>, NodeError> {
    match Node::decode(block) {
        Ok(Node::File(file)) => {
            let wanted = match bytes.map(|bytes| bytes.resolve(file.size())) {
                None => None,
                Some(Some(wanted)) => Some(wanted),
                Some(None) => return Ok(None),
            };
            Ok(below_file(block, file, 0, wanted))
        }
        Ok(Node::HamtShard(shard)) => {
            let bits = shard.slot_bits();
            Ok(Below::new(block, Children::Shards { shard, bits }))
        }
        Ok(Node::Directory(_) | Node::Symlink { .. } | Node::Plain(_)) | Err(NodeError::Unsupported { .. }) => Ok(None),
        // A node whose data is not UnixFS is no less a node, and no more than one block.
        Err(_) if PbNode::decode(block.data().clone()).is_ok() => Ok(None),
        Err(error) => Err(error),
    }
}

fn below_part(block: &Block, stretch: &Range<u64>, wanted: Option<Range<u64>>) -> Result<Option<Below>, NodeError> {
    let malformed = |reason: String| Err(NodeError::malformed(block.cid(), reason));
    match Node::decode(block)? {
        Node::File(file) if file.size() == stretch.end - stretch.start => {
            Ok(below_file(block, file, stretch.start, wanted))
        }
        Node::File(file) => malformed(format!("it has {} bytes of a file, not those of {stretch:?}", file.size())),
        _ => malformed("it is to be a part of a file, but is something else".to_owned()),
    }
}

fn below_file(block: &Block, file: FileNode, start: u64, wanted: Option<Range<u64>>) -> Option<Below> {
    // A node's own bytes come before those of its children. The sizes were found to add up to no more than 64 bits.
    let offset = start.saturating_add(file.data().len() as u64);
    Below::new(block, Children::Parts { file, offset, wanted })
}

impl Below {
    /// The blocks of a path, one after the other, each without what is below it.
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

    /// The child that comes next; `None` after the last that is wanted.
    pub(super) fn next(&mut self) -> Result<Option<Child>, NodeError> {
        let index = self.next;
        self.next += 1;
        let child = match &mut self.children {
            Children::Path(path) => path.get(index).map(|cid| Child::new(*cid, Role::Alone, None)),
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
                let Some((index, stretch)) = next_part(file, index, offset, wanted.as_ref()) else { return Ok(None) };
                self.next = index + 1;
                let cid = match file.child_cid(index) {
                    Some(cid) => cid.map_err(|reason| NodeError::malformed(&self.cid, reason))?,
                    None => return Err(NodeError::malformed(&self.cid, "a link is missing")),
                };
                let size = stretch.end - stretch.start;
                Some(Child::new(cid, Role::Part { stretch, wanted: wanted.clone() }, Some(size)))
            }
        };
        Ok(child)
    }
}

/// The first part of a file from the child at `index` on that is wanted: its index and stretch. `offset` is where that
/// child begins, and then where the one after the part does.
fn next_part(
    file: &FileNode,
    mut index: usize,
    offset: &mut u64,
    wanted: Option<&Range<u64>>,
) -> Option<(usize, Range<u64>)> {
    while let Some(size) = file.child_size(index) {
        let stretch = *offset..offset.saturating_add(size);
        if wanted.is_some_and(|wanted| stretch.start >= wanted.end) {
            return None;
        }
        *offset = stretch.end;
        if wanted.is_none_or(|wanted| stretch.end > wanted.start && !stretch.is_empty()) {
            return Some((index, stretch));
        }
        index += 1;
    }
    None
}

/// CIDs end to end: a tenth of what they take one by one, and no more than the block that they are from.
struct CidList {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl CidList {
    fn of(cids: &[Cid]) -> Self {
        let mut list = Self { bytes: Vec::new(), ends: Vec::with_capacity(cids.len()) };
        for cid in cids {
            list.bytes.extend_from_slice(&cid.to_bytes());
            // A block has no more bytes of CIDs than it has bytes.
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
