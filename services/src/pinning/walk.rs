//! [`DagWalk`]: visits all blocks of a DAG, from the nearest source of each.
//!
//! Goals: stored blocks are not fetched, and stored blocks without links are not even read, so that an interrupted pin
//! continues at the speed of the index; some 40 bytes of memory for each visited block.
//!
//! Unlike [`content::dag::walk_all`], it reports where each block came from.

use cache::BlockStore;
use content::cid::codec;
use content::dag::{self, DagError, Visited};
use content::fingerprints::Fingerprints;
use content::{Block, BlockKey, BlockSource, Cid, Policy, SourceError, Verdict};
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use std::sync::Arc;

/// The maximum number of links to follow. A DAG needs as many as the blocks on one path from the root have links.
const WAITING_MAX: usize = 1 << 20;
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
    /// Whether withheld blocks are skipped instead of ending the walk: the DAG was complete before, and the rest of it
    /// is to be restored.
    pub passes_withheld: bool,
}

/// Why walking a DAG failed.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// A block could not be fetched or decoded.
    #[error(transparent)]
    Dag(#[from] DagError),
    /// The DAG is too large for a pin.
    #[error("{0}")]
    TooLarge(String),
}

impl From<SourceError> for WalkError {
    fn from(error: SourceError) -> Self {
        Self::Dag(error.into())
    }
}

/// What a walk reached.
enum WalkStep {
    Found(VisitedBlock),
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

/// A walk in progress. Returns the blocks unordered and without duplicates; inlined blocks (identity hashes) are not
/// returned, but their links are followed.
pub struct DagWalk {
    sources: BlockSources,
    concurrency: usize,
    seen: Fingerprints,
    /// The binary CIDs of links to follow, depth first, which keeps this short.
    waiting: Vec<Box<[u8]>>,
    fetches: FuturesUnordered<BoxFuture<'static, Result<WalkStep, SourceError>>>,
    /// The number of missing withheld blocks, and one of them.
    withheld: Option<(u64, Cid)>,
}

impl DagWalk {
    /// A walk that fetches so many blocks concurrently.
    pub fn new(sources: BlockSources, root: Cid, concurrency: usize) -> Self {
        let mut walk = Self {
            sources,
            concurrency: concurrency.max(1),
            seen: Fingerprints::default(),
            waiting: Vec::new(),
            fetches: FuturesUnordered::new(),
            withheld: None,
        };
        walk.see(&root);
        walk
    }

    /// The next block; `None` at the end.
    ///
    /// # Errors
    /// [`WalkError`]; the walk cannot be continued after it.
    pub async fn next(&mut self) -> Result<Option<VisitedBlock>, WalkError> {
        loop {
            while self.fetches.len() < self.concurrency
                && let Some(bytes) = self.waiting.pop()
                && let Ok(cid) = Cid::try_from(&*bytes)
            {
                self.fetches.push(find(self.sources.clone(), cid).boxed());
            }
            let found = match self.fetches.next().await.transpose()? {
                None => return Ok(None),
                Some(WalkStep::Found(found)) => found,
                Some(WalkStep::Withheld(cid)) => {
                    let (blocks, first) = self.withheld.unwrap_or((0, cid));
                    self.withheld = Some((blocks + 1, first));
                    continue;
                }
            };
            let Visited::Block(block) = &found.visited else { return Ok(Some(found)) };
            let links = dag::links(block).map_err(DagError::from)?;
            for link in links.iter().rev() {
                self.see(link);
            }
            self.check()?;
            if block.key().is_some() {
                return Ok(Some(found));
            }
        }
    }

    /// The number of missing withheld blocks so far, and one of them.
    pub fn withheld(&self) -> Option<(u64, Cid)> {
        self.withheld
    }

    fn check(&self) -> Result<(), WalkError> {
        if self.waiting.len() > WAITING_MAX {
            return Err(WalkError::TooLarge(format!(
                "its blocks have more than {WAITING_MAX} links that wait to be followed"
            )));
        }
        if self.seen.len() > BLOCKS_MAX {
            return Err(WalkError::TooLarge(format!("the DAG has more than {BLOCKS_MAX} blocks")));
        }
        Ok(())
    }

    fn see(&mut self, cid: &Cid) {
        // The CID version makes no difference.
        if self.seen.insert((cid.codec(), cid.hash())) {
            self.waiting.push(cid.to_bytes().into());
        }
    }
}

async fn find(sources: BlockSources, cid: Cid) -> Result<WalkStep, SourceError> {
    match find_allowed(&sources, cid).await {
        Err(SourceError::Refused { .. }) if sources.passes_withheld => find_withheld(&*sources.store, cid).await,
        found => found.map(WalkStep::Found),
    }
}

/// A withheld block that is stored remains a member of its pin, and its links are followed. It is not served.
async fn find_withheld(store: &dyn BlockStore, cid: Cid) -> Result<WalkStep, SourceError> {
    let Some(key) = BlockKey::of(&cid) else { return Ok(WalkStep::Withheld(cid)) };
    let data = store.look(&key).await?;
    Ok(data.map_or(WalkStep::Withheld(cid), |data| {
        WalkStep::Found(VisitedBlock::block(Block::from_verified(cid, data), false))
    }))
}

async fn find_allowed(sources: &BlockSources, cid: Cid) -> Result<VisitedBlock, SourceError> {
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
    let block = sources.upstream.get(&cid).await?;
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
