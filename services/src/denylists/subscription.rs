//! Subscriptions: lists that are fetched over HTTP, and stored on the disk in case their source fails.
//!
//! A fetch is conditional (`If-None-Match`, `If-Modified-Since`) and requests only what was appended (`Range`, from a
//! little before the former end). If the overlap differs, the whole list is fetched; also once a day, because a line in
//! its middle may have changed. The file is appended to or replaced atomically, so that it is a valid list at any time,
//! and the next request continues from its real end.
//!
//! Goals: at most `policy.list_bytes_max` are stored; an error page is not taken for a list; the server of a list
//! cannot use this node to reach its private network (SSRF).
//!
//! The URL in the settings may be anywhere. Redirects from a public address are followed to public addresses only,
//! checked for the host and for the addresses it resolves to, and never from HTTPS to HTTP. Redirects from a private
//! address may stay in the private network. No error message repeats the response.
//!
//! Non-goals: compressed lists; credentials other than in the URL.

use crate::denylists::reader::{ReadError, Reader};
use futures::StreamExt as _;
use http::StatusCode;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LAST_MODIFIED, LOCATION, RANGE,
};
use p2p_bridge::errors::innermost;
use p2p_bridge::http_source::address::check_as_untrusted;
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

/// How many bytes are fetched again to detect changes.
const OVERLAP_BYTES: u64 = 4 * 1024;
/// The timeouts of connecting, of receiving nothing, and of the whole fetch.
const CONNECT: Duration = Duration::from_secs(10);
const READ: Duration = Duration::from_secs(30);
const TOTAL: Duration = Duration::from_secs(15 * 60);
/// The interval at which the whole list is fetched, in seconds.
const WHOLE_EVERY_SECONDS: u64 = 24 * 3600;
/// The maximum size of the metadata file of a list, in bytes.
const METADATA_BYTES_MAX: usize = 64 * 1024;
/// The maximum length of an entity tag or date, in bytes.
const VALIDATOR_BYTES_MAX: usize = 1024;
/// The maximum number of redirects that are followed.
const REDIRECTS_MAX: usize = 5;

/// A list that is fetched from a URL.
#[derive(Debug)]
pub struct Subscription {
    url: String,
    /// Connects to any address, for the URL in the settings.
    client: Client,
    /// Connects to public addresses only.
    public: Client,
    /// Whether an address is public; replaced in tests, which have private addresses only.
    is_public: fn(IpAddr) -> bool,
    file: PathBuf,
    bytes_max: u64,
    /// The number of bytes that the fetch in progress has received.
    pub progress: AtomicU64,
    /// Serialises fetches: those of the update task, and those after SIGHUP.
    fetching: tokio::sync::Mutex<()>,
}

/// The metadata of a fetched list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Metadata {
    url: String,
    etag: Option<String>,
    last_modified: Option<String>,
    /// When the whole list was last fetched, in seconds since the Unix epoch.
    whole_at: u64,
}

/// The result of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// The list has not changed.
    Same,
    /// So many bytes were appended.
    Appended(u64),
    /// The whole list was fetched, with so many bytes.
    Whole(u64),
}

/// Why fetching a list failed. The stored list is kept.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The request failed.
    #[error("{0}")]
    Http(String),
    /// The response has an error status.
    #[error("the source answered {0}")]
    Status(StatusCode),
    /// The response is compressed, which was not requested.
    #[error("the source sent a compressed response, which was not requested")]
    Compressed,
    /// Too many redirects.
    #[error("the source redirected more than {REDIRECTS_MAX} times")]
    Redirects,
    /// A redirect that is not followed.
    #[error("the source redirected to a URL that is not allowed: {0}")]
    Redirect(&'static str),
    /// The list exceeds the maximum size.
    #[error("the list has more than {0} bytes (policy.list_bytes_max)")]
    TooLong(u64),
    /// The fetch timed out.
    #[error("fetching the list took longer than {} minutes", TOTAL.as_secs() / 60)]
    TooSlow,
    /// The response is not a list.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Storing the list failed.
    #[error("storing the list failed: {0}")]
    Io(#[from] io::Error),
}

impl From<reqwest::Error> for FetchError {
    fn from(error: reqwest::Error) -> Self {
        // The URL is in the settings, and may have a password.
        let error = error.without_url();
        Self::Http(format!("{error}: {}", innermost(&error)))
    }
}

impl Subscription {
    /// The list at `url`, which is stored in `file`.
    ///
    /// # Errors
    /// When the HTTP client cannot be created.
    pub fn new(url: &str, file: PathBuf, bytes_max: u64) -> Result<Self, FetchError> {
        let builder = |private_too| dialling::builder(private_too).connect_timeout(CONNECT).read_timeout(READ);
        // A system without certificates can still use http://.
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

    /// Fetches what is new. The file is a valid list at any time.
    ///
    /// # Errors
    /// [`FetchError`]; the file is unchanged, or has more of the list.
    pub async fn fetch(&self) -> Result<Fetched, FetchError> {
        // Concurrent fetches would mix their writes to the file.
        let _fetching = self.fetching.lock().await;
        self.progress.store(0, Ordering::Relaxed);
        let fetched = tokio::time::timeout(TOTAL, self.fetch_without_timeout()).await;
        self.progress.store(0, Ordering::Relaxed);
        fetched.unwrap_or(Err(FetchError::TooSlow))
    }

    async fn fetch_without_timeout(&self) -> Result<Fetched, FetchError> {
        let (metadata, stored_bytes) = self.stored();
        let is_due = epoch::now().saturating_sub(metadata.whole_at) >= WHOLE_EVERY_SECONDS;
        if stored_bytes > 0 && !is_due {
            let overlap = stored_bytes.min(OVERLAP_BYTES);
            let from = stored_bytes - overlap;
            let response = self.request(&metadata, Some(from)).await?;
            match response.status() {
                StatusCode::NOT_MODIFIED => return Ok(Fetched::Same),
                StatusCode::PARTIAL_CONTENT if begins_at(response.headers(), from) => {
                    if let Some(appended) = self.append(response, overlap, metadata.clone()).await? {
                        return Ok(appended);
                    }
                }
                StatusCode::OK => return self.replace(response).await,
                // The list has become shorter, or the source does not support ranges.
                StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {}
                status => return Err(FetchError::Status(status)),
            }
            // The list was replaced: its validators do not apply.
            return self.fetch_whole(&Metadata::default()).await;
        }
        self.fetch_whole(&metadata).await
    }

    async fn fetch_whole(&self, metadata: &Metadata) -> Result<Fetched, FetchError> {
        let response = self.request(metadata, None).await?;
        match response.status() {
            StatusCode::OK => self.replace(response).await,
            StatusCode::NOT_MODIFIED => {
                self.write_metadata(&Metadata { whole_at: epoch::now(), ..metadata.clone() }).await?;
                Ok(Fetched::Same)
            }
            status => Err(FetchError::Status(status)),
        }
    }

    async fn request(&self, metadata: &Metadata, from: Option<u64>) -> Result<Response, FetchError> {
        // A compressed response could not be continued by range, and is not decompressed here.
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // The values were header values when they were received.
        let mut add = |name: HeaderName, text: &str| text.parse().map(|value| headers.insert(name, value)).ok();
        if let Some(from) = from {
            add(RANGE, &format!("bytes={from}-"));
        }
        if let Some(etag) = &metadata.etag {
            add(IF_NONE_MATCH, etag);
        } else if let Some(date) = &metadata.last_modified {
            add(IF_MODIFIED_SINCE, date);
        }
        let response = self.send(&headers).await?;
        match response.headers().get(CONTENT_ENCODING) {
            Some(encoding) if encoding != "identity" => Err(FetchError::Compressed),
            _ => Ok(response),
        }
    }

    /// Sends a request, and follows redirects.
    async fn send(&self, headers: &HeaderMap) -> Result<Response, FetchError> {
        let own = Url::parse(&self.url).map_err(|_| FetchError::Redirect("the URL is invalid"))?;
        let (mut client, mut url) = (&self.client, own.clone());
        for _ in 0..=REDIRECTS_MAX {
            let response = client.get(url.clone()).headers(headers.clone()).send().await?;
            let Some(next) = redirected(&response, &url)? else { return Ok(response) };
            let from_public = response.remote_addr().is_none_or(|address| (self.is_public)(address.ip()));
            let is_own = next.origin() == own.origin();
            client = if is_own || !from_public { &self.client } else { &self.public };
            if !is_own && from_public {
                check_as_untrusted(&next).map_err(|_| FetchError::Redirect("it is in a private network"))?;
            }
            url = next;
        }
        Err(FetchError::Redirects)
    }

    /// Appends a partial response to the file; `None` if the overlap differs.
    async fn append(
        &self,
        response: Response,
        overlap: u64,
        metadata: Metadata,
    ) -> Result<Option<Fetched>, FetchError> {
        let metadata = Metadata { whole_at: metadata.whole_at, ..self.metadata_of(response.headers()) };
        let (path, bytes) = (self.file.clone(), usize::try_from(overlap).unwrap_or_default());
        let (mut file, expected) = blocking(move || open_at_end(&path, bytes)).await?;
        let stored_bytes = file.metadata()?.len();
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
            if stored_bytes + appended > self.bytes_max {
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
            self.write_metadata(&metadata).await?;
            return Ok(Some(Fetched::Same));
        }
        blocking(move || file.sync_all()).await?;
        self.write_metadata(&metadata).await?;
        Ok(Some(Fetched::Appended(appended)))
    }

    /// Replaces the file by a response, once it is complete and a valid list.
    async fn replace(&self, response: Response) -> Result<Fetched, FetchError> {
        let metadata = self.metadata_of(response.headers());
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
            Reader::default().read_if_changed(&partial, max)?;
            durable::rename(&partial, &path)?;
            Ok::<_, FetchError>(())
        });
        checked.await.map_err(io::Error::other)??;
        self.write_metadata(&metadata).await?;
        Ok(Fetched::Whole(bytes))
    }

    /// The metadata and the size of the stored list.
    fn stored(&self) -> (Metadata, u64) {
        let bytes = std::fs::metadata(&self.file).map_or(0, |file| file.len());
        let metadata = durable::read(&self.metadata_path(), METADATA_BYTES_MAX).ok();
        let metadata = metadata.and_then(|text| serde_json::from_slice::<Metadata>(&text).ok());
        // A file of another URL with the same name does not count.
        match metadata.filter(|metadata| metadata.url == self.url && bytes > 0) {
            Some(metadata) => (metadata, bytes),
            None => (Metadata::default(), 0),
        }
    }

    fn metadata_of(&self, headers: &HeaderMap) -> Metadata {
        let text = |name: HeaderName| {
            let value = headers.get(name)?.to_str().ok()?;
            (value.len() <= VALIDATOR_BYTES_MAX).then(|| value.to_owned())
        };
        Metadata { url: self.url.clone(), etag: text(ETAG), last_modified: text(LAST_MODIFIED), whole_at: epoch::now() }
    }

    async fn write_metadata(&self, metadata: &Metadata) -> Result<(), FetchError> {
        let (path, text) = (self.metadata_path(), serde_json::to_vec(metadata).unwrap_or_default());
        blocking(move || durable::write(&path, &text)).await?;
        Ok(())
    }

    fn metadata_path(&self) -> PathBuf {
        self.file.with_extension("json")
    }
}

/// The target of a redirect (RFC 9110, section 15.4).
fn redirected(response: &Response, from: &Url) -> Result<Option<Url>, FetchError> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|_| is_redirect) else { return Ok(None) };
    let location = location.to_str().ok().and_then(|text| from.join(text).ok());
    let mut next = location.ok_or(FetchError::Redirect("its URL is invalid"))?;
    match (from.scheme(), next.scheme()) {
        (_, "https") | ("http", "http") => {}
        ("https", "http") => return Err(FetchError::Redirect("it is not encrypted")),
        _ => return Err(FetchError::Redirect("it is neither http nor https")),
    }
    // Credentials are sent only to the origin that they were configured for.
    let (user, password) = if next.origin() == from.origin() { (from.username(), from.password()) } else { ("", None) };
    let named = next.set_username(user).and_then(|()| next.set_password(password));
    named.map_err(|()| FetchError::Redirect("its URL is invalid"))?;
    Ok(Some(next))
}

/// Opens a file for appending, and reads its last bytes.
fn open_at_end(path: &Path, bytes: usize) -> io::Result<(File, Vec<u8>)> {
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    let mut last = vec![0; bytes];
    file.seek(SeekFrom::End(-i64::try_from(bytes).unwrap_or_default()))?;
    file.read_exact(&mut last)?;
    Ok((file, last))
}

/// Whether a partial response begins at the requested offset.
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

    /// A server that sends these redirects, and a list at "/list". Records the requests and whether they had
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
        assert!(asked.lock().expect("is sound").is_empty(), "the private network received no request");
    }

    #[tokio::test]
    async fn redirects_may_stay_in_the_operators_private_network() {
        // From one private address to another; and on the same server in any case.
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
    async fn redirect_loops_end() {
        let dir = tempfile::tempdir().expect("a folder");
        let (own, asked) = serve(vec![("/a", "/b".to_owned()), ("/b", "/a".to_owned())]).await;
        let error = subscription(&format!("http://{own}/a"), dir.path(), |_| false).fetch().await.expect_err("no list");
        assert!(matches!(error, FetchError::Redirects), "{error}");
        assert_eq!(asked.lock().expect("is sound").len(), 1 + REDIRECTS_MAX);
    }
}
