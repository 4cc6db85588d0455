//! [`Walk`]: every block of a DAG, from wherever it is had with the least effort.
//!
//! Goals: what is here is not fetched, and what is here and has no links is not even read, so that an interrupted pin
//! goes on at the speed of the index; memory of some 40 bytes for each block that was seen, and not of its CID.
//!
//! This differs from [`content::dag::walk_all`] in the former, and in what is said of each block.

use cache::BlockStore;
use content::cid::codec;
use content::dag::{self, DagError, Visited};
use content::fingerprints::Fingerprints;
use content::{Block, BlockKey, BlockSource, Cid, Policy, SourceError, Verdict};
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use std::sync::Arc;

/// Links that wait to be followed. A DAG needs as many as its blocks on one path from the root have links.
const WAITING_MAX: usize = 1 << 20;
/// Blocks of one DAG.
const BLOCKS_MAX: usize = 1 << 24;

/// Where blocks are had.
#[derive(Clone)]
pub struct Places {
    /// The store: what is there need not be fetched.
    pub store: Arc<dyn BlockStore>,
    /// What is held here.
    pub local: Arc<dyn BlockSource>,
    /// What is not.
    pub upstream: Arc<dyn BlockSource>,
    /// What may be kept.
    pub policy: Arc<dyn Policy>,
    /// Whether what is withheld is passed over instead of ending the walk: the DAG was here in full before, and the rest of it
    /// is to be so again.
    pub passes_withheld: bool,
}

/// Why a DAG cannot be walked to its end.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// A block did not come, or cannot be understood.
    #[error(transparent)]
    Dag(#[from] DagError),
    /// It is too much for one pin.
    #[error("{0}")]
    TooLarge(String),
}

impl From<SourceError> for WalkError {
    fn from(error: SourceError) -> Self {
        Self::Dag(error.into())
    }
}

/// What a walk came to.
enum Reached {
    Found(Found),
    /// A block that is not here, and must not be fetched.
    Withheld(Cid),
}

/// A block that a walk came to, and whether it had to be fetched.
pub struct Found {
    /// The block, or the CID of one that is here and has no links.
    pub visited: Visited,
    /// How long it is.
    pub bytes: u64,
    /// It came from the network.
    pub fetched: bool,
}

impl Found {
    fn block(block: Block, fetched: bool) -> Self {
        let bytes = block.data().len() as u64;
        Self { visited: Visited::Block(block), bytes, fetched }
    }
}

/// A walk under way. Blocks come in no order, each once; blocks that are written into their CIDs do not, but their
/// links are followed.
pub struct Walk {
    places: Places,
    concurrency: usize,
    seen: Fingerprints,
    /// The CIDs of links, in binary; the last found goes first, which keeps this short.
    waiting: Vec<Box<[u8]>>,
    fetches: FuturesUnordered<BoxFuture<'static, Result<Reached, SourceError>>>,
    /// How many blocks are missing that are withheld, and one of them.
    withheld: Option<(u64, Cid)>,
}

impl Walk {
    /// A walk that fetches so many blocks at a time.
    pub fn new(places: Places, root: Cid, concurrency: usize) -> Self {
        let mut walk = Self {
            places,
            concurrency: concurrency.max(1),
            seen: Fingerprints::default(),
            waiting: Vec::new(),
            fetches: FuturesUnordered::new(),
            withheld: None,
        };
        walk.see(&root);
        walk
    }

    /// The next block; `None` when there are no more.
    ///
    /// # Errors
    /// [`WalkError`]; after one, the walk is of no use.
    pub async fn next(&mut self) -> Result<Option<Found>, WalkError> {
        loop {
            while self.fetches.len() < self.concurrency
                && let Some(bytes) = self.waiting.pop()
                && let Ok(cid) = Cid::try_from(&*bytes)
            {
                self.fetches.push(find(self.places.clone(), cid).boxed());
            }
            let found = match self.fetches.next().await.transpose()? {
                None => return Ok(None),
                Some(Reached::Found(found)) => found,
                Some(Reached::Withheld(cid)) => {
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

    /// How many blocks are missing so far that are withheld, and one of them.
    pub fn withheld(&self) -> Option<(u64, Cid)> {
        self.withheld
    }

    fn check(&self) -> Result<(), WalkError> {
        if self.waiting.len() > WAITING_MAX {
            return Err(WalkError::TooLarge(format!(
                "its blocks have more than {WAITING_MAX} links beside each other"
            )));
        }
        if self.seen.len() > BLOCKS_MAX {
            return Err(WalkError::TooLarge(format!("it has more than {BLOCKS_MAX} blocks")));
        }
        Ok(())
    }

    fn see(&mut self, cid: &Cid) {
        // The version makes no difference to what a block is.
        if self.seen.insert((cid.codec(), cid.hash())) {
            self.waiting.push(cid.to_bytes().into());
        }
    }
}

async fn find(places: Places, cid: Cid) -> Result<Reached, SourceError> {
    match find_allowed(&places, cid).await {
        Err(SourceError::Refused { .. }) if places.passes_withheld => find_withheld(&*places.store, cid).await,
        found => found.map(Reached::Found),
    }
}

/// What is withheld is still a member of its pin where it is here, and what lies below it is looked at: it leaves this node no
/// more than before.
async fn find_withheld(store: &dyn BlockStore, cid: Cid) -> Result<Reached, SourceError> {
    let Some(key) = BlockKey::of(&cid) else { return Ok(Reached::Withheld(cid)) };
    let data = store.look(&key).await?;
    Ok(data.map_or(Reached::Withheld(cid), |data| Reached::Found(Found::block(Block::from_checked(cid, data), false))))
}

async fn find_allowed(places: &Places, cid: Cid) -> Result<Found, SourceError> {
    check(&*places.policy, &cid)?;
    if let Some(block) = Block::inline(&cid).or_else(|| Block::empty(&cid)) {
        return Ok(Found::block(block, false));
    }
    if let Some(bytes) = leaf_bytes(&*places.store, &cid).await? {
        return Ok(Found { visited: Visited::Leaf(cid), bytes, fetched: false });
    }
    match held(&*places.local, &cid).await {
        Err(SourceError::NotFound { .. }) => {}
        found => return Ok(Found::block(found?, false)),
    }
    let block = places.upstream.get(&cid).await?;
    let block = block.under(&cid).ok_or(SourceError::Corrupt { cid })?;
    // A fetch may take long enough for the policy to change.
    check(&*places.policy, &cid)?;
    Ok(Found::block(block, true))
}

/// The length of a block that is here and, by its codec, has no links.
async fn leaf_bytes(store: &dyn BlockStore, cid: &Cid) -> Result<Option<u64>, SourceError> {
    let key = BlockKey::of(cid).filter(|_| matches!(cid.codec(), codec::RAW | codec::CBOR | codec::JSON));
    let Some(key) = key else { return Ok(None) };
    let shape = store.shapes(vec![key]).await?.pop().flatten();
    Ok(shape.map(|shape| shape.block_bytes() as u64))
}

async fn held(local: &dyn BlockSource, cid: &Cid) -> Result<Block, SourceError> {
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
