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
//! Non-goal: reading blocks.

use crate::block::Block;
use crate::budget::{Budget, Share};
use crate::cid::{Cid, is_identity};
use crate::fingerprints::Fingerprints;
use crate::links::{DagError, for_each_link, is_leaf};
use std::collections::VecDeque;
use std::sync::Arc;

/// The maximum size of the links that the levels of one traversal keep, in bytes: a few blocks of the maximum size.
pub const LEVELS_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The memory that a level takes besides its bytes, in bytes.
const LEVEL_BYTES: usize = size_of::<Level>() + 32;
/// The granularity in which a traversal takes memory from its budget, in bytes.
const SHARE_STEP: usize = 64 * 1024;

/// The next step of a traversal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Visit the block of this CID for the first time.
    Visit(Cid),
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
    /// The lowest levels: for each the CID, the number of links that were followed (4 bytes), and the length of the CID
    /// (1 byte).
    released: Vec<u8>,
    /// The levels above, the innermost last.
    levels: VecDeque<Level>,
    /// The memory of the levels, in bytes.
    levels_bytes: usize,
    levels_bytes_max: usize,
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

impl Frontier {
    /// Begins at a root. The memory is charged to `memory`, if there is such a budget.
    pub fn new(root: Cid, memory: Option<Arc<Budget>>) -> Self {
        Self {
            root: Some(root),
            seen: Fingerprints::default(),
            released: Vec::new(),
            levels: VecDeque::new(),
            levels_bytes: 0,
            levels_bytes_max: LEVELS_BYTES_MAX,
            share: Share::of(memory),
        }
    }

    /// The memory in use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.seen.bytes() + self.released.capacity() + self.levels_bytes
    }

    /// The number of blocks that were visited.
    pub fn visited(&self) -> usize {
        self.seen.len()
    }

    /// The next step.
    ///
    /// # Errors
    /// [`DagError::Memory`].
    pub fn step(&mut self) -> Result<Step, DagError> {
        if let Some(root) = self.root.take() {
            return Ok(if self.mark_visited(&root)? { Step::Visit(root) } else { Step::Done });
        }
        loop {
            let Some(level) = self.levels.back_mut() else { return Ok(self.read_again()) };
            if level.reading {
                return Ok(Step::Wait);
            }
            let link = level.next();
            // Drop the level at its last link, so that a chain of blocks with one link each takes no memory.
            if level.is_exhausted() {
                self.levels_bytes -= level.bytes();
                self.levels.pop_back();
            }
            if let Some(cid) = link
                && self.mark_visited(&cid)?
            {
                return Ok(Step::Visit(cid));
            }
        }
    }

    /// Adds the links of a block that was visited.
    ///
    /// # Errors
    /// [`DagError::Node`] if the block cannot be decoded, and [`DagError::Memory`].
    pub fn push(&mut self, block: &Block) -> Result<(), DagError> {
        let links = links_after(block, 0)?;
        if !links.is_empty() {
            let cid = block.cid().to_bytes().into_boxed_slice();
            self.push_level(Level { cid, links, at: 0, followed: 0, reading: false });
        }
        self.account()
    }

    /// Continues with the links of a block that was read again.
    ///
    /// # Errors
    /// As for [`Frontier::push`].
    pub fn resume(&mut self, block: &Block) -> Result<(), DagError> {
        let cid = block.cid().to_bytes();
        let waiting = self.levels.iter_mut().rev().find(|level| level.reading && *level.cid == *cid);
        if let Some(level) = waiting {
            level.links = links_after(block, level.followed)?;
            level.reading = false;
            self.levels_bytes += level.links.len();
        }
        self.account()
    }

    /// Whether a CID is visited for the first time. Inline blocks are not recorded: without links they need no visit,
    /// and with links they are shorter than the block that has them.
    fn mark_visited(&mut self, cid: &Cid) -> Result<bool, DagError> {
        if is_identity(cid) {
            return Ok(!is_leaf(cid.codec()));
        }
        // The CID version does not matter.
        let is_new = self.seen.insert((cid.codec(), cid.hash()));
        if is_new {
            self.account()?;
        }
        Ok(is_new)
    }

    fn push_level(&mut self, level: Level) {
        self.levels_bytes += level.bytes();
        self.levels.push_back(level);
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
    }

    /// Begins to read the block of the most recently released level again.
    fn read_again(&mut self) -> Step {
        let Some((cid, followed)) = self.pop_released() else { return Step::Done };
        let Ok(asked) = Cid::try_from(&*cid) else { return Step::Done };
        let level = Level { cid, links: Box::default(), at: 0, followed, reading: true };
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
        if self.share.hold(bytes) { Ok(()) } else { Err(DagError::Memory) }
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
                Step::Wait => panic!("nothing is waited for"),
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

    #[test]
    fn a_walk_fails_when_its_budget_is_used_up_and_releases_it() {
        let blocks = MemoryBlocks::new();
        let root = comb(&blocks, 1, 20_000);
        let budget = Arc::new(Budget::new(256 * 1024));
        let mut frontier = Frontier::new(root, Some(Arc::clone(&budget)));
        let ended = loop {
            match frontier.step() {
                Ok(Step::Visit(cid)) => match frontier.push(&blocks.peek(&cid).expect("it was stored")) {
                    Ok(()) => {}
                    Err(error) => break error,
                },
                Ok(step) => panic!("{step:?}: the walk exceeds its budget"),
                Err(error) => break error,
            }
        };
        assert_eq!(ended, DagError::Memory);
        drop(frontier);
        assert_eq!(budget.left(), 256 * 1024);
    }

    #[test]
    fn inline_blocks_are_followed_and_not_recorded() {
        let blocks = MemoryBlocks::new();
        let below = leaf(&blocks, 1);
        let inlined = |codec: u64, data: Vec<u8>| {
            let length = data.len();
            *Block::of(codec, hashes::IDENTITY, length, data.into()).expect("a short block").cid()
        };
        let data = crate::ipld::Ipld::Link(Box::new(below));
        let node = inlined(codec::DAG_CBOR, crate::ipld::encode(&data, codec::DAG_CBOR).expect("a link").to_vec());
        let root = list(&blocks, &[node, inlined(codec::RAW, b"x".to_vec()), node]);
        let mut frontier = Frontier::new(root, None);
        let mut visited = Vec::new();
        while let Step::Visit(cid) = frontier.step().expect("there is no limit") {
            visited.push(cid);
            frontier.push(&Block::inline(&cid).or_else(|| blocks.peek(&cid)).expect("it was stored")).expect("reads");
        }
        assert_eq!(visited, [root, node, below, node]);
        assert_eq!(frontier.visited(), 2);
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
