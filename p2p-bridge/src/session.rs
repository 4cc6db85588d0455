//! [`Session`]: the network as a [`BlockSource`], for one DAG.
//!
//! Everyone who reads one DAG shares its session in the swarm task (it is named by the root), so that the forty assets of
//! a page cost one search for providers. A session is only a name here: it costs nothing until a block is wanted.

use crate::bitswap::behaviour::SessionCommand;
use crate::discovery::absent::{Absent, Advice, Missing};
use crate::obeyed::Obeyed;
use crate::wants::{SessionId, Wants};
use content::{Block, BlockKey, BlockSource, Cid, SourceError, hashes};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Blocks that may be waited for at once over all sessions. Callers beyond it wait for their turn.
const WANTS_MAX: usize = 16_384;
/// Blocks that nobody had a moment ago and that are searched again behind, at once.
const LOOKING_AGAIN_MAX: usize = 64;
/// Whoever asks for such a block waits this long for that search: somebody who is connected may have it by now.
const SECOND_CHANCE: Duration = Duration::from_secs(1);

/// What every session shares with the swarm task.
pub(crate) struct Shared {
    pub wants: Arc<Wants>,
    pub commands: mpsc::UnboundedSender<SessionCommand>,
    permits: Arc<Semaphore>,
    absent: Mutex<Absent>,
    looking_again: Arc<Semaphore>,
    policy: Obeyed,
}

impl Shared {
    pub fn new(wants: Arc<Wants>, commands: mpsc::UnboundedSender<SessionCommand>, policy: Obeyed) -> Self {
        Self {
            wants,
            commands,
            permits: Arc::new(Semaphore::new(WANTS_MAX)),
            absent: Mutex::default(),
            looking_again: Arc::new(Semaphore::new(LOOKING_AGAIN_MAX)),
            policy,
        }
    }

    fn absent(&self) -> MutexGuard<'_, Absent> {
        // No code that holds the lock can leave the table half changed.
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Blocks of one DAG, from the network.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    id: SessionId,
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, root: &Cid) -> Self {
        Self { shared, id: *root.hash() }
    }
}

/// Withdraws the want if its future is dropped before the block came.
struct Waiting {
    shared: Arc<Shared>,
    session: SessionId,
    key: BlockKey,
    waiter: u64,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        self.shared.wants.withdraw(&self.key, self.waiter);
        let cancel = SessionCommand::Cancel { session: self.session, key: self.key, permit };
        // If the swarm task is gone there is nobody to tell.
        let _ = self.shared.commands.send(cancel);
    }
}

async fn fetch(shared: Arc<Shared>, session: SessionId, cid: Cid) -> Result<Block, SourceError> {
    hashes::check_accepted(cid.hash()).map_err(content::BlockError::from)?;
    shared.policy.check(&cid)?;
    let Some(key) = BlockKey::of(&cid) else {
        return Block::inline(&cid).ok_or(SourceError::NotFound { cid });
    };
    let missing = (session, key);
    let advice = shared.absent().advise(&missing, Instant::now());
    match advice {
        Advice::Fetch => ask(shared, missing, cid).await,
        Advice::Fail(error) => Err(error),
        Advice::FailAndLook(error) => look_again(shared, missing, cid).await.unwrap_or(Err(error)),
    }
}

/// Searches behind for what nobody had a moment ago; the block if it comes soon.
async fn look_again(shared: Arc<Shared>, missing: Missing, cid: Cid) -> Option<Result<Block, SourceError>> {
    let Ok(place) = Arc::clone(&shared.looking_again).try_acquire_owned() else {
        shared.absent().looked(missing, Err(&SourceError::Busy), Instant::now());
        return None;
    };
    let looking = tokio::spawn(async move {
        let found = ask(shared, missing, cid).await;
        drop(place);
        found
    });
    // Dropping the handle leaves the search running.
    tokio::time::timeout(SECOND_CHANCE, looking).await.ok()?.ok()
}

/// Waits for a block from the network.
async fn ask(shared: Arc<Shared>, missing: Missing, cid: Cid) -> Result<Block, SourceError> {
    let (session, key) = missing;
    let permit = shared.permits.clone().acquire_owned().await.map_err(|_| SourceError::Closed)?;
    let (waiter, reply) = shared.wants.register(key, cid, session);
    let mut waiting = Waiting { shared, session, key, waiter, permit: Some(permit) };
    waiting.shared.commands.send(SessionCommand::Want { session, cid }).map_err(|_| SourceError::Closed)?;
    let result = reply.await.unwrap_or(Err(SourceError::Closed));
    // Answered: there is nothing to withdraw.
    waiting.permit = None;
    waiting.shared.absent().looked(missing, result.as_ref().map(|_| ()), Instant::now());
    result
}

impl BlockSource for Session {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        fetch(self.shared.clone(), self.id, *cid).boxed()
    }

    /// The network holds nothing *here*; asking it whether it holds something is a fetch.
    fn has(&self, _: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        async { Ok(false) }.boxed()
    }
}
