//! [`Router`]: one server of the Delegated Routing V1 HTTP API, asked (<https://specs.ipfs.tech/routing/http-routing-v1/>).
//!
//! Goals: records are handed on as they come; whatever the server sends, bytes, records and time are bounded; errors say what
//! to do about them. Redirects are not followed: the operator gave an address, and means that one.
//!
//! Non-goals: whether the router is worth asking ([`super::Routers`] keeps count), and whether what it says is true.

use super::filters::Filters;
use super::ndjson::{self, Lines};
use super::types::{self, FormatError, PeerRecord};
use crate::retry_after::retry_after;
use crate::tls;
use bytes::{Bytes, BytesMut};
use content::Cid;
use content::ipns::RECORD_BYTES_MAX;
use content::names::Key;
use libp2p::PeerId;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Response, StatusCode, Url};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// The media type of answers that come record by record.
pub const NDJSON: &str = "application/x-ndjson";
/// The media type of answers that come as a whole.
pub const JSON: &str = "application/json";
/// The media type of IPNS records.
pub const IPNS_RECORD: &str = "application/vnd.ipfs.ipns-record";

const EITHER: HeaderValue = HeaderValue::from_static("application/x-ndjson, application/json;q=0.5");

/// What one answer may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long it may take to be connected.
    pub connect: Duration,
    /// How long a request may take, from its beginning to its end.
    pub request: Duration,
    /// Bytes of an answer.
    pub bytes_max: usize,
    /// Bytes of one record.
    pub line_bytes_max: usize,
    /// Records taken from one answer.
    pub records_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
            request: Duration::from_secs(30),
            bytes_max: 1024 * 1024,
            line_bytes_max: 64 * 1024,
            records_max: 256,
        }
    }
}

/// What a router can be asked for that is answered with peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Who has the block of a CID.
    Providers(Cid),
    /// Where a peer is.
    Peer(PeerId),
    /// Which servers of the DHT are closest to a key (IPIP-476).
    Closest(Cid),
}

impl Question {
    /// What its endpoint is called in metrics.
    pub fn endpoint(&self) -> &'static str {
        match self {
            Self::Providers(_) => "providers",
            Self::Peer(_) => "peers",
            Self::Closest(_) => "closest",
        }
    }

    fn path(&self, filters: &Filters) -> String {
        let query = Some(filters.to_query()).filter(|query| !query.is_empty());
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        match self {
            Self::Providers(cid) => format!("providers/{cid}{query}"),
            Self::Peer(peer) => format!("peers/{}{query}", Key::from(*peer).to_cid()),
            Self::Closest(key) => format!("dht/closest/peers/{key}"),
        }
    }
}

/// Why a router did not answer, by what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    /// It cannot be reached or does not answer in time. Later it may.
    #[error("the router cannot be reached: {reason}")]
    Unreachable {
        /// What happened.
        reason: String,
    },
    /// It has too much to do. It is to be left alone for a while.
    #[error("the router is busy")]
    Busy {
        /// For how long, if it said so.
        retry_after: Option<Duration>,
    },
    /// It does not serve this, and will not when it is asked again.
    #[error("the router answered with the status {status}")]
    Refused {
        /// The status.
        status: u16,
    },
    /// It answered with what makes no sense, or too much of it.
    #[error("the router's answer cannot be used: {reason}")]
    Broken {
        /// What is wrong.
        reason: String,
    },
}

impl From<FormatError> for RouterError {
    fn from(error: FormatError) -> Self {
        Self::Broken { reason: error.to_string() }
    }
}

impl From<reqwest::Error> for RouterError {
    fn from(error: reqwest::Error) -> Self {
        Self::Unreachable { reason: innermost(&error) }
    }
}

/// What the system said; the layers above say nothing of their own.
fn innermost(mut error: &(dyn std::error::Error + 'static)) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Why an address is not that of a router.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{url}\" is not the address of a router: {reason}")]
pub struct NotARouter {
    url: String,
    reason: String,
}

/// One server that is asked.
#[derive(Debug, Clone)]
pub struct Router {
    /// The address, up to what the API adds, with a slash at its end.
    base: Arc<str>,
    http: reqwest::Client,
    limits: Limits,
    filters: Filters,
}

impl Router {
    /// The router at an address, `http://` or `https://`. That of the API itself (`…/routing/v1`) means the same.
    ///
    /// # Errors
    /// [`NotARouter`] says what is wrong with the address.
    pub fn new(url: &str, http: reqwest::Client, limits: Limits) -> Result<Self, NotARouter> {
        let wrong = |reason: &str| NotARouter { url: url.to_owned(), reason: reason.to_owned() };
        let parsed = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(wrong("it has to begin with http:// or https://"));
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(wrong("it may have no query"));
        }
        let base = parsed.as_str().trim_end_matches('/');
        let base = base.strip_suffix("/routing/v1").unwrap_or(base);
        // Peers who speak something else are of no use here.
        let protocols = ["unknown", types::BITSWAP, types::HTTP_GATEWAY].join(",");
        let filters = Filters::read(None, Some(&protocols));
        Ok(Self { base: format!("{base}/").into(), http, limits, filters })
    }

    /// Its address.
    pub fn base(&self) -> &Arc<str> {
        &self.base
    }

    /// Asks for peers, and hands them to `found` as they come. Returns how many there were; the answer is broken off when
    /// nobody listens to `found` any more, there are enough records, or time is up and there were some.
    ///
    /// # Errors
    /// [`RouterError`]. What was handed over before is good.
    pub async fn ask(&self, question: &Question, found: &mpsc::Sender<PeerRecord>) -> Result<usize, RouterError> {
        let deadline = Instant::now() + self.limits.request;
        let request = self.http.get(self.url(&question.path(&self.filters))).header(ACCEPT, EITHER);
        let response = self.head(request, deadline).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(0);
        }
        check_status(&response)?;
        let filters = if matches!(question, Question::Closest(_)) { Filters::default() } else { self.filters.clone() };
        let mut handed = Handed { to: found, filters, left: self.limits.records_max, count: 0 };
        let read = async {
            match media_type(&response).as_deref() {
                Some(NDJSON) => self.read_lines(response, &mut handed).await,
                Some(JSON) => self.read_list(response, &mut handed).await,
                other => {
                    Err(RouterError::Broken { reason: format!("it is of the type {}", other.unwrap_or("unknown")) })
                }
            }
        };
        match timeout_at(deadline, read).await {
            Ok(read) => read?,
            Err(_) if handed.count == 0 => return Err(too_slow()),
            Err(_) => {}
        }
        Ok(handed.count)
    }

    /// Asks for the record of a key, which nobody has checked yet.
    ///
    /// # Errors
    /// [`RouterError`]
    pub async fn record(&self, key: &Key) -> Result<Option<Bytes>, RouterError> {
        let deadline = Instant::now() + self.limits.request;
        let request = self.http.get(self.url(&format!("ipns/{key}"))).header(ACCEPT, IPNS_RECORD);
        let response = self.head(request, deadline).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        check_status(&response)?;
        // That there is none is said in words (IPIP-513).
        if media_type(&response).as_deref() != Some(IPNS_RECORD) {
            return Ok(None);
        }
        let record = timeout_at(deadline, whole(response, RECORD_BYTES_MAX)).await.map_err(|_| too_slow())??;
        Ok(Some(record))
    }

    /// Gives the router a key's record to publish.
    ///
    /// # Errors
    /// [`RouterError`]
    pub async fn put_record(&self, key: &Key, record: Bytes) -> Result<(), RouterError> {
        let request = self.http.put(self.url(&format!("ipns/{key}"))).header(CONTENT_TYPE, IPNS_RECORD).body(record);
        let response = self.head(request, Instant::now() + self.limits.request).await?;
        check_status(&response)
    }

    fn url(&self, path: &str) -> String {
        format!("{}routing/v1/{path}", self.base)
    }

    async fn head(&self, request: reqwest::RequestBuilder, deadline: Instant) -> Result<Response, RouterError> {
        Ok(timeout_at(deadline, request.send()).await.map_err(|_| too_slow())??)
    }

    async fn read_lines(&self, mut response: Response, handed: &mut Handed<'_>) -> Result<(), RouterError> {
        let Limits { line_bytes_max, bytes_max, .. } = self.limits;
        let mut lines = Lines::new(ndjson::Limits { line_bytes_max, bytes_max });
        let mut records = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            let pushed = lines.push(&chunk, |record| records.push(record));
            if !handed.over(&mut records).await {
                return Ok(());
            }
            pushed?;
        }
        let finished = lines.finish(|record| records.push(record));
        handed.over(&mut records).await;
        Ok(finished?)
    }

    async fn read_list(&self, response: Response, handed: &mut Handed<'_>) -> Result<(), RouterError> {
        let bytes = whole(response, self.limits.bytes_max).await?;
        handed.over(&mut types::from_json_list(&bytes, self.limits.records_max)?).await;
        Ok(())
    }
}

fn too_slow() -> RouterError {
    RouterError::Unreachable { reason: "it does not answer in time".to_owned() }
}

/// What was handed on of an answer.
struct Handed<'a> {
    to: &'a mpsc::Sender<PeerRecord>,
    /// What is of use: servers may know no filters.
    filters: Filters,
    left: usize,
    count: usize,
}

impl Handed<'_> {
    /// Hands records over, and says whether more are welcome.
    async fn over(&mut self, records: &mut Vec<PeerRecord>) -> bool {
        for record in records.drain(..) {
            let Some(left) = self.left.checked_sub(1) else { return false };
            self.left = left;
            let Some(record) = self.filters.apply(record) else { continue };
            if self.to.send(record).await.is_err() {
                return false;
            }
            self.count += 1;
        }
        self.left > 0
    }
}

/// All of a body that is not too long.
async fn whole(mut response: Response, bytes_max: usize) -> Result<Bytes, RouterError> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if bytes.len() + chunk.len() > bytes_max {
            return Err(FormatError::TooLong { max: bytes_max }.into());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

/// The media type of an answer, in lower case and without parameters.
fn media_type(response: &Response) -> Option<String> {
    let said = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    Some(said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn check_status(response: &Response) -> Result<(), RouterError> {
    let status = response.status();
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Err(RouterError::Busy { retry_after: retry_after(response.headers(), SystemTime::now()) })
        }
        _ if status.is_server_error() => {
            Err(RouterError::Unreachable { reason: format!("it answered with the status {}", status.as_u16()) })
        }
        _ => Err(RouterError::Refused { status: status.as_u16() }),
    }
}

/// What routers are asked with: TLS by ring, believing whom the system believes.
///
/// # Errors
/// When the system gives no randomness or the like.
pub fn http_client(limits: &Limits) -> Result<reqwest::Client, reqwest::Error> {
    tls::use_ring();
    let builder = || {
        reqwest::Client::builder()
            .user_agent(concat!("causeway/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(limits.connect)
            .no_proxy()
    };
    // A system without any certificates can still ask by http://.
    builder().build().or_else(|_| builder().tls_certs_only([]).build())
}
