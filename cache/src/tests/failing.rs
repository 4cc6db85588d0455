//! A device with failing writes: ext4 on a compressed RAM disk (zram) that fails every write once its memory limit is
//! lowered, at a random moment while pins are written. Earlier acknowledged pins are there when the device works again
//! and the file system is mounted again.
//!
//! What the system reports meanwhile (ext4, Linux 6.18, observed on this device): `fdatasync` of a file whose pages
//! could not be written returns EIO, once more EIO when the journal is aborted, then 0 although nothing of the file has
//! reached the device, and EROFS once the file system has become read-only. So only the first result is reliable, and
//! only for a descriptor that was open when the write failed. Consequences for the store:
//!
//! - a file stays open from its first write until it is synced: segments, and a flat store's lists of members;
//! - after the first failed sync, nothing is acknowledged until the store is reopened (`sync_error`), and no sync is
//!   retried;
//! - an acknowledgement follows the sync of the values and that of RocksDB's log, which is written for each of them: a
//!   sync that wrongly succeeded, because the journal was aborted in between, is followed by one that fails;
//! - values that are not known to be synced are read from the device when the store is opened, not from memory.
//!
//! Skipped with a warning where such a device cannot be created. More rounds: `CAUSEWAY_CRASH_ROUNDS=100 cargo test
//! --release -p causeway-cache --lib failing`, as root.
//!
//! Non-goals: devices that acknowledge writes without storing them.

use super::crash::{DIR, child, rounds};
use super::device::in_a_namespace;
use super::suite::{Kind, Opened, Setup};
use super::{Random, noisy, suite, supply};
use crate::store::DegradedReason;
use crate::{PinError, PinState};
use content::Block;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const TASK: &str = "CAUSEWAY_FAILING_TASK";

/// A failing device with a mounted file system.
struct Zram {
    number: String,
    mounted: PathBuf,
}

fn sh(script: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("sh").args(["-c", script, "sh"]).args(arguments).output();
    let output = output.map_err(|error| error.to_string())?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
}

impl Zram {
    fn device(&self) -> String {
        format!("/dev/zram{}", self.number)
    }

    fn set(&self, name: &str, value: &str) {
        let path = format!("/sys/block/zram{}/{name}", self.number);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Creates an empty file system and mounts it.
    fn begin(&self) {
        self.set("reset", "1");
        self.set("disksize", "96M");
        let mounted = self.mounted.to_str().expect("text");
        let made = sh("mkfs.ext4 -q -F \"$1\" && mkdir -p \"$2\"", &[&self.device(), mounted]);
        made.expect("makes a file system");
        self.mount();
    }

    fn mount(&self) {
        let mounted = self.mounted.to_str().expect("text");
        sh("mount \"$1\" \"$2\"", &[&self.device(), mounted]).expect("mounts");
    }

    /// Makes every write fail, or none.
    fn fail(&self, fails: bool) {
        self.set("mem_limit", if fails { "4096" } else { "0" });
    }

    fn unmount(&self) {
        let begun = Instant::now();
        while let Err(error) = sh("umount \"$1\"", &[self.mounted.to_str().expect("text")]) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A DAG whose blocks share pages of their file with those of its neighbours.
fn dag(number: u64) -> Vec<Block> {
    let mut random = Random(number);
    (0..1 + random.below(6)).map(|i| noisy(number * 100 + i, 300 + random.below(60_000) as usize)).collect()
}

fn open(kind: Kind, dir: &Path) -> Opened {
    let setup = Setup { free_bytes_min: 0, segment_bytes_max: 4 << 20, ..Setup::default() };
    suite::open(kind, dir, setup).expect("opens")
}

async fn pin(store: &Opened, number: u64) -> Result<(), PinError> {
    let dag = dag(number);
    store.pin_recursive(*dag[0].cid(), None, supply(&dag)).await.map(drop)
}

/// Checks that every acknowledged pin is complete, with its blocks.
async fn check(store: &Opened, acknowledged: &[u64], what: &str) {
    let pins = store.pins().await.expect("lists");
    for (at, number) in acknowledged.iter().enumerate() {
        let what = format!("{what}: {number}, {} before the last that was acknowledged", acknowledged.len() - 1 - at);
        let found = pins.iter().find(|pin| pin.root == *dag(*number)[0].cid());
        assert_eq!(found.map(|pin| pin.state), Some(PinState::Complete), "{what}");
        for block in dag(*number) {
            assert_eq!(store.get(block.cid()).await.as_ref(), Ok(&block), "{what}");
        }
    }
}

async fn acknowledged_pins_survive_failed_writes(kind: Kind, zram: &Arc<Zram>) {
    for round in 0..rounds(4) {
        let mut random = Random(round);
        zram.begin();
        let home = zram.mounted.join("store");
        let store = open(kind, &home);
        let (failing, after) = (Arc::clone(zram), Duration::from_micros(random.below(60_000)));
        // A device may also fail briefly, and report it only once.
        let for_a_moment = (round % 2 == 1).then(|| Duration::from_micros(random.below(20_000)));
        let breaks = thread::spawn(move || {
            thread::sleep(after);
            failing.fail(true);
            if let Some(moment) = for_a_moment {
                thread::sleep(moment);
                failing.fail(false);
            }
        });
        let (mut acknowledged, mut refused) = (Vec::new(), 0);
        for number in round * 1_000..round * 1_000 + 100 {
            match pin(&store, number).await {
                Ok(()) => acknowledged.push(number),
                Err(PinError::Store(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            if refused == 10 {
                break;
            }
        }
        breaks.join().expect("does not panic");
        // After a failed sync, later successful syncs do not count.
        if store.stats().trouble == Some(DegradedReason::Broken) {
            pin(&store, round * 1_000 + 900).await.expect_err("nothing is durable");
        }
        check(&store, &acknowledged, &format!("round {round}, {kind:?}, still open")).await;
        let released = store.released();
        drop(store);
        released.await;
        zram.fail(false);
        zram.unmount();
        zram.mount();
        let store = open(kind, &home);
        check(&store, &acknowledged, &format!("round {round}, {kind:?}, mounted again")).await;
        pin(&store, round * 1_000 + 950).await.expect("pins again");
        store.shut().await;
        zram.unmount();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_of_the_test_of_a_failing_device() {
    let (Ok(dir), Ok(task)) = (std::env::var(DIR), std::env::var(TASK)) else { return };
    let (kind, number) = task.split_once(' ').expect("a kind and a number");
    let kind = if kind == "Flat" { Kind::Flat } else { Kind::Rocksdb };
    let zram = Zram { number: number.to_owned(), mounted: Path::new(&dir).join("mounted") };
    acknowledged_pins_survive_failed_writes(kind, &Arc::new(zram)).await;
}

fn on_a_failing_device(kind: &str) {
    let made =
        sh("command -v mkfs.ext4 > /dev/null && unshare --mount true && cat /sys/class/zram-control/hot_add", &[]);
    let number = match made {
        Ok(number) => number,
        Err(why) => {
            let said = writeln!(std::io::stderr(), "WARNING: no failing device can be created here ({why})");
            return said.expect("stderr is open");
        }
    };
    let dir = tempfile::tempdir().expect("a directory");
    let child = child("tests::failing::child_of_the_test_of_a_failing_device", dir.path());
    let mut command = Command::new("env");
    command.arg(format!("{TASK}={kind} {number}")).arg(child.get_program()).args(child.get_args());
    let ran = in_a_namespace(&command, dir.path());
    // Mounts disappear with the namespace, with some delay.
    let removed = sh(
        "for i in $(seq 100); do echo \"$1\" > /sys/class/zram-control/hot_remove && exit; sleep 0.1; \
         done 2> /dev/null; exit 1",
        &[&number],
    );
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    removed.expect("the device is removed");
}

#[test]
fn acknowledged_pins_survive_a_failing_device() {
    on_a_failing_device("Rocksdb");
}

#[test]
fn acknowledged_pins_in_files_survive_a_failing_device() {
    on_a_failing_device("Flat");
}
