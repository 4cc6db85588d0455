//! `causeway purge`, `warm` and `refresh`: what is kept, and what is brought here.

use crate::ops::path_of;
use crate::output::{count, print_view};
use crate::place::{Asking, RUNNING};
use crate::progress::Progress;
use crate::remote::running;
use crate::values;
use anyhow::{Context as _, bail, ensure};
use api::names::{RefreshRequest, RefreshedView};
use api::purge::{PurgeRequest, PurgedView};
use api::text::size;
use api::warm::{WarmLine, WarmProgress, WarmReport, WarmRequest};
use clap::Args;
use config::Loaded;
use content::{cid, codec};
use http::Method;
use std::fmt::Write as _;

const PURGE: &str = "\
Examples:
  causeway purge bafy…                        a DAG: its blocks, pages and paths
  causeway purge --this-only bafk…            one block
  causeway purge /ipns/example.org/old        what a path leads to
  causeway purge --surrogate-key example.org  what a CDN is purged by
  causeway purge --name example.org           what is known of a name
  causeway purge --dry-run bafy…              nothing, but says what would go

What is pinned stays on the disk. Content never changes under its CID, so this is for room, for what should not lie around, and for \
names. What must not be served: causeway block.";

/// `causeway purge`
#[derive(Debug, Args)]
#[command(after_help = format!("{PURGE}\n\n{RUNNING}"))]
pub struct PurgeArgs {
    /// What goes: CID, CID/PATH, /ipfs/CID/PATH or /ipns/NAME/PATH, with everything below it
    #[arg(value_name = "CID|PATH", required_unless_present_any = ["surrogate_key", "name"])]
    what: Option<String>,
    /// What a key of the header Surrogate-Key stands for goes instead
    #[arg(long, value_name = "KEY", conflicts_with_all = ["what", "name"])]
    surrogate_key: Option<String>,
    /// What is known of an IPNS key or a domain goes instead
    #[arg(long, value_name = "NAME", conflicts_with = "what")]
    name: Option<String>,
    /// The block alone, and nothing below it
    #[arg(long)]
    this_only: bool,
    /// Say what would go, and leave it
    #[arg(long)]
    dry_run: bool,
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// What is said to be a CID or a path, as the API takes them: one of the two.
fn cid_or_path(said: &str) -> (Option<String>, Option<String>) {
    let bare = said.strip_prefix("ipfs://").unwrap_or(said);
    match cid::parse(bare) {
        // A path that is nothing but a CID is read as one, too.
        Ok(cid) if cid.codec() != codec::LIBP2P_KEY && !bare.starts_with('/') => (Some(bare.to_owned()), None),
        _ => (None, Some(path_of(said))),
    }
}

/// Removes cached copies.
///
/// # Errors
/// What was answered instead.
pub async fn purge(loaded: &Loaded, args: PurgeArgs) -> anyhow::Result<()> {
    let PurgeArgs { what, surrogate_key, name, this_only, dry_run, asking } = args;
    let (cid, path) = what.as_deref().map(cid_or_path).unwrap_or_default();
    let request = PurgeRequest { cid, path, surrogate_key, name, below: this_only.then_some(false), dry_run };
    let purged: PurgedView = running(loaded, &asking.node).await?.post("/api/v1/purge", &request).await?;
    print_view(asking.json, &purged, |purged| if dry_run { purgeable_text(purged) } else { purged_text(purged) })
}

fn purged_text(purged: &PurgedView) -> String {
    let PurgedView { ram_blocks, disk_blocks, disk_bytes, pinned_blocks, missing_blocks, .. } = purged;
    let left = count(*disk_blocks, "block");
    let mut text = format!("{left} left the disk ({}), {ram_blocks} left memory\n", size(*disk_bytes));
    if *pinned_blocks > 0 {
        let pinned = count(*pinned_blocks, "pinned block");
        _ = writeln!(text, "{pinned} stayed on the disk: \"causeway pin rm\" lets go of them");
    }
    if *missing_blocks > 0 {
        let missing = count(*missing_blocks, "block");
        _ = writeln!(text, "not here: {missing}, and what is below was not looked for");
    }
    let pages = purged.paths + purged.listings + purged.sites + purged.encoded;
    if pages > 0 {
        _ = writeln!(text, "remembered paths and pages that were forgotten: {pages}");
    }
    purged.names.iter().for_each(|name| _ = writeln!(text, "{name} is looked up anew"));
    if purged.caches_notified > 0 {
        _ = writeln!(text, "purge requests go to {}", count(purged.caches_notified, "cache"));
    }
    text
}

fn purgeable_text(purged: &PurgedView) -> String {
    let PurgedView { ram_blocks, disk_blocks, disk_bytes, pinned_blocks, missing_blocks, .. } = purged;
    let blocks = count(*disk_blocks, "block");
    let mut text = format!("{blocks} would leave the disk ({}), {ram_blocks} memory\n", size(*disk_bytes));
    if *pinned_blocks > 0 {
        _ = writeln!(text, "{} would stay on the disk", count(*pinned_blocks, "pinned block"));
    }
    if *missing_blocks > 0 {
        let missing = count(*missing_blocks, "block");
        _ = writeln!(text, "not here: {missing}, and what is below was not looked for");
    }
    let pages = purged.paths + purged.listings + purged.sites + purged.encoded;
    if pages > 0 {
        _ = writeln!(text, "remembered paths and pages that would be forgotten: {pages}");
    }
    purged.names.iter().for_each(|name| _ = writeln!(text, "{name} would be looked up anew"));
    if purged.caches_notified > 0 {
        _ = writeln!(text, "purge requests would go to {}", count(purged.caches_notified, "cache"));
    }
    text
}

const WARM: &str = "\
Examples:
  causeway warm bafy…                         all of it
  causeway warm --depth 1 /ipns/example.org   a folder, and what is in it
  causeway warm --bytes-max 1GiB bafy…

What is fetched is cached, and goes when room is needed; \"causeway pin add\" keeps it.";

/// `causeway warm`
#[derive(Debug, Args)]
#[command(after_help = format!("{WARM}\n\n{RUNNING}"))]
pub struct WarmArgs {
    /// What is fetched: CID, CID/PATH, /ipfs/CID/PATH or /ipns/NAME/PATH
    #[arg(value_name = "CID|PATH")]
    what: String,
    /// How far below that: 0 is the block alone, 1 what it links to as well; all of it if left out
    #[arg(long, value_name = "LEVELS")]
    depth: Option<u32>,
    /// End when so much was fetched or read, such as 1GiB
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    bytes_max: Option<u64>,
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Fetches a DAG.
///
/// # Errors
/// What was answered instead; that blocks did not come.
pub async fn warm(loaded: &Loaded, args: WarmArgs) -> anyhow::Result<()> {
    let WarmArgs { what, depth, bytes_max, asking } = args;
    let (cid, path) = cid_or_path(&what);
    let request = WarmRequest { cid, path, depth, bytes_max };
    let remote = running(loaded, &asking.node).await?;
    let mut lines = remote.client().lines(Method::POST, "/api/v1/warm", Some(&request)).await?;
    let mut progress = Progress::new();
    let report = loop {
        let line = lines.next().await?.context("the gateway said nothing more")?;
        match serde_json::from_slice(&line).context("the gateway is of another version")? {
            WarmLine::Progress(now) => progress.show(|_| progress_text(&now)),
            WarmLine::Report(report) => break report,
            WarmLine::Error(words) => bail!("{what} was not fetched: {words}"),
        }
    };
    drop(progress);
    print_view(asking.json, &report, report_text)?;
    let failed = report.progress.failed_blocks;
    ensure!(failed == 0, "{} of {what} did not come", count(failed, "block"));
    Ok(())
}

fn progress_text(progress: &WarmProgress) -> String {
    let WarmProgress { blocks, fetched_blocks, fetched_bytes, failed_blocks, seconds, .. } = progress;
    let rate = size((*fetched_bytes as f64 / seconds.max(0.001)) as u64);
    let failed = if *failed_blocks > 0 { format!(", {failed_blocks} did not come") } else { String::new() };
    let here = count(*blocks, "block");
    format!("here: {here}, {fetched_blocks} of them new ({}, {rate}/s){failed}", size(*fetched_bytes))
}

fn report_text(report: &WarmReport) -> String {
    let mut text = format!("{}: {}\n", report.progress.root, progress_text(&report.progress));
    report.failures.iter().for_each(|failure| _ = writeln!(text, "{}: {}", failure.cid, failure.error));
    match report.stopped_by.as_deref() {
        Some("bytes_max") => text.push_str("it ended at --bytes-max, and there is more\n"),
        Some("blocks") => text.push_str("it ended because there are too many blocks (http.dag_blocks_max)\n"),
        Some("links") => text.push_str("it ended because too many links are beside each other\n"),
        Some("failures") => text.push_str("it ended because too many blocks did not come\n"),
        _ => {}
    }
    text
}

/// `causeway refresh`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  causeway refresh example.org\n  causeway refresh k51…\n\n{RUNNING}"))]
pub struct RefreshArgs {
    /// An IPNS key or a domain
    #[arg(value_name = "NAME")]
    name: String,
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Looks a name up.
///
/// # Errors
/// What was answered instead; that it leads nowhere.
pub async fn refresh(loaded: &Loaded, args: RefreshArgs) -> anyhow::Result<()> {
    let RefreshArgs { name, asking } = args;
    let remote = running(loaded, &asking.node).await?;
    let refreshed: RefreshedView = remote.post("/api/v1/names/refresh", &RefreshRequest { name }).await?;
    print_view(asking.json, &refreshed, refreshed_text)?;
    if let Some(error) = refreshed.error {
        bail!("{} was not found: {error}", refreshed.name);
    }
    Ok(())
}

fn refreshed_text(refreshed: &RefreshedView) -> String {
    let mut text = String::new();
    if let Some(new) = &refreshed.new {
        _ = writeln!(text, "{} -> {new}", refreshed.name);
        match &refreshed.old {
            Some(old) if refreshed.changed => _ = writeln!(text, "  it was {old}"),
            Some(_) => text.push_str("  as before\n"),
            None => {}
        }
    }
    for step in &refreshed.steps {
        let held = step.valid_until_at.map(|at| format!(", good until {}", values::moment(at))).unwrap_or_default();
        // What is not known the error tells of.
        if let Some(value) = step.value.as_deref().or(step.error.as_deref()) {
            _ = writeln!(text, "  {} ({}): {value}{held}", step.name, step.source);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_a_cid_or_a_path() {
        const CID: &str = "bafkqac3imvwgy3zao5xxe3de";
        const KEY: &str = "k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r";
        let (cid, path) = (|text: &str| (Some(text.to_owned()), None), |text: &str| (None, Some(text.to_owned())));
        let table = [
            (CID.to_owned(), cid(CID)),
            (format!("ipfs://{CID}"), cid(CID)),
            (format!("/ipfs/{CID}"), path(&format!("/ipfs/{CID}"))),
            (format!("{CID}/a b"), path(&format!("/ipfs/{CID}/a b"))),
            (format!("ipfs://{CID}/a"), path(&format!("/ipfs/{CID}/a"))),
            ("/ipns/example.org/a".to_owned(), path("/ipns/example.org/a")),
            ("example.org/a".to_owned(), path("/ipns/example.org/a")),
            (KEY.to_owned(), path(&format!("/ipns/{KEY}"))),
            ("ipns://example.org/a".to_owned(), path("/ipns/example.org/a")),
        ];
        for (said, expected) in table {
            assert_eq!(cid_or_path(&said), expected, "{said}");
        }
    }
}
