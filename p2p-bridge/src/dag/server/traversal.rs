//! [`Traversal`]: the blocks of one transfer, in the order in which they are sent.
//!
//! The blocks are those of [`content::scope`] for the same path, scope and range, each once, and each after a block that
//! names it. Unlike in an archive, inner nodes come first within a window: a node that is surely not a leaf is sent
//! before the leaves that precede it, up to [`WINDOW_BYTES`] of them, so that the asker learns names in time. Leaves are
//! sent in the order of the file.
//!
//! How it works: a stack has the nodes whose children are not all taken, the next child on top. Children are taken from
//! it into a queue of leaves, which is the window. A child that is surely an inner node is read at once, and its children
//! go on top of the stack, where they follow the window. When a child in the window turns out to have children, the rest
//! of the window goes back to the stack, and they go on top of it. So that this is little, only a few children follow one
//! of which it is not known whether it is a leaf.
//!
//! Goals: memory bounded for malicious DAGs; work in small turns, so that a transfer costs its share and no more; no
//! block is read for an asker without budget. A block that is larger than what is left of the budget is dropped, and read
//! again once the budget suffices, so that waiting transfers hold no blocks. What is read in vain is reported, so that the
//! asker is charged for it.
//!
//! Non-goals: the order of turns ([`crate::fairness`]); streams.

use crate::dag::message::{ANSWER_OVERHEAD_BYTES, Answer, EndStatus, Packed, Request};
use bytes::Bytes;
use content::cid::is_identity;
use content::scope::{Child, ChildIter, Seen, expand};
use content::stored::Shape;
use content::unixfs::NodeError;
use content::{Block, BlockSource, Cid, MAX_BLOCK_BYTES, codec};
use futures::future::join_all;
use prost::encoding::{WireType, decode_key, decode_varint};
use std::collections::{HashSet, VecDeque};

/// The window in which inner nodes come first, in bytes.
pub const WINDOW_BYTES: usize = 16 * 1024 * 1024;
/// The maximum number of leaves in the window.
const WINDOW_CHILDREN: usize = 256;
/// The maximum length of the part of the window that begins with a child that may not be a leaf.
const WINDOW_UNCERTAIN: usize = 8;
/// The maximum number of blocks that are read concurrently.
const READS_MAX: usize = 16;
/// A turn ends after this many answers.
const ANSWERS_PER_TURN: usize = 512;
/// A turn ends after this many children, whether they were sent or not: some tenths of a millisecond.
const STEPS_PER_TURN: usize = 4 * 1024;
/// The maximum size of the nodes whose children are not all taken, in bytes: more than any real DAG needs.
const INNER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The maximum length of the stack: 1024 levels, as in an archive, each with what was left of the window.
const STACK_MAX: usize = 1024 * (1 + WINDOW_UNCERTAIN);
/// The maximum number of blocks of one transfer; those that can have links count twice. 256 KiB leaves are 64 GiB.
const BLOCKS_MAX: usize = 256 * 1024;
/// The maximum number of subtrees that the asker holds, including those that it reported later.
pub const HELD_MAX: usize = 1024;
/// An envelope without more bytes than this before and after its payload has no room for a link to a stored block, whose
/// digest alone is longer.
const NO_LINK_BYTES: usize = 16;
/// The approximate memory of a child in the window or on the stack, in bytes.
const CHILD_BYTES: usize = 256;

/// The limits of a turn.
#[derive(Debug, Clone, Copy)]
pub struct TurnLimits {
    /// The turn ends when the answers have this many bytes on the wire; the last block may exceed it.
    pub wire_bytes: usize,
    /// What may be sent of the budget of the transfer, in bytes.
    pub budget_bytes: u64,
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnEnd {
    /// There is more to send.
    More,
    /// The next block needs a budget of so many bytes.
    Budget(u64),
    /// Nothing follows.
    Ended(EndStatus),
}

/// The result of a turn.
#[derive(Debug)]
pub struct TurnResult {
    /// What is to be sent, in order.
    pub answers: Vec<Answer>,
    /// Why the turn ended.
    pub end: TurnEnd,
    /// The number of blocks that were looked up.
    pub reads: usize,
    /// The bytes of those that were read and are not among the answers.
    pub unsent_bytes: usize,
    /// The number of children that were considered.
    pub steps: usize,
}

/// A traversal in progress.
#[derive(Debug)]
pub struct Traversal {
    /// What follows the window; the next is the last.
    stack: Vec<Item>,
    /// Leaves that are read next, in order.
    leaves: VecDeque<Child>,
    /// Children that follow them; the first may turn out to have children.
    uncertain: VecDeque<Child>,
    /// The expected size of both.
    window_bytes: usize,
    /// The size of the nodes on the stack, in bytes.
    inner_bytes: usize,
    seen: Seen,
    held: HashSet<Cid>,
    packed: bool,
}

#[derive(Debug)]
enum Item {
    Child(Box<Child>),
    Children(Box<ChildIter>),
}

/// What was found of a child.
enum Found {
    Plain(Block),
    Packed(Packed),
    /// Not stored, or not served.
    Absent,
}

/// Why a traversal cannot go on.
struct Failed;

impl From<NodeError> for Failed {
    fn from(_: NodeError) -> Self {
        Self
    }
}

impl Traversal {
    /// The traversal of a request.
    pub fn new(request: &Request) -> Self {
        let root = Child::root(request.root, request.path.clone(), request.scope);
        Self {
            stack: vec![Item::Child(Box::new(root))],
            leaves: VecDeque::new(),
            uncertain: VecDeque::new(),
            window_bytes: 0,
            inner_bytes: 0,
            seen: Seen::new(BLOCKS_MAX),
            held: request.held.iter().map(normal).collect(),
            packed: request.packed,
        }
    }

    /// The asker holds a block and everything below it.
    pub fn skip(&mut self, cid: &Cid) {
        if self.held.len() < HELD_MAX {
            self.held.insert(normal(cid));
        }
    }

    /// The memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let window = self.leaves.len() + self.uncertain.len();
        let children = window + self.stack.len() + self.held.len();
        self.inner_bytes + self.seen.bytes() + children * CHILD_BYTES
    }

    /// Reads blocks from `source` until a limit is reached.
    pub async fn turn(&mut self, source: &dyn BlockSource, limits: TurnLimits) -> TurnResult {
        let mut turn = Turn::new(limits);
        let end = match self.run(source, &mut turn).await {
            Ok(end) => end,
            Err(Failed) => TurnEnd::Ended(EndStatus::Failed),
        };
        let Turn { answers, reads, unsent_bytes, steps, .. } = turn;
        TurnResult { answers, end, reads, unsent_bytes, steps }
    }

    async fn run(&mut self, source: &dyn BlockSource, turn: &mut Turn) -> Result<TurnEnd, Failed> {
        while !turn.is_over() {
            let batch = self.next_batch(turn)?;
            if batch.children.is_empty() {
                let is_done = self.stack.is_empty() && self.leaves.is_empty() && self.uncertain.is_empty();
                return Ok(if is_done { TurnEnd::Ended(EndStatus::Complete) } else { TurnEnd::More });
            }
            if turn.budget_left() <= ANSWER_OVERHEAD_BYTES {
                self.put_back(batch.is_ahead, batch.children, Vec::new())?;
                return Ok(TurnEnd::Budget(ANSWER_OVERHEAD_BYTES + 1));
            }
            turn.reads += batch.children.len();
            let found = join_all(batch.children.iter().map(|child| read(source, child, self.packed))).await;
            turn.unsent_bytes += found.iter().map(Found::read_bytes).sum::<usize>();
            if let Some(needed) = self.process(batch, found, turn)? {
                return Ok(TurnEnd::Budget(needed));
            }
        }
        Ok(TurnEnd::More)
    }

    /// The children that are read next: an inner node, or children from the window. Empty at the end, and when the turn
    /// has taken enough steps.
    fn next_batch(&mut self, turn: &mut Turn) -> Result<Batch, Failed> {
        self.certify();
        while self.window_has_room() && turn.steps < STEPS_PER_TURN {
            turn.steps += 1;
            let Some(child) = self.take_next()? else {
                if self.stack.is_empty() {
                    break;
                }
                continue;
            };
            if self.is_skipped(&child) {
                continue;
            }
            if child.is_inner() {
                return Ok(Batch { children: vec![child], is_ahead: true });
            }
            self.window_bytes += child.expected_bytes();
            let is_certain = child.is_leaf() && self.uncertain.is_empty();
            if is_certain { self.leaves.push_back(child) } else { self.uncertain.push_back(child) }
        }
        Ok(Batch { children: self.take_from_window(turn), is_ahead: false })
    }

    fn window_has_room(&self) -> bool {
        let has_room = self.window_bytes < WINDOW_BYTES && self.leaves.len() < WINDOW_CHILDREN;
        has_room && self.uncertain.len() < WINDOW_UNCERTAIN
    }

    /// The next child on the stack; `None` if the top had no more.
    fn take_next(&mut self) -> Result<Option<Child>, Failed> {
        match self.stack.pop() {
            None => Ok(None),
            Some(Item::Child(child)) => Ok(Some(*child)),
            Some(Item::Children(mut children)) => {
                self.inner_bytes -= children.bytes();
                let child = children.next_child()?;
                if child.is_some() {
                    self.push_children(children)?;
                }
                Ok(child)
            }
        }
    }

    fn push_children(&mut self, children: Box<ChildIter>) -> Result<(), Failed> {
        self.inner_bytes += children.bytes();
        if self.inner_bytes > INNER_BYTES_MAX || self.stack.len() >= STACK_MAX {
            return Err(Failed);
        }
        self.stack.push(Item::Children(children));
        Ok(())
    }

    /// Children from the window, as many as the turn may send if they have their expected sizes, and at least one.
    fn take_from_window(&mut self, turn: &mut Turn) -> Vec<Child> {
        let room = (turn.limits.wire_bytes.saturating_sub(turn.wire_bytes) as u64).min(turn.budget_left());
        let (mut batch, mut expected) = (Vec::new(), 0);
        while batch.len() < READS_MAX {
            let queue = if self.leaves.is_empty() { &mut self.uncertain } else { &mut self.leaves };
            let Some(bytes) = queue.front().map(Child::expected_bytes) else { break };
            if !batch.is_empty() && expected + bytes as u64 > room {
                break;
            }
            let Some(child) = queue.pop_front() else { break };
            self.window_bytes -= bytes;
            turn.steps += 1;
            // It may have been sent since it was put into the window.
            if !self.is_skipped(&child) {
                expected += bytes as u64;
                batch.push(child);
            }
        }
        batch
    }

    /// Leaves at the beginning of the uncertain part of the window leave it.
    fn certify(&mut self) {
        while self.uncertain.front().is_some_and(Child::is_leaf) {
            self.leaves.extend(self.uncertain.pop_front());
        }
    }

    fn is_skipped(&self, child: &Child) -> bool {
        self.seen.is_repeat(child) || !self.held.is_empty() && self.held.contains(&normal(&child.cid))
    }

    /// Answers with what was found, in order. Returns the budget that the next block needs, if there is not enough.
    fn process(&mut self, batch: Batch, found: Vec<Found>, turn: &mut Turn) -> Result<Option<u64>, Failed> {
        let (mut expanded, mut unsent, mut needed) = (Vec::new(), Vec::new(), None);
        for (child, found) in batch.children.into_iter().zip(found) {
            // Blocks can be larger than their links declare.
            if needed.is_some() || turn.wire_bytes >= turn.limits.wire_bytes {
                unsent.push(child);
                continue;
            }
            // Two children of a batch can be the same block.
            if self.seen.is_repeat(&child) {
                continue;
            }
            let answer = found.answer(&child.cid);
            let cost = answer.as_ref().map_or(0, Answer::budget_bytes);
            if cost > turn.budget_left() {
                needed = Some(cost);
                unsent.push(child);
                continue;
            }
            // An inline block is in the link to it, and is never sent.
            if let Some(answer) = answer
                && self.seen.visit(&child).map_err(|_| Failed)?
            {
                turn.unsent_bytes -= found.read_bytes();
                turn.push(answer);
            }
            match found.children(&child) {
                Ok(children) => expanded.extend(children),
                Err(failed) => {
                    // What was named before is not sent either, so that the end follows the block at once.
                    self.clear();
                    return Err(failed);
                }
            }
        }
        self.put_back(batch.is_ahead, unsent, expanded)?;
        Ok(needed)
    }

    /// Puts children back that were not sent, and the children of those that were. What is ahead of the window goes to the
    /// stack; otherwise, children precede what is left of the window.
    fn put_back(&mut self, is_ahead: bool, unsent: Vec<Child>, expanded: Vec<ChildIter>) -> Result<(), Failed> {
        if is_ahead {
            self.stack.extend(unsent.into_iter().rev().map(|child| Item::Child(Box::new(child))));
        } else if expanded.is_empty() {
            // If leaves are left, nothing else was taken.
            let queue = if self.leaves.is_empty() { &mut self.uncertain } else { &mut self.leaves };
            for child in unsent.into_iter().rev() {
                self.window_bytes += child.expected_bytes();
                queue.push_front(child);
            }
        } else {
            let window = self.leaves.drain(..).chain(self.uncertain.drain(..));
            let rest: Vec<Child> = unsent.into_iter().chain(window).collect();
            self.window_bytes = 0;
            self.stack.extend(rest.into_iter().rev().map(|child| Item::Child(Box::new(child))));
        }
        expanded.into_iter().rev().try_for_each(|children| self.push_children(Box::new(children)))
    }

    fn clear(&mut self) {
        self.stack.clear();
        self.leaves.clear();
        self.uncertain.clear();
        (self.window_bytes, self.inner_bytes) = (0, 0);
    }
}

/// Children that are read together.
struct Batch {
    children: Vec<Child>,
    /// Whether they precede the window.
    is_ahead: bool,
}

/// A turn in progress.
struct Turn {
    limits: TurnLimits,
    answers: Vec<Answer>,
    wire_bytes: usize,
    budget_bytes: u64,
    reads: usize,
    /// Of blocks that were read and not pushed.
    unsent_bytes: usize,
    steps: usize,
}

impl Turn {
    fn new(limits: TurnLimits) -> Self {
        Self { limits, answers: Vec::new(), wire_bytes: 0, budget_bytes: 0, reads: 0, unsent_bytes: 0, steps: 0 }
    }

    fn is_over(&self) -> bool {
        self.wire_bytes >= self.limits.wire_bytes
            || self.answers.len() >= ANSWERS_PER_TURN
            || self.steps >= STEPS_PER_TURN
    }

    fn budget_left(&self) -> u64 {
        self.limits.budget_bytes.saturating_sub(self.budget_bytes)
    }

    fn push(&mut self, answer: Answer) {
        self.budget_bytes += answer.budget_bytes();
        self.wire_bytes += answer.wire_bytes();
        self.answers.push(answer);
    }
}

impl Found {
    /// `None` for an inline block.
    fn answer(&self, cid: &Cid) -> Option<Answer> {
        match self {
            _ if is_identity(cid) => None,
            Self::Plain(block) => Some(Answer::plain(block)),
            Self::Packed(packed) => Some(Answer::Packed(packed.clone())),
            Self::Absent => Some(Answer::Absent(*cid)),
        }
    }

    /// What was read from the store, in bytes.
    fn read_bytes(&self) -> usize {
        match self {
            Self::Plain(block) if is_identity(block.cid()) => 0,
            Self::Plain(block) => block.data().len(),
            Self::Packed(packed) => packed.wire_bytes(),
            Self::Absent => 0,
        }
    }

    /// What is below the block.
    fn children(&self, child: &Child) -> Result<Option<ChildIter>, Failed> {
        if child.is_leaf() {
            return Ok(None);
        }
        match self {
            Self::Plain(block) => Ok(expand(block, &child.role)?),
            Self::Packed(packed) if is_packed_leaf(packed) => Ok(None),
            Self::Packed(packed) => {
                let data = packed.stored.block().map_err(|_| Failed)?;
                Ok(expand(&Block::from_verified(child.cid, data), &child.role)?)
            }
            Self::Absent => Ok(None),
        }
    }
}

/// Whether a packed block is a leaf of a file, without unpacking it: its payload is the file data of a dag-pb node, and
/// there is no room for a link around it. A stored form may come from a peer that has cut the block elsewhere.
fn is_packed_leaf(packed: &Packed) -> bool {
    let Shape::Envelope { payload_bytes, suffix_bytes, .. } = packed.stored.shape() else { return false };
    let Some([prefix, ..]) = packed.stored.packed_parts() else { return false };
    let is_short = prefix.len().max(suffix_bytes) <= NO_LINK_BYTES;
    packed.cid.codec() == codec::DAG_PB && is_short && ends_in_file_data(prefix, payload_bytes, suffix_bytes)
}

/// Whether a dag-pb node begins with its data field, and that with numbers and then file data of `payload_bytes`, which
/// begin at the end of the prefix.
fn ends_in_file_data(mut prefix: Bytes, payload_bytes: usize, suffix_bytes: usize) -> bool {
    const NODE_DATA: (u32, WireType) = (1, WireType::LengthDelimited);
    const FILE_DATA: (u32, WireType) = (2, WireType::LengthDelimited);
    if decode_key(&mut prefix).ok() != Some(NODE_DATA) {
        return false;
    }
    let Ok(node_bytes) = decode_varint(&mut prefix) else { return false };
    let data = payload_bytes + prefix.len()..=payload_bytes + prefix.len() + suffix_bytes;
    if !usize::try_from(node_bytes).is_ok_and(|bytes| data.contains(&bytes)) {
        return false;
    }
    loop {
        match decode_key(&mut prefix) {
            Ok(FILE_DATA) => return decode_varint(&mut prefix) == Ok(payload_bytes as u64) && prefix.is_empty(),
            Ok((_, WireType::Varint)) if decode_varint(&mut prefix).is_ok() => {}
            _ => return false,
        }
    }
}

/// Reads a block, in its stored form if that is compressed and the asker accepts it.
async fn read(source: &dyn BlockSource, child: &Child, packed: bool) -> Found {
    let cid = &child.cid;
    if is_identity(cid) {
        return source.inline(cid).map_or(Found::Absent, Found::Plain);
    }
    // Inner nodes are hashes mostly, of which compression saves little.
    if packed
        && child.is_inner()
        && let Some(block) = source.peek(cid)
    {
        return Found::Plain(block);
    }
    if packed {
        match source.get_stored(cid).await {
            Ok(Some(stored)) => {
                if let Some(packed) = Packed::new(*cid, stored.clone()) {
                    return Found::Packed(packed);
                }
                // Stored uncompressed: the block is a part of the value.
                if let Ok(data) = stored.block() {
                    return Found::Plain(Block::from_verified(*cid, data));
                }
            }
            Ok(None) => {}
            Err(_) => return Found::Absent,
        }
    }
    let found = match source.peek(cid) {
        Some(block) => Some(block),
        None => source.get(cid).await.ok(),
    };
    // A larger block cannot be in a message.
    found.filter(|block| block.data().len() <= MAX_BLOCK_BYTES).map_or(Found::Absent, Found::Plain)
}

/// The CID by which a held block is known, whatever its version.
fn normal(cid: &Cid) -> Cid {
    Cid::new_v1(cid.codec(), *cid.hash())
}

#[cfg(test)]
#[path = "traversal_tests.rs"]
mod tests;
