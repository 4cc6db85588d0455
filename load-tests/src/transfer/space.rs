//! The space of text in the store, at its default level: in leaves of 256 KiB and of 1 MiB, beside the whole file as
//! zstd.

use super::Bench;
use super::texts::Dataset;
use crate::comparison::{Case, Measure, Series, System};
use crate::compression::blocks::{adding, stored_bytes};
use crate::directory::temp_dir;
use crate::servers::without_settings;
use crate::timed;
use anyhow::{Result, ensure};

/// The store's default level.
const LEVEL: i32 = 3;
/// The beginning of a data set, which is compressed.
const BYTES_MAX: usize = 8 << 20;
/// Data sets that shrink to less than a sixth.
const SHRINKING: [&str; 2] = ["flights-200k.json", "BidiTest.txt"];

/// Every data set. The same bytes take the same space: one round is enough.
pub fn text(bench: &Bench) -> Result<Vec<Case>> {
    bench.texts.datasets().iter().map(|dataset| one(bench, dataset)).collect()
}

fn one(bench: &Bench, dataset: &Dataset) -> Result<Case> {
    let content = &dataset.bytes[..dataset.bytes.len().min(bench.options.size(BYTES_MAX))];
    let mut series = Vec::new();
    for (system, chunker) in [(System::Causeway, "size-262144"), (System::Wide, "size-1048576")] {
        series.push(of(system, space(bench, content, chunker)? as f64));
    }
    series.push(of(System::WholeFile, zstd::bulk::compress(content, LEVEL)?.len() as f64));
    let case = Case::new(format!("space of {} in {} bytes", dataset.name, content.len()), "bytes", series);
    let against = |system| case.value(system) / case.value(System::WholeFile);
    let saved = |system| content.len() as f64 / case.value(system);
    let mut measures = vec![
        Measure::lower(against(System::Causeway), "× the whole file as zstd, 256 KiB leaves").bar("1.15 ×", 1.15),
        Measure::lower(against(System::Wide), "× the whole file as zstd, 1 MiB leaves").bar("1.10 ×", 1.10),
    ];
    if SHRINKING.contains(&dataset.name) {
        measures.push(Measure::higher(saved(System::Causeway), "× smaller, 256 KiB leaves").bar("6.3 ×", 6.3));
        measures.push(Measure::higher(saved(System::Wide), "× smaller, 1 MiB leaves").bar("6.3 ×", 6.3));
    }
    Ok(measures.into_iter().fold(case, Case::measure).note(format!("{} is {}", dataset.name, dataset.about())))
}

fn of(system: System, value: f64) -> Series {
    let mut series = Series::new(system);
    series.push(0, value.into());
    series
}

/// The bytes of all blocks of a file. It is read again, and compared.
fn space(bench: &Bench, content: &[u8], chunker: &str) -> Result<u64> {
    let causeway = &bench.options.binaries.causeway;
    let (dir, store) = (temp_dir("text")?, temp_dir("store")?);
    let [file, again] = ["file", "again"].map(|name| dir.path().join(name));
    std::fs::write(&file, content)?;
    let added = timed::run(adding(causeway, &file).args(["--chunker", chunker, "--data-dir"]).arg(store.path()))?;
    let path = format!("/ipfs/{}", added.stdout.trim());
    let mut get = without_settings(causeway);
    timed::run(get.args(["get", &path, "-o"]).arg(&again).arg("--data-dir").arg(store.path()))?;
    ensure!(std::fs::read(&again)? == content, "{path}: wrong bytes");
    stored_bytes(causeway, store.path())
}
