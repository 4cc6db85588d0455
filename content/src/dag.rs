//! The links of a block, and every block of a DAG: what recursive pins need.
//!
//! Goals: a whole DAG can be walked however large its blocks' neighbourhoods are, with a bounded number of blocks in
//! memory; nothing is visited twice.
//!
//! Non-goal: order. Blocks come as they arrive.

use crate::block::Block;
use crate::budget::Budget;
use crate::cid::{BlockKey, Cid};
use crate::frontier::{Frontier, Step};
use crate::links::is_leaf;
pub use crate::links::{DagError, for_each_link, links};
use crate::source::{BlockSource, SourceError, at_hand};
use crate::work::Work;
use futures::future::{BoxFuture, FutureExt as _, TryFutureExt as _, ready};
use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt as _};
use std::sync::Arc;

/// A block that a walk came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visited {
    /// One that was read.
    Block(Block),
    /// One that has no links, by its codec, and was not read. Whether it is there is not known.
    Leaf(Cid),
}

/// Every block of the DAG below `root`, the root included, each once, as they arrive; up to `concurrency` are fetched at
/// a time. Inline blocks are not emitted, since there is nothing to keep, but their links are followed. Bytes that are
/// linked under two codecs are two blocks here, because their links differ.
///
/// Memory: besides `concurrency` blocks, some 40 bytes for every block that was visited, and the links that are left ([`Frontier`]).
/// Blocks are told apart by 128 bits of a hash with keys that nobody else knows, so that two are as unlikely to be taken for one as
/// two CIDs are to be equal. After an error the stream ends.
///
/// # Errors
/// In the stream: [`DagError`].
pub fn walk_all(
    source: Arc<dyn BlockSource>,
    root: Cid,
    concurrency: usize,
) -> BoxStream<'static, Result<Block, DagError>> {
    let blocks = Walk::new(source, root, concurrency, None).reading_leaves().stream();
    let block = |visited| match visited {
        Visited::Block(block) => Some(block),
        Visited::Leaf(_) => None,
    };
    blocks.filter_map(move |visited| ready(visited.map(block).transpose())).boxed()
}

/// The same walk for who holds the blocks and only needs their names: those that have no links are not read. What the walk
/// holds is taken from `memory`, if there is such a limit.
///
/// # Errors
/// In the stream: [`DagError`].
pub fn walk_links(
    source: Arc<dyn BlockSource>,
    root: Cid,
    concurrency: usize,
    memory: Option<Arc<Budget>>,
) -> BoxStream<'static, Result<Visited, DagError>> {
    Walk::new(source, root, concurrency, memory).stream()
}

/// A walk under way.
struct Walk {
    source: Arc<dyn BlockSource>,
    work: Work,
    concurrency: usize,
    reads_leaves: bool,
    frontier: Frontier,
    fetches: FuturesUnordered<BoxFuture<'static, Result<Read, SourceError>>>,
}

/// A block that was read, for the first time or once more.
enum Read {
    First(Block),
    Again(Block),
}

impl Walk {
    fn new(source: Arc<dyn BlockSource>, root: Cid, concurrency: usize, memory: Option<Arc<Budget>>) -> Self {
        let frontier = Frontier::new(root, memory);
        let (concurrency, fetches) = (concurrency.max(1), FuturesUnordered::new());
        Self { work: source.work(), source, concurrency, reads_leaves: false, frontier, fetches }
    }

    fn reading_leaves(self) -> Self {
        Self { reads_leaves: true, ..self }
    }

    fn stream(self) -> BoxStream<'static, Result<Visited, DagError>> {
        stream::try_unfold(self, |mut walk| async move { Ok(walk.next().await?.map(|block| (block, walk))) }).boxed()
    }

    async fn next(&mut self) -> Result<Option<Visited>, DagError> {
        loop {
            self.work.turn().await?;
            while self.fetches.len() < self.concurrency {
                self.work.charge(1);
                match self.frontier.step()? {
                    Step::Visit(cid) => {
                        if !self.reads_leaves && is_leaf(cid.codec()) && BlockKey::of(&cid).is_some() {
                            return Ok(Some(Visited::Leaf(cid)));
                        }
                        self.fetch(&cid, Read::First);
                    }
                    Step::ReadAgain(cid) => self.fetch(&cid, Read::Again),
                    Step::Wait | Step::Done => break,
                }
            }
            let block = match self.fetches.next().await.transpose()? {
                None => return Ok(None),
                Some(Read::Again(block)) => {
                    self.frontier.resume(&block)?;
                    continue;
                }
                Some(Read::First(block)) => block,
            };
            self.work.charge_decoding(&block);
            self.frontier.push(&block)?;
            if block.key().is_some() {
                return Ok(Some(Visited::Block(block)));
            }
        }
    }

    fn fetch(&self, cid: &Cid, read: fn(Block) -> Read) {
        self.fetches.push(match at_hand(&*self.source, cid) {
            Some(block) => ready(Ok(read(block))).boxed(),
            None => self.source.get(cid).map_ok(read).boxed(),
        });
    }
}
