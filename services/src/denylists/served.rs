//! [`Served`]: what other peers may have from this node: what the policy lets out, and where only chosen content is served, of
//! that what is pinned or on a list.

use cache::{Local, Tiers};
use content::policy::check_inlined;
use content::{Block, BlockKey, BlockSource, Cid, SourceError, Verdict};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::sync::Arc;

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

    /// Whether it is, if the store has to be asked whether it is pinned.
    ///
    /// # Errors
    /// [`SourceError::Refused`], or what the store said.
    async fn check(&self, cid: &Cid) -> Result<(), SourceError> {
        let refused = SourceError::Refused { cid: *cid, verdict: Verdict::Unlisted };
        let Some(key) = BlockKey::of(cid) else { return Err(refused) };
        if self.tiers.disk().is_pinned(&key).await? { Ok(()) } else { Err(refused) }
    }

    /// A block, unless it carries one in its links that is refused.
    fn whole(&self, found: Option<Block>) -> Option<Block> {
        found.filter(|block| check_inlined(&**self.tiers.policy(), block).is_ok())
    }

    /// Asks the tiers for a block if it is given to peers.
    fn if_given<T: Send + 'static>(
        &self,
        cid: &Cid,
        ask: fn(&Local, &Cid) -> BoxFuture<'static, Result<T, SourceError>>,
    ) -> BoxFuture<'static, Result<T, SourceError>> {
        if self.is_given(cid) {
            return ask(&self.local, cid);
        }
        let (served, cid) = (self.clone(), *cid);
        async move {
            served.check(&cid).await?;
            ask(&served.local, &cid).await
        }
        .boxed()
    }
}

impl BlockSource for Served {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        if self.is_given(cid) { self.whole(self.local.peek(cid)) } else { None }
    }

    fn read_now(&self, cid: &Cid) -> Option<Block> {
        if self.is_given(cid) { self.whole(self.local.read_now(cid)) } else { None }
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        if self.is_given(cid) { self.whole(self.local.inline(cid)) } else { None }
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (found, policy) = (self.if_given(cid, |local, cid| local.get(cid)), Arc::clone(self.tiers.policy()));
        async move {
            let block = found.await?;
            check_inlined(&*policy, &block)?;
            Ok(block)
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.if_given(cid, |local, cid| local.has(cid))
    }
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").finish_non_exhaustive()
    }
}
