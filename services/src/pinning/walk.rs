//! [`PinTraversal`]: visits all blocks of a DAG, from the nearest source of each.
//!
//! Goals: stored blocks are not fetched, and stored blocks without links are not even read, so that an interrupted pin
//! continues at the speed of the index; the bounded memory of a [`Frontier`].
//!
//! Unlike [`content::dag::walk_all`], it reports where each block came from.

use cache::BlockStore;
use content::cid::codec;
use content::dag::{DagError, Visited};
use content::frontier::{Frontier, Step};
use content::policy::check_inlined;
use content::{Block, BlockKey, BlockSource, Cid, Policy, ReadAhead, SourceError, Verdict};
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use std::sync::Arc;

/// The maximum number of blocks of a DAG.
const BLOCKS_MAX: usize = 1 << 24;

/// The sources of blocks.
#[derive(Clone)]
pub struct BlockSources {
    /// The store. Blocks in it are not fetched.
    pub store: Arc<dyn BlockStore>,
    /// Locally stored blocks.
    pub local: Arc<dyn BlockSource>,
    /// The network.
    pub upstream: Arc<dyn BlockSource>,
    /// The content policy.
    pub policy: Arc<dyn Policy>,
    /// Whether withheld blocks are skipped instead of ending the traversal: the DAG was complete before, and the rest
    /// of it is to be restored.
    pub passes_withheld: bool,
}

/// What became of a block that the traversal needs.
enum BlockRead {
    Found(VisitedBlock),
    /// A block whose links were followed in part before.
    FoundAgain(Block),
    /// A block that is missing and withheld.
    Withheld(Cid),
}

/// A visited block.
pub struct VisitedBlock {
    /// The block, or the CID of a stored block without links.
    pub visited: Visited,
    /// Its length.
    pub bytes: u64,
    /// Whether it was fetched from the network.
    pub fetched: bool,
}

impl VisitedBlock {
    fn block(block: Block, fetched: bool) -> Self {
        let bytes = block.data().len() as u64;
        Self { visited: Visited::Block(block), bytes, fetched }
    }
}

/// The traversal of a DAG that is pinned. Returns the blocks unordered and without duplicates; inlined blocks (identity
/// hashes) are not returned, but their links are followed.
pub struct PinTraversal {
    sources: BlockSources,
    concurrency: usize,
    frontier: Frontier,
    reads: FuturesUnordered<BoxFuture<'static, Result<BlockRead, SourceError>>>,
    /// The number of missing withheld blocks, and one of them.
    withheld: Option<(u64, Cid)>,
}

impl PinTraversal {
    /// A traversal that fetches so many blocks concurrently.
    pub fn new(sources: BlockSources, root: Cid, concurrency: usize) -> Self {
        let frontier = Frontier::new(root, None).with_blocks_max(BLOCKS_MAX);
        let (concurrency, reads) = (concurrency.max(1), FuturesUnordered::new());
        Self { sources, concurrency, frontier, reads, withheld: None }
    }

    /// The same after another traversal with so many missing withheld blocks, and one of them.
    #[must_use]
    pub fn after(mut self, withheld: Option<(u64, Cid)>) -> Self {
        self.withheld = withheld;
        self
    }

    /// The next block; `None` at the end.
    ///
    /// # Errors
    /// [`DagError`]; the traversal cannot be continued after it.
    pub async fn next(&mut self) -> Result<Option<VisitedBlock>, DagError> {
        loop {
            self.request_blocks()?;
            match self.reads.next().await.transpose()? {
                None => return Ok(None),
                Some(BlockRead::FoundAgain(block)) => self.frontier.resume(&block)?,
                Some(BlockRead::Withheld(cid)) => {
                    let (blocks, first) = self.withheld.unwrap_or((0, cid));
                    self.withheld = Some((blocks + 1, first));
                }
                Some(BlockRead::Found(found)) => {
                    let Visited::Block(block) = &found.visited else { return Ok(Some(found)) };
                    self.frontier.push(block)?;
                    if block.key().is_some() {
                        return Ok(Some(found));
                    }
                }
            }
        }
    }

    /// The number of missing withheld blocks so far, and one of them.
    pub fn withheld(&self) -> Option<(u64, Cid)> {
        self.withheld
    }

    fn request_blocks(&mut self) -> Result<(), DagError> {
        while self.reads.len() < self.concurrency {
            let sources = self.sources.clone();
            self.reads.push(match self.frontier.step()? {
                Step::Visit(cid) | Step::Revisit(cid) => find(sources, cid).boxed(),
                Step::ReadAgain(cid) => find_again(sources, cid).boxed(),
                Step::Wait | Step::Done => break,
            });
        }
        Ok(())
    }
}

async fn find(sources: BlockSources, cid: Cid) -> Result<BlockRead, SourceError> {
    match find_allowed(&sources, cid).await {
        Err(SourceError::Refused { .. }) if sources.passes_withheld => find_withheld(&*sources.store, cid).await,
        found => found.map(BlockRead::Found),
    }
}

async fn find_again(sources: BlockSources, cid: Cid) -> Result<BlockRead, SourceError> {
    match find(sources, cid).await? {
        BlockRead::Found(VisitedBlock { visited: Visited::Block(block), .. }) => Ok(BlockRead::FoundAgain(block)),
        _ => Err(SourceError::NotFound { cid }),
    }
}

/// A withheld block that is stored remains a member of its pin, and its links are followed. It is not served.
async fn find_withheld(store: &dyn BlockStore, cid: Cid) -> Result<BlockRead, SourceError> {
    let Some(key) = BlockKey::of(&cid) else { return Ok(BlockRead::Withheld(cid)) };
    let data = store.look(&key).await?;
    Ok(data.map_or(BlockRead::Withheld(cid), |data| {
        BlockRead::Found(VisitedBlock::block(Block::from_verified(cid, data), false))
    }))
}

async fn find_allowed(sources: &BlockSources, cid: Cid) -> Result<VisitedBlock, SourceError> {
    let found = find_nearest(sources, cid).await?;
    if let Visited::Block(block) = &found.visited {
        check_inlined(&*sources.policy, block)?;
    }
    Ok(found)
}

async fn find_nearest(sources: &BlockSources, cid: Cid) -> Result<VisitedBlock, SourceError> {
    check(&*sources.policy, &cid)?;
    if let Some(block) = Block::inline(&cid).or_else(|| Block::empty(&cid)) {
        return Ok(VisitedBlock::block(block, false));
    }
    if let Some(bytes) = leaf_bytes(&*sources.store, &cid).await? {
        return Ok(VisitedBlock { visited: Visited::Leaf(cid), bytes, fetched: false });
    }
    match get_local(&*sources.local, &cid).await {
        Err(SourceError::NotFound { .. }) => {}
        found => return Ok(VisitedBlock::block(found?, false)),
    }
    let ahead = ReadAhead::all(cid);
    let block = match ahead.is_single_block() {
        true => sources.upstream.get(&cid).await?,
        false => sources.upstream.get_ahead(&cid, &ahead).await?,
    };
    let block = block.under(&cid).ok_or(SourceError::Corrupt { cid })?;
    // The policy may have changed during the fetch.
    check(&*sources.policy, &cid)?;
    Ok(VisitedBlock::block(block, true))
}

/// The length of a stored block that, by its codec, has no links.
async fn leaf_bytes(store: &dyn BlockStore, cid: &Cid) -> Result<Option<u64>, SourceError> {
    let key = BlockKey::of(cid).filter(|_| matches!(cid.codec(), codec::RAW | codec::CBOR | codec::JSON));
    let Some(key) = key else { return Ok(None) };
    let shape = store.shapes(vec![key]).await?.pop().flatten();
    Ok(shape.map(|shape| shape.block_bytes() as u64))
}

async fn get_local(local: &dyn BlockSource, cid: &Cid) -> Result<Block, SourceError> {
    match local.peek(cid) {
        Some(block) => Ok(block),
        None => local.get(cid).await,
    }
}

fn check(policy: &dyn Policy, cid: &Cid) -> Result<(), SourceError> {
    match policy.check(cid) {
        Verdict::Allow => Ok(()),
        verdict => Err(SourceError::Refused { cid: *cid, verdict }),
    }
}
