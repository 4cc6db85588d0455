//! The registry of waiters for blocks, which connection tasks deliver to.
//!
//! Goal: the task that read and verified a block delivers it directly to the waiters, without passing through the swarm
//! task, which is notified afterwards. Waiters only receive a [`Block`], which cannot be constructed without
//! verification.
//!
//! Bounded by its users: each waiter holds a permit of [`crate::session`].

use crate::observers::{BlockTransport, HasObservers, Observers, SessionEvent};
use content::{Block, BlockKey, Cid, Multihash, SourceError};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Shards of the map, which reduce lock contention between connection tasks.
const SHARDS: usize = 16;

/// The ID of a session: the multihash of the DAG's root.
pub type SessionId = Multihash;

struct Waiter {
    id: u64,
    cid: Cid,
    session: SessionId,
    reply: oneshot::Sender<Result<Block, SourceError>>,
}

type Shard = HashMap<BlockKey, Vec<Waiter>>;

/// The waiters for blocks from the network.
pub struct Wants {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    next_id: AtomicU64,
    /// The observers of the waiters' sessions.
    observers: Observers,
}

impl HasObservers for Wants {
    fn observers(&self) -> &Observers {
        &self.observers
    }
}

impl Default for Wants {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            hasher: RandomState::new(),
            next_id: AtomicU64::new(0),
            observers: Observers::default(),
        }
    }
}

impl Wants {
    fn shard(&self, key: &BlockKey) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        // No code that holds the lock can leave the map half changed.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a waiter. Its ID is for [`Wants::withdraw`].
    pub fn register(
        &self,
        key: BlockKey,
        cid: Cid,
        session: SessionId,
    ) -> (u64, oneshot::Receiver<Result<Block, SourceError>>) {
        let (reply, receiver) = oneshot::channel();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.shard(&key).entry(key).or_default().push(Waiter { id, cid, session, reply });
        (id, receiver)
    }

    /// Removes a waiter that was cancelled.
    pub fn withdraw(&self, key: &BlockKey, id: u64) {
        let mut shard = self.shard(key);
        if let Some(waiters) = shard.get_mut(key) {
            waiters.retain(|waiter| waiter.id != id);
            if waiters.is_empty() {
                shard.remove(key);
            }
        }
    }

    /// Delivers a block to all its waiters; returns whether any received it.
    pub fn deliver(&self, block: &Block, over: BlockTransport) -> bool {
        let Some(key) = block.key() else { return false };
        let waiters = self.shard(&key).remove(&key).unwrap_or_default();
        self.tell_received(&waiters, SessionEvent::Received(over, block.data().len()));
        let mut taken = false;
        for waiter in waiters {
            // The multihash is the key, so the block always has a form under the waiter's CID.
            let Some(block) = block.under(&waiter.cid) else { continue };
            taken |= waiter.reply.send(Ok(block)).is_ok();
        }
        taken
    }

    /// Tells the observers of each waiting session of a block, before the waiters continue.
    fn tell_received(&self, waiters: &[Waiter], event: SessionEvent) {
        if self.observers.is_empty() {
            return;
        }
        for (at, waiter) in waiters.iter().enumerate() {
            if !waiters[..at].iter().any(|earlier| earlier.session == waiter.session) {
                self.observers.tell(&waiter.session, event);
            }
        }
    }

    /// Fails the waiters of one session.
    pub fn fail(&self, key: &BlockKey, session: &SessionId, error: &SourceError) {
        let mut shard = self.shard(key);
        let Some(waiters) = shard.remove(key) else { return };
        let (failed, rest): (Vec<_>, Vec<_>) = waiters.into_iter().partition(|waiter| waiter.session == *session);
        if !rest.is_empty() {
            shard.insert(*key, rest);
        }
        drop(shard);
        for waiter in failed {
            let _ = waiter.reply.send(Err(error.clone()));
        }
    }

    /// The CIDs and sessions of the waiters for a block.
    pub fn waiting(&self, key: &BlockKey) -> Vec<(Cid, SessionId)> {
        self.shard(key).get(key).into_iter().flatten().map(|waiter| (waiter.cid, waiter.session)).collect()
    }

    /// Whether any session waits for a block.
    pub fn is_awaited(&self, key: &BlockKey) -> bool {
        self.shard(key).contains_key(key)
    }

    /// Whether a session waits for a block.
    pub fn is_waiting(&self, key: &BlockKey, session: &SessionId) -> bool {
        self.shard(key).get(key).is_some_and(|waiters| waiters.iter().any(|waiter| waiter.session == *session))
    }

    /// Removes all waiters, which then fail as closed.
    pub fn close(&self) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use content::{codec, hashes};

    fn block(data: &'static [u8]) -> Block {
        Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from_static(data)).expect("block")
    }

    #[test]
    fn a_block_is_delivered_to_each_waiter_under_its_cid() {
        let wants = Wants::default();
        let block = block(b"x");
        let key = block.key().expect("key");
        let pb = Cid::new_v1(codec::DAG_PB, *block.cid().hash());
        let (_, mut raw) = wants.register(key, *block.cid(), *pb.hash());
        let (_, mut other) = wants.register(key, pb, *pb.hash());
        assert!(wants.deliver(&block, BlockTransport::Bitswap));
        assert_eq!(raw.try_recv().expect("sent"), Ok(block.clone()));
        assert_eq!(*other.try_recv().expect("sent").expect("block").cid(), pb);
        assert!(!wants.deliver(&block, BlockTransport::Bitswap), "there are no waiters left");
    }

    #[test]
    fn failing_one_session_leaves_the_other_waiting() {
        let wants = Wants::default();
        let (a, b) = (block(b"a"), block(b"b"));
        let key = a.key().expect("key");
        let (_, mut first) = wants.register(key, *a.cid(), *a.cid().hash());
        let (second_id, mut second) = wants.register(key, *a.cid(), *b.cid().hash());
        wants.fail(&key, a.cid().hash(), &SourceError::Closed);
        assert_eq!(first.try_recv().expect("sent"), Err(SourceError::Closed));
        assert!(second.try_recv().is_err());
        assert_eq!(wants.waiting(&key), vec![(*a.cid(), *b.cid().hash())]);
        wants.withdraw(&key, second_id);
        assert!(!wants.is_waiting(&key, b.cid().hash()));
    }
}
