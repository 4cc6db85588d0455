//! Power loss at any moment: what was acknowledged is there when the store is opened again.
//!
//! The store notes what it has written and not synced. Now and then, with everything that writes held up, its directory is
//! copied, and the copy loses some or all of that: values become zeros, new files vanish, and RocksDB's log ends anywhere
//! after what was synced of it. Then the copy is opened.

use super::audit::audit;
use super::{Random, noisy, open_with, supply};
use crate::disk::files::Volatile;
use crate::{Disk, DiskOptions, PinState};
use content::{Block, BlockSource};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const ROUNDS: &str = "CAUSEWAY_CRASH_ROUNDS";

fn options() -> DiskOptions {
    // Small segments, so that they are evicted, collected and deleted all the time.
    DiskOptions { cache_bytes_max: 300_000, segment_bytes_max: 60_000, ..DiskOptions::default() }
}

/// The DAG that a number stands for: up to twelve blocks, some of them in neighbouring DAGs too.
fn dag(number: u64) -> Vec<Block> {
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

fn copy(from: &Path, to: &Path) {
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

/// What the store owes: pins that were acknowledged (`true`), and removals.
type Owed = BTreeMap<u64, bool>;

async fn check(dir: &Path, owed: &Owed, what: &str) {
    let disk = open_with(dir, options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    for reads in 0..2 {
        let pins: Vec<_> = disk.pins().await.expect("lists").into_iter().map(|pin| (pin.root, pin.state)).collect();
        for (number, pinned) in owed {
            let blocks = dag(*number);
            let found = pins.iter().find(|(root, _)| root == blocks[0].cid()).map(|(_, state)| *state);
            assert_eq!(found, pinned.then_some(PinState::Complete), "{what}: {number}");
            for block in blocks.iter().filter(|_| *pinned) {
                assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block), "{what}: a block of {number}, {reads}");
            }
        }
        // Once as it was found, once when it is tidy.
        disk.flush().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// The power goes.
async fn fail(disk: &Disk, dir: &Path, owed: &Owed, random: &mut Random) {
    for lost in [Lost::Values, Lost::Everything, Lost::Some] {
        let elsewhere = tempfile::tempdir().expect("a directory");
        {
            let volatile = disk.store().files.volatile.lock().expect("nobody panics");
            copy(dir, elsewhere.path());
            lose(elsewhere.path(), &volatile, lost, random);
        }
        check(elsewhere.path(), owed, &format!("{lost:?}")).await;
    }
}

#[tokio::test]
async fn acknowledged_pins_survive_power_loss() {
    let rounds = std::env::var(ROUNDS).ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3);
    for round in 0..rounds {
        let (dir, mut random) = (tempfile::tempdir().expect("a directory"), Random(round));
        let disk = open_with(dir.path(), options()).expect("opens");
        let mut owed = Owed::new();
        for number in 0..60 {
            for _ in 0..random.below(6) {
                disk.put_cached(noisy(random.next(), 3_000)).await;
            }
            let blocks = dag(number);
            if random.below(3) == 0 {
                // Part of it is cached already.
                disk.put_cached(blocks[0].clone()).await;
            }
            disk.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
            owed.insert(number, true);
            if random.below(2) == 0 {
                let victim = random.below(number + 1);
                if owed.insert(victim, false) == Some(true) {
                    assert!(disk.remove_pin(dag(victim)[0].cid()).await.expect("removes"));
                }
            }
            if random.below(6) == 0 {
                fail(&disk, dir.path(), &owed, &mut random).await;
            }
        }
        disk.flush().await.expect("flushes");
        audit(&disk);
    }
}
