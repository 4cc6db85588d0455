//! [`Session`]: the network as a [`BlockSource`], for one DAG.
//!
//! All readers of a DAG share its session in the swarm task (its ID is the root), so that the forty assets of a page
//! need one search for providers. A `Session` is only a handle: it costs nothing until a block is requested.

use crate::bitswap::behaviour::SessionCommand;
use crate::dag::client::pushed::{Pushed, Reader, Readers};
use crate::discovery::negative_cache::{Advice, Missing, NegativeCache};
use crate::network_policy::NetworkPolicy;
use crate::observers::{HasObservers as _, Observation, SessionEvent, SessionObserver};
use crate::wants::{SessionId, Wants};
use content::{Block, BlockKey, BlockSource, Cid, ReadAhead, SourceError, hashes};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The maximum number of pending wants over all sessions. Further callers wait.
const WANTS_MAX: usize = 16_384;
/// The maximum number of concurrent background searches for blocks in the negative cache.
const BACKGROUND_SEARCHES_MAX: usize = 64;
/// How long a request for such a block waits for its background search: a connected peer may have the block by now.
const BACKGROUND_SEARCH_WAIT: Duration = Duration::from_secs(1);

/// The state that all sessions share with the swarm task.
pub(crate) struct Shared {
    pub wants: Arc<Wants>,
    pub commands: mpsc::UnboundedSender<SessionCommand>,
    permits: Arc<Semaphore>,
    absent: Mutex<NegativeCache>,
    background_searches: Arc<Semaphore>,
    policy: NetworkPolicy,
    /// Blocks that were received before they were requested.
    pushed: Arc<Pushed>,
    readers: Arc<Readers>,
}

impl Shared {
    pub fn new(
        wants: Arc<Wants>,
        commands: mpsc::UnboundedSender<SessionCommand>,
        policy: NetworkPolicy,
        (pushed, readers): (Arc<Pushed>, Arc<Readers>),
    ) -> Self {
        Self {
            wants,
            commands,
            pushed,
            readers,
            permits: Arc::new(Semaphore::new(WANTS_MAX)),
            absent: Mutex::default(),
            background_searches: Arc::new(Semaphore::new(BACKGROUND_SEARCHES_MAX)),
            policy,
        }
    }

    /// A block that was received before it was requested.
    fn take_pushed(&self, session: &SessionId, cid: &Cid) -> Option<Block> {
        let (block, over) = self.pushed.take_with_transport(cid)?;
        self.wants.observers().tell(session, SessionEvent::Received(over, block.data().len()));
        Some(block)
    }

    fn absent(&self) -> MutexGuard<'_, NegativeCache> {
        // No code that holds the lock can leave the table half changed.
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A source of one DAG's blocks from the network.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    id: SessionId,
    /// The registration of its observer, if it has one.
    _observation: Option<Arc<Observation<Wants>>>,
    /// What is received ahead is kept while there are readers.
    _reader: Arc<Reader>,
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, root: &Cid, observer: Option<Arc<dyn SessionObserver>>) -> Self {
        let id = *root.hash();
        let observation = observer.and_then(|observer| Observation::start(&shared.wants, id, observer));
        let reader = Reader::of(&shared.readers, id);
        Self { shared, id, _observation: observation.map(Arc::new), _reader: Arc::new(reader) }
    }
}

/// Withdraws the want if its future is dropped before the block is received.
struct WantGuard {
    shared: Arc<Shared>,
    session: SessionId,
    key: BlockKey,
    waiter: u64,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for WantGuard {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        self.shared.wants.withdraw(&self.key, self.waiter);
        let cancel = SessionCommand::Cancel { session: self.session, key: self.key, permit };
        // The swarm task may have ended.
        let _ = self.shared.commands.send(cancel);
    }
}

async fn fetch(
    shared: Arc<Shared>,
    session: SessionId,
    cid: Cid,
    ahead: Option<Arc<ReadAhead>>,
) -> Result<Block, SourceError> {
    hashes::check_accepted(cid.hash()).map_err(content::BlockError::from)?;
    shared.policy.check(&cid)?;
    let Some(key) = BlockKey::of(&cid) else {
        return Block::inline(&cid).ok_or(SourceError::NotFound { cid });
    };
    if let Some(block) = shared.take_pushed(&session, &cid) {
        return Ok(block);
    }
    let missing = (session, key);
    let advice = shared.absent().advise(&missing, Instant::now());
    match advice {
        Advice::Fetch => ask(shared, missing, cid, ahead).await,
        Advice::Fail(error) => Err(error),
        Advice::FailAndSearch(error) => search_in_background(shared, missing, cid).await.unwrap_or(Err(error)),
    }
}

/// Searches in the background for a block in the negative cache; returns the block if it is received soon.
async fn search_in_background(shared: Arc<Shared>, missing: Missing, cid: Cid) -> Option<Result<Block, SourceError>> {
    let Ok(permit) = Arc::clone(&shared.background_searches).try_acquire_owned() else {
        // The error is not shown to a client.
        let busy = SourceError::Busy { retry_after: Duration::ZERO };
        shared.absent().looked(missing, Err(&busy), Instant::now());
        return None;
    };
    let search = tokio::spawn(async move {
        let found = ask(shared, missing, cid, None).await;
        drop(permit);
        found
    });
    // Dropping the handle detaches the task, which continues.
    tokio::time::timeout(BACKGROUND_SEARCH_WAIT, search).await.ok()?.ok()
}

/// Waits for a block from the network.
async fn ask(
    shared: Arc<Shared>,
    missing: Missing,
    cid: Cid,
    ahead: Option<Arc<ReadAhead>>,
) -> Result<Block, SourceError> {
    let (session, key) = missing;
    let permit = shared.permits.clone().acquire_owned().await.map_err(|_| SourceError::Closed)?;
    let (waiter, reply) = shared.wants.register(key, cid, session);
    let mut guard = WantGuard { shared, session, key, waiter, permit: Some(permit) };
    // It may have been received since it was looked for. What is received from now on goes to the waiter.
    if let Some(block) = guard.shared.take_pushed(&session, &cid) {
        guard.shared.wants.withdraw(&key, waiter);
        guard.permit = None;
        return Ok(block);
    }
    guard.shared.commands.send(SessionCommand::Want { session, cid, ahead }).map_err(|_| SourceError::Closed)?;
    let result = reply.await.unwrap_or(Err(SourceError::Closed));
    // Answered, so there is nothing to withdraw.
    guard.permit = None;
    guard.shared.absent().looked(missing, result.as_ref().map(|_| ()), Instant::now());
    result
}

impl BlockSource for Session {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        fetch(self.shared.clone(), self.id, *cid, None).boxed()
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        fetch(self.shared.clone(), self.id, *cid, Some(Arc::new(ahead.clone()))).boxed()
    }

    /// The network stores nothing *locally*; finding out whether a peer has a block is a fetch.
    fn has(&self, _: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        async { Ok(false) }.boxed()
    }
}
