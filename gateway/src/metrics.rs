//! HTTP metrics.
//!
//! Goals: every request is counted once, however it ends, because an [`Exchange`] counts when it is dropped; handles
//! are resolved at start, so that a request needs no look-up by label.

use crate::access_log::AccessLine;
use crate::latency::{LatencyHistogram, LatencySnapshot};
use crate::running::StepClock;
use crate::trace::{RequestEnd, RequestTrace};
use http::{HeaderMap, Method, StatusCode, Version};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use services::access_log::record::ContentTier;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The upper bounds of histogram buckets, in seconds: from an answer from memory to a long download.
const SECONDS: [f64; 18] = [
    50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0,
];

/// Bytes of one body that are added up before the counter is increased.
const COUNTED_BYTES_MIN: u64 = 1 << 20;

const METHODS: [&str; 4] = ["GET", "HEAD", "OPTIONS", "other"];
const VERSIONS: [&str; 4] = ["1.0", "1.1", "2", "3"];
const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];
/// The tiers of responses; the last is that of responses without content.
const TIERS: [&str; 5] =
    [ContentTier::Ram.name(), ContentTier::Disk.name(), ContentTier::Site.name(), ContentTier::Network.name(), "none"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionLabel {
    version: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: Abort,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TierLabel {
    tier: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

p2p_bridge::label_values! {
    /// Why a response was aborted.
    pub enum Abort {
        /// The client disconnected.
        Client = "client",
        /// The rest of the content did not arrive.
        Stalled = "stalled",
        /// The rest of the content is invalid.
        Corrupt = "corrupt",
        /// An internal error.
        Internal = "internal",
        /// The response would exceed a limit.
        Limit = "limit",
    }
}

p2p_bridge::label_values! {
    /// The limit because of which a request was answered with 429 or 503.
    pub enum RequestLimit {
        /// Concurrent requests that fetch from the network: of the client, or in all.
        Fetches = "fetches",
        /// The client's rate of requests that need the network.
        Rate = "rate",
        /// Concurrent name look-ups: of the client, or in all.
        Lookups = "lookups",
        /// Concurrent searches of the routing API: of the client, or in all.
        Searches = "searches",
        /// Concurrent archives: of the client, or in all.
        Archives = "archives",
        /// The client's connections, and its concurrent requests over HTTP/2 or HTTP/3, or behind a proxy.
        Client = "client",
        /// All connections.
        Connections = "connections",
        /// The memory for response bodies.
        Memory = "memory",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: RequestLimit,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabel {
    reason: ProxyRefusal,
}

p2p_bridge::label_values! {
    /// Why a connection was closed where the PROXY protocol is spoken.
    pub enum ProxyRefusal {
        /// The peer is not a trusted proxy.
        Untrusted = "untrusted",
        /// The header has version 1.
        Version1 = "version_1",
        /// There is no valid header.
        Invalid = "invalid",
        /// The header was not sent in time.
        Timeout = "timeout",
        /// Too many headers are awaited.
        Full = "full",
        /// The connection ended first.
        Closed = "closed",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    result: PrefetchOutcome,
}

p2p_bridge::label_values! {
    /// What became of a path that was found in a page.
    pub enum PrefetchOutcome {
        /// Its file was fetched, or was stored locally.
        Fetched = "fetched",
        /// It leads to no file, is denied, or was not received.
        Failed = "failed",
        /// A limit of the client or of the page was reached first, or the client left.
        GaveUp = "given_up",
    }
}

p2p_bridge::metrics! {
    /// Families of metrics, by their labels.
    struct Families {
        requests: Family<RequestLabels, Counter> = "causeway_http_requests",
            "Answered requests, by method and class of status";
        versions: Family<VersionLabel, Counter> = "causeway_http_version_requests",
            "Requests, by version of HTTP";
        aborted: Family<ReasonLabel, Counter> = "causeway_http_responses_aborted",
            "Responses that were aborted after their head was sent, by reason";
        rejected: Family<LimitLabel, Counter> = "causeway_http_requests_rejected",
            "Requests that were answered with 429 or 503 because a limit was reached, by limit";
        paths: Family<ResultLabel, Counter> = "causeway_http_path_lookups",
            "Look-ups in the cache of resolved paths, by result";
        tier_requests: Family<TierLabel, Counter> = "causeway_http_tier_requests",
            "Answered requests, by the farthest tier that was read for the first byte: ram, disk, site, network, or \
             none without content";
        tier_bytes: Family<TierLabel, Counter> = "causeway_http_tier_bytes",
            "Bytes of response bodies, by the farthest tier that was read for the first byte";
        tier_first_byte: Family<TierLabel, LatencyHistogram> = "causeway_http_tier_first_byte_seconds",
            "Time from a request's head to its response's head, in seconds, by the farthest tier that was read for it";
        listings: Family<ResultLabel, Counter> = "causeway_http_listings",
            "Requests for pages of listings: cached (hit), generated (miss), or shared with another request that \
             generates the page (joined)";
        prefetched: Family<OutcomeLabel, Counter> = "causeway_http_prefetch_paths",
            "Subresources of pages that were prefetched, by result: fetched, failed, or given_up because of a limit or \
             since the client left";
        refused: Family<RefusalLabel, Counter> = "causeway_http_proxy_connections_refused",
            "Connections that were closed because of their PROXY protocol header, by reason";
    }
}

p2p_bridge::metrics! {
    /// Metrics without labels.
    #[derive(Debug)]
    pub struct PlainMetrics {
        cancelled: Counter = "causeway_http_requests_cancelled",
            "Requests whose client disconnected before the response began";
        pub walks_joined: Counter = "causeway_http_walks_joined",
            "Requests that joined the path resolution of another request (singleflight)";
        bytes: Counter = "causeway_http_response_bytes", "Bytes of response bodies";
        in_flight: Gauge = "causeway_http_requests_in_flight", "Requests in progress";
        first_byte: Histogram = "causeway_http_first_byte_seconds",
            "Time from a request's head to its response's head, in seconds", Histogram::new(SECONDS);
        duration: Histogram = "causeway_http_duration_seconds",
            "Time from a request's head to the end of its response, in seconds", Histogram::new(SECONDS);
        pub connections: Gauge = "causeway_http_connections", "Open connections";
        pub quic_connections: Gauge = "causeway_http_quic_connections",
            "Open connections over QUIC (HTTP/3), which are among the open connections";
        pub quic_retries: Counter = "causeway_http_quic_retries",
            "Connections over QUIC whose client had to prove its address first (Retry), since many were pending";
        prefetch_pages: Counter = "causeway_http_prefetch_pages", "Pages whose subresources were prefetched";
        prefetch_bytes: Counter = "causeway_http_prefetch_bytes",
            "Bytes of the blocks that were read for subresources of pages, from the network or the disk";
        // Always a bug.
        pub panics: Counter = "causeway_http_panics", "Connections that ended in a panic";
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabel {
    listener: &'static str,
}

p2p_bridge::metrics! {
    /// The certificates of the listeners with TLS.
    #[derive(Debug)]
    pub struct TlsMetrics {
        expiry: Family<ListenerLabel, Gauge> = "causeway_tls_certificate_expiry_timestamp_seconds",
            "When the TLS certificate in use expires, as a Unix timestamp, by listener";
        failures: Family<ListenerLabel, Counter> = "causeway_tls_certificate_reload_failures",
            "Changed certificate or key files that are invalid, so that the previous certificate stays in use, by \
             listener";
    }
}

/// The certificate of one listener.
#[derive(Debug, Clone, Default)]
pub struct CertificateMetrics {
    /// When the certificate in use expires, in seconds since 1970.
    pub expiry: Gauge,
    /// Changed files that could not be used.
    pub failures: Counter,
}

impl TlsMetrics {
    /// The metrics of the listener with this name.
    pub fn of(&self, listener: &'static str) -> CertificateMetrics {
        let label = ListenerLabel { listener };
        CertificateMetrics {
            expiry: self.expiry.get_or_create_owned(&label),
            failures: self.failures.get_or_create_owned(&label),
        }
    }
}

/// Metrics of the public listener.
#[derive(Debug)]
pub struct HttpMetrics {
    requests: [[Counter; CLASSES.len()]; METHODS.len()],
    versions: [Counter; VERSIONS.len()],
    /// In the order of [`TIERS`]. That of the site has series from its first response on.
    tiers: [OnceLock<ResponseTier>; TIERS.len()],
    tier_families: TierFamilies,
    aborted: [Counter; Abort::ALL.len()],
    rejected: [Counter; RequestLimit::ALL.len()],
    refused: [Counter; ProxyRefusal::ALL.len()],
    /// Paths that were answered from the cache of resolved paths.
    pub path_hits: Counter,
    /// Paths that were resolved.
    pub path_misses: Counter,
    /// Requests for pages of listings, by result.
    pub listings: ListingMetrics,
    /// Prefetches of the subresources of pages.
    pub prefetch: PrefetchMetrics,
    /// The metrics without labels.
    pub plain: PlainMetrics,
    /// The certificates of the listeners.
    pub tls: TlsMetrics,
}

/// Responses with content of one tier.
#[derive(Debug)]
struct ResponseTier {
    requests: Counter,
    bytes: Counter,
    first_byte: LatencyHistogram,
}

/// The metrics of responses by tier.
#[derive(Debug)]
struct TierFamilies {
    requests: Family<TierLabel, Counter>,
    bytes: Family<TierLabel, Counter>,
    first_byte: Family<TierLabel, LatencyHistogram>,
}

impl TierFamilies {
    fn tier(&self, tier: &'static str) -> ResponseTier {
        let label = TierLabel { tier };
        ResponseTier {
            requests: self.requests.get_or_create_owned(&label),
            bytes: self.bytes.get_or_create_owned(&label),
            first_byte: self.first_byte.get_or_create_owned(&label),
        }
    }
}

/// The responses with content of one tier, or without content.
#[derive(Debug, Clone, PartialEq)]
pub struct TierResponses {
    /// `ram`, `disk`, `site`, `network` or `none`.
    pub tier: &'static str,
    /// Answered requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// The times to their first bytes.
    pub first_byte: LatencySnapshot,
}

/// The counters and gauges of the public listener.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpFigures {
    /// Answered requests, by class of status.
    pub requests: Vec<(&'static str, u64)>,
    /// Requests in progress.
    pub in_flight: i64,
    /// Open connections.
    pub connections: i64,
    /// Bytes of response bodies that have ended.
    pub bytes: u64,
    /// Aborted responses.
    pub aborted: u64,
    /// Responses by tier; without the site, if it has answered none.
    pub tiers: Vec<TierResponses>,
}

/// Requests for pages of listings, by result.
#[derive(Debug, Clone)]
pub struct ListingMetrics {
    /// The page was cached.
    pub hits: Counter,
    /// The page was generated.
    pub misses: Counter,
    /// The request joined the generation of the page for another request.
    pub joined: Counter,
}

/// Prefetches of the subresources of pages.
#[derive(Debug, Clone)]
pub struct PrefetchMetrics {
    /// Pages.
    pub pages: Counter,
    /// Bytes of blocks.
    pub bytes: Counter,
    paths: [Counter; PrefetchOutcome::ALL.len()],
}

impl PrefetchMetrics {
    /// Counts paths.
    pub fn count(&self, outcome: PrefetchOutcome, paths: usize) {
        self.paths[outcome as usize].inc_by(paths as u64);
    }
}

impl HttpMetrics {
    /// Registers all metrics under their full names. Call it once for a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let Families {
            requests,
            versions,
            tier_requests,
            tier_bytes,
            tier_first_byte,
            aborted,
            rejected,
            paths,
            listings,
            prefetched,
            refused,
        } = Families::registered(registry);
        let tier_families = TierFamilies { requests: tier_requests, bytes: tier_bytes, first_byte: tier_first_byte };
        let tier = |tier| match tier == ContentTier::Site.name() {
            true => OnceLock::new(),
            false => OnceLock::from(tier_families.tier(tier)),
        };
        let path = |result| paths.get_or_create_owned(&ResultLabel { result });
        let plain = PlainMetrics::registered(registry);
        let listing = |result| listings.get_or_create_owned(&ResultLabel { result });
        Self {
            requests: METHODS
                .map(|method| CLASSES.map(|code| requests.get_or_create_owned(&RequestLabels { method, code }))),
            versions: VERSIONS.map(|version| versions.get_or_create_owned(&VersionLabel { version })),
            tiers: TIERS.map(tier),
            tier_families,
            aborted: Abort::ALL.map(|reason| aborted.get_or_create_owned(&ReasonLabel { reason })),
            rejected: RequestLimit::ALL.map(|limit| rejected.get_or_create_owned(&LimitLabel { limit })),
            refused: ProxyRefusal::ALL.map(|reason| refused.get_or_create_owned(&RefusalLabel { reason })),
            path_hits: path("hit"),
            path_misses: path("miss"),
            listings: ListingMetrics { hits: listing("hit"), misses: listing("miss"), joined: listing("joined") },
            prefetch: PrefetchMetrics {
                pages: plain.prefetch_pages.clone(),
                bytes: plain.prefetch_bytes.clone(),
                paths: PrefetchOutcome::ALL.map(|result| prefetched.get_or_create_owned(&OutcomeLabel { result })),
            },
            plain,
            tls: TlsMetrics::registered(registry),
        }
    }

    /// The current values.
    pub fn figures(&self) -> HttpFigures {
        let of_class = |class: usize| self.requests.iter().map(|of_method| of_method[class].get()).sum();
        HttpFigures {
            requests: CLASSES.into_iter().enumerate().map(|(index, class)| (class, of_class(index))).collect(),
            in_flight: self.plain.in_flight.get(),
            connections: self.plain.connections.get(),
            bytes: self.plain.bytes.get(),
            aborted: self.aborted.iter().map(|counter| counter.get()).sum(),
            tiers: TIERS
                .into_iter()
                .zip(&self.tiers)
                .filter_map(|(tier, metrics)| Some(metrics.get()?.figures(tier)))
                .collect(),
        }
    }

    fn tier(&self, index: usize) -> &ResponseTier {
        self.tiers[index].get_or_init(|| self.tier_families.tier(TIERS[index]))
    }

    /// Counts a request that was rejected because of a limit.
    pub fn rejected(&self, limit: RequestLimit) {
        self.rejected[limit as usize].inc();
    }

    /// Counts a connection that was closed because of its PROXY protocol header.
    pub fn proxy_connection_refused(&self, reason: ProxyRefusal) {
        self.refused[reason as usize].inc();
    }

    /// The number of connections that were closed for this reason.
    pub fn proxy_connections_refused(&self, reason: ProxyRefusal) -> u64 {
        self.refused[reason as usize].get()
    }

    fn requests(&self, method: usize, status: StatusCode) -> &Counter {
        let class = usize::from(status.as_u16() / 100).clamp(2, 5) - 2;
        &self.requests[method][class]
    }
}

impl ResponseTier {
    fn figures(&self, tier: &'static str) -> TierResponses {
        let Self { requests, bytes, first_byte } = self;
        TierResponses { tier, requests: requests.get(), bytes: bytes.get(), first_byte: first_byte.snapshot() }
    }
}

fn version_index(version: Version) -> usize {
    match version {
        Version::HTTP_3 => 3,
        Version::HTTP_2 => 2,
        Version::HTTP_11 => 1,
        _ => 0,
    }
}

fn method_index(method: &Method) -> usize {
    METHODS.iter().position(|name| *name == method.as_str()).unwrap_or(METHODS.len() - 1)
}

/// A request and its response, from the head to the last byte. Dropping it ends and counts it.
#[derive(Debug)]
pub struct Exchange {
    metrics: Arc<HttpMetrics>,
    started: Instant,
    method: usize,
    head_sent: bool,
    /// The index of the content's tier.
    tier: usize,
    /// Bytes that are not counted yet.
    body_bytes: u64,
    end: Option<Abort>,
    /// The record for the access log, if it is enabled.
    access: Option<Box<AccessLine>>,
    /// The trace, if the request is traced.
    trace: Option<Arc<RequestTrace>>,
    /// All bytes of the body.
    sent_bytes: u64,
}

impl Exchange {
    /// Begins with a request's head.
    pub fn begin(metrics: &Arc<HttpMetrics>, method: &Method, version: Version) -> Self {
        metrics.plain.in_flight.inc();
        metrics.versions[version_index(version)].inc();
        Self {
            metrics: Arc::clone(metrics),
            started: Instant::now(),
            method: method_index(method),
            head_sent: false,
            tier: TIERS.len() - 1,
            body_bytes: 0,
            end: Some(Abort::Client),
            access: None,
            trace: None,
            sent_bytes: 0,
        }
    }

    /// Ends this trace at the end.
    pub fn trace(&mut self, trace: Option<Arc<RequestTrace>>) {
        self.trace = trace;
    }

    /// The trace, if the request is traced.
    pub fn trace_id(&self) -> Option<String> {
        self.trace.as_ref().map(|trace| trace.id().to_string())
    }

    /// Writes this record to the access log at the end.
    pub fn log(&mut self, access: Option<Box<AccessLine>>) {
        self.access = access;
    }

    /// When the request's head was read.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The time since then.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Has the log of slow requests tell how long the steps to the response's head took, if they are timed.
    pub fn time_steps(&mut self, clock: Option<Arc<StepClock>>) {
        if let Some(access) = &mut self.access {
            access.time_steps(clock);
        }
    }

    /// Records the response's head; `tier` is the source of the content, if the response has content.
    pub fn head(&mut self, status: StatusCode, headers: &HeaderMap, tier: Option<ContentTier>) {
        self.head_sent = true;
        let took = self.started.elapsed();
        if let Some(access) = &mut self.access {
            access.head(status, headers, tier, took);
        }
        if let Some(trace) = &self.trace {
            trace.head(status);
        }
        self.tier = tier.map_or(TIERS.len() - 1, |tier| tier as usize);
        let of_tier = self.metrics.tier(self.tier);
        of_tier.requests.inc();
        of_tier.first_byte.observe(took);
        self.metrics.requests(self.method, status).inc();
        self.metrics.plain.first_byte.observe(took.as_secs_f64());
    }

    /// Records whether the client could take more of the body than there is.
    pub fn waits_for_content(&mut self, waits: bool) {
        if let Some(access) = &mut self.access {
            access.waits_for_content(waits);
        }
    }

    /// Counts bytes of the body.
    pub fn sent(&mut self, bytes: usize) {
        self.body_bytes += bytes as u64;
        self.sent_bytes = self.sent_bytes.saturating_add(bytes as u64);
        if let Some(access) = &mut self.access {
            access.sent(bytes);
        }
        // A long body is counted while it is sent, so that rates are current.
        if self.body_bytes >= COUNTED_BYTES_MIN {
            self.count_bytes();
        }
    }

    fn count_bytes(&mut self) {
        let bytes = std::mem::take(&mut self.body_bytes);
        self.metrics.plain.bytes.inc_by(bytes);
        self.metrics.tier(self.tier).bytes.inc_by(bytes);
    }

    /// The whole body was sent.
    pub fn complete(&mut self) {
        self.end = None;
    }

    /// The body is aborted.
    pub fn abort(&mut self, reason: Abort) {
        self.end = Some(reason);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.count_bytes();
        let took = self.started.elapsed();
        if let Some(access) = &mut self.access {
            access.write(took, self.end.is_none());
        }
        if let Some(trace) = &self.trace {
            let tier = ContentTier::ALL.get(self.tier).copied();
            trace.finish(RequestEnd { tier, bytes: self.sent_bytes, aborted: self.end.map(Abort::label) });
        }
        let metrics = &self.metrics;
        metrics.plain.in_flight.dec();
        metrics.plain.duration.observe(took.as_secs_f64());
        match self.end {
            Some(_) if !self.head_sent => _ = metrics.plain.cancelled.inc(),
            Some(reason) => _ = metrics.aborted[reason as usize].inc(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).expect("encodes");
        text
    }

    #[test]
    fn a_long_body_is_counted_while_it_is_sent() {
        let metrics = Arc::new(HttpMetrics::register(&mut Registry::default()));
        let mut exchange = Exchange::begin(&metrics, &Method::GET, Version::HTTP_11);
        exchange.sent(10);
        assert_eq!(metrics.figures().bytes, 0);
        exchange.sent(1 << 20);
        exchange.sent(5);
        assert_eq!(metrics.figures().bytes, (1 << 20) + 10);
        drop(exchange);
        assert_eq!(metrics.figures().bytes, (1 << 20) + 15);
    }

    #[test]
    fn every_exchange_is_counted_once_however_it_ends() {
        let mut registry = Registry::default();
        let metrics = Arc::new(HttpMetrics::register(&mut registry));
        let begin = |method| Exchange::begin(&metrics, &method, Version::HTTP_11);
        let headers = HeaderMap::new();

        let mut whole = begin(Method::GET);
        whole.head(StatusCode::OK, &headers, Some(ContentTier::Disk));
        whole.sent(10);
        whole.complete();
        let mut broken = begin(Method::GET);
        broken.head(StatusCode::PARTIAL_CONTENT, &headers, Some(ContentTier::Disk));
        broken.abort(Abort::Stalled);
        let mut left = begin(Method::HEAD);
        left.head(StatusCode::NOT_FOUND, &headers, None);
        let cancelled = begin(Method::PUT);
        assert!(scrape(&registry).contains("causeway_http_requests_in_flight 4\n"));
        drop((whole, broken, left, cancelled));

        let text = scrape(&registry);
        for line in [
            "causeway_http_requests_total{method=\"GET\",code=\"2xx\"} 2",
            "causeway_http_requests_total{method=\"HEAD\",code=\"4xx\"} 1",
            "causeway_http_responses_aborted_total{reason=\"stalled\"} 1",
            "causeway_http_responses_aborted_total{reason=\"client\"} 1",
            "causeway_http_requests_cancelled_total 1",
            "causeway_http_response_bytes_total 10",
            "causeway_http_requests_in_flight 0",
            "causeway_http_duration_seconds_count 4",
            "causeway_http_tier_requests_total{tier=\"ram\"} 0",
            "causeway_http_tier_requests_total{tier=\"disk\"} 2",
            "causeway_http_tier_requests_total{tier=\"none\"} 1",
            "causeway_http_tier_bytes_total{tier=\"disk\"} 10",
            "causeway_http_tier_first_byte_seconds_count{tier=\"disk\"} 2",
            "causeway_http_tier_first_byte_seconds_bucket{le=\"+Inf\",tier=\"disk\"} 2",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn the_tier_of_a_site_has_series_from_its_first_response_on() {
        let mut registry = Registry::default();
        let metrics = Arc::new(HttpMetrics::register(&mut registry));
        let tiers = || metrics.figures().tiers.into_iter().map(|responses| responses.tier).collect::<Vec<_>>();
        assert_eq!(tiers(), ["ram", "disk", "network", "none"]);
        assert!(!scrape(&registry).contains("\"site\""));
        let mut exchange = Exchange::begin(&metrics, &Method::GET, Version::HTTP_11);
        exchange.head(StatusCode::OK, &HeaderMap::new(), Some(ContentTier::Site));
        exchange.sent(10);
        drop(exchange);
        assert_eq!(tiers(), ["ram", "disk", "site", "network", "none"]);
        let text = scrape(&registry);
        for line in [
            "causeway_http_tier_requests_total{tier=\"site\"} 1",
            "causeway_http_tier_bytes_total{tier=\"site\"} 10",
            "causeway_http_tier_first_byte_seconds_count{tier=\"site\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
