//! Single flight: one fetch for one block, however many wait for it.
//!
//! The waiting rule: whoever asks for a block that is being fetched waits for that fetch and gets its outcome, the error
//! as well as the block. The fetch lives for as long as anyone waits, whoever began it, and is dropped the moment that
//! the last waiter leaves. What begins it may put the work into a task of its own ([`crate::tiers`] does), so that a waiter
//! who does not poll holds nobody up; the flight itself needs none.
//!
//! Non-goals: remembering outcomes. A flight that has landed is forgotten; what came of it is in the tiers.

use content::{Block, BlockKey, SourceError};
use futures::future::{BoxFuture, FutureExt as _, Shared, WeakShared};
use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a flight ends with. The block or error names the CID that the flight was begun for.
pub type Outcome = Result<Block, SourceError>;

/// A fetch under way: a future that every waiter holds a clone of.
pub type Flight = Shared<BoxFuture<'static, Outcome>>;

/// Locks are held for a look-up only; several of them keep cores from queueing for one.
const SHARDS: usize = 16;

type Shard = Mutex<HashMap<BlockKey, Entry>>;

struct Entry {
    /// Tells this flight from a later one of the same block.
    id: u64,
    flight: WeakShared<BoxFuture<'static, Outcome>>,
}

/// The fetches that are under way. Clones share them.
#[derive(Clone)]
pub struct Flights {
    inner: Arc<Inner>,
}

struct Inner {
    shards: [Shard; SHARDS],
    hasher: RandomState,
    next_id: AtomicU64,
}

impl Default for Flights {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| Shard::default());
        Self { inner: Arc::new(Inner { shards, hasher: RandomState::new(), next_id: AtomicU64::new(0) }) }
    }
}

impl std::fmt::Debug for Flights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flights").field("under_way", &self.under_way()).finish()
    }
}

impl Flights {
    /// The flight of a block, and whether it was under way already. If it was not, `begin` makes the future that fetches
    /// the block; it runs under a lock and must only build the future. Nothing happens until the flight is polled.
    pub fn join<F>(&self, key: BlockKey, begin: impl FnOnce() -> F) -> (Flight, bool)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut shard = self.inner.shard(&key);
        if let Some(flight) = shard.get(&key).and_then(|entry| entry.flight.upgrade()) {
            return (flight, true);
        }
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        let landing = Landing { inner: Arc::clone(&self.inner), key, id };
        let fetch = begin();
        let flight = async move {
            let _landing = landing;
            fetch.await
        };
        let flight = flight.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            shard.insert(key, Entry { id, flight: weak });
        }
        (flight, false)
    }

    /// How many blocks are being fetched.
    pub fn under_way(&self) -> usize {
        self.inner.shards.iter().map(|shard| lock(shard).len()).sum()
    }
}

impl Inner {
    fn shard(&self, key: &BlockKey) -> MutexGuard<'_, HashMap<BlockKey, Entry>> {
        let slot = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        lock(&self.shards[slot])
    }
}

/// A panic while a lock is held leaves a map that is still whole: every change is one call.
fn lock(shard: &Shard) -> MutexGuard<'_, HashMap<BlockKey, Entry>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Strikes a flight off when its future is done or dropped. Between the last waiter's leaving and this, somebody may have
/// begun a newer flight of the same block: that one stays.
struct Landing {
    inner: Arc<Inner>,
    key: BlockKey,
    id: u64,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut shard = self.inner.shard(&self.key);
        if shard.get(&self.key).is_some_and(|entry| entry.id == self.id) {
            shard.remove(&self.key);
        }
    }
}
