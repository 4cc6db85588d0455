//! `causeway site reconcile`: the storage of a site is compared with the index in its database.

use crate::options::{GATEWAY_REQUIRED, RequestOptions};
use crate::output::{count, print_view};
use crate::progress;
use crate::remote::connect;
use anyhow::{Context as _, bail};
use api::site::{ReconcileLine, ReconcileRequest, ReconcileView};
use clap::Args;
use config::Loaded;
use http::Method;
use std::fmt::Write as _;

/// The parts of a storage.
const PARTS: u32 = 256;

const RECONCILE: &str = "\
Examples:
  causeway site reconcile --dry-run      only print what would be changed
  causeway site reconcile

Each gateway does this by itself for a part of the storage, chosen at random, every 21 minutes. Run it after a \
database or a storage was restored from a backup, after a standby of the database has taken over without the latest \
changes, or to reclaim the space of objects that gateways have left behind. It lists all objects, and reads none that \
is there: a damaged object is found when it is read. While it runs the site works as always.

Pins that lack a block are incomplete until one of the gateways has fetched it again: \"causeway pin ls --everybody \
--all\" shows them. Objects that were left behind in the last hour are not among those that are deleted; the gateways \
delete them when the hour is over. Interrupting the command stops the comparison, and what was changed stays changed. \
One gateway of the site does it at a time.";

/// `causeway site reconcile`
#[derive(Debug, Args)]
#[command(after_help = format!("{RECONCILE}\n\n{GATEWAY_REQUIRED}"))]
pub struct ReconcileArgs {
    /// Print what would be changed, without changing it
    #[arg(long)]
    dry_run: bool,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Compares the storage with the index.
///
/// # Errors
/// When the gateway rejects the request, belongs to no site, or the comparison ends early.
pub async fn run(loaded: &Loaded, args: &ReconcileArgs) -> anyhow::Result<()> {
    let ReconcileArgs { dry_run, options } = args;
    let (remote, request) = (connect(loaded, &options.node).await?, ReconcileRequest { dry_run: *dry_run });
    let mut lines = remote.client().lines(Method::POST, "/api/v1/site/reconcile", Some(&request)).await?;
    let progress = progress::text();
    let report = loop {
        let line = lines.next().await?.context("the gateway closed the connection before the report")?;
        match serde_json::from_slice(&line).context("the answer cannot be parsed: the gateway has another version")? {
            ReconcileLine::Progress(now) => progress.set_message(progress_text(&now)),
            ReconcileLine::Report(report) => break report,
            ReconcileLine::Error(message) => bail!("the comparison ended early: {message}"),
        }
    };
    drop(progress);
    print_view(options.json, &report, report_text)
}

fn progress_text(view: &ReconcileView) -> String {
    let ReconcileView { parts, objects, orphans, lost_blocks, .. } = view;
    let percent = parts.saturating_mul(100) / PARTS;
    let (objects, lost) = (count(*objects, "object"), count(*lost_blocks, "block"));
    format!("{percent} %, {objects}, {orphans} unknown to the index; {lost} lost")
}

fn report_text(view: &ReconcileView) -> String {
    let ReconcileView { dry_run, objects, orphans, foreign, lost_blocks, .. } = view;
    let (deleted, lost) = match dry_run {
        true => ("would delete", "would fetch again"),
        false => ("deleted", "to be fetched again"),
    };
    let mut text = format!("compared {} with the index\n", count(*objects, "object"));
    _ = writeln!(text, "{deleted}: {} that the index does not know", count(*orphans, "object"));
    _ = writeln!(text, "{lost}: {} whose objects are missing or damaged", count(*lost_blocks, "block"));
    if *foreign > 0 {
        _ = writeln!(text, "left alone: {} that are not those of objects", count(*foreign, "name"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_and_what_would_be_done_are_told_apart() {
        let found = ReconcileView { dry_run: false, parts: 64, objects: 7, orphans: 1, foreign: 0, lost_blocks: 2 };
        let table = [
            (
                found,
                "compared 7 objects with the index\ndeleted: 1 object that the index does not know\n\
                 to be fetched again: 2 blocks whose objects are missing or damaged\n",
            ),
            (
                ReconcileView { dry_run: true, foreign: 3, ..found },
                "compared 7 objects with the index\nwould delete: 1 object that the index does not know\n\
                 would fetch again: 2 blocks whose objects are missing or damaged\n\
                 left alone: 3 names that are not those of objects\n",
            ),
        ];
        for (view, expected) in table {
            assert_eq!(report_text(&view), expected);
        }
        assert_eq!(progress_text(&found), "25 %, 7 objects, 1 unknown to the index; 2 blocks lost");
    }
}
