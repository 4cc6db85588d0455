//! [`PageBudget`]: the bytes that may be fetched for the subresources of one page, and [`CountedSource`]: blocks that
//! count against them.
//!
//! Goals: all blocks count, those of directories and inner nodes as well as those with bytes of files. A block whose
//! size is unknown counts as [`RESERVED_BYTES`] while it is being fetched, so that the blocks in flight are bounded
//! too; once it has arrived it counts as what it is. A block that several paths need counts once.
//!
//! The network is not told what will be read next: what it sends ahead would not count until it is read. So a file of
//! one block costs one round trip for each directory on its way that is not stored yet and one for itself, and one of
//! several blocks another one, in which its blocks are requested together.
//!
//! The budget is above the tiers, and so above singleflight: no other request waits for it, or gets its error.

use content::{Block, BlockSource, Cid, ReadAhead, SourceError, Work};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// What a block counts while it is being fetched, in bytes: more than most blocks of files have.
pub const RESERVED_BYTES: u64 = 512 * 1024;
/// The unit in which is counted, in bytes. Each block counts for one at least.
const UNIT_BYTES: u64 = 1024;
const RESERVED_UNITS: u32 = (RESERVED_BYTES / UNIT_BYTES) as u32;

/// A number of bytes of blocks.
#[derive(Debug)]
pub struct PageBudget {
    units: Arc<Semaphore>,
    units_max: u64,
    spent_units: AtomicU64,
    bytes: AtomicU64,
    /// The hashes of the blocks that count. Each takes a unit at least, so there are not many.
    counted: Mutex<HashSet<u64>>,
    hasher: RandomState,
    /// Cancelled when more than the budget was spent.
    exceeded: CancellationToken,
}

impl PageBudget {
    /// A budget of so many bytes.
    pub fn new(bytes_max: u64) -> Self {
        let units_max = bytes_max / UNIT_BYTES;
        let units = Arc::new(Semaphore::new(usize::try_from(units_max).unwrap_or(Semaphore::MAX_PERMITS)));
        let exceeded = CancellationToken::new();
        Self {
            units,
            units_max,
            spent_units: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            counted: Mutex::default(),
            hasher: RandomState::new(),
            exceeded,
        }
    }

    /// Waits while the blocks that are being fetched may need what is left.
    ///
    /// # Errors
    /// [`SourceError::Busy`] when too little is left for another block.
    async fn reserve(&self) -> Result<OwnedSemaphorePermit, SourceError> {
        let reserved = Arc::clone(&self.units).acquire_many_owned(RESERVED_UNITS).await;
        reserved.map_err(|_| SourceError::Busy { retry_after: Duration::ZERO })
    }

    /// Spends what a block has taken, unless it counts already; the rest of what was reserved for it is released.
    fn spend(&self, reserved: OwnedSemaphorePermit, block: &Block) {
        let hash = self.hasher.hash_one(block.cid().hash());
        if self.counted.lock().unwrap_or_else(PoisonError::into_inner).insert(hash) {
            self.spend_bytes(reserved, block.data().len());
        }
    }

    fn spend_bytes(&self, mut reserved: OwnedSemaphorePermit, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let units = (bytes as u64).div_ceil(UNIT_BYTES).max(1);
        let spent = self.spent_units.fetch_add(units, Ordering::AcqRel) + units;
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        let within = units.min(RESERVED_UNITS as usize);
        if let Some(used) = reserved.split(within) {
            used.forget();
        }
        self.units.forget_permits(units - within);
        if spent + u64::from(RESERVED_UNITS) > self.units_max {
            self.units.close();
        }
        if spent > self.units_max {
            self.exceeded.cancel();
        }
    }

    /// Whether too little is left for another block.
    pub fn is_used_up(&self) -> bool {
        self.units.is_closed()
    }

    /// The bytes that were fetched.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits until more than the budget was spent, by blocks that were larger than what was reserved for them.
    pub async fn exceeded(&self) {
        self.exceeded.cancelled().await;
    }
}

/// A source whose blocks count against a page's budget, unless they are in memory or can be read at once.
pub struct CountedSource {
    source: Arc<dyn BlockSource>,
    budget: Arc<PageBudget>,
}

impl CountedSource {
    /// Counts the blocks of `source`.
    pub fn new(source: Arc<dyn BlockSource>, budget: Arc<PageBudget>) -> Self {
        Self { source, budget }
    }
}

impl BlockSource for CountedSource {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.source.peek(cid)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.source.inline(cid)
    }

    fn work(&self) -> Work {
        self.source.work()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (source, budget, cid) = (Arc::clone(&self.source), Arc::clone(&self.budget), *cid);
        async move {
            let reserved = budget.reserve().await?;
            let block = source.get(&cid).await?;
            budget.spend(reserved, &block);
            Ok(block)
        }
        .boxed()
    }

    /// The block alone: see the module's documentation.
    fn get_ahead(&self, cid: &Cid, _: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.get(cid)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.source.has(cid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use content::{MemoryBlocks, codec, hashes};

    const KIB: usize = 1024;

    fn budget(reservations: u64) -> PageBudget {
        PageBudget::new(reservations * RESERVED_BYTES)
    }

    #[tokio::test]
    async fn small_blocks_release_what_was_reserved_for_them() {
        let budget = budget(2);
        for _ in 0..100 {
            let reserved = budget.reserve().await.expect("is left");
            budget.spend_bytes(reserved, 1);
        }
        // Each block counts for a unit.
        assert_eq!((budget.bytes(), budget.units.available_permits()), (100, 1024 - 100));
        assert!(!budget.is_used_up());
    }

    #[tokio::test]
    async fn a_block_counts_once() {
        let budget = budget(2);
        let block = |data: &[u8]| Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::copy_from_slice(data));
        for data in [&b"a"[..], b"a", b"bc", b"a"] {
            let reserved = budget.reserve().await.expect("is left");
            budget.spend(reserved, &block(data).expect("a block"));
        }
        assert_eq!((budget.bytes(), budget.units.available_permits()), (3, 1024 - 2));
    }

    #[tokio::test]
    async fn blocks_in_flight_wait_for_each_other_and_failed_ones_cost_nothing() {
        let budget = budget(2);
        let first = budget.reserve().await.expect("is left");
        let _second = budget.reserve().await.expect("is left");
        let mut third = Box::pin(budget.reserve());
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.now_or_never().is_some_and(|reserved| reserved.is_ok()));
        assert_eq!(budget.bytes(), 0);
    }

    #[tokio::test]
    async fn nothing_is_reserved_once_too_little_is_left() {
        let budget = budget(2);
        let first = budget.reserve().await.expect("is left");
        let second = budget.reserve().await.expect("is left");
        let mut third = Box::pin(budget.reserve());
        assert!(third.as_mut().now_or_never().is_none());
        budget.spend_bytes(first, 512 * KIB);
        assert!(!budget.is_used_up(), "there is room for one block");
        budget.spend_bytes(second, KIB);
        assert!(budget.is_used_up());
        // The one that waited has got what the first did not need, or the error: it never waits in vain.
        assert!(third.now_or_never().is_some());
        assert!(budget.reserve().now_or_never().is_some_and(|reserved| reserved.is_err()));
    }

    /// A network that sends more than it is asked for.
    struct SendsAhead(MemoryBlocks);

    impl BlockSource for SendsAhead {
        fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
            self.0.get(cid)
        }

        fn get_ahead(&self, _: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
            panic!("it is told what follows: {ahead:?}")
        }

        fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
            self.0.has(cid)
        }
    }

    #[tokio::test]
    async fn the_network_is_asked_for_blocks_that_count_only() {
        let block = Block::of(codec::DAG_PB, hashes::SHA2_256, 32, Bytes::from_static(b"a")).expect("a block");
        let network = SendsAhead([block.clone()].into_iter().collect());
        let budget = Arc::new(budget(2));
        let source = CountedSource::new(Arc::new(network), Arc::clone(&budget));
        let fetched = source.get_ahead(block.cid(), &ReadAhead::all(*block.cid())).await;
        assert_eq!(fetched.map(|block| block.data().len()).ok(), Some(1));
        assert_eq!(budget.bytes(), 1);
    }

    #[tokio::test]
    async fn larger_blocks_than_reserved_end_it() {
        let budget = budget(4);
        let reserved = budget.reserve().await.expect("is left");
        budget.spend_bytes(reserved, 2048 * KIB);
        assert!(budget.is_used_up() && budget.exceeded().now_or_never().is_none());
        let budget = self::budget(1);
        let reserved = budget.reserve().await.expect("is left");
        budget.spend_bytes(reserved, 513 * KIB);
        assert!(budget.exceeded().now_or_never().is_some());
    }
}
