//! [`Session`]: the network as a [`BlockSource`], for one DAG.
//!
//! Everyone who reads one DAG shares its session in the swarm task (it is named by the root), so that the forty assets of
//! a page cost one search for providers. A session is only a name here: it costs nothing until a block is wanted.

use crate::bitswap::behaviour::SessionCommand;
use crate::wants::{SessionId, Wants};
use content::{Block, BlockKey, BlockSource, Cid, SourceError, hashes};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Blocks that may be waited for at once over all sessions. Callers beyond it wait for their turn.
const WANTS_MAX: usize = 16_384;

/// What every session shares with the swarm task.
pub(crate) struct Shared {
    pub wants: Arc<Wants>,
    pub commands: mpsc::UnboundedSender<SessionCommand>,
    permits: Arc<Semaphore>,
}

impl Shared {
    pub fn new(wants: Arc<Wants>, commands: mpsc::UnboundedSender<SessionCommand>) -> Self {
        Self { wants, commands, permits: Arc::new(Semaphore::new(WANTS_MAX)) }
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
    let Some(key) = BlockKey::of(&cid) else {
        return Block::inline(&cid).ok_or(SourceError::NotFound { cid });
    };
    let permit = shared.permits.clone().acquire_owned().await.map_err(|_| SourceError::Closed)?;
    let (waiter, reply) = shared.wants.register(key, cid, session);
    let mut waiting = Waiting { shared, session, key, waiter, permit: Some(permit) };
    waiting.shared.commands.send(SessionCommand::Want { session, cid }).map_err(|_| SourceError::Closed)?;
    let result = reply.await.unwrap_or(Err(SourceError::Closed));
    // Answered: there is nothing to withdraw.
    waiting.permit = None;
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
