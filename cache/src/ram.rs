//! [`Ram`]: the RAM cache of blocks.
//!
//! Goals: a hit without waiting, I/O or allocation; a budget in bytes that holds at every moment, not on average.
//!
//! The eviction policy is configurable ([`RamPolicy`]); the policies were measured on the same traces
//! (`causeway-load-tests policies`).
//!
//! Non-goals: interpreting blocks.

use bytes::Bytes;
use content::{Block, BlockKey, BlockSource, Cid, SourceError};
use futures::future::{BoxFuture, FutureExt as _, ready};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The overhead of an entry, in bytes. A [`BlockKey`] is 144 bytes (room for a 128-byte digest) and is stored once; the
/// `Bytes` handle and its shared header take 56, moka's entry, its node in the access queue and its slot in the hash
/// table about 250. Without it, a budget of 1 GiB filled with 40-byte blocks would take ten times that.
pub const ENTRY_OVERHEAD_BYTES: u32 = 512;

/// Smaller blocks are copied on admission. The size of the buffer that a `Bytes` keeps alive is unknown, and a small
/// block is usually a slice of a network message of up to 4 MiB: a hundredfold of what the budget would count. Copying
/// 64 KiB takes a few microseconds, once. From here on up, network code hands over one buffer per block, so that a copy
/// would double the traffic on memory for nothing.
pub const COPY_BELOW_BYTES: usize = 64 * 1024;

/// moka evicts in its maintenance, every 512 writes or so: with blocks of 2 MiB that is 1 GiB over budget. So
/// maintenance is also run after this many bytes.
const MAINTENANCE_AFTER_BYTES: u64 = 8 * 1024 * 1024;

/// The eviction policy of the RAM cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RamPolicy {
    /// Least recently used blocks are evicted. One-time reads can evict frequently read blocks.
    Lru,
    /// A block is admitted only if its recent request frequency exceeds that of the least recently used blocks that it
    /// would evict, together (TinyLFU, Einziger et al. 2017). One-time reads are not admitted.
    #[default]
    TinyLfu,
}

impl From<RamPolicy> for EvictionPolicy {
    fn from(policy: RamPolicy) -> Self {
        match policy {
            RamPolicy::Lru => Self::lru(),
            RamPolicy::TinyLfu => Self::tiny_lfu(),
        }
    }
}

/// A cache of blocks in memory. Clones share it.
#[derive(Clone)]
pub struct Ram {
    cache: Cache<BlockKey, Bytes>,
    budget_bytes: u64,
    bytes_since_maintenance: Arc<AtomicU64>,
}

impl std::fmt::Debug for Ram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ram").field("budget_bytes", &self.budget_bytes).finish_non_exhaustive()
    }
}

impl Ram {
    /// An empty cache of the default policy: see [`Ram::with_policy`].
    pub fn new(budget_bytes: u64) -> Self {
        Self::with_policy(budget_bytes, RamPolicy::default())
    }

    /// An empty cache of at most `budget_bytes`, counting data and [`ENTRY_OVERHEAD_BYTES`] for each block, and
    /// for moments up to 8 MiB (or 1/16 of the budget, if that is less) more. A budget of 0 disables the tier.
    pub fn with_policy(budget_bytes: u64, policy: RamPolicy) -> Self {
        let cache = Cache::builder()
            .name("blocks")
            .max_capacity(budget_bytes)
            .weigher(|_: &BlockKey, data: &Bytes| weight(data))
            .eviction_policy(policy.into())
            .build();
        Self { cache, budget_bytes, bytes_since_maintenance: Arc::default() }
    }

    /// The bytes of a block. Counts as use.
    pub fn find(&self, key: &BlockKey) -> Option<Bytes> {
        self.cache.get(key)
    }

    /// The same after an earlier miss: only a hit counts as use.
    pub(crate) fn find_again(&self, key: &BlockKey) -> Option<Bytes> {
        if self.holds(key) { self.find(key) } else { None }
    }

    /// Whether the block is in the cache. Does not count as use.
    pub fn holds(&self, key: &BlockKey) -> bool {
        self.cache.contains_key(key)
    }

    /// Inserts a block, unless it is larger than the whole budget.
    ///
    /// Data under [`COPY_BELOW_BYTES`] is copied. Larger data is kept as it is: pass a buffer that contains only this
    /// block, never a slice of a larger message.
    pub fn insert(&self, key: BlockKey, data: &Bytes) {
        let weight = u64::from(weight(data));
        if weight > self.budget_bytes {
            return;
        }
        let owned = if data.len() < COPY_BELOW_BYTES { Bytes::copy_from_slice(data) } else { data.clone() };
        self.cache.insert(key, owned);
        self.maintain_after(weight);
    }

    /// Invalidates a block.
    pub fn remove(&self, key: &BlockKey) {
        self.cache.invalidate(key);
    }

    /// The maximum of [`Ram::bytes`].
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes in the cache, with the overhead of each entry; exact after [`Ram::tidy`].
    pub fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    /// Blocks in the cache; exact after [`Ram::tidy`].
    pub fn entries(&self) -> u64 {
        self.cache.entry_count()
    }

    /// Runs moka's pending maintenance: evictions and counts.
    pub fn tidy(&self) {
        self.cache.run_pending_tasks();
    }

    fn maintain_after(&self, bytes: u64) {
        let limit = MAINTENANCE_AFTER_BYTES.min(self.budget_bytes / 16);
        if self.bytes_since_maintenance.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) >= limit {
            self.bytes_since_maintenance.store(0, Ordering::Relaxed);
            self.tidy();
        }
    }
}

fn weight(data: &Bytes) -> u32 {
    u32::try_from(data.len()).unwrap_or(u32::MAX).saturating_add(ENTRY_OVERHEAD_BYTES)
}

impl BlockSource for Ram {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        match BlockKey::of(cid) {
            None => Block::inline(cid),
            Some(key) => Some(Block::from_verified(*cid, self.find(&key)?)),
        }
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        ready(self.peek(cid).ok_or(SourceError::NotFound { cid: *cid })).boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(BlockKey::of(cid).is_none_or(|key| self.holds(&key)))).boxed()
    }
}
