//! A small real file system: ext4 on a loop device of some dozens of MiB, which pins fill, other files fill to the last
//! byte, or which runs out of inodes. In all of these states the store opens, serves its blocks, removes pins and
//! reclaims their space; and it recovers automatically when there is space.
//!
//! Skipped with a warning where file systems cannot be mounted.

use super::audit::audit;
use super::crash::{DIR, child};
use super::device::{Device, in_a_namespace};
use super::full::{Filler, assert_is_lack_of_space, assert_pinned, dag, eventually, pin};
use super::{open_with, suite};
use crate::metadata_store::{Change, MetadataLog as _, MetadataStore};
use crate::space::Space;
use crate::store::DegradedReason;
use crate::{Disk, DiskOptions, PinError, StoreError};
use std::fs::{self, File};
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

const TASK: &str = "CAUSEWAY_SMALL_TASK";
const MIB: u64 = 1 << 20;

fn options() -> DiskOptions {
    DiskOptions {
        free_bytes_min: 4 * MIB,
        segment_bytes_max: 16 << 20,
        reserve_bytes_max: 64 * MIB,
        cache_bytes_max: 8 * MIB,
        ..DiskOptions::default()
    }
}

fn free_bytes(dir: &Path) -> u64 {
    Space::of(dir).expect("is there").free_bytes
}

/// Pins DAGs of a megabyte until the disk is full, and returns the next number.
async fn fill_with_pins(disk: &Disk, from: u64) -> u64 {
    for number in from.. {
        assert!(number < from + 200, "the disk is small");
        if let Err(error) = pin(disk, number).await {
            assert_is_lack_of_space(&error);
            // Remove the partial pin.
            disk.remove_pin(dag(number)[0].cid()).await.expect("removes");
            disk.flush().await.expect("flushes");
            return number;
        }
    }
    unreachable!("the numbers do not end")
}

/// There is no space to move the live third of pinned segments.
async fn space_of_unpinned_blocks_is_reclaimed(home: &Path) {
    let mut disk = open_with(home, options()).expect("opens");
    let mut pinned: Vec<u64> = Vec::new();
    let mut next = 0;
    for round in 0..4 {
        let end = fill_with_pins(&disk, next).await;
        assert!(round > 0 || end > 30, "most of the disk is usable: {end}");
        assert_eq!(disk.stats().trouble, Some(DegradedReason::Full));
        pinned.extend(next..end);
        next = end + 1;
        let (gone, kept): (Vec<u64>, Vec<u64>) = pinned.iter().partition(|number| **number % 3 != round % 3);
        // The reserve may be recreated from reclaimed space.
        let free = |disk: &Disk| free_bytes(home) + disk.store().reserve.allocated_bytes();
        let before = free(&disk);
        for number in &gone {
            assert!(disk.remove_pin(dag(*number)[0].cid()).await.expect("removes"), "{number}");
        }
        disk.flush().await.expect("reclaims the space");
        let unpinned = gone.len() as u64 * 1_000_000;
        // RocksDB deletes its obsolete files in the background.
        eventually("most of the space is reclaimed", async || match free(&disk).saturating_sub(before) {
            reclaimed if reclaimed > unpinned / 10 * 8 => Ok(()),
            reclaimed => Err(StoreError::io(format!("round {round}: {reclaimed} of {unpinned}"))),
        })
        .await;
        assert_pinned(&disk, kept.iter().copied()).await;
        disk.compact().await.expect("collects what there is room for");
        assert_pinned(&disk, kept.iter().copied()).await;
        audit(&disk);
        pinned = kept;
        drop(disk);
        disk = open_with(home, options()).expect("opens");
        assert_pinned(&disk, pinned.iter().copied()).await;
        disk.flush().await.expect("flushes");
        audit(&disk);
    }
    assert_eq!(disk.stats().corrupt_blocks, 0);
}

/// Waits until the store has recovered, without calling it.
async fn until_it_recovers(disk: &Disk) {
    let recovers = async || match disk.stats().trouble {
        None => Ok(()),
        Some(trouble) => Err(StoreError::io(trouble)),
    };
    eventually("the store recovers automatically", recovers).await;
}

/// Other files fill the disk to the last byte, while the store is open and while it is closed.
async fn a_completely_full_disk_is_served(home: &Path, ballast: &Filler) {
    let disk = open_with(home, options()).expect("opens");
    let end = fill_with_pins(&disk, 0).await;
    assert!(disk.store().reserve.allocated_bytes() > 0, "there is a reserve");
    fill_to_the_last_byte(home, ballast);
    assert!(disk.remove_pin(dag(0)[0].cid()).await.expect("the reserve is for this"));
    disk.flush().await.expect("reclaims the space");
    drop(disk);

    // Other files take the space of the reserve and the reclaimed space.
    let disk = open_with(home, options()).expect("opens");
    ballast.fill(&disk);
    drop(disk);
    fill_to_the_last_byte(home, ballast);
    let disk = open_with(home, options()).expect("opens without any space");
    assert_eq!(disk.stats().trouble, Some(DegradedReason::Full));
    assert_pinned(&disk, 1..end).await;
    let refused = pin(&disk, end + 10).await.expect_err("there is no space");
    assert_is_lack_of_space(&refused);
    assert_pinned(&disk, 1..end).await;

    ballast.free(&disk);
    // Pins alone fill the disk: some must be removed to make room.
    for number in 1..11 {
        let gone = async || disk.remove_pin(dag(number)[0].cid()).await.map(drop);
        eventually("an unpinning", gone).await;
    }
    until_it_recovers(&disk).await;
    eventually("the reserve is recreated", async || match disk.store().reserve.allocated_bytes() {
        0 => Err(StoreError::io("there is none")),
        _ => Ok(()),
    })
    .await;
    disk.flush().await.expect("flushes");
    pin(&disk, end + 10).await.expect("there is space again");
    assert_pinned(&disk, (11..end).chain([end + 10])).await;
    audit(&disk);
    assert_eq!(disk.stats().corrupt_blocks, 0);
}

/// The reserve allows opening a store on a full disk.
async fn the_reserve_opens_a_store_on_a_full_disk(home: &Path, ballast: &Filler) {
    let disk = open_with(home, options()).expect("opens");
    let end = fill_with_pins(&disk, 0).await;
    assert!(disk.store().reserve.allocated_bytes() > 0, "there is a reserve");
    drop(disk);
    fill_to_the_last_byte(home, ballast);
    let disk = open_with(home, options()).expect("opens");
    assert!(disk.store().is_writable(), "with the space of the reserve: {:?}", disk.store().make_writable());
    for number in 0..end / 2 {
        assert!(disk.remove_pin(dag(number)[0].cid()).await.expect("removes"));
    }
    disk.flush().await.expect("reclaims the space");
    until_it_recovers(&disk).await;
    pin(&disk, end + 10).await.expect("there is space again");
    assert_pinned(&disk, (end / 2..end).chain([end + 10])).await;
    audit(&disk);
}

/// Without a reserve, cached blocks are evicted before the store becomes read-only.
async fn cached_blocks_are_evicted_before_the_store_is_read_only(home: &Path, ballast: &Filler) {
    let without = || DiskOptions { cache_bytes_max: 32 * MIB, reserve_bytes_max: 0, ..options() };
    let disk = open_with(home, without()).expect("opens");
    for number in 0..4 {
        pin(&disk, number).await.expect("pins");
    }
    for seed in 0..400 {
        disk.put_cached(super::noisy(900_000 + seed, 50_000)).await;
    }
    disk.flush().await.expect("flushes");
    assert!(disk.stats().cached_bytes > 10_000_000);
    drop(disk);
    fill_to_the_last_byte(home, ballast);
    let disk = open_with(home, DiskOptions { reserve_bytes_max: 4 * MIB, ..without() }).expect("opens");
    assert!(disk.store().is_writable(), "{:?}", disk.store().make_writable());
    assert_pinned(&disk, 0..4).await;
    for number in 0..4 {
        assert!(disk.remove_pin(dag(number)[0].cid()).await.expect("removes"));
    }
    ballast.free(&disk);
    until_it_recovers(&disk).await;
    disk.flush().await.expect("flushes");
    audit(&disk);
}

/// Without inodes, errors report inodes, not bytes.
async fn a_lack_of_inodes_is_distinguished_from_one_of_bytes(home: &Path) {
    let crowd = home.with_file_name("crowd");
    fs::create_dir_all(&crowd).expect("makes");
    let take_all_inodes = || {
        let mut number = 0;
        while File::create(crowd.join(number.to_string())).is_ok() {
            number += 1;
        }
    };
    let give_them_back = || {
        fs::remove_dir_all(&crowd).expect("deletes");
        fs::create_dir_all(&crowd).expect("makes");
    };
    for kind in [suite::Kind::Flat, suite::Kind::Rocksdb] {
        let dir = home.with_file_name(format!("{kind:?}"));
        let setup = suite::Setup { free_bytes_min: 0, segment_bytes_max: 1 << 20, ..suite::Setup::default() };
        let store = suite::open(kind, &dir, setup).expect("opens");
        let put = async |number: u64| {
            let dag = dag(number);
            store.pin_recursive(*dag[0].cid(), None, super::supply(&dag)).await.map(drop)
        };
        put(1).await.expect("pins");
        take_all_inodes();
        let numbers = std::cell::Cell::new(2);
        // A failed pin may free an inode, with which the store continues until the next failure.
        let fails_and_reports = async || {
            loop {
                let Err(refused) = put(numbers.replace(numbers.get() + 1)).await else { continue };
                let trouble = store.stats().trouble;
                let PinError::Store(error) = refused else { panic!("{kind:?}: {refused}") };
                assert!(matches!(error, StoreError::NoInodes { .. }), "{kind:?}: {error}");
                return if trouble == Some(DegradedReason::NoInodes) { Ok(()) } else { Err(error) };
            }
        };
        eventually("a lack of inodes is reported", fails_and_reports).await;
        assert!(free_bytes(home.parent().expect("a folder")) > 0);
        for block in dag(1) {
            assert_eq!(store.get(block.cid()).await, Ok(block), "{kind:?}");
        }
        give_them_back();
        let recovers = async || match store.stats().trouble {
            None => Ok(()),
            Some(trouble) => Err(StoreError::io(trouble)),
        };
        eventually("the store recovers automatically", recovers).await;
        put(1_000).await.expect("pins again");
        store.settle().await;
        store.shut().await;
    }
}

/// The list of pins opens on a full disk, and is writable as soon as there is space.
async fn the_list_of_pins_is_readable_without_space(home: &Path, ballast: &Path) {
    let put = |n: u32| vec![Change::Put(format!("{n}").into(), vec![1; 1_000])];
    let rows = |register: &MetadataStore| {
        let mut rows = 0;
        register
            .scan(b"", |_, _| {
                rows += 1;
                ControlFlow::Continue(())
            })
            .expect("scans");
        rows
    };
    let register = MetadataStore::open(home).expect("opens");
    for n in 0..100 {
        register.write(put(n)).await.expect("writes");
    }
    drop(register);
    fill_to_the_last_byte(home, &Filler::Ballast(ballast.to_owned()));
    let register = MetadataStore::open_or_salvage(home).expect("opens without any space");
    assert!(register.is_read_only() && register.salvage().is_none() && rows(&register) == 100);
    assert_is_lack_of_space(&register.write(put(100)).await.expect_err("there is no space"));
    assert!(matches!(MetadataStore::open_read_only(home), Err(StoreError::InUse { .. })));
    std::fs::remove_file(ballast).expect("deletes");
    eventually("there is space again", async || register.write(put(100)).await).await;
    assert!(!register.is_read_only() && rows(&register) == 101);
    drop(register);
    assert_eq!(rows(&MetadataStore::open_read_only(home).expect("opens")), 101);
}

/// Fills every byte, also those that only short writes could use.
fn fill_to_the_last_byte(home: &Path, ballast: &Filler) {
    let Filler::Ballast(path) = ballast else { return };
    let mut file = File::options().append(true).create(true).open(path).expect("opens");
    while free_bytes(home) > 0 {
        for piece in [MIB as usize, 4096, 1] {
            while file.write_all(&vec![1; piece]).is_ok() {}
        }
        file.sync_all().ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_of_the_tests_of_small_file_systems() {
    let (Ok(dir), Ok(task)) = (std::env::var(DIR), std::env::var(TASK)) else { return };
    let device = Device::of_bytes(Path::new(&dir), 64 * MIB);
    device.begin_with(if task == "inodes" { "-m 0 -N 400" } else { "-m 0" }).expect("mounts");
    let home: PathBuf = device.mounted.join("store");
    let ballast = Filler::Ballast(device.mounted.join("ballast"));
    match &*task {
        "unpinned" => space_of_unpinned_blocks_is_reclaimed(&home).await,
        "bytes" => a_completely_full_disk_is_served(&home, &ballast).await,
        "reserve" => the_reserve_opens_a_store_on_a_full_disk(&home, &ballast).await,
        "cached" => cached_blocks_are_evicted_before_the_store_is_read_only(&home, &ballast).await,
        "register" => {
            std::fs::create_dir(&home).expect("makes");
            the_list_of_pins_is_readable_without_space(&home, &device.mounted.join("ballast")).await;
        }
        "inodes" => a_lack_of_inodes_is_distinguished_from_one_of_bytes(&home).await,
        other => panic!("{other} is not a task"),
    }
    device.unmount();
}

fn on_a_small_file_system(task: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let trial = "truncate -s 8M \"$1/trial\" && mkfs.ext4 -q -F \"$1/trial\" && mkdir \"$1/at\" && \
                 mount -o loop \"$1/trial\" \"$1/at\"";
    let mut tried = Command::new("sh");
    tried.args(["-c", trial, "sh"]).arg(dir.path());
    let tried = in_a_namespace(&tried, dir.path());
    if !tried.status.success() {
        let why = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
        let said = writeln!(std::io::stderr(), "WARNING: file systems cannot be mounted here ({why})");
        said.expect("stderr is open");
        return;
    }
    let child = child("tests::small::child_of_the_tests_of_small_file_systems", dir.path());
    let mut command = Command::new("env");
    command.arg(format!("{TASK}={task}")).arg(child.get_program()).args(child.get_args());
    let ran = in_a_namespace(&command, dir.path());
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn space_of_unpinned_blocks_is_reclaimed_where_no_value_can_be_moved() {
    on_a_small_file_system("unpinned");
}

#[test]
fn a_store_without_space_serves_and_recovers_automatically() {
    on_a_small_file_system("bytes");
}

#[test]
fn a_full_disk_is_opened_and_emptied_with_the_reserve() {
    on_a_small_file_system("reserve");
}

#[test]
fn a_full_disk_without_a_reserve_evicts_cached_blocks_first() {
    on_a_small_file_system("cached");
}

#[test]
fn a_lack_of_inodes_is_reported() {
    on_a_small_file_system("inodes");
}

#[test]
fn the_list_of_pins_opens_on_a_full_disk() {
    on_a_small_file_system("register");
}
