//! Where a request's blocks come from: the local tiers at once, the network only when they do not suffice.
//!
//! A session with the network costs something to set up, and a request that is answered from memory needs none. So
//! [`RootSource`] opens its root's session at the first block that is not at hand.

use content::{Block, BlockSource, Cid, SourceError};
use futures::future::BoxFuture;
use std::sync::{Arc, OnceLock};

/// Makes the source for all blocks below a root: every tier, the network last.
pub type OpenSession = dyn Fn(&Cid) -> Arc<dyn BlockSource> + Send + Sync;

/// What requests take blocks from.
pub struct Sources {
    /// Memory and disk.
    pub local: Arc<dyn BlockSource>,
    /// Everything, for one root.
    pub open_session: Box<OpenSession>,
}

/// The blocks below one root.
pub struct RootSource {
    sources: Arc<Sources>,
    root: Cid,
    session: OnceLock<Arc<dyn BlockSource>>,
}

impl RootSource {
    /// The source for `root`; nothing is opened yet.
    pub fn new(sources: &Arc<Sources>, root: Cid) -> Arc<Self> {
        Arc::new(Self { sources: Arc::clone(sources), root, session: OnceLock::new() })
    }

    /// The root that the blocks are asked for by.
    pub fn root(&self) -> &Cid {
        &self.root
    }

    fn session(&self) -> &Arc<dyn BlockSource> {
        self.session.get_or_init(|| (self.sources.open_session)(&self.root))
    }

    /// A block: without waiting, if it is at hand.
    pub async fn fetch(&self, cid: &Cid) -> Result<Block, SourceError> {
        match self.peek(cid) {
            Some(block) => Ok(block),
            None => self.get(cid).await,
        }
    }
}

impl BlockSource for RootSource {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.sources.local.peek(cid)
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.session().get(cid)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.sources.local.has(cid)
    }
}
