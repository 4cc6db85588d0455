//! The flags that benchmarks have in common.

use anyhow::{Result, ensure};
use std::path::PathBuf;

/// What is compared.
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
    pub fn check(&self) -> Result<()> {
        for binary in [&self.causeway, &self.kubo] {
            ensure!(binary.exists(), "{} is missing; run `make build kubo`", binary.display());
        }
        Ok(())
    }
}

/// How much is measured, and where the results go.
#[derive(clap::Args, Debug, Clone)]
pub struct Run {
    /// Directory for the results
    #[arg(long, value_name = "DIR", default_value = "load-tests/results")]
    pub out: PathBuf,
    /// Rounds, of which the median is taken
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub rounds: usize,
    /// One round with little content: shows that everything works, measures nothing
    #[arg(long)]
    pub quick: bool,
}

impl Run {
    /// At least one; exactly one if the run is a quick one.
    pub fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds.max(1) }
    }
}

/// A browser, for the rows that need one.
#[derive(clap::Args, Debug, Clone)]
pub struct Browser {
    /// Directory with the browser tests' packages ("scripts/browser-packages" prints where they are)
    #[arg(long, value_name = "DIR")]
    pub browser_modules: Option<PathBuf>,
    /// Chromium's binary
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/chromium")]
    pub chromium: PathBuf,
}

/// More flags for the nodes.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct CausewayFlags {
    /// More flags for every "causeway serve" (repeatable; use --causeway-flag=--flag)
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    causeway_flag: Vec<String>,
}

impl CausewayFlags {
    pub fn get(&self) -> Vec<&str> {
        self.causeway_flag.iter().map(String::as_str).collect()
    }
}
