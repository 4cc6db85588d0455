//! [`Served`]: what other peers may have from this node: what the policy lets out, and where only chosen content is served, of
//! that what is pinned or on a list.

use cache::{Local, Tiers};
use content::{Block, BlockKey, BlockSource, Cid, SourceError, Verdict};
use futures::FutureExt as _;
use futures::future::BoxFuture;

/// See the module.
#[derive(Clone)]
pub struct Served {
    tiers: Tiers,
    local: Local,
}

impl Served {
    /// What is held in these tiers, as far as others may have it.
    pub fn of(tiers: &Tiers) -> Self {
        Self { tiers: tiers.clone(), local: tiers.local() }
    }

    /// Whether the block is given to peers, if that is known at once.
    fn is_given(&self, cid: &Cid) -> bool {
        let policy = self.tiers.policy();
        !policy.serves_only_listed() || policy.lists_block(cid)
    }

    /// The same, if the store has to be asked whether it is pinned.
    ///
    /// # Errors
    /// [`SourceError::Refused`], or what the store said.
    async fn check(self, cid: Cid) -> Result<(), SourceError> {
        if self.is_given(&cid) {
            return Ok(());
        }
        let refused = SourceError::Refused { cid, verdict: Verdict::Unlisted };
        let Some(key) = BlockKey::of(&cid) else { return Err(refused) };
        if self.tiers.disk().is_pinned(&key).await? { Ok(()) } else { Err(refused) }
    }
}

impl BlockSource for Served {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        if self.is_given(cid) { self.local.peek(cid) } else { None }
    }

    fn read_now(&self, cid: &Cid) -> Option<Block> {
        if self.is_given(cid) { self.local.read_now(cid) } else { None }
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        if self.is_given(cid) {
            return self.local.get(cid);
        }
        let (served, cid) = (self.clone(), *cid);
        async move {
            served.clone().check(cid).await?;
            served.local.get(&cid).await
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        if self.is_given(cid) {
            return self.local.has(cid);
        }
        let (served, cid) = (self.clone(), *cid);
        async move {
            served.clone().check(cid).await?;
            served.local.has(&cid).await
        }
        .boxed()
    }
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").finish_non_exhaustive()
    }
}
