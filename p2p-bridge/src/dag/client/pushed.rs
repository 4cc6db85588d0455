//! [`Pushed`]: blocks that a transfer has brought before a reader requested them, and the readers that there are.
//!
//! Goals: a reader that requests such a block gets it without asking a peer; a node without transfers pays one load for
//! each request. Bounded by the windows of the transfers, whose memory is reserved from the network's budget before a
//! block is unpacked.
//!
//! A block leaves when a reader takes it, when its transfer needs the room, or when the transfer is dropped because the
//! session has no readers.

use super::active::{ActiveTransfer, Place};
use crate::observers::BlockTransport;
use crate::wants::SessionId;
use content::{Block, BlockKey, Cid};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::OwnedSemaphorePermit;

/// A block that is buffered.
struct PushedBlock {
    block: Block,
    transfer: Weak<ActiveTransfer>,
    /// What it takes of the transfer's budget.
    budget_bytes: u64,
    /// Its place among the blocks of the transfer without children, if it is one.
    place: Option<Place>,
    _memory: Vec<OwnedSemaphorePermit>,
}

impl PushedBlock {
    fn is_of(&self, transfer: &ActiveTransfer) -> bool {
        std::ptr::eq(self.transfer.as_ptr(), transfer)
    }

    fn release(self) -> Block {
        if let Some(transfer) = self.transfer.upgrade() {
            transfer.release(self.budget_bytes);
        }
        self.block
    }
}

/// The buffered blocks of all transfers. Two transfers that bring the same block share the first copy.
#[derive(Default)]
pub struct Pushed {
    count: AtomicUsize,
    blocks: Mutex<HashMap<BlockKey, PushedBlock>>,
}

impl Pushed {
    fn blocks(&self) -> MutexGuard<'_, HashMap<BlockKey, PushedBlock>> {
        // No code that holds the lock can leave the map half changed.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Buffers a block; `false` if it is buffered already.
    pub fn insert(
        &self,
        key: BlockKey,
        block: Block,
        transfer: Weak<ActiveTransfer>,
        (budget_bytes, place): (u64, Option<Place>),
        memory: Vec<OwnedSemaphorePermit>,
    ) -> bool {
        let mut blocks = self.blocks();
        if blocks.contains_key(&key) {
            return false;
        }
        blocks.insert(key, PushedBlock { block, transfer, budget_bytes, place, _memory: memory });
        self.count.store(blocks.len(), Ordering::Release);
        true
    }

    /// Takes a block for a reader, under the CID that it requested.
    pub fn take(&self, cid: &Cid) -> Option<Block> {
        self.take_with_transport(cid).map(|(block, _)| block)
    }

    /// The same, with how it was transferred.
    pub fn take_with_transport(&self, cid: &Cid) -> Option<(Block, BlockTransport)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let pushed = self.remove_if(&BlockKey::of(cid)?, |_| true)?;
        let transfer = pushed.transfer.upgrade();
        let over = transfer.as_ref().map_or(BlockTransport::Dag, |transfer| transfer.over());
        if let Some(transfer) = transfer {
            transfer.release(pushed.budget_bytes);
            pushed.place.into_iter().for_each(|place| transfer.read_up_to(place));
        }
        Some((pushed.block.under(cid)?, over))
    }

    /// Removes a block, whose bytes are released.
    pub fn remove(&self, key: &BlockKey) -> Option<Block> {
        self.remove_if(key, |_| true).map(PushedBlock::release)
    }

    /// The same if this transfer has buffered it. Another one may have done so after the first copy was taken.
    pub fn remove_of(&self, key: &BlockKey, transfer: &ActiveTransfer) -> Option<Block> {
        self.remove_if(key, |pushed| pushed.is_of(transfer)).map(PushedBlock::release)
    }

    fn remove_if(&self, key: &BlockKey, is_such: impl FnOnce(&PushedBlock) -> bool) -> Option<PushedBlock> {
        let mut blocks = self.blocks();
        if !blocks.get(key).is_some_and(is_such) {
            return None;
        }
        let pushed = blocks.remove(key);
        self.count.store(blocks.len(), Ordering::Release);
        pushed
    }

    /// Whether this transfer has buffered a block.
    pub fn holds_of(&self, key: &BlockKey, transfer: &ActiveTransfer) -> bool {
        !self.is_empty() && self.blocks().get(key).is_some_and(|pushed| pushed.is_of(transfer))
    }

    /// The number of buffered blocks.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether no block is buffered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How many readers each session has.
#[derive(Default)]
pub struct Readers(Mutex<HashMap<SessionId, usize>>);

impl Readers {
    fn counts(&self) -> MutexGuard<'_, HashMap<SessionId, usize>> {
        // No code that holds the lock can leave the map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a session has readers.
    pub fn has(&self, session: &SessionId) -> bool {
        self.counts().contains_key(session)
    }
}

/// A reader of a session, until this is dropped.
pub struct Reader {
    readers: Arc<Readers>,
    session: SessionId,
}

impl Reader {
    /// Counts a reader.
    pub fn of(readers: &Arc<Readers>, session: SessionId) -> Self {
        *readers.counts().entry(session).or_default() += 1;
        Self { readers: Arc::clone(readers), session }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut counts = self.readers.counts();
        if let Some(count) = counts.get_mut(&self.session) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use content::{codec, hashes};

    #[test]
    fn a_block_is_taken_once_under_the_requested_cid() {
        let pushed = Pushed::default();
        let block = Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from_static(b"x")).expect("a block");
        let key = block.key().expect("a key");
        assert_eq!(pushed.take(block.cid()), None);
        assert!(pushed.insert(key, block.clone(), Weak::new(), (1, None), Vec::new()));
        assert!(!pushed.insert(key, block.clone(), Weak::new(), (1, None), Vec::new()));
        let cid = Cid::new_v1(codec::DAG_PB, *block.cid().hash());
        assert_eq!(pushed.take(&cid).map(|block| *block.cid()), Some(cid));
        assert!(pushed.is_empty() && pushed.take(&cid).is_none());
    }

    #[test]
    fn readers_are_counted_by_session() {
        let readers = Arc::<Readers>::default();
        let session = *Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::new()).expect("a block").cid().hash();
        let (one, other) = (Reader::of(&readers, session), Reader::of(&readers, session));
        drop(one);
        assert!(readers.has(&session));
        drop(other);
        assert!(!readers.has(&session));
    }
}
