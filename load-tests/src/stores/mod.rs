//! Datastores: the costs of adding and reading files, Causeway's stores beside Kubo's.
//!
//! The questions are those of the Irmin project's benchmark of IPFS datastores: does the size of a file matter, below a
//! block and above; does it cost less to add the same again; do files share what they have in common; does it matter
//! how many different blocks a file has. To these come reading, and bytes written and stored on disk.
//!
//! Goals: like is compared with like. All stores are given the same directories, made from a seed, and the CIDs are
//! compared; offline; one process for each directory, whose start is measured by itself and subtracted; and the content
//! is on the disk, synced, when the process ends. Kubo's flatfs does that only with `sync`, so it takes part as it is
//! shipped, too, under another name. Stores take turns in rotated order and medians count. CPU time is that of the
//! importing process.
//!
//! Non-goals: stores under the load of many clients ([`mod@crate::tiers`]); compression ([`mod@crate::compression`]):
//! the content is incompressible.
//!
//! | module | concern |
//! |---|---|
//! | [`store`] | the stores: added to and read through their binaries |
//! | [`data`] | directories of synthetic files |
//! | [`adding`] | the questions about adding |
//! | [`reading`] | everything in order, and block by block |
//! | [`figures`] | the figures |
//! | [`table`], [`pictures`] | figures to Markdown and JSON, and to SVG |

pub mod adding;
pub mod data;
pub mod figures;
pub mod pictures;
pub mod reading;
pub mod store;
pub mod table;

use crate::machine;
use crate::options::{Binaries, Run};
use crate::report::Report;
use anyhow::{Result, ensure};
use figures::Figures;
use serde_json::json;
use store::Participant;

/// What to measure.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    #[command(flatten)]
    pub binaries: Binaries,
    #[command(flatten)]
    pub run: Run,
    /// Only these stores, separated by commas: causeway-rocksdb, causeway-flat, causeway-memory, kubo-flatfs,
    /// kubo-flatfs-unsynced, kubo-pebble, kubo-leveldb
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub stores: Vec<String>,
    /// Of the content
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..1 << 24))]
    pub seed: u64,
}

impl Options {
    /// Fewer of something in a quick run.
    pub fn count(&self, count: usize) -> usize {
        if self.run.quick { count.div_ceil(32).max(2).min(count) } else { count }
    }
}

/// Measures every store, and writes the report.
pub async fn run(options: &Options) -> Result<()> {
    options.binaries.check()?;
    let figures = measure(options).await?;
    let mut machine = machine::describe_with_kubo("bench-stores", &options.run, &options.binaries)?;
    machine["seed"] = json!(options.seed);
    machine["folders"] = json!(machine::temporary_file_system());
    let mut report = Report::new(machine, "stores", "Datastores: Causeway's beside Kubo's");
    table::describe(&mut report, &figures, pictures::all(&figures)?);
    report.write(&options.run.out, &table::results(&figures))
}

async fn measure(options: &Options) -> Result<Figures> {
    let (participants, notes) = Participant::all(options)?;
    ensure!(!participants.is_empty(), "no store takes part: {}", notes.join("; "));
    let starts = adding::starts(options, &participants)?;
    let mut questions = Vec::new();
    for question in adding::Question::ALL {
        questions.extend(question.measure(options, &participants)?);
    }
    let readings = reading::measure(options, &participants).await?;
    let names = participants.iter().map(|participant| participant.name.to_owned()).collect();
    let (read, large_bytes) = (reading::about(options), reading::large_bytes(options));
    Ok(Figures { names, notes, starts, questions, read, large_bytes, readings })
}
