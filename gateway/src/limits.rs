//! [`Limits`]: the configured limits of one request to the public listener.

use content::budget::Budget;
use content::scope::ScopeLimits;
use content::tar::TarLimits;
use content::unixfs::file::ReadLimits;
use std::sync::Arc;
use std::time::Duration;

/// The limits of a request.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The maximum length of a path and query, in bytes.
    pub url_bytes_max: usize,
    /// The maximum number of path segments.
    pub path_depth_max: usize,
    /// The read-ahead of files.
    pub read: ReadLimits,
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
    /// The maximum number of concurrent requests over HTTP/2.
    pub requests_max: usize,
    /// The maximum number of concurrent requests of one client behind trusted proxies, and over HTTP/2.
    pub client_requests_max: usize,
    /// The maximum number of concurrent name look-ups of one client.
    pub client_lookups_max: usize,
    /// The limits of a CAR.
    pub scope: ScopeLimits,
    /// The limits of a TAR.
    pub tar: TarLimits,
    /// Whether codecs are converted.
    pub convert_codecs: bool,
    /// The processor budget in steps, in addition to the steps that sent bytes earn.
    pub work_steps_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let http = config::Http::default();
        Self::of(&http, &config::Cache::default())
    }
}

impl Limits {
    /// The configured limits.
    pub fn of(http: &config::Http, cache: &config::Cache) -> Self {
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let window_bytes_max = size(http.read_ahead_bytes_max);
        let shared = Arc::new(Budget::new(size(http.read_ahead_total_bytes_max)));
        Self {
            url_bytes_max: size(http.url_bytes_max),
            path_depth_max: size(http.path_depth_max),
            read: ReadLimits { window_bytes_max, shared: Some(shared) },
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
        }
    }
}
