//! Single flight: one piece of work for one key, however many wait for what comes of it. A block is fetched so
//! ([`crate::tiers`]); the gateway walks paths and writes listings so.
//!
//! The waiting rule: whoever asks for what is under way waits for that and gets its outcome, the error as well as what was
//! wanted. The work lives for as long as anyone waits, whoever began it, and is dropped the moment that the last waiter
//! leaves. Whoever begins it may put it into a task of its own, so that a waiter who does not poll holds nobody up ([`aside`]);
//! the flight itself needs none. An outcome that says nothing about those who joined is none for them ([`Flights::land`]); but
//! nobody waits until everybody before them has been turned away ([`FLIGHTS_MAX`]).
//!
//! Non-goals: remembering outcomes. A flight that has landed is forgotten; what came of it is wherever its work put it.

use content::{Block, SourceError};
use futures::future::{BoxFuture, FutureExt as _, Shared, WeakShared};
use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use tokio_util::task::AbortOnDropHandle;

/// What the flight of a block ends with. The block or error names the CID that the flight was begun for.
pub type Outcome = Result<Block, SourceError>;

/// Work under way: a future that every waiter holds a clone of.
pub type Flight<T> = Shared<BoxFuture<'static, T>>;

/// Whose flights one who waits takes part in, if nothing comes of them: so many, and then no more, or the last of a thousand would
/// wait a thousand times as long as anybody waits for a place.
pub const FLIGHTS_MAX: usize = 2;

/// Locks are held for a look-up only; several of them keep cores from queueing for one.
const SHARDS: usize = 16;

type Shard<K, T, S> = Mutex<HashMap<K, Entry<T, S>>>;

struct Entry<T, S> {
    /// Tells this flight from a later one of the same key.
    id: u64,
    flight: WeakShared<BoxFuture<'static, T>>,
    sight: S,
}

/// The flights that are under way: by their keys, each to end with a `T`. `S` is what those who wait can see of a flight
/// before it lands. Clones share them.
pub struct Flights<K: Eq + Hash, T, S = ()> {
    inner: Arc<Inner<K, T, S>>,
}

struct Inner<K, T, S> {
    shards: [Shard<K, T, S>; SHARDS],
    hasher: RandomState,
    next_id: AtomicU64,
}

impl<K: Eq + Hash, T, S> Clone for Flights<K, T, S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: Eq + Hash, T, S> Default for Flights<K, T, S> {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| Shard::default());
        Self { inner: Arc::new(Inner { shards, hasher: RandomState::new(), next_id: AtomicU64::new(0) }) }
    }
}

impl<K: Eq + Hash, T, S> std::fmt::Debug for Flights<K, T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flights").field("under_way", &self.under_way()).finish()
    }
}

impl<K: Eq + Hash, T, S> Flights<K, T, S> {
    /// How many flights are under way.
    pub fn under_way(&self) -> usize {
        self.inner.shards.iter().map(|shard| lock(shard).len()).sum()
    }
}

impl<K, T, S> Flights<K, T, S>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
    S: Clone + Send + Sync + 'static,
{
    /// The flight of a key, what can be seen of it, and whether it was under way already. If it was not, `begin` makes the
    /// work and what is seen of it; it runs under a lock and must only build the two. Nothing happens until the flight is
    /// polled.
    pub fn join_in_sight<F>(&self, key: K, begin: impl FnOnce() -> (F, S)) -> (Flight<T>, S, bool)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut shard = self.inner.shard(&key);
        if let Some(entry) = shard.get(&key)
            && let Some(flight) = entry.flight.upgrade()
        {
            return (flight, entry.sight.clone(), true);
        }
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        let landing = Landing { inner: Arc::clone(&self.inner), key: key.clone(), id };
        let (work, sight) = begin();
        let flight = async move {
            let _landing = landing;
            work.await
        };
        let flight = flight.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            shard.insert(key, Entry { id, flight: weak, sight: sight.clone() });
        }
        (flight, sight, false)
    }
}

impl<K, T> Flights<K, T>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// The flight of a key, and whether it was under way already: [`Flights::join_in_sight`] where there is nothing to see.
    pub fn join<F>(&self, key: K, begin: impl FnOnce() -> F) -> (Flight<T>, bool)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (flight, (), joined) = self.join_in_sight(key, || (begin(), ()));
        (flight, joined)
    }

    /// Waits for a flight that was joined. Whoever joined somebody else's, of whose outcome `again` says that it is of no use
    /// to others, joins or begins the next one: so one of them begins anew, and the rest wait for that one. After
    /// [`FLIGHTS_MAX`] of these everybody does the work alone. Returns the outcome, and whether it is of a flight that somebody
    /// else began.
    pub async fn land<F>(
        &self,
        key: K,
        (mut flight, mut joined): (Flight<T>, bool),
        begin: impl Fn() -> F,
        again: impl Fn(&T) -> bool,
    ) -> (T, bool)
    where
        F: Future<Output = T> + Send + 'static,
    {
        for _ in 1..FLIGHTS_MAX {
            let outcome = flight.await;
            if !joined || !again(&outcome) {
                return (outcome, joined);
            }
            (flight, joined) = self.join(key.clone(), &begin);
        }
        let outcome = flight.await;
        if joined && again(&outcome) { (begin().await, false) } else { (outcome, joined) }
    }
}

impl<K: Eq + Hash, T, S> Inner<K, T, S> {
    fn shard(&self, key: &K) -> MutexGuard<'_, HashMap<K, Entry<T, S>>> {
        let slot = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        lock(&self.shards[slot])
    }
}

/// A panic while a lock is held leaves a map that is still whole: every change is one call.
fn lock<K, T, S>(shard: &Shard<K, T, S>) -> MutexGuard<'_, HashMap<K, Entry<T, S>>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Strikes a flight off when its future is done or dropped. Between the last waiter's leaving and this, somebody may have
/// begun a newer flight of the same key: that one stays.
struct Landing<K: Eq + Hash, T, S> {
    inner: Arc<Inner<K, T, S>>,
    key: K,
    id: u64,
}

impl<K: Eq + Hash, T, S> Drop for Landing<K, T, S> {
    fn drop(&mut self) {
        let mut shard = self.inner.shard(&self.key);
        if shard.get(&self.key).is_some_and(|entry| entry.id == self.id) {
            shard.remove(&self.key);
        }
    }
}

/// Work that goes on in a task of its own as soon as it has to wait, and ends with whoever waits for it: its waiters are woken
/// once, at its end, and one who does not poll holds nobody up. `None` if it panicked, whenever it did, or the runtime is
/// stopping: a flight whose work panics where it is polled would have all panic who wait for it.
pub async fn aside<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    // Nothing of it is looked at afterwards.
    let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
    if let Poll::Ready(done) = futures::poll!(work.as_mut()) {
        return done.ok();
    }
    AbortOnDropHandle::new(tokio::spawn(work)).await.ok()?.ok()
}
