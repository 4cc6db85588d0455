//! Detection and rebuilding of an index that is damaged, or that lost acknowledged writes.

use super::audit::audit;
use super::corruption::dag;
use super::{cache, flip, key, noisy, open_with, place_of, supply};
use crate::disk::schema::{Counters, INDEX, KEY_COUNTERS, META, PINS, PLACES, SEGMENTS};
use crate::pin_journal::{self, PinJournal};
use crate::{Disk, DiskOptions, Offline, PinState, Rebuilt, Repaired, StoreError};
use content::{Block, BlockSource as _, SourceError};
use rocksdb::WriteBatch;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

fn small() -> DiskOptions {
    DiskOptions { segment_bytes_max: 60_000, ..DiskOptions::default() }
}

/// Creates a closed store with these DAGs pinned.
async fn pinned(dir: &Path, dags: std::ops::Range<u64>) -> Vec<Vec<Block>> {
    let disk = open_with(dir, small()).expect("opens");
    let dags: Vec<_> = dags.map(dag).collect();
    for dag in &dags {
        disk.pin_recursive(*dag[0].cid(), None, supply(dag)).await.expect("pins");
    }
    disk.close().await.expect("closes");
    dags
}

/// Whether the store has all of a DAG, and its pin.
async fn has(disk: &Disk, dag: &[Block]) -> bool {
    for block in dag {
        match disk.get(block.cid()).await {
            Ok(got) => assert_eq!(got.data(), block.data()),
            Err(SourceError::NotFound { .. }) => return false,
            Err(error) => panic!("{error}"),
        }
    }
    disk.pin(dag[0].cid()).await.expect("reads").is_some_and(|pin| pin.state == PinState::Complete)
}

async fn has_all(disk: &Disk, dags: &[Vec<Block>]) -> bool {
    for dag in dags {
        if !has(disk, dag).await {
            return false;
        }
    }
    true
}

fn repair(dir: &Path) -> Repaired {
    Offline::repair(dir, &small(), &|_| false, &mut |_| ()).expect("repairs")
}

fn with_suffix(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).expect("lists").map(|entry| entry.expect("lists").path());
    paths.filter(|path| path.extension().is_some_and(|found| found == suffix)).collect()
}

/// The log that is not empty.
fn log(dir: &Path) -> PathBuf {
    let length = |path: &PathBuf| path.metadata().expect("is there").len();
    with_suffix(dir, "log").into_iter().max_by_key(length).expect("there is one")
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    fs::File::options().write(true).open(path).and_then(|file| file.write_all_at(bytes, at)).expect("writes");
}

/// Changes rows without the writer.
pub(super) fn tamper(disk: &Disk, change: impl FnOnce(&mut WriteBatch)) {
    let mut batch = WriteBatch::default();
    change(&mut batch);
    disk.store().write(batch, true).expect("writes");
}

/// RocksDB takes any damage for a torn end of its log, and ignores the rest.
#[tokio::test]
async fn a_bit_flipped_anywhere_in_the_log_loses_no_pin() {
    let sample = tempfile::tempdir().expect("a directory");
    let dags = pinned(sample.path(), 0..40).await;
    for percent in [1, 5, 30, 60, 90, 99] {
        let trial = tempfile::tempdir().expect("a directory");
        super::power::copy(sample.path(), trial.path());
        let log = log(trial.path());
        let mut bytes = fs::read(&log).expect("reads");
        let at = bytes.len() * percent / 100;
        bytes[at] ^= 0x10;
        fs::write(&log, bytes).expect("writes");
        let disk = open_with(trial.path(), small()).expect("opens");
        assert_eq!(disk.stats().index_rebuilds, 1, "{percent} %");
        assert!(has_all(&disk, &dags).await, "{percent} %");
        disk.flush().await.expect("flushes");
        audit(&disk);
        drop(disk);
        assert_eq!(open_with(trial.path(), small()).expect("opens").stats().index_rebuilds, 0, "once is enough");
    }
}

#[tokio::test]
async fn segments_stay_when_all_of_the_log_is_garbage() {
    let dir = tempfile::tempdir().expect("a directory");
    let dags = pinned(dir.path(), 0..20).await;
    let log = log(dir.path());
    let length = fs::metadata(&log).expect("is there").len();
    fs::write(&log, noisy(7, usize::try_from(length).expect("small")).data()).expect("writes");
    let disk = open_with(dir.path(), small()).expect("opens");
    assert!(has_all(&disk, &dags).await);
}

/// A torn record after the acknowledged ones, as left by a kill or power loss.
#[tokio::test]
async fn a_torn_end_of_the_log_is_not_damage() {
    for torn in [&[0_u8; 5_000][..], &[0xa5; 300], &[1]] {
        let dir = tempfile::tempdir().expect("a directory");
        let dags = pinned(dir.path(), 0..10).await;
        let log = log(dir.path());
        let length = fs::metadata(&log).expect("is there").len();
        overwrite(&log, length, torn);
        let disk = open_with(dir.path(), small()).expect("opens");
        assert_eq!(disk.stats().index_rebuilds, 0);
        assert!(has_all(&disk, &dags).await);
    }
}

#[tokio::test]
async fn an_index_without_its_first_files_is_rebuilt_at_a_start_and_by_a_repair() {
    for gone in ["CURRENT", "MANIFEST", "everything"] {
        for by_repair in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let dags = pinned(dir.path(), 0..10).await;
            for path in fs::read_dir(dir.path()).expect("lists").map(|entry| entry.expect("lists").path()) {
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                let is_index = !path.is_dir() && name != pin_journal::NAME;
                if name.starts_with(gone) || (gone == "everything" && is_index) {
                    fs::remove_file(path).expect("deletes");
                }
            }
            let error = Offline::open(dir.path(), &small()).map(drop).expect_err("inspecting does not repair");
            assert!(matches!(error, StoreError::IndexDamaged(_)), "{error}");
            assert!(error.to_string().contains("causeway store repair"), "{error}");
            if by_repair {
                let Rebuilt { lacking, unclaimed, progress, .. } = repair(dir.path()).rebuilt.expect("rebuilds");
                assert_eq!((lacking.len(), unclaimed, progress.pins), (0, 0, 10));
            }
            let disk = open_with(dir.path(), small()).expect("opens");
            assert_eq!(disk.stats().index_rebuilds, u64::from(!by_repair));
            assert!(has_all(&disk, &dags).await, "{gone}");
            audit(&disk);
        }
    }
}

#[tokio::test]
async fn cached_blocks_are_found_again_and_evicted_as_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let dags = pinned(dir.path(), 0..5).await;
    let blocks: Vec<_> = (1_000..1_030).map(|seed| noisy(seed, 5_000)).collect();
    let disk = open_with(dir.path(), small()).expect("opens");
    cache(&disk, &blocks).await;
    let before = disk.stats();
    drop(disk);
    fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
    let disk = open_with(dir.path(), small()).expect("opens");
    let after = disk.stats();
    assert_eq!(
        (after.blocks, after.cached_bytes, after.pinned_bytes),
        (before.blocks, before.cached_bytes, before.pinned_bytes)
    );
    drop(disk);
    let disk = open_with(dir.path(), DiskOptions { cache_bytes_max: 0, ..small() }).expect("opens");
    disk.flush().await.expect("flushes");
    assert_eq!(disk.stats().cached_bytes, 0);
    assert!(has_all(&disk, &dags).await);
    audit(&disk);
}

/// Unpinned blocks in a segment of pinned blocks are not restored as pinned.
#[tokio::test]
async fn unpinned_blocks_are_not_restored_as_pinned() {
    let dir = tempfile::tempdir().expect("a directory");
    let dags = pinned(dir.path(), 0..8).await;
    let disk = open_with(dir.path(), small()).expect("opens");
    for dag in &dags[..3] {
        disk.remove_pin(dag[0].cid()).await.expect("removes");
    }
    disk.flush().await.expect("flushes");
    drop(disk);
    fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
    let disk = open_with(dir.path(), small()).expect("opens");
    assert!(has_all(&disk, &dags[3..]).await);
    assert_eq!(disk.pins().await.expect("lists").len(), 5);
    assert!(!disk.is_pinned(&key(&dags[0][0])).await.expect("reads"));
    audit(&disk);
}

#[tokio::test]
async fn a_pin_that_cannot_be_completed_is_partial_and_can_be_resumed() {
    let dir = tempfile::tempdir().expect("a directory");
    let dags = pinned(dir.path(), 0..6).await;
    let disk = open_with(dir.path(), small()).expect("opens");
    // A leaf of one, an inner node of another.
    flip(&disk, &dags[2][4]);
    flip(&disk, &dags[4][1]);
    drop(disk);
    fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
    let rebuilt = repair(dir.path()).rebuilt.expect("rebuilds");
    let mut lacking: Vec<_> = rebuilt.lacking.iter().map(|pin| (pin.root, pin.missing)).collect();
    let mut expected = vec![(*dags[2][0].cid(), 1), (*dags[4][0].cid(), 1)];
    lacking.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lacking, expected);
    assert!(rebuilt.progress.damaged_bytes > 0);
    let disk = open_with(dir.path(), small()).expect("opens");
    for (number, dag) in dags.iter().enumerate() {
        let state = disk.pin(dag[0].cid()).await.expect("reads").expect("is there").state;
        assert_eq!(state == PinState::Partial, [2, 4].contains(&number));
    }
    for dag in [&dags[2], &dags[4]] {
        disk.pin_recursive(*dag[0].cid(), None, supply(dag)).await.expect("pins");
    }
    assert!(has_all(&disk, &dags).await);
    disk.flush().await.expect("flushes");
    audit(&disk);
}

/// One flipped bit in a file of the index: failed look-ups are errors, not misses, and the next start repairs the
/// index.
#[tokio::test]
async fn damage_found_while_reading_is_reported_and_repaired_by_the_next_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let dags = pinned(dir.path(), 0..30).await;
    // The log is flushed to tables.
    drop(open_with(dir.path(), small()).expect("opens"));
    for table in with_suffix(dir.path(), "sst") {
        let mut bytes = fs::read(&table).expect("reads");
        for at in (40..bytes.len().saturating_sub(200)).step_by(1_000) {
            bytes[at] ^= 1;
        }
        fs::write(table, bytes).expect("writes");
    }
    let mut told = 0;
    if let Ok(disk) = open_with(dir.path(), small()) {
        for block in dags.iter().flatten() {
            match disk.get(block.cid()).await {
                Ok(got) => assert_eq!(got.data(), block.data()),
                Err(SourceError::NotFound { .. }) => panic!("{} is there", block.cid()),
                Err(_) => told += 1,
            }
        }
        let stats = disk.stats();
        assert!(stats.index_rebuilds == 1 || told > 0 && stats.degraded() && stats.index_damaged, "{stats:?}");
    }
    let disk = open_with(dir.path(), small()).expect("opens");
    assert!(has_all(&disk, &dags).await);
    audit(&disk);
}

#[tokio::test]
async fn an_interrupted_rebuild_starts_again() {
    for half in ["set aside", "half built"] {
        let dir = tempfile::tempdir().expect("a directory");
        let dags = pinned(dir.path(), 0..10).await;
        fs::write(dir.path().join("index.rebuild"), if half == "set aside" { "damaged\n" } else { "rebuilding\n" })
            .expect("writes");
        if half == "set aside" {
            fs::create_dir(dir.path().join("index.damaged")).expect("makes");
            fs::rename(dir.path().join("CURRENT"), dir.path().join("index.damaged/CURRENT")).expect("moves");
        }
        let disk = open_with(dir.path(), small()).expect("opens");
        assert_eq!(disk.stats().index_rebuilds, 1, "{half}");
        assert!(has_all(&disk, &dags).await, "{half}");
        assert!(!dir.path().join("index.rebuild").exists(), "{half}");
        audit(&disk);
    }
}

/// Segments of which the index has no rows, not even the number.
#[tokio::test]
async fn segments_that_the_index_lost_are_adopted() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), small()).expect("opens");
    let blocks: Vec<_> = (0..6).map(|seed| noisy(seed, 3_000)).collect();
    cache(&disk, &blocks).await;
    let segment = place_of(&disk, &blocks[0]).segment;
    let family = |name| disk.store().family(name).expect("there");
    let places: Vec<_> = blocks.iter().map(|block| place_of(&disk, block).to_key()).collect();
    tamper(&disk, |batch| {
        for (block, place) in blocks.iter().zip(places) {
            batch.delete_cf(family(INDEX), key(block).to_bytes());
            batch.delete_cf(family(PLACES), place);
        }
        batch.delete_cf(family(SEGMENTS), segment.to_be_bytes());
        batch.put_cf(family(META), KEY_COUNTERS, Counters::default().to_bytes());
    });
    // The writer must not overwrite these changes.
    disk.store().files.faults.refuse(crate::disk::faults::Call::Batch, rustix::io::Errno::IO);
    drop(disk);
    let disk = open_with(dir.path(), small()).expect("opens");
    for block in &blocks {
        assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
    }
    cache(&disk, &[noisy(99, 3_000)]).await;
    audit(&disk);
}

#[tokio::test]
async fn pins_that_the_index_lost_are_detected_whatever_its_log_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let dags = pinned(dir.path(), 0..4).await;
    let disk = open_with(dir.path(), small()).expect("opens");
    let pins = disk.store().family(PINS).expect("there");
    tamper(&disk, |batch| batch.delete_cf(pins, dags[1][0].cid().to_bytes()));
    drop(disk);
    let disk = open_with(dir.path(), small()).expect("opens");
    assert_eq!(disk.stats().index_rebuilds, 1);
    assert!(has_all(&disk, &dags).await);
    audit(&disk);
}

/// The journal entry is marked removed first; after a kill in between, the index still has the pin.
#[tokio::test]
async fn an_interrupted_removal_is_completed() {
    let dir = tempfile::tempdir().expect("a directory");
    let dags = pinned(dir.path(), 0..3).await;
    let (mut journal, found) = PinJournal::open(dir.path()).expect("opens");
    let (id, _) = found.pins.iter().find(|(_, (root, _))| root == dags[1][0].cid()).expect("is entered");
    journal.mark_removed(*id).expect("strikes out");
    let disk = open_with(dir.path(), small()).expect("opens");
    disk.flush().await.expect("flushes");
    assert_eq!(disk.stats().index_rebuilds, 0);
    assert_eq!(disk.pins().await.expect("lists").len(), 2);
    audit(&disk);
}

/// An inspecting command rejects a manifest that lost its end. The next start of the gateway still rebuilds the index,
/// because the command does not update the watermark in the journal.
#[tokio::test]
async fn a_rejected_inspection_does_not_hide_the_damage() {
    for cut in [1, 7, 30] {
        let dir = tempfile::tempdir().expect("a directory");
        let dags = pinned(dir.path(), 0..6).await;
        let entries = fs::read_dir(dir.path()).expect("lists").map(|entry| entry.expect("lists").path());
        let is_manifest =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"MANIFEST-"));
        let manifest = entries.filter(is_manifest).max().expect("there is one");
        let file = fs::File::options().write(true).open(&manifest).expect("opens");
        file.set_len(manifest.metadata().expect("is there").len() - cut).expect("cuts");
        for _ in 0..2 {
            let refused = Offline::open(dir.path(), &small()).map(drop);
            assert!(matches!(refused, Err(StoreError::IndexDamaged(_))), "{cut}: {refused:?}");
        }
        let disk = open_with(dir.path(), small()).expect("opens");
        assert_eq!(disk.stats().index_rebuilds, 1, "{cut}");
        assert!(has_all(&disk, &dags).await, "{cut}");
    }
}

#[tokio::test]
async fn a_lost_or_damaged_journal_is_recreated_from_the_index() {
    for damage in ["gone", "empty", "header", "entry"] {
        let dir = tempfile::tempdir().expect("a directory");
        let dags = pinned(dir.path(), 0..6).await;
        let path = dir.path().join(pin_journal::NAME);
        match damage {
            "gone" => fs::remove_file(&path).expect("deletes"),
            "empty" => fs::write(&path, "").expect("writes"),
            "header" => overwrite(&path, 9, b"?"),
            _ => overwrite(&path, 200, b"?"),
        }
        let disk = open_with(dir.path(), small()).expect("opens");
        assert_eq!(disk.stats().index_rebuilds, 0, "{damage}");
        assert!(has_all(&disk, &dags).await, "{damage}");
        drop(disk);
        fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
        let disk = open_with(dir.path(), small()).expect("opens");
        assert!(has_all(&disk, &dags).await, "{damage}");
    }
}

/// Without both, the pins are unknown, so no block is deleted until the operator releases them.
#[tokio::test]
async fn without_index_and_journal_every_block_stays_until_it_is_released() {
    let dir = tempfile::tempdir().expect("a directory");
    let dags = pinned(dir.path(), 0..6).await;
    fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
    fs::remove_file(dir.path().join(pin_journal::NAME)).expect("deletes");
    let rebuilt = repair(dir.path()).rebuilt.expect("rebuilds");
    assert_eq!(rebuilt.progress.pins_total, 0);
    let options = DiskOptions { cache_bytes_max: 0, ..small() };
    let disk = open_with(dir.path(), options.clone()).expect("opens");
    disk.flush().await.expect("flushes");
    for block in dags.iter().flatten() {
        assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
    }
    // Pinning again completes without fetching a block.
    let root = *dags[0][0].cid();
    let held: Vec<Block> = vec![dags[0][0].clone()];
    disk.pin_recursive(root, None, supply(&held)).await.expect("pins");
    drop(disk);
    // The journal is intact now, without these blocks: they are kept nevertheless when the index is lost once more.
    fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
    // A rebuild finds all of a pin's DAG.
    let unclaimed = repair(dir.path()).rebuilt.expect("rebuilds").unclaimed;
    let claimed = rebuilt.unclaimed - unclaimed;
    assert!((1..=dags[0].len() as u64).contains(&claimed), "{claimed} of {}", rebuilt.unclaimed);
    let disk = open_with(dir.path(), options.clone()).expect("opens");
    disk.flush().await.expect("flushes");
    for block in dags.iter().flatten() {
        assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block), "after the second rebuild");
    }
    drop(disk);
    let offline = Offline::open(dir.path(), &small()).expect("opens");
    let report = offline.check(&|_| false, |_, _| ()).expect("reads");
    assert_eq!(report.unclaimed, unclaimed);
    assert!(!report.is_clean());
    offline.release_unclaimed().expect("writes");
    drop(offline);
    let disk = open_with(dir.path(), options).expect("opens");
    disk.flush().await.expect("flushes");
    assert_eq!(disk.stats().blocks, claimed);
    assert!(disk.get(&root).await.is_ok());
}
