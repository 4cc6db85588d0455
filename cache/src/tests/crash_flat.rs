//! `kill -9` at any moment, as in [`super::crash`], of a store of flat files: a child pins, caches and unpins without end.

use super::crash::{CACHE_BYTES, check, child, crash, rounds, say, told};
use super::suite::{Home, Kind, Setup, open};
use super::{Random, noisy, supply};
use crate::PinState;
use content::Block;
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// The DAG that a number stands for: 1 to 30 blocks, some of them in neighbouring DAGs too.
fn dag(number: u64) -> Vec<Block> {
    let mut random = Random(number);
    let len = 1 + random.below(30);
    let own = (0..len).map(|i| noisy(number * 1_000 + i, usize::try_from(1 + random.below(20_000)).expect("small")));
    let shared = (0..3).map(|i| noisy(u64::MAX - number / 4 - i, 700));
    own.chain(shared).collect()
}

fn setup() -> Setup {
    Setup { cache_bytes_max: CACHE_BYTES, ..Setup::default() }
}

/// The child: works until it is killed.
async fn work(dir: &Path, seed: u64) {
    let store = open(Kind::Flat, dir, setup()).expect("opens");
    let mut random = Random(seed);
    for number in seed.. {
        for _ in 0..random.below(10) {
            store.put_cached(noisy(random.next(), 10_000)).await;
        }
        let blocks = dag(number);
        let pin = store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
        assert_eq!(pin.state, PinState::Complete);
        say("pinned", number);
        if random.below(5) == 0 {
            let victim = seed + random.below(number - seed + 1);
            say("unpinning", victim);
            store.remove_pin(dag(victim)[0].cid()).await.expect("removes");
            say("unpinned", victim);
        }
    }
}

#[tokio::test]
async fn child_of_the_flat_crash_test() {
    let Some((dir, seed)) = told() else { return };
    work(&dir, seed).await;
}

#[tokio::test]
async fn acknowledged_pins_in_files_survive_kill_9() {
    let home = Home::new(Kind::Flat);
    let mut owed = HashMap::new();
    for round in 0..rounds() {
        let mut random = Random(round);
        let test = child("tests::crash_flat::child_of_the_flat_crash_test", home.dir.path());
        crash(test, 1 + round * 1_000_000, 1 + random.below(120), Duration::ZERO, &mut owed);
        let store = home.open(setup()).await;
        store.settle().await;
        check(&*store.store, dag, &owed).await;
        store.settle().await;
        assert_eq!(store.stats().corrupt_blocks, 0);
        assert!(store.stats().cached_bytes <= CACHE_BYTES);
    }
}
