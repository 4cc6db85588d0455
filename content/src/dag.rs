//! The links of a block, and the traversal of a whole DAG, as for recursive pins.
//!
//! Goals: any DAG can be traversed with a bounded number of blocks in memory, however many links its blocks have; no
//! block is visited twice.
//!
//! Non-goal: order. Blocks are emitted in the order of arrival.

use crate::block::Block;
use crate::budget::Budget;
use crate::cid::{BlockKey, Cid};
use crate::frontier::{Frontier, Step};
use crate::links::is_leaf;
pub use crate::links::{DagError, for_each_link, links};
use crate::source::{BlockSource, SourceError, peek_or_inline};
use crate::work::Work;
use futures::future::{BoxFuture, FutureExt as _, TryFutureExt as _, ready};
use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt as _};
use std::sync::Arc;

/// A block that a traversal visits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visited {
    /// A block that was read.
    Block(Block),
    /// A block whose codec has no links, and which was not read. It may be missing.
    Leaf(Cid),
}

/// Emits every block of the DAG below `root`, the root included, once and in the order of arrival. Up to `concurrency`
/// blocks are fetched at a time. Inline blocks are not emitted, but their links are followed. A block that is linked
/// under two codecs counts as two, because its links differ.
///
/// Memory: besides `concurrency` blocks, some 40 bytes for every visited block, and the links that are left
/// ([`Frontier`]). Visited blocks are compared by 128-bit hashes with secret keys, so that collisions are as unlikely
/// as those of CIDs. After an error the stream ends.
///
/// # Errors
/// The stream ends with a [`DagError`].
pub fn walk_all(
    source: Arc<dyn BlockSource>,
    root: Cid,
    concurrency: usize,
) -> BoxStream<'static, Result<Block, DagError>> {
    let blocks = LinkTraversal::new(source, root, concurrency, None).reading_leaves().stream();
    let block = |visited| match visited {
        Visited::Block(block) => Some(block),
        Visited::Leaf(_) => None,
    };
    blocks.filter_map(move |visited| ready(visited.map(block).transpose())).boxed()
}

/// The traversal of [`walk_all`] for callers that need only the CIDs: blocks without links are not read. The memory is
/// charged to `memory`, if there is such a budget.
///
/// # Errors
/// The stream ends with a [`DagError`].
pub fn walk_links(
    source: Arc<dyn BlockSource>,
    root: Cid,
    concurrency: usize,
    memory: Option<Arc<Budget>>,
) -> BoxStream<'static, Result<Visited, DagError>> {
    LinkTraversal::new(source, root, concurrency, memory).stream()
}

/// A traversal of all links in progress, for [`walk_all`] and [`walk_links`].
struct LinkTraversal {
    source: Arc<dyn BlockSource>,
    work: Work,
    concurrency: usize,
    reads_leaves: bool,
    frontier: Frontier,
    fetches: FuturesUnordered<BoxFuture<'static, Result<Read, SourceError>>>,
}

/// A block that was read for the first time, or again.
enum Read {
    First(Block),
    Again(Block),
}

impl LinkTraversal {
    fn new(source: Arc<dyn BlockSource>, root: Cid, concurrency: usize, memory: Option<Arc<Budget>>) -> Self {
        let frontier = Frontier::new(root, memory);
        let (concurrency, fetches) = (concurrency.max(1), FuturesUnordered::new());
        Self { work: source.work(), source, concurrency, reads_leaves: false, frontier, fetches }
    }

    fn reading_leaves(self) -> Self {
        Self { reads_leaves: true, ..self }
    }

    fn stream(self) -> BoxStream<'static, Result<Visited, DagError>> {
        stream::try_unfold(
            self,
            |mut traversal| async move { Ok(traversal.next().await?.map(|block| (block, traversal))) },
        )
        .boxed()
    }

    async fn next(&mut self) -> Result<Option<Visited>, DagError> {
        loop {
            self.work.turn().await?;
            while self.fetches.len() < self.concurrency {
                self.work.charge(1);
                match self.frontier.step()? {
                    Step::Visit(cid) | Step::Revisit(cid) => {
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
        self.fetches.push(match peek_or_inline(&*self.source, cid) {
            Some(block) => ready(Ok(read(block))).boxed(),
            None => self.source.get(cid).map_ok(read).boxed(),
        });
    }
}
