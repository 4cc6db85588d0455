//! [`Locator`]: look-ups of blocks in the index, those of many callers in one statement.
//!
//! Goals: a look-up alone is sent at once; while some are being answered, others are gathered, so that many small ones
//! cost little more than one large one; what waits is bounded.

use super::Parameter;
use super::reconnecting::ReconnectingSession;
use crate::blocks::BlockRow;
use cache::StoreError;
use content::BlockKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Keys of a statement, unless one caller has more.
const KEYS_MAX: usize = 1024;
/// Statements at the same time.
const STATEMENTS: usize = 2;
/// Callers that wait. More are refused.
const CALLS_MAX: usize = 16_384;

/// Reads the block of a row.
type ReadRow = Box<dyn Fn(&Row) -> Result<BlockRow, StoreError> + Send + Sync>;

pub(super) struct Locator {
    inner: Arc<Inner>,
}

struct Inner {
    session: Arc<ReconnectingSession>,
    statement: String,
    read_row: ReadRow,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    calls: Vec<Call>,
    /// Tasks that send statements.
    running: usize,
}

struct Call {
    keys: Vec<BlockKey>,
    reply: oneshot::Sender<Result<Vec<BlockRow>, StoreError>>,
}

impl std::fmt::Debug for Locator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locator").finish_non_exhaustive()
    }
}

impl Locator {
    /// Look-ups by a statement with the keys as its parameter. Rows whose key is invalid are an error.
    pub(super) fn new(session: Arc<ReconnectingSession>, statement: String, read_row: ReadRow) -> Self {
        Self { inner: Arc::new(Inner { session, statement, read_row, waiting: Mutex::default() }) }
    }

    /// Those of the blocks that are stored.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], or [`StoreError::Busy`] if too many wait.
    pub(super) async fn locate(&self, keys: Vec<BlockKey>) -> Result<Vec<BlockRow>, StoreError> {
        let (reply, located) = oneshot::channel();
        {
            let mut waiting = self.inner.waiting();
            if waiting.calls.len() >= CALLS_MAX {
                return Err(StoreError::Busy);
            }
            waiting.calls.push(Call { keys, reply });
            if waiting.running < STATEMENTS {
                waiting.running += 1;
                tokio::spawn(Running(Arc::clone(&self.inner)).run());
            }
        }
        located.await.map_err(|_| StoreError::Closed)?
    }
}

impl Inner {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls of the next statement; none if nothing waits.
    fn next_calls(&self) -> Vec<Call> {
        let mut waiting = self.waiting();
        let mut keys = 0;
        let is_next = |call: &Call| {
            let fits = keys == 0 || keys + call.keys.len() <= KEYS_MAX;
            keys += call.keys.len();
            fits
        };
        let count = waiting.calls.iter().map(is_next).take_while(|fits| *fits).count();
        waiting.calls.drain(..count).collect()
    }

    async fn look_up(&self, keys: &[Vec<u8>]) -> Result<HashMap<BlockKey, BlockRow>, StoreError> {
        let rows = self.session.run(async |session| {
            let parameters: [Parameter<'_>; 1] = [(&keys, Type::BYTEA_ARRAY)];
            session.query_typed(&self.statement, &parameters).await
        });
        let rows = rows.await?;
        let mut located = HashMap::with_capacity(rows.len());
        for row in &rows {
            let block = (self.read_row)(row)?;
            located.insert(block.object.key, block);
        }
        Ok(located)
    }

    async fn answer(&self, mut calls: Vec<Call>) {
        // Their callers have left.
        calls.retain(|call| !call.reply.is_closed());
        let keys: Vec<Vec<u8>> = calls.iter().flat_map(|call| &call.keys).map(BlockKey::to_bytes).collect();
        let located = match keys.is_empty() {
            true => Ok(HashMap::new()),
            false => self.look_up(&keys).await,
        };
        for Call { mut keys, reply } in calls {
            keys.sort_unstable();
            keys.dedup();
            let rows = |located: &HashMap<BlockKey, BlockRow>| {
                keys.iter().filter_map(|key| located.get(key)).copied().collect()
            };
            _ = reply.send(located.as_ref().map(rows).map_err(Clone::clone));
        }
    }
}

/// A task that sends statements.
struct Running(Arc<Inner>);

impl Running {
    async fn run(self) {
        loop {
            let calls = self.0.next_calls();
            if calls.is_empty() {
                return;
            }
            self.0.answer(calls).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        waiting.running -= 1;
        // One was added after the last look, or this has panicked.
        if !waiting.calls.is_empty() && waiting.running == 0 && tokio::runtime::Handle::try_current().is_ok() {
            waiting.running += 1;
            tokio::spawn(Running(Arc::clone(&self.0)).run());
        }
    }
}
