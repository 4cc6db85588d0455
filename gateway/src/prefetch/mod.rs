//! Prefetch of what a browser loads for an HTML page: its stylesheets, scripts and images.
//!
//! A browser requests them when it has read the page, and each request then costs further round trips to peers. So
//! when a page is fetched from the network for a browser, its bytes are read as they pass ([`watch`]), and the paths
//! below the same root that its URLs lead to ([`html`], [`urls`]) are fetched in the background. The browser's own
//! requests find the blocks, or wait for the same fetches (singleflight).
//!
//! Goals:
//! - The page does not wait for any of this.
//! - A prefetch obeys what a request of the same client would obey: the policy for blocks, paths and names, the
//!   client's limits of fetches, rate and memory, and the limits of a request. It takes only permits and tokens that
//!   are free at once, and no more than half of the permits; without one it gives up.
//! - It is bounded for each page ([`PATHS_MAX`], [`BYTES_MAX`], [`TIME_MAX`]), and so is the number of pages.
//! - No other request gets an error that is about a prefetch. Paths are traversed without singleflight, and the bounds
//!   apply above the tiers, where fetches of blocks are shared. A missing permit, the only error of a prefetch from
//!   below the tiers, is a leader-only error.
//!
//! It ends when the client leaves before it has received the page. A client that has received it is still there, but
//! the gateway cannot know for how long: its connection may end with the page. So the prefetch continues then, for
//! [`TIME_MAX`] at most.
//!
//! Non-goals: what stylesheets and scripts load themselves; other roots; pages that are stored locally, whose
//! subresources most likely are stored too.

pub mod budget;
pub mod html;
pub mod urls;
pub mod watch;

use crate::limits::RequestLimits;
use crate::metrics::{PrefetchMetrics, PrefetchOutcome};
use crate::request::Ask;
use crate::request::client::Client;
use crate::request::negotiate::{Format, wants_html};
use crate::request::route::Place;
use crate::resolve::source::{LimitedClient, RootSource, Sources, Tier};
use crate::resolve::{Entity, INDEX, Target};
use content::budget::{Budget, Share};
use content::scope::{DagScope, EntityBytes, ScopeOptions};
use content::unixfs::Node;
use content::unixfs::dir::{self, DirError};
use content::unixfs::file::{FileReader, ReadError, ReadLimits, file_size};
use content::walk::{self, Purpose, WalkError};
use content::{Block, BlockSource, Cid, ContentPath, NameResolver, Policy, ReadAhead, SourceError, Verdict, Work};
use futures::StreamExt as _;
use futures::future::{BoxFuture, pending};
use futures::stream::FuturesUnordered;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RANGE};
use http::{HeaderMap, StatusCode};
use services::limiter::{Limiter, Permit};
use services::rate_limiter::RateLimiter;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use self::budget::{CountedSource, PageBudget};
use self::html::{Found, Kind, Scan, Step};
use self::urls::{Base, PageUrl};
use self::watch::{LOOKED_BYTES_MAX, PageWatch};

/// The maximum number of paths for one page.
pub const PATHS_MAX: usize = 100;
/// The maximum number of URLs of a page that are resolved.
const URLS_MAX: usize = 1000;
/// The work of resolving one, in steps.
const STEPS_PER_URL: u64 = 32;
/// The maximum size of all blocks for one page, in bytes; see [`budget`] for blocks in flight.
pub const BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The maximum number of paths of one page that are fetched at a time.
pub const IN_FLIGHT_MAX: usize = 16;
/// Of a longer file, so many bytes at its beginning are fetched.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The maximum length of such a path, in bytes.
const PATH_BYTES_MAX: usize = 2048;
/// How long the prefetch continues when its page was sent.
pub const TIME_MAX: Duration = Duration::from_secs(10);
/// The maximum number of pages at a time, and of those of one client.
pub const PAGES_MAX: usize = 256;
const CLIENT_PAGES_MAX: usize = 8;
/// The maximum read-ahead of one file, in bytes.
const WINDOW_BYTES_MAX: usize = 512 * 1024;
/// Bytes of a page that are read in one step of work.
const BYTES_PER_WORK_STEP: usize = 16;

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

/// Why a path was not fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotFetched {
    /// It leads to no file, is denied, or was not received.
    Failed,
    /// The client has no permit or token for it, or the page's budget is used up.
    GaveUp,
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
        let client = LimitedClient {
            address: client.group(),
            connection_memory: client.connection_memory.clone(),
            rates: self.inner.rates.clone(),
            // The trace ends with the page.
            trace: None,
            is_background: true,
        };
        let stored = headers.contains_key(CONTENT_ENCODING).then_some((entity.root, entity.cid));
        Some(Arc::new(Page { inner: Arc::clone(&self.inner), url, client, stored }))
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
        if let Some(watch) = self.watch.as_ref().filter(|_| self.is_plain) {
            watch.end();
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
    /// Begins the prefetch, unless too many run.
    fn begin(self: Arc<Self>) -> Option<Arc<PageWatch>> {
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
        self.inner.metrics.bytes.inc_by(budget.bytes());
        let given_up = prefetch.waiting.len() + prefetch.in_flight.len();
        self.inner.metrics.count(PrefetchOutcome::GaveUp, given_up);
    }
}

/// The prefetch of one page.
struct Prefetch {
    page: Arc<Page>,
    base: Base,
    /// The hashes of the paths that were found.
    known: HashSet<u64>,
    hasher: RandomState,
    /// Those that are not fetched yet, in the order in which browsers need them.
    waiting: BTreeMap<(Kind, usize), ContentPath>,
    in_flight: FuturesUnordered<BoxFuture<'static, Result<(), NotFetched>>>,
    in_flight_max: usize,
    budget: Arc<PageBudget>,
    /// The processor budget: that of one request.
    work: Work,
}

impl Prefetch {
    fn new(page: &Arc<Page>) -> Self {
        let Inner { sources, limits, .. } = &*page.inner;
        Self {
            base: page.url.base(),
            known: HashSet::new(),
            hasher: RandomState::new(),
            waiting: BTreeMap::new(),
            in_flight: FuturesUnordered::new(),
            in_flight_max: IN_FLIGHT_MAX.min(sources.fetches.spare_of_client()),
            budget: Arc::new(PageBudget::new(BYTES_MAX)),
            work: Work::new(limits.work_steps_max),
            page: Arc::clone(page),
        }
    }

    /// Reads the page and fetches its paths, to the end of both.
    async fn run(&mut self, watch: &PageWatch) {
        let (mut bytes, mut scanned_bytes) = (Vec::new(), 0);
        let mut deadline = pin!(None::<Sleep>);
        loop {
            self.start_next();
            let has_page = deadline.is_some();
            if has_page && self.in_flight.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                Some(fetched) = self.in_flight.next() => self.count(fetched),
                ended = self.page.more(watch, &mut bytes), if !has_page => {
                    // The tokeniser cannot continue where the bytes end, so the page is scanned from its beginning, and
                    // as often as its length doubles.
                    if ended || bytes.len() >= 2 * scanned_bytes {
                        scanned_bytes = bytes.len();
                        if self.scan(&bytes).await.is_err() {
                            return;
                        }
                    }
                    if ended {
                        bytes = Vec::new();
                        watch.release();
                        deadline.set(Some(tokio::time::sleep(TIME_MAX)));
                    }
                }
                () = passed(deadline.as_mut()), if has_page => return,
            }
        }
    }

    fn count(&mut self, fetched: Result<(), NotFetched>) {
        let metrics = &self.page.inner.metrics;
        match fetched {
            Ok(()) => metrics.count(PrefetchOutcome::Fetched, 1),
            Err(NotFetched::Failed) => metrics.count(PrefetchOutcome::Failed, 1),
            Err(NotFetched::GaveUp) => {
                metrics.count(PrefetchOutcome::GaveUp, 1 + self.waiting.len());
                self.waiting.clear();
                self.in_flight_max = 0;
            }
        }
    }

    /// Begins to fetch paths, as many as may be fetched at a time.
    fn start_next(&mut self) {
        while self.in_flight.len() < self.in_flight_max
            && let Some((_, path)) = self.waiting.pop_first()
        {
            let (page, budget, work) = (Arc::clone(&self.page), Arc::clone(&self.budget), self.work.clone());
            self.in_flight.push(Box::pin(async move { page.fetch(path, budget, work).await }));
        }
    }

    /// Finds what the page loads.
    async fn scan(&mut self, page: &[u8]) -> Result<(), SourceError> {
        let bytes_per_step = html::BYTES_PER_STEP / BYTES_PER_WORK_STEP;
        self.base = self.page.url.base();
        let (mut has_base, mut urls) = (false, 0);
        for step in Scan::new(page) {
            self.work.charge(1);
            match step {
                Step::Pause => self.work.charge(bytes_per_step as u64),
                Step::Found(Found::Base(href)) if !has_base => {
                    (has_base, self.base) = (true, self.page.url.base_of(&href));
                }
                Step::Found(Found::Base(_)) => {}
                Step::Found(Found::Load(kind, url)) => {
                    urls += 1;
                    if urls > URLS_MAX || self.is_full() {
                        return Ok(());
                    }
                    self.work.charge(STEPS_PER_URL);
                    self.add(kind, &url);
                }
            }
            self.work.turn().await?;
        }
        Ok(())
    }

    /// Whether no further paths count.
    fn is_full(&self) -> bool {
        self.known.len() >= PATHS_MAX || self.in_flight_max == 0
    }

    /// Adds a path, once.
    fn add(&mut self, kind: Kind, url: &str) {
        let order = self.known.len();
        let Some(path) = self.page.url.content(&self.base, url) else { return };
        let is_long = path.segments.iter().map(String::len).sum::<usize>() > PATH_BYTES_MAX;
        if !is_long && self.known.insert(self.hasher.hash_one((&path.segments, path.trailing_slash))) {
            self.waiting.insert((kind, order), path);
        }
    }
}

/// Waits for a deadline, if there is one.
async fn passed(deadline: Pin<&mut Option<Sleep>>) {
    match deadline.as_pin_mut() {
        Some(deadline) => deadline.await,
        None => pending().await,
    }
}

impl Page {
    /// Waits for further bytes of the page. Returns whether they are the last ones that are read.
    async fn more(&self, watch: &PageWatch, bytes: &mut Vec<u8>) -> bool {
        if let Some((root, cid)) = &self.stored {
            // Whatever part of it can be read counts.
            _ = self.read_stored(*root, cid, watch).await;
            watch.end();
        }
        watch.more(bytes).await
    }

    /// Reads a page that is stored locally. Nothing else is done meanwhile.
    async fn read_stored(&self, root: Cid, cid: &Cid, watch: &PageWatch) -> Result<(), ReadError> {
        let work = Work::new(self.inner.limits.work_steps_max);
        let source = RootSource::within(&self.inner.sources, root, self.client.clone(), true, work);
        let block = source.fetch(cid).await?;
        let end = file_size(&block)?.min(LOOKED_BYTES_MAX as u64);
        let mut reader = FileReader::new(source, block, 0..end, self.read_limits())?;
        while let Some(chunk) = reader.next().await.transpose()? {
            watch.pass(&chunk);
        }
        Ok(())
    }

    fn read_limits(&self) -> ReadLimits {
        ReadLimits {
            window_bytes_max: WINDOW_BYTES_MAX.min(self.inner.limits.window_bytes_max),
            shared: Some(self.memory()),
        }
    }

    /// Fetches the file at a path, or the `index.html` of a directory, into the local tiers, as a request for it would.
    async fn fetch(&self, path: ContentPath, budget: Arc<PageBudget>, work: Work) -> Result<(), NotFetched> {
        let target = self.target(path).await.ok_or(NotFetched::Failed)?;
        let source = RootSource::within(&self.inner.sources, target.root, self.client.clone(), false, work);
        let source: Arc<dyn BlockSource> = Arc::new(CountedSource::new(source.paced(), Arc::clone(&budget)));
        let fetched = async {
            let Some(block) = self.file(&source, &target).await? else { return Ok(false) };
            let end = file_size(&block)?.min(FILE_BYTES_MAX);
            let mut reader = FileReader::new(source, block, 0..end, self.read_limits())?;
            while reader.next().await.transpose()?.is_some() {}
            Ok::<_, FetchError>(true)
        };
        match fetched.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(NotFetched::Failed),
            Err(FetchError(error)) => Err(match error {
                Some(error) if error.is_of_client() || budget.is_used_up() => NotFetched::GaveUp,
                _ => NotFetched::Failed,
            }),
        }
    }

    /// The target of a path, if a request for it would not be refused. A name that has to be looked up is not worth it:
    /// the page's own was looked up a moment ago.
    async fn target(&self, path: ContentPath) -> Option<Target> {
        let Inner { policy, names, .. } = &*self.inner;
        if policy.serves_only_listed() && policy.check_entry(&path.root, &path.segments.join("/")) != Verdict::Allow {
            return None;
        }
        match futures::poll!(pin!(Target::of(path, &**names, &**policy))) {
            Poll::Ready(target) => target.ok(),
            Poll::Pending => None,
        }
    }

    /// The root block of the file at the end of a path; `None` if there is no file.
    async fn file(&self, source: &Arc<dyn BlockSource>, target: &Target) -> Result<Option<Block>, FetchError> {
        let policy = &*self.inner.policy;
        let purpose = Purpose { scope: scope(), further: target.trailing_slash.then_some(INDEX) };
        let resolved = walk::resolve_for(source, policy, target.root, &target.segments, &purpose).await?;
        match Node::decode(&resolved.block).map_err(WalkError::from)? {
            Node::File(_) => return Ok(Some(resolved.block)),
            Node::Directory(_) | Node::HamtShard(_) if target.trailing_slash => {}
            _ => return Ok(None),
        }
        let cid = match dir::lookup(source, &resolved.block, INDEX).await {
            Ok(Some(cid)) => cid,
            Err(DirError::Source(error)) => return Err(error.into()),
            Ok(None) | Err(_) => return Ok(None),
        };
        resolved.check_further(policy, &target.segments, INDEX)?;
        match source.peek(&cid) {
            Some(block) => Ok(Some(block)),
            None => Ok(Some(source.get_ahead(&cid, &ReadAhead::below(cid, scope())).await?)),
        }
    }
}

/// What is fetched of a file.
fn scope() -> ScopeOptions {
    let last = i64::try_from(FILE_BYTES_MAX).unwrap_or(i64::MAX) - 1;
    ScopeOptions { scope: DagScope::File, entity_bytes: EntityBytes::new(0, Some(last)).ok(), duplicates: false }
}

/// Why a file could not be fetched: the error of its source, or something that is wrong with it.
struct FetchError(Option<SourceError>);

impl From<SourceError> for FetchError {
    fn from(error: SourceError) -> Self {
        Self(Some(error))
    }
}

impl From<WalkError> for FetchError {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Source(error) => Self(Some(error)),
            _ => Self(None),
        }
    }
}

impl From<ReadError> for FetchError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Source(error) => Self(Some(error)),
            _ => Self(None),
        }
    }
}
