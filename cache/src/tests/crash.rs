//! `kill -9` at any moment: what was acknowledged is there when the store is opened again.
//!
//! The test runs its own binary as a child that pins, caches, evicts, unpins, imports, compacts and recompresses without end and
//! prints what was acknowledged; kills it a moment after a seeded number of lines, while it goes on working; and looks at
//! what is left. The same directory is used for many rounds, so recovery is recovered from as well. [`super::crash_flat`] does
//! so with another store.

use super::audit::audit;
use super::import::{car, node};
use super::{Random, noisy, open_with, raw, supply};
use crate::{BlockStore, DiskOptions, PinState, import_car};
use content::Block;
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub(super) const DIR: &str = "CAUSEWAY_CRASH_DIR";
const SEED: &str = "CAUSEWAY_CRASH_SEED";
const ROUNDS: &str = "CAUSEWAY_CRASH_ROUNDS";
pub(super) const CACHE_BYTES: u64 = 500_000;

/// Rounds in one directory.
const ROUNDS_TOGETHER: u64 = 20;

fn options() -> DiskOptions {
    // Small segments, so that they are evicted, collected and deleted all the time.
    DiskOptions { cache_bytes_max: CACHE_BYTES, segment_bytes_max: 200_000, ..DiskOptions::default() }
}

/// Text that a higher level finds more in.
fn text(seed: u64, len: usize) -> Block {
    let mut random = Random(seed);
    let mut text = format!("{seed} ");
    while text.len() < len {
        let word = random.below(900);
        text += &format!("{:x} ", word * word * 2_654_435_761);
    }
    raw(text)
}

/// The DAG that a number stands for: 1 to 30 blocks, some of them in neighbouring DAGs too; the root is first. Every seventh
/// is one that an archive can have.
fn dag(number: u64) -> Vec<Block> {
    let mut random = Random(number);
    let own = 1 + random.below(30);
    let mut blocks: Vec<_> = (0..own)
        .map(|i| {
            let len = usize::try_from(1 + random.below(20_000)).expect("small");
            if i % 3 == 0 { text(number * 1_000 + i, len) } else { noisy(number * 1_000 + i, len) }
        })
        .collect();
    blocks.extend((0..3).map(|i| noisy(u64::MAX - number / 4 - i, 700)));
    if number.is_multiple_of(7) {
        let root = node(&blocks.iter().collect::<Vec<_>>());
        blocks.insert(0, root);
    }
    blocks
}

/// The child: works until it is killed.
async fn work(dir: &Path, seed: u64) {
    let disk = open_with(dir, options()).expect("opens");
    let mut random = Random(seed);
    for number in seed.. {
        for _ in 0..random.below(20) {
            disk.put_cached(noisy(random.next(), 10_000)).await;
        }
        let blocks = dag(number);
        let root = *blocks[0].cid();
        if number.is_multiple_of(7) {
            say("importing", number);
            let archive = car(&[root], &blocks.iter().rev().cloned().collect::<Vec<_>>());
            let pins = import_car(&disk, &archive[..], None).await.expect("imports").pins;
            assert_eq!((pins.len(), pins[0].state), (1, PinState::Complete));
        } else {
            let pin = disk.pin_recursive(root, None, supply(&blocks)).await.expect("pins");
            assert_eq!(pin.state, PinState::Complete);
        }
        say("pinned", number);
        match random.below(12) {
            0..4 => {
                let victim = seed + random.below(number - seed + 1);
                say("unpinning", victim);
                disk.remove_pin(dag(victim)[0].cid()).await.expect("removes");
                say("unpinned", victim);
            }
            4 => {
                say("compacting", number);
                disk.compact().await.expect("compacts");
            }
            5 => {
                say("recompressing", number);
                disk.recompress_pinned(9 + u8::try_from(random.below(4)).expect("small"), None).await.expect("works");
            }
            _ => {}
        }
    }
}

/// A line that reaches the parent whatever becomes of this process; the test harness would hold `println!` back.
pub(super) fn say(what: &str, number: u64) {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "\n{what} {number}").expect("the parent listens");
}

#[tokio::test]
async fn child_of_the_crash_test() {
    let Some((dir, seed)) = told() else { return };
    work(&dir, seed).await;
}

/// What a child is told: its folder and its seed. `None` in every other process.
pub(super) fn told() -> Option<(PathBuf, u64)> {
    let (dir, seed) = (std::env::var_os(DIR)?, std::env::var(SEED).ok()?);
    Some((dir.into(), seed.parse().expect("a number")))
}

/// How many rounds are wanted.
pub(super) fn rounds() -> u64 {
    std::env::var(ROUNDS).ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(5)
}

/// One of this binary's tests, to be run by itself and listened to.
pub(super) fn child(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", test, "--nocapture"]).env(DIR, dir);
    command
}

/// What the store owes for a number.
#[derive(Debug, PartialEq)]
pub(super) enum Owed {
    /// Complete and whole.
    Pinned,
    /// Either: the answer to the removal was not heard.
    Either,
    /// No pin.
    Gone,
}

/// Notes a line; says whether it was one of the child's.
fn note(owed: &mut HashMap<u64, Owed>, line: &str) -> bool {
    let Some((what, number)) = line.split_once(' ') else { return false };
    let state = match what {
        "pinned" => Owed::Pinned,
        "unpinning" => Owed::Either,
        "unpinned" => Owed::Gone,
        // Whatever comes of it, nothing is owed.
        "importing" | "compacting" | "recompressing" => return true,
        _ => return false,
    };
    number.parse().is_ok_and(|number| {
        owed.insert(number, state);
        true
    })
}

/// Runs a test as a child and kills it a while after some of its lines, reading to the end of what it managed to say.
pub(super) fn crash(mut test: Command, seed: u64, lines: u64, after: Duration, owed: &mut HashMap<u64, Owed>) {
    let mut child = test.env(SEED, seed.to_string()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut heard = 0;
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        heard += u64::from(note(owed, &line.expect("reads")));
        if heard == lines {
            std::thread::sleep(after);
            child.kill().expect("kills");
        }
    }
    let status = child.wait().expect("ends");
    assert!(!status.success() && heard >= lines, "it was killed, and not before: {status}, {heard} of {lines}");
}

/// Looks for the DAGs of what is owed.
pub(super) async fn check(store: &dyn BlockStore, dag: fn(u64) -> Vec<Block>, owed: &HashMap<u64, Owed>) {
    let pins: HashMap<_, _> = store.pins().await.expect("lists").into_iter().map(|pin| (pin.root, pin.state)).collect();
    for (number, owed) in owed {
        let blocks = dag(*number);
        match (owed, pins.get(blocks[0].cid())) {
            (Owed::Pinned, Some(PinState::Complete)) => {}
            (Owed::Gone, None) | (Owed::Either, _) => continue,
            (owed, found) => panic!("{number} is owed as {owed:?} and found as {found:?}"),
        }
        for block in blocks {
            assert_eq!(store.get(block.cid()).await.as_ref(), Ok(&block), "a block of {number}");
        }
    }
}

#[tokio::test]
async fn acknowledged_pins_survive_kill_9() {
    let (mut dir, mut owed) = (tempfile::tempdir().expect("a directory"), HashMap::new());
    for round in 0..rounds() {
        if round % ROUNDS_TOGETHER == 0 {
            (dir, owed) = (tempfile::tempdir().expect("a directory"), HashMap::new());
        }
        let mut random = Random(round);
        let (lines, after) = (1 + random.below(120), Duration::from_micros(random.below(30_000)));
        let test = child("tests::crash::child_of_the_crash_test", dir.path());
        crash(test, 1 + round * 1_000_000, lines, after, &mut owed);
        let disk = open_with(dir.path(), options()).expect("opens");
        disk.flush().await.expect("flushes");
        check(&disk, dag, &owed).await;
        audit(&disk);
        assert_eq!(disk.stats().corrupt_blocks, 0);
        assert!(disk.stats().cached_bytes <= CACHE_BYTES);
    }
}
