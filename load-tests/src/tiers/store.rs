//! Writing: archives of new blocks, and files that are new, stored or stored in part. Every turn has a directory of its
//! own, and begins when the disk is idle.

use super::Options;
use crate::archive::{self, PLAIN, importer};
use crate::comparison::{self, Case, Measure, Series, System, Turn};
use crate::directory::{disk_bytes, temp_dir};
use crate::sample;
use crate::servers::KuboRepo;
use crate::stats::{median, rotated};
use crate::stores::store::Store;
use crate::timed::{self, settled};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use content::hashes::SHA2_256;
use content::importer::BlockSink;
use content::{Block, Cid, codec};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The size of a file's chunks.
const BLOCK_BYTES: u64 = 256 << 10;
/// The size of synthetic pieces.
const PIECE_BYTES: usize = 1 << 20;

/// New blocks from a CAR file.
pub async fn write(options: &Options) -> Result<Vec<Case>> {
    let bytes = options.write_bytes;
    let dir = temp_dir("write")?;
    let archive = dir.path().join("new.car");
    archive::write(&archive, |sink| Ok((import(pieces(options.seed, bytes), sink)?, ())))?;
    let mut stored = Vec::new();
    let systems = [System::Causeway, System::Kubo, System::Copy];
    let series = comparison::rounds(options.run.rounds(), &systems, async |system, _| {
        if system == System::Copy {
            let ran = settled(&mut copy(&archive, &dir.path().join("copy")))?;
            return Ok(turn(ran.wall, ran.cpu, bytes));
        }
        let store = fresh(options, system)?;
        let ran = store.import(&archive)?;
        let share = disk_bytes(store.path())? as f64 / bytes as f64;
        ensure!(share > 0.9, "only {share:.2} × the bytes are on disk");
        stored.extend((system == System::Causeway).then_some(share));
        Ok(turn(ran.wall, ran.cpu, bytes))
    });
    let name = format!("writing {} MB of new 256 KiB blocks from a CAR file", bytes / 1_000_000);
    let case = Case::new(name, "MB/s", series.await?);
    let kubo = case.against(System::Kubo).bar("3 × Kubo's dag import", 3.0);
    let copy = case.against(System::Copy).aim("the disk's limit", 1.0);
    let note = format!("Causeway has {:.3} × the bytes on disk", median(stored.into_iter()));
    Ok(vec![case.measure(kubo).measure(copy).note(note)])
}

/// Files that are added, one after the other, to an empty store.
#[derive(Debug, Clone)]
struct Step {
    case: String,
    file: PathBuf,
    root: Cid,
    file_bytes: u64,
    /// Bytes that are new to the store.
    new_bytes: u64,
}

/// A large file, the same again, and one of which half is stored already.
pub fn add(options: &Options) -> Result<Vec<Case>> {
    let dir = temp_dir("add")?;
    let steps = steps(options, dir.path())?;
    let mut series = steps.clone().map(|_| [System::Causeway, System::Kubo].map(Series::new).to_vec());
    let mut hashing = Series::new(System::Hashing);
    let mut growth = [const { Vec::new() }; 3];
    for (round, index) in rotated(options.run.rounds(), 3) {
        let Some(system) = series[0].get(index).map(|series| series.system) else {
            hashing.push(round, hash(&steps[0])?);
            continue;
        };
        let store = fresh(options, system)?;
        for (step, (series, growth)) in steps.iter().zip(series.iter_mut().zip(&mut growth)) {
            let before = disk_bytes(store.path())?;
            let ran = store.add(&step.file)?;
            ensure!(ran.stdout.contains(&step.root.to_string()), "{system}: not {}, but {}", step.root, ran.stdout);
            series[index].push(round, turn(ran.wall, ran.cpu, step.file_bytes));
            if system == System::Causeway {
                growth.push(disk_bytes(store.path())?.saturating_sub(before) as f64);
            }
        }
    }
    series[0].push(hashing);
    let cases = steps.into_iter().zip(series).zip(growth);
    let cases = cases.map(|((step, series), growth)| judged(&step, series, median(growth.into_iter())));
    Ok(cases.collect())
}

fn judged(step: &Step, series: Vec<Series>, growth: f64) -> Case {
    let case = Case::new(step.case.clone(), "MB/s", series);
    let kubo = case.against(System::Kubo).bar("2 × Kubo", 2.0);
    let hashing = case.against(System::Hashing).aim("the hash limit", 1.0);
    let case = case.measure(kubo);
    let of_file = growth / step.file_bytes as f64;
    match step.new_bytes {
        new if new == step.file_bytes => {
            case.measure(hashing).note(format!("Causeway's directory grew by {of_file:.3} × the file"))
        }
        0 => case.measure(Measure::lower(of_file, "× the file stored").bar("nothing new", 0.02)),
        new => {
            let of_new = growth / new as f64;
            case.measure(Measure::lower(of_new, "× the new blocks stored").bar("only the new blocks", 1.1))
        }
    }
}

fn steps(options: &Options, dir: &Path) -> Result<[Step; 3]> {
    // Cut in the middle, both halves have whole blocks.
    let half = options.add_bytes.div_ceil(2).next_multiple_of(BLOCK_BYTES.max(PIECE_BYTES as u64));
    let bytes = half * 2;
    let (first, shared) = (dir.join("first"), dir.join("shared"));
    let (known, new) = (options.seed, options.seed + 1);
    let root = import(written(&first, pieces(known, bytes))?, &mut discard)?;
    let shared_root = import(written(&shared, pieces(known, half).chain(pieces(new, half)))?, &mut discard)?;
    let megabytes = bytes / 1_000_000;
    let step = |what: &str, file: &Path, root, new_bytes| Step {
        case: format!("add of {megabytes} MB, {what}"),
        file: file.to_owned(),
        root,
        file_bytes: bytes,
        new_bytes,
    };
    Ok([
        step("new", &first, root, bytes),
        step("the same again", &first, root, 0),
        step("half of it known", &shared, shared_root, half),
    ])
}

/// Bytes that do not repeat, others for every seed; an end may be cut off.
fn pieces(seed: u64, bytes: u64) -> impl Iterator<Item = Result<Vec<u8>>> {
    let starts = (0..bytes).step_by(PIECE_BYTES);
    starts.zip(seed << 32..).map(move |(start, seed)| {
        let left = usize::try_from(bytes - start)?;
        Ok(sample::bytes(left.min(PIECE_BYTES), seed))
    })
}

/// The same pieces, each of them written to a file when it is consumed.
fn written(
    path: &Path,
    pieces: impl Iterator<Item = Result<Vec<u8>>>,
) -> Result<impl Iterator<Item = Result<Vec<u8>>>> {
    let mut out = File::create(path).with_context(|| path.display().to_string())?;
    Ok(pieces.map(move |piece| {
        let piece = piece?;
        out.write_all(&piece)?;
        Ok(piece)
    }))
}

/// A file's root.
fn import(pieces: impl Iterator<Item = Result<Vec<u8>>>, sink: &mut dyn BlockSink) -> Result<Cid> {
    let mut file = importer()?.file(PLAIN);
    for piece in pieces {
        file.write(&piece?, sink)?;
    }
    Ok(file.finish(sink)?.cid)
}

fn discard(_: Block) -> Result<(), content::importer::SinkError> {
    Ok(())
}

/// An empty store.
fn fresh(options: &Options, system: System) -> Result<Store<'_>> {
    Ok(match system {
        System::Causeway => {
            Store::Causeway { binary: &options.binaries.causeway, store: None, data: temp_dir("store")? }
        }
        System::Kubo => Store::Kubo(KuboRepo::init(&options.binaries.kubo, |_| {})?),
        other => bail!("{other} is no store"),
    })
}

fn copy(from: &Path, to: &Path) -> Command {
    let mut copy = Command::new("dd");
    copy.arg(format!("if={}", from.display())).arg(format!("of={}", to.display())).args(["bs=1M", "conv=fsync"]);
    copy
}

fn turn(wall: Duration, cpu: Duration, bytes: u64) -> Turn {
    Turn {
        value: bytes as f64 / 1e6 / wall.as_secs_f64(),
        cpu_microseconds: cpu.as_secs_f64() * 1e6 / bytes.div_ceil(BLOCK_BYTES) as f64,
        latency: None,
    }
}

/// Reads a file and hashes its blocks on every core.
fn hash(step: &Step) -> Result<Turn> {
    let (file, blocks) = (File::open(&step.file)?, step.file_bytes.div_ceil(BLOCK_BYTES));
    let threads = std::thread::available_parallelism()?.get();
    let hash = |first: usize| {
        for block in (first as u64..blocks).step_by(threads) {
            let start = block * BLOCK_BYTES;
            let mut data = vec![0; usize::try_from(BLOCK_BYTES.min(step.file_bytes - start))?];
            file.read_exact_at(&mut data, start)?;
            Block::of(codec::RAW, SHA2_256, 32, Bytes::from(data))?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let (cpu, begun) = (timed::own_cpu()?, Instant::now());
    std::thread::scope(|scope| {
        let hash = &hash;
        let workers: Vec<_> = (0..threads).map(|first| scope.spawn(move || hash(first))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| anyhow::anyhow!("a thread failed"))?)
    })?;
    Ok(turn(begun.elapsed(), timed::own_cpu()?.saturating_sub(cpu), step.file_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn pieces_have_the_size_and_do_not_repeat() {
        let all: Vec<Vec<u8>> =
            pieces(7, 2 * PIECE_BYTES as u64 + 5).map(|piece| piece.expect("it is short")).collect();
        let lengths: Vec<usize> = all.iter().map(Vec::len).collect();
        assert_eq!(lengths, [PIECE_BYTES, PIECE_BYTES, 5]);
        assert_ne!(all[0], all[1]);
        assert_eq!(pieces(7, 0).count(), 0);
    }

    #[test]
    fn a_written_file_has_the_root_that_is_expected() {
        let dir = TempDir::new().expect("the temporary directory is writable");
        let path = dir.path().join("file");
        let (known, new) = (pieces(1, PIECE_BYTES as u64), pieces(2, 5));
        let root =
            import(written(&path, known.chain(new)).expect("it is writable"), &mut discard).expect("it is small");
        let content = std::fs::read(&path).expect("it was written");
        assert_eq!(content.len(), PIECE_BYTES + 5);
        let expected = archive::file(&importer().expect("a profile"), &content, &mut discard).expect("it is small");
        assert_eq!(root, expected.cid);
        assert!(disk_bytes(dir.path()).is_ok_and(|bytes| bytes >= content.len() as u64));
    }

    #[test]
    fn only_new_blocks_may_cost() {
        let step = |new_bytes| Step {
            case: "a case".to_owned(),
            file: PathBuf::new(),
            root: *Block::of(codec::RAW, SHA2_256, 32, Bytes::new()).expect("it is short").cid(),
            file_bytes: 100,
            new_bytes,
        };
        let met = |new_bytes, growth| {
            let case = judged(&step(new_bytes), Vec::new(), growth);
            case.measures[1].bar.as_ref().map(|bar| bar.met)
        };
        assert_eq!([met(50, 54.0), met(50, 56.0)], [Some(true), Some(false)]);
        assert_eq!([met(0, 1.0), met(0, 3.0)], [Some(true), Some(false)]);
        assert_eq!(met(100, 200.0), None, "new blocks are judged by their rate");
    }
}
