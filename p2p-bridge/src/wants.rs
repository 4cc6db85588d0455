//! The meeting place of those who wait for blocks and the connection tasks that receive them.
//!
//! Goal: a block goes straight from the task that read and hashed it to whoever waits for it, without passing through the
//! swarm task, which only learns afterwards that it happened. A waiter can only be given a [`Block`], which cannot exist
//! without having been hashed.
//!
//! Bounded by its users: every waiter holds a permit of [`crate::session`].

use content::{Block, BlockKey, Cid, Multihash, SourceError};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Shards of the map, so that connection tasks rarely meet on a lock.
const SHARDS: usize = 16;

/// What names a session: the multihash of the DAG's root.
pub type SessionId = Multihash;

struct Waiter {
    id: u64,
    cid: Cid,
    session: SessionId,
    reply: oneshot::Sender<Result<Block, SourceError>>,
}

type Shard = HashMap<BlockKey, Vec<Waiter>>;

/// Everyone who waits for a block from the network.
pub struct Wants {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    next_id: AtomicU64,
}

impl Default for Wants {
    fn default() -> Self {
        Self { shards: Default::default(), hasher: RandomState::new(), next_id: AtomicU64::new(0) }
    }
}

impl Wants {
    fn shard(&self, key: &BlockKey) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        // No code that holds the lock can leave the map half changed.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a waiter. The id withdraws it again.
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

    /// Removes a waiter that lost interest.
    pub fn withdraw(&self, key: &BlockKey, id: u64) {
        let mut shard = self.shard(key);
        if let Some(waiters) = shard.get_mut(key) {
            waiters.retain(|waiter| waiter.id != id);
            if waiters.is_empty() {
                shard.remove(key);
            }
        }
    }

    /// Gives a block to everyone who waits for it; `false` if nobody did.
    pub fn deliver(&self, block: &Block) -> bool {
        let Some(key) = block.key() else { return false };
        let waiters = self.shard(&key).remove(&key).unwrap_or_default();
        let mut taken = false;
        for waiter in waiters {
            // The multihash is the key, so the block always has a form under the waiter's CID.
            let Some(block) = block.under(&waiter.cid) else { continue };
            taken |= waiter.reply.send(Ok(block)).is_ok();
        }
        taken
    }

    /// Tells the waiters of one session that the block will not come.
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

    /// The CIDs and sessions of everybody who still waits for a block.
    pub fn waiting(&self, key: &BlockKey) -> Vec<(Cid, SessionId)> {
        self.shard(key).get(key).into_iter().flatten().map(|waiter| (waiter.cid, waiter.session)).collect()
    }

    /// Whether anybody in a session waits for a block.
    pub fn is_waiting(&self, key: &BlockKey, session: &SessionId) -> bool {
        self.shard(key).get(key).is_some_and(|waiters| waiters.iter().any(|waiter| waiter.session == *session))
    }

    /// Lets everybody go: nothing will come any more.
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
    fn a_block_reaches_every_waiter_under_the_cid_it_asked_by() {
        let wants = Wants::default();
        let block = block(b"x");
        let key = block.key().expect("key");
        let pb = Cid::new_v1(codec::DAG_PB, *block.cid().hash());
        let (_, mut raw) = wants.register(key, *block.cid(), *pb.hash());
        let (_, mut other) = wants.register(key, pb, *pb.hash());
        assert!(wants.deliver(&block));
        assert_eq!(raw.try_recv().expect("sent"), Ok(block.clone()));
        assert_eq!(*other.try_recv().expect("sent").expect("block").cid(), pb);
        assert!(!wants.deliver(&block), "nobody waits any more");
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
