//! [`OwnerSource`]: the gateway of the site that owns a root, as a source of a request's blocks.
//!
//! The owner is first asked for what is stored, which needs no permit. When a block is not, the request takes its fetch
//! permit, as for a fetch of its own, and from then on the owner may fetch.
//!
//! Non-goals: what becomes of the request when the owner cannot be asked, which the tiers decide.

use super::source::{FetchPermits, Tier};
use content::{Block, BlockSource, Cid, ReadAhead, SourceError};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use p2p_bridge::member_lookup::Lookup;
use p2p_bridge::member_lookup::client::{FoundBlock, LookupError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks the owner of a root for a block; `None` if it is not stored and was not to be fetched.
pub type AskOwner = dyn Fn(Lookup) -> BoxFuture<'static, Result<Option<FoundBlock>, LookupError>> + Send + Sync;

/// The owner of a root, for one request.
#[derive(Clone)]
pub struct OwnerSource {
    root: Cid,
    ask: Arc<AskOwner>,
    gate: FetchPermits,
    /// Whether a block of the request was not stored.
    may_fetch: Arc<AtomicBool>,
}

impl OwnerSource {
    /// The owner of `root`, for a request with these permits.
    pub fn new(root: Cid, ask: Arc<AskOwner>, gate: FetchPermits) -> Self {
        Self { root, ask, gate, may_fetch: Arc::default() }
    }

    async fn look_up(self, cid: Cid, ahead: Option<ReadAhead>) -> Result<Block, SourceError> {
        let lookup = |may_fetch| Lookup { root: self.root, cid, may_fetch, ahead: ahead.clone() };
        if !self.may_fetch.load(Ordering::Relaxed) {
            self.gate.record_tier(Tier::Site);
            if let Some(FoundBlock { block, .. }) = self.ask(lookup(false)).await? {
                return Ok(block);
            }
            self.may_fetch.store(true, Ordering::Relaxed);
        }
        let _permit = self.gate.acquire().await?;
        let found = self.ask(lookup(true)).await?;
        // It answers so only if it was not to fetch.
        let FoundBlock { block, fetched } = found.ok_or(SourceError::Closed)?;
        if fetched {
            self.gate.record_tier(Tier::Network);
            self.gate.charge_for(&block);
        }
        Ok(block)
    }

    async fn ask(&self, lookup: Lookup) -> Result<Option<FoundBlock>, SourceError> {
        let cid = lookup.cid;
        (self.ask)(lookup).await.map_err(|error| match error {
            LookupError::NotFound(stall) => SourceError::Stalled { cid, stall },
            LookupError::Unavailable { is_lasting: true, .. } => SourceError::Closed,
            LookupError::Unavailable { .. } => SourceError::NotFound { cid },
        })
    }
}

impl BlockSource for OwnerSource {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.clone().look_up(*cid, None).boxed()
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.clone().look_up(*cid, Some(ahead.clone())).boxed()
    }

    /// What the owner stores is not stored locally.
    fn has(&self, _: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(false)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::source::{RootSource, Sources};
    use content::source_error::Stall;
    use content::{AllowAll, MemoryBlocks, codec, hashes};
    use services::limiter::Limiter;
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Mutex;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    type Answer = Result<Option<FoundBlock>, LookupError>;

    /// An owner with an answer for look-ups that do not fetch, and one for those that do.
    struct Owner {
        asked: Arc<Mutex<Vec<bool>>>,
        fetches: Arc<Limiter>,
        source: Arc<RootSource>,
        block: Block,
    }

    fn block() -> Block {
        Block::of(codec::RAW, hashes::SHA2_256, 32, "content".into()).expect("a block")
    }

    fn owner(stored: Answer, fetched: Answer) -> Owner {
        let (asked, fetches, block) = (Arc::<Mutex<Vec<bool>>>::default(), Arc::new(Limiter::new(1, 1)), block());
        let asking = Arc::clone(&asked);
        let ask: Arc<AskOwner> = Arc::new(move |lookup: Lookup| {
            asking.lock().expect("no panic").push(lookup.may_fetch);
            ready(if lookup.may_fetch { fetched.clone() } else { stored.clone() }).boxed()
        });
        let sources = Arc::new(Sources {
            local: Arc::new(MemoryBlocks::new()),
            open_session: Box::new(move |root, gate| Arc::new(OwnerSource::new(*root, Arc::clone(&ask), gate))),
            fetches: Arc::clone(&fetches),
            policy: Arc::new(AllowAll),
        });
        let source = RootSource::new(&sources, *block.cid(), CLIENT, false);
        Owner { asked, fetches, source, block }
    }

    fn found(fetched: bool) -> Answer {
        Ok(Some(FoundBlock { block: block(), fetched }))
    }

    impl Owner {
        async fn get(&self) -> Result<Block, SourceError> {
            self.source.get(self.block.cid()).await
        }

        fn asked(&self) -> Vec<bool> {
            std::mem::take(&mut self.asked.lock().expect("no panic"))
        }
    }

    #[tokio::test]
    async fn what_is_stored_needs_no_permit() {
        let owner = owner(found(false), found(true));
        let _taken = owner.fetches.try_acquire(CLIENT).expect("there is one");
        assert_eq!(owner.get().await, Ok(block()));
        assert_eq!((owner.asked(), owner.source.tier()), (vec![false], Tier::Site));
    }

    #[tokio::test]
    async fn what_is_fetched_needs_a_permit_and_is_known_to_be_missing_from_then_on() {
        let owner = owner(Ok(None), found(true));
        let taken = owner.fetches.try_acquire(CLIENT).expect("there is one");
        assert!(matches!(owner.get().await, Err(SourceError::Busy { .. })));
        assert_eq!((owner.asked(), owner.source.tier()), (vec![false], Tier::Site));
        drop(taken);
        assert_eq!((owner.get().await, owner.get().await), (Ok(block()), Ok(block())));
        assert_eq!((owner.asked(), owner.source.tier()), (vec![true, true], Tier::Network));
        assert!(owner.fetches.try_acquire(CLIENT).is_ok(), "the permit was released");
    }

    #[tokio::test]
    async fn the_tier_is_that_of_the_site_if_the_owner_had_the_block_by_then() {
        let owner = owner(Ok(None), found(false));
        assert_eq!(owner.get().await, Ok(block()));
        assert_eq!((owner.asked(), owner.source.tier()), (vec![false, true], Tier::Site));
    }

    #[tokio::test]
    async fn an_owner_that_cannot_be_asked_is_told_from_one_that_found_nothing() {
        let (cid, stall) = (*block().cid(), Stall { peers_asked: 3, ..Stall::default() });
        let unavailable = |is_lasting| Err(LookupError::Unavailable { reason: "hangs".into(), is_lasting });
        for (stored, fetched, expected) in [
            (unavailable(true), found(true), SourceError::Closed),
            (Ok(None), unavailable(true), SourceError::Closed),
            (Ok(None), unavailable(false), SourceError::NotFound { cid }),
            (Ok(None), Ok(None), SourceError::Closed),
            (Ok(None), Err(LookupError::NotFound(stall)), SourceError::Stalled { cid, stall }),
        ] {
            assert_eq!(owner(stored, fetched).get().await, Err(expected));
        }
    }
}
