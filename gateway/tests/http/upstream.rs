//! A network that has blocks, counts requests, and holds requests back.

use content::{Block, BlockSource, Cid, MemoryBlocks, ReadAhead, SourceError};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

/// Blocks on a simulated network.
pub struct FakeNetwork {
    blocks: MemoryBlocks,
    held_back: HashSet<Cid>,
    /// Gets a permit for each request that is released.
    pub gate: Arc<Semaphore>,
    /// The errors with which the next released requests fail.
    failures: Mutex<VecDeque<SourceError>>,
    asked: AtomicU64,
    /// What was said to be requested next.
    hints: Mutex<Vec<ReadAhead>>,
    waiting: Arc<AtomicU64>,
}

impl FakeNetwork {
    /// A network with `blocks`, which holds requests for those in `held_back` back.
    pub fn new<'a>(
        blocks: impl IntoIterator<Item = &'a Block>,
        held_back: impl IntoIterator<Item = &'a Block>,
    ) -> Arc<Self> {
        Arc::new(Self {
            blocks: blocks.into_iter().cloned().collect(),
            held_back: held_back.into_iter().map(|block| *block.cid()).collect(),
            gate: Arc::new(Semaphore::new(0)),
            failures: Mutex::default(),
            asked: AtomicU64::default(),
            hints: Mutex::default(),
            waiting: Arc::default(),
        })
    }

    /// Fails the next released requests with these errors, in order.
    pub fn fail_with(&self, failures: impl IntoIterator<Item = SourceError>) {
        self.failures.lock().expect("is sound").extend(failures);
    }

    /// The number of requested blocks so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// What was said to be requested next since the last call.
    pub fn take_hints(&self) -> Vec<ReadAhead> {
        std::mem::take(&mut self.hints.lock().expect("is sound"))
    }

    /// The number of requests that are held back.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }
}

/// A request that is held back; dropping it ends it.
struct Waiting(Arc<AtomicU64>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl BlockSource for FakeNetwork {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let found = self.blocks.get(cid);
        if !self.held_back.contains(cid) {
            return found;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let (gate, waiting) = (Arc::clone(&self.gate), Waiting(Arc::clone(&self.waiting)));
        let failure = self.failures.lock().expect("is sound").pop_front();
        async move {
            if let Ok(permit) = gate.acquire().await {
                permit.forget();
            }
            drop(waiting);
            match failure {
                Some(error) => Err(error),
                None => found.await,
            }
        }
        .boxed()
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.hints.lock().expect("is sound").push(ahead.clone());
        self.get(cid)
    }

    fn has(&self, _cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(false)).boxed()
    }
}
