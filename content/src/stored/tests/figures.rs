//! Costs and savings of storing: `cargo test --release -p causeway-cache figures -- --ignored --nocapture` prints the
//! tables in `encoder.rs`; with `SAMPLES=/some/directory`, also for the files below it, by file extension.

use super::super::encoder::SAVING_MIN;
use super::super::estimate::{Estimate, context};
use super::*;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK_BYTES: usize = 256 * 1024;
const KIND_BYTES: usize = 4 * 1024 * 1024;

fn blocks(data: &[u8]) -> Vec<Block> {
    data.chunks(BLOCK_BYTES).map(|chunk| block(codec::RAW, chunk.to_vec())).collect()
}

/// MB/s of the blocks' bytes: the best of several runs for each block, each shorter than a scheduler time slice, so
/// that other load has little influence.
fn megabytes_per_second<T, U>(bytes: usize, items: &[T], mut run: impl FnMut(&T) -> U) -> f64 {
    let mut best = |item: &T| {
        let times = (0..5).map(|_| {
            let start = Instant::now();
            black_box(run(item));
            start.elapsed()
        });
        times.min().unwrap_or_default()
    };
    bytes as f64 / 1e6 / items.iter().map(&mut best).sum::<Duration>().as_secs_f64()
}

fn total(values: &[Stored]) -> usize {
    values.iter().map(|stored| stored.value().len()).sum()
}

fn print(name: &str, blocks: &[Block]) {
    let bytes: usize = blocks.iter().map(|block| block.data().len()).sum();
    let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole as f64;
    let (mut encoder, mut small) = (encoder(), Encoder::new(CompressionOptions { level: 19 }).expect("zstd"));
    let (mut estimate, mut zstd) = (Estimate::new().expect("zstd"), context(3).expect("zstd"));
    let mut frame = |block: &Block| {
        let mut frame = Vec::with_capacity(zstd::zstd_safe::compress_bound(block.data().len()));
        zstd.compress2(&mut frame, block.data()).expect("compresses")
    };
    let stored: Vec<_> = blocks.iter().map(|block| encoder.encode(block)).collect();
    let again = blocks
        .iter()
        .zip(&stored)
        .map(|(block, stored)| small.recompress(block.cid(), stored).expect("reads").unwrap_or_else(|| stored.clone()));
    let again: Vec<_> = again.collect();
    let framed = stored.iter().filter(|stored| kind(stored) != "raw").count();
    let would = |block: &&Block| frame(block) <= block.data().len() - block.data().len() / SAVING_MIN;
    let missed = blocks.iter().filter(would).count().saturating_sub(framed);
    println!(
        "| {name} | {:.1} | {:.0} % | {:.0} % | {:.1} % | {:.1} % | {:.0} | {:.0} | {:.0} | {:.0} |",
        bytes as f64 / 1e6,
        percent(framed, blocks.len()),
        percent(missed, blocks.len()),
        percent(total(&stored), bytes),
        percent(total(&again), bytes),
        megabytes_per_second(bytes, blocks, |block| estimate.is_promising(block.data())),
        megabytes_per_second(bytes, blocks, |block| encoder.encode(block)),
        megabytes_per_second(bytes, blocks, &mut frame),
        megabytes_per_second(bytes, &stored, |stored| decode(stored.value())),
    );
}

/// Prints a histogram of the savings, to show whether the threshold matters.
fn print_savings<'a>(blocks: impl Iterator<Item = &'a Block>) {
    let mut zstd = context(3).expect("zstd");
    let mut counts = BTreeMap::new();
    for block in blocks.filter(|block| block.data().len() > 32 * 1024) {
        let mut frame = Vec::with_capacity(zstd::zstd_safe::compress_bound(block.data().len()));
        zstd.compress2(&mut frame, block.data()).expect("compresses");
        let saved = 100.0 - 100.0 * frame.len() as f64 / block.data().len() as f64;
        *counts.entry([1, 3, 6, 9, 12, 25, 100].into_iter().find(|bound| saved <= f64::from(*bound))).or_insert(0) += 1;
    }
    counts.iter().for_each(|(bound, count)| println!("{count} blocks save up to {} %", bound.unwrap_or_default()));
}

fn print_memory() {
    for level in [1, 3, 9, 19] {
        for length in [BLOCK_BYTES, MAX_BLOCK_BYTES] {
            let mut zstd = context(level).expect("zstd");
            zstd.compress2(&mut Vec::with_capacity(length), &samples::text(1, length)).expect("compresses");
            println!("level {level}, {length} bytes: a context of {} KiB", zstd.sizeof() / 1024);
        }
    }
    println!("decompression: a context of {} KiB", DCtx::create().sizeof() / 1024);
}

fn read_below(folder: &Path, found: &mut BTreeMap<String, Vec<Block>>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => read_below(&path, found),
            Ok(kind) if kind.is_file() => {
                let ending = path.extension().unwrap_or_default().to_string_lossy().into_owned();
                found.entry(ending).or_default().extend(blocks(&std::fs::read(&path).unwrap_or_default()));
            }
            _ => {}
        }
    }
}

#[test]
#[ignore = "takes a minute and prints figures"]
fn figures() {
    println!(
        "| data | MB | framed | missed | stored | level 19 | sample MB/s | encode MB/s | zstd MB/s | decode MB/s |"
    );
    print("random", &blocks(&samples::noise(1, KIND_BYTES)));
    print("text", &blocks(&samples::text(1, KIND_BYTES)));
    print("JSON", &blocks(&samples::json(1, KIND_BYTES)));
    print("CSV", &blocks(&samples::csv(1, KIND_BYTES)));
    print("HTML", &blocks(&samples::html(1, KIND_BYTES)));
    let mut files = BTreeMap::new();
    std::env::var_os("SAMPLES").into_iter().for_each(|folder| read_below(Path::new(&folder), &mut files));
    for (ending, blocks) in files.iter().filter(|(_, blocks)| !blocks.is_empty()) {
        print(&format!(".{ending}"), blocks);
    }
    print_savings(files.values().flatten());
    print_memory();
}
