//! `causeway purge`, `warm` and `refresh`: removing, prefetching and refreshing cached content and names.

use crate::ops::path_of;
use crate::options::{GATEWAY_REQUIRED, RequestOptions};
use crate::output::{count, print_view};
use crate::progress;
use crate::remote::connect;
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
  causeway purge /ipns/example.org/old        the DAG that a path resolves to
  causeway purge --surrogate-key example.org  content with a surrogate key
  causeway purge --name example.org           the cached resolution of a name
  causeway purge --dry-run bafy…              only print what would be removed

Pinned blocks stay on the disk. Content never changes under its CID, so purging frees space, removes unwanted content \
and invalidates names. It does not keep content from being fetched again: use \"causeway block\" for that.";

/// `causeway purge`
#[derive(Debug, Args)]
#[command(after_help = format!("{PURGE}\n\n{GATEWAY_REQUIRED}"))]
pub struct PurgeArgs {
    /// What to remove, with everything below it: CID, CID/PATH, /ipfs/CID/PATH or /ipns/NAME/PATH
    #[arg(value_name = "CID|PATH", required_unless_present_any = ["surrogate_key", "name"])]
    what: Option<String>,
    /// Remove the content with this key of the header Surrogate-Key instead
    #[arg(long, value_name = "KEY", conflicts_with_all = ["what", "name"])]
    surrogate_key: Option<String>,
    /// Remove the cached resolution of this IPNS key or domain instead
    #[arg(long, value_name = "NAME", conflicts_with = "what")]
    name: Option<String>,
    /// Remove the block alone, and nothing below it
    #[arg(long)]
    this_only: bool,
    /// Print what would be removed, without removing it
    #[arg(long)]
    dry_run: bool,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// An argument as the API's parameters `cid` and `path`, of which one is set.
fn cid_or_path(argument: &str) -> (Option<String>, Option<String>) {
    let bare = argument.strip_prefix("ipfs://").unwrap_or(argument);
    match cid::parse(bare) {
        // The API also accepts a path without segments.
        Ok(cid) if cid.codec() != codec::LIBP2P_KEY && !bare.starts_with('/') => (Some(bare.to_owned()), None),
        _ => (None, Some(path_of(argument))),
    }
}

/// Removes cached content or names.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn purge(loaded: &Loaded, args: PurgeArgs) -> anyhow::Result<()> {
    let PurgeArgs { what, surrogate_key, name, this_only, dry_run, options } = args;
    let (cid, path) = what.as_deref().map(cid_or_path).unwrap_or_default();
    let request = PurgeRequest { cid, path, surrogate_key, name, below: this_only.then_some(false), dry_run };
    let purged: PurgedView = connect(loaded, &options.node).await?.post("/api/v1/purge", &request).await?;
    print_view(options.json, &purged, |purged| purged_text(purged, dry_run))
}

fn purged_text(purged: &PurgedView, dry_run: bool) -> String {
    let PurgedView { ram_blocks, disk_blocks, disk_bytes, pinned_blocks, missing_blocks, .. } = purged;
    let (removed, kept, resolved, sending) = match dry_run {
        true => ("would remove", "would keep", "would", "would send"),
        false => ("removed", "kept", "will", "sending"),
    };
    let blocks = count(*disk_blocks, "block");
    let mut text = format!("{removed} {blocks} from the disk ({}), {ram_blocks} from memory\n", size(*disk_bytes));
    if *pinned_blocks > 0 {
        let hint = if dry_run { "" } else { ": \"causeway pin rm\" unpins them" };
        _ = writeln!(text, "{kept} {} on the disk{hint}", count(*pinned_blocks, "pinned block"));
    }
    if *missing_blocks > 0 {
        let missing = count(*missing_blocks, "block");
        _ = writeln!(text, "not stored: {missing}; blocks below them were not looked for");
    }
    let pages = purged.paths + purged.listings + purged.sites + purged.encoded;
    if pages > 0 {
        _ = writeln!(text, "{removed} from caches of paths and pages: {pages}");
    }
    purged.names.iter().for_each(|name| _ = writeln!(text, "{name} {resolved} be resolved again"));
    if purged.caches_notified > 0 {
        _ = writeln!(text, "{sending} purge requests to {}", count(purged.caches_notified, "cache"));
    }
    text
}

const WARM: &str = "\
Examples:
  causeway warm bafy…                         the whole DAG
  causeway warm --depth 1 /ipns/example.org   a folder and its direct entries
  causeway warm --bytes-max 1GiB bafy…

Fetched blocks are cached, and evicted when space is needed. Use \"causeway pin add\" to keep them.";

/// `causeway warm`
#[derive(Debug, Args)]
#[command(after_help = format!("{WARM}\n\n{GATEWAY_REQUIRED}"))]
pub struct WarmArgs {
    /// What to fetch: CID, CID/PATH, /ipfs/CID/PATH or /ipns/NAME/PATH
    #[arg(value_name = "CID|PATH")]
    what: String,
    /// How many levels of links to follow: 0 fetches the block alone, 1 also the blocks it links to [default: all]
    #[arg(long, value_name = "LEVELS")]
    depth: Option<u32>,
    /// Stop when this much was fetched or read, such as 1GiB
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    bytes_max: Option<u64>,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Fetches a DAG.
///
/// # Errors
/// When the gateway rejects the request, or blocks could not be fetched.
pub async fn warm(loaded: &Loaded, args: WarmArgs) -> anyhow::Result<()> {
    let WarmArgs { what, depth, bytes_max, options } = args;
    let (cid, path) = cid_or_path(&what);
    let request = WarmRequest { cid, path, depth, bytes_max };
    let remote = connect(loaded, &options.node).await?;
    let mut lines = remote.client().lines(Method::POST, "/api/v1/warm", Some(&request)).await?;
    let progress = progress::text();
    let report = loop {
        let line = lines.next().await?.context("the gateway closed the connection before the report")?;
        match serde_json::from_slice(&line).context("the answer cannot be parsed: the gateway has another version")? {
            WarmLine::Progress(now) => progress.set_message(progress_text(&now)),
            WarmLine::Report(report) => break report,
            WarmLine::Error(message) => bail!("{what} was not fetched: {message}"),
        }
    };
    drop(progress);
    print_view(options.json, &report, report_text)?;
    let failed = report.progress.failed_blocks;
    ensure!(failed == 0, "{} of {what} could not be fetched", count(failed, "block"));
    Ok(())
}

fn progress_text(progress: &WarmProgress) -> String {
    let WarmProgress { blocks, fetched_blocks, fetched_bytes, failed_blocks, seconds, .. } = progress;
    let rate = size((*fetched_bytes as f64 / seconds.max(0.001)) as u64);
    let failed = if *failed_blocks > 0 { format!(", {failed_blocks} failed") } else { String::new() };
    let stored = count(*blocks, "block");
    format!("stored: {stored}, {fetched_blocks} of them fetched ({}, {rate}/s){failed}", size(*fetched_bytes))
}

fn report_text(report: &WarmReport) -> String {
    let mut text = format!("{}: {}\n", report.progress.root, progress_text(&report.progress));
    report.failures.iter().for_each(|failure| _ = writeln!(text, "{}: {}", failure.cid, failure.error));
    match report.stopped_by.as_deref() {
        Some("bytes_max") => text.push_str("stopped at --bytes-max before the end of the DAG\n"),
        Some("blocks") => text.push_str("stopped: the DAG has too many blocks (http.dag_blocks_max)\n"),
        Some("links") => text.push_str("stopped: a level of the DAG has too many links\n"),
        Some("failures") => text.push_str("stopped: too many blocks could not be fetched\n"),
        _ => {}
    }
    text
}

/// `causeway refresh`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n\
    \x20 causeway refresh example.org\n\
    \x20 causeway refresh k51…\n\n\
    {GATEWAY_REQUIRED}"))]
pub struct RefreshArgs {
    /// An IPNS key or a domain
    #[arg(value_name = "NAME")]
    name: String,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Resolves a name without the cache.
///
/// # Errors
/// When the gateway rejects the request, or the name cannot be resolved.
pub async fn refresh(loaded: &Loaded, args: RefreshArgs) -> anyhow::Result<()> {
    let RefreshArgs { name, options } = args;
    let remote = connect(loaded, &options.node).await?;
    let refreshed: RefreshedView = remote.post("/api/v1/names/refresh", &RefreshRequest { name }).await?;
    print_view(options.json, &refreshed, refreshed_text)?;
    if let Some(error) = refreshed.error {
        bail!("{} cannot be resolved: {error}", refreshed.name);
    }
    Ok(())
}

fn refreshed_text(refreshed: &RefreshedView) -> String {
    let mut text = String::new();
    if let Some(new) = &refreshed.new {
        _ = writeln!(text, "{} -> {new}", refreshed.name);
        match &refreshed.old {
            Some(old) if refreshed.changed => _ = writeln!(text, "  previously {old}"),
            Some(_) => text.push_str("  unchanged\n"),
            None => {}
        }
    }
    for step in &refreshed.steps {
        let validity =
            step.valid_until_at.map(|at| format!(", valid until {}", values::moment(at))).unwrap_or_default();
        // A step without a value has an error.
        if let Some(value) = step.value.as_deref().or(step.error.as_deref()) {
            _ = writeln!(text, "  {} ({}): {value}{validity}", step.name, step.source);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_a_cid_or_a_path() {
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
        for (argument, expected) in table {
            assert_eq!(cid_or_path(&argument), expected, "{argument}");
        }
    }
}
