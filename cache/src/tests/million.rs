//! A pin of a million blocks: created by a process that is killed half-way and again at the end, listed, verified and
//! removed. Prints time and memory.

use super::audit::audit;
use super::crash::{DIR, child, say};
use super::{noisy, open};
use crate::{Disk, Held, PinState};
use content::{Block, BlockSource};
use futures::StreamExt as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

const BLOCKS: u64 = 1_000_000;
const BLOCK_BYTES: usize = 100;

fn block(number: u64) -> Block {
    noisy(number, BLOCK_BYTES)
}

/// The peak resident memory of this process, in MiB.
fn peak_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0) / 1024
}

fn report(what: &str, begun: Instant) {
    println!("{what}: {:.1} s, peak {} MiB", begun.elapsed().as_secs_f64(), peak_mib());
}

/// The child: pins, and prints its progress.
#[tokio::test]
async fn child_that_pins_a_million() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let disk = open(Path::new(&dir));
    let supply = futures::stream::iter(0..BLOCKS).map(|number| {
        if number % 10_000 == 0 {
            say("supplied", number);
        }
        Ok::<_, std::io::Error>(block(number))
    });
    let begun = Instant::now();
    let pin = disk.pin_recursive(*block(0).cid(), Some("a million".to_owned()), supply).await.expect("pins");
    assert_eq!((pin.blocks, pin.state), (BLOCKS, PinState::Complete));
    report("pinned by the child", begun);
    say("pinned", pin.blocks);
    // It runs until it is killed.
    for number in BLOCKS.. {
        disk.put_cached(block(number)).await;
    }
}

/// Runs the child until it prints `said`.
fn kill_after(dir: &Path, said: &str) {
    let mut child =
        child("tests::million::child_that_pins_a_million", dir).stdout(Stdio::piped()).spawn().expect("starts");
    let mut heard = false;
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let line = line.expect("reads");
        if line.starts_with("pinned by") {
            println!("{line}");
        }
        if line == said {
            heard = true;
            child.kill().expect("kills");
        }
    }
    assert!(heard && !child.wait().expect("ends").success(), "it was killed, and not before");
}

async fn pinned_keys(disk: &Disk) -> u64 {
    let disk = disk.clone();
    let count = tokio::task::spawn_blocking(move || {
        let mut keys = 0;
        disk.visit_keys(Held::Pinned, &mut |_| keys += 1).map(|()| keys)
    });
    count.await.expect("no panic").expect("reads")
}

#[tokio::test]
#[ignore = "takes minutes; make test-long runs it"]
async fn a_million_blocks_are_pinned_listed_verified_and_unpinned_across_crashes() {
    let dir = tempfile::tempdir().expect("a directory");
    kill_after(dir.path(), "supplied 500000");
    let begun = Instant::now();
    let disk = open(dir.path());
    report("opened after the first crash", begun);
    let pin = disk.pins().await.expect("lists").remove(0);
    assert_eq!(pin.state, PinState::Partial);
    assert!((1..BLOCKS).contains(&pin.blocks), "{pin:?}");
    assert_eq!(pinned_keys(&disk).await, pin.blocks, "its members are protected and counted");
    drop(disk);

    kill_after(dir.path(), &format!("pinned {BLOCKS}"));
    let begun = Instant::now();
    let disk = open(dir.path());
    report("opened after the second crash", begun);
    let begun = Instant::now();
    let pins = disk.pins().await.expect("lists");
    assert_eq!((pins.len(), pins[0].blocks, pins[0].state), (1, BLOCKS, PinState::Complete));
    assert_eq!((pins[0].id, pins[0].name.as_deref()), (pin.id, Some("a million")), "it was resumed");
    assert_eq!(pinned_keys(&disk).await, BLOCKS);
    report("listed", begun);
    let begun = Instant::now();
    let scrubbed = disk.scrub_all(None, |_, _| ()).await.expect("scrubs");
    assert!(scrubbed.progress.is_clean() && scrubbed.progress.blocks >= BLOCKS && scrubbed.lacking.is_empty());
    report("verified", begun);
    for number in (0..BLOCKS).step_by(9_973) {
        assert_eq!(disk.get(block(number).cid()).await, Ok(block(number)));
    }
    println!(
        "{} MiB on the disk for {} MiB of blocks",
        disk.stats().pinned_bytes >> 20,
        (BLOCKS * BLOCK_BYTES as u64) >> 20
    );
    let begun = Instant::now();
    assert!(disk.remove_pin(block(0).cid()).await.expect("removes"));
    report("removal acknowledged", begun);
    disk.flush().await.expect("flushes");
    report("unpinned", begun);
    assert_eq!((disk.stats().pinned_bytes, disk.pins().await.expect("lists").len()), (0, 0));
    audit(&disk);
}
