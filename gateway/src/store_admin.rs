//! `causeway store`: a node's store, looked at, checked, mended and filled, by this process or by the gateway that has it.
//!
//! Goals: what only looks changes nothing; what is wrong is named, so that it can be fetched or imported again; scripts
//! can read the output (`--json`), which is all that standard output gets; whether a gateway runs makes no difference to what is
//! printed ([`crate::remote`]).
//!
//! Departures: a gateway that runs looks at no index, which its writer believes in, and forgets what a check finds damaged, as
//! it does by itself ([`crate::upkeep`]). Mending the index needs the store for itself.

use crate::admin::store_views::{CheckView, CompactedView, FiguresView, FindingView, ImportedView, ProgressView, size};
use crate::cli::{REACH, StorePlace, print};
use crate::remote::{self, Worker, reach};
use crate::stores::{self, Looked};
use anyhow::{Context as _, ensure};
use cache::{BlockStore, CheckReport, Finding, ScrubPass, ScrubProgress};
use clap::Subcommand;
use config::{Flags, Loaded};
use content::scope::{self, ScopeError, ScopeLimits, ScopeOptions};
use content::{BlockSource, Cid, SourceError, car};
use futures::TryStreamExt as _;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio::runtime::Runtime;

/// How often progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// What is gathered before it is written to a CAR file, in bytes.
const WRITE_BYTES: usize = 1024 * 1024;
/// The file name that means standard input or output.
const STANDARD: &str = "-";

const STORE_HELP: &str = "\
Only \"repair\" needs the gateway to be stopped. While it runs, the gateway checks the store by itself \
(cache.scrub_bytes_per_second, cache.scrub_hours); \"check\" has it do so now.\n\n\
What is forgotten is fetched again when somebody asks for it, and is a member of its pins again then.";

/// What repairing says while a gateway runs.
const STOP_FIRST: &str = "repairing needs the store for itself, so stop the gateway first; while it runs, it checks the store and \
    forgets what is damaged by itself, and \"causeway store check\" has it do so now";

/// `causeway store`
#[derive(Debug, Subcommand)]
#[command(after_help = format!("{STORE_HELP}\n\n{REACH}"))]
pub enum StoreCommand {
    /// Say what the store holds and what that takes, without reading values
    Stats {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Whose store is meant.
        #[command(flatten)]
        store: StorePlace,
    },
    /// Read and check everything; print the CIDs of damaged blocks and the pins that lack blocks, and exit with 1 if anything is
    /// wrong. Nothing is changed, but a gateway that runs forgets what is damaged, so that it is fetched again
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Read no more than this a second, such as 4MiB or 500kB; as fast as it goes if it is left out
        #[arg(long, value_name = "BYTES", value_parser = bytes)]
        rate: Option<u64>,
        /// Whose store is meant.
        #[command(flatten)]
        store: StorePlace,
    },
    /// Mend the index, check everything and forget what is damaged; the gateway must not be running
    Repair {
        /// Whose store is meant.
        #[command(flatten)]
        store: StorePlace,
    },
    /// Give back the disk space that nothing needs any more
    Compact {
        /// Whose store is meant.
        #[command(flatten)]
        store: StorePlace,
    },
    /// Write a DAG as a CAR file
    Export {
        /// The root
        cid: String,
        /// A new file; "-" for standard output
        #[arg(value_name = "FILE.car")]
        file: PathBuf,
        /// Whose store is meant.
        #[command(flatten)]
        store: StorePlace,
    },
    /// Take in the blocks of a CAR file and pin its roots
    Import {
        /// A CARv1 file; "-" for standard input
        #[arg(value_name = "FILE.car")]
        file: PathBuf,
        /// Whose store is meant.
        #[command(flatten)]
        store: StorePlace,
    },
}

impl StoreCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        self.place().into()
    }

    fn place(&self) -> &StorePlace {
        match self {
            Self::Stats { store, .. }
            | Self::Check { store, .. }
            | Self::Repair { store }
            | Self::Compact { store }
            | Self::Export { store, .. }
            | Self::Import { store, .. } => store,
        }
    }
}

/// "4MiB", "500kB" or a number of bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let units =
        [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)];
    let unit = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), *bytes)));
    let (number, unit) = unit.unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "this is a whole number of bytes above zero, or of kB, MB, GB, KiB, MiB or GiB".to_owned())
}

/// Runs a command.
///
/// # Errors
/// One line of what went wrong, and what to do; for `check`, that something is wrong.
pub fn run(loaded: &Loaded, runtime: &Runtime, command: StoreCommand) -> anyhow::Result<()> {
    let admin = command.place().admin().map(str::to_owned);
    let admin = admin.as_deref();
    match command {
        StoreCommand::Stats { json, .. } => runtime.block_on(stats(loaded, json, admin)),
        StoreCommand::Check { json, rate, .. } => runtime.block_on(check(loaded, json, rate, admin)),
        StoreCommand::Repair { .. } => repair(loaded, runtime, admin),
        StoreCommand::Compact { .. } => runtime.block_on(compact(loaded, admin)),
        StoreCommand::Export { cid, file, .. } => runtime.block_on(export(loaded, &cid, &file, admin)),
        StoreCommand::Import { file, .. } => import(loaded, runtime, &file, admin),
    }
}

/// Takes in a CAR file and pins its roots.
///
/// # Errors
/// When the file cannot be read, or a DAG is incomplete, or the store is in use or fails.
pub fn import(loaded: &Loaded, runtime: &Runtime, file: &Path, admin: Option<&str>) -> anyhow::Result<()> {
    let name = if is_standard(file) { "standard input".to_owned() } else { file.display().to_string() };
    let opened = if is_standard(file) { shared(std::io::stdin().as_fd()) } else { std::fs::File::open(file) };
    let archive = tokio::fs::File::from_std(opened.with_context(|| format!("{name} cannot be read"))?);
    let unimported = || format!("{name} was not imported");
    let imported = runtime.block_on(async {
        match open(loaded, admin).await? {
            Worker::There(remote) => remote.import(archive).await.with_context(unimported),
            Worker::Here(store) => {
                let importing = async |store: &dyn BlockStore| Ok(cache::import_car(store, archive, None).await);
                let summary = and_close(store, importing).await?.with_context(unimported)?;
                Ok(ImportedView::from(&summary))
            }
        }
    })?;
    print(&imported.text())
}

async fn stats(loaded: &Loaded, json: bool, admin: Option<&str>) -> anyhow::Result<()> {
    let figures = match reach(loaded, admin, async || Looked::open(loaded)).await? {
        Worker::Here(store) => FiguresView::from(&store.figures()?),
        Worker::There(remote) => remote.stats().await?,
    };
    if json { print(&format!("{:#}\n", serde_json::to_value(figures)?)) } else { print(&figures.text()) }
}

async fn check(loaded: &Loaded, json: bool, rate: Option<u64>, admin: Option<&str>) -> anyhow::Result<()> {
    let (mut shown, mut found) = (Shown::default(), Found::new(json));
    let (report, remedy) = match reach(loaded, admin, async || Looked::open(loaded)).await? {
        Worker::Here(store) => {
            let pace = Pace::new(rate);
            let report = store.check(|progress, findings| {
                shown.show(&progress.into());
                findings.iter().for_each(|finding| found.take(finding.into()));
                pace.keep(progress.bytes);
            })?;
            (CheckView::from(&report), "\"causeway store repair\" mends what can be mended")
        }
        Worker::There(remote) => {
            let report = remote.check(rate, |progress| shown.show(progress), |finding| found.take(finding)).await?;
            (report, "what was damaged has been forgotten, and is fetched again when somebody asks for it")
        }
    };
    drop(shown);
    let findings = found.end()?;
    if json {
        print(&format!("{:#}\n", report.json(&findings)))?;
    } else {
        print(&report.text())?;
    }
    ensure!(report.clean, "the store is damaged: {remedy}");
    Ok(())
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

    fn take(&mut self, finding: FindingView) {
        match &mut self.gathered {
            Some(gathered) => gathered.push(finding),
            None if self.printed.is_ok() => self.printed = print(&finding.line()),
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

fn repair(loaded: &Loaded, runtime: &Runtime, admin: Option<&str>) -> anyhow::Result<()> {
    ensure!(admin.is_none(), STOP_FIRST);
    // The index first, and without the writer, which believes it.
    let opened = Looked::open(loaded);
    let looked = opened.map_err(|error| if remote::is_in_use(&error) { error.context(STOP_FIRST) } else { error })?;
    let index = looked.mend()?;
    drop(looked);
    let scrub = async |store: &dyn BlockStore| {
        let (mut shown, mut found) = (Shown::default(), Found::new(false));
        let mut show = |progress: &ScrubProgress, findings: &[Finding]| {
            shown.show(&progress.into());
            findings.iter().for_each(|finding| found.take(finding.into()));
        };
        let report = store.scrub(ScrubPass::All, None, &mut show).await?;
        drop(shown);
        found.end()?;
        let unreadable = report.progress.unreadable;
        let report = CheckReport { progress: report.progress, index, lacking: report.lacking };
        print(&CheckView::from(&report).text())?;
        ensure!(unreadable == 0, "{unreadable} blocks cannot be read: check the disk's health");
        print("The index was mended and damaged blocks were forgotten.\n")
    };
    runtime.block_on(async { and_close(stores::open_alone(loaded).await?, scrub).await })
}

async fn compact(loaded: &Loaded, admin: Option<&str>) -> anyhow::Result<()> {
    let compacted = match open_existing(loaded, admin).await? {
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
    print(&compacted.text())
}

async fn export(loaded: &Loaded, cid: &str, file: &Path, admin: Option<&str>) -> anyhow::Result<()> {
    let root = content::cid::parse(cid)?;
    match open_existing(loaded, admin).await? {
        Worker::There(remote) => export_from(Arc::new(remote.blocks()), root, file).await,
        Worker::Here(store) => {
            let exporting = async |store: &dyn BlockStore| export_from(store.handle(), root, file).await;
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
        Ok(blocks) => print(&format!("exported {blocks} blocks\n")),
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
async fn open(loaded: &Loaded, admin: Option<&str>) -> anyhow::Result<Worker<Arc<dyn BlockStore>>> {
    reach(loaded, admin, async || stores::open_alone(loaded).await).await
}

/// The same for a store that has to be there.
async fn open_existing(loaded: &Loaded, admin: Option<&str>) -> anyhow::Result<Worker<Arc<dyn BlockStore>>> {
    let opening = async || {
        Looked::open(loaded).map(drop)?;
        stores::open_alone(loaded).await
    };
    reach(loaded, admin, opening).await
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
    fn show(&mut self, progress: &ProgressView) {
        if self.wanted && self.last.is_none_or(|last| last.elapsed() >= PROGRESS_EVERY) {
            self.last = Some(Instant::now());
            let ProgressView { blocks, bytes, damaged, .. } = progress;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bytes_perhaps_with_a_unit() {
        let table = [
            ("1", Some(1)),
            ("4096B", Some(4096)),
            ("500kB", Some(500_000)),
            ("4MiB", Some(4 << 20)),
            ("4 MiB", Some(4 << 20)),
            ("2GB", Some(2_000_000_000)),
            ("1GiB", Some(1 << 30)),
            ("0", None),
            ("0MiB", None),
            ("", None),
            ("MiB", None),
            ("fast", None),
            ("-1", None),
            ("1.5MiB", None),
            ("99999999999GiB", None),
        ];
        for (text, expected) in table {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_pace_is_kept() {
        let pace = Pace::new(Some(1_000_000));
        pace.keep(50_000);
        assert!(pace.begun.elapsed() >= Duration::from_millis(50));
        Pace::new(None).keep(u64::MAX);
    }
}
