//! [`Listings`]: the cache of listing pages, which are generated once for concurrent requests (singleflight).
//!
//! Goals: a cached page is sent with its length and costs one look-up; concurrent requests for an uncached page share
//! one writer and stream what it has written, so that none waits for the last entry; an aborted page is never cached; a
//! page that is too long for the cache is streamed to each reader by itself.
//!
//! The waiting rule is that of [`cache::singleflight`]: a page is generated as long as it has a reader, with the
//! leader's blocks. A leader-only error, such as a missing permit for the network, makes the followers retry, and so
//! does a leader whose client has no memory left; after [`LEADER_ONLY_ERRORS_MAX`] such ends a follower generates the
//! page for itself.
//!
//! [`selection`]: filtering and sorting of entries.
//!
//! Entries are valid for one generation of the policy, which is part of the key, as is everything else that the bytes
//! depend on. Chunks that not all readers have read yet count against the memory of the leader's client, even if only a
//! follower is slow: for at most as long as its connection is above the minimum rate (`http.rate_bytes_min`).

pub mod selection;

use self::selection::Selection;
use crate::body::Content;
use crate::errors::Problem;
use crate::invalidate::{PurgeMode, invalidate_where};
use crate::metrics::ListingMetrics;
use crate::request::route::Links;
use crate::resolve::source::{RootSource, Tier};
use bytes::Bytes;
use cache::singleflight::{LEADER_ONLY_ERRORS_MAX, SharedCall, Singleflight, aside};
use content::budget::Share;
use futures::FutureExt as _;
use futures::future::ready;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use http::HeaderValue;
use moka::sync::Cache;
use services::client_budgets::ClientBudgets;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;
use tokio::sync::watch;

/// The maximum size of pages that share one writer, in bytes: about 2500 entries.
const PAGE_BYTES_MAX: usize = 1024 * 1024;
/// A page may use this part of the cache.
const PAGE_SHARE_MAX: u64 = 16;
/// The memory overhead of a cache entry, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 500;
/// The writer yields after a chunk of this size, in bytes.
const YIELD_BYTES: usize = 16 * 1024;

/// The chunks of a page.
pub type Chunks = BoxStream<'static, Result<Bytes, Problem>>;

/// Writes a page with the blocks of a source. All writers of a page write the same bytes.
pub type Writer = Arc<dyn Fn(Arc<RootSource>) -> Chunks + Send + Sync>;

/// Everything that the bytes of a page depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// The path to the directory, below its root CID.
    pub path: String,
    /// The displayed path.
    pub shown: String,
    /// The path of the URL.
    pub sent: String,
    /// The form of links to other content, with the host.
    pub links: Links,
    /// Whether it is the root of its site.
    pub is_root: bool,
    /// Whether it is JSON.
    pub json: bool,
    /// The name after which the page begins.
    pub after: Option<Vec<u8>>,
    /// The filter and the order.
    pub selection: Selection,
    /// The policy's generation.
    pub generation: u64,
}

/// A cached page.
#[derive(Debug)]
pub struct Page {
    /// Its entity tag.
    pub etag: HeaderValue,
    /// `X-Ipfs-Roots` of the path that leads to it.
    pub roots: HeaderValue,
    /// The whole page.
    pub bytes: Bytes,
}

/// A requested page.
pub struct Wanted {
    /// Its cache key.
    pub key: Key,
    /// Its entity tag.
    pub etag: HeaderValue,
    /// `X-Ipfs-Roots` of the path that leads to it.
    pub roots: HeaderValue,
    /// Its writer.
    pub writer: Writer,
}

/// The result of a singleflight call.
#[derive(Clone)]
enum Generated {
    /// The whole page.
    Whole(Bytes),
    /// The page cannot be shared. The leader continues with the rest.
    Unshared(Unshared, Arc<Mutex<Option<Chunks>>>),
}

/// Why a page cannot be shared.
#[derive(Debug, Clone, Copy)]
enum Unshared {
    /// It is too long. Followers write the page for themselves.
    TooLong,
    /// The leader's client has no memory left. Followers retry.
    NoMemory,
}

type Outcome = Result<Generated, Problem>;

/// The chunks that are written so far.
struct Written {
    chunks: Vec<Bytes>,
    bytes: usize,
    /// The farthest tier that was read.
    tier: Tier,
    share: Share,
}

/// The cached pages, and those in progress. Clones share the state.
#[derive(Clone)]
pub struct Listings {
    inner: Arc<Inner>,
}

struct Inner {
    cache: Cache<Key, Arc<Page>>,
    /// The maximum length of cached pages, in bytes.
    cached_bytes_max: usize,
    /// The maximum length of pages with a shared writer, in bytes.
    shared_bytes_max: usize,
    /// Requests with `only-if-cached` have calls of their own: the second part of the key.
    flights: Singleflight<(Key, bool), Outcome, watch::Receiver<Written>>,
    /// The memory for chunks that were written and not read yet.
    memory: Arc<ClientBudgets>,
    metrics: ListingMetrics,
}

impl Listings {
    /// A cache of at most `cache_bytes_max`. No page is longer than `response_bytes_max`; pages in progress count
    /// against `memory`.
    pub fn new(
        cache_bytes_max: u64,
        response_bytes_max: u64,
        memory: Arc<ClientBudgets>,
        metrics: ListingMetrics,
    ) -> Self {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let cache = Cache::builder().name("listings").max_capacity(cache_bytes_max).weigher(weight).build();
        let inner = Inner {
            cache,
            cached_bytes_max: size(cache_bytes_max / PAGE_SHARE_MAX),
            shared_bytes_max: PAGE_BYTES_MAX.min(size(response_bytes_max)),
            flights: Singleflight::default(),
            memory,
            metrics,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Invalidates all pages.
    pub fn invalidate_all(&self) {
        self.inner.cache.invalidate_all();
    }

    /// A cached page.
    pub fn get(&self, key: &Key) -> Option<Arc<Page>> {
        let page = self.inner.cache.get(key);
        if page.is_some() {
            self.inner.metrics.hits.inc();
        }
        page
    }

    /// Invalidates the pages that `concerns` selects; returns their number.
    pub fn invalidate_where(&self, concerns: impl Fn(&Key, &Page) -> bool, mode: PurgeMode) -> u64 {
        invalidate_where(&self.inner.cache, |key, page| concerns(key, page), mode)
    }

    /// A page with the blocks of `source`. Waits only for the first chunk, so that an unreadable directory gets an
    /// error status; if the page is complete by then, its length is known.
    ///
    /// # Errors
    /// [`Problem`] when the first chunk cannot be generated.
    pub async fn read(&self, wanted: Wanted, source: &Arc<RootSource>) -> Result<Content, Problem> {
        let mut reader = Reader::of(self.clone(), wanted, Arc::clone(source));
        let first = reader.next().await?.unwrap_or_default();
        if matches!(reader.chunks, ChunkSource::End) {
            return Ok(Content::Bytes(first));
        }
        let rest = stream::try_unfold(reader, |mut reader| async move {
            let chunk = reader.next().await?;
            Ok(chunk.map(|chunk| (chunk, reader)))
        });
        Ok(Content::Stream { stream: stream::once(ready(Ok(first))).chain(rest).boxed(), remaining: None })
    }

    /// The number of pages with a shared writer in progress.
    pub fn under_way(&self) -> usize {
        self.inner.flights.under_way()
    }
}

impl Inner {
    /// Joins the singleflight call for a page, or begins it.
    fn join(self: &Arc<Self>, wanted: &Arc<Wanted>, source: &Arc<RootSource>) -> SharedRead {
        let key = (wanted.key.clone(), source.is_local_only());
        let (flight, written, joined) = self.flights.join_observed(key, || {
            let share = Share::of(Some(self.memory.of(source.client())));
            let (page, written) = watch::channel(Written { chunks: Vec::new(), bytes: 0, tier: Tier::Ram, share });
            let (inner, wanted, source) = (Arc::clone(self), Arc::clone(wanted), Arc::clone(source));
            let flight = aside(async move { inner.write(&wanted, source, &page).await });
            (flight.map(|result| result.unwrap_or_else(|| Err(Problem::closed()))), written)
        });
        let counter = if joined { &self.metrics.joined } else { &self.metrics.misses };
        counter.inc();
        SharedRead { flight, result: None, written, next: 0, joined, since: Instant::now() }
    }

    /// Writes a page, and caches it if it is complete and short enough.
    async fn write(&self, wanted: &Wanted, source: Arc<RootSource>, page: &watch::Sender<Written>) -> Outcome {
        // An earlier call may have completed between this reader's look-up and the start of this call.
        if let Some(page) = self.cache.get(&wanted.key) {
            return Ok(Generated::Whole(page.bytes.clone()));
        }
        let mut chunks = (wanted.writer)(Arc::clone(&source));
        while let Some(chunk) = chunks.try_next().await? {
            let is_long = chunk.len() >= YIELD_BYTES;
            let mut pushed = Ok(());
            page.send_modify(|written| pushed = written.push(&chunk, self.shared_bytes_max, source.tier()));
            if let Err(cause) = pushed {
                let rest = stream::once(ready(Ok(chunk))).chain(chunks).boxed();
                return Ok(Generated::Unshared(cause, Arc::new(Mutex::new(Some(rest)))));
            }
            if is_long {
                tokio::task::yield_now().await;
            }
        }
        let bytes = Bytes::from(page.borrow().chunks.concat());
        if bytes.len() <= self.cached_bytes_max {
            let Wanted { key, etag, roots, .. } = wanted;
            let page = Page { etag: etag.clone(), roots: roots.clone(), bytes: bytes.clone() };
            self.cache.insert(key.clone(), Arc::new(page));
        }
        Ok(Generated::Whole(bytes))
    }
}

impl Written {
    /// Appends a chunk, unless the page would exceed `bytes_max` or the memory budget is used up.
    fn push(&mut self, chunk: &Bytes, bytes_max: usize, tier: Tier) -> Result<(), Unshared> {
        if self.bytes + chunk.len() > bytes_max {
            return Err(Unshared::TooLong);
        }
        if !self.share.grow(chunk.len()) {
            return Err(Unshared::NoMemory);
        }
        self.bytes += chunk.len();
        self.chunks.push(chunk.clone());
        self.tier = tier;
        Ok(())
    }
}

/// A reader of a page.
struct Reader {
    listings: Listings,
    wanted: Arc<Wanted>,
    source: Arc<RootSource>,
    chunks: ChunkSource,
    /// The number of calls that ended with a leader-only error.
    leader_only_errors: usize,
    /// The bytes that were returned.
    returned: usize,
    /// The bytes that the current source has returned.
    position: usize,
}

/// The source of a reader's chunks.
enum ChunkSource {
    /// A writer that is shared with other readers.
    Shared(Box<SharedRead>),
    /// A writer of its own.
    Alone(Chunks),
    /// All chunks were read.
    End,
}

/// A reader's part in the singleflight call of a page.
struct SharedRead {
    flight: SharedCall<Outcome>,
    /// Its result.
    result: Option<Outcome>,
    written: watch::Receiver<Written>,
    /// The index of the next chunk.
    next: usize,
    /// Whether this reader is a follower.
    joined: bool,
    since: Instant,
}

/// The next part of a shared page.
enum Next {
    Chunk(Bytes, Tier),
    End(Generated),
}

impl SharedRead {
    async fn next(&mut self) -> Result<Next, Problem> {
        loop {
            if self.result.is_none()
                && let Poll::Ready(result) = futures::poll!(&mut self.flight)
            {
                self.result = Some(result);
            }
            // The whole page includes all chunks.
            if let Some(Ok(Generated::Whole(page))) = &self.result {
                return Ok(Next::End(Generated::Whole(page.clone())));
            }
            // Chunks that were written before the end come first.
            if let Some((chunk, tier)) = self.chunk() {
                self.next += 1;
                return Ok(Next::Chunk(chunk, tier));
            }
            if let Some(result) = &self.result {
                return result.clone().map(Next::End);
            }
            tokio::select! {
                biased;
                result = &mut self.flight => self.result = Some(result),
                Ok(()) = self.written.changed() => {}
            }
        }
    }

    fn chunk(&mut self) -> Option<(Bytes, Tier)> {
        let written = self.written.borrow_and_update();
        written.chunks.get(self.next).map(|chunk| (chunk.clone(), written.tier))
    }
}

impl Reader {
    fn of(listings: Listings, wanted: Wanted, source: Arc<RootSource>) -> Self {
        let wanted = Arc::new(wanted);
        let chunks = ChunkSource::Shared(Box::new(listings.inner.join(&wanted, &source)));
        Self { listings, wanted, source, chunks, leader_only_errors: 0, returned: 0, position: 0 }
    }

    /// The next bytes of the page.
    async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        loop {
            let chunk = match &mut self.chunks {
                ChunkSource::End => return Ok(None),
                ChunkSource::Alone(chunks) => match chunks.try_next().await? {
                    Some(chunk) => chunk,
                    None => return Ok(None),
                },
                ChunkSource::Shared(read) => match read.next().await {
                    Ok(Next::Chunk(chunk, tier)) => {
                        self.source.record_tier(tier);
                        chunk
                    }
                    Ok(Next::End(Generated::Whole(page))) => {
                        self.source.record_tier(read.written.borrow().tier);
                        (self.chunks, self.position) = (ChunkSource::End, 0);
                        page
                    }
                    Ok(Next::End(Generated::Unshared(Unshared::NoMemory, _))) if read.joined => {
                        self.retry();
                        continue;
                    }
                    Ok(Next::End(Generated::Unshared(_, rest))) => {
                        self.continue_alone(&rest);
                        continue;
                    }
                    Err(problem) if read.joined && problem.is_leader_only(read.since.elapsed()) => {
                        self.retry();
                        continue;
                    }
                    Err(problem) => return Err(problem),
                },
            };
            if let Some(new) = self.unread_part(chunk) {
                return Ok(Some(new));
            }
        }
    }

    /// Joins a new call, or writes the page alone after too many leader-only errors.
    fn retry(&mut self) {
        self.leader_only_errors += 1;
        self.position = 0;
        self.chunks = if self.leader_only_errors < LEADER_ONLY_ERRORS_MAX {
            ChunkSource::Shared(Box::new(self.listings.inner.join(&self.wanted, &self.source)))
        } else {
            ChunkSource::Alone((self.wanted.writer)(Arc::clone(&self.source)))
        };
    }

    /// Continues alone: the leader with the rest of the page, a follower with a writer of its own.
    fn continue_alone(&mut self, rest: &Mutex<Option<Chunks>>) {
        let began = matches!(&self.chunks, ChunkSource::Shared(read) if !read.joined);
        let rest = if began { rest.lock().unwrap_or_else(PoisonError::into_inner).take() } else { None };
        self.chunks = ChunkSource::Alone(rest.unwrap_or_else(|| {
            self.position = 0;
            (self.wanted.writer)(Arc::clone(&self.source))
        }));
    }

    /// The part of a chunk that the reader has not returned yet, since it may have read it from another source.
    fn unread_part(&mut self, chunk: Bytes) -> Option<Bytes> {
        self.position += chunk.len();
        let new = self.position.checked_sub(self.returned).filter(|new| *new > 0)?;
        self.returned = self.position;
        Some(chunk.slice(chunk.len() - new.min(chunk.len())..))
    }
}

fn weight(key: &Key, page: &Arc<Page>) -> u32 {
    let Key { path, shown, sent, links, after, selection, .. } = key;
    let authority = match links {
        Links::Path => 0,
        Links::Subdomain(authority) | Links::DnsLink(authority) => authority.len(),
    };
    let texts = path.len()
        + shown.len()
        + sent.len()
        + authority
        + after.as_ref().map_or(0, Vec::len)
        + selection.bytes()
        + page.roots.len();
    u32::try_from(texts + page.bytes.len() + ENTRY_OVERHEAD_BYTES).unwrap_or(u32::MAX)
}

impl std::fmt::Debug for Listings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { cache, flights, .. } = &*self.inner;
        f.debug_struct("Listings")
            .field("pages", &cache.entry_count())
            .field("flights", flights)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::HttpMetrics;
    use crate::resolve::source::Sources;
    use content::walk::WalkError;
    use content::{BlockSource, Cid, MemoryBlocks, SourceError, cid};
    use prometheus_client::registry::Registry;
    use proptest::prelude::*;
    use services::limiter::Limiter;
    use std::future::Future as _;
    use std::net::IpAddr;
    use std::task::Context;

    const TOTAL: usize = 1 << 20;

    fn root() -> Cid {
        cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID")
    }

    /// The behaviour of one writer.
    #[derive(Debug, Clone)]
    struct WriterBehaviour {
        /// The chunk before which it fails, and whether the error is leader-only.
        fails: Option<(usize, bool)>,
        /// How often it yields before each chunk.
        turns: usize,
    }

    /// The behaviour of one reader.
    #[derive(Debug, Clone)]
    struct ReaderBehaviour {
        comes_after: usize,
        /// The number of chunks after which it leaves, if it does.
        leaves_after: Option<usize>,
        turns: usize,
        local_only: bool,
    }

    #[derive(Debug, Clone)]
    struct Case {
        chunks: Vec<usize>,
        writers: Vec<WriterBehaviour>,
        readers: Vec<ReaderBehaviour>,
        shared_bytes_max: usize,
        memory_bytes_max: usize,
        budget: usize,
    }

    fn case() -> impl Strategy<Value = Case> {
        let writer = (prop_oneof![2 => Just(None), 1 => (0_usize..8, any::<bool>()).prop_map(Some)], 0_usize..4);
        let writer = writer.prop_map(|(fails, turns)| WriterBehaviour { fails, turns });
        let reader = (0_usize..30, prop_oneof![Just(None), (0_usize..6).prop_map(Some)], 0_usize..4, 0_u8..5).prop_map(
            |(comes_after, leaves_after, turns, local)| ReaderBehaviour {
                comes_after,
                leaves_after,
                turns,
                local_only: local == 0,
            },
        );
        (
            proptest::collection::vec(1_usize..400, 1..12),
            proptest::collection::vec(writer, 0..6),
            proptest::collection::vec(reader, 1..7),
            prop_oneof![Just(TOTAL), 0_usize..2000],
            prop_oneof![Just(TOTAL), Just(0)],
            prop_oneof![Just(TOTAL), 0_usize..2000],
        )
            .prop_map(|(chunks, writers, readers, shared_bytes_max, memory_bytes_max, budget)| Case {
                chunks,
                writers,
                readers,
                shared_bytes_max,
                memory_bytes_max,
                budget,
            })
    }

    /// What a reader got, and its end: `None` if it left.
    type Got = (Vec<u8>, Option<Result<(), Problem>>);

    struct World {
        case: Case,
        page: Vec<u8>,
        listings: Listings,
        memory: Arc<ClientBudgets>,
        sources: Arc<Sources>,
        /// The leader of each call, by the address of its source, and whether the call failed.
        writers: Mutex<Vec<(usize, bool)>>,
    }

    impl World {
        fn new(case: Case) -> Arc<Self> {
            let page = case.chunks.iter().enumerate().flat_map(|(index, bytes)| vec![b'a' + index as u8; *bytes]);
            let budgets = Arc::new(ClientBudgets::new(case.budget));
            let metrics = HttpMetrics::register(&mut Registry::default());
            let (cached, shared) = (case.memory_bytes_max as u64, case.shared_bytes_max as u64);
            let nothing = || Arc::new(MemoryBlocks::new());
            let sources = Sources {
                local: nothing(),
                open_session: Box::new(move |_: &Cid, _| nothing() as Arc<dyn BlockSource>),
                fetches: Arc::new(Limiter::new(1, 1)),
                policy: Arc::new(content::AllowAll),
            };
            Arc::new(Self {
                page: page.collect(),
                listings: Listings::new(cached, shared, Arc::clone(&budgets), metrics.listings.clone()),
                memory: budgets,
                sources: Arc::new(sources),
                writers: Mutex::default(),
                case,
            })
        }

        fn key() -> Key {
            let text = || "/ipfs/x/".to_owned();
            let links = Links::Path;
            Key {
                path: text(),
                shown: text(),
                sent: text(),
                links,
                is_root: false,
                json: true,
                after: None,
                selection: Selection::default(),
                generation: 0,
            }
        }

        fn wanted(self: &Arc<Self>) -> Wanted {
            let world = Arc::clone(self);
            let (etag, roots) = (HeaderValue::from_static("\"x\""), HeaderValue::from_static("x"));
            Wanted { key: Self::key(), etag, roots, writer: Arc::new(move |source| Arc::clone(&world).write(source)) }
        }

        fn write(self: Arc<Self>, source: Arc<RootSource>) -> Chunks {
            let writer = {
                let mut writers = self.writers.lock().expect("is sound");
                writers.push((Arc::as_ptr(&source).addr(), false));
                writers.len() - 1
            };
            let behaviour = self.case.writers.get(writer).cloned().unwrap_or(WriterBehaviour { fails: None, turns: 1 });
            let next = move |index: usize| {
                // The writer holds its source until its end.
                let (world, behaviour, _source) = (Arc::clone(&self), behaviour.clone(), Arc::clone(&source));
                async move {
                    for _ in 0..behaviour.turns {
                        tokio::task::yield_now().await;
                    }
                    if let Some((_, leader_only)) = behaviour.fails.filter(|(before, _)| *before == index) {
                        world.writers.lock().expect("is sound")[writer].1 = true;
                        let error = if leader_only {
                            SourceError::Busy { retry_after: std::time::Duration::ZERO }
                        } else {
                            SourceError::NotFound { cid: root() }
                        };
                        return Err(Problem::Walk(WalkError::Source(error)));
                    }
                    let Some(bytes) = world.case.chunks.get(index) else { return Ok(None) };
                    Ok(Some((Bytes::from(vec![b'a' + index as u8; *bytes]), index + 1)))
                }
            };
            stream::try_unfold(0, next).boxed()
        }

        async fn read(self: Arc<Self>, behaviour: ReaderBehaviour) -> (usize, Got) {
            for _ in 0..behaviour.comes_after {
                tokio::task::yield_now().await;
            }
            let source = RootSource::new(&self.sources, root(), [127, 0, 0, 1].into(), behaviour.local_only);
            let address = Arc::as_ptr(&source).addr();
            let mut got = Vec::new();
            let mut content = match self.listings.read(self.wanted(), &source).await {
                Ok(content) => content,
                Err(problem) => return (address, (got, Some(Err(problem)))),
            };
            for chunks in 0.. {
                if behaviour.leaves_after.is_some_and(|most| chunks >= most) {
                    return (address, (got, None));
                }
                for _ in 0..behaviour.turns {
                    tokio::task::yield_now().await;
                }
                match content.next().await {
                    Some(Ok(bytes)) => got.extend(bytes),
                    Some(Err(problem)) => return (address, (got, Some(Err(problem)))),
                    None => break,
                }
            }
            (address, (got, Some(Ok(()))))
        }

        /// Whatever other readers do, a reader gets a prefix of the page, and an error is either common to all or its
        /// own.
        fn check(&self, address: usize, (got, end): &Got) {
            assert!(self.page.starts_with(got), "{got:?}");
            let writers = self.writers.lock().expect("is sound");
            match end {
                None => {}
                Some(Ok(())) => assert_eq!(got, &self.page),
                Some(Err(problem)) if problem.is_leader_only(std::time::Duration::ZERO) => {
                    assert!(writers.contains(&(address, true)), "its own writer had no permit");
                }
                Some(Err(_)) => assert!(writers.iter().any(|(_, failed)| *failed)),
            }
        }
    }

    async fn play(case: Case) {
        let world = World::new(case);
        let readers: Vec<_> = world
            .case
            .readers
            .iter()
            .map(|behaviour| tokio::spawn(Arc::clone(&world).read(behaviour.clone())))
            .collect();
        let mut ends = Vec::new();
        for reader in readers {
            let (address, got) = reader.await.expect("no reader panics");
            world.check(address, &got);
            ends.push(got.1);
        }
        // Detached tasks are dropped when the runtime runs others.
        while world.memory.all().left() != world.case.budget || world.listings.under_way() != 0 {
            tokio::task::yield_now().await;
        }
        let page = world.listings.get(&World::key());
        if let Some(page) = &page {
            assert_eq!(page.bytes, world.page);
        }
        let Case { shared_bytes_max, memory_bytes_max, budget, .. } = world.case;
        // All readers are one client, which can use three quarters of the budget.
        let share = (budget - budget / 4) / world.case.readers.len();
        let fits = world.page.len() <= shared_bytes_max.min(share).min(memory_bytes_max / 16);
        let is_whole = ends.iter().any(|end| matches!(end, Some(Ok(()))));
        let leader_only_errors =
            world.case.writers.iter().filter(|behaviour| matches!(behaviour.fails, Some((_, true)))).count();
        // A page that was written for one reader is not cached.
        assert!(
            !(fits && is_whole) || leader_only_errors >= LEADER_ONLY_ERRORS_MAX || page.is_some(),
            "a page that was read completely is cached"
        );
    }

    proptest! {
        #[test]
        fn every_reader_gets_the_page_whatever_other_readers_do(case in case()) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
            runtime.block_on(async {
                tokio::time::timeout(std::time::Duration::from_secs(20), play(case)).await.expect("an end");
            });
        }
    }

    #[tokio::test]
    async fn followers_share_a_page_whose_leader_has_no_memory_left() {
        let case = Case {
            chunks: vec![200; 4],
            writers: Vec::new(),
            readers: Vec::new(),
            shared_bytes_max: TOTAL,
            memory_bytes_max: TOTAL,
            budget: 4000,
        };
        let world = World::new(case);
        let mut held = Share::of(Some(world.memory.of(IpAddr::from([192, 0, 2, 1]))));
        assert!(held.grow(3000 - 300), "the leader has room for one chunk");
        let reading = |client: [u8; 4]| {
            let source = RootSource::new(&world.sources, root(), client.into(), false);
            let world = &world;
            async move {
                let content = world.listings.read(world.wanted(), &source).await.expect("a page");
                content.map(|chunk| chunk.expect("a chunk")).collect::<Vec<_>>().await.concat()
            }
        };
        let (leader, first, second) =
            tokio::join!(reading([192, 0, 2, 1]), reading([192, 0, 2, 2]), reading([192, 0, 2, 3]),);
        assert!([leader, first, second].iter().all(|page| *page == world.page));
        // The leader writes the page for itself, and one of the followers for all others.
        assert_eq!(world.writers.lock().expect("is sound").len(), 2);
        assert_eq!(world.listings.get(&World::key()).expect("is cached").bytes, world.page);
    }

    #[tokio::test]
    async fn a_page_that_is_complete_at_once_has_a_length() {
        let chunks = vec![100, 50];
        let writers = vec![WriterBehaviour { fails: None, turns: 0 }];
        let (shared_bytes_max, memory_bytes_max, budget) = (TOTAL, TOTAL, TOTAL);
        let world =
            World::new(Case { chunks, writers, readers: Vec::new(), shared_bytes_max, memory_bytes_max, budget });
        let source = RootSource::new(&world.sources, root(), [127, 0, 0, 1].into(), false);
        let mut reading = Box::pin(world.listings.read(world.wanted(), &source));
        let Poll::Ready(content) = reading.as_mut().poll(&mut Context::from_waker(futures::task::noop_waker_ref()))
        else {
            panic!("the page is not complete at once");
        };
        assert_eq!(content.expect("a page").length(), Some(150));
        let page = world.listings.get(&World::key()).expect("is cached");
        assert_eq!((&page.bytes[..], world.writers.lock().expect("is sound").len()), (&world.page[..], 1));
    }
}
