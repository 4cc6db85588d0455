//! A real full disk: a file system of a few MiB in its own mount namespace, in which this test's binary runs as a
//! child. Where none can be mounted, the test warns, and another one injects the same errors.

use super::audit::audit;
use super::{noisy, open_with, supply};
use crate::disk::faults::{Call, Fault};
use crate::{Disk, DiskOptions, PinError, StoreError};
use content::{Block, BlockSource};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const DIR: &str = "CAUSEWAY_FULL_DIR";
const SIZE: &str = "64m";
const MIB: usize = 1 << 20;

/// RocksDB checks every few seconds whether there is space again.
const PATIENCE: Duration = Duration::from_secs(60);

fn options() -> DiskOptions {
    // Only the headroom for rows is kept free, so that the file system itself runs out of space.
    DiskOptions { free_bytes_min: 0, reserve_bytes_max: 2 << 20, segment_bytes_max: 1 << 20, ..DiskOptions::default() }
}

/// A DAG of 1 MB.
pub(super) fn dag(number: u64) -> Vec<Block> {
    (0..20).map(|i| noisy(number * 100 + i, 50_000)).collect()
}

/// What fills the disk.
pub(super) enum Filler {
    /// A file beside the store.
    Ballast(PathBuf),
    /// Injected errors.
    Injected,
}

impl Filler {
    /// Uses every byte.
    pub(super) fn fill(&self, disk: &Disk) {
        match self {
            Self::Ballast(path) => {
                let mut file = File::options().append(true).create(true).open(path).expect("opens");
                for piece in [MIB, 4096, 1] {
                    while file.write_all(&vec![1; piece]).is_ok() {}
                }
            }
            Self::Injected => disk.store().files.faults.plan(|call| {
                let takes_space = matches!(call, Call::Create | Call::Write | Call::Batch);
                takes_space.then_some(Fault::Half(Errno::NOSPC))
            }),
        }
    }

    pub(super) fn free(&self, disk: &Disk) {
        match self {
            Self::Ballast(path) => fs::remove_file(path).expect("deletes"),
            Self::Injected => disk.store().files.faults.clear(),
        }
    }
}

pub(super) async fn pin(disk: &Disk, number: u64) -> Result<(), StoreError> {
    let dag = dag(number);
    match disk.pin_recursive(*dag[0].cid(), None, supply(&dag)).await {
        Ok(_) => Ok(()),
        Err(PinError::Store(error)) => Err(error),
        Err(error) => panic!("{error}"),
    }
}

pub(super) fn assert_is_lack_of_space(error: &StoreError) {
    let said = error.to_string();
    assert!(matches!(error, StoreError::Io(_) | StoreError::Full { .. }), "{said}");
    // The last is RocksDB's error for all writes after the one that ran out of space, until it has recovered.
    let signs = ["No space left", "no space left", "MiB left", "Writer has previous error"];
    assert!(signs.iter().any(|sign| said.contains(sign)), "{said}");
}

pub(super) async fn assert_pinned(disk: &Disk, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        for block in dag(number) {
            assert_eq!(disk.get(block.cid()).await, Ok(block), "a block of {number}");
        }
    }
}

/// The size of all files below a directory.
fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).expect("lists").flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        found => found.map_or(0, |found| found.len()),
    });
    bytes.sum()
}

/// Retries until it succeeds.
pub(super) async fn eventually(what: &str, mut attempt: impl AsyncFnMut() -> Result<(), StoreError>) {
    let begun = Instant::now();
    while let Err(error) = attempt().await {
        assert!(begun.elapsed() < PATIENCE, "{what}: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Caches blocks, a few at a time, until one is dropped. At first, cached blocks are evicted for them.
async fn cache_until_refused(disk: &Disk, filler: &Filler) {
    for seed in 0.. {
        assert!(seed < 1_000, "a full disk fails writes: {:?}", disk.stats());
        filler.fill(disk);
        let before = disk.stats().dropped_writes;
        for i in 0..4 {
            disk.put_cached(noisy(1_000_000 + seed * 4 + i, 50_000)).await;
        }
        // The sync may fail.
        _ = disk.flush().await;
        if disk.stats().dropped_writes > before && disk.stats().degraded() {
            return;
        }
    }
}

async fn a_disk_fills_and_has_space_again(dir: &Path, filler: Filler) {
    let store = dir.join("store");
    let disk = open_with(&store, options()).expect("opens");
    pin(&disk, 0).await.expect("pins");
    for seed in 0..100 {
        disk.put_cached(noisy(500_000 + seed, 50_000)).await;
    }
    disk.flush().await.expect("flushes");
    assert_eq!(disk.stats().dropped_writes, 0);

    cache_until_refused(&disk, &filler).await;
    // At first, cached blocks are evicted for pins too.
    let mut number = 1;
    let refused = loop {
        assert!(number < 10, "a full disk fails writes: {:?}", disk.stats());
        filler.fill(&disk);
        match pin(&disk, number).await {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert_is_lack_of_space(&refused);
    assert!(disk.stats().degraded() && disk.stats().write_errors > 0);
    assert_pinned(&disk, 0..number).await;

    // A flush writes to RocksDB's log, which fails on the full disk too. That must not break the log permanently.
    for _ in 0..200 {
        _ = disk.flush().await;
    }

    // It recovers automatically.
    filler.free(&disk);
    let before = bytes_below(&store);
    eventually("a pin when there is space", async || pin(&disk, number).await).await;
    // Failed attempts leave nothing behind: a pin and a reserve are 3 MB.
    assert!(bytes_below(&store) < before + 5 * MIB as u64, "{before} became {}", bytes_below(&store));
    let fresh = noisy(2_000_000, 50_000);
    eventually("caching when there is space", async || {
        disk.put_cached(fresh.clone()).await;
        disk.flush().await?;
        if disk.stats().degraded() { Err(StoreError::io("is degraded")) } else { Ok(()) }
    })
    .await;
    assert_eq!(disk.get(fresh.cid()).await.as_ref(), Ok(&fresh));

    // The store is closed while the disk is full.
    filler.fill(&disk);
    while pin(&disk, number + 1).await.is_ok() {
        number += 1;
        filler.fill(&disk);
    }
    assert!(disk.stats().degraded());
    drop(disk);
    if let Err(error) = open_with(&store, options()) {
        assert_is_lack_of_space(&error);
        let said = writeln!(std::io::stderr(), "a store on a full disk does not open: {error}");
        said.expect("stderr is open");
    }
    if let Filler::Ballast(path) = &filler {
        fs::remove_file(path).expect("deletes");
    }
    let disk = open_with(&store, options()).expect("opens when there is space");
    assert_pinned(&disk, 0..=number).await;
    pin(&disk, number + 1).await.expect("pins");
    disk.flush().await.expect("flushes");
    audit(&disk);
    assert_eq!(disk.stats().corrupt_blocks, 0);

    if matches!(filler, Filler::Ballast(_)) {
        pins_fill_the_disk(&disk, number + 2).await;
        drop(disk);
        let disk = open_with(&store, options()).expect("opens");
        disk.flush().await.expect("flushes");
        audit(&disk);
    }
}

/// Pins are not evicted, so they can fill the disk; unpinning makes room.
async fn pins_fill_the_disk(disk: &Disk, mut number: u64) {
    while pin(disk, number).await.is_ok() {
        number += 1;
        assert!(number < 200, "the disk is small");
    }
    let refused = pin(disk, number).await.expect_err("still");
    assert_is_lack_of_space(&refused);
    assert!(number > 10, "most of it was usable: {number}");
    assert_pinned(disk, 0..number).await;
    assert!(disk.stats().degraded());
    for gone in 0..8 {
        eventually("an unpinning", async || disk.remove_pin(dag(gone)[0].cid()).await.map(drop)).await;
    }
    eventually("the space of unpinned blocks", async || disk.flush().await).await;
    eventually("another pin", async || pin(disk, number).await).await;
    assert_pinned(disk, 8..=number).await;
}

#[tokio::test]
async fn child_of_the_test_of_a_full_disk() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = PathBuf::from(dir);
    a_disk_fills_and_has_space_again(&dir, Filler::Ballast(dir.join("ballast"))).await;
}

/// Runs a command in a mount namespace in which `dir` is a small file system.
fn in_a_small_file_system(unshare: &[&str], dir: &Path, command: &[&str]) -> Output {
    let mount = format!("mount -t tmpfs -o size={SIZE} tmpfs \"$1\" && shift && exec \"$@\"");
    let mut unshared = Command::new("unshare");
    unshared.args(unshare).args(["sh", "-c", &mount, "sh"]).arg(dir).args(command).env(DIR, dir);
    unshared.output().expect("unshare is there")
}

#[test]
fn a_full_disk_loses_nothing_and_is_used_again_when_there_is_space() {
    let dir = tempfile::tempdir().expect("a directory");
    let ways: [&[&str]; 2] = [&["--mount"], &["--mount", "--user", "--map-root-user"]];
    let way = ways.into_iter().find(|way| in_a_small_file_system(way, dir.path(), &["true"]).status.success());
    let Some(way) = way else {
        let said = writeln!(
            std::io::stderr(),
            "WARNING: small file systems cannot be mounted here (unshare --mount): the test of a full disk \
             meets injected errors instead of real ones"
        );
        said.expect("stderr is open");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(a_disk_fills_and_has_space_again(dir.path(), Filler::Injected));
        return;
    };
    let exe = std::env::current_exe().expect("this binary");
    let child = ["--exact", "tests::full::child_of_the_test_of_a_full_disk", "--nocapture"];
    let ran = in_a_small_file_system(way, dir.path(), &[&[exe.to_str().expect("text")][..], &child].concat());
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

/// The same with injected errors, where no file system can be mounted.
#[tokio::test]
async fn injected_lack_of_space_loses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    a_disk_fills_and_has_space_again(dir.path(), Filler::Injected).await;
}
