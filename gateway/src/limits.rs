//! [`RequestLimits`]: the configured limits of one request to the public listener, and [`ClientMemory`]: the memory of
//! its client for response bodies.

use content::budget::{Budget, Share};
use content::scope::ScopeLimits;
use content::tar::TarLimits;
use content::unixfs::file::ReadLimits;
use services::client_budgets::ClientBudgets;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long the prefetch of what a page loads continues when the page was sent.
const PREFETCH_TIME_MAX: Duration = Duration::from_secs(10);

/// The limits of a request.
#[derive(Debug, Clone)]
pub struct RequestLimits {
    /// The maximum length of a path and query, in bytes.
    pub url_bytes_max: usize,
    /// The maximum number of path segments.
    pub path_depth_max: usize,
    /// The maximum read-ahead of a file, in bytes.
    pub window_bytes_max: usize,
    /// The memory of all response bodies.
    pub memory: Arc<ClientBudgets>,
    /// The maximum size of a buffered HTTP/1.0 response, in bytes.
    pub http10_buffer_bytes_max: u64,
    /// The size of the caches of resolved paths and of sites' `_redirects`, in bytes.
    pub paths_bytes_max: u64,
    /// The size of the cache of listings, in bytes.
    pub listings_bytes_max: u64,
    /// The maximum length of a response, in bytes.
    pub response_bytes_max: u64,
    /// The timeout from a request's head to the last byte of its response.
    pub request_timeout: Duration,
    /// The maximum number of entries on one page of a listing.
    pub listing_entries_max: usize,
    /// The maximum number of concurrent archives.
    pub archives_max: usize,
    /// The maximum number of concurrent archives of one client.
    pub client_archives_max: usize,
    /// The maximum number of concurrent requests over HTTP/2 and of clients behind trusted proxies.
    pub requests_max: usize,
    /// The maximum number of those of one client.
    pub client_requests_max: usize,
    /// The maximum number of concurrent name look-ups of one client.
    pub client_lookups_max: usize,
    /// The mean rate of one client's requests that need the network, per second; 0 for no limit.
    pub client_misses_per_second: u32,
    /// How many of them the client may send at once after a pause.
    pub client_misses_burst: u32,
    /// The limits of a CAR.
    pub scope: ScopeLimits,
    /// The limits of a TAR.
    pub tar: TarLimits,
    /// Whether codecs are converted.
    pub convert_codecs: bool,
    /// The processor budget in steps, in addition to the steps that sent bytes earn.
    pub work_steps_max: u64,
    /// How long a prefetch of what a page loads continues when the page was sent.
    pub prefetch_time_max: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        let http = config::Http::default();
        Self::of(&http, &config::Cache::default())
    }
}

impl RequestLimits {
    /// The configured limits.
    pub fn of(http: &config::Http, cache: &config::Cache) -> Self {
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let rate = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let window_bytes_max = size(http.read_ahead_bytes_max);
        Self {
            url_bytes_max: size(http.url_bytes_max),
            path_depth_max: size(http.path_depth_max),
            window_bytes_max,
            memory: Arc::new(ClientBudgets::new(size(http.read_ahead_total_bytes_max))),
            http10_buffer_bytes_max: http.http10_buffer_bytes_max,
            paths_bytes_max: cache.paths_bytes_max,
            listings_bytes_max: cache.listings_bytes_max,
            response_bytes_max: http.response_bytes_max,
            request_timeout: Duration::from_secs(http.request_timeout_seconds),
            listing_entries_max: size(http.listing_entries_max),
            archives_max: size(http.archives_max),
            client_archives_max: size(http.client_archives_max),
            requests_max: size(http.connections_max),
            client_requests_max: size(http.client_connections_max),
            client_lookups_max: size(config::Names::default().client_lookups_max),
            client_misses_per_second: rate(http.client_misses_per_second),
            client_misses_burst: rate(http.client_misses_burst),
            scope: ScopeLimits {
                depth_max: size(http.dag_depth_max),
                seen_max: size(http.dag_blocks_max),
                repeated_bytes_max: http.dag_repeated_bytes_max,
                look_ahead_bytes_max: window_bytes_max,
            },
            tar: TarLimits {
                depth_max: size(http.dag_depth_max),
                entries_max: http.dag_blocks_max,
                bytes_max: http.response_bytes_max,
                window_bytes_max,
            },
            convert_codecs: http.convert_codecs,
            work_steps_max: http.work_steps_max,
            prefetch_time_max: PREFETCH_TIME_MAX,
        }
    }

    /// The memory of one client.
    pub fn memory_of(&self, client: IpAddr) -> ClientMemory<'_> {
        ClientMemory { limits: self, client, connection: None }
    }
}

/// One of the requests that run at the same time has at most this part of their memory for its window.
const CONCURRENT_WINDOWS: usize = 4;

/// The memory for one client's response bodies. Its budget is looked up only for bodies that reserve some of it, so
/// that others take no lock.
#[derive(Debug, Clone, Copy)]
pub struct ClientMemory<'a> {
    limits: &'a RequestLimits,
    client: IpAddr,
    /// The part of it that the requests of one connection share, if they run at the same time.
    connection: Option<&'a Arc<Budget>>,
}

impl<'a> ClientMemory<'a> {
    /// The memory of a connection, a part of the client's budget, if its requests share one.
    pub fn of_connection(self, connection: Option<&'a Arc<Budget>>) -> Self {
        Self { connection, ..self }
    }

    /// A budget for the requests of one connection that run at the same time: as much as one request has alone.
    pub fn for_connection(self) -> Budget {
        Budget::within(self.budget(), self.limits.window_bytes_max)
    }

    /// The client's budget, or the part of it that is its connection's.
    pub fn budget(self) -> Arc<Budget> {
        self.connection.map_or_else(|| self.limits.memory.of(self.client), Arc::clone)
    }

    /// A share of zero bytes of the budget.
    pub fn share(self) -> Share {
        Share::of(Some(self.budget()))
    }

    /// The limits for reading a file.
    pub fn read_limits(self) -> ReadLimits {
        let windows = if self.connection.is_some() { CONCURRENT_WINDOWS } else { 1 };
        ReadLimits { window_bytes_max: self.limits.window_bytes_max / windows, shared: Some(self.budget()) }
    }
}
