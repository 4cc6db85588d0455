//! Compression: what is saved on disk and in transfer, by the store's frames of single blocks and by the method of the
//! paper "IPFSz" (section III), which compresses a file as a whole before it is chunked, unless its format is known to
//! be compressed.
//!
//! Goals: the same data for both, real where every machine has some and otherwise synthetic from a seed, in real
//! formats; ratios of stored and of sent bytes, the time and CPU of adding, and compressible blocks that the store's
//! estimate misses. The store is measured through its real binary: `add`, `store stats`, and HTTP with
//! `Accept-Encoding: zstd`; responses are decoded and compared.
//!
//! Non-goals: other algorithms; how fast compressed responses are ([`mod@crate::tiers`]). What whole files do not
//! support is not measured: ranges without decompression of what is before them, deduplication of blocks, the CIDs of
//! the plain content.
//!
//! | module | concern |
//! |---|---|
//! | [`corpora`], [`synthetic`], [`image`] | the data |
//! | [`blocks`] | the store's method |
//! | [`whole`] | the paper's method |
//! | [`estimate`] | what the store's estimate misses, and its cost |
//! | [`table`] | figures to Markdown and SVG |

pub mod blocks;
pub mod corpora;
pub mod estimate;
pub mod image;
pub mod synthetic;
pub mod table;
pub mod whole;

use crate::machine;
use crate::options::Run;
use crate::report::{Report, seconds};
use anyhow::{Context, Result, ensure};
use corpora::Corpus;
use estimate::Estimated;
use serde::Serialize;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Levels of zstd: the store's default, and the one that the documentation recommends for pinned content.
pub const LEVELS: [u8; 2] = [3, 19];

/// What to measure.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// The causeway binary
    #[arg(long, value_name = "FILE", default_value = "target/release/causeway")]
    pub causeway: PathBuf,
    #[command(flatten)]
    pub run: Run,
    /// Directory of a source tree
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub sources: PathBuf,
    /// Bytes of each kind of data
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
    pub bytes: usize,
    /// Seed of the synthetic data
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..1 << 31))]
    pub seed: u64,
}

impl Options {
    /// Of each kind of data.
    pub fn bytes(&self) -> usize {
        if self.run.quick { 512 << 10 } else { self.bytes.max(1 << 16) }
    }

    /// The highest level takes seconds of computation: one round is enough.
    pub fn rounds(&self, level: u8) -> usize {
        if self.run.quick || level > LEVELS[0] { 1 } else { self.run.rounds() }
    }
}

/// Everything that was measured.
#[derive(Serialize)]
pub struct Figures {
    pub rows: Vec<Row>,
    /// What is missing, and why.
    pub notes: Vec<String>,
}

/// One kind of data.
#[derive(Serialize)]
pub struct Row {
    #[serde(rename = "data")]
    pub name: &'static str,
    pub about: String,
    pub files: usize,
    pub bytes: u64,
    /// Hashing without storing.
    pub hashing: Took,
    /// In the order of all tables and plots.
    pub methods: Vec<Method>,
    #[serde(rename = "estimate")]
    pub estimated: Estimated,
}

/// The results of a method.
#[derive(Debug, Clone, Serialize)]
pub struct Method {
    #[serde(rename = "method")]
    pub name: String,
    /// On disk.
    pub stored_bytes: u64,
    /// To a client that accepts zstd.
    pub sent_bytes: u64,
    pub added: Took,
}

/// The duration of something.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Took {
    #[serde(rename = "wall_seconds", serialize_with = "seconds")]
    pub wall: Duration,
    #[serde(rename = "cpu_seconds", serialize_with = "seconds")]
    pub cpu: Duration,
}

/// Measures every kind of data, and writes the report.
pub async fn run(options: &Options) -> Result<()> {
    ensure!(options.causeway.exists(), "{} is missing; run `make build`", options.causeway.display());
    let (corpora, notes) = corpora::all(options)?;
    let mut rows = Vec::new();
    for corpus in &corpora {
        rows.push(row(options, corpus).await.with_context(|| corpus.name)?);
    }
    let figures = Figures { rows, notes };
    let mut machine = machine::describe("bench-compression", options.run.quick)?;
    machine["rounds"] = json!(options.run.rounds());
    machine["seed"] = json!(options.seed);
    machine["causeway"] = json!(machine::version(&options.causeway));
    let mut report = Report::new(machine, "compression", "Compression: frames of blocks beside whole files");
    table::describe(&mut report, &figures)?;
    report.write(&options.run.out, &figures)
}

async fn row(options: &Options, corpus: &Corpus) -> Result<Row> {
    eprintln!("{}: {} files, {} bytes", corpus.name, corpus.files.len(), corpus.bytes());
    let directory = corpus.written()?;
    let hashing = blocks::hash(options, directory.path())?;
    let mut methods = Vec::new();
    for level in LEVELS {
        methods.push(blocks::measure(options, corpus, directory.path(), level).await?);
    }
    for level in LEVELS {
        methods.push(whole::measure(options, corpus, level)?);
    }
    for Method { name, stored_bytes, .. } in &methods {
        eprintln!("  {name}: {stored_bytes} bytes stored");
    }
    let (Corpus { name, about, files }, estimated) = (corpus, estimate::measure(corpus)?);
    Ok(Row { name, about: about.clone(), files: files.len(), bytes: corpus.bytes(), hashing, methods, estimated })
}
