//! [`Router`]: the client of one delegated router (<https://specs.ipfs.tech/routing/http-routing-v1/>).
//!
//! Goals: records are forwarded as they arrive; bytes, records and time of an answer are limited; errors are grouped by
//! how to handle them. Redirects are not followed: the operator configured this address.
//!
//! Non-goals: whether the router is available ([`super::Routers`] has a circuit breaker), and whether its answers are
//! true.

use super::filters::Filters;
use super::ndjson::{self, Lines};
use super::types::{self, FormatError, PeerRecord};
use crate::errors::innermost;
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

/// The media type of streamed answers.
pub const NDJSON: &str = "application/x-ndjson";
/// The media type of complete answers.
pub const JSON: &str = "application/json";
/// The media type of IPNS records.
pub const IPNS_RECORD: &str = "application/vnd.ipfs.ipns-record";

const EITHER: HeaderValue = HeaderValue::from_static("application/x-ndjson, application/json;q=0.5");

/// Limits of one request.
#[derive(Debug, Clone, Copy)]
pub struct RoutingRequestLimits {
    /// The connect timeout.
    pub connect: Duration,
    /// The timeout of the whole request.
    pub request: Duration,
    /// Maximum bytes of an answer.
    pub bytes_max: usize,
    /// Maximum bytes of one record.
    pub line_bytes_max: usize,
    /// Maximum records of one answer.
    pub records_max: usize,
}

impl Default for RoutingRequestLimits {
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

/// A query that is answered with peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// The providers of a CID.
    Providers(Cid),
    /// The addresses of a peer.
    Peer(PeerId),
    /// The DHT servers closest to a key (IPIP-476).
    Closest(Cid),
}

impl Question {
    /// The label of the endpoint in metrics.
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

/// Why a request failed, grouped by how to handle it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    /// The router cannot be reached or timed out. Retry later.
    #[error("the router cannot be reached: {reason}")]
    Unreachable {
        /// The cause.
        reason: String,
    },
    /// The router is overloaded. Back off.
    #[error("the router is busy (429 or 503)")]
    Busy {
        /// The value of `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The router rejected the request. Do not retry.
    #[error("the router rejected the request with the status {status}")]
    Refused {
        /// The HTTP status.
        status: u16,
    },
    /// The answer is invalid or exceeds a limit.
    #[error("the router's answer is invalid: {reason}")]
    Broken {
        /// The cause.
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

/// Why an address is not a valid address of a router.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{url}\" is not the address of a router: {reason}")]
pub struct InvalidRouterUrl {
    url: String,
    reason: String,
}

/// The client of one router.
#[derive(Debug, Clone)]
pub struct Router {
    /// The address without the path of the API, with a trailing slash.
    base: Arc<str>,
    http: reqwest::Client,
    limits: RoutingRequestLimits,
    filters: Filters,
}

impl Router {
    /// A router at an `http://` or `https://` address, with or without the path of the API (`…/routing/v1`).
    ///
    /// # Errors
    /// [`InvalidRouterUrl`] says why the address is invalid.
    pub fn new(url: &str, http: reqwest::Client, limits: RoutingRequestLimits) -> Result<Self, InvalidRouterUrl> {
        let wrong = |reason: &str| InvalidRouterUrl { url: url.to_owned(), reason: reason.to_owned() };
        let parsed = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(wrong("it must start with http:// or https://"));
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(wrong("it must not have a query or a fragment"));
        }
        let base = parsed.as_str().trim_end_matches('/');
        let base = base.strip_suffix("/routing/v1").unwrap_or(base);
        // Peers with only other transfer protocols are of no use.
        let protocols = ["unknown", types::BITSWAP, types::HTTP_GATEWAY].join(",");
        let filters = Filters::read(None, Some(&protocols));
        Ok(Self { base: format!("{base}/").into(), http, limits, filters })
    }

    /// The address of the router.
    pub fn base(&self) -> &Arc<str> {
        &self.base
    }

    /// Queries peers, and sends them to `found` as they arrive. Returns their number. The answer is read until the
    /// receiver of `found` is closed, the maximum number of records is reached, or the request times out after the
    /// first record.
    ///
    /// # Errors
    /// [`RouterError`]. Records sent before are valid.
    pub async fn ask(&self, question: &Question, found: &mpsc::Sender<PeerRecord>) -> Result<usize, RouterError> {
        let deadline = Instant::now() + self.limits.request;
        let request = self.http.get(self.url(&question.path(&self.filters))).header(ACCEPT, EITHER);
        let response = self.head(request, deadline).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(0);
        }
        check_status(&response)?;
        let filters = if matches!(question, Question::Closest(_)) { Filters::default() } else { self.filters.clone() };
        let mut forwarder = Forwarder { to: found, filters, left: self.limits.records_max, count: 0 };
        let read = async {
            match media_type(&response).as_deref() {
                Some(NDJSON) => self.read_lines(response, &mut forwarder).await,
                Some(JSON) => self.read_list(response, &mut forwarder).await,
                other => {
                    Err(RouterError::Broken { reason: format!("the media type is {}", other.unwrap_or("unknown")) })
                }
            }
        };
        match timeout_at(deadline, read).await {
            Ok(read) => read?,
            Err(_) if forwarder.count == 0 => return Err(timed_out()),
            Err(_) => {}
        }
        Ok(forwarder.count)
    }

    /// Requests the record of a key. The record is not verified.
    ///
    /// # Errors
    /// [`RouterError`] if the request fails.
    pub async fn record(&self, key: &Key) -> Result<Option<Bytes>, RouterError> {
        let deadline = Instant::now() + self.limits.request;
        let request = self.http.get(self.url(&format!("ipns/{key}"))).header(ACCEPT, IPNS_RECORD);
        let response = self.head(request, deadline).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        check_status(&response)?;
        // That there is no record may be an answer in text (IPIP-513).
        if media_type(&response).as_deref() != Some(IPNS_RECORD) {
            return Ok(None);
        }
        let record = timeout_at(deadline, read_body(response, RECORD_BYTES_MAX)).await.map_err(|_| timed_out())??;
        Ok(Some(record))
    }

    /// Publishes a key's record.
    ///
    /// # Errors
    /// [`RouterError`] if the request fails.
    pub async fn put_record(&self, key: &Key, record: Bytes) -> Result<(), RouterError> {
        let request = self.http.put(self.url(&format!("ipns/{key}"))).header(CONTENT_TYPE, IPNS_RECORD).body(record);
        let response = self.head(request, Instant::now() + self.limits.request).await?;
        check_status(&response)
    }

    fn url(&self, path: &str) -> String {
        format!("{}routing/v1/{path}", self.base)
    }

    async fn head(&self, request: reqwest::RequestBuilder, deadline: Instant) -> Result<Response, RouterError> {
        Ok(timeout_at(deadline, request.send()).await.map_err(|_| timed_out())??)
    }

    async fn read_lines(&self, mut response: Response, forwarder: &mut Forwarder<'_>) -> Result<(), RouterError> {
        let RoutingRequestLimits { line_bytes_max, bytes_max, .. } = self.limits;
        let mut lines = Lines::new(ndjson::NdjsonLimits { line_bytes_max, bytes_max });
        let mut records = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            let pushed = lines.push(&chunk, |record| records.push(record));
            if !forwarder.send(&mut records).await {
                return Ok(());
            }
            pushed?;
        }
        let finished = lines.finish(|record| records.push(record));
        forwarder.send(&mut records).await;
        Ok(finished?)
    }

    async fn read_list(&self, response: Response, forwarder: &mut Forwarder<'_>) -> Result<(), RouterError> {
        let bytes = read_body(response, self.limits.bytes_max).await?;
        forwarder.send(&mut types::from_json_list(&bytes, self.limits.records_max)?).await;
        Ok(())
    }
}

fn timed_out() -> RouterError {
    RouterError::Unreachable { reason: "the request timed out".to_owned() }
}

/// Forwards the records of an answer to a channel.
struct Forwarder<'a> {
    to: &'a mpsc::Sender<PeerRecord>,
    /// Applied to the records, because servers may ignore the parameters.
    filters: Filters,
    left: usize,
    count: usize,
}

impl Forwarder<'_> {
    /// Sends records, and returns whether more are accepted.
    async fn send(&mut self, records: &mut Vec<PeerRecord>) -> bool {
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

/// The whole body, up to a limit.
async fn read_body(mut response: Response, bytes_max: usize) -> Result<Bytes, RouterError> {
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
    let value = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn check_status(response: &Response) -> Result<(), RouterError> {
    let status = response.status();
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Err(RouterError::Busy { retry_after: retry_after(response.headers(), SystemTime::now()) })
        }
        _ if status.is_server_error() => {
            Err(RouterError::Unreachable { reason: format!("the router answered with the status {}", status.as_u16()) })
        }
        _ => Err(RouterError::Refused { status: status.as_u16() }),
    }
}

/// The HTTP client for routers: TLS by ring, with the certificates of the system.
///
/// # Errors
/// If TLS cannot be initialised.
pub fn http_client(limits: &RoutingRequestLimits) -> Result<reqwest::Client, reqwest::Error> {
    tls::use_ring();
    let builder = || {
        reqwest::Client::builder()
            .user_agent(concat!("causeway/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(limits.connect)
            .no_proxy()
    };
    // Without system certificates, `http://` still works.
    builder().build().or_else(|_| builder().tls_certs_only([]).build())
}
