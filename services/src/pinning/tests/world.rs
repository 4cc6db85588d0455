//! A store, a pin metadata store and an upstream, with a pin service. Shared by the tests of the service and of its
//! API.

use super::pinning::{
    Coordination, Owner, PinMetrics, PinNetwork, PinOptions, PinParameters, PinRequest, Pins, Status,
};
use bytes::Bytes;
use cache::memory::{self, MemoryOptions};
use cache::{BlockStore, Disk, DiskOptions, MetadataStore, Ram, TierMetrics, Tiers};
use content::{Block, BlockKey, BlockSource, Cid, DenyList, MemoryBlocks, Policy, SourceError, codec, hashes};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// The timeout of a test.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The blocks of the network, and the number of requests for them.
pub(super) struct Upstream {
    pub(super) blocks: MemoryBlocks,
    pub(super) asked: AtomicUsize,
    /// Each answer takes one permit.
    pub(super) permits: Semaphore,
}

impl Upstream {
    pub(super) fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self { blocks: MemoryBlocks::new(), asked: AtomicUsize::new(0), permits: Semaphore::new(permits) })
    }

    pub(super) fn has(&self, blocks: &[Block]) {
        blocks.iter().for_each(|block| self.blocks.insert(block));
    }

    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// The upstream as a block source.
pub(super) struct Session(Arc<Upstream>);

impl BlockSource for Session {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (upstream, cid) = (Arc::clone(&self.0), *cid);
        async move {
            upstream.permits.acquire().await.map_err(|_| SourceError::Closed)?.forget();
            upstream.asked.fetch_add(1, Ordering::Relaxed);
            upstream.blocks.get(&cid).await
        }
        .boxed()
    }

    fn has(&self, _: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        async { Ok(false) }.boxed()
    }
}

/// The stores, which survive a restart of the service.
pub(super) struct World {
    pub(super) store: Arc<dyn BlockStore>,
    pub(super) register: MetadataStore,
    pub(super) upstream: Arc<Upstream>,
    pub(super) policy: Arc<dyn Policy>,
    pub(super) options: PinOptions,
}

impl World {
    /// In memory.
    pub(super) fn new() -> Self {
        let store = memory::open(&MemoryOptions::default()).expect("opens");
        Self::with(store, MetadataStore::memory())
    }

    /// On a disk.
    pub(super) fn on_disk(dir: &Path) -> Self {
        let options = DiskOptions { free_bytes_min: 0, ..DiskOptions::default() };
        let store = Arc::new(Disk::open(&dir.join("store"), options).expect("opens"));
        Self::with(store, MetadataStore::open_or_salvage(&dir.join("pins")).expect("opens"))
    }

    pub(super) fn with(store: Arc<dyn BlockStore>, register: MetadataStore) -> Self {
        let options = PinOptions {
            retry_first: Duration::from_millis(20),
            adopted_after: Duration::ZERO,
            removal_retry_max: Duration::ZERO,
            ..PinOptions::default()
        };
        let policy = Arc::new(DenyList::default());
        Self { store, register, upstream: Upstream::new(Semaphore::MAX_PERMITS), policy, options }
    }

    pub(super) async fn start(&self) -> Arc<Pins> {
        self.start_with(Coordination::single(self.register.clone())).await
    }

    pub(super) async fn start_with(&self, coordination: Coordination) -> Arc<Pins> {
        let ram = Ram::new(1 << 20);
        let metrics = TierMetrics::register(&mut Registry::default());
        let tiers = Tiers::new(ram, Arc::clone(&self.store), Arc::clone(&self.policy), metrics);
        let upstream = Arc::clone(&self.upstream);
        let reach = PinNetwork {
            session: Box::new(move |_| Arc::new(Session(Arc::clone(&upstream)))),
            ..PinNetwork::local_only(&tiers, Arc::clone(&self.policy))
        };
        let metrics = PinMetrics::register(&mut Registry::default());
        let started = Pins::start(self.options.clone(), coordination, Arc::clone(&self.store), reach, metrics);
        started.await.expect("starts")
    }

    /// The roots of the pins in the store, complete or partial.
    pub(super) async fn pinned(&self) -> Vec<Cid> {
        let mut roots: Vec<_> = self.store.pins().await.expect("reads").into_iter().map(|pin| pin.root).collect();
        roots.sort_unstable();
        roots
    }

    pub(super) async fn holds(&self, block: &Block) -> bool {
        self.store.flush().await.expect("flushes");
        let key = BlockKey::of(block.cid()).expect("a block");
        self.store.find(&key).await.expect("reads").is_some()
    }
}

pub(super) fn leaf(number: u64) -> Block {
    raw(format!("leaf {number}"))
}

pub(super) fn raw(text: String) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(text)).expect("a block")
}

/// A block with links.
pub(super) fn node(name: &str, children: &[Block]) -> Block {
    let links: Vec<_> = children.iter().map(|child| serde_json::json!({ "/": child.cid().to_string() })).collect();
    let text = serde_json::json!({ "links": links, "name": name }).to_string();
    Block::of(codec::DAG_JSON, hashes::SHA2_256, 32, Bytes::from(text)).expect("a block")
}

/// A root with so many leaves; the root is the first block.
pub(super) fn dag(name: &str, leaves: std::ops::Range<u64>) -> Vec<Block> {
    let mut blocks: Vec<_> = leaves.map(leaf).collect();
    let root = node(name, &blocks);
    blocks.insert(0, root);
    blocks
}

pub(super) fn bytes_of(blocks: &[Block]) -> u64 {
    blocks.iter().map(|block| block.data().len() as u64).sum()
}

pub(super) fn owner(id: &str) -> Owner {
    Owner { id: id.into(), pins_max: None, bytes_max: None }
}

pub(super) fn wanted(blocks: &[Block]) -> PinParameters {
    PinParameters::new(*blocks[0].cid())
}

pub(super) fn named(blocks: &[Block], name: &str) -> PinParameters {
    PinParameters { name: Some(name.to_owned()), ..wanted(blocks) }
}

pub(super) async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a request has a status.
pub(super) async fn becomes(pins: &Pins, request: &PinRequest, status: Status) -> PinRequest {
    let what = format!("{} is {status:?}", request.id);
    until(&what, async || pins.get(&request.owner, &request.id).filter(|now| now.status == status)).await
}

pub(super) async fn pin(pins: &Arc<Pins>, owner: &Owner, wanted: PinParameters) -> PinRequest {
    let request = pins.request(owner, wanted).await.expect("is asked for");
    becomes(pins, &request, Status::Pinned).await
}
