//! Power that goes while a process works, for real: a file system of its own on a loop device is shut off at a moment of nobody's
//! choosing, with its journal as it is. What had reached the device until then is what the next mount finds; what was in the
//! system's memory is gone. Shows what a model ([`super::power`], [`super::power_flat`]) cannot: that the calls which are to sync
//! do.
//!
//! Whoever may not mount a file system is told so. More rounds: `CAUSEWAY_CRASH_ROUNDS=300 cargo test --release -p causeway-cache
//! --lib device`, as root.
//!
//! Non-goals: disks that lie about what they have, and file systems but ext4.

use super::Random;
use super::crash::{DIR, Debts, Life, Task, child, rounds, setup};
use super::suite::{Kind, Opened};
use crate::ScrubPass;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const KIND: &str = "CAUSEWAY_DEVICE_KIND";

/// Rounds on one file system.
const ROUNDS_TOGETHER: u64 = 10;

/// Shuts a file system off as it is: `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`.
const SHUT_OFF: &str = r#"
    open(my $dir, "<", $ARGV[0]) or die "$!";
    my $how = pack("L", 2);
    ioctl($dir, 0x8004587d, $how) or die "$!";
"#;

/// A file system on a file.
pub(super) struct Device {
    image: PathBuf,
    pub(super) mounted: PathBuf,
    bytes: u64,
}

fn run(command: &str, arguments: &[&Path]) -> Result<(), String> {
    let output =
        Command::new("sh").args(["-c", command, "sh"]).args(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

impl Device {
    fn new(dir: &Path) -> Self {
        Self::of_bytes(dir, 512 << 20)
    }

    /// One of this size.
    pub(super) fn of_bytes(dir: &Path, bytes: u64) -> Self {
        Self { image: dir.join("image"), mounted: dir.join("mounted"), bytes }
    }

    /// Makes an empty file system and mounts it.
    fn begin(&self) -> Result<(), String> {
        self.begin_with("")
    }

    /// The same, made in a way that mkfs is told.
    pub(super) fn begin_with(&self, options: &str) -> Result<(), String> {
        let bytes = self.bytes;
        run(
            &format!(
                "rm -f \"$1\" && truncate -s {bytes} \"$1\" && mkfs.ext4 -q -F {options} \"$1\" && mkdir -p \"$2\""
            ),
            &[&self.image, &self.mounted],
        )?;
        self.mount()
    }

    fn mount(&self) -> Result<(), String> {
        run("mount -o loop \"$1\" \"$2\"", &[&self.image, &self.mounted])
    }

    /// Whoever has a file open yet lets go of it soon.
    pub(super) fn unmount(&self) {
        let begun = Instant::now();
        while let Err(error) = run("umount \"$1\"", &[&self.mounted]) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The power goes: from now on nothing reaches the device.
    fn shut_off(&self) {
        let output = Command::new("perl").args(["-e", SHUT_OFF]).arg(&self.mounted).output().expect("perl is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// It comes back.
    fn come_back(&self) {
        self.unmount();
        self.mount().expect("mounts");
    }
}

/// What is owed is there after the power came back, and the store works.
async fn check(kind: Kind, dir: &Path, debts: &Debts) {
    let store = open(kind, dir);
    debts.check(&store).await;
    // What is cached may be lost, and is told when it is read.
    store.scrub(ScrubPass::All, None, &mut |_, _| ()).await.expect("scrubs");
    store.settle().await;
    debts.check(&store).await;
    store.shut().await;
}

fn open(kind: Kind, dir: &Path) -> Opened {
    super::suite::open(kind, dir, setup()).expect("opens")
}

async fn power_goes_again_and_again(kind: Kind, dir: &Path) {
    let device = Device::new(dir);
    let (home, mut debts) = (device.mounted.join("data").join("store"), Debts::default());
    for round in 0..rounds(4) {
        if round % ROUNDS_TOGETHER == 0 {
            if round > 0 {
                device.unmount();
            }
            device.begin().expect("mounts");
            debts = Debts::default();
        }
        let mut random = Random(round);
        // Lives before the last end without the power, so that the next finds what the system has in memory, and does the
        // same again.
        let (seed, lives) = (1 + round * 1_000_000, 1 + random.below(2));
        for life in 1..=lives {
            let (lines, after) = (1 + random.below(60), Duration::from_micros(random.below(30_000)));
            let happens = || {
                if life == lives {
                    device.shut_off()
                }
            };
            Life { kind, dir: &home, task: Task::Everything, seed, lines, after }.live(&mut debts, happens);
        }
        device.come_back();
        check(kind, &home, &debts).await;
    }
    device.unmount();
}

/// Members that a killed process left in the system's memory are on the disk when the next one says so.
async fn what_was_begun_is_completed(kind: Kind, dir: &Path) {
    let device = Device::new(dir);
    for seed in 2..=7 {
        device.begin().expect("mounts");
        let (home, mut debts) = (device.mounted.join("store"), Debts::default());
        for task in [Task::Begin, Task::Complete] {
            let happens = || {
                if task == Task::Complete {
                    device.shut_off()
                }
            };
            Life { kind, dir: &home, task, seed, lines: 1, after: Duration::ZERO }.live(&mut debts, happens);
        }
        device.come_back();
        check(kind, &home, &debts).await;
        device.unmount();
    }
}

#[tokio::test]
async fn child_of_the_device_test() {
    let (Ok(dir), Ok(kind)) = (std::env::var(DIR), std::env::var(KIND)) else { return };
    let kind = if kind == "flat" { Kind::Flat } else { Kind::Rocksdb };
    what_was_begun_is_completed(kind, Path::new(&dir)).await;
    power_goes_again_and_again(kind, Path::new(&dir)).await;
}

/// Runs something where whatever is mounted is gone with it.
pub(super) fn in_a_namespace(command: &Command, dir: &Path) -> Output {
    let mut unshared = Command::new("unshare");
    unshared.arg("--mount").arg(command.get_program()).args(command.get_args());
    unshared.env(DIR, dir).output().expect("unshare is there")
}

fn survives_power_loss(kind: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let mut trial = Command::new("sh");
    let image = "truncate -s 64M \"$1/trial\" && mkfs.ext4 -q -F \"$1/trial\" && mkdir -p \"$1/at\" && mount -o loop \"$1/trial\" \"$1/at\"";
    trial.args(["-c", &format!("{image} && perl -e '{SHUT_OFF}' \"$1/at\""), "sh"]).arg(dir);
    let tried = in_a_namespace(&trial, dir);
    if !tried.status.success() {
        let why = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
        let said = writeln!(
            std::io::stderr(),
            "WARNING: this system lets nobody mount a file system and shut it off ({why}): power loss is only modelled"
        );
        said.expect("somebody listens");
        return;
    }
    let child = child("tests::device::child_of_the_device_test", dir);
    let mut command = Command::new("env");
    command.arg(format!("{KIND}={kind}")).arg(child.get_program()).args(child.get_args());
    let ran = in_a_namespace(&command, dir);
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn pins_outlive_the_power_of_a_device() {
    survives_power_loss("rocksdb");
}

#[test]
fn pins_in_files_outlive_the_power_of_a_device() {
    survives_power_loss("flat");
}
