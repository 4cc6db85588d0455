//! The questions about adding. Each has directories of its own, and every store is given the same ones.

use super::Options;
use super::data::{BLOCK_BYTES, Maker, Set, Stored, Stretch, size};
use super::figures::{Answer, Cost};
use super::store::{Participant, Store};
use crate::comparison::named;
use crate::directory::{disk_bytes, temp_dir};
use crate::stats::rotated;
use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// Sizes of files and how many there are of each: thousands of small ones, and some tens of mebibytes of larger ones.
const SIZES: [(usize, usize); 7] =
    [(1 << 10, 2000), (8 << 10, 1000), (64 << 10, 512), (256 << 10, 128), (1 << 20, 32), (8 << 20, 4), (64 << 20, 1)];
/// In a quick run, larger files are left out.
const QUICK_BYTES_MAX: usize = 1 << 20;
/// The same is added so often.
const REPEATS: [&str; 5] = ["1st", "2nd", "3rd", "4th", "5th"];
/// Sizes of files that are added again, far below a block and of two blocks, and how many there are.
const REPEATED: [(usize, usize); 2] = [(1 << 10, 1000), (512 << 10, 64)];
/// Files of which a part is shared: a block, and the rest.
const REST_BYTES: usize = 144 << 10;
const SHARING_FILES: usize = 64;
/// Blocks of a file, and how many files there are of each kind.
const LENGTHS: [usize; 4] = [1, 2, 4, 8];
const DIVERSE_FILES: usize = 16;

named! {
    /// A question about adding.
    pub enum Question {
        /// Does the size of a file matter, below a block and above?
        Size = "size",
        /// Does it cost less to add the same again?
        Repeat = "repeat",
        /// Do files share what they have in common?
        Share = "share",
        /// Does it matter how many different blocks a file has?
        Diversity = "diversity",
    }
}

/// Whether a store is empty before each directory, or only before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Empty {
    Each,
    First,
}

impl Question {
    pub const ALL: [Self; 4] = [Self::Size, Self::Repeat, Self::Share, Self::Diversity];

    /// Measures every store.
    pub fn measure(self, options: &Options, participants: &[Participant]) -> Result<Vec<Answer>> {
        let dir = temp_dir("data")?;
        // Questions do not share content.
        let seed = options.seed * Self::ALL.len() as u64 + self as u64;
        let mut maker = Maker::new(dir.path(), seed);
        let empty = if matches!(self, Self::Size | Self::Share) { Empty::Each } else { Empty::First };
        let workloads = match self {
            Self::Size => vec![sizes(options, &mut maker)?],
            Self::Repeat => repeats(options, &mut maker)?,
            Self::Share => vec![shares(options, &mut maker)?],
            Self::Diversity => diversities(options, &mut maker)?,
        };
        let answer = |(heading, sets): (String, Vec<Set>)| {
            eprintln!("{} {heading}", self.name());
            let costs = costs(options, participants, &sets, empty)?;
            Ok(Answer { question: self, heading, sets, costs })
        };
        workloads.into_iter().map(answer).collect()
    }
}

/// A heading and directories.
type Workload = (String, Vec<Set>);

fn sizes(options: &Options, maker: &mut Maker<'_>) -> Result<Workload> {
    let wanted = SIZES.into_iter().filter(|(bytes, _)| !options.run.quick || *bytes <= QUICK_BYTES_MAX);
    let set = |(bytes, files)| {
        let files: Vec<Vec<Stretch>> = (0..options.count(files)).map(|_| vec![maker.stretch(bytes)]).collect();
        maker.directory(size(bytes), &files, &mut Stored::new())
    };
    Ok((String::new(), wanted.map(set).collect::<Result<_>>()?))
}

fn repeats(options: &Options, maker: &mut Maker<'_>) -> Result<Vec<Workload>> {
    let workload = |(bytes, files)| {
        let files = options.count(files);
        let stretches: Vec<Vec<Stretch>> = (0..files).map(|_| vec![maker.stretch(bytes)]).collect();
        let first = maker.directory(REPEATS[0], &stretches, &mut Stored::new())?;
        let again = |label: &&str| Set { label: (*label).to_owned(), new_bytes: 0, ..first.clone() };
        let sets = [first.clone()].into_iter().chain(REPEATS[1..].iter().map(again)).collect();
        Ok((format!("{files} files of {}", size(bytes)), sets))
    };
    REPEATED.into_iter().map(workload).collect()
}

fn shares(options: &Options, maker: &mut Maker<'_>) -> Result<Workload> {
    let [block, rest] = [BLOCK_BYTES, REST_BYTES].map(|bytes| maker.stretch(bytes));
    let mut set = |label, block: Option<Stretch>, rest: Option<Stretch>| {
        let file = |_| {
            let block = block.unwrap_or_else(|| maker.stretch(BLOCK_BYTES));
            vec![block, rest.unwrap_or_else(|| maker.stretch(REST_BYTES))]
        };
        let files: Vec<Vec<Stretch>> = (0..options.count(SHARING_FILES)).map(file).collect();
        maker.directory(label, &files, &mut Stored::new())
    };
    let sets = vec![
        set("nothing shared", None, None)?,
        set("256 KiB shared", Some(block), None)?,
        set("everything shared", Some(block), Some(rest))?,
    ];
    Ok((String::new(), sets))
}

fn diversities(options: &Options, maker: &mut Maker<'_>) -> Result<Vec<Workload>> {
    let files = options.count(DIVERSE_FILES);
    let letters: Vec<Stretch> = (0..files).map(|_| maker.stretch(BLOCK_BYTES)).collect();
    let mut workload =
        |heading: &str, file: &dyn Fn(&mut Maker<'_>, usize, usize) -> Vec<Stretch>| -> Result<Workload> {
            let mut stored = Stored::new();
            let set = |length| {
                let files: Vec<Vec<Stretch>> = (0..files).map(|index| file(maker, index, length)).collect();
                maker.directory(format!("{length}"), &files, &mut stored)
            };
            Ok((heading.to_owned(), LENGTHS.into_iter().map(set).collect::<Result<_>>()?))
        };
    Ok(vec![
        workload("A, AA, AAAA: one block, the same at every length", &|_, index, length| vec![letters[index]; length])?,
        workload("A, BB, CCCC: one block, another at every length", &|maker, _, length| {
            vec![maker.stretch(BLOCK_BYTES); length]
        })?,
        workload("A, BC, DEFG: different blocks", &|maker, _, length| {
            (0..length).map(|_| maker.stretch(BLOCK_BYTES)).collect()
        })?,
    ])
}

/// Processes with next to nothing to do: they add a file of a few bytes that is stored already.
pub fn starts(options: &Options, participants: &[Participant]) -> Result<Vec<Vec<Cost>>> {
    eprintln!("start");
    let dir = next_to_nothing()?;
    let mut all = vec![Vec::new(); participants.len()];
    for (_, index) in rotated(options.run.rounds() + 2, participants.len()) {
        if !participants[index].adds {
            continue;
        }
        let store = participants[index].fresh(options)?;
        store.add(dir.path())?;
        let ran = store.add(dir.path())?;
        eprintln!("  {} {:.0} ms", participants[index].name, ran.wall.as_secs_f64() * 1e3);
        all[index].push(Cost::of(&ran, 0));
    }
    Ok(all)
}

/// A directory with a file of a few bytes.
fn next_to_nothing() -> Result<TempDir> {
    let dir = temp_dir("start")?;
    std::fs::write(dir.path().join("file"), "next to nothing")?;
    Ok(dir)
}

fn costs(options: &Options, participants: &[Participant], sets: &[Set], empty: Empty) -> Result<Vec<Vec<Vec<Cost>>>> {
    let mut all = vec![vec![Vec::new(); sets.len()]; participants.len()];
    let mut roots = vec![None; sets.len()];
    // The cost of opening a store for the first time is not that of adding, and Kubo's `init` pays some of it.
    let first = next_to_nothing()?;
    let opened = |participant: Participant| {
        let store = participant.fresh(options)?;
        store.add(first.path())?;
        Ok::<_, anyhow::Error>(store)
    };
    for (round, index) in rotated(options.run.rounds(), participants.len()) {
        let participant = participants[index];
        if !participant.adds {
            continue;
        }
        let (mut last, mut millis): (Option<Store<'_>>, _) = (None, String::new());
        for ((set, root), costs) in sets.iter().zip(&mut roots).zip(&mut all[index]) {
            let store = match last.take() {
                Some(store) if empty == Empty::First => store,
                _ => opened(participant)?,
            };
            let (cost, found) = add(&store, set).with_context(|| participant.name)?;
            let root: &String = root.get_or_insert_with(|| found.clone());
            ensure!(*root == found, "{}: {found} instead of {root}", participant.name);
            millis += &format!(" {:.0}", cost.wall.as_secs_f64() * 1e3);
            costs.push(cost);
            last = Some(store);
        }
        eprintln!("  round {}: {}{millis} ms", round + 1, participant.name);
    }
    Ok(all)
}

/// Adds a directory. Returns the cost and the CID.
pub fn add(store: &Store<'_>, set: &Set) -> Result<(Cost, String)> {
    let before = disk_bytes(store.path())?;
    let ran = store.add(&set.directory)?;
    let root = ran.stdout.lines().last().unwrap_or_default().trim().to_owned();
    Ok((Cost::of(&ran, disk_bytes(store.path())?.saturating_sub(before)), root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Binaries, Run};
    use std::path::PathBuf;

    fn workloads(make: impl FnOnce(&Options, &mut Maker<'_>) -> Result<Vec<Workload>>) -> Vec<Workload> {
        let options = Options {
            binaries: Binaries { causeway: PathBuf::new(), kubo: PathBuf::new() },
            run: Run { out: PathBuf::new(), rounds: 1, quick: true },
            stores: Vec::new(),
            seed: 1,
        };
        let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
        make(&options, &mut Maker::new(dir.path(), 1)).expect("there is room")
    }

    fn new_blocks(sets: &[Set]) -> Vec<u64> {
        sets.iter().map(|set| set.new_bytes / BLOCK_BYTES as u64).collect()
    }

    #[test]
    fn sizes_lie_on_both_sides_of_a_block() {
        let all = workloads(|options, maker| Ok(vec![sizes(options, maker)?]));
        let labels: Vec<&str> = all[0].1.iter().map(|set| set.label.as_str()).collect();
        assert_eq!(labels, ["1 KiB", "8 KiB", "64 KiB", "256 KiB", "1 MiB"]);
        assert!(all[0].1.iter().all(|set| set.files >= 2 && set.bytes == set.new_bytes));
    }

    #[test]
    fn the_same_is_new_once() {
        for (_, sets) in workloads(repeats) {
            assert_eq!(sets.len(), REPEATS.len());
            assert!(sets[0].new_bytes == sets[0].bytes && sets[1..].iter().all(|set| set.new_bytes == 0));
        }
    }

    #[test]
    fn shared_blocks_are_new_once() {
        let all = workloads(|options, maker| Ok(vec![shares(options, maker)?]));
        let [nothing, block, everything] = &all[0].1[..] else { panic!("{all:?}") };
        let (files, file) = (nothing.files, (BLOCK_BYTES + REST_BYTES) as u64);
        assert_eq!(nothing.new_bytes, files * file);
        assert_eq!(block.new_bytes, BLOCK_BYTES as u64 + files * REST_BYTES as u64);
        assert_eq!(everything.new_bytes, file);
    }

    #[test]
    fn blocks_are_as_diverse_as_they_are_called() {
        let all = workloads(diversities);
        let files = all[0].1[0].files;
        let new: Vec<Vec<u64>> = all.iter().map(|(_, sets)| new_blocks(sets)).collect();
        assert_eq!(new[0], [files, 0, 0, 0]);
        assert_eq!(new[1], [files; 4]);
        assert_eq!(new[2], LENGTHS.map(|length| files * length as u64));
        assert!(all.iter().all(|(_, sets)| sets[3].bytes == files * 8 * BLOCK_BYTES as u64));
    }
}
