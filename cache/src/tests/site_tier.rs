//! The tiers of a gateway of a site: RAM, its own disk, the storage that the gateways share, and the upstream.
//!
//! The own disk and the shared storage are memory stores. The store of the site is the shared one alone, so that tests
//! can tell what is put into it from what is put on the own disk.

use super::{cache, key, noisy, open, raw, until};
use crate::disk::faults::Call;
use crate::memory::{self, MemoryOptions};
use crate::tiers::LookupObserver;
use crate::{BlockStore, Evict, Ram, SiteTier, TierFigures, TierMetrics, Tiers, TiersFigures};
use bytes::Bytes;
use content::stored::Stored;
use content::{AllowAll, Block, BlockSource, Cid, Policy, SourceError, Verdict, codec};
use futures::future::{BoxFuture, FutureExt as _, ready};
use prometheus_client::registry::Registry;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// The stored forms of a store. Counts requests, and can wait, fail, or return the stored form of another block.
struct Counting {
    store: Arc<dyn BlockStore>,
    reads: AtomicUsize,
    looks: AtomicUsize,
    fails: AtomicBool,
    invalid: Mutex<Option<Stored>>,
    gate: Arc<Semaphore>,
}

impl Counting {
    fn new(store: &Arc<dyn BlockStore>) -> Arc<Self> {
        let gate = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let (store, invalid) = (Arc::clone(store), Mutex::default());
        Arc::new(Self { store, reads: 0.into(), looks: 0.into(), fails: false.into(), invalid, gate })
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }

    /// Makes every request wait.
    fn close(&self) {
        self.gate.forget_permits(Semaphore::MAX_PERMITS);
    }

    fn fail(&self) {
        self.fails.store(true, Ordering::SeqCst);
    }

    fn failed<T>(&self) -> Option<Result<T, SourceError>> {
        self.fails.load(Ordering::SeqCst).then(|| Err(unavailable()))
    }
}

fn unavailable() -> SourceError {
    SourceError::Store("the storage is away".into())
}

impl BlockSource for Counting {
    /// The tiers verify stored forms.
    fn get(&self, _: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        ready(Err(SourceError::Closed)).boxed()
    }

    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let invalid = self.invalid.lock().expect("no panic").clone();
        let (found, failed, gate) = (self.store.get_stored(cid), self.failed(), Arc::clone(&self.gate));
        async move {
            gate.acquire().await.map_err(|_| SourceError::Closed)?.forget();
            if let Some(failed) = failed {
                return failed;
            }
            if invalid.is_some() { Ok(invalid) } else { found.await }
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.failed().map_or_else(|| self.store.has(cid), |failed| ready(failed).boxed())
    }
}

/// An upstream that counts requests.
struct Network {
    block: Option<Block>,
    asked: AtomicUsize,
}

impl Network {
    fn new(block: Option<Block>) -> Arc<Self> {
        Arc::new(Self { block, asked: 0.into() })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl BlockSource for Network {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let found = self.block.as_ref().and_then(|block| block.under(cid));
        ready(found.ok_or(SourceError::NotFound { cid: *cid })).boxed()
    }

    fn has(&self, _: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(false)).boxed()
    }
}

struct Member {
    registry: Registry,
    metrics: TierMetrics,
    ram: Ram,
    disk: Arc<dyn BlockStore>,
    shared: Arc<dyn BlockStore>,
    for_clients: Arc<Counting>,
    for_peers: Arc<Counting>,
    tiers: Tiers,
}

fn memory_store() -> Arc<dyn BlockStore> {
    memory::open(&MemoryOptions::default()).expect("opens")
}

fn member(policy: Arc<dyn Policy>) -> Member {
    member_with(memory_store(), policy)
}

fn member_with(disk: Arc<dyn BlockStore>, policy: Arc<dyn Policy>) -> Member {
    member_that_waits(Duration::from_secs(600), disk, policy)
}

fn member_that_waits(wait_max: Duration, disk: Arc<dyn BlockStore>, policy: Arc<dyn Policy>) -> Member {
    let mut registry = Registry::default();
    let metrics = TierMetrics::register(&mut registry);
    let (ram, shared) = (Ram::new(1 << 24), memory_store());
    let (for_clients, for_peers) = (Counting::new(&shared), Counting::new(&shared));
    let site = SiteTier {
        store: Arc::clone(&shared),
        blocks: for_clients.clone(),
        blocks_for_peers: for_peers.clone(),
        wait_max,
    };
    let tiers = Tiers::of_site(ram.clone(), Arc::clone(&disk), site, policy, metrics.clone());
    Member { registry, metrics, ram, disk, shared, for_clients, for_peers, tiers }
}

async fn put(store: &Arc<dyn BlockStore>, block: &Block) {
    store.put_cached(block.clone()).await;
    store.flush().await.expect("flushes");
}

impl Member {
    /// Whether RAM, the own disk and the shared storage have a block.
    async fn holders(&self, block: &Block) -> [bool; 3] {
        for store in [&self.disk, &self.shared] {
            store.flush().await.expect("flushes");
        }
        let has = async |store: &Arc<dyn BlockStore>| store.has(block.cid()).await.expect("answers");
        [self.ram.holds(&key(block)), has(&self.disk).await, has(&self.shared).await]
    }

    fn source(&self, reader: Reader, network: &Arc<Network>) -> Arc<dyn BlockSource> {
        match reader {
            Reader::Through => Arc::new(self.tiers.through(network.clone())),
            Reader::Held => Arc::new(self.tiers.held()),
            Reader::Local => Arc::new(self.tiers.local()),
        }
    }

    fn site_figures(&self) -> TierFigures {
        self.tiers.figures().site.expect("it belongs to a site")
    }
}

/// A block that is stored compressed.
fn text() -> Block {
    raw(Bytes::from(b"some text. ".repeat(1_000)))
}

/// The CID of a block with another codec.
fn as_pb(block: &Block) -> Cid {
    Cid::new_v1(codec::DAG_PB, *block.cid().hash())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Through,
    Held,
    Local,
}

const READERS: [Reader; 3] = [Reader::Through, Reader::Held, Reader::Local];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Ram,
    Disk,
    Site,
    Network,
    NoTier,
}

/// A member of a site, and the network, of which one has a block.
async fn world(holder: Holder, block: &Block) -> (Member, Arc<Network>) {
    let member = member(Arc::new(AllowAll));
    match holder {
        Holder::Ram => member.ram.insert(key(block), block.data()),
        Holder::Disk => put(&member.disk, block).await,
        Holder::Site => put(&member.shared, block).await,
        Holder::Network | Holder::NoTier => {}
    }
    let network = Network::new((holder == Holder::Network).then(|| block.clone()));
    (member, network)
}

/// The hits and misses of RAM, disk, site and network.
fn counted(figures: TiersFigures) -> [(u64, u64); 4] {
    let TiersFigures { ram, disk, site, network } = figures;
    [ram, disk, site.expect("it belongs to a site"), network].map(|tier| (tier.hits, tier.misses))
}

#[tokio::test]
async fn tiers_are_asked_in_order_and_what_clients_read_fills_the_faster_ones() {
    const HIT: (u64, u64) = (1, 0);
    const MISS: (u64, u64) = (0, 1);
    const NONE: (u64, u64) = (0, 0);
    use Holder::{Disk, Network, NoTier, Ram, Site};
    use Reader::{Held, Local, Through};
    // Who asks; who has the block; reads of the shared storage for clients and for peers, and requests to the network;
    // whether RAM, the disk and the shared storage have the block then; hits and misses of RAM, disk, site and network.
    let table = [
        (Through, Ram, [0, 0, 0], [true, false, false], [HIT, NONE, NONE, NONE]),
        (Through, Disk, [0, 0, 0], [true, true, false], [MISS, HIT, NONE, NONE]),
        (Through, Site, [1, 0, 0], [true, true, true], [MISS, MISS, HIT, NONE]),
        (Through, Network, [1, 0, 1], [true, false, true], [MISS, MISS, MISS, HIT]),
        (Through, NoTier, [1, 0, 1], [false, false, false], [MISS, MISS, MISS, MISS]),
        (Held, Ram, [0, 0, 0], [true, false, false], [HIT, NONE, NONE, NONE]),
        (Held, Disk, [0, 0, 0], [true, true, false], [MISS, HIT, NONE, NONE]),
        (Held, Site, [1, 0, 0], [true, true, true], [MISS, MISS, HIT, NONE]),
        (Held, Network, [1, 0, 0], [false, false, false], [MISS, MISS, MISS, NONE]),
        (Held, NoTier, [1, 0, 0], [false, false, false], [MISS, MISS, MISS, NONE]),
        (Local, Ram, [0, 0, 0], [true, false, false], [HIT, NONE, NONE, NONE]),
        (Local, Disk, [0, 0, 0], [false, true, false], [MISS, HIT, NONE, NONE]),
        (Local, Site, [0, 1, 0], [false, false, true], [MISS, MISS, HIT, NONE]),
        (Local, Network, [0, 1, 0], [false, false, false], [MISS, MISS, MISS, NONE]),
        (Local, NoTier, [0, 1, 0], [false, false, false], [MISS, MISS, MISS, NONE]),
    ];
    let block = text();
    // Tiers ignore codecs.
    let cid = as_pb(&block);
    for (reader, holder, asked, filled, counts) in table {
        let case = format!("{reader:?}, {holder:?}");
        let (member, network) = world(holder, &block).await;
        let got = member.source(reader, &network).get(&cid).await;
        let has_it = match holder {
            NoTier => false,
            Network => reader == Through,
            Ram | Disk | Site => true,
        };
        match got {
            Ok(got) => {
                assert!(has_it, "{case}");
                assert_eq!((got.cid(), got.data(), got.stored()), (&cid, block.data(), None), "{case}");
            }
            Err(error) => assert_eq!((has_it, error), (false, SourceError::NotFound { cid }), "{case}"),
        }
        assert_eq!([member.for_clients.reads(), member.for_peers.reads(), network.asked()], asked, "{case}");
        assert_eq!(member.holders(&block).await, filled, "{case}");
        assert_eq!(counted(member.tiers.figures()), counts, "{case}");
        if counts[2] == HIT {
            assert_eq!(member.site_figures().bytes, block.data().len() as u64, "{case}");
        }
    }
}

#[tokio::test]
async fn stored_forms_are_read_from_the_disk_and_then_from_the_shared_storage() {
    let block = text();
    let cid = as_pb(&block);
    for reader in READERS {
        let (member, network) = world(Holder::Site, &block).await;
        let stored = match reader {
            Reader::Through => member.tiers.stored(&cid).await,
            Reader::Held | Reader::Local => member.source(reader, &network).get_stored(&cid).await,
        };
        let stored = stored.expect("reads").expect("the shared storage has it");
        assert_eq!(Some(&stored), member.shared.stored(&key(&block)).await.expect("reads").as_ref(), "{reader:?}");
        let fills = reader != Reader::Local;
        assert_eq!(member.holders(&block).await, [fills, fills, true], "{reader:?}");
        let reads = [member.for_clients.reads(), member.for_peers.reads()];
        assert_eq!(reads, if fills { [1, 0] } else { [0, 1] }, "{reader:?}");
        assert_eq!(counted(member.tiers.figures()), [(0, 0), (0, 1), (1, 0), (0, 0)], "{reader:?}");
        if fills {
            assert_eq!(member.tiers.stored(&cid).await, Ok(Some(stored)));
            assert_eq!((member.for_clients.reads(), member.tiers.figures().disk.hits), (1, 1), "the disk has it now");
        }
    }
    let (member, network) = world(Holder::NoTier, &block).await;
    for reader in [Reader::Held, Reader::Local] {
        assert_eq!(member.source(reader, &network).get_stored(&cid).await, Ok(None), "{reader:?}");
    }
}

#[tokio::test]
async fn that_the_shared_storage_lacks_a_block_is_not_cached() {
    let block = text();
    for reader in READERS {
        let (member, network) = world(Holder::NoTier, &block).await;
        let source = member.source(reader, &network);
        assert!(matches!(source.get(block.cid()).await, Err(SourceError::NotFound { .. })), "{reader:?}");
        // Another gateway stores it.
        put(&member.shared, &block).await;
        assert_eq!(source.get(block.cid()).await.as_ref(), Ok(&block), "{reader:?}");
    }
}

#[tokio::test]
async fn a_shared_storage_that_fails_costs_only_speed_unless_only_it_may_have_the_block() {
    let block = text();
    for reader in READERS {
        for holder in [Holder::Disk, Holder::Network, Holder::NoTier] {
            let case = format!("{reader:?}, {holder:?}");
            let (member, network) = world(holder, &block).await;
            member.for_clients.fail();
            member.for_peers.fail();
            let got = member.source(reader, &network).get(block.cid()).await;
            let is_found = holder == Holder::Disk || (holder, reader) == (Holder::Network, Reader::Through);
            assert_eq!(got, if is_found { Ok(block.clone()) } else { Err(unavailable()) }, "{case}");
            let TierFigures { hits, misses, errors, .. } = member.site_figures();
            assert_eq!((hits, misses, errors), (0, 0, u64::from(holder != Holder::Disk)), "{case}");
        }
    }
}

/// A request waits for a storage that hangs, and after some have, no request does for a moment.
#[tokio::test]
async fn a_shared_storage_that_hangs_delays_a_few_requests() {
    let waiting = Duration::from_millis(50);
    let member = member_that_waits(waiting, memory_store(), Arc::new(AllowAll));
    member.for_clients.close();
    for number in 0..40 {
        let block = noisy(number, 100);
        let source = member.source(Reader::Through, &Network::new(Some(block.clone())));
        assert_eq!(source.get(block.cid()).await.expect("the network has it").data(), block.data());
    }
    assert_eq!((member.for_clients.reads(), member.site_figures().errors), (8, 40));
    // Peers are not affected by it.
    let block = noisy(99, 100);
    put(&member.shared, &block).await;
    assert!(member.source(Reader::Local, &Network::new(None)).get(block.cid()).await.is_ok());
    let failed = member.source(Reader::Through, &Network::new(None)).get(block.cid()).await;
    assert!(matches!(failed, Err(SourceError::Store(_))), "the storage may have it: {failed:?}");
}

#[tokio::test]
async fn peers_and_clients_read_different_sources() {
    let block = text();
    let (member, network) = world(Holder::Site, &block).await;
    member.for_peers.fail();
    assert_eq!(member.tiers.local().get(block.cid()).await, Err(unavailable()));
    assert_eq!(member.tiers.local().get_stored(block.cid()).await, Err(unavailable()));
    assert_eq!(member.tiers.through(network).get(block.cid()).await, Ok(block));
}

#[tokio::test]
async fn an_invalid_block_of_the_shared_storage_is_an_error_of_it_and_is_not_kept() {
    let (wanted, other) = (text(), raw(Bytes::from(b"another text. ".repeat(1_000))));
    for reader in READERS {
        for holder in [Holder::Network, Holder::NoTier] {
            let case = format!("{reader:?}, {holder:?}");
            let (member, network) = world(holder, &wanted).await;
            put(&member.shared, &other).await;
            let invalid = member.shared.stored(&key(&other)).await.expect("reads");
            for source in [&member.for_clients, &member.for_peers] {
                source.invalid.lock().expect("no panic").clone_from(&invalid);
            }
            let source = member.source(reader, &network);
            let got = source.get(wanted.cid()).await;
            if (holder, reader) == (Holder::Network, Reader::Through) {
                assert_eq!(got.as_ref(), Ok(&wanted), "{case}");
            } else {
                assert!(matches!(got, Err(SourceError::Store(_))), "{case}: {got:?}");
                assert_eq!(member.holders(&wanted).await, [false; 3], "{case}");
            }
            assert_eq!(member.holders(&other).await, [false, false, true], "{case}");
            let TierFigures { hits, errors, .. } = member.site_figures();
            assert_eq!((hits, errors), (0, 1), "{case}");
            if reader != Reader::Through {
                let stored = source.get_stored(wanted.cid()).await;
                assert!(matches!(stored, Err(SourceError::Store(_))), "{case}: {stored:?}");
            }
        }
    }
}

/// If the disk fails, the shared storage is asked, and the disk's error is returned only if no tier has the block.
#[tokio::test]
async fn a_disk_that_fails_costs_only_speed_if_the_shared_storage_has_the_block() {
    let block = noisy(1, 3_000);
    for reader in READERS {
        for holder in [Holder::Site, Holder::NoTier] {
            let dir = tempfile::tempdir().expect("a directory");
            let disk = open(dir.path());
            cache(&disk, std::slice::from_ref(&block)).await;
            drop(disk);
            // Opened again, so that the index is not in memory.
            let disk = open(dir.path());
            let member = member_with(disk.handle(), Arc::new(AllowAll));
            if holder == Holder::Site {
                put(&member.shared, &block).await;
            }
            disk.store().files.faults.refuse(Call::Read, Errno::IO);
            let got = member.source(reader, &Network::new(None)).get(block.cid()).await;
            match holder {
                Holder::Site => assert_eq!(got.as_ref(), Ok(&block), "{reader:?}"),
                _ => assert!(matches!(got, Err(SourceError::Store(_))), "{reader:?}: {got:?}"),
            }
        }
    }
}

/// A policy that can start to reject everything.
#[derive(Default)]
struct Switch(AtomicBool);

impl Policy for Switch {
    fn generation(&self) -> u64 {
        u64::from(self.0.load(Ordering::SeqCst))
    }

    fn check(&self, _: &Cid) -> Verdict {
        if self.0.load(Ordering::SeqCst) { Verdict::Legal } else { Verdict::Allow }
    }
}

#[tokio::test]
async fn a_block_rejected_while_the_shared_storage_is_read_is_not_served_and_not_kept() {
    let block = text();
    let refused = SourceError::Refused { cid: *block.cid(), verdict: Verdict::Legal };
    for reader in READERS {
        for reads_stored in [false, true] {
            let case = format!("{reader:?}, stored form: {reads_stored}");
            let policy = Arc::<Switch>::default();
            let (member, network) = (member(policy.clone()), Network::new(Some(block.clone())));
            put(&member.shared, &block).await;
            let sources = [&member.for_clients, &member.for_peers];
            sources.iter().for_each(|source| source.close());
            let (source, tiers, cid) = (member.source(reader, &network), member.tiers.clone(), *block.cid());
            let get = tokio::spawn(async move {
                match (reads_stored, reader) {
                    (false, _) => source.get(&cid).await.err(),
                    (true, Reader::Through) => tiers.stored(&cid).await.err(),
                    (true, _) => source.get_stored(&cid).await.err(),
                }
            });
            until(|| sources.iter().any(|source| source.reads() == 1)).await;
            policy.0.store(true, Ordering::SeqCst);
            sources.iter().for_each(|source| source.gate.add_permits(1));
            assert_eq!(get.await.expect("no panic"), Some(refused.clone()), "{case}");
            assert_eq!(member.holders(&block).await, [false, false, true], "{case}");
            assert_eq!(network.asked(), 0, "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_for_a_block_read_the_shared_storage_once() {
    let block = text();
    let (member, network) = world(Holder::Site, &block).await;
    member.for_clients.close();
    let source = Arc::new(member.tiers.through(network.clone()));
    let cids = [*block.cid(), as_pb(&block)];
    let gets = (0..100).map(|i| {
        let (source, cid) = (Arc::clone(&source), cids[i % 2]);
        tokio::spawn(async move { (cid, source.get(&cid).await) })
    });
    let gets: Vec<_> = gets.collect();
    until(|| member.metrics.followers.get() == 99).await;
    member.for_clients.gate.add_permits(1);
    for get in gets {
        let (cid, got) = get.await.expect("no panic");
        let got = got.expect("the shared storage has it");
        assert_eq!((got.cid(), got.data()), (&cid, block.data()));
    }
    assert_eq!((member.for_clients.reads(), member.for_peers.reads(), network.asked()), (1, 0, 0));
    assert_eq!(member.holders(&block).await, [true, true, true]);
}

#[tokio::test]
async fn whether_a_block_is_stored_is_asked_in_the_order_of_the_tiers() {
    use Holder::{Disk, Network, NoTier, Ram, Site};
    let block = text();
    let cid = as_pb(&block);
    for (holder, has, asks_site) in
        [(Ram, true, false), (Disk, true, false), (Site, true, true), (Network, false, true), (NoTier, false, true)]
    {
        for reader in READERS {
            let case = format!("{reader:?}, {holder:?}");
            let (member, network) = world(holder, &block).await;
            assert_eq!(member.source(reader, &network).has(&cid).await, Ok(has), "{case}");
            let asked = [member.for_clients.looks(), member.for_peers.looks(), network.asked()];
            let site = usize::from(asks_site);
            assert_eq!(asked, if reader == Reader::Local { [0, site, 0] } else { [site, 0, 0] }, "{case}");

            member.for_clients.fail();
            member.for_peers.fail();
            let failed = member.source(reader, &network).has(&cid).await;
            assert_eq!(failed, if asks_site { Err(unavailable()) } else { Ok(true) }, "{case}");
        }
    }
}

#[tokio::test]
async fn pins_and_evictions_are_those_of_the_store_of_the_site() {
    let block = text();
    let (member, _) = world(Holder::Site, &block).await;
    assert_eq!(member.tiers.is_in_site(block.cid()).await, Ok(Some(true)));
    assert_eq!(member.tiers.shapes(&[*block.cid()]).await.expect("answers").len(), 1);
    assert!(member.tiers.shapes(&[*block.cid()]).await.expect("answers")[0].is_some());
    assert_eq!(member.tiers.look(block.cid()).await.expect("reads").as_ref(), Some(&block));
    assert_eq!(member.for_clients.reads(), 0);
    let evicted = member.tiers.evict(&[key(&block)], Evict::Unpinned).await.expect("evicts");
    assert_eq!((evicted.blocks, member.holders(&block).await), (1, [false; 3]));
    assert_eq!(member.tiers.is_in_site(block.cid()).await, Ok(Some(false)));
    put(member.tiers.store(), &block).await;
    assert_eq!(member.holders(&block).await, [false, false, true]);
    put(member.tiers.disk(), &block).await;
    assert_eq!(member.holders(&block).await, [false, true, true]);
}

#[tokio::test]
async fn only_a_gateway_of_a_site_has_series_of_the_tier() {
    let scrape = |registry: &Registry| {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).expect("encodes");
        text
    };
    let block = text();
    let (member, network) = world(Holder::Site, &block).await;
    member.tiers.through(network.clone()).get(block.cid()).await.expect("the shared storage has it");
    assert!(member.tiers.through(network).get(noisy(1, 100).cid()).await.is_err());
    let text = scrape(&member.registry);
    for line in [
        "causeway_tier_hits_total{tier=\"site\"} 1".to_owned(),
        "causeway_tier_misses_total{tier=\"site\"} 1".to_owned(),
        "causeway_tier_errors_total{tier=\"site\"} 0".to_owned(),
        "causeway_tier_requests_total{tier=\"site\"} 2".to_owned(),
        format!("causeway_tier_bytes_total{{tier=\"site\"}} {}", block.data().len()),
        "causeway_tier_latency_seconds_count{tier=\"site\"} 2".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }

    let mut registry = Registry::default();
    let metrics = TierMetrics::register(&mut registry);
    let alone = Tiers::new(Ram::new(1 << 20), memory_store(), Arc::new(AllowAll), metrics);
    assert!(alone.local().get(block.cid()).await.is_err());
    assert_eq!((alone.figures().site, alone.is_in_site(block.cid()).await), (None, Ok(None)));
    assert!(!scrape(&registry).contains("\"site\""), "{}", scrape(&registry));
}

/// The look-ups that it was told of: the tier, and whether it had the block.
#[derive(Default)]
struct Lookups(Mutex<Vec<(&'static str, bool)>>);

impl LookupObserver for Lookups {
    fn disk_read(&self, _: &Cid, _: Instant, hit: bool) {
        self.0.lock().expect("no panic").push(("disk", hit));
    }

    fn site_read(&self, _: &Cid, _: Instant, hit: bool) {
        self.0.lock().expect("no panic").push(("site", hit));
    }

    fn owner_asked(&self, _: &Cid, _: Instant, hit: bool) {
        self.0.lock().expect("no panic").push(("owner", hit));
    }

    fn follows(&self, _: &Cid) {}
}

#[tokio::test]
async fn an_observer_learns_of_reads_of_the_shared_storage() {
    let block = text();
    for (holder, expected) in [
        (Holder::Disk, vec![("disk", true)]),
        (Holder::Site, vec![("disk", false), ("site", true)]),
        (Holder::NoTier, vec![("disk", false), ("site", false)]),
    ] {
        let (member, network) = world(holder, &block).await;
        let lookups = Arc::<Lookups>::default();
        _ = member.tiers.observed(network, Some(lookups.clone())).get(block.cid()).await;
        assert_eq!(*lookups.0.lock().expect("no panic"), expected, "{holder:?}");
    }
    let lookups = Arc::<Lookups>::default();
    let alone = Tiers::new(
        Ram::new(1 << 20),
        memory_store(),
        Arc::new(AllowAll),
        TierMetrics::register(&mut Registry::default()),
    );
    _ = alone.observed(Network::new(None), Some(lookups.clone())).get(block.cid()).await;
    assert_eq!(*lookups.0.lock().expect("no panic"), [("disk", false)]);
}

/// The gateway that owns the root: an upstream that can wait, or fail.
struct Owner {
    answer: Result<Block, SourceError>,
    asked: AtomicUsize,
    gate: Arc<Semaphore>,
}

impl Owner {
    fn new(answer: Result<Block, SourceError>) -> Arc<Self> {
        Arc::new(Self { answer, asked: 0.into(), gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)) })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl BlockSource for Owner {
    fn get(&self, _: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let (answer, gate) = (self.answer.clone(), Arc::clone(&self.gate));
        async move {
            gate.acquire().await.map_err(|_| SourceError::Closed)?.forget();
            answer
        }
        .boxed()
    }

    fn has(&self, _: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(false)).boxed()
    }
}

#[tokio::test]
async fn the_owner_of_a_root_is_asked_after_the_disk_and_before_the_shared_storage() {
    let block = text();
    for (holder, owner_hit, expected) in [
        (Holder::Disk, true, vec![("disk", true)]),
        (Holder::Network, true, vec![("disk", false), ("owner", true)]),
        (Holder::Site, true, vec![("disk", false), ("owner", true)]),
        (Holder::Site, false, vec![("disk", false), ("owner", false), ("disk", false), ("site", true)]),
        (Holder::Network, false, vec![("disk", false), ("owner", false), ("disk", false), ("site", false)]),
    ] {
        let (member, network) = world(holder, &block).await;
        let answer = if owner_hit { Ok(block.clone()) } else { Err(SourceError::Closed) };
        let (owner, lookups) = (Owner::new(answer), Arc::<Lookups>::default());
        let source = member.tiers.observed(network.clone(), Some(lookups.clone())).with_owner(Some(owner.clone()));
        let case = format!("{holder:?}, {owner_hit}");
        assert_eq!(source.get(block.cid()).await.as_ref(), Ok(&block), "{case}");
        assert_eq!(*lookups.0.lock().expect("no panic"), expected, "{case}");
        if owner.asked() > 0 && owner_hit {
            let in_site = holder == Holder::Site;
            assert_eq!(
                member.holders(&block).await,
                [true, true, in_site],
                "the owner puts it into the storage: {case}"
            );
            assert_eq!((network.asked(), member.for_clients.reads()), (0, 0), "{case}");
        }
    }
}

#[tokio::test]
async fn what_the_owner_answers_is_the_answer() {
    let block = text();
    let cid = *block.cid();
    let stalled = SourceError::Stalled { cid, stall: Default::default() };
    let busy = SourceError::Busy { retry_after: Duration::from_secs(1) };
    for error in [stalled, busy] {
        let (member, network) = world(Holder::Network, &block).await;
        let owner = Owner::new(Err(error.clone()));
        let source = member.tiers.through(network.clone()).with_owner(Some(owner.clone()));
        assert_eq!(source.get(&cid).await, Err(error), "the network was searched, or is not to be");
        assert_eq!((owner.asked(), network.asked()), (1, 0));
    }
}

#[tokio::test]
async fn a_call_that_asks_the_owner_does_not_hold_up_one_that_does_not() {
    let block = text();
    let (member, network) = world(Holder::Network, &block).await;
    let owner = Owner::new(Ok(block.clone()));
    owner.gate.forget_permits(Semaphore::MAX_PERMITS);
    let through = member.tiers.through(network.clone());
    let asking = tokio::spawn(through.clone().with_owner(Some(owner.clone())).get(block.cid()));
    until(|| owner.asked() == 1).await;
    // The owner, whose own client waits for this gateway in turn, is answered.
    assert_eq!(through.get(block.cid()).await.as_ref(), Ok(&block));
    assert!(!asking.is_finished());
    owner.gate.add_permits(1);
    assert_eq!(asking.await.expect("no panic").as_ref(), Ok(&block));
}

#[tokio::test]
async fn all_requests_for_a_block_ask_the_owner_once_and_then_the_network_once() {
    let block = text();
    for answer in [Ok(block.clone()), Err(SourceError::Closed)] {
        let (member, network) = world(Holder::Network, &block).await;
        let owner = Owner::new(answer.clone());
        owner.gate.forget_permits(Semaphore::MAX_PERMITS);
        let source = member.tiers.through(network.clone()).with_owner(Some(owner.clone()));
        let asking = (0..50).map(|_| tokio::spawn(source.get(block.cid()))).collect::<Vec<_>>();
        until(|| owner.asked() == 1 && member.metrics.followers.get() == 49).await;
        owner.gate.add_permits(1);
        for got in asking {
            assert_eq!(got.await.expect("no panic").as_ref(), Ok(&block));
        }
        assert_eq!((owner.asked(), network.asked()), (1, usize::from(answer.is_err())));
    }
}
