//! Compression: what is saved on disk and on the way to a client, by the store's frames of single blocks and by the method of
//! the paper "IPFSz" (section III), which compresses a file as a whole before it is cut, unless its format is known to be compressed.
//!
//! Goals: the same data for both, real where every machine has some and otherwise made up from a seed, in formats that are what
//! they say; ratios of what is stored and of what is sent, the time and CPU that adding takes, and what the store's estimate lets
//! go although it would have shrunk. The store is measured through its real binary: `add`, `store stats`, and HTTP with
//! `Accept-Encoding: zstd`; what is sent is decoded and compared.
//!
//! Non-goals: other algorithms; how fast compressed answers are ([`mod@crate::tiers`]). What whole files cannot do is not measured:
//! ranges without unpacking what is before them, blocks that are shared with other files, the CIDs of the plain content.
//!
//! | module | concern |
//! |---|---|
//! | [`corpora`], [`made_up`], [`image`] | the data |
//! | [`blocks`] | the store's way |
//! | [`whole`] | the paper's way |
//! | [`estimate`] | what the store's encoder lets go, and what looking costs |
//! | [`table`] | figures to Markdown, JSON and SVG |

pub mod blocks;
pub mod corpora;
pub mod estimate;
pub mod image;
pub mod made_up;
pub mod table;
pub mod whole;

use crate::options::Run;
use anyhow::{Context, Result, ensure};
use corpora::Corpus;
use estimate::Estimated;
use std::path::PathBuf;
use std::time::Duration;

/// Levels of zstd: the store's default, and the one that the documentation names for what is pinned.
pub const LEVELS: [u8; 2] = [3, 19];

/// What to measure.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// The causeway binary
    #[arg(long, value_name = "FILE", default_value = "target/release/causeway")]
    pub causeway: PathBuf,
    #[command(flatten)]
    pub run: Run,
    /// Folder of a source tree, which is the text of programs
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub sources: PathBuf,
    /// Bytes of each kind of data
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
    pub bytes: usize,
    /// Of what is made up
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..1 << 31))]
    pub seed: u64,
}

impl Options {
    /// Of each kind of data.
    pub fn bytes(&self) -> usize {
        if self.run.quick { 512 << 10 } else { self.bytes.max(1 << 16) }
    }

    /// The highest level takes seconds of nothing but computing: once is enough.
    pub fn rounds(&self, level: u8) -> usize {
        if self.run.quick || level > LEVELS[0] { 1 } else { self.run.rounds() }
    }
}

/// Everything that was measured.
pub struct Figures {
    pub rows: Vec<Row>,
    /// What is missing, and why.
    pub notes: Vec<String>,
}

/// One kind of data.
pub struct Row {
    pub name: &'static str,
    pub about: String,
    pub files: usize,
    pub bytes: u64,
    /// Hashing it and keeping nothing.
    pub hashing: Took,
    /// By level, in [`LEVELS`]'s order.
    pub blocks: Vec<Method>,
    pub whole: Vec<Method>,
    pub estimated: Estimated,
}

/// What a method comes to.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    /// On disk.
    pub stored_bytes: u64,
    /// To a client that takes zstd.
    pub sent_bytes: u64,
    pub added: Took,
}

/// What something took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Took {
    pub wall: Duration,
    pub cpu: Duration,
}

/// Measures everything.
pub async fn run(options: &Options) -> Result<Figures> {
    ensure!(options.causeway.exists(), "{} is missing; run `make build`", options.causeway.display());
    let (corpora, notes) = corpora::all(options)?;
    let mut rows = Vec::new();
    for corpus in &corpora {
        rows.push(row(options, corpus).await.with_context(|| corpus.name)?);
    }
    Ok(Figures { rows, notes })
}

async fn row(options: &Options, corpus: &Corpus) -> Result<Row> {
    eprintln!("{}: {} files, {} bytes", corpus.name, corpus.files.len(), corpus.bytes());
    let folder = corpus.written()?;
    let hashing = blocks::hash(options, folder.path())?;
    let (mut by_blocks, mut by_whole) = (Vec::new(), Vec::new());
    for level in LEVELS {
        by_blocks.push(blocks::measure(options, corpus, folder.path(), level).await?);
        by_whole.push(whole::measure(options, corpus, level)?);
    }
    let estimated = estimate::measure(corpus)?;
    let Corpus { name, about, files } = corpus;
    let (files, bytes) = (files.len(), corpus.bytes());
    let row = Row { name, about: about.clone(), files, bytes, hashing, blocks: by_blocks, whole: by_whole, estimated };
    eprintln!("  {}", table::progress(&row));
    Ok(row)
}
