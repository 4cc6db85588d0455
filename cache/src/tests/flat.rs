//! Tests of the flat store alone; [`super::suite`] has those of all stores.

use super::corruption::dag;
use super::suite::{Home, Kind, Setup};
use super::{key, noisy, supply};
use crate::flat::offline::Offline;
use crate::pin_journal::{self, PinJournal, Watermark};
use crate::{Fault, PinError, PinState, StoreError};
use content::Block;
use std::fs;
use std::path::{Path, PathBuf};

fn blocks(seeds: std::ops::Range<u64>) -> Vec<Block> {
    seeds.map(|seed| noisy(seed, 5_000)).collect()
}

fn home() -> Home {
    Home::new(Kind::Flat)
}

/// The file of a block.
fn file(home: &Home, block: &Block) -> PathBuf {
    let name = cid::multibase::Base::Base32Lower.encode(key(block).to_bytes());
    home.dir.path().join("blocks").join(&name[name.len() - 3..name.len() - 1]).join(name)
}

/// Every file below a directory except locks, with its length.
fn files(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("lists") {
        let path = entry.expect("lists").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = path.metadata().expect("is there").len();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn a_block_is_a_file_at_the_path_of_its_key() {
    let home = home();
    let store = home.open(Setup::default()).await;
    let blocks = blocks(0..10);
    store.cache(&blocks).await;
    for block in &blocks {
        let bytes = fs::read(file(&home, block)).expect("is there");
        assert_eq!(bytes.len(), 10 + 34 + 5 + 5_000);
        assert!(bytes.ends_with(block.data()));
    }
    let found = files(&home.dir.path().join("blocks"));
    assert_eq!(found.len(), 10, "{found:?}");
}

#[tokio::test]
async fn a_newer_schema_is_rejected_and_nothing_is_changed() {
    let home = home();
    home.open(Setup::default()).await.shut().await;
    let schema = home.dir.path().join("schema");
    let written = fs::read_to_string(&schema).expect("reads");
    fs::write(&schema, "2\n").expect("writes");
    // The journal of a later release also has its schema version.
    let (mut journal, _) = PinJournal::open(home.dir.path()).expect("opens");
    journal.rewrite(2, Watermark::default(), std::iter::empty()).expect("writes");
    fs::create_dir_all(home.dir.path().join("blocks/aa")).expect("creates");
    fs::write(home.dir.path().join("blocks/aa/.new-1-1"), "of a later release").expect("writes");
    let before = files(home.dir.path());
    let error = home.try_open(Setup::default()).map(drop).expect_err("newer");
    assert!(matches!(error, StoreError::NewerSchema { found: 2, known: 1, .. }), "{error}");
    assert_eq!(files(home.dir.path()), before);
    journal.rewrite(1, Watermark::default(), std::iter::empty()).expect("writes");
    drop(home.open(Setup::default()).await);
    // The schema file is damaged, and the journal has the version.
    for damaged in ["none", "", "3\n", "\u{fffd}"] {
        fs::write(&schema, damaged).expect("writes");
        drop(home.open(Setup::default()).await);
        assert_eq!(fs::read_to_string(&schema).expect("reads"), written);
    }
}

#[tokio::test]
async fn blocks_of_deleted_files_are_missing_and_can_be_stored_again() {
    let home = home();
    let store = home.open(Setup::default()).await;
    let blocks = blocks(0..10);
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks[..5])).await.expect("pins");
    store.cache(&blocks).await;
    for block in [&blocks[1], &blocks[7]] {
        fs::remove_file(file(&home, block)).expect("deletes");
        assert!(!store.holds(block).await);
    }
    store.flush().await.expect("flushes");
    assert_eq!(store.stats().blocks, 8);
    assert_eq!(store.has(blocks[1].cid()).await, Ok(false));
    store.cache(&blocks).await;
    assert!(store.holds_all(&blocks).await);
    assert!(store.is_pinned(&key(&blocks[1])).await.expect("reads"));
    // All files at once, as when the file system is unmounted.
    fs::rename(home.dir.path().join("blocks"), home.dir.path().join("away")).expect("renames");
    assert!(!store.holds(&blocks[2]).await);
    fs::rename(home.dir.path().join("away"), home.dir.path().join("blocks")).expect("renames");
    assert!(store.holds(&blocks[3]).await);
}

#[tokio::test]
async fn temporary_files_are_deleted_and_foreign_files_are_kept() {
    let home = home();
    let store = home.open(Setup::default()).await;
    let blocks = blocks(0..3);
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    store.shut().await;
    let dir = home.dir.path();
    let folder = file(&home, &blocks[0]).parent().expect("a folder").to_owned();
    let leftovers = [folder.join(".new-7-1"), dir.join("pins/.new-7-2"), dir.join("pins/00000000000000ff.members")];
    let foreign = [folder.join("README"), dir.join("blocks/notes.txt"), dir.join("pins/x.pin"), folder.join("mfrgg")];
    for path in leftovers.iter().chain(&foreign) {
        fs::write(path, "something").expect("writes");
    }
    // Power was lost before any of it was synced.
    let empty = file(&home, &noisy(99, 5_000));
    fs::create_dir_all(empty.parent().expect("a folder")).expect("creates");
    fs::write(&empty, "").expect("writes");
    // Inspecting it changes nothing.
    let before = files(dir);
    let looked = Offline::open(dir).expect("opens");
    assert_eq!(looked.figures().expect("reads").all().blocks, 3);
    assert!(looked.check(&|_| false, |_, _| ()).expect("checks").is_clean());
    drop(looked);
    assert_eq!(files(dir), before);
    let store = home.open(Setup::default()).await;
    assert_eq!(store.stats().blocks, 3);
    assert!(leftovers.iter().chain([&empty]).all(|path| !path.exists()));
    assert!(foreign.iter().all(|path| path.exists()));
}

#[tokio::test]
async fn a_truncated_list_of_members_is_valid_up_to_the_end() {
    let home = home();
    let store = home.open(Setup::default()).await;
    let blocks = blocks(0..10);
    let failing = futures::StreamExt::chain(
        supply(&blocks[..6]),
        futures::stream::iter([Err(std::io::Error::other("the peer left"))]),
    );
    store.pin_recursive(*blocks[0].cid(), None, failing).await.expect_err("fails");
    store.shut().await;
    let list = home.dir.path().join("pins/0000000000000001.members");
    let bytes = fs::read(&list).expect("reads");
    fs::write(&list, [&bytes[..4 * bytes.len() / 6 + 9], &[0; 100]].concat()).expect("writes");
    let store = home.open(Setup::default()).await;
    assert_eq!(store.pins().await.expect("lists")[0].blocks, 4);
    assert!(!store.is_pinned(&key(&blocks[4])).await.expect("reads") && store.holds(&blocks[4]).await);
    let pin = store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    assert_eq!((pin.state, pin.blocks), (PinState::Complete, 10));
    store.shut().await;
    // An acknowledged pin: the missing members are unknown, so the pin becomes partial.
    let bytes = fs::read(&list).expect("reads");
    fs::write(&list, &bytes[..bytes.len() / 2]).expect("writes");
    let store = home.open(Setup::default()).await;
    assert_eq!(store.pins().await.expect("lists")[0].state, PinState::Partial);
    assert_eq!(store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins").blocks, 10);
}

#[tokio::test]
async fn a_damaged_pin_keeps_its_blocks() {
    let home = home();
    let store = home.open(Setup::default()).await;
    let blocks = blocks(0..3);
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    store.shut().await;
    let header = home.dir.path().join("pins/0000000000000001.pin");
    let mut bytes = fs::read(&header).expect("reads");
    bytes[20] ^= 1;
    fs::write(&header, bytes).expect("writes");
    let store = home.open(Setup::default()).await;
    let pins = store.pins().await.expect("lists");
    assert_eq!((pins.len(), pins[0].root, pins[0].state), (1, *blocks[0].cid(), PinState::Complete));
    store.shut().await;
    // The journal is lost as well, and with it the root.
    fs::write(&header, "damaged").expect("writes");
    fs::remove_file(home.dir.path().join(pin_journal::NAME)).expect("deletes");
    for _ in 0..2 {
        let store = home.open_for(0).await;
        store.flush().await.expect("flushes");
        assert_eq!((store.stats().blocks, store.pins().await.expect("lists").len()), (3, 0));
        assert!(store.is_pinned(&key(&blocks[1])).await.expect("reads"));
        store.shut().await;
    }
    let store = home.open_for(0).await;
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    store.shut().await;
    fs::remove_file(header).expect("as the log says");
    let store = home.open_for(0).await;
    assert!(store.holds_all(&blocks).await);
    assert_eq!(store.pins().await.expect("lists").len(), 1);
}

#[tokio::test]
async fn the_files_of_a_pin_and_its_members_are_recreated() {
    for lost in ["pin", "members", "next"] {
        let home = home();
        let store = home.open(Setup::default()).await;
        let dag = dag(1);
        store.pin_recursive(*dag[0].cid(), Some("mine".to_owned()), supply(&dag)).await.expect("pins");
        store.shut().await;
        let name = if lost == "next" { lost.to_owned() } else { format!("0000000000000001.{lost}") };
        fs::remove_file(home.dir.path().join("pins").join(name)).expect("deletes");
        let store = home.open_for(0).await;
        store.flush().await.expect("flushes");
        assert!(store.holds_all(&dag).await, "{lost}");
        let pins = store.pins().await.expect("lists");
        assert_eq!((pins[0].state, pins[0].blocks), (PinState::Complete, dag.len() as u64), "{lost}");
        assert_eq!(pins[0].name.as_deref(), Some("mine"));
        let more = noisy(77, 100);
        store.pin_recursive(*more.cid(), None, supply(std::slice::from_ref(&more))).await.expect("pins");
        let pins = store.pins().await.expect("lists");
        assert_ne!(pins[0].id, pins[1].id, "{lost}");
    }
}

#[tokio::test]
async fn values_that_may_be_older_than_their_pin_are_written_again() {
    let home = home();
    let store = home.open(Setup::default()).await;
    let blocks = blocks(0..4);
    // The first is cached before it is pinned; the second is in an unacknowledged pin.
    store.cache(&blocks[..1]).await;
    store.pin_recursive(*blocks[3].cid(), None, supply(&blocks[1..2])).await.expect_err("has no root");
    store.shut().await;
    blocks[..2].iter().for_each(|block| home.damage(block));
    let store = home.open(Setup::default()).await;
    store.pin_recursive(*blocks[0].cid(), None, supply(&blocks[..2])).await.expect("pins");
    assert!(store.holds_all(&blocks[..2]).await);
    assert_eq!(store.stats().corrupt_blocks, 0);
}

#[tokio::test]
async fn a_disk_that_fails_writes_still_reads_and_recovers() {
    let home = home();
    let store = home.open(Setup::default()).await;
    let blocks = blocks(0..4);
    store.cache(&blocks[..1]).await;
    // No files can be created in the other blocks' directories.
    let away: Vec<_> =
        blocks[1..3].iter().map(|block| file(&home, block).parent().expect("a folder").to_owned()).collect();
    for folder in &away {
        assert!(!folder.exists(), "no two of these blocks share a directory");
        fs::write(folder, "in the way").expect("writes");
    }
    store.put_cached(blocks[1].clone()).await;
    let pinned = store.pin_recursive(*blocks[2].cid(), None, supply(&blocks[2..3])).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "{pinned:?}");
    let stats = store.stats();
    assert!(stats.dropped_writes == 1 && stats.write_errors >= 1 && stats.degraded(), "{stats:?}");
    assert!(store.holds(&blocks[0]).await && !store.holds(&blocks[1]).await);
    for folder in &away {
        fs::remove_file(folder).expect("deletes");
    }
    store.cache(&blocks).await;
    assert!(store.holds_all(&blocks).await && !store.stats().degraded());
    store.pin_recursive(*blocks[2].cid(), None, supply(&blocks[2..3])).await.expect("pins");
}

#[tokio::test]
async fn a_check_reports_what_is_wrong_with_a_store() {
    let home = home();
    assert!(matches!(Offline::open(home.dir.path()), Err(StoreError::Missing { .. })));
    let store = home.open(Setup::default()).await;
    let blocks = blocks(0..10);
    store.pin_recursive(*blocks[0].cid(), Some("mine".to_owned()), supply(&blocks[..5])).await.expect("pins");
    store.cache(&blocks).await;
    assert!(matches!(Offline::open(home.dir.path()), Err(StoreError::InUse { .. })));
    store.shut().await;
    home.damage(&blocks[2]);
    home.damage(&blocks[8]);
    fs::remove_file(file(&home, &blocks[3])).expect("deletes");
    let looked = Offline::open(home.dir.path()).expect("opens");
    let figures = looked.figures().expect("reads");
    assert_eq!((figures.pinned.blocks, figures.cached.blocks, figures.pins, figures.partial_pins), (4, 5, 0, 1));
    let mut found = Vec::new();
    let report = looked.check(&|_| false, |_, findings| found.extend_from_slice(findings)).expect("checks");
    assert_eq!((report.progress.blocks, report.progress.damaged, found.len()), (9, 2, 2));
    assert!(found.iter().all(|finding| finding.fault == Fault::Damaged));
    assert_eq!((report.lacking.len(), report.lacking[0].missing, report.lacking[0].blocks), (1, 2, 5));
    assert_eq!(report.lacking[0].name.as_deref(), Some("mine"));
    assert!(!report.is_clean());
    drop(looked);
    // The quarantined files do not count any more.
    let looked = Offline::open(home.dir.path()).expect("opens");
    let report = looked.check(&|_| false, |_, _| ()).expect("checks");
    assert_eq!((report.progress.blocks, report.progress.damaged, report.lacking[0].missing), (7, 0, 2));
}
