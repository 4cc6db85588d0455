//! The flags that measurements have in common.

use anyhow::{Result, ensure};
use std::path::PathBuf;

/// Who is measured beside whom.
#[derive(clap::Args, Debug, Clone)]
pub struct Binaries {
    /// The causeway binary
    #[arg(long, value_name = "FILE", default_value = "target/release/causeway")]
    pub causeway: PathBuf,
    /// The ipfs binary of Kubo ("make kubo" prints where it is)
    #[arg(long, value_name = "FILE")]
    pub kubo: PathBuf,
}

impl Binaries {
    /// Before anything is begun that would fail without them.
    pub fn check(&self) -> Result<()> {
        for binary in [&self.causeway, &self.kubo] {
            ensure!(binary.exists(), "{} is missing; run `make build kubo`", binary.display());
        }
        Ok(())
    }
}

/// How much is measured, and where it goes.
#[derive(clap::Args, Debug, Clone)]
pub struct Run {
    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "load-tests/results")]
    pub out: PathBuf,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub rounds: usize,
    /// One round with little content: shows that everything works, measures nothing
    #[arg(long)]
    pub quick: bool,
}

impl Run {
    /// One if it is a quick one, and never none.
    pub fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds.max(1) }
    }
}
