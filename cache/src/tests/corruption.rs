//! Corruption of any file of a closed store: no wrong byte is read, no acknowledged pin is lost silently, and the store
//! opens, by itself or after a repair.
//!
//! A store with pins, cached blocks and removed pins is copied for each trial; in the copy, one file of one sort gets a
//! flipped bit, is truncated, partly overwritten, or deleted. More rounds:
//! `CAUSEWAY_CRASH_ROUNDS=30 cargo test --release -p causeway-cache --lib corruption -- --nocapture`.

use super::crash::rounds;
use super::import::node;
use super::power::copy;
use super::suite::{Kind, Opened, Setup, open};
use super::{Random, noisy, raw, supply};
use crate::flat::offline::Offline as FlatOffline;
use crate::{DiskOptions, Offline, PinState, ScrubPass, StoreError};
use content::{Block, Cid, SourceError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn setup() -> Setup {
    Setup { segment_bytes_max: 60_000, ..Setup::default() }
}

/// Up to twenty blocks below a root, some of them shared with other DAGs. The root is first.
pub(super) fn dag(number: u64) -> Vec<Block> {
    let mut random = Random(number);
    let mut leaf = |i: u64| {
        let len = usize::try_from(200 + random.below(4_000)).expect("small");
        if i.is_multiple_of(3) { raw(format!("{number} {i} ").repeat(len / 6)) } else { noisy(number * 100 + i, len) }
    };
    let mut leaves: Vec<Block> = (0..5 + number % 12).map(&mut leaf).collect();
    leaves.push(noisy(u64::MAX - number / 4, 700));
    let (left, right) = leaves.split_at(leaves.len() / 2);
    let inner = [left, right].map(|leaves| node(&leaves.iter().collect::<Vec<_>>()));
    let root = node(&inner.iter().collect::<Vec<_>>());
    [vec![root], inner.to_vec(), leaves].concat()
}

/// A store, and the DAGs of its acknowledged pins.
struct Sample {
    kind: Kind,
    dir: tempfile::TempDir,
    pinned: Vec<Vec<Block>>,
    cached: Vec<Block>,
}

impl Sample {
    async fn make(kind: Kind) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let cached: Vec<_> = (5_000..5_020).map(|seed| noisy(seed, 3_000)).collect();
        // Three processes in sequence; the data of the last is only in the log.
        for numbers in [0..8, 8..16, 16..24] {
            let store = open(kind, dir.path(), setup()).expect("opens");
            for number in numbers {
                let dag = dag(number);
                store.pin_recursive(*dag[0].cid(), Some(format!("pin {number}")), supply(&dag)).await.expect("pins");
                if number % 8 == 3 {
                    store.remove_pin(dag[0].cid()).await.expect("removes");
                }
            }
            store.cache(&cached).await;
            store.shut().await;
        }
        let pinned = (0..24).filter(|number| number % 8 != 3).map(dag).collect();
        Self { kind, dir, pinned, cached }
    }

    fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.pinned.iter().flatten().chain(&self.cached)
    }
}

/// A kind of corruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Corruption {
    Flipped,
    CutOff,
    Overwritten,
    Gone,
}

impl Corruption {
    const ALL: [Self; 4] = [Self::Flipped, Self::CutOff, Self::Overwritten, Self::Gone];

    fn apply(self, path: &Path, random: &mut Random) -> String {
        let mut bytes = fs::read(path).expect("reads");
        let at = usize::try_from(random.below(bytes.len().max(1) as u64)).expect("small");
        match self {
            Self::Flipped if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            Self::CutOff => bytes.truncate(at),
            Self::Overwritten => {
                let end = bytes.len().min(at + 600);
                bytes[at..end].fill_with(|| u8::try_from(random.below(256)).expect("a byte"));
            }
            Self::Gone | Self::Flipped => {}
        }
        match self {
            Self::Gone => fs::remove_file(path).expect("deletes"),
            _ => fs::write(path, &bytes).expect("writes"),
        }
        format!("{} {self:?} at {at} of {}", path.display(), bytes.len())
    }
}

/// The files of a store by kind.
fn files(dir: &Path) -> BTreeMap<String, Vec<PathBuf>> {
    let mut sorts = BTreeMap::<String, Vec<PathBuf>>::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).expect("lists").map(|entry| entry.expect("lists").path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let sort = match path.extension() {
                Some(suffix) => suffix.to_string_lossy().into_owned(),
                None if name.len() > 40 => "block".to_owned(),
                None => name.split('-').next().unwrap_or_default().to_owned(),
            };
            // Except message logs and locks.
            if !name.starts_with("LO") && sort != "lock" {
                sorts.entry(sort).or_default().push(path);
            }
        }
    }
    sorts.values_mut().for_each(|paths| paths.sort_unstable());
    sorts
}

/// The results of the trials.
#[derive(Debug, Default)]
struct Tally {
    trials: u64,
    /// Trials in which the store did not open at first.
    refused: Vec<String>,
    rebuilt: u64,
    /// Trials in which a read failed.
    told_at_read: u64,
    /// Trials after which a pin was incomplete.
    lacking: u64,
}

fn repair(kind: Kind, dir: &Path) -> Result<(), StoreError> {
    match kind {
        Kind::Flat => FlatOffline::repair(dir).map(drop),
        _ => Offline::repair(dir, &DiskOptions::default(), &|_| false, &mut |_| ()).map(drop),
    }
}

/// What a store still has of a sample.
struct Seen {
    /// Roots of incomplete DAGs.
    broken: BTreeSet<Cid>,
    errors: u64,
}

async fn look(store: &Opened, sample: &Sample, what: &str) -> Seen {
    let mut seen = Seen { broken: BTreeSet::new(), errors: 0 };
    let mut missing = BTreeSet::new();
    for block in sample.blocks() {
        match store.get(block.cid()).await {
            Ok(got) => assert_eq!(got.data(), block.data(), "{what}: a wrong byte"),
            Err(SourceError::NotFound { .. }) => _ = missing.insert(*block.cid()),
            Err(_) => seen.errors += 1,
        }
    }
    for dag in sample.pinned.iter().filter(|dag| dag.iter().any(|block| missing.contains(block.cid()))) {
        seen.broken.insert(*dag[0].cid());
    }
    seen
}

/// The roots of complete pins, according to the store.
async fn complete_pins(store: &Opened) -> BTreeSet<Cid> {
    let (pins, scrubbed) = (store.pins().await, store.scrub(ScrubPass::All, None, &mut |_, _| ()).await);
    // If listing fails, none counts as complete.
    let (Ok(pins), Ok(crate::ScrubReport { lacking, .. })) = (pins, scrubbed) else { return BTreeSet::new() };
    let lacking: BTreeSet<Cid> = lacking.into_iter().map(|pin| pin.root).collect();
    let complete = pins.into_iter().filter(|pin| pin.state == PinState::Complete && !lacking.contains(&pin.root));
    complete.map(|pin| pin.root).collect()
}

async fn try_one(sample: &Sample, sort: &str, corruption: Corruption, random: &mut Random, tally: &mut Tally) {
    let trial = tempfile::tempdir().expect("a directory");
    copy(sample.dir.path(), trial.path());
    let sorts = files(trial.path());
    let Some(paths) = sorts.get(sort) else { return };
    let path = &paths[usize::try_from(random.below(paths.len() as u64)).expect("small")];
    let what = corruption.apply(path, random);
    tally.trials += 1;
    let opened = open(sample.kind, trial.path(), setup());
    let store = match opened {
        Ok(store) => store,
        Err(error) => {
            tally.refused.push(format!("{what}: {error}"));
            repair(sample.kind, trial.path()).unwrap_or_else(|error| panic!("{what}: not repaired: {error}"));
            open(sample.kind, trial.path(), setup()).unwrap_or_else(|error| panic!("{what}: repaired, and {error}"))
        }
    };
    tally.rebuilt += store.stats().index_rebuilds;
    let seen = look(&store, sample, &what).await;
    let mut store = store;
    if seen.errors > 0 {
        tally.told_at_read += 1;
        assert!(store.stats().degraded(), "{what}: an error of the index is reported");
        drop(store);
        store = open(sample.kind, trial.path(), setup()).unwrap_or_else(|error| panic!("{what}, again: {error}"));
    }
    let seen = look(&store, sample, &what).await;
    assert_eq!(seen.errors, 0, "{what}: a start repairs what it detects");
    let complete = complete_pins(&store).await;
    let silent: Vec<_> = seen.broken.intersection(&complete).collect();
    assert!(silent.is_empty(), "{what}: wrongly reported complete: {silent:?}");
    drop(store);
    repair(sample.kind, trial.path()).unwrap_or_else(|error| panic!("{what}: not repaired: {error}"));
    let store =
        open(sample.kind, trial.path(), setup()).unwrap_or_else(|error| panic!("{what}: repaired, and {error}"));
    let seen = look(&store, sample, &what).await;
    let complete = complete_pins(&store).await;
    let is_value = matches!(sort, "segment" | "block");
    tally.lacking += u64::from(!seen.broken.is_empty());
    assert_eq!(seen.errors, 0, "{what}");
    assert!(
        is_value || seen.broken.is_empty(),
        "{what}: every value exists, but these are not found: {:?}",
        seen.broken
    );
    for dag in &sample.pinned {
        let root = dag[0].cid();
        let pinned = store.pin(root).await.expect("reads");
        assert!(pinned.is_some(), "{what}: the pin of {root} is lost");
        assert_eq!(complete.contains(root), !seen.broken.contains(root), "{what}: the state of {root} is correct");
    }
}

async fn try_all(kind: Kind) {
    let sample = Sample::make(kind).await;
    let sorts: Vec<String> = files(sample.dir.path()).into_keys().collect();
    let mut tally = Tally::default();
    for round in 0..rounds(1) {
        for (at, sort) in sorts.iter().enumerate() {
            for corruption in Corruption::ALL {
                let seed = round << 16 | (at as u64) << 8 | corruption as u64;
                try_one(&sample, sort, corruption, &mut Random(seed), &mut tally).await;
            }
        }
    }
    eprintln!("{kind:?} {sorts:?}: {tally:#?}");
    assert!(tally.trials >= sorts.len() as u64 * 4);
    assert!(tally.refused.is_empty(), "a start repairs what a repair does: {:#?}", tally.refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_corruption_of_a_rocksdb_store_is_fatal_or_silent() {
    try_all(Kind::Rocksdb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_corruption_of_a_flat_store_is_fatal_or_silent() {
    try_all(Kind::Flat).await;
}
