//! Files that are compressed as a whole before they are cut, in frames that can be read by themselves (`add --packed`).
//!
//! The command prints several CIDs, whose roles are found by asking for each of them: the plain file by one that does
//! not depend on this mode, the same by others, and the compressed file, which any node can read.

use super::Bench;
use super::features::PACKED;
use crate::child::Process;
use crate::comparison::{Case, Measure, Series, System, rounds};
use crate::compression::blocks::adding;
use crate::directory::temp_dir;
use crate::http::{get, get_range};
use crate::network::world::{self, Remote};
use crate::servers::{Causeway, Setup, Transport, without_settings};
use crate::stats::{median, rotated};
use crate::timed;
use anyhow::{Context, Result, ensure};
use content::Cid;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const BYTES: usize = 100 << 20;
/// What is read of it.
const RANGE_BYTES: usize = 64 << 10;
const LEVEL: i32 = 3;
const MIB: f64 = (1 << 20) as f64;

/// 64 KiB in the middle of the plain file: what is read of the store's files, and what passes a link.
pub async fn read(bench: &Bench) -> Result<Vec<Case>> {
    bench.features.require_packed("2 MiB read; 2 MiB through the link")?;
    let options = &bench.options;
    let content = bench.texts.of(options.size(BYTES));
    let store = temp_dir("store")?;
    let file = store.path().join("text.txt");
    std::fs::write(&file, &content)?;
    let data = store.path().join("data");
    let added = timed::run(&mut packing(bench, &file, &data))?;
    let (path, packed) = roles(bench, &data, &cids(&added.stdout), &content).await?;
    let mut passed = Vec::new();
    let middle = content.len() / 2 + 12_345;
    let range = middle..=middle + RANGE_BYTES - 1;
    let expected = &content[range.clone()];
    let series = rounds(options.run.rounds(), &[System::Causeway], async |_, _| {
        // A new node each time, with nothing in memory.
        let node = offline(bench, &data).await?;
        let before = read_so_far(&node.server.process)?;
        get_range(&node.server.at(&path), &range).await?.of_content(expected)?;
        let value = (read_so_far(&node.server.process)? - before) / MIB;
        drop(node);
        let setup = Setup { data: Some(&data), ..Setup::default() };
        let source = Remote::<Causeway>::start_with(options, options.link(), setup).await?;
        let client = world::client(System::Causeway, options, &[source.multiaddr(Transport::Tcp)]).await?;
        let before = source.passed(System::Causeway, Transport::Tcp);
        get_range(&format!("{}{path}", client.url), &range).await?.of_content(expected)?;
        passed.push(source.passed(System::Causeway, Transport::Tcp).since(before).down as f64 / MIB);
        Ok(value)
    });
    let name = format!("64 KiB out of {:.1} MiB that were added with {PACKED}", content.len() as f64 / MIB);
    let case = Case::new(name, "MiB read", series.await?);
    let read = Measure::lower(case.value(System::Causeway), "MiB read from files").bar("2 MiB", 2.0);
    let through = Measure::lower(median(passed.into_iter()), "MiB through the link").bar("2 MiB", 2.0);
    let note = format!("the plain file is {path}, the compressed one {packed}; a node that has just started");
    Ok(vec![case.measure(read).measure(through).note(note)])
}

/// What it takes to add: beside zstd, and then `add` of the compressed file.
pub fn add(bench: &Bench) -> Result<Vec<Case>> {
    bench.features.require_packed("1.2 × (zstd and add)")?;
    let options = &bench.options;
    let content = bench.texts.of(options.size(BYTES));
    let dir = temp_dir("text")?;
    let [file, whole] = ["text.txt", "text.txt.zst"].map(|name| dir.path().join(name));
    std::fs::write(&file, &content)?;
    let mut of_plain = Vec::new();
    let mut series = [System::WholeFile, System::Causeway].map(Series::new);
    for (round, index) in rotated(options.run.rounds(), series.len()) {
        let store = temp_dir("store")?;
        let seconds = if series[index].system == System::Causeway {
            timed::settled(&mut packing(bench, &file, store.path()))?.wall.as_secs_f64()
        } else {
            let begun = Instant::now();
            zstd::stream::copy_encode(&content[..], File::create(&whole)?, LEVEL)?;
            let packing = begun.elapsed();
            let of_whole = timed::settled(&mut add_to(bench, &whole, store.path()))?.wall;
            let plain = temp_dir("store")?;
            of_plain.push((packing + timed::settled(&mut add_to(bench, &file, plain.path()))?.wall).as_secs_f64());
            (packing + of_whole).as_secs_f64()
        };
        series[index].push(round, seconds.into());
    }
    let name = format!("{:.1} MiB added with {PACKED}", content.len() as f64 / MIB);
    let case = Case::new(name, "s", series.into());
    let seconds = case.value(System::Causeway);
    let ratio = seconds / case.value(System::WholeFile);
    let measure = Measure::lower(ratio, "× (zstd, and add of the compressed file)").bar("1.2 ×", 1.2);
    let note = format!("{:.2} × (zstd, and add of the plain file)", seconds / median(of_plain.into_iter()));
    Ok(vec![case.measure(measure).note(note)])
}

fn add_to(bench: &Bench, file: &Path, data: &Path) -> Command {
    let mut add = adding(&bench.options.binaries.causeway, file);
    add.arg("--data-dir").arg(data);
    add
}

fn packing(bench: &Bench, file: &Path, data: &Path) -> Command {
    let mut add = without_settings(&bench.options.binaries.causeway);
    add.args(["add", PACKED, "--json", "--cid-version=1", "--data-dir"]).arg(data).arg(file);
    add
}

/// Every CID in some text, in its order.
fn cids(text: &str) -> Vec<Cid> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| word.len() > 40);
    let mut cids: Vec<Cid> = Vec::new();
    for cid in words.filter_map(|word| word.parse().ok()) {
        if !cids.contains(&cid) {
            cids.push(cid);
        }
    }
    cids
}

/// The path of the plain file, and that of the compressed one. Everything that the command prints must be one of them.
async fn roles(bench: &Bench, data: &Path, cids: &[Cid], content: &[u8]) -> Result<(String, String)> {
    let node = offline(bench, data).await?;
    let (mut plain, mut packed) = (None, None);
    for cid in cids {
        let path = format!("/ipfs/{cid}");
        let body = get(&node.server.at(&path)).await?.body;
        if body == content {
            plain.get_or_insert(path);
        } else {
            ensure!(zstd::decode_all(&body[..])? == content, "{path} is neither the plain nor the compressed file");
            packed.get_or_insert(path);
        }
    }
    Ok((plain.context("no CID of the plain file was printed")?, packed.context("no CID of the compressed file was")?))
}

async fn offline(bench: &Bench, data: &Path) -> Result<Causeway> {
    let setup = Setup { data: Some(data), flags: vec!["--offline"], ..Setup::default() };
    Causeway::start(&bench.options.binaries.causeway, setup).await
}

fn read_so_far(process: &Process) -> Result<f64> {
    Ok(process.file_bytes_read()? as f64)
}

#[test]
fn cids_are_found_in_what_a_command_prints() {
    let cid = "bafkreidii3cxcwykdl6cfwquqirevjzqksq6st36pnesznp4yenjqkuym4";
    let text = format!("{{\"cid\":\"{cid}\",\"size\":12}}\nadded {cid} name-{}\n", "x".repeat(50));
    assert_eq!(cids(&text).iter().map(ToString::to_string).collect::<Vec<_>>(), [cid]);
    assert!(cids("nothing here").is_empty());
}
