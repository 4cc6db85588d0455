//! [`Limits`]: what one request to the public listener may cost, as configured.

use content::budget::Budget;
use content::scope::ScopeLimits;
use content::tar::TarLimits;
use content::unixfs::file::ReadLimits;
use std::sync::Arc;
use std::time::Duration;

/// What a request may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a path and query.
    pub url_bytes_max: usize,
    /// Segments of a path.
    pub path_depth_max: usize,
    /// How far files are read ahead of a response's reader.
    pub read: ReadLimits,
    /// Bytes collected for an HTTP/1.0 client.
    pub http10_buffer_bytes_max: u64,
    /// Bytes of remembered paths, and of what sites say of those that are not there.
    pub paths_bytes_max: u64,
    /// Bytes of remembered pages of listings.
    pub listings_bytes_max: u64,
    /// Bytes of one response.
    pub response_bytes_max: u64,
    /// From a request's head to the last byte of its response.
    pub request_timeout: Duration,
    /// Entries on one page of a listing.
    pub listing_entries_max: usize,
    /// Archives that are made at a time.
    pub archives_max: usize,
    /// Archives that are made for one client at a time.
    pub client_archives_max: usize,
    /// Requests of one client behind trusted proxies that are answered at a time.
    pub client_requests_max: usize,
    /// Requests of one client that wait for names at a time.
    pub client_lookups_max: usize,
    /// What a CAR may hold.
    pub scope: ScopeLimits,
    /// What a TAR may hold.
    pub tar: TarLimits,
    /// Whether codecs are converted.
    pub convert_codecs: bool,
    /// Steps of work, besides those that are earned by what is sent.
    pub work_steps_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let http = config::Http::default();
        Self::of(&http, &config::Cache::default())
    }
}

impl Limits {
    /// The limits that are configured.
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
