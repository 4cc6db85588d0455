//! Singleflight: concurrent calls with the same key share one execution and its result. Block fetches use it
//! ([`crate::tiers`]), and so do the gateway's path resolution and directory listings.
//!
//! The waiting rule: the first caller of a key, the leader, supplies the work; later callers, the followers, wait for
//! the same result, success or error. The work runs as long as at least one caller waits, and is dropped when the last
//! one leaves. The leader may run it in a task of its own, so that a caller that does not poll delays no other
//! ([`aside`]); singleflight itself needs no task. Followers do not accept a leader-only error and retry
//! ([`Singleflight::land`]), at most [`LEADER_ONLY_ERRORS_MAX`] times.
//!
//! Non-goals: caching results. A completed call is removed; the work itself stores what it found.

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

/// The result of fetching a block. The block or error names the leader's CID.
pub type FetchResult = Result<Block, SourceError>;

/// A call in flight: a future of which every caller has a clone.
pub type SharedCall<T> = Shared<BoxFuture<'static, T>>;

/// The most calls that a caller waits for if they end with leader-only errors. Without this limit, the last of a
/// thousand followers would wait a thousand times as long as the first.
pub const LEADER_ONLY_ERRORS_MAX: usize = 2;

/// Each lock is held for one look-up; shards reduce contention between cores.
const SHARDS: usize = 16;

type Shard<K, T, S> = Mutex<HashMap<K, InFlight<T, S>>>;

struct InFlight<T, S> {
    /// Distinguishes this call from a later one with the same key.
    id: u64,
    future: WeakShared<BoxFuture<'static, T>>,
    state: S,
}

/// The calls in flight, by key, each with a result of type `T`. `S` is state that callers can observe before the
/// result. Clones share the calls.
pub struct Singleflight<K: Eq + Hash, T, S = ()> {
    inner: Arc<Inner<K, T, S>>,
}

struct Inner<K, T, S> {
    shards: [Shard<K, T, S>; SHARDS],
    hasher: RandomState,
    next_id: AtomicU64,
}

impl<K: Eq + Hash, T, S> Clone for Singleflight<K, T, S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: Eq + Hash, T, S> Default for Singleflight<K, T, S> {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| Shard::default());
        Self { inner: Arc::new(Inner { shards, hasher: RandomState::new(), next_id: AtomicU64::new(0) }) }
    }
}

impl<K: Eq + Hash, T, S> std::fmt::Debug for Singleflight<K, T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flights").field("under_way", &self.under_way()).finish()
    }
}

impl<K: Eq + Hash, T, S> Singleflight<K, T, S> {
    /// The number of calls in flight.
    pub fn under_way(&self) -> usize {
        self.inner.shards.iter().map(|shard| lock(shard).len()).sum()
    }
}

impl<K, T, S> Singleflight<K, T, S>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
    S: Clone + Send + Sync + 'static,
{
    /// Joins the call in flight for a key, or starts one with the future and the state that `begin` returns. Returns
    /// the call, its state, and whether the caller is a follower. `begin` runs under a lock and must only construct the
    /// two. The work starts when the call is first polled.
    pub fn join_observed<F>(&self, key: K, begin: impl FnOnce() -> (F, S)) -> (SharedCall<T>, S, bool)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut shard = self.inner.shard(&key);
        if let Some(entry) = shard.get(&key)
            && let Some(flight) = entry.future.upgrade()
        {
            return (flight, entry.state.clone(), true);
        }
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        let removal = RemoveOnDrop { inner: Arc::clone(&self.inner), key: key.clone(), id };
        let (work, state) = begin();
        let flight = async move {
            let _removal = removal;
            work.await
        };
        let flight = flight.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            shard.insert(key, InFlight { id, future: weak, state: state.clone() });
        }
        (flight, state, false)
    }
}

impl<K, T> Singleflight<K, T>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// [`Singleflight::join_observed`] without state: the call of a key, and whether the caller is a follower.
    pub fn join<F>(&self, key: K, begin: impl FnOnce() -> F) -> (SharedCall<T>, bool)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (flight, (), is_follower) = self.join_observed(key, || (begin(), ()));
        (flight, is_follower)
    }

    /// Waits for the result of a joined call. If the caller is a follower and `is_leader_only` says that the result
    /// does not apply to followers, it joins or starts another call; so one follower becomes the leader and the rest
    /// wait for it. After [`LEADER_ONLY_ERRORS_MAX`] such results the caller runs the work alone. Returns the result, and whether
    /// it is another caller's.
    pub async fn land<F>(
        &self,
        key: K,
        (mut flight, mut is_follower): (SharedCall<T>, bool),
        begin: impl Fn() -> F,
        is_leader_only: impl Fn(&T) -> bool,
    ) -> (T, bool)
    where
        F: Future<Output = T> + Send + 'static,
    {
        for _ in 1..LEADER_ONLY_ERRORS_MAX {
            let outcome = flight.await;
            if !is_follower || !is_leader_only(&outcome) {
                return (outcome, is_follower);
            }
            (flight, is_follower) = self.join(key.clone(), &begin);
        }
        let outcome = flight.await;
        if is_follower && is_leader_only(&outcome) { (begin().await, false) } else { (outcome, is_follower) }
    }
}

impl<K: Eq + Hash, T, S> Inner<K, T, S> {
    fn shard(&self, key: &K) -> MutexGuard<'_, HashMap<K, InFlight<T, S>>> {
        let slot = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        lock(&self.shards[slot])
    }
}

/// Every change of the map is one call, so that it stays consistent if a thread panics while it holds the lock.
fn lock<K, T, S>(shard: &Shard<K, T, S>) -> MutexGuard<'_, HashMap<K, InFlight<T, S>>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a call when its future completes or is dropped, unless a newer call with the same key has replaced it after
/// the last caller left.
struct RemoveOnDrop<K: Eq + Hash, T, S> {
    inner: Arc<Inner<K, T, S>>,
    key: K,
    id: u64,
}

impl<K: Eq + Hash, T, S> Drop for RemoveOnDrop<K, T, S> {
    fn drop(&mut self) {
        let mut shard = self.inner.shard(&self.key);
        if shard.get(&self.key).is_some_and(|entry| entry.id == self.id) {
            shard.remove(&self.key);
        }
    }
}

/// Runs work in a task of its own as soon as it has to wait, and aborts it when the returned future is dropped. Callers
/// are woken once, at its end, and a caller that does not poll delays no other. `None` if the work panicked or the
/// runtime is shutting down; a panic in a polled future would panic in every caller.
pub async fn aside<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    // Unwind safety: nothing of the work is used after a panic.
    let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
    if let Poll::Ready(done) = futures::poll!(work.as_mut()) {
        return done.ok();
    }
    AbortOnDropHandle::new(tokio::spawn(work)).await.ok()?.ok()
}
