//! The audit log: who changed what, when, from where, and what came of it.
//!
//! Goals: no change is made that is not in the log, on the disk; one line of JSON for each record, so that any tool
//! reads it; bounded in bytes; no secret ever in it.
//!
//! A change is a request that a token authorises and that is no GET, HEAD or OPTIONS, or a command that changes tokens, keys, names or
//! pins in the data folder itself ([`LocalChange`]). It has two records with the same id. The intent is on the disk before the change is
//! made. The outcome is on the disk before the answer begins, and says all that the intent does. When the intent cannot be
//! written, the change is refused and nothing happens. When the outcome cannot, the change has been made and is answered;
//! then the log of the process has the record. An intent without an outcome is a change under way, or one during which the
//! process ended.
//!
//! A thread of its own writes all records that wait with one sync (group commit). Records are kept room for on the disk
//! ([`file`]): half of it only for changes that give space back, because these are what a full disk needs.
//!
//! | module | concern |
//! |---|---|
//! | [`entry`] | what a record says |
//! | `file` | lines on the disk, and room for them |
//! | [`local`] | changes that commands make without a gateway |
//!
//! Non-goals: protection from the operator, who can write the file; send the lines elsewhere for that.

pub mod context;
pub mod entry;
mod file;
pub mod local;

pub use self::entry::Begun;
pub use self::local::LocalChange;
pub use api::audit::{Entry, LEFT};

use self::entry::RECORD_BYTES_MAX;
use self::file::{AuditFile, FILE, OLDER_FILE, Room};
use crate::audit::context::AuditContext;
use http::Response;
use serde::Serialize;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{mpsc, oneshot};

/// Records that may wait for the disk. Whoever comes then waits for room.
const LINES_MAX: usize = 256;
/// Intents without an outcome that are shown at most: each time a process was killed leaves some.
const OPEN_SHOWN_MAX: usize = 1024;

/// What a handler adds to the entry of its request: put it into the response's extensions. What is known before work
/// begins is better [`AuditContext`], for then it is written however that ends.
#[derive(Debug, Clone)]
pub struct Detail(pub Value);

impl Detail {
    /// What was asked for, or what became of it.
    pub fn of(what: &impl Serialize) -> Self {
        Self(serde_json::to_value(what).unwrap_or_default())
    }

    /// An answer that brings this along.
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
        "nothing was changed, because the disk of the data folder is full and has no room for the audit log: give space \
         back (unpin something, compact the store, remove other files), then try again"
    )]
    Full,
    /// The system refused.
    #[error("nothing was changed, because the audit log cannot be written: {0}")]
    Failed(String),
    /// Nobody writes any more.
    #[error("nothing was changed, because the audit log is closed: the gateway is stopping, or has to be restarted")]
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

/// What a change does about a disk that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// It gives space back, or takes none: all of the reserve is for it.
    Returned,
    /// It takes some: half of the reserve is not for it.
    Taken,
}

/// A change under way. If its sender leaves before there is an answer, that is written.
#[derive(Debug)]
pub struct Change {
    begun: Option<Begun>,
    noted: AuditContext,
    lines: mpsc::Sender<Line>,
    open: Open,
}

impl Change {
    /// Records that it is about to be made. Done when that is on the disk.
    async fn begin(&mut self, space: Space) -> Result<(), AuditError> {
        let Some(intent) = self.begun.as_ref().map(|begun| begun.intent(None)) else { return Ok(()) };
        let written = write(self.lines.clone(), intent, Kind::Intent(space)).await;
        if written.is_err() {
            self.begun = None;
        }
        written
    }

    /// Records what became of it. Done when that is on the disk, or in the log of the process because the disk has
    /// refused it.
    pub async fn end(&mut self, status: u16, detail: Option<Value>) {
        let Some(begun) = &self.begun else { return };
        let written = self.outcome(begun.outcome(status, self.noted.with(detail)));
        // Whoever leaves from here on has an answer that is written.
        let written = tokio::spawn(written);
        self.begun = None;
        _ = written.await;
    }

    /// The room for a record is kept until it is written.
    fn outcome(&self, entry: Entry) -> impl Future<Output = ()> + Send + 'static {
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
            runtime.spawn(self.outcome(begun.outcome(LEFT, self.noted.with(None))));
        }
    }
}

/// The number of changes under way, in which this one is counted once.
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
    /// One for which no room was kept.
    Intent(Space),
    Outcome,
}

#[derive(Debug)]
struct Line {
    kind: Kind,
    text: Vec<u8>,
    done: oneshot::Sender<Result<(), AuditError>>,
}

async fn write(lines: mpsc::Sender<Line>, entry: Entry, kind: Kind) -> Result<(), AuditError> {
    let (done, written) = oneshot::channel();
    let line = Line { kind, text: entry::line(&entry), done };
    lines.send(line).await.map_err(|_| AuditError::Closed)?;
    written.await.unwrap_or(Err(AuditError::Closed))
}

/// Writes a record, if need be to the log of the process.
async fn write_or_log(lines: mpsc::Sender<Line>, entry: Entry, kind: Kind) {
    if let Err(error) = write(lines, entry.clone(), kind).await {
        let reason = match &error {
            AuditError::Full => "its disk is full",
            AuditError::Failed(reason) => reason,
            AuditError::Closed => "it is closed",
        };
        let record = String::from_utf8_lossy(&entry::line(&entry)).trim_end().to_owned();
        tracing::error!(reason, record, "a record could not be written to the audit log");
    }
}

/// The log. Dropping it ends its thread.
#[derive(Debug)]
pub struct AuditLog {
    lines: mpsc::Sender<Line>,
    dir: PathBuf,
    /// Changes whose outcome is not written yet.
    open: Arc<AtomicU64>,
}

impl AuditLog {
    /// Opens the log of a data folder, for more.
    ///
    /// # Errors
    /// What the system said.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let (lines, inbox) = mpsc::channel(LINES_MAX);
        let (file, open) = (AuditFile::open(data_dir)?, Arc::<AtomicU64>::default());
        let writer = Writer { file, open: Arc::clone(&open) };
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(inbox))?;
        Ok(Self { lines, dir: data_dir.to_owned(), open })
    }

    /// Waits until the thread that writes has ended.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let lines = self.lines.clone();
        async move { lines.closed().await }
    }

    /// Records that a change is about to be made, and sees to it that its outcome is recorded, whatever that is, with
    /// what is noted of it until then. Done when the intent is on the disk.
    ///
    /// # Errors
    /// [`AuditError`]: the change must not be made.
    pub async fn begin(&self, begun: Begun, noted: AuditContext, space: Space) -> Result<Change, AuditError> {
        let open = Open::of(&self.open);
        let mut change = Change { begun: Some(begun), noted, lines: self.lines.clone(), open };
        change.begin(space).await?;
        Ok(change)
    }

    /// Records something that the gateway has done by itself, because of a change. Done when that is on the disk, or in
    /// the log of the process because the disk has refused it: the second half of the reserve is not for this.
    pub async fn record(&self, method: &str, about: &str, status: u16, detail: Option<Value>) {
        let entry = Begun::by_gateway(method, about).outcome(status, AuditContext::default().with(detail));
        // A task of its own, so that a caller that is dropped does not end the write.
        _ = tokio::spawn(write_or_log(self.lines.clone(), entry, Kind::Intent(Space::Taken))).await;
    }

    /// The last changes, the newest first. Blocks the thread.
    ///
    /// # Errors
    /// What the system said.
    pub fn last(&self, entries_max: usize) -> io::Result<Vec<Entry>> {
        let mut shown = Shown { entries_max, ..Shown::default() };
        for file in [OLDER_FILE, FILE] {
            let file = match File::open(self.dir.join(file)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            // A line that was cut off is none.
            let lines = BufReader::new(file).split(b'\n');
            lines.filter_map(|line| serde_json::from_slice(&line.ok()?).ok()).for_each(|entry| shown.add(entry));
        }
        Ok(shown.newest_first())
    }
}

/// The last changes of a log that is read from its beginning.
#[derive(Default)]
struct Shown {
    entries_max: usize,
    ended: VecDeque<Entry>,
    /// Intents whose outcome did not come yet, and their order.
    open: HashMap<String, (u64, Entry)>,
    seen: u64,
}

impl Shown {
    fn add(&mut self, entry: Entry) {
        self.seen += 1;
        if entry.status.is_none() {
            self.open.insert(entry.id.clone(), (self.seen, entry));
            if self.open.len() > OPEN_SHOWN_MAX {
                let oldest = self.open.iter().min_by_key(|(_, (seen, _))| *seen).map(|(id, _)| id.clone());
                oldest.and_then(|id| self.open.remove(&id));
            }
            return;
        }
        self.open.remove(&entry.id);
        if self.ended.len() >= self.entries_max {
            self.ended.pop_front();
        }
        self.ended.push_back(entry);
    }

    fn newest_first(self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.ended.into_iter().rev().collect();
        let mut open: Vec<(u64, Entry)> = self.open.into_values().collect();
        open.sort_by_key(|(seen, _)| std::cmp::Reverse(*seen));
        entries.extend(open.into_iter().map(|(_, entry)| entry));
        // What is of the same moment stays in its order.
        entries.sort_by(|one, other| other.at.total_cmp(&one.at));
        entries.truncate(self.entries_max);
        entries
    }
}

/// What writes the records, on a thread of its own.
struct Writer {
    file: AuditFile,
    open: Arc<AtomicU64>,
}

impl Writer {
    /// Writes what waits, until nobody can send any more.
    fn run(mut self, mut inbox: mpsc::Receiver<Line>) {
        let mut waiting = Vec::with_capacity(LINES_MAX);
        while inbox.blocking_recv_many(&mut waiting, LINES_MAX) > 0 {
            self.write(waiting.drain(..));
        }
    }

    /// Writes records with one sync, and tells those who wait for them.
    fn write(&mut self, waiting: impl Iterator<Item = Line>) {
        let (outcomes, intents): (Vec<_>, Vec<_>) = waiting.partition(|line| line.kind == Kind::Outcome);
        // Room for outcomes was kept when their intents were written.
        let outcomes_written = self.append(&outcomes);
        let (intents, refused) = self.admit(intents);
        let intents_written = self.append(&intents);
        let synced = self.file.sync().map_err(AuditError::from);
        for (lines, written) in [(outcomes, outcomes_written), (intents, intents_written)] {
            let written = written.and_then(|()| synced.clone());
            lines.into_iter().for_each(|line| tell(line, written.clone()));
        }
        for line in refused {
            tell(line, Err(AuditError::Full));
        }
    }

    fn append(&mut self, lines: &[Line]) -> Result<(), AuditError> {
        let text: Vec<u8> = lines.iter().flat_map(|line| &line.text).copied().collect();
        if text.is_empty() { Ok(()) } else { self.file.append(&text) }
    }

    /// Those intents for which there is room, with the outcomes of all changes that are under way; and the others.
    fn admit(&mut self, intents: Vec<Line>) -> (Vec<Line>, Vec<Line>) {
        if intents.is_empty() {
            return (intents, Vec::new());
        }
        let bytes: u64 = intents.iter().map(|line| line.text.len() as u64).sum();
        let outcomes = self.open.load(Ordering::SeqCst).saturating_mul(RECORD_BYTES_MAX);
        // What cannot be found out is found out by writing.
        let room = self.file.room(bytes + outcomes).unwrap_or(Room::Enough);
        intents.into_iter().partition(|line| match line.kind {
            Kind::Intent(Space::Taken) => room >= Room::Enough,
            _ => room >= Room::Low,
        })
    }
}

fn tell(line: Line, written: Result<(), AuditError>) {
    // Whoever left does not want to know.
    _ = line.done.send(written);
}

#[cfg(test)]
mod tests;
