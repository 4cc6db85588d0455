//! [`Frontier`]: the links that a depth-first traversal of a DAG has yet to follow.
//!
//! Goals: memory of a small fraction of the blocks that were read, however wide or deep a malicious DAG is; every block
//! is visited once.
//!
//! How: a level is a block whose links are being followed, and keeps the bytes of the CIDs that are left, which are no
//! more than those of the block. When all levels together exceed [`LEVELS_BYTES_MAX`], the lowest are released: they
//! keep only their CID and the number of links that were followed, some 40 bytes instead of up to 2 MiB. When the
//! traversal returns to a released level, it reads the block again. At least as many bytes are read before the same
//! level can be released a second time, so the bytes that are read twice are a fraction of those that are read once.
//!
//! A traversal that deletes the blocks it visits cannot read them again: [`Frontier::without_rereads`] keeps all levels
//! and fails when they exceed [`KEPT_LEVELS_BYTES_MAX`].
//!
//! If the depth is limited, a block that is found again nearer to the root is visited again, since blocks below it may
//! now be within the depth. A malicious DAG could cause many such visits, so [`Frontier::with_blocks_max`] limits their
//! number as well.
//!
//! Non-goal: reading blocks.

use crate::block::Block;
use crate::budget::{Budget, Share};
use crate::cid::{Cid, codec, is_identity};
use crate::fingerprints::{FingerprintHasher, Fingerprints};
use crate::links::{DagError, for_each_link, is_leaf};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The maximum size of the links that the levels of one traversal keep, in bytes: a few blocks of the maximum size.
pub const LEVELS_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The same for a traversal that reads no block again, in bytes.
pub const KEPT_LEVELS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The memory that a level takes besides its bytes, in bytes.
const LEVEL_BYTES: usize = size_of::<Level>() + 32;
/// The memory of a recorded depth, in bytes.
const DEPTH_BYTES: usize = size_of::<(u128, u32)>() + 1;
/// The granularity in which a traversal takes memory from its budget, in bytes.
const SHARE_STEP: usize = 64 * 1024;
/// The codecs with which other CIDs may refer to the same bytes.
const CODECS: [u64; 6] = [codec::RAW, codec::DAG_PB, codec::DAG_CBOR, codec::DAG_JSON, codec::CBOR, codec::JSON];

/// The next step of a traversal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Visit the block of this CID for the first time.
    Visit(Cid),
    /// Visit this block again, because it was found nearer to the root. Only if the depth is limited.
    Revisit(Cid),
    /// Read this block again and pass it to [`Frontier::resume`].
    ReadAgain(Cid),
    /// Wait for a block that was requested.
    Wait,
    /// No links are left, except those of blocks that were requested.
    Done,
}

/// The links that a traversal has yet to follow.
#[derive(Debug)]
pub struct Frontier {
    root: Option<Cid>,
    seen: Fingerprints,
    blocks_max: usize,
    depth_limit: Option<DepthLimit>,
    /// The number of repeated visits.
    revisits: usize,
    /// The lowest levels: for each the CID, the number of links that were followed (4 bytes), and the length of the CID
    /// (1 byte).
    released: Vec<u8>,
    /// The levels above, the innermost last.
    levels: VecDeque<Level>,
    /// The memory of the levels, in bytes.
    levels_bytes: usize,
    levels_bytes_max: usize,
    /// Whether levels are released and read again.
    rereads: bool,
    share: Share,
}

/// A block whose links are being followed.
#[derive(Debug)]
struct Level {
    cid: Box<[u8]>,
    /// The links that are left, one CID after the other.
    links: Box<[u8]>,
    /// The offset of the next link in `links`.
    at: usize,
    /// The number of links of the block that were followed.
    followed: u32,
    /// The distance of the block from the root, if the depth is limited.
    depth: u32,
    /// The block is being read again.
    reading: bool,
}

impl Level {
    fn bytes(&self) -> usize {
        LEVEL_BYTES + self.cid.len() + self.links.len()
    }

    fn is_exhausted(&self) -> bool {
        !self.reading && self.at == self.links.len()
    }

    fn next(&mut self) -> Option<Cid> {
        let mut rest = self.links.get(self.at..).filter(|rest| !rest.is_empty())?;
        // These bytes were written from CIDs.
        let cid = Cid::read_bytes(&mut rest).ok()?;
        self.at = self.links.len() - rest.len();
        self.followed = self.followed.saturating_add(1);
        Some(cid)
    }
}

/// How far a traversal follows links.
#[derive(Debug)]
struct DepthLimit {
    max: u32,
    hasher: FingerprintHasher,
    /// The least distance from the root at which each block that may have links was found.
    depths: HashMap<u128, u32>,
}

impl DepthLimit {
    /// Records the depth of a block; `false` if it was found as near to the root before.
    fn record(&mut self, cid: &Cid, depth: u32) -> bool {
        let known = self.depths.entry(self.hasher.mark((cid.codec(), cid.hash()))).or_insert(u32::MAX);
        let is_nearer = depth < *known;
        *known = depth.min(*known);
        is_nearer
    }

    fn depth(&self, cid: &Cid) -> u32 {
        self.depths.get(&self.hasher.mark((cid.codec(), cid.hash()))).copied().unwrap_or_default()
    }
}

impl Frontier {
    /// Begins at a root. The memory is charged to `memory`, if there is such a budget.
    pub fn new(root: Cid, memory: Option<Arc<Budget>>) -> Self {
        Self {
            root: Some(root),
            seen: Fingerprints::default(),
            blocks_max: usize::MAX,
            depth_limit: None,
            revisits: 0,
            released: Vec::new(),
            levels: VecDeque::new(),
            levels_bytes: 0,
            levels_bytes_max: LEVELS_BYTES_MAX,
            rereads: true,
            share: Share::of(memory),
        }
    }

    /// Limits the number of blocks, and of repeated visits.
    pub fn with_blocks_max(self, blocks_max: usize) -> Self {
        Self { blocks_max, ..self }
    }

    /// Follows links down to a depth; that of the root is 0.
    pub fn with_depth_max(self, max: u32) -> Self {
        let (hasher, depths) = (FingerprintHasher::default(), HashMap::new());
        Self { depth_limit: Some(DepthLimit { max, hasher, depths }), ..self }
    }

    /// Never asks for a block again. [`Step::ReadAgain`] and [`Step::Wait`] do not occur then.
    pub fn without_rereads(self) -> Self {
        Self { levels_bytes_max: KEPT_LEVELS_BYTES_MAX, rereads: false, ..self }
    }

    /// The memory in use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let depths = self.depth_limit.as_ref().map_or(0, |limit| limit.depths.capacity() * DEPTH_BYTES);
        self.seen.bytes() + depths + self.released.capacity() + self.levels_bytes
    }

    /// The number of blocks that were visited.
    pub fn visited(&self) -> usize {
        self.seen.len()
    }

    /// Whether the bytes of a CID were visited, under any codec.
    pub fn has_visited(&self, cid: &Cid) -> bool {
        let under = |codec: u64| self.seen.contains((codec, cid.hash()));
        under(cid.codec()) || CODECS.into_iter().any(under)
    }

    /// Whether the links of a block that is visited are followed.
    pub fn follows(&self, cid: &Cid) -> bool {
        !is_leaf(cid.codec()) && self.depth_limit.as_ref().is_none_or(|limit| limit.depth(cid) < limit.max)
    }

    /// The next step.
    ///
    /// # Errors
    /// [`DagError::Memory`] and [`DagError::TooManyBlocks`].
    pub fn step(&mut self) -> Result<Step, DagError> {
        if let Some(root) = self.root.take() {
            return Ok(self.visit(root, 0)?.unwrap_or(Step::Done));
        }
        loop {
            let Some(level) = self.levels.back_mut() else { return Ok(self.read_again()) };
            if level.reading {
                return Ok(Step::Wait);
            }
            let (link, depth) = (level.next(), level.depth.saturating_add(1));
            // Drop the level at its last link, so that a chain of blocks with one link each takes no memory.
            if level.is_exhausted() {
                self.levels_bytes -= level.bytes();
                self.levels.pop_back();
            }
            if let Some(cid) = link
                && let Some(step) = self.visit(cid, depth)?
            {
                return Ok(step);
            }
        }
    }

    /// Adds the links of a block that was visited.
    ///
    /// # Errors
    /// [`DagError::Node`] if the block cannot be decoded, [`DagError::Memory`] and [`DagError::TooManyLinks`].
    pub fn push(&mut self, block: &Block) -> Result<(), DagError> {
        let links = if self.follows(block.cid()) { links_after(block, 0)? } else { Box::default() };
        self.push_level_of(block.cid(), links)
    }

    /// Adds the links of a block that was visited and is not stored. Only for a traversal [without
    /// rereads](Self::without_rereads).
    ///
    /// # Errors
    /// [`DagError::Memory`] and [`DagError::TooManyLinks`].
    pub fn push_links(&mut self, cid: &Cid, links: &[Cid]) -> Result<(), DagError> {
        let mut bytes = Vec::new();
        if self.follows(cid) {
            // Writing to memory does not fail.
            links.iter().for_each(|link| _ = link.write_bytes(&mut bytes));
        }
        self.push_level_of(cid, bytes.into())
    }

    fn push_level_of(&mut self, cid: &Cid, links: Box<[u8]>) -> Result<(), DagError> {
        if !links.is_empty() {
            let depth = self.depth(cid);
            let cid = cid.to_bytes().into_boxed_slice();
            self.push_level(Level { cid, links, at: 0, followed: 0, depth, reading: false })?;
        }
        self.account()
    }

    /// Adds the links of a block that was visited. A block that cannot be decoded has none.
    ///
    /// # Errors
    /// [`DagError::Memory`] and [`DagError::TooManyLinks`].
    pub fn push_if_decodable(&mut self, block: &Block) -> Result<(), DagError> {
        match self.push(block) {
            Err(DagError::Node(_)) => Ok(()),
            pushed => pushed,
        }
    }

    /// Continues with the links of a block that was read again.
    ///
    /// # Errors
    /// As for [`Frontier::push`].
    pub fn resume(&mut self, block: &Block) -> Result<(), DagError> {
        let depth = self.depth(block.cid());
        if let Some(at) = self.level_being_read(block.cid()) {
            let level = &mut self.levels[at];
            level.links = links_after(block, level.followed)?;
            (level.depth, level.reading) = (depth, false);
            self.levels_bytes += level.links.len();
        }
        self.account()
    }

    /// Continues without the other links of a block that cannot be read again.
    pub fn abandon(&mut self, cid: &Cid) {
        let level = self.level_being_read(cid).and_then(|at| self.levels.remove(at));
        self.levels_bytes -= level.map_or(0, |level| level.bytes());
    }

    /// The innermost level that waits for a block.
    fn level_being_read(&self, cid: &Cid) -> Option<usize> {
        let cid = cid.to_bytes();
        self.levels.iter().rposition(|level| level.reading && *level.cid == *cid)
    }

    fn depth(&self, cid: &Cid) -> u32 {
        self.depth_limit.as_ref().map_or(0, |limit| limit.depth(cid))
    }

    /// The step for a link: none if its block was visited. Inline blocks without links need no visit. Those with links
    /// are shorter than the block that has them, so they are only recorded where that is needed: if the depth is
    /// limited, and for [`Frontier::has_visited`] without rereads.
    fn visit(&mut self, cid: Cid, depth: u32) -> Result<Option<Step>, DagError> {
        let (is_leaf, limit) = (is_leaf(cid.codec()), self.depth_limit.as_mut());
        let is_nearer = limit.map(|limit| !is_leaf && limit.record(&cid, depth));
        if is_identity(&cid) && (is_leaf || (self.rereads && is_nearer.is_none())) {
            return Ok((!is_leaf).then_some(Step::Visit(cid)));
        }
        // The CID version does not matter.
        let is_new = self.seen.insert((cid.codec(), cid.hash()));
        if !is_new && is_nearer != Some(true) {
            return Ok(None);
        }
        self.revisits += usize::from(!is_new);
        if self.seen.len().max(self.revisits) > self.blocks_max {
            return Err(DagError::TooManyBlocks { max: self.blocks_max });
        }
        self.account()?;
        Ok(Some(if is_new { Step::Visit(cid) } else { Step::Revisit(cid) }))
    }

    fn push_level(&mut self, level: Level) -> Result<(), DagError> {
        self.levels_bytes += level.bytes();
        self.levels.push_back(level);
        if !self.rereads && self.levels_bytes > self.levels_bytes_max {
            return Err(DagError::TooManyLinks { max_bytes: self.levels_bytes_max });
        }
        // The innermost level is in use. A level that is being read again would have to be read once more.
        while self.levels_bytes > self.levels_bytes_max
            && self.levels.len() > 1
            && let Some(lowest) = self.levels.pop_front_if(|level| !level.reading)
        {
            self.levels_bytes -= lowest.bytes();
            self.released.extend_from_slice(&lowest.cid);
            self.released.extend_from_slice(&lowest.followed.to_be_bytes());
            // A CID has some 140 bytes at most.
            self.released.push(u8::try_from(lowest.cid.len()).unwrap_or(u8::MAX));
        }
        Ok(())
    }

    /// Begins to read the block of the most recently released level again.
    fn read_again(&mut self) -> Step {
        let Some((cid, followed)) = self.pop_released() else { return Step::Done };
        let Ok(asked) = Cid::try_from(&*cid) else { return Step::Done };
        let level = Level { cid, links: Box::default(), at: 0, followed, depth: 0, reading: true };
        self.levels_bytes += level.bytes();
        self.levels.push_back(level);
        Step::ReadAgain(asked)
    }

    fn pop_released(&mut self) -> Option<(Box<[u8]>, u32)> {
        let length = usize::from(self.released.pop()?);
        let at = self.released.len().checked_sub(4)?;
        let followed = u32::from_be_bytes(*self.released.get(at..)?.first_chunk()?);
        let start = at.checked_sub(length)?;
        let cid = self.released[start..at].into();
        self.released.truncate(start);
        // Release the memory that a deep part of the DAG took.
        if self.released.len() < self.released.capacity() / 4 {
            self.released.shrink_to(2 * self.released.len());
        }
        Some((cid, followed))
    }

    /// Adjusts the share of the budget to the memory in use, and to what the set needs while it grows.
    fn account(&mut self) -> Result<(), DagError> {
        let growing = if self.seen.is_full() { 2 * self.seen.bytes() } else { 0 };
        let bytes = (self.memory_bytes() + growing).next_multiple_of(SHARE_STEP);
        if self.share.resize(bytes) { Ok(()) } else { Err(DagError::Memory) }
    }
}

/// The links of a block after the first `followed`, as concatenated CIDs.
fn links_after(block: &Block, followed: u32) -> Result<Box<[u8]>, DagError> {
    let (mut links, mut left) = (Vec::new(), followed);
    for_each_link(block, &mut |cid| match left.checked_sub(1) {
        Some(less) => left = less,
        // Writing to memory does not fail.
        None => _ = cid.write_bytes(&mut links),
    })?;
    Ok(links.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cid::codec;
    use crate::hashes;
    use crate::source::{BlockSource as _, MemoryBlocks};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The cost of a traversal: blocks visited, bytes read, and the maximum of memory.
    #[derive(Debug, Default)]
    struct Cost {
        visited: BTreeSet<Vec<u8>>,
        read_bytes: usize,
        read_again_bytes: usize,
        memory_bytes_max: usize,
    }

    /// Traverses a DAG to its end.
    fn walk(blocks: &MemoryBlocks, root: Cid, levels_bytes_max: usize) -> Cost {
        let mut frontier = Frontier { levels_bytes_max, ..Frontier::new(root, None) };
        let mut cost = Cost::default();
        loop {
            let step = frontier.step().expect("there is no limit");
            let read = |cid| Block::inline(cid).or_else(|| blocks.peek(cid)).expect("it was stored");
            match step {
                Step::Visit(cid) => {
                    let block = read(&cid);
                    cost.read_bytes += block.data().len();
                    let new = cost.visited.insert(cid.to_bytes());
                    assert!(new || is_identity(&cid), "{cid} is visited twice");
                    frontier.push(&block).expect("it can be read");
                }
                Step::ReadAgain(cid) => {
                    let block = read(&cid);
                    cost.read_again_bytes += block.data().len();
                    frontier.resume(&block).expect("it can be read");
                }
                Step::Wait | Step::Revisit(_) => {
                    panic!("{step:?}: nothing is waited for, and the depth is not limited")
                }
                Step::Done => return cost,
            }
            cost.memory_bytes_max = cost.memory_bytes_max.max(frontier.memory_bytes());
        }
    }

    /// A list of links in dag-cbor.
    fn list(blocks: &MemoryBlocks, links: &[Cid]) -> Cid {
        let values = links.iter().map(|cid| crate::ipld::Ipld::Link(Box::new(*cid))).collect();
        let data = crate::ipld::encode(&crate::ipld::Ipld::List(values), codec::DAG_CBOR).expect("a list");
        put(blocks, codec::DAG_CBOR, data.to_vec())
    }

    /// Blocks have the shortest accepted digest, for the most links in a byte.
    fn put(blocks: &MemoryBlocks, codec: u64, data: Vec<u8>) -> Cid {
        let (code, _) = hashes::named("blake2b-160").expect("a function");
        let block = Block::of(codec, code, 20, data.into()).expect("a block");
        let cid = *block.cid();
        blocks.insert(&block);
        cid
    }

    fn leaf(blocks: &MemoryBlocks, number: u32) -> Cid {
        put(blocks, codec::RAW, number.to_be_bytes().to_vec())
    }

    /// A chain of nodes, each of which has a link to the next and `width` further links.
    fn comb(blocks: &MemoryBlocks, depth: u32, width: u32) -> Cid {
        (0..depth).fold(leaf(blocks, u32::MAX), |below, level| {
            let beside = (0..width).map(|number| leaf(blocks, level * width + number));
            list(blocks, &std::iter::once(below).chain(beside).collect::<Vec<_>>())
        })
    }

    /// A link costs the sender some 30 bytes, and its block a section of an archive.
    #[test]
    fn memory_is_bounded_by_the_bytes_received() {
        let shapes: [(&str, u32, u32); 4] =
            [("deep", 30_000, 1), ("wide", 1, 50_000), ("both", 40, 2_000), ("a few beside each other", 5_000, 8)];
        for (name, depth, width) in shapes {
            let blocks = MemoryBlocks::new();
            let root = comb(&blocks, depth, width);
            let cost = walk(&blocks, root, 64 * 1024);
            // A section of an archive has a length and the CID before the block.
            let sent = cost.read_bytes + 26 * cost.visited.len();
            assert_eq!(cost.visited.len(), blocks.len(), "{name}");
            let bound = 2 * sent + 128 * 1024;
            assert!(cost.memory_bytes_max <= bound, "{name}: {} bytes for {sent}", cost.memory_bytes_max);
            assert!(cost.read_again_bytes <= cost.read_bytes, "{name}: {cost:?}");
        }
    }

    /// The first step other than a visit, or the error.
    fn end_of(frontier: &mut Frontier, blocks: &MemoryBlocks) -> Result<Step, DagError> {
        loop {
            match frontier.step()? {
                Step::Visit(cid) => frontier.push(&blocks.peek(&cid).expect("it was stored"))?,
                step => return Ok(step),
            }
        }
    }

    #[test]
    fn a_walk_fails_when_its_budget_is_used_up_and_releases_it() {
        let blocks = MemoryBlocks::new();
        let root = comb(&blocks, 1, 20_000);
        let budget = Arc::new(Budget::new(256 * 1024));
        let mut frontier = Frontier::new(root, Some(Arc::clone(&budget)));
        assert_eq!(end_of(&mut frontier, &blocks), Err(DagError::Memory));
        drop(frontier);
        assert_eq!(budget.left(), 256 * 1024);
    }

    #[test]
    fn inline_blocks_are_followed_and_not_recorded() {
        let blocks = MemoryBlocks::new();
        let below = leaf(&blocks, 1);
        let node = inline_node(below);
        let text = *Block::of(codec::RAW, hashes::IDENTITY, 1, b"x"[..].into()).expect("a short block").cid();
        let root = list(&blocks, &[node, text, node]);
        let mut frontier = Frontier::new(root, None);
        let mut visited = Vec::new();
        while let Step::Visit(cid) = frontier.step().expect("there is no limit") {
            visited.push(cid);
            frontier.push(&Block::inline(&cid).or_else(|| blocks.peek(&cid)).expect("it was stored")).expect("reads");
        }
        assert_eq!(visited, [root, node, below, node]);
        assert_eq!(frontier.visited(), 2);
    }

    /// An inline node that links to another CID.
    fn inline_node(below: Cid) -> Cid {
        let data = crate::ipld::encode(&crate::ipld::Ipld::Link(Box::new(below)), codec::DAG_CBOR).expect("a link");
        *Block::of(codec::DAG_CBOR, hashes::IDENTITY, data.len(), data).expect("a short block").cid()
    }

    #[test]
    fn inline_blocks_are_recorded_and_limited_if_the_depth_is_limited() {
        let blocks = MemoryBlocks::new();
        let inline: Vec<_> = (0..10_000).map(|number| inline_node(leaf(&blocks, number))).collect();
        let root = list(&blocks, &inline);
        let ended = |frontier: Frontier| {
            let mut frontier = frontier.with_depth_max(1);
            loop {
                match frontier.step()? {
                    Step::Visit(cid) if cid == root => frontier.push(&blocks.peek(&cid).expect("it was stored"))?,
                    Step::Visit(cid) => assert!(is_identity(&cid) && !frontier.follows(&cid)),
                    step => return Ok((step, frontier.visited())),
                }
            }
        };
        let memory = |bytes: usize| Some(Arc::new(Budget::new(bytes)));
        assert_eq!(ended(Frontier::new(root, memory(4 << 20)).with_blocks_max(10_001)), Ok((Step::Done, 10_001)));
        let max = 10_000;
        assert_eq!(ended(Frontier::new(root, None).with_blocks_max(max)), Err(DagError::TooManyBlocks { max }));
        // The links of the root take most of this; some 100 bytes are left for each inline node.
        let links = 10_000 * inline[0].to_bytes().len();
        assert_eq!(ended(Frontier::new(root, memory(links + 256 * 1024))), Err(DagError::Memory));
    }

    #[test]
    fn inline_blocks_with_links_are_recorded_without_rereads() {
        let blocks = MemoryBlocks::new();
        let node = inline_node(leaf(&blocks, 1));
        let root = list(&blocks, &[node, node]);
        let mut frontier = Frontier::new(root, None).without_rereads();
        let mut visited = Vec::new();
        while let Step::Visit(cid) = frontier.step().expect("there is no limit") {
            visited.push(cid);
            frontier.push(&Block::inline(&cid).or_else(|| blocks.peek(&cid)).expect("it was stored")).expect("reads");
        }
        assert_eq!(visited, [root, node, leaf(&blocks, 1)]);
        assert!(frontier.has_visited(&node));
    }

    /// A DAG, given as pairs of a node and a node with a greater number that it links to. Returns the CIDs by number.
    fn dag(blocks: &MemoryBlocks, edges: &[(u32, u32)]) -> Vec<Cid> {
        let count = edges.iter().map(|(_, to)| to + 1).max().unwrap_or(1);
        let mut cids = vec![Cid::default(); count as usize];
        for node in (0..count).rev() {
            let below = edges.iter().filter(|(from, _)| *from == node).map(|(_, to)| cids[*to as usize]);
            cids[node as usize] = list(blocks, &below.chain([leaf(blocks, node)]).collect::<Vec<_>>());
        }
        cids
    }

    /// The nodes of a DAG in the order of their first visits, and those that are visited again. Leaves are left out.
    fn visits(edges: &[(u32, u32)], limit: impl Fn(Frontier) -> Frontier) -> Result<(Vec<u32>, Vec<u32>), DagError> {
        let blocks = MemoryBlocks::new();
        let cids = dag(&blocks, edges);
        let mut frontier = limit(Frontier::new(cids[0], None));
        let (mut first, mut again) = (Vec::new(), Vec::new());
        loop {
            let step = frontier.step()?;
            let (Step::Visit(cid) | Step::Revisit(cid)) = step else { return Ok((first, again)) };
            let Some(node) = cids.iter().position(|known| *known == cid) else { continue };
            if matches!(step, Step::Visit(_)) {
                first.push(node as u32)
            } else {
                again.push(node as u32)
            }
            frontier.push(&blocks.peek(&cid).expect("it was stored"))?;
        }
    }

    #[test]
    fn links_are_followed_to_a_depth_and_blocks_revisited_only_for_blocks_below_them() {
        let diamond = vec![(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)];
        // 4 is found deep in the DAG first, and then directly below the root, so that its links are followed as well.
        let shortcut = vec![(0, 1), (1, 2), (2, 4), (0, 4), (4, 5)];
        let table = [
            (&diamond, None, vec![0, 1, 3, 4, 2], vec![]),
            (&diamond, Some(0), vec![0], vec![]),
            (&diamond, Some(2), vec![0, 1, 3, 2], vec![]),
            (&shortcut, None, vec![0, 1, 2, 4, 5], vec![]),
            (&shortcut, Some(2), vec![0, 1, 2, 4, 5], vec![]),
            (&shortcut, Some(3), vec![0, 1, 2, 4, 5], vec![4]),
        ];
        for (edges, depth_max, first, again) in table {
            let limit = |frontier: Frontier| match depth_max {
                Some(max) => frontier.with_depth_max(max),
                None => frontier,
            };
            assert_eq!(visits(edges, limit), Ok((first, again)), "{edges:?} {depth_max:?}");
        }
    }

    #[test]
    fn blocks_and_repeated_visits_are_limited() {
        // Node 4k links to node 4(k + 1) by a long path, which is traversed first, and by a short one.
        let ways = |k: u32| [(k, k + 1), (k, k + 3), (k + 1, k + 2), (k + 2, k + 4), (k + 3, k + 4)];
        let many: Vec<_> = (0..24).flat_map(|k| ways(4 * k)).collect();
        // Each node has a leaf.
        let blocks = 2 * 97;
        let table = [(blocks, None, true), (blocks - 1, None, false), (blocks, Some(1000), false)];
        for (max, depth_max, fits) in table {
            let visited = visits(&many, |frontier| match depth_max {
                Some(depth) => frontier.with_blocks_max(max).with_depth_max(depth),
                None => frontier.with_blocks_max(max),
            });
            let expected = if fits { Ok(97) } else { Err(DagError::TooManyBlocks { max }) };
            assert_eq!(visited.map(|(first, _)| first.len()), expected, "{max} {depth_max:?}");
        }
    }

    #[test]
    fn levels_that_are_kept_are_limited() {
        let blocks = MemoryBlocks::new();
        for (levels_bytes_max, fits) in [(128 * 1024, true), (32 * 1024, false)] {
            let frontier = Frontier::new(comb(&blocks, 40, 50), None).without_rereads();
            let ended = end_of(&mut Frontier { levels_bytes_max, ..frontier }, &blocks);
            let too_many = Err(DagError::TooManyLinks { max_bytes: levels_bytes_max });
            assert_eq!(ended, if fits { Ok(Step::Done) } else { too_many });
        }
    }

    #[test]
    fn an_abandoned_block_has_no_further_links() {
        let blocks = MemoryBlocks::new();
        let root = comb(&blocks, 3, 5);
        let mut frontier = Frontier { levels_bytes_max: 0, ..Frontier::new(root, None) };
        let mut abandoned = 0;
        loop {
            match frontier.step().expect("there is no limit") {
                Step::Visit(cid) => frontier.push(&blocks.peek(&cid).expect("it was stored")).expect("it can be read"),
                Step::ReadAgain(cid) => {
                    assert_eq!(frontier.step(), Ok(Step::Wait));
                    frontier.abandon(&cid);
                    abandoned += 1;
                }
                step => {
                    assert_eq!(step, Step::Done);
                    break;
                }
            }
        }
        // The innermost node and the leaves of the two above it.
        assert_eq!((abandoned, frontier.visited()), (2, 3 + 1 + 5));
    }

    #[test]
    fn bytes_are_visited_under_every_codec_and_cids_are_kept() {
        let blocks = MemoryBlocks::new();
        let (raw, node) = (leaf(&blocks, 1), list(&blocks, &[leaf(&blocks, 2)]));
        let old = Cid::new_v0(hashes::digest(hashes::SHA2_256, 32, b"0").expect("a hash")).expect("SHA-256");
        let plain = put(&blocks, codec::JSON, b"1".to_vec());
        let root = list(&blocks, &[raw, node, plain, old]);
        let mut frontier = Frontier::new(root, None).without_rereads();
        let mut visited = Vec::new();
        while let Step::Visit(cid) = frontier.step().expect("there is no limit") {
            assert!(frontier.has_visited(&cid) && frontier.has_visited(&Cid::new_v1(codec::DAG_JSON, *cid.hash())));
            assert_eq!(frontier.follows(&cid), ![codec::RAW, codec::JSON].contains(&cid.codec()));
            visited.push(cid);
            if let Some(block) = blocks.peek(&cid) {
                frontier.push_if_decodable(&block).expect("there is no limit");
            }
        }
        assert_eq!(visited, [root, raw, node, leaf(&blocks, 2), plain, old]);
        assert!(frontier.has_visited(&Cid::new_v1(codec::DAG_CBOR, *plain.hash())));
        assert!(!frontier.has_visited(&leaf(&blocks, 3)));
    }

    proptest! {
        /// For all DAGs and memory limits, every block is visited exactly once.
        #[test]
        fn every_block_is_visited_once(
            shape in prop::collection::vec(prop::collection::vec(0_usize..40, 0..12), 1..40),
            levels_bytes_max in 0_usize..3_000,
        ) {
            let blocks = MemoryBlocks::new();
            let mut nodes = vec![leaf(&blocks, 0)];
            for (number, links) in shape.iter().enumerate() {
                let mut links: Vec<Cid> = links.iter().map(|link| nodes[link % nodes.len()]).collect();
                links.push(leaf(&blocks, number as u32));
                links.push(nodes[nodes.len() - 1]);
                nodes.push(list(&blocks, &links));
            }
            let cost = walk(&blocks, nodes[nodes.len() - 1], levels_bytes_max);
            prop_assert_eq!(cost.visited.len(), blocks.len());
        }
    }
}
