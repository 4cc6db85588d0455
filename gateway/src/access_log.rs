//! [`RequestLog`]: the access log (`log.access`) and the log of slow requests (`log.slow_request_seconds`).
//!
//! A record is written when the response has ended. It has the path without its query, which may contain private data,
//! the header `User-Agent`, and the origin of `Referer`. In the log's own format it is an event with the target
//! `access` and the level info, without the `Referer`; the other formats are queued for
//! [`AccessLogWriter`].
//!
//! Goals: a request costs nothing when both logs are off; texts of clients are bounded and escaped before they are
//! kept; no address is kept other than as `log.access_addresses` has it.

use crate::request::client::Client;
use crate::running::{Step, StepClock};
use config::AccessAddresses;
use http::header::{HeaderMap, HeaderName, REFERER, USER_AGENT};
use http::request::Parts;
use http::{StatusCode, Version};
use services::access_log::addresses::AddressAnonymiser;
use services::access_log::record::{
    AccessRecord, ContentTier, LineFormat, microseconds, origin, printable, root_of, whole_microseconds,
};
use services::access_log::writer::AccessLogWriter;
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The target of access log records.
pub const TARGET: &str = services::access_log::parse::TARGET;
const X_IPFS_PATH: HeaderName = HeaderName::from_static("x-ipfs-path");
/// The maximum lengths of paths and hosts, of user agents and referers, and of methods, in bytes.
const TEXT_BYTES_MAX: usize = 1024;
const AGENT_BYTES_MAX: usize = 256;
const METHOD_BYTES_MAX: usize = 32;

/// What is logged of requests, and where.
#[derive(Debug)]
pub struct RequestLog {
    /// The format and the queue of lines that are no events of the log.
    lines: Option<(LineFormat, Arc<AccessLogWriter>)>,
    addresses: AddressAnonymiser,
    slow: Option<Duration>,
}

impl Default for RequestLog {
    /// Events with full addresses, while the access log is enabled.
    fn default() -> Self {
        Self { lines: None, addresses: AddressAnonymiser::new(AccessAddresses::Full), slow: None }
    }
}

impl RequestLog {
    /// Logs as configured, and to `writer` if the access log has a format of its own.
    pub fn new(log: &config::Log, writer: Option<Arc<AccessLogWriter>>) -> Self {
        Self {
            lines: LineFormat::of(log.access_format).zip(writer),
            addresses: AddressAnonymiser::new(log.access_addresses),
            slow: (log.slow_request_seconds > 0).then(|| Duration::from_secs(log.slow_request_seconds)),
        }
    }

    /// A client's address as it may be logged.
    pub fn address(&self, address: IpAddr) -> String {
        self.addresses.text(address)
    }

    /// Whether slow requests are logged, for which the steps of a request are timed.
    pub fn logs_slow_requests(&self) -> bool {
        self.slow.is_some()
    }

    /// The record of a request that has begun, if it may be logged.
    pub fn begin(self: &Arc<Self>, head: &Parts, client: &Client) -> Option<Box<AccessLine>> {
        let is_logged = tracing::enabled!(target: TARGET, tracing::Level::INFO);
        if !is_logged && self.slow.is_none() {
            return None;
        }
        // Events have no referer.
        let referer = self.lines.is_some().then(|| head.headers.get(REFERER)).flatten();
        Some(Box::new(AccessLine {
            log: Arc::clone(self),
            is_logged,
            trace_id: client.trace.as_ref().map(|trace| trace.id().to_string()).unwrap_or_default(),
            client: self.addresses.text(client.address),
            method: printable(head.method.as_str().as_bytes(), METHOD_BYTES_MAX),
            host: printable(client.authority.as_bytes(), TEXT_BYTES_MAX),
            path: printable(head.uri.path().as_bytes(), TEXT_BYTES_MAX),
            protocol: protocol(head.version),
            referer: referer.map(|referer| origin_of(referer.as_bytes())).unwrap_or_default(),
            user_agent: agent_of(&head.headers),
            status: 0,
            tier: None,
            root: String::new(),
            bytes: 0,
            first_byte: None,
            clock: None,
            waits: ContentWaits::default(),
        }))
    }
}

/// A record, until it is written.
#[derive(Debug)]
pub struct AccessLine {
    log: Arc<RequestLog>,
    /// Whether it belongs to the access log, or only to that of slow requests.
    is_logged: bool,
    /// The trace; empty if the request is not traced.
    trace_id: String,
    client: String,
    method: String,
    host: String,
    path: String,
    protocol: &'static str,
    referer: String,
    user_agent: String,
    status: u16,
    tier: Option<ContentTier>,
    root: String,
    bytes: u64,
    first_byte: Option<Duration>,
    /// When the steps ended, if slow requests are logged.
    clock: Option<Arc<StepClock>>,
    waits: ContentWaits,
}

/// The time that the body waited for content, and not for the client.
#[derive(Debug, Default)]
struct ContentWaits {
    since: Option<Instant>,
    total: Duration,
}

impl AccessLine {
    /// Records the response's head after so much time. `tier` is the source of the content, if the response has content.
    pub fn head(&mut self, status: StatusCode, headers: &HeaderMap, tier: Option<ContentTier>, took: Duration) {
        self.status = status.as_u16();
        self.tier = tier;
        self.first_byte = Some(took);
        if self.is_logged {
            let path = headers.get(X_IPFS_PATH).and_then(|path| path.to_str().ok()).unwrap_or_default();
            self.root = printable(root_of(path).as_bytes(), TEXT_BYTES_MAX);
        }
    }

    /// Takes the clock of the steps to the response's head, if they are timed.
    pub fn time_steps(&mut self, clock: Option<Arc<StepClock>>) {
        self.clock = clock;
    }

    /// Counts bytes of the body.
    pub fn sent(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Records whether the client could take more of the body than there is.
    pub fn waits_for_content(&mut self, waits: bool) {
        if !self.log.logs_slow_requests() {
            return;
        }
        match (waits, self.waits.since) {
            (true, None) => self.waits.since = Some(Instant::now()),
            (false, Some(since)) => {
                self.waits.total += since.elapsed();
                self.waits.since = None;
            }
            _ => {}
        }
    }

    /// Writes the record. The status is 499, as in nginx, if the client disconnected before the response; `complete` is
    /// false if the response was aborted.
    pub fn write(&mut self, took: Duration, complete: bool) {
        self.waits_for_content(false);
        if self.status == 0 {
            self.status = 499;
        }
        if self.is_logged {
            match &self.log.lines {
                Some((format, writer)) => {
                    let mut line = String::with_capacity(512);
                    self.record(took, complete).append_to(&mut line, *format);
                    writer.write(&line);
                }
                None => self.write_event(took, complete),
            }
        }
        if self.log.slow.is_some_and(|slow| took >= slow || self.first_byte.is_some_and(|time| time >= slow)) {
            self.write_warning(took, complete);
        }
    }

    fn record(&self, took: Duration, complete: bool) -> AccessRecord<'_> {
        let duration_us = whole_microseconds(took);
        let received_us = microseconds(SystemTime::now()) - i64::try_from(duration_us).unwrap_or_default();
        AccessRecord {
            received_us,
            client: Cow::Borrowed(&self.client),
            method: Cow::Borrowed(&self.method),
            host: Cow::Borrowed(&self.host),
            path: Cow::Borrowed(&self.path),
            protocol: Cow::Borrowed(self.protocol),
            status: self.status,
            bytes: self.bytes,
            duration_us: Some(duration_us),
            first_byte_us: self.first_byte.map(whole_microseconds),
            tier: self.tier,
            root: Cow::Borrowed(&self.root),
            referer: Cow::Borrowed(&self.referer),
            user_agent: Cow::Borrowed(&self.user_agent),
            complete: Some(complete),
            trace_id: Cow::Borrowed(&self.trace_id),
        }
    }

    fn write_event(&self, took: Duration, complete: bool) {
        let Self { client, method, host, path, user_agent, status, root, bytes, .. } = self;
        let tier = self.tier.map_or("", ContentTier::name);
        let first_byte_ms = self.first_byte.map(milliseconds);
        let client = if client.is_empty() { services::access_log::record::UNKNOWN } else { client };
        let trace_id = self.logged_trace();
        tracing::info!(
            target: "access", %client, method, host, path, status, duration_ms = milliseconds(took), first_byte_ms,
            bytes, tier, root, user_agent, complete, trace_id
        );
    }

    /// The trace, if the request is traced.
    fn logged_trace(&self) -> Option<&str> {
        Some(&*self.trace_id).filter(|id| !id.is_empty())
    }

    /// Writes where the time of a slow request went. Steps that it did not have are left out.
    fn write_warning(&self, took: Duration, complete: bool) {
        let Self { client, method, host, path, status, bytes, .. } = self;
        let steps = self.clock.as_ref().map(|clock| clock.steps(self.first_byte.unwrap_or(took))).unwrap_or_default();
        let of = |step| steps.iter().find(|(known, _)| *known == step).map(|(_, took)| milliseconds(*took));
        let client = if client.is_empty() { services::access_log::record::UNKNOWN } else { client };
        let body = self.first_byte.map(|first_byte| took.saturating_sub(first_byte));
        tracing::warn!(
            target: "gateway::slow_requests", %client, method, host, path, status, bytes, complete,
            tier = self.tier.map_or("", ContentTier::name),
            duration_ms = milliseconds(took),
            first_byte_ms = self.first_byte.map(milliseconds),
            admission_ms = of(Step::Admission),
            host_ms = of(Step::Host),
            name_ms = of(Step::Name),
            path_ms = of(Step::Path),
            first_block_ms = of(Step::FirstBlock),
            body_ms = body.map(milliseconds),
            body_waits_for_blocks_ms = body.map(|_| milliseconds(self.waits.total)),
            trace_id = self.logged_trace(),
            "slow request"
        );
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

const fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        Version::HTTP_3 => "HTTP/3.0",
        _ => "HTTP/1.1",
    }
}

fn agent_of(headers: &HeaderMap) -> String {
    headers.get(USER_AGENT).map(|agent| printable(agent.as_bytes(), AGENT_BYTES_MAX)).unwrap_or_default()
}

/// The origin of a `Referer`, without the rest of a long one.
fn origin_of(referer: &[u8]) -> String {
    printable(
        origin(&String::from_utf8_lossy(&referer[..referer.len().min(TEXT_BYTES_MAX)])).as_bytes(),
        AGENT_BYTES_MAX,
    )
}
