//! The audit log: who changed what, when, from where, and with what outcome.
//!
//! Goals: every change is in the log, on the disk; one line of JSON for each record; bounded in size; no secrets.
//!
//! A change is a request that a token authorises with a method other than GET, HEAD and OPTIONS, or a command that
//! changes tokens, keys, names or pins in the data directory itself ([`LocalChange`]). It has two records with the same
//! ID, like a write-ahead log. The intent is on the disk before the change is made. The outcome is on the disk before
//! the response begins, and repeats the intent. If the intent cannot be written, the change is rejected. If the outcome
//! cannot be written, the change has been made and is answered, and the process log has the record. An intent without
//! an outcome is a change in progress, or one during which the process ended.
//!
//! A dedicated thread writes all queued records with one sync (group commit). Space for records is reserved on the disk
//! ([`file`]). Half of the reserve is only for changes that free space, which is what a full disk needs.
//!
//! | module | concern |
//! |---|---|
//! | [`entry`] | the content of a record |
//! | `file` | the files, and the reserve |
//! | [`local`] | changes that commands make without a gateway |
//!
//! Non-goals: protection from the operator, who can write the file; ship the lines elsewhere for that.

pub mod context;
pub mod entry;
mod file;
pub mod local;

pub use self::entry::PendingChange;
pub use self::local::LocalChange;
pub use api::audit::{AuditEntry, CLIENT_DISCONNECTED};

use self::entry::RECORD_BYTES_MAX;
use self::file::{AuditFile, FILE, OLDER_FILE, ReserveLevel};
use crate::audit::context::AuditContext;
use hashlink::LinkedHashMap;
use http::Response;
use serde::Serialize;
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{mpsc, oneshot};

/// The maximum number of queued records. Further writers wait for a slot.
const LINES_MAX: usize = 256;
/// The maximum number of intents without an outcome that are shown. Each time a process is killed leaves some.
const OPEN_SHOWN_MAX: usize = 1024;

/// What a handler adds to the record of its request: put it into the response's extensions. For what is known before
/// work begins, prefer [`AuditContext`], which is recorded even if the request ends early.
#[derive(Debug, Clone)]
pub struct ResponseDetail(pub Value);

impl ResponseDetail {
    /// What was requested, or its outcome.
    pub fn of(what: &impl Serialize) -> Self {
        Self(serde_json::to_value(what).unwrap_or_default())
    }

    /// Adds the details to a response.
    pub fn with<T>(self, mut answer: Response<T>) -> Response<T> {
        answer.extensions_mut().insert(self);
        answer
    }
}

/// Why a record was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// The disk is full.
    #[error(
        "nothing was changed: the disk of the data directory is full and has no space for the audit log; free some \
         space (unpin content, compact the store, remove other files), then try again"
    )]
    Full,
    /// The file system failed.
    #[error("nothing was changed: the audit log cannot be written: {0}")]
    Failed(String),
    /// The log is closed.
    #[error("nothing was changed: the audit log is closed because the gateway is stopping, or has to be restarted")]
    Closed,
}

impl From<io::Error> for AuditError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// What a change does with disk space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// It frees space, or takes none, and may use all of the reserve.
    Returned,
    /// It takes space, and may use half of the reserve.
    Taken,
}

/// A change in progress. If the request is cancelled before there is an outcome, that is recorded.
#[derive(Debug)]
pub struct Change {
    begun: Option<PendingChange>,
    context: AuditContext,
    lines: mpsc::Sender<Line>,
    open: Open,
}

impl Change {
    /// Records the intent. Returns when it is on the disk.
    async fn begin(&mut self, space: Space) -> Result<(), AuditError> {
        let Some(intent) = self.begun.as_ref().map(|begun| begun.intent(None)) else { return Ok(()) };
        let written = write(self.lines.clone(), intent, Kind::Intent(space)).await;
        if written.is_err() {
            self.begun = None;
        }
        written
    }

    /// Records the outcome. Returns when it is on the disk, or in the process log if writing it failed.
    pub async fn end(&mut self, status: u16, detail: Option<Value>) {
        let Some(begun) = &self.begun else { return };
        let written = self.outcome(begun.outcome(status, self.context.with(detail)));
        // If the caller is cancelled from here on, the outcome is still written.
        let written = tokio::spawn(written);
        self.begun = None;
        _ = written.await;
    }

    /// Writes the outcome. The space for it stays reserved until then.
    fn outcome(&self, entry: AuditEntry) -> impl Future<Output = ()> + Send + 'static {
        let (lines, open) = (self.lines.clone(), self.open.clone());
        async move {
            write_or_log(lines, entry, Kind::Outcome).await;
            drop(open);
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let Some(begun) = self.begun.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(self.outcome(begun.outcome(CLIENT_DISCONNECTED, self.context.with(None))));
        }
    }
}

/// Counts a change in progress once, for all clones.
#[derive(Debug, Clone)]
struct Open {
    _counted: Arc<OpenOne>,
}

#[derive(Debug)]
struct OpenOne(Arc<AtomicU64>);

impl Open {
    fn of(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self { _counted: Arc::new(OpenOne(Arc::clone(count))) }
    }
}

impl Drop for OpenOne {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A record for which no space is reserved.
    Intent(Space),
    Outcome,
}

#[derive(Debug)]
struct Line {
    kind: Kind,
    text: Vec<u8>,
    done: oneshot::Sender<Result<(), AuditError>>,
}

async fn write(lines: mpsc::Sender<Line>, entry: AuditEntry, kind: Kind) -> Result<(), AuditError> {
    let (done, written) = oneshot::channel();
    let line = Line { kind, text: entry::line(&entry), done };
    lines.send(line).await.map_err(|_| AuditError::Closed)?;
    written.await.unwrap_or(Err(AuditError::Closed))
}

/// Writes a record, or logs it to the process log if that fails.
async fn write_or_log(lines: mpsc::Sender<Line>, entry: AuditEntry, kind: Kind) {
    if let Err(error) = write(lines, entry.clone(), kind).await {
        let reason = match &error {
            AuditError::Full => "the disk is full",
            AuditError::Failed(reason) => reason,
            AuditError::Closed => "the log is closed",
        };
        let record = String::from_utf8_lossy(&entry::line(&entry)).trim_end().to_owned();
        tracing::error!(reason, record, "writing a record to the audit log failed");
    }
}

/// The audit log. Dropping it ends its thread.
#[derive(Debug)]
pub struct AuditLog {
    lines: mpsc::Sender<Line>,
    dir: PathBuf,
    /// Changes whose outcome is not written yet.
    open: Arc<AtomicU64>,
}

impl AuditLog {
    /// Opens the log of a data directory for appending.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let (lines, inbox) = mpsc::channel(LINES_MAX);
        let (file, open) = (AuditFile::open(data_dir)?, Arc::<AtomicU64>::default());
        let writer = Writer { file, open: Arc::clone(&open) };
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(inbox))?;
        Ok(Self { lines, dir: data_dir.to_owned(), open })
    }

    /// Waits until the writer thread has ended.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let lines = self.lines.clone();
        async move { lines.closed().await }
    }

    /// Records the intent of a change, and ensures that its outcome is recorded with its audit context. Returns when
    /// the intent is on the disk.
    ///
    /// # Errors
    /// [`AuditError`]: the change must not be made.
    pub async fn begin(&self, begun: PendingChange, context: AuditContext, space: Space) -> Result<Change, AuditError> {
        let open = Open::of(&self.open);
        let mut change = Change { begun: Some(begun), context, lines: self.lines.clone(), open };
        change.begin(space).await?;
        Ok(change)
    }

    /// Records an action of the gateway itself that follows from a change. Returns when the record is on the disk, or
    /// in the process log if writing it failed. It does not use the half of the reserve for changes that free space.
    pub async fn record(&self, method: &str, about: &str, status: u16, detail: Option<Value>) {
        let entry = PendingChange::by_gateway(method, about).outcome(status, AuditContext::default().with(detail));
        // A task of its own, so that a caller that is dropped does not end the write.
        _ = tokio::spawn(write_or_log(self.lines.clone(), entry, Kind::Intent(Space::Taken))).await;
    }

    /// The last changes, newest first. Blocks the thread.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn last(&self, entries_max: usize) -> io::Result<Vec<AuditEntry>> {
        let mut shown = LastEntries { entries_max, ..LastEntries::default() };
        for file in [OLDER_FILE, FILE] {
            let file = match File::open(self.dir.join(file)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            // Incomplete lines are skipped.
            let lines = BufReader::new(file).split(b'\n');
            lines.filter_map(|line| serde_json::from_slice(&line.ok()?).ok()).for_each(|entry| shown.add(entry));
        }
        Ok(shown.newest_first())
    }
}

/// The last changes of a log that is read from its beginning.
#[derive(Default)]
struct LastEntries {
    entries_max: usize,
    ended: VecDeque<AuditEntry>,
    /// Intents without an outcome so far.
    open: LinkedHashMap<String, AuditEntry>,
}

impl LastEntries {
    fn add(&mut self, entry: AuditEntry) {
        if entry.status.is_none() {
            self.open.insert(entry.id.clone(), entry);
            if self.open.len() > OPEN_SHOWN_MAX {
                self.open.pop_front();
            }
            return;
        }
        self.open.remove(&entry.id);
        if self.ended.len() >= self.entries_max {
            self.ended.pop_front();
        }
        self.ended.push_back(entry);
    }

    fn newest_first(self) -> Vec<AuditEntry> {
        let mut entries: Vec<AuditEntry> = self.ended.into_iter().rev().collect();
        entries.extend(self.open.into_iter().rev().map(|(_, entry)| entry));
        // The sort is stable: records of the same time keep their order.
        entries.sort_by(|one, other| other.at.total_cmp(&one.at));
        entries.truncate(self.entries_max);
        entries
    }
}

/// The writer thread.
struct Writer {
    file: AuditFile,
    open: Arc<AtomicU64>,
}

impl Writer {
    /// Writes queued records until all senders are dropped.
    fn run(mut self, mut inbox: mpsc::Receiver<Line>) {
        let mut waiting = Vec::with_capacity(LINES_MAX);
        while inbox.blocking_recv_many(&mut waiting, LINES_MAX) > 0 {
            self.write(waiting.drain(..));
        }
    }

    /// Writes records with one sync, and notifies the waiting callers.
    fn write(&mut self, waiting: impl Iterator<Item = Line>) {
        let (outcomes, intents): (Vec<_>, Vec<_>) = waiting.partition(|line| line.kind == Kind::Outcome);
        // Space for outcomes was reserved when their intents were written.
        let outcomes_written = self.append(&outcomes);
        let (intents, rejected) = self.admit(intents);
        let intents_written = self.append(&intents);
        let synced = self.file.sync().map_err(AuditError::from);
        for (lines, written) in [(outcomes, outcomes_written), (intents, intents_written)] {
            let written = written.and_then(|()| synced.clone());
            lines.into_iter().for_each(|line| notify(line, written.clone()));
        }
        for line in rejected {
            notify(line, Err(AuditError::Full));
        }
    }

    fn append(&mut self, lines: &[Line]) -> Result<(), AuditError> {
        let text: Vec<u8> = lines.iter().flat_map(|line| &line.text).copied().collect();
        if text.is_empty() { Ok(()) } else { self.file.append(&text) }
    }

    /// Splits intents into those for which there is space, besides the outcomes of all changes in progress, and the
    /// others.
    fn admit(&mut self, intents: Vec<Line>) -> (Vec<Line>, Vec<Line>) {
        if intents.is_empty() {
            return (intents, Vec::new());
        }
        let bytes: u64 = intents.iter().map(|line| line.text.len() as u64).sum();
        let outcomes = self.open.load(Ordering::SeqCst).saturating_mul(RECORD_BYTES_MAX);
        // If the space cannot be determined, writing shows it.
        let reserve = self.file.reserve_level(bytes + outcomes).unwrap_or(ReserveLevel::Enough);
        intents.into_iter().partition(|line| match line.kind {
            Kind::Intent(Space::Taken) => reserve >= ReserveLevel::Enough,
            _ => reserve >= ReserveLevel::Low,
        })
    }
}

fn notify(line: Line, written: Result<(), AuditError>) {
    // The caller may be gone.
    _ = line.done.send(written);
}

#[cfg(test)]
mod tests;
