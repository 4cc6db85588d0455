//! Power loss at any moment: what was acknowledged is there when the store is opened again.
//!
//! The store notes what it has written and not synced. Before some or all of the calls that it makes of the file system,
//! its directory is copied, and the copy loses some or all of that: values become zeros, new files vanish, and RocksDB's log
//! ends anywhere after what was synced of it. Then the copy is opened, and asked for what had been acknowledged by then.
//!
//! More rounds: `CAUSEWAY_CRASH_ROUNDS=300 cargo test --release -p causeway-cache --lib power`. A store of files has the same in
//! [`super::power_flat`]; a real file system is cut off in [`super::device`].
//!
//! Each step was taken away once, to see who misses it:
//!
//! | without | fails |
//! |---|---|
//! | values synced before the batch that acknowledges them, or synced after it | all of this, [`super::device`], [`super::faults`] |
//! | names of segments synced | all of this: ext4 has them on the disk with the file |
//! | RocksDB's log synced with a batch that acknowledges | this, [`super::device`] |
//! | values synced before the rows that move them | `pins_survive_power_loss_while_a_segment_is_collected_in_chunks` |
//! | rows synced before the file of a pinned segment is deleted | the same, `acknowledged_pins_survive_power_loss` |
//! | the file deleted after the batch | that, [`super::faults`], [`super::scrub`] |

use super::audit::audit;
use super::crash::rounds;
use super::{Random, noisy, open_with, supply, until};
use crate::disk::faults::{Call, INHERITED};
use crate::disk::files::Volatile;
use crate::disk::store::Store;
use crate::{BlockStore, Disk, DiskOptions, PinError, PinState};
use content::{Block, BlockSource};
use futures::StreamExt as _;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use tempfile::TempDir;

fn options() -> DiskOptions {
    // Small segments, so that they are evicted, collected and deleted all the time.
    DiskOptions { cache_bytes_max: 300_000, segment_bytes_max: 60_000, ..DiskOptions::default() }
}

/// The DAG that a number stands for: up to twelve blocks, some of them in neighbouring DAGs too.
pub(super) fn dag(number: u64) -> Vec<Block> {
    let mut random = Random(number);
    let own = (0..1 + random.below(10)).map(|i| noisy(number * 100 + i, 500 + 1_500 * (i as usize % 4)));
    let shared = (0..2).map(|i| noisy(u64::MAX - number / 3 - i, 700));
    own.chain(shared).collect()
}

/// How much of what was not synced is lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// The values, while all of the log is there.
    Values,
    /// Everything.
    Everything,
    /// Some of either.
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

/// What the store owes: whether a root is pinned, as far as whoever asked has heard. A pin or a removal that was not answered is
/// owed neither way.
#[derive(Debug, Clone, Default)]
pub(super) struct Owed {
    dags: BTreeMap<u64, (Vec<Block>, bool)>,
    /// What was being pinned, or had been and was let go: to be pinned again.
    pub(super) again: Vec<Block>,
    /// Blocks that were flushed, in a store that evicts nothing.
    flushed: Vec<Block>,
}

impl Owed {
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
        }
        for block in blocks {
            assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block), "{what}: {}", block.cid());
        }
    }
}

/// What is left when the power goes, and what was owed.
struct Cut {
    dir: TempDir,
    owed: Owed,
    what: String,
}

impl Cut {
    /// The power goes now.
    fn now(store: &Store, dir: &Path, owed: &Owed, lost: Lost, random: &mut Random) -> Self {
        let elsewhere = tempfile::tempdir().expect("a directory");
        let volatile = store.files.volatile.lock().expect("nobody panics");
        copy(dir, elsewhere.path());
        lose(elsewhere.path(), &volatile, lost, random);
        Self { dir: elsewhere, owed: owed.clone(), what: format!("{lost:?}") }
    }

    /// As it was found, when it is tidy, and when what was cut off has been done again.
    async fn check(&self, options: &DiskOptions) {
        let Self { dir, owed, what } = self;
        let disk = open_with(dir.path(), options.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
        owed.check(&disk, what).await;
        disk.flush().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        owed.check(&disk, what).await;
        if let Some(root) = owed.again.first() {
            let pinned = disk.pin_recursive(*root.cid(), None, supply(&owed.again)).await;
            pinned.unwrap_or_else(|error| panic!("{what}: {error}"));
            for block in &owed.again {
                assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block), "{what}, again: {}", block.cid());
            }
        }
    }
}

/// The power goes before one call in `every`, in each of the ways.
fn cut_before_calls(disk: &Disk, dir: &Path, owed: &Arc<Mutex<Owed>>, every: u64) -> Arc<Mutex<Vec<Cut>>> {
    let cuts = Arc::<Mutex<Vec<Cut>>>::default();
    let (store, owed, taken): (Weak<Store>, _, _) = (Arc::downgrade(disk.store()), Arc::clone(owed), Arc::clone(&cuts));
    let (dir, mut random, mut calls) = (dir.to_owned(), Random(every), 0_u64);
    disk.store().files.faults.plan(move |call| {
        calls += 1;
        if call != Call::Read && random.below(every) == 0 {
            let (store, owed) = (store.upgrade().expect("it calls"), owed.lock().expect("nobody panics").clone());
            for lost in [Lost::Values, Lost::Everything, Lost::Some] {
                let mut cut = Cut::now(&store, &dir, &owed, lost, &mut random);
                cut.what = format!("{lost:?} before call {calls}, {call:?}");
                taken.lock().expect("nobody panics").push(cut);
            }
        }
        None
    });
    cuts
}

async fn check_all(cuts: &Mutex<Vec<Cut>>, options: &DiskOptions) {
    let cuts = std::mem::take(&mut *cuts.lock().expect("nobody panics"));
    assert!(!cuts.is_empty());
    for cut in cuts {
        cut.check(options).await;
    }
}

pub(super) async fn unpin(disk: &dyn BlockStore, owed: &Mutex<Owed>, number: u64) {
    let dag = {
        let mut owed = owed.lock().expect("nobody panics");
        let pinned = owed.dags.get(&number).is_some_and(|(_, pinned)| *pinned);
        pinned.then(|| owed.dags.remove(&number)).flatten()
    };
    let Some((dag, _)) = dag else { return };
    assert!(disk.remove_pin(dag[0].cid()).await.expect("removes"));
    owed.lock().expect("nobody panics").dags.insert(number, (dag, false));
}

#[tokio::test]
async fn acknowledged_pins_survive_power_loss() {
    for round in 0..rounds(3) {
        let (dir, mut random) = (tempfile::tempdir().expect("a directory"), Random(round));
        let disk = open_with(dir.path(), options()).expect("opens");
        let owed = Arc::<Mutex<Owed>>::default();
        let cuts = cut_before_calls(&disk, dir.path(), &owed, 50);
        for number in 0..60 {
            for _ in 0..random.below(6) {
                disk.put_cached(noisy(random.next(), 3_000)).await;
            }
            let blocks = dag(number);
            if random.below(3) == 0 {
                // Part of it is cached already.
                disk.put_cached(blocks[0].clone()).await;
            }
            owed.lock().expect("nobody panics").again.clone_from(&blocks);
            disk.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
            owed.lock().expect("nobody panics").pinned(number, blocks);
            if random.below(2) == 0 {
                unpin(&disk, &owed, random.below(number + 1)).await;
            }
        }
        disk.flush().await.expect("flushes");
        disk.store().files.faults.clear();
        audit(&disk);
        check_all(&cuts, &options()).await;
    }
}

/// What is left of a segment is moved in several batches, and the segment goes with the last: the values of the first have
/// to be on the disk before the log, which goes there by itself, names them.
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
    let owed = Arc::<Mutex<Owed>>::default();
    for (number, dag) in dags.iter().enumerate() {
        owed.lock().expect("nobody panics").pinned(number as u64, dag.clone());
    }
    let pinned_bytes = disk.stats().pinned_bytes;
    let cuts = cut_before_calls(&disk, dir.path(), &owed, 2);
    unpin(&disk, &owed, 1).await;
    disk.compact().await.expect("compacts");
    assert!(disk.stats().pinned_bytes < pinned_bytes / 2, "it was collected");
    disk.store().files.faults.clear();
    check_all(&cuts, &options).await;
}

#[tokio::test]
async fn what_was_flushed_closed_or_dropped_survives_power_loss() {
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
        let owed = Owed { flushed, ..Owed::default() };
        let mut cut = Cut::now(&store, dir.path(), &owed, Lost::Everything, &mut Random(0));
        cut.what = end.to_owned();
        cut.check(&DiskOptions::default()).await;
    }
}

/// Writes the members of a pin that is not completed, and waits until they are written, which does not sync them.
pub(super) async fn begin_pin(disk: &(dyn BlockStore + 'static), dag: &[Block]) {
    let before = disk.stats().blocks;
    let broken_off = supply(dag).chain(futures::stream::iter([Err(std::io::Error::other("broken off"))]));
    let pinned = disk.pin_recursive(*dag[0].cid(), None, broken_off).await;
    assert!(matches!(pinned, Err(PinError::Blocks(_))), "{pinned:?}");
    until(|| disk.stats().blocks == before + dag.len() as u64).await;
}

/// The members of a pin outlive their process in the system's memory, and the pin is completed by the next one.
#[tokio::test]
async fn what_a_killed_process_did_not_sync_is_synced_before_it_counts() {
    let (first, second) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let dag: Vec<_> = (0..10).map(|seed| noisy(seed, 1_000)).collect();
    let volatile = {
        let disk = open_with(first.path(), options()).expect("opens");
        begin_pin(&disk, &dag).await;
        let volatile = disk.store().files.volatile.lock().expect("nobody panics");
        copy(first.path(), second.path());
        volatile.clone()
    };
    assert!(!volatile.values.is_empty() && !volatile.names.is_empty());
    INHERITED.set(Some(volatile));
    let disk = open_with(second.path(), options()).expect("opens");
    assert_eq!(disk.stats().blocks, dag.len() as u64, "all of it was in memory");
    disk.pin_recursive(*dag[0].cid(), None, supply(&dag)).await.expect("pins");
    let mut owed = Owed::default();
    owed.pinned(0, dag);
    for lost in [Lost::Values, Lost::Everything] {
        Cut::now(disk.store(), second.path(), &owed, lost, &mut Random(0)).check(&options()).await;
    }
}

/// The index may be all that is left of a pin's members, and the pin is gone on with.
#[tokio::test]
async fn what_a_power_cut_took_of_a_pin_is_written_again_when_it_is_gone_on_with() {
    for lost in [Lost::Values, Lost::Everything, Lost::Some] {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = open_with(dir.path(), options()).expect("opens");
        let (kept, dag): (Vec<_>, Vec<_>) =
            (0..20).map(|seed| noisy(seed, 1_000)).partition(|block| block.data()[0] < 99);
        disk.pin_recursive(*kept[0].cid(), None, supply(&kept)).await.expect("pins");
        let mut owed = Owed { again: dag.clone(), ..Owed::default() };
        owed.pinned(0, kept.clone());
        begin_pin(&disk, &dag).await;
        Cut::now(disk.store(), dir.path(), &owed, lost, &mut Random(1)).check(&options()).await;
    }
}

/// So there is little to check after a power cut, however large a pin.
#[tokio::test]
async fn a_segment_of_pinned_blocks_that_is_full_is_synced() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), options()).expect("opens");
    let dag: Vec<_> = (0..200).map(|seed| noisy(seed, 1_000)).collect();
    begin_pin(&disk, &dag).await;
    let segments = disk.store().segments().expect("reads");
    let (last, _) = segments.last().expect("there are some");
    let synced = disk.store().synced().expect("reads").expect("is noted");
    assert!(segments.len() > 3 && synced.segment == *last, "{synced:?} of {segments:?}");
    let volatile = disk.store().files.volatile.lock().expect("nobody panics");
    assert!(volatile.values.iter().all(|(segment, ..)| segment == last));
}
