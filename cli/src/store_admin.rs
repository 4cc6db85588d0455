//! `causeway store`: statistics, check, repair, compaction, export and import of a node's store, by this process or by
//! the running gateway.
//!
//! Goals: read-only commands change nothing; damaged blocks are listed, so that they can be fetched or imported again;
//! scripts can parse the output (`--json`); the output is the same with and without a running gateway
//! ([`crate::remote`]).
//!
//! Departures: a running gateway does not check the index, which its writer relies on, and deletes the blocks that a
//! check finds damaged, as it does by itself ([`services::upkeep`]). Repairing the index needs exclusive access to the
//! store.

use crate::audited_change::AuditedChange;
use crate::options::{GATEWAY_OPTIONAL, NodeOptions, RequestOptions};
use crate::output::{count, print, print_view};
use crate::progress;
use crate::remote::compression::TransferOptions;
use crate::remote::{self, Backend, open_or_connect};
use crate::{local_policy, values};
use anyhow::{Context as _, ensure};
use api::store::{CheckLine, CompactedView, FiguresView, FindingView, ImportedView, ProgressView};
use cache::store::IsWithheld;
use cache::{
    BlockStore, CheckReport, Finding, RebuildProgress, Rebuilt, Repaired, RootsIn, Salvage, ScrubPass, ScrubProgress,
};
use clap::{Args, Subcommand};
use config::{Flags, Loaded};
use content::scope::{self, ScopeError, ScopeLimits, ScopeOptions};
use content::{BlockSource, Cid, Permitted, SourceError, car};
use futures::TryStreamExt as _;
use indicatif::ProgressBar;
use serde_json::json;
use services::pinning::index::PinOutcome;
use services::pinning::{self, Coordination, DamageReport, Pins};
use services::stores::{self, OfflineStore};
use services::views;
use std::collections::{BTreeSet, HashSet};
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio::runtime::Runtime;

/// The size of the write buffer of a CAR file, in bytes.
const WRITE_BYTES: usize = 1024 * 1024;
/// The file name for standard input or output.
const STANDARD_STREAM: &str = "-";

const STORE_HELP: &str = "\
Only \"repair\" requires the gateway to be stopped. A running gateway scrubs the store periodically \
(cache.scrub_bytes_per_second, cache.scrub_hours); \"check\" starts a scrub now.\n\n\
Damaged blocks are deleted and fetched again: blocks of pins by the gateway as soon as possible, cached blocks on \
request.";

const EXPORT_HELP: &str = "\
Examples:
  causeway store export CID site.car
  causeway store export CID - | ssh host causeway store import -";

/// The error of `repair` while a gateway runs.
const STOP_FIRST: &str = "repair requires exclusive access to the store, so stop the gateway first; a running gateway \
    scrubs the store and deletes damaged blocks by itself, and \"causeway store check\" starts that now";

/// `causeway store`
#[derive(Debug, Subcommand)]
#[command(after_help = format!("{STORE_HELP}\n\n{GATEWAY_OPTIONAL}"))]
pub enum StoreCommand {
    /// Print the number and size of the stored blocks and pins, without reading values
    #[command(after_help = "Examples:\n  causeway store stats\n  causeway store stats --json | jq .pinned.blocks")]
    Stats {
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
    /// Read and verify all blocks; print the CIDs of damaged blocks and the pins that lack blocks, and exit with 1 if
    /// there are any. Blocks that a rule withholds are reported as such, not as damage. A running gateway deletes damaged
    /// blocks at once, otherwise the next start does, so that they are fetched again; pins that lack blocks are
    /// incomplete until then
    #[command(
        after_help = "Examples:\n  causeway store check\n  causeway store check --rate 20MiB --json > report.json"
    )]
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The rate limit of reading, in bytes a second, such as 4MiB or 500kB [default: unlimited]
        #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
        rate: Option<u64>,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Repair or rebuild the index and the pin metadata, verify all blocks, and delete damaged ones; the gateway must
    /// not be running
    #[command(after_help = "Example:\n  causeway store repair --data-dir /var/lib/causeway")]
    Repair {
        /// Allow eviction of blocks that are marked as pinned although they belong to no known pin; "causeway store
        /// check" counts them. Use this when "causeway pin ls" shows all expected pins as pinned
        #[arg(long)]
        release_unclaimed: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Compact the store: reclaim the disk space of deleted blocks
    #[command(after_help = "Example:\n  causeway store compact")]
    Compact {
        /// Print JSON: bytes_before, bytes_after
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Export a DAG as a CAR file
    #[command(after_help = EXPORT_HELP)]
    Export {
        /// The root CID
        cid: String,
        /// The new CAR file; "-" for standard output
        #[arg(value_name = "FILE.car")]
        file: PathBuf,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Import the blocks of a CAR file and pin its roots
    #[command(after_help = "Examples:\n  causeway store import site.car\n  causeway store import - < site.car")]
    Import(ImportArgs),
}

/// The arguments of `causeway import` and `causeway store import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The CARv1 file; "-" for standard input
    #[arg(value_name = "FILE.car")]
    file: PathBuf,
    /// Print JSON: pins, blocks, bytes
    #[arg(long)]
    json: bool,
    /// How it is sent.
    #[command(flatten)]
    transfer: TransferOptions,
    #[command(flatten)]
    node: NodeOptions,
}

impl ImportArgs {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        Flags::from(&self.node)
    }
}

impl StoreCommand {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        self.node().into()
    }

    fn node(&self) -> &NodeOptions {
        match self {
            Self::Stats { options } => &options.node,
            Self::Check { node, .. }
            | Self::Repair { node, .. }
            | Self::Compact { node, .. }
            | Self::Export { node, .. } => node,
            Self::Import(args) => &args.node,
        }
    }
}

/// Runs a command.
///
/// # Errors
/// With a message for the user; for `check`, also when the store is damaged.
pub fn run(loaded: &Loaded, runtime: &Runtime, command: StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Stats { options } => runtime.block_on(stats(loaded, &options)),
        StoreCommand::Check { json, rate, node } => runtime.block_on(check(loaded, json, rate, &node)),
        StoreCommand::Repair { release_unclaimed, node } => repair(loaded, runtime, release_unclaimed, &node),
        StoreCommand::Compact { json, node } => runtime.block_on(compact(loaded, json, &node)),
        StoreCommand::Export { cid, file, node } => runtime.block_on(export(loaded, &cid, &file, &node)),
        StoreCommand::Import(args) => import(loaded, runtime, &args),
    }
}

/// Imports a CAR file and pins its roots.
///
/// # Errors
/// When the file cannot be read, or a DAG is incomplete, or the store is in use or fails.
pub fn import(loaded: &Loaded, runtime: &Runtime, args: &ImportArgs) -> anyhow::Result<()> {
    let ImportArgs { file, json, transfer, node } = args;
    let name = if is_standard(file) { "standard input".to_owned() } else { file.display().to_string() };
    let opened = if is_standard(file) { stream_as_file(std::io::stdin().as_fd()) } else { std::fs::File::open(file) };
    let opened = opened.with_context(|| format!("{name} cannot be read"))?;
    // Only regular files have a meaningful length.
    let total = opened.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
    let archive = progress::bytes(total).wrap_async_read(tokio::fs::File::from_std(opened));
    let unimported = || format!("{name} was not imported");
    let imported = runtime.block_on(async {
        match open(loaded, node).await? {
            Backend::Remote(remote) => remote.sending(*transfer).import(archive).await.with_context(unimported),
            Backend::Local(store) => {
                let mut record = None;
                let importing = async |store: &dyn BlockStore| {
                    let policy = local_policy::load(loaded).await?;
                    let check = local_policy::import_check(&policy);
                    record = Some(AuditedChange::begin(&loaded.config.data_dir, "import", json!({ "file": name }))?);
                    let imported = cache::import_car_with(store, archive, None, RootsIn::Header, &check).await;
                    Ok(views::store::imported(&imported.with_context(unimported)?))
                };
                let imported = with_store(store, importing).await;
                AuditedChange::end_if_begun(record, imported, |view| json!(view))
            }
        }
    })?;
    print_view(*json, &imported, ImportedView::text)
}

async fn stats(loaded: &Loaded, options: &RequestOptions) -> anyhow::Result<()> {
    let figures = match open_or_connect(loaded, &options.node, async || OfflineStore::open(loaded)).await? {
        Backend::Local(store) => views::store::figures(&store.figures()?),
        Backend::Remote(remote) => remote.stats().await?,
    };
    print_view(options.json, &figures, FiguresView::text)
}

async fn check(loaded: &Loaded, json: bool, rate: Option<u64>, node: &NodeOptions) -> anyhow::Result<()> {
    let (shown, mut found) = (progress::text(), FindingPrinter::new(json));
    // A running gateway has checked its pin metadata when it started.
    let mut pin_metadata = None;
    let (report, remedy) = match open_or_connect(loaded, node, async || OfflineStore::open(loaded)).await? {
        Backend::Local(store) => {
            pin_metadata = stores::check_register(&loaded.config.data_dir, &loaded.config.cache)?;
            let limiter = RateLimiter::new(rate);
            let is_withheld = local_policy::withheld_or_none(loaded).await;
            let report = store.check(&is_withheld, |progress, findings| {
                shown.set_message(check_line(&views::store::progress(progress), shown.elapsed()));
                findings.iter().for_each(|finding| found.take(&shown, views::store::finding(finding)));
                limiter.wait_for(progress.bytes);
            })?;
            let unknown = unknown_pins(loaded, &store.pinned_roots()?)?;
            (views::store::checked(&report, unknown), "run \"causeway store repair\"")
        }
        Backend::Remote(remote) => {
            let show = |line: CheckLine| match line {
                CheckLine::Progress(progress) => shown.set_message(check_line(&progress, shown.elapsed())),
                CheckLine::Finding(finding) => found.take(&shown, finding),
                CheckLine::Report(_) | CheckLine::Error(_) => {}
            };
            (remote.check(rate, show).await?, "damaged blocks have been deleted; those of pins are being fetched again")
        }
    };
    drop(shown);
    let findings = found.end()?;
    if json {
        let mut view = report.json(&findings);
        if let (Some(fields), Some(pin_metadata)) = (view.as_object_mut(), &pin_metadata) {
            fields.insert("pins_list".to_owned(), pin_metadata_json(pin_metadata));
        }
        print(&format!("{view:#}\n"))?;
    } else {
        print(&report.text())?;
        pin_metadata.iter().try_for_each(|pin_metadata| print(&pin_metadata_text(pin_metadata)))?;
    }
    ensure!(report.clean, "the store is damaged: {remedy}");
    ensure!(
        !matches!(pin_metadata, Some(Err(_))),
        "the pin metadata is damaged: \"causeway store repair\", or the next start, rebuilds it from the readable \
         records"
    );
    Ok(())
}

fn pin_metadata_text(checked: &Result<u64, String>) -> String {
    match checked {
        Ok(records) => format!("read {} of the pin metadata\n", count(*records, "record")),
        Err(damage) => format!("the pin metadata is damaged: {damage}\n"),
    }
}

fn pin_metadata_json(checked: &Result<u64, String>) -> serde_json::Value {
    match checked {
        Ok(records) => serde_json::json!({ "clean": true, "records": records }),
        Err(damage) => serde_json::json!({ "clean": false, "damage": damage }),
    }
}

/// Prints findings at once, or collects them for the JSON at the end.
struct FindingPrinter {
    collected: Option<Vec<FindingView>>,
    printed: anyhow::Result<()>,
}

impl FindingPrinter {
    fn new(collects: bool) -> Self {
        Self { collected: collects.then(Vec::new), printed: Ok(()) }
    }

    fn take(&mut self, shown: &ProgressBar, finding: FindingView) {
        match &mut self.collected {
            Some(collected) => collected.push(finding),
            None if self.printed.is_ok() => self.printed = shown.suspend(|| print(&finding.line())),
            None => {}
        }
    }

    fn end(self) -> anyhow::Result<Vec<FindingView>> {
        self.printed.map(|()| self.collected.unwrap_or_default())
    }
}

/// Limits the rate of reading.
struct RateLimiter {
    begun: Instant,
    rate: Option<u64>,
}

impl RateLimiter {
    fn new(rate: Option<u64>) -> Self {
        Self { begun: Instant::now(), rate }
    }

    /// Sleeps until the rate allows a total of `bytes`.
    fn wait_for(&self, bytes: u64) {
        let allowed_after =
            self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate as f64));
        std::thread::sleep(allowed_after.saturating_sub(self.begun.elapsed()));
    }
}

/// The progress line of a check.
fn check_line(progress: &ProgressView, time: Duration) -> String {
    let ProgressView { blocks, bytes, damaged, .. } = progress;
    format!("{}, {}, {damaged} damaged", count(*blocks, "block"), progress::rate(*bytes, time))
}

fn repair(loaded: &Loaded, runtime: &Runtime, release_unclaimed: bool, node: &NodeOptions) -> anyhow::Result<()> {
    ensure!(node.admin().is_none(), STOP_FIRST);
    // The index first, and without the writer, which relies on it.
    let is_withheld = runtime.block_on(local_policy::withheld_or_none(loaded));
    let Repaired { index, rebuilt } = repair_index(loaded, &is_withheld)?;
    let looked = OfflineStore::open(loaded)?;
    if release_unclaimed {
        let request = json!({ "release_unclaimed": true });
        let record = AuditedChange::begin(&loaded.config.data_dir, "store repair", request.clone())?;
        record.end(looked.release_unclaimed(), |()| request)?;
    }
    let unclaimed = if release_unclaimed { 0 } else { rebuilt.as_ref().map_or(0, |rebuilt| rebuilt.unclaimed) };
    let unknown = unknown_pins(loaded, &looked.pinned_roots()?)?;
    let noted = looked.noted()?;
    drop(looked);
    let scrub = async |store: &dyn BlockStore| {
        let (shown, mut found) = (progress::text(), FindingPrinter::new(false));
        let mut show = |progress: &ScrubProgress, findings: &[Finding]| {
            shown.set_message(check_line(&views::store::progress(progress), shown.elapsed()));
            findings.iter().for_each(|finding| found.take(&shown, views::store::finding(finding)));
        };
        // Opening the store deleted what an earlier check found.
        let earlier = noted.len() as u64;
        show(&ScrubProgress { blocks: earlier, damaged: earlier, ..ScrubProgress::default() }, &noted);
        let report = store.scrub(ScrubPass::All, None, &mut show).await?;
        drop(shown);
        found.end()?;
        let ScrubProgress { blocks, damaged, unreadable, .. } = report.progress;
        let progress = ScrubProgress { blocks: blocks + earlier, damaged: damaged + earlier, ..report.progress };
        let report = CheckReport { progress, index, lacking: report.lacking, unclaimed };
        print(&views::store::checked(&report, unknown).text())?;
        ensure!(unreadable == 0, "{} cannot be read: check the disk's health", count(unreadable, "block"));
        print("Repaired the index and deleted damaged blocks.\n")
    };
    runtime.block_on(async {
        let store = stores::open_existing(loaded).await?;
        store.set_is_withheld(is_withheld);
        with_store(Arc::clone(&store), async |store| {
            let scrubbed = scrub(store).await;
            // Independent of the result of the scrub.
            repair_pins(loaded, &store.handle()).await.and(scrubbed)
        })
        .await
    })
}

/// Rebuilds damaged pin metadata from its readable records and from the store's own pins.
async fn repair_pins(loaded: &Loaded, store: &Arc<dyn BlockStore>) -> anyhow::Result<()> {
    let register = stores::open_register(&loaded.config.data_dir, &loaded.config.cache).await?;
    let pins = Pins::alone(Coordination::single(register), store).await?;
    print(&pins_repaired(pins.damage().as_ref()))?;
    let unwritten = pins.damage().and_then(|damage| damage.salvage?.unwritten);
    let unwritten = unwritten.map_or(Ok(()), |why| Err(anyhow::anyhow!("the pin metadata cannot be rewritten: {why}")));
    pins.stop().await;
    unwritten
}

/// The result of repairing the pin metadata.
fn pins_repaired(damage: Option<&DamageReport>) -> String {
    let Some(DamageReport { salvage, unreadable, taken_in }) = damage else {
        return "The pin metadata is intact.\n".to_owned();
    };
    let mut text = String::from("The pin metadata was damaged.");
    if let Some(Salvage { damage, records, kept, .. }) = salvage {
        text = format!("The pin metadata was damaged ({damage}). {} could be read", count(*records, "record"));
        if let Some(kept) = kept {
            text += &format!(" and were rewritten; the damaged files are kept in {}", kept.display());
        }
        text.push('.');
    }
    if *unreadable > 0 {
        text += &format!(" {} could not be parsed.", count(*unreadable as u64, "record"));
    }
    text.push('\n');
    for root in taken_in {
        text += &format!("pin {root} has lost its owner, origins and metadata, and belongs to the operator now\n");
    }
    text + "No blocks were lost.\n"
}

fn repair_index(loaded: &Loaded, is_withheld: &IsWithheld) -> anyhow::Result<Repaired> {
    let shown = progress::text();
    let mut show = |progress: &RebuildProgress| shown.set_message(rebuild_line(progress, shown.elapsed()));
    let repaired = stores::repair(loaded, is_withheld, &mut show);
    let repaired =
        repaired.map_err(|error| if remote::is_in_use(&error) { error.context(STOP_FIRST) } else { error })?;
    drop(shown);
    if let Some(Rebuilt { reason, progress, .. }) = &repaired.rebuilt {
        let RebuildProgress { segments, blocks, pins, .. } = progress;
        print(&format!("Rebuilt the index ({reason}); segments: {segments}, values: {blocks}, pins: {pins}\n"))?;
    }
    Ok(repaired)
}

/// The progress line of a rebuild of the index.
fn rebuild_line(progress: &RebuildProgress, time: Duration) -> String {
    let RebuildProgress { segments, segments_total, bytes, pins, pins_total, .. } = *progress;
    let read = progress::rate(bytes, time);
    format!("rebuilding the index: {segments} of {segments_total} segments, {read}; {pins} of {pins_total} pins")
}

/// Roots that are pinned according to the pin metadata, but not in the store.
fn unknown_pins(loaded: &Loaded, roots: &HashSet<Cid>) -> anyhow::Result<Vec<Cid>> {
    let Some(register) = stores::open_register_alone(loaded)? else { return Ok(Vec::new()) };
    let requests = pinning::record::load(&register)?.entries.into_iter();
    let pinned = requests.filter(|entry| entry.outcome == PinOutcome::Pinned).map(|entry| entry.root);
    let unknown: BTreeSet<Cid> = pinned.filter(|root| !roots.contains(root)).collect();
    Ok(unknown.into_iter().collect())
}

async fn compact(loaded: &Loaded, json: bool, node: &NodeOptions) -> anyhow::Result<()> {
    let compacted = match open_existing(loaded, node).await? {
        Backend::Remote(remote) => remote.compact().await?,
        Backend::Local(store) => {
            let compacting = async |store: &dyn BlockStore| {
                let total = || store.stats().cached_bytes + store.stats().pinned_bytes;
                let bytes_before = total();
                store.compact().await?;
                Ok(CompactedView { bytes_before, bytes_after: total() })
            };
            with_store(store, compacting).await?
        }
    };
    print_view(json, &compacted, |compacted| compacted.text())
}

async fn export(loaded: &Loaded, cid: &str, file: &Path, node: &NodeOptions) -> anyhow::Result<()> {
    let root = content::cid::parse(cid)?;
    match open_existing(loaded, node).await? {
        Backend::Remote(remote) => export_from(Arc::new(remote.blocks()), root, file).await,
        Backend::Local(store) => {
            let exporting = async |store: &dyn BlockStore| {
                let policy = local_policy::load(loaded).await?;
                export_from(Arc::new(Permitted::whole(store.handle(), policy)), root, file).await
            };
            with_store(store, exporting).await
        }
    }
}

/// Writes a DAG depth first and without repeats, as Kubo does. A file that could not be finished is removed.
async fn export_from(source: Arc<dyn BlockSource>, root: Cid, file: &Path) -> anyhow::Result<()> {
    if is_standard(file) {
        let out = tokio::fs::File::from_std(stream_as_file(std::io::stdout().as_fd())?);
        let written = write_car(source, root, out).await;
        // A closed pipe is not an error.
        let is_broken_pipe = |error: &anyhow::Error| {
            error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
        };
        return if written.as_ref().is_err_and(is_broken_pipe) { Ok(()) } else { written.map(drop) };
    }
    let options = std::fs::File::options().write(true).create_new(true).open(file);
    let created = options.with_context(|| format!("{} cannot be created", file.display()))?;
    let out = tokio::fs::File::from_std(created.try_clone()?);
    let written = write_car(source, root, out).await.and_then(|blocks| {
        created.sync_all()?;
        Ok(blocks)
    });
    match written {
        Ok(blocks) => print(&format!("exported {}\n", count(blocks, "block"))),
        Err(error) => {
            _ = std::fs::remove_file(file);
            Err(error)
        }
    }
}

async fn write_car(source: Arc<dyn BlockSource>, root: Cid, out: tokio::fs::File) -> anyhow::Result<u64> {
    let first = source.get(&root).await.map_err(ScopeError::from).map_err(|error| incomplete(root, &error))?;
    let limits = ScopeLimits { depth_max: usize::MAX, seen_max: usize::MAX, ..ScopeLimits::default() };
    let blocks = scope::blocks(source, Vec::new(), first, ScopeOptions::default(), limits);
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
        error => anyhow::anyhow!("the DAG of {root} cannot be read: {error}"),
    }
}

/// A standard stream as a file.
fn stream_as_file(standard: BorrowedFd<'_>) -> std::io::Result<std::fs::File> {
    Ok(standard.try_clone_to_owned()?.into())
}

fn is_standard(file: &Path) -> bool {
    file.as_os_str() == STANDARD_STREAM
}

/// Opens or creates the store, or connects to the gateway that has it.
async fn open(loaded: &Loaded, node: &NodeOptions) -> anyhow::Result<Backend<Arc<dyn BlockStore>>> {
    open_or_connect(loaded, node, async || stores::open_or_create(loaded).await).await
}

/// Opens the existing store, or connects to the gateway that has it.
async fn open_existing(loaded: &Loaded, node: &NodeOptions) -> anyhow::Result<Backend<Arc<dyn BlockStore>>> {
    open_or_connect(loaded, node, async || stores::open_existing(loaded).await).await
}

/// Runs `work` with a store, and closes the store.
async fn with_store<T>(
    store: Arc<dyn BlockStore>,
    work: impl AsyncFnOnce(&dyn BlockStore) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let done = work(&*store).await;
    let closed = store.close().await;
    let done = done?;
    closed?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_limited() {
        let limiter = RateLimiter::new(Some(1_000_000));
        limiter.wait_for(50_000);
        assert!(limiter.begun.elapsed() >= Duration::from_millis(50));
        RateLimiter::new(None).wait_for(u64::MAX);
    }
}
