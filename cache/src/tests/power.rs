//! Power loss at any moment: acknowledged pins are there when the store is reopened.
//!
//! The store records its unsynced writes. Before some or all of its file system calls, its directory is copied, and the
//! copy loses some or all of these writes: values become zeros, new files disappear, and RocksDB's log ends anywhere
//! after its synced part. Then the copy is opened and checked for the pins acknowledged by then.
//!
//! More rounds: `CAUSEWAY_CRASH_ROUNDS=300 cargo test --release -p causeway-cache --lib power`. [`super::power_flat`]
//! does the same for the flat store, [`super::device`] with a real file system.
//!
//! These tests fail if a step is removed from the store:
//!
//! | removed step | failing tests |
//! |---|---|
//! | syncing values before the batch that acknowledges them | all here, [`super::device`], [`super::faults`] |
//! | syncing names of segments | all here: ext4 syncs them with the file |
//! | syncing RocksDB's log with a batch that acknowledges | here, [`super::device`] |
//! | syncing values before the rows that move them | `pins_survive_power_loss_while_a_segment_is_collected_in_chunks` |
//! | syncing rows before the file of a pinned segment is deleted | the same, `acknowledged_pins_survive_power_loss` |
//! | deleting the file after the batch | the same, [`super::faults`], [`super::scrub`] |

use super::audit::audit;
use super::crash::rounds;
use super::packed::{self, PackedFile};
use super::{Random, noisy, open_with, supply, until};
use crate::disk::faults::{Call, INHERITED};
use crate::disk::files::Volatile;
use crate::disk::store::Store;
use crate::{BlockStore, Disk, DiskOptions, PinError, PinState};
use content::{Block, BlockSource, SourceError};
use futures::StreamExt as _;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use tempfile::TempDir;

fn options() -> DiskOptions {
    // Small segments, so that they are frequently evicted, garbage-collected and deleted.
    DiskOptions { cache_bytes_max: 300_000, segment_bytes_max: 60_000, ..DiskOptions::default() }
}

/// The DAG of a number: up to twelve blocks, some of them shared with other DAGs.
pub(super) fn dag(number: u64) -> Vec<Block> {
    let mut random = Random(number);
    let own = (0..1 + random.below(10)).map(|i| noisy(number * 100 + i, 500 + 1_500 * (i as usize % 4)));
    let shared = (0..2).map(|i| noisy(u64::MAX - number / 3 - i, 700));
    own.chain(shared).collect()
}

/// Which unsynced writes are lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// All unsynced values; the log is kept.
    Values,
    /// All of them.
    Everything,
    /// Some of both.
    Some,
}

pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("creates");
    for entry in fs::read_dir(from).expect("reads").map(|entry| entry.expect("reads")) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copies");
        }
    }
}

fn lose(dir: &Path, volatile: &Volatile, lost: Lost, random: &mut Random) {
    let segment = |number: u32| dir.join("segments").join(format!("{number:08x}.segment"));
    let mut is_lost = |lost| !matches!(lost, Lost::Some) || random.below(2) == 0;
    for (number, offset, len) in &volatile.values {
        if let (true, Ok(file)) = (is_lost(lost), fs::File::options().write(true).open(segment(*number))) {
            file.write_all_at(&vec![0; *len], u64::from(*offset)).expect("writes");
        }
    }
    for number in &volatile.names {
        if is_lost(lost) {
            _ = fs::remove_file(segment(*number));
        }
    }
    for entry in fs::read_dir(dir).expect("reads").flatten() {
        if entry.path().extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let len = entry.metadata().expect("is there").len();
        let synced = volatile.logs.get(&entry.file_name()).copied().unwrap_or_default();
        let kept = match lost {
            Lost::Values => len,
            Lost::Everything => synced,
            Lost::Some => synced + random.below(len - synced + 1),
        };
        fs::File::options().write(true).open(entry.path()).and_then(|file| file.set_len(kept)).expect("cuts");
    }
}

/// The expected pins, as far as they were acknowledged. After an unacknowledged operation, either state is accepted.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    dags: BTreeMap<u64, (Vec<Block>, bool)>,
    /// A pin that was in progress or removed, to be pinned again.
    pub(super) again: Vec<Block>,
    /// Flushed blocks, in a store that evicts nothing.
    flushed: Vec<Block>,
    /// The packed files among the pins, by number.
    files: BTreeMap<u64, PackedFile>,
}

impl Expected {
    pub(super) fn pinned(&mut self, number: u64, dag: Vec<Block>) {
        self.dags.insert(number, (dag, true));
    }

    pub(super) async fn check(&self, disk: &dyn BlockStore, what: &str) {
        let pins: Vec<_> = disk.pins().await.expect("lists").into_iter().map(|pin| (pin.root, pin.state)).collect();
        let mut blocks: Vec<&Block> = self.flushed.iter().collect();
        for (number, (dag, pinned)) in &self.dags {
            let found = pins.iter().find(|(root, _)| root == dag[0].cid()).map(|(_, state)| *state);
            assert_eq!(found, pinned.then_some(PinState::Complete), "{what}: {number}");
            blocks.extend(dag.iter().filter(|_| *pinned));
            if let Some(file) = self.files.get(number) {
                assert_eq!(disk.plain_file(&file.zstd_key()), pinned.then_some(file.root), "{what}: {number}");
            }
        }
        for block in blocks {
            assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block), "{what}: {}", block.cid());
        }
    }
}

/// A copy of the store after power loss, and the expected pins.
struct Cut {
    dir: TempDir,
    expected: Expected,
    what: String,
}

impl Cut {
    /// Simulates power loss now.
    fn now(store: &Store, dir: &Path, expected: &Expected, lost: Lost, random: &mut Random) -> Self {
        let elsewhere = tempfile::tempdir().expect("a directory");
        let volatile = store.files.volatile.lock().expect("not poisoned");
        copy(dir, elsewhere.path());
        lose(elsewhere.path(), &volatile, lost, random);
        Self { dir: elsewhere, expected: expected.clone(), what: format!("{lost:?}") }
    }

    /// Checks the copy as it is, after a flush, and after repeating interrupted operations.
    async fn check(&self, options: &DiskOptions) {
        let Self { dir, expected, what } = self;
        let disk = open_with(dir.path(), options.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
        expected.check(&disk, what).await;
        disk.flush().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        expected.check(&disk, what).await;
        if let Some(root) = expected.again.first() {
            let pinned = disk.pin_recursive(*root.cid(), None, supply(&expected.again)).await;
            pinned.unwrap_or_else(|error| panic!("{what}: {error}"));
            for block in &expected.again {
                assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block), "{what}, again: {}", block.cid());
            }
        }
    }
}

/// Simulates power loss before one call in `every`, in each way.
fn cut_before_calls(disk: &Disk, dir: &Path, expected: &Arc<Mutex<Expected>>, every: u64) -> Arc<Mutex<Vec<Cut>>> {
    let cuts = Arc::<Mutex<Vec<Cut>>>::default();
    let (store, expected, taken): (Weak<Store>, _, _) =
        (Arc::downgrade(disk.store()), Arc::clone(expected), Arc::clone(&cuts));
    let (dir, mut random, mut calls) = (dir.to_owned(), Random(every), 0_u64);
    disk.store().files.faults.plan(move |call| {
        calls += 1;
        if call != Call::Read && random.below(every) == 0 {
            let (store, expected) =
                (store.upgrade().expect("the store is open"), expected.lock().expect("not poisoned").clone());
            for lost in [Lost::Values, Lost::Everything, Lost::Some] {
                let mut cut = Cut::now(&store, &dir, &expected, lost, &mut random);
                cut.what = format!("{lost:?} before call {calls}, {call:?}");
                taken.lock().expect("not poisoned").push(cut);
            }
        }
        None
    });
    cuts
}

async fn check_all(cuts: &Mutex<Vec<Cut>>, options: &DiskOptions) {
    let cuts = std::mem::take(&mut *cuts.lock().expect("not poisoned"));
    assert!(!cuts.is_empty());
    for cut in cuts {
        cut.check(options).await;
    }
}

pub(super) async fn unpin(disk: &dyn BlockStore, expected: &Mutex<Expected>, number: u64) {
    let dag = {
        let mut expected = expected.lock().expect("not poisoned");
        let pinned = expected.dags.get(&number).is_some_and(|(_, pinned)| *pinned);
        pinned.then(|| expected.dags.remove(&number)).flatten()
    };
    let Some((dag, _)) = dag else { return };
    assert!(disk.remove_pin(dag[0].cid()).await.expect("removes"));
    expected.lock().expect("not poisoned").dags.insert(number, (dag, false));
}

#[tokio::test]
async fn acknowledged_pins_survive_power_loss() {
    for round in 0..rounds(3) {
        let (dir, mut random) = (tempfile::tempdir().expect("a directory"), Random(round));
        let disk = open_with(dir.path(), options()).expect("opens");
        let expected = Arc::<Mutex<Expected>>::default();
        let cuts = cut_before_calls(&disk, dir.path(), &expected, 50);
        for number in 0..60 {
            for _ in 0..random.below(6) {
                disk.put_cached(noisy(random.next(), 3_000)).await;
            }
            let blocks = dag(number);
            if random.below(3) == 0 {
                // Some of its blocks are cached already.
                disk.put_cached(blocks[0].clone()).await;
            }
            expected.lock().expect("not poisoned").again.clone_from(&blocks);
            disk.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
            expected.lock().expect("not poisoned").pinned(number, blocks);
            if random.below(2) == 0 {
                unpin(&disk, &expected, random.below(number + 1)).await;
            }
        }
        disk.flush().await.expect("flushes");
        disk.store().files.faults.clear();
        audit(&disk);
        check_all(&cuts, &options()).await;
    }
}

/// All files may be missing after power loss, as long as nothing was acknowledged. Otherwise they are elsewhere.
#[tokio::test]
async fn a_store_without_its_segments_starts_unless_they_had_pins() {
    for is_pinned in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = open_with(dir.path(), options()).expect("opens");
        for seed in 0..30 {
            disk.put_cached(noisy(seed, 3_000)).await;
        }
        let (first, blocks) = (noisy(0, 3_000), dag(7));
        if is_pinned {
            disk.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
        }
        disk.flush().await.expect("flushes");
        assert!(disk.store().segments().expect("are read").len() > 1);
        drop(disk);
        let segments = dir.path().join("segments");
        for file in fs::read_dir(&segments).expect("is there").flatten() {
            fs::remove_file(file.path()).expect("is ours");
        }
        match open_with(dir.path(), options()) {
            Ok(disk) => {
                assert!(!is_pinned, "the pins are lost");
                assert_eq!(disk.get(first.cid()).await, Err(SourceError::NotFound { cid: *first.cid() }));
                disk.put_cached(first.clone()).await;
                disk.flush().await.expect("flushes");
                assert_eq!(disk.get(first.cid()).await, Ok(first));
            }
            Err(error) => assert!(is_pinned && error.to_string().contains("mount the file system"), "{error}"),
        }
    }
}

/// Packed files, beside other pins and cached blocks.
#[tokio::test]
async fn packed_files_survive_power_loss() {
    for round in 0..rounds(2) {
        let (dir, mut random) = (tempfile::tempdir().expect("a directory"), Random(round));
        let disk = open_with(dir.path(), options()).expect("opens");
        let expected = Arc::<Mutex<Expected>>::default();
        let cuts = cut_before_calls(&disk, dir.path(), &expected, 12);
        for number in 0..16 {
            let file = packed::file(100 * round + number, 12_000 + 2_000 * usize::from(number.is_multiple_of(3)));
            if random.below(3) == 0 {
                // Some of its blocks are cached already.
                for block in file.blocks().iter().step_by(2) {
                    disk.put_cached(block.clone()).await;
                }
            }
            expected.lock().expect("not poisoned").again = file.blocks();
            file.add(&disk).await.expect("adds");
            {
                let mut expected = expected.lock().expect("not poisoned");
                expected.pinned(number, file.blocks());
                expected.files.insert(number, file);
            }
            if random.below(2) == 0 {
                unpin(&disk, &expected, random.below(number + 1)).await;
            }
            disk.put_cached(noisy(random.next(), 3_000)).await;
        }
        disk.compact().await.expect("compacts");
        disk.store().files.faults.clear();
        audit(&disk);
        check_all(&cuts, &options()).await;
    }
}

/// A segment is garbage-collected in several batches, and deleted with the last: the values of the first must be synced
/// before the write-ahead log, which may be synced first, refers to them.
#[tokio::test]
async fn pins_survive_power_loss_while_a_segment_is_collected_in_chunks() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = DiskOptions { segment_bytes_max: 4 << 20, ..DiskOptions::default() };
    let disk = open_with(dir.path(), options.clone()).expect("opens");
    let dags: Vec<Vec<Block>> = [(0, 1_100), (10_000, 2_000)]
        .map(|(from, len)| (from..from + len).map(|seed| noisy(seed, 120)).collect())
        .into();
    let pin = |dag: usize| disk.pin_recursive(*dags[dag][0].cid(), None, supply(&dags[dag]));
    let (kept, gone) = tokio::join!(pin(0), pin(1));
    assert!(kept.is_ok() && gone.is_ok());
    let expected = Arc::<Mutex<Expected>>::default();
    for (number, dag) in dags.iter().enumerate() {
        expected.lock().expect("not poisoned").pinned(number as u64, dag.clone());
    }
    let pinned_bytes = disk.stats().pinned_bytes;
    let cuts = cut_before_calls(&disk, dir.path(), &expected, 2);
    unpin(&disk, &expected, 1).await;
    disk.compact().await.expect("compacts");
    assert!(disk.stats().pinned_bytes < pinned_bytes / 2, "it was garbage-collected");
    disk.store().files.faults.clear();
    check_all(&cuts, &options).await;
}

#[tokio::test]
async fn flushed_closed_and_dropped_stores_survive_power_loss() {
    for end in ["flushed", "closed", "dropped"] {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = open_with(dir.path(), DiskOptions::default()).expect("opens");
        let store = Arc::clone(disk.store());
        let flushed: Vec<_> = (0..20).map(|seed| noisy(seed, 10_000)).collect();
        for block in &flushed {
            disk.put_cached(block.clone()).await;
        }
        match end {
            "flushed" => disk.flush().await.expect("flushes"),
            "closed" => disk.close().await.expect("closes"),
            _ => drop(disk),
        }
        let expected = Expected { flushed, ..Expected::default() };
        let mut cut = Cut::now(&store, dir.path(), &expected, Lost::Everything, &mut Random(0));
        cut.what = end.to_owned();
        cut.check(&DiskOptions::default()).await;
    }
}

/// Writes the members of a pin without completing or syncing it.
pub(super) async fn begin_pin(disk: &(dyn BlockStore + 'static), dag: &[Block]) {
    let before = disk.stats().blocks;
    let broken_off = supply(dag).chain(futures::stream::iter([Err(std::io::Error::other("broken off"))]));
    let pinned = disk.pin_recursive(*dag[0].cid(), None, broken_off).await;
    assert!(matches!(pinned, Err(PinError::Blocks(_))), "{pinned:?}");
    until(|| disk.stats().blocks == before + dag.len() as u64).await;
}

/// The members of a pin survive their process in the page cache, and the next process completes the pin.
#[tokio::test]
async fn writes_of_a_killed_process_are_synced_before_they_are_acknowledged() {
    let (first, second) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let dag: Vec<_> = (0..10).map(|seed| noisy(seed, 1_000)).collect();
    let volatile = {
        let disk = open_with(first.path(), options()).expect("opens");
        begin_pin(&disk, &dag).await;
        let volatile = disk.store().files.volatile.lock().expect("not poisoned");
        copy(first.path(), second.path());
        volatile.clone()
    };
    assert!(!volatile.values.is_empty() && !volatile.names.is_empty());
    INHERITED.set(Some(volatile));
    let disk = open_with(second.path(), options()).expect("opens");
    assert_eq!(disk.stats().blocks, dag.len() as u64, "all of it was in the page cache");
    disk.pin_recursive(*dag[0].cid(), None, supply(&dag)).await.expect("pins");
    let mut expected = Expected::default();
    expected.pinned(0, dag);
    for lost in [Lost::Values, Lost::Everything] {
        Cut::now(disk.store(), second.path(), &expected, lost, &mut Random(0)).check(&options()).await;
    }
}

/// Only the index rows of a pin's members may be left, and the pin is resumed.
#[tokio::test]
async fn members_lost_in_power_loss_are_written_again_when_the_pin_is_resumed() {
    for lost in [Lost::Values, Lost::Everything, Lost::Some] {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = open_with(dir.path(), options()).expect("opens");
        let (kept, dag): (Vec<_>, Vec<_>) =
            (0..20).map(|seed| noisy(seed, 1_000)).partition(|block| block.data()[0] < 99);
        disk.pin_recursive(*kept[0].cid(), None, supply(&kept)).await.expect("pins");
        let mut expected = Expected { again: dag.clone(), ..Expected::default() };
        expected.pinned(0, kept.clone());
        begin_pin(&disk, &dag).await;
        Cut::now(disk.store(), dir.path(), &expected, lost, &mut Random(1)).check(&options()).await;
    }
}

/// So that there is little to verify after power loss, however large a pin is.
#[tokio::test]
async fn a_full_segment_of_pinned_blocks_is_synced() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), options()).expect("opens");
    let dag: Vec<_> = (0..200).map(|seed| noisy(seed, 1_000)).collect();
    begin_pin(&disk, &dag).await;
    let segments = disk.store().segments().expect("reads");
    let (last, _) = segments.last().expect("there are some");
    let synced = disk.store().synced().expect("reads").expect("is noted");
    assert!(segments.len() > 3 && synced.segment == *last, "{synced:?} of {segments:?}");
    let volatile = disk.store().files.volatile.lock().expect("not poisoned");
    assert!(volatile.values.iter().all(|(segment, ..)| segment == last));
}
