//! The audit log: who changed what, when, from where, and what came of it.
//!
//! Goals: a change that was acknowledged is in the log, on the disk; one line of JSON for each, so that any tool reads it; bounded
//! in bytes; no secret ever in it.
//!
//! A change is a request that a token was good for and that is no GET, HEAD or OPTIONS. It is written when its answer begins, which
//! waits for that: a thread of its own writes and syncs all lines that wait at a time. When the disk refuses, the answer goes out all the
//! same, for the change is made; the log of the process says so, and what was lost is counted.
//!
//! Non-goals: protection from the operator, who can write the file; send the lines elsewhere for that.

use super::access::{Bearer, Scope};
use super::answer::seconds;
use super::noted::{Noted, shortened};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot};
use utoipa::ToSchema;

/// The file, in the data folder.
const FILE: &str = "audit.log";
/// Where the file goes when it is full; what was there is gone.
const OLDER_FILE: &str = "audit.log.1";
/// How large a file may become.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Lines that may wait for the disk. Whoever comes then waits for room.
const LINES_MAX: usize = 256;
/// The longest path that is written, in bytes.
const PATH_BYTES_MAX: usize = 2048;

/// What a handler adds to the entry of its request: put it into the response's extensions. What is known before work begins is better
/// [`Noted`], for then it is written however that ends.
#[derive(Debug, Clone)]
pub struct Detail(pub Value);

impl Detail {
    /// What was asked for, or what became of it.
    pub fn of(what: &impl Serialize) -> Self {
        Self(serde_json::to_value(what).unwrap_or_default())
    }

    /// An answer that brings this along.
    pub fn with(self, mut answer: Response) -> Response {
        answer.extensions_mut().insert(self);
        answer
    }
}

/// A change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// When its answer began, in seconds since the Unix epoch.
    pub at: f64,
    /// The id of the token that was borne.
    pub token: String,
    /// What the operator calls the token.
    pub name: String,
    /// What the token had to be good for.
    pub scope: Scope,
    /// Where the request came from: an address and a port.
    pub from: Option<String>,
    /// The method of the request.
    pub method: String,
    /// Its path and query.
    pub path: String,
    /// The status of the answer; 499 if its sender left before there was one.
    pub status: u16,
    /// How long the answer took, in seconds.
    pub seconds: f64,
    /// What the operation says besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Value>,
}

/// What is known of a change before its outcome is.
#[derive(Debug)]
pub struct Begun {
    bearer: Bearer,
    scope: Scope,
    from: Option<SocketAddr>,
    method: String,
    path: String,
    since: SystemTime,
}

impl Begun {
    /// A change that `bearer` asks for.
    pub fn new(
        bearer: &Bearer,
        scope: Scope,
        from: Option<SocketAddr>,
        method: &http::Method,
        uri: &http::Uri,
    ) -> Self {
        let path = uri.path_and_query().map_or_else(|| uri.path(), |path| path.as_str());
        let path = path[..path.floor_char_boundary(PATH_BYTES_MAX)].to_owned();
        Self { bearer: bearer.clone(), scope, from, method: method.to_string(), path, since: SystemTime::now() }
    }

    /// What became of it.
    pub fn ended(&self, status: u16, detail: Option<Value>) -> Entry {
        let now = SystemTime::now();
        Entry {
            at: seconds(now.duration_since(UNIX_EPOCH).unwrap_or_default()),
            token: self.bearer.id.to_string(),
            name: self.bearer.name.to_string(),
            scope: self.scope,
            from: self.from.map(|from| from.to_string()),
            method: self.method.clone(),
            path: self.path.clone(),
            status,
            seconds: seconds(now.duration_since(self.since).unwrap_or_default()),
            detail: detail.map(shortened),
        }
    }
}

/// What is written for the status when nobody waited for the answer: the sender had left, and what it began may have been done.
pub const LEFT: u16 = 499;

/// A change under way. If its sender leaves before there is an answer, that is written.
#[derive(Debug)]
pub struct Change {
    begun: Option<Begun>,
    noted: Noted,
    lines: mpsc::Sender<Line>,
}

impl Change {
    /// Writes what became of it. Done when it is on the disk, or the disk has refused it.
    pub async fn end(&mut self, status: u16, detail: Option<Value>) {
        let Some(begun) = &self.begun else { return };
        let written = write(self.lines.clone(), begun.ended(status, self.noted.with(detail)));
        // Whoever leaves from here on has an answer that is written.
        let written = tokio::spawn(written);
        self.begun = None;
        _ = written.await;
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let Some(begun) = self.begun.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(write(self.lines.clone(), begun.ended(LEFT, self.noted.with(None))));
        }
    }
}

async fn write(lines: mpsc::Sender<Line>, entry: Entry) {
    let Ok(mut line) = serde_json::to_vec(&entry) else { return };
    line.push(b'\n');
    let (done, written) = oneshot::channel();
    if lines.send((line, done)).await.is_ok() {
        _ = written.await;
    }
}

type Line = (Vec<u8>, oneshot::Sender<()>);

/// The log. Dropping it ends its thread.
#[derive(Debug)]
pub struct AuditLog {
    lines: mpsc::Sender<Line>,
    dir: PathBuf,
}

impl AuditLog {
    /// Opens the log of a data folder, for more.
    ///
    /// # Errors
    /// What the system said.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let (lines, inbox) = mpsc::channel(LINES_MAX);
        let book = Book::open(data_dir)?;
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || keep(book, inbox))?;
        Ok(Self { lines, dir: data_dir.to_owned() })
    }

    /// Sees to it that a change is written, whatever becomes of it, with what is noted of it until then.
    pub fn follow(&self, begun: Begun, noted: Noted) -> Change {
        Change { begun: Some(begun), noted, lines: self.lines.clone() }
    }

    /// Writes an entry. Done when it is on the disk, or the disk has refused it.
    pub async fn write(&self, entry: &Entry) {
        write(self.lines.clone(), entry.clone()).await;
    }

    /// The last entries, the newest first. Blocks the thread.
    ///
    /// # Errors
    /// What the system said.
    pub fn last(&self, entries_max: usize) -> io::Result<Vec<Entry>> {
        let mut last = VecDeque::new();
        for file in [OLDER_FILE, FILE] {
            let file = match File::open(self.dir.join(file)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            // A line that was cut off by a power cut is none.
            for entry in BufReader::new(file).split(b'\n').filter_map(|line| serde_json::from_slice(&line.ok()?).ok()) {
                if last.len() == entries_max {
                    last.pop_front();
                }
                last.push_back(entry);
            }
        }
        Ok(last.into_iter().rev().take(entries_max).collect())
    }
}

/// The files.
struct Book {
    dir: PathBuf,
    file: File,
    bytes: u64,
}

impl Book {
    fn open(dir: &Path) -> io::Result<Self> {
        p2p_bridge::durable::create_folder(dir)?;
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.join(FILE))?;
        let bytes = file.metadata()?.len();
        Ok(Self { dir: dir.to_owned(), file, bytes })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + lines.len() as u64 > FILE_BYTES_MAX {
            fs::rename(self.dir.join(FILE), self.dir.join(OLDER_FILE))?;
            *self = Self::open(&self.dir)?;
        }
        self.file.write_all(lines)?;
        self.bytes += lines.len() as u64;
        self.file.sync_data()
    }
}

/// Writes what waits, until nobody can send any more.
fn keep(mut book: Book, mut inbox: mpsc::Receiver<Line>) {
    let mut waiting = Vec::with_capacity(LINES_MAX);
    while inbox.blocking_recv_many(&mut waiting, LINES_MAX) > 0 {
        let lines: Vec<u8> = waiting.iter().flat_map(|(line, _)| line).copied().collect();
        if let Err(error) = book.write(&lines) {
            tracing::error!(%error, lines = waiting.len(), "changes could not be written to the audit log");
        }
        // Whoever left does not want to know.
        waiting.drain(..).for_each(|(_, done)| _ = done.send(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::noted::BYTES_MAX;
    use serde_json::json;

    fn entry(path: &str) -> Entry {
        let uri = path.parse().expect("a path");
        let from = Some(([127, 0, 0, 1], 7).into());
        let begun = Begun::new(&Bearer::operator(), Scope::Operate, from, &http::Method::POST, &uri);
        begun.ended(202, Some(json!({"evicted": 3})))
    }

    #[tokio::test]
    async fn what_was_written_is_read_the_newest_first() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = AuditLog::open(dir.path()).expect("opens");
        assert_eq!(log.last(9).expect("reads"), []);
        let entries: Vec<Entry> = (0..5).map(|number| entry(&format!("/api/v1/purge?cid={number}"))).collect();
        for entry in &entries {
            log.write(entry).await;
        }
        let newest: Vec<Entry> = entries.iter().rev().cloned().collect();
        assert_eq!(log.last(3).expect("reads"), newest[..3]);
        drop(log);
        // A line that was cut off.
        let text = fs::read_to_string(dir.path().join(FILE)).expect("reads");
        fs::write(dir.path().join(FILE), &text[..text.len() - 9]).expect("writes");
        let log = AuditLog::open(dir.path()).expect("opens");
        assert_eq!(log.last(9).expect("reads"), newest[1..]);
        assert_eq!(log.last(0).expect("reads"), []);
    }

    #[tokio::test]
    async fn a_change_whose_sender_leaves_is_written_too() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = AuditLog::open(dir.path()).expect("opens");
        let uri = "/upload".parse().expect("a path");
        let begun = || Begun::new(&Bearer::operator(), Scope::Pin, None, &http::Method::POST, &uri);
        log.follow(begun(), Noted::default()).end(200, None).await;
        let noted = Noted::default();
        let change = log.follow(begun(), noted.clone());
        noted.note(&json!({"name": "site"}));
        drop(change);
        let told = |entry: Entry| (entry.status, entry.detail);
        let both = || log.last(9).expect("reads").into_iter().map(told).collect::<Vec<_>>();
        while both().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(both(), [(LEFT, Some(json!({"name": "site"}))), (200, None)]);
    }

    #[tokio::test]
    async fn many_lines_are_written_at_a_time() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = AuditLog::open(dir.path()).expect("opens");
        let entries: Vec<Entry> = (0..2 * LINES_MAX).map(|number| entry(&format!("/{number}"))).collect();
        futures::future::join_all(entries.iter().map(|entry| log.write(entry))).await;
        let mut kept: Vec<String> = log.last(usize::MAX).expect("reads").into_iter().map(|entry| entry.path).collect();
        kept.sort_unstable();
        let mut sent: Vec<String> = entries.into_iter().map(|entry| entry.path).collect();
        sent.sort_unstable();
        assert_eq!(kept, sent);
    }

    #[test]
    fn a_full_file_makes_room_for_another() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut book = Book::open(dir.path()).expect("opens");
        book.bytes = FILE_BYTES_MAX - 4;
        book.write(b"one\n").expect("fits");
        book.write(b"two\n").expect("into a new one");
        let read = |file: &str| fs::read_to_string(dir.path().join(file)).expect("reads");
        assert_eq!((read(OLDER_FILE), read(FILE)), ("one\n".to_owned(), "two\n".to_owned()));
    }

    #[test]
    fn what_is_too_long_is_cut() {
        let long = entry(&format!("/{}", "a".repeat(9000)));
        assert_eq!(long.path.len(), PATH_BYTES_MAX);
        let begun =
            Begun::new(&Bearer::operator(), Scope::Pin, None, &http::Method::PUT, &"/".parse().expect("a path"));
        let detail =
            begun.ended(200, Some(json!({"cid": "x", "words": "a".repeat(BYTES_MAX)}))).detail.expect("is there");
        assert!(detail["cid"] == json!("x") && detail.to_string().len() <= BYTES_MAX, "{detail}");
    }
}
