//! Tests of the disk store alone; [`super::suite`] has those of all stores.

use super::audit::audit;
use super::{budget, cache, noisy, open, open_with, supply};
use crate::disk::faults::Call;
use crate::disk::schema::{META, SCHEMA};
use crate::{Disk, DiskOptions, PinError, StoreError};
use content::{Block, BlockSource, SourceError};
use futures::StreamExt as _;
use rocksdb::{DB, Options};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

async fn is_stored(disk: &Disk, block: &Block) -> bool {
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

/// Writes a schema version into a store, as a newer release would, with a column family of its own if given.
fn write_schema(dir: &Path, version: u32, family: Option<&str>) {
    let families = DB::list_cf(&Options::default(), dir).expect("lists");
    let mut options = Options::default();
    options.create_missing_column_families(true);
    let db = DB::open_cf(&options, dir, families.iter().map(String::as_str).chain(family)).expect("opens");
    let meta = db.cf_handle(META).expect("the family");
    db.put_cf(meta, b"schema", version.to_be_bytes()).expect("writes");
}

#[tokio::test]
async fn a_newer_schema_is_rejected_with_and_without_unknown_families() {
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
        // No release wrote an older one: the row is damaged, and the index is rebuilt.
        if family.is_none() {
            write_schema(dir.path(), SCHEMA - 1, None);
            assert!(open_with(dir.path(), DiskOptions::default()).is_ok());
        }
        write_schema(dir.path(), SCHEMA, None);
        match (family, open_with(dir.path(), DiskOptions::default())) {
            (None, opened) => assert!(opened.is_ok()),
            (Some(_), opened) => assert!(matches!(opened, Err(StoreError::Corrupt(_)))),
        }
    }
}

#[tokio::test]
async fn a_disk_that_fails_writes_still_reads_and_recovers() {
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
    assert!(is_stored(&disk, &blocks[0]).await);
    assert!(!is_stored(&disk, &blocks[1]).await);
    disk.store().files.faults.clear();
    cache(&disk, &blocks).await;
    for block in &blocks {
        assert!(is_stored(&disk, block).await);
    }
    disk.pin_recursive(*blocks[2].cid(), None, supply(&blocks[2..3])).await.expect("pins");
    audit(&disk);
}

#[tokio::test]
async fn a_pin_whose_members_could_not_be_written_is_not_acknowledged() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let blocks: Vec<_> = (0..3).map(|seed| noisy(seed, 1_000)).collect();
    let breaking = disk.clone();
    let steps = futures::stream::iter(blocks.clone()).enumerate().then(move |(i, block)| {
        let disk = breaking.clone();
        async move {
            // Writing the second block fails; the disk works before and after.
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

/// The bytes of the store's segment files.
fn segment_bytes(dir: &Path) -> u64 {
    files(&dir.join("segments"), ".segment").iter().map(|path| path.metadata().expect("is there").len()).sum()
}

#[tokio::test]
async fn a_cache_with_only_hot_blocks_still_keeps_its_budget() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(300_000)).expect("opens");
    disk.set_is_hot(|_| true);
    for seed in 0..200 {
        cache(&disk, &[noisy(seed, 10_000)]).await;
        assert!(disk.stats().cached_bytes <= 300_000);
        assert!(segment_bytes(dir.path()) <= 300_000);
    }
    // For tiny blocks, the rows take more space than the values.
    let tiny: Vec<_> = (1_000..5_000).map(|seed| noisy(seed, 20)).collect();
    cache(&disk, &tiny).await;
    assert!(disk.stats().cached_bytes <= 300_000);
    audit(&disk);
}

#[tokio::test]
async fn the_space_of_unpinned_blocks_is_reclaimed() {
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
        assert!(is_stored(&disk, block).await);
    }
    audit(&disk);
}

/// A read whose caller is gone keeps the store open for longer than its last handle.
#[tokio::test]
async fn a_store_is_opened_again_as_soon_as_its_last_read_has_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    let (disk, block) = (open(dir.path()), noisy(1, 5_000));
    cache(&disk, std::slice::from_ref(&block)).await;
    // The fault does not block the writer, for which dropping the last handle waits.
    disk.close().await.expect("closes");
    let (read_begins, begun) = mpsc::channel();
    let (end_read, ended) = mpsc::channel::<()>();
    disk.store().files.faults.plan(move |call| {
        if call == Call::Read {
            _ = read_begins.send(());
            _ = ended.recv();
        }
        None
    });
    // `look` reads from the disk.
    let (reader, sought) = (disk.clone(), super::key(&block));
    let read = tokio::spawn(async move { reader.look(&sought).await });
    let begun = tokio::task::spawn_blocking(move || begun.recv());
    begun.await.expect("does not panic").expect("the read begins");
    read.abort();
    assert!(read.await.expect_err("it is aborted").is_cancelled());

    let released = disk.released();
    drop(disk);
    let (says, opened) = mpsc::channel();
    let path = dir.path().to_owned();
    let successor = std::thread::spawn(move || _ = says.send(open_with(&path, DiskOptions::default())));
    let early = opened.recv_timeout(Duration::from_millis(50));
    assert!(matches!(early, Err(mpsc::RecvTimeoutError::Timeout)), "the successor waits: {early:?}");
    end_read.send(()).expect("the read waits");
    released.await;
    let disk = opened.recv().expect("does not panic").expect("opens");
    successor.join().expect("does not panic");
    assert!(is_stored(&disk, &block).await);
}
