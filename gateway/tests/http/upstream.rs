//! A network that has blocks, counts what it is asked for, and keeps whoever asks waiting if it is told to.

use content::{Block, BlockSource, Cid, MemoryBlocks, SourceError};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

/// Blocks that somebody far away has.
pub struct Shelf {
    blocks: MemoryBlocks,
    held_back: HashSet<Cid>,
    /// Gets a permit for each block that is to be let go after all.
    pub gate: Arc<Semaphore>,
    /// What the next ones that are let go hear in the place of a block.
    failures: Mutex<VecDeque<SourceError>>,
    asked: AtomicU64,
    waiting: Arc<AtomicU64>,
}

impl Shelf {
    /// One that has `blocks`, and keeps those waiting who ask for one of `held_back`.
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
            waiting: Arc::default(),
        })
    }

    /// Has those who ask next for what is held back hear this once they are let go, one after the other.
    pub fn fail_with(&self, failures: impl IntoIterator<Item = SourceError>) {
        self.failures.lock().expect("is sound").extend(failures);
    }

    /// How many blocks were asked for until now.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// How many blocks are being waited for.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }
}

/// Somebody who waits, until it is dropped.
struct Waiting(Arc<AtomicU64>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl BlockSource for Shelf {
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

    fn has(&self, _cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(false)).boxed()
    }
}
