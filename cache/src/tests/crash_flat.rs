//! `kill -9` at any moment: what was acknowledged is there when the store is opened again.
//!
//! The test runs its own binary as a child that pins, caches and unpins without end and prints what was acknowledged; kills
//! it after a seeded number of lines, while it goes on working; and looks at what is left. The same directory is used for
//! every round, so recovery is recovered from as well.

use super::suite::{Home, Kind, Opened, Setup, open};
use super::{Random, noisy, supply};
use crate::PinState;
use content::Block;
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const DIR: &str = "CAUSEWAY_CRASH_DIR";
const SEED: &str = "CAUSEWAY_CRASH_SEED";
const ROUNDS: &str = "CAUSEWAY_CRASH_ROUNDS";
const CACHE_BYTES: u64 = 500_000;

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

/// A line that reaches the parent whatever becomes of this process; the test harness would hold `println!` back.
fn say(what: &str, number: u64) {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "\n{what} {number}").expect("the parent listens");
}

#[tokio::test]
async fn child_of_the_flat_crash_test() {
    let (Ok(dir), Ok(seed)) = (std::env::var(DIR), std::env::var(SEED)) else { return };
    work(Path::new(&dir), seed.parse().expect("a number")).await;
}

fn spawn(home: &Home, seed: u64) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "tests::crash_flat::child_of_the_flat_crash_test", "--nocapture"])
        .env(DIR, home.dir.path())
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts")
}

/// What the store owes for a number.
#[derive(Debug, PartialEq)]
enum Owed {
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
        _ => return false,
    };
    number.parse().is_ok_and(|number| {
        owed.insert(number, state);
        true
    })
}

/// Runs a child and kills it after some of its lines, reading to the end of what it managed to say.
fn crash(home: &Home, seed: u64, lines: u64, owed: &mut HashMap<u64, Owed>) {
    let mut child = spawn(home, seed);
    let mut heard = 0;
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        heard += u64::from(note(owed, &line.expect("reads")));
        if heard == lines {
            child.kill().expect("kills");
        }
    }
    let status = child.wait().expect("ends");
    assert!(!status.success() && heard >= lines, "it was killed, and not before: {status}, {heard} of {lines}");
}

async fn check(store: &Opened, owed: &HashMap<u64, Owed>) {
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
async fn acknowledged_pins_in_files_survive_kill_9() {
    let rounds = std::env::var(ROUNDS).ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    let home = Home::new(Kind::Flat);
    let mut owed = HashMap::new();
    for round in 0..rounds {
        let mut random = Random(round);
        crash(&home, 1 + round * 1_000_000, 1 + random.below(120), &mut owed);
        let store = home.open(setup()).await;
        store.settle().await;
        check(&store, &owed).await;
        store.settle().await;
        assert_eq!(store.stats().corrupt_blocks, 0);
        assert!(store.stats().cached_bytes <= CACHE_BYTES);
    }
}
