use super::sources::tiers;
use super::{block_of, cache, key, noisy, open, until};
use crate::disk::faults::Call;
use crate::{BlockStore as _, Disk, Evict, Ram, TierFigures, TierMetrics, Tiers, TiersFigures};
use bytes::Bytes;
use content::stored::{CompressionOptions, Encoder};
use content::{
    AllowAll, Block, BlockSource, Cid, DenyList, MemoryBlocks, Multihash, Policy, SourceError, Stall, Verdict, codec,
    hashes,
};
use futures::future::{BoxFuture, FutureExt as _, join_all, ready};
use prometheus_client::registry::Registry;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::Semaphore;

/// A source whose requests wait until it is opened; counts requests and waiting callers.
struct Gated {
    blocks: MemoryBlocks,
    asked: AtomicUsize,
    waiting: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

impl Gated {
    fn new(blocks: impl IntoIterator<Item = Block>, open: bool) -> Arc<Self> {
        let gate = Arc::new(Semaphore::new(if open { Semaphore::MAX_PERMITS } else { 0 }));
        let blocks = blocks.into_iter().collect();
        Arc::new(Self { blocks, asked: AtomicUsize::new(0), waiting: Arc::default(), gate })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}

struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl BlockSource for Gated {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let (found, gate, waiting) = (self.blocks.get(cid), Arc::clone(&self.gate), Arc::clone(&self.waiting));
        async move {
            waiting.fetch_add(1, Ordering::SeqCst);
            let _waiting = Waiting(waiting);
            let _pass = gate.acquire().await.map_err(|_| SourceError::Closed)?;
            found.await
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.blocks.has(cid)
    }
}

struct Setup {
    _dir: TempDir,
    registry: Registry,
    metrics: TierMetrics,
    ram: Ram,
    disk: Disk,
    tiers: Tiers,
}

fn setup(policy: Arc<dyn Policy>) -> Setup {
    let dir = tempfile::tempdir().expect("a directory");
    let mut registry = Registry::default();
    let metrics = TierMetrics::register(&mut registry);
    let (ram, disk) = (Ram::new(1 << 24), open(dir.path()));
    let tiers = Tiers::new(ram.clone(), disk.handle(), policy, metrics.clone());
    Setup { _dir: dir, registry, metrics, ram, disk, tiers }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_requests_for_a_missing_block_share_one_fetch() {
    let Setup { metrics, ram, disk, tiers, .. } = &setup(Arc::new(AllowAll));
    let block = noisy(1, 100_000);
    let upstream = Gated::new([block.clone()], false);
    let source = Arc::new(tiers.through(upstream.clone()));
    let cids = [*block.cid(), Cid::new_v1(codec::DAG_PB, *block.cid().hash())];
    let gets = (0..100).map(|i| {
        let (source, cid) = (Arc::clone(&source), cids[i % 2]);
        tokio::spawn(async move { (cid, source.get(&cid).await) })
    });
    let gets: Vec<_> = gets.collect();
    until(|| metrics.followers.get() == 99).await;
    upstream.gate.add_permits(1);
    for get in gets {
        let (cid, got) = get.await.expect("no panic");
        let got = got.expect("fetched");
        assert_eq!((got.cid(), got.data()), (&cid, block.data()));
    }
    assert_eq!(upstream.asked(), 1);
    assert!(ram.holds(&key(&block)));
    disk.flush().await.expect("flushes");
    assert_eq!(disk.get(block.cid()).await, Ok(block.clone()));
    assert_eq!(source.peek(&cids[1]).expect("in RAM").data(), block.data());
}

#[tokio::test]
async fn a_fetch_runs_while_a_caller_waits_and_ends_with_the_last() {
    let Setup { tiers, .. } = &setup(Arc::new(AllowAll));
    let block = noisy(1, 1_000);
    let upstream = Gated::new([block.clone()], false);
    let source = tiers.through(upstream.clone());
    let begin = || tokio::spawn(source.get(block.cid()));
    let (first, second) = (begin(), begin());
    until(|| upstream.waiting() == 1).await;
    first.abort();
    assert!(first.await.expect_err("aborted").is_cancelled());
    assert_eq!(upstream.waiting(), 1, "the second still waits");
    second.abort();
    assert!(second.await.expect_err("aborted").is_cancelled());
    assert_eq!(upstream.waiting(), 0, "without callers the fetch is dropped");
    let third = begin();
    until(|| upstream.waiting() == 1).await;
    upstream.gate.add_permits(1);
    assert_eq!(third.await.expect("no panic"), Ok(block));
    assert_eq!(upstream.asked(), 2);
}

#[tokio::test]
async fn local_readers_neither_join_nor_start_a_fetch_and_do_not_fill_ram() {
    let Setup { ram, disk, tiers, .. } = &setup(Arc::new(AllowAll));
    let (wanted, on_disk) = (noisy(1, 1_000), noisy(2, 1_000));
    let upstream = Gated::new([wanted.clone()], false);
    let fetch = tokio::spawn(tiers.through(upstream.clone()).get(wanted.cid()));
    until(|| upstream.waiting() == 1).await;
    let local = tiers.local();
    assert_eq!(local.get(wanted.cid()).await, Err(SourceError::NotFound { cid: *wanted.cid() }));
    assert_eq!(local.has(wanted.cid()).await, Ok(false));
    fetch.abort();
    assert!(fetch.await.is_err());
    assert_eq!(upstream.waiting(), 0, "no local reader keeps the fetch alive");

    cache(disk, std::slice::from_ref(&on_disk)).await;
    assert_eq!(local.get(on_disk.cid()).await, Ok(on_disk.clone()));
    let stored = local.get_stored(on_disk.cid()).await.expect("reads").expect("it is on the disk");
    assert_eq!(stored.block().as_ref(), Ok(on_disk.data()));
    assert_eq!(local.get_stored(wanted.cid()).await, Ok(None));
    assert!(!ram.holds(&key(&on_disk)));
    assert_eq!(tiers.through(upstream.clone()).get(on_disk.cid()).await, Ok(on_disk.clone()));
    assert!(ram.holds(&key(&on_disk)), "the gateway's own clients fill RAM");
    assert_eq!(upstream.asked(), 1);
}

/// A source of one block, which it has received compressed.
struct Received(Block);

impl BlockSource for Received {
    fn get(&self, _: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        ready(Ok(self.0.clone())).boxed()
    }

    fn has(&self, _: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(true)).boxed()
    }
}

#[tokio::test]
async fn a_block_that_was_received_compressed_is_stored_so_and_its_readers_keep_its_bytes_only() {
    let Setup { tiers, .. } = &setup(Arc::new(AllowAll));
    let text = Bytes::from(b"some text. ".repeat(10_000));
    let block = Block::of(codec::RAW, hashes::SHA2_256, 32, text).expect("a block");
    // Compressed in another way than the disk's.
    let packed = Encoder::new(CompressionOptions { level: 1 }).expect("an encoder").encode(&block);
    let received = Block::verify_stored(*block.cid(), packed.clone()).expect("matches");
    let got = tiers.through(Arc::new(Received(received))).get(block.cid()).await.expect("is received");
    assert_eq!((got.data(), got.stored()), (block.data(), None));
    let stored = || async { tiers.local().get_stored(block.cid()).await.expect("reads") };
    while stored().await.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(stored().await, Some(packed));
}

#[tokio::test]
async fn followers_share_the_error_with_their_own_cid() {
    let Setup { tiers, metrics, .. } = &setup(Arc::new(AllowAll));
    let upstream = Gated::new([], false);
    let (as_raw, hash) = (*noisy(1, 100).cid(), *noisy(1, 100).cid().hash());
    let as_pb = Cid::new_v1(codec::DAG_PB, hash);
    let source = tiers.through(upstream.clone());
    let gets = [tokio::spawn(source.get(&as_raw)), tokio::spawn(source.get(&as_pb))];
    until(|| metrics.followers.get() == 1).await;
    upstream.gate.add_permits(1);
    let outcomes = join_all(gets).await;
    for (outcome, cid) in outcomes.into_iter().zip([as_raw, as_pb]) {
        assert_eq!(outcome.expect("no panic"), Err(SourceError::NotFound { cid }));
    }
    assert_eq!(upstream.asked(), 1);
}

/// A policy that can start to reject everything.
#[derive(Default)]
struct Switch(AtomicBool);

impl Policy for Switch {
    fn generation(&self) -> u64 {
        u64::from(self.0.load(Ordering::SeqCst))
    }

    fn check(&self, _cid: &Cid) -> Verdict {
        if self.0.load(Ordering::SeqCst) { Verdict::Legal } else { Verdict::Allow }
    }
}

#[tokio::test]
async fn blocks_that_the_policy_rejects_are_served_by_no_method() {
    let (denied, inline) = (noisy(1, 1_000), content::cid::parse("bafkqaddjnzzxazldoqwxizltoq").expect("a CID"));
    let Setup { ram, disk, tiers, .. } = &setup(Arc::new(DenyList::new([*denied.cid(), inline])));
    ram.insert(key(&denied), denied.data());
    cache(disk, std::slice::from_ref(&denied)).await;
    let upstream = Gated::new([denied.clone()], true);
    let (local, through) = (tiers.local(), tiers.through(upstream.clone()));
    let sources: [&dyn BlockSource; 2] = [&local, &through];
    for cid in [*denied.cid(), Cid::new_v1(codec::DAG_PB, *denied.cid().hash()), inline] {
        let refused = SourceError::Refused { cid, verdict: Verdict::Gone };
        for source in sources {
            assert_eq!(source.peek(&cid), None);
            assert_eq!(source.get(&cid).await, Err(refused.clone()));
            assert_eq!(source.has(&cid).await, Err(refused.clone()));
        }
    }
    assert_eq!(upstream.asked(), 0);
}

#[tokio::test]
async fn a_verdict_that_changes_during_a_fetch_counts() {
    let policy = Arc::<Switch>::default();
    let Setup { tiers, .. } = &setup(policy.clone());
    let block = noisy(1, 1_000);
    let upstream = Gated::new([block.clone()], false);
    let fetch = tokio::spawn(tiers.through(upstream.clone()).get(block.cid()));
    until(|| upstream.waiting() == 1).await;
    policy.0.store(true, Ordering::SeqCst);
    upstream.gate.add_permits(1);
    let refused = SourceError::Refused { cid: *block.cid(), verdict: Verdict::Legal };
    assert_eq!(fetch.await.expect("no panic"), Err(refused));
}

#[tokio::test]
async fn hash_functions_that_are_not_accepted_are_rejected_before_any_look_up() {
    let Setup { tiers, .. } = &setup(Arc::new(AllowAll));
    let md5 = Cid::new_v1(codec::RAW, Multihash::wrap(0xd5, &[0; 16]).expect("wraps"));
    let upstream = Gated::new([], true);
    let through = tiers.through(upstream.clone());
    assert!(matches!(through.get(&md5).await, Err(SourceError::Unacceptable(_))));
    assert!(matches!(tiers.local().has(&md5).await, Err(SourceError::Unacceptable(_))));
    assert_eq!((upstream.asked(), through.peek(&md5)), (0, None));
}

/// Returns the same block, or the same error, for every request.
struct Always(Result<Block, SourceError>);

impl BlockSource for Always {
    fn get(&self, _cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        futures::future::ready(self.0.clone()).boxed()
    }

    fn has(&self, _cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        futures::future::ready(Ok(self.0.is_ok())).boxed()
    }
}

#[tokio::test]
async fn a_block_with_another_hash_is_corrupt_and_stored_nowhere() {
    let Setup { ram, disk, tiers, .. } = &setup(Arc::new(AllowAll));
    let (wanted, sent) = (noisy(1, 100), noisy(2, 100));
    let source = tiers.through(Arc::new(Always(Ok(sent.clone()))));
    assert_eq!(source.get(wanted.cid()).await, Err(SourceError::Corrupt { cid: *wanted.cid() }));
    disk.flush().await.expect("flushes");
    for block in [&wanted, &sent] {
        assert!(!ram.holds(&key(block)));
        assert_eq!(disk.has(block.cid()).await, Ok(false));
    }
}

#[tokio::test]
async fn a_failing_disk_fails_no_request() {
    let Setup { ram, disk, tiers, .. } = &setup(Arc::new(AllowAll));
    let (first, second) = (noisy(1, 1_000), noisy(2, 1_000));
    let upstream = Gated::new([first.clone(), second.clone()], true);
    let source = tiers.through(upstream.clone());
    disk.store().files.faults.refuse(Call::Batch, Errno::NOSPC);
    assert_eq!(source.get(first.cid()).await, Ok(first.clone()));
    disk.flush().await.expect("flushes");
    assert_eq!(disk.stats().dropped_writes, 1);
    disk.close().await.expect("closes");
    assert_eq!(source.get(second.cid()).await, Ok(second.clone()));
    assert_eq!(disk.stats().dropped_writes, 2);
    assert!(ram.holds(&key(&first)) && ram.holds(&key(&second)));
}

#[tokio::test]
async fn a_scrape_has_the_documented_metrics() {
    let Setup { registry, ram, disk, tiers, .. } = &setup(Arc::new(AllowAll));
    let block = noisy(1, 100_000);
    let upstream = Gated::new([block.clone()], true);
    let source = tiers.through(upstream);
    source.get(block.cid()).await.expect("fetched");
    source.get(block.cid()).await.expect("in RAM");
    source.peek(block.cid()).expect("in RAM");
    let absent = *noisy(2, 10).cid();
    assert!(source.get(&absent).await.is_err());
    let stall = SourceError::Stalled { cid: absent, stall: Stall::default() };
    assert_eq!(tiers.through(Arc::new(Always(Err(stall.clone())))).get(&absent).await, Err(stall));
    disk.flush().await.expect("flushes");
    ram.tidy();
    tiers.local().get(block.cid()).await.expect("in RAM");
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("encodes");
    let stats = disk.stats();
    for line in [
        "causeway_tier_hits_total{tier=\"ram\"} 3".to_owned(),
        "causeway_tier_misses_total{tier=\"ram\"} 3".to_owned(),
        "causeway_tier_requests_total{tier=\"ram\"} 6".to_owned(),
        "causeway_tier_bytes_total{tier=\"ram\"} 300000".to_owned(),
        "causeway_tier_misses_total{tier=\"disk\"} 3".to_owned(),
        "causeway_tier_hits_total{tier=\"network\"} 1".to_owned(),
        "causeway_tier_misses_total{tier=\"network\"} 2".to_owned(),
        "causeway_tier_errors_total{tier=\"network\"} 0".to_owned(),
        "causeway_tier_bytes_total{tier=\"network\"} 100000".to_owned(),
        "causeway_tier_latency_seconds_count{tier=\"network\"} 3".to_owned(),
        "causeway_flight_joined_total 0".to_owned(),
        format!("causeway_ram_bytes {}", ram.bytes()),
        "causeway_ram_entries 1".to_owned(),
        format!("causeway_disk_cached_bytes {}", stats.cached_bytes),
        "causeway_disk_pinned_bytes 0".to_owned(),
        "causeway_disk_blocks 1".to_owned(),
        "causeway_disk_evicted_blocks_total 0".to_owned(),
        "causeway_disk_dropped_writes_total 0".to_owned(),
        "causeway_disk_corrupt_blocks_total 0".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_counted_upstream_counts_as_the_network_tier_and_fills_no_tier() {
    let Setup { ram, disk, tiers, .. } = &setup(Arc::new(AllowAll));
    let block = noisy(1, 1_000);
    let upstream = Gated::new([block.clone()], true);
    let source = tiers.counted(upstream.clone());
    assert_eq!(source.get(block.cid()).await, Ok(block.clone()));
    assert!(source.get(noisy(2, 10).cid()).await.is_err());
    assert_eq!(
        tiers
            .counted(Arc::new(Always(Err(SourceError::Busy { retry_after: std::time::Duration::ZERO }))))
            .get(block.cid())
            .await,
        Err(SourceError::Busy { retry_after: std::time::Duration::ZERO })
    );
    let TiersFigures { network, ram: of_ram, disk: of_disk, site } = tiers.figures();
    assert_eq!(network, TierFigures { hits: 1, misses: 1, errors: 1, bytes: 1_000 });
    assert_eq!((of_ram, of_disk, site), Default::default());
    assert_eq!((source.peek(block.cid()), source.read_now(block.cid()), upstream.asked()), (None, None, 2));
    disk.flush().await.expect("flushes");
    assert!(!ram.holds(&key(&block)) && disk.stats().blocks == 0);
}

#[tokio::test]
async fn an_open_registry_does_not_keep_the_store_open() {
    let Setup { _dir, registry, disk, tiers, metrics, .. } = setup(Arc::new(AllowAll));
    drop((tiers, disk));
    drop(open(_dir.path()));
    drop((registry, metrics));
}

#[tokio::test]
async fn blocks_evicted_from_ram_are_read_from_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let blocks: Vec<_> = (0..100_u32).map(|seed| block_of(codec::DAG_CBOR, seed.to_be_bytes().repeat(1_000))).collect();
    let upstream = Gated::new(blocks.clone(), true);
    let tiers = tiers(Ram::new(20_000), &disk);
    let source = tiers.through(upstream.clone());
    for block in &blocks {
        assert_eq!(source.get(block.cid()).await.as_ref(), Ok(block));
    }
    disk.flush().await.expect("flushes");
    for block in &blocks {
        assert_eq!(source.get(block.cid()).await.as_ref(), Ok(block));
    }
    assert_eq!(upstream.asked(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_evicted_block_is_in_no_tier() {
    let Setup { ram, disk, tiers, .. } = &setup(Arc::new(AllowAll));
    let blocks: Vec<_> = (0..3_000).map(|seed| noisy(seed, 100)).collect();
    let upstream = Gated::new(blocks.clone(), true);
    let source = tiers.through(upstream.clone());
    for block in &blocks {
        source.get(block.cid()).await.expect("fetched");
    }
    disk.flush().await.expect("flushes");
    let keys: Vec<_> = blocks[..2_500].iter().map(key).collect();
    let evicted = tiers.evict(&keys, Evict::Unpinned).await.expect("evicts");
    assert_eq!((evicted.blocks, evicted.pinned), (2_500, 0));
    for (index, block) in blocks.iter().enumerate() {
        let held = index >= 2_500;
        assert_eq!((ram.holds(&key(block)), tiers.local().has(block.cid()).await), (held, Ok(held)), "{index}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_block_rejected_during_its_fetch_stays_in_no_tier() {
    let policy = Arc::new(Switch::default());
    let Setup { ram, disk, tiers, .. } = &setup(policy.clone());
    let block = noisy(1, 1_000);
    let upstream = Gated::new([block.clone()], false);
    let source = tiers.through(upstream.clone());
    let get = tokio::spawn(source.get(block.cid()));
    until(|| upstream.waiting() == 1).await;
    policy.0.store(true, Ordering::SeqCst);
    tiers.evict(&[key(&block)], Evict::Everything).await.expect("evicts");
    upstream.gate.add_permits(1);
    let refused = get.await.expect("no panic");
    assert_eq!(refused, Err(SourceError::Refused { cid: *block.cid(), verdict: Verdict::Legal }));
    disk.flush().await.expect("flushes");
    assert!(!ram.holds(&key(&block)));
    assert_eq!(disk.has(block.cid()).await, Ok(false));
}

/// If the disk look-up failed and the upstream does not have the block, the disk's error is returned.
#[tokio::test]
async fn a_block_that_the_disk_cannot_look_up_is_not_reported_as_not_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let (held, absent) = (noisy(1, 3_000), noisy(2, 3_000));
    let disk = open(dir.path());
    cache(&disk, std::slice::from_ref(&held)).await;
    drop(disk);
    let disk = open(dir.path());
    let through = |blocks: &[Block]| {
        let upstream: Arc<MemoryBlocks> = Arc::new(blocks.iter().cloned().collect());
        tiers(Ram::new(1 << 24), &disk).through(upstream)
    };
    disk.store().files.faults.refuse(Call::Read, Errno::IO);
    let got = through(&[]).get(held.cid()).await;
    assert!(matches!(got, Err(SourceError::Store(_))), "{got:?}");
    assert_eq!(through(&[]).get(absent.cid()).await, Err(SourceError::NotFound { cid: *absent.cid() }));
    assert_eq!(through(std::slice::from_ref(&held)).get(held.cid()).await.as_ref(), Ok(&held), "the upstream has it");
}
