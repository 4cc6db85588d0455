use super::audit::audit;
use super::{Random, budget, cache, key, noisy, open, open_with, raw, supply};
use crate::disk::faults::Call;
use crate::disk::schema::{META, ROW_OVERHEAD_BYTES, SCHEMA};
use crate::{Disk, DiskOptions, PinError, StoreError};
use bytes::Bytes;
use content::{Block, BlockSource, SourceError};
use futures::StreamExt as _;
use proptest::prelude::*;
use rocksdb::{DB, Options};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

async fn held(disk: &Disk, block: &Block) -> bool {
    match disk.get(block.cid()).await {
        Ok(got) => {
            assert_eq!(got.data(), block.data());
            assert_eq!(disk.has(block.cid()).await, Ok(true));
            true
        }
        Err(SourceError::NotFound { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn blocks_and_figures_outlive_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = raw(b"words words words ".repeat(1_000));
    let blocks = [noisy(1, 10), noisy(2, 5_000), noisy(3, 300_000), text.clone(), raw(Bytes::new())];
    let disk = open(dir.path());
    cache(&disk, &blocks).await;
    cache(&disk, &blocks).await;
    let stats = disk.stats();
    assert_eq!(stats.blocks, 5);
    disk.close().await.expect("closes");
    disk.close().await.expect("closing twice is no error");
    drop(disk);
    let disk = open(dir.path());
    assert_eq!(disk.stats(), stats);
    for block in &blocks {
        assert!(held(&disk, block).await);
        assert_eq!(disk.size(&key(block)).await.expect("reads"), Some(block.data().len() as u64));
    }
    audit(&disk);
}

#[tokio::test]
async fn a_store_that_is_dropped_writes_what_is_queued() {
    let dir = tempfile::tempdir().expect("a directory");
    let blocks: Vec<_> = (0..50).map(|seed| noisy(seed, 10_000)).collect();
    let disk = open(dir.path());
    for block in &blocks {
        disk.put_cached(block.clone()).await;
    }
    drop(disk);
    let disk = open(dir.path());
    for block in &blocks {
        assert!(held(&disk, block).await);
    }
}

#[tokio::test]
async fn a_closed_store_reads_and_refuses_to_write() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let (old, new) = (noisy(1, 100), noisy(2, 100));
    cache(&disk, std::slice::from_ref(&old)).await;
    disk.close().await.expect("closes");
    disk.put_cached(new.clone()).await;
    assert_eq!(disk.stats().dropped_writes, 1);
    assert!(held(&disk, &old).await);
    assert!(!held(&disk, &new).await);
    assert!(matches!(disk.flush().await, Err(StoreError::Closed)));
    let pinned = disk.pin_recursive(*old.cid(), None, supply(&[old])).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Closed))));
}

#[tokio::test]
async fn a_second_opening_is_refused_until_the_first_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let error = open_with(dir.path(), DiskOptions::default()).expect_err("in use");
    assert!(matches!(&error, StoreError::InUse { dir: in_use } if in_use == dir.path()));
    let message = error.to_string();
    assert!(message.contains(&*dir.path().to_string_lossy()) && message.contains("stop that process"), "{message}");
    drop(disk);
    drop(open(dir.path()));
}

/// Writes a schema version into a store, as a newer release would, with a family of its own if there is a name for one.
fn write_schema(dir: &Path, version: u32, family: Option<&str>) {
    let families = DB::list_cf(&Options::default(), dir).expect("lists");
    let mut options = Options::default();
    options.create_missing_column_families(true);
    let db = DB::open_cf(&options, dir, families.iter().map(String::as_str).chain(family)).expect("opens");
    let meta = db.cf_handle(META).expect("the family");
    db.put_cf(meta, b"schema", version.to_be_bytes()).expect("writes");
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_and_without_unknown_families() {
    for family in [None, Some("from_the_future")] {
        let dir = tempfile::tempdir().expect("a directory");
        drop(open(dir.path()));
        drop(open(dir.path()));
        write_schema(dir.path(), SCHEMA + 1, family);
        let error = open_with(dir.path(), DiskOptions::default()).expect_err("newer");
        assert!(
            matches!(error, StoreError::NewerSchema { found, known: SCHEMA, .. } if found == SCHEMA + 1),
            "{error}"
        );
        write_schema(dir.path(), SCHEMA, None);
        match (family, open_with(dir.path(), DiskOptions::default())) {
            (None, opened) => assert!(opened.is_ok()),
            (Some(_), opened) => assert!(matches!(opened, Err(StoreError::Corrupt(_)))),
        }
    }
}

#[tokio::test]
async fn eviction_takes_the_oldest_and_keeps_to_the_budget() {
    let dir = tempfile::tempdir().expect("a directory");
    let cost = 10 + 34 + 5 + 10_000 + ROW_OVERHEAD_BYTES;
    let options = budget(10 * cost);
    let disk = open_with(dir.path(), options.clone()).expect("opens");
    let blocks: Vec<_> = (0..100).map(|seed| noisy(seed, 10_000)).collect();
    for block in &blocks {
        cache(&disk, std::slice::from_ref(block)).await;
        assert!(disk.stats().cached_bytes <= options.cache_bytes_max);
    }
    audit(&disk);
    let stats = disk.stats();
    assert_eq!(stats.blocks + stats.evicted_blocks, 100);
    assert_eq!(stats.cached_bytes + stats.evicted_bytes, 100 * cost);
    for (i, block) in blocks.iter().enumerate() {
        assert_eq!(held(&disk, block).await, i as u64 >= stats.evicted_blocks, "{i}");
    }
    assert!(stats.blocks >= 8, "no more goes than has to: {stats:?}");
    drop(disk);
    // A smaller budget takes effect when the store is opened.
    let disk = open_with(dir.path(), budget(2 * cost)).expect("opens");
    disk.flush().await.expect("flushes");
    assert!((1..=2).contains(&disk.stats().blocks));
    audit(&disk);
}

#[tokio::test]
async fn more_than_the_queue_holds_waits_for_room_and_is_all_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = DiskOptions { queue_bytes_max: 0, reads_max: 1, ..DiskOptions::default() };
    let disk = open_with(dir.path(), options).expect("opens");
    let blocks: Vec<_> = (0..40).map(|seed| noisy(seed, 1 << 20)).collect();
    cache(&disk, &blocks).await;
    assert_eq!(disk.stats().blocks, 40);
    assert_eq!(disk.stats().dropped_writes, 0);
    audit(&disk);
}

#[tokio::test]
async fn a_disk_that_refuses_writes_still_reads_and_recovers() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let blocks: Vec<_> = (0..4).map(|seed| noisy(seed, 1_000)).collect();
    cache(&disk, &blocks[..1]).await;
    disk.store().files.faults.refuse(Call::Batch, Errno::NOSPC);
    disk.put_cached(blocks[1].clone()).await;
    let pinned = disk.pin_recursive(*blocks[2].cid(), None, supply(&blocks[2..3])).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "{pinned:?}");
    let stats = disk.stats();
    assert_eq!(stats.dropped_writes, 1);
    assert!(stats.write_errors >= 1);
    assert!(held(&disk, &blocks[0]).await);
    assert!(!held(&disk, &blocks[1]).await);
    disk.store().files.faults.clear();
    cache(&disk, &blocks).await;
    for block in &blocks {
        assert!(held(&disk, block).await);
    }
    disk.pin_recursive(*blocks[2].cid(), None, supply(&blocks[2..3])).await.expect("pins");
    audit(&disk);
}

#[tokio::test]
async fn a_pin_whose_members_were_lost_on_the_way_is_not_acknowledged() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let blocks: Vec<_> = (0..3).map(|seed| noisy(seed, 1_000)).collect();
    let breaking = disk.clone();
    let steps = futures::stream::iter(blocks.clone()).enumerate().then(move |(i, block)| {
        let disk = breaking.clone();
        async move {
            // The second block is lost; the disk works before and after.
            disk.flush().await.expect("flushes");
            let faults = &disk.store().files.faults;
            if i == 1 {
                faults.refuse(Call::Batch, Errno::NOSPC)
            } else {
                faults.clear()
            }
            Ok::<_, std::io::Error>(block)
        }
    });
    let pinned = disk.pin_recursive(*blocks[0].cid(), None, steps).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "{pinned:?}");
    disk.flush().await.expect("flushes");
    audit(&disk);
}

/// Files below `dir` whose names end in `suffix`.
fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("reads").map(|entry| entry.expect("reads").path());
    entries.filter(|path| path.to_string_lossy().ends_with(suffix)).collect()
}

/// Flips one bit in the middle of where `data` lies, and says whether it was found.
fn damage(dir: &Path, suffix: &str, data: &[u8]) -> bool {
    for path in files(dir, suffix) {
        let mut bytes = std::fs::read(&path).expect("reads");
        let sample = &data[..data.len().min(64)];
        if let Some(at) = bytes.windows(sample.len()).position(|window| window == sample) {
            bytes[at + data.len() / 2] ^= 1;
            std::fs::write(&path, bytes).expect("writes");
            return true;
        }
    }
    false
}

/// Pins the first block and caches the others; then opens the store again, and damages the first two.
async fn damaged(dir: &Path, blocks: &[Block]) -> Disk {
    let disk = open(dir);
    disk.pin_recursive(*blocks[0].cid(), None, supply(&blocks[..1])).await.expect("pins");
    cache(&disk, blocks).await;
    disk.close().await.expect("closes");
    drop(disk);
    for block in &blocks[..2] {
        assert!(damage(&dir.join("segments"), ".segment", block.data()), "the block is in a segment");
    }
    open(dir)
}

#[tokio::test]
async fn damaged_values_are_never_served_and_can_be_fetched_again() {
    for len in [100_000, 3_000] {
        let dir = tempfile::tempdir().expect("a directory");
        let blocks: Vec<_> = (0..3).map(|seed| noisy(seed, len)).collect();
        let disk = damaged(dir.path(), &blocks).await;
        for block in &blocks[..2] {
            assert!(!held(&disk, block).await);
            assert!(!held(&disk, block).await);
        }
        assert!(held(&disk, &blocks[2]).await);
        disk.flush().await.expect("flushes");
        assert_eq!(disk.stats().corrupt_blocks, 2, "each is counted once");
        assert_eq!(disk.stats().blocks, 1);
        assert_eq!(disk.has(blocks[1].cid()).await, Ok(false));
        cache(&disk, &blocks).await;
        for block in &blocks {
            assert!(held(&disk, block).await);
        }
        assert!(disk.is_pinned(&key(&blocks[0])).await.expect("reads"), "it comes back as the member that it was");
        assert!(!disk.is_pinned(&key(&blocks[1])).await.expect("reads"));
        audit(&disk);
    }
}

/// The bytes of the store's segment files.
fn segment_bytes(dir: &Path) -> u64 {
    files(&dir.join("segments"), ".segment").iter().map(|path| path.metadata().expect("is there").len()).sum()
}

#[tokio::test]
async fn what_is_read_again_and_what_readers_have_in_memory_is_kept_longest() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(1_000_000)).expect("opens");
    let (read, favoured) = (noisy(1, 10_000), noisy(2, 10_000));
    let favourite = key(&favoured);
    disk.favour(move |key| *key == favourite);
    cache(&disk, &[read.clone(), favoured.clone(), noisy(3, 10_000)]).await;
    for seed in 100..500 {
        assert!(held(&disk, &read).await, "{seed}");
        cache(&disk, &[noisy(seed, 10_000)]).await;
    }
    assert!(held(&disk, &favoured).await);
    assert!(!held(&disk, &noisy(3, 10_000)).await);
    audit(&disk);
}

#[tokio::test]
async fn a_cache_of_which_everything_is_wanted_still_keeps_to_its_budget() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(300_000)).expect("opens");
    disk.favour(|_| true);
    for seed in 0..200 {
        cache(&disk, &[noisy(seed, 10_000)]).await;
        assert!(disk.stats().cached_bytes <= 300_000);
        assert!(segment_bytes(dir.path()) <= 300_000);
    }
    // Of tiny blocks the rows cost more than the values.
    let tiny: Vec<_> = (1_000..5_000).map(|seed| noisy(seed, 20)).collect();
    cache(&disk, &tiny).await;
    assert!(disk.stats().cached_bytes <= 300_000);
    audit(&disk);
}

#[tokio::test]
async fn the_space_of_what_is_unpinned_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = DiskOptions { segment_bytes_max: 1_000_000, ..DiskOptions::default() };
    let disk = open_with(dir.path(), options).expect("opens");
    let dags: Vec<Vec<Block>> =
        (0..10).map(|dag| (0..10).map(|seed| noisy(dag * 100 + seed, 100_000)).collect()).collect();
    // Interleaved, so that every segment has some of each.
    let pin = |dag: usize| disk.pin_recursive(*dags[dag][0].cid(), None, supply(&dags[dag]));
    futures::future::join_all((0..10).map(pin)).await.into_iter().for_each(|pin| assert!(pin.is_ok()));
    for dag in &dags[1..] {
        assert!(disk.remove_pin(dag[0].cid()).await.expect("removes"));
    }
    disk.flush().await.expect("flushes");
    assert!(segment_bytes(dir.path()) <= 2_100_000, "{}", segment_bytes(dir.path()));
    for block in &dags[0] {
        assert!(held(&disk, block).await);
    }
    audit(&disk);
}

#[tokio::test]
async fn a_full_file_system_shrinks_the_cache_and_then_stores_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let blocks: Vec<_> = (0..20).map(|seed| noisy(seed, 10_000)).collect();
    let disk = open(dir.path());
    cache(&disk, &blocks[..10]).await;
    disk.pin_recursive(*blocks[10].cid(), None, supply(&blocks[10..11])).await.expect("pins");
    drop(disk);
    let disk = open_with(dir.path(), DiskOptions { free_bytes_min: u64::MAX / 2, ..DiskOptions::default() });
    let disk = disk.expect("a full disk opens");
    disk.put_cached(blocks[11].clone()).await;
    let pinned = disk.pin_recursive(*blocks[12].cid(), None, supply(&blocks[12..13])).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Full { .. }))), "{pinned:?}");
    disk.flush().await.expect("flushes");
    assert!(disk.stats().degraded);
    assert_eq!((disk.stats().blocks, disk.stats().cached_bytes), (1, 0), "only the pin is left");
    assert!(held(&disk, &blocks[10]).await);
    audit(&disk);
    drop(disk);
    let disk = open(dir.path());
    cache(&disk, &blocks).await;
    assert_eq!(disk.stats().blocks, 20);
    assert!(!disk.stats().degraded);
    audit(&disk);
}

#[derive(Debug, Clone)]
enum Step {
    Cache(usize),
    Pin { root: usize, members: usize, fails: bool },
    Unpin(usize),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..40_usize).prop_map(Step::Cache),
        3 => (0..8_usize, 0..12_usize, any::<bool>())
            .prop_map(|(root, members, fails)| Step::Pin { root, members, fails }),
        2 => (0..8_usize).prop_map(Step::Unpin),
        1 => Just(Step::Reopen),
    ]
}

/// Opens a store as soon as its former handle is gone everywhere: a read that nobody waits for any more may hold it for a
/// moment longer than the test does.
async fn reopen(dir: &Path, options: &DiskOptions) -> Disk {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        match open_with(dir, options.clone()) {
            Err(StoreError::InUse { .. }) if std::time::Instant::now() < deadline => tokio::task::yield_now().await,
            opened => return opened.expect("opens"),
        }
    }
}

/// What is pinned is held whole, whatever happens to the rest; and the families always agree.
async fn run(steps: Vec<Step>) {
    let dir = tempfile::tempdir().expect("a directory");
    let options = budget(20_000);
    let blocks: Vec<_> = (0..40).map(|seed| noisy(seed, 200 + 50 * usize::try_from(seed).expect("small"))).collect();
    let mut disk = open_with(dir.path(), options.clone()).expect("opens");
    let mut pinned: Vec<usize> = Vec::new();
    let members_of = |root: usize, members: usize| blocks[root..(root + members + 1).min(40)].to_vec();
    let mut complete: std::collections::HashMap<usize, usize> = std::collections::HashMap::new();
    for step in steps {
        match step {
            Step::Cache(i) => disk.put_cached(blocks[i].clone()).await,
            Step::Pin { root, members, fails } => {
                let failure = fails.then(|| Err(std::io::Error::other("the walk failed")));
                let stream = supply(&members_of(root, members)).chain(futures::stream::iter(failure));
                let result = disk.pin_recursive(*blocks[root].cid(), None, stream).await;
                assert_eq!(result.is_err(), fails);
                if !fails {
                    let longest = complete.entry(root).or_default();
                    *longest = members.max(*longest);
                }
                if !pinned.contains(&root) {
                    pinned.push(root);
                }
            }
            Step::Unpin(root) => {
                let was = disk.remove_pin(blocks[root].cid()).await.expect("removes");
                assert_eq!(was, pinned.contains(&root));
                pinned.retain(|held| *held != root);
                complete.remove(&root);
            }
            Step::Reopen => {
                drop(disk);
                disk = reopen(dir.path(), &options).await;
            }
        }
    }
    disk.flush().await.expect("flushes");
    audit(&disk);
    assert!(disk.stats().cached_bytes <= options.cache_bytes_max);
    let pins = disk.pins().await.expect("lists");
    assert_eq!(pins.len(), pinned.len());
    for (root, members) in complete {
        for block in members_of(root, members) {
            assert!(held(&disk, &block).await, "a member of a complete pin is held");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_sequence_leaves_the_families_in_agreement(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(run(steps));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_and_writers_run_side_by_side() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(300_000)).expect("opens");
    let blocks: std::sync::Arc<Vec<Block>> = std::sync::Arc::new((0..100).map(|seed| noisy(seed, 6_000)).collect());
    let tasks: Vec<_> = (0..8)
        .map(|seed| {
            let (disk, blocks) = (disk.clone(), std::sync::Arc::clone(&blocks));
            tokio::spawn(async move {
                let mut random = Random(seed);
                for _ in 0..300 {
                    let block = &blocks[usize::try_from(random.below(100)).expect("small")];
                    if !held_or_going(&disk, block).await {
                        disk.put_cached(block.clone()).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    disk.flush().await.expect("flushes");
    audit(&disk);
    assert_eq!(disk.stats().corrupt_blocks, 0);
}

/// Whether the block was there when it was read; eviction may take it a moment later.
async fn held_or_going(disk: &Disk, block: &Block) -> bool {
    let got = disk.get(block.cid()).await;
    got.is_ok_and(|got| {
        assert_eq!(got.data(), block.data());
        true
    })
}
