//! Power loss at any moment, for the store of files: what was acknowledged is there when it is opened again.
//!
//! Before some of the calls that the store makes of the file system, its folder is copied, and the copy loses some or all of what
//! POSIX does not promise by then ([`crate::flat::power`]). Then the copy is opened, and asked for what had been acknowledged.
//!
//! More rounds: `CAUSEWAY_CRASH_ROUNDS=300 cargo test --release -p causeway-cache --lib power`.
//!
//! Each sync of the store was taken away once, and is missed here: that of a value, of its folder's name and of the folder's own, of a
//! pin's list and of its file, of what a killed process left of any of these; and that all of them come before the pin's file.
//! ext4 hides half of these ([`super::device`]): it has names on the disk with the next file that is synced.

use super::crash::rounds;
use super::power::{Owed, begin_pin, copy, dag, unpin};
use super::{Random, noisy, supply};
use crate::flat::power::{Call, Power, Volatile, watch};
use crate::flat::{self, FlatOptions};
use crate::{BlockStore, PinError, PinState, ScrubPass, StoreError};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// How much of what was not synced is lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// What files hold, while all of their names are there.
    Contents,
    /// Names, while all that is in the files is there.
    Names,
    Everything,
    /// Some of either.
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

/// A store whose calls are watched from the first.
fn watched() -> (TempDir, &'static Mutex<Power>, Arc<dyn BlockStore>) {
    let dir = tempfile::tempdir().expect("a directory");
    let power = watch(dir.path(), Volatile::default());
    let store = open(dir.path());
    (dir, power, store)
}

/// What is left when the power goes, and what was owed.
struct Cut {
    dir: TempDir,
    owed: Owed,
    what: String,
}

impl Cut {
    fn now(dir: &Path, volatile: &Volatile, owed: &Owed, lost: Lost, random: &mut Random) -> Self {
        let elsewhere = tempfile::tempdir().expect("a directory");
        copy(dir, elsewhere.path());
        lost.take(&volatile.of_copy(dir, elsewhere.path()), random);
        Self { dir: elsewhere, owed: owed.clone(), what: format!("{lost:?}") }
    }

    async fn check(&self) {
        let Self { dir, owed, what } = self;
        let store = open(dir.path());
        owed.check(&*store, what).await;
        store.scrub(ScrubPass::All, None, &mut |_, _| ()).await.expect("scrubs");
        owed.check(&*store, what).await;
        if let Some(root) = owed.again.first() {
            let pinned = store.pin_recursive(*root.cid(), None, supply(&owed.again)).await;
            pinned.unwrap_or_else(|error| panic!("{what}: {error}"));
            for block in &owed.again {
                assert_eq!(store.get(block.cid()).await.as_ref(), Ok(block), "{what}, again: {}", block.cid());
            }
        }
    }
}

/// The power goes now, in each of the ways.
async fn cut_now(dir: &Path, power: &Mutex<Power>, owed: &Owed, what: &str) {
    let volatile = power.lock().expect("nobody panics").volatile.clone();
    for lost in Lost::ALL {
        let mut cut = Cut::now(dir, &volatile, owed, lost, &mut Random(1));
        cut.what = format!("{what}, {lost:?}");
        cut.check().await;
    }
}

#[tokio::test]
async fn acknowledged_pins_in_files_survive_power_loss() {
    for round in 0..rounds(3) {
        let (dir, power, store) = watched();
        let (owed, cuts) = (Arc::<Mutex<Owed>>::default(), Arc::<Mutex<Vec<Cut>>>::default());
        power.lock().expect("nobody panics").plan({
            let (dir, owed, cuts) = (dir.path().to_owned(), Arc::clone(&owed), Arc::clone(&cuts));
            let (mut random, mut calls) = (Random(round), 0_u64);
            move |call, volatile| {
                calls += 1;
                // Of the calls there are many more than of what they do to a pin.
                let every = if matches!(call, Call::Write(..)) { 400 } else { 100 };
                if random.below(every) == 0 {
                    let owed = owed.lock().expect("nobody panics").clone();
                    for lost in Lost::ALL {
                        let mut cut = Cut::now(&dir, volatile, &owed, lost, &mut random);
                        cut.what = format!("{lost:?} before call {calls}, {call:?}");
                        cuts.lock().expect("nobody panics").push(cut);
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
                // Part of it is cached already.
                store.put_cached(blocks[0].clone()).await;
            }
            owed.lock().expect("nobody panics").again.clone_from(&blocks);
            store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
            owed.lock().expect("nobody panics").pinned(number, blocks);
            if random.below(2) == 0 {
                unpin(&*store, &owed, random.below(number + 1)).await;
            }
        }
        store.flush().await.expect("flushes");
        power.lock().expect("nobody panics").clear();
        let owed = owed.lock().expect("nobody panics").clone();
        cut_now(dir.path(), power, &owed, "at the end").await;
        let cuts = std::mem::take(&mut *cuts.lock().expect("nobody panics"));
        for cut in cuts {
            cut.check().await;
        }
    }
}

/// What a killed process leaves to the system, and when that was.
type Killed = (TempDir, Volatile, String);

/// A process is killed before some call; the next one finds what the system has in its memory, does the same again, and what it
/// says then is on the disk.
#[tokio::test]
async fn what_a_killed_process_left_unsynced_in_files_is_synced_before_it_counts() {
    let (dir, power, store) = watched();
    let blocks = dag(3);
    let killed = Arc::<Mutex<Vec<Killed>>>::default();
    power.lock().expect("nobody panics").plan({
        let (dir, killed) = (dir.path().to_owned(), Arc::clone(&killed));
        move |call, volatile| {
            let elsewhere = tempfile::tempdir().expect("a directory");
            copy(&dir, elsewhere.path());
            let volatile = volatile.of_copy(&dir, elsewhere.path());
            killed.lock().expect("nobody panics").push((elsewhere, volatile, format!("killed before {call:?}")));
            Ok(())
        }
    });
    begin_pin(&*store, &blocks).await;
    store.pin_recursive(*blocks[0].cid(), Some("mine".to_owned()), supply(&blocks)).await.expect("pins");
    power.lock().expect("nobody panics").clear();
    let killed = std::mem::take(&mut *killed.lock().expect("nobody panics"));
    assert!(killed.len() > 2 * blocks.len());
    for (dir, volatile, what) in killed {
        let power = watch(dir.path(), volatile);
        let store = open(dir.path());
        store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
        let mut owed = Owed::default();
        owed.pinned(3, blocks.clone());
        cut_now(dir.path(), power, &owed, &what).await;
    }
}

/// Refuses the names of pins to be synced.
fn refuse_names(call: Call<'_>, _: &Volatile) -> io::Result<()> {
    let refused = matches!(call, Call::SyncFolder(folder) if folder.ends_with("pins"));
    if refused { Err(io::Error::other("refused")) } else { Ok(()) }
}

#[tokio::test]
async fn a_pin_whose_removal_failed_is_written_again_when_it_is_pinned_again() {
    let (dir, power, store) = watched();
    let blocks = dag(3);
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    power.lock().expect("nobody panics").plan(refuse_names);
    let removed = store.remove_pin(blocks[0].cid()).await;
    assert!(matches!(removed, Err(StoreError::Io(_))), "{removed:?}");
    power.lock().expect("nobody panics").clear();
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    let mut owed = Owed::default();
    owed.pinned(3, blocks);
    cut_now(dir.path(), power, &owed, "removed and pinned again").await;
}

#[tokio::test]
async fn a_root_whose_pin_could_not_be_begun_has_one_pin_afterwards() {
    let (dir, power, store) = watched();
    let blocks = dag(3);
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    assert!(store.remove_pin(blocks[0].cid()).await.expect("removes"));
    // What was begun cannot be taken back either.
    power.lock().expect("nobody panics").plan(|call, volatile| match call {
        Call::Remove(path) if path.extension().is_some_and(|extension| extension == "pin") => {
            Err(io::Error::other("refused"))
        }
        call => refuse_names(call, volatile),
    });
    let pinned = store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "{pinned:?}");
    power.lock().expect("nobody panics").clear();
    let pin = store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    let mut owed = Owed::default();
    owed.pinned(3, blocks);
    cut_now(dir.path(), power, &owed, "begun twice").await;
    drop(store);
    let pins = open(dir.path()).pins().await.expect("lists");
    assert_eq!((pins.len(), pins[0].id, pins[0].state), (1, pin.id, PinState::Complete));
}

#[tokio::test]
async fn after_a_sync_that_failed_no_pin_in_files_is_made_until_the_store_is_opened_again() {
    let (dir, power, store) = watched();
    let blocks = dag(3);
    begin_pin(&*store, &blocks).await;
    power.lock().expect("nobody panics").plan(refuse_names);
    let pinned = store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "{pinned:?}");
    power.lock().expect("nobody panics").clear();
    let pinned = store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "a later sync says nothing of what is lost");
    assert!(store.stats().degraded(), "it says so");
    store.close().await.expect_err("what was not synced cannot be");
    drop(store);
    let store = open(dir.path());
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    assert!(!store.stats().degraded());
}
