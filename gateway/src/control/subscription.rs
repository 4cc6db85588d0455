//! Lists that are fetched over HTTP, and kept on the disk for when their source fails.
//!
//! What is asked is whether the list is still the same (`If-None-Match`, `If-Modified-Since`) and for what came since
//! (`Range`, from a little before where it ended). What overlaps has to agree, or else the whole list is fetched; once a day it is
//! anyway, since a line in its middle may have changed. A list is appended to where it is kept, or replaced by a move, so
//! that what is kept is a list at any moment, and the next request goes on from what is really there.
//!
//! Goals: no more bytes than a list may have, however many are sent; an error page is no list.
//!
//! Non-goals: lists that are packed; users and passwords other than in the address.

use super::reader::{ReadError, Reader};
use futures::StreamExt as _;
use http::StatusCode;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    LAST_MODIFIED, RANGE,
};
use p2p_bridge::{durable, epoch, tls};
use reqwest::Response;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How much is fetched again to see that it is the same, in bytes.
const OVERLAP_BYTES: u64 = 4 * 1024;
/// How long a connection may take, how long a source may be silent, and how long all of it may take.
const CONNECT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(30);
const IN_ALL: Duration = Duration::from_secs(15 * 60);
/// How often the whole list is fetched, in seconds.
const WHOLE_EVERY_SECONDS: u64 = 24 * 3600;
/// What is known of a list besides its text may have so many bytes.
const NOTE_BYTES_MAX: usize = 64 * 1024;
/// What an entity tag or a date may have, in bytes.
const VALIDATOR_BYTES_MAX: usize = 1024;

/// A list at an address.
#[derive(Debug)]
pub struct Subscription {
    url: String,
    client: reqwest::Client,
    file: PathBuf,
    bytes_max: u64,
    /// Bytes that came so far of what is being fetched.
    pub progress: AtomicU64,
}

/// What is known of a list that was fetched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    url: String,
    etag: Option<String>,
    last_modified: Option<String>,
    /// When all of it was fetched last, in seconds since 1970.
    whole_at: u64,
}

/// What a fetch ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// It is the same.
    Same,
    /// So many bytes came at its end.
    Appended(u64),
    /// All of it came.
    Whole(u64),
}

/// Why a list was not fetched. What was known of it stays.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// It was not to be had.
    #[error("{0}")]
    Http(String),
    /// The answer is none.
    #[error("the source answered {0}")]
    Status(StatusCode),
    /// It is packed, which was not asked for.
    #[error("the source sent it packed as {0}, which was not asked for")]
    Packed(String),
    /// It is longer than a list may be.
    #[error("it has more than {0} bytes (policy.list_bytes_max)")]
    TooLong(u64),
    /// It took too long.
    #[error("it did not come within {} minutes", IN_ALL.as_secs() / 60)]
    TooSlow,
    /// It cannot be understood.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It cannot be kept.
    #[error("it cannot be kept: {0}")]
    Io(#[from] io::Error),
}

impl From<reqwest::Error> for FetchError {
    fn from(error: reqwest::Error) -> Self {
        // Its address is in the settings, and may hold a password.
        let error = error.without_url();
        let mut cause: &dyn std::error::Error = &error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        Self::Http(format!("{error}: {cause}"))
    }
}

impl Subscription {
    /// The list at `url`, which is kept in `file`.
    ///
    /// # Errors
    /// When there is no speaking HTTP.
    pub fn new(url: &str, file: PathBuf, bytes_max: u64) -> Result<Self, FetchError> {
        tls::use_ring();
        let builder = || {
            reqwest::Client::builder()
                .user_agent(concat!("causeway/", env!("CARGO_PKG_VERSION")))
                .redirect(reqwest::redirect::Policy::limited(5))
                .connect_timeout(CONNECT)
                .read_timeout(SILENCE)
                .no_proxy()
        };
        // A system without any certificates can still ask by http://.
        let client = builder().build().or_else(|_| builder().tls_certs_only([]).build())?;
        Ok(Self { url: url.to_owned(), client, file, bytes_max, progress: AtomicU64::new(0) })
    }

    /// Fetches what is new. What is kept is a list at any moment.
    ///
    /// # Errors
    /// [`FetchError`]; what is kept is what was, or more of it.
    pub async fn fetch(&self) -> Result<Fetched, FetchError> {
        self.progress.store(0, Ordering::Relaxed);
        let fetched = tokio::time::timeout(IN_ALL, self.fetch_unhurried()).await;
        self.progress.store(0, Ordering::Relaxed);
        fetched.unwrap_or(Err(FetchError::TooSlow))
    }

    async fn fetch_unhurried(&self) -> Result<Fetched, FetchError> {
        let (note, kept_bytes) = self.kept();
        let is_due = epoch::now().saturating_sub(note.whole_at) >= WHOLE_EVERY_SECONDS;
        if kept_bytes > 0 && !is_due {
            let overlap = kept_bytes.min(OVERLAP_BYTES);
            let from = kept_bytes - overlap;
            let response = self.ask(&note, Some(from)).await?;
            match response.status() {
                StatusCode::NOT_MODIFIED => return Ok(Fetched::Same),
                StatusCode::PARTIAL_CONTENT if begins_at(response.headers(), from) => {
                    if let Some(appended) = self.append(response, overlap, note.clone()).await? {
                        return Ok(appended);
                    }
                }
                StatusCode::OK => return self.replace(response).await,
                // The list has become shorter, or the source cannot do this.
                StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {}
                status => return Err(FetchError::Status(status)),
            }
            // It is another list now: nothing that is known of the former helps.
            return self.whole(&Note::default()).await;
        }
        self.whole(&note).await
    }

    async fn whole(&self, note: &Note) -> Result<Fetched, FetchError> {
        let response = self.ask(note, None).await?;
        match response.status() {
            StatusCode::OK => self.replace(response).await,
            StatusCode::NOT_MODIFIED => {
                self.note(&Note { whole_at: epoch::now(), ..note.clone() }).await?;
                Ok(Fetched::Same)
            }
            status => Err(FetchError::Status(status)),
        }
    }

    async fn ask(&self, note: &Note, from: Option<u64>) -> Result<Response, FetchError> {
        // A packed answer could not be gone on with, and nothing here unpacks any.
        let mut request = self.client.get(&self.url).header(ACCEPT_ENCODING, "identity");
        if let Some(from) = from {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        if let Some(etag) = &note.etag {
            request = request.header(IF_NONE_MATCH, etag);
        } else if let Some(date) = &note.last_modified {
            request = request.header(IF_MODIFIED_SINCE, date);
        }
        let response = request.send().await?;
        match response.headers().get(CONTENT_ENCODING).map(|value| String::from_utf8_lossy(value.as_bytes())) {
            Some(packed) if packed != "identity" => Err(FetchError::Packed(packed.into_owned())),
            _ => Ok(response),
        }
    }

    /// Adds what came to what is kept; `None` if the list was something else before.
    async fn append(&self, response: Response, overlap: u64, note: Note) -> Result<Option<Fetched>, FetchError> {
        let note = Note { whole_at: note.whole_at, ..self.note_of(response.headers()) };
        let (path, bytes) = (self.file.clone(), usize::try_from(overlap).unwrap_or_default());
        let (mut file, expected) = blocking(move || open_at_end(&path, bytes)).await?;
        let kept_bytes = file.metadata()?.len();
        let (mut seen, mut appended) = (0, 0_u64);
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk?;
            let repeated = chunk.len().min(expected.len() - seen);
            if chunk[..repeated] != expected[seen..seen + repeated] {
                return Ok(None);
            }
            seen += repeated;
            let fresh = chunk.slice(repeated..);
            appended += fresh.len() as u64;
            self.progress.store(appended, Ordering::Relaxed);
            if kept_bytes + appended > self.bytes_max {
                return Err(FetchError::TooLong(self.bytes_max));
            }
            file = blocking(move || {
                file.write_all(&fresh)?;
                Ok(file)
            })
            .await?;
        }
        if seen < expected.len() {
            return Ok(None);
        }
        if appended == 0 {
            self.note(&note).await?;
            return Ok(Some(Fetched::Same));
        }
        blocking(move || file.sync_all()).await?;
        self.note(&note).await?;
        Ok(Some(Fetched::Appended(appended)))
    }

    /// Puts what comes in the place of what is kept, once all of it is there and is a list.
    async fn replace(&self, response: Response) -> Result<Fetched, FetchError> {
        let note = self.note_of(response.headers());
        let partial = self.file.with_extension("fetching");
        let path = partial.clone();
        let mut file =
            blocking(move || OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path))
                .await?;
        let mut bytes = 0;
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk?;
            bytes += chunk.len() as u64;
            self.progress.store(bytes, Ordering::Relaxed);
            if bytes > self.bytes_max {
                return Err(FetchError::TooLong(self.bytes_max));
            }
            file = blocking(move || {
                file.write_all(&chunk)?;
                Ok(file)
            })
            .await?;
        }
        let (path, max) = (self.file.clone(), self.bytes_max);
        let checked = tokio::task::spawn_blocking(move || {
            file.sync_all()?;
            drop(file);
            Reader::default().look(&partial, max)?;
            durable::rename(&partial, &path)?;
            Ok::<_, FetchError>(())
        });
        checked.await.map_err(io::Error::other)??;
        self.note(&note).await?;
        Ok(Fetched::Whole(bytes))
    }

    /// What is kept: what is known of it, and its bytes.
    fn kept(&self) -> (Note, u64) {
        let bytes = std::fs::metadata(&self.file).map_or(0, |file| file.len());
        let note = durable::read(&self.note_path(), NOTE_BYTES_MAX).ok();
        let note = note.and_then(|text| serde_json::from_slice::<Note>(&text).ok());
        // A file that was named alike for another address is none of this one's.
        match note.filter(|note| note.url == self.url && bytes > 0) {
            Some(note) => (note, bytes),
            None => (Note::default(), 0),
        }
    }

    fn note_of(&self, headers: &HeaderMap) -> Note {
        let text = |name: HeaderName| {
            let value = headers.get(name)?.to_str().ok()?;
            (value.len() <= VALIDATOR_BYTES_MAX).then(|| value.to_owned())
        };
        Note { url: self.url.clone(), etag: text(ETAG), last_modified: text(LAST_MODIFIED), whole_at: epoch::now() }
    }

    async fn note(&self, note: &Note) -> Result<(), FetchError> {
        let (path, text) = (self.note_path(), serde_json::to_vec(note).unwrap_or_default());
        blocking(move || durable::write(&path, &text)).await?;
        Ok(())
    }

    fn note_path(&self) -> PathBuf {
        self.file.with_extension("json")
    }
}

/// A file to be appended to, and the last of what it has.
fn open_at_end(path: &Path, bytes: usize) -> io::Result<(File, Vec<u8>)> {
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    let mut last = vec![0; bytes];
    file.seek(SeekFrom::End(-i64::try_from(bytes).unwrap_or_default()))?;
    file.read_exact(&mut last)?;
    Ok((file, last))
}

/// Whether the part of an answer begins where it was asked for.
fn begins_at(headers: &HeaderMap, from: u64) -> bool {
    let range = headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let first = range.and_then(|range| range.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok());
    first == Some(from)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
