//! Lists that are fetched over HTTP, and kept on the disk for when their source fails.
//!
//! What is asked is whether the list is still the same (`If-None-Match`, `If-Modified-Since`) and for what came since
//! (`Range`, from a little before where it ended). What overlaps has to agree, or else the whole list is fetched; once a day it is
//! anyway, since a line in its middle may have changed. A list is appended to where it is kept, or replaced by a move, so
//! that what is kept is a list at any moment, and the next request goes on from what is really there.
//!
//! Goals: no more bytes than a list may have, however many are sent; an error page is no list; who serves a list cannot
//! have this machine ask others of its private network, or learn what they answered.
//!
//! The operator's own address may be anywhere. Where its answer redirects to may not: from a public address to public
//! ones only, by name and by what the name stands for, and never from HTTPS to HTTP. From an address of the private
//! network a redirect may stay in it. No message repeats what was sent.
//!
//! Non-goals: lists that are packed; users and passwords other than in the address.

use crate::denylists::reader::{ReadError, Reader};
use futures::StreamExt as _;
use http::StatusCode;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LAST_MODIFIED, LOCATION, RANGE,
};
use p2p_bridge::http_source::address::check_as_strangers;
use p2p_bridge::http_source::dialling;
use p2p_bridge::scope::is_public;
use p2p_bridge::{durable, epoch};
use reqwest::{Client, Response, Url};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::IpAddr;
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
/// Redirects that are followed.
const REDIRECTS_MAX: usize = 5;

/// A list at an address.
#[derive(Debug)]
pub struct Subscription {
    url: String,
    /// Reaches what the operator named.
    client: Client,
    /// Reaches public addresses alone.
    public: Client,
    /// What is a public address; tests have no other than private ones.
    is_public: fn(IpAddr) -> bool,
    file: PathBuf,
    bytes_max: u64,
    /// Bytes that came so far of what is being fetched.
    pub progress: AtomicU64,
    /// One fetch at a time: the list's own, and one that SIGHUP asks for.
    fetching: tokio::sync::Mutex<()>,
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
    #[error("the source sent it compressed, which was not asked for")]
    Packed,
    /// It leads from one place to another and never ends.
    #[error("the source redirected more than {REDIRECTS_MAX} times")]
    Redirects,
    /// It leads where it may not.
    #[error("the source redirected to a place that is not asked: {0}")]
    Redirect(&'static str),
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
        let builder = |private_too| dialling::builder(private_too).connect_timeout(CONNECT).read_timeout(SILENCE);
        // A system without any certificates can still ask by http://.
        let client =
            |private_too| builder(private_too).build().or_else(|_| builder(private_too).tls_certs_only([]).build());
        let (url, progress) = (url.to_owned(), AtomicU64::new(0));
        Ok(Self {
            url,
            client: client(true)?,
            public: client(false)?,
            is_public,
            file,
            bytes_max,
            progress,
            fetching: tokio::sync::Mutex::default(),
        })
    }

    /// Fetches what is new. What is kept is a list at any moment.
    ///
    /// # Errors
    /// [`FetchError`]; what is kept is what was, or more of it.
    pub async fn fetch(&self) -> Result<Fetched, FetchError> {
        // Two who write the same file at a time would mix what they write.
        let _alone = self.fetching.lock().await;
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
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // What was a header value once is one again.
        let mut add = |name: HeaderName, text: &str| text.parse().map(|value| headers.insert(name, value)).ok();
        if let Some(from) = from {
            add(RANGE, &format!("bytes={from}-"));
        }
        if let Some(etag) = &note.etag {
            add(IF_NONE_MATCH, etag);
        } else if let Some(date) = &note.last_modified {
            add(IF_MODIFIED_SINCE, date);
        }
        let response = self.send(&headers).await?;
        match response.headers().get(CONTENT_ENCODING) {
            Some(packed) if packed != "identity" => Err(FetchError::Packed),
            _ => Ok(response),
        }
    }

    /// Sends a request, and again to where it is redirected.
    async fn send(&self, headers: &HeaderMap) -> Result<Response, FetchError> {
        let own = Url::parse(&self.url).map_err(|_| FetchError::Redirect("it is no URL"))?;
        let (mut client, mut url) = (&self.client, own.clone());
        for _ in 0..=REDIRECTS_MAX {
            let response = client.get(url.clone()).headers(headers.clone()).send().await?;
            let Some(next) = redirected(&response, &url)? else { return Ok(response) };
            let from_public = response.remote_addr().is_none_or(|address| (self.is_public)(address.ip()));
            let is_own = next.origin() == own.origin();
            client = if is_own || !from_public { &self.client } else { &self.public };
            if !is_own && from_public {
                check_as_strangers(&next).map_err(|_| FetchError::Redirect("it is in a private network"))?;
            }
            url = next;
        }
        Err(FetchError::Redirects)
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

/// Where an answer redirects to (RFC 9110, section 15.4), if it does.
fn redirected(response: &Response, from: &Url) -> Result<Option<Url>, FetchError> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|_| is_redirect) else { return Ok(None) };
    let location = location.to_str().ok().and_then(|text| from.join(text).ok());
    let mut next = location.ok_or(FetchError::Redirect("it is no URL"))?;
    match (from.scheme(), next.scheme()) {
        (_, "https") | ("http", "http") => {}
        ("https", "http") => return Err(FetchError::Redirect("it is not encrypted any more")),
        _ => return Err(FetchError::Redirect("it is neither http nor https")),
    }
    // A password is for whom the operator gave it, and nobody else names one.
    let (user, password) = if next.origin() == from.origin() { (from.username(), from.password()) } else { ("", None) };
    let named = next.set_username(user).and_then(|()| next.set_password(password));
    named.map_err(|()| FetchError::Redirect("it is no URL"))?;
    Ok(Some(next))
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::extract::Request;
    use http::header::AUTHORIZATION;
    use std::net::SocketAddr;
    use std::sync::{Arc, Mutex};

    const LIST: &str = "---\n/ipfs/bafkqac3imvwgy3zao5xxe3de\n";

    /// A server that redirects paths as told, and sends a list at "/list"; what it was asked, with or without
    /// credentials.
    async fn serve(redirects: Vec<(&'static str, String)>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&asked);
        let handler = move |request: Request| {
            let path = request.uri().path().to_owned();
            let by = if request.headers().contains_key(AUTHORIZATION) { "with a password" } else { "without" };
            noted.lock().expect("is sound").push(format!("{path} {by}"));
            let to = redirects.iter().find(|(from, _)| *from == path).map(|(_, to)| to.clone());
            async move {
                let answer = http::Response::builder();
                let answer = match &to {
                    Some(to) => answer.status(302).header(LOCATION, to),
                    None => answer.status(if path == "/list" { 200 } else { 404 }),
                };
                answer.body(axum::body::Body::from(LIST)).expect("a response")
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("is bound");
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await });
        (address, asked)
    }

    fn subscription(url: &str, dir: &Path, is_public: fn(IpAddr) -> bool) -> Subscription {
        let subscription = Subscription::new(url, dir.join("list.deny"), 1 << 20).expect("a client");
        Subscription { is_public, ..subscription }
    }

    #[tokio::test]
    async fn redirects_lead_to_public_addresses_only() {
        let (secret, asked) = serve(Vec::new()).await;
        let elsewhere = [
            format!("http://{secret}/list"),
            format!("http://localhost:{}/list", secret.port()),
            format!("http://[::ffff:127.0.0.1]:{}/list", secret.port()),
            "ftp://127.0.0.1/list".to_owned(),
            "http://".to_owned(),
        ];
        for to in elsewhere {
            let dir = tempfile::tempdir().expect("a folder");
            let (public, _) = serve(vec![("/start", to.clone())]).await;
            let fetched = subscription(&format!("http://{public}/start"), dir.path(), |_| true).fetch().await;
            let error = fetched.expect_err(&to).to_string();
            assert!(!error.contains("bafk") && !dir.path().join("list.deny").exists(), "{to}: {error}");
        }
        assert!(asked.lock().expect("is sound").is_empty(), "nobody was asked in the private network");
    }

    #[tokio::test]
    async fn redirects_may_stay_where_the_operator_sent_us() {
        // From an address of the private network to another one there; and at the same server, whatever it is.
        let (other, others) = serve(Vec::new()).await;
        let (own, owns) = serve(vec![("/start", format!("http://{other}/list")), ("/here", "/list".to_owned())]).await;
        type IsPublic = fn(IpAddr) -> bool;
        let table: [(&str, IsPublic); 2] = [("start", |_| false), ("here", |_| true)];
        for (path, is_public) in table {
            let dir = tempfile::tempdir().expect("a folder");
            let url = format!("http://user:password@{own}/{path}");
            let fetched = subscription(&url, dir.path(), is_public).fetch().await;
            assert_eq!(fetched.expect(path), Fetched::Whole(LIST.len() as u64));
        }
        let told = |asked: &Mutex<Vec<String>>| asked.lock().expect("is sound").clone();
        assert_eq!(told(&others), ["/list without"]);
        assert_eq!(told(&owns), ["/start with a password", "/here with a password", "/list with a password"]);
    }

    #[tokio::test]
    async fn a_circle_of_redirects_ends() {
        let dir = tempfile::tempdir().expect("a folder");
        let (own, asked) = serve(vec![("/a", "/b".to_owned()), ("/b", "/a".to_owned())]).await;
        let error = subscription(&format!("http://{own}/a"), dir.path(), |_| false).fetch().await.expect_err("no list");
        assert!(matches!(error, FetchError::Redirects), "{error}");
        assert_eq!(asked.lock().expect("is sound").len(), 1 + REDIRECTS_MAX);
    }
}
