//! `causeway store`: a node's store, looked at, checked, mended and filled while no gateway has it.
//!
//! Goals: what only looks changes nothing; what is wrong is named, so that it can be fetched or imported again; scripts
//! can read the output (`--json`), which is all that standard output gets.
//!
//! Non-goals: a store in use, which its gateway has to itself and checks in the background ([`crate::upkeep`]).

use crate::cli::{Place, print};
use crate::stores::{self, Looked};
use anyhow::{Context as _, ensure};
use cache::disk::offline::{Amount, SegmentsAmount};
use cache::{BlockStore, CheckReport, Fault, Figures, Finding, LackingPin, ScrubPass, ScrubProgress};
use clap::Subcommand;
use config::{Flags, Loaded};
use content::scope::{self, ScopeError, ScopeLimits, ScopeOptions};
use content::{Cid, SourceError, car};
use futures::TryStreamExt as _;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio::runtime::Runtime;

/// How often progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// What is gathered before it is written to a CAR file, in bytes.
const WRITE_BYTES: usize = 1024 * 1024;
/// The file name that means standard input or output.
const STANDARD: &str = "-";

const STORE_HELP: &str = "These commands need the store for themselves: stop the gateway first. While it runs, it checks the     store by itself (cache.scrub_bytes_per_second, cache.scrub_hours).\n\n\
    What is forgotten is fetched again when somebody asks for it, and is a member of its pins again then.";

/// `causeway store`
#[derive(Debug, Subcommand)]
#[command(after_help = STORE_HELP)]
pub enum StoreCommand {
    /// Say what the store holds and what that takes, without reading values
    Stats {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Read and check everything without changing anything; print the CIDs of damaged blocks and the pins that lack
    /// blocks, and exit with 1 if anything is wrong
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Mend the index, check everything and forget what is damaged
    Repair {
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Give back the disk space that nothing needs any more
    Compact {
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Write a DAG as a CAR file
    Export {
        /// The root
        cid: String,
        /// A new file; "-" for standard output
        #[arg(value_name = "FILE.car")]
        file: PathBuf,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Take in the blocks of a CAR file and pin its roots
    Import {
        /// A CARv1 file; "-" for standard input
        #[arg(value_name = "FILE.car")]
        file: PathBuf,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
}

impl StoreCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        match self {
            Self::Stats { place, .. }
            | Self::Check { place, .. }
            | Self::Repair { place }
            | Self::Compact { place }
            | Self::Export { place, .. }
            | Self::Import { place, .. } => place.into(),
        }
    }
}

/// Runs a command.
///
/// # Errors
/// One line of what went wrong, and what to do; for `check`, that something is wrong.
pub fn run(loaded: &Loaded, runtime: &Runtime, command: StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Stats { json, .. } => stats(loaded, json),
        StoreCommand::Check { json, .. } => check(loaded, json),
        StoreCommand::Repair { .. } => repair(loaded, runtime),
        StoreCommand::Compact { .. } => {
            existing(loaded)?;
            with_disk(loaded, runtime, compact)
        }
        StoreCommand::Export { cid, file, .. } => {
            let root = content::cid::parse(&cid)?;
            existing(loaded)?;
            with_disk(loaded, runtime, async |disk| export(disk, root, &file).await)
        }
        StoreCommand::Import { file, .. } => import(loaded, runtime, &file),
    }
}

/// Takes in a CAR file and pins its roots.
///
/// # Errors
/// When the file cannot be read, or a DAG is incomplete, or the store is in use or fails.
pub fn import(loaded: &Loaded, runtime: &Runtime, file: &Path) -> anyhow::Result<()> {
    let name = if is_standard(file) { "standard input".to_owned() } else { file.display().to_string() };
    let opened = if is_standard(file) { shared(std::io::stdin().as_fd()) } else { std::fs::File::open(file) };
    let reader = tokio::fs::File::from_std(opened.with_context(|| format!("{name} cannot be read"))?);
    let importing = async |store: &dyn BlockStore| Ok(cache::import_car(store, reader, None).await);
    let summary = with_disk(loaded, runtime, importing)?.with_context(|| format!("{name} was not imported"))?;
    for pin in &summary.pins {
        print(&format!("pinned {}\n", pin.root))?;
    }
    print(&format!("imported {} blocks, {} bytes\n", summary.blocks, summary.bytes))
}

fn stats(loaded: &Loaded, json: bool) -> anyhow::Result<()> {
    let figures = Looked::open(loaded)?.figures()?;
    if json { print(&format!("{:#}\n", figures_json(&figures))) } else { print(&figures_text(&figures)) }
}

fn check(loaded: &Loaded, json: bool) -> anyhow::Result<()> {
    let store = Looked::open(loaded)?;
    let (mut shown, mut found) = (Shown::default(), Vec::new());
    let mut printed = Ok(());
    let report = store.check(|progress, findings| {
        shown.show(progress);
        if json {
            found.extend_from_slice(findings);
        } else if printed.is_ok() {
            printed = print(&findings_text(findings));
        }
    })?;
    drop(shown);
    printed?;
    if json {
        print(&format!("{:#}\n", report_json(&report, &found)))?;
    } else {
        print(&report_text(&report))?;
    }
    ensure!(report.is_clean(), "the store is damaged: \"causeway store repair\" mends what can be mended");
    Ok(())
}

fn repair(loaded: &Loaded, runtime: &Runtime) -> anyhow::Result<()> {
    // The index first, and without the writer, which believes it.
    let index = Looked::open(loaded)?.mend()?;
    with_disk(loaded, runtime, async |disk| {
        let (mut shown, mut printed) = (Shown::default(), Ok(()));
        let mut show = |progress: &ScrubProgress, findings: &[Finding]| {
            shown.show(progress);
            if printed.is_ok() {
                printed = print(&findings_text(findings));
            }
        };
        let report = disk.scrub(ScrubPass::All, None, &mut show).await?;
        drop(shown);
        printed?;
        let unreadable = report.progress.unreadable;
        print(&report_text(&CheckReport { progress: report.progress, index, lacking: report.lacking }))?;
        ensure!(unreadable == 0, "{unreadable} blocks cannot be read: check the disk's health");
        print("The index was mended and damaged blocks were forgotten.\n")
    })
}

async fn compact(disk: &dyn BlockStore) -> anyhow::Result<()> {
    let total = || disk.stats().cached_bytes + disk.stats().pinned_bytes;
    let before = total();
    disk.compact().await?;
    let after = total();
    print(&format!("{} before, {} now\n", size(before), size(after)))
}

/// Writes a DAG depth first and without repeats, as Kubo does. A file that could not be finished is removed.
async fn export(disk: &dyn BlockStore, root: Cid, file: &Path) -> anyhow::Result<()> {
    if is_standard(file) {
        let out = tokio::fs::File::from_std(shared(std::io::stdout().as_fd())?);
        let written = write_car(disk, root, out).await;
        // A reader who has left has what it wanted.
        let left = |error: &anyhow::Error| {
            error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
        };
        return if written.as_ref().is_err_and(left) { Ok(()) } else { written.map(drop) };
    }
    let options = std::fs::File::options().write(true).create_new(true).open(file);
    let created = options.with_context(|| format!("{} cannot be made", file.display()))?;
    let out = tokio::fs::File::from_std(created.try_clone()?);
    let written = write_car(disk, root, out).await.and_then(|blocks| {
        created.sync_all()?;
        Ok(blocks)
    });
    match written {
        Ok(blocks) => print(&format!("exported {blocks} blocks\n")),
        Err(error) => {
            _ = std::fs::remove_file(file);
            Err(error)
        }
    }
}

async fn write_car(disk: &dyn BlockStore, root: Cid, out: tokio::fs::File) -> anyhow::Result<u64> {
    let first = disk.get(&root).await.map_err(ScopeError::from).map_err(|error| incomplete(root, &error))?;
    let limits = ScopeLimits { depth_max: usize::MAX, seen_max: usize::MAX, ..ScopeLimits::default() };
    let blocks = scope::blocks(disk.handle(), Vec::new(), first, ScopeOptions::default(), limits);
    let mut blocks = blocks.map_err(|error| incomplete(root, &error));
    let mut out = BufWriter::with_capacity(WRITE_BYTES, out);
    out.write_all(&car::header(&[root])).await?;
    let mut written = 0;
    while let Some(block) = blocks.try_next().await? {
        let (head, data) = car::section(&block);
        out.write_all(&head).await?;
        out.write_all(&data).await?;
        written += 1;
    }
    out.flush().await?;
    Ok(written)
}

fn incomplete(root: Cid, error: &ScopeError) -> anyhow::Error {
    match error {
        ScopeError::Source(SourceError::NotFound { cid }) if *cid == root => {
            anyhow::anyhow!("{root} is not in the store")
        }
        ScopeError::Source(SourceError::NotFound { cid }) => {
            anyhow::anyhow!("the DAG of {root} is incomplete: {cid} is not in the store")
        }
        error => anyhow::anyhow!("the DAG of {root} cannot be read to its end: {error}"),
    }
}

/// Standard input or output as a file.
fn shared(standard: BorrowedFd<'_>) -> std::io::Result<std::fs::File> {
    Ok(standard.try_clone_to_owned()?.into())
}

fn is_standard(file: &Path) -> bool {
    file.as_os_str() == STANDARD
}

/// Refuses a data folder without a store, where opening would make one.
fn existing(loaded: &Loaded) -> anyhow::Result<()> {
    Looked::open(loaded).map(drop)
}

/// Does something with the store, and closes it.
fn with_disk<T>(
    loaded: &Loaded,
    runtime: &Runtime,
    work: impl AsyncFnOnce(&dyn BlockStore) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    runtime.block_on(async {
        let disk = stores::open_alone(loaded).await?;
        let done = work(&*disk).await;
        let closed = disk.close().await;
        let done = done?;
        closed?;
        Ok(done)
    })
}

/// How far it is, on standard error, if somebody sits there.
struct Shown {
    wanted: bool,
    last: Option<Instant>,
}

impl Default for Shown {
    fn default() -> Self {
        Self { wanted: std::io::stderr().is_terminal(), last: None }
    }
}

impl Shown {
    fn show(&mut self, progress: &ScrubProgress) {
        if self.wanted && self.last.is_none_or(|last| last.elapsed() >= PROGRESS_EVERY) {
            self.last = Some(Instant::now());
            let ScrubProgress { blocks, bytes, damaged, .. } = progress;
            _ = write!(std::io::stderr(), "\r{blocks} blocks, {} checked, {damaged} damaged\x1b[K", size(*bytes));
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.last.is_some() {
            _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn findings_text(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("{} {}\n", word(finding.fault), finding.cid)).collect()
}

fn word(fault: Fault) -> &'static str {
    match fault {
        Fault::Damaged => "damaged",
        Fault::Unreadable => "unreadable",
    }
}

fn report_text(report: &CheckReport) -> String {
    let CheckReport { progress, index, lacking } = report;
    let mut out = String::new();
    for LackingPin { root, name, missing, blocks } in lacking {
        let name = name.as_ref().map(|name| format!(" ({name:?})")).unwrap_or_default();
        _ = writeln!(out, "pin {root}{name} lacks {missing} of {blocks} blocks");
    }
    if index.total() > 0 {
        let cache::Disagreements { blocks, places, segments, files } = index;
        _ = writeln!(out, "index: {blocks} blocks, {places} places, {segments} segments and {files} files disagree");
    }
    let ScrubProgress { blocks, bytes, damaged, unreadable } = progress;
    _ = writeln!(out, "checked {blocks} blocks, {}: {damaged} damaged, {unreadable} unreadable", size(*bytes));
    out
}

fn report_json(report: &CheckReport, findings: &[Finding]) -> Value {
    let CheckReport { progress, index, lacking } = report;
    let cids = |fault| {
        let found = findings.iter().filter(|finding| finding.fault == fault);
        found.map(|finding| finding.cid.to_string()).collect::<Vec<_>>()
    };
    let pin = |pin: &LackingPin| json!({ "root": pin.root.to_string(), "name": pin.name, "missing": pin.missing, "blocks": pin.blocks });
    json!({
        "clean": report.is_clean(),
        "blocks": progress.blocks,
        "bytes": progress.bytes,
        "damaged": cids(Fault::Damaged),
        "unreadable": cids(Fault::Unreadable),
        "pins_lacking_blocks": lacking.iter().map(pin).collect::<Vec<_>>(),
        "index_disagreements": {
            "blocks": index.blocks, "places": index.places, "segments": index.segments, "files": index.files,
        },
    })
}

fn figures_text(figures: &Figures) -> String {
    let mut out = String::new();
    let mut amount = |what: &str, amount: Amount| {
        let Amount { blocks, block_bytes, stored_bytes } = amount;
        _ = writeln!(out, "{what:12} {blocks:>12}   {:>10}, stored in {}", size(block_bytes), size(stored_bytes));
    };
    amount("blocks", figures.all());
    amount("  pinned", figures.pinned);
    amount("  cached", figures.cached);
    amount("  raw", figures.raw);
    amount("  frames", figures.framed);
    amount("  envelopes", figures.enveloped);
    let Amount { block_bytes, stored_bytes, .. } = figures.all();
    let saved = block_bytes.saturating_sub(stored_bytes);
    let percent = 100.0 * saved as f64 / block_bytes.max(1) as f64;
    _ = writeln!(out, "zstd saves {} ({percent:.1} %)", size(saved));
    for (what, amount) in [("pinned", figures.pinned_segments), ("cached", figures.cached_segments)] {
        let SegmentsAmount { segments, bytes, dead_bytes } = amount;
        if figures.has_segments() {
            _ = writeln!(out, "{segments} segments of {what} blocks, {}, {} of it dead", size(bytes), size(dead_bytes));
        }
    }
    _ = writeln!(out, "{} pins, and {} that are not complete", figures.pins, figures.partial_pins);
    out
}

fn figures_json(figures: &Figures) -> Value {
    let amount = |amount: Amount| {
        let Amount { blocks, block_bytes, stored_bytes } = amount;
        json!({ "blocks": blocks, "block_bytes": block_bytes, "stored_bytes": stored_bytes })
    };
    let segments = |amount: SegmentsAmount| {
        let SegmentsAmount { segments, bytes, dead_bytes } = amount;
        json!({ "segments": segments, "bytes": bytes, "dead_bytes": dead_bytes })
    };
    json!({
        "all": amount(figures.all()),
        "pinned": amount(figures.pinned),
        "cached": amount(figures.cached),
        "raw": amount(figures.raw),
        "frames": amount(figures.framed),
        "envelopes": amount(figures.enveloped),
        "pinned_segments": segments(figures.pinned_segments),
        "cached_segments": segments(figures.cached_segments),
        "pins": figures.pins,
        "partial_pins": figures.partial_pins,
    })
}

/// A number of bytes for people.
fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, bits)| bytes >> bits > 0) {
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << bits) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        let table = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_500_000, "1.4 MiB"), (3 << 40, "3.0 TiB")];
        for (bytes, expected) in table {
            assert_eq!(size(bytes), expected);
        }
    }
}
