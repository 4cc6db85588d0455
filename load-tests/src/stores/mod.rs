//! Datastores: what they cost when files are added and read, Causeway's own beside those that Kubo can be run on.
//!
//! The questions are those of the Irmin project's benchmark of IPFS datastores: does the size of a file matter, below a block and
//! above; does it cost less to add the same again; do files share what they have in common; does it matter how many different
//! blocks a file has. To these come reading, and what is written to the disk and stays there.
//!
//! Goals: like is compared with like. Everybody adds the same folders, made from a seed, with the same CIDs, which is checked;
//! offline; one process for each folder, whose start is measured by itself and taken off; and what is added is on the disk,
//! synced, when the process ends. Kubo's flatfs does that only if it is told to (`sync`), so it takes part as it is shipped, too,
//! and is called so. Participants take turns in rotated order and medians count. CPU time is that of the importing process.
//!
//! Non-goals: stores under the load of many clients ([`mod@crate::tiers`]); compression, for which the data is of no use
//! ([`mod@crate::compression`]).
//!
//! | module | concern |
//! |---|---|
//! | [`store`] | who takes part: a store that can be added to and read |
//! | [`data`] | folders of files that are made up |
//! | [`adding`] | the questions about adding |
//! | [`reading`] | everything in order, and block by block |
//! | [`figures`] | what comes of it |
//! | [`table`], [`pictures`] | figures to Markdown and JSON, and to SVG |

pub mod adding;
pub mod data;
pub mod figures;
pub mod pictures;
pub mod reading;
pub mod store;
pub mod table;

use crate::options::{Binaries, Run};
use anyhow::{Result, ensure};
use figures::Figures;
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

/// Measures everything.
pub async fn run(options: &Options) -> Result<Figures> {
    options.binaries.check()?;
    let (participants, notes) = Participant::all(options)?;
    ensure!(!participants.is_empty(), "no store takes part: {}", notes.join("; "));
    let starts = adding::starts(options, &participants)?;
    let mut questions = Vec::new();
    for question in adding::Question::ALL {
        questions.extend(question.measure(options, &participants)?);
    }
    let readings = reading::measure(options, &participants).await?;
    let (names, read) =
        (participants.iter().map(|participant| participant.name.to_owned()).collect(), reading::about(options));
    Ok(Figures { names, notes, starts, questions, read, readings })
}
