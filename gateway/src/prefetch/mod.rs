//! Prefetch of what a browser loads for an HTML page: its stylesheets, scripts and images.
//!
//! A browser requests them when it has read the page, and each request then costs further round trips to peers. So
//! when a page is fetched from the network for a browser, its bytes are read as they pass, and the paths below the same
//! root that its URLs lead to are fetched in the background. The browser's own requests find the blocks, or wait for the
//! same fetches (singleflight).
//!
//! Goals:
//! - The page does not wait for any of this.
//! - A prefetch obeys what a request of the same client would obey: the policy for blocks, paths and names, the
//!   client's limits of fetches, rate and memory, and the limits of a request. It takes only permits and tokens that
//!   are free at once, and only while half of them are left; without one it gives up. Its permits are not among those
//!   of requests. What its blocks in flight cost of the client's rate is known when they have arrived; so much it may
//!   exceed its half of the burst.
//! - It is bounded for each page ([`PATHS_MAX`], [`BYTES_MAX`], [`RequestLimits::prefetch_time_max`]), and so is the
//!   number of pages.
//! - No other request gets an error that is about a prefetch. Paths are traversed without singleflight, and the bounds
//!   apply above the tiers, where fetches of blocks are shared. A missing permit, the only error of a prefetch from
//!   below the tiers, is a leader-only error.
//!
//! It ends when the client leaves before it has received the page. A client that has received it is still there, but
//! the gateway cannot know for how long: its connection may end with the page. So the prefetch continues then, for
//! [`RequestLimits::prefetch_time_max`] at most. Until the page is sent, it lives as long as the request.
//!
//! | module | concern |
//! |---|---|
//! | [`watch`] | the page's first bytes, for the task that reads them |
//! | [`html`] | the URLs in them |
//! | [`urls`] | the paths that these lead to |
//! | `run` | the task: reads the page, and fetches a few paths at a time |
//! | `fetch` | one path |
//! | [`budget`] | the bytes of one page |
//!
//! Non-goals: what stylesheets and scripts load themselves; other roots; pages that are stored locally, whose
//! subresources most likely are stored too.

pub mod budget;
mod fetch;
pub mod html;
mod run;
pub mod urls;
pub mod watch;

use self::fetch::PageName;
use self::run::Prefetch;
use self::urls::PageUrl;
use self::watch::PageWatch;
use crate::limits::RequestLimits;
use crate::metrics::PrefetchMetrics;
use crate::request::Ask;
use crate::request::client::Client;
use crate::request::negotiate::{Format, wants_html};
use crate::request::route::Place;
use crate::resolve::Entity;
use crate::resolve::source::{LimitedClient, Sources, Tier};
use content::budget::{Budget, Share};
use content::path::Root;
use content::unixfs::file::ReadLimits;
use content::{Cid, NameResolver, Policy};
use futures::FutureExt as _;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RANGE};
use http::{HeaderMap, StatusCode};
use services::limiter::{Limiter, Permit};
use services::rate_limiter::RateLimiter;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The maximum number of paths for one page.
pub const PATHS_MAX: usize = 100;
/// The maximum size of all blocks for one page, in bytes; see [`budget`] for blocks in flight.
pub const BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The maximum number of paths of one page that are fetched at a time.
pub const IN_FLIGHT_MAX: usize = 16;
/// Of a longer file, so many bytes at its beginning are fetched.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The maximum number of pages at a time.
pub const PAGES_MAX: usize = 256;
/// The maximum number of pages of one client at a time.
pub const CLIENT_PAGES_MAX: usize = 8;
/// The maximum read-ahead of one file, in bytes.
const WINDOW_BYTES_MAX: usize = 512 * 1024;

/// Prefetches for pages. Clones share it.
#[derive(Clone)]
pub struct Prefetcher {
    inner: Arc<Inner>,
}

struct Inner {
    is_enabled: bool,
    sources: Arc<Sources>,
    names: Arc<dyn NameResolver>,
    policy: Arc<dyn Policy>,
    rates: Option<Arc<RateLimiter>>,
    limits: RequestLimits,
    metrics: PrefetchMetrics,
    /// Limits the pages.
    pages: Arc<Limiter>,
    /// Cancelled at shutdown.
    stop: CancellationToken,
}

/// What a prefetcher needs of the gateway.
pub struct PrefetchWiring {
    /// The sources of blocks.
    pub sources: Arc<Sources>,
    /// The name resolver.
    pub names: Arc<dyn NameResolver>,
    /// The policy.
    pub policy: Arc<dyn Policy>,
    /// The limiter of clients' rates.
    pub rates: Option<Arc<RateLimiter>>,
    /// The limits of a request.
    pub limits: RequestLimits,
    /// The metrics.
    pub metrics: PrefetchMetrics,
}

/// The response with a file that may be a page.
#[derive(Clone, Copy)]
pub struct PageResponse<'a> {
    /// The request.
    pub ask: &'a Ask<'a>,
    /// The origin in which it is shown.
    pub place: &'a Place,
    /// The client.
    pub client: &'a Client,
    /// The file.
    pub entity: &'a Entity,
    /// The farthest tier that was read for it.
    pub tier: Tier,
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: &'a HeaderMap,
}

/// A page whose subresources are prefetched once it is sent.
pub struct Page {
    inner: Arc<Inner>,
    url: PageUrl,
    client: LimitedClient,
    /// What its name resolves to, if it has one.
    name: PageName,
    /// The root and the file, if the page is sent in a content coding: then it is stored locally, and is read there.
    stored: Option<(Cid, Cid)>,
}

/// Reads a page as it passes to its client. Dropping it before the page's end ends the prefetch.
pub struct PageTap {
    /// The page, until its first bytes.
    page: Option<Arc<Page>>,
    watch: Option<Arc<PageWatch>>,
    /// Whether the bytes that pass are those of the page, and not of a content coding of it.
    is_plain: bool,
    ended: bool,
}

impl Prefetcher {
    /// A prefetcher, which does nothing unless it is enabled.
    pub fn new(is_enabled: bool, wiring: PrefetchWiring) -> Self {
        let PrefetchWiring { sources, names, policy, rates, limits, metrics } = wiring;
        let (pages, stop) = (Arc::new(Limiter::new(PAGES_MAX, CLIENT_PAGES_MAX)), CancellationToken::new());
        Self { inner: Arc::new(Inner { is_enabled, sources, names, policy, rates, limits, metrics, pages, stop }) }
    }

    /// Ends all prefetches; no further ones begin.
    pub fn stop(&self) {
        self.inner.stop.cancel();
    }

    /// The number of pages whose subresources are being prefetched.
    pub fn running(&self) -> usize {
        self.inner.pages.held()
    }

    /// The page in a response, if what it loads is prefetched: a browser navigates to it, and it was not stored
    /// locally.
    pub fn page(&self, response: PageResponse<'_>) -> Option<Arc<Page>> {
        let has_permits = self.inner.sources.fetches.spare_of_client() > 0;
        if !self.inner.is_enabled || !has_permits || !response.is_fetched_page() {
            return None;
        }
        let PageResponse { ask, place, client, entity, headers, .. } = response;
        let RequestLimits { path_depth_max, url_bytes_max, .. } = self.inner.limits;
        let url = PageUrl::of(ask, place, client, path_depth_max, url_bytes_max)?;
        let name = match url.root() {
            Root::Cid(_) => None,
            // It was looked up for the page a moment ago. If it has to be looked up again, that is not worth it.
            Root::Name(name) => Some(self.inner.names.resolve(name).now_or_never()?.ok()?),
        };
        let client = LimitedClient {
            address: client.group(),
            connection_memory: client.connection_memory.clone(),
            rates: self.inner.rates.clone(),
            // The trace ends with the page.
            trace: None,
            is_background: true,
        };
        let stored = headers.contains_key(CONTENT_ENCODING).then_some((entity.root, entity.cid));
        Some(Arc::new(Page { inner: Arc::clone(&self.inner), url, client, name: PageName(name), stored }))
    }
}

impl PageResponse<'_> {
    fn is_fetched_page(&self) -> bool {
        let Self { ask, tier, status, headers, .. } = self;
        let is_html = |value: &http::HeaderValue| {
            let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
            essence.trim_ascii().eq_ignore_ascii_case(b"text/html")
        };
        *tier == Tier::Network
            && *status == StatusCode::OK
            && !ask.head_only
            && !ask.only_if_cached
            && !ask.download
            && ask.wanted.format == Format::Native
            && !ask.headers.contains_key(RANGE)
            && wants_html(ask.headers)
            && headers.get(CONTENT_TYPE).is_some_and(is_html)
    }
}

impl PageTap {
    /// Begins with the page's first bytes.
    pub fn new(page: Arc<Page>) -> Self {
        Self { is_plain: page.stored.is_none(), page: Some(page), watch: None, ended: false }
    }

    /// Bytes of the response are sent.
    pub fn pass(&mut self, bytes: &[u8]) {
        if let Some(page) = self.page.take() {
            self.watch = page.begin();
        }
        if let Some(watch) = self.watch.as_ref().filter(|_| self.is_plain) {
            watch.pass(bytes);
        }
    }

    /// The whole response was sent.
    pub fn end(&mut self) {
        self.ended = true;
        if let Some(watch) = &self.watch {
            if self.is_plain {
                watch.end();
            }
            watch.sent();
        }
    }
}

impl Drop for PageTap {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.as_ref().filter(|_| !self.ended) {
            watch.leave();
        }
    }
}

impl Page {
    /// Begins the prefetch, unless too many run, or it was stopped.
    fn begin(self: Arc<Self>) -> Option<Arc<PageWatch>> {
        if self.inner.stop.is_cancelled() {
            return None;
        }
        let permit = self.inner.pages.try_acquire(self.client.address).ok()?;
        let memory = Share::of(Some(self.memory()));
        let watch = Arc::new(PageWatch::new(memory));
        self.inner.metrics.pages.inc();
        tokio::spawn(self.run(Arc::clone(&watch), permit));
        Some(watch)
    }

    fn memory(&self) -> Arc<Budget> {
        let memory = self.inner.limits.memory_of(self.client.address);
        memory.of_connection(self.client.connection_memory.as_ref()).budget()
    }

    fn read_limits(&self) -> ReadLimits {
        ReadLimits {
            window_bytes_max: WINDOW_BYTES_MAX.min(self.inner.limits.window_bytes_max),
            shared: Some(self.memory()),
        }
    }

    async fn run(self: Arc<Self>, watch: Arc<PageWatch>, _permit: Permit) {
        let mut prefetch = Prefetch::new(&self);
        let stop = self.inner.stop.clone();
        let budget = Arc::clone(&prefetch.budget);
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = watch.left() => {}
            () = budget.exceeded() => {}
            () = prefetch.run(&watch) => {}
        }
        watch.close();
        prefetch.end().await;
        self.inner.metrics.bytes.inc_by(budget.bytes());
    }
}
