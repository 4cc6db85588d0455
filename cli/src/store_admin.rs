//! `causeway store`: a node's store, looked at, checked, mended and filled, by this process or by the gateway that has it.
//!
//! Goals: what only looks changes nothing; what is wrong is named, so that it can be fetched or imported again; scripts
//! can read the output (`--json`), which is all that standard output gets; whether a gateway runs makes no difference to what is
//! printed ([`crate::remote`]).
//!
//! Departures: a gateway that runs looks at no index, which its writer believes in, and forgets what a check finds damaged, as
//! it does by itself ([`services::upkeep`]). Mending the index needs the store for itself.

use crate::output::{count, print, print_view};
use crate::place::{Asking, NodePlace, REACH};
use crate::progress::{self, Progress, Watched};
use crate::recorded::Recorded;
use crate::remote::{self, Worker, reach};
use crate::{values, withheld};
use anyhow::{Context as _, ensure};
use api::store::{CheckLine, CompactedView, FiguresView, FindingView, ImportedView, ProgressView};
use cache::{
    BlockStore, CheckReport, Finding, RebuildProgress, Rebuilt, Repaired, RootsIn, Salvage, ScrubPass, ScrubProgress,
};
use clap::{Args, Subcommand};
use config::{Flags, Loaded};
use content::scope::{self, ScopeError, ScopeLimits, ScopeOptions};
use content::{BlockSource, Cid, Permitted, SourceError, car};
use futures::TryStreamExt as _;
use serde_json::json;
use services::pinning::index::Outcome;
use services::pinning::{self, DamageReport, Pins};
use services::stores::{self, Looked};
use services::views;
use std::collections::{BTreeSet, HashSet};
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio::runtime::Runtime;

/// What is gathered before it is written to a CAR file, in bytes.
const WRITE_BYTES: usize = 1024 * 1024;
/// The file name that means standard input or output.
const STANDARD: &str = "-";

const STORE_HELP: &str = "\
Only \"repair\" needs the gateway to be stopped. While it runs, the gateway checks the store by itself \
(cache.scrub_bytes_per_second, cache.scrub_hours); \"check\" has it do so now.\n\n\
What is forgotten is fetched again: what a pin has, by the gateway as soon as it can; the rest, when somebody asks for it.";

const EXPORT_HELP: &str = "\
Examples:
  causeway store export CID site.car
  causeway store export CID - | ssh host causeway store import -";

/// What repairing says while a gateway runs.
const STOP_FIRST: &str = "repairing needs the store for itself, so stop the gateway first; while it runs, it checks the store and \
    forgets what is damaged by itself, and \"causeway store check\" has it do so now";

/// `causeway store`
#[derive(Debug, Subcommand)]
#[command(after_help = format!("{STORE_HELP}\n\n{REACH}"))]
pub enum StoreCommand {
    /// Say what the store holds and what that takes, without reading values
    #[command(after_help = "Examples:\n  causeway store stats\n  causeway store stats --json | jq .pinned.blocks")]
    Stats {
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// Read and check everything; print the CIDs of damaged blocks and the pins that lack blocks, and exit with 1 if anything is
    /// wrong. What is damaged is forgotten, by a gateway that runs at once and else at the next start, so that it is fetched again;
    /// pins that lack blocks are incomplete until then
    #[command(
        after_help = "Examples:\n  causeway store check\n  causeway store check --rate 20MiB --json > report.json"
    )]
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Read no more than this a second, such as 4MiB or 500kB; as fast as it goes if it is left out
        #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
        rate: Option<u64>,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Mend or rebuild the index and the list of pins, check everything and forget what is damaged; the gateway must not be running
    #[command(after_help = "Example:\n  causeway store repair --data-dir /var/lib/causeway")]
    Repair {
        /// Let go of blocks that are kept although no pin is known to have them, which "causeway store check" counts. Do so when
        /// "causeway pin ls" shows every pin that you expect as pinned
        #[arg(long)]
        release_unclaimed: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Give back the disk space that nothing needs any more
    #[command(after_help = "Example:\n  causeway store compact")]
    Compact {
        /// Print JSON: bytes_before, bytes_after
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Write a DAG as a CAR file
    #[command(after_help = EXPORT_HELP)]
    Export {
        /// The root
        cid: String,
        /// A new file; "-" for standard output
        #[arg(value_name = "FILE.car")]
        file: PathBuf,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Take in the blocks of a CAR file and pin its roots
    #[command(after_help = "Examples:\n  causeway store import site.car\n  causeway store import - < site.car")]
    Import(ImportArgs),
}

/// What `causeway import` and `causeway store import` are told.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// A CARv1 file; "-" for standard input
    #[arg(value_name = "FILE.car")]
    file: PathBuf,
    /// Print JSON: pins, blocks, bytes
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodePlace,
}

impl ImportArgs {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        Flags::from(&self.node)
    }
}

impl StoreCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        self.place().into()
    }

    fn place(&self) -> &NodePlace {
        match self {
            Self::Stats { asking } => &asking.node,
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
/// One line of what went wrong, and what to do; for `check`, that something is wrong.
pub fn run(loaded: &Loaded, runtime: &Runtime, command: StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Stats { asking } => runtime.block_on(stats(loaded, &asking)),
        StoreCommand::Check { json, rate, node } => runtime.block_on(check(loaded, json, rate, &node)),
        StoreCommand::Repair { release_unclaimed, node } => repair(loaded, runtime, release_unclaimed, &node),
        StoreCommand::Compact { json, node } => runtime.block_on(compact(loaded, json, &node)),
        StoreCommand::Export { cid, file, node } => runtime.block_on(export(loaded, &cid, &file, &node)),
        StoreCommand::Import(args) => import(loaded, runtime, &args),
    }
}

/// Takes in a CAR file and pins its roots.
///
/// # Errors
/// When the file cannot be read, or a DAG is incomplete, or the store is in use or fails.
pub fn import(loaded: &Loaded, runtime: &Runtime, args: &ImportArgs) -> anyhow::Result<()> {
    let ImportArgs { file, json, node } = args;
    let name = if is_standard(file) { "standard input".to_owned() } else { file.display().to_string() };
    let opened = if is_standard(file) { shared(std::io::stdin().as_fd()) } else { std::fs::File::open(file) };
    let opened = opened.with_context(|| format!("{name} cannot be read"))?;
    // What is no file has no length that would mean anything.
    let total = opened.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
    let archive = Watched::new(tokio::fs::File::from_std(opened), total);
    let unimported = || format!("{name} was not imported");
    let imported = runtime.block_on(async {
        match open(loaded, node).await? {
            Worker::There(remote) => remote.import(archive).await.with_context(unimported),
            Worker::Here(store) => {
                let importing = async |store: &dyn BlockStore| {
                    let policy = withheld::policy(loaded).await?;
                    let look = withheld::look(&policy);
                    let record = Recorded::begin(&loaded.config.data_dir, "import", json!({ "file": name }))?;
                    let imported = cache::import_car_with(store, archive, None, RootsIn::Header, &look).await;
                    let imported = imported.with_context(unimported);
                    record.end(imported.map(|summary| views::store::imported(&summary)), |view| json!(view))
                };
                and_close(store, importing).await
            }
        }
    })?;
    print_view(*json, &imported, ImportedView::text)
}

async fn stats(loaded: &Loaded, asking: &Asking) -> anyhow::Result<()> {
    let figures = match reach(loaded, &asking.node, async || Looked::open(loaded)).await? {
        Worker::Here(store) => views::store::figures(&store.figures()?),
        Worker::There(remote) => remote.stats().await?,
    };
    print_view(asking.json, &figures, FiguresView::text)
}

async fn check(loaded: &Loaded, json: bool, rate: Option<u64>, node: &NodePlace) -> anyhow::Result<()> {
    let (mut shown, mut found) = (Progress::new(), Found::new(json));
    // A gateway that runs has read its list of pins when it started.
    let mut here = None;
    let (report, remedy) = match reach(loaded, node, async || Looked::open(loaded)).await? {
        Worker::Here(store) => {
            here = stores::check_register(&loaded.config.data_dir, &loaded.config.cache)?;
            let pace = Pace::new(rate);
            let report = store.check(|progress, findings| {
                shown.show(|time| line(&views::store::progress(progress), time));
                findings.iter().for_each(|finding| found.take(&mut shown, views::store::finding(finding)));
                pace.keep(progress.bytes);
            })?;
            let unknown = unknown_pins(loaded, &store.pinned_roots()?)?;
            (views::store::checked(&report, unknown), "\"causeway store repair\" mends what can be mended")
        }
        Worker::There(remote) => {
            let show = |said: CheckLine| match said {
                CheckLine::Progress(progress) => shown.show(|time| line(&progress, time)),
                CheckLine::Finding(finding) => found.take(&mut shown, finding),
                CheckLine::Report(_) | CheckLine::Error(_) => {}
            };
            (
                remote.check(rate, show).await?,
                "what was damaged has been forgotten; what pins lack of it is fetched again now",
            )
        }
    };
    drop(shown);
    let findings = found.end()?;
    if json {
        let mut said = report.json(&findings);
        if let (Some(list), Some(here)) = (said.as_object_mut(), &here) {
            list.insert("pins_list".to_owned(), list_json(here));
        }
        print(&format!("{said:#}\n"))?;
    } else {
        print(&report.text())?;
        here.iter().try_for_each(|here| print(&list_text(here)))?;
    }
    ensure!(report.clean, "the store is damaged: {remedy}");
    ensure!(
        !matches!(here, Some(Err(_))),
        "the list of pins is damaged: \"causeway store repair\", or the next start, makes it anew of what can be read"
    );
    Ok(())
}

fn list_text(list: &Result<u64, String>) -> String {
    match list {
        Ok(records) => format!("read {} of the list of pins\n", count(*records, "record")),
        Err(damage) => format!("the list of pins is damaged: {damage}\n"),
    }
}

fn list_json(list: &Result<u64, String>) -> serde_json::Value {
    match list {
        Ok(records) => serde_json::json!({ "clean": true, "records": records }),
        Err(damage) => serde_json::json!({ "clean": false, "damage": damage }),
    }
}

/// What is printed as it is found, or gathered to be printed at the end.
struct Found {
    gathered: Option<Vec<FindingView>>,
    printed: anyhow::Result<()>,
}

impl Found {
    fn new(gathers: bool) -> Self {
        Self { gathered: gathers.then(Vec::new), printed: Ok(()) }
    }

    fn take(&mut self, shown: &mut Progress, finding: FindingView) {
        match &mut self.gathered {
            Some(gathered) => gathered.push(finding),
            None if self.printed.is_ok() => {
                shown.hide();
                self.printed = print(&finding.line());
            }
            None => {}
        }
    }

    fn end(self) -> anyhow::Result<Vec<FindingView>> {
        self.printed.map(|()| self.gathered.unwrap_or_default())
    }
}

/// Holds work back that is to read no more than so many bytes a second.
struct Pace {
    begun: Instant,
    rate: Option<u64>,
}

impl Pace {
    fn new(rate: Option<u64>) -> Self {
        Self { begun: Instant::now(), rate }
    }

    /// Waits until so many bytes may have been read.
    fn keep(&self, bytes: u64) {
        let due = self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate as f64));
        std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
    }
}

/// How far a check has come.
fn line(progress: &ProgressView, time: Duration) -> String {
    let ProgressView { blocks, bytes, damaged, .. } = progress;
    format!("{}, {}, {damaged} damaged", count(*blocks, "block"), progress::bytes(*bytes, None, time))
}

fn repair(loaded: &Loaded, runtime: &Runtime, release_unclaimed: bool, node: &NodePlace) -> anyhow::Result<()> {
    ensure!(node.admin().is_none(), STOP_FIRST);
    // The index first, and without the writer, which believes it.
    let Repaired { index, rebuilt } = repair_index(loaded)?;
    let looked = Looked::open(loaded)?;
    if release_unclaimed {
        looked.release_unclaimed()?;
    }
    let unclaimed = if release_unclaimed { 0 } else { rebuilt.as_ref().map_or(0, |rebuilt| rebuilt.unclaimed) };
    let unknown = unknown_pins(loaded, &looked.pinned_roots()?)?;
    let noted = looked.noted()?;
    drop(looked);
    let scrub = async |store: &dyn BlockStore| {
        let (mut shown, mut found) = (Progress::new(), Found::new(false));
        let mut show = |progress: &ScrubProgress, findings: &[Finding]| {
            shown.show(|time| line(&views::store::progress(progress), time));
            findings.iter().for_each(|finding| found.take(&mut shown, views::store::finding(finding)));
        };
        // What an earlier check found was forgotten when the store was opened.
        let earlier = noted.len() as u64;
        show(&ScrubProgress { blocks: earlier, damaged: earlier, ..ScrubProgress::default() }, &noted);
        let report = store.scrub(ScrubPass::All, None, &mut show).await?;
        drop(shown);
        found.end()?;
        let ScrubProgress { blocks, damaged, unreadable, .. } = report.progress;
        let progress = ScrubProgress { blocks: blocks + earlier, damaged: damaged + earlier, ..report.progress };
        let report = CheckReport { progress, index, lacking: report.lacking, unclaimed };
        print(&views::store::checked(&report, unknown).text())?;
        ensure!(unreadable == 0, "cannot be read: {}. Check the disk's health", count(unreadable, "block"));
        print("The index was mended and damaged blocks were forgotten.\n")
    };
    runtime.block_on(async {
        let store = stores::open_existing(loaded).await?;
        and_close(Arc::clone(&store), async |store| {
            let scrubbed = scrub(store).await;
            // Whatever became of the blocks.
            repair_pins(loaded, &store.handle()).await.and(scrubbed)
        })
        .await
    })
}

/// Makes the list of pins anew of what can be read of it and of the store's own pins, if it is damaged.
async fn repair_pins(loaded: &Loaded, store: &Arc<dyn BlockStore>) -> anyhow::Result<()> {
    let register = stores::open_register(&loaded.config.data_dir, &loaded.config.cache).await?;
    let pins = Pins::alone(register, store).await?;
    print(&pins_repaired(pins.damage().as_ref()))?;
    let unwritten = pins.damage().and_then(|damage| damage.salvage?.unwritten);
    let unwritten =
        unwritten.map_or(Ok(()), |why| Err(anyhow::anyhow!("the list of pins cannot be written anew: {why}")));
    pins.stop().await;
    unwritten
}

/// What became of the list of pins.
fn pins_repaired(damage: Option<&DamageReport>) -> String {
    let Some(DamageReport { salvage, unreadable, taken_in }) = damage else {
        return "The list of pins is sound.\n".to_owned();
    };
    let mut said = String::from("The list of pins was damaged.");
    if let Some(Salvage { damage, records, kept, .. }) = salvage {
        said = format!("The list of pins was damaged ({damage}). {} could be read", count(*records, "record"));
        if let Some(kept) = kept {
            said += &format!(" and were written anew; the damaged files are kept in {}", kept.display());
        }
        said.push('.');
    }
    if *unreadable > 0 {
        said += &format!(" {} could not be understood.", count(*unreadable as u64, "record"));
    }
    said.push('\n');
    for root in taken_in {
        said += &format!("pin {root} has lost its owner, origins and metadata: it is the operator's now\n");
    }
    said + "No block was lost by it.\n"
}

fn repair_index(loaded: &Loaded) -> anyhow::Result<Repaired> {
    let mut shown = Progress::new();
    let repaired = stores::repair(loaded, &mut |progress| shown.show(|time| rebuild_line(progress, time)));
    let repaired =
        repaired.map_err(|error| if remote::is_in_use(&error) { error.context(STOP_FIRST) } else { error })?;
    drop(shown);
    if let Some(Rebuilt { reason, progress, .. }) = &repaired.rebuilt {
        let RebuildProgress { segments, blocks, pins, .. } = progress;
        print(&format!("The index was rebuilt ({reason}); segments: {segments}, values: {blocks}, pins: {pins}\n"))?;
    }
    Ok(repaired)
}

/// How far a rebuild of the index has come.
fn rebuild_line(progress: &RebuildProgress, time: Duration) -> String {
    let RebuildProgress { segments, segments_total, bytes, pins, pins_total, .. } = *progress;
    let read = progress::bytes(bytes, None, time);
    format!("rebuilding the index: {segments} of {segments_total} segments, {read}; {pins} of {pins_total} pins")
}

/// Roots that the list of pins says are pinned, and of which the store has no pin.
fn unknown_pins(loaded: &Loaded, roots: &HashSet<Cid>) -> anyhow::Result<Vec<Cid>> {
    let Some(register) = stores::open_register_alone(loaded)? else { return Ok(Vec::new()) };
    let requests = pinning::record::load(&register)?.entries.into_iter();
    let pinned = requests.filter(|entry| entry.outcome == Outcome::Pinned).map(|entry| entry.root);
    let unknown: BTreeSet<Cid> = pinned.filter(|root| !roots.contains(root)).collect();
    Ok(unknown.into_iter().collect())
}

async fn compact(loaded: &Loaded, json: bool, node: &NodePlace) -> anyhow::Result<()> {
    let compacted = match open_existing(loaded, node).await? {
        Worker::There(remote) => remote.compact().await?,
        Worker::Here(store) => {
            let compacting = async |store: &dyn BlockStore| {
                let total = || store.stats().cached_bytes + store.stats().pinned_bytes;
                let bytes_before = total();
                store.compact().await?;
                Ok(CompactedView { bytes_before, bytes_after: total() })
            };
            and_close(store, compacting).await?
        }
    };
    print_view(json, &compacted, |compacted| compacted.text())
}

async fn export(loaded: &Loaded, cid: &str, file: &Path, node: &NodePlace) -> anyhow::Result<()> {
    let root = content::cid::parse(cid)?;
    match open_existing(loaded, node).await? {
        Worker::There(remote) => export_from(Arc::new(remote.blocks()), root, file).await,
        Worker::Here(store) => {
            let exporting = async |store: &dyn BlockStore| {
                let policy = withheld::policy(loaded).await?;
                export_from(Arc::new(Permitted::whole(store.handle(), policy)), root, file).await
            };
            and_close(store, exporting).await
        }
    }
}

/// Writes a DAG depth first and without repeats, as Kubo does. A file that could not be finished is removed.
async fn export_from(source: Arc<dyn BlockSource>, root: Cid, file: &Path) -> anyhow::Result<()> {
    if is_standard(file) {
        let out = tokio::fs::File::from_std(shared(std::io::stdout().as_fd())?);
        let written = write_car(source, root, out).await;
        // A reader who has left has what it wanted.
        let left = |error: &anyhow::Error| {
            error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
        };
        return if written.as_ref().is_err_and(left) { Ok(()) } else { written.map(drop) };
    }
    let options = std::fs::File::options().write(true).create_new(true).open(file);
    let created = options.with_context(|| format!("{} cannot be made", file.display()))?;
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

/// Opens the store, which is made if need be, unless a gateway has it.
async fn open(loaded: &Loaded, node: &NodePlace) -> anyhow::Result<Worker<Arc<dyn BlockStore>>> {
    reach(loaded, node, async || stores::open_or_create(loaded).await).await
}

/// The same for a store that has to be there.
async fn open_existing(loaded: &Loaded, node: &NodePlace) -> anyhow::Result<Worker<Arc<dyn BlockStore>>> {
    reach(loaded, node, async || stores::open_existing(loaded).await).await
}

/// Does something with a store, and closes it.
async fn and_close<T>(
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
    fn a_pace_is_kept() {
        let pace = Pace::new(Some(1_000_000));
        pace.keep(50_000);
        assert!(pace.begun.elapsed() >= Duration::from_millis(50));
        Pace::new(None).keep(u64::MAX);
    }
}
