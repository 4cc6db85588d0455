//! Power loss at any moment, for the flat store: acknowledged pins are there when it is reopened.
//!
//! Before some of the store's file system calls, its directory is copied, and the copy loses some or all changes that
//! POSIX does not guarantee by then ([`crate::flat::power`]). Then the copy is opened and checked for the acknowledged
//! pins.
//!
//! More rounds: `CAUSEWAY_CRASH_ROUNDS=300 cargo test --release -p causeway-cache --lib power`.
//!
//! These tests fail if any sync is removed from the store: of a value, of its name and its directory's name, of a pin's
//! list and its file, of what a killed process left of these; or if one of them comes after the pin's file. On ext4,
//! half of these removals have no effect ([`super::device`]), since it syncs names with the next synced file.

use super::crash::rounds;
use super::power::{Expected, begin_pin, copy, dag, unpin};
use super::{Random, noisy, supply};
use crate::flat::power::{Call, Power, Volatile, watch};
use crate::flat::{self, FlatOptions};
use crate::{BlockStore, PinError, PinState, ScrubPass, StoreError};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// Which unsynced changes are lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// Contents of files; names are kept.
    Contents,
    /// Names; contents are kept.
    Names,
    Everything,
    /// Some of both.
    Some,
}

impl Lost {
    const ALL: [Self; 4] = [Self::Contents, Self::Names, Self::Everything, Self::Some];

    fn take(self, volatile: &Volatile, random: &mut Random) {
        let (mut of_contents, mut of_names) = (Random(random.next()), Random(random.next()));
        let kept = |random: &mut Random, all: u64, lost: bool| match self {
            Self::Some => random.below(all + 1),
            _ if lost => 0,
            _ => all,
        };
        let contents = matches!(self, Self::Contents | Self::Everything);
        let names = matches!(self, Self::Names | Self::Everything);
        volatile.lose(|all| kept(&mut of_contents, all, contents), |all| kept(&mut of_names, all, names));
    }
}

fn options() -> FlatOptions {
    FlatOptions { cache_bytes_max: 300_000, free_bytes_min: 0, ..FlatOptions::default() }
}

fn open(dir: &Path) -> Arc<dyn BlockStore> {
    flat::open(dir, &options()).expect("opens")
}

/// A store whose calls are recorded from the start.
fn watched() -> (TempDir, &'static Mutex<Power>, Arc<dyn BlockStore>) {
    let dir = tempfile::tempdir().expect("a directory");
    let power = watch(dir.path(), Volatile::default());
    let store = open(dir.path());
    (dir, power, store)
}

/// A copy of the store after power loss, and the expected pins.
struct Cut {
    dir: TempDir,
    expected: Expected,
    what: String,
}

impl Cut {
    fn now(dir: &Path, volatile: &Volatile, expected: &Expected, lost: Lost, random: &mut Random) -> Self {
        let elsewhere = tempfile::tempdir().expect("a directory");
        copy(dir, elsewhere.path());
        lost.take(&volatile.of_copy(dir, elsewhere.path()), random);
        Self { dir: elsewhere, expected: expected.clone(), what: format!("{lost:?}") }
    }

    async fn check(&self) {
        let Self { dir, expected, what } = self;
        let store = open(dir.path());
        expected.check(&*store, what).await;
        store.scrub(ScrubPass::All, None, &mut |_, _| ()).await.expect("scrubs");
        expected.check(&*store, what).await;
        if let Some(root) = expected.again.first() {
            let pinned = store.pin_recursive(*root.cid(), None, supply(&expected.again)).await;
            pinned.unwrap_or_else(|error| panic!("{what}: {error}"));
            for block in &expected.again {
                assert_eq!(store.get(block.cid()).await.as_ref(), Ok(block), "{what}, again: {}", block.cid());
            }
        }
    }
}

/// Simulates power loss now, in each way.
async fn cut_now(dir: &Path, power: &Mutex<Power>, expected: &Expected, what: &str) {
    let volatile = power.lock().expect("not poisoned").volatile.clone();
    for lost in Lost::ALL {
        let mut cut = Cut::now(dir, &volatile, expected, lost, &mut Random(1));
        cut.what = format!("{what}, {lost:?}");
        cut.check().await;
    }
}

#[tokio::test]
async fn acknowledged_pins_in_files_survive_power_loss() {
    for round in 0..rounds(3) {
        let (dir, power, store) = watched();
        let (expected, cuts) = (Arc::<Mutex<Expected>>::default(), Arc::<Mutex<Vec<Cut>>>::default());
        power.lock().expect("not poisoned").plan({
            let (dir, expected, cuts) = (dir.path().to_owned(), Arc::clone(&expected), Arc::clone(&cuts));
            let (mut random, mut calls) = (Random(round), 0_u64);
            move |call, volatile| {
                calls += 1;
                // Only some calls, since there are many for each pin.
                let every = if matches!(call, Call::Write(..)) { 400 } else { 100 };
                if random.below(every) == 0 {
                    let expected = expected.lock().expect("not poisoned").clone();
                    for lost in Lost::ALL {
                        let mut cut = Cut::now(&dir, volatile, &expected, lost, &mut random);
                        cut.what = format!("{lost:?} before call {calls}, {call:?}");
                        cuts.lock().expect("not poisoned").push(cut);
                    }
                }
                Ok(())
            }
        });
        let mut random = Random(round);
        for number in 0..30 {
            for _ in 0..random.below(4) {
                store.put_cached(noisy(random.next(), 3_000)).await;
            }
            let blocks = dag(number);
            if random.below(3) == 0 {
                // Some of its blocks are cached already.
                store.put_cached(blocks[0].clone()).await;
            }
            expected.lock().expect("not poisoned").again.clone_from(&blocks);
            store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
            expected.lock().expect("not poisoned").pinned(number, blocks);
            if random.below(2) == 0 {
                unpin(&*store, &expected, random.below(number + 1)).await;
            }
        }
        store.flush().await.expect("flushes");
        power.lock().expect("not poisoned").clear();
        let expected = expected.lock().expect("not poisoned").clone();
        cut_now(dir.path(), power, &expected, "at the end").await;
        let cuts = std::mem::take(&mut *cuts.lock().expect("not poisoned"));
        for cut in cuts {
            cut.check().await;
        }
    }
}

/// The state left by a killed process, and when it was killed.
type Killed = (TempDir, Volatile, String);

/// A process is killed before some call; the next one finds the page cache, repeats the operation, and its
/// acknowledgement must be durable.
#[tokio::test]
async fn file_writes_of_a_killed_process_are_synced_before_they_are_acknowledged() {
    let (dir, power, store) = watched();
    let blocks = dag(3);
    let killed = Arc::<Mutex<Vec<Killed>>>::default();
    power.lock().expect("not poisoned").plan({
        let (dir, killed) = (dir.path().to_owned(), Arc::clone(&killed));
        move |call, volatile| {
            let elsewhere = tempfile::tempdir().expect("a directory");
            copy(&dir, elsewhere.path());
            let volatile = volatile.of_copy(&dir, elsewhere.path());
            killed.lock().expect("not poisoned").push((elsewhere, volatile, format!("killed before {call:?}")));
            Ok(())
        }
    });
    begin_pin(&*store, &blocks).await;
    store.pin_recursive(*blocks[0].cid(), Some("mine".to_owned()), supply(&blocks)).await.expect("pins");
    power.lock().expect("not poisoned").clear();
    let killed = std::mem::take(&mut *killed.lock().expect("not poisoned"));
    assert!(killed.len() > 2 * blocks.len());
    for (dir, volatile, what) in killed {
        let power = watch(dir.path(), volatile);
        let store = open(dir.path());
        store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
        let mut expected = Expected::default();
        expected.pinned(3, blocks.clone());
        cut_now(dir.path(), power, &expected, &what).await;
    }
}

/// Fails syncing the directory of pins.
fn fail_name_sync(call: Call<'_>, _: &Volatile) -> io::Result<()> {
    let refused = matches!(call, Call::SyncFolder(folder) if folder.ends_with("pins"));
    if refused { Err(io::Error::other("refused")) } else { Ok(()) }
}

#[tokio::test]
async fn a_pin_whose_removal_failed_is_written_again_when_it_is_pinned_again() {
    let (dir, power, store) = watched();
    let blocks = dag(3);
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    power.lock().expect("not poisoned").plan(fail_name_sync);
    let removed = store.remove_pin(blocks[0].cid()).await;
    assert!(matches!(removed, Err(StoreError::Io(_))), "{removed:?}");
    power.lock().expect("not poisoned").clear();
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    let mut expected = Expected::default();
    expected.pinned(3, blocks);
    cut_now(dir.path(), power, &expected, "removed and pinned again").await;
}

#[tokio::test]
async fn a_root_whose_pin_could_not_be_begun_has_only_one_pin_later() {
    let (dir, power, store) = watched();
    let blocks = dag(3);
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    assert!(store.remove_pin(blocks[0].cid()).await.expect("removes"));
    // The begun pin cannot be removed either.
    power.lock().expect("not poisoned").plan(|call, volatile| match call {
        Call::Remove(path) if path.extension().is_some_and(|extension| extension == "pin") => {
            Err(io::Error::other("refused"))
        }
        call => fail_name_sync(call, volatile),
    });
    let pinned = store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "{pinned:?}");
    power.lock().expect("not poisoned").clear();
    let pin = store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    let mut expected = Expected::default();
    expected.pinned(3, blocks);
    cut_now(dir.path(), power, &expected, "begun twice").await;
    drop(store);
    let pins = open(dir.path()).pins().await.expect("lists");
    assert_eq!((pins.len(), pins[0].id, pins[0].state), (1, pin.id, PinState::Complete));
}

#[tokio::test]
async fn after_a_failed_sync_no_pin_is_acknowledged_until_the_flat_store_is_reopened() {
    let (dir, power, store) = watched();
    let blocks = dag(3);
    begin_pin(&*store, &blocks).await;
    power.lock().expect("not poisoned").plan(fail_name_sync);
    let pinned = store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "{pinned:?}");
    power.lock().expect("not poisoned").clear();
    let pinned = store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "a later successful sync does not count");
    assert!(store.stats().degraded(), "it says so");
    store.close().await.expect_err("the failed sync is not retried");
    drop(store);
    let store = open(dir.path());
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    assert!(!store.stats().degraded());
}
