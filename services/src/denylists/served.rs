//! [`PeerSource`]: the blocks that this node serves to other peers: those that the policy allows and, in allowlist mode,
//! that are pinned or on a list. While the gateway is cut off from its site it may serve none ([`crate::isolation`]).

use crate::isolation::Isolation;
use cache::{Local, Tiers};
use content::policy::check_inlined;
use content::stored::Stored;
use content::{Block, BlockKey, BlockSource, Cid, SourceError, Verdict};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::sync::Arc;

/// A block source for other peers.
#[derive(Clone)]
pub struct PeerSource {
    tiers: Tiers,
    local: Local,
    isolation: Option<Arc<Isolation>>,
}

impl PeerSource {
    /// Serves the blocks stored in these tiers, as far as the policy allows.
    pub fn of(tiers: &Tiers) -> Self {
        Self { tiers: tiers.clone(), local: tiers.local(), isolation: None }
    }

    /// The same, but nothing while the gateway refuses content.
    #[must_use]
    pub fn refusing_while(self, isolation: Option<Arc<Isolation>>) -> Self {
        Self { isolation, ..self }
    }

    fn is_refusing(&self) -> bool {
        self.isolation.as_ref().is_some_and(|isolation| isolation.refusal().is_some())
    }

    /// Whether a block may be served, if that is known without reading the store.
    fn is_given(&self, cid: &Cid) -> bool {
        let policy = self.tiers.policy();
        !self.is_refusing() && (!policy.serves_only_listed() || policy.lists_block(cid))
    }

    /// Checks whether a block may be served because it is pinned, which reads the store.
    ///
    /// # Errors
    /// [`SourceError::Refused`], or the error of the store.
    async fn check(&self, cid: &Cid) -> Result<(), SourceError> {
        if self.is_refusing() {
            return Err(SourceError::NotFound { cid: *cid });
        }
        let refused = SourceError::Refused { cid: *cid, verdict: Verdict::Unlisted };
        let Some(key) = BlockKey::of(cid) else { return Err(refused) };
        if self.tiers.store().is_pinned(&key).await? { Ok(()) } else { Err(refused) }
    }

    /// Drops a block if one that is inlined in its links is withheld.
    fn without_withheld_links(&self, found: Option<Block>) -> Option<Block> {
        found.filter(|block| check_inlined(&**self.tiers.policy(), block).is_ok())
    }

    /// Reads from the tiers if the block may be served.
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

impl BlockSource for PeerSource {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        if self.is_given(cid) { self.without_withheld_links(self.local.peek(cid)) } else { None }
    }

    fn read_now(&self, cid: &Cid) -> Option<Block> {
        if self.is_given(cid) { self.without_withheld_links(self.local.read_now(cid)) } else { None }
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        if self.is_given(cid) { self.without_withheld_links(self.local.inline(cid)) } else { None }
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

    /// Whether a withheld block is inlined in the links of a block is only known when it is unpacked.
    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        let found = self.if_given(cid, |local, cid| local.get_stored(cid));
        let (policy, cid) = (Arc::clone(self.tiers.policy()), *cid);
        async move {
            let Some(stored) = found.await? else { return Ok(None) };
            if policy.withholds() {
                // A damaged value is reported by `get`.
                let Ok(data) = stored.block() else { return Ok(None) };
                check_inlined(&*policy, &Block::from_verified(cid, data))?;
            }
            Ok(Some(stored))
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.if_given(cid, |local, cid| local.has(cid))
    }
}

impl std::fmt::Debug for PeerSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").finish_non_exhaustive()
    }
}
